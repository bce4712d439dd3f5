//! Putting back what a run did to the repository itself: index, HEAD and branch.
//!
//! This is the only code that writes in a user's repository. It follows git's own protocol (the
//! new content in full in `<file>.lock`, which must not exist yet, then a rename), and not
//! libgit2's: a lock is a hard link to a file that carries the operation's id, so that after a
//! crash we know our own from a foreign one, and every directory on the way is opened without
//! following a link. No hook runs, and no configuration is read.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use jiff::Timestamp;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::backend::{RestoreError, StoreError};
use crate::error::PathError;
use crate::git::ObjectId;
use crate::path::printable_bytes;
use crate::patience::Patience;
use crate::record::{GitState, Head};
use crate::workspace::{Identity, LockError, LockFile, StateDir, make_private};
use crate::worktree::durable;
use crate::worktree::faults;
use crate::worktree::root::{self, Stat};

/// How long a lock in the user's repository is waited for: git holds one for moments, and one
/// that stays is what a killed git left.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// The most that is read of a loose ref or of HEAD; git writes far less.
const MAX_REF_BYTES: u64 = 4096;
/// The most that is read of `packed-refs`: some ten million refs.
const MAX_PACKED_REFS_BYTES: u64 = 1024 * 1024 * 1024;
const PACKED_REFS: &str = "packed-refs";
/// The most that is read of an index: some ten million paths.
const MAX_INDEX_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// A run is rolled back a few times at most; a repository with more tags of one run is broken.
const MAX_TAGS: u32 = 1000;
/// Who moves a ref, in a reflog.
const COMMITTER: &str = "Stillframe <stillframe@localhost>";

/// The user's repository as a rollback finds it.
#[derive(Clone, Debug)]
pub(crate) struct FoundRepository {
    /// The directory with HEAD and the index; that of a linked worktree lies in the main one's.
    pub(crate) git_dir: PathBuf,
    /// The directory with the refs and the objects.
    pub(crate) common_dir: PathBuf,
    /// Of the latter.
    pub(crate) identity: Identity,
    /// What HEAD names now.
    pub(crate) head: Head,
    /// merge, rebase, cherry-pick, revert or bisect, if one is in progress.
    pub(crate) in_progress: Option<String>,
}

/// What is asked to be put back.
pub(crate) struct Request<'a> {
    pub(crate) state: &'a StateDir,
    /// A private directory for what has to lie in a file to be read.
    pub(crate) scratch: &'a Path,
    /// `None`: it is gone.
    pub(crate) found: Option<&'a FoundRepository>,
    pub(crate) before: &'a GitState,
    /// `None`: it was gone, or not captured.
    pub(crate) after: Option<&'a GitState>,
    pub(crate) run_id: &'a str,
    /// Keep what is not as `after` saw it, where a rollback would refuse.
    pub(crate) keeps_edits: bool,
    /// The bytes of an index that a snapshot kept.
    pub(crate) index_bytes: &'a dyn Fn(&ObjectId) -> Result<Vec<u8>, StoreError>,
    /// For the reflog.
    pub(crate) now: Timestamp,
    pub(crate) patience: Duration,
}

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
    /// The safety tags: that of a branch's old tip first.
    tags: Vec<(String, ObjectId)>,
    branches: Vec<BranchMove>,
    head: Option<HeadMove>,
    index: Option<IndexChange>,
    /// What cannot be put back, in words.
    notes: Vec<String>,
}

/// A branch whose tip goes back. `None` is a branch that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct BranchMove {
    name: String,
    from: Option<ObjectId>,
    to: Option<ObjectId>,
    /// HEAD names it all the while, so that HEAD's reflog tells of it, too.
    is_heads: bool,
}

/// HEAD, as the text of the file without its line end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HeadMove {
    from: String,
    to: String,
    /// The commits, for the reflog.
    commits: (Option<ObjectId>, Option<ObjectId>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum IndexChange {
    /// Put back the staged bytes.
    Write,
    /// There was none.
    Remove,
}

/// A checked plan, and the repository's lock: nothing else of ours writes there meanwhile.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) plan: RepositoryPlan,
    /// The bytes that the index gets.
    pub(crate) index: Option<Vec<u8>>,
    _lock: Option<LockFile>,
}

/// What became of the repository.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The full name of the tag that keeps the old tip.
    pub(crate) safety_tag: Option<String>,
    /// What could not be put back, in words.
    pub(crate) error: Option<String>,
}

/// Why a part of the repository could not be put back.
#[derive(Debug, thiserror::Error)]
enum PutError {
    #[error(transparent)]
    Io(#[from] PathError),
    #[error("{what} is locked by another process, or by what is left of one")]
    Locked { what: String },
    #[error("{what} is {found} and not {expected}")]
    Moved {
        what: String,
        expected: String,
        found: String,
    },
    #[error("{what} is {problem}")]
    Unsafe { what: String, problem: &'static str },
}

/// Decides what has to be put back. Refuses where somebody else was at work since `after`.
/// Writes nothing in the repository.
pub(crate) fn prepare(request: &Request<'_>) -> Result<Prepared, RestoreError> {
    let (Some(found), Some(after)) = (request.found, request.after) else {
        let note = "the repository is gone: its index, HEAD and branch were not put back";
        return Ok(Prepared::nothing(note));
    };
    if let Some(operation) = &found.in_progress
        && request.before.in_progress.as_ref() != Some(operation)
    {
        return Err(RestoreError::InProgress {
            operation: operation_name(operation),
        });
    }
    let lock = lock_repository(request.state, &found.common_dir, request.patience)?;
    let mut plan = RepositoryPlan::at(found, request.now)?;
    let mut index = None;
    let moved = if found.head == after.head {
        plan.move_back(request, found, after)
    } else {
        Some(HeadMoved::of_head(&after.head, &found.head))
    };
    match moved {
        None => index = plan.put_index_back(request, found, after)?,
        Some(moved) if request.keeps_edits => plan.notes.push(format!(
            "{} is at {}, not at {} where the operation left it: HEAD, branch and index were kept",
            moved.what, moved.found, moved.expected
        )),
        Some(HeadMoved {
            what,
            expected,
            found,
        }) => {
            return Err(RestoreError::HeadMoved {
                what,
                expected,
                found,
            });
        }
    }
    Ok(Prepared {
        plan,
        index,
        _lock: Some(lock),
    })
}

/// Puts back what the plan says. Safe to repeat: what is right already is left alone.
///
/// A part that cannot be put back ends it, since the parts after it rest on it. What was not done
/// is in the answer.
pub(crate) fn carry_out(
    plan: &RepositoryPlan,
    index: impl FnOnce() -> Result<Vec<u8>, PathError>,
    is_recovery: bool,
    patience: Duration,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut problems = plan.notes.clone();
    if !plan.is_empty() {
        let hand = Hand {
            plan,
            is_recovery,
            patience,
        };
        if let Err(error) = hand.carry_out(index, &mut outcome.safety_tag) {
            problems.push(format!("not everything was put back: {}", chain(&error)));
        }
    }
    if !problems.is_empty() {
        outcome.error = Some(problems.join("; "));
    }
    outcome
}

/// Takes the lock that all of our processes share for one repository, whatever the worktree.
pub(crate) fn lock_repository(
    state: &StateDir,
    common_dir: &Path,
    patience: Duration,
) -> Result<LockFile, RestoreError> {
    let meta = std::fs::metadata(common_dir).map_err(prepare_error("look at", common_dir))?;
    let directory = state.path().join("repositories");
    make_private(&directory).map_err(RestoreError::Prepare)?;
    let name = format!("{:x}-{:x}.lock", meta.dev(), meta.ino());
    let what = format!("the repository {}", crate::error::printable(common_dir));
    LockFile::acquire(&directory.join(name), &what, patience).map_err(|error| match error {
        LockError::Busy { what, holder } => RestoreError::Busy { what, holder },
        LockError::Io(source) => RestoreError::Prepare(source),
    })
}

impl Prepared {
    fn nothing(note: &str) -> Self {
        Self {
            plan: RepositoryPlan {
                notes: vec![note.to_owned()],
                ..RepositoryPlan::default()
            },
            index: None,
            _lock: None,
        }
    }
}

impl RepositoryPlan {
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

    /// Whether nothing of the repository is to be changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.tags.is_empty()
            && self.branches.is_empty()
            && self.head.is_none()
            && self.index.is_none()
    }

    /// What cannot be put back, in words; `None` if there is nothing of that kind.
    pub(crate) fn notes(&self) -> Option<String> {
        (!self.notes.is_empty()).then(|| self.notes.join("; "))
    }

    /// Where the lock of [`lock_repository`] belongs.
    pub(crate) fn common_dir(&self) -> PathBuf {
        path_of(&self.common_dir)
    }

    /// Plans where HEAD and branches go; answers with what somebody moved since `after`, if
    /// anything.
    fn move_back(
        &mut self,
        request: &Request<'_>,
        found: &FoundRepository,
        after: &GitState,
    ) -> Option<HeadMoved> {
        let planned = Refs::open(&found.common_dir).and_then(|refs| {
            let now = |name: &str| refs.resolve(name);
            let moves = Moves::between(request.before, after, &now)?;
            let tags = match &moves {
                Ok(moves) => free_tags(&refs, request.run_id, &moves.unnamed)?,
                Err(_) => Vec::new(),
            };
            Ok((moves, tags))
        });
        let (mut moves, tags) = match planned {
            Ok((Ok(moves), tags)) => (moves, tags),
            Ok((Err(moved), _)) => return Some(moved),
            // The run left a trap there. That must not keep it from being rolled back otherwise.
            Err(error) => {
                self.notes.push(format!(
                    "HEAD and branch were left where they are: {}",
                    chain(&error)
                ));
                return None;
            }
        };
        let objects = Objects::open(&found.common_dir);
        let lost = moves.destinations().find(|commit| !objects.has(*commit));
        if let Some(commit) = lost {
            self.notes.push(format!(
                "commit {commit} is not in the repository any more: HEAD and branch were left at {}",
                described(&after.head)
            ));
            return None;
        }
        self.notes.append(&mut moves.notes);
        (self.tags, self.branches, self.head) = (tags, moves.branches, moves.head);
        None
    }

    /// Plans what the index becomes; answers with its bytes.
    fn put_index_back(
        &mut self,
        request: &Request<'_>,
        found: &FoundRepository,
        after: &GitState,
    ) -> Result<Option<Vec<u8>>, RestoreError> {
        let read = open_directory(&found.git_dir).and_then(|git_dir| {
            let bytes = read_file(git_dir.as_fd(), b"index", MAX_INDEX_BYTES, &found.git_dir)?;
            Ok((git_dir, bytes))
        });
        let (git_dir, now) = match read {
            Ok(read) => read,
            Err(error) => {
                self.notes
                    .push(format!("the index was left as it is: {}", chain(&error)));
                return Ok(None);
            }
        };
        let kept = |blob: &Option<ObjectId>| blob.as_ref().map(request.index_bytes).transpose();
        let wanted = kept(&request.before.index)?;
        if wanted == now {
            return Ok(None);
        }
        if request.keeps_edits {
            let then = kept(&after.index)?;
            if !same_index(request.scratch, then.as_deref(), now.as_deref())? {
                self.notes
                    .push("the index was changed since, and was kept".to_owned());
                return Ok(None);
            }
        }
        wait_for_lock(git_dir.as_fd(), found, request.patience)?;
        let Some(bytes) = wanted else {
            self.index = Some(IndexChange::Remove);
            return Ok(None);
        };
        let lacking = give_objects_back(request, &found.common_dir, &bytes)?;
        if let Some(first) = lacking.first() {
            self.notes.push(format!(
                "the index names {} objects that the repository lacks, such as {first}",
                lacking.len()
            ));
        }
        self.index = Some(IndexChange::Write);
        Ok(Some(bytes))
    }
}

/// What git calls an operation, for the error.
fn operation_name(operation: &str) -> &'static str {
    ["merge", "rebase", "cherry-pick", "revert", "bisect"]
        .into_iter()
        .find(|name| *name == operation)
        .unwrap_or("git operation")
}

