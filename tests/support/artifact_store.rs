//! Artifact stores under test.

#![expect(
    clippy::unwrap_used,
    reason = "only tests call this, and a panic is their failure"
)]

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use stillframe_artifact_store::testing::TestArtifactStore;
use stillframe_artifact_store::{ArtifactKey, ArtifactStore, FileStore};
use tempfile::TempDir;

/// A store in a directory of its own.
pub struct TestFileStore {
    directory: TempDir,
    store: FileStore,
}

impl TestFileStore {
    /// An empty store.
    #[expect(clippy::new_without_default, reason = "it touches the disk")]
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = FileStore::open(directory.path().join("artifacts")).unwrap();
        Self { directory, store }
    }

    /// The store as what it is.
    pub fn file_store(&self) -> &FileStore {
        &self.store
    }

    /// A directory outside the store that goes away with it.
    pub fn outside(&self) -> PathBuf {
        let outside = self.directory.path().join("outside");
        fs::create_dir_all(&outside).unwrap();
        outside
    }

    /// Where the content of `key` lies.
    pub fn blob_path(&self, key: &ArtifactKey) -> PathBuf {
        let list = self.store.list().unwrap().artifacts;
        let meta = list
            .iter()
            .find(|meta| meta.key == *key)
            .expect("it was put");
        let hex = meta.blake3.to_string();
        self.store.root().join("blobs").join(&hex[..2]).join(hex)
    }

    /// Where the record of `key` lies.
    pub fn record_path(&self, key: &ArtifactKey) -> PathBuf {
        let hex = blake3::hash(key.as_str().as_bytes()).to_hex();
        let name = format!("{hex}.json");
        self.store.root().join("keys").join(&hex[..2]).join(name)
    }
}

impl TestArtifactStore for TestFileStore {
    fn store(&self) -> &dyn ArtifactStore {
        &self.store
    }

    fn damage(&self, key: &ArtifactKey) {
        let blob = fs::File::options()
            .read(true)
            .write(true)
            .open(self.blob_path(key))
            .unwrap();
        let middle = blob.metadata().unwrap().len() / 2;
        let mut byte = [0];
        blob.read_exact_at(&mut byte, middle).unwrap();
        blob.write_all_at(&[byte[0] ^ 4], middle).unwrap();
    }
}
