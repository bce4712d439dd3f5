//! One generated history of a worktree, and whether what must hold of it holds.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use stillframe_backends::{
    Backend, DiffOptions, ErrorKind, Interrupt, Label, LockedWorkspace, Operation, RelPath,
    RepositoryRestore, RestoreError, RestoreGoal, RestoreOptions, RestoreOutcome, Snapshot,
    SnapshotId, SnapshotOptions, StateDir, Strategy, Workspace, detect,
};

use crate::TestWorkspace;
use crate::oracle::{self, DotGit};
use crate::torture::checker;
use crate::torture::invariants::Invariant;
use crate::torture::random::Random;
use crate::torture::sandbox;
use crate::torture::world::Step;
use crate::view::{self, View};

/// No operation on a worktree of this size takes as long.
const LOCK_TIMEOUT: Duration = Duration::from_secs(20);

/// An operation that is cancelled where it takes longer than it may.
fn in_time() -> Operation {
    Operation::unbounded().cancelled_by(&Interrupt::after(LOCK_TIMEOUT))
}

/// What a run must not tell anybody.
const SECRET: &str = "canary-5ecret-of-the-user";

/// What happens to a worktree, all of it said: the same case is the same history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Whether it is the work tree of a repository.
    pub has_git: bool,
    /// What happened before the first snapshot.
    pub before: Vec<Step>,
    /// What happens after it.
    pub after: Vec<Step>,
    /// Whether index and branch go back with the files before those go back alone; in a repository
    /// both are done.
    pub is_rolled_back_first: bool,
}

/// How a worktree goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// By a restore by hand: files alone.
    ByHand,
    /// As after a run that failed: files, index and branch.
    Rollback,
}

/// How everything was when the first snapshot was taken.
struct Then {
    snapshot: Snapshot,
    files: View,
    index: Option<Vec<u8>>,
    /// HEAD and its branch.
    tips: String,
}

/// What was looked at in a history, and what of it did not hold.
#[derive(Debug, Default)]
pub struct Played {
    /// What was looked at.
    pub checked: BTreeSet<Invariant>,
    /// What did not hold, in words.
    pub broken: Vec<(Invariant, String)>,
}

impl Case {
    /// The case of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let has_git = !random.once_in(5);
        let mut steps = |most: usize| {
            let count = random.below(most);
            let step = |_| Step::any(&mut random, has_git);
            (0..count).map(step).collect::<Vec<_>>()
        };
        let (before, after) = (steps(25), steps(25));
        Self {
            has_git,
            before,
            after,
            is_rolled_back_first: has_git && random.once_in(3),
        }
    }

    /// How the worktree goes back, one after the other.
    fn endings(&self) -> &'static [Ending] {
        match (self.has_git, self.is_rolled_back_first) {
            (false, _) => &[Ending::ByHand],
            (true, false) => &[Ending::ByHand, Ending::Rollback],
            (true, true) => &[Ending::Rollback, Ending::ByHand],
        }
    }

    /// Every case with one step less than this one.
    pub fn smaller(&self) -> impl Iterator<Item = Self> {
        let without = |at: usize, is_before: bool| {
            let mut case = self.clone();
            match is_before {
                true => drop(case.before.remove(at)),
                false => drop(case.after.remove(at)),
            }
            case
        };
        let before = (0..self.before.len()).map(move |at| without(at, true));
        let after = (0..self.after.len()).map(move |at| without(at, false));
        before.chain(after)
    }
}

/// Plays a history in a directory of its own.
pub fn play(case: &Case) -> Played {
    let mut played = Played::default();
    let played_whole = History::begin(case).and_then(|mut history| {
        let done = history.go_on(case, &mut played);
        done.map_err(|error| format!("while {}: {error}", history.doing))
    });
    if let Err(error) = played_whole {
        played.broken.push((Invariant::Liveness, error));
    }
    played
}

struct History {
    ws: TestWorkspace,
    strategy: Strategy,
    backend: Arc<dyn Backend>,
    /// `None` while the built program is at work.
    locked: Option<LockedWorkspace>,
    /// Another workspace, with its only snapshot, in the same state directory.
    neighbour: Neighbour,
    /// How long the slowest call took.
    slowest: Duration,
    told: Vec<SnapshotId>,
    /// What is being looked at, for whoever is told that a call failed.
    doing: &'static str,
}