/// Something that is not where the operation left it.
#[derive(Debug, PartialEq, Eq)]
struct HeadMoved {
    /// HEAD, or the full name of a branch.
    what: String,
    expected: String,
    found: String,
}

impl HeadMoved {
    fn of_head(expected: &Head, found: &Head) -> Self {
        match (expected.branch(), found.branch()) {
            (Some(a), Some(b)) if a == b => Self::of_branch(a, expected.commit(), found.commit()),
            _ => Self {
                what: "HEAD".to_owned(),
                expected: described(expected),
                found: described(found),
            },
        }
    }

    fn of_branch(name: &str, expected: Option<ObjectId>, found: Option<ObjectId>) -> Self {
        Self {
            what: name.to_owned(),
            expected: shown(expected),
            found: shown(found),
        }
    }
}

/// Where HEAD and branches go.
#[derive(Debug, Default, PartialEq, Eq)]
struct Moves {
    branches: Vec<BranchMove>,
    head: Option<HeadMove>,
    /// The commits that no branch names afterwards, and HEAD neither: a branch's old tip first.
    unnamed: Vec<ObjectId>,
    /// What is left where it is, in words.
    notes: Vec<String>,
}

impl Moves {
    /// What takes HEAD, its branch and the branches that both states know from `after` to `before`,
    /// while HEAD is as `after` has it. `now` says where a branch is by now.
    ///
    /// A branch is moved only if the operation moved it, and if it is where the operation left it.
    fn between(
        before: &GitState,
        after: &GitState,
        now: &dyn Fn(&str) -> Result<Option<ObjectId>, PutError>,
    ) -> Result<Result<Self, HeadMoved>, PutError> {
        let (from, to) = (&after.head, &before.head);
        let mut moves = Self::default();
        if head_text(from) != head_text(to) {
            moves.head = Some(HeadMove {
                from: head_text(from),
                to: head_text(to),
                commits: (from.commit(), to.commit()),
            });
        }
        let left = after.tips();
        for (name, was) in before.tips() {
            let gets_head = moves.head.is_some() && to.branch() == Some(name);
            match left.get(name) {
                Some(left) if *left != was || gets_head => {
                    let found = now(name)?;
                    if found != *left {
                        return Ok(Err(HeadMoved::of_branch(name, *left, found)));
                    }
                    if found != was {
                        let is_heads = moves.head.is_none() && to.branch() == Some(name);
                        moves.branch(name, found, was, is_heads);
                    }
                }
                Some(_) => {}
                None if gets_head => moves.unseen_branch(name, now(name)?, was),
                None => {}
            }
        }
        if let Head::Detached { commit } = from
            && to.commit() != Some(*commit)
            && !moves.unnamed.contains(commit)
        {
            moves.unnamed.push(*commit);
        }
        Ok(Ok(moves))
    }

    fn branch(&mut self, name: &str, from: Option<ObjectId>, to: Option<ObjectId>, is_heads: bool) {
        self.unnamed
            .extend(from.filter(|commit| !self.unnamed.contains(commit)));
        self.branches.push(BranchMove {
            name: name.to_owned(),
            from,
            to,
            is_heads,
        });
    }

    /// HEAD goes back to a branch that nobody looked at after the operation, so it is not known who
    /// moved it.
    fn unseen_branch(&mut self, name: &str, now: Option<ObjectId>, to: Option<ObjectId>) {
        if now.is_none() && to.is_some() {
            // It was deleted or renamed. Made anew it takes nothing from anybody, and HEAD must not
            // name a branch that is not there.
            self.branch(name, None, to, false);
        } else if now != to {
            self.notes.push(format!(
                "{name} was at {} and is at {}; it was not looked at when HEAD named another branch, \
                 so it was left there",
                shown(to),
                shown(now)
            ));
        }
    }

    /// The commits that HEAD and branches go to.
    fn destinations(&self) -> impl Iterator<Item = ObjectId> {
        let branches = self.branches.iter().filter_map(|branch| branch.to);
        branches.chain(self.head.iter().filter_map(|head| head.commits.1))
    }
}

fn shown(commit: Option<ObjectId>) -> String {
    commit.map_or_else(|| "no commit".to_owned(), |c| c.to_string())
}

fn described(head: &Head) -> String {
    match head {
        Head::Unborn { branch } => format!("{branch} without a commit"),
        Head::Branch { branch, commit } => format!("{branch} ({commit})"),
        Head::Detached { commit } => format!("{commit}, detached"),
    }
}

