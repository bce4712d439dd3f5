//! A process that holds files open and mapped, which a test without unsafe code cannot do itself.

#![allow(
    unreachable_pub,
    dead_code,
    reason = "more than one crate has this file"
)]

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

/// The process. It ends with this value, and lets go of everything.
#[derive(Debug)]
pub struct Holder {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// The program, made by the compiler that every Rust toolchain links with.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = PROGRAM.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("holder");
        let source = directory.path().join("holder.c");
        std::fs::write(&source, include_str!("holder.c")).unwrap();
        let status = Command::new("cc").arg("-o").arg(&path).arg(source).status();
        assert!(status.expect("cc is installed").success());
        (directory, path)
    });
    path
}

impl Holder {
    pub fn start() -> Self {
        let mut child = Command::new(program())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    /// Has it do something; returns when it is done.
    #[track_caller]
    pub fn tell<S: AsRef<OsStr>>(&mut self, command: impl IntoIterator<Item = S>) {
        let words: Vec<S> = command.into_iter().collect();
        assert!(
            self.try_tell(&words),
            "{:?}",
            words.last().map(AsRef::as_ref)
        );
    }

    /// As [`Self::tell`]; whether it could be done.
    pub fn try_tell<S: AsRef<OsStr>>(&mut self, command: impl IntoIterator<Item = S>) -> bool {
        let words: Vec<S> = command.into_iter().collect();
        let words: Vec<&[u8]> = words.iter().map(|w| w.as_ref().as_bytes()).collect();
        let mut line = words.join(&b'\t');
        line.push(b'\n');
        let input = self.input.as_mut().unwrap();
        input.write_all(&line).unwrap();
        input.flush().unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        assert_ne!(answer, "", "it lives: {}", String::from_utf8_lossy(&line));
        answer == "ok\n"
    }

    /// Maps a file, shared, and closes it.
    #[track_caller]
    pub fn map(&mut self, path: &Path) {
        self.tell([OsStr::new("open"), path.as_os_str()]);
        self.tell(["map"]);
        self.tell(["close"]);
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
