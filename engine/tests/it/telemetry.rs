//! Spans and metrics: what a host that watches the engine gets, and that it is what the page says.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use stillframe::steps::{StepOptions, ToolOptions};
use stillframe::{
    AdapterError, AdapterOutput, CommandAdapter, Engine, EngineOptions, ErrorKind, RunContext,
    RunOptions, RunStatus, SessionManager,
};
use tokio::sync::Semaphore;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Instrument as _, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use crate::recorder::Recorded;
use crate::support::{Host, Work, eventually};

const PAGE: &str = include_str!("../../../docs/telemetry.md");

/// The target of the host's own spans.
const HOST: &str = "host";

/// A span that was seen.
#[derive(Clone, Debug, Default)]
struct Seen {
    name: &'static str,
    parent: Option<u64>,
    declared: BTreeSet<&'static str>,
    fields: BTreeMap<&'static str, String>,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

/// Collects the spans of the engine, of all tests of this process.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<HashMap<u64, Seen>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.is_span() && matches!(metadata.target(), "stillframe" | HOST)
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let metadata = attributes.metadata();
        let span = context.span(id).expect("it is new");
        let mut seen = Seen {
            name: metadata.name(),
            parent: span.parent().map(|parent| number(&parent)),
            declared: metadata.fields().iter().map(|f| f.name()).collect(),
            ..Seen::default()
        };
        attributes.record(&mut seen);
        let mut all = self.0.lock().unwrap();
        let number = all.len() as u64 + 1;
        all.insert(number, seen);
        span.extensions_mut().insert(Number(number));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let number = number(&context.span(id).expect("it is there"));
        values.record(self.0.lock().unwrap().get_mut(&number).unwrap());
    }
}

/// Which span it is: ids are used again.
struct Number(u64);

fn number<'a, R: LookupSpan<'a>>(span: &tracing_subscriber::registry::SpanRef<'a, R>) -> u64 {
    span.extensions().get::<Number>().expect("it has one").0
}

/// Everything is collected from here on.
fn listen() -> (Spans, Recorded) {
    static ALL: OnceLock<(Spans, Recorded)> = OnceLock::new();
    let begin = || {
        let (spans, recorded) = (Spans::default(), Recorded::default());
        let subscriber = Registry::default().with(spans.clone());
        tracing::subscriber::set_global_default(subscriber).unwrap();
        metrics::set_global_recorder(recorded.clone()).ok().unwrap();
        (spans, recorded)
    };
    ALL.get_or_init(begin).clone()
}

/// The rows of the table that follows `heading`: their cells, without the marks of code.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let (_, rest) = PAGE.split_once(heading).expect("the page has it");
    let table = rest.lines().skip_while(|line| !line.starts_with('|'));
    let table = table.take_while(|line| line.starts_with('|')).skip(2);
    let cells = |line: &str| {
        let cells = line.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    table.map(cells).collect()
}