fn head_text(head: &Head) -> String {
    match head {
        Head::Unborn { branch } | Head::Branch { branch, .. } => format!("ref: {branch}"),
        Head::Detached { commit } => commit.to_string(),
    }
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

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// A name for the safety tag of each commit that no other ref has, or that has this commit already.
///
/// A symbolic ref at the name is none of ours, and is not followed: the branch stays where it is.
fn free_tags(
    refs: &Refs,
    run_id: &str,
    commits: &[ObjectId],
) -> Result<Vec<(String, ObjectId)>, PutError> {
    // The one thing that a run's id may hold and a ref's name may not.
    let run = if run_id.contains("..") {
        run_id.replace('.', "%2e")
    } else {
        run_id.to_owned()
    };
    let name_of = |number| format!("refs/tags/stillframe/safety-{run}-{number}");
    let mut tags: Vec<(String, ObjectId)> = Vec::new();
    for commit in commits {
        let mut free = None;
        for name in (1..=MAX_TAGS).map(name_of) {
            let is_taken = tags.iter().any(|(taken, _)| *taken == name)
                || refs.resolve(&name)?.is_some_and(|taken| taken != *commit);
            if !is_taken {
                free = Some(name);
                break;
            }
        }
        let name = free.ok_or_else(|| PutError::Unsafe {
            what: name_of(MAX_TAGS),
            problem: "taken, and so are all before it",
        })?;
        tags.push((name, *commit));
    }
    Ok(tags)
}

/// Waits until nobody holds the index. The lock is looked at, never touched.
fn wait_for_lock(
    git_dir: BorrowedFd<'_>,
    found: &FoundRepository,
    patience: Duration,
) -> Result<(), RestoreError> {
    let patience = Patience::of(patience);
    while root::lstat_at(git_dir, b"index.lock").is_ok() {
        if !patience.pause() {
            return Err(RestoreError::Busy {
                what: crate::error::printable(&found.git_dir.join("index.lock")),
                holder: FOREIGN_HOLDER.to_owned(),
            });
        }
    }
    Ok(())
}

/// Whether two indexes stage the same: git rewrites the file for its stat data alone.
fn same_index(scratch: &Path, a: Option<&[u8]>, b: Option<&[u8]>) -> Result<bool, RestoreError> {
    let (Some(a), Some(b)) = (a, b) else {
        return Ok(a == b);
    };
    if a == b {
        return Ok(true);
    }
    Ok(
        match (staged_entries(scratch, a)?, staged_entries(scratch, b)?) {
            (Some(a), Some(b)) => a == b,
            _ => false,
        },
    )
}

/// Path, id, mode, flags and extended flags of an entry in the index.
type StagedEntry = (Vec<u8>, ObjectId, u32, u16, u16);

/// What an index stages; `None` if libgit2 cannot read it.
fn staged_entries(scratch: &Path, bytes: &[u8]) -> Result<Option<Vec<StagedEntry>>, RestoreError> {
    /// Stage and assume-unchanged; what is left out is the length of the name and a format bit.
    const FLAGS: u16 = 0xb000;
    /// skip-worktree and intent-to-add.
    const EXTENDED_FLAGS: u16 = 0x6000;
    let mut file = tempfile::NamedTempFile::new_in(scratch)
        .map_err(prepare_error("make a temporary file in", scratch))?;
    file.write_all(bytes)
        .map_err(prepare_error("write", file.path()))?;
    let Ok(index) = git2::Index::open(file.path()) else {
        return Ok(None);
    };
    let entries = index.iter().map(|e| {
        (
            e.path.clone(),
            e.id.into(),
            e.mode,
            e.flags & FLAGS,
            e.flags_extended & EXTENDED_FLAGS,
        )
    });
    Ok(Some(entries.collect()))
}

/// The objects that an index names and the repository has not.
fn lacking_objects(
    scratch: &Path,
    index: &[u8],
    common_dir: &Path,
) -> Result<Vec<ObjectId>, RestoreError> {
    const GITLINK: u32 = 0o160_000;
    /// An entry that was only announced (`git add -N`) has the empty blob, which need not exist.
    const INTENT_TO_ADD: u16 = 0x2000;
    let Some(entries) = staged_entries(scratch, index)? else {
        return Ok(Vec::new());
    };
    let objects = Objects::open(common_dir);
    let mut lacking: Vec<ObjectId> = entries
        .into_iter()
        .filter(|(_, id, mode, _, extended)| {
            *mode != GITLINK && extended & INTENT_TO_ADD == 0 && !objects.has(*id)
        })
        .map(|(_, id, ..)| id)
        .collect();
    lacking.sort_unstable();
    lacking.dedup();
    Ok(lacking)
}

/// Gives the repository the staged content that it has lost and the snapshot kept; answers with what
/// it still lacks.
///
/// An object more changes nothing that anybody sees, so it is written ahead of the intent: a crash
/// leaves at most content that git's housekeeping removes.
fn give_objects_back(
    request: &Request<'_>,
    common_dir: &Path,
    index: &[u8],
) -> Result<Vec<ObjectId>, RestoreError> {
    let mut lacking = lacking_objects(request.scratch, index, common_dir)?;
    lacking.retain(|id| {
        let Ok(content) = (request.index_bytes)(id) else {
            return true;
        };
        write_loose_blob(common_dir, id, &content).is_err()
    });
    Ok(lacking)
}

/// Writes a loose object as git does: under a temporary name, synced, then under its own.
fn write_loose_blob(common_dir: &Path, id: &ObjectId, content: &[u8]) -> Result<(), PathError> {
    let digits = id.to_string();
    let objects = common_dir.join("objects");
    let directory = objects.join(&digits[..2]);
    for path in [&objects, &directory] {
        match std::fs::symlink_metadata(path) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => {
                let trap = std::io::Error::other("it is no directory");
                return Err(PathError::at("write into", path)(trap));
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                std::fs::create_dir(path).map_err(PathError::at("make", path))?;
            }
            Err(e) => return Err(PathError::at("look at", path)(e)),
        }
    }
    let mut staged = tempfile::Builder::new()
        .prefix("tmp_obj_")
        .permissions(std::fs::Permissions::from_mode(0o444))
        .tempfile_in(&directory)
        .map_err(PathError::at("make a temporary file in", &directory))?;
    let mut encoder = ZlibEncoder::new(staged.as_file_mut(), Compression::fast());
    encoder
        .write_all(format!("blob {}\0", content.len()).as_bytes())
        .and_then(|()| encoder.write_all(content))
        .and_then(|()| encoder.finish().map(drop))
        .and_then(|()| staged.as_file().sync_all())
        .map_err(PathError::at("write", staged.path().to_owned()))?;
    let path = directory.join(&digits[2..]);
    match staged.persist_noclobber(&path) {
        Err(e) if e.error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(PathError::at("rename into", path)(e.error))
        }
        _ => durable::sync_directory(&directory),
    }
}

/// The objects of a repository, without the repository: no configuration is read.
struct Objects(Option<git2::Odb<'static>>);

impl Objects {
    fn open(common_dir: &Path) -> Self {
        let objects = common_dir.join("objects");
        // libgit2 would wait for ever on a FIFO of that name.
        let is_safe = std::fs::symlink_metadata(objects.join("info/alternates"))
            .map_or(true, |meta| meta.is_file());
        let open = || {
            let odb = git2::Odb::new().ok()?;
            odb.add_disk_alternate(objects.to_str()?).ok()?;
            Some(odb)
        };
        Self(is_safe.then(open).flatten())
    }

    /// Whether the object is there. Where that cannot be told, it is taken to be.
    fn has(&self, id: ObjectId) -> bool {
        self.0.as_ref().is_none_or(|odb| odb.exists(id.to_git2()))
    }
}

/// The refs of a repository, read as files.
struct Refs {
    common: OwnedFd,
    path: PathBuf,
}

impl Refs {
    fn open(common_dir: &Path) -> Result<Self, PutError> {
        Ok(Self {
            common: open_directory(common_dir)?,
            path: common_dir.to_owned(),
        })
    }

    /// The commit that a ref names; `None` if there is no such ref. A symbolic ref is an error.
    fn resolve(&self, name: &str) -> Result<Option<ObjectId>, PutError> {
        let (directory, leaf) = split(name);
        let loose = match open_below(self.common.as_fd(), directory, Create::No) {
            Ok(Some(fd)) => read_file(fd.as_fd(), leaf.as_bytes(), MAX_REF_BYTES, &self.path)?,
            Ok(None) => None,
            Err(errno) => return Err(self.unsafe_path(name, errno)),
        };
        let Some(text) = loose else {
            let packed = self.packed()?;
            return Ok(packed.as_deref().and_then(|p| find_packed(p, name)));
        };
        let text = String::from_utf8_lossy(&text);
        text.trim().parse().map(Some).map_err(|_| PutError::Unsafe {
            what: name.to_owned(),
            problem: "a symbolic ref, or damaged",
        })
    }

    fn packed(&self) -> Result<Option<Vec<u8>>, PutError> {
        read_file(
            self.common.as_fd(),
            PACKED_REFS.as_bytes(),
            MAX_PACKED_REFS_BYTES,
            &self.path,
        )
    }

    fn unsafe_path(&self, name: &str, errno: Errno) -> PutError {
        match errno {
            Errno::LOOP | Errno::NOTDIR => PutError::Unsafe {
                what: name.to_owned(),
                problem: "below a link, or below another ref",
            },
            errno => PathError::at("open", self.path.join(name))(errno).into(),
        }
    }
}

fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or(("", name))
}

/// The id of `name` in the text of `packed-refs`.
fn find_packed(text: &[u8], name: &str) -> Option<ObjectId> {
    text.split(|b| *b == b'\n').find_map(|line| {
        let (id, rest) = line.split_at_checked(40)?;
        if rest.strip_prefix(b" ")?.trim_ascii_end() != name.as_bytes() {
            return None;
        }
        std::str::from_utf8(id).ok()?.parse().ok()
    })
}

