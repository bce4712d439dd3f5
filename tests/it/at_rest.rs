//! What a disk does to what is kept: bits that flip, files that change places, go, or are cut
//! short.
//!
//! Whatever it is, `verify` says so, or nothing that anybody is told is other than it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stillframe_tests::choice::is_chosen;
use stillframe_tests::{Running, TestWorkspace, caches, copy_whole, view};
use walkdir::WalkDir;

/// A workspace with something in every kind of file that a state directory has.
fn lived_in() -> TestWorkspace {
    let mut ws = TestWorkspace::repository();
    ws.write("dir/file", "one\n".repeat(400));
    ws.write(".gitignore", "ignored\n");
    ws.write("ignored", "x\n");
    ws.commit("more");
    let first = ws.snapshot();
    ws.write("dir/file", "two\n".repeat(400));
    ws.write("secret", "q9XKf2Zr7LmWb4Tn8VpCd1Ys\n");
    ws.run(
        ["--max-patch-bytes", "100", "--session", "s"],
        "seq 9 > made; echo 3 > dir/file",
    )
    .ok();
    ws.restore(&first);
    ws.undo();
    ws.json(["purge", "secret"]);
    ws.snapshot_with(["--strategy", "hash", "--retain-content"]);
    ws.damages_the_store();
    ws
}

/// What kind of file of a state directory this is, by its place; `None`: nothing depends on it.
fn kind(path: &Path) -> Option<String> {
    let text = path.to_str().unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();
    let extension = path.extension().and_then(|e| e.to_str());
    let is_below = |part: &str| text.contains(part);
    if let Some(kind) = caches::kind(path) {
        return Some(kind.to_owned());
    }
    let kind = match name {
        "stillframe.db" => "database",
        "reserve" | "opening.lock" | "lock" | "above-limit" | "retention" => return None,
        _ if name.ends_with("-wal") || name.ends_with("-shm") => return None,
        _ if extension == Some("lock") || extension == Some("run") => return None,
        "purged" | "workspace.json" | "format.json" | "spared.json" => name,
        _ if is_below("/artifacts/keys/") => "record of an artifact",
        _ if is_below("/artifacts/blobs/") && extension.is_none() => "artifact",
        _ if is_below("/artifacts/") => return None,
        _ if is_below("/trash") || is_below("/restore-") => "displaced",
        _ if is_below("/made/") => "made",
        _ if is_below("/hash/snapshots/") => "record of a hash snapshot",
        _ if is_below("/hash/manifests/") => "manifest",
        _ if is_below("/hash/content/") => "retained content",
        _ if is_below("/git/refs/") => "ref",
        _ if is_below("/objects/pack/") => return Some(extension.unwrap_or("pack").to_owned()),
        _ if is_below("/git/objects/") => "loose object",
        _ if is_below("/git/") => "file of the store",
        _ => panic!("a kind of file that nobody thought of: {text}"),
    };
    Some(kind.to_owned())
}

/// The files of the state directory, by kind.
fn files(ws: &TestWorkspace) -> BTreeMap<String, Vec<PathBuf>> {
    let mut files = BTreeMap::<String, Vec<PathBuf>>::new();
    for entry in WalkDir::new(ws.state()).sort_by_file_name() {
        let entry = entry.unwrap();
        if entry.file_type().is_file()
            && entry.metadata().unwrap().len() > 0
            && let Some(kind) = kind(entry.path())
        {
            files.entry(kind).or_default().push(entry.into_path());
        }
    }
    files
}

