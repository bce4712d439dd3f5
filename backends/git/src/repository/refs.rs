//! All refs of the repository that lie below a name, and the stashes.

use std::collections::BTreeMap;

use super::git_dir::{GitDir, Kind};
use super::head::{MAX_PACKED_REFS_BYTES, RefText, is_ref_name};
use super::{MAX_LINE_BYTES, RepositoryError, UserRepository, hex_id};
use crate::ObjectId;

/// The most names in one directory, and the most refs: beyond that they are not told one by one.
const MAX_REFS: usize = 1_000_000;

/// git itself nests them as deep as somebody names them; a name has at most 4096 bytes.
const MAX_DEPTH: usize = 256;

/// More stashes than these are not told, the oldest are left out: a snapshot of every run keeps
/// them.
pub const MAX_STASHES: usize = 64;

/// The log of thousands of stashes.
const MAX_STASH_LOG_BYTES: u64 = 1 << 20;

/// The refs that all worktrees share.
#[derive(Debug, Default)]
pub struct SharedRefs {
    /// What each names, but for symbolic ones.
    pub ids: BTreeMap<String, ObjectId>,
    /// The ref that each symbolic one leads to, whether there is such a ref or not.
    pub symbolic: BTreeMap<String, String>,
}

/// An entry of the list of stashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stash {
    /// What was put away.
    pub commit: ObjectId,
    /// Of one line.
    pub message: String,
}

impl UserRepository {
    /// The refs below `directory` (such as `refs/tags`), loose or packed, with what each names.
    /// They are those that all worktrees share.
    ///
    /// Left out are symbolic refs, those that hold no id, and names that git would not take or that
    /// are no UTF-8. No link is followed: one in the place of a ref or of a directory is
    /// [`RepositoryError::Hostile`].
    pub fn refs_below(
        &self,
        directory: &str,
    ) -> Result<BTreeMap<String, ObjectId>, RepositoryError> {
        Ok(self.shared_refs(directory)?.ids)
    }

    /// As [`UserRepository::refs_below`], with the symbolic ones.
    pub fn shared_refs(&self, directory: &str) -> Result<SharedRefs, RepositoryError> {
        let common = self.common();
        let packed = common.read("packed-refs", MAX_PACKED_REFS_BYTES)?;
        let mut refs = SharedRefs {
            ids: packed_below(packed.as_deref().unwrap_or_default(), directory),
            symbolic: BTreeMap::new(),
        };
        let mut pending = Vec::new();
        if let Some(found) = common.directory(directory)? {
            pending.push((directory.to_owned(), found, 0));
        }
        while let Some((name, found, depth)) = pending.pop() {
            let is_taken = |leaf: &[u8]| !leaf.starts_with(b".") && !leaf.ends_with(b".lock");
            for leaf in found.list(MAX_REFS, is_taken)? {
                let full = format!("{name}/{leaf}");
                match found.kind(&leaf)? {
                    Kind::Directory if depth < MAX_DEPTH => {
                        pending.extend(found.directory(&leaf)?.map(|d| (full, d, depth + 1)));
                    }
                    Kind::File if is_ref_name(&full) => refs.add(full, read(&found, &leaf)?),
                    _ => {}
                }
            }
        }
        Ok(refs)
    }

    /// The stashes as `git stash list` has them, the newest first, at most [`MAX_STASHES`].
    pub fn stashes(&self) -> Result<Vec<Stash>, RepositoryError> {
        let name = "logs/refs/stash";
        let log = self.common().read(name, MAX_STASH_LOG_BYTES)?;
        let log = log.unwrap_or_default();
        let lines = log.split(|b| *b == b'\n').filter(|line| !line.is_empty());
        let stashes = lines.rev().take(MAX_STASHES).map(Stash::of_log);
        let stashes: Option<Vec<Stash>> = stashes.collect();
        stashes.ok_or_else(|| RepositoryError::Damaged {
            path: self.common().disk_path(name),
            reason: "it is no log of a ref".to_owned(),
        })
    }
}

impl SharedRefs {
    /// What was packed counts no more: a loose ref is what came after it.
    fn add(&mut self, name: String, text: Option<RefText>) {
        self.ids.remove(&name);
        match text {
            Some(RefText::Id(id)) => drop(self.ids.insert(name, id)),
            Some(RefText::Symbolic(target)) => {
                let target = String::from_utf8(target).ok();
                if let Some(target) = target.filter(|target| is_ref_name(target)) {
                    self.symbolic.insert(name, target);
                }
            }
            None => {}
        }
    }
}

impl Stash {
    /// By a line of the log: two ids, who it was and when, a tab, the message.
    fn of_log(line: &[u8]) -> Option<Self> {
        let message = line.iter().position(|b| *b == b'\t');
        let message = message.map_or(&[][..], |tab| &line[tab + 1..]);
        Some(Self {
            commit: hex_id(line.get(41..81)?)?,
            message: String::from_utf8_lossy(message).into_owned(),
        })
    }
}

