//! A capture that looks only where a watch pointed gives what one that looks everywhere gives.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestRunner};
use stillframe_backends::{
    Operation, Search, Snapshot, StateDir, Strategy as Kind, WalkReason, Workspace, detect,
};

use crate::ground::{
    Ground, LOCK_TIMEOUT, Taker, in_another_process, omissions, options, other_process,
};
use crate::holder::Holder;
use crate::must_run::{Capability, skipped};

/// Something that somebody does while the workspace is watched. Names are few, so that most of it
/// meets something.
#[derive(Clone, Debug)]
enum Step {
    Write(Place, u8),
    Append(Place),
    Truncate(Place),
    Remove(Place),
    CreateAndRemove(Place),
    /// Files, links and whole directories.
    Rename(Place, Place),
    /// Two places at once.
    Exchange(Place, Place),
    /// Out of the workspace, changed there, and in again.
    LeaveAndReturn(Place),
    Permissions(Place, u32),
    Link(Place, &'static str),
    Directory(Place),
    /// A second name inside.
    HardLink(Place, Place),
    /// A file from outside gets a name inside.
    HardLinkIn(Place),
    /// A file gets a name outside, and is written to by its own.
    HardLinkOut(Place),
    /// Through the name outside.
    WriteOutside(u8),
    /// By another process, through a descriptor that it opens for it.
    WriteElsewhere(Place, u8),
    /// Another process maps the file and closes it.
    Map(Place),
    /// It stores into its mapping, and lets go of it.
    Store(u8),
    Ignore(Place, &'static str),
    Add(Place),
    AddAll,
    Commit,
    Checkout,
    Stash,
    Tick,
}

type Place = &'static str;

fn place() -> impl Strategy<Value = Place> {
    prop::sample::select(vec![
        "a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "n", "n/e", "n/e/a", "x.log", "d/x.log",
    ])
}

fn directory() -> impl Strategy<Value = Place> {
    prop::sample::select(vec!["d", "d/e", "n", "n/e"])
}

fn step() -> impl Strategy<Value = Step> {
    let rules = prop::sample::select(vec!["*.log\n", "d/\n", "a\n!d/a\n", "/d/*\n!/d/e\n", "\n"]);
    prop_oneof![
        6 => (place(), any::<u8>()).prop_map(|(p, n)| Step::Write(p, n)),
        3 => place().prop_map(Step::Append),
        2 => place().prop_map(Step::Truncate),
        3 => place().prop_map(Step::Remove),
        1 => place().prop_map(Step::CreateAndRemove),
        3 => (place(), place()).prop_map(|(from, to)| Step::Rename(from, to)),
        4 => (directory(), directory()).prop_map(|(from, to)| Step::Rename(from, to)),
        2 => (place(), place()).prop_map(|(one, other)| Step::Exchange(one, other)),
        2 => (directory(), directory()).prop_map(|(one, other)| Step::Exchange(one, other)),
        2 => place().prop_map(Step::LeaveAndReturn),
        2 => (place(), prop::sample::select(vec![0o755, 0o644, 0o700, 0o777]))
            .prop_map(|(p, mode)| Step::Permissions(p, mode)),
        2 => (place(), prop::sample::select(vec!["a", "d", "nowhere"]))
            .prop_map(|(p, to)| Step::Link(p, to)),
        2 => place().prop_map(Step::Directory),
        3 => (place(), place()).prop_map(|(from, to)| Step::HardLink(from, to)),
        1 => place().prop_map(Step::HardLinkIn),
        2 => place().prop_map(Step::HardLinkOut),
        3 => any::<u8>().prop_map(Step::WriteOutside),
        3 => (place(), any::<u8>()).prop_map(|(p, n)| Step::WriteElsewhere(p, n)),
        4 => place().prop_map(Step::Map),
        4 => any::<u8>().prop_map(Step::Store),
        2 => (prop::sample::select(vec![".gitignore", "d/.gitignore"]), rules)
            .prop_map(|(p, text)| Step::Ignore(p, text)),
        2 => place().prop_map(Step::Add),
        2 => Just(Step::AddAll),
        2 => Just(Step::Commit),
        1 => Just(Step::Checkout),
        1 => Just(Step::Stash),
        2 => Just(Step::Tick),
    ]
}

/// Where the steps are done, and who does what a process of its own is needed for.
struct Stage {
    ground: Ground,
    holder: Holder,
    has_mapping: bool,
}

impl Stage {
    fn new() -> Self {
        let ground = Ground::unborn();
        fs::create_dir(ground.beside("outside")).unwrap();
        Self {
            ground,
            holder: Holder::start(),
            has_mapping: false,
        }
    }

    fn outside(&self) -> PathBuf {
        self.ground.beside("outside/file")
    }

    /// Whether something is there, and not behind a link.
    fn is_there(&self, path: &str) -> bool {
        let is_real = Path::new(path)
            .ancestors()
            .skip(1)
            .filter(|above| !above.as_os_str().is_empty())
            .all(|above| {
                fs::symlink_metadata(self.ground.root.join(above)).is_ok_and(|m| m.is_dir())
            });
        is_real && fs::symlink_metadata(self.ground.path(path)).is_ok()
    }

    fn is_file(&self, path: &str) -> bool {
        self.is_there(path)
            && fs::symlink_metadata(self.ground.path(path))
                .unwrap()
                .is_file()
    }

    /// Makes room for something at `path`: whatever is in the way goes.
    fn clear(&self, path: &str) {
        let mut at = self.ground.root.clone();
        for name in Path::new(path).parent().unwrap() {
            at.push(name);
            if fs::symlink_metadata(&at).is_ok_and(|m| !m.is_dir()) {
                fs::remove_file(&at).unwrap();
            }
        }
        fs::create_dir_all(at).unwrap();
        if self.is_there(path) {
            self.ground.remove(path);
        }
    }

    fn git(&self, args: &[&str]) {
        // It may refuse.
        let _ = self.ground.try_git(args);
    }

    fn carry_out(&mut self, step: &Step) {
        let ground = &self.ground;
        let apart = |one: &str, other: &str| !one.starts_with(other) && !other.starts_with(one);
        match step {
            Step::Write(path, n) => {
                self.clear(path);
                ground.write(path, format!("{n}\n").repeat(1 + usize::from(*n % 5)));
            }
            Step::Append(path) => {
                if self.is_file(path) {
                    let mut text = fs::read(ground.path(path)).unwrap();
                    text.extend_from_slice(b"more\n");
                    fs::write(ground.path(path), text).unwrap();
                }
            }
            Step::Truncate(path) => {
                if self.is_file(path) {
                    let file = fs::File::options().write(true).open(ground.path(path));
                    file.unwrap().set_len(1).unwrap();
                }
            }
            Step::Remove(path) => {
                if self.is_there(path) {
                    ground.remove(path);
                }
            }
            Step::CreateAndRemove(path) => {
                if !self.is_there(path) {
                    self.clear(path);
                    ground.write(path, "gone at once");
                    ground.remove(path);
                }
            }
            Step::Rename(from, to) => {
                if self.is_there(from) && apart(from, to) {
                    self.clear(to);
                    fs::rename(ground.path(from), ground.path(to)).unwrap();
                }
            }
            Step::Exchange(one, other) => {
                if self.is_there(one) && self.is_there(other) && apart(one, other) {
                    let (one, other) = (ground.path(one), ground.path(other));
                    self.holder
                        .tell([OsStr::new("exchange"), one.as_os_str(), other.as_os_str()]);
                }
            }
            Step::LeaveAndReturn(path) => {
                if self.is_there(path) {
                    let away = ground.beside("outside/away");
                    fs::rename(ground.path(path), &away).unwrap();
                    if fs::symlink_metadata(&away).unwrap().is_dir() {
                        let _ = fs::remove_dir_all(away.join("a"));
                        let _ = fs::remove_file(away.join("a"));
                        fs::write(away.join("a"), "written outside").unwrap();
                    }
                    fs::rename(&away, ground.path(path)).unwrap();
                }
            }
            Step::Permissions(path, mode) => {
                if self.is_there(path)
                    && !fs::symlink_metadata(ground.path(path))
                        .unwrap()
                        .is_symlink()
                {
                    // A directory that cannot be entered is a story of its own.
                    ground.chmod(path, *mode);
                }
            }
            Step::Link(path, to) => {
                self.clear(path);
                ground.symlink(path, to);
            }
            Step::Directory(path) => {
                self.clear(path);
                ground.mkdir(path);
            }
            Step::HardLink(from, to) => {
                if self.is_file(from) && apart(from, to) {
                    self.clear(to);
                    fs::hard_link(ground.path(from), ground.path(to)).unwrap();
                }
            }
            Step::HardLinkIn(path) => {
                if self.outside().exists() {
                    self.clear(path);
                    fs::hard_link(self.outside(), ground.path(path)).unwrap();
                }
            }
            Step::HardLinkOut(path) => {
                if self.is_file(path) {
                    let _ = fs::remove_file(self.outside());
                    fs::hard_link(ground.path(path), self.outside()).unwrap();
                    // Nobody is told of the link; a capture that looks at the file sees it.
                    self.carry_out(&Step::Append(path));
                }
            }
            Step::WriteOutside(n) => {
                let outside = fs::File::options()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(self.outside());
                std::io::Write::write_all(&mut outside.unwrap(), &[b'a' + n % 26, b'o']).unwrap();
            }
            Step::WriteElsewhere(path, n) => {
                self.clear(path);
                let path = ground.path(path);
                let mut other = Holder::start();
                other.tell([OsStr::new("open"), path.as_os_str()]);
                other.tell(["write".to_owned(), format!("elsewhere {n}")]);
                other.tell(["close"]);
            }
            Step::Map(path) => {
                let is_fit =
                    self.is_file(path) && fs::metadata(ground.path(path)).unwrap().len() > 0;
                if is_fit {
                    if self.has_mapping {
                        self.holder.tell(["unmap"]);
                    }
                    self.holder.map(&ground.path(path));
                    self.has_mapping = true;
                }
            }
            Step::Store(n) => {
                if std::mem::take(&mut self.has_mapping) {
                    let text = char::from(b'A' + n % 26).to_string();
                    // The file may have been cut. A kernel need not give a second store a time, so
                    // there is one.
                    self.holder.try_tell(["store", &text]);
                    self.holder.tell(["unmap"]);
                }
            }
            Step::Ignore(path, text) => {
                self.clear(path);
                ground.write(path, text);
            }
            Step::Add(path) => self.git(&["add", "-f", path]),
            Step::AddAll => self.git(&["add", "-A"]),
            Step::Commit => self.git(&["commit", "-q", "--allow-empty", "-m", "next"]),
            Step::Checkout => self.git(&["checkout", "-q", "-f", "HEAD", "--", "."]),
            Step::Stash => self.git(&["stash", "-q"]),
            Step::Tick => ground.tick(),
        }
    }
}

/// As many as a test run has time for; `PROPTEST_CASES` asks for more.
fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(40)
}

fn watched(taker: &Taker) -> Snapshot {
    taker.snapshot_with(&options().watch(true))
}

/// How often a capture of the property test used its watch, and how often it was asked to.
#[derive(Default)]
struct Counted {
    watched: Cell<u32>,
    asked: Cell<u32>,
}

#[test]
fn a_watched_capture_agrees_with_one_that_knows_nothing_and_with_git() {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: cases(),
        failure_persistence: None,
        max_shrink_iters: 400,
        ..ProptestConfig::default()
    });
    let counted = Counted::default();
    let rounds = prop::collection::vec(prop::collection::vec(step(), 1..5), 3..8);
    let agreed = runner.run(&rounds, |rounds| agrees_in_each_round(&rounds, &counted));
    agreed.unwrap_or_else(|failure| panic!("{failure}\n{runner}"));
    // Else it would compare two walks.
    let (watched, asked) = (counted.watched.get(), counted.asked.get());
    assert!(watched * 3 > asked, "{watched} of {asked} were watched");
}

