//! Where the stories take place: a directory with a repository or without, a state directory
//! beside it, git cut off from the user's own configuration, and oracles that are not us.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use stillframe_backends::{
    Backend, Label, LockedWorkspace, Operation, Owner, Snapshot, SnapshotError, SnapshotOptions,
    StateDir, Strategy, Workspace, detect,
};
use tempfile::TempDir;

/// A workspace with everything around it. Removed at the end.
pub(crate) struct Ground {
    _top: TempDir,
    /// The workspace's directory.
    pub(crate) root: PathBuf,
}

impl Ground {
    /// A directory without a repository.
    pub(crate) fn plain() -> Self {
        // In memory where that is possible: the stories are about what is written, not about how
        // long a disk takes for it.
        let memory = Path::new("/dev/shm");
        let top = match tempfile::tempdir_in(memory) {
            Ok(top) => top,
            Err(_) => tempfile::tempdir().unwrap(),
        };
        let base = top.path().canonicalize().unwrap();
        fs::create_dir(base.join("home")).unwrap();
        let root = base.join("work");
        fs::create_dir(&root).unwrap();
        Self { _top: top, root }
    }

    /// A repository without a commit.
    pub(crate) fn unborn() -> Self {
        let ground = Self::plain();
        ground.git(["init", "-q", "-b", "main"]);
        ground
    }

    /// A repository with a few files in one commit.
    pub(crate) fn repository() -> Self {
        let ground = Self::unborn();
        ground.write("README", "read me\n");
        ground.write("src/main.c", "int main;\n");
        ground.write("src/deep/er/leaf", "leaf\n");
        ground.commit("first");
        ground
    }

