//! Checksums of rows: they detect rows that the disk has changed.
//!
//! SQLite checks the structure of pages and indexes, but not the values. Triggers of the database
//! (`migrations/0003.sql` and later) maintain the sums; this module has the function that they
//! call, and the comparison.

use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};

use crate::state::error::StateError;

/// An expression of SQL, `damaged`: null for a row of this table that matches its sum, else what it
/// is a row of. The columns are those that the triggers have.
macro_rules! damaged {
    (sessions) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('sessions', ",
            "id, status, version, sequence_floor, created_at, ended_at",
            ") THEN NULL ELSE 'session' END AS damaged"
        )
    };
    (runs) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('runs', ",
            "position, id, session_id, engine_id, status, version, input, options, workspace_id, workspace_path, before_snapshot, after_snapshot, created_at, started_at, ended_at, exit_code, error, output, workspace",
            ") THEN NULL ELSE 'run' END AS damaged"
        )
    };
    (events) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('events', ",
            "position, id, session_id, sequence, run_id, type, timestamp, schema_version, data, source, provider, correlation_id, metadata, data_ref",
            ") THEN NULL ELSE 'event' END AS damaged"
        )
    };
    (snapshots) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('snapshots', ",
            "position, id, workspace_id, session_id, run_id, captured_at, document, omissions",
            ") THEN NULL ELSE 'snapshot' END AS damaged"
        )
    };
    (omissions) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('omissions', ",
            "digest, packed",
            ") THEN NULL ELSE 'list of omissions' END AS damaged"
        )
    };
    (operations) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('operations', ",
            "position, id, workspace_id, session_id, run_id, kind, before_snapshot, after_snapshot, paths, repository, created_at",
            ") THEN NULL ELSE 'operation' END AS damaged"
        )
    };
    (artifacts) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('artifacts', ",
            "position, id, session_id, run_id, key, content_type, byte_size, checksum, storage_backend, storage_ref, metadata, created_at, deleted_at",
            ") THEN NULL ELSE 'artifact' END AS damaged"
        )
    };
    (restores) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('restores', ",
            "guard, workspace_id, session_id, run_id, target, purpose, repository, created_at, outcome",
            ") THEN NULL ELSE 'restore' END AS damaged"
        )
    };
    (leases) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('leases', ",
            "run_id, owner, epoch, boot_id, expires_at, heartbeat_at, cancel_requested_at",
            ") THEN NULL ELSE 'lease' END AS damaged"
        )
    };
    (phases) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('phases', ",
            "position, run_id, name, iteration, status, started_at, completed_at, duration_ms",
            ") THEN NULL ELSE 'phase' END AS damaged"
        )
    };
    (steps) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('steps', ",
            "position, id, run_id, phase, iteration, name, status, attempt, definition_hash, snapshot_before, snapshot_after, commit_created, result, error, started_at, completed_at, duration_ms, begun_order, ended_order",
            ") THEN NULL ELSE 'step' END AS damaged"
        )
    };
    (questions) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('questions', ",
            "position, id, run_id, step_id, question, nth, choices, default_answer, status, asked_at, deadline_at, deadline_boot_id, deadline_boottime, answer, answered_at, timed_out, resumed_at",
            ") THEN NULL ELSE 'question' END AS damaged"
        )
    };
    (effects) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('effects', ",
            "position, id, run_id, step_id, workspace_id, status, intent, commit_id, error, created_at, ended_at",
            ") THEN NULL ELSE 'effect' END AS damaged"
        )
    };
    (commits) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('commits', ",
            "position, vcs, commit_id, run_id, step_id, message, author_name, author_email, files_changed, insertions, deletions, created_at",
            ") THEN NULL ELSE 'commit' END AS damaged"
        )
    };
    (tasks) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('tasks', ",
            "position, run_id, step_id, name, attempt, status, error, started_at, completed_at, duration_ms",
            ") THEN NULL ELSE 'task' END AS damaged"
        )
    };
    (pins) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('pins', ",
            "snapshot_id, workspace_id, pinned_at",
            ") THEN NULL ELSE 'pin' END AS damaged"
        )
    };
    (queue) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('queue', ",
            "position, run_id, session_id, adapter, input, priority, workspace_id, state",
            ") THEN NULL ELSE 'queued run' END AS damaged"
        )
    };
    (state_values) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('state_values', ",
            "run_id, key, value, changed_at",
            ") THEN NULL ELSE 'value of a state' END AS damaged"
        )
    };
    (state_transitions) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('state_transitions', ",
            "position, run_id, key, old_value, new_value, cause, at",
            ") THEN NULL ELSE 'transition of a state' END AS damaged"
        )
    };
    (tool_calls) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('tool_calls', ",
            "position, run_id, call_id, step_id, source, tool_name, status, input, input_ref, input_summary, input_bytes, output, output_ref, output_summary, output_bytes, error, started_at, ended_at",
            ") THEN NULL ELSE 'call of a tool' END AS damaged"
        )
    };
    (token_totals) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('token_totals', ",
            "run_id, input_tokens, output_tokens",
            ") THEN NULL ELSE 'tokens of run' END AS damaged"
        )
    };
    (agents) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('agents', ",
            "position, id, run_id, step_id, name, model, prompts, input_tokens, output_tokens, status, error, started_at, ended_at",
            ") THEN NULL ELSE 'agent' END AS damaged"
        )
    };
    (session_details) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('session_details', ",
            "session_id, agent_id, tags, metadata, parent_id",
            ") THEN NULL ELSE 'details of session' END AS damaged"
        )
    };
    (reviews) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('reviews', ",
            "position, id, session_id, run_id, step_id, target_type, target_ref, approved, blocking, summary, issues, created_at",
            ") THEN NULL ELSE 'review' END AS damaged"
        )
    };
    (event_times) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('event_times', ",
            "session_id, latest, position",
            ") THEN NULL ELSE 'event time' END AS damaged"
        )
    };
    (event_floors) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('event_floors', ",
            "session_id, sequence, position",
            ") THEN NULL ELSE 'event floor' END AS damaged"
        )
    };
    (removals) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('removals', ",
            "session_id, begun_at",
            ") THEN NULL ELSE 'removal of session' END AS damaged"
        )
    };
    (work_tasks) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('work_tasks', ",
            "position, id, task, namespace, remote, branch, status, version, error, last_failure_class, retry_count, next_retry_at, active_run, failures_in_a_row, last_failure_at, flagged, input_cursor, created_at, updated_at",
            ") THEN NULL ELSE 'work task' END AS damaged"
        )
    };
    (checkpoints) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('checkpoints', ",
            "position, task_id, repository, seq, kind, made_by, commit_id, status, remote, branch, advanced_to, failure, error, created_at, updated_at",
            ") THEN NULL ELSE 'checkpoint' END AS damaged"
        )
    };
    (follow_ups) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('follow_ups', ",
            "position, task_id, flow, branch, context, waiting_reason, last_checkpoint, updated_at",
            ") THEN NULL ELSE 'follow-up' END AS damaged"
        )
    };
    (notices) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('notices', ",
            "position, token, kind, task_id, commit_id, text, status, attempts, next_at, owner, error, created_at, updated_at, told_in, made_by",
            ") THEN NULL ELSE 'notice' END AS damaged"
        )
    };
    (allowed_findings) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('allowed_findings', ",
            "position, repository, rule, path, fingerprint, allowed_at",
            ") THEN NULL ELSE 'allowed finding' END AS damaged"
        )
    };
    (came_for) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('came_for', ",
            "run_id, reason, block",
            ") THEN NULL ELSE 'what a run came for' END AS damaged"
        )
    };
    (isolations) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('isolations', ",
            "position, run_id, repository_path, originating_branch, base, worktree_path, worktree_branch, made_at, intent, out_of_scope, unconverted, request_id, commit_id, tree, diff, review_ready_at, reviewed_by, let_go_at, merge",
            ") THEN NULL ELSE 'worktree of a run' END AS damaged"
        )
    };
    (run_revisions) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('run_revisions', ",
            "run_id, revision_number, reviewer, created_at, raw_comment, sanitized_comment, previous_tree",
            ") THEN NULL ELSE 'revision of a run' END AS damaged"
        )
    };
    (quarantine) => {
        concat!(
            "CASE WHEN row_sum IS row_sum('quarantine', ",
            "position, id, kind, origin, place, reason, task_id, status, created_at, ended_at",
            ") THEN NULL ELSE 'quarantine' END AS damaged"
        )
    };
}
pub(super) use damaged;

