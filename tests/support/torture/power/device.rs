//! A disk in memory as a block device, with a file system on it, for one thread alone.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::minor;
use tempfile::TempDir;

use super::disk::{Disk, Entry, Image};
use super::fuse;
use crate::call::{Call, Output, Running};
use crate::torture::sandbox;
use crate::torture::tracer::Refusal;

/// How large the disk is: room for any scene, and a journal.
const SIZE: usize = 64 << 20;

/// Where the programs are that make file systems and block devices.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// A block device whose content is in memory.
///
/// It is a file of a FUSE file system that this process serves, with a loop device over it, so each
/// write and each flush of the file system above comes by. Mounts are seen by the thread that
/// made it, and by what that starts, alone; they go with them.
pub(crate) struct Device {
    disk: Arc<Mutex<Disk>>,
    /// The loop device.
    node: PathBuf,
    /// Where the file system is mounted.
    top: PathBuf,
    /// The file that the kernel asks us for.
    file: PathBuf,
    /// Removes what is left if this process is killed.
    guardian: Running,
    _temp: TempDir,
}

/// A file system that is mounted; unmounted when it is dropped.
pub(crate) struct Mounted<'a> {
    device: &'a Device,
}

impl Device {
    /// A device for this thread, which gets mounts of its own.
    pub(crate) fn new() -> Result<Self, Refusal> {
        let refused =
            |what: &str, why: &dyn std::fmt::Display| Refusal::Mounts(format!("{what}: {why}"));
        let place = sandbox::place();
        let temp = tempfile::Builder::new().prefix("sfpower").tempdir_in(place);
        let temp = temp.map_err(|e| refused("a directory", &e))?;
        let base = temp.path().canonicalize();
        let base = base.map_err(|e| refused("a directory", &e))?;
        let (top, file) = (base.join("disk"), base.join("device"));
        fs::create_dir(&top).map_err(|e| refused("a directory", &e))?;
        fs::write(&file, "").map_err(|e| refused("a file", &e))?;
        unshare(CloneFlags::CLONE_NEWNS).map_err(|e| refused("mounts of our own", &e))?;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
            .map_err(|e| refused("mounts of our own", &e))?;
        let connection = File::options().read(true).write(true).open("/dev/fuse");
        let connection = connection.map_err(|e| refused("/dev/fuse", &e))?;
        let options = format!(
            "fd={},rootmode=100000,user_id=0,group_id=0",
            connection.as_raw_fd()
        );
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(
            Some("torture"),
            &file,
            Some("fuse"),
            flags,
            Some(options.as_str()),
        )
        .map_err(|e| refused("a FUSE file system", &e))?;
        let disk = Arc::new(Mutex::new(Disk::new(Image::zeros(SIZE))));
        let served = Arc::clone(&disk);
        thread::spawn(move || fuse::serve(connection, &served));
        let found = tool(
            "losetup",
            ["--find".as_ref(), "--show".as_ref(), file.as_path()],
        );
        if found.code != 0 {
            let _ = umount2(&file, MntFlags::MNT_DETACH);
            return Err(refused("a loop device", &found));
        }
        let node = PathBuf::from(found.stdout_text().trim());
        let connection = fs::metadata(&file).map(|meta| minor(meta.dev()));
        let connection = connection.map_err(|e| refused("a FUSE file system", &e))?;
        // Killed threads that wait for the disk cannot end, and the connection is open until all of
        // them have: so the kernel is told that nobody answers any more. The mounts are the
        // guardian's too, so the number of the connection stays what it is.
        let script = format!(
            "while grep -q '^State:.[^ZX]' /proc/{pid}/status 2>/dev/null; do sleep 1; done
             mount -t fusectl none /sys/fs/fuse/connections
             echo 1 > /sys/fs/fuse/connections/{connection}/abort
             umount -l '{}'; losetup -d '{}'; umount -l '{}'",
            top.display(),
            node.display(),
            file.display(),
            pid = std::process::id(),
        );
        let guardian = Call::new("/bin/sh", "/").env("PATH", PATH);
        let guardian = guardian.args(["-c", script.as_str()]).start();
        Ok(Self {
            disk,
            node,
            top,
            file,
            guardian,
            _temp: temp,
        })
    }

