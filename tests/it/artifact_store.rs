//! Artifacts: the contract over both stores, and what only a store on disk can get wrong.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stillframe_artifact_store::testing::{TestArtifactStore as _, get, key, noise, put};
use stillframe_artifact_store::{
    ArtifactStore as _, ErrorKind, FileStore, GcOutcome, GetError, MemoryStore, OpenError,
    PutOptions, artifact_store_contract,
};
use stillframe_tests::artifact_store::TestFileStore;
use stillframe_tests::capability::{self, Capability};

artifact_store_contract!(file, TestFileStore::new());
artifact_store_contract!(memory, MemoryStore::new());

/// Every path below `root` with its permission bits and, for files, its content.
fn view(root: &Path) -> BTreeMap<PathBuf, String> {
    walkdir::WalkDir::new(root)
        .into_iter()
        .map(|entry| {
            let entry = entry.expect("nobody else is at work here");
            let mode = entry.metadata().expect("it was just listed").mode();
            // Only files: reading a FIFO waits for somebody to write.
            let content = match entry.file_type().is_file() {
                true => blake3::hash(&fs::read(entry.path()).expect("it is ours")).to_string(),
                false => String::new(),
            };
            (entry.into_path(), format!("{mode:o} {content}"))
        })
        .collect()
}

/// Runs the test of that name in a process of its own, which finds `STILLFRAME_TEST_ROOT` set.
///
/// `before` is shell that runs first, such as `umask 000`.
fn in_another_process(before: &str, test: &str, root: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("{before}; exec \"$0\" \"$@\""))
        .arg(std::env::current_exe().expect("a test runs from a file"))
        .args([test, "--exact", "--nocapture"])
        .env("STILLFRAME_TEST_ROOT", root);
    command
}

/// Where the other process is to work; `None` in the first one.
fn root_of_another_process() -> Option<PathBuf> {
    std::env::var_os("STILLFRAME_TEST_ROOT").map(PathBuf::from)
}

#[test]
fn a_store_opened_again_has_what_was_put() {
    let test = TestFileStore::new();
    put(test.store(), "key", b"content");
    let again = FileStore::open(test.file_store().root()).unwrap();
    assert_eq!(get(&again, "key").as_deref(), Some(&b"content"[..]));
    assert_eq!(again.list().unwrap(), test.store().list().unwrap());
}

#[test]
fn everything_is_private_whatever_the_umask() {
    if let Some(root) = root_of_another_process() {
        let store = FileStore::open(root).unwrap();
        put(&store, "key", b"content");
        return;
    }
    for umask in ["000", "022", "077", "277"] {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("artifacts");
        let status = in_another_process(
            &format!("umask {umask}"),
            "artifact_store::everything_is_private_whatever_the_umask",
            &root,
        )
        .stdout(Stdio::null())
        .status();
        assert!(status.unwrap().success());
        let mut files = 0;
        for entry in walkdir::WalkDir::new(&root) {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().mode() & 0o7777;
            if entry.file_type().is_dir() {
                assert_eq!(mode, 0o700, "{:?} under umask {umask}", entry.path());
            } else {
                assert_eq!(mode, 0o600, "{:?} under umask {umask}", entry.path());
                files += 1;
            }
        }
        assert_eq!(files, 5, "format, lock, record, content and claim");
    }
}

#[test]
fn an_open_directory_of_a_store_is_made_private_again() {
    let test = TestFileStore::new();
    let root = test.file_store().root();
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    FileStore::open(root).unwrap();
    assert_eq!(root.metadata().unwrap().mode() & 0o7777, 0o700);
}

#[test]
fn a_root_that_cannot_be_a_store_is_refused_and_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("empty")).unwrap();
    symlink("empty", at("link")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    fs::write(at("file"), "text").unwrap();
    fs::create_dir(at("home")).unwrap();
    fs::set_permissions(at("home"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(at("home/letter"), "text").unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let before = view(directory.path());
    for (name, reason) in [
        ("link", "it is a link"),
        ("link/", "it is a link"),
        ("link/.", "it is a link"),
        ("dangling", "it is a link"),
        ("file", "it is not a directory"),
        ("file/below", "it is not a directory"),
        ("fifo", "it is not a directory"),
        ("home", "it holds letter, which is not a store's"),
    ] {
        let e = FileStore::open(at(name)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidOptions, "{name}: {e:?}");
        assert!(e.to_string().ends_with(reason), "{name}: {e}");
    }
    let e = FileStore::open("").unwrap_err();
    assert!(matches!(e, OpenError::EmptyRoot), "{e:?}");
    assert_eq!(e.kind(), ErrorKind::InvalidOptions);
    let e = FileStore::open("/").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidOptions, "{e:?}");
    assert_eq!(view(directory.path()), before);

    FileStore::open(at("empty")).expect("an empty directory becomes a store");
    FileStore::open(at("new/below/another")).expect("what is missing is made");
}

#[test]
fn the_directory_of_another_user_is_refused() {
    let test = TestFileStore::new();
    let root = test.file_store().root();
    if chown(root, Some(65_533), None).is_err() {
        return capability::skipped(Capability::Root, "only root can give files away");
    }
    let e = FileStore::open(root).unwrap_err();
    assert!(e.to_string().contains("it belongs to user 65533"), "{e}");
    assert_eq!(e.kind(), ErrorKind::InvalidOptions);

    chown(root, Some(0), None).unwrap();
    put(test.store(), "key", b"content");
    chown(root.join("blobs"), Some(65_533), None).unwrap();
    let e = FileStore::open(root).unwrap_err();
    assert!(matches!(e, OpenError::Io(_)), "{e:?}");
}

#[test]
fn a_store_of_an_unknown_format_is_refused_and_not_touched() {
    let test = TestFileStore::new();
    put(test.store(), "key", b"content");
    let root = test.file_store().root();
    let format = fs::read_to_string(root.join("format.json")).unwrap();
    for other in [
        &*format.replace("1}", "2}"),
        "",
        "\u{1b}[2J",
        &format.repeat(9),
    ] {
        fs::write(root.join("format.json"), other).unwrap();
        let before = view(root);
        let e = FileStore::open(root).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e:?}");
        assert!(!e.to_string().contains('\u{1b}'), "{e}");
        assert_eq!(view(root), before);
    }
    fs::write(root.join("format.json"), format).unwrap();
    FileStore::open(root).unwrap();
}

