//! Databases of every earlier version, with rows in every table.
//!
//! A fixture adds the rows that its version introduced; a database of version n gets all fixtures
//! up to n. The tests read them through a plain SQLite connection, and compare value by value.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rusqlite::Connection;
use rusqlite::types::Value;
use stillframe_backends::{StateDir, Workspace};

use super::StateStore as _;
use super::sqlite::{DATABASE, MIGRATIONS, SqliteStore};
use crate::engine::Engine;
use crate::engine::options::EngineOptions;
use crate::events::event::{EventSource, EventType};
use crate::events::query::EventQuery;
use crate::options::RunOptions;
use crate::records::effect::EffectStatus;
use crate::records::output::AdapterOutput;
use crate::records::question::QuestionStatus;
use crate::records::run::RunStatus;
use crate::records::run_record::RunExport;
use crate::records::run_totals::TokenTotals;
use crate::records::step::StepStatus;
use crate::records::tool_call::ToolCallStatus;
use crate::step::adapter::Adapter;
use crate::step::adapter_error::AdapterError;
use crate::step::context::RunContext;

/// What came with version 1, 2, 3 and so on. A version that brought no table needs none.
const FIXTURES: &[&str] = &[
    include_str!("fixtures/0001.sql"),
    include_str!("fixtures/0002.sql"),
    "",
    include_str!("fixtures/0004.sql"),
    include_str!("fixtures/0005.sql"),
    include_str!("fixtures/0006.sql"),
    include_str!("fixtures/0007.sql"),
    include_str!("fixtures/0008.sql"),
    include_str!("fixtures/0009.sql"),
    include_str!("fixtures/0010.sql"),
    include_str!("fixtures/0011.sql"),
    include_str!("fixtures/0012.sql"),
    include_str!("fixtures/0013.sql"),
    include_str!("fixtures/0014.sql"),
    include_str!("fixtures/0015.sql"),
    include_str!("fixtures/0016.sql"),
    include_str!("fixtures/0017.sql"),
    include_str!("fixtures/0018.sql"),
    include_str!("fixtures/0019.sql"),
    include_str!("fixtures/0020.sql"),
    "",
    "",
    include_str!("fixtures/0023.sql"),
];

// Who adds a version adds what the one before it had.
const _: () = assert!(FIXTURES.len() + 1 >= MIGRATIONS.len());

/// Those that have a fixture.
fn earlier_versions() -> std::ops::RangeInclusive<usize> {
    1..=FIXTURES.len().min(MIGRATIONS.len())
}

struct Earlier {
    state: tempfile::TempDir,
    workspace: tempfile::TempDir,
}

impl Earlier {
    /// A state directory with a database of this version, which nobody has open.
    fn of(version: usize) -> Self {
        let (state, workspace) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(workspace.path().join("half"), "done\n").unwrap();
        let opened = StateDir::open(state.path()).unwrap();
        let known = Workspace::open(workspace.path(), &opened).unwrap();
        let path = known.disk_path().as_os_str().as_bytes();
        let path: String = path.iter().map(|byte| format!("{byte:02x}")).collect();
        drop(SqliteStore::open_with(state.path(), &MIGRATIONS[..version]).unwrap());
        let connection = Connection::open(state.path().join(DATABASE)).unwrap();
        super::row_sum::register(&connection).unwrap();
        for fixture in &FIXTURES[..version] {
            let rows = fixture
                .replace("@PATH@", &path)
                .replace("@WORKSPACE@", known.id());
            let rows = match version {
                ..8 => rows,
                _ => rows.replace("last_sequence", "sequence_floor"),
            };
            connection.execute_batch(&rows).unwrap();
        }
        sum_events(&connection, version);
        Self { state, workspace }
    }

    fn path(&self) -> &Path {
        self.state.path()
    }
}

