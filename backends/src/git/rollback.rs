//! Undoing what a run did to the repository itself: index, HEAD, branch, and the files of git's
//! operations.
//!
//! Only this module, and [`commit`](super::commit) through it, writes in a user's repository. It
//! follows git's own protocol: the whole new content is written to `<file>.lock`, which must not
//! exist before, and is then renamed. It does not use libgit2: our lock is a hard link to a file
//! with the operation's id, so that after a crash our own lock can be told from a foreign one, and
//! every directory on the way is opened without following a link. No hook runs, and no
//! configuration is read.

mod hand;
mod hold;
mod index;
mod lacking;
pub(super) mod lock;
pub(super) mod moves;
mod operation;
pub(super) mod reflog;
pub(super) mod refs;
mod room;
pub(super) mod safety;
mod sight;
mod staged;

pub(crate) use staged::staging_digest;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use self::hand::Hand;
pub(crate) use self::hold::{hold, is_begun, release};
use self::index::{IndexGoal, IndexMove, IndexSeen};
use self::moves::{BranchMove, HeadMove, HeadMoved, Moves, described};
use self::operation::{Decision, OperationMove, decide};
use self::refs::{PACKED_REFS, Refs};
use self::safety::free_names;
use self::sight::Sight;
use self::staged::{Staged, give_objects_back};
use super::directory::{Create, open_below, open_directory, read_file};
use crate::codec;
use crate::deadline::Deadline;
use crate::descriptor;
use crate::durable::make_private;
use crate::error::{ErrorKind, PathError, chain, printable};
use crate::git::ObjectId;
use crate::git::history::{self, Giving, List};
use crate::git::repository::split;
use crate::git::repository::{Head, OperationFiles};
use crate::git::repository::{MAX_SHALLOW_BYTES, RepositoryObjects, Shallow, is_operation_path};
use crate::git::tree_object::empty_tree_id;
use crate::git::user_index;
use crate::git::worktrees;
use crate::identity::KnownDirectory;
use crate::lock::LockFile;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::purge::Purged;
use crate::record::{GitState, Record};
use crate::repository_changes::RepositoryProblem;
use crate::restore::RepositoryChanges;
use crate::restore_error::RestoreError;
use crate::store_error::StoreError;
use crate::workspace::{StateDir, Workspace};
use crate::worktree::journal;

/// How long a lock in the user's repository is waited for: git holds one for moments, and one
/// that stays is what a killed git left.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The most that is read of an index: some ten million paths.
const MAX_INDEX_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// A commit of more is none that anybody wrote.
const MAX_COMMIT_BYTES: u64 = 16 << 20;

/// The user's repository as a rollback finds it.
#[derive(Clone, Debug)]
pub(crate) struct FoundRepository {
    /// The directory with HEAD and the index; that of a linked worktree lies in the main one's.
    pub(crate) git_dir: PathBuf,
    /// The directory with the refs and the objects.
    pub(crate) common_dir: PathBuf,
    /// The latter.
    pub(crate) known_as: KnownDirectory,
    /// What HEAD names now.
    pub(crate) head: Head,
    /// merge, rebase, cherry-pick, revert or bisect, if one is in progress.
    pub(crate) in_progress: Option<String>,
    /// The files of git's operations, or why they cannot be had.
    pub(crate) operation: Result<OperationFiles, RepositoryProblem>,
}

/// The user's repository, for a restore that puts it back. The git backend implements it. The
/// shared procedure gets it from there, and hands it back here.
pub(crate) trait RestorableRepository {
    /// The repository as it is now; `None`: it is gone. An error: it is there, and cannot be read,
    /// so nothing of it can be put back.
    fn found(&self, workspace: &Workspace) -> Result<Option<FoundRepository>, RepositoryProblem>;

    /// The bytes of a user's index, or of a file of git's operations, that a snapshot kept.
    fn kept(
        &self,
        op: &Operation,
        workspace: &Workspace,
        blob: &ObjectId,
    ) -> Result<Vec<u8>, StoreError>;
}

/// What is asked to be put back.
pub(crate) struct Request<'a> {
    pub(crate) state: &'a StateDir,
    /// `None`: it is gone; an error: it is there, and cannot be read.
    pub(crate) found: Result<Option<&'a FoundRepository>, RepositoryProblem>,
    pub(crate) before: &'a GitState,
    /// `None`: it was gone, or not captured.
    pub(crate) after: Option<&'a GitState>,
    /// Names the safety refs.
    pub(crate) run_id: &'a str,
    pub(crate) way: Way,
    /// Commits that the state to come reaches: they need no safety ref.
    pub(crate) reached: Vec<ObjectId>,
    /// The bytes of an index, or of a file of an operation, that a snapshot kept.
    pub(crate) index_bytes: &'a dyn Fn(&ObjectId) -> Result<Vec<u8>, StoreError>,
    /// For the reflog.
    pub(crate) now: Timestamp,
    pub(crate) lock_timeout: Duration,
}

/// Where the repository goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Back, unless somebody went on from where it was left.
    Back,
    /// Back, as far as nobody did: the rest is kept.
    BackBesideEdits,
    /// To a branch.
    Switch,
    /// On with the branch that HEAD names.
    Merge,
}

