//! What this machine lets a test do. A test that cannot be done here says so and ends, or fails if
//! the machine is said to let it: see [`skipped`].

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::call::{Call, Running};

pub use crate::must_run::{Capability, skipped};

/// Mounts that no other process sees. They are gone when it is dropped.
pub struct Mounts {
    holder: Running,
}

impl Mounts {
    /// A mount namespace of its own; `None` where that takes more privileges than we have.
    pub fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skipped(Capability::Mounts, "mounting takes root");
            return None;
        }
        let script = "mount --make-rprivate / && echo ready && exec sleep 600";
        let mut holder = Call::new("unshare", "/")
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .args(["-m", "/bin/sh", "-c", script])
            .start();
        let mut refused = false;
        holder.until("the namespace is there", |h| {
            refused = rustix::process::test_kill_process(h.pid()).is_err();
            refused || h.stdout_so_far().contains("ready")
        });
        if refused {
            let why = "this kernel gives us no mount namespace";
            skipped(Capability::Mounts, why);
            return None;
        }
        Some(Self { holder })
    }

    /// Runs a shell script in there and asserts success.
    #[track_caller]
    pub fn shell(&self, script: &str) {
        let call = Call::new("/bin/sh", "/")
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .args(["-c", script]);
        self.inside(call, Path::new("/")).run().ok();
    }

    /// Mounts an empty file system of this size in memory on the directory `at`.
    #[track_caller]
    pub fn tmpfs(&self, at: &Path, size: &str) {
        let at = at.to_str().expect("paths of tests are text");
        self.shell(&format!(
            "mount -t tmpfs -o size={size},mode=755 tmpfs '{at}'"
        ));
    }

    /// The same call, seeing these mounts, in the directory `cwd`.
    pub fn inside(&self, call: Call, cwd: &Path) -> Call {
        let namespace = format!(
            "--mount=/proc/{}/ns/mnt",
            self.holder.pid().as_raw_nonzero()
        );
        call.through("env", [std::ffi::OsStr::new("-C"), cwd.as_os_str()])
            .through("nsenter", [namespace.as_str(), "--"])
    }

    /// Where this process finds a path of the namespace.
    pub fn path(&self, path: &Path) -> PathBuf {
        let root = format!("/proc/{}/root", self.holder.pid().as_raw_nonzero());
        Path::new(&root).join(path.strip_prefix("/").expect("it is absolute"))
    }
}

/// Whether this is root, who can give files away.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skipped(Capability::Root, "only root can give files away");
    }
    is_root
}

/// A directory on another file system than the temporary directory's, if there is one.
pub fn other_file_system() -> Option<PathBuf> {
    let device = |path: &Path| fs::metadata(path).map(|m| m.dev()).ok();
    let here = device(&std::env::temp_dir());
    for other in ["/dev/shm", "/var/tmp"].map(Path::new) {
        let is_other = device(other).is_some() && device(other) != here;
        if is_other && tempfile::tempdir_in(other).is_ok() {
            return Some(other.to_owned());
        }
    }
    let why = "there is no second file system";
    skipped(Capability::OtherFileSystem, why);
    None
}

/// A file that nobody can change or remove while this lives.
pub struct Immutable {
    path: PathBuf,
}

impl Immutable {
    /// Makes the file at `path` immutable; `None` where that is not possible.
    pub fn new(path: PathBuf) -> Option<Self> {
        if !Self::chattr("+i", &path) {
            let why = "files cannot be made immutable here";
            skipped(Capability::Immutable, why);
            return None;
        }
        Some(Self { path })
    }

    fn chattr(flag: &str, path: &Path) -> bool {
        // Through env, so that a missing program is an exit code and no panic.
        Call::new("env", "/")
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .args(["chattr".as_ref(), flag.as_ref(), path.as_os_str()])
            .run()
            .code
            == 0
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        Self::chattr("-i", &self.path);
    }
}

/// Whether strace can make system calls of a program fail.
pub fn can_inject() -> bool {
    let call = Call::new("env", "/")
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .args(["strace", "-f", "-o", "/dev/null", "-e", "trace=none"])
        .args(["-e", "inject=mkdirat:error=EIO:when=1000", "true"]);
    let works = call.run().code == 0;
    if !works {
        skipped(Capability::Strace, "strace cannot trace here");
    }
    works
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_seen_inside_and_through_proc_only() {
        let Some(mounts) = Mounts::new() else { return };
        let temp = tempfile::tempdir().unwrap();
        mounts.tmpfs(temp.path(), "1m");
        mounts.shell(&format!("echo x > '{}/file'", temp.path().display()));
        assert!(!temp.path().join("file").exists());
        assert!(mounts.path(temp.path()).join("file").exists());
        let pwd = Call::new("/bin/ls", "/").env("PATH", "/usr/bin:/bin");
        let listed = mounts.inside(pwd, temp.path()).run().ok();
        assert_eq!(listed.stdout_text(), "file\n");
    }
}
