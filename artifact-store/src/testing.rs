//! What every artifact store promises: tests that an author of one runs over it. Not tested,
//! because it takes more than the port: that content survives a power cut or a restart, and that
//! memory use does not depend on its length.
//!
//! ```
//! use stillframe_artifact_store::testing::TestArtifactStore;
//! use stillframe_artifact_store::{ArtifactKey, ArtifactStore, MemoryStore};
//!
//! /// The store of ours that is tested; here it is one in memory.
//! struct Ours(MemoryStore);
//!
//! impl TestArtifactStore for Ours {
//!     fn store(&self) -> &dyn ArtifactStore {
//!         &self.0
//!     }
//!
//!     fn damage(&self, key: &ArtifactKey) {
//!         self.0.damage(key);
//!     }
//! }
//!
//! stillframe_artifact_store::artifact_store_contract!(promises, Ours(MemoryStore::new()));
//! ```

#![expect(missing_docs, reason = "a promise is named by what it says")]
#![expect(
    clippy::unwrap_used,
    reason = "only tests call this, and a panic is their failure"
)]

use std::collections::BTreeSet;
use std::io::{self, Read};

use crate::{
    ArtifactKey, ArtifactMeta, ArtifactStore, ErrorKind, GetError, MemoryStore, PutError,
    PutOptions,
};

/// Declares a module of this name with one test for each promise, each over a store of its own,
/// which the expression makes. A store that keeps only some of them names these behind it:
/// `artifact_store_contract!(promises, ours(); what_was_put_comes_back …)`.
#[macro_export]
macro_rules! artifact_store_contract {
    ($name:ident, $new:expr $(,)?) => {
        $crate::artifact_store_contract! {
            $name, $new;
            what_was_put_comes_back
            put_answers_with_length_and_blake3
            a_second_put_replaces_the_first
            a_key_that_is_not_there_is_not_found
            a_deleted_key_is_not_found_and_can_be_used_again
            deleting_twice_is_fine
            list_names_everything_in_the_order_of_the_keys
            damaged_content_is_corrupt_and_none_of_it_is_handed_out
            exists_and_list_read_no_content
            a_put_heals_a_damaged_artifact
            keys_that_look_like_paths_are_names_like_any_other
            keys_with_the_same_content_live_and_die_alone
            a_put_whose_content_fails_leaves_what_was_there
            a_put_over_the_limit_leaves_what_was_there
            content_that_comes_in_drops_is_put_together
            what_is_being_read_can_be_read_to_its_end
            many_threads_may_use_a_store_at_once
            of_two_writers_of_a_key_one_wins_whole
        }
    };
    ($name:ident, $new:expr; $($promise:ident)+) => {
        mod $name {
            use super::*;
            $(
                #[test]
                fn $promise() {
                    $crate::testing::$promise(&$new);
                }
            )*
        }
    };
}

/// A store under test, with what a test can do to it and a caller cannot.
pub trait TestArtifactStore {
    /// The store.
    fn store(&self) -> &dyn ArtifactStore;

    /// Flips one bit of the content that is kept under `key`.
    fn damage(&self, key: &ArtifactKey);
}

impl TestArtifactStore for MemoryStore {
    fn store(&self) -> &dyn ArtifactStore {
        self
    }

    fn damage(&self, key: &ArtifactKey) {
        assert!(MemoryStore::damage(self, key), "{key:?} was put");
    }
}

/// The key with that text.
pub fn key(text: &str) -> ArtifactKey {
    ArtifactKey::new(text).unwrap()
}

/// Bytes that look random, the same for the same `seed`.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// Puts `content` under the key with that text.
pub fn put(store: &dyn ArtifactStore, text: &str, content: &[u8]) -> ArtifactMeta {
    let mut content = content;
    store
        .put(&key(text), &mut content, &PutOptions::default())
        .unwrap()
}

/// All of the content under the key with that text; `None` if there is no such key.
pub fn get(store: &dyn ArtifactStore, text: &str) -> Option<Vec<u8>> {
    match store.get(&key(text)) {
        Ok(mut content) => {
            let mut bytes = Vec::new();
            content.read_to_end(&mut bytes).unwrap();
            Some(bytes)
        }
        Err(GetError::NotFound { .. }) => None,
        Err(e) => panic!("{text:?}: {e}"),
    }
}

