//! For the tests of the store: a store to publish in, and git to inspect it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::git::repository::Head;
use crate::git::test_repository::TestRepository;
use crate::host_rules::IgnoreOptions;
use crate::record::RECORD_VERSION;
use crate::snapshot::BackendKind;
use crate::tree::Modes;

/// A store of its own beside a repository of the user's.
pub(super) struct TestStore {
    pub(super) user: TestRepository,
    pub(super) store: Store,
}

/// Bytes that do not compress.
pub(super) fn noise(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed << 1 | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

pub(super) fn owner(session_id: &str, run_id: &str) -> Owner {
    Owner {
        session_id: session_id.to_owned(),
        run_id: Some(run_id.to_owned()),
    }
}

pub(super) fn blob_id(bytes: &[u8]) -> ObjectId {
    ObjectId::of(ObjectKind::Blob, bytes).unwrap()
}

/// A record for a tree.
pub(super) fn record_of(worktree: ObjectId, index: Option<ObjectId>, label: Label) -> Record {
    let mut snapshot = Snapshot::new(
        SnapshotId::random(),
        BackendKind::Git,
        PathBuf::from("/workspace"),
        String::new(),
        label,
        Timestamp::from_second(1_700_000_000).unwrap(),
    );
    snapshot.tree = Some(worktree.to_string());
    // From its stored form, which is all that the store knows of it.
    let record = json!({
        "version": RECORD_VERSION,
        "snapshot": snapshot,
        "empty_directories": [],
        "modes": Modes::default(),
        "ignore": IgnoreOptions::default(),
        "include": [],
        "has_content": true,
        "git": {
            "common_dir": { "device": 1, "inode": 2 },
            "head": Head::Unborn { branch: "refs/heads/main".to_owned() },
            "index": index,
            "in_progress": null,
            "scope": "",
            "outside_rules": [],
            "rules_above": [],
        },
    });
    serde_json::from_value(record).unwrap()
}

impl TestStore {
    pub(super) fn new() -> Self {
        Self::beside(TestRepository::new())
    }

    pub(super) fn beside(user: TestRepository) -> Self {
        let store = Store::create(&Operation::unbounded(), &user.beside("git")).unwrap();
        Self { user, store }
    }

    /// The same store as another process sees it.
    pub(super) fn reopened(&self) -> Store {
        Store::open(&self.store.git_dir).unwrap().unwrap()
    }

    /// Where the user's objects are.
    pub(super) fn object_dirs(&self) -> [PathBuf; 1] {
        [self.user.path.join(".git/objects")]
    }

    /// Adds blobs and trees for these files to a pack; answers with the id of the tree.
    pub(super) fn add_tree(
        &self,
        pack: &PackWriter,
        files: &[(impl AsRef<[u8]>, impl AsRef<[u8]>)],
    ) -> ObjectId {
        let mut directories: BTreeMap<RelPath, Vec<TreeItem>> = BTreeMap::new();
        directories.entry(RelPath::root()).or_default();
        for (path, content) in files {
            let path = RelPath::new(path.as_ref()).unwrap();
            let id = blob_id(content.as_ref());
            if !self.store.contains(&id).unwrap() {
                pack.add(ObjectKind::Blob, id, content.as_ref()).unwrap();
            }
            let mut parent = path.parent();
            while let Some(directory) = parent {
                parent = directory.parent();
                directories.entry(directory).or_default();
            }
            let items = directories.get_mut(&path.parent().unwrap()).unwrap();
            items.push(item(path.name(), FILE, id));
        }
        loop {
            // The deepest come last.
            let (path, mut items) = directories.pop_last().unwrap();
            let bytes = tree_object::serialize(&mut items);
            let id = ObjectId::of(ObjectKind::Tree, &bytes).unwrap();
            if !self.store.contains(&id).unwrap() {
                pack.add(ObjectKind::Tree, id, &bytes).unwrap();
            }
            let Some(parent) = path.parent() else {
                return id;
            };
            let above = directories.get_mut(&parent).unwrap();
            above.push(item(path.name(), ItemKind::Directory, id));
        }
    }

    /// Publishes a snapshot of these files; answers with its record as it is stored.
    pub(super) fn publish(
        &self,
        owner: &Owner,
        files: &[(impl AsRef<[u8]>, impl AsRef<[u8]>)],
    ) -> Record {
        let pack = self.store.writer(&Operation::unbounded()).unwrap();
        let worktree = self.add_tree(&pack, files);
        self.publish_tree(owner, worktree, pack)
    }

    /// Publishes a snapshot of a tree that is in the store or in the pack.
    pub(super) fn publish_tree(
        &self,
        owner: &Owner,
        worktree: ObjectId,
        pack: PackWriter,
    ) -> Record {
        let mut record = record_of(worktree, None, Label::MANUAL);
        let parts = Parts {
            worktree,
            record: &record,
            index: None,
            staged: Vec::new(),
            named: None,
        };
        record.snapshot = self
            .store
            .publish(&Operation::unbounded(), owner, parts, pack)
            .unwrap();
        record
    }

    /// Runs git in the store.
    pub(super) fn git(&self, args: &[&str]) -> String {
        self.user.git_in(&self.store.git_dir, args)
    }

    /// git finds nothing wrong.
    pub(super) fn fsck(&self) {
        let text = self.git(&["fsck", "--strict", "--full"]);
        let complaints: Vec<_> = text
            .lines()
            .filter(|line| !line.starts_with("dangling") && !line.starts_with("notice"))
            .collect();
        assert_eq!(complaints, [""; 0]);
    }

    pub(super) fn packs(&self) -> Vec<PathBuf> {
        files_below(&self.store.pack_dir())
            .into_iter()
            .filter(|p| p.extension().is_some_and(|e| e == "pack"))
            .collect()
    }

    /// What is wrong with a snapshot, as a fresh process finds it.
    pub(super) fn problems(&self, record: &Record) -> Vec<crate::problem::Problem> {
        let proven = &mut Proven::default();
        let proof = self
            .reopened()
            .verify(&Operation::unbounded(), record, proven)
            .unwrap();
        [proof.problems, proof.beside].concat()
    }
}

/// Every file below `directory`, sorted.
pub(super) fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = walkdir::WalkDir::new(directory)
        .into_iter()
        .map(|entry| entry.unwrap())
        .filter(|entry| !entry.file_type().is_dir())
        .map(|entry| entry.into_path())
        .collect();
    files.sort();
    files
}

/// Puts other bytes in the place of a file, which may be read-only and have other names.
pub(super) fn replace(path: &Path, bytes: &[u8]) {
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
}