fn agrees_in_each_round(rounds: &[Vec<Step>], counted: &Counted) -> TestCaseResult {
    let mut stage = Stage::new();
    let long_lived = [
        stage.ground.taker("watched-git"),
        stage.ground.hash_taker("watched-hash"),
    ];
    for taker in &long_lived {
        watched(taker);
    }
    for (n, steps) in rounds.iter().enumerate() {
        for step in steps {
            stage.carry_out(step);
        }
        let ground = &stage.ground;
        let fresh = [
            ground.taker(&format!("fresh-git-{n}")),
            ground.hash_taker(&format!("fresh-hash-{n}")),
        ];
        for (old, new) in long_lived.iter().zip(&fresh) {
            let (found, expected) = (watched(old), new.snapshot());
            let was_watched = matches!(found.metadata.search, Search::Watched { .. });
            counted.asked.update(|asked| asked + 1);
            counted
                .watched
                .update(|count| count + u32::from(was_watched));
            prop_assert!(
                found.same_content(&expected),
                "round {n}, watched ({:?}):\n{}walked:\n{}",
                found.metadata.search,
                ground.listing(old, &found),
                ground.listing(new, &expected),
            );
            prop_assert_eq!(omissions(&found), omissions(&expected), "round {}", n);
            prop_assert_eq!(found.metadata.files, expected.metadata.files, "round {}", n);
        }
        let snapshot = watched(&long_lived[0]);
        let oracle = ground.oracle();
        prop_assert_eq!(
            snapshot.tree.as_ref(),
            Some(&oracle),
            "round {}, captured:\n{}\ngit:\n{}",
            n,
            ground.listing(&long_lived[0], &snapshot),
            ground.listing_of_oracle(),
        );
    }
    stage.ground.fsck(&long_lived[0]);
    Ok(())
}

