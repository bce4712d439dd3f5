//! What damage in one place does to everything else: as little as can be, and it is said.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stillframe_tests::{Snap, TestWorkspace, copy_whole, make_fifo};

/// The repository of the only store.
fn store(ws: &TestWorkspace) -> PathBuf {
    let stores = ws.stores();
    assert_eq!(stores.len(), 1);
    stores[0].join("git")
}

/// The packs of the only store, without their extensions.
fn packs(ws: &TestWorkspace) -> BTreeSet<PathBuf> {
    fs::read_dir(store(ws).join("objects/pack"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "pack"))
        .map(|path| path.with_extension(""))
        .collect()
}

/// Takes a snapshot; answers with it and the packs that came with it.
fn snapshot_with_packs(ws: &TestWorkspace) -> (Snap, Vec<PathBuf>) {
    let before = match ws.stores().is_empty() {
        true => BTreeSet::new(),
        false => packs(ws),
    };
    let snapshot = ws.snapshot();
    (snapshot, packs(ws).difference(&before).cloned().collect())
}

fn remove_packs(packs: &[PathBuf]) {
    assert!(!packs.is_empty());
    for pack in packs {
        for extension in ["pack", "idx"] {
            fs::remove_file(pack.with_extension(extension)).unwrap();
        }
    }
}

/// Flips a bit in the middle of a file. Its size and mtime stay.
fn flip(path: &Path) {
    let meta = fs::metadata(path).unwrap();
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    let mut permissions = meta.permissions();
    let original = permissions.clone();
    #[expect(
        clippy::permissions_set_readonly_false,
        reason = "it is put back at once"
    )]
    permissions.set_readonly(false);
    fs::set_permissions(path, permissions).unwrap();
    fs::write(path, bytes).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(meta.modified().unwrap()).unwrap();
    fs::set_permissions(path, original).unwrap();
}

/// The refs of the only store that begin so, by their numbers.
fn refs(ws: &TestWorkspace) -> Vec<PathBuf> {
    let mut refs: Vec<PathBuf> = walkdir::WalkDir::new(store(ws).join("refs"))
        .into_iter()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().is_file())
        .map(walkdir::DirEntry::into_path)
        .collect();
    refs.sort_by_key(|path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.parse::<u64>().unwrap()
    });
    refs
}

fn lose_the_database(ws: &TestWorkspace) {
    for entry in fs::read_dir(ws.state()).unwrap() {
        let entry = entry.unwrap();
        if entry
            .file_name()
            .to_str()
            .unwrap()
            .starts_with("stillframe.db")
        {
            fs::remove_file(entry.path()).unwrap();
        }
    }
}

fn listed(ws: &TestWorkspace) -> Vec<String> {
    let list = ws.json(["list"]);
    let ids = list.as_array().unwrap().iter();
    ids.map(|s| s["id"].as_str().unwrap().to_owned()).collect()
}

/// The document of `verify`, whatever it came to.
fn verify(ws: &TestWorkspace) -> Value {
    let output = ws.try_json(["verify"]);
    assert!(output.code <= 1, "{output:?}");
    let document = output.json();
    assert!(document["error"].is_null(), "it came to an end: {document}");
    document
}

