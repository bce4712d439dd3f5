//! Merges of two histories. The oracle is `git merge-tree`.

#![expect(clippy::disallowed_methods, reason = "the oracle is git")]

mod histories;

use std::collections::HashMap;
use std::env;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use jiff::Timestamp;

use self::histories::{Chance, Files, Stream};
use super::renames::MAX_COMPARED_PAIRS;
use super::*;
use crate::backend::{Backend as _, SnapshotOptions};
use crate::git::GitBackend;
use crate::git::either::Either;
use crate::git::store::{Store, StoreSlot};
use crate::git::test_repository::TestRepository;
use crate::snapshot::Label;
use crate::workspace::{LockedWorkspace, StateDir, TEST_LOCK_TIMEOUT, Workspace};

/// A repository with histories, and a store beside it.
struct Story {
    git: TestRepository,
    workspace: LockedWorkspace,
    store: Arc<Store>,
}

/// How git is to merge.
#[derive(Clone, Copy, Debug)]
enum Like {
    /// As it does where nobody says anything.
    Git,
    /// With the lines of files matched as libgit2 does, and without following directories:
    /// docs/merging.md says why.
    Us,
}

/// What comes of a merge: the tree, or the paths in conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Tree(String),
    Paths(Vec<String>),
    Unrelated,
}

impl Story {
    fn new() -> Self {
        let git = TestRepository::in_memory();
        let state = StateDir::open(git.beside("state")).unwrap();
        let op = Operation::unbounded();
        let workspace = Workspace::open(&git.path, &state)
            .unwrap()
            .lock(&op, TEST_LOCK_TIMEOUT)
            .unwrap();
        let options = SnapshotOptions::new(Label::AFTER_FAILURE, Timestamp::UNIX_EPOCH);
        GitBackend.snapshot(&op, &workspace, &options).unwrap();
        let slot = workspace.kept_open::<StoreSlot>();
        let store = slot
            .open(&workspace.store_path().join("git"))
            .unwrap()
            .unwrap();
        Self {
            git,
            workspace,
            store,
        }
    }

    /// git in the repository, cut off from the user's own configuration, with something to read:
    /// what it says, and whether it comes to its end.
    fn fed(&self, args: &[&str], input: Vec<u8>) -> (Vec<u8>, bool) {
        let mut git = Command::new("git")
            .args(args)
            .current_dir(&self.git.path)
            .env_clear()
            .env("PATH", env::var_os("PATH").unwrap())
            .env("HOME", self.git.home())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("git is installed");
        let mut stdin = git.stdin.take().unwrap();
        // It reads no more of it where it stops on the way.
        let writer = thread::spawn(move || _ = stdin.write_all(&input));
        let output = git.wait_with_output().unwrap();
        writer.join().unwrap();
        (output.stdout, output.status.success())
    }

    /// The ids of all commits of a stream, by mark.
    fn import(&self, stream: Stream) -> Vec<ObjectId> {
        let marks = self.git.beside("marks");
        let export = format!("--export-marks={}", marks.display());
        let (_, is_done) = self.fed(
            &["fast-import", "--quiet", "--force", &export],
            stream.bytes,
        );
        assert!(is_done, "git takes the stream");
        let listed = fs::read_to_string(&marks).unwrap();
        let mut ids = vec![(0, ObjectId::of(ObjectKind::Blob, b"").unwrap())];
        ids.extend(listed.lines().map(|line| {
            let (mark, id) = line[1..].split_once(' ').unwrap();
            (mark.parse::<usize>().unwrap(), id.parse().unwrap())
        }));
        ids.sort();
        ids.into_iter().map(|(_, id)| id).collect()
    }

