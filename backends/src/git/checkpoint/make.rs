//! From a snapshot to a commit in the store that a ref keeps.

use std::collections::{BTreeSet, HashSet};

use crate::borrow_mode::BorrowMode;
use crate::checkpoint::{CheckpointError, CheckpointOutcome, CheckpointRequest, KeptCheckpoint};
use crate::commit::Signature;
use crate::coverage::{Omission, OmissionReason};
use crate::git::commit::{self, Environment, Saving};
use crate::git::either::closure::Closure;
use crate::git::either::past::{Past, Relation, Unreached};
use crate::git::either::{Either, EitherTrees};
use crate::git::nodes::tree_of;
use crate::git::refs;
use crate::git::repository::{Settings, Shallow, UserRepository};
use crate::git::store::Store;
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::record::Record;
use crate::store_error::StoreError;
use crate::workspace::LockedWorkspace;

/// See [`Checkpoints::make_checkpoint`](crate::Checkpoints::make_checkpoint). `record` is that of
/// the snapshot.
pub(in crate::git) fn make(
    op: &Operation,
    workspace: &LockedWorkspace,
    store: &Store,
    record: &Record,
    request: &CheckpointRequest,
    env: &Environment<'_>,
) -> Result<CheckpointOutcome, CheckpointError> {
    let asked = Asked::of(request)?;
    let repository = commit::repository_of(workspace)?;
    let state = commit::state_in(record, &repository)?;
    let signature = signature_of(request, &repository.settings(env)?)?;
    let saving = Saving::of(op, workspace, &repository, store, (record, state), env)?;
    let past = Past::new(op, Some(&repository), store)?;
    let head = state.head.commit();
    let parents = parents_of(&past, asked.sent, head)?;
    let tip = match parents[..] {
        [] if saving.tree == crate::git::tree_object::empty_tree_id() => {
            return Ok(outcome(record, saving, None, &[]));
        }
        [only] => past.commit(only)?.filter(|tip| tip.tree == saving.tree),
        _ => None,
    };
    let text = commit::commit_text(
        saving.tree,
        &parents,
        (&signature, asked.time),
        &request.message,
    );
    let commit = match &tip {
        Some(tip) => tip.id,
        None => ObjectId::of(ObjectKind::Commit, text.as_bytes())
            .map_err(|e| CheckpointError::InvalidOptions(e.to_string()))?,
    };
    let own_parents = if tip.is_some() { &[][..] } else { &parents[..] };
    let number = request.number;
    let keeping = Keeping {
        op,
        repository: &repository,
        store,
        record: Some(record),
        on_remote: &request.on_remote,
        borrow: request.borrow,
        past: &past,
    };
    // What is there under this number was made for this request.
    let there = store.checkpoints(Some(&request.task))?;
    if let Some(found) = there.iter().find(|found| found.number == number) {
        let is_it = found.commit == commit || keeping.is_of(found.commit, &signature, request)?;
        if !is_it {
            return Err(CheckpointError::Conflict(format!(
                "{} is another checkpoint",
                found.name
            )));
        }
        let is_own = found.commit != commit || tip.is_none();
        let parents = match past.commit(found.commit)? {
            Some(commit) if is_own => commit.parents.clone(),
            _ => Vec::new(),
        };
        return Ok(outcome(
            record,
            saving,
            Some((found.clone().into(), is_own)),
            &parents,
        ));
    }
    let name = refs::checkpoint_name(&request.task, number);
    let pack = store.writer(op)?;
    if tip.is_none() && !store.contains(&commit)? {
        saving.add_to(store, &pack)?;
        let added = pack.add(ObjectKind::Commit, commit, text.as_bytes());
        added.map_err(StoreError::from)?;
    }
    let complete = || keeping.hold(commit);
    if !store.keep_checkpoint(op, &name, commit, pack, complete)? {
        return Err(CheckpointError::Conflict(format!(
            "{name} was made meanwhile"
        )));
    }
    let kept = KeptCheckpoint::new(number, commit.to_string(), name);
    Ok(outcome(
        record,
        saving,
        Some((kept, tip.is_none())),
        own_parents,
    ))
}

/// What a request asks for, read and checked.
struct Asked {
    sent: Option<ObjectId>,
    time: i64,
}