struct Neighbour {
    workspace: Workspace,
    backend: Arc<dyn Backend>,
    snapshot: Snapshot,
    files: View,
    times: view::Times,
}

/// What ends a history: a call that failed, and is not expected to.
type Failure = Box<dyn std::error::Error>;

impl History {
    fn begin(case: &Case) -> Result<Self, String> {
        let mut ws = TestWorkspace::below(&sandbox::place());
        // It is looked at here, and may be abandoned half way.
        ws.damages_the_store();
        ws.write("README", "hello\n");
        if case.has_git {
            ws.git(["init", "-q"]);
            ws.commit("first");
        }
        for step in &case.before {
            step.take_in(&ws);
        }
        let strategy = match case.has_git {
            true => Strategy::Git,
            false => Strategy::Hash,
        };
        let open = || -> Result<_, Failure> {
            let state = StateDir::open(ws.state())?;
            let neighbour = Neighbour::new(&ws.base().join("neighbour"), &state)?;
            let workspace = Workspace::open(ws.root(), &state)?;
            let backend = detect(&workspace, strategy)?.backend;
            Ok((
                neighbour,
                backend,
                workspace.lock(&Operation::unbounded(), Duration::from_secs(5))?,
            ))
        };
        let (neighbour, backend, locked) = open().map_err(|error| error.to_string())?;
        Ok(Self {
            ws,
            strategy,
            backend,
            locked: Some(locked),
            neighbour,
            slowest: Duration::ZERO,
            told: Vec::new(),
            doing: "capturing",
        })
    }

    fn go_on(&mut self, case: &Case, played: &mut Played) -> Result<(), Failure> {
        let root = self.ws.root().to_owned();
        let descriptors = self.descriptors();
        let repository = view::git_dir(&root);
        let index = fs::read(root.join(".git/index")).ok();
        let tips = self.tips(case);
        let then = view::worktree(&root);
        let times = view::times(&root);
        let first = self.snapshot(Label::MANUAL)?;
        played.look(Invariant::NoForeignEffect, || {
            let touched = view::difference(&repository, &view::git_dir(&root));
            let touched = touched.or_else(|| view::difference(&then, &view::worktree(&root)));
            let touched = touched
                .or_else(|| (times != view::times(&root)).then(|| "a time changed".to_owned()));
            touched.map(|lines| format!("a capture touched {lines}"))
        });
        self.completeness(&first, &then, played)?;
        self.determinism(&first, &then, played)?;
        if case.has_git {
            played.look(Invariant::Agreement, || {
                let git = oracle::raw_tree(&self.ws);
                let ours = first.tree.clone().unwrap_or_default();
                (git != ours).then(|| format!("git makes the tree {git}, not {ours}"))
            });
        }

        for step in &case.after {
            step.take_in(&self.ws);
        }
        let then = Then {
            snapshot: first,
            files: then,
            index,
            tips,
        };
        let mut last_guard = None;
        for ending in case.endings() {
            last_guard = Some(self.there_and_back(*ending, &then, played)?);
        }
        let first = then.snapshot;
        self.monotony(&first, played)?;
        if case.has_git {
            self.reachability(&first, played)?;
        }
        if let Some(guard) = last_guard {
            self.collection(&first, &guard, played)?;
        }
        played.look(Invariant::Isolation, || self.neighbour.disturbed());
        played.look(Invariant::Boundedness, || {
            let left: Vec<_> = self.descriptors();
            let locks = checker::locks(&self.ws);
            (left != descriptors || !locks.is_empty())
                .then(|| format!("open: {left:?} after {descriptors:?}; {locks:?}"))
        });
        self.no_leak(played);
        played.look(Invariant::Liveness, || {
            (self.slowest > LOCK_TIMEOUT).then(|| format!("something took {:?}", self.slowest))
        });
        Ok(())
    }