#[test]
fn a_link_in_the_store_is_never_followed() {
    let test = TestFileStore::new();
    let (store, root) = (test.store(), test.file_store().root());
    let outside = test.outside();
    let victim = outside.join("victim");
    put(store, "key", b"content");
    let (blob, record) = (test.blob_path(&key("key")), test.record_path(&key("key")));
    let bytes = fs::read(&record).unwrap();

    // Even to the right bytes: what lies outside is not ours to say anything about.
    for (place, content) in [(&blob, &b"content"[..]), (&record, &bytes)] {
        fs::write(&victim, content).unwrap();
        let before = view(&outside);
        fs::remove_file(place).unwrap();
        symlink(&victim, place).unwrap();
        let e = store.get(&key("key")).map(drop).unwrap_err();
        assert!(matches!(e, GetError::Corrupt { .. }), "{e:?}");
        assert_eq!(test.file_store().verify().unwrap().problems.len(), 1);
        test.file_store().gc().unwrap();
        put(store, "key", b"content");
        assert_eq!(get(store, "key").as_deref(), Some(&b"content"[..]));
        assert!(
            place.symlink_metadata().unwrap().is_file(),
            "the link was replaced"
        );
        assert_eq!(view(&outside), before);
    }

    // The key's own directories, the lock, and where everything is staged.
    for place in [
        record.parent().unwrap(),
        blob.parent().unwrap(),
        &root.join("lock"),
    ] {
        let aside = root.join("aside");
        fs::rename(place, &aside).unwrap();
        let target = if aside.is_dir() { &outside } else { &victim };
        symlink(target, place).unwrap();
        let before = view(&outside);
        let mut content = &b"content"[..];
        let e = store
            .put(&key("key"), &mut content, &PutOptions::default())
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Storage, "{place:?}: {e:?}");
        assert_eq!(view(&outside), before, "{place:?}");
        fs::remove_file(place).unwrap();
        fs::rename(&aside, place).unwrap();
        put(store, "key", b"content");
    }
    for name in ["keys", "blobs", "staging", "format.json"] {
        let place = root.join(name);
        fs::rename(&place, root.join("aside")).unwrap();
        symlink(&outside, &place).unwrap();
        let before = view(&outside);
        FileStore::open(root).unwrap_err();
        assert_eq!(view(&outside), before, "{name}");
        fs::remove_file(&place).unwrap();
        fs::rename(root.join("aside"), &place).unwrap();
    }
    FileStore::open(root).expect("everything is back");
}

#[test]
fn a_fifo_in_the_store_keeps_nobody_waiting() {
    let test = TestFileStore::new();
    let (store, root) = (test.store(), test.file_store().root());
    put(store, "blob", b"content");
    put(store, "record", b"other");
    let staged = root.join("staging/fifo");
    for place in [
        &test.blob_path(&key("blob")),
        &test.record_path(&key("record")),
        &staged,
    ] {
        let _ = fs::remove_file(place);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            place,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
    }
    for name in ["blob", "record"] {
        let e = store.get(&key(name)).map(drop).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{name}: {e:?}");
    }
    assert_eq!(store.list().unwrap().damaged.len(), 1);
    assert_eq!(test.file_store().verify().unwrap().problems.len(), 2);
    test.file_store().gc().unwrap();
    fs::symlink_metadata(&staged).expect("what no store makes is not the store's to remove");
}

/// Content that is made while it is read, and remembers the largest piece asked for.
struct Generated {
    bytes_left: u64,
    state: u64,
    largest: usize,
}

impl Generated {
    fn new(bytes: u64) -> Self {
        Self {
            bytes_left: bytes,
            state: 1,
            largest: 0,
        }
    }
}