    /// What lies beside the workspace.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.root.parent().unwrap().join(name)
    }

    pub(crate) fn path(&self, path: impl AsRef<[u8]>) -> PathBuf {
        self.root.join(OsStr::from_bytes(path.as_ref()))
    }

    /// Writes a file, and the directories above it.
    pub(crate) fn write(&self, path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub(crate) fn symlink(&self, path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) {
        symlink(OsStr::from_bytes(target.as_ref()), self.path(path)).unwrap();
    }

    pub(crate) fn mkdir(&self, path: impl AsRef<[u8]>) {
        fs::create_dir_all(self.path(path)).unwrap();
    }

    /// Removes whatever is at `path`.
    pub(crate) fn remove(&self, path: impl AsRef<[u8]>) {
        let path = self.path(path);
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    pub(crate) fn chmod(&self, path: impl AsRef<[u8]>, mode: u32) {
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn mkfifo(&self, path: impl AsRef<[u8]>) {
        let status = Command::new("mkfifo").arg(self.path(path)).status();
        assert!(status.unwrap().success());
    }

    pub(crate) fn commit(&self, message: &str) {
        self.git(["add", "-A"]);
        self.git(["commit", "-q", "--allow-empty", "-m", message]);
    }

    /// Waits until the file system's clock has moved on: what is written from here on has a later
    /// time than everything before.
    pub(crate) fn tick(&self) {
        let probe = self.beside("probe");
        let time = || {
            fs::write(&probe, "x").unwrap();
            fs::metadata(&probe).unwrap().modified().unwrap()
        };
        let start = time();
        while time() == start {
            std::thread::yield_now();
        }
    }

    /// Gives the index a later time than the files that it describes, so that nobody has to read
    /// them to know that they are clean.
    pub(crate) fn settle(&self) {
        self.tick();
        self.git(["update-index", "-q", "--refresh", "--force-write-index"]);
    }

    /// Runs git in the workspace; answers with its output without the closing line feed.
    pub(crate) fn git<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        let mut out = String::from_utf8(self.git_in(&self.root, args, b"")).unwrap();
        if out.ends_with('\n') {
            out.pop();
        }
        out
    }

    /// Runs git in `directory` with `input`.
    pub(crate) fn git_in<S: AsRef<OsStr>>(
        &self,
        directory: &Path,
        args: impl IntoIterator<Item = S>,
        input: &[u8],
    ) -> Vec<u8> {
        let output = self.run_git(directory, args, input);
        assert!(
            output.status.success(),
            "git: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        output.stdout
    }

    /// Runs git in the workspace; whether it succeeded.
    pub(crate) fn try_git<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> bool {
        self.run_git(&self.root, args, b"").status.success()
    }

    fn run_git<S: AsRef<OsStr>>(
        &self,
        directory: &Path,
        args: impl IntoIterator<Item = S>,
        input: &[u8],
    ) -> Output {
        let mut child = Command::new("git")
            .args(args)
            .current_dir(directory)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.beside("home"))
            .env("LC_ALL", "C")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_ALLOW_PROTOCOL", "file")
            .env("GIT_AUTHOR_NAME", "A")
            .env("GIT_AUTHOR_EMAIL", "a@example.org")
            .env("GIT_AUTHOR_DATE", "1700000000 +0000")
            .env("GIT_COMMITTER_NAME", "C")
            .env("GIT_COMMITTER_EMAIL", "c@example.org")
            .env("GIT_COMMITTER_DATE", "1700000000 +0000")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("git is installed");
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_owned();
        let feeder = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().unwrap();
        // A git that reads no input is done before all of it was written.
        let _ = feeder.join().unwrap();
        output
    }

    /// The workspace with a state directory of that name, and the backend that `auto` chooses.
    pub(crate) fn taker(&self, state: &str) -> Taker {
        self.taker_at(&self.root, state, Strategy::Auto)
    }

    pub(crate) fn hash_taker(&self, state: &str) -> Taker {
        self.taker_at(&self.root, state, Strategy::Hash)
    }

    pub(crate) fn taker_at(&self, root: &Path, state: &str, strategy: Strategy) -> Taker {
        let state = StateDir::open(self.beside(state)).unwrap();
        let workspace = Workspace::open(root, &state).unwrap();
        let backend = detect(&workspace, strategy).unwrap().backend;
        let workspace = workspace
            .lock(&Operation::unbounded(), LOCK_TIMEOUT)
            .unwrap();
        Taker { workspace, backend }
    }

    /// The tree that git makes of the raw bytes of everything that is tracked, or untracked and
    /// not ignored. What the index skips on purpose, and nothing lies in the place of, is as the
    /// index has it, and so is a submodule with an empty directory.
    pub(crate) fn oracle(&self) -> String {
        let list = |args: &[&str]| -> Vec<Vec<u8>> {
            let listed = self.git_in(&self.root, args, b"");
            let paths = listed.split(|b| *b == 0).filter(|p| !p.is_empty());
            paths.map(<[u8]>::to_vec).collect()
        };
        let mut files = Vec::new();
        for line in list(&["ls-files", "-z", "-t", "--stage"]) {
            let (head, path) = line.split_at(line.iter().position(|b| *b == b'\t').unwrap());
            let head: Vec<&str> = std::str::from_utf8(head).unwrap().split(' ').collect();
            let path = path[1..].to_vec();
            match self.raw(&path) {
                Some(raw) => files.push((path, raw)),
                None if head[1] == "160000" => {
                    let is_empty = |p: &Path| fs::read_dir(p).is_ok_and(|mut d| d.next().is_none());
                    if is_empty(&self.path(&path)) || (head[0] == "S" && !self.is_hidden(&path)) {
                        files.push((path, (160_000, head[2].as_bytes().to_vec())));
                    }
                }
                None if head[0] == "S" && !self.is_hidden(&path) => {
                    let content = self.git_in(&self.root, ["cat-file", "blob", head[2]], b"");
                    files.push((path, (head[1].parse().unwrap(), content)));
                }
                None => {}
            }
        }
        for path in list(&["ls-files", "-z", "--others", "--exclude-standard"]) {
            if let Some(raw) = self.raw(&path) {
                files.push((path, raw));
            }
        }
        self.tree_of(files)
    }

    /// Whether something that is no directory lies at or above `path`, or a directory at it.
    fn is_hidden(&self, path: &[u8]) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        let at = |p: &Path| fs::symlink_metadata(self.root.join(p));
        let mut above = path
            .ancestors()
            .skip(1)
            .filter(|p| !p.as_os_str().is_empty());
        at(path).is_ok() || above.any(|p| at(p).is_ok_and(|m| !m.is_dir()))
    }

    /// git's mode and the raw bytes of the file or link at `path`.
    fn raw(&self, path: &[u8]) -> Option<(u32, Vec<u8>)> {
        // A path below a link is not there.
        let mut above = PathBuf::from(OsString::from_vec(path.to_vec()));
        while above.pop() && !above.as_os_str().is_empty() {
            if !fs::symlink_metadata(self.root.join(&above)).is_ok_and(|m| m.is_dir()) {
                return None;
            }
        }
        let disk_path = self.path(path);
        let meta = fs::symlink_metadata(&disk_path).ok()?;
        if meta.is_symlink() {
            let text = fs::read_link(&disk_path).unwrap();
            Some((120_000, text.into_os_string().into_vec()))
        } else if meta.is_file() {
            let is_executable = meta.mode() & 0o100 != 0;
            let mode = if is_executable { 100_755 } else { 100_644 };
            Some((mode, fs::read(&disk_path).unwrap()))
        } else {
            None
        }
    }

    /// The tree that git makes of `files`: path, mode and content of each; of a submodule the
    /// commit.
    fn tree_of(&self, files: impl IntoIterator<Item = (Vec<u8>, (u32, Vec<u8>))>) -> String {
        let oracle = self.beside("oracle.git");
        if !oracle.exists() {
            let at: &OsStr = oracle.as_ref();
            self.git([
                OsStr::new("init"),
                OsStr::new("-q"),
                OsStr::new("--bare"),
                at,
            ]);
        }
        let mut stream =
            b"commit refs/heads/oracle\ncommitter C <c@e> 0 +0000\ndata 0\n\ndeleteall\n".to_vec();
        for (path, (mode, content)) in files {
            let mut quoted = String::new();
            for byte in &path {
                write!(quoted, "\\{byte:03o}").unwrap();
            }
            if mode == 160_000 {
                let commit = String::from_utf8(content).unwrap();
                writeln!(stream, "M {mode} {commit} \"{quoted}\"").unwrap();
                continue;
            }
            write!(
                stream,
                "M {mode} inline \"{quoted}\"\ndata {}\n",
                content.len()
            )
            .unwrap();
            stream.extend_from_slice(&content);
            stream.push(b'\n');
        }
        self.git_in(&oracle, ["fast-import", "--quiet", "--force"], &stream);
        let id = self.git_in(&oracle, ["rev-parse", "refs/heads/oracle^{tree}"], b"");
        String::from_utf8(id).unwrap().trim().to_owned()
    }

    /// The tree that [`Ground::oracle`] made last, as text.
    pub(crate) fn listing_of_oracle(&self) -> String {
        let args = [
            "ls-tree",
            "-r",
            "-t",
            "-z",
            "--full-tree",
            "refs/heads/oracle",
        ];
        let out = self.git_in(&self.beside("oracle.git"), args, b"");
        String::from_utf8_lossy(&out).replace('\0', "\n")
    }

    /// What `git ls-tree` says of a tree in the store of `taker`; the reference of a hash snapshot.
    pub(crate) fn listing(&self, taker: &Taker, snapshot: &Snapshot) -> String {
        let store = taker.workspace.store_path().join("git");
        let Some(tree) = snapshot.tree.as_deref() else {
            return snapshot.reference.clone();
        };
        let out = self.git_in(
            &store,
            ["ls-tree", "-r", "-t", "-z", "--full-tree", tree],
            b"",
        );
        String::from_utf8_lossy(&out).replace('\0', "\n")
    }

    /// Fails unless git finds the store whole.
    pub(crate) fn fsck(&self, taker: &Taker) {
        let store = taker.workspace.store_path().join("git");
        self.git_in(&store, ["fsck", "--strict", "--full", "--no-dangling"], b"");
    }

    /// Everything below `directory`: kind, mode, inode, size, mtime, and the content of files.
    pub(crate) fn view(&self, directory: &Path) -> BTreeMap<PathBuf, String> {
        walkdir::WalkDir::new(directory)
            .into_iter()
            .map(|entry| {
                let entry = entry.unwrap();
                let meta = entry.metadata().unwrap();
                let content = if meta.is_file() {
                    format!("{:?}", fs::read(entry.path()).unwrap())
                } else {
                    String::new()
                };
                let line = format!(
                    "{:o} inode {} size {} mtime {}.{} {content}",
                    meta.mode(),
                    meta.ino(),
                    meta.size(),
                    meta.mtime(),
                    meta.mtime_nsec(),
                );
                (entry.into_path(), line)
            })
            .collect()
    }
}