/// The two backends, each with a state directory of its own.
fn takers(ground: &Ground) -> [Taker; 2] {
    [ground.taker("git"), ground.hash_taker("hash")]
}

/// What a capture finds that knows nothing, by the same one of the two.
fn fresh(ground: &Ground, at: usize) -> Snapshot {
    let state = tempfile::tempdir().unwrap();
    let kind = [Kind::Git, Kind::Hash][at];
    let state = state.path().join("state");
    ground
        .taker_at(&ground.root, &state.to_string_lossy(), kind)
        .snapshot()
}

fn walked(because: WalkReason) -> Search {
    Search::Walked {
        because: Some(because),
    }
}

#[test]
fn a_watched_capture_looks_only_where_something_happened() {
    let ground = Ground::repository();
    for directory in 0..20 {
        ground.write(format!("many/{directory}/file"), "content\n");
    }
    ground.commit("many");
    for (at, taker) in takers(&ground).iter().enumerate() {
        let first = watched(taker);
        assert_eq!(first.metadata.search, walked(WalkReason::NoJournal));
        // What the first one read is looked at once more.
        assert!(matches!(
            watched(taker).metadata.search,
            Search::Watched { .. }
        ));
        let unchanged = watched(taker);
        assert_eq!(
            unchanged.metadata.search,
            Search::Watched { directories: 0 }
        );
        assert!(unchanged.same_content(&first));

        ground.write("many/3/file", format!("changed {at}\n"));
        ground.write(format!("many/new-{at}/file"), "new\n");
        let changed = watched(taker);
        let Search::Watched { directories } = changed.metadata.search else {
            panic!("{:?}", changed.metadata.search);
        };
        assert!(
            (1..6).contains(&directories),
            "{directories} of 24 and more"
        );
        assert_eq!(changed.metadata.files_hashed, 2);

        let from = format!("many/new-{at}");
        fs::rename(ground.path(&from), ground.path(format!("src/moved-{at}"))).unwrap();
        ground.remove("many/5");
        ground.write("many/5/again", "again\n");
        let moved = watched(taker);
        assert!(matches!(moved.metadata.search, Search::Watched { .. }));
        ground.write(format!("src/moved-{at}/file"), "changed where it is\n");
        let again = watched(taker);
        assert!(matches!(again.metadata.search, Search::Watched { .. }));
        // Files that were written in the tick in which they were read are read once more, if they
        // are looked at: all of a new directory is until it is known who holds files in it.
        assert!((1..=3).contains(&again.metadata.files_hashed));
        assert!(again.same_content(&fresh(&ground, at)));
    }
}

