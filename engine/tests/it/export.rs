//! Exports of runs and sessions, from a host.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use stillframe::events::{EventDraft, EventType};
use stillframe::options::{ExportRequest, LogRetention};
use stillframe::records::{ArtifactDraft, ReviewDraft, ReviewTarget};
use stillframe::{
    AdapterOutput, CancellationToken, Engine, ErrorKind, RunContext, RunOptions, SessionId,
};
use stillframe_artifact_store::{
    ArtifactKey, ArtifactList, ArtifactMeta, ArtifactStore, DeleteError, GetError, MemoryStore,
    PutError, PutOptions, StoreError,
};

use crate::support::{Gate, Host, Work, completed, eventually, on_a_runtime, wait_for};

fn lines(directory: &Path) -> Vec<Value> {
    let text = fs::read_to_string(directory.join("records.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

fn of_kind<'a>(lines: &'a [Value], record: &str) -> Vec<&'a Value> {
    let of_kind = lines.iter().filter(|line| line["record"] == record);
    of_kind.collect()
}

#[tokio::test]
async fn what_a_store_lost_or_damaged_is_named_and_the_rest_is_there() {
    let host = Host::new();
    let store = Arc::new(MemoryStore::new());
    let options = host.options().artifact_store(store.clone());
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let hostile = "../../outside";
    for key in ["lost", "damaged", hostile, "/etc/passwd"] {
        let content = Box::new(key.as_bytes());
        let kept = session.put_artifact(key, "text/plain", content).await;
        kept.unwrap();
    }
    let key = |key: &str| ArtifactKey::new(key).unwrap();
    store.delete(&key("lost")).unwrap();
    assert!(store.damage(&key("damaged")));
    // It is whole, but another's: the store never heard of the record.
    let mut other = &b"something else"[..];
    let options = PutOptions::default();
    store
        .put(&key("/etc/passwd"), &mut other, &options)
        .unwrap();

    let to = host.path().join("export");
    let request = ExportRequest::session(session.id().clone(), &to);
    let outcome = engine.export(request).await.unwrap();
    assert_eq!(outcome.unreadable, ["lost", "damaged", "/etc/passwd"]);
    assert_eq!((outcome.artifacts, outcome.runs), (1, 0));
    let lines = lines(&to);
    let told: Vec<Value> = of_kind(&lines, "artifact")
        .iter()
        .map(|line| json!([line["key"], line["file"], line["error"]["kind"]]))
        .collect();
    let expected = [
        json!(["lost", null, "NotFound"]),
        json!(["damaged", null, "Corrupt"]),
        json!([hostile, "artifacts/1", null]),
        json!(["/etc/passwd", null, "Corrupt"]),
    ];
    assert_eq!(told, expected);
    let names = fs::read_dir(to.join("artifacts")).unwrap();
    assert_eq!(names.count(), 1, "no half of a file is left");
    let content = fs::read_to_string(to.join("artifacts/1")).unwrap();
    assert_eq!(content, hostile);
}

#[tokio::test]
async fn a_run_under_way_is_exported_as_far_as_it_has_come() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let to = host.path().join("export");
    let (exporting, into) = (engine.clone(), to.clone());
    let work = Work(move |context: RunContext| {
        let (exporting, into) = (exporting.clone(), into.clone());
        async move {
            let content = Box::new(&b"<p>half</p>"[..]);
            let draft = ArtifactDraft::new("half.html", "text/html");
            context.put_artifact(draft, content).await?;
            // More than one page of them.
            for number in 0..150 {
                let data = json!({ "text": number.to_string() });
                context.emit(EventType::MESSAGE_SENT, data).await?;
            }
            let request = ExportRequest::run(context.run_id.clone(), into);
            let outcome = exporting.export(request).await?;
            assert_eq!((outcome.runs, outcome.artifacts), (1, 1));
            Ok(AdapterOutput::empty())
        }
    });
    let outcome = session.execute_run(RunOptions::new("say"), work).await;
    completed(&outcome.unwrap());
    let lines = lines(&to);
    assert_eq!(of_kind(&lines, "run")[0]["status"], "running");
    let events = of_kind(&lines, "event");
    let said = events
        .iter()
        .filter(|event| event["type"] == "message_sent");
    let said: Vec<u64> = said
        .map(|event| event["data"]["text"].as_str().unwrap().parse().unwrap())
        .collect();
    assert_eq!(said, Vec::from_iter(0..150), "each once, in order");
    let sequences = events.iter().map(|event| event["sequence"].as_u64());
    assert!(sequences.is_sorted());
    let content = fs::read_to_string(to.join("artifacts/1")).unwrap();
    assert_eq!(content, "<p>half</p>");
}

#[tokio::test]
async fn a_session_comes_with_what_belongs_to_none_of_its_runs() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let review = ReviewDraft::new(ReviewTarget::Diff, "2f1c..9b0c").approved(true);
    session.record_review(review).await.unwrap();
    let own = EventDraft::new(EventType::new("of_mine"), json!({ "of": "the host" }));
    session.emit(own).await.unwrap();
    let to = host.path().join("export");
    let request = ExportRequest::session(session.id().clone(), &to);
    let outcome = engine.export(request).await.unwrap();
    let lines = lines(&to);
    assert_eq!(lines[0]["record"], "session");
    assert_eq!(of_kind(&lines, "review")[0]["target_ref"], "2f1c..9b0c");
    let events = of_kind(&lines, "event");
    assert_eq!(events.len() as u64, outcome.events);
    assert!(events.iter().any(|event| event["type"] == "of_mine"));
}