/// Everything a caller can see: each key with its length, digest and content.
fn view(store: &dyn ArtifactStore) -> Vec<String> {
    let list = store.list().unwrap();
    assert!(list.damaged.is_empty(), "{:?}", list.damaged);
    list.artifacts
        .iter()
        .map(|meta| {
            let content = get(store, meta.key.as_str()).expect("it is listed");
            assert_eq!(content.len() as u64, meta.bytes, "{:?}", meta.key);
            format!(
                "{:?} {} {:?}",
                meta.key,
                meta.blake3,
                String::from_utf8_lossy(&content)
            )
        })
        .collect()
}

pub fn what_was_put_comes_back(test: &impl TestArtifactStore) {
    let store = test.store();
    // Around the lengths at which readers and buffers tend to end.
    for length in [0, 1, 1024, 4096, 65_535, 65_536, 65_537, 300_000] {
        let content = noise(length as u64, length);
        put(store, "key", &content);
        assert!(
            get(store, "key").as_deref() == Some(&content),
            "{length} bytes"
        );
    }
}

pub fn put_answers_with_length_and_blake3(test: &impl TestArtifactStore) {
    let store = test.store();
    let meta = put(store, "key", b"abc");
    assert_eq!(meta.key, key("key"));
    assert_eq!(meta.bytes, 3);
    // As `printf abc | b3sum` prints it.
    let blake3 = "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85";
    assert_eq!(meta.blake3.to_string(), blake3);
    assert_eq!(store.list().unwrap().artifacts, [meta]);
}

pub fn a_second_put_replaces_the_first(test: &impl TestArtifactStore) {
    let store = test.store();
    put(store, "key", b"a first content that is longer");
    put(store, "key", b"second");
    assert_eq!(get(store, "key").as_deref(), Some(&b"second"[..]));
    assert_eq!(store.list().unwrap().artifacts.len(), 1);
}

pub fn a_key_that_is_not_there_is_not_found(test: &impl TestArtifactStore) {
    let store = test.store();
    put(store, "key", b"content");
    let e = store.get(&key("KEY")).map(drop).unwrap_err();
    assert!(
        matches!(&e, GetError::NotFound { key: named } if *named == key("KEY")),
        "{e:?}"
    );
    assert_eq!(e.kind(), ErrorKind::NotFound);
    assert_eq!(e.to_string(), "there is no artifact \"KEY\"");
    assert!(!store.exists(&key("KEY")).unwrap());
    assert!(store.exists(&key("key")).unwrap());
}

pub fn a_deleted_key_is_not_found_and_can_be_used_again(test: &impl TestArtifactStore) {
    let store = test.store();
    put(store, "key", b"first");
    put(store, "other", b"other");
    store.delete(&key("key")).unwrap();
    assert_eq!(get(store, "key"), None);
    assert!(!store.exists(&key("key")).unwrap());
    assert_eq!(
        store.list().unwrap().artifacts.len(),
        1,
        "the other one stays"
    );
    for content in [&b"first"[..], b"second"] {
        put(store, "key", content);
        assert_eq!(get(store, "key").as_deref(), Some(content));
    }
}

pub fn deleting_twice_is_fine(test: &impl TestArtifactStore) {
    let store = test.store();
    store.delete(&key("never was")).unwrap();
    put(store, "key", b"content");
    store.delete(&key("key")).unwrap();
    store.delete(&key("key")).unwrap();
    assert!(view(store).is_empty());
}

pub fn list_names_everything_in_the_order_of_the_keys(test: &impl TestArtifactStore) {
    let store = test.store();
    assert_eq!(store.list().unwrap(), Default::default());
    let mut keys = ["b", "a/b", "\u{e9}", "a", "B", "\u{1f600}", "a b", "~"];
    let put: BTreeSet<String> = keys
        .iter()
        .map(|text| format!("{:?}", put(store, text, text.as_bytes())))
        .collect();
    let listed = store.list().unwrap().artifacts;
    let listed_keys: Vec<&str> = listed.iter().map(|meta| meta.key.as_str()).collect();
    keys.sort_unstable_by_key(|text| text.as_bytes().to_vec());
    assert_eq!(listed_keys, keys);
    let listed: BTreeSet<String> = listed.iter().map(|meta| format!("{meta:?}")).collect();
    assert_eq!(listed, put, "what put had answered");
}