    /// Goes back to the first snapshot, and by the guard to what was there before. Answers with the
    /// guard.
    fn there_and_back(
        &mut self,
        ending: Ending,
        then: &Then,
        played: &mut Played,
    ) -> Result<Snapshot, Failure> {
        let root = self.ws.root().to_owned();
        let first = &then.snapshot;
        if ending == Ending::ByHand {
            self.guarded_change(first, played)?;
            self.replaceable(then)?;
        }
        let changed = view::worktree(&root);
        let outcome = match ending {
            Ending::Rollback => self.roll_back(then, played)?,
            Ending::ByHand => {
                let repository = view::git_dir(&root);
                let outcome = self.watched_restore(then, &changed, played)?;
                played.look(Invariant::NoForeignEffect, || {
                    view::difference(&repository, &view::git_dir(&root))
                        .map(|lines| format!("a restore by hand touched {lines}"))
                });
                outcome
            }
        };
        let now = view::worktree(&root);
        played.look(Invariant::Exactness, || {
            let what = "what was captured comes back";
            inexact(first, &then.files, &outcome, &now, what)
        });

        self.doing = "restoring once more";
        let times = view::times(&root);
        let again = self.restore(first)?;
        played.look(Invariant::Idempotence, || {
            let restored = &again.restored;
            (!restored.is_empty() || times != view::times(&root))
                .then(|| format!("the second restore did something: {restored:?}"))
        });

        self.doing = "restoring the guard";
        let back = self.restore(&outcome.guard)?;
        let now = view::worktree(&root);
        for invariant in [Invariant::Undo, Invariant::CaptureBeforeDestroy] {
            played.look(invariant, || {
                let what = "the guard leads back";
                inexact(&outcome.guard, &changed, &back, &now, what)
            });
        }
        Ok(outcome.guard)
    }

    /// A file that the first snapshot has, and that a restore of it replaces by another one.
    fn replaced(then: &Then, now: &View) -> Option<RelPath> {
        Self::captured_files(then)
            .find(|(path, line)| {
                let now = now.line_at(path.as_bytes());
                now.is_some_and(|now| is_file(now) && now != *line)
            })
            .map(|(path, _)| path)
    }

    /// The files that the first snapshot has, each with its line.
    fn captured_files(then: &Then) -> impl Iterator<Item = (RelPath, &str)> {
        then.files.lines().filter_map(|(path, line)| {
            let path = RelPath::new(path.to_vec()).ok()?;
            let is_captured = then.snapshot.omissions.covers(&path).is_none();
            (is_file(line) && is_captured).then_some((path, line))
        })
    }

    /// Edits a file if a restore would replace none: somebody is to read one meanwhile.
    fn replaceable(&self, then: &Then) -> io::Result<()> {
        let now = view::worktree(self.ws.root());
        if Self::replaced(then, &now).is_some() {
            return Ok(());
        }
        let is_there =
            |(path, _): &(RelPath, &str)| now.line_at(path.as_bytes()).is_some_and(is_file);
        match Self::captured_files(then).find(is_there) {
            Some((path, _)) => fs::write(self.place(&path), "edited last\n"),
            None => Ok(()),
        }
    }

    /// Where a path of the worktree is.
    fn place(&self, path: &RelPath) -> PathBuf {
        let path = std::ffi::OsStr::from_bytes(path.as_bytes());
        self.ws.root().join(path)
    }

    fn options(&self, label: Label) -> SnapshotOptions {
        SnapshotOptions::new(label, Timestamp::UNIX_EPOCH).retain_content(true)
    }

    fn locked(&mut self) -> &mut LockedWorkspace {
        self.locked.as_mut().expect("the program is not at work")
    }