/// Writes what is written with an event since version 8, where triggers did it before.
fn sum_events(connection: &Connection, version: usize) {
    if version < 8 {
        return;
    }
    connection
        .execute_batch(
            "UPDATE events SET row_sum = row_sum('events', position, id, session_id, sequence, run_id, type, timestamp,
                    schema_version, data, source, provider, correlation_id, metadata, data_ref)
              WHERE row_sum IS NULL;
             DELETE FROM event_times;
             INSERT INTO event_times
                 SELECT name, at, first, row_sum('event_times', name, at, first) FROM (
                     SELECT session_id AS name, latest AS at, min(position) AS first FROM (
                         SELECT session_id, position,
                                max(timestamp) OVER (PARTITION BY session_id ORDER BY position) AS latest
                           FROM events)
                      GROUP BY session_id, latest
                     UNION ALL
                     SELECT '', latest, min(position) FROM (
                         SELECT position, max(timestamp) OVER (ORDER BY position) AS latest FROM events)
                      GROUP BY latest);",
        )
        .unwrap();
}

/// Every value of every row of every table, by table; without the sums, which only some versions
/// have.
fn rows(database: &Path) -> BTreeMap<String, Vec<Vec<(String, Value)>>> {
    let connection = Connection::open(database).unwrap();
    let mut find = connection
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        .unwrap();
    let tables = find.query_map((), |row| row.get::<_, String>(0)).unwrap();
    let mut all = BTreeMap::new();
    for table in tables.map(Result::unwrap) {
        let mut statement = connection
            .prepare(&format!("SELECT * FROM {table} ORDER BY 1, 2"))
            .unwrap();
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let mut found = statement.query(()).unwrap();
        let mut rows = Vec::new();
        while let Some(row) = found.next().unwrap() {
            let values = names.iter().enumerate();
            let values = values.map(|(at, name)| (name.clone(), row.get(at).unwrap()));
            rows.push(values.filter(|(name, _)| name != "row_sum").collect());
        }
        all.insert(table, rows);
    }
    all
}

fn version_of(database: &Path) -> usize {
    let connection = Connection::open(database).unwrap();
    let version = connection.query_row("PRAGMA user_version", (), |row| row.get::<_, i64>(0));
    usize::try_from(version.unwrap()).unwrap()
}

/// Says something and is done.
struct Notes;

impl Adapter for Notes {
    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        let data = serde_json::json!({});
        context.emit(EventType::new("noted"), data).await?;
        Ok(AdapterOutput::empty())
    }
}

#[test]
fn a_database_of_every_earlier_version_opens_with_all_that_it_had_and_a_backup() {
    for version in earlier_versions() {
        let earlier = Earlier::of(version);
        let database = earlier.path().join(DATABASE);
        let before = rows(&database);
        assert_eq!(version_of(&database), version);
        assert_eq!(before["runs"].len(), if version < 4 { 6 } else { 8 });

        let store = SqliteStore::open(earlier.path()).unwrap();
        assert_eq!(store.problems().unwrap(), [""; 0], "version {version}");
        drop(store);
        assert_eq!(version_of(&database), MIGRATIONS.len());
        let after = rows(&database);
        for (table, before) in &before {
            // Columns that came later are behind those that there were.
            for (old, new) in before.iter().zip(&after[table]) {
                for (name, value) in old {
                    // It has another name since version 8.
                    let name = match name.as_str() {
                        "last_sequence" => "sequence_floor",
                        name => name,
                    };
                    let found = new.iter().find(|(n, _)| n == name).map(|(_, v)| v);
                    assert_eq!(found, Some(value), "{table}.{name} of version {version}");
                }
            }
            // What only events told has rows since version 20.
            let is_told = ["tool_calls", "token_totals"].contains(&table.as_str());
            assert!(
                before.len() == after[table].len() || is_told && before.len() < after[table].len(),
                "{table} of version {version}"
            );
        }
        let backup = earlier.path().join(format!("stillframe.db.v{version}.bak"));
        if version == MIGRATIONS.len() {
            assert!(!backup.exists(), "there was nothing to migrate");
            continue;
        }
        assert_eq!(version_of(&backup), version);
        assert!(rows(&backup) == before, "the backup of version {version}");
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(&backup).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600, "as private as the database");
    }
}