impl Way {
    /// How the operation of a plan begins that goes this way.
    fn prefix(self) -> &'static str {
        match self {
            Self::Back | Self::BackBesideEdits => "",
            Self::Switch => SWITCH,
            Self::Merge => MERGE,
        }
    }
}

const SWITCH: &str = "switch-";
const MERGE: &str = "merge-";

/// What is put back of the repository once the files are. It is kept in the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RepositoryPlan {
    /// Raw bytes of the path.
    git_dir: Vec<u8>,
    git_inode: u64,
    /// Raw bytes of the path.
    common_dir: Vec<u8>,
    common_inode: u64,
    /// Names our own locks in the repository.
    operation: String,
    /// Seconds since the Unix epoch.
    at: i64,
    /// The safety refs: that of a branch's old tip first.
    tags: Vec<(String, ObjectId)>,
    branches: Vec<BranchMove>,
    head: Option<HeadMove>,
    index: Option<IndexMove>,
    files: OperationMove,
    /// What cannot be put back.
    notes: Vec<RepositoryProblem>,
}

/// A checked plan, and the repository's lock: nothing else of ours writes there meanwhile.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) plan: RepositoryPlan,
    /// The bytes that the index gets, then those of the files of an operation.
    pub(crate) staged: Option<Vec<u8>>,
    /// The bytes of the index that goes, if another comes.
    replaced: Option<Vec<u8>>,
    /// Where in the repository the workspace lies.
    scope: RelPath,
    /// The files of git's operations that the plan takes to be there.
    seen: Option<OperationFiles>,
    /// The content that the index to come stages and the repository may lack: what it lacked when
    /// it was last looked at. `None`: it was not.
    in_question: Option<Vec<Staged>>,
    /// The commits that the repository is given back as far as it has lost them.
    history: Option<List>,
    refs_stay: RefsStay,
    /// Whether HEAD or a branch was to go somewhere as long as all was there.
    were_to_move: bool,
    /// Whether HEAD's commit is to be another one than the operation left.
    changes_commit: bool,
    /// Why the index is not put back, if it is known.
    index_stays: Option<RepositoryProblem>,
    /// What the notes say of the index.
    told_of_index: Option<RepositoryProblem>,
    _lock: Option<LockFile>,
}

/// The bytes of an index that takes the place of another, and of that.
#[derive(Debug, Default)]
struct IndexBytes {
    comes: Option<Vec<u8>>,
    goes: Option<Vec<u8>>,
    /// Why none comes, though another was there: somebody has staged something since.
    stays: Option<RepositoryProblem>,
}

/// Why HEAD, branches and index stay where they are.
#[derive(Debug)]
enum Stays {
    /// Another process moved something.
    Moved(HeadMoved),
    /// Another ref is in the way of one that is to be made.
    NoRoom(RepositoryProblem),
}

/// What became of the repository.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The full name of the ref that keeps the old tip.
    pub(crate) safety_tag: Option<String>,
    /// What could not be put back.
    pub(crate) error: Option<RepositoryProblem>,
}

/// Decides what has to be restored. Refuses if somebody else changed the repository since `after`.
/// Writes nothing in the repository.
pub(crate) fn prepare(op: &Operation, request: &Request<'_>) -> Result<Prepared, RestoreError> {
    let unsupported = |note| RepositoryProblem::new(ErrorKind::Unsupported, note);
    let (found, after) = match (&request.found, request.after) {
        (Ok(Some(found)), Some(after)) => (*found, after),
        (Err(problem), _) => return Ok(Prepared::nothing(problem.clone())),
        (Ok(None), _) => {
            let note = "the repository is gone: its index, HEAD and branch were not put back";
            return Ok(Prepared::nothing(unsupported(note)));
        }
        (Ok(Some(_)), None) => {
            let note = "the state that is gone back from was captured without the repository, which \
                        could not be read then: its index, HEAD and branch were not put back";
            return Ok(Prepared::nothing(unsupported(note)));
        }
    };
    let is_index_edited = || is_index_edited(request, found, after);
    let decision = match (&found.in_progress, found.head == after.head) {
        (_, true) => decide(request, found, after, &is_index_edited)?,
        (Some(operation), false)
            if ![&request.before.in_progress, &after.in_progress].contains(&&found.in_progress) =>
        {
            return Err(RestoreError::InProgress {
                operation: operation_name(operation),
            });
        }
        // All is kept, or refused.
        (_, false) => Decision::nothing(),
    };
    let (operation, notes) = match decision {
        Decision::Kept(problem) => return Ok(Prepared::nothing(problem)),
        Decision::Goes { operation, notes } => (operation, notes),
    };
    let lock = lock_repository(op, request.state, &found.common_dir, request.lock_timeout)?;
    let deadline = Deadline::after(request.lock_timeout);
    let (history, unread) = kept_history(request);
    let (mut plan, went) = loop {
        let mut plan = RepositoryPlan::at(found, request.now)?;
        plan.operation.insert_str(0, request.way.prefix());
        let went = if found.head == after.head {
            plan.move_back(op, request, found, after, &history)
        } else {
            Err(Stays::Moved(HeadMoved::of_head(&after.head, &found.head)))
        };
        // The holder of a lock may have moved the file behind it, so everything is read again.
        if went.is_err() || plan.wait_for_refs(op, found, deadline)? == Waited::No {
            break (plan, went);
        }
    };
    let refs_stay = *went.as_ref().unwrap_or(&RefsStay::No);
    let mut index = IndexBytes::default();
    match went {
        Ok(_) => {
            index = plan.put_index_back(op, request, found, after, deadline)?;
            plan.notes.extend(index.stays.clone());
            plan.notes.extend(notes);
            plan.put_operation_back(op, request, found, operation, &mut index.comes, deadline)?;
        }
        Err(Stays::NoRoom(problem)) => return Ok(Prepared::nothing(problem)),
        Err(Stays::Moved(moved)) if request.way == Way::BackBesideEdits => plan.note(
            ErrorKind::HeadMoved,
            format!(
                "{} is at {}, not at {} where the operation left it: HEAD, branch and index were \
                 kept",
                moved.what, moved.found, moved.expected
            ),
        ),
        Err(Stays::Moved(HeadMoved {
            what,
            expected,
            found,
        })) => {
            return Err(RestoreError::HeadMoved {
                what,
                expected,
                found,
            });
        }
    }
    let takes_history = plan.takes_history(request, found);
    plan.notes.extend(unread.filter(|_| takes_history));
    Ok(Prepared {
        staged: index.comes,
        replaced: index.goes,
        scope: request.before.scope.clone(),
        seen: found.operation.clone().ok(),
        in_question: None,
        history: takes_history.then_some(history),
        refs_stay,
        were_to_move: plan.moves_refs(),
        changes_commit: request.before.head.commit() != after.head.commit(),
        told_of_index: index.stays.clone(),
        index_stays: index.stays,
        plan,
        _lock: Some(lock),
    })
}

