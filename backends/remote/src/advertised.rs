//! What a remote says that it has.

use std::collections::BTreeMap;

use stillframe_git::ObjectId;

use crate::branch_name::BranchName;

/// The refs that a remote shows, by their full names, with the ids that they are at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advertised(BTreeMap<String, ObjectId>);

impl Advertised {
    /// Reads what `git ls-remote --refs` prints; `None`: it is something else. A ref whose name is
    /// not UTF-8 is none of ours, but what it reaches is known to the remote, so it is kept under a
    /// name with replacement characters.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let lines = text.split(|b| *b == b'\n').filter(|line| !line.is_empty());
        let refs = lines.map(|line| {
            let (id, name) = line.split_at_checked(40)?;
            let name = name.strip_prefix(b"\t")?;
            let id = str::from_utf8(id).ok()?.parse().ok()?;
            Some((String::from_utf8_lossy(name).into_owned(), id))
        });
        refs.collect::<Option<_>>().map(Self)
    }

    /// Where `branch` is. The full name is compared, so `refs/remotes/x/refs/heads/main` is not
    /// taken for `refs/heads/main`.
    pub fn branch(&self, branch: &BranchName) -> Option<ObjectId> {
        self.0.get(&branch.full()).copied()
    }

    /// The ids of all refs.
    pub fn ids(&self) -> impl Iterator<Item = ObjectId> {
        self.0.values().copied()
    }

    /// The ids of the refs whose names do not begin so.
    pub fn outside_of<'a>(&'a self, start: &'a str) -> impl Iterator<Item = ObjectId> + 'a {
        let others = self
            .0
            .iter()
            .filter(move |(name, _)| !name.starts_with(start));
        others.map(|(_, id)| *id)
    }

    /// A branch above or below `branch`, beside which it cannot be: a ref is a file or a directory.
    pub(crate) fn in_the_way_of(&self, branch: &BranchName) -> Option<&str> {
        let full = branch.full();
        let is_below = |a: &str, b: &str| a.strip_prefix(b).is_some_and(|r| r.starts_with('/'));
        let mut names = self.0.keys().map(String::as_str);
        names.find(|name| is_below(name, &full) || is_below(&full, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