/// What is looked through for damage: table, how its rows are told apart, and the expression.
const TABLES: [(&str, &str, &str); 36] = [
    ("sessions", "id", damaged!(sessions)),
    ("runs", "id", damaged!(runs)),
    ("events", "id", damaged!(events)),
    ("snapshots", "id", damaged!(snapshots)),
    ("omissions", "lower(hex(digest))", damaged!(omissions)),
    ("operations", "id", damaged!(operations)),
    ("artifacts", "id", damaged!(artifacts)),
    ("restores", "guard", damaged!(restores)),
    ("leases", "run_id", damaged!(leases)),
    ("phases", "name", damaged!(phases)),
    ("steps", "id", damaged!(steps)),
    ("questions", "id", damaged!(questions)),
    ("effects", "id", damaged!(effects)),
    ("commits", "commit_id", damaged!(commits)),
    ("tasks", "name", damaged!(tasks)),
    ("pins", "snapshot_id", damaged!(pins)),
    ("queue", "run_id", damaged!(queue)),
    ("state_values", "key", damaged!(state_values)),
    ("state_transitions", "position", damaged!(state_transitions)),
    ("tool_calls", "call_id", damaged!(tool_calls)),
    ("token_totals", "run_id", damaged!(token_totals)),
    ("agents", "id", damaged!(agents)),
    ("session_details", "session_id", damaged!(session_details)),
    ("reviews", "id", damaged!(reviews)),
    ("event_times", "latest", damaged!(event_times)),
    ("event_floors", "session_id", damaged!(event_floors)),
    ("removals", "session_id", damaged!(removals)),
    ("work_tasks", "id", damaged!(work_tasks)),
    ("checkpoints", "commit_id", damaged!(checkpoints)),
    ("follow_ups", "task_id", damaged!(follow_ups)),
    ("notices", "token", damaged!(notices)),
    (
        "allowed_findings",
        "fingerprint",
        damaged!(allowed_findings),
    ),
    ("quarantine", "id", damaged!(quarantine)),
    ("came_for", "run_id", damaged!(came_for)),
    ("isolations", "run_id", damaged!(isolations)),
    ("run_revisions", "run_id", damaged!(run_revisions)),
];

