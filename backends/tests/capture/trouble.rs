//! What cannot be read, what there is too little of, and who wants it to stop.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use stillframe_backends::{
    ErrorKind, Interrupt, Operation, SnapshotError, StateDir, Strategy, Workspace, detect,
};

use crate::ground::{Ground, LOCK_TIMEOUT, in_another_process, omissions, options, other_process};
use crate::must_run::{Capability, skipped};

/// Runs the rest of a test as a user whom permissions bind. True in the process that may go on,
/// false in the one that has started it, or where there is no way.
fn is_bound(name: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        return true;
    }
    let through = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let probe = Command::new(through[0])
        .args(&through[1..])
        .arg(std::env::current_exe().unwrap())
        .arg("--list")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if probe.is_ok_and(|status| status.success()) {
        let status = in_another_process(&through, name, &PathBuf::from("/")).status();
        assert!(status.unwrap().success());
    } else {
        let why = "nobody cannot run this very program";
        skipped(Capability::OtherUser, why);
    }
    false
}

#[test]
fn what_may_not_be_read_is_named_and_stays_tracked() {
    if !is_bound("trouble::what_may_not_be_read_is_named_and_stays_tracked") {
        return;
    }
    let ground = Ground::repository();
    ground.write("locked/tracked", "x\n");
    ground.write("listed/tracked", "x\n");
    ground.write("secret", "x\n");
    ground.commit("more");
    ground.write(".git/info/exclude", "locked\nlisted\nsecret\n");
    let taker = ground.taker("state");
    let whole = taker.snapshot();
    assert_eq!(whole.tree, Some(ground.oracle()));
    for (path, mode, expected) in [
        ("locked", 0o000, "locked unreadable"),
        // Its names can be listed, and nothing more.
        ("listed", 0o400, "listed/tracked unreadable"),
        ("secret", 0o000, "secret unreadable 2"),
    ] {
        let old = fs::metadata(ground.path(path)).unwrap();
        ground.chmod(path, mode);
        ground.write("src/main.c", format!("{path}\n"));
        for taker in [&taker, &ground.taker("fresh")] {
            assert_eq!(omissions(&taker.snapshot()), [expected]);
            assert_eq!(omissions(&taker.snapshot()), [expected]);
        }
        fs::set_permissions(ground.path(path), old.permissions()).unwrap();
        assert_eq!(
            taker.tree(),
            ground.oracle(),
            "{path} is tracked, whatever is ignored"
        );
    }
}

#[test]
fn attributes_that_cannot_be_read_are_trusted_with_nothing() {
    if !is_bound("trouble::attributes_that_cannot_be_read_are_trusted_with_nothing") {
        return;
    }
    let ground = Ground::repository();
    ground.write(".gitattributes", "*.txt text eol=crlf\n");
    ground.write("a.txt", "one\r\n");
    ground.commit("crlf");
    ground.git(["rm", "-q", "--cached", ".gitattributes"]);
    ground.settle();
    ground.chmod(".gitattributes", 0o000);
    let taker = ground.taker("state");
    let snapshot = taker.snapshot();
    assert_eq!(omissions(&snapshot), [".gitattributes unreadable 20"]);
    ground.chmod(".gitattributes", 0o644);
    let tree = taker.tree();
    assert_eq!(
        tree,
        ground.oracle(),
        "the bytes on disk, with their line endings"
    );
    let listing = ground.listing(&taker, &snapshot);
    let text = ground.git(["hash-object", "--no-filters", "a.txt"]);
    assert!(listing.contains(&text), "{listing}");
}

#[test]
fn too_few_descriptors_fail_a_capture_and_never_shrink_it() {
    const NAME: &str = "trouble::too_few_descriptors_fail_a_capture_and_never_shrink_it";
    if let Some(root) = other_process() {
        // The answer goes through a file, which needs a descriptor: one is kept for it.
        let answer = fs::File::create(root.parent().unwrap().join("answer")).unwrap();
        let state = StateDir::open(root.parent().unwrap().join("state")).unwrap();
        let workspace = Workspace::open(&root, &state).unwrap();
        let text = match detect(&workspace, Strategy::Auto) {
            Err(error) => format!("{:?}", error.kind()),
            Ok(found) => match workspace.lock(&Operation::unbounded(), LOCK_TIMEOUT) {
                Err(error) => format!("{:?}", error.kind()),
                Ok(workspace) => {
                    match found
                        .backend
                        .snapshot(&Operation::unbounded(), &workspace, &options())
                    {
                        Ok(snapshot) => snapshot.tree.unwrap(),
                        Err(error) => format!("{:?}", error.kind()),
                    }
                }
            },
        };
        std::io::Write::write_all(&mut &answer, text.as_bytes()).unwrap();
        return;
    }
    let ground = Ground::repository();
    ground.write(".gitignore", "*.log\n");
    for n in 0..40 {
        ground.write(format!("d{n}/.gitignore"), "*.log\n!kept.log\n");
        ground.write(format!("d{n}/kept.log"), "x\n");
        ground.write(format!("d{n}/a.log"), "x\n");
    }
    let expected = ground.oracle();
    let mut endings = [0, 0];
    for limit in (6..90).step_by(4) {
        let _ = fs::remove_dir_all(ground.beside("state"));
        let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
        let _ = fs::remove_file(ground.beside("answer"));
        let status = in_another_process(&["sh", "-c", &script], NAME, &ground.root)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        let answer = fs::read_to_string(ground.beside("answer")).unwrap_or_default();
        match answer.as_str() {
            // It could not even begin.
            "" => assert!(!status.success()),
            "Unreadable" | "Storage" => endings[0] += 1,
            tree => {
                assert_eq!(tree, expected, "with {limit} descriptors");
                endings[1] += 1;
            }
        }
    }
    assert!(
        endings.iter().all(|n| *n > 0),
        "both endings were seen: {endings:?}"
    );
}

