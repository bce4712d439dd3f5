//! A workspace of a test's own.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;
use walkdir::WalkDir;

use crate::call::{Call, Output, base_env};
use crate::json::Snap;
use crate::{binary, git, oracle, view};

/// A directory to capture, with a HOME and a state directory of its own beside it.
///
/// Names are bytes: they may be given as `&str` or as byte strings. When it is dropped at the end
/// of a test that has not failed, the stores that Stillframe made are checked with `git fsck`.
pub struct TestWorkspace {
    base: PathBuf,
    root: PathBuf,
    env: Vec<(OsString, OsString)>,
    uid: Option<u32>,
    program: PathBuf,
    damaged: bool,
    // Last, so that everything else is gone when the directory goes.
    _temp: TempDir,
}

impl TestWorkspace {
    /// An empty directory outside of any repository.
    pub fn plain() -> Self {
        Self::below(&std::env::temp_dir())
    }

    /// An empty directory outside of any repository, somewhere below `parent`.
    pub fn below(parent: &Path) -> Self {
        let temp = tempfile::Builder::new()
            .prefix("sf")
            .tempdir_in(parent)
            .expect("the temporary directory is writable");
        let base = temp.path().canonicalize().expect("it was just made");
        for name in ["home", "work", "outside"] {
            fs::create_dir(base.join(name)).expect("the directory is new");
        }
        // Whoever is asked to run a program there must be able to get there.
        set_mode(&base, 0o755);
        Self {
            root: base.join("work"),
            env: Vec::new(),
            uid: None,
            program: PathBuf::new(),
            damaged: false,
            base,
            _temp: temp,
        }
    }

    /// A repository without a commit.
    pub fn unborn() -> Self {
        let ws = Self::plain();
        ws.git(["init", "-q"]);
        ws
    }

    /// A repository with one commit, which has the file `README` with the text `hello`.
    pub fn repository() -> Self {
        let ws = Self::unborn();
        ws.write("README", "hello\n");
        ws.commit("first");
        ws
    }

    /// The directory that is captured: absolute, without links.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Makes another directory the one that is captured. `path` is taken from the directory that
    /// holds everything of this test.
    pub fn set_root(&mut self, path: &str) {
        self.root = self.base.join(path).canonicalize().expect("it exists");
    }

    /// The directory that holds everything of this test.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// HOME.
    pub fn home(&self) -> PathBuf {
        self.base.join("home")
    }

    /// An existing directory that nothing but the test itself has any business with.
    pub fn outside(&self) -> PathBuf {
        self.base.join("outside")
    }

    /// The state directory, STILLFRAME_HOME. It does not exist before the first call.
    pub fn state(&self) -> PathBuf {
        self.base.join("state")
    }

    /// The path on disk of `rel`.
    pub fn path(&self, rel: impl AsRef<[u8]>) -> PathBuf {
        self.root.join(OsStr::from_bytes(rel.as_ref()))
    }

