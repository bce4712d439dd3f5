//! The stored form of commits: a list of them, and for each a bundle with the commit and its trees.

use std::collections::HashMap;

use crate::git::repository::Shallow;
use crate::git::tree_object::{self, ItemKind};
use crate::git::{ObjectId, ObjectKind};
use crate::path::RelPath;
use crate::store_error::StoreError;

/// Reads a blob of the store.
pub(in crate::git) type ReadBlob<'a> = &'a dyn Fn(&ObjectId) -> Result<Vec<u8>, StoreError>;

/// A commit that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::git) struct KeptCommit {
    pub(in crate::git) id: ObjectId,
    /// The blob with its bytes and those of the trees that it brought.
    pub(super) bundle: ObjectId,
    /// How much it and all that it brought has.
    pub(super) bytes: u64,
    /// The content that it brought, sorted.
    pub(super) blobs: Vec<ObjectId>,
    /// The content that it brought and that is not kept, sorted: it was purged and the repository
    /// has it, or it could not be had.
    pub(super) absent: Vec<ObjectId>,
}

/// Why history would have a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::git) enum Gap {
    /// What comes before the commits that are kept is gone.
    Base(ObjectId),
    /// A shallow clone ended at this commit, and git would look for its parents now.
    End(ObjectId),
}

impl std::fmt::Display for Gap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Base(id) => write!(
                f,
                "commit {id}, which comes before those that the snapshot kept and that are given back, is not in \
                 the repository any more"
            ),
            Self::End(id) => write!(
                f,
                "commit {id}, at which this shallow clone ended, is not in .git/shallow any more"
            ),
        }
    }
}

/// The commits that are kept, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::git) struct List {
    pub(in crate::git) commits: Vec<KeptCommit>,
    /// What comes before them and is not kept: without these, history has a gap.
    pub(in crate::git) bases: Vec<ObjectId>,
    /// Those of them at which a shallow clone ended: unless `.git/shallow` names them, history has
    /// a gap.
    pub(in crate::git) ends: Vec<ObjectId>,
    /// The first commit beyond the limit, or that cannot be read.
    pub(super) rest: Option<ObjectId>,
}

impl List {
    /// Nothing is kept, since the commit cannot be read.
    pub(super) fn without(tip: ObjectId) -> Self {
        Self {
            rest: Some(tip),
            ..Self::default()
        }
    }

