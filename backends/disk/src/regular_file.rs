//! Opening our own files safely, even if somebody has put a FIFO or a link in their place.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens the regular file at `path`, as `options` say.
///
/// Never waits: a FIFO, a socket, a device, a directory or a link in its place is an error at once.
/// The flags that `options` have beside the access are replaced.
pub fn open_regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = options
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .map_err(|e| match rustix::io::Errno::from_io_error(&e) {
            // A link; a FIFO that nobody reads, a socket, or a device that is not there.
            Some(rustix::io::Errno::LOOP | rustix::io::Errno::NXIO) => not_regular(),
            _ => e,
        })?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(not_regular()),
    }
}

fn not_regular() -> io::Error {
    io::Error::other("it is no regular file")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_a_regular_file_is_opened_and_nothing_else_is_waited_for() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        fs::write(at("file"), "x").unwrap();
        symlink("file", at("link")).unwrap();
        fs::create_dir(at("directory")).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("fifo"),
            rustix::fs::FileType::Fifo,
            mode,
            0,
        )
        .unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let mut ways = [
            File::options().read(true).clone(),
            File::options().append(true).clone(),
            File::options().read(true).write(true).create(true).clone(),
        ];
        for options in &mut ways {
            open_regular(options, &at("file")).unwrap();
            for other in ["link", "directory", "fifo", "socket"] {
                let error = open_regular(options, &at(other)).unwrap_err();
                assert_ne!(error.kind(), io::ErrorKind::NotFound, "{other}: {error}");
            }
        }
        let absent = open_regular(&mut ways[0], &at("absent")).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    }
}