    /// What git makes of them; `None`: it stops at an assertion of its own.
    fn by_git(&self, pairs: &[[ObjectId; 2]], like: Like) -> Vec<Option<Told>> {
        let told = [
            "merge-tree",
            "--write-tree",
            "--stdin",
            "--no-messages",
            "--name-only",
        ];
        let args: Vec<&str> = match like {
            Like::Git => told.to_vec(),
            Like::Us => {
                let without = ["-c", "merge.directoryRenames=false"].into_iter();
                let with = without.chain(told).chain(["-Xdiff-algorithm=myers"]);
                with.collect()
            }
        };
        let mut merges = Vec::new();
        while let Some(left) = pairs.get(merges.len()..).filter(|left| !left.is_empty()) {
            let lines = left
                .iter()
                .map(|[ours, theirs]| format!("{ours} {theirs}\n"));
            let (told, is_done) = self.fed(&args, lines.collect::<String>().into_bytes());
            let told = String::from_utf8(told).unwrap();
            // What ends there is whole: it says all of a merge at once.
            let mut words = told.split('\0');
            while let Some(is_clean @ ("0" | "1")) = words.next() {
                let tree = words.next().unwrap().to_owned();
                let paths = words.by_ref().take_while(|word| !word.is_empty());
                let mut paths: Vec<String> = paths.map(own_name).collect();
                paths.sort();
                paths.dedup();
                merges.push(Some(match is_clean {
                    "1" => Told::Tree(tree),
                    _ => Told::Paths(paths),
                }));
            }
            if !is_done {
                merges.push(None);
            }
        }
        assert_eq!(merges.len(), pairs.len());
        merges
    }

    fn try_by_us(&self, pairs: &[[ObjectId; 2]]) -> Vec<Result<Told, CheckpointError>> {
        let op = Operation::unbounded();
        let repository = commit::repository_of(&self.workspace).unwrap();
        let past = Past::new(&op, Some(&repository), &self.store).unwrap();
        let set = self.store.reader_set().unwrap();
        let stored = self.store.reader(&set);
        let either = Either {
            store: &self.store,
            repository: &repository,
        };
        let trees = EitherTrees::new(either, &stored);
        let tree = |id: ObjectId| Told::Tree(past.commit(id).unwrap().unwrap().tree.to_string());
        let told = |pair: &[ObjectId; 2], outcome| match outcome {
            Outcome::Contained => tree(pair[0]),
            Outcome::FastForward => tree(pair[1]),
            Outcome::Merged(tree) => Told::Tree(tree.id.to_string()),
            Outcome::Conflict(paths) => {
                Told::Paths(paths.iter().map(ToString::to_string).collect())
            }
            Outcome::Unrelated => Told::Unrelated,
        };
        let merges = pairs.iter();
        let merges = merges.map(|pair| Ok(told(pair, merge(&op, &past, &trees, *pair)?)));
        merges.collect()
    }

    fn by_us(&self, pairs: &[[ObjectId; 2]]) -> Vec<Told> {
        let told = self.try_by_us(pairs).into_iter();
        told.collect::<Result<_, _>>().unwrap()
    }

    /// Merges as git does; answers with what comes of it.
    fn is_as_git(&self, pairs: &[[ObjectId; 2]]) -> Vec<Told> {
        let (by_us, by_git) = (self.by_us(pairs), self.by_git(pairs, Like::Us));
        let mut wrong = 0;
        for ((pair, by_us), by_git) in pairs.iter().zip(&by_us).zip(&by_git) {
            if by_git.as_ref().is_some_and(|by_git| by_us != by_git) {
                wrong += 1;
                println!("{} {}: git {by_git:?}, we {by_us:?}", pair[0], pair[1]);
            }
        }
        assert_eq!(wrong, 0);
        let unknown = by_git.iter().filter(|told| told.is_none()).count();
        assert!(unknown * 1000 <= pairs.len() + 1000, "git stops seldom");
        by_us
    }

    /// What git makes of base, ours and theirs, and what we do.
    fn both(&self, [base, ours, theirs]: [&Files; 3]) -> (Told, Told) {
        let mut stream = Stream::default();
        let base = stream.commit(base, &[]);
        let sides = [ours, theirs].map(|side| stream.commit(side, &[base]));
        let ids = self.import(stream);
        let pairs = [sides.map(|mark| ids[mark])];
        let by_git = self.by_git(&pairs, Like::Git).remove(0);
        (
            by_git.expect("git merges them"),
            self.by_us(&pairs).remove(0),
        )
    }
}

fn paths(of: &[&str]) -> Told {
    Told::Paths(of.iter().map(ToString::to_string).collect())
}

fn is_clean(told: &Told) -> bool {
    matches!(told, Told::Tree(_))
}

/// The name without what git adds to it, where a directory or something of another kind has its
/// place.
fn own_name(path: &str) -> String {
    let added = path.match_indices('~').find(|(at, _)| {
        let id = path.get(at + 1..at + 41);
        id.is_some_and(|id| id.bytes().all(|b| b.is_ascii_hexdigit()))
    });
    path[..added.map_or(path.len(), |(at, _)| at)].to_owned()
}

