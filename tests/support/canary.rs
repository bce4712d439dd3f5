//! Programs that a hostile repository names, and that say so when they are run.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::{TestWorkspace, git};

/// A place where programs leave a mark when they run.
pub struct Canary {
    dir: PathBuf,
}

impl Canary {
    /// Makes the place, outside of the workspace.
    pub fn new(ws: &TestWorkspace) -> Self {
        let dir = ws.base().join("canary");
        fs::create_dir(&dir).expect("a test has one canary");
        Self { dir }
    }

    /// A program that leaves a mark and then does `body`, a shell script.
    pub fn program(&self, name: &str, body: &str) -> String {
        let path = self.dir.join(name);
        let mark = self.mark();
        let script = format!(
            "#!/bin/sh\necho '{name}' \"$@\" >> '{}'\n{body}\n",
            mark.display()
        );
        fs::write(&path, script).expect("the directory is writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        path.to_str().expect("paths of tests are text").to_owned()
    }

    /// What has been run since the last [`Canary::reset`].
    pub fn fired(&self) -> String {
        fs::read_to_string(self.mark()).unwrap_or_default()
    }

    /// Forgets what has been run.
    pub fn reset(&self) {
        let _ = fs::remove_file(self.mark());
    }

    fn mark(&self) -> PathBuf {
        self.dir.join("fired")
    }
}

/// A way in which a repository makes git run a program.
pub struct Trap {
    /// What it is called in messages.
    pub name: &'static str,
    /// Sets it up in the workspace.
    pub arm: fn(&TestWorkspace, &Canary),
    /// Has git, in a copy of the workspace, run into it.
    pub trip: fn(&Trip<'_>),
}

/// git at work in a copy of the workspace.
pub struct Trip<'a> {
    home: PathBuf,
    dir: &'a Path,
}

impl<'a> Trip<'a> {
    /// For a copy at `dir`.
    pub fn new(ws: &TestWorkspace, dir: &'a Path) -> Self {
        Self {
            home: ws.home(),
            dir,
        }
    }

    /// Runs git; that it fails is fine, because many a canary makes it fail.
    fn git(&self, args: &[&str]) {
        let _ = git::call(&self.home, self.dir, args).run();
    }

    fn edit(&self) {
        fs::write(self.dir.join("README"), "edited\n").expect("the copy is writable");
    }
}

fn config(ws: &TestWorkspace, key: &str, value: &str) {
    ws.git(["config", key, value]);
}

fn attributes(ws: &TestWorkspace, rule: &str) {
    let file = ws.root().join(".git/info/attributes");
    fs::create_dir_all(file.parent().expect("it has one")).expect("the directory can be made");
    fs::write(file, rule).expect("the repository is writable");
}

fn hook(ws: &TestWorkspace, canary: &Canary, name: &str) {
    let program = canary.program(name, "exit 0");
    let hooks = ws.root().join(".git/hooks");
    fs::create_dir_all(&hooks).expect("the directory can be made");
    let path = hooks.join(name);
    let _ = fs::remove_file(&path);
    std::os::unix::fs::symlink(program, path).expect("a hook can be a link");
}

/// A repository to set traps in: the file `README`, and a branch `other` that changed it.
pub fn bait() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    ws.git(["checkout", "-q", "-b", "other"]);
    ws.write("README", "other\n");
    ws.commit("other");
    ws.git(["checkout", "-q", "main"]);
    ws
}