pub fn damaged_content_is_corrupt_and_none_of_it_is_handed_out(test: &impl TestArtifactStore) {
    let store = test.store();
    for length in [1, 1024, 300_000] {
        put(store, "key", &noise(1, length));
        put(store, "other", &noise(2, length));
        test.damage(&key("key"));
        // No reader is handed out, so there is nothing to take bytes from.
        let e = store.get(&key("key")).map(drop).unwrap_err();
        assert!(
            matches!(&e, GetError::Corrupt { key: named, .. } if *named == key("key")),
            "{e:?}"
        );
        assert_eq!(e.kind(), ErrorKind::Corrupt);
        assert!(get(store, "other").is_some(), "the others are as they were");
    }
}

pub fn exists_and_list_read_no_content(test: &impl TestArtifactStore) {
    let store = test.store();
    let meta = put(store, "key", b"content");
    test.damage(&key("key"));
    assert!(store.exists(&key("key")).unwrap());
    assert_eq!(
        store.list().unwrap().artifacts,
        [meta],
        "what was put, not what is there"
    );
}

pub fn a_put_heals_a_damaged_artifact(test: &impl TestArtifactStore) {
    let store = test.store();
    put(store, "key", b"content");
    test.damage(&key("key"));
    put(store, "key", b"content");
    assert_eq!(get(store, "key").as_deref(), Some(&b"content"[..]));
}

pub fn keys_that_look_like_paths_are_names_like_any_other(test: &impl TestArtifactStore) {
    let store = test.store();
    let longest = "x".repeat(512);
    let keys = [
        "../x",
        "../../x",
        "x",
        "/x",
        "//x",
        "/etc/passwd",
        "%2e%2e",
        "%2e%2e/x",
        "..",
        ".",
        "./x",
        "\\..\\",
        "..\\x",
        "x/",
        "x/.",
        "X",
        "x ",
        " x",
        "~",
        "-x",
        "x\u{301}",
        "\u{202e}x",
        "*",
        "C:\\x",
        "CON",
        "lock",
        "x.json",
        "keys/x",
        "patch_a_b_0123456789abcdef",
        &longest,
    ];
    for text in keys {
        put(store, text, text.as_bytes());
    }
    for text in keys {
        assert_eq!(
            get(store, text).as_deref(),
            Some(text.as_bytes()),
            "{text:?}"
        );
    }
    assert_eq!(
        store.list().unwrap().artifacts.len(),
        keys.len(),
        "no two are one"
    );
    for text in keys {
        store.delete(&key(text)).unwrap();
        assert_eq!(get(store, text), None, "{text:?}");
    }
}

pub fn keys_with_the_same_content_live_and_die_alone(test: &impl TestArtifactStore) {
    let store = test.store();
    for text in ["one", "two", "three"] {
        put(store, text, b"shared");
    }
    store.delete(&key("one")).unwrap();
    put(store, "two", b"other");
    assert_eq!(get(store, "one"), None);
    assert_eq!(get(store, "two").as_deref(), Some(&b"other"[..]));
    assert_eq!(get(store, "three").as_deref(), Some(&b"shared"[..]));
}

/// Gives `content` piece by piece, then ends in an error.
struct Breaking<'c> {
    content: &'c [u8],
}

impl Read for Breaking<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.content.is_empty() {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the pipe broke"));
        }
        self.content.read(buffer)
    }
}

pub fn a_put_whose_content_fails_leaves_what_was_there(test: &impl TestArtifactStore) {
    let store = test.store();
    put(store, "old", b"old");
    let before = view(store);
    for text in ["old", "new"] {
        for length in [0, 10, 200_000] {
            let content = noise(3, length);
            let mut broken = Breaking { content: &content };
            let e = store
                .put(&key(text), &mut broken, &PutOptions::default())
                .unwrap_err();
            let PutError::Content { key: named, source } = &e else {
                panic!("{e:?}");
            };
            assert_eq!(*named, key(text));
            assert_eq!(
                source.kind(),
                io::ErrorKind::BrokenPipe,
                "the caller's own error"
            );
            assert_eq!(e.kind(), ErrorKind::Unreadable);
        }
    }
    assert_eq!(view(store), before);
}