impl Read for Generated {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.largest = self.largest.max(buffer.len());
        let length = usize::try_from(self.bytes_left).map_or(buffer.len(), |b| b.min(buffer.len()));
        for chunk in buffer[..length].chunks_mut(4096) {
            chunk.fill(self.state as u8);
            // Knuth's multiplier for 64 bits; the low bits alone would repeat too soon.
            self.state = self
                .state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            chunk[0] = (self.state >> 56) as u8;
        }
        self.bytes_left -= length as u64;
        Ok(length)
    }
}

#[test]
fn content_streams_both_ways_in_small_pieces() {
    const BYTES: u64 = 64 << 20;
    let test = TestFileStore::new();
    let mut content = Generated::new(BYTES);
    let meta = test
        .store()
        .put(&key("large"), &mut content, &PutOptions::default())
        .unwrap();
    assert_eq!(meta.bytes, BYTES);
    assert!(
        content.largest <= 1 << 20,
        "{} bytes at once",
        content.largest
    );

    let mut hasher = blake3::Hasher::new();
    let mut read = 0;
    let mut reader = test.store().get(&key("large")).unwrap();
    let mut buffer = [0; 16 * 1024];
    loop {
        match reader.read(&mut buffer).unwrap() {
            0 => break,
            length => {
                hasher.update(&buffer[..length]);
                read += length as u64;
            }
        }
    }
    assert_eq!(read, BYTES);
    assert_eq!(hasher.finalize().to_string(), meta.blake3.to_string());
    assert_eq!(test.file_store().total_bytes().unwrap(), BYTES);
}

#[test]
fn a_put_killed_half_way_is_absent_and_its_rest_is_collected() {
    /// Says that it is being read, then waits for the end.
    struct Waiting;
    impl Read for Waiting {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            println!("half-way");
            io::stdout().flush()?;
            io::stdin().read_exact(&mut [0])?;
            Ok(buffer.len())
        }
    }
    if let Some(root) = root_of_another_process() {
        let store = FileStore::open(root).unwrap();
        let mut content = noise(1, 100_000).chain_with(Waiting);
        store
            .put(&key("new"), &mut content, &PutOptions::default())
            .unwrap();
        return;
    }
    let test = TestFileStore::new();
    put(test.store(), "old", b"old");
    let before = view(test.file_store().root());
    let mut child = in_another_process(
        "true",
        "artifact_store::a_put_killed_half_way_is_absent_and_its_rest_is_collected",
        test.file_store().root(),
    )
    .stdin(Stdio::piped())
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_half_way = lines
        .map_while(Result::ok)
        .any(|line| line.contains("half-way"));
    assert!(is_half_way, "the other process never came that far");

    let outcome = test.file_store().gc().unwrap();
    assert_eq!(
        outcome,
        GcOutcome::default(),
        "somebody is still at work on it"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!test.store().exists(&key("new")).unwrap());
    let outcome = test.file_store().gc().unwrap();
    assert_eq!(
        (outcome.temporaries_removed, outcome.bytes_removed),
        (1, 100_000)
    );
    assert_eq!(view(test.file_store().root()), before);
}

trait ChainWith {
    fn chain_with<R: Read>(self, next: R) -> impl Read;
}

impl ChainWith for Vec<u8> {
    fn chain_with<R: Read>(self, next: R) -> impl Read {
        io::Cursor::new(self).chain(next)
    }
}

#[test]
fn a_full_disk_is_no_space_and_leaves_what_was_there() {
    const DISK_BYTES: usize = 8 << 20;
    if let Some(root) = root_of_another_process() {
        let store = FileStore::open(root.join("artifacts")).unwrap();
        put(&store, "old", b"old");
        let before = view(&root);
        let mut content = Generated::new(2 * DISK_BYTES as u64);
        let e = store
            .put(&key("old"), &mut content, &PutOptions::default())
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NoSpace, "{e:?}");
        assert_eq!(view(&root), before, "the room is free again");
        put(&store, "new", &noise(1, DISK_BYTES / 2));
        assert_eq!(get(&store, "old").as_deref(), Some(&b"old"[..]));
        println!("the full disk was seen");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mount = |then: &str| {
        format!(
            "mount -t tmpfs -o size={DISK_BYTES},mode=700 none \"$STILLFRAME_TEST_ROOT\" && {then}"
        )
    };
    // A name space of its own, so that nobody else sees the small disk and it goes with the test.
    let unshared = |script: &str| {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--map-root-user", "sh", "-c", script])
            .env("STILLFRAME_TEST_ROOT", directory.path());
        command
    };
    if !unshared(&mount("true"))
        .output()
        .is_ok_and(|o| o.status.success())
    {
        // The calls that fail one by one are a test of the crate.
        let why = "no small disk can be made here";
        return capability::skipped(Capability::Mounts, why);
    }
    let output = unshared(&mount("exec \"$0\" \"$@\""))
        .arg(std::env::current_exe().unwrap())
        .args(["artifact_store::a_full_disk_is_no_space_and_leaves_what_was_there"])
        .args(["--exact", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("the full disk was seen"), "{text}");
    assert!(output.status.success(), "{text}");
}
