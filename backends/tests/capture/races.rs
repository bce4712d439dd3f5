//! Somebody else is at work while a capture runs. It ends, it reads nothing from outside, and what
//! it stores are states that files had.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::ground::{Ground, Taker};

/// Takes snapshots while `mischief` goes on, and looks at each tree that comes of it.
fn capture_during(
    ground: &Ground,
    taker: &Taker,
    mischief: impl Fn(u32) + Send + Sync,
    look: impl Fn(&str),
) {
    let is_over = AtomicBool::new(false);
    let mut rounds = 0;
    std::thread::scope(|scope| {
        let racer = scope.spawn(|| {
            let mut n = 0;
            while !is_over.load(Ordering::Relaxed) {
                mischief(n);
                n += 1;
            }
            n
        });
        for _ in 0..12 {
            let snapshot = taker.snapshot();
            if snapshot.tree.is_some() {
                look(&ground.listing(taker, &snapshot));
            }
        }
        is_over.store(true, Ordering::Relaxed);
        rounds = racer.join().unwrap();
    });
    assert!(rounds > 0, "there was a race");
}

/// Fails if any object in the store holds the text that only files outside have.
fn assert_unread(ground: &Ground, taker: &Taker, canary: &str) {
    let id = ground.git_in(&ground.root, ["hash-object", "--stdin"], canary.as_bytes());
    let id = String::from_utf8(id).unwrap();
    let store = taker.workspace.store_path().join("git");
    let all = ground.git_in(
        &store,
        [
            "cat-file",
            "--batch-all-objects",
            "--batch-check=%(objectname)",
        ],
        b"",
    );
    let all = String::from_utf8(all).unwrap();
    assert!(
        !all.lines().any(|line| line == id.trim()),
        "the canary was read"
    );
}

fn replace_by(path: &Path, make: impl Fn(&Path)) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_dir_all(path);
    make(path);
}

const CANARY: &str = "nobody may read this\n";

#[test]
fn a_link_that_comes_and_goes_never_leads_outside() {
    let ground = Ground::repository();
    let outside = ground.beside("outside");
    fs::create_dir_all(outside.join("b")).unwrap();
    for name in ["file", "b/file"] {
        fs::write(outside.join(name), CANARY).unwrap();
    }
    ground.write("a/b/file", "inside\n");
    let taker = ground.taker("state");
    let swap = |n: u32| {
        for (path, target) in [("a/b/file", "file"), ("a/b", "b"), ("a", "")] {
            let path = ground.path(path);
            let _ = fs::create_dir_all(path.parent().unwrap());
            replace_by(&path, |path| symlink(outside.join(target), path).unwrap());
            replace_by(&path, |path| {
                if target == "file" {
                    fs::write(path, format!("inside {n}\n")).unwrap();
                } else {
                    fs::create_dir(path).unwrap();
                }
            });
        }
    };
    capture_during(&ground, &taker, swap, |_| {});
    assert_unread(&ground, &taker, CANARY);
    ground.fsck(&taker);
    assert_eq!(
        taker.tree(),
        ground.oracle(),
        "and nothing of it is remembered"
    );
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), CANARY);
}

#[test]
fn entries_that_come_and_go_stop_nothing() {
    let ground = Ground::repository();
    ground.write("still", "still\n");
    for n in 0..30 {
        ground.write(format!("many/{n}/file"), "x\n");
    }
    ground.git(["add", "many"]);
    for taker in [ground.taker("git-state"), ground.hash_taker("hash-state")] {
        let churn = |n: u32| {
            let directory = ground.path(format!("many/{}", n % 30));
            let _ = fs::remove_dir_all(&directory);
            match n % 4 {
                0 => fs::write(&directory, "a file\n").unwrap(),
                1 => symlink("nowhere", &directory).unwrap(),
                _ => {
                    fs::create_dir(&directory).unwrap();
                    fs::write(directory.join("file"), format!("{n}\n")).unwrap();
                    fs::write(directory.join("another"), format!("{n}\n")).unwrap();
                }
            }
            if fs::symlink_metadata(&directory).unwrap().is_file() {
                fs::remove_file(&directory).unwrap();
            }
            let _ = fs::remove_file(&directory);
        };
        capture_during(&ground, &taker, churn, |listing| {
            assert!(
                listing.contains("\tstill\n"),
                "what nobody touches is there"
            );
        });
        let fresh = match taker.backend.kind().as_str() {
            "git" => {
                assert_eq!(taker.tree(), ground.oracle(), "nothing of it is remembered");
                ground.taker("fresh-git")
            }
            _ => ground.hash_taker("fresh-hash"),
        };
        assert!(taker.snapshot().same_content(&fresh.snapshot()));
    }
}

#[test]
fn a_file_that_is_written_while_it_is_read_is_whole_or_named() {
    let ground = Ground::repository();
    let size = 300_000;
    let content = |n: u32| vec![b'a' + (n % 26) as u8; size];
    ground.write("file", content(0));
    let taker = ground.taker("state");
    let rewrite = |n: u32| {
        // By rename: at any time the file is one of the contents, and whole.
        fs::write(ground.path("file.new"), content(n)).unwrap();
        fs::rename(ground.path("file.new"), ground.path("file")).unwrap();
    };
    let whole: Vec<String> = (0..26)
        .map(|n| {
            let id = ground.git_in(&ground.root, ["hash-object", "--stdin"], &content(n));
            String::from_utf8(id).unwrap().trim().to_owned()
        })
        .collect();
    capture_during(&ground, &taker, rewrite, |listing| {
        let line = listing.lines().find(|line| line.ends_with("\tfile"));
        if let Some(line) = line {
            assert!(whole.iter().any(|id| line.contains(id)), "{line}");
        }
    });
    ground.fsck(&taker);
}

#[test]
fn a_directory_that_moves_out_takes_its_files_with_it() {
    let ground = Ground::repository();
    let outside = ground.beside("outside");
    fs::create_dir(&outside).unwrap();
    ground.mkdir("in");
    let taker = ground.taker("state");
    // What is written while it is outside never was in the workspace.
    let wander = |n: u32| {
        let (inside, outside) = (ground.path("in/d"), outside.join("d"));
        fs::create_dir(&inside).unwrap();
        fs::write(inside.join("a"), format!("inside {n}\n")).unwrap();
        fs::rename(&inside, &outside).unwrap();
        for name in ["a", "b", "c"] {
            fs::write(outside.join(name), CANARY).unwrap();
        }
        fs::remove_dir_all(&outside).unwrap();
    };
    let canary = ground.git_in(&ground.root, ["hash-object", "--stdin"], CANARY.as_bytes());
    let canary = String::from_utf8(canary).unwrap();
    capture_during(&ground, &taker, wander, |listing| {
        assert!(!listing.contains(canary.trim()), "{listing}");
    });
}