pub fn a_put_over_the_limit_leaves_what_was_there(test: &impl TestArtifactStore) {
    let store = test.store();
    put(store, "old", b"old");
    let before = view(store);
    for (limit, text) in [(0, "old"), (9, "old"), (9, "new")] {
        let options = PutOptions::default().max_bytes(limit);
        let mut content = &b"ten bytes!"[..];
        let e = store.put(&key(text), &mut content, &options).unwrap_err();
        assert!(
            matches!(e, PutError::TooLarge { max_bytes, .. } if max_bytes == limit),
            "{e:?}"
        );
        assert_eq!(e.kind(), ErrorKind::LimitExceeded);
    }
    // A content without end is refused as soon as it is over.
    let options = PutOptions::default().max_bytes(1_000_000);
    let e = store.put(&key("endless"), &mut Endless { read: 0 }, &options);
    assert_eq!(e.unwrap_err().kind(), ErrorKind::LimitExceeded);
    assert_eq!(view(store), before);

    let options = PutOptions::default().max_bytes(10);
    let mut content = &b"ten bytes!"[..];
    store.put(&key("new"), &mut content, &options).unwrap();
    assert_eq!(
        get(store, "new").as_deref(),
        Some(&b"ten bytes!"[..]),
        "the limit itself fits"
    );
}

/// Has no end. Panics once a store has read far more than its limit allows.
struct Endless {
    read: usize,
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read += buffer.len();
        assert!(self.read < 64 << 20, "it is read on after the limit");
        buffer.fill(0);
        Ok(buffer.len())
    }
}

/// Gives one byte at a time, and is interrupted before each.
struct Drops<'c> {
    content: &'c [u8],
    is_interrupted: bool,
}

impl Read for Drops<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.is_interrupted = !self.is_interrupted;
        if self.is_interrupted {
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.content.read(&mut buffer[..1])
    }
}

pub fn content_that_comes_in_drops_is_put_together(test: &impl TestArtifactStore) {
    let content = noise(4, 3000);
    let mut drops = Drops {
        content: &content,
        is_interrupted: false,
    };
    let options = PutOptions::default();
    test.store().put(&key("key"), &mut drops, &options).unwrap();
    assert!(get(test.store(), "key").as_deref() == Some(&content));
}

pub fn what_is_being_read_can_be_read_to_its_end(test: &impl TestArtifactStore) {
    let store = test.store();
    let content = noise(5, 200_000);
    let read_half = |text: &str| {
        put(store, text, &content);
        let mut reader = store.get(&key(text)).unwrap();
        let mut half = vec![0; 100_000];
        reader.read_exact(&mut half).unwrap();
        (reader, half)
    };
    let (mut replaced, mut first) = read_half("replaced");
    let (mut deleted, mut second) = read_half("deleted");
    put(store, "replaced", b"other");
    store.delete(&key("deleted")).unwrap();
    replaced.read_to_end(&mut first).unwrap();
    deleted.read_to_end(&mut second).unwrap();
    assert!(
        first == content,
        "the content that was there when it was asked for"
    );
    assert!(
        second == content,
        "the content that was there when it was asked for"
    );
}

pub fn many_threads_may_use_a_store_at_once(test: &impl TestArtifactStore) {
    let store = test.store();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for n in 0..4 {
                    let text = format!("{thread} {n}");
                    put(store, &text, text.as_bytes());
                    assert_eq!(get(store, &text).as_deref(), Some(text.as_bytes()));
                }
                store.delete(&key(&format!("{thread} 0"))).unwrap();
            });
        }
    });
    let mut expected: Vec<ArtifactKey> = Vec::new();
    for thread in 0..4 {
        expected.extend((1..4).map(|n| key(&format!("{thread} {n}"))));
    }
    let listed = store.list().unwrap().artifacts;
    let listed: Vec<ArtifactKey> = listed.into_iter().map(|meta| meta.key).collect();
    assert_eq!(listed, expected);
}

pub fn of_two_writers_of_a_key_one_wins_whole(test: &impl TestArtifactStore) {
    let store = test.store();
    let contents = [noise(6, 100_000), noise(7, 90_000)];
    for _ in 0..4 {
        std::thread::scope(|scope| {
            for content in &contents {
                scope.spawn(move || put(store, "key", content));
            }
        });
        let kept = get(store, "key").expect("both were put");
        assert!(contents.contains(&kept), "{} bytes of neither", kept.len());
    }
    assert_eq!(store.list().unwrap().artifacts.len(), 1);
}
