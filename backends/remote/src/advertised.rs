//! What a remote says that it has.

use std::collections::BTreeMap;

use stillframe_git::ObjectId;

use crate::branch_name::BranchName;

/// The refs that a remote shows, by their full names, with the ids that they are at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advertised {
    refs: BTreeMap<String, ObjectId>,
    /// What HEAD names.
    head: Option<String>,
    /// Where HEAD is.
    head_at: Option<ObjectId>,
}

impl Advertised {
    /// Reads what `git ls-remote` prints, with `--symref` or `--refs`; `None`: it is something
    /// else. A ref whose name is not UTF-8 is none of ours, but what it reaches is known to the
    /// remote, so it is kept under a name with replacement characters. What a tag is of has no name
    /// of its own.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut read = Self::default();
        for line in text.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
            if let Some(symbolic) = line.strip_prefix(b"ref: ") {
                if let Some(head) = symbolic.strip_suffix(b"\tHEAD") {
                    read.head = str::from_utf8(head).ok().map(str::to_owned);
                }
                continue;
            }
            let (id, name) = line.split_at_checked(40)?;
            let name = name.strip_prefix(b"\t")?;
            let id = str::from_utf8(id).ok()?.parse().ok()?;
            if name == b"HEAD" {
                read.head_at = Some(id);
            }
            if name.starts_with(b"refs/") && !name.ends_with(b"^{}") {
                read.refs
                    .insert(String::from_utf8_lossy(name).into_owned(), id);
            }
        }
        Some(read)
    }

    /// The branch that the remote's HEAD names, without `refs/heads/`, if the remote has said so.
    pub fn default_branch(&self) -> Option<&str> {
        self.head.as_deref()?.strip_prefix("refs/heads/")
    }

    /// The branch that a clone begins on, without `refs/heads/`: the one that the remote's HEAD
    /// names. Where HEAD names none and is at a commit, it is a branch at that commit, as `git
    /// clone` chooses one: `main`, `master`, or the first. `None`: there is none.
    pub fn branch_of_clone(&self) -> Option<&str> {
        let is_there = |branch: &&str| self.refs.contains_key(&format!("refs/heads/{branch}"));
        if let Some(named) = self.default_branch() {
            return Some(named).filter(is_there);
        }
        let at = self.head_at?;
        let branches = self.refs.iter().filter(|(_, id)| **id == at);
        let branches = branches.filter_map(|(name, _)| name.strip_prefix("refs/heads/"));
        let branches: Vec<&str> = branches.collect();
        let known = ["main", "master"].into_iter();
        let known = known.filter(|name| branches.contains(name));
        known.chain(branches.first().copied()).next()
    }

    /// Whether it has no ref at all.
    pub fn is_empty(&self) -> bool {
        self.refs.is_empty()
    }

    /// Where `branch` is. The full name is compared, so `refs/remotes/x/refs/heads/main` is not
    /// taken for `refs/heads/main`.
    pub fn branch(&self, branch: &BranchName) -> Option<ObjectId> {
        self.refs.get(&branch.full()).copied()
    }

    /// The ids of all refs.
    pub fn ids(&self) -> impl Iterator<Item = ObjectId> {
        self.refs.values().copied()
    }

    /// The ids of the refs whose names do not begin so.
    pub fn outside_of<'a>(&'a self, start: &'a str) -> impl Iterator<Item = ObjectId> + 'a {
        let others = self
            .refs
            .iter()
            .filter(move |(name, _)| !name.starts_with(start));
        others.map(|(_, id)| *id)
    }

    /// A branch above or below `branch`, beside which it cannot be: a ref is a file or a directory.
    pub(crate) fn in_the_way_of(&self, branch: &BranchName) -> Option<&str> {
        let full = branch.full();
        let is_below = |a: &str, b: &str| a.strip_prefix(b).is_some_and(|r| r.starts_with('/'));
        let mut names = self.refs.keys().map(String::as_str);
        names.find(|name| is_below(name, &full) || is_below(&full, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_branch_is_what_head_names_and_no_ref() {
        let id = "1".repeat(40);
        let text = format!(
            "ref: refs/heads/trunk\tHEAD\n{id}\tHEAD\n{id}\trefs/heads/trunk\n{id}\trefs/tags/v1\n{id}\trefs/tags/v1^{{}}\n"
        );
        let refs = Advertised::parse(text.as_bytes()).unwrap();
        assert_eq!(refs.default_branch(), Some("trunk"));
        assert_eq!(refs.refs.len(), 2);
        let detached = format!("{id}\tHEAD\n");
        let refs = Advertised::parse(detached.as_bytes()).unwrap();
        assert_eq!((refs.default_branch(), refs.ids().count()), (None, 0));
    }

    #[test]
    fn a_clone_begins_on_the_branch_that_head_is_at() {
        let id = |digit: char| digit.to_string().repeat(40);
        let read = |text: &str| Advertised::parse(text.as_bytes()).unwrap();
        let branches = format!(
            "{}\trefs/heads/a\n{}\trefs/heads/b\n{}\trefs/heads/main\n",
            id('1'),
            id('2'),
            id('2')
        );
        for (head, begun) in [
            (
                format!("ref: refs/heads/a\tHEAD\n{}\tHEAD\n", id('1')),
                Some("a"),
            ),
            (format!("{}\tHEAD\n", id('1')), Some("a")),
            (format!("{}\tHEAD\n", id('2')), Some("main")),
            (format!("{}\tHEAD\n", id('3')), None),
            (String::new(), None),
        ] {
            let refs = read(&format!("{head}{branches}"));
            assert_eq!(refs.branch_of_clone(), begun, "{head}");
        }
        assert!(read("").is_empty() && !read(&branches).is_empty());
    }

    #[test]
    fn names_are_compared_whole() {
        let id = |digit: char| digit.to_string().repeat(40);
        let text = format!(
            "{}\trefs/heads/a/b\n{}\trefs/remotes/x/refs/heads/a\n{}\trefs/heads/ab\n",
            id('1'),
            id('2'),
            id('3')
        );
        let refs = Advertised::parse(text.as_bytes()).unwrap();
        let branch = |name| BranchName::parse(name).unwrap();
        assert_eq!(refs.branch(&branch("a/b")), id('1').parse().ok());
        assert_eq!(refs.branch(&branch("a")), None);
        assert_eq!(refs.in_the_way_of(&branch("a")), Some("refs/heads/a/b"));
        assert_eq!(refs.in_the_way_of(&branch("a/b/c")), Some("refs/heads/a/b"));
        assert_eq!(refs.in_the_way_of(&branch("a/b")), None);
        assert_eq!(refs.ids().count(), 3);
        for other in [
            "fatal: x\n",
            &id('1'),
            &format!("{} refs/heads/a\n", id('1')),
        ] {
            assert_eq!(Advertised::parse(other.as_bytes()), None, "{other}");
        }
    }
}