/// What a loose ref says; `None`: nothing.
fn read(directory: &GitDir, leaf: &str) -> Result<Option<RefText>, RepositoryError> {
    let text = directory.read(leaf, MAX_LINE_BYTES)?;
    Ok(text.as_deref().and_then(RefText::parse))
}

/// The refs below `directory` that the text of `packed-refs` has. Pure.
fn packed_below(text: &[u8], directory: &str) -> BTreeMap<String, ObjectId> {
    let lines = text.split(|b| *b == b'\n');
    let refs = lines.filter_map(|line| {
        // Neither has the header or the line that peels a tag.
        let (id, rest) = line.split_at_checked(40)?;
        let name = std::str::from_utf8(rest.strip_prefix(b" ")?.trim_ascii_end()).ok()?;
        let is_below = name.strip_prefix(directory)?.starts_with('/') && is_ref_name(name);
        is_below.then_some((name.to_owned(), hex_id(id)?))
    });
    refs.collect()
}

/// The directory that a ref or file lies in, below the git directory, and its last name.
pub fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or(("", name))
}

#[cfg(test)]
mod tests {
    use super::MAX_STASHES;
    use crate::repository::testing::found;
    use crate::test_repository::TestRepository;

    /// Those that git names below `refs`, as lines of name and id.
    fn by_git(git: &TestRepository) -> Vec<String> {
        let text = git.git(&["for-each-ref", "--format=%(refname) %(objectname)"]);
        text.lines().map(str::to_owned).collect()
    }

    fn by_us(git: &TestRepository, below: &str) -> Vec<String> {
        let refs = found(&git.path).refs_below(below).unwrap();
        refs.iter()
            .map(|(name, id)| format!("{name} {id}"))
            .collect()
    }

    #[test]
    fn they_are_those_that_git_names_loose_and_packed() {
        let git = TestRepository::new();
        git.commit("one");
        git.git(&["tag", "-a", "-m", "x", "v1"]);
        git.git(&["branch", "a/b/c"]);
        git.git(&["branch", "moved"]);
        assert_eq!(by_us(&git, "refs"), by_git(&git));
        git.git(&["pack-refs", "--all"]);
        assert_eq!(by_us(&git, "refs"), by_git(&git));
        git.commit("two");
        git.git(&["branch", "-f", "moved"]);
        git.git(&["tag", "v2"]);
        let both = by_us(&git, "refs");
        assert_eq!(both, by_git(&git), "a loose one counts before a packed one");
        let tags: Vec<_> = both
            .into_iter()
            .filter(|l| l.starts_with("refs/tags/"))
            .collect();
        assert_eq!(by_us(&git, "refs/tags"), tags);
        assert_eq!(
            by_us(&git, "refs/tag"),
            [""; 0],
            "it is a name and no beginning of one"
        );
    }

    #[test]
    fn stashes_are_those_that_git_lists_and_the_newest_of_many() {
        let git = TestRepository::with_commit();
        let stashes = || found(&git.path).stashes().unwrap();
        assert_eq!(stashes(), []);
        let commit = git.git(&["commit-tree", "-p", "HEAD", "-m", "x", "HEAD^{tree}"]);
        for n in 0..MAX_STASHES + 2 {
            let message = format!("said of {n}\tand more");
            git.git(&[
                "update-ref",
                "--create-reflog",
                "-m",
                &message,
                "refs/stash",
                &commit,
            ]);
            git.git(&[
                "update-ref",
                "--create-reflog",
                "-m",
                &message,
                "refs/stash",
                "HEAD",
            ]);
        }
        let listed = git.git(&[
            "reflog",
            "show",
            "--format=%H %gs",
            "--no-abbrev",
            "refs/stash",
        ]);
        let listed: Vec<&str> = listed.lines().take(MAX_STASHES).collect();
        let own: Vec<String> = stashes()
            .iter()
            .map(|stash| format!("{} {}", stash.commit, stash.message))
            .collect();
        assert_eq!(own, listed);
        std::fs::write(git.path.join(".git/logs/refs/stash"), "nothing\n").unwrap();
        assert!(found(&git.path).stashes().is_err());
    }

    #[test]
    fn what_is_no_ref_is_left_out() {
        let git = TestRepository::new();
        git.commit("one");
        let sound = by_us(&git, "refs");
        git.git(&[
            "symbolic-ref",
            "refs/remotes/origin/HEAD",
            "refs/heads/main",
        ]);
        std::fs::write(git.path.join(".git/refs/heads/left.lock"), "").unwrap();
        std::fs::write(git.path.join(".git/refs/heads/empty"), "").unwrap();
        assert_eq!(by_us(&git, "refs"), sound);
        std::fs::remove_file(git.path.join(".git/refs/heads/empty")).unwrap();
        std::os::unix::fs::symlink("main", git.path.join(".git/refs/heads/link")).unwrap();
        assert!(
            found(&git.path).refs_below("refs").is_err(),
            "a link is followed by nobody"
        );
    }
}