    /// A line for each commit and for each blob after it.
    pub(super) fn written(&self) -> String {
        let mut text = String::new();
        for commit in &self.commits {
            let KeptCommit {
                id, bundle, bytes, ..
            } = commit;
            text.push_str(&format!("commit {id} {bundle} {bytes}\n"));
            for blob in &commit.blobs {
                text.push_str(&format!("blob {blob}\n"));
            }
            for blob in &commit.absent {
                text.push_str(&format!("purged {blob}\n"));
            }
        }
        // An end is a base that is itself one of the commits. A version that does not know ends
        // treats it as lost when it should be given back, and leaves the branch.
        let bases = self.bases.iter().chain(&self.ends);
        let bases = bases.map(|id| format!("base {id}\n"));
        let rest = self.rest.iter().map(|id| format!("rest {id}\n"));
        text.extend(bases.chain(rest));
        text
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut list = Self::default();
        for line in std::str::from_utf8(bytes).ok()?.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["commit", id, bundle, bytes] => list.commits.push(KeptCommit {
                    id: id.parse().ok()?,
                    bundle: bundle.parse().ok()?,
                    bytes: bytes.parse().ok()?,
                    blobs: Vec::new(),
                    absent: Vec::new(),
                }),
                ["purged", id] => list.commits.last_mut()?.absent.push(id.parse().ok()?),
                ["blob", id] => list.commits.last_mut()?.blobs.push(id.parse().ok()?),
                ["base", id] => {
                    let id = id.parse().ok()?;
                    match list.has(&id) {
                        true => list.ends.push(id),
                        false => list.bases.push(id),
                    }
                }
                ["rest", id] => list.rest = Some(id.parse().ok()?),
                _ => return None,
            }
        }
        Some(list)
    }

    /// Reads the list of a snapshot.
    pub(in crate::git) fn read(id: &ObjectId, blob: ReadBlob<'_>) -> Result<Self, StoreError> {
        Self::parse(&blob(id)?)
            .ok_or_else(|| StoreError::corrupt(format!("blob {id}"), "it is no list of commits"))
    }

    /// Whether it has the commit.
    pub(in crate::git) fn has(&self, commit: &ObjectId) -> bool {
        self.commits.iter().any(|kept| kept.id == *commit)
    }

    /// What history would lack if its commits were given back to a repository that has no more than
    /// this, and of these commits also the parents (`goes_on`).
    pub(in crate::git) fn gap(
        &self,
        has: &dyn Fn(&ObjectId) -> bool,
        goes_on: &dyn Fn(&ObjectId) -> bool,
        shallow: &Shallow,
    ) -> Option<Gap> {
        let lost = |ids: &[ObjectId]| ids.iter().find(|id| !has(id)).copied();
        let is_open = |id: &&ObjectId| !shallow.has(id) && !goes_on(id);
        let end = || self.ends.iter().find(is_open);
        let base = lost(&self.bases).map(Gap::Base);
        base.or_else(|| end().copied().map(Gap::End))
    }

    /// Every blob that it keeps.
    pub(super) fn ids(&self) -> impl Iterator<Item = ObjectId> {
        let of = |commit: &KeptCommit| [&[commit.bundle], &commit.blobs[..]].concat();
        self.commits.iter().flat_map(of)
    }

    /// The files that its commits brought, by their paths in the repository.
    pub(in crate::git) fn files(
        &self,
        blob: ReadBlob<'_>,
    ) -> Result<Vec<(RelPath, ObjectId)>, StoreError> {
        let mut files = Vec::new();
        for commit in &self.commits {
            let bundle = Bundle::read(commit, blob)?;
            let trees: HashMap<ObjectId, &[u8]> = bundle
                .trees
                .iter()
                .map(|(id, bytes)| (*id, bytes.as_slice()))
                .collect();
            // The tree of the commit itself comes first, if it brought any.
            let top = bundle.trees.first().map(|(id, _)| (*id, RelPath::root()));
            let mut pending = Vec::from_iter(top);
            while let Some((tree, path)) = pending.pop() {
                let Some(bytes) = trees.get(&tree) else {
                    continue;
                };
                for item in tree_object::parse(&tree, bytes)? {
                    let path = path.join(&item.name);
                    match item.kind {
                        ItemKind::Directory => pending.push((item.id, path)),
                        ItemKind::Entry(_) if commit.blobs.binary_search(&item.id).is_ok() => {
                            files.push((path, item.id));
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(files)
    }
}

/// The bytes of a commit and of the trees that it brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bundle {
    pub(super) commit: Vec<u8>,
    /// That of the commit first, if it brought any.
    pub(super) trees: Vec<(ObjectId, Vec<u8>)>,
}

impl Bundle {
    /// Reads that of a commit.
    pub(super) fn read(kept: &KeptCommit, blob: ReadBlob<'_>) -> Result<Self, StoreError> {
        let bytes = blob(&kept.bundle)?;
        let bundle = Self::parse(&bytes).filter(|bundle| {
            ObjectId::of(ObjectKind::Commit, &bundle.commit).is_ok_and(|id| id == kept.id)
        });
        bundle.ok_or_else(|| {
            let detail = format!("it is no bundle of commit {}", kept.id);
            StoreError::corrupt(format!("blob {}", kept.bundle), detail)
        })
    }

    /// One object after the other, each with its kind and length in a line before it.
    pub(super) fn written(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut add = |kind: ObjectKind, content: &[u8]| {
            bytes.extend(format!("{} {}\n", kind.as_str(), content.len()).as_bytes());
            bytes.extend(content);
        };
        add(ObjectKind::Commit, &self.commit);
        for (_, tree) in &self.trees {
            add(ObjectKind::Tree, tree);
        }
        bytes
    }

    fn parse(mut bytes: &[u8]) -> Option<Self> {
        let mut next = |wanted: ObjectKind| {
            let end = bytes.iter().position(|byte| *byte == b'\n')?;
            let (kind, length) = std::str::from_utf8(&bytes[..end]).ok()?.split_once(' ')?;
            let (content, rest) = bytes[end + 1..].split_at_checked(length.parse().ok()?)?;
            bytes = rest;
            (kind == wanted.as_str()).then(|| (content.to_vec(), rest.is_empty()))
        };
        let (commit, mut is_end) = next(ObjectKind::Commit)?;
        let mut trees = Vec::new();
        while !is_end {
            let tree;
            (tree, is_end) = next(ObjectKind::Tree)?;
            trees.push((ObjectId::of(ObjectKind::Tree, &tree).ok()?, tree));
        }
        Some(Self { commit, trees })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(digit: &str) -> ObjectId {
        digit.repeat(40).parse().unwrap()
    }

    #[test]
    fn a_list_is_read_as_it_was_written_and_damage_is_none() {
        let commit = |digit: &str, blobs: &[&str]| KeptCommit {
            id: id(digit),
            bundle: id("b"),
            bytes: 70,
            blobs: blobs.iter().map(|digit| id(digit)).collect(),
            absent: vec![id("8")],
        };
        let list = List {
            commits: vec![commit("1", &["2", "3"]), commit("4", &[])],
            bases: vec![id("6"), id("7")],
            ends: vec![id("4")],
            rest: Some(id("5")),
        };
        assert_eq!(List::parse(list.written().as_bytes()), Some(list.clone()));
        assert_eq!(list.ids().count(), 4);
        assert_eq!(List::parse(b""), Some(List::default()));
        for damaged in [
            "blob 12\n",
            "purged 12\n",
            "commit 1 2 3\n",
            "else\n",
            "\u{0}",
        ] {
            assert_eq!(List::parse(damaged.as_bytes()), None, "{damaged}");
        }
    }

    #[test]
    fn a_gap_is_a_base_that_is_gone_or_an_end_that_git_would_look_beyond() {
        let list = List {
            commits: Vec::new(),
            bases: vec![id("6"), id("7")],
            ends: vec![id("4")],
            rest: None,
        };
        let gap = |there: &[&str], shallow: &str| {
            let has = |asked: &ObjectId| there.iter().any(|digit| id(digit) == *asked);
            list.gap(&has, &has, &Shallow::parse(shallow.as_bytes()).unwrap())
        };
        let end = format!("{}\n", id("4"));
        assert_eq!(gap(&["6", "7"], &end), None);
        assert_eq!(gap(&["4", "6", "7"], ""), None, "the clone was deepened");
        assert_eq!(gap(&["6", "7"], ""), Some(Gap::End(id("4"))));
        assert_eq!(gap(&["6"], &end), Some(Gap::Base(id("7"))));
    }

    #[test]
    fn a_bundle_is_read_as_it_was_written_and_damage_is_none() {
        let tree = |bytes: &[u8]| {
            let id = ObjectId::of(ObjectKind::Tree, bytes).unwrap();
            (id, bytes.to_vec())
        };
        let commit = b"tree 1\n\nmessage\n".to_vec();
        for trees in [vec![], vec![tree(b""), tree(b"100644 a\0")]] {
            let bundle = Bundle {
                commit: commit.clone(),
                trees,
            };
            let bytes = bundle.written();
            let mut kept = KeptCommit {
                id: ObjectId::of(ObjectKind::Commit, &commit).unwrap(),
                bundle: id("b"),
                bytes: 0,
                blobs: Vec::new(),
                absent: Vec::new(),
            };
            assert_eq!(Bundle::read(&kept, &|_| Ok(bytes.clone())).unwrap(), bundle);
            let cut = &bytes[..bytes.len() - 1];
            for damaged in [cut, b"tree 1\nx", b""] {
                let read = Bundle::read(&kept, &|_| Ok(damaged.to_vec()));
                assert!(matches!(read, Err(StoreError::Corrupt { .. })));
            }
            kept.id = id("1");
            let other = Bundle::read(&kept, &|_| Ok(bytes.clone()));
            assert!(other.is_err(), "that of another commit");
        }
    }
}
