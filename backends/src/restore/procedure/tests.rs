//! Stories about restores, over the [`naive`](crate::restore::naive) backend.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::Path;
use std::time::Duration;

use super::*;
use crate::error::ErrorKind;
use crate::faults::{Done, Fault};
use crate::interrupt::Interrupt;
use crate::interrupted::Interrupted;
use crate::must_run::{self, Capability};
use crate::restore::naive::{Stage, rel, scratch, view};
use crate::snapshot::Snapshot;
use crate::trial;
use crate::worktree::displaced::Held;

#[test]
fn a_restore_gives_back_every_path() {
    let mut stage = Stage::new();
    stage.write("kept", "one\n");
    stage.write("sub/dir/file", "deep\n");
    stage.link("kept", "link");
    stage.write("run.sh", "#!/bin/sh\n");
    stage.chmod("run.sh", 0o755);
    stage.write("private", "secret\n");
    stage.chmod("private", 0o600);
    std::fs::create_dir(stage.path("empty")).unwrap();
    let snapshot = stage.snapshot();
    let before = stage.view();

    stage.write("kept", "changed\n");
    stage.remove("link");
    stage.write("link/is/now/a/directory", "three\n");
    stage.remove("sub");
    stage.write("sub", "a file where a directory was\n");
    stage.chmod("run.sh", 0o644);
    stage.chmod("private", 0o644);
    stage.remove("empty");
    stage.write("new/file", "new\n");
    let messed = stage.view();
    let outcome = stage.restore(&snapshot);

    assert_eq!(stage.view(), before, "every byte, mode and link");
    assert_eq!(outcome.skipped, []);
    let expected = [
        "empty",
        "kept",
        "link",
        "link/is/now/a/directory",
        "new/file",
        "private",
        "run.sh",
        "sub",
        "sub/dir/file",
    ];
    assert_eq!(outcome.restored, expected.map(rel));

    stage.restore(&outcome.guard);
    assert_eq!(stage.view(), messed, "every restore can be undone");
    let again = stage.restore(&outcome.guard);
    assert_eq!(again.restored, [], "the second one has nothing to do");
}

fn skipped(path: &str, reason: SkipReason) -> Skipped {
    Skipped {
        path: rel(path),
        reason,
    }
}

fn omitted(reason: OmissionReason) -> SkipReason {
    SkipReason::Omitted(reason)
}

/// Device, inode, time and mode: what a path that was never touched keeps.
fn identity(path: &Path) -> (u64, u64, i64, i64, u32) {
    let meta = fs::symlink_metadata(path).unwrap();
    (
        meta.dev(),
        meta.ino(),
        meta.mtime(),
        meta.mtime_nsec(),
        meta.mode(),
    )
}

#[test]
fn paths_that_match_already_are_not_touched() {
    let mut stage = Stage::new();
    for number in 0..20 {
        stage.write(&format!("file{number}"), "the same\n");
    }
    stage.write(".gitignore", "*.log\n");
    stage.write("a.log", "ignored\n");
    let snapshot = stage.snapshot();
    stage.write("file7", "edited\n");
    let before: Vec<_> = (0..20)
        .filter(|n| *n != 7)
        .map(|n| identity(&stage.path(&format!("file{n}"))))
        .collect();
    let log = identity(&stage.path("a.log"));

    let outcome = stage.restore(&snapshot);

    assert_eq!(outcome.restored, [rel("file7")]);
    let after: Vec<_> = (0..20)
        .filter(|n| *n != 7)
        .map(|n| identity(&stage.path(&format!("file{n}"))))
        .collect();
    assert_eq!(after, before);
    assert_eq!(identity(&stage.path("a.log")), log);
}

#[test]
fn what_came_after_the_snapshot_is_removed_and_stays_in_the_guard() {
    let mut stage = Stage::new();
    stage.write("a", "a\n");
    let snapshot = stage.snapshot();
    stage.write("new/deep/file", "precious\n");

    let outcome = stage.restore(&snapshot);

    assert!(!stage.has("new"), "its directories went with it");
    stage.restore(&outcome.guard);
    assert_eq!(stage.read("new/deep/file"), "precious\n");
}

#[test]
fn a_path_made_again_gets_its_captured_content() {
    let mut stage = Stage::new();
    stage.write("a", "captured\n");
    let snapshot = stage.snapshot();
    stage.remove("a");
    stage.write("a", "another\n");
    stage.restore(&snapshot);
    assert_eq!(stage.read("a"), "captured\n");
}

#[test]
fn an_ignored_file_keeps_what_it_holds_now() {
    let mut stage = Stage::new();
    stage.write(".gitignore", "*.log\nbuild\n");
    stage.write("a.log", "then\n");
    let snapshot = stage.snapshot();
    stage.write("a.log", "now\n");
    stage.write("b.log", "new\n");
    stage.write("build/x", "new\n");
    stage.write("other/c.log", "new\n");
    let log = identity(&stage.path("a.log"));

    let outcome = stage.restore(&snapshot);

    assert_eq!(stage.read("a.log"), "now\n");
    assert_eq!(identity(&stage.path("a.log")), log);
    assert_eq!(stage.read("b.log"), "new\n");
    assert_eq!(
        outcome.leftover_ignored,
        ["b.log", "build", "other/c.log"].map(rel),
        "what came since, a directory as one"
    );
    assert_eq!(outcome.restored, []);
    assert_eq!(outcome.skipped, []);
}

#[test]
fn a_rule_that_was_not_committed_still_protects() {
    let mut stage = Stage::new();
    stage.write(".gitignore", "data\n");
    stage.write("data/old", "precious\n");
    let snapshot = stage.snapshot();
    stage.remove(".gitignore");
    stage.write("data/new", "precious too\n");

    let outcome = stage.restore(&snapshot);

    assert_eq!(stage.read(".gitignore"), "data\n");
    assert_eq!(stage.read("data/old"), "precious\n");
    assert_eq!(stage.read("data/new"), "precious too\n");
    let reason = omitted(OmissionReason::Ignored);
    assert_eq!(
        outcome.skipped,
        [skipped("data/new", reason), skipped("data/old", reason)]
    );
}

#[test]
fn what_the_rules_of_the_target_ignore_is_not_removed() {
    let mut stage = Stage::new();
    stage.write(".gitignore", "*.db\n");
    let snapshot = stage.snapshot();
    stage.remove(".gitignore");
    stage.write("users.db", "made while no rule hid it\n");

    let outcome = stage.restore(&snapshot);

    assert!(stage.has("users.db"));
    assert_eq!(outcome.leftover_ignored, [rel("users.db")]);
    assert_eq!(outcome.skipped, []);
    let again = stage.restore(&snapshot);
    assert_eq!(
        again.leftover_ignored,
        [rel("users.db")],
        "as often as one asks"
    );
}

// Reported as skipped, because the guard had captured them
#[test]
fn what_came_while_its_rule_was_gone_is_listed_as_what_came_while_it_was_there() {
    let mut stage = Stage::new();
    stage.write(".gitignore", "*.log\nbuild\nold\n");
    stage.write("old/a", "there before\n");
    stage.write("dir/b", "captured\n");
    let snapshot = stage.snapshot();
    stage.write(".gitignore", "# nothing\n");
    for path in ["x.log", "dir/y.log", "build/a", "build/deep/b", "old/new"] {
        stage.write(path, "made while no rule hid it\n");
    }

    let outcome = stage.restore(&snapshot);

    let leftover = ["build", "dir/y.log", "x.log"].map(rel);
    assert_eq!(
        outcome.leftover_ignored, leftover,
        "a directory counts as one"
    );
    assert_eq!(outcome.plan.leftover_ignored, leftover);
    // The directory was there, and what was in it nobody knows.
    let reason = omitted(OmissionReason::Ignored);
    assert_eq!(
        outcome.skipped,
        [skipped("old/a", reason), skipped("old/new", reason)]
    );
    let again = stage.restore(&snapshot);
    assert_eq!(
        (again.leftover_ignored, again.skipped),
        (leftover.to_vec(), vec![])
    );
    assert!(stage.has("build/deep/b") && stage.has("x.log"));
}

#[test]
fn an_edited_ignore_file_neither_hides_an_edit_nor_a_new_file() {
    let mut stage = Stage::new();
    stage.write("a.txt", "captured\n");
    stage.write("out/b.txt", "captured\n");
    let snapshot = stage.snapshot();
    stage.write(".gitignore", "*.txt\nout\n");
    stage.write("a.txt", "edited\n");
    stage.remove("out/b.txt");
    stage.write("out/tmp", "new, and hidden\n");
    stage.write("new.txt", "new, and hidden\n");

    let outcome = stage.restore(&snapshot);

    assert_eq!(stage.read("a.txt"), "captured\n", "the target has it");
    assert_eq!(stage.read("out/b.txt"), "captured\n");
    assert!(!stage.has(".gitignore"));
    assert!(
        stage.has("new.txt") && stage.has("out/tmp"),
        "today's rules protect them"
    );
    assert_eq!(outcome.leftover_ignored, ["new.txt", "out/tmp"].map(rel));
    assert_eq!(outcome.skipped, []);
    stage.restore(&outcome.guard);
    assert_eq!(
        stage.read("a.txt"),
        "edited\n",
        "the guard has what was replaced"
    );
}