    /// Sets a variable in the environment of every later call of the program under test.
    pub fn set_env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) {
        self.env
            .push((name.as_ref().to_owned(), value.as_ref().to_owned()));
    }

    /// Gives everything to a user without privileges and lets programs run as that user, so that
    /// permissions mean something. `false`: that cannot be done here.
    pub fn drop_privileges(&mut self) -> bool {
        const NOBODY: u32 = 65534;
        if !rustix::process::geteuid().is_root() {
            return true;
        }
        // The target directory may lie where nobody else can go.
        let program = self.base.join("stillframe");
        if fs::hard_link(binary::stillframe(), &program).is_err() {
            fs::copy(binary::stillframe(), &program).expect("the program can be copied");
        }
        for entry in WalkDir::new(&self.base).follow_links(false) {
            let entry = entry.expect("root reads everything");
            if entry.path() != program
                && std::os::unix::fs::lchown(entry.path(), Some(NOBODY), Some(NOBODY)).is_err()
            {
                return false;
            }
        }
        self.program = program;
        self.uid = Some(NOBODY);
        self.stillframe(["--version"]).code == 0
    }

    /// Says that the test damages the store, so that the check at the end means nothing.
    pub fn damages_the_store(&mut self) {
        self.damaged = true;
    }

    // Files.

    /// Writes a file, making the directories above it.
    #[track_caller]
    pub fn write(&self, rel: impl AsRef<[u8]>, content: impl AsRef<[u8]>) {
        let path = self.path(rel);
        let parent = path.parent().expect("it is below the root");
        fs::create_dir_all(parent).unwrap_or_else(|e| panic!("{}: {e}", parent.display()));
        fs::write(&path, content).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    /// Writes an executable file.
    #[track_caller]
    pub fn write_executable(&self, rel: impl AsRef<[u8]>, content: impl AsRef<[u8]>) {
        self.write(rel.as_ref(), content);
        self.chmod(rel, 0o755);
    }

    /// The content of a file.
    #[track_caller]
    pub fn read(&self, rel: impl AsRef<[u8]>) -> Vec<u8> {
        let path = self.path(rel);
        fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// The content of a file, which must be text.
    #[track_caller]
    pub fn text(&self, rel: impl AsRef<[u8]>) -> String {
        String::from_utf8(self.read(rel)).expect("it is text")
    }

    /// Whether anything is at `rel`; a dangling link is something.
    pub fn exists(&self, rel: impl AsRef<[u8]>) -> bool {
        self.path(rel).symlink_metadata().is_ok()
    }

    /// Removes a file, a link, or a directory with everything in it.
    #[track_caller]
    pub fn remove(&self, rel: impl AsRef<[u8]>) {
        let path = self.path(rel);
        let meta = path
            .symlink_metadata()
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let removed = if meta.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    /// Renames within the workspace.
    #[track_caller]
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) {
        fs::rename(self.path(from), self.path(to)).expect("it can be renamed");
    }

    /// Makes a link with the text `target`, and the directories above it.
    #[track_caller]
    pub fn symlink(&self, rel: impl AsRef<[u8]>, target: impl AsRef<[u8]>) {
        let path = self.path(rel);
        fs::create_dir_all(path.parent().expect("it is below the root"))
            .expect("directories can be made");
        symlink(OsStr::from_bytes(target.as_ref()), &path)
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    /// Sets the permission bits.
    #[track_caller]
    pub fn chmod(&self, rel: impl AsRef<[u8]>, mode: u32) {
        set_mode(&self.path(rel), mode);
    }

    /// The permission bits.
    #[track_caller]
    pub fn mode(&self, rel: impl AsRef<[u8]>) -> u32 {
        self.stat(rel).mode() & 0o7777
    }

    /// What lstat says.
    #[track_caller]
    pub fn stat(&self, rel: impl AsRef<[u8]>) -> fs::Metadata {
        let path = self.path(rel);
        path.symlink_metadata()
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// Makes a directory and those above it.
    #[track_caller]
    pub fn mkdir(&self, rel: impl AsRef<[u8]>) {
        fs::create_dir_all(self.path(rel)).expect("directories can be made");
    }

    /// Makes a FIFO. Opening it for reading waits for ever.
    #[track_caller]
    pub fn mkfifo(&self, rel: impl AsRef<[u8]>) {
        let path = self.path(rel);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).expect("directories can be made");
        }
        make_fifo(&path);
    }

    /// Makes a socket that nobody listens to.
    #[track_caller]
    pub fn socket(&self, rel: impl AsRef<[u8]>) {
        drop(UnixListener::bind(self.path(rel)).expect("a socket can be made"));
    }

    /// Makes a second name for a file.
    #[track_caller]
    pub fn hard_link(&self, rel: impl AsRef<[u8]>, to: &Path) {
        fs::hard_link(self.path(rel), to).expect("a file can get a second name");
    }

    /// Makes a file of this size that takes no room.
    #[track_caller]
    pub fn sparse_file(&self, rel: impl AsRef<[u8]>, size: u64) {
        self.write(rel.as_ref(), "");
        let file = fs::File::options().write(true).open(self.path(rel));
        file.expect("it was just written")
            .set_len(size)
            .expect("a file can be made longer");
    }

    /// Sets the mtime of a file back to where `meta` has it.
    #[track_caller]
    pub fn set_mtime(&self, rel: impl AsRef<[u8]>, meta: &fs::Metadata) {
        let file = fs::File::options().write(true).open(self.path(rel));
        file.expect("it is a file")
            .set_modified(meta.modified().expect("files have an mtime"))
            .expect("an mtime can be set");
    }

    /// Waits until the clock of the file system has moved on from every file of the test, so that
    /// none of them can be taken for one that is still being written.
    pub fn settle(&self) {
        let mut newest = (0, 0);
        for entry in WalkDir::new(&self.base).follow_links(false).into_iter() {
            let Ok(meta) = entry
                .map_err(drop)
                .and_then(|e| e.path().symlink_metadata().map_err(drop))
            else {
                continue;
            };
            newest = newest
                .max((meta.ctime(), meta.ctime_nsec()))
                .max((meta.mtime(), meta.mtime_nsec()));
        }
        let probe = self.base.join("probe");
        loop {
            fs::write(&probe, "x").expect("the test's directory is writable");
            let meta = probe.metadata().expect("it was just written");
            if (meta.mtime(), meta.mtime_nsec()) > newest {
                break;
            }
            thread::yield_now();
        }
        fs::remove_file(&probe).expect("it was just written");
        // Removing it was an event of its own, which the next one must not share a tick with.
        let after = self.base.metadata().expect("it exists");
        loop {
            fs::write(self.base.join("home/.probe"), "x").expect("HOME is writable");
            let meta = self.base.join("home/.probe").metadata();
            let meta = meta.expect("it was just written");
            if (meta.mtime(), meta.mtime_nsec()) > (after.ctime(), after.ctime_nsec()) {
                break;
            }
            thread::yield_now();
        }
    }

    /// A copy of the worktree as it is, without its `.git`, for later comparison.
    #[track_caller]
    pub fn copy(&self) -> TempDir {
        let temp = tempfile::Builder::new()
            .prefix("sfcopy")
            .tempdir()
            .expect("the temporary directory is writable");
        oracle::copy_tree(&self.root, temp.path(), oracle::DotGit::LeaveOut);
        temp
    }

    // git.

    /// Runs git in the workspace and asserts success; answers with what it printed, without the
    /// end of the last line.
    #[track_caller]
    pub fn git<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        let output = self.git_call(args).run().ok();
        let text = output.stdout_text();
        text.strip_suffix('\n').unwrap_or(&text).to_owned()
    }

    /// A call of git in the workspace.
    pub fn git_call<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Call {
        let call = git::call(&self.home(), &self.root, args);
        match self.uid {
            Some(uid) => call.uid(uid),
            None => call,
        }
    }

    /// Runs git in a directory of this test other than the workspace, named from
    /// [`TestWorkspace::base`].
    #[track_caller]
    pub fn git_in<S: AsRef<OsStr>>(&self, dir: &str, args: impl IntoIterator<Item = S>) -> String {
        git::text(&self.home(), &self.base.join(dir), args)
    }

    /// Commits everything that is there and not ignored.
    #[track_caller]
    pub fn commit(&self, message: &str) {
        self.git(["add", "-A"]);
        self.git(["commit", "-q", "--allow-empty", "-m", message]);
    }

    /// Commits so that nothing in the index can be taken for a file that is still being written:
    /// a capture may take every clean file by its id.
    #[track_caller]
    pub fn commit_settled(&self, message: &str) {
        self.settle();
        self.commit(message);
        self.settle();
    }

    // The program under test.

    /// A call of `stillframe` in the workspace.
    pub fn call<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Call {
        let program = if self.program.as_os_str().is_empty() {
            binary::stillframe()
        } else {
            &self.program
        };
        let mut call = Call::new(program, &self.root).args(args);
        for (name, value) in base_env(&self.home()) {
            call = call.env(name, value);
        }
        call = call.env("STILLFRAME_HOME", self.state());
        for (name, value) in &self.env {
            call = call.env(name, value);
        }
        match self.uid {
            Some(uid) => call.uid(uid),
            None => call,
        }
    }

    /// Runs `stillframe` in the workspace.
    #[track_caller]
    pub fn stillframe<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        self.call(args).run()
    }

    /// Runs `stillframe --json` with these arguments in the workspace.
    #[track_caller]
    pub fn try_json<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        self.call(["--json"]).args(args).run()
    }

    /// The JSON document that `stillframe --json` prints; asserts success.
    #[track_caller]
    pub fn json<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Value {
        self.try_json(args).ok().json()
    }

    /// Takes a snapshot.
    #[track_caller]
    pub fn snapshot(&self) -> Snap {
        self.snapshot_with::<&str>([])
    }

    /// Takes a snapshot with these options.
    #[track_caller]
    pub fn snapshot_with<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Snap {
        let output = self.call(["--json", "snapshot"]).args(args).run().ok();
        Snap::of(&output.json())
    }

    /// Restores the whole of a snapshot; answers with the outcome.
    #[track_caller]
    pub fn restore(&self, snapshot: &Snap) -> Value {
        self.restore_id(snapshot.id())
    }

    /// Restores the whole of the snapshot with this id; answers with the outcome.
    #[track_caller]
    pub fn restore_id(&self, id: &str) -> Value {
        let outcome = self.json(["restore", id]);
        assert_eq!(outcome["status"], "completed", "{outcome}");
        assert!(outcome["error"].is_null(), "{outcome}");
        outcome
    }

    /// Takes back the latest run, restore or undo; answers with the outcome.
    #[track_caller]
    pub fn undo(&self) -> Value {
        self.json(["undo"])
    }

    /// Compares two snapshots, without a patch.
    #[track_caller]
    pub fn diff(&self, from: &Snap, to: &Snap) -> Value {
        self.json(["diff", from.id(), to.id()])
    }

    /// The document of a snapshot or run, by its id.
    #[track_caller]
    pub fn show(&self, id: &str) -> Value {
        self.json(["show", id])
    }

    /// Runs a shell script between two snapshots.
    #[track_caller]
    pub fn run<S: AsRef<OsStr>>(
        &self,
        options: impl IntoIterator<Item = S>,
        script: &str,
    ) -> Output {
        self.run_call(options, script).run()
    }

    /// A call that runs a shell script between two snapshots, with `--json`.
    pub fn run_call<S: AsRef<OsStr>>(
        &self,
        options: impl IntoIterator<Item = S>,
        script: &str,
    ) -> Call {
        self.call(["run", "--json"])
            .args(options)
            .args(["--", "/bin/sh", "-c", script])
    }

    /// The events of a session, or of all sessions.
    #[track_caller]
    pub fn events<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Vec<Value> {
        let call = self.call(["--json", "events"]).args(args);
        call.run().ok().json_lines()
    }

    /// The stores of the workspaces that were captured with this state directory.
    pub fn stores(&self) -> Vec<PathBuf> {
        oracle::stores(&self.state())
    }

    /// How many snapshots the stores of the git backend hold.
    #[track_caller]
    pub fn published(&self) -> usize {
        let mut count = 0;
        for store in self.stores() {
            let args = [
                "for-each-ref",
                "--format=x",
                "refs/snapshots",
                "refs/guards",
            ];
            let refs = git::text(&self.home(), &store.join("git"), args);
            count += refs.lines().count();
        }
        count
    }

    /// Does `work`, and asserts that nothing of the workspace and of its repository was touched:
    /// content, modes, mtimes and inodes.
    #[track_caller]
    pub fn untouched<T>(&self, work: impl FnOnce() -> T) -> T {
        self.settle();
        let git_dir = view::git_dir(&self.root);
        let files = view::worktree(&self.root);
        let times = view::times(&self.root);
        let answer = work();
        view::same(
            &git_dir,
            &view::git_dir(&self.root),
            "nothing in the user's repository is touched",
        );
        view::same(
            &files,
            &view::worktree(&self.root),
            "no file of the workspace is touched",
        );
        assert_eq!(times, view::times(&self.root), "mtimes and inodes stay");
        answer
    }
}

impl Drop for TestWorkspace {
    fn drop(&mut self) {
        if !thread::panicking() && !self.damaged {
            oracle::fsck(&self.state());
        }
    }
}

/// Makes a FIFO at `path`.
#[track_caller]
pub fn make_fifo(path: &Path) {
    let made = Call::new("mkfifo", "/")
        .env("PATH", "/usr/bin:/bin")
        .args([path])
        .run();
    made.ok();
}

/// Makes `to` what `from` is, with everything in it, times included.
#[track_caller]
pub fn copy_whole(from: &Path, to: &Path) {
    match fs::remove_dir_all(to) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => panic!("{}: {e}", to.display()),
        _ => {}
    }
    let copied = Call::new("cp", "/")
        .env("PATH", "/usr/bin:/bin")
        .args(["-a"])
        .args([from, to])
        .run();
    copied.ok();
}

#[track_caller]
fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