    /// Where its file system is mounted.
    pub(crate) fn top(&self) -> &Path {
        &self.top
    }

    /// Puts this on the disk, while nothing is mounted; answers with what happened to it before.
    pub(crate) fn load(&self, image: Image) -> Vec<Entry> {
        std::mem::replace(&mut *self.lock(), Disk::new(image)).into_log()
    }

    /// What is on the disk.
    pub(crate) fn image(&self) -> Image {
        self.lock().image().clone()
    }

    /// How much has happened to the disk since [`Device::load`].
    pub(crate) fn happened(&self) -> usize {
        self.lock().happened()
    }

    fn lock(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().expect("nobody panics with the lock")
    }

    /// Mounts the file system with these options.
    pub(crate) fn mount(&self, options: &str) -> Result<Mounted<'_>, Errno> {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(
            Some(&self.node),
            &self.top,
            Some("ext4"),
            flags,
            Some(options),
        )?;
        Ok(Mounted { device: self })
    }

    /// Has the file system repaired, as it is before it is mounted when a machine starts.
    pub(crate) fn repair(&self) -> Output {
        tool("e2fsck", ["-fy".as_ref(), self.node.as_path()])
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.guardian.kill();
        let _ = umount2(&self.top, MntFlags::MNT_DETACH);
        tool("losetup", ["--detach".as_ref(), self.node.as_path()]);
        // With that the server ends.
        let _ = umount2(&self.file, MntFlags::MNT_DETACH);
    }
}

impl Mounted<'_> {
    /// Unmounts it, with which all of it is written.
    ///
    /// # Panics
    ///
    /// If somebody does not let go of it.
    pub(crate) fn unmount(self) {
        drop(self);
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let top = &self.device.top;
        for _ in 0..200 {
            match umount2(top, MntFlags::empty()) {
                // What a killed program had open is closed by the kernel a little later.
                Err(Errno::EBUSY) => thread::sleep(Duration::from_millis(10)),
                _ => return,
            }
        }
        let _ = umount2(top, MntFlags::MNT_DETACH);
        assert!(thread::panicking(), "{} is in use", top.display());
    }
}

/// An empty ext4 of the size of a [`Device`].
pub(crate) fn empty_file_system() -> Result<Image, Refusal> {
    let refused = |why: &dyn std::fmt::Display| Refusal::Mounts(format!("mkfs.ext4: {why}"));
    let file = tempfile::NamedTempFile::new_in(sandbox::place()).map_err(|e| refused(&e))?;
    let size = SIZE as u64;
    file.as_file().set_len(size).map_err(|e| refused(&e))?;
    let block = super::disk::BLOCK.to_string();
    let options = ["-q", "-F", "-b", block.as_str(), "-J", "size=4", "-E"];
    let args = options.map(Path::new).into_iter();
    let lazy = Path::new("nodiscard,lazy_itable_init=0,lazy_journal_init=0");
    let made = tool("mkfs.ext4", args.chain([lazy, file.path()]));
    if made.code != 0 {
        return Err(refused(&made));
    }
    let bytes = fs::read(file.path()).map_err(|e| refused(&e))?;
    Ok(Image::of(&bytes))
}

/// Runs a program; one that is missing is an exit code, not a panic.
fn tool<'a>(program: &'a str, args: impl IntoIterator<Item = &'a Path>) -> Output {
    let call = Call::new("env", "/").env("PATH", PATH);
    let args = args.into_iter();
    call.args([Path::new(program)].into_iter().chain(args))
        .run()
}