#[test]
fn what_a_rule_protected_is_not_removed_by_the_next_restore_either() {
    let mut stage = Stage::new();
    stage.write("a", "captured\n");
    let mut options = stage.options();
    options.captured_at -= jiff::SignedDuration::from_secs(1);
    let earlier = stage.snapshot_with(&options);
    let snapshot = stage.snapshot();
    stage.write("a", "edited\n");
    stage.write("secret.env", "key\n");
    stage.write("data/results", "hours of work\n");
    fs::create_dir_all(stage.path("void/inner")).unwrap();
    stage.write(".gitignore", "secret.env\ndata\nvoid\n");

    let outcome = stage.restore(&snapshot);
    assert!(!stage.has(".gitignore"), "the rule came after the snapshot");
    let leftover = ["data", "secret.env", "void"].map(rel);
    assert_eq!(outcome.leftover_ignored, leftover);
    assert_eq!(outcome.skipped, []);
    let once = stage.view();
    assert!(once.contains_key("data/results") && once.contains_key("void/inner"));

    for target in [&snapshot, &snapshot, &earlier] {
        let again = stage.restore(target);
        assert_eq!(again.restored, []);
        assert_eq!(stage.view(), once);
        assert!(again.plan.is_empty());
        let named = ["data/results", "secret.env", "void", "void/inner"];
        let reason = omitted(OmissionReason::Ignored);
        assert_eq!(again.skipped, named.map(|path| skipped(path, reason)));
    }
    // Another file of that name is not the one that was protected, and a later capture knows.
    fs::write(stage.path("other"), "another\n").unwrap();
    fs::rename(stage.path("other"), stage.path("secret.env")).unwrap();
    stage.restore(&snapshot);
    assert!(!stage.has("secret.env"));
    let mut later = stage.options();
    later.captured_at += jiff::SignedDuration::from_secs(1);
    let later = stage.snapshot_with(&later);
    stage.write("data/by-a-run", "new\n");
    stage.restore(&later);
    assert!(!stage.has("data/by-a-run") && stage.has("data/results"));
}

#[test]
fn the_guard_leads_back_though_its_rules_ignore_what_the_restore_made() {
    let mut stage = Stage::new();
    stage.write("x.log", "captured\n");
    stage.write("a/y.log", "captured\n");
    let snapshot = stage.snapshot();
    let before = stage.view();
    stage.remove("x.log");
    stage.remove("a");
    stage.write("a", "precious\n");
    stage.write(".gitignore", "*.log\n");
    let messed = stage.view();

    let outcome = stage.restore(&snapshot);
    assert_eq!(stage.view(), before);
    let undo = |outcome: &RestoreOutcome| RestoreGoal::Undo {
        before: outcome.guard.clone(),
        after: outcome.result.clone(),
        paths: Some(outcome.restored.clone()),
    };
    let undone = stage
        .restore_goal(&undo(&outcome), RepositoryRestore::Nothing)
        .unwrap();
    assert_eq!(
        (stage.view(), undone.skipped.clone()),
        (messed.clone(), vec![])
    );
    let redone = stage
        .restore_goal(&undo(&undone), RepositoryRestore::Nothing)
        .unwrap();
    assert_eq!((stage.view(), redone.skipped), (before, vec![]), "a redo");
    // A rule that came since does not make strangers of them either.
    stage.write(".gitignore", "*.log\n# and more\n");
    let back = stage.restore(&redone.guard);
    assert_eq!((stage.view(), back.skipped), (messed, vec![]), "the guard");
}

#[test]
fn what_was_edited_since_a_restore_made_it_is_protected_by_the_rules_again() {
    let mut stage = Stage::new();
    stage.write("x.log", "captured\n");
    let snapshot = stage.snapshot();
    stage.remove("x.log");
    stage.write(".gitignore", "*.log\n");
    let outcome = stage.restore(&snapshot);
    stage.write("x.log", "edited since\n");

    let back = stage.restore(&outcome.guard);

    assert_eq!(stage.read("x.log"), "edited since\n");
    assert_eq!(back.leftover_ignored, [rel("x.log")]);
    assert_eq!(back.skipped, []);
}

#[test]
fn what_a_rule_hid_in_a_directory_of_before_is_listed_and_the_directory_is_not() {
    let mut stage = Stage::new();
    stage.write("a", "captured\n");
    stage.write(".gitignore", "*.log\n");
    stage.write("b/k.log", "there before\n");
    for path in ["e", "f"] {
        fs::create_dir(stage.path(path)).unwrap();
    }
    let snapshot = stage.snapshot();
    stage.write(".gitignore", "b\ne\nf\n");
    stage.write("b/new", "came since\n");
    stage.write("f/new", "came since\n");

    let outcome = stage.restore(&snapshot);

    assert!(stage.has("b/new") && stage.has("b/k.log") && stage.has("f/new"));
    assert_eq!(outcome.leftover_ignored, ["b/new", "f/new"].map(rel));
    assert_eq!(outcome.skipped, []);
    let again = stage.restore(&snapshot);
    assert!(again.plan.is_empty() && stage.has("b/new"));
}

#[test]
fn a_file_above_the_limit_survives_in_its_place_or_in_the_trash() {
    let mut stage = Stage::new();
    stage.write("grows", "small\n");
    let snapshot = stage.snapshot();
    stage.write("grows", &"large\n".repeat(100));
    stage.write("new", &"large\n".repeat(100));
    let mut options = RestoreOptions::new(stage.options());
    options.guard.max_untracked_file_bytes = 100;
    let before = (
        fs::metadata(stage.path("grows")).unwrap().ino(),
        identity(&stage.path("new")),
    );

    let goal = Stage::goal(&snapshot);
    let outcome = restore(
        &Operation::unbounded(),
        &stage.backend,
        &mut stage.workspace,
        &goal,
        &options,
    )
    .unwrap();

    let reason = omitted(OmissionReason::TooLarge);
    assert_eq!(outcome.skipped, [skipped("new", reason)]);
    assert_eq!(outcome.restored, [rel("grows")]);
    assert_eq!(stage.read("grows"), "small\n");
    let held = Held::of(stage.workspace.store_path(), &outcome.guard.id).unwrap();
    let [displaced] = &held.all()[..] else {
        panic!("one is listed");
    };
    assert_eq!(displaced.omission.path, rel("grows"));
    let kept = fs::metadata(&displaced.at).unwrap().ino();
    assert_eq!((kept, identity(&stage.path("new"))), before);
}

#[test]
fn a_file_that_the_target_left_out_is_not_removed_once_it_is_captured() {
    let mut stage = Stage::new();
    stage.write("large", &"large\n".repeat(100));
    let mut options = stage.options();
    options.max_untracked_file_bytes = 100;
    let snapshot = stage.snapshot_with(&options);

    let outcome = stage.restore(&snapshot);

    assert!(stage.has("large"));
    let reason = omitted(OmissionReason::TooLarge);
    assert_eq!(outcome.skipped, [skipped("large", reason)]);
}

/// A workspace with something of every kind that a capture leaves out, and a snapshot of it.
fn left_out() -> (Stage, Snapshot) {
    let stage = Stage::new();
    stage.write(".gitignore", "*.log\ncache\n");
    stage.write("kept.log", "ignored\n");
    stage.write("gone.log", "ignored\n");
    stage.write("cache/x", "ignored\n");
    stage.write("grown", &"large\n".repeat(100));
    stage.write("gone", &"large\n".repeat(100));
    stage.write("same", &"large\n".repeat(100));
    stage.write("dir/gone", &"large\n".repeat(100));
    stage.write("inner/file", "captured\n");
    stage.write("inner/.git/HEAD", "ref: refs/heads/main\n");
    stage.fifo("pipe");
    let mut options = stage.options();
    options.max_untracked_file_bytes = 100;
    let snapshot = stage.snapshot_with(&options);
    (stage, snapshot)
}

#[test]
fn what_the_target_left_out_and_is_gone_or_another_is_named() {
    let (mut stage, snapshot) = left_out();
    stage.write("kept.log", "edited, which is what ignored files are for\n");
    stage.write("grown", &"large\n".repeat(101));
    for path in ["gone.log", "cache", "gone", "dir", "pipe", "inner"] {
        stage.remove(path);
    }
    stage.write("dir", "a file\n");
    let mut options = RestoreOptions::new(stage.options());
    options.guard.max_untracked_file_bytes = 100;

    let goal = Stage::goal(&snapshot);
    let outcome = restore(
        &Operation::unbounded(),
        &stage.backend,
        &mut stage.workspace,
        &goal,
        &options,
    )
    .unwrap();

    let (too_large, ignored) = (OmissionReason::TooLarge, OmissionReason::Ignored);
    assert_eq!(stage.read("inner/file"), "captured\n");
    let named = [
        skipped("cache", omitted(ignored)),
        skipped("dir/gone", omitted(too_large)),
        skipped("gone", omitted(too_large)),
        skipped("gone.log", omitted(ignored)),
        skipped("grown", omitted(too_large)),
        skipped("inner/.git", omitted(OmissionReason::GitDir)),
        skipped("pipe", omitted(OmissionReason::Special)),
    ];
    assert_eq!(outcome.skipped, named);
    let again = restore(
        &Operation::unbounded(),
        &stage.backend,
        &mut stage.workspace,
        &goal,
        &options,
    )
    .unwrap();
    assert_eq!((again.restored, again.skipped), (Vec::new(), named.into()));
}

#[test]
fn an_undo_names_what_was_left_out_only_where_the_operation_lost_it() {
    let (mut stage, before) = left_out();
    stage.remove("gone.log");
    stage.write("inner/file", "by the operation\n");
    let mut options = RestoreOptions::new(stage.options());
    options.guard.max_untracked_file_bytes = 100;
    let after = stage.snapshot_with(&options.guard);
    stage.remove("kept.log");
    stage.write("grown", &"large\n".repeat(101));
    let goal = RestoreGoal::Undo {
        before,
        after,
        paths: None,
    };

    let outcome = restore(
        &Operation::unbounded(),
        &stage.backend,
        &mut stage.workspace,
        &goal,
        &options,
    )
    .unwrap();

    assert_eq!(outcome.restored, [rel("inner/file")]);
    let reason = omitted(OmissionReason::Ignored);
    assert_eq!(outcome.skipped, [skipped("gone.log", reason)]);
}