impl Asked {
    fn of(request: &CheckpointRequest) -> Result<Self, CheckpointError> {
        let invalid = |what: &str| Err(CheckpointError::InvalidOptions(what.to_owned()));
        if request.task.is_empty() {
            return invalid("the task has no name");
        }
        if request.number == 0 {
            return invalid("the checkpoints of a task are numbered from 1");
        }
        if request.message.trim().is_empty() || request.message.contains('\0') {
            return invalid("the message is empty, or holds a NUL byte");
        }
        let time = request.at.as_second();
        if time < 0 {
            return invalid("the time of the checkpoint is before 1970");
        }
        let sent = request
            .sent
            .as_ref()
            .map(|id| id.parse().map_err(CheckpointError::InvalidOptions));
        Ok(Self {
            sent: sent.transpose()?,
            time,
        })
    }
}

/// The parents, by what the last checkpoint that was sent and HEAD have of each other.
fn parents_of(
    past: &Past<'_>,
    sent: Option<ObjectId>,
    head: Option<ObjectId>,
) -> Result<Vec<ObjectId>, CheckpointError> {
    let (sent, head) = match (sent, head) {
        (Some(sent), Some(head)) => (sent, head),
        (sent, head) => {
            for id in sent.iter().chain(&head) {
                if past.commit(*id)?.is_none() {
                    let commit = id.to_string();
                    return Err(CheckpointError::CommitMissing { commit });
                }
            }
            return Ok(sent.or(head).into_iter().collect());
        }
    };
    Ok(match past.relation(sent, head)? {
        Relation::Contains => vec![sent],
        Relation::Contained => vec![head],
        Relation::Apart => vec![sent, head],
        Relation::CutAt(cut_at) => {
            return Err(CheckpointError::HistoryUnknown {
                one: sent.to_string(),
                other: head.to_string(),
                cut_at: cut_at.to_string(),
            });
        }
    })
}

/// Who makes it.
fn signature_of(
    request: &CheckpointRequest,
    settings: &Settings,
) -> Result<Signature, CheckpointError> {
    if let Some(author) = &request.author {
        commit::check_signature(author)?;
        return Ok(author.clone());
    }
    Ok(commit::signature_of_user(settings))
}

fn outcome(
    record: &Record,
    saving: Saving,
    kept: Option<(KeptCheckpoint, bool)>,
    parents: &[ObjectId],
) -> CheckpointOutcome {
    let mut left_out = saving.left.omitted;
    let is_told = |omission: &&Omission| {
        !omission.reason.is_a_rule() && omission.reason != OmissionReason::GitDir
    };
    for omission in record.snapshot.omissions().iter().filter(is_told) {
        left_out.insert(omission.path.clone(), omission.clone());
    }
    CheckpointOutcome {
        is_new: kept.as_ref().is_some_and(|(_, is_new)| *is_new),
        checkpoint: kept.map(|(kept, _)| kept),
        parents: parents.iter().map(ToString::to_string).collect(),
        unconverted_paths: saving.left.unconverted.into_iter().collect(),
        left_out: left_out.into_values().collect(),
        submodules: saving.left.submodules.into_iter().collect(),
    }
}

/// Bringing in what a checkpoint needs.
pub(super) struct Keeping<'a> {
    pub(super) op: &'a Operation,
    pub(super) repository: &'a UserRepository,
    pub(super) store: &'a Store,
    /// That of the snapshot that it is of; `None`: it is of none.
    pub(super) record: Option<&'a Record>,
    /// The full ids of commits that the remote is known to have.
    pub(super) on_remote: &'a [String],
    pub(super) borrow: BorrowMode,
    pub(super) past: &'a Past<'a>,
}

