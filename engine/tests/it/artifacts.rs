//! Artifacts of the host's own.

use std::io::Read as _;
use std::sync::Arc;

use stillframe::{Engine, ErrorKind};
use stillframe_artifact_store::{ArtifactKey, MemoryStore};

use crate::support::Host;

async fn text(engine: &Engine, key: &str) -> String {
    let mut text = String::new();
    let mut reader = engine.open_artifact(key).await.unwrap();
    reader.read_to_string(&mut text).unwrap();
    text
}

#[tokio::test]
async fn an_artifact_is_kept_replaced_listed_and_deleted() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let put = |content: &'static str| {
        let session = session.clone();
        async move {
            let content = Box::new(content.as_bytes());
            session
                .put_artifact("transcript", "text/plain", content)
                .await
        }
    };
    put("one").await.unwrap();
    assert_eq!(text(&engine, "transcript").await, "one");
    let record = put("second").await.unwrap();
    assert_eq!(text(&engine, "transcript").await, "second");
    assert_eq!(
        (record.byte_size, record.storage_backend.as_str()),
        (6, "file")
    );
    assert_eq!(record.checksum, blake3::hash(b"second").to_hex().as_str());
    assert_eq!(engine.artifacts(None).await.unwrap(), [record]);
    let stats = engine.session_stats(session.id()).await.unwrap();
    assert_eq!((stats.artifact_count, stats.total_bytes), (1, 6));

    engine.remove_artifact("transcript").await.unwrap();
    for error in [
        engine
            .open_artifact("transcript")
            .await
            .map(|_| ())
            .unwrap_err(),
        engine.remove_artifact("transcript").await.unwrap_err(),
        engine.open_artifact("\n").await.map(|_| ()).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    put("again").await.unwrap();
    assert_eq!(text(&engine, "transcript").await, "again");
    let bad = session
        .put_artifact("", "text/plain", Box::new(&b""[..]))
        .await;
    assert_eq!(bad.unwrap_err().kind(), ErrorKind::InvalidOptions);
}

#[tokio::test]
async fn a_damaged_artifact_is_corrupt_and_verify_names_it() {
    let host = Host::new();
    let store = Arc::new(MemoryStore::new());
    let engine = Engine::start(host.options().artifact_store(store.clone()))
        .await
        .unwrap();
    let session = engine.session("s").await.unwrap();
    for key in ["good", "bad"] {
        let content = Box::new(&b"content"[..]);
        session
            .put_artifact(key, "text/plain", content)
            .await
            .unwrap();
    }
    assert!(store.damage(&ArtifactKey::new("bad").unwrap()));
    let corrupt = engine.open_artifact("bad").await.map(|_| ()).unwrap_err();
    assert_eq!(corrupt.kind(), ErrorKind::Corrupt);
    let found = engine.verify(&host.workspace()).await.unwrap();
    assert!(!found.is_sound());
    assert_eq!(found.artifacts.len(), 1);
    assert_eq!(found.artifacts[0].key, "bad");
    assert_eq!(found.artifacts[0].error.kind.as_deref(), Some("Corrupt"));
}
