//! The commits and trees of the user's repository.

use jiff::Timestamp;

use crate::commit::{CommitError, Signature};
use crate::git::repository::{RepositoryError, UserRepository};
use crate::git::tree_object::{self, TreeItem, Trees};
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;

/// A commit message that long was not written by hand.
const MAX_COMMIT_BYTES: u64 = 64 << 20;

/// A directory of several million names.
const MAX_TREE_BYTES: u64 = 256 << 20;

/// The trees of the repository.
pub(in crate::git) struct RepositoryTrees<'a>(pub(in crate::git) &'a UserRepository);

impl Trees for RepositoryTrees<'_> {
    fn tree(&self, op: &Operation, id: &ObjectId) -> Result<Vec<TreeItem>, StoreError> {
        // It need not be anywhere.
        if *id == tree_object::empty_tree_id() {
            return Ok(Vec::new());
        }
        let read = self.0.read_object(op, *id, MAX_TREE_BYTES);
        match read.map_err(as_store_error)? {
            Some((ObjectKind::Tree, bytes)) => tree_object::parse(id, &bytes),
            Some(_) => Err(StoreError::corrupt(id.to_string(), "it is no tree")),
            None => Err(as_store_error(RepositoryError::MissingObject { id: *id })),
        }
    }
}

/// Trees are read by what reads those of the store, too.
pub(in crate::git) fn as_store_error(error: RepositoryError) -> StoreError {
    match SnapshotError::from(error) {
        SnapshotError::Store(error) => error,
        SnapshotError::Interrupted(why) => StoreError::Interrupted(why),
        SnapshotError::Unreadable { source, .. } => source.into(),
        error => StoreError::corrupt("a tree of the repository", error.to_string()),
    }
}

/// A commit, as far as it matters here.
#[derive(Clone, Debug)]
pub(super) struct CommitObject {
    pub(super) tree: ObjectId,
    pub(super) parents: Vec<ObjectId>,
    pub(super) author: Signature,
    /// Seconds since 1970.
    pub(super) committed_at: i64,
    /// What is not UTF-8 is replaced.
    pub(super) message: String,
}

impl CommitObject {
    /// The commit `id`; `None` if the repository has none of that id.
    pub(super) fn read(
        op: &Operation,
        repository: &UserRepository,
        id: ObjectId,
    ) -> Result<Option<Self>, CommitError> {
        match repository.read_object(op, id, MAX_COMMIT_BYTES)? {
            Some((ObjectKind::Commit, bytes)) => match Self::parse(&bytes) {
                Some(commit) => Ok(Some(commit)),
                None => Err(StoreError::corrupt(id.to_string(), "the commit is malformed").into()),
            },
            _ => Ok(None),
        }
    }

    /// The commit `id`, which must be there.
    pub(super) fn known(
        op: &Operation,
        repository: &UserRepository,
        id: ObjectId,
    ) -> Result<Self, CommitError> {
        match Self::read(op, repository, id)? {
            Some(commit) => Ok(commit),
            None => Err(RepositoryError::MissingObject { id }.into()),
        }
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (header, message) = match bytes.windows(2).position(|pair| pair == b"\n\n") {
            Some(end) => (&bytes[..end], &bytes[end + 2..]),
            None => (bytes, &b""[..]),
        };
        let header = String::from_utf8_lossy(header);
        let mut lines = header.lines();
        let tree = lines.next()?.strip_prefix("tree ")?.parse().ok()?;
        let mut parents = Vec::new();
        let (mut author, mut committed_at) = (None, None);
        for line in lines {
            match line.split_once(' ')? {
                ("parent", id) if author.is_none() => parents.push(id.parse().ok()?),
                ("author", text) if author.is_none() => author = Some(signature(text).0),
                ("committer", text) if committed_at.is_none() => {
                    committed_at = Some(signature(text).1);
                }
                // Further headers, and the lines of a signature, which begin with a blank.
                _ => {}
            }
        }
        Some(Self {
            tree,
            parents,
            author: author?,
            committed_at: committed_at?,
            message: String::from_utf8_lossy(message).into_owned(),
        })
    }
}

/// Who made a commit of the repository, and when.
pub(in crate::git) fn made_by(
    op: &Operation,
    repository: &UserRepository,
    id: ObjectId,
) -> Result<(Signature, Timestamp), CommitError> {
    let commit = CommitObject::known(op, repository, id)?;
    let at = Timestamp::from_second(commit.committed_at).unwrap_or(Timestamp::UNIX_EPOCH);
    Ok((commit.author, at))
}

/// Refuses an id of which the user's repository has no commit.
pub(in crate::git) fn refuse_unless_commit(
    op: &Operation,
    repository: &UserRepository,
    id: ObjectId,
) -> Result<(), CommitError> {
    match CommitObject::read(op, repository, id)? {
        Some(_) => Ok(()),
        None => Err(CommitError::NotFound(id.to_string())),
    }
}

/// Who made a commit of these bytes; `None`: they are none.
pub(in crate::git) fn committer_in(bytes: &[u8]) -> Option<Signature> {
    let header = String::from_utf8_lossy(bytes);
    let mut lines = header.lines().take_while(|line| !line.is_empty());
    let line = lines.find_map(|line| line.strip_prefix("committer "))?;
    Some(signature(line).0)
}

/// `Name <address> seconds zone`; what is missing is empty, or the beginning of time.
fn signature(text: &str) -> (Signature, i64) {
    let (name, rest) = text.split_once('<').unwrap_or((text, ""));
    let (email, when) = rest.rsplit_once('>').unwrap_or((rest, ""));
    let seconds = when.split_whitespace().next();
    let seconds = seconds.and_then(|s| s.parse().ok()).unwrap_or(0);
    (Signature::new(name.trim_end(), email), seconds)
}
