//! Artifacts of the host's own.

use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use stillframe::backends::{Label, PurgeTarget};
use stillframe::events::EventType;
use stillframe::options::GcOptions;
use stillframe::records::ArtifactDraft;
use stillframe::{
    AdapterOutput, CommandAdapter, Engine, EngineOptions, ErrorKind, Event, RunContext, RunOptions,
    SessionManager, WorkspaceOptions,
};
use stillframe_artifact_store::{
    ArtifactKey, ArtifactList, ArtifactMeta, ArtifactStore, DeleteError, FileStore, GetError,
    MemoryStore, PutError, PutOptions, StoreError,
};

use crate::support::{
    Gate, HeldUpStore, Host, Work, completed, eventually, on_a_runtime, wait_for, writes,
};

async fn text(engine: &Engine, key: &str) -> String {
    let mut text = String::new();
    let mut reader = engine.open_artifact(key).await.unwrap();
    reader.read_to_string(&mut text).unwrap();
    text
}

#[tokio::test]
async fn an_adapter_stores_artifacts_of_its_run() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let work = Work(|context: RunContext| async move {
        let metadata = json!({ "pages": 3 }).as_object().unwrap().clone();
        let draft = ArtifactDraft::new("report.html", "text/html").metadata(metadata);
        let record = context
            .put_artifact(draft, Box::new(&b"<p>done</p>"[..]))
            .await?;
        assert_eq!(record.run_id.as_ref(), Some(&context.run_id));
        let digits = "0".repeat(32);
        for key in [
            "",
            "a\nb",
            &format!("patch_{digits}"),
            &format!("event_x_{digits}{digits}"),
        ] {
            let draft = ArtifactDraft::new(key, "text/plain");
            let refused = context.put_artifact(draft, Box::new(&b"x"[..])).await;
            assert_eq!(
                refused.unwrap_err().kind(),
                ErrorKind::InvalidOptions,
                "{key:?}"
            );
        }
        Ok(AdapterOutput::empty())
    });
    let outcome = session
        .execute_run(RunOptions::new("report"), work)
        .await
        .unwrap();
    assert_eq!(outcome.run.error, None);
    let artifacts = engine.artifacts(None).await.unwrap();
    assert_eq!(artifacts.len(), 1, "{artifacts:?}");
    let report = &artifacts[0];
    assert_eq!(report.run_id.as_ref(), Some(&outcome.run_id));
    assert_eq!(report.content_type, "text/html");
    assert_eq!(report.metadata, json!({ "pages": 3 }));
    assert_eq!(text(&engine, "report.html").await, "<p>done</p>");
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

fn keys(store: &dyn ArtifactStore) -> Vec<String> {
    let list = store.list().unwrap().artifacts;
    list.into_iter().map(|found| found.key.into()).collect()
}

async fn with_store(host: &Host, store: Arc<dyn ArtifactStore>) -> Engine {
    let options = host.options().artifact_store(store);
    Engine::start(options).await.unwrap()
}

// The purge was called proven, and the content was still in the other store.
#[tokio::test]
async fn an_artifact_in_another_store_is_neither_opened_nor_removed_and_no_purge_is_proven() {
    let host = Host::new();
    let store: Arc<MemoryStore> = Arc::default();
    let secret = "the secret of the other store\n";
    let options = || EngineOptions::default().state_dir(host.state());
    let start = async |options| Engine::start(options).await.unwrap();
    let engine = start(options().artifact_store(store.clone())).await;
    let session = engine.session("s").await.unwrap();
    host.write("env", secret);
    let workspace = host.workspace().retain_content(true);
    session.snapshot(&workspace, Label::MANUAL).await.unwrap();
    let (key, content) = ("transcript", Box::new(secret.as_bytes()));
    let put = session.put_artifact(key, "text/plain", content).await;
    put.unwrap();
    engine.shutdown().await.unwrap();

    for other in [None, Some(Arc::<MemoryStore>::default())] {
        let engine = match other {
            None => start(options()).await,
            Some(other) => start(options().artifact_store(other)).await,
        };
        let is_ours = engine.open_artifact(key).await.map(drop);
        assert!(is_ours.is_err());
        let target: PurgeTarget = "env".parse().unwrap();
        let purged = engine.purge(&host.workspace(), target).await.unwrap();
        assert!(!purged.is_proven());
        let named: Vec<&str> = purged.proof.unproven.iter().map(|p| &*p.what).collect();
        assert_eq!(named, [format!("artifact {key}")]);
        engine.shutdown().await.unwrap();
    }
    let engine = start(options()).await;
    let refused = engine.remove_artifact(key).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert_eq!(engine.artifacts(None).await.unwrap().len(), 1);
    assert_eq!(keys(&*store), [key]);
}