    fn timed<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let begin = Instant::now();
        let answer = work(self);
        self.slowest = self.slowest.max(begin.elapsed());
        answer
    }

    fn snapshot(&mut self, label: Label) -> Result<Snapshot, Failure> {
        let options = self.options(label);
        let snapshot = self.timed(|history| {
            let backend = Arc::clone(&history.backend);
            backend.snapshot(&in_time(), history.locked(), &options)
        })?;
        self.told.push(snapshot.id.clone());
        Ok(snapshot)
    }

    fn restore_with(
        &mut self,
        to: &Snapshot,
        change: impl FnOnce(RestoreOptions) -> RestoreOptions,
    ) -> Result<RestoreOutcome, RestoreError> {
        let goal = RestoreGoal::Snapshot {
            snapshot: to.clone(),
            paths: Vec::new(),
        };
        let options = change(RestoreOptions::new(self.options(Label::GUARD)));
        let outcome = self.timed(|history| {
            let backend = Arc::clone(&history.backend);
            backend.restore(&in_time(), history.locked(), &goal, &options)
        })?;
        self.told.push(outcome.guard.id.clone());
        if outcome.result.id != outcome.guard.id {
            self.told.push(outcome.result.id.clone());
        }
        Ok(outcome)
    }

    fn restore(&mut self, to: &Snapshot) -> Result<RestoreOutcome, Failure> {
        Ok(self.restore_with(to, |options| options)?)
    }

    /// Every path that a walker finds is captured, or named as omitted.
    fn completeness(
        &mut self,
        snapshot: &Snapshot,
        files: &View,
        played: &mut Played,
    ) -> Result<(), Failure> {
        let (backend, workspace) = (Arc::clone(&self.backend), Workspace::clone(self.locked()));
        let stored = backend.open(&Operation::unbounded(), &workspace, snapshot)?;
        let mut captured = 0;
        let mut silent = Vec::new();
        for (path, line) in files.lines() {
            if line.ends_with('/') {
                continue;
            }
            let path = RelPath::new(path.to_vec())?;
            let why = stored.why(&Operation::unbounded(), &path)?;
            captured += u64::from(why.captured);
            if !why.captured && snapshot.omissions.covers(&path).is_none() {
                silent.push(why);
            }
        }
        played.look(Invariant::Completeness, || {
            let counted = snapshot.metadata.files;
            (captured != counted || !silent.is_empty()).then(|| {
                format!("{captured} of {counted} are captured; neither that nor named: {silent:?}")
            })
        });
        Ok(())
    }

    /// Another state directory, another order of names in directories, and one processor.
    fn determinism(
        &mut self,
        first: &Snapshot,
        then: &View,
        played: &mut Played,
    ) -> Result<(), Failure> {
        self.doing = "capturing a copy";
        let copy = self.ws.base().join("copy");
        fs::create_dir(&copy)?;
        oracle::copy_tree(self.ws.root(), &copy, DotGit::Copy);
        let state = StateDir::open(self.ws.base().join("other state"))?;
        let workspace = Workspace::open(&copy, &state)?;
        let backend = detect(&workspace, self.strategy)?.backend;
        let locked = workspace.lock(&Operation::unbounded(), Duration::from_secs(5))?;
        let options = self.options(Label::MANUAL);
        let second = on_one_processor(|| backend.snapshot(&in_time(), &locked, &options))?;
        drop(locked);
        played.look(Invariant::Determinism, || {
            let of = |snapshot: &Snapshot| match snapshot.tree.clone() {
                Some(tree) => tree,
                None => snapshot.reference.clone(),
            };
            // A FIFO is in no copy.
            let is_copied = |path: &RelPath| match then.line_at(path.as_bytes()) {
                Some(line) => !line.ends_with('|'),
                None => true,
            };
            let names = |snapshot: &Snapshot| {
                let omitted = snapshot
                    .omissions
                    .omissions()
                    .iter()
                    .map(|o| o.path.clone());
                omitted.filter(is_copied).collect::<Vec<_>>()
            };
            (of(first) != of(&second) || names(first) != names(&second))
                .then(|| format!("{} here, {} in a copy", of(first), of(&second)))
        });
        fs::remove_dir_all(&copy)?;
        fs::remove_dir_all(self.ws.base().join("other state"))?;
        Ok(())
    }

    /// A plan is not carried out where something changed since.
    fn guarded_change(&mut self, first: &Snapshot, played: &mut Played) -> Result<(), Failure> {
        self.doing = "planning";
        let goal = RestoreGoal::Snapshot {
            snapshot: first.clone(),
            paths: Vec::new(),
        };
        let (backend, options) = (Arc::clone(&self.backend), self.options(Label::GUARD));
        let restore = RestoreOptions::new(options.clone());
        let plan = backend.plan(&in_time(), self.locked(), &goal, &restore)?;
        let edited = self.ws.root().join("edited meanwhile");
        fs::write(&edited, "by somebody else\n")?;
        let before = view::worktree(self.ws.root());
        let is_seen = backend
            .why(
                &Operation::unbounded(),
                self.locked(),
                &RelPath::new("edited meanwhile")?,
                &options,
            )?
            .captured;
        let answer = self.restore_with(first, |o| o.expected_plan(plan.id.clone()));
        let is_refused = match &answer {
            Err(error) => error.kind() == ErrorKind::Conflict && !error.touched(),
            // What is ignored is no part of any plan.
            Ok(_) => !is_seen,
        };
        played.look(Invariant::GuardedChange, || {
            let touched = match &answer {
                Err(_) => view::difference(&before, &view::worktree(self.ws.root())),
                Ok(_) => None,
            };
            (!is_refused || touched.is_some()).then(|| format!("{answer:?}; touched: {touched:?}"))
        });
        if let Ok(outcome) = answer {
            self.restore(&outcome.guard)?;
        }
        fs::remove_file(&edited)?;
        Ok(())
    }

    /// A restore, while somebody reads a file that it replaces.
    fn watched_restore(
        &mut self,
        then: &Then,
        changed: &View,
        played: &mut Played,
    ) -> Result<RestoreOutcome, Failure> {
        self.doing = "restoring";
        let first = &then.snapshot;
        let root = self.ws.root().to_owned();
        let before = view::times(&root);
        let replaced = Self::replaced(then, changed);
        let reader = replaced.map(|path| Seen::watch(self.place(&path)));
        let outcome = self.restore(first)?;
        if let Some(seen) = reader {
            let broken = seen.end()?;
            played.look(Invariant::AtomicVisibility, || broken);
        }
        let (now, times) = (view::worktree(&root), view::times(&root));
        played.look(Invariant::Untouchables, || {
            let is_omitted = |path: &RelPath| {
                first.omissions.covers(path).is_some()
                    || outcome.guard.omissions.covers(path).is_some()
            };
            // Where the target has an entry, or something below, a special file makes place.
            let makes_place = |path: &RelPath| {
                first.omissions.covers(path).is_none()
                    && then.files.lines().any(|(known, _)| {
                        RelPath::new(known.to_vec()).is_ok_and(|known| known.starts_with(path))
                    })
            };
            let touched = changed.lines().find(|(path, line)| {
                let Ok(rel) = RelPath::new(path.to_vec()) else {
                    return false;
                };
                is_omitted(&rel)
                    && !makes_place(&rel)
                    && (now.line_at(path) != Some(line) || before.get(*path) != times.get(*path))
            });
            touched.map(|(path, line)| format!("{} was {line}, omitted", path.escape_ascii()))
        });
        Ok(outcome)
    }

    /// Files, index and branch as they were.
    fn roll_back(&mut self, then: &Then, played: &mut Played) -> Result<RestoreOutcome, Failure> {
        self.doing = "rolling back";
        let (first, tips) = (&then.snapshot, &then.tips);
        let moved = self.tips_now();
        let options = self.options(Label::AFTER).since(first.id.clone());
        let backend = Arc::clone(&self.backend);
        let after = backend.snapshot(&in_time(), self.locked(), &options)?;
        self.told.push(after.id.clone());
        let rollback = RepositoryRestore::Rollback {
            before: first.clone(),
            after,
            run_id: "run".to_owned(),
        };
        let outcome = self.restore_with(first, |o| o.repository(rollback))?;
        let root = self.ws.root().to_owned();
        played.look(Invariant::StatedEffect, || {
            let now = fs::read(root.join(".git/index")).ok();
            let tips_now = self.tips_now();
            // A branch that the run made stays, and so does what it has.
            let is_back = tips
                .lines()
                .all(|line| tips_now.lines().any(|now| now == line));
            let lost = moved.lines().find(|line| {
                let commit = line.split(' ').next().unwrap_or_default();
                let call = self.ws.git_call(["for-each-ref", "--contains", commit]);
                commit.len() == 40 && call.run().stdout.is_empty()
            });
            (now != then.index || !is_back || lost.is_some() || outcome.repository_error.is_some())
                .then(|| {
                    format!(
                        "index as it was: {}; {tips} then, {moved} after, {tips_now} now; {:?}",
                        now == then.index,
                        outcome.repository_error
                    )
                })
        });
        Ok(outcome)
    }

    /// HEAD and the branch that it names, as git tells them.
    fn tips(&self, case: &Case) -> String {
        match case.has_git {
            true => self.tips_now(),
            false => String::new(),
        }
    }

    fn tips_now(&self) -> String {
        let head = self.ws.git_call(["symbolic-ref", "-q", "HEAD"]).run();
        let branch = head.stdout_text().trim().to_owned();
        let tip = self.ws.git_call(["rev-parse", "-q", "--verify", "HEAD"]);
        format!("{} {branch}\n", tip.run().stdout_text().trim())
    }

    /// An id means what it meant, and no two are the same.
    fn monotony(&mut self, first: &Snapshot, played: &mut Played) -> Result<(), Failure> {
        self.doing = "listing";
        let backend = Arc::clone(&self.backend);
        let workspace = Workspace::clone(self.locked());
        let listed = backend.list(&Operation::unbounded(), &workspace)?.snapshots;
        let options = DiffOptions::default();
        let diff = backend.diff(
            &Operation::unbounded(),
            &workspace,
            first,
            first,
            &options,
            &mut io::sink(),
        )?;
        played.look(Invariant::Monotony, || {
            let ids: BTreeSet<_> = listed.iter().map(|s| &s.id).collect();
            // A restore that was refused leaves its guard, and says nothing of it.
            let is_told = |s: &&Snapshot| self.told.contains(&s.id) || s.label == Label::GUARD;
            let stranger = listed.iter().find(|s| !is_told(s));
            let lost = self.told.iter().find(|id| !ids.contains(id));
            let is_same = listed.iter().find(|s| s.id == first.id) == Some(first);
            let is_equal =
                diff.added.is_empty() && diff.modified.is_empty() && diff.deleted.is_empty();
            let is_right = ids.len() == listed.len() && stranger.is_none() && lost.is_none();
            (!is_right || !is_same || !is_equal).then(|| {
                format!("stranger {stranger:?}, lost {lost:?}; the first is as it was: {is_same}")
            })
        });
        Ok(())
    }

    /// The user's git collects what it likes.
    fn reachability(&mut self, first: &Snapshot, played: &mut Played) -> Result<(), Failure> {
        self.doing = "the user's git collected";
        for args in [
            &["reflog", "expire", "--expire=now", "--all"][..],
            &["gc", "-q", "--prune=now"],
            &["prune"],
            &["repack", "-adq"],
        ] {
            drop(self.ws.git_call(args).run());
        }
        let (backend, workspace) = (Arc::clone(&self.backend), Workspace::clone(self.locked()));
        let mut problems = Vec::new();
        for snapshot in backend.list(&Operation::unbounded(), &workspace)?.snapshots {
            problems.extend(
                backend
                    .verify(&Operation::unbounded(), &workspace, &[&snapshot])
                    .remove(0)?
                    .problems,
            );
        }
        self.restore(first)?;
        played.look(Invariant::Reachability, || {
            let complaint = oracle::fsck_complaint(&self.ws.state());
            (!problems.is_empty() || complaint.is_some())
                .then(|| format!("{problems:?} {complaint:?}"))
        });
        Ok(())
    }

    /// What is forgotten goes, and nothing else.
    fn collection(
        &mut self,
        first: &Snapshot,
        guard: &Snapshot,
        played: &mut Played,
    ) -> Result<(), Failure> {
        self.doing = "collecting";
        let backend = Arc::clone(&self.backend);
        let forgotten = [guard.id.clone()];
        backend.forget(&Operation::unbounded(), self.locked(), &forgotten, &[])?;
        backend.collect(&Operation::unbounded(), self.locked())?;
        self.told.retain(|id| *id != guard.id);
        let workspace = Workspace::clone(self.locked());
        let mut problems = Vec::new();
        let listed = backend.list(&Operation::unbounded(), &workspace)?.snapshots;
        for snapshot in &listed {
            problems.extend(
                backend
                    .verify(&Operation::unbounded(), &workspace, &[snapshot])
                    .remove(0)?
                    .problems,
            );
        }
        let told = self.told.clone();
        self.restore(first)?;
        played.look(Invariant::SafeCollection, || {
            let ids: BTreeSet<_> = listed.iter().map(|s| &s.id).collect();
            let lost = told.iter().find(|id| !ids.contains(id));
            let complaint = oracle::fsck_complaint(&self.ws.state());
            let is_gone = !ids.contains(&guard.id);
            (!is_gone || lost.is_some() || !problems.is_empty() || complaint.is_some())
                .then(|| format!("gone: {is_gone}, lost {lost:?}; {problems:?} {complaint:?}"))
        });
        Ok(())
    }

    /// A file with a secret in it, and a variable, while a run fails and is rolled back.
    fn no_leak(&mut self, played: &mut Played) {
        self.locked = None;
        fs::write(self.ws.root().join(".env"), format!("KEY={SECRET}\n"))
            .expect("a workspace of a test can be written");
        let script = "echo made > made-by-the-run; exit 3";
        let args = [
            "--json",
            "run",
            "--rollback-on-failure",
            "--",
            "/bin/sh",
            "-c",
            script,
        ];
        let run = self.ws.call(args).env("STILLFRAME_TEST_KEY", SECRET).run();
        let events = self.ws.call(["--json", "events"]).run();
        let bad = self.ws.call(["--json", "restore", "nothing"]).run();
        played.look(Invariant::NoLeak, || {
            let told = [&run, &events, &bad].into_iter().find(|output| {
                let text = format!("{}{}", output.stdout_text(), output.stderr_text());
                text.contains(SECRET)
            });
            let is_log = |path: &Path| {
                let name = path
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned();
                name.contains("sqlite") || name.contains(".db")
            };
            let files = walkdir::WalkDir::new(self.ws.state()).into_iter().flatten();
            let mut logs = files.filter(|entry| is_log(entry.path()));
            let logged = logs.find(|entry| {
                let bytes = fs::read(entry.path()).unwrap_or_default();
                bytes
                    .windows(SECRET.len())
                    .any(|part| part == SECRET.as_bytes())
            });
            let told = told.map(ToString::to_string);
            let logged = logged.map(|entry| entry.path().display().to_string());
            told.or(logged)
                .map(|place| format!("the secret is in {place}"))
        });
    }

    /// What this process has open below the directory of the case.
    fn descriptors(&self) -> Vec<PathBuf> {
        let open = fs::read_dir("/proc/self/fd")
            .into_iter()
            .flatten()
            .flatten();
        let mut paths: Vec<PathBuf> = open
            .filter_map(|entry| fs::read_link(entry.path()).ok())
            .filter(|path| path.starts_with(self.ws.base()))
            .collect();
        paths.sort();
        paths
    }
}

