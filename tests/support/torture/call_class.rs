//! The system calls that are made to fail, in classes that fail alike.

use std::fmt;

use nix::libc;

use crate::torture::fault::{Code, Fault};

/// System calls that take the same faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallClass {
    /// Opens what is there, to read it.
    OpenToRead,
    /// Opens to write, or makes a file.
    OpenToWrite,
    /// Reads a file.
    Read,
    /// Writes a file.
    Write,
    /// Reads a directory.
    List,
    /// Asks for what is known of a file.
    Stat,
    /// Reads a link.
    ReadLink,
    /// Renames.
    Rename,
    /// Gives a file another name, or makes a link.
    Link,
    /// Makes a directory.
    MakeDirectory,
    /// Removes a name.
    Remove,
    /// Waits until the disk has it.
    Sync,
    /// Changes the length of a file.
    Resize,
    /// Changes mode, owner or times.
    Attributes,
    /// Takes or frees a lock of a file.
    Lock,
    /// Takes or frees a lock of some bytes of a file, as SQLite does.
    RecordLock,
    /// Makes a descriptor that is no file.
    Descriptor,
    /// Starts a thread or a process.
    Thread,
}

/// A system call that is about to be made.
#[derive(Clone, Debug)]
pub struct Made {
    /// Its number.
    pub number: i64,
    /// Its arguments.
    pub args: [u64; 6],
}

/// How a call says which file it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The descriptor in the first argument.
    Descriptor,
    /// The path that this argument points to.
    Path(usize),
    /// None.
    Nothing,
}

impl CallClass {
    /// Every class.
    pub const ALL: [Self; 18] = [
        Self::OpenToRead,
        Self::OpenToWrite,
        Self::Read,
        Self::Write,
        Self::List,
        Self::Stat,
        Self::ReadLink,
        Self::Rename,
        Self::Link,
        Self::MakeDirectory,
        Self::Remove,
        Self::Sync,
        Self::Resize,
        Self::Attributes,
        Self::Lock,
        Self::RecordLock,
        Self::Descriptor,
        Self::Thread,
    ];

    /// The classes that change something that another process can see.
    pub const MUTATING: [Self; 9] = [
        Self::OpenToWrite,
        Self::Write,
        Self::Rename,
        Self::Link,
        Self::MakeDirectory,
        Self::Remove,
        Self::Sync,
        Self::Resize,
        Self::Attributes,
    ];

    /// What its manual pages say that can happen to it, and death.
    pub fn faults(self) -> &'static [Fault] {
        use Code::{Access, Interrupted, Io, NoSpace, ReadOnly, TooManyFiles};
        use Fault::{Fails, Kill, Short};
        match self {
            Self::OpenToRead => &[
                Fails(Io),
                Fails(Access),
                Fails(TooManyFiles),
                Fails(Interrupted),
                Kill,
            ],
            Self::OpenToWrite => &[
                Fails(Io),
                Fails(NoSpace),
                Fails(Access),
                Fails(TooManyFiles),
                Fails(ReadOnly),
                Fails(Interrupted),
                Kill,
            ],
            Self::Read => &[Fails(Io), Fails(Interrupted), Short, Kill],
            Self::Write => &[Fails(Io), Fails(NoSpace), Fails(Interrupted), Short, Kill],
            Self::List => &[Fails(Io), Kill],
            Self::Stat | Self::ReadLink => &[Fails(Io), Fails(Access), Kill],
            Self::Rename | Self::Link | Self::MakeDirectory => &[
                Fails(Io),
                Fails(NoSpace),
                Fails(Access),
                Fails(ReadOnly),
                Kill,
            ],
            Self::Remove | Self::Attributes => &[Fails(Io), Fails(Access), Fails(ReadOnly), Kill],
            Self::Sync => &[Fails(Io), Fails(NoSpace), Kill],
            Self::Resize => &[Fails(Io), Fails(NoSpace), Fails(Interrupted), Kill],
            // Nobody waits in the kernel for a lock here, so nothing interrupts it.
            Self::Lock => &[Fails(Io), Kill],
            // SQLite takes any failure for a lock that somebody holds, and waits for it to go.
            Self::RecordLock => &[Kill],
            Self::Descriptor => &[Fails(TooManyFiles), Kill],
            // Threads that cannot be started are left out: the runtimes that start them give up in
            // words of their own.
            Self::Thread => &[Kill],
        }
    }

    /// The class of a call. Whether one that opens is to write has to be looked up for `openat2`,
    /// which has its flags in memory.
    pub fn of(made: &Made, open_flags: impl FnOnce(u64) -> u64) -> Option<Self> {
        let name = NUMBERS
            .iter()
            .find(|(number, _, _)| *number == made.number)?;
        Some(match name.1 {
            Family::Is(class) => class,
            Family::Open(at) => opens(made.args[at]),
            Family::OpenHow => opens(open_flags(made.args[2])),
            Family::Control => {
                let command = i32::try_from(made.args[1]).ok()?;
                match command {
                    libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
                        Self::RecordLock
                    }
                    libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => Self::Descriptor,
                    _ => return None,
                }
            }
        })
    }

    /// The numbers of its calls; some belong to other classes too.
    pub fn numbers(self) -> impl Iterator<Item = i64> {
        NUMBERS
            .iter()
            .filter(move |(_, family, _)| match family {
                Family::Is(class) => *class == self,
                Family::Open(_) | Family::OpenHow => {
                    matches!(self, Self::OpenToRead | Self::OpenToWrite)
                }
                Family::Control => matches!(self, Self::RecordLock | Self::Descriptor),
            })
            .map(|(number, _, _)| *number)
    }
}