#[test]
fn a_directory_that_became_a_link_is_built_again_and_nothing_outside_is_touched() {
    let mut stage = Stage::new();
    stage.write("d/file", "ours\n");
    stage.write("top", "ours\n");
    let snapshot = stage.snapshot();
    let before = stage.view();
    fs::write(stage.outside.join("file"), "theirs\n").unwrap();
    fs::write(stage.outside.join("top"), "theirs\n").unwrap();
    stage.remove("d");
    stage.link(&stage.outside, "d");
    stage.remove("top");
    stage.link(stage.outside.join("top"), "top");
    let outside = (view(&stage.outside), identity(&stage.outside.join("file")));

    let outcome = stage.restore(&snapshot);

    assert_eq!(stage.view(), before);
    assert_eq!(outcome.skipped, []);
    let now = (view(&stage.outside), identity(&stage.outside.join("file")));
    assert_eq!(now, outside);
    stage.restore(&outcome.guard);
    assert_eq!(fs::read_link(stage.path("d")).unwrap(), stage.outside);
}

#[test]
fn an_ignored_link_above_a_target_path_is_neither_followed_nor_replaced() {
    let mut stage = Stage::new();
    stage.write("hidden/file", "ours\n");
    let snapshot = stage.snapshot();
    stage.remove("hidden");
    stage.link(&stage.outside, "hidden");
    stage.write(".gitignore", "hidden\n");

    let outcome = stage.restore(&snapshot);

    assert_eq!(fs::read_link(stage.path("hidden")).unwrap(), stage.outside);
    assert!(view(&stage.outside).is_empty());
    let reason = omitted(OmissionReason::Ignored);
    assert_eq!(outcome.skipped, [skipped("hidden/file", reason)]);
}

#[test]
fn another_name_of_a_hard_linked_file_keeps_its_bytes_and_its_mode() {
    let mut stage = Stage::new();
    stage.write("content", "captured\n");
    stage.write("mode", "same\n");
    stage.chmod("mode", 0o600);
    let snapshot = stage.snapshot();
    let other = |name: &str| stage.outside.join(name);
    stage.write("content", "edited\n");
    stage.chmod("mode", 0o644);
    fs::hard_link(stage.path("content"), other("content")).unwrap();
    fs::hard_link(stage.path("mode"), other("mode")).unwrap();
    let outside = (view(&stage.outside), identity(&other("mode")));
    let modified = fs::metadata(stage.path("mode")).unwrap().mtime_nsec();

    let (content, mode) = (other("content"), other("mode"));
    let outcome = stage.restore(&snapshot);

    assert_eq!(stage.read("content"), "captured\n");
    assert_eq!(
        (stage.mode("mode"), stage.read("mode")),
        (0o600, "same\n".into())
    );
    assert_eq!((view(&stage.outside), identity(&mode)), outside);
    assert_eq!(fs::read_to_string(content).unwrap(), "edited\n");
    assert_eq!(
        fs::metadata(stage.path("mode")).unwrap().mtime_nsec(),
        modified,
        "its content did not change, so its time does not"
    );
    assert_eq!(outcome.skipped, []);
}

#[test]
fn a_name_that_changed_meanwhile_is_kept_though_its_other_name_is_put_back() {
    let mut stage = Stage::new();
    stage.write("a", "captured\n");
    stage.write("b", "captured\n");
    let snapshot = stage.snapshot();
    stage.write("a", "edited 1\n");
    stage.remove("b");
    fs::hard_link(stage.path("a"), stage.path("b")).unwrap();
    let path = stage.path("b");
    let times = fs::metadata(&path).unwrap();
    stage.meanwhile(move || {
        fs::write(&path, "edited 2\n").unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(times.modified().unwrap()).unwrap();
    });

    let outcome = stage.restore(&snapshot);

    assert_eq!(
        [stage.read("a"), stage.read("b")],
        ["edited 2\n", "edited 2\n"],
        "equal in all but the content, which nobody has"
    );
    let reason = SkipReason::ChangedMeanwhile;
    assert_eq!(
        outcome.skipped,
        [skipped("a", reason), skipped("b", reason)]
    );
}

#[test]
fn special_files_in_the_way_are_moved_aside_unopened() {
    let mut stage = Stage::new();
    stage.write("file", "captured\n");
    stage.write("dir/file", "captured\n");
    fs::create_dir(stage.path("empty")).unwrap();
    let snapshot = stage.snapshot();
    let before = stage.view();
    for path in ["file", "dir", "empty"] {
        stage.remove(path);
        stage.fifo(path);
    }
    stage.fifo("new");

    let outcome = stage.restore(&snapshot);

    assert_eq!(
        outcome.restored,
        ["dir", "dir/file", "empty", "file"].map(rel)
    );
    let reason = omitted(OmissionReason::Special);
    assert_eq!(
        outcome.skipped,
        [skipped("new", reason)],
        "it is in nobody's way"
    );
    stage.remove("new");
    assert_eq!(stage.view(), before);
    let trash = stage.areas().remove(0).join("trash");
    let kinds: Vec<String> = view(&trash).into_values().collect();
    assert_eq!(kinds, ["644 special true"; 3], "nothing was unlinked");
}

#[test]
fn a_file_becomes_a_directory_and_the_reverse() {
    let mut stage = Stage::new();
    stage.write("one", "a file\n");
    stage.write("two/x/y", "in a directory\n");
    let snapshot = stage.snapshot();
    let before = stage.view();
    stage.remove("one");
    stage.write("one/a/b", "content\n");
    fs::create_dir(stage.path("one/empty")).unwrap();
    stage.remove("two");
    stage.write("two", "a file\n");
    let messed = stage.view();

    let outcome = stage.restore(&snapshot);
    assert_eq!(stage.view(), before);
    stage.restore(&outcome.guard);
    assert_eq!(stage.view(), messed, "what was inside is in the guard");
}

#[test]
fn a_directory_with_ignored_content_is_not_replaced_by_a_file() {
    let mut stage = Stage::new();
    stage.write(".gitignore", "*.log\n");
    stage.write("place", "a file\n");
    let snapshot = stage.snapshot();
    stage.remove("place");
    stage.write("place/a.log", "in no snapshot\n");
    stage.write("place/b", "captured\n");
    stage.write("place/sub/c", "captured\n");
    std::fs::create_dir_all(stage.path("place/empty")).unwrap();
    let messed = stage.view();

    let outcome = stage.restore(&snapshot);

    assert_eq!(stage.view(), messed, "it stays as a whole");
    assert_eq!(
        outcome.skipped,
        ["place", "place/b", "place/empty", "place/sub/c"]
            .map(|path| skipped(path, SkipReason::DirectoryNotEmpty))
    );
    assert_eq!(outcome.leftover_ignored, [rel("place/a.log")]);
    assert_eq!(outcome.restored, []);
}

#[test]
fn a_directory_that_was_filled_meanwhile_stays_and_is_named() {
    let mut stage = Stage::new();
    let snapshot = stage.snapshot();
    for path in ["new/empty", "other"] {
        std::fs::create_dir_all(stage.path(path)).unwrap();
    }
    let inner = stage.path("new/empty/inner");
    stage.meanwhile(move || fs::create_dir(inner).unwrap());

    let outcome = stage.restore(&snapshot);

    assert!(stage.has("new/empty/inner"));
    let left = skipped("new/empty/inner", SkipReason::ChangedMeanwhile);
    assert_eq!(outcome.skipped, [left]);
    assert_eq!(outcome.restored, [rel("other")]);
}

#[test]
fn a_nested_repository_that_came_since_is_kept_whole() {
    let mut stage = Stage::new();
    stage.write("known/file", "captured\n");
    let snapshot = stage.snapshot();
    stage.write("vendor/lib/.git/HEAD", "ref: refs/heads/main\n");
    stage.write("vendor/lib/src/a", "theirs\n");
    stage.write("vendor/lib/inner/.git/HEAD", "ref: refs/heads/main\n");
    stage.write("known/.git/HEAD", "ref: refs/heads/main\n");
    stage.write("known/file", "edited\n");
    stage.write("known/theirs/b", "theirs\n");
    fs::create_dir(stage.path("known/empty")).unwrap();

    let outcome = stage.restore(&snapshot);

    assert_eq!(stage.read("vendor/lib/src/a"), "theirs\n");
    assert!(stage.has("vendor/lib/inner/.git/HEAD"));
    assert_eq!(stage.read("known/file"), "captured\n");
    assert_eq!(stage.read("known/theirs/b"), "theirs\n");
    assert!(stage.has("known/empty"));
    assert_eq!(
        outcome.skipped,
        [
            skipped("known", SkipReason::NestedRepository),
            skipped("vendor/lib", SkipReason::NestedRepository)
        ]
    );
}

#[test]
fn aliases_of_the_git_directory_are_refused_before_anything_is_touched() {
    for path in [".GIT/config", "a/.g\u{200c}it", ".git ", "git~1/hooks/x"] {
        let mut stage = Stage::new();
        stage.write("a", "a\n");
        let snapshot = stage.snapshot();
        stage.write("a", "edited\n");
        let messed = stage.view();
        stage.backend.forge(&snapshot, |entries| {
            let entry = entries[&rel("a")];
            entries.insert(rel(path), entry);
        });

        let error = stage.try_restore(&snapshot).unwrap_err();

        assert_eq!(error.kind(), ErrorKind::Corrupt, "{path}: {error}");
        assert!(!error.touched());
        assert_eq!(stage.view(), messed);
    }
}

