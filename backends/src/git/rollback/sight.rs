//! Which files git goes on to see though the index that comes leaves them out of the work tree.
//!
//! A sparse checkout sets a bit for what is not on disk, and git looks at no such file. One that somebody wrote
//! meanwhile stays there: with the bit, nobody would hear of what is in it.

use std::collections::{BTreeMap, BTreeSet};

use crate::git::ObjectId;
use crate::git::user_index::{self, IndexEntry, IndexError, IndexStat, UserIndex};
use crate::path::RelPath;
use crate::worktree::stat_cache::EntryStat;

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

/// Decides about the index `to`, which takes the place of `from`. Of `files`, which are on disk with another content than
/// `to` has, git goes on to see those that it sees by `from`, unless it takes them for unchanged there: what a filter
/// made of content is no edit.
pub(super) fn keep(from: Option<&[u8]>, to: &[u8], files: &BTreeMap<RelPath, EntryStat>) -> Sight {
    let mut seen: BTreeSet<RelPath> = files.keys().cloned().collect();
    let Some(mut index) = parse(to) else {
        return Sight::Hides(seen.into_iter().collect());
    };
    for entry in from.and_then(parse).into_iter().flat_map(|i| i.entries) {
        let is_unchanged = |stat| entry.is_skip_worktree || is_as_git_left_it(&entry, stat);
        if files.get(&entry.path).is_some_and(is_unchanged) {
            seen.remove(&entry.path);
        }
    }
    if index.unwritable_form().is_some() {
        let is_seen_still = |entry: &&IndexEntry| !entry.is_skip_worktree;
        for entry in index.entries.iter().filter(is_seen_still) {
            seen.remove(&entry.path);
        }
        return match seen.is_empty() {
            true => Sight::AsIs,
            false => Sight::Hides(seen.into_iter().collect()),
        };
    }
    let mut is_changed = false;
    for entry in &mut index.entries {
        if entry.is_skip_worktree && seen.contains(&entry.path) {
            entry.is_skip_worktree = false;
            // Without any, git looks into the file.
            entry.stat = IndexStat::default();
            is_changed = true;
        }
    }
    match is_changed {
        true => Sight::Index(user_index::serialize(index.version, &index.entries)),
        false => Sight::AsIs,
    }
}

/// Whether a file has the size, time, inode and executable bit by which git knows that it did not change.
fn is_as_git_left_it(entry: &IndexEntry, stat: &EntryStat) -> bool {
    let then = &entry.stat;
    let seconds = |ns: i64| {
        (
            ns.div_euclid(1_000_000_000) as u32,
            ns.rem_euclid(1_000_000_000) as u32,
        )
    };
    then.size == stat.size as u32
        && then.mtime == seconds(stat.mtime_ns)
        && then.ino == stat.inode as u32
        && entry.mode & 0o100 == stat.mode & 0o100
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

    /// With times that git did not see.
    fn files(paths: &[&str]) -> BTreeMap<RelPath, EntryStat> {
        let path = |path: &&str| (RelPath::new(*path).unwrap(), EntryStat::default());
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
        // What git takes for unchanged is none of them, whatever it holds.
        let b = std::fs::File::open(git.path.join("b")).unwrap();
        let stat = EntryStat::of(&crate::worktree::root::fstat(&b).unwrap());
        let as_it_is = BTreeMap::from([(RelPath::new("b").unwrap(), stat)]);
        assert_eq!(keep(Some(&from), &to, &as_it_is), Sight::AsIs);
        // What cannot be written, or not be read, is named.
        git.git(&["update-index", "--no-skip-worktree", "a", "b", "c"]);
        let from = read();
        git.git(&["update-index", "--split-index", "--skip-worktree", "a"]);
        let hides = Sight::Hides(files(&["a"]).into_keys().collect());
        assert_eq!(keep(Some(&from), &read(), &files(&["a"])), hides);
    }
}