fn is_long() -> bool {
    env::var("STILLFRAME_TORTURE").is_ok_and(|length| length == "long")
}

fn seed() -> u64 {
    match env::var("STILLFRAME_SEED") {
        Ok(seed) if !seed.is_empty() => seed.parse().expect("STILLFRAME_SEED is a number"),
        _ => 1,
    }
}

#[test]
fn histories_merge_as_git_merges_them() {
    let count = if is_long() { 5000 } else { 500 };
    let seed = seed();
    println!("the histories are those of STILLFRAME_SEED={seed}");
    let story = Story::new();
    let mut stream = Stream::default();
    let made = (0..count).map(|case| stream.pair(&mut Chance::new(seed, case)));
    let made: Vec<_> = made.collect();
    let ids = story.import(stream);
    let (related, unrelated): (Vec<_>, Vec<_>) = made.into_iter().partition(|pair| pair.1);
    let with_ids = |pairs: &[([usize; 2], bool)]| -> Vec<[ObjectId; 2]> {
        let pairs = pairs.iter().map(|(pair, _)| pair.map(|mark| ids[mark]));
        pairs.collect()
    };
    let by_us = story.is_as_git(&with_ids(&related));
    let clean = by_us.iter().filter(|told| is_clean(told)).count();
    println!("{clean} of {} merge", by_us.len());
    let often = by_us.len() / 5..by_us.len() * 4 / 5;
    assert!(often.contains(&clean), "both happen");
    assert!(!unrelated.is_empty());
    for told in story.by_us(&with_ids(&unrelated)) {
        assert_eq!(told, Told::Unrelated);
    }
}

/// Merges that people have made, and commits that somebody takes back later: both are merges of
/// three trees of a real project. It is this one.
#[test]
fn real_histories_merge_as_git_merges_them() {
    let story = Story::new();
    let project = env::var("STILLFRAME_MERGED_PROJECT");
    let project = project.unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let here = |args: &[&str]| story.git.git_in(Path::new(&project), args);
    let common = here(&["rev-parse", "--path-format=absolute", "--git-common-dir"]);
    let info = story.git.path.join(".git/objects/info");
    fs::create_dir_all(&info).unwrap();
    fs::write(info.join("alternates"), format!("{common}/objects\n")).unwrap();
    if let Ok(ends) = fs::read(Path::new(&common).join("shallow")) {
        fs::write(story.git.path.join(".git/shallow"), ends).unwrap();
    }
    let listed = here(&["log", "-6000", "--format=%H %T %P", "HEAD"]);
    let commits = listed
        .lines()
        .map(|line| line.trim_end().split(' ').collect());
    let commits: Vec<Vec<&str>> = commits.collect();
    let trees: HashMap<&str, &str> = commits
        .iter()
        .map(|commit| (commit[0], commit[1]))
        .collect();
    let share = if is_long() { 1 } else { 20 };
    let mut chance = Chance::new(seed(), 0);
    let (mut made, mut stream, mut back) = (Vec::new(), Stream::default(), Vec::new());
    for (at, commit) in commits.iter().enumerate() {
        match commit[2..] {
            [one, other] => made.push([one.parse().unwrap(), other.parse().unwrap()]),
            [parent] if at > 0 && chance.below(share) == 0 => {
                let later = commits[at.saturating_sub(1 + chance.below(60))][0];
                if let Some(tree) = trees.get(parent) {
                    back.push((later, stream.commit_of(tree, commit[0])));
                }
            }
            _ => {}
        }
    }
    let count = made.len();
    let ids = story.import(stream);
    made.extend(
        back.iter()
            .map(|(later, mark)| [later.parse().unwrap(), ids[*mark]]),
    );
    println!(
        "{count} merges and {} commits taken back",
        made.len() - count
    );
    assert!(!is_long() || made.len() >= 200, "the whole history is here");
    let told = story.is_as_git(&made);
    println!(
        "{} merge",
        told.iter().filter(|told| is_clean(told)).count()
    );
}