/// The text of `packed-refs` without `name`, and without the line that peels it.
fn without_packed(text: &[u8], name: &str) -> Vec<u8> {
    let mut kept = Vec::with_capacity(text.len());
    let mut is_dropping = false;
    for line in text.split_inclusive(|b| *b == b'\n') {
        is_dropping = if line.starts_with(b"^") {
            is_dropping
        } else {
            line.get(40..)
                .and_then(|rest| rest.strip_prefix(b" "))
                .is_some_and(|rest| rest.trim_ascii_end() == name.as_bytes())
        };
        if !is_dropping {
            kept.extend_from_slice(line);
        }
    }
    kept
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

fn open_directory(path: &Path) -> Result<OwnedFd, PutError> {
    Ok(rustix::fs::open(path, DIRECTORY, Mode::empty()).map_err(PathError::at("open", path))?)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Create {
    Yes,
    No,
}

/// Opens a directory below `from`, no component of which is a link; `None` if it is not there.
fn open_below(
    from: BorrowedFd<'_>,
    path: &str,
    create: Create,
) -> rustix::io::Result<Option<OwnedFd>> {
    let mut at = rustix::fs::openat(from, c".", DIRECTORY, Mode::empty())?;
    for name in path.split('/').filter(|n| !n.is_empty()) {
        let open = || rustix::fs::openat(&at, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
        let next = match open() {
            Err(Errno::NOENT) if create == Create::No => return Ok(None),
            Err(Errno::NOENT) => {
                let above = rustix::fs::fstat(&at)?;
                faults::before().map_err(|_| Errno::IO)?;
                let mode = Mode::from_raw_mode(above.st_mode & 0o777);
                match rustix::fs::mkdirat(&at, name, mode) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
                let made = open()?;
                give_to(made.as_fd(), &above)?;
                made
            }
            other => other?,
        };
        at = next;
    }
    Ok(Some(at))
}

/// Gives what root made in somebody's repository to them.
fn give_to(fd: BorrowedFd<'_>, like: &rustix::fs::Stat) -> rustix::io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    rustix::fs::fchown(
        fd,
        Some(Uid::from_raw(like.st_uid)),
        Some(Gid::from_raw(like.st_gid)),
    )
}

/// Reads a regular file of the repository; `None` if there is none.
fn read_file(
    directory: BorrowedFd<'_>,
    name: &[u8],
    max_bytes: u64,
    at: &Path,
) -> Result<Option<Vec<u8>>, PutError> {
    let path = at.join(OsString::from_vec(name.to_vec()));
    let unsafe_file = |problem| PutError::Unsafe {
        what: crate::error::printable(&path),
        problem,
    };
    let file = match root::open_file_at(directory, name) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(unsafe_file("a link")),
        Err(errno) => return Err(PathError::at("open", &path)(errno).into()),
    };
    let stat = root::fstat(&file).map_err(PathError::at("look at", &path))?;
    if stat.file_type() == FileType::Directory {
        return Ok(None);
    }
    if stat.file_type() != FileType::RegularFile {
        return Err(unsafe_file("no regular file"));
    }
    if stat.size > max_bytes {
        return Err(unsafe_file("larger than any that git writes"));
    }
    let mut bytes = Vec::new();
    file.take(max_bytes)
        .read_to_end(&mut bytes)
        .map_err(PathError::at("read", &path))?;
    Ok(Some(bytes))
}

/// Carries out a plan.
struct Hand<'a> {
    plan: &'a RepositoryPlan,
    is_recovery: bool,
    patience: Duration,
}

impl Hand<'_> {
    fn carry_out(
        &self,
        index: impl FnOnce() -> Result<Vec<u8>, PathError>,
        safety_tag: &mut Option<String>,
    ) -> Result<(), PutError> {
        let git_path = path_of(&self.plan.git_dir);
        let git_dir = self.open_known(&git_path, self.plan.git_inode)?;
        let common_path = path_of(&self.plan.common_dir);
        let refs = Refs {
            common: self.open_known(&common_path, self.plan.common_inode)?,
            path: common_path,
        };
        for (name, commit) in &self.plan.tags {
            // Before the branch moves: the old tip is never without a name.
            self.set_ref(&refs, name, None, Some(*commit))?;
            safety_tag.get_or_insert_with(|| name.clone());
        }
        for branch in &self.plan.branches {
            self.set_ref(&refs, &branch.name, branch.from, branch.to)?;
            self.log(&refs.common, &branch.name, branch.from, branch.to);
            if branch.is_heads {
                self.log(&git_dir, "HEAD", branch.from, branch.to);
            }
        }
        if let Some(head) = &self.plan.head {
            let place = Place {
                directory: git_dir.as_fd(),
                path: &git_path,
                name: "HEAD",
            };
            let is_right = |now: Option<&[u8]>| match now.map(<[u8]>::trim_ascii) {
                Some(text) if text == head.to.as_bytes() => Ok(Verdict::Right),
                Some(text) if text == head.from.as_bytes() => Ok(Verdict::Replace),
                other => Err(PutError::Moved {
                    what: "HEAD".to_owned(),
                    expected: head.from.clone(),
                    found: other.map_or_else(|| "missing".to_owned(), printable_bytes),
                }),
            };
            let text = format!("{}\n", head.to);
            self.replace(&place, Some(text.as_bytes()), &is_right)?;
            self.log(&git_dir, "HEAD", head.commits.0, head.commits.1);
        }
        let place = Place {
            directory: git_dir.as_fd(),
            path: &git_path,
            name: "index",
        };
        match self.plan.index {
            Some(IndexChange::Write) => {
                let bytes = index()?;
                let is_right = |now: Option<&[u8]>| {
                    Ok(if now == Some(&bytes[..]) {
                        Verdict::Right
                    } else {
                        Verdict::Replace
                    })
                };
                self.replace(&place, Some(&bytes), &is_right)
            }
            Some(IndexChange::Remove) => self.replace(&place, None, &|now| {
                Ok(if now.is_none() {
                    Verdict::Right
                } else {
                    Verdict::Replace
                })
            }),
            None => Ok(()),
        }
    }

    /// Opens a directory of the repository, if it still is the one that the plan was made for.
    fn open_known(&self, path: &Path, inode: u64) -> Result<OwnedFd, PutError> {
        let fd = open_directory(path)?;
        let stat = root::fstat(&fd).map_err(PathError::at("look at", path))?;
        if stat.inode != inode {
            return Err(PutError::Unsafe {
                what: crate::error::printable(path),
                problem: "another directory than before",
            });
        }
        Ok(fd)
    }

    /// Moves a ref from one commit to another, by compare-and-swap.
    fn set_ref(
        &self,
        refs: &Refs,
        name: &str,
        from: Option<ObjectId>,
        to: Option<ObjectId>,
    ) -> Result<(), PutError> {
        let (directory, leaf) = split(name);
        let opened = open_below(refs.common.as_fd(), directory, Create::Yes)
            .map_err(|errno| refs.unsafe_path(name, errno))?
            .expect("made where it was missing");
        let path = refs.path.join(directory);
        let place = Place {
            directory: opened.as_fd(),
            path: &path,
            name: leaf,
        };
        // The loose file is not the whole truth: a ref may be packed.
        let is_right = |_: Option<&[u8]>| {
            let now = refs.resolve(name)?;
            if now == to {
                return Ok(Verdict::Right);
            }
            if now != from {
                return Err(PutError::Moved {
                    what: name.to_owned(),
                    expected: shown(from),
                    found: shown(now),
                });
            }
            if to.is_none() {
                self.drop_packed(refs, name)?;
            }
            Ok(Verdict::Replace)
        };
        let text = to.map(|commit| format!("{commit}\n"));
        self.replace(&place, text.as_ref().map(|t| t.as_bytes()), &is_right)?;
        if to.is_none() && self.is_recovery {
            // A crash right after `packed-refs` was replaced leaves the other name of our file.
            let packed = Place {
                directory: refs.common.as_fd(),
                path: &refs.path,
                name: PACKED_REFS,
            };
            packed.unlink(&self.evidence(PACKED_REFS))?;
        }
        Ok(())
    }

    /// The name of our own file that becomes the lock of `name`.
    fn evidence(&self, name: &str) -> String {
        format!("stillframe-{}-{name}", self.plan.operation)
    }

    fn drop_packed(&self, refs: &Refs, name: &str) -> Result<(), PutError> {
        let Some(text) = refs.packed()? else {
            return Ok(());
        };
        if find_packed(&text, name).is_none() {
            return Ok(());
        }
        let place = Place {
            directory: refs.common.as_fd(),
            path: &refs.path,
            name: PACKED_REFS,
        };
        let kept = without_packed(&text, name);
        let is_right = |now: Option<&[u8]>| match now {
            Some(now) if now == text => Ok(Verdict::Replace),
            _ => Err(PutError::Moved {
                what: "packed-refs".to_owned(),
                expected: "as it was read".to_owned(),
                found: "changed".to_owned(),
            }),
        };
        self.replace(&place, Some(&kept), &is_right)
    }

    /// Replaces a file, or removes it, under git's own lock for it. `judge` is asked under the
    /// lock.
    fn replace(
        &self,
        place: &Place<'_>,
        bytes: Option<&[u8]>,
        judge: &Judge<'_>,
    ) -> Result<(), PutError> {
        let lock = self.acquire(place, bytes.unwrap_or_default())?;
        let now = place.read()?;
        let done = judge(now.as_deref()).and_then(|verdict| match (verdict, bytes) {
            (Verdict::Right, _) => Ok(Held::Yes),
            (Verdict::Replace, None) => Ok(place.unlink(place.name).map(|()| Held::Yes)?),
            (Verdict::Replace, Some(_)) => {
                faults::before().map_err(place.at("replace"))?;
                rustix::fs::renameat(place.directory, &lock.name, place.directory, place.name)
                    .map_err(place.at("replace"))?;
                Ok(Held::No)
            }
        });
        // Whatever came of it, nothing of ours may stay in the user's way. Once renamed, the lock
        // is free, and one of that name is somebody else's.
        let released = match done {
            Ok(Held::No) => Ok(()),
            _ => place.unlink(&lock.name),
        }
        .and(place.unlink(&lock.evidence));
        done?;
        released?;
        rustix::fs::fsync(place.directory).map_err(place.at("sync the directory of"))?;
        Ok(())
    }

    /// Takes `<name>.lock` with the new content in it, whole and synced.
    fn acquire(&self, place: &Place<'_>, bytes: &[u8]) -> Result<Lock, PutError> {
        let lock = Lock {
            name: format!("{}.lock", place.name),
            evidence: self.evidence(place.name),
        };
        if self.is_recovery && self.is_ours(place, &lock, bytes)? {
            return Ok(lock);
        }
        place.unlink(&lock.evidence)?;
        self.write_evidence(place, &lock, bytes)?;
        let patience = Patience::of(self.patience);
        loop {
            faults::before().map_err(place.at("lock"))?;
            let linked = rustix::fs::linkat(
                place.directory,
                &lock.evidence,
                place.directory,
                &lock.name,
                AtFlags::empty(),
            );
            let taken = match linked {
                // A file system without hard links.
                Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
                    rustix::fs::renameat_with(
                        place.directory,
                        &lock.evidence,
                        place.directory,
                        &lock.name,
                        RenameFlags::NOREPLACE,
                    )
                }
                other => other,
            };
            match taken {
                Ok(()) => return Ok(lock),
                Err(Errno::EXIST) if patience.pause() => {}
                Err(errno) => {
                    // Nothing but our own file, which is of no use without the lock.
                    let _ = place.unlink(&lock.evidence);
                    return Err(match errno {
                        Errno::EXIST => PutError::Locked {
                            what: crate::error::printable(&place.path.join(&lock.name)),
                        },
                        errno => place.at("lock")(errno).into(),
                    });
                }
            }
        }
    }

    /// Whether the lock is what a crash of this very operation left.
    fn is_ours(&self, place: &Place<'_>, lock: &Lock, bytes: &[u8]) -> Result<bool, PutError> {
        let Some(held) = place.look(&lock.name)? else {
            return Ok(false);
        };
        Ok(match place.look(&lock.evidence)? {
            Some(evidence) => evidence.inode == held.inode && evidence.device == held.device,
            // Without hard links the evidence itself became the lock, whole.
            None => {
                let content = read_file(
                    place.directory,
                    lock.name.as_bytes(),
                    MAX_INDEX_BYTES,
                    place.path,
                )?;
                !bytes.is_empty() && content.as_deref() == Some(bytes)
            }
        })
    }

    fn write_evidence(&self, place: &Place<'_>, lock: &Lock, bytes: &[u8]) -> Result<(), PutError> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // What is replaced keeps its owner and mode; something new gets those of its directory.
        let like = match place.look(place.name)? {
            Some(_) => rustix::fs::statat(place.directory, place.name, AtFlags::SYMLINK_NOFOLLOW),
            None => rustix::fs::fstat(place.directory),
        }
        .map_err(place.at("look at"))?;
        faults::before().map_err(place.at("lock"))?;
        let fd = rustix::fs::openat(
            place.directory,
            &lock.evidence,
            flags,
            Mode::from_raw_mode(0o600),
        )
        .map_err(place.at("lock"))?;
        let mut file = File::from(fd);
        let written = faults::before().and_then(|()| {
            file.write_all(bytes)?;
            give_to(file.as_fd(), &like)?;
            file.set_permissions(std::fs::Permissions::from_mode(like.st_mode & 0o666))?;
            file.sync_all()
        });
        if let Err(source) = written {
            let _ = place.unlink(&lock.evidence);
            return Err(place.at("lock")(source).into());
        }
        Ok(())
    }

    /// Adds a line to a reflog that exists. Best effort: the ref is what counts.
    fn log(&self, directory: &OwnedFd, name: &str, from: Option<ObjectId>, to: Option<ObjectId>) {
        let (Some(from), Some(to)) = (from, to) else {
            return;
        };
        let (above, leaf) = split(name);
        let Ok(Some(logs)) = open_below(directory.as_fd(), &format!("logs/{above}"), Create::No)
        else {
            return;
        };
        let flags =
            OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(fd) = rustix::fs::openat(&logs, leaf, flags, Mode::empty()) else {
            return;
        };
        let is_regular = root::fstat(&fd).is_ok_and(|s| s.file_type() == FileType::RegularFile);
        if is_regular && faults::before().is_ok() {
            let line = format!(
                "{from} {to} {COMMITTER} {} +0000\tstillframe: roll back\n",
                self.plan.at
            );
            let _ = File::from(fd).write_all(line.as_bytes());
        }
    }
}