/// Begins a run whose patch goes to the store of artifacts, and waits until it stands before the
/// gate there.
async fn held_up_run(host: &Host, engine: Engine, is_there: std::sync::mpsc::Receiver<()>) {
    let workspace = host.workspace().offload_patches(true);
    held_up_run_in(workspace, engine, is_there).await;
}

async fn held_up_run_in(
    workspace: WorkspaceOptions,
    engine: Engine,
    is_there: std::sync::mpsc::Receiver<()>,
) {
    let session = engine.session("s").await.unwrap();
    let options = RunOptions::new("x").workspace(workspace);
    tokio::spawn(async move {
        let _engine = engine;
        session.execute_run(options, writes("new", "x\n")).await
    });
    wait_for(is_there).await;
}

#[test]
fn a_patch_whose_engine_died_before_the_log_named_it_goes_with_a_clean_up() {
    let host = Host::new();
    let (gate, is_there, open) = Gate::new();
    let store = Arc::new(HeldUpStore::new(gate));
    let inner = store.inner.clone();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let engine = with_store(&host, store).await;
        held_up_run(&host, engine, is_there).await;
    });
    runtime.shutdown_background();
    open.send(()).unwrap();
    let orphan = keys(&*inner).remove(0);
    let mine = ArtifactKey::new("patch_of_mine").unwrap();
    let content = &mut &b"mine"[..];
    inner.put(&mine, content, &PutOptions::default()).unwrap();
    on_a_runtime(async {
        let engine = with_store(&host, inner.clone()).await;
        let found = engine.verify(&host.workspace()).await.unwrap();
        assert!(found.is_sound(), "{found:?}");
        let gc = |options| {
            let (engine, workspace) = (engine.clone(), host.workspace());
            async move { engine.gc(&workspace, options).await.unwrap() }
        };
        let foretold = gc(GcOptions::default().dry_run(true)).await;
        assert_eq!(foretold.artifacts_removed, [orphan.as_str()]);
        assert!(keys(&*inner).contains(&orphan), "nothing was done");
        let bytes = inner.list().unwrap().artifacts;
        let bytes = bytes.iter().find(|found| found.key.as_str() == orphan);
        let gone = gc(GcOptions::default()).await;
        assert_eq!(gone.artifacts_removed, [orphan.as_str()]);
        assert_eq!(gone.freed_bytes, bytes.unwrap().bytes);
        let left = keys(&*inner);
        assert!(!left.contains(&orphan), "{left:?}");
        assert!(left.contains(&mine.as_str().to_owned()), "{left:?}");
        let again = gc(GcOptions::default()).await;
        assert!(again.artifacts_removed.is_empty(), "{again:?}");

        let session = engine.workspace_session(host.path()).await.unwrap();
        let events = crate::support::all(&engine, &session).await;
        let cleaned = |e: &&Event| e.event_type == EventType::WORKSPACE_CLEANED_UP;
        let told = events.iter().find(cleaned).unwrap();
        assert_eq!(told.data["artifacts"][0], orphan.as_str());
    });
}