/// Puts back what the plan says. Safe to repeat: what is right already is left alone.
///
/// A part that cannot be put back ends it, since the parts after it rest on it. What was not done
/// is in the answer. `is_recovery`: locks of this very operation may be there, of a crash or as it
/// [holds](hold) them.
pub(crate) fn carry_out(
    op: &Operation,
    plan: &RepositoryPlan,
    staged: impl FnOnce() -> Result<Vec<u8>, PathError>,
    is_recovery: bool,
    lock_timeout: Duration,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut problems = plan.notes.clone();
    if !plan.is_empty() {
        let hand = Hand {
            plan,
            is_recovery,
            lock_timeout,
        };
        if let Err(error) = hand.carry_out(op, staged, &mut outcome.safety_tag) {
            problems.push(error.problem("not everything was put back"));
        }
        if is_recovery {
            hand.release_what_a_crash_left(op);
        }
    }
    outcome.error = RepositoryProblem::of_all(&problems);
    outcome
}

/// Takes the lock that all of our processes share for one repository, whatever the worktree.
pub(crate) fn lock_repository(
    op: &Operation,
    state: &StateDir,
    common_dir: &Path,
    lock_timeout: Duration,
) -> Result<LockFile, RestoreError> {
    let meta = std::fs::metadata(common_dir).map_err(prepare_error("look at", common_dir))?;
    let directory = state.path().join("repositories");
    make_private(op, &directory).map_err(RestoreError::Prepare)?;
    let name = format!("{:x}-{:x}.lock", meta.dev(), meta.ino());
    let what = format!("the repository {}", printable(common_dir));
    Ok(LockFile::acquire(
        op,
        &directory.join(name),
        &what,
        lock_timeout,
    )?)
}

impl Prepared {
    /// This, if the guard has the state of the repository; else nothing but a note: what nobody
    /// could put back again is not replaced. `kept` answers with the bytes of the guard's index.
    pub(crate) fn guarded_by(
        self,
        guard: &Record,
        kept: &dyn Fn(&ObjectId) -> Result<Vec<u8>, StoreError>,
    ) -> Self {
        if self.plan.is_empty() {
            return self;
        }
        let has_index = |guarded: Option<ObjectId>| {
            let Some(IndexMove { from, .. }) = &self.plan.index else {
                return true;
            };
            // git writes stat data alone whenever somebody asks it for a status.
            let stages_the_same = |blob| kept(&blob).is_ok_and(|bytes| from.is(Some(&bytes)));
            from.blob == guarded || guarded.is_some_and(stages_the_same)
        };
        let problem = match &guard.git {
            Some(git) if !has_index(git.index) => RepositoryProblem::new(
                ErrorKind::Conflict,
                "somebody wrote the index meanwhile: index, HEAD and branch were not put back",
            ),
            Some(git) if self.plan.files.is_empty() || git.operation == self.seen => {
                return self;
            }
            Some(_) => RepositoryProblem::new(
                ErrorKind::Conflict,
                "somebody went on with an operation of git's meanwhile: index, HEAD and branch were \
                 not put back",
            ),
            None => RepositoryProblem::new(
                ErrorKind::Unreadable,
                "the state of the repository could not be captured before: its index, HEAD and \
                 branch were not put back",
            ),
        };
        let mut nothing = Self::nothing(problem);
        nothing.plan.notes.extend(self.plan.notes);
        nothing
    }

