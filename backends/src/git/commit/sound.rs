//! An intent that was read and checked.

use crate::commit::{CommitError, CommitIntent, Signature};
use crate::git::repository::is_ref_name;
use crate::git::{ObjectId, ObjectKind};

use super::message::check_signature;

/// An intent whose values fit each other.
pub(super) struct Sound<'i> {
    pub(super) intent: &'i CommitIntent,
    pub(super) parent: Option<ObjectId>,
    pub(super) tree: ObjectId,
    pub(super) commit: ObjectId,
    /// Of the commit.
    pub(super) bytes: Vec<u8>,
}

impl<'i> Sound<'i> {
    /// Reads an intent, which may come from anywhere.
    pub(super) fn of(intent: &'i CommitIntent) -> Result<Self, CommitError> {
        let (parent, tree, bytes) = parts(intent)?;
        let commit = id(&bytes)?;
        let is_branch =
            intent.reference.starts_with("refs/heads/") && is_ref_name(&intent.reference);
        if !is_branch && intent.reference != "HEAD" {
            return Err(CommitError::InvalidOptions(format!(
                "{:?} is no branch",
                intent.reference
            )));
        }
        if intent.commit != commit.to_string() {
            return Err(CommitError::InvalidOptions(format!(
                "the commit is {commit}, and the intent says {}",
                intent.commit
            )));
        }
        Ok(Self {
            intent,
            parent,
            tree,
            commit,
            bytes,
        })
    }

    /// The id of the commit that an intent makes, whatever id it says.
    pub(super) fn id_of(intent: &CommitIntent) -> Result<ObjectId, CommitError> {
        id(&parts(intent)?.2)
    }

    /// Who commits, as commits and reflogs name them.
    pub(super) fn committer(&self) -> String {
        committer(self.intent)
    }
}

/// Parent and tree, and the bytes of the commit.
fn parts(intent: &CommitIntent) -> Result<(Option<ObjectId>, ObjectId, Vec<u8>), CommitError> {
    let known = |id: &String| id.parse::<ObjectId>().map_err(CommitError::InvalidOptions);
    let parent = intent.parent.as_ref().map(known).transpose()?;
    let tree = known(&intent.tree)?;
    check_signature(&intent.signature)?;
    if intent.message.contains('\0') || intent.time < 0 {
        return Err(CommitError::InvalidOptions(
            "the message holds a NUL byte, or the time is before 1970".to_owned(),
        ));
    }
    let who = (&intent.signature, intent.time);
    let text = commit_text(tree, parent.as_slice(), who, &intent.message);
    Ok((parent, tree, text.into_bytes()))
}

/// The commit of these values. Author and committer are the same, and so are their times, in
/// seconds since 1970.
pub(in crate::git) fn commit_text(
    tree: ObjectId,
    parents: &[ObjectId],
    (signature, time): (&Signature, i64),
    message: &str,
) -> String {
    let mut text = format!("tree {tree}\n");
    for parent in parents {
        text.push_str(&format!("parent {parent}\n"));
    }
    let who = format!("{} <{}> {time} +0000", signature.name, signature.email);
    text.push_str(&format!("author {who}\ncommitter {who}\n\n{message}"));
    text
}

fn committer(intent: &CommitIntent) -> String {
    format!("{} <{}>", intent.signature.name, intent.signature.email)
}

fn id(bytes: &[u8]) -> Result<ObjectId, CommitError> {
    ObjectId::of(ObjectKind::Commit, bytes).map_err(|e| CommitError::InvalidOptions(e.to_string()))
}