impl Neighbour {
    fn new(path: &Path, state: &StateDir) -> Result<Self, Failure> {
        fs::create_dir(path)?;
        fs::write(path.join("file"), "of somebody else\n")?;
        let workspace = Workspace::open(path, state)?;
        let backend = detect(&workspace, Strategy::Hash)?.backend;
        let options =
            SnapshotOptions::new(Label::MANUAL, Timestamp::UNIX_EPOCH).retain_content(true);
        let locked = workspace
            .clone()
            .lock(&Operation::unbounded(), Duration::from_secs(5))?;
        let snapshot = backend.snapshot(&in_time(), &locked, &options)?;
        drop(locked);
        Ok(Self {
            workspace,
            backend,
            snapshot,
            files: view::worktree(path),
            times: view::times(path),
        })
    }

    /// What happened to it, if anything did.
    fn disturbed(&self) -> Option<String> {
        let path = self.workspace.disk_path();
        if let Some(lines) = view::difference(&self.files, &view::worktree(path)) {
            return Some(lines);
        }
        let listed = self.backend.list(&Operation::unbounded(), &self.workspace);
        let verified = self
            .backend
            .verify(&Operation::unbounded(), &self.workspace, &[&self.snapshot])
            .remove(0);
        let is_whole = matches!(&verified, Ok(found) if found.problems.is_empty())
            && matches!(&listed, Ok(listed) if listed.snapshots == [self.snapshot.clone()])
            && self.times == view::times(path);
        (!is_whole).then(|| format!("{listed:?} {verified:?}"))
    }
}

