//! Deciding every byte of a commit, and writing the content that the repository lacks.

use super::decision::{Decided, Decision, Environment};
use super::edits::Purpose;
use super::message::{message_of, signature_of};
use super::objects::CommitObject;
use super::sound::Sound;
use super::staged::Staged;
use super::{repository_of, state_in};
use crate::commit::{CommitError, CommitIntent, CommitRequest};
use crate::git::repository::Head;
use crate::git::repository::UserRepository;
use crate::git::rollback::moves::described;
use crate::git::store::Store;
use crate::git::tree_object;
use crate::operation::Operation;
use crate::record::Record;
use crate::workspace::LockedWorkspace;

/// See [`Backend::prepare_commit`](crate::Backend::prepare_commit). `record` is that of the
/// snapshot.
pub(in crate::git) fn prepare(
    op: &Operation,
    workspace: &LockedWorkspace,
    store: &Store,
    record: &Record,
    request: &CommitRequest,
    env: &Environment<'_>,
) -> Result<Option<CommitIntent>, CommitError> {
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
    let signature = signature_of(request, &settings)?;
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
        purpose: Purpose::Branch,
        env,
    };
    let Decided {
        tree, trees, blobs, ..
    } = decision.tree(op, &head, base)?;
    if tree == base {
        return Ok(None);
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
        paths: request.paths.clone(),
    };
    intent.commit = Sound::id_of(&intent)?.to_string();
    Ok(Some(intent))
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