impl Keeping<'_> {
    /// Whether a commit was made for this very request, at an earlier time: it has the same
    /// message, author and time, or is what was sent or HEAD.
    fn is_of(
        &self,
        commit: ObjectId,
        signature: &Signature,
        request: &CheckpointRequest,
    ) -> Result<bool, CheckpointError> {
        let Some((found, bytes)) = self.store.commit_of(self.op, commit)? else {
            return Ok(false);
        };
        let time = request.at.as_second();
        let text = commit::commit_text(
            found.tree,
            &found.parents,
            (signature, time),
            &request.message,
        );
        Ok(text.as_bytes() == bytes)
    }

    /// Makes sure that the store has all that `commit` reaches and the remote is not known to have:
    /// commits, trees and blobs. History ends there at what the remote has.
    pub(super) fn hold(&self, commit: ObjectId) -> Result<(), CheckpointError> {
        let on_remote = self.on_remote.iter();
        let on_remote: Vec<ObjectId> = on_remote.filter_map(|id| id.parse().ok()).collect();
        let ends = self.store.history_ends()?;
        let held = self.held(&on_remote, &ends)?;
        let no_ends = Shallow::default();
        let found = self
            .past
            .unreached(&[commit], &on_remote, &held, &no_ends)?;
        let Unreached {
            mut commits,
            edge,
            ends: cut,
        } = found;
        // The commit itself, if the remote has even that.
        let edge = match commits.is_empty() && !held.contains(&commit) {
            true => BTreeSet::from([commit]),
            false => edge,
        };
        let mut known_trees = Vec::new();
        if let Some(record) = self.record.filter(|_| self.repository.scope().is_root()) {
            known_trees.push(tree_of(record)?);
        }
        let mut wanted: HashSet<ObjectId> = edge.iter().copied().collect();
        let packs = self.store.reader_set()?;
        let stored = self.store.reader(&packs);
        let (store, repository) = (self.store, self.repository);
        let trees = EitherTrees::new(Either { store, repository }, &stored);
        let mut of_edge = Closure::new(self.op, trees);
        for id in &edge {
            if let Some(commit) = self.past.commit(*id)? {
                of_edge.add(commit.tree, &known_trees)?;
                known_trees.truncate(1);
                known_trees.push(commit.tree);
            }
        }
        // The oldest first: the next ones add to it.
        commits.reverse();
        let mut new = Closure::new(self.op, trees);
        for commit in &commits {
            wanted.insert(commit.id);
            let mut before = Vec::new();
            let parents = commit.parents.iter().filter(|_| !cut.contains(&commit.id));
            for parent in parents {
                before.extend(self.past.commit(*parent)?.map(|parent| parent.tree));
            }
            new.add(commit.tree, &before)?;
        }
        let is_had_elsewhere = |id: &ObjectId| of_edge.ids.contains(id);
        wanted.extend(new.ids.iter().chain(&of_edge.ids));
        let wanted: Vec<ObjectId> = wanted.into_iter().collect();
        let directories = self.repository.object_dirs()?;
        let borrowed = self
            .store
            .borrow(self.op, &directories, wanted, self.borrow)?;
        if let Some(id) = borrowed.missing.iter().find(|id| !is_had_elsewhere(id)) {
            if self.store.purged()?.contains(&(*id).into()) {
                return Err(CheckpointError::Unsupported(format!(
                    "the content {id}, which the checkpoint would have, was purged from the store"
                )));
            }
            let detail = "it is neither in the store nor in the repository";
            return Err(StoreError::corrupt(id.to_string(), detail).into());
        }
        let mut all: BTreeSet<ObjectId> = ends.iter().copied().collect();
        for commit in &commits {
            all.remove(&commit.id);
        }
        all.extend(edge.iter().chain(&cut));
        Ok(self.store.end_history_at(self.op, &all)?)
    }

    /// Commits of which the store is known to have all that comes before: those that are kept, and
    /// their parents, unless history ends somewhere at what the remote is not known to have by now.
    fn held(
        &self,
        on_remote: &[ObjectId],
        ends: &Shallow,
    ) -> Result<HashSet<ObjectId>, CheckpointError> {
        let is_elsewhere = |id: &ObjectId| on_remote.contains(id);
        if !ends.iter().all(is_elsewhere) {
            return Ok(HashSet::new());
        }
        let mut held = HashSet::new();
        for kept in self.store.checkpoints(None)? {
            held.insert(kept.commit);
            if ends.has(&kept.commit) {
                continue;
            }
            if let Some((commit, _)) = self.store.commit_of(self.op, kept.commit)? {
                held.extend(commit.parents);
            }
        }
        Ok(held)
    }
}
