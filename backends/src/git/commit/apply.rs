//! Carrying out an intent: the commit, then the ref, then the index.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use super::index::Follow;
use super::message::subject;
use super::objects::{CommitObject, RepositoryTrees};
use super::repository_of;
use super::settle::{Settled, settle};
use super::sound::Sound;
use super::tree_changes::{self, TreeChange, side_of};
use crate::commit::{CommitError, CommitIntent, CommitOutcome};
use crate::deadline::Deadline;
use crate::error::printable;
use crate::git::directory::open_directory;
use crate::git::loose_writer::LooseWriter;
use crate::git::put_error::PutError;
use crate::git::repository::Head;
use crate::git::repository::{RepositoryError, Settings, UserRepository};
use crate::git::rollback::lock::{Locks, New, Place, Verdict};
use crate::git::rollback::reflog::{self, Line, Missing};
use crate::git::rollback::refs::Refs;
use crate::git::rollback::{lock_repository, wait_for_lock};
use crate::git::tree_lookup::TreeLookup;
use crate::git::user_index::{self, MODE_SUBMODULE};
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::workspace::LockedWorkspace;
use crate::worktree::root::Root;
use crate::worktree::stat_cache::EntryStat;

use super::decision::Environment;

/// How often a ref or an index that moves under our hands is looked at again.
const MAX_TRIES: u32 = 8;

/// What may be done about an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::git) enum Aim {
    /// See [`Backend::apply_commit`](crate::Backend::apply_commit).
    Make,
    /// See [`Backend::adopt_commit`](crate::Backend::adopt_commit).
    Adopt,
}

/// Carries out an intent, or what is left of it. A foreign lock is waited for for so long.
pub(in crate::git) fn apply(
    op: &Operation,
    workspace: &LockedWorkspace,
    intent: &CommitIntent,
    aim: Aim,
    env: &Environment<'_>,
    lock_timeout: Duration,
) -> Result<CommitOutcome, CommitError> {
    let sound = Sound::of(intent)?;
    let repository = repository_of(workspace)?;
    let _lock = lock_repository(op, workspace.state(), repository.common_dir(), lock_timeout)?;
    let hand = Hand {
        refs: Refs::open(repository.common_dir())?,
        git_dir: open_directory(repository.git_dir())?,
        settings: repository.settings(env)?,
        root: workspace.root()?,
        operation: format!("commit-{}", sound.commit),
        aim,
        repository: &repository,
        sound: &sound,
        lock_timeout,
    };
    hand.release_what_a_crash_left(op);
    let mut tries = 0;
    loop {
        tries += 1;
        match hand.attempt(op) {
            // Somebody else was faster: where the ref is now says what that means.
            Err(CommitError::Failed { source, .. })
                if tries < MAX_TRIES
                    && matches!(source.downcast_ref(), Some(PutError::Moved { .. })) => {}
            outcome => return outcome,
        }
    }
}

/// At work on one intent.
struct Hand<'a> {
    repository: &'a UserRepository,
    sound: &'a Sound<'a>,
    refs: Refs,
    git_dir: OwnedFd,
    settings: Settings,
    root: Root,
    /// Names our own locks in the repository; it is the same for every process that carries out
    /// this intent.
    operation: String,
    aim: Aim,
    lock_timeout: Duration,
}

/// What HEAD has to do with the intent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeadNames {
    /// The ref of the intent.
    It,
    SomethingElse,
}