    /// Looks for the commits that HEAD and branches go back to, and for the content that the index
    /// to come stages, as far as the repository lost that: what is then not put back is not planned
    /// either.
    pub(crate) fn foresee_objects(
        &mut self,
        op: &Operation,
        purged: &Purged,
        kept: &dyn Fn(&ObjectId) -> Result<Vec<u8>, StoreError>,
    ) {
        self.give_objects(op, purged, kept, Giving::Foreseen);
    }

    /// Gives the repository the commits that HEAD and branches go back to, and the content that the
    /// index to come stages, as far as it lost that and the snapshot kept it: `kept` answers with
    /// it. Notes what it still lacks.
    pub(crate) fn with_objects(
        mut self,
        op: &Operation,
        purged: &Purged,
        kept: &dyn Fn(&ObjectId) -> Result<Vec<u8>, StoreError>,
    ) -> Self {
        self.give_objects(op, purged, kept, Giving::Done);
        self
    }

    fn give_objects(
        &mut self,
        op: &Operation,
        purged: &Purged,
        kept: &dyn Fn(&ObjectId) -> Result<Vec<u8>, StoreError>,
        giving: Giving,
    ) {
        // Before it was decided, the repository was given all that the branch has, and the index
        // has no cache of trees.
        if self.plan.is_switch() {
            return;
        }
        let given = self.give_history_back(op, purged, kept, giving);
        let mut told = self.give_staged_back(op, purged, kept, giving);
        if let Some(RepositoryProblem { kind, message, .. }) = &self.index_stays {
            let way_on = match self.changes_commit && self.plan.moves_refs() {
                true => " (\"git reset\" makes it that of HEAD)",
                false => "",
            };
            told = Some(RepositoryProblem::new(*kind, format!("{message}{way_on}")));
        }
        // An earlier look may have told something else.
        if told != self.told_of_index {
            let earlier = std::mem::replace(&mut self.told_of_index, told.clone());
            self.plan
                .notes
                .retain(|note| Some(note) != earlier.as_ref());
            self.plan.notes.extend(told);
        }
        self.forget_lost_trees(&given);
    }

    /// Gives the repository what it has lost of the content that the index to come stages. Leaves
    /// the index where what is lacking would keep git from its work; answers with what the index
    /// names nevertheless.
    fn give_staged_back(
        &mut self,
        op: &Operation,
        purged: &Purged,
        kept: &dyn Fn(&ObjectId) -> Result<Vec<u8>, StoreError>,
        giving: Giving,
    ) -> Option<RepositoryProblem> {
        let in_question = self.in_question.take();
        let index = self.index()?;
        let is_purged = |id: &ObjectId| purged.contains(&(*id).into());
        let (git_dir, common_dir) = (path_of(&self.plan.git_dir), self.plan.common_dir());
        let content = in_question.unwrap_or_else(|| staged::content_of(&git_dir, index));
        let lacked = staged::lacking(op, &common_dir, content);
        let lacking = give_objects_back(op, &common_dir, &lacked, &is_purged, kept, giving);
        self.in_question = Some(lacked);
        let RepositoryProblem { kind, message, .. } = lacking::of_index(&lacking)?;
        // With one that is gone for good git could pack and commit nothing any more. What was not
        // there before either, as in a partial clone, git may still fetch.
        let is_lost =
            self.refs_stay == RefsStay::Yes || lacking.iter().any(|lost| is_purged(&lost.id));
        if !is_lost {
            let message = format!("the index names {message}");
            return Some(RepositoryProblem::new(kind, message));
        }
        let message = format!("the index was left as it is: what it was names {message}");
        self.index_stays = Some(RepositoryProblem::new(kind, message));
        self.leave_index();
        None
    }

    /// Gives the repository what it has lost of the commits that were kept. Where one of them is
    /// not to be had, or content of one, HEAD and branches stay where they are: git could not read
    /// all that they would reach. Answers with what was given, or would be.
    fn give_history_back(
        &mut self,
        op: &Operation,
        purged: &Purged,
        kept: &dyn Fn(&ObjectId) -> Result<Vec<u8>, StoreError>,
        giving: Giving,
    ) -> HashSet<ObjectId> {
        let Some(history) = &self.history else {
            return HashSet::new();
        };
        let stay = match self.were_to_move {
            true => "HEAD and branch were left where they are",
            false => "what was kept of the commits was not all given back",
        };
        let given = history::give_back(op, &self.plan.common_dir(), history, purged, kept, giving);
        let mut done = HashSet::new();
        let problems = match given {
            Ok(mut lacking) => {
                done = std::mem::take(&mut lacking.given);
                if let [first, ..] = lacking.never_there[..] {
                    let count = lacking.never_there.len();
                    let message = format!(
                        "the repository lacks content of commits, as it did before: {count} objects such as {first}"
                    );
                    let problem = RepositoryProblem::new(ErrorKind::Corrupt, message);
                    self.plan.note_once(problem);
                }
                let lacking = lacking::of_history(&lacking).into_iter();
                let told = lacking.map(|RepositoryProblem { kind, message, .. }| {
                    RepositoryProblem::new(kind, format!("{message}: {stay}"))
                });
                told.collect::<Vec<_>>()
            }
            Err(error) => vec![error.problem(stay)],
        };
        if problems.is_empty() {
            return done;
        }
        for problem in problems {
            self.plan.note_once(problem);
        }
        self.plan.tags.clear();
        self.plan.branches.clear();
        self.plan.head = None;
        self.refs_stay = RefsStay::Yes;
        done
    }