#[test]
fn only_the_named_paths_are_restored() {
    let mut stage = Stage::new();
    stage.write("a/one", "captured\n");
    stage.write("a/two", "captured\n");
    stage.write("b", "captured\n");
    let snapshot = stage.snapshot();
    for path in ["a/one", "a/two", "b", "a/new", "c"] {
        stage.write(path, "edited\n");
    }
    let restore_paths = |stage: &mut Stage, paths: &[&str]| {
        let goal = RestoreGoal::Snapshot {
            snapshot: snapshot.clone(),
            paths: paths.iter().map(|p| rel(p)).collect(),
        };
        stage.restore_goal(&goal, RepositoryRestore::Nothing)
    };

    let outcome = restore_paths(&mut stage, &["a/one"]).unwrap();
    assert_eq!(outcome.restored, [rel("a/one")]);
    assert_eq!(outcome.skipped, []);
    assert_eq!(stage.read("a/two"), "edited\n");

    let outcome = restore_paths(&mut stage, &["a"]).unwrap();
    assert_eq!(outcome.restored, ["a/new", "a/two"].map(rel));
    assert_eq!(stage.read("b"), "edited\n");
    assert!(stage.has("c"));

    stage.remove("a");
    stage.write("a", "a file where a directory was\n");
    let outcome = restore_paths(&mut stage, &["a/two"]).unwrap();
    assert_eq!(outcome.restored, ["a", "a/two"].map(rel));
    assert!(!stage.has("a/one"), "it was not asked for");

    let outcome = restore_paths(&mut stage, &["c"]).unwrap();
    assert_eq!(outcome.restored, [rel("c")], "it came since, and goes");
    let error = restore_paths(&mut stage, &["c"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "neither has it: {error}");
}

#[test]
fn a_plan_is_refused_once_the_tree_has_moved() {
    let mut stage = Stage::new();
    stage.write("a", "captured\n");
    let snapshot = stage.snapshot();
    stage.write("a", "edited\n");
    let plan = stage.plan(&snapshot);
    assert_eq!(stage.plan(&snapshot), plan, "it is named by its content");
    stage.write("b", "new\n");
    let messed = stage.view();

    let error = stage.restore_planned(&snapshot, plan.id).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(!error.touched());
    assert_eq!(stage.view(), messed);

    let plan = stage.plan(&snapshot);
    let outcome = stage.restore_planned(&snapshot, plan.id.clone()).unwrap();
    assert_eq!(outcome.plan, plan);
    assert_eq!(outcome.restored, ["a", "b"].map(rel));
}

#[test]
fn planning_writes_nothing() {
    let stage = Stage::new();
    stage.write("a", "captured\n");
    let snapshot = stage.snapshot();
    stage.write("a", "edited\n");
    let (tree, store) = (stage.view(), view(stage.workspace.store_path()));
    assert_eq!(stage.plan(&snapshot).writes.len(), 1);
    assert_eq!(stage.view(), tree);
    assert_eq!(view(stage.workspace.store_path()), store);
}

#[test]
fn without_a_guard_nothing_is_touched() {
    let mut stage = Stage::new();
    stage.write("a", "captured\n");
    let snapshot = stage.snapshot();
    stage.write("a", "edited\n");
    *stage.backend.is_broken.borrow_mut() = true;
    let error = stage.try_restore(&snapshot).unwrap_err();
    assert!(matches!(error, RestoreError::Guard(_)), "{error}");
    assert!(!error.touched());
    assert_eq!(stage.read("a"), "edited\n");
}

#[test]
fn content_that_is_missing_or_damaged_stops_the_restore_before_it_begins() {
    let damage: [fn(&mut Vec<u8>); 2] = [Vec::clear, |bytes| bytes[0] ^= 1];
    for (number, damage) in damage.into_iter().enumerate() {
        let mut stage = Stage::new();
        stage.write("a", "captured\n");
        stage.write("b", "captured too\n");
        let snapshot = stage.snapshot();
        stage.remove("a");
        stage.write("b", "edited\n");
        stage.write("c", "new\n");
        let messed = stage.view();
        let id = ContentId::Blake3(*blake3::hash(b"captured too\n").as_bytes());
        damage(stage.backend.blobs.borrow_mut().get_mut(&id).unwrap());
        if number == 0 {
            stage.backend.blobs.borrow_mut().remove(&id);
        }

        let error = stage.try_restore(&snapshot).unwrap_err();

        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(!error.touched());
        assert_eq!(stage.view(), messed);
        assert_eq!(stage.areas(), <[std::path::PathBuf; 0]>::default());
    }
}

#[test]
fn a_snapshot_without_content_is_refused_before_the_guard() {
    let mut stage = Stage::new();
    let snapshot = stage.snapshot();
    stage.backend.forget_content(&snapshot);
    let error = stage.try_restore(&snapshot).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let mut unknown = snapshot;
    unknown.id = SnapshotId::random();
    let error = stage.try_restore(&unknown).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn what_changes_after_the_guard_is_kept_and_named() {
    let mut stage = Stage::new();
    for path in ["edited", "swapped", "removed", "twice", "moded"] {
        stage.write(path, "captured\n");
    }
    let snapshot = stage.snapshot();
    for path in ["edited", "swapped", "removed", "twice", "new", "newer"] {
        stage.write(path, "of the run\n");
    }
    stage.remove("twice");
    stage.chmod("moded", 0o600);
    let at = |path: &str| stage.path(path);
    let (edited, swapped, removed) = (at("edited"), at("swapped"), at("removed"));
    let (twice, new, late, moded) = (at("twice"), at("new"), at("late"), at("moded"));
    stage.meanwhile(move || {
        fs::write(edited, "of a person, and longer\n").unwrap();
        fs::remove_file(&swapped).unwrap();
        fs::create_dir(&swapped).unwrap();
        fs::remove_file(removed).unwrap();
        fs::write(twice, "it came after the guard\n").unwrap();
        fs::write(new, "of a person, and longer\n").unwrap();
        fs::write(late, "nobody knew it\n").unwrap();
        fs::write(moded, "of a person, and longer\n").unwrap();
    });

    let outcome = stage.restore(&snapshot);

    let reason = SkipReason::ChangedMeanwhile;
    assert_eq!(
        outcome.skipped,
        [
            "edited", "late", "moded", "new", "removed", "swapped", "twice"
        ]
        .map(|path| skipped(path, reason))
    );
    assert_eq!(outcome.restored, [rel("newer")]);
    assert_eq!(stage.read("edited"), "of a person, and longer\n");
    assert_eq!(stage.read("twice"), "it came after the guard\n");
    assert!(stage.path("swapped").is_dir());
    assert!(!stage.has("removed") && !stage.has("newer"));
}

#[test]
fn a_directory_that_became_a_link_after_the_guard_is_not_followed() {
    let mut stage = Stage::new();
    stage.write("d/file", "captured\n");
    let snapshot = stage.snapshot();
    stage.write("d/file", "edited\n");
    stage.write("d/new", "new\n");
    fs::write(stage.outside.join("file"), "theirs\n").unwrap();
    fs::write(stage.outside.join("new"), "theirs\n").unwrap();
    let outside = view(&stage.outside);
    let (directory, target) = (stage.path("d"), stage.outside.clone());
    stage.meanwhile(move || {
        fs::remove_dir_all(&directory).unwrap();
        std::os::unix::fs::symlink(target, directory).unwrap();
    });

    let outcome = stage.restore(&snapshot);

    assert_eq!(view(&stage.outside), outside);
    assert!(
        outcome
            .skipped
            .contains(&skipped("d/file", SkipReason::ChangedMeanwhile)),
        "{outcome:?}"
    );
}

#[test]
fn an_undo_keeps_later_edits_and_names_them() {
    let mut stage = Stage::new();
    for path in ["one", "two", "three", "other"] {
        stage.write(path, "before\n");
    }
    let before = stage.snapshot();
    for path in ["one", "two", "three", "made", "made-too"] {
        stage.write(path, "by the run\n");
    }
    stage.chmod("other", 0o600);
    let after = stage.snapshot();
    stage.write("two", "by a person\n");
    stage.write("three", "before\n");
    stage.write("made-too", "by a person\n");
    stage.write("unrelated", "by a person\n");
    let edited = stage.view();

    let goal = RestoreGoal::Undo {
        before: before.clone(),
        after: after.clone(),
        paths: None,
    };
    let outcome = stage
        .restore_goal(&goal, RepositoryRestore::Nothing)
        .unwrap();

    assert_eq!(outcome.restored, ["made", "one", "other"].map(rel));
    let reason = SkipReason::EditedSince;
    assert_eq!(
        outcome.skipped,
        [skipped("made-too", reason), skipped("two", reason)]
    );
    assert_eq!(stage.read("one"), "before\n");
    assert_eq!(stage.read("two"), "by a person\n");
    assert_eq!(stage.mode("other"), 0o644);
    assert!(stage.has("unrelated") && !stage.has("made"));

    // A second undo takes the first one back, and nothing else.
    let redo = RestoreGoal::Undo {
        before: outcome.guard.clone(),
        after: outcome.result.clone(),
        paths: Some(outcome.restored.clone()),
    };
    let outcome = stage
        .restore_goal(&redo, RepositoryRestore::Nothing)
        .unwrap();
    assert_eq!(outcome.skipped, []);
    assert_eq!(stage.view(), edited);

    // A full restore takes the edits back too; the guard has them.
    let outcome = stage.restore(&before);
    assert_eq!(stage.read("two"), "before\n");
    stage.restore(&outcome.guard);
    assert_eq!(stage.read("two"), "by a person\n");
}

#[test]
fn an_undo_of_no_paths_does_nothing() {
    let mut stage = Stage::new();
    stage.write("a", "before\n");
    let before = stage.snapshot();
    stage.write("a", "after\n");
    stage.write("dir/b", "after\n");
    let after = stage.snapshot();
    let goal = RestoreGoal::Undo {
        before,
        after,
        paths: Some(Vec::new()),
    };
    let outcome = stage
        .restore_goal(&goal, RepositoryRestore::Nothing)
        .unwrap();
    assert_eq!((outcome.restored.len(), outcome.skipped.len()), (0, 0));
    assert_eq!(stage.read("a"), "after\n");
}

#[test]
fn setuid_and_setgid_are_never_set() {
    let mut stage = Stage::new();
    stage.write("tool", "captured\n");
    stage.chmod("tool", 0o6755);
    fs::create_dir(stage.path("shared")).unwrap();
    stage.chmod("shared", 0o2775);
    let snapshot = stage.snapshot();
    stage.write("tool", "edited\n");
    stage.chmod("shared", 0o2755);
    stage.restore(&snapshot);
    assert_eq!(stage.mode("shared"), 0o2775, "what is not recorded stays");
    stage.remove("shared");
    stage.restore(&snapshot);
    assert_eq!(stage.mode("shared") & 0o6777, 0o775, "nor is it made");
    stage.chmod("shared", 0o2775);
    assert_eq!(stage.mode("tool"), 0o755);
    assert_eq!(stage.mode("shared"), 0o2775, "what is not recorded stays");
}

#[test]
fn the_sticky_bit_comes_and_goes_with_the_other_bits() {
    let mut stage = Stage::new();
    stage.write("drop/file", "captured\n");
    stage.chmod("drop", 0o1777);
    fs::create_dir(stage.path("plain")).unwrap();
    stage.chmod("plain", 0o777);
    let snapshot = stage.snapshot();
    for (drop, plain) in [(0o777, 0o1777), (0o700, 0o700)] {
        stage.chmod("drop", drop);
        stage.chmod("plain", plain);
        stage.restore(&snapshot);
        let modes = (stage.mode("drop"), stage.mode("plain"));
        assert_eq!(modes, (0o1777, 0o777));
    }
    stage.remove("drop");
    stage.restore(&snapshot);
    assert_eq!(stage.mode("drop"), 0o1777, "one that is made again");
}

#[test]
fn the_bits_of_the_workspace_itself_come_back() {
    let mut stage = Stage::new();
    stage.chmod("", 0o755);
    stage.write("a", "same\n");
    let snapshot = stage.snapshot();
    stage.chmod("", 0o700);
    let outcome = stage.restore(&snapshot);
    assert_eq!(stage.mode(""), 0o755);
    assert_eq!(outcome.restored, [RelPath::root()]);
}

#[test]
fn restored_files_belong_to_whom_the_replaced_ones_did() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut stage = Stage::new();
    stage.write("mine", "captured\n");
    stage.write("theirs/deep/gone", "captured\n");
    stage.link("mine", "theirs/deep/link");
    let snapshot = stage.snapshot();
    stage.write("mine", "edited\n");
    chown(stage.path("mine"), Some(1001), Some(1002)).unwrap();
    stage.remove("theirs/deep");
    chown(stage.path("theirs"), Some(1003), Some(1004)).unwrap();

    stage.restore(&snapshot);

    let owner = |path: &str| {
        let meta = fs::symlink_metadata(stage.path(path)).unwrap();
        (meta.uid(), meta.gid())
    };
    assert_eq!(owner("mine"), (1001, 1002));
    for path in ["theirs/deep", "theirs/deep/gone", "theirs/deep/link"] {
        assert_eq!(owner(path), (1003, 1004), "{path}");
    }
}

#[test]
fn an_immutable_file_is_found_before_anything_is_touched() {
    let mut stage = Stage::new();
    stage.write("a", "captured\n");
    stage.write("b", "captured\n");
    let snapshot = stage.snapshot();
    stage.write("a", "edited\n");
    stage.write("b", "edited\n");
    let Some(_immutable) = Immutable::make(&stage.path("b")) else {
        return;
    };
    let messed = stage.view();
    let error = stage.try_restore(&snapshot).unwrap_err();
    assert!(matches!(error, RestoreError::Prepare(_)), "{error}");
    assert_eq!(stage.view(), messed);
    assert_eq!(stage.areas(), <[std::path::PathBuf; 0]>::default());
}

/// A file that nobody may change while this lives.
struct Immutable(fs::File);

impl Immutable {
    /// `None` where the file system or a missing capability forbids it.
    fn make(path: &Path) -> Option<Self> {
        let file = fs::File::open(path).unwrap();
        rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::IMMUTABLE).ok()?;
        Some(Self(file))
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        rustix::fs::ioctl_setflags(&self.0, rustix::fs::IFlags::empty()).unwrap();
    }
}