#[test]
fn a_file_that_is_added_where_a_directory_was_stays_there() {
    let text = "one\nhas\nthis\n";
    let files = |directory: &str, more: Option<&str>| {
        let names = ["one", "two"].into_iter().chain(more);
        let paths: Vec<String> = names.map(|name| format!("{directory}/{name}")).collect();
        let files: Vec<(&str, &str)> = paths.iter().map(|path| (&**path, text)).collect();
        Files::of(&files)
    };
    let story = Story::new();
    let sides = [
        files("old", None),
        files("new", None),
        files("old", Some("three")),
    ];
    let (by_git, by_us) = story.both(sides.each_ref());
    assert_eq!(by_git, paths(&["new/three"]), "git asks");
    assert!(is_clean(&by_us), "{by_us:?}");
}

#[test]
fn lines_that_repeat_are_matched_by_the_shortest_difference() {
    let text = |letters: &str| {
        letters
            .chars()
            .map(|c| format!("{c}\n"))
            .collect::<String>()
    };
    let file = |letters: &str| Files::of(&[("file", &*text(letters))]);
    let story = Story::new();
    let sides = ["bacbbbd}daab", "bbcbbd}daab", "bacbbbad}dbaab"].map(file);
    let (by_git, by_us) = story.both(sides.each_ref());
    assert_eq!(by_git, paths(&["file"]));
    assert!(is_clean(&by_us), "{by_us:?}");
    let sides = ["a}dad}}}ab}", "add}}ab}", "a}dad}}}bab}"].map(file);
    let (by_git, by_us) = story.both(sides.each_ref());
    assert!(is_clean(&by_git), "{by_git:?}");
    assert_eq!(by_us, paths(&["file"]));
}

#[test]
fn no_attribute_says_how_a_file_is_merged() {
    let file =
        |first: &str, last: &str| Files::of(&[("file", &*format!("{first}\n2\n3\n4\n{last}\n"))]);
    let apart = [file("1", "5"), file("us", "5"), file("1", "them")];
    let same = [file("1", "5"), file("us", "5"), file("them", "5")];
    let story = Story::new();
    let attributes = |line: &str| story.git.write(".gitattributes", line);
    attributes("file -merge\n");
    let (by_git, by_us) = story.both(apart.each_ref());
    assert_eq!(by_git, paths(&["file"]));
    assert!(is_clean(&by_us), "{by_us:?}");
    attributes("file merge=union\n");
    let (by_git, by_us) = story.both(same.each_ref());
    assert!(is_clean(&by_git), "{by_git:?}");
    assert_eq!(by_us, paths(&["file"]));
    // A driver leaves a trace, which it does where git merges and not where we do.
    let ran = story.git.beside("ran");
    let driver = format!("touch {}", ran.display());
    story.git.git(&["config", "merge.runs.driver", &driver]);
    attributes("file merge=runs\n");
    let mut stream = Stream::default();
    let base = stream.commit(&same[0], &[]);
    let sides = [1, 2].map(|side| stream.commit(&same[side], &[base]));
    let ids = story.import(stream);
    let pairs = [sides.map(|mark| ids[mark])];
    assert_eq!(story.by_us(&pairs), [paths(&["file"])]);
    assert!(!ran.exists());
    story.by_git(&pairs, Like::Git);
    assert!(ran.exists());
}

#[test]
fn a_file_that_a_directory_displaces_conflicts_under_its_own_name() {
    let story = Story::new();
    let sides = [
        Files::of(&[("a", "1\n")]),
        Files::of(&[("a", "2\n")]),
        Files::of(&[("a/b", "3\n")]),
    ];
    let mut stream = Stream::default();
    let base = stream.commit(&sides[0], &[]);
    let ends = [1, 2].map(|side| stream.commit(&sides[side], &[base]));
    let ids = story.import(stream);
    let [ours, theirs] = ends.map(|mark| ids[mark].to_string());
    assert_eq!(story.by_us(&[ends.map(|mark| ids[mark])]), [paths(&["a"])]);
    let git = [
        "merge-tree",
        "--write-tree",
        "--name-only",
        "--no-messages",
        &ours,
        &theirs,
    ];
    let told = story.git.run(&story.git.path, &git);
    let told = String::from_utf8(told.stdout).unwrap();
    assert_eq!(told.lines().nth(1), Some(&*format!("a~{ours}")));
}