    /// Takes the cache of trees out of the index to come if it names one that the repository lacks,
    /// which git would complain of: with the older commits of a branch that stays its trees are
    /// gone.
    fn forget_lost_trees(&mut self, given: &HashSet<ObjectId>) {
        let Some(index) = self.index() else { return };
        let objects = RepositoryObjects::open(&self.plan.common_dir());
        // git need not have it anywhere.
        let is_lost =
            |id: &ObjectId| *id != empty_tree_id() && !given.contains(id) && !objects.has(*id);
        if !user_index::cached_trees(index).iter().any(is_lost) {
            return;
        }
        let Ok(without) = user_index::without_cached_trees(index) else {
            return;
        };
        match self.replaced.as_ref() == Some(&without) {
            true => self.leave_index(),
            false => self.replace_index(without),
        }
    }

    /// Lets git go on to see `files` of the workspace, which stay on disk though they were not
    /// there by the index to come. Names those that it cannot.
    pub(crate) fn keep_in_sight(&mut self, files: &BTreeSet<RelPath>) {
        let Some(to) = self.index().filter(|_| !files.is_empty()) else {
            return;
        };
        let in_repository = |path: &RelPath| {
            path.names()
                .fold(self.scope.clone(), |at, name| at.join(name))
        };
        let in_repository = files.iter().map(in_repository).collect();
        match sight::keep(self.replaced.as_deref(), to, &in_repository) {
            Sight::AsIs => {}
            Sight::Index(bytes) => self.replace_index(bytes),
            Sight::Hides(hidden) => {
                let [first, ..] = &hidden[..] else { return };
                let message = format!(
                    "git does not see what is at {}, such as {first}: the index leaves it out of the work tree; git \
                     update-index --no-skip-worktree takes a path in",
                    match hidden.len() {
                        1 => "1 path".to_owned(),
                        many => format!("{many} paths"),
                    }
                );
                self.plan.note(ErrorKind::Unsupported, message);
            }
        }
    }

    fn replace_index(&mut self, mut bytes: Vec<u8>) {
        let Some(IndexMove {
            to: IndexGoal::Write { bytes: length, .. },
            ..
        }) = &mut self.plan.index
        else {
            return;
        };
        let before = usize::try_from(*length).expect("they are in memory");
        *length = bytes.len() as u64;
        self.in_question = None;
        bytes.extend(self.staged.iter().flat_map(|staged| &staged[before..]));
        self.staged = Some(bytes);
    }

    fn leave_index(&mut self) {
        // What else is staged comes after it.
        self.replace_index(Vec::new());
        self.plan.index = None;
        self.staged = self.staged.take().filter(|staged| !staged.is_empty());
    }

    /// The bytes that the index gets, if it gets some.
    fn index(&self) -> Option<&[u8]> {
        let Some(IndexGoal::Write { bytes, .. }) = self.plan.index.as_ref().map(|index| index.to)
        else {
            return None;
        };
        let end = usize::try_from(bytes).expect("they are in memory");
        self.staged.as_deref()?.get(..end)
    }

    /// What it changes, for the plan.
    pub(crate) fn changes(&self) -> RepositoryChanges {
        let plan = &self.plan;
        let head = plan.head.iter().map(HeadMove::change);
        let branches = plan.branches.iter().map(BranchMove::change);
        RepositoryChanges::new(
            head.chain(branches).collect(),
            plan.index.as_ref().map(|index| index.change(self.index())),
            Vec::from_iter(plan.files.all()),
            plan.notes(),
        )
    }

    fn nothing(note: RepositoryProblem) -> Self {
        Self {
            plan: RepositoryPlan {
                notes: vec![note],
                ..RepositoryPlan::default()
            },
            staged: None,
            replaced: None,
            scope: RelPath::root(),
            seen: None,
            in_question: None,
            history: None,
            refs_stay: RefsStay::No,
            were_to_move: false,
            changes_commit: false,
            index_stays: None,
            told_of_index: None,
            _lock: None,
        }
    }
}

/// Whether the commit is there, with all parents that it names. Where that cannot be told, it is
/// taken to be.
fn has_with_parents(op: &Operation, objects: &RepositoryObjects, id: ObjectId) -> bool {
    let commit = objects.commit(op, id, MAX_COMMIT_BYTES).unwrap_or_default();
    let mut parents = history::parents_of(id, &commit).into_iter();
    objects.has(id) && parents.all(|parent| objects.has(parent))
}