impl Played {
    fn look(&mut self, invariant: Invariant, broken: impl FnOnce() -> Option<String>) {
        self.checked.insert(invariant);
        self.broken.extend(broken().map(|text| (invariant, text)));
    }
}

/// Whether a line of a view is that of a regular file.
fn is_file(line: &str) -> bool {
    line.starts_with("100")
}

/// Where a worktree is not as `target` was; `None` if it is, but for what the snapshot of the
/// target says that it does not have, for what was left alone and named, and for what came since
/// and was not seen.
fn inexact(
    snapshot: &Snapshot,
    target: &View,
    outcome: &RestoreOutcome,
    now: &View,
    what: &str,
) -> Option<String> {
    let is_skipped = |path: &RelPath| {
        let skipped = outcome.skipped.iter().map(|s| &s.path);
        let mut left = skipped.chain(&outcome.leftover_ignored);
        left.any(|left| path.starts_with(left) || left.starts_with(path))
    };
    let seen = [&outcome.guard, &outcome.result];
    let is_left = |path: &RelPath| {
        let is_unseen = |s: &&Snapshot| {
            s.omissions.covers(path).is_some() || s.omissions.below(path).next().is_some()
        };
        target.line_at(path.as_bytes()).is_none() && seen.iter().any(is_unseen)
    };
    let counts = |path: &[u8]| {
        RelPath::new(path.to_vec()).is_ok_and(|path| {
            snapshot.omissions.covers(&path).is_none() && !is_skipped(&path) && !is_left(&path)
        })
    };
    let lines = view::difference(&target.only(counts), &now.only(counts))?;
    Some(format!("{what}: {lines}skipped: {:?}", outcome.skipped))
}