/// A store whose content stands before a gate while it is read.
struct HeldUpReads {
    inner: MemoryStore,
    gate: Mutex<Option<Gate>>,
}

struct HeldUp {
    gate: Option<Gate>,
    content: Box<dyn Read + Send>,
}

impl Read for HeldUp {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(gate) = self.gate.take() {
            gate.stand();
        }
        self.content.read(buffer)
    }
}

impl ArtifactStore for HeldUpReads {
    fn put(
        &self,
        key: &ArtifactKey,
        content: &mut dyn Read,
        options: &PutOptions,
    ) -> Result<ArtifactMeta, PutError> {
        self.inner.put(key, content, options)
    }

    fn get(&self, key: &ArtifactKey) -> Result<Box<dyn Read + Send>, GetError> {
        let (gate, content) = (self.gate.lock().unwrap().take(), self.inner.get(key)?);
        Ok(Box::new(HeldUp { gate, content }))
    }

    fn delete(&self, key: &ArtifactKey) -> Result<(), DeleteError> {
        self.inner.delete(key)
    }

    fn exists(&self, key: &ArtifactKey) -> Result<bool, StoreError> {
        self.inner.exists(key)
    }

    fn list(&self) -> Result<ArtifactList, StoreError> {
        self.inner.list()
    }
}

#[test]
fn an_export_that_fails_or_is_not_wanted_any_more_leaves_nothing() {
    for end in ["refused", "dropped", "cancelled"] {
        on_a_runtime(async {
            let host = Host::new();
            let (gate, is_there, open) = Gate::new();
            let store = Arc::new(HeldUpReads {
                inner: MemoryStore::new(),
                gate: Mutex::new(Some(gate)),
            });
            let options = host.options().artifact_store(store);
            let engine = Engine::start(options).await.unwrap();
            let session = engine.session("s").await.unwrap();
            let content = Box::new(&b"content"[..]);
            let kept = session.put_artifact("k", "text/plain", content).await;
            kept.unwrap();

            let to = host.path().join("export");
            let token = CancellationToken::new();
            let request = ExportRequest::session(session.id().clone(), &to);
            let request = request.cancellation(token.clone());
            let exporting = engine.clone();
            let export = tokio::spawn(async move { exporting.export(request).await });
            wait_for(is_there).await;
            let beside = || fs::read_dir(host.path()).unwrap().count();
            assert!(!to.exists(), "half of it has no name");
            assert_eq!(beside(), 1, "it lies in one directory");
            if end == "cancelled" {
                token.cancel();
                open.send(()).unwrap();
                let error = export.await.unwrap().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                assert_eq!(beside(), 0, "{end}");
                return;
            }
            if end == "dropped" {
                export.abort();
                assert!(export.await.unwrap_err().is_cancelled());
                open.send(()).unwrap();
                eventually("nothing", || async { beside() == 0 }).await;
                return;
            }
            // Somebody takes the place meanwhile, and keeps it.
            fs::create_dir_all(to.join("theirs")).unwrap();
            open.send(()).unwrap();
            let error = export.await.unwrap().unwrap_err();
            assert!(error.path().is_some_and(|path| path == to), "{error}");
            assert!(to.join("theirs").is_dir());
            assert_eq!(beside(), 1);
        });
    }
}

// It was taken for all that there is, without what had gone meanwhile.
#[test]
fn an_export_of_what_is_removed_meanwhile_fails_and_leaves_nothing() {
    for (kept, expected) in [
        (
            LogRetention::default().max_events(0),
            ErrorKind::PositionsForgotten,
        ),
        (
            LogRetention::default().max_ended_sessions(0),
            ErrorKind::NotFound,
        ),
    ] {
        on_a_runtime(async {
            let host = Host::new();
            let (gate, is_there, open) = Gate::new();
            let store = Arc::new(HeldUpReads {
                inner: MemoryStore::new(),
                gate: Mutex::new(Some(gate)),
            });
            let options = host.options().artifact_store(store);
            let engine = Engine::start(options).await.unwrap();
            let session = engine.session("s").await.unwrap();
            let content = Box::new(&b"content"[..]);
            let put = session.put_artifact("k", "text/plain", content).await;
            put.unwrap();
            session.complete("").await.unwrap();

            let to = host.path().join("export");
            let request = ExportRequest::session(session.id().clone(), &to);
            let exporting = engine.clone();
            let export = tokio::spawn(async move { exporting.export(request).await });
            wait_for(is_there).await;
            let trimmed = engine.trim_log(kept).await.unwrap();
            assert!(trimmed.events > 0, "{trimmed:?}");
            open.send(()).unwrap();
            let error = export.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), expected, "{error}");
            assert_eq!(fs::read_dir(host.path()).unwrap().count(), 0);
        });
    }
}

#[tokio::test]
async fn whoever_is_unknown_has_no_export() {
    let host = Host::new();
    let (engine, _) = host.session().await;
    let to = host.path().join("export");
    let nobody = SessionId::try_from("nobody".to_owned()).unwrap();
    let run = "run_nobody".parse().unwrap();
    for request in [
        ExportRequest::session(nobody, &to),
        ExportRequest::run(run, &to),
    ] {
        let unknown = engine.export(request).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound, "{unknown}");
    }
    assert!(!to.exists());
}