/// Runs one story of this module again, as a user without any privilege.
fn as_nobody(story: &str, environment: &[(&str, &std::ffi::OsStr)]) {
    use std::os::unix::process::CommandExt as _;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (_, module) = module_path!().split_once("::").unwrap();
    let name = format!("{module}::{story}");
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .envs(environment.iter().copied())
        .uid(65534)
        .gid(65534)
        .output();
    match output {
        Ok(output) => assert!(
            output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"),
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
        // The checkout may be closed to other users.
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::PermissionDenied, "{e}"),
    }
}

#[test]
fn a_closed_directory_is_opened_for_the_restore_and_closed_again() {
    as_nobody(
        "a_closed_directory_is_opened_for_the_restore_and_closed_again",
        &[],
    );
    let mut stage = Stage::new();
    stage.write("closed/file", "captured\n");
    stage.write("closed/gone", "captured\n");
    stage.write("made/inner/file", "captured\n");
    stage.chmod("closed", 0o555);
    stage.chmod("made/inner", 0o555);
    stage.chmod("made", 0o555);
    let snapshot = stage.snapshot();
    let before = stage.view();
    for path in ["closed", "made", "made/inner"] {
        stage.chmod(path, 0o755);
    }
    stage.write("closed/file", "edited\n");
    stage.remove("closed/gone");
    stage.write("closed/new/file", "new\n");
    stage.remove("made");
    stage.chmod("closed", 0o555);
    let outcome = stage.restore(&snapshot);
    assert_eq!(outcome.skipped, []);
    assert_eq!(stage.view(), before);
    for path in ["closed", "made", "made/inner"] {
        stage.chmod(path, 0o755);
    }
}

#[test]
fn a_directory_of_somebody_else_is_found_before_anything_is_touched() {
    const DIRECTORY: &str = "STILLFRAME_TEST_DIRECTORY";
    if !rustix::process::geteuid().is_root() {
        // Only root can make the directory that is not ours; see below.
        let Some(base) = std::env::var_os(DIRECTORY) else {
            return;
        };
        let base = std::path::PathBuf::from(base);
        let mut stage = Stage::at(&base);
        let snapshot = stage.snapshot();
        stage.write("mine", "edited\n");
        stage.write("theirs/file", "edited\n");
        let messed = stage.view();
        let error = stage.try_restore(&snapshot).unwrap_err();
        assert!(matches!(error, RestoreError::Prepare(_)), "{error}");
        assert_eq!(stage.view(), messed);
        return;
    }
    let base = scratch();
    let nobody = Some(65534);
    for path in ["", "work", "work/tree"] {
        let path = base.path().join(path);
        fs::create_dir_all(&path).unwrap();
        chown(path, nobody, nobody).unwrap();
    }
    let tree = base.path().join("work/tree");
    fs::create_dir(tree.join("theirs")).unwrap();
    for path in ["mine", "theirs/file"] {
        fs::write(tree.join(path), "captured\n").unwrap();
        chown(tree.join(path), nobody, nobody).unwrap();
    }
    as_nobody(
        "a_directory_of_somebody_else_is_found_before_anything_is_touched",
        &[(DIRECTORY, base.path().as_os_str())],
    );
}

#[test]
fn staging_goes_beside_the_workspace_if_the_store_is_on_another_file_system() {
    let here = scratch();
    let there = tempfile::tempdir().unwrap();
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    if device(here.path()) == device(there.path()) {
        return;
    }
    let mut stage = Stage::with_state(here, there.path());
    stage.write("a", "captured\n");
    let snapshot = stage.snapshot();
    stage.write("a", "edited\n");
    stage.write("b", "new\n");

    let outcome = stage.restore(&snapshot);

    assert_eq!(stage.read("a"), "captured\n");
    let areas = stage.areas();
    assert_eq!(areas.len(), 1);
    assert_eq!(areas[0].parent(), stage.directory.parent());
    let mode = fs::metadata(&areas[0]).unwrap().mode() & 0o777;
    assert_eq!(mode, 0o700);
    let text = fs::read_to_string(areas[0].join(".gitignore")).unwrap();
    assert_eq!(text, "*\n");
    let store = stage.workspace.store_path().to_owned();
    assert!(area::bytes_beside(&store).unwrap() > 0);
    area::purge_trashes(
        &Operation::unbounded(),
        &store,
        std::slice::from_ref(&outcome.guard.id),
    )
    .unwrap();
    assert_eq!(stage.areas(), <[std::path::PathBuf; 0]>::default());
    assert_eq!(area::bytes_beside(&store).unwrap(), 0);
    area::purge_trashes(
        &Operation::unbounded(),
        &store,
        std::slice::from_ref(&outcome.guard.id),
    )
    .unwrap();
}