/// More are not named: who sees ten knows what to do.
const MAX_NAMED: usize = 10;

/// Lets statements of this connection call `row_sum`.
pub(super) fn register(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        // It has no effects, so that triggers may call it though the schema is not trusted.
        | FunctionFlags::SQLITE_INNOCUOUS;
    connection.create_scalar_function("row_sum", -1, flags, |context| Ok(sum(context)))
}

/// The sum of all arguments.
fn sum(context: &Context<'_>) -> i64 {
    sum_of((0..context.len()).map(|at| context.get_raw(at)))
}

/// The first eight bytes of the blake3 of all values, each with its type and, where it has one,
/// its length.
fn sum_of<'a>(values: impl Iterator<Item = ValueRef<'a>>) -> i64 {
    // In one piece: most rows are short, and a hasher that is given a few bytes at a time takes
    // twice as long for them.
    let mut row = Vec::with_capacity(512);
    for value in values {
        match value {
            ValueRef::Null => row.push(b'n'),
            ValueRef::Integer(number) => put(&mut row, b'i', &number.to_le_bytes()),
            ValueRef::Real(number) => put(&mut row, b'r', &number.to_le_bytes()),
            ValueRef::Text(bytes) => put_long(&mut row, b't', bytes),
            ValueRef::Blob(bytes) => put_long(&mut row, b'b', bytes),
        }
    }
    let first = blake3::hash(&row).as_bytes()[..8].try_into();
    i64::from_le_bytes(first.expect("a blake3 has 32 bytes"))
}

fn put(row: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    row.push(kind);
    row.extend_from_slice(bytes);
}

fn put_long(row: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    put(row, kind, &(bytes.len() as u64).to_le_bytes());
    row.extend_from_slice(bytes);
}