/// Says what to do with a file that holds this; `None`: that is not there.
type Judge<'a> = dyn Fn(Option<&[u8]>) -> Result<Verdict, PutError> + 'a;

/// What to do with a file once its lock is held.
enum Verdict {
    /// It is as it should be.
    Right,
    Replace,
}

/// Whether a lock still is in the way of others.
enum Held {
    Yes,
    No,
}

/// A lock in the user's repository, and the file whose link it is.
struct Lock {
    name: String,
    evidence: String,
}

/// A file in a directory of the user's repository.
struct Place<'a> {
    directory: BorrowedFd<'a>,
    path: &'a Path,
    name: &'a str,
}

impl Place<'_> {
    fn at<E: Into<std::io::Error>>(
        &self,
        operation: &'static str,
    ) -> impl FnOnce(E) -> PathError + use<E> {
        PathError::at(operation, self.path.join(self.name))
    }

    fn look(&self, name: &str) -> Result<Option<Stat>, PathError> {
        match root::lstat_at(self.directory, name.as_bytes()) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.at("look at")(errno)),
        }
    }

    fn read(&self) -> Result<Option<Vec<u8>>, PutError> {
        read_file(
            self.directory,
            self.name.as_bytes(),
            MAX_INDEX_BYTES,
            self.path,
        )
    }

    fn unlink(&self, name: &str) -> Result<(), PathError> {
        faults::before().map_err(self.at("remove"))?;
        match rustix::fs::unlinkat(self.directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.at("remove")(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;

    use super::*;
    use crate::backend::{RepositoryRestore, RestoreOutcome};
    use crate::error::ErrorKind;
    use crate::restore::RestoreGoal;
    use crate::restore::naive::{Stage, view};
    use crate::restore::{Captured as _, Publish, Restorable as _, recover};
    use crate::snapshot::Snapshot;
    use crate::worktree::faults::Fault;

    /// A repository with a commit, something staged, something unstaged and something untracked.
    fn repository() -> Stage {
        let stage = Stage::new();
        stage.git(&["init", "-q", "-b", "main"]);
        stage.write("tracked", "one\n");
        stage.write("staged", "one\n");
        stage.git(&["add", "."]);
        stage.git(&["commit", "-q", "-m", "first"]);
        stage.write("staged", "two\n");
        stage.git(&["add", "staged"]);
        stage.write("tracked", "two\n");
        stage.write("untracked", "one\n");
        stage
    }

    /// What a run does that commits everything and goes on.
    fn run(stage: &Stage) {
        stage.write("tracked", "three\n");
        stage.write("made", "by the run\n");
        stage.git(&["add", "."]);
        stage.git(&["commit", "-q", "-m", "by the run"]);
        stage.write("untracked", "by the run\n");
        stage.write("staged", "by the run\n");
        stage.git(&["add", "staged"]);
    }

    fn rollback(before: &Snapshot, after: &Snapshot) -> RepositoryRestore {
        RepositoryRestore::Rollback {
            before: before.clone(),
            after: after.clone(),
            run_id: "run_7".to_owned(),
        }
    }

    fn roll_back(
        stage: &mut Stage,
        before: &Snapshot,
        after: &Snapshot,
    ) -> Result<RestoreOutcome, RestoreError> {
        stage.restore_goal(&Stage::goal(before), rollback(before, after))
    }

    /// The state that a run left which began at `before`.
    fn snapshot_since(stage: &Stage, before: &Snapshot) -> Snapshot {
        stage.snapshot_with(&stage.options().since(before.id.clone()))
    }

    fn undo(
        stage: &mut Stage,
        before: &Snapshot,
        after: &Snapshot,
    ) -> Result<RestoreOutcome, RestoreError> {
        let goal = RestoreGoal::Undo {
            before: before.clone(),
            after: after.clone(),
            paths: None,
        };
        let repository = RepositoryRestore::Undo {
            before: before.clone(),
            after: after.clone(),
            run_id: "run_7".to_owned(),
        };
        stage.restore_goal(&goal, repository)
    }

    /// What git sees, apart from tags and reflogs.
    fn seen(stage: &Stage) -> (Vec<u8>, String, String, BTreeMap<String, String>) {
        let mut files = stage.view();
        files.retain(|path, _| !path.starts_with(".git"));
        (
            fs::read(stage.path(".git/index")).unwrap_or_default(),
            fs::read_to_string(stage.path(".git/HEAD")).unwrap(),
            stage.git(&["for-each-ref", "refs/heads"]),
            files,
        )
    }

    /// What must not be left in a repository.
    fn leavings(stage: &Stage) -> Vec<String> {
        let mut left: Vec<String> = view(&stage.path(".git")).into_keys().collect();
        left.retain(|path| path.ends_with(".lock") || path.contains("stillframe-"));
        left
    }

    const TAG: &str = "refs/tags/stillframe/safety-run_7-1";

    #[test]
    fn a_run_that_committed_is_rolled_back_whole() {
        let mut stage = repository();
        let before = stage.snapshot();
        let was = seen(&stage);
        let index = fs::read(stage.path(".git/index")).unwrap();
        let status = stage.git(&["status", "--porcelain"]);
        run(&stage);
        let commit = stage.git(&["rev-parse", "HEAD"]);
        let after = stage.snapshot();
        // git refreshes the index when it is asked; the bytes are compared before that.
        let is = {
            let outcome = roll_back(&mut stage, &before, &after).unwrap();
            assert_eq!(outcome.safety_tag.as_deref(), Some(TAG));
            assert_eq!(outcome.repository_error, None);
            assert_eq!(fs::read(stage.path(".git/index")).unwrap(), index);
            seen(&stage)
        };
        assert_eq!(is.1, was.1);
        assert_eq!(is.2, was.2);
        assert_eq!(is.3, was.3);
        assert_eq!(stage.git(&["status", "--porcelain"]), status);
        assert_eq!(stage.git(&["rev-parse", TAG]), commit);
        assert_eq!(leavings(&stage), Vec::<String>::new());
        stage.git(&["fsck", "--strict"]);
        let reflog = stage.git(&["reflog", "show", "main"]);
        assert!(reflog.contains("{0}: stillframe: roll back"), "{reflog}");

        // The same run once more: the next tag, since the first names another commit.
        stage.write("other", "other\n");
        stage.git(&["add", "other"]);
        let before = stage.snapshot();
        stage.git(&["commit", "-q", "-m", "another"]);
        let after = stage.snapshot();
        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        assert_eq!(
            outcome.safety_tag.as_deref(),
            Some("refs/tags/stillframe/safety-run_7-2")
        );
    }

    #[test]
    fn an_undo_of_a_rollback_goes_forward_again() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        let was = seen(&stage);
        let after = stage.snapshot();
        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        let again = undo(&mut stage, &outcome.guard, &outcome.result).unwrap();
        assert_eq!(again.repository_error, None);
        assert_eq!(seen(&stage), was);
    }

    #[test]
    fn a_commit_of_somebody_else_is_not_taken_back() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        let after = stage.snapshot();
        stage.git(&["commit", "-q", "--allow-empty", "-m", "by a person"]);
        let was = (seen(&stage), view(&stage.path(".git")));

        let error = roll_back(&mut stage, &before, &after).unwrap_err();

        assert_eq!(error.kind(), ErrorKind::HeadMoved, "{error}");
        assert!(error.to_string().contains("refs/heads/main"));
        assert!(!error.touched());
        assert_eq!((seen(&stage), view(&stage.path(".git"))), was);

        // An undo keeps it, and takes back the files.
        let outcome = undo(&mut stage, &before, &after).unwrap();
        let told = outcome.repository_error.unwrap();
        assert!(told.contains("HEAD, branch and index were kept"), "{told}");
        let now = seen(&stage);
        assert_eq!((now.0, now.1, now.2), (was.0.0, was.0.1, was.0.2));
        assert_eq!(stage.read("tracked"), "two\n");
        assert_eq!(outcome.safety_tag, None);
    }

    #[test]
    fn what_a_person_staged_since_is_kept_by_an_undo() {
        let mut stage = repository();
        let before = stage.snapshot();
        stage.write("staged", "by the run\n");
        stage.git(&["add", "staged"]);
        let after = stage.snapshot();
        // Stat data alone is no edit.
        stage.chmod("tracked", 0o600);
        stage.chmod("tracked", 0o644);
        stage.git(&[
            "update-index",
            "-q",
            "--refresh",
            "--really-refresh",
            "staged",
        ]);
        let outcome = undo(&mut stage, &before, &after).unwrap();
        assert_eq!(outcome.repository_error, None);
        assert_eq!(stage.git(&["show", ":staged"]), "two");

        let redone = undo(&mut stage, &outcome.guard, &outcome.result).unwrap();
        assert_eq!(stage.git(&["show", ":staged"]), "by the run");
        stage.write("new", "by a person\n");
        stage.git(&["add", "new"]);
        let outcome = undo(&mut stage, &redone.guard, &redone.result).unwrap();
        let told = outcome.repository_error.unwrap();
        assert!(told.contains("the index was changed since"), "{told}");
        assert_eq!(stage.git(&["show", ":new"]), "by a person");
    }

    #[test]
    fn a_first_commit_is_taken_back_packed_or_not() {
        for is_packed in [false, true] {
            let mut stage = Stage::new();
            stage.git(&["init", "-q", "-b", "main"]);
            stage.write("a", "one\n");
            let before = stage.snapshot();
            stage.git(&["add", "."]);
            stage.git(&["commit", "-q", "-m", "first"]);
            stage.git(&["branch", "kept"]);
            if is_packed {
                stage.git(&["tag", "-a", "-m", "peeled", "v1"]);
                stage.git(&["pack-refs", "--all"]);
            }
            let commit = stage.git(&["rev-parse", "HEAD"]);
            let after = stage.snapshot();

            let outcome = roll_back(&mut stage, &before, &after).unwrap();

            assert_eq!(outcome.repository_error, None);
            assert!(!stage.has_ref("refs/heads/main"), "packed: {is_packed}");
            assert!(stage.has_ref("refs/heads/kept"));
            assert!(!stage.has(".git/index"), "there was none");
            assert_eq!(stage.git(&["rev-parse", TAG]), commit);
            assert_eq!(stage.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
            assert_eq!(stage.git(&["status", "--porcelain"]), "?? a");
            assert_eq!(leavings(&stage), Vec::<String>::new());
            if is_packed {
                assert_eq!(stage.git(&["rev-parse", "v1^{commit}"]), commit);
            }

            undo(&mut stage, &outcome.guard, &outcome.result).unwrap();
            assert_eq!(stage.git(&["rev-parse", "main"]), commit);
            assert_eq!(stage.git(&["status", "--porcelain"]), "");
        }
    }

    #[test]
    fn a_packed_branch_goes_back() {
        let mut stage = repository();
        let before = stage.snapshot();
        let first = stage.git(&["rev-parse", "HEAD"]);
        run(&stage);
        stage.git(&["pack-refs", "--all"]);
        let after = stage.snapshot();
        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        assert_eq!(outcome.repository_error, None);
        assert_eq!(stage.git(&["rev-parse", "refs/heads/main"]), first);
    }

    #[test]
    fn head_goes_back_to_its_branch_and_other_branches_stay() {
        let mut stage = repository();
        let before = stage.snapshot();
        stage.git(&["checkout", "-q", "-b", "topic/deep"]);
        run(&stage);
        let tip = stage.git(&["rev-parse", "HEAD"]);
        let after = stage.snapshot();

        let outcome = roll_back(&mut stage, &before, &after).unwrap();

        assert_eq!(stage.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
        assert_eq!(stage.git(&["rev-parse", "topic/deep"]), tip);
        assert_eq!(outcome.safety_tag, None, "its branch keeps the tip");
        assert_eq!(outcome.repository_error, None);
    }

    /// What a run does to the branch that it leaves.
    const LEFT_BEHIND: [&[&[&str]]; 5] = [
        // Elsewhere, by force.
        &[
            &["checkout", "-q", "-b", "other"],
            &["branch", "-f", "main", "HEAD~1"],
        ],
        // Onto a commit of the run's own, which nothing else names.
        &[
            &["checkout", "-q", "--detach"],
            &["commit", "-q", "--allow-empty", "-m", "by the run"],
            &["update-ref", "refs/heads/main", "HEAD"],
        ],
        &[&["checkout", "-q", "--detach"], &["branch", "-D", "main"]],
        &[
            &["checkout", "-q", "--detach"],
            &["branch", "-D", "main"],
            &["pack-refs", "--all"],
        ],
        &[
            &["commit", "-q", "--allow-empty", "-m", "by the run"],
            &["branch", "-m", "main", "renamed"],
        ],
    ];

    fn two_commits() -> Stage {
        let stage = repository();
        stage.git(&["commit", "-q", "-m", "second"]);
        stage
    }

    #[test]
    fn a_branch_that_the_run_left_and_then_moved_goes_back() {
        for commands in LEFT_BEHIND {
            let mut stage = two_commits();
            stage.git(&["pack-refs", "--all"]);
            let first = stage.git(&["rev-parse", "main"]);
            let status = stage.git(&["status", "--porcelain"]);
            let before = stage.snapshot();
            for command in commands {
                stage.git(command);
            }
            let left = seen(&stage);
            let tip = stage
                .has_ref("refs/heads/main")
                .then(|| stage.git(&["rev-parse", "refs/heads/main"]));
            let after = snapshot_since(&stage, &before);

            let outcome = roll_back(&mut stage, &before, &after).unwrap();

            assert_eq!(outcome.repository_error, None, "{commands:?}");
            assert_eq!(stage.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
            assert_eq!(stage.git(&["rev-parse", "refs/heads/main"]), first);
            assert_eq!(stage.git(&["status", "--porcelain"]), status);
            assert_eq!(leavings(&stage), Vec::<String>::new());
            match tip {
                // The old tip has a name, whoever else has it.
                Some(tip) => {
                    assert_eq!(outcome.safety_tag.as_deref(), Some(TAG));
                    assert_eq!(stage.git(&["rev-parse", TAG]), tip);
                }
                None => assert_eq!(outcome.safety_tag, None, "{commands:?}"),
            }
            stage.git(&["fsck", "--strict"]);

            // There and back again.
            let undone = undo(&mut stage, &outcome.guard, &outcome.result).unwrap();
            assert_eq!(undone.repository_error, None, "{commands:?}");
            assert_eq!(seen(&stage), left, "{commands:?}");
            let redone = undo(&mut stage, &undone.guard, &undone.result).unwrap();
            assert_eq!(redone.repository_error, None, "{commands:?}");
            assert_eq!(stage.git(&["rev-parse", "refs/heads/main"]), first);
            assert_eq!(stage.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
        }
    }

    #[test]
    fn a_branch_that_was_left_and_that_somebody_moves_since_is_theirs() {
        for theirs in [
            &["update-ref", "refs/heads/main", "HEAD~1"][..],
            &["branch", "-q", "-D", "main"],
        ] {
            for moves in [
                &["update-ref", "refs/heads/main", "HEAD~2"][..],
                &["status"],
            ] {
                let mut stage = two_commits();
                stage.git(&["commit", "-q", "--allow-empty", "-m", "third"]);
                let before = stage.snapshot();
                stage.git(&["checkout", "-q", "-b", "other"]);
                stage.write("tracked", "by the run\n");
                stage.git(moves);
                let after = snapshot_since(&stage, &before);
                stage.git(theirs);
                let was = (seen(&stage), view(&stage.path(".git")));

                let error = roll_back(&mut stage, &before, &after).unwrap_err();

                assert_eq!(error.kind(), ErrorKind::HeadMoved, "{error}");
                assert!(error.to_string().contains("refs/heads/main"), "{error}");
                assert_eq!((seen(&stage), view(&stage.path(".git"))), was);

                // An undo keeps it, and takes back the files.
                let outcome = undo(&mut stage, &before, &after).unwrap();
                let told = outcome.repository_error.unwrap();
                assert!(told.contains("refs/heads/main is at"), "{told}");
                let now = seen(&stage);
                assert_eq!((now.0, now.1, now.2), (was.0.0, was.0.1, was.0.2));
                assert_eq!(stage.read("tracked"), "two\n");
            }
        }
    }

    #[test]
    fn the_commits_of_a_moved_branch_and_of_a_detached_head_both_keep_a_name() {
        let mut stage = two_commits();
        let before = stage.snapshot();
        stage.git(&["checkout", "-q", "--detach"]);
        for message in ["by the run", "and on"] {
            stage.git(&["commit", "-q", "--allow-empty", "-m", message]);
        }
        stage.git(&["update-ref", "refs/heads/main", "HEAD~1"]);
        let tips = [
            stage.git(&["rev-parse", "main"]),
            stage.git(&["rev-parse", "HEAD"]),
        ];
        let after = snapshot_since(&stage, &before);
        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        assert_eq!(outcome.safety_tag.as_deref(), Some(TAG));
        let next = TAG.replace("-1", "-2");
        assert_eq!(
            [
                stage.git(&["rev-parse", TAG]),
                stage.git(&["rev-parse", &next])
            ],
            tips
        );
    }

    #[test]
    fn other_branches_that_a_run_moved_stay() {
        let mut stage = two_commits();
        stage.git(&["branch", "side"]);
        let before = stage.snapshot();
        stage.git(&["branch", "-f", "side", "HEAD~1"]);
        stage.git(&["checkout", "-q", "side", "--", "."]);
        let side = stage.git(&["rev-parse", "side"]);
        let after = snapshot_since(&stage, &before);
        roll_back(&mut stage, &before, &after).unwrap();
        assert_eq!(stage.git(&["rev-parse", "side"]), side);
    }

    #[test]
    fn a_branch_that_nobody_looked_at_stays_and_is_named() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        let tip = stage.git(&["rev-parse", "main"]);
        stage.git(&["checkout", "-q", "-b", "topic"]);
        let after = stage.snapshot();
        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        assert_eq!(stage.git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
        assert_eq!(
            stage.git(&["rev-parse", "main"]),
            tip,
            "nobody knows who moved it"
        );
        let told = outcome.repository_error.unwrap();
        assert!(told.contains(&tip), "{told}");
        assert_eq!(stage.read("tracked"), "two\n");
    }

    #[test]
    fn a_detached_head_goes_back_and_its_commit_keeps_a_name() {
        let mut stage = repository();
        stage.git(&["checkout", "-q", "--detach"]);
        let first = stage.git(&["rev-parse", "HEAD"]);
        let before = stage.snapshot();
        run(&stage);
        let tip = stage.git(&["rev-parse", "HEAD"]);
        let after = stage.snapshot();
        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        assert_eq!(stage.git(&["rev-parse", "HEAD"]), first);
        assert_eq!(
            fs::read_to_string(stage.path(".git/HEAD")).unwrap().trim(),
            first
        );
        assert_eq!(stage.git(&["rev-parse", TAG]), tip);
        assert_eq!(outcome.repository_error, None);
    }

    #[test]
    fn a_linked_worktree_has_its_own_head_and_index() {
        let stage = repository();
        let main = (
            fs::read(stage.path(".git/index")).unwrap(),
            fs::read_to_string(stage.path(".git/HEAD")).unwrap(),
        );
        let before_main = stage.git(&["rev-parse", "main"]);
        let linked = stage.outside.join("linked");
        stage.git(&[
            "worktree",
            "add",
            "-q",
            "-b",
            "topic",
            linked.to_str().unwrap(),
        ]);
        let main_git = stage.path(".git");
        let mut stage = stage.moved_to(&linked);
        let before = stage.snapshot();
        stage.write("tracked", "in the worktree\n");
        stage.git(&["commit", "-q", "-a", "-m", "in the worktree"]);
        let tip = stage.git(&["rev-parse", "HEAD"]);
        let after = stage.snapshot();

        let outcome = roll_back(&mut stage, &before, &after).unwrap();

        assert_eq!(outcome.repository_error, None);
        assert_eq!(stage.git(&["rev-parse", "topic"]), before_main);
        assert_eq!(stage.git(&["rev-parse", TAG]), tip);
        assert_eq!(stage.git(&["status", "--porcelain"]), "");
        let now = (
            fs::read(main_git.join("index")).unwrap(),
            fs::read_to_string(main_git.join("HEAD")).unwrap(),
        );
        assert_eq!(now, main, "the main worktree's are untouched");
    }

    #[test]
    fn a_merge_that_the_run_began_is_not_torn() {
        let mut stage = repository();
        stage.git(&["checkout", "-q", "-b", "topic"]);
        stage.git(&["commit", "-q", "-m", "on topic"]);
        stage.git(&["checkout", "-q", "main"]);
        stage.git(&["commit", "-q", "--allow-empty", "-m", "on main"]);
        let before = stage.snapshot();
        stage.git(&["merge", "-q", "--no-commit", "--no-ff", "topic"]);
        let after = stage.snapshot();
        let was = (seen(&stage), view(&stage.path(".git")));
        let error = roll_back(&mut stage, &before, &after).unwrap_err();
        assert!(
            matches!(error, RestoreError::InProgress { operation: "merge" }),
            "{error}"
        );
        assert_eq!((seen(&stage), view(&stage.path(".git"))), was);

        // One that was there already is left alone.
        let before = after;
        stage.write("tracked", "by the run\n");
        let after = stage.snapshot();
        roll_back(&mut stage, &before, &after).unwrap();
        assert_eq!(stage.read("tracked"), "two\n");
        assert!(stage.has(".git/MERGE_HEAD"));
    }

    #[test]
    fn a_foreign_index_lock_is_waited_for_and_never_deleted() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        let after = stage.snapshot();
        stage.write(".git/index.lock", "somebody's\n");
        let was = (seen(&stage), view(&stage.path(".git")));
        let error = prepared(&mut stage, &before, &after, Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert_eq!((seen(&stage), view(&stage.path(".git"))), was);

        // One that comes later, when the files are restored already.
        stage.remove(".git/index.lock");
        let prepared = prepared(&mut stage, &before, &after, Duration::ZERO).unwrap();
        stage.write(".git/index.lock", "somebody's\n");
        let index = prepared.index.clone().unwrap();
        let outcome = carry_out(&prepared.plan, || Ok(index), false, Duration::ZERO);
        assert!(outcome.error.unwrap().contains("index.lock is locked"));
        assert_eq!(stage.read(".git/index.lock"), "somebody's\n");
        assert_eq!(leavings(&stage), ["index.lock"]);
    }

    /// Prepares a rollback without the files.
    fn prepared(
        stage: &mut Stage,
        before: &Snapshot,
        after: &Snapshot,
        patience: Duration,
    ) -> Result<Prepared, RestoreError> {
        let record = |snapshot: &Snapshot| {
            let record = stage.backend.record(&stage.workspace, &snapshot.id);
            record.unwrap().git.unwrap()
        };
        let found = stage.backend.repository(&stage.workspace).unwrap();
        prepare(&Request {
            state: stage.workspace.state(),
            scratch: stage.workspace.store_path(),
            found: found.as_ref(),
            before: &record(before),
            after: Some(&record(after)),
            run_id: "run_7",
            keeps_edits: false,
            index_bytes: &|blob| stage.backend.index_bytes(&stage.workspace, blob),
            now: Timestamp::UNIX_EPOCH,
            patience,
        })
    }

    #[test]
    fn a_branch_that_moves_at_the_last_moment_is_kept_and_so_is_the_index() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        let after = stage.snapshot();
        let prepared = prepared(&mut stage, &before, &after, Duration::ZERO).unwrap();
        stage.git(&["commit", "-q", "--allow-empty", "-m", "by a person"]);
        let was = seen(&stage);
        let index = prepared.index.clone().unwrap();
        let outcome = carry_out(&prepared.plan, || Ok(index), false, Duration::ZERO);
        assert!(outcome.error.unwrap().contains("refs/heads/main is"));
        assert_eq!(seen(&stage), was);
        assert_eq!(leavings(&stage), Vec::<String>::new());
    }

    #[test]
    fn no_hook_runs() {
        let mut stage = repository();
        for hook in [
            "reference-transaction",
            "post-checkout",
            "post-index-change",
        ] {
            let path = format!(".git/hooks/{hook}");
            stage.write(&path, "#!/bin/sh\ntouch canary\n");
            stage.chmod(&path, 0o755);
        }
        stage.git(&["branch", "probe"]);
        assert!(stage.has("canary"), "plain git runs it");
        stage.remove("canary");
        let before = stage.snapshot();
        run(&stage);
        stage.remove("canary");
        let after = stage.snapshot();
        roll_back(&mut stage, &before, &after).unwrap();
        assert!(!stage.has("canary"));
    }

    #[test]
    fn a_planted_symbolic_ref_at_the_name_of_the_tag_is_not_followed() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        stage.git(&["branch", "victim", "HEAD~1"]);
        stage.git(&["symbolic-ref", TAG, "refs/heads/victim"]);
        let after = stage.snapshot();
        let refs = stage.git(&["for-each-ref"]);

        let outcome = roll_back(&mut stage, &before, &after).unwrap();

        assert_eq!(stage.git(&["for-each-ref"]), refs, "no ref moved");
        assert!(outcome.repository_error.unwrap().contains("symbolic"));
        assert_eq!(outcome.safety_tag, None);
        assert_eq!(stage.read("tracked"), "two\n", "the files are back");
    }

    #[test]
    fn a_directory_of_refs_that_is_a_link_is_not_written_through() {
        for directory in ["refs/tags", "refs/tags/stillframe", "refs/heads"] {
            let mut stage = repository();
            let before = stage.snapshot();
            run(&stage);
            let after = stage.snapshot();
            let real = stage.path(".git").join(directory);
            let away = stage.outside.join("refs");
            if real.exists() {
                fs::rename(&real, &away).unwrap();
            } else {
                fs::create_dir(&away).unwrap();
            }
            std::os::unix::fs::symlink(&away, &real).unwrap();
            let outside = view(&stage.outside);

            let outcome = roll_back(&mut stage, &before, &after).unwrap();

            assert_eq!(view(&stage.outside), outside, "{directory}");
            assert!(outcome.repository_error.is_some(), "{directory}");
            assert_eq!(stage.read("tracked"), "two\n");
            assert_eq!(outcome.safety_tag, None);
        }
    }

    #[test]
    fn a_repository_that_the_run_removed_is_told() {
        let mut stage = repository();
        let before = stage.snapshot();
        stage.write("tracked", "by the run\n");
        stage.remove(".git");
        let after = stage.snapshot();
        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        assert_eq!(stage.read("tracked"), "two\n");
        assert!(outcome.repository_error.unwrap().contains("is gone"));
        assert!(!stage.has(".git"));
    }

    #[test]
    fn objects_that_the_repository_lost_are_told() {
        let mut stage = repository();
        let before = stage.snapshot();
        let blob = stage.git(&["rev-parse", ":staged"]);
        let first = stage.git(&["rev-parse", "HEAD"]);
        run(&stage);
        let after = stage.snapshot();
        let object = |id: &str| format!(".git/objects/{}/{}", &id[..2], &id[2..]);
        stage.remove(&object(&blob));

        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        let told = outcome.repository_error.unwrap();
        assert!(told.contains("lacks") && told.contains(&blob), "{told}");
        assert_eq!(stage.git(&["rev-parse", "main"]), first);

        undo(&mut stage, &outcome.guard, &outcome.result).unwrap();
        let tip = stage.git(&["rev-parse", "main"]);
        stage.remove(&object(&first));
        let after = stage.snapshot();
        let outcome = roll_back(&mut stage, &before, &after).unwrap();
        let told = outcome.repository_error.unwrap();
        assert!(told.contains(&first), "{told}");
        assert_eq!(
            stage.git(&["rev-parse", "main"]),
            tip,
            "it stays where it can be read"
        );
    }

    #[test]
    fn a_manual_restore_leaves_the_repository_alone() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        let repository = view(&stage.path(".git"));
        let outcome = stage.restore(&before);
        assert_eq!(view(&stage.path(".git")), repository);
        assert_eq!((outcome.safety_tag, outcome.repository_error), (None, None));
        assert_eq!(stage.read("tracked"), "two\n");
    }

    #[test]
    fn a_rollback_that_dies_at_any_call_ends_before_or_after() {
        dies_at_any_call(|| {
            let stage = repository();
            let before = stage.snapshot();
            run(&stage);
            let after = stage.snapshot();
            (stage, before, after)
        });
    }

    #[test]
    fn so_does_one_that_deletes_a_packed_branch_and_the_index() {
        dies_at_any_call(|| {
            let stage = Stage::new();
            stage.git(&["init", "-q", "-b", "main"]);
            stage.write("a", "one\n");
            let before = stage.snapshot();
            stage.write("a", "two\n");
            stage.git(&["add", "."]);
            stage.git(&["commit", "-q", "-m", "first"]);
            stage.git(&["pack-refs", "--all"]);
            let after = stage.snapshot();
            (stage, before, after)
        });
    }

    #[test]
    fn so_does_one_that_moves_head_to_its_branch() {
        dies_at_any_call(|| {
            let stage = repository();
            let before = stage.snapshot();
            stage.git(&["checkout", "-q", "--detach"]);
            run(&stage);
            let after = stage.snapshot();
            (stage, before, after)
        });
    }

    #[test]
    fn so_does_one_that_moves_a_branch_which_head_had_left() {
        dies_at_any_call(|| {
            let stage = two_commits();
            let before = stage.snapshot();
            stage.git(&["checkout", "-q", "--detach"]);
            run(&stage);
            stage.git(&["update-ref", "refs/heads/main", "HEAD"]);
            let after = snapshot_since(&stage, &before);
            (stage, before, after)
        });
    }

    fn dies_at_any_call(make: fn() -> (Stage, Snapshot, Snapshot)) {
        let (mut stage, before, after) = make();
        let untouched = seen(&stage);
        roll_back(&mut stage, &before, &after).unwrap();
        let restored = seen(&stage);
        // The bytes of the index hold the inodes of one stage.
        let is = |stage: &Stage, other: &(Vec<u8>, String, String, BTreeMap<String, String>)| {
            let now = seen(stage);
            (&now.1, &now.2, &now.3) == (&other.1, &other.2, &other.3)
        };
        let mut endings = BTreeSet::new();
        for call in 0.. {
            let (mut stage, before, after) = make();
            let old_index = fs::read(stage.path(".git/index")).unwrap();
            let tip = stage.git(&["rev-parse", "HEAD"]);
            let (result, calls) = crate::worktree::faults::with(Fault::StopBefore(call), || {
                roll_back(&mut stage, &before, &after)
            });
            if calls <= call {
                assert!(result.is_ok());
                break;
            }
            let recovery = recover(&stage.workspace).unwrap();
            assert_eq!(recovery.repository_errors, Vec::<String>::new());
            assert_eq!(recovery.skipped, []);
            assert_eq!(leavings(&stage), Vec::<String>::new(), "at call {call}");
            let is_restored = is(&stage, &restored);
            assert!(
                is_restored || is(&stage, &untouched),
                "at call {call}: {:#?}",
                seen(&stage)
            );
            let index = fs::read(stage.path(".git/index")).unwrap_or_default();
            assert_eq!(
                index != old_index,
                is_restored,
                "index and branch go together"
            );
            if is_restored {
                assert_eq!(stage.git(&["rev-parse", TAG]), tip, "at call {call}");
            }
            endings.insert(is_restored);
        }
        assert_eq!(endings.len(), 2, "the loop crossed the point of no return");
    }

    #[test]
    fn ids_of_runs_make_names_that_git_takes() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        let after = stage.snapshot();
        let repository = RepositoryRestore::Rollback {
            before: before.clone(),
            after,
            run_id: "a..b.lock".to_owned(),
        };
        let outcome = stage
            .restore_goal(&Stage::goal(&before), repository)
            .unwrap();
        let tag = outcome.safety_tag.unwrap();
        assert_eq!(tag, "refs/tags/stillframe/safety-a%2e%2eb%2elock-1");
        stage.git(&["check-ref-format", &tag]);
        assert!(stage.has_ref(&tag));
    }

    #[test]
    fn a_line_of_packed_refs_goes_with_the_line_that_peels_it() {
        let id = "0123456789012345678901234567890123456789";
        let text = format!(
            "# pack-refs with: peeled fully-peeled sorted \n{id} refs/heads/a\n{id} refs/tags/b\n^{id}\n{id} refs/tags/b2\n"
        );
        assert_eq!(find_packed(text.as_bytes(), "refs/tags/b"), id.parse().ok());
        assert_eq!(find_packed(text.as_bytes(), "refs/tags"), None);
        let kept = without_packed(text.as_bytes(), "refs/tags/b");
        assert_eq!(
            String::from_utf8(kept).unwrap(),
            text.replace(&format!("{id} refs/tags/b\n^{id}\n"), "")
        );
    }

    #[test]
    fn two_of_us_do_not_write_in_one_repository_at_once() {
        let mut stage = repository();
        let before = stage.snapshot();
        run(&stage);
        let after = stage.snapshot();
        let git_dir = stage.path(".git");
        let held = lock_repository(stage.workspace.state(), &git_dir, Duration::ZERO).unwrap();
        let error = prepared(&mut stage, &before, &after, Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        drop(held);
        prepared(&mut stage, &before, &after, Duration::ZERO).unwrap();
        let capture = stage
            .backend
            .capture(&stage.workspace, &stage.options(), &[], Publish::No);
        assert!(capture.unwrap().record().git.is_some());
    }
}
