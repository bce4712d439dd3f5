//! What the tests of this directory share.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;
use crate::test_repository::TestRepository;

/// Does something to a path.
pub(super) type Change = fn(&Path);

/// Fails the test if `work` hangs. The thread is left behind then; the process ends with it.
pub(super) fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    receiver
        .recv_timeout(Duration::from_secs(20))
        .expect("it must not hang")
}

pub(super) fn probe_in_time(path: &Path) -> Result<Probe, RepositoryError> {
    let path = path.to_owned();
    in_time(move || probe(&path))
}

pub(super) fn found(path: &Path) -> Box<UserRepository> {
    match probe(path).unwrap() {
        Probe::Found(repository) => repository,
        other => panic!("{}: {other:?}", path.display()),
    }
}

pub(super) fn id(text: &str) -> ObjectId {
    text.parse().unwrap()
}

pub(super) fn fifo(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

pub(super) fn is_hostile<T>(result: &Result<T, RepositoryError>) -> bool {
    matches!(result, Err(RepositoryError::Hostile { .. }))
}

pub(super) fn is_damaged<T>(result: &Result<T, RepositoryError>) -> bool {
    matches!(result, Err(RepositoryError::Damaged { .. }))
}

pub(super) fn with_linked_worktree() -> (TestRepository, PathBuf) {
    let git = TestRepository::with_commit();
    let linked = git.beside("linked");
    git.git(&[
        "worktree",
        "add",
        "-q",
        "-b",
        "side",
        linked.to_str().unwrap(),
    ]);
    (git, linked)
}

/// A zlib stream.
pub(super) fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn alternates(git: &TestRepository) -> PathBuf {
    git.path.join(".git/objects/info/alternates")
}

/// The user's own files; `HOME` is the home of the test.
pub(super) fn user(git: &TestRepository, xdg: Option<&Path>) -> UserConfig {
    let home = git.home();
    let xdg = xdg.map(Path::to_owned);
    let env = move |name: &str| -> Option<OsString> {
        match name {
            "HOME" => Some(home.clone().into()),
            "XDG_CONFIG_HOME" => xdg.clone().map(Into::into),
            "GIT_CONFIG_GLOBAL" | "GIT_CONFIG_SYSTEM" => None,
            name => panic!("{name} is not looked at"),
        }
    };
    UserConfig::read_with(&git.beside("etc"), &env)
}