#[test]
fn events_of_every_earlier_version_are_found_by_their_time() {
    for version in earlier_versions() {
        let earlier = Earlier::of(version);
        let connection = Connection::open(earlier.path().join(DATABASE)).unwrap();
        super::row_sum::register(&connection).unwrap();
        // A clock that goes ahead by half a second, and back by twenty each time it has gone
        // thirty.
        connection
            .execute_batch(
                "INSERT INTO events (id, session_id, sequence, type, timestamp, schema_version, data)
                 WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 299)
                 SELECT 'evt_at_' || i, (SELECT min(id) FROM sessions), 1000 + i, 'noted',
                        (i / 60 * 10 + i % 60 / 2) * 1000000000, 1, '{}' FROM n",
            )
            .unwrap();
        sum_events(&connection, version);
        drop(connection);
        let store = SqliteStore::open(earlier.path()).unwrap();
        let all = store.events(&EventQuery::all()).unwrap();
        assert!(all.len() > 300);
        for second in 0..75 {
            let time = jiff::Timestamp::from_second(second).unwrap();
            let expected: Vec<_> = all.iter().filter(|e| e.timestamp >= time).collect();
            let found = store.events(&EventQuery::all().since(time)).unwrap();
            let found: Vec<_> = found.iter().collect();
            assert_eq!(found, expected, "since {time} in version {version}");
        }
    }
}

/// What version 5 brought is in the export of its run.
fn asked_committed_and_divided(kept: &RunExport) {
    let asked = kept.questions.iter().map(|q| (q.text.as_str(), q.status));
    let expected = [
        ("Which \"one\"? ü", QuestionStatus::Answered),
        ("And then?", QuestionStatus::Open),
    ];
    assert!(asked.eq(expected), "{:?}", kept.questions);
    assert_eq!(kept.questions[0].answer.as_deref(), Some("right"));
    assert_eq!(kept.questions[0].choices, ["left", "right"]);
    let effects = kept.effects.iter().map(|effect| effect.status);
    assert!(effects.eq([EffectStatus::Done, EffectStatus::Failed]));
    assert_eq!(kept.effects[0].intent.paths[1].as_bytes(), b"a\xffb");
    assert_eq!(
        kept.effects[1].error.as_ref().unwrap().message,
        "HEAD is elsewhere"
    );
    let message = &kept.commits[0].message;
    assert_eq!(message, &kept.effects[0].intent.message);
    assert_eq!(kept.commits[0].insertions, 3);
    let steps = kept.phases.iter().flat_map(|phase| &phase.steps);
    let parts = steps.flat_map(|step| &step.tasks);
    let parts: Vec<_> = parts
        .map(|part| (part.name.as_str(), part.status))
        .collect();
    assert_eq!(
        parts,
        [
            ("parse", StepStatus::Completed),
            ("load", StepStatus::Interrupted)
        ]
    );
}