impl Made {
    /// Which file it is about.
    pub fn subject(&self) -> Subject {
        let found = NUMBERS.iter().find(|(number, _, _)| *number == self.number);
        found.map_or(Subject::Nothing, |(_, _, subject)| *subject)
    }

    /// Which argument says how many bytes are wanted, for one that may do fewer.
    pub fn length_at(&self) -> Option<usize> {
        COUNTED
            .iter()
            .find(|(number, _)| *number == self.number)
            .map(|(_, at)| *at)
    }
}

fn opens(flags: u64) -> CallClass {
    let writing = [libc::O_WRONLY, libc::O_RDWR, libc::O_CREAT, libc::O_TRUNC];
    let writes = writing
        .into_iter()
        .any(|flag| flags & u64::from(flag.unsigned_abs()) != 0);
    match writes {
        true => CallClass::OpenToWrite,
        false => CallClass::OpenToRead,
    }
}

impl fmt::Display for CallClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenToRead => "open to read",
            Self::OpenToWrite => "open to write",
            Self::Read => "read",
            Self::Write => "write",
            Self::List => "list",
            Self::Stat => "stat",
            Self::ReadLink => "read link",
            Self::Rename => "rename",
            Self::Link => "link",
            Self::MakeDirectory => "make directory",
            Self::Remove => "remove",
            Self::Sync => "sync",
            Self::Resize => "resize",
            Self::Attributes => "attributes",
            Self::Lock => "lock",
            Self::RecordLock => "record lock",
            Self::Descriptor => "descriptor",
            Self::Thread => "thread",
        })
    }
}

/// What a number means for the class.
#[derive(Clone, Copy)]
enum Family {
    Is(CallClass),
    /// The flags are in this argument.
    Open(usize),
    /// The flags are the first word of what the third argument points to.
    OpenHow,
    /// `fcntl`, which does many things.
    Control,
}

/// `copy_file_range` and `sendfile` are no part of it: they are asked for as many bytes as there
/// may be, so half of that is no less.
const COUNTED: [(i64, usize); 4] = [
    (libc::SYS_read, 2),
    (libc::SYS_pread64, 2),
    (libc::SYS_write, 2),
    (libc::SYS_pwrite64, 2),
];