/// The ids that `verify` says cannot be restored.
fn damaged(verified: &Value) -> Vec<String> {
    let snapshots = verified["snapshots"].as_array().unwrap().iter();
    snapshots
        .filter(|s| !s["problems"].as_array().unwrap().is_empty())
        .map(|s| s["id"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn without_the_database_the_newest_snapshot_is_still_the_newest() {
    let ws = TestWorkspace::repository();
    let mut ids = Vec::new();
    for text in ["one", "two", "three"] {
        ws.write("f", text);
        ids.insert(0, ws.snapshot().id().to_owned());
    }
    lose_the_database(&ws);
    ws.write("f", "four");
    ids.insert(0, ws.snapshot().id().to_owned());
    assert_eq!(listed(&ws), ids, "newest first, adopted or not");
    let outcome = ws.json(["gc", "--keep", "1"]);
    assert_eq!(outcome["kept"], 1);
    assert_eq!(listed(&ws), ids[..1], "gc never takes the newest");
    ws.write("f", "five");
    ws.restore_id(&ids[0]);
    assert_eq!(ws.text("f"), "four");
}

#[test]
fn snapshots_that_a_lost_database_had_can_be_restored_at_once() {
    let ws = TestWorkspace::repository();
    ws.write("f", "one");
    let first = ws.snapshot();
    ws.write("f", "two");
    lose_the_database(&ws);
    ws.restore(&first);
    assert_eq!(ws.text("f"), "one");
    ws.undo();
    assert_eq!(ws.text("f"), "two");
}

#[test]
fn a_restore_of_long_ago_is_not_the_one_that_a_lost_database_had_not_been_told_of() {
    let ws = TestWorkspace::repository();
    ws.write("f", "one");
    let first = ws.snapshot();
    ws.write("f", "two");
    ws.restore(&first);
    ws.write("g", "the work of a week\n");
    ws.snapshot();
    lose_the_database(&ws);
    ws.json(["list"]);
    let output = ws.try_json(["undo"]);
    assert_eq!(ws.text("g"), "the work of a week\n", "{output:?}");
}

// Content that snapshots share is read once
#[test]
fn content_that_is_damaged_is_named_for_every_snapshot_that_has_it() {
    let mut ws = TestWorkspace::plain();
    ws.write("f", "one\n");
    let first = ws.snapshot_with(["--retain-content"]);
    ws.write("g", "two\n");
    let second = ws.snapshot_with(["--retain-content"]);
    let digest = blake3::hash(b"one\n").to_hex().to_string();
    ws.damages_the_store();
    let stored = walkdir::WalkDir::new(ws.state()).into_iter().flatten();
    let name = |entry: &walkdir::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let stored =
        stored.filter(|entry| digest.ends_with(&name(entry)) && entry.file_type().is_file());
    let stored: Vec<_> = stored.collect();
    assert_eq!(stored.len(), 1, "{stored:?}");
    fs::remove_file(stored[0].path()).unwrap();
    fs::write(stored[0].path(), "0ne\n").unwrap();
    assert_eq!(damaged(&verify(&ws)), [second.id(), first.id()]);
}

#[test]
fn one_damaged_snapshot_keeps_nothing_else_from_working() {
    let mut ws = TestWorkspace::repository();
    ws.write("f", "one\n");
    let whole = ws.snapshot();
    ws.write("f", "two\n");
    let (broken, packs) = snapshot_with_packs(&ws);
    ws.damages_the_store();
    remove_packs(&packs);
    let verified = verify(&ws);
    assert_eq!(damaged(&verified), [broken.id()]);

    ws.write("f", "three\n");
    let now = ws.json(["diff", whole.id(), "now"]);
    assert_eq!(now["files_changed"], 1);
    let output = ws.try_json(["snapshot"]).ok();
    let later = Snap::of(&output.json());
    for said in ["cannot be read", "\"stillframe verify\""] {
        assert!(
            output.stderr_text().contains(said),
            "the damage is said: {output:?}"
        );
    }
    let shown = ws.stillframe(["show", later.id()]).ok();
    assert!(
        shown.stdout_text().contains("\"stillframe verify\""),
        "{shown:?}"
    );
    assert!(ws.json(["diff", whole.id(), later.id()])["files_changed"] == 1);
    ws.restore(&whole);
    assert_eq!(ws.text("f"), "one\n");
    ws.undo();
    assert_eq!(ws.text("f"), "three\n");
    let run = ws.run::<&str>([], "echo four > f");
    assert_eq!(run.code, 0, "{run:?}");
    ws.undo();
    assert_eq!(ws.text("f"), "three\n");
    assert_eq!(damaged(&verify(&ws)), [broken.id()], "all others are whole");

    let outcome = ws.json(["gc", "--keep", "100"]);
    assert_eq!(
        outcome["unreadable"].as_array().unwrap().len(),
        1,
        "{outcome}"
    );
    assert_eq!(damaged(&verify(&ws)), [broken.id()]);
    ws.restore(&whole);

    let outcome = ws.json(["gc", "--forget-damaged"]);
    let forgotten: Vec<&str> = outcome["forgotten"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_str().unwrap())
        .collect();
    assert_eq!(forgotten, [broken.id()], "{outcome}");
    ws.stillframe(["verify"]).ok();
    assert!(!listed(&ws).contains(&broken.id().to_owned()));
    ws.restore(&later);
    assert_eq!(ws.text("f"), "three\n");
}

#[test]
fn a_damaged_snapshot_is_not_the_newest_that_a_clean_up_spares() {
    let mut ws = TestWorkspace::repository();
    ws.write("f", "one\n");
    ws.snapshot();
    ws.write("f", "two\n");
    let whole = ws.snapshot();
    ws.write("f", "three\n");
    let (broken, packs) = snapshot_with_packs(&ws);
    ws.damages_the_store();
    remove_packs(&packs);
    ws.json(["gc", "--keep", "1"]);
    assert_eq!(listed(&ws), [broken.id(), whole.id()]);
    ws.restore(&whole);
    assert_eq!(ws.text("f"), "two\n");
    let output = ws.try_json(["gc", "--max-bytes", "1"]);
    let message = output.refused("LimitExceeded");
    assert!(message.contains("--forget-damaged"), "{message}");
    ws.restore(&whole);
}

#[test]
fn a_ref_that_names_nothing_is_named_and_in_nobodys_way() {
    for garbage in [
        "",
        "no id at all\n",
        "0123456789012345678901234567890123456789\n",
    ] {
        let mut ws = TestWorkspace::repository();
        ws.write("f", "one\n");
        let whole = ws.snapshot();
        ws.write("f", "two\n");
        let broken = ws.snapshot();
        ws.damages_the_store();
        let name = refs(&ws).pop().unwrap();
        fs::write(&name, garbage).unwrap();

        let verified = verify(&ws);
        assert_eq!(damaged(&verified), [broken.id()], "{verified}");
        ws.write("f", "three\n");
        let later = ws.snapshot();
        ws.restore(&whole);
        assert_eq!(ws.text("f"), "one\n");
        ws.restore(&later);
        ws.json(["diff", whole.id(), later.id()]);
        ws.json(["show", whole.id()]);
        ws.json(["gc"]);
        ws.json(["gc", "--forget-damaged"]);
        assert!(!name.exists(), "{garbage:?}");
        ws.stillframe(["verify"]).ok();
        ws.restore(&whole);
    }
}

#[test]
fn a_ref_that_nobody_knows_and_that_names_nothing_is_named_by_its_name() {
    let mut ws = TestWorkspace::repository();
    ws.snapshot();
    ws.damages_the_store();
    let stray = refs(&ws).pop().unwrap().with_file_name("99");
    fs::write(&stray, "").unwrap();
    let output = ws.try_json(["verify"]);
    assert_eq!(output.code, 1);
    let verified = output.json();
    assert_eq!(damaged(&verified), [] as [&str; 0]);
    assert!(
        verified["store"][0]["what"]
            .as_str()
            .unwrap()
            .ends_with("/99"),
        "{verified}"
    );
    let said = ws.stillframe(["verify"]);
    assert!(said.stdout_text().contains("/99"), "{said:?}");
    assert!(
        said.stderr_text().contains("gc --forget-damaged"),
        "{said:?}"
    );
    ws.json(["gc", "--forget-damaged"]);
    assert!(!stray.exists());
    ws.stillframe(["verify"]).ok();
}

#[test]
fn verify_proves_the_snapshots_though_the_database_is_garbage() {
    let mut ws = TestWorkspace::repository();
    let whole = ws.snapshot();
    ws.write("f", "one\n");
    let (broken, packs) = snapshot_with_packs(&ws);
    ws.damages_the_store();
    remove_packs(&packs);
    lose_the_database(&ws);
    fs::write(ws.state().join("stillframe.db"), "this is no database").unwrap();
    let output = ws.try_json(["verify"]);
    assert_eq!(output.code, 1, "{output:?}");
    let verified = output.json();
    assert_eq!(verified["log"]["kind"], "Corrupt", "{verified}");
    let ids: Vec<&str> = verified["snapshots"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["id"].as_str().unwrap())
        .collect();
    assert_eq!(
        ids,
        [whole.id(), broken.id()],
        "what cannot be read comes last"
    );
    assert_eq!(damaged(&verified), [broken.id()]);
    let said = ws.stillframe(["verify"]);
    assert!(said.stdout_text().contains("stillframe.db"), "{said:?}");

    // The way out that is told.
    fs::rename(ws.state().join("stillframe.db"), ws.base().join("aside")).unwrap();
    assert_eq!(listed(&ws), [whole.id()]);
    ws.restore(&whole);
    assert!(!ws.exists("f"));
}

#[test]
fn the_first_capture_after_the_newest_pack_is_gone_heals() {
    let mut ws = TestWorkspace::repository();
    ws.write("d/f", "one\n");
    ws.snapshot();
    ws.write("d/f", "two\n");
    ws.write("untracked", "three\n");
    let (_, packs) = snapshot_with_packs(&ws);
    ws.damages_the_store();
    remove_packs(&packs);
    let healed = ws.snapshot();
    for path in ["d", "untracked"] {
        ws.remove(path);
    }
    ws.restore(&healed);
    assert_eq!(ws.text("d/f"), "two\n");
    assert_eq!(ws.text("untracked"), "three\n");
}

/// Flips a bit in the middle of each of these packs.
fn flip_content(packs: &[PathBuf]) {
    assert!(!packs.is_empty());
    for pack in packs {
        flip(&pack.with_extension("pack"));
    }
}

/// So much that is no text, so that the middle of a pack is in the middle of it.
fn noise(seed: u8) -> Vec<u8> {
    let mut state = u32::from(seed) << 8 | 1;
    let mut bytes = Vec::new();
    for _ in 0..50_000 {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        bytes.push(state as u8);
    }
    bytes
}

#[test]
fn what_a_restore_displaces_is_in_the_guard_though_the_store_had_lost_it() {
    for (removed, label) in [(false, "flipped"), (true, "removed")] {
        let mut ws = TestWorkspace::repository();
        ws.write("f", "one\n");
        let first = ws.snapshot();
        ws.write("f", noise(1));
        ws.write("only-now", noise(2));
        ws.settle();
        let (second, packs) = snapshot_with_packs(&ws);
        // Nothing new: this one takes the word of the cache.
        ws.snapshot();
        ws.damages_the_store();
        match removed {
            true => remove_packs(&packs),
            false => flip_content(&packs),
        }
        let outcome = ws.restore(&first);
        assert_eq!(ws.text("f"), "one\n");
        assert!(!ws.exists("only-now"));
        ws.restore_id(outcome["guard_snapshot"].as_str().unwrap());
        assert_eq!(ws.read("f"), noise(1), "{label}");
        assert_eq!(ws.read("only-now"), noise(2), "{label}");
        ws.undo();
        ws.undo();
        assert_eq!(ws.read("f"), noise(1), "{label}");
        let left = damaged(&verify(&ws));
        assert!(!left.contains(&outcome["guard_snapshot"].as_str().unwrap().to_owned()));
        if removed {
            assert!(left.contains(&second.id().to_owned()));
        }
    }
}

#[test]
fn what_a_restore_displaces_is_in_the_guard_though_the_kept_content_was_damaged() {
    for damage in ["flipped", "removed", "emptied"] {
        let ws = TestWorkspace::plain();
        ws.write("f", "one\n");
        let first = ws.snapshot_with(["--retain-content"]);
        ws.write("f", noise(1));
        ws.settle();
        ws.snapshot_with(["--retain-content"]);
        ws.snapshot_with(["--retain-content"]);
        let kept = walkdir::WalkDir::new(ws.state().join("workspaces"))
            .into_iter()
            .flatten()
            .find(|entry| entry.file_type().is_file() && entry.metadata().unwrap().len() == 50_000)
            .unwrap();
        match damage {
            "flipped" => flip(kept.path()),
            "removed" => fs::remove_file(kept.path()).unwrap(),
            _ => fs::write(kept.path(), "").unwrap(),
        }
        ws.restore(&first);
        assert_eq!(ws.text("f"), "one\n");
        ws.undo();
        assert_eq!(ws.read("f"), noise(1), "{damage}");
        ws.stillframe(["verify"]).ok();
    }
}

#[test]
fn trees_that_the_store_lost_do_not_keep_a_restore_from_being_done_and_undone() {
    let mut ws = TestWorkspace::repository();
    for n in 0..300 {
        ws.write(format!("d/f{n}"), format!("{n}\n"));
    }
    ws.commit_settled("many");
    let target = ws.snapshot();
    ws.write("d/x", "new\n");
    ws.settle();
    let (_, packs) = snapshot_with_packs(&ws);
    ws.write("other", "one\n");
    ws.settle();
    ws.snapshot();
    ws.damages_the_store();
    // The tree of d is most of this pack, and no capture looks at it again.
    flip_content(&packs);
    let outcome = ws.restore(&target);
    assert!(!ws.exists("d/x") && !ws.exists("other"));
    let guard = outcome["guard_snapshot"].as_str().unwrap().to_owned();
    assert!(!damaged(&verify(&ws)).contains(&guard), "it is whole");
    ws.undo();
    assert_eq!(ws.text("d/x"), "new\n");
    assert_eq!(ws.text("other"), "one\n");
}

#[test]
fn a_capture_finds_that_packs_it_relied_on_are_gone_or_were_written_to() {
    let damages = ["no index", "no pack", "neither", "cut short", "flipped"];
    for (damage, is_borrowed) in damages.iter().flat_map(|d| [(*d, true), (*d, false)]) {
        let mut ws = TestWorkspace::repository();
        ws.write("d/tracked", noise(1));
        ws.commit_settled("packed");
        ws.git(["repack", "-adq"]);
        ws.write("untracked", noise(2));
        ws.settle();
        let (_, mut packs) = snapshot_with_packs(&ws);
        ws.write("other", "one\n");
        ws.settle();
        ws.snapshot();
        ws.damages_the_store();
        packs.sort();
        assert_eq!(packs.len(), 2, "the repository's, and the snapshot's own");
        let of_git = ws.path(".git/objects/pack");
        packs.retain(|pack| {
            of_git
                .join(pack.file_name().unwrap())
                .with_extension("idx")
                .exists()
                == is_borrowed
        });
        assert_eq!(packs.len(), 1);
        for pack in &packs {
            let (pack, index) = (pack.with_extension("pack"), pack.with_extension("idx"));
            match damage {
                "no index" => fs::remove_file(index).unwrap(),
                "no pack" => fs::remove_file(pack).unwrap(),
                "neither" => {
                    fs::remove_file(index).unwrap();
                    fs::remove_file(pack).unwrap();
                }
                _ => {
                    let mut bytes = fs::read(&pack).unwrap();
                    let middle = bytes.len() / 2;
                    bytes[middle] ^= 1;
                    if damage == "cut short" {
                        bytes.truncate(middle);
                    }
                    // Another file, so that the repository keeps its own.
                    fs::remove_file(&pack).unwrap();
                    fs::write(&pack, bytes).unwrap();
                }
            }
        }
        let run = ws.run::<&str>([], "rm -rf .git d untracked");
        assert_eq!(run.code, 0, "{damage}: {run:?}");
        let before = run.json()["workspace"]["before_snapshot"]["id"].clone();
        let left = damaged(&verify(&ws));
        assert!(
            !left.contains(&before.as_str().unwrap().to_owned()),
            "{damage}"
        );
        ws.json(["undo"]);
        assert_eq!(ws.read("d/tracked"), noise(1), "{damage}");
        assert_eq!(ws.read("untracked"), noise(2), "{damage}");
    }
}

#[test]
fn an_emptied_manifest_is_said_to_be_damaged() {
    let ws = TestWorkspace::plain();
    ws.write("f", "one\n");
    let snapshot = ws.snapshot_with(["--retain-content"]);
    let manifest = walkdir::WalkDir::new(ws.state().join("workspaces"))
        .into_iter()
        .flatten()
        .find(|entry| entry.file_name().to_str() == Some(snapshot.reference()))
        .unwrap();
    let whole = fs::read(manifest.path()).unwrap();
    for (length, said) in [(0, "it is empty"), (4, "cut short"), (30, "cut short")] {
        fs::write(manifest.path(), &whole[..length]).unwrap();
        let verified = verify(&ws);
        assert_eq!(damaged(&verified), [snapshot.id()]);
        let detail = verified["snapshots"][0]["problems"][0]["detail"].as_str();
        assert!(detail.unwrap().contains(said), "{verified}");
    }
    ws.write("f", "two\n");
    let later = ws.snapshot_with(["--retain-content"]);
    ws.write("f", "three\n");
    ws.restore(&later);
    assert_eq!(ws.text("f"), "two\n");
    ws.json(["gc", "--forget-damaged"]);
    ws.stillframe(["verify"]).ok();
}

/// The file with the record of a snapshot of the hash backend.
fn hash_record(ws: &TestWorkspace, snapshot: &Snap) -> PathBuf {
    let name = format!("{}.json", snapshot.id());
    walkdir::WalkDir::new(ws.state().join("workspaces"))
        .into_iter()
        .flatten()
        .find(|entry| entry.file_name().to_str() == Some(&*name))
        .unwrap()
        .into_path()
}

// A bit that flipped in such a record changed what was put back
#[test]
fn every_bit_of_a_record_of_the_hash_backend_counts() {
    let ws = TestWorkspace::plain();
    ws.write("key", "secret\n");
    let snapshot = ws.snapshot_with(["--retain-content"]);
    ws.write("key", "another\n");
    let other = ws.snapshot_with(["--retain-content"]);
    let [record, other_record] = [&snapshot, &other].map(|snapshot| hash_record(&ws, snapshot));
    let whole = fs::read(&record).unwrap();
    let last = whole.len() - 1;
    let damages = (0..=last).step_by(last / 40).chain([last]).map(|at| {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x02;
        damaged
    });
    let cuts =
        [whole.len() - 1, whole.len() - 70, whole.len() - 80].map(|end| whole[..end].to_vec());
    for damaged_record in damages
        .chain(cuts)
        .chain([fs::read(&other_record).unwrap()])
    {
        fs::write(&record, &damaged_record).unwrap();
        let shown = String::from_utf8_lossy(&damaged_record).into_owned();
        assert_eq!(damaged(&verify(&ws)), [snapshot.id()], "{shown}");
        let refused = ws.try_json(["restore", snapshot.id()]);
        assert_eq!(refused.code, 1, "{refused} {shown}");
        assert_eq!(ws.text("key"), "another\n", "{shown}");
    }
    fs::write(&record, &whole).unwrap();
    ws.stillframe(["verify"]).ok();
    ws.restore(&snapshot);
    assert_eq!(ws.text("key"), "secret\n");
}

// A clean-up removed the record of a newer version, and a proof did not get past it
#[test]
fn a_snapshot_of_a_newer_version_is_named_and_left_alone() {
    let ws = TestWorkspace::plain();
    let snapshots: Vec<Snap> = (0..4)
        .map(|n| {
            ws.write("f", format!("{n}\n"));
            ws.snapshot_with(["--retain-content"])
        })
        .collect();
    let record = hash_record(&ws, &snapshots[1]);
    let text = fs::read_to_string(&record).unwrap();
    // Whatever it has behind the record.
    let (text, _checksum) = text.rsplit_once("\nblake3 ").unwrap();
    let version = text.find("\"version\":").unwrap() + "\"version\":".len();
    let newer = format!("{}9{}", &text[..version], &text[version..]);
    fs::write(&record, &newer).unwrap();
    let verified = verify(&ws);
    assert_eq!(damaged(&verified), [snapshots[1].id()], "{verified}");
    for arguments in [&["gc", "--keep", "1"][..], &["gc", "--forget-damaged"]] {
        ws.json(arguments.iter().copied());
        assert_eq!(fs::read_to_string(&record).unwrap(), newer, "{arguments:?}");
    }
    ws.restore(&snapshots[3]);
    assert_eq!(ws.text("f"), "3\n");
}

#[test]
fn a_clean_up_reaps_what_killed_work_left_and_counts_it_and_the_trash() {
    let ws = TestWorkspace::repository();
    ws.write("f", noise(1));
    let first = ws.snapshot();
    ws.write("f", noise(2));
    ws.restore(&first);
    let root = ws.stores()[0].clone();
    let used = || {
        ws.json(["gc", "--keep", "100"])["used_bytes"]
            .as_u64()
            .unwrap()
    };
    let before = used();
    let orphans = [
        "git/.tmp-x",
        "git/by-id/.tmp-x",
        "git/objects/pack/tmp_pack_x",
        ".tmp-git.stat-cache-x",
        "trash/.tmp-x",
    ];
    for orphan in orphans {
        fs::write(root.join(orphan), noise(3)).unwrap();
    }
    // It may be somebody's who waits for the lock.
    fs::write(root.join(".tmp-workspace.json-x"), "").unwrap();
    let outcome = ws.json(["gc"]);
    for orphan in orphans {
        assert!(!root.join(orphan).exists(), "{orphan}");
    }
    assert!(root.join(".tmp-workspace.json-x").exists());
    let freed = outcome["freed_bytes"].as_u64().unwrap();
    assert_eq!(freed, 50_000 * orphans.len() as u64, "{outcome}");
    assert_eq!(outcome["used_bytes"], before);
    // The guard, with what the restore displaced.
    let outcome = ws.json(["gc", "--keep", "1"]);
    let freed = outcome["freed_bytes"].as_u64().unwrap();
    assert_eq!(freed, before - used(), "{outcome}");
    assert!(
        freed > 100_000,
        "the content of the guard, and the trash: {outcome}"
    );
}

#[test]
fn an_ignored_file_that_became_an_ignored_directory_is_named() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "local\n");
    ws.write("local", "precious\n");
    ws.write("f", "one\n");
    let first = ws.snapshot();
    ws.remove("local");
    ws.write("local/deep/file", "other\n");
    ws.write("f", "two\n");
    let outcome = ws.restore(&first);
    let skipped = stillframe_tests::json::reason_of(&outcome["skipped"], "local");
    assert_eq!(skipped.as_deref(), Some("ignored"), "{outcome}");
    assert_eq!(ws.text("local/deep/file"), "other\n", "it is not touched");
    let run = ws.run(
        ["--rollback-on-failure"],
        "rm -r local; echo x > local; false",
    );
    let rollback = &run.json()["workspace"]["rollback"];
    let skipped = stillframe_tests::json::reason_of(&rollback["skipped"], "local");
    assert_eq!(skipped.as_deref(), Some("ignored"), "{rollback}");
    // An edit of what a rule hides is nobody's business.
    let second = ws.snapshot();
    ws.write("local", "another\n");
    let outcome = ws.restore(&second);
    assert_eq!(outcome["skipped"].as_array().unwrap().len(), 0, "{outcome}");
}

/// Loose objects of the only store.
fn loose_objects(ws: &TestWorkspace) -> Vec<PathBuf> {
    walkdir::WalkDir::new(store(ws).join("objects"))
        .min_depth(2)
        .into_iter()
        .flatten()
        .filter(|entry| entry.file_type().is_file())
        .filter(|entry| entry.path().parent().unwrap().file_name().unwrap().len() == 2)
        .map(walkdir::DirEntry::into_path)
        .collect()
}

#[test]
fn a_capture_finds_that_loose_objects_it_relied_on_are_gone() {
    let mut ws = TestWorkspace::unborn();
    ws.write("d/tracked", noise(1));
    ws.commit_settled("loose");
    ws.write("other", "staged\n");
    ws.git(["add", "other"]);
    ws.write("other", "and edited\n");
    ws.settle();
    ws.snapshot();
    ws.write("new", "one\n");
    ws.settle();
    ws.snapshot();
    let known = ws.snapshot();
    assert_eq!(known.count("files_hashed"), 0, "what is whole is believed");
    ws.damages_the_store();
    let objects = loose_objects(&ws);
    assert!(objects.len() >= 2, "{objects:?}");
    for object in &objects {
        fs::remove_file(object).unwrap();
    }
    let run = ws.run::<&str>([], "rm -rf .git d");
    assert_eq!(run.code, 0, "{run:?}");
    let before = run.json()["workspace"]["before_snapshot"]["id"].clone();
    assert!(!damaged(&verify(&ws)).contains(&before.as_str().unwrap().to_owned()));
    ws.json(["undo"]);
    assert_eq!(ws.read("d/tracked"), noise(1));
}

#[test]
fn a_capture_finds_that_kept_content_it_relied_on_is_gone() {
    let ws = TestWorkspace::plain();
    ws.write("f", noise(1));
    ws.settle();
    ws.snapshot_with(["--retain-content"]);
    let known = ws.snapshot_with(["--retain-content"]);
    assert_eq!(known.count("files_hashed"), 0, "what is whole is believed");
    let kept = walkdir::WalkDir::new(ws.state().join("workspaces"))
        .into_iter()
        .flatten()
        .find(|entry| entry.file_type().is_file() && entry.metadata().unwrap().len() == 50_000)
        .unwrap();
    fs::remove_file(kept.path()).unwrap();
    let run = ws.run(["--retain-content", "--rollback-on-failure"], "rm f; false");
    let rollback = &run.json()["workspace"]["rollback"];
    assert_eq!(rollback["status"], "completed", "{rollback}");
    assert_eq!(ws.read("f"), noise(1));
    ws.stillframe(["verify"]).ok();
}

/// A patch of a run that is too large to be embedded.
const LARGE_PATCH: &str = "seq 300 > new";

/// A store of artifacts in which something is not as it was left.
struct DamagedArtifacts {
    damage: &'static str,
    root: PathBuf,
    /// Where all of it is meanwhile, if there is no directory.
    away: PathBuf,
    /// What `format.json` said.
    whole: String,
}

impl DamagedArtifacts {
    fn new(ws: &mut TestWorkspace, damage: &'static str) -> Self {
        ws.damages_the_store();
        let root = ws.state().join("artifacts");
        let away = ws.outside().join("artifacts");
        let format = root.join("format.json");
        let whole = fs::read_to_string(&format).unwrap();
        match damage {
            "flipped" => flip(&format),
            "emptied" => fs::write(&format, "").unwrap(),
            "of a newer version" => fs::write(&format, whole.replace('1', "2")).unwrap(),
            "a FIFO" => {
                fs::remove_file(&format).unwrap();
                make_fifo(&format);
            }
            _ => {
                fs::rename(&root, &away).unwrap();
                fs::write(&root, "").unwrap();
            }
        }
        Self {
            damage,
            root,
            away,
            whole,
        }
    }

    fn is_another_format(&self) -> bool {
        self.damage != "no directory"
    }

    /// Puts right what is damaged.
    fn mend(self) {
        let format = self.root.join("format.json");
        match self.damage {
            "no directory" => {
                fs::remove_file(&self.root).unwrap();
                fs::rename(&self.away, &self.root).unwrap();
            }
            "a FIFO" => {
                fs::remove_file(&format).unwrap();
                fs::write(&format, self.whole).unwrap();
            }
            // As advised.
            _ => fs::remove_file(&format).unwrap(),
        }
    }
}

/// Snapshots, diffs, undo, restore and clean-up go on; `run` is the only one so far.
fn what_needs_no_artifact_works(ws: &TestWorkspace, run: &Value, artifacts: &DamagedArtifacts) {
    let damage = artifacts.damage;
    let before = run["workspace"]["before_snapshot"]["id"].as_str().unwrap();
    assert_eq!(ws.json(["list"]).as_array().unwrap().len(), 2, "{damage}");
    ws.show(run["run_id"].as_str().unwrap());
    ws.stillframe(["events"]).ok();
    ws.json(["diff", before]);
    ws.json(["undo"]);
    assert!(!ws.exists("new"), "{damage}");
    let snapshot = ws.snapshot();
    ws.run::<&str>([], "echo two > README").ok();
    ws.restore(&snapshot);
    assert_eq!(ws.text("README"), "hello\n", "{damage}");
    let cleaned = ws.stillframe(["--json", "gc", "--keep", "3"]).ok().json();
    let said = cleaned["artifacts_unusable"]["detail"].as_str().unwrap();
    let root = artifacts.root.to_str().unwrap();
    assert!(said.contains(root), "{damage}: {cleaned}");
    let forgotten = cleaned["forgotten"].as_array().unwrap();
    assert_ne!(forgotten.len(), 0, "{damage}");
    let people = ws.stillframe(["gc"]).ok().stderr_text();
    assert!(people.contains("no artifact was removed"), "{people}");
}

/// What is refused, and what is said and advised, of `key`.
fn what_needs_artifacts_is_refused(ws: &TestWorkspace, key: &str, artifacts: &DamagedArtifacts) {
    let damage = artifacts.damage;
    let listed = ws.json(["artifact", "list"]);
    let listed = &listed[0]["key"];
    assert_eq!(listed, key, "{damage}: what is in the log is told");
    // What is advised is what helps.
    let verified = ws.stillframe(["verify"]).exits(1).stderr_text();
    let forgets = verified.contains("--forget-damaged");
    assert!(!forgets, "{damage}: {verified}");
    let named = match artifacts.is_another_format() {
        true => "remove that file: it is made anew".to_owned(),
        false => format!("put {} right", artifacts.root.display()),
    };
    assert!(verified.contains(&named), "{damage}: {verified}");
    for args in [&["artifact", "get", key][..], &["artifact", "rm", key]] {
        let refused = ws.try_json(args.iter().copied());
        assert_eq!(refused.code, 1, "{damage}: {refused}");
        let message = refused.stdout_text();
        assert!(message.contains("artifact"), "{damage}: {message}");
    }
    let verified = verify(ws);
    assert_eq!(verified["store"][0]["what"], "artifacts", "{verified}");
    let is_unknown = verified["store"][0]["kind"] == "Unsupported";
    let is_another = artifacts.is_another_format();
    assert_eq!(is_unknown, is_another, "{damage}: {verified}");
    assert_eq!(verified["artifacts"][0]["key"], key, "{verified}");
}

#[test]
fn a_store_of_artifacts_that_is_damaged_stops_what_needs_artifacts_and_nothing_else() {
    for damage in [
        "flipped",
        "emptied",
        "of a newer version",
        "a FIFO",
        "no directory",
    ] {
        let mut ws = TestWorkspace::repository();
        let run = ws.run(["--max-patch-bytes", "64"], LARGE_PATCH).ok().json();
        let key = run["workspace"]["diff"]["patch_ref"].as_str().unwrap();
        let patch = ws.stillframe(["artifact", "get", key]).ok().stdout;
        let artifacts = DamagedArtifacts::new(&mut ws, damage);
        what_needs_no_artifact_works(&ws, &run, &artifacts);
        what_needs_artifacts_is_refused(&ws, key, &artifacts);
        // A run goes to its end, and says what could not be kept.
        let run = ws.run(["--max-patch-bytes", "64"], LARGE_PATCH).json();
        assert_eq!(run["exit_code"], 0, "{damage}: {run}");
        assert!(run["workspace"]["diff"]["patch_ref"].is_null(), "{run}");
        assert!(run["workspace"]["error"]["message"].is_string(), "{run}");
        artifacts.mend();
        let again = ws.stillframe(["artifact", "get", key]).ok().stdout;
        assert_eq!(again, patch, "{damage}: it was left as it is");
        ws.stillframe(["verify"]).ok();
    }
}

// A program that waited for a FIFO never came back
#[test]
fn a_fifo_in_the_place_of_any_file_of_the_state_keeps_nobody_waiting() {
    let mut ws = TestWorkspace::repository();
    let run = ws.run(["--max-patch-bytes", "64"], LARGE_PATCH).ok().json();
    ws.json(["undo"]);
    let before = run["workspace"]["before_snapshot"]["id"].as_str().unwrap();
    ws.write("README", "edited\n");
    ws.damages_the_store();
    let keep = ws.outside().join("state");
    copy_whole(&ws.state(), &keep);
    let files = walkdir::WalkDir::new(&keep)
        .sort_by_file_name()
        .into_iter()
        .flatten();
    let files: Vec<PathBuf> = files
        .filter(|entry| entry.file_type().is_file())
        .map(|entry| entry.path().strip_prefix(&keep).unwrap().to_owned())
        .collect();
    let named: BTreeSet<_> = files
        .iter()
        .filter_map(|file| file.file_name()?.to_str())
        .collect();
    for name in [
        "opening.lock",
        "workspace.json",
        "format.json",
        "stillframe.db",
        "reserve",
    ] {
        assert!(named.contains(name), "{named:?}");
    }
    for file in &files {
        for args in [&["gc"][..], &["restore", before]] {
            copy_whole(&keep, &ws.state());
            fs::remove_file(ws.state().join(file)).unwrap();
            make_fifo(&ws.state().join(file));
            // The call has a deadline.
            let output = ws.try_json(args.iter().copied());
            assert!(
                [0, 1].contains(&output.code),
                "{}: {output}",
                file.display()
            );
        }
    }
    for lock in ["opening.lock", "stillframe.db"] {
        copy_whole(&keep, &ws.state());
        let path = ws.state().join(lock);
        fs::remove_file(&path).unwrap();
        make_fifo(&path);
        let message = ws.try_json(["list"]).refused("Storage");
        assert!(message.contains(path.to_str().unwrap()), "{message}");
        assert!(message.contains("no regular file"), "{message}");
    }
}