/// What the events of a run tell of calls and tokens is what it amounts to. Earlier versions had no
/// agents.
fn counted(kept: &RunExport, version: usize) {
    let calls = kept
        .tool_calls
        .iter()
        .map(|of| (&*of.call_id, of.tool_name.as_deref(), of.status));
    let calls: Vec<_> = calls.collect();
    let of_version_4 = [
        ("c1", Some("Read"), ToolCallStatus::Completed),
        ("c2", Some("Grep"), ToolCallStatus::Failed),
        ("c3", Some("LS"), ToolCallStatus::Interrupted),
    ];
    let of_version_8 = [
        ("told", Some("Bash"), ToolCallStatus::Completed),
        ("large", None, ToolCallStatus::Failed),
    ];
    assert_eq!(calls[..3], of_version_4);
    assert!(kept.tool_calls.iter().all(|of| of.ended_at.is_some()));
    let error = kept.tool_calls[1].error.as_ref().unwrap();
    let said = (error.kind.as_deref(), &*error.message);
    assert_eq!(said, (Some("Io"), "no \"such\" file"));
    assert_eq!(kept.tool_calls[1].source, EventSource::Engine);
    let mut tokens = (0, 0);
    if version >= 8 {
        assert_eq!(calls[3..], of_version_8);
        let told = &kept.tool_calls[3];
        assert_eq!(told.source, EventSource::Adapter);
        assert_eq!(told.input, Some("ls \"ü\"".into()));
        assert_eq!(told.input_size_bytes, Some(7));
        assert_eq!(told.output, Some(serde_json::json!({ "lines": 2 })));
        assert!(told.started_at < told.ended_at);
        assert_eq!(kept.tool_calls[4].input_size_bytes, None);
        tokens = (1_000, 10);
    }
    let total = kept.run.total_tokens;
    assert_eq!((total.input_tokens, total.output_tokens), tokens);
    assert_eq!(kept.run.total_tool_calls, calls.len() as u64);
    assert_eq!(kept.run.total_agents, 0);
}

#[test]
fn an_event_that_is_damaged_adds_nothing_to_what_its_run_amounts_to() {
    let earlier = Earlier::of(8);
    let connection = Connection::open(earlier.path().join(DATABASE)).unwrap();
    let damage = "UPDATE events SET row_sum = row_sum + 1 WHERE id IN ('evt_call_1', 'evt_told_6')";
    assert_eq!(connection.execute(damage, ()).unwrap(), 2);
    drop(connection);
    let store = SqliteStore::open(earlier.path()).unwrap();
    assert_eq!(store.problems().unwrap().len(), 2, "and it stays damaged");
    let run_id = "run_interrupted".parse().unwrap();
    let calls = store.tool_calls(&run_id).unwrap();
    assert_eq!(calls[0].known.call_id, "c1");
    assert_eq!(calls[0].started_at, None, "its end alone is believed");
    let total = store.run_totals(&run_id).unwrap().unwrap();
    let tokens = (total.tokens.input_tokens, total.tokens.output_tokens);
    assert_eq!(tokens, (0, 3));
}

#[test]
fn what_a_run_of_two_versions_used_is_the_more_of_total_and_events() {
    for (known, expected) in [((5, 2), (1_000, 10)), ((9_000, 3), (9_000, 10))] {
        let earlier = Earlier::of(19);
        let connection = Connection::open(earlier.path().join(DATABASE)).unwrap();
        super::row_sum::register(&connection).unwrap();
        connection
            .execute(
                "INSERT INTO token_totals (run_id, input_tokens, output_tokens)
                 VALUES ('run_interrupted', ?1, ?2)",
                known,
            )
            .unwrap();
        drop(connection);
        let store = SqliteStore::open(earlier.path()).unwrap();
        let total = store.run_totals(&"run_interrupted".parse().unwrap());
        let tokens = total.unwrap().unwrap().tokens;
        assert_eq!((tokens.input_tokens, tokens.output_tokens), expected);
        assert_eq!(store.problems().unwrap(), [""; 0]);
    }
}

