//! Whatever happens between two captures, a store that has seen all of it and one that has seen
//! nothing agree with each other and with git.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use stillframe_backends::BackendKind;

use crate::ground::{Ground, omissions};

/// Something that a user or a run does. Names are few, so that most of it meets something.
#[derive(Clone, Debug)]
enum Step {
    Write(Place, u8),
    /// As many bytes as before, in the same instant.
    Overwrite(Place, u8),
    Remove(Place),
    Executable(Place),
    Rename(Place, Place),
    Link(Place, &'static str),
    Directory(Place),
    Ignore(&'static str, &'static str),
    Add(Place),
    /// A new file goes into the index at once.
    WriteAndAdd(Place, u8),
    AddAll,
    Untrack(Place),
    IntendToAdd(Place),
    AssumeUnchanged(Place),
    SkipWorktree(Place),
    Commit,
    Checkout,
    Settle,
    Tick,
}

type Place = &'static str;

fn place() -> impl Strategy<Value = Place> {
    prop::sample::select(vec![
        "a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "x.log", "d/x.log",
    ])
}

fn step() -> impl Strategy<Value = Step> {
    let rules = prop::sample::select(vec!["*.log\n", "d/\n", "a\n!d/a\n", "/d/*\n!/d/e\n", "\n"]);
    prop_oneof![
        6 => (place(), any::<u8>()).prop_map(|(p, n)| Step::Write(p, n)),
        4 => (place(), any::<u8>()).prop_map(|(p, n)| Step::Overwrite(p, n)),
        3 => place().prop_map(Step::Remove),
        1 => place().prop_map(Step::Executable),
        3 => (place(), place()).prop_map(|(from, to)| Step::Rename(from, to)),
        2 => (place(), prop::sample::select(vec!["a", "d", "nowhere"]))
            .prop_map(|(p, to)| Step::Link(p, to)),
        2 => place().prop_map(Step::Directory),
        3 => (prop::sample::select(vec![".gitignore", "d/.gitignore"]), rules)
            .prop_map(|(p, text)| Step::Ignore(p, text)),
        2 => place().prop_map(Step::Add),
        6 => (place(), any::<u8>()).prop_map(|(p, n)| Step::WriteAndAdd(p, n)),
        3 => Just(Step::AddAll),
        2 => place().prop_map(Step::Untrack),
        1 => place().prop_map(Step::IntendToAdd),
        1 => place().prop_map(Step::AssumeUnchanged),
        2 => place().prop_map(Step::SkipWorktree),
        2 => Just(Step::Commit),
        1 => Just(Step::Checkout),
        2 => Just(Step::Settle),
        2 => Just(Step::Tick),
    ]
}

/// Makes room for something at `path`: whatever is in the way goes.
fn clear(ground: &Ground, path: &str) {
    let mut at = ground.root.clone();
    for name in Path::new(path).parent().unwrap() {
        at.push(name);
        if fs::symlink_metadata(&at).is_ok_and(|m| !m.is_dir()) {
            fs::remove_file(&at).unwrap();
        }
    }
    fs::create_dir_all(at).unwrap();
    if fs::symlink_metadata(ground.path(path)).is_ok() {
        ground.remove(path);
    }
}

/// Whether `path` is there, and not behind a link.
fn is_there(ground: &Ground, path: &str) -> bool {
    let above = Path::new(path).parent().unwrap();
    let is_real = above
        .ancestors()
        .filter(|a| !a.as_os_str().is_empty())
        .all(|a| fs::symlink_metadata(ground.root.join(a)).is_ok_and(|m| m.is_dir()));
    is_real && fs::symlink_metadata(ground.path(path)).is_ok()
}

/// Runs git, which may refuse.
fn git(ground: &Ground, args: &[&str]) {
    let _ = ground.try_git(args);
}

fn carry_out(ground: &Ground, step: &Step) {
    match step {
        Step::Write(path, n) => {
            clear(ground, path);
            ground.write(path, format!("{n}\n").repeat(usize::from(*n % 5)));
        }
        Step::Overwrite(path, n) => {
            let disk_path = ground.path(path);
            if is_there(ground, path) && fs::symlink_metadata(&disk_path).unwrap().is_file() {
                let size = fs::metadata(&disk_path).unwrap().len() as usize;
                fs::write(disk_path, vec![*n; size]).unwrap();
            }
        }
        Step::Remove(path) => {
            if is_there(ground, path) {
                ground.remove(path);
            }
        }
        Step::Executable(path) => {
            let is_file = is_there(ground, path)
                && fs::symlink_metadata(ground.path(path)).unwrap().is_file();
            if is_file {
                ground.chmod(path, 0o755);
            }
        }
        Step::Rename(from, to) => {
            if is_there(ground, from) && !to.starts_with(from) && !from.starts_with(to) {
                clear(ground, to);
                fs::rename(ground.path(from), ground.path(to)).unwrap();
            }
        }
        Step::Link(path, to) => {
            clear(ground, path);
            ground.symlink(path, to);
        }
        Step::Directory(path) => {
            clear(ground, path);
            ground.mkdir(path);
        }
        Step::Ignore(path, text) => {
            clear(ground, path);
            ground.write(path, text);
        }
        Step::WriteAndAdd(path, n) => {
            carry_out(ground, &Step::Write(path, *n));
            git(ground, &["add", "-f", "--sparse", path]);
        }
        Step::Add(path) => git(ground, &["add", "-f", "--sparse", path]),
        Step::AddAll => git(ground, &["add", "-A"]),
        Step::Untrack(path) => git(ground, &["rm", "-rq", "--cached", "--sparse", path]),
        Step::IntendToAdd(path) => git(ground, &["add", "-N", path]),
        Step::AssumeUnchanged(path) => git(ground, &["update-index", "--assume-unchanged", path]),
        Step::SkipWorktree(path) => git(ground, &["update-index", "--skip-worktree", path]),
        Step::Commit => git(ground, &["commit", "-q", "--allow-empty", "-m", "next"]),
        Step::Checkout => git(ground, &["checkout", "-q", "-f", "HEAD", "--", "."]),
        Step::Settle => ground.settle(),
        Step::Tick => ground.tick(),
    }
}

/// As many as a test run has time for; `PROPTEST_CASES` asks for more.
fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(60)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        failure_persistence: None,
        max_shrink_iters: 400,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_store_in_use_and_a_fresh_one_agree_with_git(
        rounds in prop::collection::vec(prop::collection::vec(step(), 1..4), 3..7),
    ) {
        let ground = Ground::unborn();
        let long_lived = [ground.taker("long-git"), ground.hash_taker("long-hash")];
        for (n, steps) in rounds.iter().enumerate() {
            for step in steps {
                carry_out(&ground, step);
            }
            let fresh = [
                ground.taker(&format!("fresh-git-{n}")),
                ground.hash_taker(&format!("fresh-hash-{n}")),
            ];
            for (old, new) in long_lived.iter().zip(&fresh) {
                let (old_snapshot, new_snapshot) = (old.snapshot(), new.snapshot());
                prop_assert!(
                    old_snapshot.same_content(&new_snapshot),
                    "round {n}, in use:\n{}fresh:\n{}",
                    ground.listing(old, &old_snapshot),
                    ground.listing(new, &new_snapshot),
                );
                prop_assert_eq!(
                    omissions(&old_snapshot),
                    omissions(&new_snapshot),
                    "round {}", n
                );
                if old_snapshot.backend == BackendKind::Git {
                    let oracle = ground.oracle();
                    prop_assert_eq!(
                        old_snapshot.tree.as_ref(),
                        Some(&oracle),
                        "round {}, captured:\n{}\ngit:\n{}",
                        n,
                        ground.listing(old, &old_snapshot),
                        ground.listing_of_oracle(),
                    );
                }
                prop_assert_eq!(
                    old.snapshot().metadata.files_hashed,
                    0,
                    "round {}, {}: nothing has changed",
                    n, old_snapshot.backend
                );
            }
        }
        ground.fsck(&long_lived[0]);
    }
}