// Not socketpair: the runtime makes one for signals, and gives up without it in words of its own.
#[cfg(target_arch = "x86_64")]
const NUMBERS: [(i64, Family, Subject); 57] = {
    use CallClass as C;
    use Family::{Control, Is, Open, OpenHow};
    use Subject::{Descriptor, Nothing, Path};
    [
        (libc::SYS_open, Open(1), Path(0)),
        (libc::SYS_openat, Open(2), Path(1)),
        (libc::SYS_openat2, OpenHow, Path(1)),
        (libc::SYS_creat, Is(C::OpenToWrite), Path(0)),
        (libc::SYS_read, Is(C::Read), Descriptor),
        (libc::SYS_pread64, Is(C::Read), Descriptor),
        (libc::SYS_readv, Is(C::Read), Descriptor),
        (libc::SYS_preadv, Is(C::Read), Descriptor),
        (libc::SYS_write, Is(C::Write), Descriptor),
        (libc::SYS_pwrite64, Is(C::Write), Descriptor),
        (libc::SYS_writev, Is(C::Write), Descriptor),
        (libc::SYS_pwritev, Is(C::Write), Descriptor),
        (libc::SYS_copy_file_range, Is(C::Write), Descriptor),
        (libc::SYS_sendfile, Is(C::Write), Descriptor),
        (libc::SYS_getdents64, Is(C::List), Descriptor),
        (libc::SYS_stat, Is(C::Stat), Path(0)),
        (libc::SYS_lstat, Is(C::Stat), Path(0)),
        (libc::SYS_newfstatat, Is(C::Stat), Path(1)),
        (libc::SYS_statx, Is(C::Stat), Path(1)),
        (libc::SYS_access, Is(C::Stat), Path(0)),
        (libc::SYS_faccessat, Is(C::Stat), Path(1)),
        (libc::SYS_faccessat2, Is(C::Stat), Path(1)),
        (libc::SYS_readlink, Is(C::ReadLink), Path(0)),
        (libc::SYS_readlinkat, Is(C::ReadLink), Path(1)),
        (libc::SYS_rename, Is(C::Rename), Path(1)),
        (libc::SYS_renameat, Is(C::Rename), Path(3)),
        (libc::SYS_renameat2, Is(C::Rename), Path(3)),
        (libc::SYS_link, Is(C::Link), Path(1)),
        (libc::SYS_linkat, Is(C::Link), Path(3)),
        (libc::SYS_symlink, Is(C::Link), Path(1)),
        (libc::SYS_symlinkat, Is(C::Link), Path(2)),
        (libc::SYS_mkdir, Is(C::MakeDirectory), Path(0)),
        (libc::SYS_mkdirat, Is(C::MakeDirectory), Path(1)),
        (libc::SYS_unlink, Is(C::Remove), Path(0)),
        (libc::SYS_unlinkat, Is(C::Remove), Path(1)),
        (libc::SYS_rmdir, Is(C::Remove), Path(0)),
        (libc::SYS_fsync, Is(C::Sync), Descriptor),
        (libc::SYS_fdatasync, Is(C::Sync), Descriptor),
        (libc::SYS_syncfs, Is(C::Sync), Descriptor),
        (libc::SYS_ftruncate, Is(C::Resize), Descriptor),
        (libc::SYS_truncate, Is(C::Resize), Path(0)),
        (libc::SYS_fallocate, Is(C::Resize), Descriptor),
        (libc::SYS_fchmod, Is(C::Attributes), Descriptor),
        (libc::SYS_chmod, Is(C::Attributes), Path(0)),
        (libc::SYS_fchmodat, Is(C::Attributes), Path(1)),
        (libc::SYS_fchown, Is(C::Attributes), Descriptor),
        (libc::SYS_fchownat, Is(C::Attributes), Path(1)),
        (libc::SYS_utimensat, Is(C::Attributes), Path(1)),
        (libc::SYS_flock, Is(C::Lock), Descriptor),
        (libc::SYS_fcntl, Control, Descriptor),
        (libc::SYS_epoll_create1, Is(C::Descriptor), Nothing),
        (libc::SYS_eventfd2, Is(C::Descriptor), Nothing),
        (libc::SYS_pipe2, Is(C::Descriptor), Nothing),
        (libc::SYS_dup, Is(C::Descriptor), Descriptor),
        (libc::SYS_clone3, Is(C::Thread), Nothing),
        (libc::SYS_clone, Is(C::Thread), Nothing),
        (libc::SYS_vfork, Is(C::Thread), Nothing),
    ]
};

/// Registers are read on one architecture only: see [`crate::torture::tracer`].
#[cfg(not(target_arch = "x86_64"))]
const NUMBERS: [(i64, Family, Subject); 0] = [];

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;

    fn class_of(number: i64, args: [u64; 6], flags: i32) -> Option<CallClass> {
        let flags = u64::from(flags.unsigned_abs());
        CallClass::of(&Made { number, args }, |_| flags)
    }

    #[test]
    fn what_opens_is_told_apart_by_its_flags() {
        let open = |flags: i32| {
            let args = [0, 0, u64::from(flags.unsigned_abs()), 0, 0, 0];
            class_of(libc::SYS_openat, args, 0)
        };
        assert_eq!(open(libc::O_CLOEXEC), Some(CallClass::OpenToRead));
        assert_eq!(open(libc::O_RDWR), Some(CallClass::OpenToWrite));
        let how = class_of(libc::SYS_openat2, [0; 6], libc::O_CREAT);
        assert_eq!(how, Some(CallClass::OpenToWrite));
    }

    #[test]
    fn every_class_has_calls_and_faults_and_every_call_a_class() {
        for class in CallClass::ALL {
            assert!(class.numbers().next().is_some(), "{class}");
            assert!(class.faults().contains(&Fault::Kill), "{class}");
        }
        for (number, _, _) in NUMBERS {
            let args = [0, u64::from(libc::F_SETLK.unsigned_abs()), 0, 0, 0, 0];
            let class = class_of(number, args, 0).expect("every number has a class");
            assert!(class.numbers().any(|n| n == number), "{class}");
        }
        assert_eq!(class_of(libc::SYS_futex, [0; 6], 0), None);
        let asks = [0, u64::from(libc::F_GETFD.unsigned_abs()), 0, 0, 0, 0];
        assert_eq!(class_of(libc::SYS_fcntl, asks, 0), None);
    }
}