/// How long a test waits for its own lock: a program that another test of this process is about to
/// start holds it for a moment.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(60);

/// A locked workspace with its backend.
pub(crate) struct Taker {
    pub(crate) workspace: LockedWorkspace,
    pub(crate) backend: Arc<dyn Backend>,
}

/// Options at a fixed time; each snapshot is of a session of its own, so that none keeps what
/// another one captured.
pub(crate) fn options() -> SnapshotOptions {
    let mut options = SnapshotOptions::new(Label::MANUAL, jiff::Timestamp::UNIX_EPOCH);
    options.owner = Owner {
        session_id: format!("session-{}", options.id),
        run_id: None,
    };
    options
}

impl Taker {
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.snapshot_with(&options())
    }

    pub(crate) fn snapshot_with(&self, options: &SnapshotOptions) -> Snapshot {
        self.try_snapshot(options).unwrap()
    }

    pub(crate) fn try_snapshot(
        &self,
        options: &SnapshotOptions,
    ) -> Result<Snapshot, SnapshotError> {
        self.try_snapshot_in(&Operation::unbounded(), options)
    }

    pub(crate) fn try_snapshot_in(
        &self,
        op: &Operation,
        options: &SnapshotOptions,
    ) -> Result<Snapshot, SnapshotError> {
        self.backend.snapshot(op, &self.workspace, options)
    }

    pub(crate) fn tree(&self) -> String {
        self.snapshot().tree.unwrap()
    }
}

/// The omissions of a snapshot, as text.
pub(crate) fn omissions(snapshot: &Snapshot) -> Vec<String> {
    snapshot
        .omissions()
        .iter()
        .map(|o| match o.bytes {
            Some(bytes) => format!("{} {} {bytes}", o.path, o.reason),
            None => format!("{} {}", o.path, o.reason),
        })
        .collect()
}

/// Runs the test `name` in a process of its own, started by `through` (such as `setpriv` with its
/// options), where [`other_process`] gives `root`.
pub(crate) fn in_another_process(through: &[&str], name: &str, root: &Path) -> Command {
    let own = std::env::current_exe().unwrap();
    let mut words: Vec<&OsStr> = through.iter().map(OsStr::new).collect();
    words.push(own.as_os_str());
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .args([name, "--exact", "--nocapture"])
        .env("STILLFRAME_TEST_ROOT", root);
    command
}

/// The root that [`in_another_process`] was given; `None` in a process that a person started.
pub(crate) fn other_process() -> Option<PathBuf> {
    std::env::var_os("STILLFRAME_TEST_ROOT").map(PathBuf::from)
}