/// Every trap, for a workspace that [`bait`] made.
pub const TRAPS: &[Trap] = &[
    Trap {
        name: "fsmonitor",
        arm: |ws, canary| config(ws, "core.fsmonitor", &canary.program("fsmonitor", "exit 1")),
        trip: |trip| trip.git(&["status"]),
    },
    Trap {
        name: "post_index_change_hook",
        arm: |ws, canary| hook(ws, canary, "post-index-change"),
        trip: |trip| {
            trip.edit();
            trip.git(&["add", "README"]);
        },
    },
    Trap {
        name: "post_checkout_hook",
        arm: |ws, canary| hook(ws, canary, "post-checkout"),
        trip: |trip| trip.git(&["checkout", "-q", "other"]),
    },
    Trap {
        name: "pre_commit_hook",
        arm: |ws, canary| hook(ws, canary, "pre-commit"),
        trip: |trip| trip.git(&["commit", "-q", "--allow-empty", "-m", "x"]),
    },
    Trap {
        name: "reference_transaction_hook",
        arm: |ws, canary| hook(ws, canary, "reference-transaction"),
        trip: |trip| trip.git(&["update-ref", "refs/heads/third", "HEAD"]),
    },
    Trap {
        name: "hooks_path",
        arm: |ws, canary| {
            let program = canary.program("pre-commit", "exit 0");
            let dir = Path::new(&program)
                .parent()
                .expect("it lies in a directory");
            config(ws, "core.hooksPath", dir.to_str().expect("it is text"));
        },
        trip: |trip| trip.git(&["commit", "-q", "--allow-empty", "-m", "x"]),
    },
    Trap {
        name: "clean_filter",
        arm: |ws, canary| {
            config(
                ws,
                "filter.canary.clean",
                &canary.program("clean", "exec cat"),
            );
            attributes(ws, "* filter=canary\n");
        },
        trip: |trip| {
            trip.edit();
            trip.git(&["add", "README"]);
        },
    },
    Trap {
        name: "smudge_filter",
        arm: |ws, canary| {
            config(
                ws,
                "filter.canary.smudge",
                &canary.program("smudge", "exec cat"),
            );
            attributes(ws, "* filter=canary\n");
        },
        trip: |trip| {
            trip.edit();
            trip.git(&["checkout", "--", "README"]);
        },
    },
    Trap {
        name: "process_filter",
        arm: |ws, canary| {
            config(
                ws,
                "filter.canary.process",
                &canary.program("process", "exit 1"),
            );
            config(ws, "filter.canary.required", "true");
            ws.write(".gitattributes", "* filter=canary\n");
        },
        trip: |trip| {
            trip.edit();
            trip.git(&["add", "README"]);
        },
    },
    Trap {
        name: "textconv",
        arm: |ws, canary| {
            let program = canary.program("textconv", "exec cat \"$1\"");
            config(ws, "diff.canary.textconv", &program);
            attributes(ws, "* diff=canary\n");
        },
        trip: |trip| {
            trip.edit();
            trip.git(&["diff"]);
        },
    },
    Trap {
        name: "diff_driver_command",
        arm: |ws, canary| {
            config(
                ws,
                "diff.canary.command",
                &canary.program("driver", "exit 0"),
            );
            attributes(ws, "* diff=canary\n");
        },
        trip: |trip| {
            trip.edit();
            trip.git(&["diff"]);
        },
    },
    Trap {
        name: "external_diff",
        arm: |ws, canary| config(ws, "diff.external", &canary.program("external", "exit 0")),
        trip: |trip| {
            trip.edit();
            trip.git(&["diff"]);
        },
    },
    Trap {
        name: "merge_driver",
        arm: |ws, canary| {
            config(
                ws,
                "merge.canary.driver",
                &canary.program("merge", "exit 0"),
            );
            attributes(ws, "* merge=canary\n");
        },
        trip: |trip| {
            trip.edit();
            trip.git(&["commit", "-q", "-a", "-m", "ours"]);
            trip.git(&["merge", "-q", "other"]);
        },
    },
    Trap {
        name: "ssh_command",
        arm: |ws, canary| {
            config(ws, "core.sshCommand", &canary.program("ssh", "exit 1"));
            ws.git(["remote", "add", "origin", "ssh://example.invalid/x"]);
        },
        trip: |trip| trip.git(&["fetch", "origin"]),
    },
    Trap {
        name: "git_proxy",
        arm: |ws, canary| {
            config(ws, "core.gitProxy", &canary.program("proxy", "exit 1"));
            ws.git(["remote", "add", "origin", "git://example.invalid/x"]);
        },
        trip: |trip| trip.git(&["fetch", "origin"]),
    },
    Trap {
        name: "remote_helper",
        arm: |ws, canary| {
            config(ws, "protocol.ext.allow", "always");
            let program = canary.program("ext", "exit 1");
            ws.git(["remote", "add", "origin", &format!("ext::{program}")]);
        },
        trip: |trip| trip.git(&["fetch", "origin"]),
    },
    Trap {
        name: "credential_helper",
        arm: |ws, canary| {
            config(ws, "credential.helper", &canary.program("helper", "exit 0"));
        },
        trip: |trip| {
            let call = git::call(&trip.home, trip.dir, ["credential", "fill"]);
            let _ = call.stdin("protocol=https\nhost=example.invalid\n\n").run();
        },
    },
    Trap {
        name: "ask_pass",
        arm: |ws, canary| config(ws, "core.askPass", &canary.program("askpass", "exit 1")),
        trip: |trip| {
            let call = git::call(&trip.home, trip.dir, ["credential", "fill"]);
            let _ = call.stdin("protocol=https\nhost=example.invalid\n\n").run();
        },
    },
    Trap {
        name: "editor",
        arm: |ws, canary| config(ws, "core.editor", &canary.program("editor", "exit 1")),
        trip: |trip| {
            let call = git::call(&trip.home, trip.dir, ["commit", "--allow-empty"]);
            let _ = call.env_remove("GIT_EDITOR").run();
        },
    },
    Trap {
        name: "signing_program",
        arm: |ws, canary| {
            config(ws, "gpg.program", &canary.program("gpg", "exit 1"));
            config(ws, "commit.gpgSign", "true");
            config(ws, "tag.gpgSign", "true");
        },
        trip: |trip| trip.git(&["commit", "-q", "--allow-empty", "-m", "x"]),
    },
    Trap {
        name: "alias",
        arm: |ws, canary| {
            let program = canary.program("alias", "exit 0");
            config(ws, "alias.snapshot", &format!("!{program}"));
        },
        trip: |trip| trip.git(&["snapshot"]),
    },
    Trap {
        name: "alternate_refs_command",
        arm: |ws, canary| {
            config(
                ws,
                "core.alternateRefsCommand",
                &canary.program("refs", "exit 0"),
            );
            let objects = ws.root().join(".git/objects/info");
            ws.git_in("outside", ["init", "-q", "lender"]);
            let lender = ws.outside().join("lender/.git/objects");
            fs::create_dir_all(&objects).expect("the directory can be made");
            fs::write(
                objects.join("alternates"),
                format!("{}\n", lender.display()),
            )
            .expect("the repository is writable");
        },
        trip: |trip| {
            trip.git(&["init", "-q", "--bare", "../remote-of-the-copy"]);
            trip.git(&["receive-pack", "."]);
        },
    },
    Trap {
        name: "included_config",
        arm: |ws, canary| {
            let program = canary.program("included", "exit 1");
            let file = ws.outside().join("config");
            fs::write(&file, format!("[core]\n\tfsmonitor = {program}\n"))
                .expect("the directory is writable");
            config(ws, "include.path", file.to_str().expect("it is text"));
        },
        trip: |trip| trip.git(&["status"]),
    },
    Trap {
        name: "attributes_file",
        arm: |ws, canary| {
            let file = ws.outside().join("attributes");
            fs::write(&file, "* filter=canary\n").expect("the directory is writable");
            config(
                ws,
                "core.attributesFile",
                file.to_str().expect("it is text"),
            );
            config(
                ws,
                "filter.canary.clean",
                &canary.program("clean", "exec cat"),
            );
        },
        trip: |trip| {
            trip.edit();
            trip.git(&["add", "README"]);
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle;

    #[test]
    fn every_trap_has_teeth() {
        for trap in TRAPS {
            let ws = bait();
            let canary = Canary::new(&ws);
            (trap.arm)(&ws, &canary);
            canary.reset();
            let copy = oracle::copy_repository(&ws);
            (trap.trip)(&Trip::new(&ws, copy.path()));
            assert_ne!(canary.fired(), "", "{} makes git run a program", trap.name);
        }
    }
}