#[test]
fn an_engine_goes_on_with_the_sessions_of_every_earlier_version() {
    for version in earlier_versions() {
        let earlier = Earlier::of(version);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let options = EngineOptions::default().state_dir(earlier.path());
            let engine = Engine::start(options).await.unwrap();
            for (id, status) in [
                ("run_completed", RunStatus::Completed),
                ("run_failed", RunStatus::Failed),
                ("run_cancelled", RunStatus::Cancelled),
                ("run_timeout", RunStatus::Timeout),
            ] {
                assert_eq!(engine.find_run(id).await.unwrap().status, status, "{id}");
            }
            let failed = engine.find_run("run_failed").await.unwrap();
            assert_eq!(failed.input, "a name with a \"quote\" and ü");
            assert_eq!(failed.exit_code, Some(7));
            assert_eq!(failed.error.unwrap().message, "exit code 7");
            for id in ["run_pending", "run_running"] {
                let run = engine.find_run(id).await.unwrap();
                assert_eq!(run.status, RunStatus::Failed, "{id} of version {version}");
                let error = run.error.unwrap();
                assert!(error.message.contains("stranded_in_progress"), "{error:?}");
            }
            // What the run left is captured by the options that it had then.
            let running = engine.find_run("run_running").await.unwrap();
            let seen = running.workspace.unwrap();
            let after = seen.after_snapshot.clone();
            let after = after.unwrap_or_else(|| panic!("{version}: {seen:?}"));
            let after = engine.find_snapshot(after.as_str()).await.unwrap();
            assert_eq!(after.label.as_str(), "after_failure");
            assert_eq!(after.metadata.files, 1);
            let first = engine
                .find_snapshot("snap_00000000000000000000000000000001")
                .await;
            assert_eq!(first.unwrap().metadata.bytes_read, 10);
            let artifacts = engine.artifacts(None).await.unwrap();
            let keys: Vec<&str> = artifacts.iter().map(|a| a.key.as_str()).collect();
            assert_eq!(keys, ["logs/build"], "and none that was deleted");

            if version >= 4 {
                let kept = engine.export_run("run_interrupted").await.unwrap();
                assert_eq!(kept.run.status, RunStatus::Interrupted);
                let begun = kept
                    .phases
                    .iter()
                    .filter(|of| of.status != StepStatus::Skipped);
                assert_eq!(kept.run.total_iterations, begun.count() as u64);
                assert!(kept.run.total_iterations > 0);
                let steps = |export: &RunExport| -> Vec<StepStatus> {
                    let phases = export.phases.iter();
                    phases
                        .flat_map(|p| p.steps.iter().map(|s| s.status))
                        .collect()
                };
                let expected = [StepStatus::Completed, StepStatus::Interrupted];
                assert_eq!(steps(&kept), expected);
                assert_eq!(kept.lease.as_ref().unwrap().epoch, 2, "nobody touched it");
                let cut_off = engine.export_run("run_of_steps").await.unwrap();
                assert_eq!(cut_off.run.status, RunStatus::Interrupted);
                assert_eq!(steps(&cut_off), expected);
                assert_eq!(cut_off.lease.as_ref().unwrap().epoch, 2);
                counted(&kept, version);
            }
            if version >= 5 {
                asked_committed_and_divided(&engine.export_run("run_interrupted").await.unwrap());
            }
            if version >= 6 {
                let third = engine
                    .find_snapshot("snap_00000000000000000000000000000033")
                    .await;
                let left_out = third.unwrap().omissions;
                let left_out = left_out.omissions();
                assert_eq!(left_out.len(), 36);
                assert_eq!(left_out[35].path.as_bytes(), b"file-45.o");
            }

            if version >= 7 {
                let pinned = engine.pinned_snapshots().await.unwrap();
                assert_eq!(pinned.len(), 1);
            }

            let completed = engine.export_run("run_completed").await.unwrap();
            let values = completed
                .state
                .iter()
                .map(|of| (&*of.key, of.value.clone()));
            let values: Vec<_> = values.collect();
            match version {
                ..10 => assert_eq!(values, []),
                _ => assert_eq!(values, [("page", serde_json::json!({ "n": 7 }))]),
            }
            assert_eq!(completed.state_transitions.len(), values.len());
            let calls = completed
                .tool_calls
                .iter()
                .map(|of| (&*of.call_id, of.output_size_bytes));
            let calls: Vec<_> = calls.collect();
            match version {
                ..12 => assert_eq!(calls, []),
                _ => assert_eq!(calls, [("1f", Some(4_000))]),
            }
            assert_eq!(completed.run.total_tool_calls, calls.len() as u64);
            let tokens = completed.run.total_tokens;
            match version {
                ..13 => assert_eq!(tokens, TokenTotals::default()),
                _ => assert_eq!((tokens.input_tokens, tokens.output_tokens), (1_200, 310)),
            }
            let agents = completed
                .agents
                .iter()
                .map(|of| (of.id.as_str(), of.tokens.input_tokens));
            let agents: Vec<_> = agents.collect();
            match version {
                ..14 => assert_eq!(agents, []),
                _ => assert_eq!(agents, [("agt_1", 1_200)]),
            }
            assert_eq!(completed.run.total_agents, agents.len() as u64);
            let reviews = completed.reviews.iter().map(|of| of.id.as_str());
            let expected: &[&str] = if version < 16 { &[] } else { &["rev_1"] };
            assert_eq!(reviews.collect::<Vec<_>>(), expected);
            let queued = completed.run.queue.map(|queue| queue.adapter);
            assert_eq!(queued.is_some(), version >= 9, "{version}: {queued:?}");

            let session = engine.session("ticket").await.unwrap();
            let outcome = session.execute_run(RunOptions::new("next"), Notes).await;
            let run_id = outcome.unwrap().run_id;
            let query = EventQuery::session("ticket".parse().unwrap());
            let events = engine.events(query).await.unwrap();
            let numbers: Vec<u64> = events.iter().map(|event| event.sequence).collect();
            let expected: Vec<u64> = (1..=events.len() as u64).collect();
            assert_eq!(numbers, expected, "version {version}");
            assert_eq!(events[3].data["deep"][1]["two"], serde_json::Value::Null);
            assert_eq!(events[3].data["text"], "of the host, with \"quotes\" and ü");
            let of_run = events.iter().filter(|e| e.run_id.as_ref() == Some(&run_id));
            let types: Vec<&str> = of_run.map(|e| e.event_type.as_str()).collect();
            assert_eq!(types, ["run_started", "noted", "run_completed"]);
            if version >= 8 {
                let said = events
                    .iter()
                    .find(|event| event.id.as_str() == "evt_of_host");
                let said = said.unwrap();
                assert_eq!(said.source, EventSource::Host);
                assert_eq!(said.correlation_id.as_deref(), Some("one-7"));
                assert_eq!(said.metadata["team"], "red");
            }
            let over = engine.session("over").await.unwrap();
            let refused = over.execute_run(RunOptions::new("late"), Notes).await;
            assert_eq!(
                refused.unwrap_err().kind(),
                stillframe_backends::ErrorKind::Conflict
            );
            engine.shutdown().await.unwrap();
        });
        assert!(earlier.workspace.path().join("half").exists());
    }
}

#[test]
fn without_its_backup_no_database_is_migrated() {
    for version in earlier_versions().filter(|version| *version < MIGRATIONS.len()) {
        let earlier = Earlier::of(version);
        let database = earlier.path().join(DATABASE);
        let before = rows(&database);
        let backup = earlier.path().join(format!("stillframe.db.v{version}.bak"));
        // Nothing can be renamed to where a directory is.
        std::fs::create_dir(&backup).unwrap();
        let refused = SqliteStore::open(earlier.path()).unwrap_err();
        let refused = format!("{refused:?}");
        assert!(refused.contains(&backup.display().to_string()), "{refused}");
        assert_eq!(version_of(&database), version);
        assert!(rows(&database) == before, "version {version}");
        let names = std::fs::read_dir(earlier.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let left: Vec<String> = names.filter(|name| name.starts_with(".tmp-")).collect();
        assert_eq!(left, [""; 0], "and nothing is left of it");
        std::fs::remove_dir(&backup).unwrap();
        SqliteStore::open(earlier.path()).unwrap();
        assert_eq!(version_of(&database), MIGRATIONS.len());
    }
}