#[test]
fn a_capture_that_nobody_watches_says_nothing_of_it() {
    let ground = Ground::repository();
    for taker in takers(&ground) {
        assert!(taker.snapshot().metadata.search.is_plain_walk());
    }
}

#[test]
fn a_link_inside_is_seen_by_all_of_its_names() {
    let ground = Ground::repository();
    for (at, taker) in takers(&ground).iter().enumerate() {
        watched(taker);
        let link = format!("link-{at}");
        fs::hard_link(ground.path("src/main.c"), ground.path(&link)).unwrap();
        fs::write(ground.path(&link), format!("through the new name {at}")).unwrap();
        assert!(watched(taker).same_content(&fresh(&ground, at)));
        fs::write(ground.path(&link), format!("and again {at}")).unwrap();
        assert!(watched(taker).same_content(&fresh(&ground, at)));
    }
}

#[test]
fn rules_that_change_are_a_reason_to_look_everywhere() {
    let ground = Ground::repository();
    let taker = ground.taker("git");
    ground.write("d/x.log", "a log\n");
    watched(&taker);
    ground.write(".gitignore", "*.log\n");
    let changed = watched(&taker);
    assert_eq!(omissions(&changed), ["d/x.log ignored 6"]);
    ground.write("d/y.log", "another\n");
    let next = watched(&taker);
    assert!(matches!(next.metadata.search, Search::Watched { .. }));
    assert_eq!(omissions(&next), ["d/x.log ignored 6", "d/y.log ignored 8"]);
}

