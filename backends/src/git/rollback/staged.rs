//! The staged content of an index, and the objects that it needs.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::path::Path;

use super::MAX_INDEX_BYTES;
use crate::git::directory::{open_directory, read_file};
use crate::git::history::Giving;
use crate::git::loose_writer::LooseWriter;
use crate::git::lost::Lost;
use crate::git::put_error::PutError;
use crate::git::repository::RepositoryObjects;
use crate::git::user_index::{self, IndexEntry, IndexError, Visited};
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::store_error::StoreError;

/// A flag of an entry; the two bits of its stage are beside it.
const ASSUME_UNCHANGED: u16 = 0x8000;
/// Extended flags of an entry.
const SKIP_WORKTREE: u16 = 0x4000;
const INTENT_TO_ADD: u16 = 0x2000;

/// A digest of what an index stages, without stat data; `None` if that cannot be read from these
/// bytes alone. It is the same whether or not git wrote the index as a sparse one, unless that has
/// a directory in the place of its files.
pub(crate) fn staging_digest(bytes: &[u8]) -> Option<[u8; 32]> {
    let set = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
    let mut hasher = blake3::Hasher::new();
    let visited = user_index::visit_bytes(bytes, &mut |entry| {
        let flags = set(entry.is_assume_unchanged, ASSUME_UNCHANGED) | u16::from(entry.stage) << 12;
        let extended_flags =
            set(entry.is_skip_worktree, SKIP_WORKTREE) | set(entry.is_intent_to_add, INTENT_TO_ADD);
        hasher
            .update(&(entry.path.len() as u64).to_le_bytes())
            .update(entry.path)
            .update(&entry.id.0)
            .update(&entry.mode.to_le_bytes())
            .update(&flags.to_le_bytes())
            .update(&extended_flags.to_le_bytes());
    });
    match visited.ok()? {
        Visited::All => Some(*hasher.finalize().as_bytes()),
        Visited::Split => None,
    }
}

/// Content that an index stages.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Staged {
    id: ObjectId,
    /// The directory is out of a sparse checkout, and this its tree.
    is_tree: bool,
    /// All that has it is out of a sparse checkout.
    is_skipped: bool,
}

/// The content of these entries, each once, sorted by id. Content of one that is in a sparse
/// checkout is in it, whatever else has it.
fn staged_content(entries: impl IntoIterator<Item = IndexEntry>) -> Vec<Staged> {
    const GITLINK: u32 = 0o160_000;
    const TREE: u32 = 0o040_000;
    let mut content: BTreeMap<ObjectId, Staged> = BTreeMap::new();
    // One that was only announced (`git add -N`) has the empty blob, which need not exist.
    let staged = entries.into_iter();
    for entry in staged.filter(|entry| entry.mode != GITLINK && !entry.is_intent_to_add) {
        let known = content.entry(entry.id).or_insert(Staged {
            id: entry.id,
            is_tree: entry.mode == TREE,
            is_skipped: true,
        });
        known.is_skipped &= entry.is_skip_worktree;
    }
    content.into_values().collect()
}

/// The content that an index stages; none if it cannot be read. The shared index of a split one is
/// beside the index of the work tree.
pub(super) fn content_of(git_dir: &Path, index: &[u8]) -> Vec<Staged> {
    let mut shared = |id: &ObjectId| shared_index(git_dir, id).ok_or(IndexError::NotAnIndex);
    let index = user_index::parse(index, &mut shared);
    index.map_or_else(|_| Vec::new(), |index| staged_content(index.entries))
}

/// What of this content the repository has not.
pub(super) fn lacking(op: &Operation, common_dir: &Path, mut content: Vec<Staged>) -> Vec<Staged> {
    if content.is_empty() {
        return content;
    }
    let ids = content.iter().map(|staged| staged.id).collect();
    let missing = RepositoryObjects::open(common_dir).missing(op, ids);
    content.retain(|staged| missing.binary_search(&staged.id).is_ok());
    content
}

fn shared_index(git_dir: &Path, id: &ObjectId) -> Option<Vec<u8>> {
    let opened = open_directory(git_dir).ok()?;
    let name = format!("sharedindex.{id}");
    let read = read_file(opened.as_fd(), name.as_bytes(), MAX_INDEX_BYTES, git_dir);
    read.ok().flatten()
}

/// Gives the repository the staged content that it is `lacking` and the snapshot kept; answers with
/// what it still lacks. What is out of a sparse checkout counts only if it is `purged`: a partial
/// clone never had it.
///
/// An object more changes nothing that anybody sees, so it is written ahead of the intent: a crash
/// leaves at most content that git's housekeeping removes.
pub(super) fn give_objects_back(
    op: &Operation,
    common_dir: &Path,
    lacking: &[Staged],
    purged: &dyn Fn(&ObjectId) -> bool,
    kept: &dyn Fn(&ObjectId) -> Result<Vec<u8>, StoreError>,
    giving: Giving,
) -> Vec<Lost> {
    let give = |Staged { id, is_tree, .. }: &Staged| {
        if *is_tree {
            return Some(Lost::for_good(*id));
        }
        match kept(id) {
            Ok(_) if giving == Giving::Foreseen => None,
            Ok(content) => write_blob(op, common_dir, id, &content)
                .err()
                .map(|error| Lost::unwritten(*id, &error)),
            Err(error) => Some(Lost::unread(*id, &error)),
        }
    };
    let counts = |staged: &Staged| !staged.is_skipped || purged(&staged.id);
    let lost = lacking
        .iter()
        .filter_map(|staged| Some((give(staged)?, counts(staged))));
    lost.filter_map(|(lost, counts)| counts.then_some(lost))
        .collect()
}

fn write_blob(
    op: &Operation,
    common_dir: &Path,
    id: &ObjectId,
    content: &[u8],
) -> Result<(), PutError> {
    let mut objects = LooseWriter::open(op, common_dir)?;
    let size = content.len() as u64;
    objects.write(ObjectKind::Blob, id, size, &mut |out| {
        out.write_all(content)
    })?;
    objects.sync()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::test_repository::TestRepository;

    #[test]
    fn content_is_out_of_a_sparse_checkout_only_if_all_that_has_it_is() {
        let git = TestRepository::new();
        for (name, content) in [("a", "twice"), ("b", "twice"), ("c", "once"), ("d", "in")] {
            git.write(name, content);
        }
        git.git(&["add", "a", "b", "c", "d"]);
        git.git(&["update-index", "--skip-worktree", "a", "c"]);
        git.write("e", "announced");
        git.git(&["add", "-N", "e"]);
        let bytes = std::fs::read(git.path.join(".git/index")).unwrap();
        let mut no_shared_index = |_: &ObjectId| Err(IndexError::NotAnIndex);
        let index = user_index::parse(&bytes, &mut no_shared_index).unwrap();
        let staged = |name: &str, is_skipped| Staged {
            id: git
                .git(&["rev-parse", &format!(":{name}")])
                .parse()
                .unwrap(),
            is_tree: false,
            is_skipped,
        };
        let mut expected = [staged("a", false), staged("c", true), staged("d", false)];
        expected.sort_by_key(|staged| staged.id);
        assert_eq!(staged_content(index.entries), expected);
    }
}