#[test]
fn a_submodule_that_both_have_moved_on_is_a_conflict() {
    let story = Story::new();
    let inner = story.git.path.join("sub");
    fs::create_dir(&inner).unwrap();
    story.git.git_in(&inner, &["init", "-q", "-b", "main"]);
    let commits = ["1", "2", "3"].map(|message| {
        story
            .git
            .git_in(&inner, &["commit", "-q", "--allow-empty", "-m", message]);
        story.git.git_in(&inner, &["rev-parse", "HEAD"])
    });
    let sides = commits.map(|commit| Files::of(&[("file", "1\n")]).with_submodule("sub", &commit));
    let (by_git, by_us) = story.both(sides.each_ref());
    assert!(is_clean(&by_git), "{by_git:?}");
    assert_eq!(by_us, paths(&["sub"]));
}

#[test]
fn a_long_file_that_both_have_changed_is_a_conflict() {
    let middle = "a line of a long file\n".repeat(240_000);
    let file =
        |first: &str, last: &str| Files::of(&[("file", &*format!("{first}\n{middle}{last}\n"))]);
    let sides = [file("1", "5"), file("us", "5"), file("1", "them")];
    let (by_git, by_us) = Story::new().both(sides.each_ref());
    assert!(is_clean(&by_git), "{by_git:?}");
    assert_eq!(by_us, paths(&["file"]));
}

#[test]
fn of_more_files_than_are_compared_with_each_other_no_rename_is_found() {
    let count = 1 + MAX_COMPARED_PAIRS.isqrt();
    let files = |name: &str, last: &str| {
        let paths: Vec<(String, String)> = (0..count)
            .map(|n| {
                (
                    format!("{name} {n}"),
                    format!("{n}\n1{n}\n2{n}\n3{n}\n{last}\n"),
                )
            })
            .collect();
        let files: Vec<(&str, &str)> = paths
            .iter()
            .map(|(path, text)| (&**path, &**text))
            .collect();
        Files::of(&files)
    };
    let sides = [files("a", "x"), files("a", "y"), files("b", "x\nz")];
    let (by_git, by_us) = Story::new().both(sides.each_ref());
    assert!(matches!(by_git, Told::Paths(all) if all.iter().all(|path| path.starts_with('b'))));
    let Told::Paths(all) = by_us else {
        panic!("{by_us:?}");
    };
    assert!(all.len() == count && all.iter().all(|path| path.starts_with('a')));
}

#[test]
fn histories_that_cross_too_often_are_refused() {
    let ladder = |rungs: usize| {
        let story = Story::new();
        let mut stream = Stream::default();
        let file = |n: usize| Files::of(&[("file", &*format!("{n}\n"))]);
        let base = stream.commit(&file(0), &[]);
        let mut ends = [1, 2].map(|n| stream.commit(&file(n), &[base]));
        for n in 0..rungs {
            let [one, other] = ends;
            ends = [[one, other], [other, one]].map(|parents| stream.commit(&file(n), &parents));
        }
        let ids = story.import(stream);
        let pairs = [ends.map(|mark| ids[mark])];
        let by_git = story.by_git(&pairs, Like::Git).remove(0);
        (
            by_git.expect("git merges them"),
            story.try_by_us(&pairs).remove(0),
        )
    };
    let (by_git, by_us) = ladder(5);
    assert_eq!(by_us.unwrap(), by_git);
    let (by_git, by_us) = ladder(40);
    assert!(is_clean(&by_git), "{by_git:?}");
    assert!(matches!(by_us, Err(CheckpointError::Unsupported(_))));
}

#[test]
fn a_renamed_link_that_is_a_submodule_on_the_other_side_is_a_conflict() {
    let files = || Files::of(&[("file", "1\n")]);
    let id = "1".repeat(40);
    let story = Story::new();
    let mut stream = Stream::default();
    let base = stream.commit(&files().with_link("a", "to"), &[]);
    let ours = stream.commit(&files().with_link("b", "to"), &[base]);
    let theirs = files().with_submodule("a", &id).with_link("b", "elsewhere");
    let theirs = stream.commit(&theirs, &[base]);
    let ids = story.import(stream);
    let pairs = [[ids[ours], ids[theirs]]];
    assert_eq!(story.by_git(&pairs, Like::Git), [None]);
    assert_eq!(story.by_us(&pairs), [paths(&["b"])]);
}