#[test]
fn a_patch_that_another_engine_has_just_put_is_no_orphan() {
    let host = Host::new();
    let elsewhere = tempfile::tempdir().unwrap();
    fs::create_dir(elsewhere.path().join("workspace")).unwrap();
    let beside = WorkspaceOptions::at(elsewhere.path().join("workspace"));
    let (gate, is_there, open) = Gate::new();
    let store = Arc::new(HeldUpStore::new(gate));
    let inner = store.inner.clone();
    on_a_runtime(async {
        let engine = with_store(&host, store).await;
        held_up_run(&host, engine, is_there).await;
        let put = keys(&*inner);
        assert_eq!(put.len(), 1, "and the log does not name it yet");
        let other = with_store(&host, inner.clone()).await;
        for options in [GcOptions::default().dry_run(true), GcOptions::default()] {
            let gone = other.gc(&beside, options).await.unwrap();
            assert!(gone.artifacts_removed.is_empty(), "{gone:?}");
            assert_eq!(keys(&*inner), put);
        }
        open.send(()).unwrap();
        let named = || async { !other.artifacts(None).await.unwrap().is_empty() };
        eventually("the log names it", named).await;
        let gone = other.gc(&beside, GcOptions::default()).await.unwrap();
        assert!(gone.artifacts_removed.is_empty(), "{gone:?}");
        other.open_artifact(&put[0]).await.unwrap();
    });
}

#[tokio::test]
async fn the_engines_own_store_is_compared_with_the_log_too() {
    let host = Host::new();
    let engine = host.engine().await;
    engine
        .gc(&host.workspace(), GcOptions::default())
        .await
        .unwrap();
    let store = FileStore::open(host.state().join("artifacts")).unwrap();
    let key = format!("patch_a_b_{}", "0".repeat(32));
    let content = &mut &b"a patch"[..];
    let orphan = ArtifactKey::new(key.as_str()).unwrap();
    store.put(&orphan, content, &PutOptions::default()).unwrap();
    let gone = engine.gc(&host.workspace(), GcOptions::default()).await;
    let gone = gone.unwrap();
    assert_eq!(gone.artifacts_removed, [key]);
    assert_eq!(gone.freed_bytes, 7);
    assert_eq!(keys(&store), [""; 0]);
}

/// How many files without a name this process has open in `directory`.
fn nameless_files_in(directory: &Path) -> usize {
    let directory = directory.canonicalize().unwrap();
    let open = fs::read_dir("/proc/self/fd").unwrap();
    let names = open.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
    let is_one = |name: &PathBuf| {
        name.starts_with(&directory) && name.as_os_str().as_bytes().ends_with(b" (deleted)")
    };
    names.filter(is_one).count()
}

// It was written to a temporary file first, and read from there into the store.
#[test]
fn a_patch_that_goes_to_the_store_is_in_no_other_file() {
    let host = Host::new();
    let (gate, is_there, open) = Gate::new();
    let store = Arc::new(HeldUpStore::new(gate));
    let inner = store.inner.clone();
    on_a_runtime(async {
        let engine = with_store(&host, store).await;
        let workspace = host.workspace().max_patch_bytes(4);
        held_up_run_in(workspace, engine.clone(), is_there).await;
        assert_eq!(keys(&*inner).len(), 1, "the store has it");
        assert_eq!(nameless_files_in(&host.state()), 0);
        let _file = tempfile::tempfile_in(host.state()).unwrap();
        assert_eq!(nameless_files_in(&host.state()), 1, "one would be seen");
        open.send(()).unwrap();
        let named = || async { !engine.artifacts(None).await.unwrap().is_empty() };
        eventually("the log names it", named).await;
    });
}

// The row of the new one was written after its content was removed with the old one.
#[tokio::test]
async fn an_artifact_that_is_put_while_its_key_is_removed_is_there_or_gone_as_a_whole() {
    let host = Host::new();
    let (gate, is_there, open) = Gate::new();
    let store = Arc::new(HeldUpStore::new(gate));
    let engine = with_store(&host, store.inner.clone()).await;
    let session = engine.session("s").await.unwrap();
    let put = async |session: &SessionManager| {
        let content = Box::new(&b"content"[..]);
        session.put_artifact("key", "text/plain", content).await
    };
    put(&session).await.unwrap();
    engine.shutdown().await.unwrap();

    let engine = with_store(&host, store).await;
    let session = engine.session("s").await.unwrap();
    let (putting, removed) = tokio::join!(put(&session), async {
        wait_for(is_there).await;
        let removing = engine.remove_artifact("key");
        tokio::pin!(removing);
        let waited = tokio::time::timeout(Duration::from_millis(300), removing.as_mut()).await;
        open.send(()).unwrap();
        match waited {
            Ok(removed) => removed,
            Err(_) => removing.await,
        }
    });
    putting.unwrap();
    removed.unwrap();
    let of_log = engine.artifacts(None).await.unwrap().len();
    let is_there = engine.open_artifact("key").await.is_ok();
    assert_eq!(of_log == 1, is_there, "the row says what is there");
}

