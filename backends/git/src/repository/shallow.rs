//! Where the history of a shallow clone ends.

use std::collections::BTreeSet;

use super::{RepositoryError, UserRepository};
use crate::ObjectId;

/// A line for each commit: some 1,600,000 of them.
pub const MAX_SHALLOW_BYTES: u64 = 64 << 20;

/// The commits whose parents git does not look for (`shallow` in the common directory;
/// gitrepository-layout).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shallow(BTreeSet<ObjectId>);

impl Shallow {
    /// Reads the file's text; `None`: git did not write it.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let lines = std::str::from_utf8(text).ok()?.lines();
        let ids = lines.map(|line| line.trim_end().parse().ok());
        ids.collect::<Option<_>>().map(Self)
    }

    /// Whether the history was cut off at this commit.
    pub fn has(&self, commit: &ObjectId) -> bool {
        self.0.contains(commit)
    }

    /// All of them, sorted.
    pub fn iter(&self) -> impl Iterator<Item = &ObjectId> {
        self.0.iter()
    }
}

impl UserRepository {
    /// Where its history ends; nowhere, unless it is a shallow clone.
    pub fn shallow(&self) -> Result<Shallow, RepositoryError> {
        let text = self.common().read("shallow", MAX_SHALLOW_BYTES)?;
        let parsed = Shallow::parse(text.as_deref().unwrap_or_default());
        parsed.ok_or_else(|| RepositoryError::Damaged {
            path: self.common().disk_path("shallow"),
            reason: "a line of it is no id".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::found;
    use super::*;
    use crate::test_repository::TestRepository;

    #[test]
    fn it_is_where_git_says_that_history_ends() {
        let origin = TestRepository::with_commit();
        origin.commit("two");
        origin.commit("three");
        assert_eq!(found(&origin.path).shallow().unwrap(), Shallow::default());
        let clone = origin.beside("clone");
        let from = format!("file://{}", origin.path.display());
        origin.git(&[
            "clone",
            "-q",
            "--depth",
            "2",
            &from,
            clone.to_str().unwrap(),
        ]);
        let shallow = found(&clone).shallow().unwrap();
        let end: ObjectId = origin.git(&["rev-parse", "HEAD~1"]).parse().unwrap();
        assert_eq!(shallow.iter().collect::<Vec<_>>(), [&end]);
        assert!(shallow.has(&end));
        assert_eq!(Shallow::parse(b"no id\n"), None);
        assert_eq!(Shallow::parse(b"\xff\n"), None);
    }
}