/// Does something where no second processor is.
fn on_one_processor<T>(work: impl FnOnce() -> T) -> T {
    let Ok(all) = sched_getaffinity(None) else {
        return work();
    };
    let mut one = CpuSet::new();
    let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu));
    first.into_iter().for_each(|cpu| one.set(cpu));
    let is_set = sched_setaffinity(None, &one).is_ok();
    let answer = work();
    if is_set {
        // If that fails, the rest is slower, and as right.
        let _ = sched_setaffinity(None, &all);
    }
    answer
}

/// Somebody who reads a file, again and again.
struct Seen {
    stop: Arc<AtomicBool>,
    reader: std::thread::JoinHandle<io::Result<BTreeSet<Vec<u8>>>>,
    before: Vec<u8>,
    path: PathBuf,
}

impl Seen {
    fn watch(path: PathBuf) -> Self {
        let before = fs::read(&path).unwrap_or_default();
        let stop = Arc::new(AtomicBool::new(false));
        let (asked, place) = (Arc::clone(&stop), path.clone());
        let reader = std::thread::spawn(move || {
            let mut seen = BTreeSet::new();
            while !asked.load(Ordering::Relaxed) {
                seen.insert(fs::read(&place)?);
            }
            Ok(seen)
        });
        Self {
            stop,
            reader,
            before,
            path,
        }
    }

    /// What was seen and is neither what was there nor what is; `None` if nothing.
    fn end(self) -> Result<Option<String>, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.reader.join().map_err(|_| "a reader panicked")?;
        let path = self.path.display();
        let seen = match seen {
            Ok(seen) => seen,
            Err(error) => return Ok(Some(format!("{path} was not there: {error}"))),
        };
        let after = fs::read(&self.path)?;
        let strange = seen.iter().find(|s| **s != self.before && **s != after);
        Ok(strange.map(|s| format!("{path} was {:?}", s.escape_ascii().to_string())))
    }
}
