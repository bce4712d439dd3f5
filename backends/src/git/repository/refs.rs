//! All refs of the repository that lie below a name.

use std::collections::BTreeMap;

use super::git_dir::{GitDir, Kind};
use super::head::{MAX_PACKED_REFS_BYTES, RefText, is_ref_name};
use super::{MAX_LINE_BYTES, RepositoryError, UserRepository, hex_id};
use crate::git::ObjectId;

/// The most names in one directory, and the most refs: beyond that they are not told one by one.
const MAX_REFS: usize = 1_000_000;

/// git itself nests them as deep as somebody names them; a name has at most 4096 bytes.
const MAX_DEPTH: usize = 256;

impl UserRepository {
    /// The refs below `directory` (such as `refs/tags`), loose or packed, with what each names. They are
    /// those that all worktrees share.
    ///
    /// Left out are symbolic refs, those that hold no id, and names that git would not take or that are no
    /// UTF-8. No link is followed: one in the place of a ref or of a directory is
    /// [`RepositoryError::Hostile`].
    pub(crate) fn refs_below(
        &self,
        directory: &str,
    ) -> Result<BTreeMap<String, ObjectId>, RepositoryError> {
        let common = self.common();
        let packed = common.read("packed-refs", MAX_PACKED_REFS_BYTES)?;
        let mut refs = packed_below(packed.as_deref().unwrap_or_default(), directory);
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
                    Kind::File if is_ref_name(&full) => match read(&found, &leaf)? {
                        Some(id) => drop(refs.insert(full, id)),
                        // What was packed before counts no more: this is what came after it.
                        None => drop(refs.remove(&full)),
                    },
                    _ => {}
                }
            }
        }
        Ok(refs)
    }
}

/// What a loose ref names; `None`: another ref, or nothing.
fn read(directory: &GitDir, leaf: &str) -> Result<Option<ObjectId>, RepositoryError> {
    let text = directory.read(leaf, MAX_LINE_BYTES)?;
    Ok(match text.as_deref().and_then(RefText::parse) {
        Some(RefText::Id(id)) => Some(id),
        _ => None,
    })
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

#[cfg(test)]
mod tests {
    use crate::git::repository::testing::found;
    use crate::git::test_repository::TestRepository;

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
