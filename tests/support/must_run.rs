//! Which tests may end early because this machine does not let them do their work.
//!
//! `STILLFRAME_TESTS_MUST_RUN` lists the capabilities that a machine is known to have, as
//! [`Capability::name`] spells them, with commas in between: there, a test that does without one of
//! them has failed. Without the variable it passes, and says why it did nothing.

#![allow(unreachable_pub, reason = "more than one crate of tests has this file")]

use std::io::Write as _;

/// The variable with the list.
const LIST: &str = "STILLFRAME_TESTS_MUST_RUN";

/// What a test may need that not every machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each crate of tests needs others")]
pub enum Capability {
    /// To be root: to give files away.
    Root,
    /// To run a program as a user whom permissions bind.
    OtherUser,
    /// To trace system calls of a program, and to make them fail.
    Strace,
    /// To trace a program with ptrace and a filter of system calls, without strace.
    Ptrace,
    /// A second file system that can be written to.
    OtherFileSystem,
    /// `script(1)`, which gives a program a terminal.
    Script,
    /// To mount file systems.
    Mounts,
    /// To make files immutable.
    Immutable,
    /// To serve a block device, with FUSE and a loop device, and to mount ext4 from it.
    BlockDevice,
    /// To set limits for a user namespace of its own.
    UserNamespaces,
    /// To give files extended attributes of the user's, in the temporary directory.
    ExtendedAttributes,
    /// To make files with holes, in the temporary directory.
    Holes,
    /// The programs of servers: lighttpd and OpenSSH.
    Servers,
}

impl Capability {
    const ALL: [Self; 13] = [
        Self::Root,
        Self::OtherUser,
        Self::Strace,
        Self::Ptrace,
        Self::OtherFileSystem,
        Self::Script,
        Self::Mounts,
        Self::Immutable,
        Self::BlockDevice,
        Self::UserNamespaces,
        Self::ExtendedAttributes,
        Self::Holes,
        Self::Servers,
    ];

    /// How the list spells it.
    fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::OtherUser => "other-user",
            Self::Strace => "strace",
            Self::Ptrace => "ptrace",
            Self::OtherFileSystem => "other-file-system",
            Self::Script => "script",
            Self::Mounts => "mounts",
            Self::Immutable => "immutable",
            Self::BlockDevice => "block-device",
            Self::UserNamespaces => "user-namespaces",
            Self::ExtendedAttributes => "extended-attributes",
            Self::Holes => "holes",
            Self::Servers => "servers",
        }
    }
}

/// Says why a test ends early; fails it where the machine is said to have what it lacks.
#[track_caller]
pub fn skipped(capability: Capability, why: &str) {
    let list = std::env::var(LIST).unwrap_or_default();
    assert!(
        !must_run(&list, capability),
        "this machine is said to have {:?} ({LIST}={list}), but: {why}",
        capability.name()
    );
    let test = std::thread::current();
    let test = test.name().unwrap_or("a test").to_owned();
    // Not through `eprintln`, which only the tests that fail are heard through.
    let _ = writeln!(
        std::io::stderr(),
        "skipped: {test}: {why} ({})",
        capability.name()
    );
}

/// Whether `list` names the capability. A name that is none is a mistake, and fails.
fn must_run(list: &str, capability: Capability) -> bool {
    let names = list.split(',').map(str::trim).filter(|n| !n.is_empty());
    let mut named = false;
    for name in names {
        let known = Capability::ALL.into_iter().find(|c| c.name() == name);
        let known = known.unwrap_or_else(|| {
            let all = Capability::ALL.map(Capability::name).join(", ");
            panic!("{LIST} names {name:?}, which is none of {all}")
        });
        named |= known == capability;
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_what_must_run_and_nothing_else() {
        assert!(!must_run("", Capability::Strace));
        assert!(must_run("root, strace,", Capability::Strace));
        assert!(!must_run("root,script", Capability::Strace));
        let typo = std::panic::catch_unwind(|| must_run("stace", Capability::Strace));
        assert!(typo.is_err(), "a name that is none asks for nothing");
    }
}