impl Hand<'_> {
    fn attempt(&self, op: &Operation) -> Result<CommitOutcome, CommitError> {
        let head = self.repository.head()?;
        let (now, head_names) = self.position(op, &head)?;
        let sound = self.sound;
        match settle(op, self.repository, sound, now)? {
            Settled::InPlace(commit) => {
                let finish = || {
                    if now == Some(sound.commit) {
                        self.log(op, head_names);
                    }
                    match (head_names, now) {
                        (HeadNames::It, Some(tip)) => self.follow(op, tip, &self.changes(op)?),
                        _ => Ok(()),
                    }
                };
                finish().map_err(|error| incomplete(commit, error))?;
                Ok(in_place(commit, true))
            }
            Settled::Elsewhere => Ok(CommitOutcome::RefMoved {
                reference: sound.intent.reference.clone(),
                expected: sound.intent.parent.clone(),
                found: now.map(|commit| commit.to_string()),
            }),
            Settled::Open if self.aim == Aim::Adopt => Ok(CommitOutcome::NotMade),
            Settled::Open => {
                self.make(op, &head, head_names)?;
                Ok(in_place(sound.commit, false))
            }
        }
    }

    /// Where the intent's ref is.
    fn position(
        &self,
        op: &Operation,
        head: &Head,
    ) -> Result<(Option<ObjectId>, HeadNames), CommitError> {
        let reference = &self.sound.intent.reference;
        if reference == "HEAD" {
            return Ok((head.commit(), HeadNames::It));
        }
        let names = match head.branch() == Some(reference) {
            true => HeadNames::It,
            false => HeadNames::SomethingElse,
        };
        Ok((self.refs.resolve(op, reference)?, names))
    }

    /// Makes the commit, moves the ref to it, and lets the index follow.
    fn make(&self, op: &Operation, head: &Head, head_names: HeadNames) -> Result<(), CommitError> {
        let sound = self.sound;
        // Whatever cannot be read is found before anything is done.
        let changes = self.changes(op)?;
        self.check_blobs(op, &changes)?;
        if head_names == HeadNames::It {
            let git_dir = self.repository.git_dir();
            let deadline = Deadline::after(self.lock_timeout);
            wait_for_lock(op, self.git_dir.as_fd(), "index", git_dir, deadline)?;
        }
        self.write_commit(op)?;
        if let Err(error) = self.move_ref(op, head) {
            return Err(match self.is_made(op) {
                true => incomplete(sound.commit, error),
                false => error,
            });
        }
        self.log(op, head_names);
        if head_names == HeadNames::It {
            self.follow(op, sound.commit, &changes)
                .map_err(|error| incomplete(sound.commit, error))?;
        }
        Ok(())
    }

    /// The paths at which the commit differs from its parent.
    fn changes(&self, op: &Operation) -> Result<Vec<TreeChange>, CommitError> {
        let trees = RepositoryTrees(self.repository);
        let parent = match self.sound.parent {
            Some(parent) => Some(CommitObject::known(op, self.repository, parent)?.tree),
            None => None,
        };
        Ok(tree_changes::between(
            op,
            &trees,
            parent,
            Some(self.sound.tree),
        )?)
    }

    /// Makes sure that what the commit adds is there: between its preparation and a recovery
    /// somebody may have collected what nothing named yet.
    fn check_blobs(&self, op: &Operation, changes: &[TreeChange]) -> Result<(), CommitError> {
        let sides = changes.iter().filter_map(|change| change.new);
        let ids: Vec<ObjectId> = sides
            .filter(|(mode, _)| *mode != MODE_SUBMODULE)
            .map(|(_, id)| id)
            .collect();
        let sizes = self.repository.object_sizes(op, &ids)?;
        let missing = ids.iter().zip(sizes).find(|(_, size)| size.is_none());
        match missing {
            Some((id, _)) => Err(RepositoryError::MissingObject { id: *id }.into()),
            None => Ok(()),
        }
    }

    fn write_commit(&self, op: &Operation) -> Result<(), CommitError> {
        let (commit, bytes) = (&self.sound.commit, &self.sound.bytes);
        if CommitObject::read(op, self.repository, *commit)?.is_some() {
            return Ok(());
        }
        let mut objects = LooseWriter::open(op, self.repository.common_dir())?;
        let size = bytes.len() as u64;
        objects.write(ObjectKind::Commit, commit, size, &mut |out| {
            out.write_all(bytes)
        })?;
        Ok(objects.sync()?)
    }

    fn move_ref(&self, op: &Operation, head: &Head) -> Result<(), CommitError> {
        let sound = self.sound;
        let branch = &sound.intent.reference;
        if branch == "HEAD" {
            return self.move_head(op, head);
        }
        if sound.parent.is_none() {
            self.check_room_for(op, branch)?;
        }
        let (old, new) = (sound.parent, Some(sound.commit));
        Ok(self.refs.move_to(op, &self.locks(), branch, old, new)?)
    }

    /// Whether the ref is at the commit, as far as that can be told.
    fn is_made(&self, op: &Operation) -> bool {
        let head = self.repository.head().map_err(CommitError::from);
        let position = head.and_then(|head| self.position(op, &head));
        position.is_ok_and(|(now, _)| now == Some(self.sound.commit))
    }

    /// Moves a HEAD that is detached.
    fn move_head(&self, op: &Operation, head: &Head) -> Result<(), CommitError> {
        let sound = self.sound;
        let Some(parent) = sound.parent.filter(|_| head.branch().is_none()) else {
            return Err(CommitError::Conflict(
                "HEAD names a branch, and was detached".to_owned(),
            ));
        };
        let (old, new) = (parent.to_string(), sound.commit.to_string());
        let place = self.in_git_dir("HEAD");
        let judge = |now: Option<&[u8]>| match now.map(<[u8]>::trim_ascii) {
            Some(text) if text == new.as_bytes() => Ok(Verdict::Right),
            Some(text) if text == old.as_bytes() => Ok(Verdict::Replace),
            _ => Err(PutError::Moved {
                what: "HEAD".to_owned(),
                expected: old.clone(),
                found: "elsewhere".to_owned(),
            }),
        };
        let text = format!("{new}\n");
        self.locks()
            .replace(op, &place, Some(New::of(text.as_bytes())), &judge)?;
        Ok(())
    }

    /// A branch cannot be where another one has its directory, or below one.
    fn check_room_for(&self, op: &Operation, branch: &str) -> Result<(), CommitError> {
        let taken = |other: &str| {
            CommitError::Conflict(format!("{branch} cannot be made beside the branch {other}"))
        };
        match self.refs.in_the_way_of(op, branch)?.first_key_value() {
            Some((other, _)) => Err(taken(other)),
            None => Ok(()),
        }
    }

    /// Adds a line to the reflogs of the ref and of HEAD, where git would, unless a crash came
    /// after that.
    fn log(&self, op: &Operation, head_names: HeadNames) {
        let sound = self.sound;
        let missing = Missing::as_configured(&self.settings, false);
        let kind = match sound.parent {
            Some(_) => "commit",
            None => "commit (initial)",
        };
        let message = format!("{kind}: {}", subject(&sound.intent.message));
        let committer = sound.committer();
        let line = Line {
            from: sound.parent,
            to: Some(sound.commit),
            committer: &committer,
            at: sound.intent.time,
            message: &message,
        };
        let reference = &*sound.intent.reference;
        let own = (reference != "HEAD").then_some((self.refs.common.as_fd(), reference));
        let head = (head_names == HeadNames::It).then_some((self.git_dir.as_fd(), "HEAD"));
        for (holder, name) in own.into_iter().chain(head) {
            if reflog::last(op, holder, name) != Some(sound.commit) {
                reflog::add(op, holder, name, &line, missing);
            }
        }
    }

    /// Lets the index follow, while the ref is at `tip`.
    fn follow(
        &self,
        op: &Operation,
        tip: ObjectId,
        changes: &[TreeChange],
    ) -> Result<(), CommitError> {
        let trees = RepositoryTrees(self.repository);
        let tree = match tip == self.sound.commit {
            true => self.sound.tree,
            false => CommitObject::known(op, self.repository, tip)?.tree,
        };
        let at_tip = TreeLookup::new(&trees, tree);
        let is_current = |change: &TreeChange| {
            let found = at_tip.at(op, &change.path);
            found.is_ok_and(|item| item.as_ref().and_then(side_of) == change.new)
        };
        let whole = || tree_changes::between(op, &trees, None, Some(tree));
        // Without an index there is no path that it has already.
        let all = match self.in_git_dir("index").read()? {
            Some(_) => None,
            None => Some(whole()?),
        };
        let place = self.in_git_dir("index");
        let mut tries = 0;
        loop {
            tries += 1;
            // Before it is read: of one that takes its place then more is doubted than need be.
            let modified = self.repository.index_stat()?;
            let follow = Follow {
                changes: all.as_deref().unwrap_or(changes),
                prepared: self.sound.intent.index.as_deref(),
                is_current: &is_current,
                whole: (tip == self.sound.commit).then_some(&whole),
                modified_s: modified.map_or(i64::MAX, |stat| {
                    EntryStat::of(&stat).mtime_ns.div_euclid(1_000_000_000)
                }),
                paths: &self.sound.intent.paths,
                root: &self.root,
                scope: self.repository.scope(),
            };
            let seen = place.read()?;
            let index = match &seen {
                Some(bytes) => Some(self.repository.parse_index(bytes)?),
                None => None,
            };
            let Some((version, entries)) = follow.updated(index)? else {
                return Ok(());
            };
            let bytes = user_index::serialize(version, &entries, &[]);
            let judge = |now: Option<&[u8]>| match now == seen.as_deref() {
                true => Ok(Verdict::Replace),
                false => Err(PutError::Changed {
                    what: printable(&place.path.join(place.name)),
                }),
            };
            match self
                .locks()
                .replace(op, &place, Some(New::of(&bytes)), &judge)
            {
                Err(PutError::Changed { .. }) if tries < MAX_TRIES => {}
                written => return Ok(written?),
            }
        }
    }

    fn locks(&self) -> Locks<'_> {
        Locks {
            operation: &self.operation,
            is_recovery: true,
            lock_timeout: self.lock_timeout,
        }
    }

    fn in_git_dir<'n>(&'n self, name: &'n str) -> Place<'n> {
        Place {
            directory: self.git_dir.as_fd(),
            path: self.repository.git_dir(),
            name,
        }
    }

    /// Takes away what a crash left in the user's way, and would keep us from taking the locks.
    fn release_what_a_crash_left(&self, op: &Operation) {
        let locks = self.locks();
        for name in ["HEAD", "index"] {
            locks.release_what_a_crash_left(op, &self.in_git_dir(name));
        }
        let reference = &self.sound.intent.reference;
        if reference != "HEAD" {
            self.refs.release_what_a_crash_left(op, &locks, reference);
        }
    }
}

fn in_place(commit: ObjectId, is_adopted: bool) -> CommitOutcome {
    CommitOutcome::InPlace {
        commit: commit.to_string(),
        is_adopted,
    }
}

fn incomplete(commit: ObjectId, error: CommitError) -> CommitError {
    CommitError::Incomplete {
        commit: commit.to_string(),
        kind: error.kind(),
        source: match error {
            CommitError::Failed { source, .. } => source,
            error => Box::new(error),
        },
    }
}