#[test]
fn the_trash_stays_until_its_guard_goes() {
    let mut stage = Stage::new();
    stage.write("a", "captured\n");
    let snapshot = stage.snapshot();
    stage.write("a", "edited\n");
    stage.write("b", "new\n");
    let outcome = stage.restore(&snapshot);
    let areas = stage.areas();
    assert_eq!(areas.len(), 1);
    let kept: Vec<String> = view(&areas[0].join("trash")).into_values().collect();
    assert_eq!(kept, ["644 \"new\\n\"", "644 \"edited\\n\""]);
    assert!(!areas[0].join("staged").exists());
    area::purge_trashes(
        &Operation::unbounded(),
        stage.workspace.store_path(),
        std::slice::from_ref(&outcome.guard.id),
    )
    .unwrap();
    assert_eq!(stage.areas(), <[std::path::PathBuf; 0]>::default());
}

#[test]
fn a_restore_that_is_stopped_in_time_touches_nothing() {
    let mut stage = Stage::new();
    stage.write("a", "captured\n");
    let snapshot = stage.snapshot();
    stage.write("a", "edited\n");
    let interrupt = Interrupt::never();
    let options = RestoreOptions::new(stage.options());
    let op = Operation::unbounded().cancelled_by(&interrupt);
    stage.meanwhile(move || interrupt.cancel());
    let goal = Stage::goal(&snapshot);
    let error = restore(&op, &stage.backend, &mut stage.workspace, &goal, &options).unwrap_err();
    let is_cancelled = matches!(error, RestoreError::Interrupted(Interrupted::Cancelled));
    assert!(is_cancelled, "{error}");
    assert_eq!(stage.read("a"), "edited\n");
    assert_eq!(stage.areas(), <[std::path::PathBuf; 0]>::default());
    let late = Interrupt::after(Duration::ZERO);
    let options = RestoreOptions::new(stage.options());
    let op = Operation::unbounded().cancelled_by(&late);
    let error = restore(&op, &stage.backend, &mut stage.workspace, &goal, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
}

#[test]
fn a_workspace_that_was_swapped_is_not_written_to() {
    let mut stage = Stage::new();
    stage.write("a", "captured\n");
    let snapshot = stage.snapshot();
    stage.write("a", "edited\n");
    let (here, away) = (stage.directory.clone(), stage.outside.join("away"));
    stage.meanwhile(move || {
        fs::rename(&here, away).unwrap();
        fs::create_dir(&here).unwrap();
        fs::write(here.join("a"), "another directory's\n").unwrap();
    });
    let error = stage.try_restore(&snapshot).unwrap_err();
    assert!(matches!(error, RestoreError::Prepare(_)), "{error}");
    assert_eq!(stage.read("a"), "another directory's\n");
    assert_eq!(
        fs::read_to_string(stage.outside.join("away/a")).unwrap(),
        "edited\n"
    );
}

/// A stage where a restore has steps of every kind, with what it leads from and to.
fn every_kind() -> (Stage, Snapshot) {
    let stage = Stage::new();
    stage.write("edited", "before\n");
    stage.write("linked", "before\n");
    fs::hard_link(stage.path("linked"), stage.path("linked-too")).unwrap();
    stage.write("gone", "before\n");
    stage.write("deep/er/gone", "before\n");
    stage.write("became-directory", "before\n");
    stage.write("became-file/x", "before\n");
    stage.write("became-fifo", "before\n");
    stage.link("edited", "link");
    stage.write("mode", "same\n");
    stage.chmod("mode", 0o640);
    fs::create_dir(stage.path("empty")).unwrap();
    stage.chmod("empty", 0o750);
    let snapshot = stage.snapshot();
    stage.write("edited", "after\n");
    stage.write("linked", "after\n");
    fs::hard_link(stage.path("linked"), stage.path("linked-again")).unwrap();
    stage.remove("gone");
    stage.remove("deep");
    stage.remove("became-directory");
    stage.write("became-directory/x", "after\n");
    stage.remove("became-file");
    stage.write("became-file", "after\n");
    stage.remove("became-fifo");
    stage.fifo("became-fifo");
    stage.remove("link");
    stage.link("gone", "link");
    stage.chmod("mode", 0o600);
    stage.remove("empty");
    stage.write("new/file", "after\n");
    (stage, snapshot)
}

/// What the two endings of [`every_kind`] look like: as it is left alone, and restored.
fn endings() -> [std::collections::BTreeMap<String, String>; 2] {
    let (mut stage, snapshot) = every_kind();
    let untouched = stage.view();
    stage.restore(&snapshot);
    let restored = stage.view();
    assert_ne!(untouched, restored);
    [untouched, restored]
}

#[test]
fn a_restore_that_dies_at_any_call_ends_before_or_after() {
    let [untouched, restored] = endings();
    let mut seen = BTreeSet::new();
    for call in 0.. {
        let (mut stage, snapshot) = every_kind();
        let (result, calls) = trial::with(Fault::StopBefore(call), |op| {
            stage.try_restore_in(op, &snapshot)
        });
        if calls <= call {
            assert!(result.is_ok(), "nothing went wrong: {result:?}");
            break;
        }
        let recovery = recover(&Operation::unbounded(), &stage.workspace).unwrap();
        assert_eq!(recovery.skipped, [], "at call {call}");
        let now = stage.view();
        assert!(
            now == untouched || now == restored,
            "at call {call}: {now:#?}\n{result:?}"
        );
        let is_restored = now == restored;
        seen.insert(is_restored);
        if !is_restored {
            assert!(!result.as_ref().is_err_and(RestoreError::touched) || recovery.discarded == 1);
            assert_eq!(
                stage.areas(),
                <[std::path::PathBuf; 0]>::default(),
                "at call {call}"
            );
        }
        assert_eq!(
            recover(&Operation::unbounded(), &stage.workspace).unwrap(),
            Recovery::default()
        );
        if let [guard] = &recovery.rolled_forward[..] {
            let guard = stage
                .backend
                .record(&Operation::unbounded(), &stage.workspace, guard)
                .unwrap();
            stage.restore(&guard.snapshot);
            let mut now = stage.view();
            // The guard cannot hold the FIFO, which has no bytes.
            now.remove("became-fifo");
            let mut before = untouched.clone();
            before.remove("became-fifo");
            assert_eq!(now, before, "the guard leads back, at call {call}");
        }
    }
    assert_eq!(seen.len(), 2, "the loop crossed the point of no return");
}

/// A stage where a restore replaces, makes and removes more files than are synced one by one.
fn many_files() -> (Stage, Snapshot) {
    let stage = Stage::new();
    for number in 0..80 {
        stage.write(&format!("d{}/f{number}", number % 9), "before\n");
    }
    let snapshot = stage.snapshot();
    for number in 0..80 {
        let path = format!("d{}/f{number}", number % 9);
        match number % 10 {
            0 => stage.remove(&path),
            _ => stage.write(&path, &format!("after {number}\n")),
        }
    }
    for number in 0..5 {
        stage.write(&format!("new{number}/file"), "after\n");
    }
    (stage, snapshot)
}

#[test]
fn a_restore_of_many_files_that_dies_on_the_way_ends_before_or_after() {
    let [untouched, restored] = {
        let (mut stage, snapshot) = many_files();
        let untouched = stage.view();
        stage.restore(&snapshot);
        [untouched, stage.view()]
    };
    let mut seen = BTreeSet::new();
    // Threads stage, so that the same call is another one each time.
    for call in (0..).step_by(3) {
        let (mut stage, snapshot) = many_files();
        let (result, calls) = trial::with(Fault::StopBefore(call), |op| {
            stage.try_restore_in(op, &snapshot)
        });
        if calls <= call {
            assert!(result.is_ok(), "nothing went wrong: {result:?}");
            break;
        }
        assert_eq!(
            recover(&Operation::unbounded(), &stage.workspace)
                .unwrap()
                .skipped,
            []
        );
        let now = stage.view();
        assert!(
            now == untouched || now == restored,
            "at call {call}: {now:#?}"
        );
        seen.insert(now == restored);
        assert_eq!(
            recover(&Operation::unbounded(), &stage.workspace).unwrap(),
            Recovery::default()
        );
    }
    assert_eq!(seen.len(), 2, "the loop crossed the point of no return");
}

/// Whether a call changes something at a path of the workspace, which calls name as relative.
fn changes_the_workspace(call: &Done) -> bool {
    match call {
        Done::Rename { to, .. } => to.is_relative(),
        Done::MakeDirectory(path) | Done::Remove(path) | Done::Write(path) => path.is_relative(),
        _ => false,
    }
}

#[test]
fn no_path_changes_before_bytes_and_intent_are_synced_and_nothing_is_done_before_the_paths_are() {
    for (stage, snapshot) in [every_kind(), many_files()] {
        let mut stage = stage;
        let store = stage.workspace.store_path().to_owned();
        let journal = store.join("restore.journal");
        let (outcome, seen) = trial::seen(|op| stage.try_restore_in(op, &snapshot).unwrap());
        let area = stage.areas().remove(0);
        let staged = area.join("staged");
        let position = |what: &str, is_it: &dyn Fn(&Done) -> bool| {
            let found = seen.iter().position(is_it);
            found.unwrap_or_else(|| panic!("{what} is not among {seen:#?}"))
        };
        let last = |what: &str, is_it: &dyn Fn(&Done) -> bool| {
            let found = seen.iter().rposition(is_it);
            found.unwrap_or_else(|| panic!("{what} is not among {seen:#?}"))
        };
        let is = |done: Done| move |call: &Done| *call == done;
        let after = |from: usize, done: &Done| {
            let found = seen[from..].iter().position(|call| call == done);
            from + found.unwrap_or_else(|| panic!("no {done:?} after {from} of {seen:#?}"))
        };

        let begun = position("the journal", &is(Done::SyncDirectory(store.clone())));
        let made = position("the area", &is(Done::MakeDirectory(area.clone())));
        assert!(begun < made, "what is left over can be found: {seen:#?}");
        let last_staged = last("a staged entry", &is(Done::Stage(area.clone())));
        let entries = seen
            .iter()
            .filter(|c| **c == Done::Stage(area.clone()))
            .count();
        let changed: Vec<usize> = (0..seen.len())
            .filter(|at| changes_the_workspace(&seen[*at]))
            .collect();
        let (first_change, last_change) = (changed[0], changed[changed.len() - 1]);

        let whole = Done::SyncFileSystem(staged.clone());
        let synced = match seen.contains(&whole) {
            true => after(last_staged, &whole),
            false => {
                let is_staged =
                    |path: &Path| path.to_str().is_some_and(|p| p.parse::<usize>().is_ok());
                let single = seen[..first_change]
                    .iter()
                    .filter(|call| matches!(call, Done::Sync(path) if is_staged(path)));
                // A link has no bytes of its own, and the listing of what is displaced has a name
                // of its own.
                let listing = area.join("displaced.json");
                let is_listed =
                    |call: &&Done| matches!(call, Done::Rename { to, .. } if *to == listing);
                let listings = seen[..first_change].iter().filter(is_listed).count();
                assert_eq!(single.count(), entries - 1 - listings, "{seen:#?}");
                let names = [staged.clone(), area.clone(), store.clone()];
                names.map(|path| after(last_staged, &Done::SyncDirectory(path)))[2]
            }
        };
        let intent = after(synced, &Done::Write(journal.clone()));
        let promised = after(intent, &Done::Sync(journal.clone()));
        assert!(promised < first_change, "{seen:#?}");

        let kept = Done::Rename {
            from: staged.clone(),
            to: area.join("trash"),
        };
        let kept = after(last_change, &kept);
        let workspace = Done::SyncFileSystem(stage.directory.clone());
        let lasting = match seen[kept..].contains(&workspace) {
            true => after(kept, &workspace),
            false => {
                let names = outcome.restored.iter().filter_map(RelPath::parent);
                let names = names.filter(|path| stage.path(&path.to_string()).is_dir());
                for path in names.collect::<BTreeSet<_>>() {
                    after(kept, &Done::SyncDirectory(path.as_path().to_owned()));
                }
                after(kept, &Done::SyncDirectory(area.clone()))
            }
        };
        let done = after(lasting, &Done::Write(journal.clone()));
        let told = after(done, &Done::Sync(journal.clone()));
        after(told, &Done::Remove(journal.clone()));
        assert_eq!(
            seen[kept..done]
                .iter()
                .filter(|c| **c == Done::Write(journal.clone()))
                .count(),
            0,
            "it is not said to be done before that is so: {seen:#?}"
        );
    }
}

#[test]
fn what_was_staged_in_vain_is_no_part_of_the_trash() {
    let mut stage = Stage::new();
    for path in ["edited", "late"] {
        stage.write(path, "captured\n");
    }
    let snapshot = stage.snapshot();
    for path in ["edited", "late"] {
        stage.write(path, "of the run\n");
    }
    let late = stage.path("late");
    stage.meanwhile(move || fs::write(late, "of a person, and longer\n").unwrap());
    let outcome = stage.restore(&snapshot);
    assert_eq!(
        outcome.skipped,
        [skipped("late", SkipReason::ChangedMeanwhile)]
    );
    let trash = view(&stage.areas()[0].join("trash"));
    assert_eq!(
        trash.into_values().collect::<Vec<_>>(),
        ["644 \"of the run\\n\""]
    );
}

#[test]
fn a_recovery_that_dies_at_any_call_is_finished_by_the_next() {
    let [_, restored] = endings();
    let (_, all_calls) = {
        let (mut stage, snapshot) = every_kind();
        trial::with(Fault::None, |op| {
            stage.try_restore_in(op, &snapshot).unwrap()
        })
    };
    let mut finished = 0;
    // A few points past the intent, and every point of the recoveries that follow.
    for call in (0..all_calls).step_by(7) {
        for inner in 0.. {
            let (mut stage, snapshot) = every_kind();
            let _ = trial::with(Fault::StopBefore(call), |op| {
                stage.try_restore_in(op, &snapshot)
            });
            // Asked of the journal: an intent that failed to be written may be there or not.
            let left =
                journal::find(&Operation::unbounded(), stage.workspace.store_path()).unwrap();
            let was_intended = left.is_some_and(|left| matches!(left.state, State::Intended(..)));
            let (_, calls) =
                trial::with(Fault::StopBefore(inner), |op| recover(op, &stage.workspace));
            recover(&Operation::unbounded(), &stage.workspace).unwrap();
            if was_intended {
                finished += 1;
                assert_eq!(stage.view(), restored, "at {call} and {inner}");
            }
            assert_eq!(
                recover(&Operation::unbounded(), &stage.workspace).unwrap(),
                Recovery::default()
            );
            if calls <= inner {
                break;
            }
        }
    }
    assert!(finished > 20, "{finished}");
}

#[test]
fn a_call_that_fails_is_told_as_it_is() {
    use rustix::io::Errno;
    let [untouched, restored] = endings();
    let mut answers = BTreeSet::new();
    for errno in [Errno::NOSPC, Errno::IO, Errno::INVAL] {
        for call in 0.. {
            let (mut stage, snapshot) = every_kind();
            let fault = Fault::FailAt(call, errno.raw_os_error());
            let (result, calls) = trial::with(fault, |op| stage.try_restore_in(op, &snapshot));
            if calls <= call {
                break;
            }
            match result {
                Ok(outcome) => {
                    assert_eq!(outcome.skipped, [], "{errno} at {call}");
                    assert_eq!(stage.view(), restored, "{errno} at {call}");
                    answers.insert("done");
                }
                Err(error) if error.touched() => {
                    recover(&Operation::unbounded(), &stage.workspace).unwrap();
                    let now = stage.view();
                    assert!(
                        now == restored || now == untouched,
                        "{errno} at {call}: {error} {now:#?}"
                    );
                    answers.insert("touched");
                }
                Err(error) => {
                    assert_eq!(stage.view(), untouched, "{errno} at {call}: {error}");
                    answers.insert("refused");
                }
            }
            assert_eq!(
                recover(&Operation::unbounded(), &stage.workspace)
                    .unwrap()
                    .rolled_forward,
                [],
                "what was said to be refused does not come back, {errno} at {call}"
            );
        }
    }
    assert_eq!(answers, BTreeSet::from(["done", "touched", "refused"]));
}

// A recovery took whatever a crash had left displaced for what the guard had seen
#[test]
fn what_the_guard_did_not_see_comes_back_after_a_crash() {
    let mut has_come_back = false;
    for call in 0.. {
        let mut stage = Stage::new();
        stage.write("kept", "captured\n");
        let snapshot = stage.snapshot();
        stage.write("made", "seen\n");
        let (_, calls) = trial::with(Fault::StopBefore(call), |op| {
            stage.try_restore_in(op, &snapshot)
        });
        if calls <= call {
            break;
        }
        let entries = fs::read_dir(stage.workspace.store_path()).unwrap();
        let staged = entries.map(|entry| entry.unwrap().path().join("staged/0"));
        let displaced = staged.into_iter().find(|path| path.exists());
        if stage.has("made") || displaced.is_none() {
            recover(&Operation::unbounded(), &stage.workspace).unwrap();
            continue;
        }
        // As if an editor had saved between the look and the rename.
        fs::write(displaced.unwrap(), "not seen by the guard\n").unwrap();
        let recovery = recover(&Operation::unbounded(), &stage.workspace).unwrap();
        assert_eq!(
            stage.read("made"),
            "not seen by the guard\n",
            "at call {call}"
        );
        assert_eq!(recovery.skipped.len(), 1);
        has_come_back = true;
    }
    assert!(has_come_back);
}

// A directory that somebody removed between two steps made the whole restore incomplete
#[test]
fn a_directory_that_goes_in_the_middle_does_not_stop_the_others() {
    let paths = ["a", "d/new", "e/f/new"];
    let mut stage = Stage::new();
    for path in paths {
        stage.write(path, "captured\n");
    }
    let snapshot = stage.snapshot();
    let errno = rustix::io::Errno::NOENT.raw_os_error();
    let mut kept = BTreeSet::new();
    for call in 0.. {
        stage.write("a", "edited\n");
        stage.write("d/keeps the directory", "made\n");
        for path in ["d/new", "e"] {
            if stage.has(path) {
                stage.remove(path);
            }
        }
        let (result, calls) = trial::with(Fault::FailAt(call, errno), |op| {
            stage.try_restore_in(op, &snapshot)
        });
        if calls <= call {
            break;
        }
        let Ok(outcome) = result else {
            recover(&Operation::unbounded(), &stage.workspace).unwrap();
            continue;
        };
        for skipped in outcome.skipped {
            assert_eq!(skipped.reason, SkipReason::ChangedMeanwhile);
            kept.insert(skipped.path.to_string());
        }
    }
    let each = ["a", "d/new", "e", "e/f", "e/f/new"];
    assert_eq!(kept, each.map(str::to_owned).into());
}

#[test]
fn attributes_that_cannot_be_given_are_named_and_stop_nothing() {
    use rustix::fs::XattrFlags;
    let mut lost = BTreeSet::new();
    for call in 0.. {
        let mut stage = Stage::new();
        stage.write("a", "captured\n");
        let snapshot = stage.snapshot();
        stage.write("a", "edited\n");
        for name in ["user.one", "user.two"] {
            let set = rustix::fs::setxattr(stage.path("a"), name, b"value", XattrFlags::empty());
            if let Err(errno) = set {
                let why = format!("the temporary directory takes none: {errno}");
                return must_run::skipped(Capability::ExtendedAttributes, &why);
            }
        }
        let fault = Fault::FailAt(call, rustix::io::Errno::NOSPC.raw_os_error());
        let (result, calls) = trial::with(fault, |op| stage.try_restore_in(op, &snapshot));
        if calls <= call {
            break;
        }
        let Ok(outcome) = result else { continue };
        for attributes in &outcome.attributes_lost {
            assert_eq!(attributes.path, rel("a"));
            assert!(attributes.reason.contains("No space"), "{attributes:?}");
            assert_eq!(stage.read("a"), "captured\n");
            lost.extend(attributes.names.clone());
        }
    }
    assert_eq!(lost, ["user.one", "user.two"].map(str::to_owned).into());
}

#[test]
fn one_path_that_the_system_refuses_does_not_stop_the_others() {
    let mut stage = Stage::new();
    for path in ["a", "b", "c"] {
        stage.write(path, "captured\n");
    }
    let snapshot = stage.snapshot();
    for path in ["a", "b", "c"] {
        stage.write(path, "edited\n");
    }
    let errno = rustix::io::Errno::PERM.raw_os_error();
    let mut refused = BTreeSet::new();
    for call in 0..100 {
        for path in ["a", "b", "c"] {
            stage.write(path, "edited\n");
        }
        let (result, calls) = trial::with(Fault::FailAt(call, errno), |op| {
            stage.try_restore_in(op, &snapshot)
        });
        if calls <= call {
            break;
        }
        let Ok(outcome) = result else {
            recover(&Operation::unbounded(), &stage.workspace).unwrap();
            continue;
        };
        for skipped in &outcome.skipped {
            assert_eq!(skipped.reason, SkipReason::Refused);
            assert_eq!(stage.read(&skipped.path.to_string()), "edited\n");
            refused.insert(skipped.path.clone());
        }
        assert_eq!(outcome.restored.len() + outcome.skipped.len(), 3);
    }
    assert_eq!(refused.len(), 3, "each of them was refused once");
}

#[test]
fn staged_files_that_vanish_are_found_and_the_paths_named() {
    let [untouched, _] = endings();
    let mut named = 0;
    for call in 0.. {
        let (mut stage, snapshot) = every_kind();
        let (result, calls) = trial::with(Fault::StopBefore(call), |op| {
            stage.try_restore_in(op, &snapshot)
        });
        if calls <= call {
            break;
        }
        if !result.is_err_and(|e| e.touched()) {
            continue;
        }
        let staged = stage.areas().into_iter().map(|a| a.join("staged"));
        for staged in staged.filter(|s| s.exists()) {
            fs::remove_dir_all(staged).unwrap();
        }
        let recovery = recover(&Operation::unbounded(), &stage.workspace).unwrap();
        named += recovery.skipped.len();
        // What could not be finished is as it was, or named; and the guard has it all.
        let guard = recovery.rolled_forward.first();
        if let Some(guard) = guard {
            let guard = stage
                .backend
                .record(&Operation::unbounded(), &stage.workspace, guard)
                .unwrap();
            stage.restore(&guard.snapshot);
            let mut now = stage.view();
            now.remove("became-fifo");
            let mut before = untouched.clone();
            before.remove("became-fifo");
            assert_eq!(now, before, "at call {call}");
        }
    }
    assert!(named > 0);
}

#[test]
fn recovery_keeps_what_a_person_changed_after_the_crash() {
    let mut stage = Stage::new();
    for path in ["a", "b", "c"] {
        stage.write(path, "captured\n");
    }
    let snapshot = stage.snapshot();
    for path in ["a", "b", "c"] {
        stage.write(path, "edited\n");
    }
    for call in 0.. {
        let (result, _) = trial::with(Fault::StopBefore(call), |op| {
            stage.try_restore_in(op, &snapshot)
        });
        assert!(result.is_err(), "it is stopped before its end");
        if stage.read("a") == "captured\n" {
            break;
        }
        recover(&Operation::unbounded(), &stage.workspace).unwrap();
        for path in ["a", "b", "c"] {
            stage.write(path, "edited\n");
        }
    }
    stage.write("c", "by a person, later\n");
    let recovery = recover(&Operation::unbounded(), &stage.workspace).unwrap();
    assert_eq!(stage.read("a"), "captured\n");
    assert_eq!(stage.read("c"), "by a person, later\n");
    assert_eq!(
        recovery.skipped,
        [skipped("c", SkipReason::ChangedMeanwhile)]
    );
}

#[test]
fn a_journal_of_another_directory_is_dropped() {
    let (mut stage, snapshot) = every_kind();
    let mut call = 0;
    while !trial::with(Fault::StopBefore(call), |op| {
        stage.try_restore_in(op, &snapshot)
    })
    .0
    .is_err_and(|e| e.touched())
    {
        recover(&Operation::unbounded(), &stage.workspace).unwrap();
        call += 1;
    }
    let away = stage.outside.join("away");
    fs::rename(&stage.directory, &away).unwrap();
    fs::create_dir(&stage.directory).unwrap();
    stage.write("edited", "another directory's\n");
    let stage = stage.reopen();
    let recovery = recover(&Operation::unbounded(), &stage.workspace).unwrap();
    assert_eq!(recovery.discarded, 1);
    assert_eq!(stage.view().len(), 1);
    assert_eq!(stage.read("edited"), "another directory's\n");
    assert_eq!(
        recover(&Operation::unbounded(), &stage.workspace).unwrap(),
        Recovery::default()
    );
}

#[test]
fn a_workspace_that_is_gone_is_made_again_and_a_refused_restore_leaves_nothing() {
    let mut stage = Stage::new();
    stage.write("sub/file", "one\n");
    stage.chmod("", 0o750);
    // The bits are those that the directory had when it was last locked.
    stage = stage.reopen();
    let before = stage.snapshot();
    let view_before = stage.view();
    stage.write("sub/file", "two\n");
    let after = stage.snapshot();
    fs::remove_dir_all(&stage.directory).unwrap();

    let undo = RestoreGoal::Undo {
        before: before.clone(),
        after: after.clone(),
        paths: None,
    };
    let error = stage
        .restore_goal(&undo, RepositoryRestore::Nothing)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let said = error.to_string();
    assert!(
        said.contains(before.id.as_str()) && said.contains(after.id.as_str()),
        "{said}"
    );
    let another = "plan_00000000000000000000000000000000".parse().unwrap();
    let error = stage.restore_planned(&before, another).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(!stage.directory.exists(), "nothing was touched");

    let outcome = stage.restore(&before);
    assert_eq!(stage.view(), view_before);
    assert_eq!(stage.mode(""), 0o750);
    assert_eq!(outcome.restored, [rel("sub/file")]);
    stage.restore(&after);
    assert_eq!(stage.read("sub/file"), "two\n");
}

#[test]
fn a_restore_that_died_in_a_workspace_that_is_gone_since_stands_in_nobodys_way() {
    let mut stage = Stage::new();
    stage.write("file", "one\n");
    let snapshot = stage.snapshot();
    stage.write("file", "two\n");
    // The first call at which it leaves a promise behind.
    for call in 0.. {
        let (result, _) = trial::with(Fault::StopBefore(call), |op| {
            stage.try_restore_in(op, &snapshot)
        });
        if result.is_err_and(|e| e.touched()) {
            break;
        }
        recover(&Operation::unbounded(), &stage.workspace).unwrap();
    }
    let journal = stage.workspace.store_path().join("restore.journal");
    assert!(journal.exists());
    fs::remove_dir_all(&stage.directory).unwrap();

    assert_eq!(
        recover(&Operation::unbounded(), &stage.workspace).unwrap(),
        Recovery::default()
    );
    assert!(journal.exists(), "the directory may come back");
    stage.restore(&snapshot);
    assert_eq!(stage.read("file"), "one\n");
    assert!(!journal.exists());
}

#[test]
fn odd_names_and_deep_paths_are_restored_exactly() {
    let mut stage = Stage::new();
    let deep = vec!["d"; 300].join("/");
    let names: [&[u8]; 6] = [
        b"new\nline",
        b"tab\t",
        b"-dash",
        b"quote\"",
        b"back\\slash",
        b"\xff\xfe",
    ];
    for name in names {
        fs::write(
            stage.directory.join(std::ffi::OsStr::from_bytes(name)),
            "captured",
        )
        .unwrap();
    }
    stage.write(&format!("{deep}/file"), "captured");
    let snapshot = stage.snapshot();
    let before = stage.view();
    for name in names {
        fs::remove_file(stage.directory.join(std::ffi::OsStr::from_bytes(name))).unwrap();
    }
    stage.remove("d");
    let outcome = stage.restore(&snapshot);
    assert_eq!(stage.view(), before);
    assert_eq!(outcome.restored.len(), 7);
}