/// Replaces the bytes of a file in place and keeps its times: a disk tells nobody.
fn put(path: &Path, bytes: &[u8]) {
    let meta = fs::metadata(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(path, bytes).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(meta.modified().unwrap()).unwrap();
    fs::set_permissions(path, meta.permissions()).unwrap();
}

/// Everything that can be asked for, as it is answered; errors by their kind.
fn told(ws: &TestWorkspace) -> Vec<String> {
    let mut told = Vec::new();
    let mut ask = |args: &[&str]| {
        let output = ws.try_json(args);
        told.push(format!("{args:?} {} {}", output.code, output.stdout_text()));
        output
    };
    let listed = ask(&["list"]);
    ask(&["runs"]);
    ask(&["events"]);
    let artifacts = ask(&["artifact", "list"]);
    if listed.code == 0 {
        for snapshot in listed.json().as_array().unwrap() {
            ask(&["show", snapshot["id"].as_str().unwrap()]);
        }
    }
    if artifacts.code == 0 {
        for artifact in artifacts.json().as_array().unwrap() {
            ask(&["artifact", "get", artifact["key"].as_str().unwrap()]);
        }
    }
    told
}

/// One bit in the middle of the first or the last thing of every kind, and at its ends.
#[test]
fn a_bit_that_flips_in_any_kind_of_file_is_found_or_changes_nothing_that_is_told() {
    let ws = lived_in();
    let whole = told(&ws);
    ws.stillframe(["verify"]).ok();
    let keep = ws.outside().join("state");
    copy_whole(&ws.state(), &keep);
    let mut found = BTreeSet::new();
    let kinds = files(&ws);
    for (kind, paths) in &kinds {
        let end = match is_chosen(kind, 2) {
            true => paths.first(),
            false => paths.last(),
        };
        if let Some(path) = end {
            let bytes = fs::read(path).unwrap();
            let places = [0, bytes.len() / 3, bytes.len() / 2, bytes.len() - 1];
            for at in places.into_iter().collect::<BTreeSet<_>>() {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << (at % 8);
                put(path, &flipped);
                let context = format!("{kind}: bit {} of byte {at} in {}", at % 8, path.display());
                let verified = ws.try_json(["verify"]);
                assert!(
                    verified.code == 0 || verified.code == 1,
                    "{context}: {verified}"
                );
                if verified.code == 1 {
                    found.insert(kind.clone());
                } else {
                    assert_eq!(told(&ws), whole, "{context}");
                }
                copy_whole(&keep, &ws.state());
            }
        }
    }
    for kind in [
        "artifact",
        "database",
        "idx",
        "loose object",
        "manifest",
        "pack",
        "purged",
        "record of a hash snapshot",
        "record of an artifact",
        "ref",
        "retained content",
    ] {
        assert!(
            kinds.contains_key(kind),
            "there is a {kind}: {:?}",
            kinds.keys()
        );
        assert!(
            found.contains(kind),
            "damage of a {kind} was found: {found:?}"
        );
    }
}

/// Where a text lies in the database, and no other does.
fn place_of(database: &[u8], text: &str) -> usize {
    let mut places = database
        .windows(text.len())
        .enumerate()
        .filter(|(_, part)| *part == text.as_bytes());
    let (at, _) = places.next().expect("it is in there");
    at
}

// SQLite's own checks find nothing wrong with either
#[test]
fn a_row_that_a_disk_changed_is_never_told_and_verify_names_it() {
    let mut ws = TestWorkspace::repository();
    ws.run(["--session", "s"], "echo uniquely > made").ok();
    let snapshot = ws.snapshot();
    ws.damages_the_store();
    let database = ws.state().join("stillframe.db");
    let bytes = fs::read(&database).unwrap();
    let mut damaged = bytes.clone();
    let at = place_of(&bytes, "\"files_changed\":1");
    damaged[at + "\"files_changed\":".len()] ^= 2;
    put(&database, &damaged);
    let mut refused = 0;
    for args in [
        &["events", "--session", "s"][..],
        &["runs"],
        &["show", "run_"],
        &["list"],
    ] {
        let output = ws.try_json(args);
        assert!(
            !output.stdout_text().contains("\"files_changed\":3"),
            "{output}"
        );
        if output.code != 0 && output.stdout_text().contains("Corrupt") {
            refused += 1;
        }
    }
    assert!(refused > 0, "who reads it is told");
    let verified = ws.try_json(["verify"]).exits(1).json();
    let said = verified["log"]["message"].as_str().unwrap();
    assert!(said.contains("does not match its sum"), "{verified}");
    let people = ws.stillframe(["verify"]).exits(1);
    assert!(
        people.stdout_text().contains("does not match its sum"),
        "{people}"
    );
    ws.write("README", "edited\n");
    ws.restore(&snapshot);
    assert_eq!(
        ws.text("README"),
        "hello\n",
        "the snapshots are no worse for it"
    );
}

#[test]
fn files_that_changed_places_are_found() {
    let ws = lived_in();
    let all = files(&ws);
    let mut tried = 0;
    for kind in [
        "manifest",
        "retained content",
        "loose object",
        "record of an artifact",
    ] {
        let paths = &all[kind];
        let bytes: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
        let Some(other) = bytes.iter().position(|other| *other != bytes[0]) else {
            continue;
        };
        put(&paths[0], &bytes[other]);
        put(&paths[other], &bytes[0]);
        ws.try_json(["verify"]).exits(1);
        put(&paths[0], &bytes[0]);
        put(&paths[other], &bytes[other]);
        ws.stillframe(["verify"]).ok();
        tried += 1;
    }
    assert!(tried > 1, "{tried}: {:?}", all.keys());
}

/// Runs something elsewhere, with the same state directory, until it is killed: so long the log of
/// the database is not written back.
fn at_work_elsewhere(ws: &TestWorkspace) -> Running {
    let elsewhere = ws.outside().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let started = ws.outside().join("started");
    let script = format!("touch '{}'; sleep 60", started.display());
    let workspace = elsewhere.to_str().unwrap();
    let mut running = ws.run_call(["--workspace", workspace], &script).start();
    running.until("it is at work", |_| started.exists());
    running
}

// It had its ref and its record, and nobody but `verify` knew of it
#[test]
fn the_newest_snapshot_is_known_though_the_last_pages_of_the_log_are_lost() {
    for options in [&[][..], &["--strategy", "hash", "--retain-content"]] {
        let mut ws = TestWorkspace::repository();
        ws.write("f", "one\n");
        let first = ws.snapshot_with(options);
        let mut elsewhere = at_work_elsewhere(&ws);
        let wal = ws.state().join("stillframe.db-wal");
        let without = fs::read(&wal).unwrap();
        ws.write("f", "two\n");
        let newest = ws.snapshot_with(options);
        elsewhere.signal(rustix::process::Signal::KILL);
        elsewhere.kill();
        drop(elsewhere);
        ws.damages_the_store();
        let log = fs::read(&wal).unwrap();
        // The file may be as long as a log before it was.
        let pairs = log.iter().zip(&without);
        let begin = pairs.take_while(|(now, was)| now == was).count();
        assert!(log.len() > begin, "it is in the log alone");
        let saved = ws.outside().join("saved");
        fs::rename(ws.state(), &saved).unwrap();
        let mut flipped = log.clone();
        flipped[begin + 200] ^= 1;
        for (what, log) in [("lost", &without), ("flipped", &flipped)] {
            let fresh = || {
                copy_whole(&saved, &ws.state());
                fs::remove_file(ws.state().join("stillframe.db-shm")).unwrap();
                fs::write(&wal, log).unwrap();
            };
            let listed = || {
                let listed = ws.json(["list"]);
                let id = |snapshot: &Value| snapshot["id"].as_str().unwrap().to_owned();
                let ids: Vec<String> = listed.as_array().unwrap().iter().map(id).collect();
                ids
            };
            fresh();
            assert_eq!(listed(), [newest.id(), first.id()], "{what}");
            fresh();
            assert_eq!(ws.show(newest.id())["id"], newest.id(), "{what}");
            fresh();
            assert_eq!(ws.diff(&first, &newest)["files_changed"], 1, "{what}");
            fresh();
            ws.write("f", "edited\n");
            ws.restore(&newest);
            assert_eq!(ws.text("f"), "two\n", "{what}");
            fresh();
            let next = ws.snapshot_with(options);
            assert_eq!(listed(), [next.id(), newest.id(), first.id()], "{what}");
            fresh();
            let verified = ws.json(["verify"]);
            assert_eq!(verified["adopted"], json!([newest.id()]), "{what}");
            assert_eq!(
                ws.json(["verify"])["adopted"],
                Value::Null,
                "it is said once"
            );
        }
    }
}

// What a power cut or a careless copy leaves of a database
#[test]
fn a_log_of_the_database_that_is_gone_or_cut_short_or_another_ones_costs_no_snapshot() {
    let mut ws = TestWorkspace::repository();
    let mut before = Vec::new();
    for text in ["one\n", "two\n"] {
        ws.write("f", text);
        before.push((ws.snapshot(), view::worktree(ws.root())));
    }
    ws.damages_the_store();
    // A program that is killed leaves its log; one that ends does not.
    let started = ws.outside().join("started");
    let script = format!("touch '{}'; sleep 60", started.display());
    let mut holder = ws.run_call::<&str>([], &script).start();
    holder.until("it is at work", |_| started.exists());
    holder.signal(rustix::process::Signal::KILL);
    holder.kill();
    drop(holder);
    let (wal, shm) = (
        ws.state().join("stillframe.db-wal"),
        ws.state().join("stillframe.db-shm"),
    );
    let bytes = fs::read(&wal).unwrap();
    assert!(bytes.len() > 4096, "it left one");
    let (shm_bytes, database) = (fs::read(&shm).unwrap(), ws.state().join("stillframe.db"));
    let main = fs::read(&database).unwrap();
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 1;
    for (what, log) in [
        ("gone", None),
        ("cut", Some(&bytes[..bytes.len() / 2])),
        ("flipped", Some(&flipped[..])),
        ("zeroed", Some(&[0; 8192][..])),
    ] {
        let _ = fs::remove_file(&shm);
        put(&database, &main);
        match log {
            None => drop(fs::remove_file(&wal)),
            Some(log) => fs::write(&wal, log).unwrap(),
        }
        let verified = ws.try_json(["verify"]);
        assert!(verified.code <= 1, "{what}: {verified}");
        for (snapshot, tree) in &before {
            ws.restore(snapshot);
            view::same(tree, &view::worktree(ws.root()), what);
        }
    }
    fs::write(&shm, shm_bytes).unwrap();
}