#[test]
fn a_capture_that_is_told_to_stop_publishes_nothing() {
    let ground = Ground::repository();
    for taker in [ground.taker("git-state"), ground.hash_taker("hash-state")] {
        let late = Operation::unbounded().cancelled_by(&Interrupt::after(Duration::ZERO));
        let error = taker.try_snapshot_in(&late, &options()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        let interrupt = Interrupt::never();
        let op = Operation::unbounded().cancelled_by(&interrupt);
        let mut cancelled = options();
        // In the middle: once the walk reports its first directory.
        cancelled.progress = Some(Arc::new(move |_| interrupt.cancel()));
        let error = taker.try_snapshot_in(&op, &cancelled).unwrap_err();
        assert!(matches!(error, SnapshotError::Interrupted(_)), "{error}");
        assert!(
            taker
                .backend
                .list(&Operation::unbounded(), &taker.workspace)
                .unwrap()
                .snapshots
                .is_empty()
        );
        taker.snapshot();
        assert_eq!(
            taker
                .backend
                .list(&Operation::unbounded(), &taker.workspace)
                .unwrap()
                .snapshots
                .len(),
            1
        );
    }
}

#[test]
fn a_host_whose_progress_panics_gets_its_panic_back() {
    let ground = Ground::repository();
    let taker = ground.taker("state");
    let mut broken = options();
    broken.progress = Some(Arc::new(|_| panic!("the host's own")));
    let caught =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| taker.try_snapshot(&broken)));
    assert!(caught.is_err(), "and nobody waits for ever");
    assert_eq!(taker.tree(), ground.oracle());
}

#[test]
fn a_workspace_whose_directory_was_swapped_is_an_error() {
    let ground = Ground::repository();
    for taker in [ground.taker("git-state"), ground.hash_taker("hash-state")] {
        fs::rename(&ground.root, ground.beside("moved")).unwrap();
        let gone = taker.try_snapshot(&options()).unwrap_err();
        fs::create_dir(&ground.root).unwrap();
        let swapped = taker.try_snapshot(&options()).unwrap_err();
        for error in [gone, swapped] {
            assert!(
                matches!(error.kind(), ErrorKind::Unreadable | ErrorKind::Unsupported),
                "{error}"
            );
        }
        fs::remove_dir(&ground.root).unwrap();
        fs::rename(ground.beside("moved"), &ground.root).unwrap();
        taker.snapshot();
    }
}

#[test]
fn what_is_mounted_inside_is_named_and_not_entered() {
    const NAME: &str = "trouble::what_is_mounted_inside_is_named_and_not_entered";
    if let Some(root) = other_process() {
        let state = StateDir::open(root.parent().unwrap().join("state")).unwrap();
        let workspace = Workspace::open(&root, &state).unwrap();
        let backend = detect(&workspace, Strategy::Auto).unwrap().backend;
        let workspace = workspace
            .lock(&Operation::unbounded(), LOCK_TIMEOUT)
            .unwrap();
        let snapshot = backend
            .snapshot(&Operation::unbounded(), &workspace, &options())
            .unwrap();
        let expected = [
            "bound other_filesystem",
            "bound-file other_filesystem 2",
            "tmpfs other_filesystem",
        ];
        assert_eq!(omissions(&snapshot), expected);
        return;
    }
    let ground = Ground::repository();
    fs::create_dir(ground.beside("outside")).unwrap();
    fs::write(ground.beside("outside/file"), "x\n").unwrap();
    ground.mkdir("tmpfs");
    ground.mkdir("bound");
    ground.write("bound-file", "y\n");
    let probe = Command::new("unshare").args(["-m", "true"]).status();
    if !probe.is_ok_and(|status| status.success()) {
        return;
    }
    // The last two are on the workspace's own device.
    let script = format!(
        "mount -t tmpfs none {root:?}/tmpfs && mount --bind {outside:?} {root:?}/bound \
         && mount --bind {outside:?}/file {root:?}/bound-file && exec \"$0\" \"$@\"",
        root = ground.root,
        outside = ground.beside("outside"),
    );
    let status = in_another_process(&["unshare", "-m", "sh", "-c", &script], NAME, &ground.root)
        .status()
        .unwrap();
    assert!(status.success());
}