/// What stands between backticks.
fn codes(cell: &str) -> BTreeSet<String> {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// An engine with its own backends, and a session.
async fn started(host: &Host) -> (Engine, SessionManager) {
    let options = EngineOptions::default().state_dir(host.state());
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    (engine, session)
}

/// A run that has a step, calls a tool, fails, and is rolled back.
async fn watched_run(host: &Host) -> String {
    host.write("file", "before");
    let (engine, session) = started(host).await;
    let work = Work(|context: RunContext| async move {
        let path = context.workspace.clone().unwrap().join("file");
        let step = context.phase("build").iteration(2);
        let write = path.clone();
        step.step_with(StepOptions::new("compile"), move |_| {
            let written = std::fs::write(&write, "compiled");
            async move { written.map_err(|e| AdapterError::failed(e.to_string())) }
        })
        .await?;
        let edit = async {
            std::fs::write(&path, "edited").map_err(|e| AdapterError::failed(e.to_string()))
        };
        context.call_tool(ToolOptions::new("Edit"), edit).await?;
        Err::<AdapterOutput, _>(AdapterError::failed("it came to nothing"))
    });
    let workspace = host.workspace().rollback_on_failure(true);
    let options = RunOptions::new("watched").workspace(workspace);
    let outcome = session.execute_run(options, work).await.unwrap();
    assert_eq!(outcome.run.status, RunStatus::Failed);
    assert_eq!(host.read("file").as_deref(), Some("before"));
    engine.shutdown().await.unwrap();
    outcome.run_id.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_are_what_the_page_lists_and_all_work_belongs_to_its_run() {
    let (spans, _) = listen();
    let run_id = watched_run(&Host::new()).await;
    let all = spans.0.lock().unwrap().clone();

    let listed: BTreeMap<String, BTreeSet<String>> = rows("## Spans")
        .iter()
        .map(|row| (codes(&row[0]).pop_first().unwrap(), codes(&row[2])))
        .collect();
    let mut seen = BTreeMap::<String, BTreeSet<String>>::new();
    for span in all.values().filter(|span| span.name != "request") {
        let fields = span.declared.iter().map(|name| (*name).to_owned());
        seen.entry(span.name.to_owned()).or_default().extend(fields);
    }
    assert_eq!(
        seen, listed,
        "the spans of the page, and those that there are"
    );

    let (of_run, run) = all
        .iter()
        .find(|(_, span)| span.name == "run" && span.fields["run_id"] == run_id)
        .expect("the run has a span");
    assert_eq!(run.fields["session_id"], "s");
    assert_eq!(run.fields["status"], "failed");
    assert!(run.fields["duration_ms"].parse::<u64>().is_ok());
    let belongs = |span: &Seen| {
        let mut above = span.parent;
        while let Some(number) = above {
            if number == *of_run {
                return true;
            }
            above = all[&number].parent;
        }
        false
    };
    let below: Vec<&Seen> = all.values().filter(|span| belongs(span)).collect();
    let named = |name: &str| below.iter().filter(|span| span.name == name).count();
    assert!(
        named("capture") >= 5,
        "before, step, tool, after: {}",
        named("capture")
    );
    assert_eq!(named("restore"), 1);
    assert!(named("diff") >= 1);
    assert_eq!((named("step"), named("tool")), (1, 1));
    assert!(named("state_commit") > 5);
    for span in all.values() {
        let is_of_run = span.fields.get("run_id").is_some_and(|id| *id == run_id);
        assert!(
            !is_of_run || span.name == "run" || belongs(span),
            "{span:?}"
        );
    }

    let of = |name: &str| *below.iter().find(|span| span.name == name).unwrap();
    let step = of("step");
    assert_eq!(step.fields["phase"], "build");
    assert_eq!(
        (&*step.fields["iteration"], &*step.fields["step"]),
        ("2", "compile")
    );
    assert_eq!(
        (&*step.fields["attempt"], &*step.fields["is_completed"]),
        ("1", "true")
    );
    assert_eq!(of("tool").fields["tool"], "Edit");
    let restore = of("restore");
    assert_eq!(
        (&*restore.fields["purpose"], &*restore.fields["restored"]),
        ("rollback", "1")
    );
    for capture in below.iter().filter(|span| span.name == "capture") {
        assert!(
            capture.fields["snapshot_id"].starts_with("snap_"),
            "{capture:?}"
        );
        assert_eq!(capture.fields["files"], "1", "{capture:?}");
        assert_eq!(capture.fields["run_id"], run_id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_belongs_to_what_its_host_began_it_in() {
    let (spans, _) = listen();
    let host = Host::new();
    let (engine, session) = started(&host).await;
    let idle = || Work(|_| async { Ok(AdapterOutput::empty()) });
    let requested = async {
        let options = || RunOptions::new("requested");
        let own = engine.run_once(options(), idle()).await.unwrap();
        let other = session.execute_run(options(), idle()).await.unwrap();
        [own, other].map(|outcome| outcome.run_id.to_string())
    };
    let request = tracing::info_span!(target: HOST, "request");
    let ids = requested.instrument(request).await;
    engine.shutdown().await.unwrap();
    let all = spans.0.lock().unwrap().clone();
    for id in ids {
        let is_it = |span: &&Seen| span.name == "run" && span.fields["run_id"] == id;
        let run = all.values().find(is_it).unwrap();
        let above = run.parent.map(|number| all[&number].name);
        assert_eq!(above, Some("request"), "{run:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_what_the_page_lists_and_count_what_was_done() {
    let (_, recorded) = listen();
    let before = Values::of(&recorded);
    let host = Host::new();
    watched_run(&host).await;
    let (engine, session) = started(&host).await;
    let wrong = CommandAdapter::new("true").idle_timeout(Duration::ZERO);
    let refused = session.execute_run(RunOptions::new("wrong"), wrong).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidOptions);
    engine.shutdown().await.unwrap();
    let after = Values::of(&recorded);

    let mut listed = BTreeMap::new();
    for row in rows("## Metrics") {
        let name = codes(&row[0]).pop_first().unwrap();
        listed.insert(name, (row[1].clone(), codes(&row[2])));
    }
    assert_eq!(
        after.families, listed,
        "the metrics of the page, and those that there are"
    );

    // Other tests of this process count too.
    let more = |name: &str| after.value(name) - before.value(name);
    assert!(more("stillframe_captures_total") >= 5.0);
    assert!(more("stillframe_capture_duration_seconds_count") >= 5.0);
    assert!(more("stillframe_files_hashed_total") >= 1.0);
    assert!(more("stillframe_bytes_read_total") >= 6.0);
    assert!(more("stillframe_restores_total{purpose=\"rollback\"}") >= 1.0);
    assert!(more("stillframe_diffs_total") >= 1.0);
    assert!(more("stillframe_events_total") >= 8.0);
    assert!(more("stillframe_runs_total{status=\"failed\"}") >= 1.0);
    assert!(more("stillframe_errors_total{kind=\"InvalidOptions\"}") >= 1.0);
    assert!(more("stillframe_lock_wait_seconds_count{lock=\"run\"}") >= 1.0);
    assert!(more("stillframe_lock_wait_seconds_count{lock=\"workspace\"}") >= 5.0);
}

// On one thread, which a recorder of its own can hear.
#[tokio::test]
async fn the_length_of_the_queue_is_told_as_runs_come_and_go() {
    let recorded = Recorded::default();
    let _heard = metrics::set_default_local_recorder(&recorded);
    let length = || {
        Values::of(&recorded)
            .values
            .get("stillframe_queued_runs")
            .copied()
    };
    let host = Host::new();
    let go = Arc::new(Semaphore::new(0));
    let held = go.clone();
    let options = host.options().max_running(1);
    let options = options.adapter("held", move |_| {
        let go = held.clone();
        Ok(Work(move |_| {
            let go = go.clone();
            async move {
                go.acquire().await.unwrap().forget();
                Ok(AdapterOutput::empty())
            }
        }))
    });
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let mut runs = Vec::new();
    for _ in 0..3 {
        let options = RunOptions::new("held");
        let run = session.submit_run(options, "held", serde_json::Value::Null);
        runs.push(run.await.unwrap());
    }
    eventually("one is begun", || async { length() == Some(2.0) }).await;
    go.add_permits(3);
    for run in &mut runs {
        run.wait().await.unwrap();
    }
    eventually("none waits", || async { length() == Some(0.0) }).await;
    engine.shutdown().await.unwrap();
}

/// What a recorder has.
struct Values {
    /// Kind and labels of each metric.
    families: BTreeMap<String, (String, BTreeSet<String>)>,
    values: BTreeMap<String, f64>,
}

impl Values {
    fn of(recorded: &Recorded) -> Self {
        let text = recorded.render();
        let mut families = BTreeMap::<String, (String, BTreeSet<String>)>::new();
        let mut values = BTreeMap::new();
        for line in text.lines() {
            if let Some(family) = line.strip_prefix("# TYPE ") {
                let (name, kind) = family.split_once(' ').unwrap();
                families.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new()));
            } else if let Some(help) = line.strip_prefix("# HELP ") {
                assert!(help.contains(' '), "it is described: {line}");
            } else {
                let (name, value) = line.rsplit_once(' ').unwrap();
                values.insert(name.to_owned(), value.parse().unwrap());
                let labels = name.split(['{', ',']).skip(1);
                let labels = labels
                    .filter_map(|label| label.split_once('='))
                    .map(|(l, _)| l);
                let labels = labels.filter(|label| *label != "le").map(str::to_owned);
                let family = families
                    .iter_mut()
                    .rfind(|(family, _)| name.starts_with(*family));
                family.expect("its type comes first").1.1.extend(labels);
            }
        }
        Self { families, values }
    }

    /// The sum over all labels that `name` leaves open.
    fn value(&self, name: &str) -> f64 {
        let is_it = |key: &str| {
            key == name || (!name.contains('{') && key.starts_with(&format!("{name}{{")))
        };
        let found = self.values.iter().filter(|(key, _)| is_it(key));
        found.map(|(_, value)| value).sum()
    }
}