/// Fails if `columns` of `table`, in the order of its expression above, do not match `sum`. For
/// rows of which many are read: it takes half as long as [`damaged`]. The first tells the row
/// apart from others of its `noun`.
pub(super) fn check_columns(
    table: &str,
    noun: &str,
    columns: &[ValueRef<'_>],
    sum: ValueRef<'_>,
) -> Result<(), StateError> {
    let table = std::iter::once(ValueRef::Text(table.as_bytes()));
    match sum == ValueRef::Integer(sum_of(table.chain(columns.iter().copied()))) {
        true => Ok(()),
        false => Err(does_not_match(noun, columns[0])),
    }
}

/// Fails on a row that does not match its sum. It comes from a statement with [`damaged`].
pub(super) fn check(row: &Row<'_>) -> Result<(), StateError> {
    match row.get_ref("damaged")? {
        ValueRef::Null => Ok(()),
        noun => Err(does_not_match(&text(noun), row.get_ref(0)?)),
    }
}

fn does_not_match(noun: &str, key: ValueRef<'_>) -> StateError {
    let key = text(key);
    StateError::Corrupt {
        detail: format!("the row of {noun} {key} does not match its sum"),
    }
}

/// What is wrong in the database: rows that do not match their sums, and pages and indexes that do
/// not hang together. Empty: nothing. Reads all of it.
pub(super) fn problems(connection: &Connection) -> Result<Vec<String>, StateError> {
    let mut problems = Vec::new();
    let mut check = connection.prepare(&format!("PRAGMA integrity_check({MAX_NAMED})"))?;
    let mut rows = check.query(())?;
    while let Some(row) = rows.next()? {
        match text(row.get_ref(0)?) {
            said if said == "ok" => {}
            said => problems.push(said),
        }
    }
    for (table, key, damaged) in TABLES {
        let mut rows = connection.prepare(&format!(
            "SELECT * FROM (SELECT {key}, {damaged} FROM {table}) WHERE damaged IS NOT NULL LIMIT {MAX_NAMED}"
        ))?;
        let mut rows = rows.query(())?;
        while let Some(row) = rows.next()? {
            let key = text(row.get_ref(0)?);
            problems.push(format!("the row {key} of {table} does not match its sum"));
        }
    }
    Ok(problems)
}

/// A value that may be damaged, for a message.
fn text(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "null".to_owned(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            String::from_utf8_lossy(bytes).escape_debug().to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::StateStore as _;
    use crate::state::sqlite::{DATABASE, SqliteStore};

    /// A database with a row in each table.
    fn filled() -> (tempfile::TempDir, SqliteStore) {
        let state = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(state.path()).unwrap();
        let writer = Connection::open(state.path().join(DATABASE)).unwrap();
        register(&writer).unwrap();
        writer
            .execute_batch(
                "INSERT INTO sessions VALUES ('s', 'active', 1, 1, 5, 6, NULL);
                 INSERT INTO runs VALUES (1, 'r', 's', 'e', 'completed', 1, 'input', '{}', 'w', x'2f77', 'b', 'a',
                     1, 2, 3, 0, '{}', '{}', '{}', NULL);
                 INSERT INTO events VALUES (1, 'e', 's', 1, 'r', 'noted', 5, 1, '{}',
                     row_sum('events', 1, 'e', 's', 1, 'r', 'noted', 5, 1, '{}', 'host', 'p', 'c', '{}', 'k'),
                     'host', 'p', 'c', '{}', 'k');
                 INSERT INTO event_times VALUES ('s', 5, 1, row_sum('event_times', 's', 5, 1));
                 INSERT INTO session_details VALUES ('s', 'a', '[]', '{}', 'p',
                     row_sum('session_details', 's', 'a', '[]', '{}', 'p'));
                 INSERT INTO event_floors VALUES ('s', 5, 1, row_sum('event_floors', 's', 5, 1));
                 INSERT INTO omissions VALUES (x'01', x'02', NULL);
                 INSERT INTO snapshots VALUES (1, 'n', 'w', 's', 'r', 5, '{}', NULL, x'01');
                 INSERT INTO operations VALUES (1, 'o', 'w', 's', 'r', 'run', 'b', 'a', '[]', 1, 5, NULL);
                 INSERT INTO artifacts VALUES (1, 'a', 's', 'r', 'k', 'text', 5, '00', 'file', 'at', '{}', 5, 6, NULL);
                 INSERT INTO restores VALUES ('g', 'w', 's', 'r', 't', 'undo', 1, 5, '{}', NULL);
                 INSERT INTO leases VALUES ('r', 'e', 1, 'b', 5, 6, 7, NULL);
                 INSERT INTO phases VALUES (1, 'r', 'p', 0, 'running', 5, 6, 7, NULL);
                 INSERT INTO steps VALUES (1, 'i', 'r', 'p', 0, 'n', 'running', 1, 'd', 'b', 'a', 'c', '{}', '{}',
                     5, 6, 7, 1, 2, NULL);
                 INSERT INTO questions VALUES (1, 'q', 'r', 'i', 'which?', 0, '[]', 'this', 'open', 5, 6, 'b', 7,
                     'a', 8, 0, 9, NULL);
                 INSERT INTO effects VALUES (1, 'f', 'r', 'i', 'w', 'pending', '{}', 'c', '{}', 5, 6, NULL);
                 INSERT INTO commits VALUES (1, 'git', 'c', 'r', 'i', 'm', 'n', 'e', 1, 2, 3, 5, NULL);
                 INSERT INTO tasks VALUES (1, 'r', 'i', 't', 1, 'running', '{}', 5, 6, 7, NULL);
                 INSERT INTO pins VALUES ('n', 'w', 5, NULL);
                 INSERT INTO queue VALUES (1, 'r', 's', 'agent', '{}', 'batch', 'w', 'over', NULL);
                 INSERT INTO state_values VALUES ('r', 'k', '1', 5, NULL);
                 INSERT INTO state_transitions VALUES (1, 'r', 'k', '0', '1', 'c', 5, NULL);
                 INSERT INTO agents VALUES (1, 'a', 'r', 'i', 'n', 'm', '[]', 1, 2, 'failed', '{}', 5, 6, NULL);
                 INSERT INTO reviews VALUES (1, 'v', 's', 'r', 'i', 'pr', 't', 1, 0, 's', '[]', 5, NULL);
                 INSERT INTO token_totals VALUES ('r', 1, 2, NULL);
                 INSERT INTO tool_calls VALUES (1, 'r', 'c', 'i', 'engine', 'Edit', 'failed', '1', 'k', 's', 1, '2', 'l', 't',
                     1, '{}', 5, 6, NULL);
                 INSERT INTO work_tasks VALUES (1, 'w', 't', 'p/q', 'a', 'b', 'running', 1, 'e', 'timeout', 1, 5, 'r', 2, 6, 1,
                     3, 7, 8, NULL);
                 INSERT INTO checkpoints VALUES (1, 'w', 's', 1, 'wip', 'r', 'c', 'sent', 'a', 'b', 'd', 'Unknown',
                     'e', 6, 7, NULL);
                 INSERT INTO follow_ups VALUES (1, 'w', 'f', 'b', '{}', 'why', 'c', 5, NULL);
                 INSERT INTO notices VALUES (1, '00', 'checkpoint_ready', 'w', 'c', 't', 'pending', 1, 5, 'o', 'e', 6, 7, NULL,
                     's', 'r');
                 INSERT INTO allowed_findings VALUES (1, 's', 'jwt', x'61', '00', 5, NULL);
                 INSERT INTO quarantine VALUES (1, 'q', 'slot', x'61', x'62', 'why', 'w', 'kept', 5, 6, NULL);
                 INSERT INTO isolations VALUES (1, 'r', x'61', 'b', 'c', x'62', 'd', 5, '{}', '[]', '[]', 'q', 'e', 't', 'k', 6,
                     'n', 7, NULL, '{}');
                 INSERT INTO run_revisions VALUES ('r', 1, 'n', 5, 'raw', 'clean', 't',
                     row_sum('run_revisions', 'r', 1, 'n', 5, 'raw', 'clean', 't'));
                 INSERT INTO came_for VALUES ('r', 'blocked', '{}', row_sum('came_for', 'r', 'blocked', '{}'));
                 PRAGMA foreign_keys = OFF;
                 INSERT INTO removals VALUES ('gone', 5, row_sum('removals', 'gone', 5));
                 PRAGMA foreign_keys = ON;",
            )
            .unwrap();
        (state, store)
    }

    fn columns(connection: &Connection, table: &str) -> Vec<(String, String)> {
        let mut columns = connection
            .prepare("SELECT name, type FROM pragma_table_info(?1)")
            .unwrap();
        let found = columns.query_map([table], |row| Ok((row.get(0)?, row.get(1)?)));
        found.unwrap().map(Result::unwrap).collect()
    }

    /// As a disk does it: nothing that is kept in step is.
    fn without_triggers(connection: &Connection) {
        let mut find = connection
            .prepare("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
            .unwrap();
        let names = find.query_map((), |row| row.get::<_, String>(0)).unwrap();
        let names: Vec<String> = names.map(Result::unwrap).collect();
        // Who writes events, their times and floors, details and removals of sessions, what runs
        // came for, and revisions writes the sums. Rows of these but for events never change in
        // place, and two triggers keep revisions from it.
        assert_eq!(names.len(), 3 * (TABLES.len() - 6) + 1);
        for name in names {
            connection
                .execute_batch(&format!("DROP TRIGGER {name}"))
                .unwrap();
        }
    }

    // SQLite's own checks find nothing wrong with any of these.
    #[test]
    fn a_value_that_changed_by_itself_is_found_in_every_column_of_every_table() {
        let (state, store) = filled();
        assert_eq!(store.problems().unwrap(), [""; 0]);
        let disk = Connection::open(state.path().join(DATABASE)).unwrap();
        without_triggers(&disk);
        let mut tried = 0;
        for (table, key, _) in TABLES {
            for (column, kind) in columns(&disk, table) {
                let other = match kind.as_str() {
                    "INTEGER" => format!("{column} + 1"),
                    "BLOB" => format!("CAST({column} || 'x' AS BLOB)"),
                    _ => format!("{column} || 'x'"),
                };
                disk.execute_batch(&format!(
                    "PRAGMA foreign_keys = OFF; SAVEPOINT whole; CREATE TEMP TABLE kept AS SELECT * FROM {table};
                     UPDATE {table} SET {column} = {other};"
                ))
                .unwrap();
                disk.execute_batch("RELEASE whole").unwrap();
                let problems = store.problems().unwrap();
                assert_eq!(problems.len(), 1, "{table}.{column}: {problems:?}");
                assert!(problems[0].contains(table), "{problems:?}");
                disk.execute_batch(&format!(
                    "DELETE FROM {table}; INSERT INTO {table} SELECT * FROM kept; DROP TABLE kept;"
                ))
                .unwrap();
                assert_eq!(store.problems().unwrap(), [""; 0], "{table}.{key} is back");
                tried += 1;
            }
        }
        assert!(tried > 100, "{tried}");
    }

    #[test]
    fn a_damaged_row_is_neither_handed_out_nor_written_to() {
        let (state, mut store) = filled();
        let disk = Connection::open(state.path().join(DATABASE)).unwrap();
        without_triggers(&disk);
        // The triggers of the other connection are gone too, so that it is asked of a fresh
        // database below.
        disk.execute_batch("UPDATE events SET data = '[]'").unwrap();
        let query = crate::events::query::EventQuery::default();
        let refused = store.events(&query).unwrap_err();
        assert_eq!(refused.kind(), stillframe_backends::ErrorKind::Corrupt);
        assert!(
            refused.to_string().contains("the row of event 1"),
            "{refused}"
        );

        let (state, whole) = filled();
        drop(whole);
        let disk = Connection::open(state.path().join(DATABASE)).unwrap();
        register(&disk).unwrap();
        // The sum itself is what changed: no trigger looks at that alone.
        disk.execute_batch("UPDATE sessions SET row_sum = row_sum + 1")
            .unwrap();
        store = SqliteStore::open(state.path()).unwrap();
        let event = crate::state::change::NewEvent::new(
            crate::events::event::EventType::new("noted"),
            &"s".parse().unwrap(),
            None,
            jiff::Timestamp::UNIX_EPOCH,
            serde_json::json!({}),
        );
        let refused = store
            .commit(&[crate::state::change::Change::Append(event)])
            .unwrap_err();
        assert_eq!(
            refused.kind(),
            stillframe_backends::ErrorKind::Corrupt,
            "{refused}"
        );
    }

    #[test]
    fn values_that_read_the_same_one_after_the_other_have_different_sums() {
        let connection = Connection::open_in_memory().unwrap();
        register(&connection).unwrap();
        let sum = |arguments: &str| -> i64 {
            let sql = format!("SELECT row_sum({arguments})");
            connection.query_row(&sql, (), |row| row.get(0)).unwrap()
        };
        let all = [
            "'ab', 'c'",
            "'a', 'bc'",
            "'abc'",
            "x'6162', 'c'",
            "NULL, 'abc'",
            "'1'",
            "1",
            "1.0",
        ];
        let sums: std::collections::HashSet<i64> = all.iter().map(|a| sum(a)).collect();
        assert_eq!(sums.len(), all.len());
        assert_eq!(sum("'ab', 'c'"), sum("'ab', 'c'"));
    }
}