impl RepositoryPlan {
    /// What a reflog says of it.
    fn told(&self) -> &'static str {
        match (self.is_merge(), self.is_switch()) {
            (true, _) => "stillframe: merge",
            (false, true) => "stillframe: resume",
            (false, false) => "stillframe: roll back",
        }
    }

    /// Whether it goes to a branch, or on with one.
    fn is_switch(&self) -> bool {
        self.operation.starts_with(SWITCH) || self.is_merge()
    }

    /// Whether all that a merge needs goes with it: the branch moves, and nothing had to be left.
    pub(crate) fn is_whole_merge(&self) -> bool {
        self.is_merge() && !self.branches.is_empty() && self.notes.is_empty()
    }

    /// Whether it goes on with the branch that HEAD names.
    pub(crate) fn is_merge(&self) -> bool {
        self.operation.starts_with(MERGE)
    }

    /// As it is kept in the journal of the restore.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        codec::serialize(self, u64::MAX).expect("there is no limit")
    }

    /// Reads what [`RepositoryPlan::to_bytes`] wrote.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, StoreError> {
        codec::deserialize(bytes).ok_or_else(|| {
            let how = "what it says of the repository cannot be decoded";
            StoreError::corrupt(journal::FILE, how)
        })
    }

    /// Whether they are what [`RepositoryPlan::to_bytes`] wrote.
    pub(crate) fn check(bytes: &[u8]) -> Result<(), StoreError> {
        Self::from_bytes(bytes).map(drop)
    }

    fn at(found: &FoundRepository, now: Timestamp) -> Result<Self, RestoreError> {
        let inode = |path: &Path| {
            std::fs::metadata(path)
                .map(|m| m.ino())
                .map_err(prepare_error("look at", path))
        };
        Ok(Self {
            git_dir: found.git_dir.as_os_str().as_bytes().to_vec(),
            git_inode: inode(&found.git_dir)?,
            common_dir: found.common_dir.as_os_str().as_bytes().to_vec(),
            common_inode: inode(&found.common_dir)?,
            operation: uuid::Uuid::new_v4().simple().to_string(),
            at: now.as_second(),
            ..Self::default()
        })
    }

    /// The safety refs that it makes, by name.
    pub(crate) fn safety_refs(&self) -> BTreeMap<String, ObjectId> {
        self.tags.iter().cloned().collect()
    }

    /// Whether nothing of the repository is to be changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.tags.is_empty()
            && self.branches.is_empty()
            && self.head.is_none()
            && self.index.is_none()
            && self.files.is_empty()
    }

    /// Whether HEAD or a branch is to go somewhere.
    fn moves_refs(&self) -> bool {
        !self.branches.is_empty() || self.head.is_some()
    }

    /// Whether the repository is to have all commits that were kept: HEAD or a branch goes to them,
    /// or would if what comes before them were there.
    fn takes_history(&self, request: &Request<'_>, found: &FoundRepository) -> bool {
        let tip = request.before.head.commit();
        self.moves_refs()
            || tip.is_some_and(|tip| !RepositoryObjects::open(&found.common_dir).has(tip))
    }

    /// Whether it takes bytes that are staged.
    fn takes_bytes(&self) -> bool {
        let index = self.index.as_ref().map(|index| index.to);
        matches!(index, Some(IndexGoal::Write { .. })) || !self.files.coming.is_empty()
    }

    /// What cannot be put back; `None` if there is nothing of that kind.
    pub(crate) fn notes(&self) -> Option<RepositoryProblem> {
        RepositoryProblem::of_all(&self.notes)
    }

    fn note(&mut self, kind: ErrorKind, message: impl Into<String>) {
        self.notes.push(RepositoryProblem::new(kind, message));
    }

    /// Notes it unless an earlier look has.
    fn note_once(&mut self, problem: RepositoryProblem) {
        if !self.notes.contains(&problem) {
            self.notes.push(problem);
        }
    }

    /// Where the lock of [`lock_repository`] belongs.
    pub(crate) fn common_dir(&self) -> PathBuf {
        path_of(&self.common_dir)
    }

    /// Plans where HEAD and branches go; fails with why nothing of the repository goes anywhere, if
    /// that is so.
    fn move_back(
        &mut self,
        op: &Operation,
        request: &Request<'_>,
        found: &FoundRepository,
        after: &GitState,
        history: &List,
    ) -> Result<RefsStay, Stays> {
        let planned = Refs::open(&found.common_dir).and_then(|refs| {
            let now = |name: &str| refs.resolve(op, name);
            let mut moves = match Moves::between(request.before, after, &now)? {
                Ok(moves) => moves,
                Err(moved) => return Ok(Err(Stays::Moved(moved))),
            };
            moves
                .unnamed
                .retain(|commit| !request.reached.contains(commit));
            let taken = worktrees::taken_elsewhere(op, &found.common_dir, &found.git_dir);
            let taken = |branch: &str| taken.get(branch).cloned();
            let room = room::Room {
                refs: &refs,
                moves: &moves,
                head: &found.head,
                run_id: request.run_id,
                taken: &taken,
            };
            if let Some(problem) = room.problem(op)? {
                return Ok(Err(Stays::NoRoom(problem)));
            }
            let tags = free_names(op, &refs, request.run_id, &moves.unnamed)?;
            Ok(Ok((moves, tags)))
        });
        let (mut moves, tags) = match planned {
            Ok(Ok(planned)) => planned,
            Ok(Err(stays)) => return Err(stays),
            // The run left a trap there. That must not keep it from being rolled back otherwise.
            Err(error) => {
                let what = "HEAD and branch were left where they are";
                self.notes.push(error.problem(what));
                return Ok(RefsStay::Yes);
            }
        };
        let objects = RepositoryObjects::open(&found.common_dir);
        let is_lost = |commit: &ObjectId| !objects.has(*commit) && !history.has(commit);
        let has = |id: &ObjectId| objects.has(*id);
        let lost = moves.destinations().find(is_lost);
        let lost = lost.map(|commit| format!("commit {commit} is not in the repository any more"));
        let lost = lost.or_else(|| {
            // Some of it may be there, as an earlier undo that came to the gap has left it.
            moves.destinations().find(|id| history.has(id))?;
            // With grafts git looks for other parents than a commit has.
            let grafts = found.common_dir.join("info/grafts");
            if std::fs::symlink_metadata(grafts).is_ok() {
                return None;
            }
            let shallow = shallow_in(&found.common_dir);
            let goes_on = |id: &ObjectId| has_with_parents(op, &objects, *id);
            let gap = history.gap(&has, &goes_on, &shallow);
            gap.map(|gap| gap.to_string())
        });
        if let Some(lost) = lost {
            let stay = format!("HEAD and branch were left at {}", described(&after.head));
            self.note(ErrorKind::Corrupt, format!("{lost}: {stay}"));
            return Ok(RefsStay::Yes);
        }
        let head = request.before.head.commit();
        if let Some(commit) = head.filter(is_lost) {
            self.note(
                ErrorKind::Corrupt,
                format!("commit {commit}, which HEAD named, is not in the repository any more"),
            );
        }
        for left in std::mem::take(&mut moves.notes) {
            self.note(ErrorKind::HeadMoved, left);
        }
        (self.tags, self.branches, self.head) = (tags, moves.branches, moves.head);
        Ok(RefsStay::No)
    }

    /// Waits until nobody holds HEAD or a ref that is to be written.
    fn wait_for_refs(
        &self,
        op: &Operation,
        found: &FoundRepository,
        deadline: Deadline,
    ) -> Result<Waited, RestoreError> {
        let tags = self.tags.iter().map(|(name, _)| name.as_str());
        let branches = self.branches.iter().map(|branch| branch.name.as_str());
        let deletes = self.branches.iter().any(|branch| branch.to.is_none());
        let shared = tags.chain(branches).chain(deletes.then_some(PACKED_REFS));
        let head = self.head.iter().map(|_| ("HEAD", &found.git_dir));
        let mut waited = Waited::No;
        for (name, directory) in shared.map(|name| (name, &found.common_dir)).chain(head) {
            let (above, leaf) = split(name);
            // What cannot be opened here cannot be written later either; that write reports it.
            let opened = open_directory(directory)
                .ok()
                .and_then(|fd| open_below(op, fd.as_fd(), above, Create::No).ok().flatten());
            if let Some(opened) = opened
                && wait_for_lock(op, opened.as_fd(), leaf, &directory.join(above), deadline)?
                    == Waited::Yes
            {
                waited = Waited::Yes;
            }
        }
        Ok(waited)
    }

    /// Plans what the index becomes; answers with its bytes.
    fn put_index_back(
        &mut self,
        op: &Operation,
        request: &Request<'_>,
        found: &FoundRepository,
        after: &GitState,
        deadline: Deadline,
    ) -> Result<IndexBytes, RestoreError> {
        let read = open_directory(&found.git_dir).and_then(|git_dir| {
            let bytes = read_file(git_dir.as_fd(), b"index", MAX_INDEX_BYTES, &found.git_dir)?;
            Ok((git_dir, bytes))
        });
        let (git_dir, now) = match read {
            Ok(read) => read,
            Err(error) => {
                self.notes
                    .push(error.problem("the index was left as it is"));
                return Ok(IndexBytes::default());
            }
        };
        let kept = |blob: &Option<ObjectId>| blob.as_ref().map(request.index_bytes).transpose();
        let wanted = kept(&request.before.index)?;
        if wanted == now {
            return Ok(IndexBytes::default());
        }
        let Some(from) = IndexSeen::of(now.as_deref()) else {
            let what = "the index is half of a SHA-1 collision, and was left as it is";
            self.note(ErrorKind::Unsupported, what);
            return Ok(IndexBytes::default());
        };
        if request.way == Way::BackBesideEdits {
            let then = kept(&after.index)?;
            if !from.is(then.as_deref()) {
                let what = "the index was changed since, and was kept";
                return Ok(IndexBytes {
                    stays: Some(RepositoryProblem::new(ErrorKind::Conflict, what)),
                    ..IndexBytes::default()
                });
            }
        }
        wait_for_lock(op, git_dir.as_fd(), "index", &found.git_dir, deadline)?;
        let Some(bytes) = wanted else {
            let to = IndexGoal::Remove;
            self.index = Some(IndexMove { from, to });
            return Ok(IndexBytes::default());
        };
        let to = IndexGoal::write(&bytes, request.before.index_modified_ns);
        self.index = Some(IndexMove { from, to });
        Ok(IndexBytes {
            comes: Some(bytes),
            goes: now,
            stays: None,
        })
    }

    /// Plans what the files of git's operations become, and adds their bytes to those that are
    /// staged.
    fn put_operation_back(
        &mut self,
        op: &Operation,
        request: &Request<'_>,
        found: &FoundRepository,
        mut operation: OperationMove,
        staged: &mut Option<Vec<u8>>,
        deadline: Deadline,
    ) -> Result<(), RestoreError> {
        if operation.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        for file in &mut operation.coming {
            let kept = match file.to {
                Some(blob) if is_operation_path(&file.name) => (request.index_bytes)(&blob),
                _ => Err(StoreError::corrupt(&file.name, "it is no file of git's")),
            };
            match kept {
                Ok(kept) => {
                    file.bytes = kept.len() as u64;
                    bytes.extend(kept);
                }
                Err(error @ StoreError::Corrupt { .. }) => {
                    let what = "the files of git's operation cannot be put back";
                    self.note(ErrorKind::Corrupt, format!("{what}: {}", chain(&error)));
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
        for path in operation.paths() {
            let (above, name) = split(path);
            // As with a ref: if it cannot be opened here, the later write reports it.
            let opened = open_directory(&found.git_dir)
                .ok()
                .and_then(|fd| open_below(op, fd.as_fd(), above, Create::No).ok().flatten());
            if let Some(opened) = opened {
                wait_for_lock(
                    op,
                    opened.as_fd(),
                    name,
                    &found.git_dir.join(above),
                    deadline,
                )?;
            }
        }
        if !operation.coming.is_empty() {
            staged.get_or_insert_default().extend(bytes);
        }
        self.files = operation;
        Ok(())
    }
}

/// The list of the commits that the snapshot which is gone back to kept. One that is damaged has
/// none: `verify` names it. Of one that cannot be read now, what keeps it from that.
fn kept_history(request: &Request<'_>) -> (List, Option<RepositoryProblem>) {
    let list = request.before.history.as_ref();
    match list.map(|list| List::read(list, request.index_bytes)) {
        Some(Ok(list)) => (list, None),
        None | Some(Err(StoreError::Corrupt { .. })) => (List::default(), None),
        Some(Err(error)) => {
            let message = format!(
                "what the snapshot keeps of commits cannot be read: {}",
                chain(&error)
            );
            let problem = RepositoryProblem::new(error.kind(), message);
            (List::default(), Some(problem))
        }
    }
}

/// Where the history of a repository ends. Where that cannot be read, git cannot go by it either.
fn shallow_in(common_dir: &Path) -> Shallow {
    let read = open_directory(common_dir)
        .and_then(|fd| read_file(fd.as_fd(), b"shallow", MAX_SHALLOW_BYTES, common_dir));
    let text = read.ok().flatten();
    text.and_then(|text| Shallow::parse(&text))
        .unwrap_or_default()
}

/// Whether the index stages something else than `after` saw. One that cannot be read does.
fn is_index_edited(
    request: &Request<'_>,
    found: &FoundRepository,
    after: &GitState,
) -> Result<bool, RestoreError> {
    let read = open_directory(&found.git_dir)
        .and_then(|fd| read_file(fd.as_fd(), b"index", MAX_INDEX_BYTES, &found.git_dir));
    let Ok(now) = read else {
        return Ok(true);
    };
    let then = after.index.as_ref().map(request.index_bytes).transpose()?;
    let was = IndexSeen::of(then.as_deref());
    Ok(!was.is_some_and(|was| was.is(now.as_deref())))
}

/// What git calls an operation, for the error.
fn operation_name(operation: &str) -> &'static str {
    ["merge", "rebase", "cherry-pick", "revert", "bisect"]
        .into_iter()
        .find(|name| *name == operation)
        .unwrap_or("git operation")
}

fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes.to_vec()))
}

fn prepare_error(
    operation: &'static str,
    path: &Path,
) -> impl FnOnce(std::io::Error) -> RestoreError {
    let at = PathError::at(operation, path);
    move |source| RestoreError::Prepare(at(source))
}

const FOREIGN_HOLDER: &str = "another process, or by what is left of one";

/// Whether HEAD and branches stay where they are, though they were to go somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefsStay {
    Yes,
    No,
}

/// Whether somebody held a lock for a while.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    Yes,
    No,
}

/// Waits until nobody holds the file `name` of `directory`, which is `at`. The lock is looked at,
/// never touched.
pub(super) fn wait_for_lock(
    op: &Operation,
    directory: BorrowedFd<'_>,
    name: &str,
    at: &Path,
    deadline: Deadline,
) -> Result<Waited, RestoreError> {
    let lock = format!("{name}.lock");
    let mut waited = Waited::No;
    while descriptor::lstat_at(directory, lock.as_bytes()).is_ok() {
        waited = Waited::Yes;
        if !deadline.pause(op) {
            return Err(RestoreError::Busy {
                what: printable(&at.join(&lock)),
                holder: FOREIGN_HOLDER.to_owned(),
            });
        }
    }
    Ok(waited)
}

#[cfg(test)]
mod tests;