#[test]
fn a_capture_by_somebody_else_is_a_reason_to_look_everywhere() {
    let ground = Ground::repository();
    for (kind, state) in [(Kind::Git, "git"), (Kind::Hash, "hash")] {
        let taker = ground.taker_at(&ground.root, state, kind);
        watched(&taker);
        let backend = taker.backend;
        let handle = taker.workspace.unlock();
        ground.write("README", format!("seen by another handle first, {state}\n"));
        ground.taker_at(&ground.root, state, kind).snapshot();
        let workspace = handle.lock(&Operation::unbounded(), LOCK_TIMEOUT).unwrap();
        let taker = Taker { workspace, backend };
        let snapshot = watched(&taker);
        assert_eq!(snapshot.metadata.search, walked(WalkReason::CacheReplaced));
        watched(&taker);
        let after = watched(&taker);
        assert_eq!(after.metadata.search, Search::Watched { directories: 0 });
        assert!(after.same_content(&snapshot));
    }
}

#[test]
fn a_directory_with_other_permissions_is_looked_at_as_a_whole() {
    use std::os::unix::fs::PermissionsExt as _;

    let ground = Ground::repository();
    ground.write("d/file", "content\n");
    ground.commit("a directory");
    for taker in takers(&ground) {
        let quiet = Search::Watched { directories: 0 };
        let is_quiet = |_| watched(&taker).metadata.search == quiet;
        assert!((0..10).any(is_quiet), "nobody is at work there");
        // What could not be looked at before perhaps can, or the reverse.
        for mode in [0o700, 0o755] {
            fs::set_permissions(ground.path("d"), fs::Permissions::from_mode(mode)).unwrap();
            let looked = watched(&taker).metadata.search;
            assert_eq!(looked, Search::Watched { directories: 2 });
        }
    }
}

#[test]
fn a_handle_outlives_what_another_one_collects() {
    let ground = Ground::repository();
    for (kind, state) in [(Kind::Git, "git"), (Kind::Hash, "hash")] {
        let taker = ground.taker_at(&ground.root, state, kind);
        ground.write("only/here", "in a snapshot that is forgotten\n");
        let first = watched(&taker);
        ground.remove("only");
        let backend = taker.backend;
        let handle = taker.workspace.unlock();

        let mut other = ground.taker_at(&ground.root, state, kind);
        other.snapshot();
        let forgotten = std::slice::from_ref(&first.id);
        other
            .backend
            .forget(
                &Operation::unbounded(),
                &mut other.workspace,
                forgotten,
                &[],
            )
            .unwrap();
        other
            .backend
            .collect(&Operation::unbounded(), &mut other.workspace)
            .unwrap();
        drop(other);

        let workspace = handle.lock(&Operation::unbounded(), LOCK_TIMEOUT).unwrap();
        let taker = Taker { workspace, backend };
        ground.write("only/here", "in a snapshot that is forgotten\n");
        let again = watched(&taker);
        assert!(again.same_content(&first));
        let verification = taker
            .backend
            .verify(&Operation::unbounded(), &taker.workspace, &[&again])
            .remove(0)
            .unwrap();
        assert!(
            verification.is_restorable() || kind == Kind::Hash,
            "{verification:?}"
        );
    }
}

#[test]
fn where_too_many_directories_are_watched_already_everything_is_looked_at() {
    const NAME: &str =
        "watched::where_too_many_directories_are_watched_already_everything_is_looked_at";
    if let Some(root) = other_process() {
        let state = StateDir::open(root.parent().unwrap().join("state")).unwrap();
        let workspace = Workspace::open(&root, &state).unwrap();
        let backend = detect(&workspace, Kind::Auto).unwrap().backend;
        let workspace = workspace
            .lock(&Operation::unbounded(), LOCK_TIMEOUT)
            .unwrap();
        let taker = Taker { workspace, backend };
        watched(&taker);
        for _ in 0..2 {
            let snapshot = watched(&taker);
            assert_eq!(snapshot.metadata.search, walked(WalkReason::WatchLimit));
            assert_eq!(snapshot.metadata.files, 3);
        }
        return;
    }
    let ground = Ground::repository();
    let limited = "echo 2 > /proc/sys/user/max_inotify_watches && exec \"$0\" \"$@\"";
    let through = ["unshare", "-U", "-r", "sh", "-c"];
    let probe = Command::new(through[0])
        .args(&through[1..])
        .args([limited, "true"])
        .status();
    if !probe.is_ok_and(|status| status.success()) {
        return skipped(
            Capability::UserNamespaces,
            "no limit can be set for a namespace",
        );
    }
    let through: Vec<&str> = through.into_iter().chain([limited]).collect();
    let status = in_another_process(&through, NAME, &ground.root).status();
    assert!(status.unwrap().success());
}
