//! Deciding every byte of a commit, and writing the content that the repository lacks.

use std::collections::BTreeSet;

use super::decision::{Changed, Decided, Decision, Environment};
use super::edits::Purpose;
use super::message::{message_of, signature_of, signature_of_user};
use super::objects::CommitObject;
use super::scope;
use super::sound::Sound;
use super::staged::Staged;
use super::{repository_of, state_in};
use crate::commit::{CommitError, CommitIntent, CommitRequest, PreparedCandidate};
use crate::git::ObjectId;
use crate::git::index::within;
use crate::git::repository::Head;
use crate::git::repository::UserRepository;
use crate::git::rollback::moves::described;
use crate::git::store::Store;
use crate::git::tree_object;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::path_globs::PathGlobs;
use crate::record::Record;
use crate::workspace::LockedWorkspace;

/// See [`Repository::prepare_commit`](crate::Repository::prepare_commit). `record` is that of the
/// snapshot.
pub(in crate::git) fn prepare(
    op: &Operation,
    workspace: &LockedWorkspace,
    store: &Store,
    record: &Record,
    request: &CommitRequest,
    env: &Environment<'_>,
) -> Result<Option<CommitIntent>, CommitError> {
    let wanted = Wanted {
        request,
        purpose: Purpose::Branch,
        scope: None,
    };
    let prepared = prepared(op, workspace, store, record, &wanted, env)?;
    Ok(prepared.intent)
}

/// See [`Repository::prepare_candidate`](crate::Repository::prepare_candidate). `record` is that of
/// the snapshot.
pub(in crate::git) fn prepare_candidate(
    op: &Operation,
    workspace: &LockedWorkspace,
    store: &Store,
    record: &Record,
    (request, scope): (&CommitRequest, &PathGlobs),
    env: &Environment<'_>,
) -> Result<PreparedCandidate, CommitError> {
    let wanted = Wanted {
        request,
        purpose: Purpose::Checkpoint,
        scope: (!scope.is_empty()).then_some(scope),
    };
    prepared(op, workspace, store, record, &wanted, env)
}

/// What is to become a commit.
struct Wanted<'a> {
    request: &'a CommitRequest,
    purpose: Purpose,
    /// What may change; `None`: everything.
    scope: Option<&'a PathGlobs>,
}

fn prepared(
    op: &Operation,
    workspace: &LockedWorkspace,
    store: &Store,
    record: &Record,
    wanted: &Wanted<'_>,
    env: &Environment<'_>,
) -> Result<PreparedCandidate, CommitError> {
    let request = wanted.request;
    let message = message_of(request)?;
    let time = request.at.as_second();
    if time < 0 {
        return Err(CommitError::InvalidOptions(
            "the time of the commit is before 1970".to_owned(),
        ));
    }
    let repository = repository_of(workspace)?;
    let head = head_of(&repository, record)?;
    let settings = repository.settings(env)?;
    let signature = match (wanted.purpose, &request.author) {
        // Nobody is asked for what goes to no branch of the user's.
        (Purpose::Checkpoint, None) => signature_of_user(&settings),
        _ => signature_of(request, &settings)?,
    };
    let staged = Staged::read(&repository)?;

    let base = match head.commit() {
        Some(commit) => CommitObject::known(op, &repository, commit)?.tree,
        None => tree_object::empty_tree_id(),
    };
    let decision = Decision {
        workspace,
        repository: &repository,
        store,
        record,
        settings: &settings,
        staged: &staged,
        paths: &request.paths,
        purpose: wanted.purpose,
        env,
    };
    let Changed {
        mut edits,
        mut blobs,
        left,
    } = decision.changed(op, &head)?;
    let mut prepared = PreparedCandidate {
        branch: head.branch().map(str::to_owned),
        unconverted: left.unconverted.into_iter().collect(),
        ..PreparedCandidate::default()
    };
    let mut paths = request.paths.clone();
    if let Some(scope) = wanted.scope {
        let is_inside = |path: &RelPath| scope.matching_in_tree(path).is_some();
        prepared.unconverted.retain(is_inside);
        let outside = scope::outside(&edits, is_inside);
        if !outside.is_empty() {
            edits.retain(|path, _| !outside.contains(path));
            let named: BTreeSet<ObjectId> = edits.values().flatten().map(|(_, id)| *id).collect();
            blobs.retain(|id, _| named.contains(id));
            let below = |path: &RelPath| within(path, repository.scope());
            paths = edits.keys().filter_map(below).collect();
            prepared.out_of_scope = outside.into_iter().collect();
        }
    }
    let Decided {
        tree, trees, blobs, ..
    } = decision.tree_of(op, base, edits, blobs)?;
    if tree == base {
        return Ok(prepared);
    }
    decision.contents(op).give(&blobs, &trees)?;
    let reference = head.branch().unwrap_or("HEAD").to_owned();
    let mut intent = CommitIntent {
        reference,
        parent: head.commit().map(|commit| commit.to_string()),
        tree: tree.to_string(),
        message,
        signature,
        time,
        commit: String::new(),
        index: staged.digest(),
        paths,
    };
    intent.commit = Sound::id_of(&intent)?.to_string();
    prepared.intent = Some(intent);
    Ok(prepared)
}

/// What HEAD names, if a commit can be made there and the snapshot saw it so.
fn head_of(repository: &UserRepository, record: &Record) -> Result<Head, CommitError> {
    let seen = state_in(record, repository)?;
    if let Some(operation) = repository.operation()?.in_progress {
        return Err(CommitError::Conflict(format!(
            "a {operation} is in progress: finish or abort it first"
        )));
    }
    let head = repository.head()?;
    if head != seen.head {
        return Err(CommitError::Conflict(format!(
            "HEAD is at {}, and was at {} when the snapshot was taken",
            described(&head),
            described(&seen.head)
        )));
    }
    match head.branch() {
        Some(branch) if !branch.starts_with("refs/heads/") => Err(CommitError::Unsupported(
            format!("HEAD names {branch}, which is no branch"),
        )),
        _ => Ok(head),
    }
}
