//! The mount table, as far as it concerns a workspace.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The mounts that hold a workspace, and those in it, as they were when this was opened.
///
/// See `proc_pid_mountinfo(5)`.
#[derive(Debug)]
pub(super) struct Mounts {
    table: File,
    root: Vec<u8>,
    relevant: Vec<u8>,
    /// The device of the file system that holds the workspace, as `major:minor` in decimal digits.
    device: Option<(u32, u32)>,
    is_layer: bool,
}

impl Mounts {
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let mut mounts = Self {
            table: File::open("/proc/thread-self/mountinfo")?,
            root: escaped(root.as_os_str().as_bytes()),
            relevant: Vec::new(),
            device: None,
            is_layer: false,
        };
        let table = mounts.read()?;
        mounts.relevant = relevant(&table, &mounts.root);
        mounts.device = device(&table, &mounts.root);
        mounts.is_layer = is_layer(&table, &mounts.root);
        Ok(mounts)
    }

    /// Major and minor number of the file system's device, as `/proc/PID/maps` has them too.
    pub(super) fn device(&self) -> Option<(u32, u32)> {
        self.device
    }

    /// Whether an overlay writes into the workspace, or into a directory above it. What comes that
    /// way has no events.
    pub(super) fn is_layer(&self) -> bool {
        self.is_layer
    }

    /// Whether what concerns the workspace is as it was. The table is read only when the kernel
    /// says that something in it is different.
    pub(super) fn are_unchanged(&mut self) -> bool {
        let mut watched = [PollFd::new(&self.table, PollFlags::PRI | PollFlags::ERR)];
        match poll(&mut watched, Some(&Timespec::default())) {
            Ok(0) => true,
            _ => self
                .read()
                .is_ok_and(|table| relevant(&table, &self.root) == self.relevant),
        }
    }

    fn read(&mut self) -> io::Result<Vec<u8>> {
        self.table.rewind()?;
        let mut table = Vec::new();
        self.table.read_to_end(&mut table)?;
        Ok(table)
    }
}

/// A path as the table spells it.
fn escaped(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    for byte in path {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => out.extend(format!("\\{byte:03o}").as_bytes()),
            _ => out.push(*byte),
        }
    }
    out
}

fn lines(table: &[u8]) -> impl Iterator<Item = &[u8]> {
    table.split(|b| *b == b'\n').filter(|line| !line.is_empty())
}

fn mount_point(line: &[u8]) -> &[u8] {
    line.split(|b| *b == b' ').nth(4).unwrap_or_default()
}

fn is_at_or_below(path: &[u8], directory: &[u8]) -> bool {
    directory == b"/"
        || path
            .strip_prefix(directory)
            .is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}

/// The lines of the mounts at, above and below `root`, and of overlays that write there.
fn relevant(table: &[u8], root: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for line in lines(table) {
        let at = mount_point(line);
        if is_at_or_below(root, at) || is_at_or_below(at, root) || is_layer_of(line, root) {
            out.extend_from_slice(line);
            out.push(b'\n');
        }
    }
    out
}

/// The device of the mount that holds `root`. Of several at one place the last one is on top.
fn device(table: &[u8], root: &[u8]) -> Option<(u32, u32)> {
    let holder = lines(table)
        .filter(|line| is_at_or_below(root, mount_point(line)))
        .max_by_key(|line| mount_point(line).len())?;
    let device = str::from_utf8(holder.split(|b| *b == b' ').nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn is_layer(table: &[u8], root: &[u8]) -> bool {
    lines(table).any(|line| is_layer_of(line, root))
}

/// Whether the mount is an overlay whose upper directory is in `root` or above it.
fn is_layer_of(line: &[u8], root: &[u8]) -> bool {
    const OPTION: &[u8] = b"upperdir=";
    let at = line.windows(OPTION.len()).position(|w| w == OPTION);
    at.is_some_and(|at| {
        let upper = &line[at + OPTION.len()..];
        let upper = upper.split(|b| matches!(b, b',' | b' ')).next();
        let upper = upper.unwrap_or_default();
        is_at_or_below(upper, root) || is_at_or_below(root, upper)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:25 / /dev/shm rw - tmpfs tmpfs rw
40 22 8:1 / /home rw,relatime - ext4 /dev/sda1 rw
41 40 0:40 / /home/me/my\\040work/mnt rw - tmpfs tmpfs rw
42 22 0:41 / /var/lib/x/merged rw - overlay overlay rw,lowerdir=/l,upperdir=/home/other/up,workdir=/w
";

    fn points(root: &str) -> Vec<String> {
        let relevant = relevant(TABLE, &escaped(root.as_bytes()));
        lines(&relevant)
            .map(|line| String::from_utf8(mount_point(line).to_owned()).unwrap())
            .collect()
    }

    #[test]
    fn only_mounts_above_and_below_concern_a_workspace() {
        assert_eq!(
            points("/home/me/my work"),
            ["/", "/home", "/home/me/my\\040work/mnt"]
        );
        assert_eq!(points("/home/me/my"), ["/", "/home"]);
        assert_eq!(points("/srv"), ["/"]);
    }

    #[test]
    fn the_device_is_that_of_the_nearest_mount() {
        assert_eq!(device(TABLE, b"/home/me"), Some((8, 1)));
        assert_eq!(device(TABLE, b"/homes"), Some((254, 0)));
        let again = [TABLE, b"50 40 8:9 / /home rw - ext4 /dev/sdb rw\n"].concat();
        assert_eq!(device(&again, b"/home/me"), Some((8, 9)), "it lies on top");
    }

    #[test]
    fn an_overlay_that_writes_into_the_workspace_or_around_it_is_seen() {
        assert!(is_layer(TABLE, b"/home/other"));
        assert!(is_layer(TABLE, b"/home/other/up"));
        assert!(is_layer(TABLE, b"/home/other/up/app"));
        assert!(!is_layer(TABLE, b"/home/other/upper"));
        assert!(!is_layer(TABLE, b"/l"), "nothing writes into a lower one");
        assert!(points("/home/other/up/app").contains(&"/var/lib/x/merged".to_owned()));
    }
}
