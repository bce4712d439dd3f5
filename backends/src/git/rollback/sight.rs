//! Files that must stay visible to git although the restored index marks them skip-worktree.
//!
//! A sparse checkout sets that bit for files that are not on disk, and git ignores such files. If a
//! file is on disk and stays there, restoring its bit would hide its edits from git.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::git::ObjectId;
use crate::git::user_index::{self, IndexEntry, IndexError, IndexStat, UserIndex};
use crate::path::RelPath;

/// What comes of an index.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// It hides nothing that is to be seen.
    AsIs,
    /// It becomes this, in which git sees all of it.
    Index(Vec<u8>),
    /// It is in a form that is not written here, and hides these files.
    Hides(Vec<RelPath>),
}

/// Decides about the index `to`, which takes the place of `from`. Of `files`, which are on disk,
/// git goes on to see those that it sees by `from`, with the stat data that `from` has: so it knows
/// itself whether they were edited, and leaves out those that were not once the sparse checkout
/// begins again.
pub(super) fn keep(from: Option<&[u8]>, to: &[u8], files: &BTreeSet<RelPath>) -> Sight {
    let from = from
        .and_then(parse)
        .map_or_else(Vec::new, |from| from.entries);
    let hidden = from.iter().filter(|entry| entry.is_skip_worktree);
    let hidden: HashSet<&RelPath> = hidden.map(|entry| &entry.path).collect();
    let seen: HashMap<&RelPath, &IndexEntry> =
        from.iter().map(|entry| (&entry.path, entry)).collect();
    let mut files: BTreeSet<&RelPath> =
        files.iter().filter(|path| !hidden.contains(path)).collect();
    let all = |files: BTreeSet<&RelPath>| Sight::Hides(files.into_iter().cloned().collect());
    let Some(mut index) = parse(to) else {
        return all(files);
    };
    if index.unwritable_form().is_some() {
        for entry in index.entries.iter().filter(|entry| !entry.is_skip_worktree) {
            files.remove(&entry.path);
        }
        return match files.is_empty() {
            true => Sight::AsIs,
            false => all(files),
        };
    }
    let mut is_changed = false;
    for entry in &mut index.entries {
        if entry.is_skip_worktree && files.contains(&entry.path) {
            let same = seen.get(&entry.path);
            let same = same.filter(|seen| (seen.id, seen.mode) == (entry.id, entry.mode));
            entry.is_skip_worktree = false;
            // Without any, git looks into the file.
            entry.stat = same.map_or_else(IndexStat::default, |seen| seen.stat);
            is_changed = true;
        }
    }
    match is_changed {
        true => Sight::Index(user_index::serialize(index.version, &index.entries, &[])),
        false => Sight::AsIs,
    }
}

/// `None` for an index that cannot be read by itself.
fn parse(bytes: &[u8]) -> Option<UserIndex> {
    let no_shared_index = |_: &ObjectId| -> Result<Vec<u8>, IndexError> { Ok(Vec::new()) };
    user_index::parse(bytes, &mut { no_shared_index }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::test_repository::TestRepository;

    fn files(paths: &[&str]) -> BTreeSet<RelPath> {
        let path = |path: &&str| RelPath::new(*path).unwrap();
        paths.iter().map(path).collect()
    }

    #[test]
    fn what_is_to_be_seen_is_taken_in_and_nothing_else() {
        let git = TestRepository::new();
        for name in ["a", "b", "c"] {
            git.write(name, "x\n");
        }
        git.commit("files");
        let read = || std::fs::read(git.path.join(".git/index")).unwrap();
        git.git(&["update-index", "--skip-worktree", "c"]);
        let from = read();
        git.git(&["update-index", "--skip-worktree", "a", "b"]);
        let to = read();
        assert_eq!(keep(Some(&from), &to, &files(&[])), Sight::AsIs);
        assert_eq!(keep(Some(&from), &to, &files(&["c"])), Sight::AsIs);
        assert_eq!(keep(Some(&to), &from, &files(&["a"])), Sight::AsIs);
        let Sight::Index(bytes) = keep(Some(&from), &to, &files(&["a", "c"])) else {
            panic!("one of them is seen");
        };
        std::fs::write(git.path.join(".git/index"), bytes).unwrap();
        assert_eq!(git.git(&["ls-files", "-t"]), "H a\nS b\nS c");
        git.write("a", "y\n");
        assert_eq!(git.git(&["status", "--porcelain"]), " M a");
        // What cannot be written, or not be read, is named.
        git.git(&["update-index", "--no-skip-worktree", "a", "b", "c"]);
        let from = read();
        git.git(&["update-index", "--split-index", "--skip-worktree", "a"]);
        let hides = Sight::Hides(files(&["a"]).into_iter().collect());
        assert_eq!(keep(Some(&from), &read(), &files(&["a"])), hides);
    }
}