/// A store that reads the beginning of what is put, and fails.
struct HalfwayStore(MemoryStore);

impl ArtifactStore for HalfwayStore {
    fn put(
        &self,
        key: &ArtifactKey,
        content: &mut dyn Read,
        _: &PutOptions,
    ) -> Result<ArtifactMeta, PutError> {
        content.read_exact(&mut [0; 8]).unwrap();
        Err(PutError::Content {
            key: key.clone(),
            source: std::io::Error::other("the store is broken"),
        })
    }

    fn get(&self, key: &ArtifactKey) -> Result<Box<dyn Read + Send>, GetError> {
        self.0.get(key)
    }

    fn delete(&self, key: &ArtifactKey) -> Result<(), DeleteError> {
        self.0.delete(key)
    }

    fn exists(&self, key: &ArtifactKey) -> Result<bool, StoreError> {
        self.0.exists(key)
    }

    fn list(&self) -> Result<ArtifactList, StoreError> {
        self.0.list()
    }
}

#[tokio::test]
async fn a_store_that_fails_half_way_costs_a_command_its_artifact_and_nothing_else() {
    let host = Host::new();
    let store = Arc::new(HalfwayStore(MemoryStore::new()));
    let engine = with_store(&host, store).await;
    let session = engine.session("s").await.unwrap();
    let command = CommandAdapter::new("sh")
        .args(["-c", "head -c 3000000 /dev/zero; echo done >made"])
        .max_output_bytes(100)
        .keep_all_output(true);
    let options = RunOptions::new("x").workspace(host.workspace());
    let outcome = session.execute_run(options, command).await.unwrap();
    completed(&outcome);
    assert_eq!(host.read("made").as_deref(), Some("done\n"));
    let result = outcome.run.output.clone().unwrap().command.unwrap();
    assert_eq!((result.stdout.len(), result.stdout_bytes), (100, 3_000_000));
    assert_eq!(result.stdout_ref, None);
    let told = result.output_error.unwrap();
    assert_eq!(told.kind.as_deref(), Some("Unreadable"), "{told:?}");
    let record = engine.find_run(outcome.run_id.as_str()).await.unwrap();
    assert_eq!(
        record.output["command"]["output_error"]["kind"],
        "Unreadable"
    );
    assert_eq!(engine.artifacts(None).await.unwrap(), []);
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_store_that_fails_half_way_costs_a_run_its_patch_and_nothing_else() {
    let host = Host::new();
    let store = Arc::new(HalfwayStore(MemoryStore::new()));
    let engine = with_store(&host, store).await;
    let session = engine.session("s").await.unwrap();
    // Longer than all that may wait for the store.
    let long: &'static str = "0123456789\n".repeat(300_000).leak();
    let workspace = host.workspace().max_patch_bytes(64);
    let options = RunOptions::new("x").workspace(workspace);
    let outcome = session.execute_run(options, writes("new", long)).await;
    let outcome = outcome.unwrap();
    completed(&outcome);
    let told = outcome.workspace.error.unwrap();
    assert_eq!(told.kind.as_deref(), Some("Unreadable"), "{told:?}");
    let diff = outcome.workspace.diff.unwrap();
    assert!(diff.patch_truncated && diff.patch_bytes.unwrap() > 3_000_000);
    assert_eq!((diff.files_changed, diff.patch_ref), (1, None));
    assert_eq!(engine.artifacts(None).await.unwrap(), []);
}
