//! The state in SQLite: write-ahead log, every commit synced.

use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, TransactionBehavior, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stillframe_backends::{PathError, Signature, SnapshotId};

use super::row_sum::{self, damaged};
use super::{
    Change, NewEvent, NewRun, OperationRow, RestoreRow, RunEnding, RunFilter, RunRow, RunWorkspace,
    SessionRow, SnapshotRow, StateError, StateStore,
};
use crate::effect::{CommitRecord, EffectRow, EffectStatus};
use crate::event::{EVENT_SCHEMA_VERSION, Event, EventQuery, EventType};
use crate::failure::Failure;
use crate::id::{EventId, QuestionId, RunId, SessionId, StepId};
use crate::lease::{Lease, Moment};
use crate::question::{Deadline, QuestionPlace, QuestionRow, QuestionStatus};
use crate::record::{ArtifactRecord, SessionStats};
use crate::restore::{OperationKind, RestorePurpose};
use crate::run::RunStatus;
use crate::session::SessionStatus;
use crate::step::{PhaseKey, PhaseRow, StepRow, StepStatus};
use crate::task::TaskRow;

/// The name of the database in the state directory.
pub(crate) const DATABASE: &str = "stillframe.db";
/// Held while a database is made or brought up to date.
const OPENING_LOCK: &str = "opening.lock";

/// Older ones may damage a database whose log is reset while another process reads it
/// (<https://www.sqlite.org/releaselog/3_51_3.html>).
const OLDEST_SQLITE: i32 = 3_051_003;

/// Says in the file's header whose database it is: "Stil".
const APPLICATION_ID: i64 = 0x5374_696c;

/// What takes version n to n + 1, from 0 on. Only ever appended to.
pub(super) const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001.sql"),
    include_str!("migrations/0002.sql"),
    include_str!("migrations/0003.sql"),
    include_str!("migrations/0004.sql"),
    include_str!("migrations/0005.sql"),
];

/// How long a statement waits for another process before it is busy.
const BUSY_TIMEOUT: Duration = Duration::from_millis(5_000);

/// The state in one SQLite database. One connection; open another to read beside a writer.
#[derive(Debug)]
pub(crate) struct SqliteStore {
    connection: Connection,
    /// What SQLite said when it was last asked whether others had committed.
    seen_version: Option<i64>,
}

impl SqliteStore {
    /// Opens the database in `state_dir`, making or migrating it if need be.
    ///
    /// A database of a newer version is left as it is. One of an older version is copied to
    /// `stillframe.db.v<version>.bak` before anything of it is changed.
    pub(crate) fn open(state_dir: &Path) -> Result<Self, StateError> {
        Self::open_with(state_dir, MIGRATIONS).map_err(|error| match error {
            // SQLite does not say which.
            StateError::Sqlite(source) if is_damage(&source) => StateError::Corrupt {
                detail: format!("{}: {source}", state_dir.join(DATABASE).display()),
            },
            error => error,
        })
    }

    /// As [`SqliteStore::open`], where these are all the versions that there are.
    pub(super) fn open_with(state_dir: &Path, migrations: &[&str]) -> Result<Self, StateError> {
        if rusqlite::version_number() < OLDEST_SQLITE {
            return Err(StateError::Unsupported(format!(
                "SQLite {} is older than 3.51.3",
                rusqlite::version()
            )));
        }
        refuse_network_file_system(state_dir)?;
        let path = state_dir.join(DATABASE);
        // SQLite would make it readable by everybody that the umask lets in; its companions take
        // over the permissions of the database.
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(&path)
            .map_err(PathError::at("open", &path))?;
        let meta = file.metadata().map_err(PathError::at("look at", &path))?;
        if meta.permissions().mode() & 0o077 != 0 {
            file.set_permissions(fs::Permissions::from_mode(0o600))
                .map_err(PathError::at("make private", &path))?;
        }
        drop(file);
        // Two processes that make one database new at once would find it locked, and SQLite does not
        // wait for that: the switch to a write-ahead log knows no busy handler.
        // The lock lies in a file of its own, because closing the database's would drop SQLite's.
        let lock_path = state_dir.join(OPENING_LOCK);
        let opening = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(&lock_path)
            .map_err(PathError::at("open", &lock_path))?;
        lock_within(&opening, BUSY_TIMEOUT).map_err(PathError::at("lock", &lock_path))?;
        let mut connection = connect(&path)?;
        refuse_other_databases(&mut connection, &path, migrations.len() as i64)?;
        // Only after the check: it changes the header of the file.
        let mode: String =
            connection.query_row("PRAGMA journal_mode = WAL", (), |row| row.get(0))?;
        if !mode.eq_ignore_ascii_case("wal") {
            return Err(StateError::Unsupported(format!(
                "{} is on a file system that cannot hold a write-ahead log",
                path.display()
            )));
        }
        migrate(&mut connection, &path, migrations)?;
        Ok(Self::new(connection))
    }

    /// Opens a database that [`SqliteStore::open`] has opened before, for reading alone.
    pub(crate) fn open_reader(state_dir: &Path) -> Result<Self, StateError> {
        let connection = connect(&state_dir.join(DATABASE))?;
        connection.execute_batch("PRAGMA query_only = ON")?;
        Ok(Self::new(connection))
    }

    fn new(connection: Connection) -> Self {
        let seen_version = None;
        Self {
            connection,
            seen_version,
        }
    }
}

fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    matches!(
        error.sqlite_error_code(),
        Some(DatabaseCorrupt | NotADatabase)
    )
}

/// Waits at most `patience` for the lock on `file`.
fn lock_within(file: &fs::File, patience: Duration) -> rustix::io::Result<()> {
    use rustix::fs::FlockOperation::NonBlockingLockExclusive;
    let deadline = Instant::now() + patience;
    loop {
        match rustix::fs::flock(file, NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                // flock has no timed form; nobody sees a hundredth of a second.
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(rustix::io::Errno::INTR) => {}
            other => return other,
        }
    }
}

fn connect(path: &Path) -> Result<Connection, StateError> {
    use rusqlite::OpenFlags;
    let connection = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW,
    )?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    row_sum::register(&connection)?;
    connection.execute_batch(
        "PRAGMA synchronous = FULL;
         PRAGMA foreign_keys = ON;
         PRAGMA trusted_schema = OFF;",
    )?;
    Ok(connection)
}

/// The processes of a write-ahead log share memory, which no network file system gives them.
fn refuse_network_file_system(directory: &Path) -> Result<(), StateError> {
    let stat = rustix::fs::statfs(directory).map_err(PathError::at("look at", directory))?;
    // The type of the field differs between platforms; the numbers have 32 bits.
    match network_file_system(stat.f_type as u64 & 0xffff_ffff) {
        Some(name) => Err(StateError::Unsupported(format!(
            "the state directory {} is on a network file system ({name}), which a database cannot be kept on; choose another with STILLFRAME_HOME",
            directory.display()
        ))),
        None => Ok(()),
    }
}

/// The network file system with this magic number, of those in statfs(2).
fn network_file_system(magic: u64) -> Option<&'static str> {
    const NETWORK: &[(u64, &str)] = &[
        (0x6969, "NFS"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB"),
        (0x517b, "SMB"),
        (0x7375_7245, "Coda"),
        (0x5346_414f, "AFS"),
        (0x00c3_6400, "Ceph"),
        (0x0bd0_0bd0, "Lustre"),
    ];
    let known = NETWORK.iter().find(|(number, _)| *number == magic);
    known.map(|(_, name)| *name)
}

fn pragma(connection: &Connection, name: &str) -> Result<i64, rusqlite::Error> {
    connection.query_row(&format!("PRAGMA {name}"), (), |row| row.get(0))
}

/// Fails on what is not ours, or newer than we are; an empty file is neither. Changes nothing.
fn refuse_other_databases(
    connection: &mut Connection,
    path: &Path,
    supported: i64,
) -> Result<(), StateError> {
    // In one transaction, because another process may be making the database at this moment.
    let transaction = connection.transaction()?;
    let found = pragma(&transaction, "user_version")?;
    let owner = pragma(&transaction, "application_id")?;
    let tables: i64 =
        transaction.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0))?;
    drop(transaction);
    if tables == 0 && found == 0 && owner == 0 {
        return Ok(());
    }
    if owner != APPLICATION_ID {
        return Err(StateError::Corrupt {
            detail: format!("{} is the database of another program", path.display()),
        });
    }
    if found > supported {
        return Err(StateError::VersionTooNew {
            path: path.to_owned(),
            found,
            supported,
        });
    }
    Ok(())
}

/// Takes the database to the newest version, in one transaction.
fn migrate(
    connection: &mut Connection,
    path: &Path,
    migrations: &[&str],
) -> Result<(), StateError> {
    let newest = migrations.len() as i64;
    let found = pragma(connection, "user_version")?;
    if found == newest {
        return Ok(());
    }
    if found > 0 {
        let backup = PathBuf::from(format!("{}.v{found}.bak", path.display()));
        back_up(connection, &backup)?;
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have been faster.
    let found = pragma(&transaction, "user_version")?;
    let done = usize::try_from(found).unwrap_or(usize::MAX);
    for sql in migrations.iter().skip(done) {
        transaction.execute_batch(sql)?;
    }
    if found < newest {
        transaction.execute_batch(&format!(
            "PRAGMA user_version = {newest}; PRAGMA application_id = {APPLICATION_ID};"
        ))?;
    }
    transaction.commit()?;
    Ok(())
}

/// Copies the database to `backup`, whole or not at all.
fn back_up(connection: &Connection, backup: &Path) -> Result<(), StateError> {
    let directory = backup.parent().expect("the database lies in a directory");
    let staged = tempfile::Builder::new()
        .prefix(".tmp-")
        .tempfile_in(directory)
        .map_err(PathError::at("make a temporary file in", directory))?;
    let mut copy = Connection::open(staged.path())?;
    rusqlite::backup::Backup::new(connection, &mut copy)?.run_to_completion(
        1_000,
        Duration::ZERO,
        None,
    )?;
    copy.close().map_err(|(_, e)| e)?;
    let file = staged
        .persist(backup)
        .map_err(|e| PathError::at("rename into", backup)(e.error))?;
    file.sync_all().map_err(PathError::at("sync", backup))?;
    fs::File::open(directory)
        .and_then(|d| d.sync_all())
        .map_err(PathError::at("sync the directory", directory))?;
    Ok(())
}

impl StateStore for SqliteStore {
    fn commit(&mut self, changes: &[Change]) -> Result<Vec<Event>, StateError> {
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut events = Vec::new();
        for change in changes {
            apply(&transaction, change, &mut events)?;
        }
        transaction.commit()?;
        if changes.iter().any(|change| matches!(change, Change::Scrub)) {
            self.scrub()?;
        }
        Ok(events)
    }

    fn is_changed_by_others(&mut self) -> Result<bool, StateError> {
        // What this connection itself commits does not change it.
        let version = pragma(&self.connection, "data_version")?;
        Ok(self.seen_version.replace(version) != Some(version))
    }

    fn session(&self, id: &SessionId) -> Result<Option<SessionRow>, StateError> {
        self.one(
            &format!("{SELECT_SESSION} WHERE id = ?1"),
            params![id.as_str()],
            read_session,
        )
    }

    fn sessions(&self) -> Result<Vec<SessionRow>, StateError> {
        self.all(
            &format!("{SELECT_SESSION} ORDER BY rowid"),
            (),
            read_session,
        )
    }

    fn run(&self, id: &RunId) -> Result<Option<RunRow>, StateError> {
        self.one(
            &format!("{SELECT_RUN} WHERE id = ?1"),
            params![id.as_str()],
            read_run,
        )
    }

    fn runs(&self, filter: &RunFilter) -> Result<Vec<RunRow>, StateError> {
        // Only what is asked for stands in the statement: what may be null is looked up in no index.
        let conditions = [
            (filter.session_id.is_some(), "session_id = ?1"),
            (filter.workspace_id.is_some(), "workspace_id = ?2"),
            (
                !filter.statuses.is_empty(),
                "status IN (SELECT value FROM json_each(?3))",
            ),
            (filter.since.is_some(), "created_at >= ?4"),
            (filter.until.is_some(), "created_at < ?5"),
        ];
        let sql = format!(
            "{SELECT_RUN}{} ORDER BY position DESC LIMIT ?6",
            all_of(&conditions)
        );
        self.all(
            &sql,
            params![
                filter.session_id.as_ref().map(SessionId::as_str),
                filter.workspace_id,
                (!filter.statuses.is_empty()).then(|| json(&filter.statuses)),
                filter.since.map(nanoseconds),
                filter.until.map(nanoseconds),
                limit(filter.limit),
            ],
            read_run,
        )
    }

    fn runs_that_begin(&self, prefixes: &[String]) -> Result<Vec<RunId>, StateError> {
        let mut found = Vec::new();
        for prefix in prefixes {
            found.extend(self.all(
                concat!(
                    "SELECT id, ",
                    damaged!(runs),
                    " FROM runs WHERE substr(id, 1, length(?1)) = ?1 LIMIT 3"
                ),
                params![prefix],
                |row| id(row.get(0)?),
            )?);
        }
        found.sort();
        found.dedup();
        Ok(found)
    }

    fn count_runs_that_begin(&self, prefixes: &[String; 2]) -> Result<u64, StateError> {
        self.count(
            "SELECT count(*) FROM runs
             WHERE substr(id, 1, length(?1)) = ?1 OR substr(id, 1, length(?2)) = ?2",
            params![prefixes[0], prefixes[1]],
        )
    }

    fn runs_not_ended(&self) -> Result<Vec<RunRow>, StateError> {
        self.all(
            // As the index has it, so that it is used.
            &format!(
                "{SELECT_RUN} WHERE status IN ('pending', 'running', 'asking', 'waiting_for_input', 'interrupted') ORDER BY position"
            ),
            (),
            read_run,
        )
    }

    fn lease(&self, run_id: &RunId) -> Result<Option<Lease>, StateError> {
        self.one(
            &format!("{SELECT_LEASE} WHERE run_id = ?1"),
            params![run_id.as_str()],
            read_lease,
        )
    }

    fn phases(&self, run_id: &RunId) -> Result<Vec<PhaseRow>, StateError> {
        self.all(
            &format!("{SELECT_PHASE} WHERE run_id = ?1 ORDER BY position"),
            params![run_id.as_str()],
            read_phase,
        )
    }

    fn steps(&self, run_id: &RunId) -> Result<Vec<StepRow>, StateError> {
        self.all(
            &format!("{SELECT_STEP} WHERE run_id = ?1 ORDER BY position"),
            params![run_id.as_str()],
            read_step,
        )
    }

    fn phase(&self, run_id: &RunId, key: &PhaseKey) -> Result<Option<PhaseRow>, StateError> {
        self.one(
            &format!("{SELECT_PHASE} WHERE run_id = ?1 AND name = ?2 AND iteration = ?3"),
            params![run_id.as_str(), key.phase, key.iteration],
            read_phase,
        )
    }

    fn tasks(&self, run_id: &RunId) -> Result<Vec<TaskRow>, StateError> {
        self.all(
            &format!("{SELECT_TASK} WHERE run_id = ?1 ORDER BY position"),
            params![run_id.as_str()],
            read_task,
        )
    }

    fn questions(&self, run_id: &RunId) -> Result<Vec<QuestionRow>, StateError> {
        self.all(
            &format!("{SELECT_QUESTION} WHERE run_id = ?1 ORDER BY position"),
            params![run_id.as_str()],
            read_question,
        )
    }

    fn question(&self, id: &QuestionId) -> Result<Option<QuestionRow>, StateError> {
        self.one(
            &format!("{SELECT_QUESTION} WHERE id = ?1"),
            params![id.as_str()],
            read_question,
        )
    }

    fn questions_that_begin(&self, prefix: &str) -> Result<Vec<QuestionRow>, StateError> {
        self.all(
            &format!("{SELECT_QUESTION} WHERE substr(id, 1, length(?1)) = ?1 ORDER BY position"),
            params![prefix],
            read_question,
        )
    }

    fn open_questions(&self) -> Result<Vec<QuestionRow>, StateError> {
        self.all(
            &format!("{SELECT_QUESTION} WHERE status = 'open' ORDER BY position"),
            (),
            read_question,
        )
    }

    fn effects(&self, run_id: &RunId) -> Result<Vec<EffectRow>, StateError> {
        self.all(
            &format!("{SELECT_EFFECT} WHERE run_id = ?1 ORDER BY position"),
            params![run_id.as_str()],
            read_effect,
        )
    }

    fn pending_effects(&self, workspace_id: &str) -> Result<Vec<EffectRow>, StateError> {
        self.all(
            &format!(
                "{SELECT_EFFECT} WHERE workspace_id = ?1 AND status = 'pending' ORDER BY position"
            ),
            params![workspace_id],
            read_effect,
        )
    }

    fn commits(&self, run_id: &RunId) -> Result<Vec<CommitRecord>, StateError> {
        self.all(
            &format!("{SELECT_COMMIT} WHERE run_id = ?1 ORDER BY position"),
            params![run_id.as_str()],
            read_commit,
        )
    }

    fn commit_record(&self, vcs: &str, commit: &str) -> Result<Option<CommitRecord>, StateError> {
        self.one(
            &format!("{SELECT_COMMIT} WHERE vcs = ?1 AND commit_id = ?2"),
            params![vcs, commit],
            read_commit,
        )
    }

    fn events(
        &self,
        query: &EventQuery,
        after_position: u64,
    ) -> Result<Vec<(u64, Event)>, StateError> {
        let before_all = self.last_before(query)?;
        self.all(
            &select_events(query),
            params![
                count(after_position.max(before_all)),
                query.session_id.as_ref().map(SessionId::as_str),
                query.run_id.as_ref().map(RunId::as_str),
                query.event_type.as_ref().map(EventType::as_str),
                query.after.map(count),
                query.before.map(count),
                query.since.map(nanoseconds),
                limit(query.limit),
            ],
            read_event,
        )
    }

    fn last_position(&self) -> Result<u64, StateError> {
        self.count("SELECT coalesce(max(position), 0) FROM events", ())
    }

    fn event(&self, id: &EventId) -> Result<Option<Event>, StateError> {
        find_event(&self.connection, id)
    }

    fn snapshots(&self, workspace_id: &str) -> Result<Vec<SnapshotRow>, StateError> {
        self.all(
            // By the order of writing: a clock may go backwards.
            &format!("{SELECT_SNAPSHOT} WHERE workspace_id = ?1 ORDER BY position DESC"),
            params![workspace_id],
            read_snapshot,
        )
    }

    fn has_snapshots(&self, workspace_id: &str) -> Result<bool, StateError> {
        let any = self.count(
            "SELECT EXISTS (SELECT 1 FROM snapshots WHERE workspace_id = ?1)",
            params![workspace_id],
        )?;
        Ok(any != 0)
    }

    fn snapshot(&self, id: &SnapshotId) -> Result<Option<SnapshotRow>, StateError> {
        self.one(
            &format!("{SELECT_SNAPSHOT} WHERE id = ?1"),
            params![id.as_str()],
            read_snapshot,
        )
    }

    fn snapshots_that_begin(
        &self,
        prefix: &str,
        workspace_id: Option<&str>,
    ) -> Result<Vec<SnapshotRow>, StateError> {
        self.all(
            &format!(
                "{SELECT_SNAPSHOT} WHERE id >= ?1 AND substr(id, 1, length(?1)) = ?1
                   AND (?2 IS NULL OR workspace_id = ?2)
                 ORDER BY id LIMIT 3"
            ),
            params![prefix, workspace_id],
            read_snapshot,
        )
    }

    fn count_snapshots_that_begin(
        &self,
        prefix: &str,
        workspace_id: Option<&str>,
    ) -> Result<u64, StateError> {
        self.count(
            "SELECT count(*) FROM snapshots
             WHERE substr(id, 1, length(?1)) = ?1 AND (?2 IS NULL OR workspace_id = ?2)",
            params![prefix, workspace_id],
        )
    }

    fn latest_operation(&self, workspace_id: &str) -> Result<Option<OperationRow>, StateError> {
        self.one(
            &format!("{SELECT_OPERATION} WHERE workspace_id = ?1 ORDER BY position DESC LIMIT 1"),
            params![workspace_id],
            read_operation,
        )
    }

    fn operation_of_run(&self, id: &RunId) -> Result<Option<OperationRow>, StateError> {
        self.one(
            &format!("{SELECT_OPERATION} WHERE run_id = ?1 ORDER BY position DESC LIMIT 1"),
            params![id.as_str()],
            read_operation,
        )
    }

    fn restore(&self, guard: &SnapshotId) -> Result<Option<RestoreRow>, StateError> {
        self.one(
            &format!("{SELECT_RESTORE} WHERE guard = ?1"),
            params![guard.as_str()],
            read_restore,
        )
    }

    fn restore_under_way(&self, workspace_id: &str) -> Result<Option<RestoreRow>, StateError> {
        self.one(
            &format!("{SELECT_RESTORE} WHERE workspace_id = ?1 AND outcome IS NULL"),
            params![workspace_id],
            read_restore,
        )
    }

    fn rollback_of_run(&self, id: &RunId) -> Result<Option<RestoreRow>, StateError> {
        self.one(
            &format!("{SELECT_RESTORE} WHERE run_id = ?1 AND purpose = 'rollback'"),
            params![id.as_str()],
            read_restore,
        )
    }

    fn artifacts(&self, session_id: Option<&SessionId>) -> Result<Vec<ArtifactRecord>, StateError> {
        self.all(
            &format!(
                "{SELECT_ARTIFACT} WHERE deleted_at IS NULL AND (?1 IS NULL OR session_id = ?1)
                 ORDER BY position"
            ),
            params![session_id.map(SessionId::as_str)],
            read_artifact,
        )
    }

    fn artifact(&self, key: &str) -> Result<Option<ArtifactRecord>, StateError> {
        self.one(
            &format!("{SELECT_ARTIFACT} WHERE deleted_at IS NULL AND key = ?1"),
            params![key],
            read_artifact,
        )
    }

    fn problems(&self) -> Result<Vec<String>, StateError> {
        row_sum::problems(&self.connection)
    }

    fn session_stats(&self, session_id: &SessionId) -> Result<SessionStats, StateError> {
        let stats = self.connection.query_row(
            "SELECT count(*), coalesce(sum(byte_size), 0) FROM artifacts
              WHERE deleted_at IS NULL AND session_id = ?1",
            params![session_id.as_str()],
            |row| {
                Ok(SessionStats {
                    artifact_count: row.get::<_, i64>(0)?.unsigned_abs(),
                    total_bytes: row.get::<_, i64>(1)?.unsigned_abs(),
                })
            },
        )?;
        Ok(stats)
    }
}

impl SqliteStore {
    /// Writes the database anew, without the pages and the parts of pages that nothing is in any more,
    /// and empties the log.
    fn scrub(&self) -> Result<(), StateError> {
        // What is written anew passes through a temporary file otherwise.
        self.connection
            .execute_batch("PRAGMA temp_store = MEMORY; VACUUM;")?;
        let pragma = "PRAGMA wal_checkpoint(TRUNCATE)";
        let is_busy: i64 = self.connection.query_row(pragma, (), |row| row.get(0))?;
        match is_busy {
            0 => Ok(()),
            _ => Err(StateError::InUse),
        }
    }

    /// What a statement with [`damaged`] finds first; fails if that is.
    fn one<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        read: fn(&Row<'_>) -> Result<T, StateError>,
    ) -> Result<Option<T>, StateError> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        row_sum::check(row)?;
        read(row).map(Some)
    }

    /// A position behind which all events since the time of a query are, of its session if it has one; 0 if none is
    /// known, or it has no time.
    fn last_before(&self, query: &EventQuery) -> Result<u64, StateError> {
        let Some(since) = query.since else {
            return Ok(0);
        };
        let session = query.session_id.as_ref().map_or("", SessionId::as_str);
        let found = self.one(
            SELECT_EVENT_TIME,
            params![session, nanoseconds(since)],
            |row| Ok(row.get::<_, i64>(0)?.unsigned_abs()),
        )?;
        Ok(found.unwrap_or(0))
    }

    /// What a query for one number says.
    fn count(&self, sql: &str, params: impl rusqlite::Params) -> Result<u64, StateError> {
        let number: i64 = self
            .connection
            .prepare_cached(sql)?
            .query_row(params, |row| row.get(0))?;
        Ok(u64::try_from(number).expect("a count is not negative"))
    }

    /// All that a statement with [`damaged`] finds; fails if any of it is.
    fn all<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        read: fn(&Row<'_>) -> Result<T, StateError>,
    ) -> Result<Vec<T>, StateError> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        let mut all = Vec::new();
        while let Some(row) = rows.next()? {
            row_sum::check(row)?;
            all.push(read(row)?);
        }
        Ok(all)
    }
}

/// Writes one change as part of `transaction`.
fn apply(
    transaction: &Transaction<'_>,
    change: &Change,
    events: &mut Vec<Event>,
) -> Result<(), StateError> {
    match change {
        Change::CreateSession { id, at } => {
            transaction.execute(
                "INSERT INTO sessions (id, status, version, last_sequence, created_at)
                 VALUES (?1, 'pending', 1, 0, ?2) ON CONFLICT (id) DO NOTHING",
                params![id.as_str(), nanoseconds(*at)],
            )?;
        }
        Change::MoveSession {
            id,
            from,
            version,
            to,
            at,
        } => {
            let ended = to.is_terminal().then(|| nanoseconds(*at));
            let moved = transaction.execute(
                "UPDATE sessions SET status = ?1, version = version + 1, ended_at = ?2
                  WHERE id = ?3 AND status = ?4 AND version = ?5",
                params![
                    to.as_str(),
                    ended,
                    id.as_str(),
                    from.as_str(),
                    count(*version)
                ],
            )?;
            if moved == 0 {
                return Err(lost(
                    transaction,
                    "sessions",
                    "session",
                    id.as_str(),
                    from.as_str(),
                ));
            }
        }
        Change::CreateRun(run) => create_run(transaction, run)?,
        Change::MoveRun {
            id,
            from,
            to,
            at,
            ending,
        } => move_run(transaction, id, *from, *to, *at, ending.as_deref())?,
        Change::Fence { run_id, epoch } => {
            let is_ours: bool = transaction.query_row(
                "SELECT EXISTS (SELECT 1 FROM leases WHERE run_id = ?1 AND epoch = ?2)",
                params![run_id.as_str(), count(*epoch)],
                |row| row.get(0),
            )?;
            if !is_ours {
                return Err(StateError::TakenOver(run_id.clone()));
            }
        }
        Change::ClaimLease {
            run_id,
            from,
            lease,
            after,
        } => claim_lease(transaction, run_id, from.as_deref(), lease, after.as_ref())?,
        Change::RefuseIfCancelled(run_id) => {
            let is_unwanted: bool = transaction.query_row(
                "SELECT EXISTS (SELECT 1 FROM leases
                                 WHERE run_id = ?1 AND cancel_requested_at IS NOT NULL)",
                params![run_id.as_str()],
                |row| row.get(0),
            )?;
            if is_unwanted {
                return Err(StateError::Conflict {
                    what: format!("run {run_id}"),
                    expected: "wanted".to_owned(),
                    found: "to be cancelled".to_owned(),
                });
            }
        }
        Change::SetMetadata { run_id, metadata } => {
            transaction.execute(
                "UPDATE runs SET options = json_set(options, '$.metadata', json(?1)) WHERE id = ?2",
                params![json(metadata), run_id.as_str()],
            )?;
        }
        Change::RenewLease {
            run_id,
            epoch,
            expires,
            at,
        } => {
            let renewed = transaction.execute(
                "UPDATE leases SET boot_id = ?1, expires_at = ?2, heartbeat_at = ?3
                  WHERE run_id = ?4 AND epoch = ?5",
                params![
                    expires.boot_id,
                    expires.nanoseconds,
                    nanoseconds(*at),
                    run_id.as_str(),
                    count(*epoch)
                ],
            )?;
            if renewed == 0 {
                return Err(StateError::TakenOver(run_id.clone()));
            }
        }
        Change::RequestCancel { run_id, at } => {
            let asked = transaction.execute(
                "UPDATE leases SET cancel_requested_at = coalesce(cancel_requested_at, ?1)
                  WHERE run_id = ?2 AND EXISTS (
                      SELECT 1 FROM runs
                       WHERE id = ?2 AND status IN ('pending', 'running', 'asking'))",
                params![nanoseconds(*at), run_id.as_str()],
            )?;
            if asked == 0 {
                let what = format!("run {run_id} that could be asked to stop");
                return Err(StateError::NotFound { what });
            }
        }
        Change::PutPhase { run_id, from, row } => put_phase(transaction, run_id, *from, row)?,
        Change::PutStep { run_id, from, row } => put_step(transaction, run_id, *from, row)?,
        Change::PutTask(row) => put_task(transaction, row)?,
        Change::PutQuestion { from, row } => put_question(transaction, *from, row)?,
        Change::PutEffect { from, row } => put_effect(transaction, *from, row)?,
        Change::RecordCommit(commit) => record_commit(transaction, commit)?,
        Change::SetStepCommit {
            run_id,
            step_id,
            commit,
        } => {
            let set = transaction.execute(
                "UPDATE steps SET commit_created = ?1 WHERE run_id = ?2 AND id = ?3",
                params![commit, run_id.as_str(), step_id.as_str()],
            )?;
            if set == 0 {
                let what = format!("step {step_id} of run {run_id}");
                return Err(StateError::NotFound { what });
            }
        }
        Change::Append(event) => events.push(append(transaction, event)?),
        Change::AddSnapshot(row) => {
            transaction.execute(
                "INSERT INTO snapshots (id, workspace_id, session_id, run_id, captured_at, document)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT (id) DO UPDATE SET
                     session_id = coalesce(excluded.session_id, session_id),
                     run_id = coalesce(excluded.run_id, run_id)",
                params![
                    row.snapshot.id.as_str(),
                    row.workspace_id,
                    row.session_id.as_ref().map(SessionId::as_str),
                    row.run_id.as_ref().map(RunId::as_str),
                    nanoseconds(row.snapshot.captured_at),
                    json(&row.snapshot),
                ],
            )?;
        }
        Change::ForgetSnapshots(ids) => {
            let mut statement =
                transaction.prepare_cached("DELETE FROM snapshots WHERE id = ?1")?;
            for id in ids {
                statement.execute(params![id.as_str()])?;
            }
        }
        Change::OrderSnapshots(ids) => order_snapshots(transaction, ids)?,
        Change::AddOperation(row) => {
            transaction.execute(
                "INSERT INTO operations (id, workspace_id, session_id, run_id, kind,
                     before_snapshot, after_snapshot, paths, repository, created_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
                params![
                    row.id.as_str(),
                    row.workspace_id,
                    row.session_id.as_str(),
                    row.run_id.as_ref().map(RunId::as_str),
                    row.kind.as_str(),
                    row.before.as_str(),
                    row.after.as_str(),
                    row.paths.as_ref().map(json),
                    row.repository,
                    nanoseconds(row.at),
                ],
            )?;
        }
        Change::BeginRestore(row) => begin_restore(transaction, row)?,
        Change::EndRestore(guard) => {
            transaction.execute(
                "DELETE FROM restores WHERE guard = ?1",
                params![guard.as_str()],
            )?;
        }
        Change::SetRollback { run_id, rollback } => {
            let changed = transaction.execute(
                "UPDATE runs SET version = version + 1,
                     workspace = json_set(workspace, '$.rollback', json(?1))
                  WHERE id = ?2 AND ended_at IS NOT NULL AND json_type(workspace) = 'object'",
                params![json(rollback), run_id.as_str()],
            )?;
            if changed == 0 {
                let what = format!("run {run_id} that has ended in a workspace");
                return Err(StateError::NotFound { what });
            }
        }
        Change::RegisterArtifact(artifact) => {
            delete_artifact(transaction, &artifact.key, artifact.created_at)?;
            transaction.execute(
                "INSERT INTO artifacts (id, session_id, run_id, key, content_type, byte_size,
                     checksum, storage_backend, storage_ref, metadata, created_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
                params![
                    artifact.id.as_str(),
                    artifact.session_id.as_str(),
                    artifact.run_id.as_ref().map(RunId::as_str),
                    artifact.key,
                    artifact.content_type,
                    count(artifact.byte_size),
                    artifact.checksum,
                    artifact.storage_backend,
                    artifact.storage_ref,
                    json(&artifact.metadata),
                    nanoseconds(artifact.created_at),
                ],
            )?;
        }
        Change::RemovePatches { runs, artifacts } => {
            let mut embedded = transaction.prepare_cached(
                "UPDATE runs SET version = version + 1,
                     workspace = json_set(json_remove(workspace, '$.patch'), '$.patch_purged', json('true'))
                  WHERE id = ?1 AND json_type(workspace) = 'object'",
            )?;
            for id in runs {
                embedded.execute(params![id.as_str()])?;
            }
            let mut kept = transaction.prepare_cached(
                "UPDATE runs SET version = version + 1,
                     workspace = json_set(json_remove(workspace, '$.patch_ref'), '$.patch_purged', json('true'))
                  WHERE json_type(workspace) = 'object' AND workspace ->> '$.patch_ref' = ?1",
            )?;
            for key in artifacts {
                kept.execute(params![key])?;
            }
        }
        Change::Scrub => {}
        Change::DeleteArtifact { key, at } => {
            if delete_artifact(transaction, key, *at)? == 0 {
                let what = format!("artifact {key:?}");
                return Err(StateError::NotFound { what });
            }
        }
    }
    Ok(())
}

fn begin_restore(transaction: &Transaction<'_>, row: &RestoreRow) -> Result<(), StateError> {
    transaction.execute(
        "DELETE FROM restores WHERE workspace_id = ?1 AND outcome IS NULL",
        params![row.workspace_id],
    )?;
    transaction.execute(
        "INSERT INTO restores (guard, workspace_id, session_id, run_id, target, purpose,
             repository, created_at, outcome)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            row.guard.as_str(),
            row.workspace_id,
            row.session_id.as_str(),
            row.run_id.as_ref().map(RunId::as_str),
            row.target.as_str(),
            row.purpose.as_str(),
            row.repository,
            nanoseconds(row.at),
            row.outcome.as_ref().map(json),
        ],
    )?;
    Ok(())
}

fn create_run(transaction: &Transaction<'_>, run: &NewRun) -> Result<(), StateError> {
    let exists: bool = transaction.query_row(
        "SELECT EXISTS (SELECT 1 FROM runs WHERE id = ?1)",
        params![run.id.as_str()],
        |row| row.get(0),
    )?;
    if exists {
        let what = format!("run {}", run.id);
        return Err(StateError::Exists { what });
    }
    let active: bool = transaction.query_row(
        "SELECT EXISTS (SELECT 1 FROM sessions WHERE id = ?1 AND status = 'active')",
        params![run.session_id.as_str()],
        |row| row.get(0),
    )?;
    if !active {
        let id = run.session_id.as_str();
        return Err(lost(transaction, "sessions", "session", id, "active"));
    }
    let workspace = run.workspace.as_ref();
    transaction.execute(
        "INSERT INTO runs (id, session_id, engine_id, status, version, input, options,
             workspace_id, workspace_path, before_snapshot, after_snapshot, created_at)
         VALUES (?1, ?2, ?3, 'pending', 1, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        params![
            run.id.as_str(),
            run.session_id.as_str(),
            run.lease.owner.as_str(),
            run.input,
            json(&run.options),
            workspace.map(|w| w.workspace_id.as_str()),
            workspace.map(|w| w.path.as_os_str().as_bytes()),
            workspace.map(|w| w.before.as_str()),
            workspace.map(|w| w.after.as_str()),
            nanoseconds(run.at),
        ],
    )?;
    insert_lease(transaction, &run.id, &run.lease)?;
    Ok(())
}

fn insert_lease(
    transaction: &Transaction<'_>,
    run_id: &RunId,
    lease: &Lease,
) -> Result<(), StateError> {
    transaction.execute(
        "INSERT INTO leases (run_id, owner, epoch, boot_id, expires_at, heartbeat_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![
            run_id.as_str(),
            lease.owner.as_str(),
            count(lease.epoch),
            lease.expires.boot_id,
            lease.expires.nanoseconds,
            nanoseconds(lease.heartbeat_at),
        ],
    )?;
    Ok(())
}

fn claim_lease(
    transaction: &Transaction<'_>,
    run_id: &RunId,
    from: Option<&Lease>,
    lease: &Lease,
    after: Option<&SnapshotId>,
) -> Result<(), StateError> {
    match from {
        None => {
            let is_taken: bool = transaction.query_row(
                "SELECT EXISTS (SELECT 1 FROM leases WHERE run_id = ?1)",
                params![run_id.as_str()],
                |row| row.get(0),
            )?;
            if is_taken {
                return Err(StateError::TakenOver(run_id.clone()));
            }
            insert_lease(transaction, run_id, lease)?;
        }
        Some(from) => {
            let claimed = transaction.execute(
                "UPDATE leases SET owner = ?1, epoch = ?2, boot_id = ?3, expires_at = ?4,
                     heartbeat_at = ?5, cancel_requested_at = NULL
                  WHERE run_id = ?6 AND epoch = ?7 AND boot_id = ?8 AND expires_at = ?9",
                params![
                    lease.owner.as_str(),
                    count(lease.epoch),
                    lease.expires.boot_id,
                    lease.expires.nanoseconds,
                    nanoseconds(lease.heartbeat_at),
                    run_id.as_str(),
                    count(from.epoch),
                    from.expires.boot_id,
                    from.expires.nanoseconds,
                ],
            )?;
            if claimed == 0 {
                return Err(StateError::TakenOver(run_id.clone()));
            }
        }
    }
    transaction.execute(
        "UPDATE runs SET engine_id = ?1, version = version + 1,
             after_snapshot = CASE WHEN workspace_id IS NULL THEN NULL
                                   ELSE coalesce(?2, after_snapshot) END
          WHERE id = ?3",
        params![
            lease.owner.as_str(),
            after.map(SnapshotId::as_str),
            run_id.as_str()
        ],
    )?;
    Ok(())
}

fn put_phase(
    transaction: &Transaction<'_>,
    run_id: &RunId,
    from: Option<StepStatus>,
    row: &PhaseRow,
) -> Result<(), StateError> {
    let written = transaction.execute(
        match from {
            None => {
                "INSERT INTO phases (status, started_at, completed_at, duration_ms, run_id, name, iteration)
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7 WHERE ?8 IS NULL
                 ON CONFLICT (run_id, name, iteration) DO NOTHING"
            }
            Some(_) => {
                "UPDATE phases SET status = ?1, started_at = ?2, completed_at = ?3, duration_ms = ?4
                  WHERE run_id = ?5 AND name = ?6 AND iteration = ?7 AND status = ?8"
            }
        },
        params![
            row.status.as_str(),
            row.started_at.map(nanoseconds),
            row.completed_at.map(nanoseconds),
            row.duration_ms.map(count),
            run_id.as_str(),
            row.key.phase,
            row.key.iteration,
            from.map(StepStatus::as_str),
        ],
    )?;
    if written == 0 {
        let (name, iteration) = (&row.key.phase, row.key.iteration);
        let what = format!("phase {name:?} {iteration} of run {run_id}");
        return Err(elsewhere(what, from.map(StepStatus::as_str)));
    }
    Ok(())
}

fn put_step(
    transaction: &Transaction<'_>,
    run_id: &RunId,
    from: Option<StepStatus>,
    row: &StepRow,
) -> Result<(), StateError> {
    let written = transaction.execute(
        match from {
            None => {
                "INSERT INTO steps (status, attempt, snapshot_before, snapshot_after, commit_created,
                     result, error, started_at, completed_at, duration_ms, begun_order, ended_order,
                     id, run_id, phase, iteration, name, definition_hash)
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18
                  WHERE ?19 IS NULL
                 ON CONFLICT (run_id, phase, iteration, name) DO NOTHING"
            }
            Some(_) => {
                "UPDATE steps SET status = ?1, attempt = ?2, snapshot_before = ?3,
                     snapshot_after = ?4, commit_created = ?5, result = ?6, error = ?7,
                     started_at = ?8, completed_at = ?9, duration_ms = ?10, begun_order = ?11,
                     ended_order = ?12
                  WHERE id = ?13 AND run_id = ?14 AND phase = ?15 AND iteration = ?16
                    AND name = ?17 AND definition_hash = ?18 AND status = ?19"
            }
        },
        params![
            row.status.as_str(),
            row.attempt,
            row.snapshot_before.as_ref().map(SnapshotId::as_str),
            row.snapshot_after.as_ref().map(SnapshotId::as_str),
            row.commit_created,
            row.result.as_ref().map(json),
            row.error.as_ref().map(json),
            row.started_at.map(nanoseconds),
            row.completed_at.map(nanoseconds),
            row.duration_ms.map(count),
            row.begun_order.map(count),
            row.ended_order.map(count),
            row.id.as_str(),
            run_id.as_str(),
            row.phase.phase,
            row.phase.iteration,
            row.name,
            row.definition_hash,
            from.map(StepStatus::as_str),
        ],
    )?;
    if written == 0 {
        let what = format!("step {:?} of run {run_id}", row.name);
        return Err(elsewhere(what, from.map(StepStatus::as_str)));
    }
    Ok(())
}

fn put_task(transaction: &Transaction<'_>, row: &TaskRow) -> Result<(), StateError> {
    let written = transaction.execute(
        "INSERT INTO tasks (run_id, step_id, name, attempt, status, error, started_at, completed_at,
             duration_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
         ON CONFLICT (step_id, name) DO UPDATE SET attempt = excluded.attempt,
             status = excluded.status, error = excluded.error, started_at = excluded.started_at,
             completed_at = excluded.completed_at, duration_ms = excluded.duration_ms
          WHERE excluded.status <> 'running' OR status <> 'running' OR attempt < excluded.attempt",
        params![
            row.run_id.as_str(),
            row.step_id.as_str(),
            row.name,
            row.attempt,
            row.status.as_str(),
            row.error.as_ref().map(json),
            nanoseconds(row.started_at),
            row.completed_at.map(nanoseconds),
            row.duration_ms.map(count),
        ],
    )?;
    if written == 0 {
        let what = format!(
            "task {:?} of step {}, which is under way,",
            row.name, row.step_id
        );
        return Err(StateError::Exists { what });
    }
    Ok(())
}

fn put_question(
    transaction: &Transaction<'_>,
    from: Option<QuestionStatus>,
    row: &QuestionRow,
) -> Result<(), StateError> {
    let deadline = row.deadline.as_ref();
    let written = transaction.execute(
        match from {
            None => {
                "INSERT INTO questions (choices, default_answer, status, asked_at, deadline_at,
                     deadline_boot_id, deadline_boottime, answer, answered_at, timed_out, resumed_at,
                     id, run_id, step_id, question, nth)
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16
                  WHERE ?17 IS NULL
                 ON CONFLICT DO NOTHING"
            }
            Some(_) => {
                "UPDATE questions SET choices = ?1, default_answer = ?2, status = ?3, asked_at = ?4,
                     deadline_at = ?5, deadline_boot_id = ?6, deadline_boottime = ?7, answer = ?8,
                     answered_at = ?9, timed_out = ?10, resumed_at = ?11
                  WHERE id = ?12 AND run_id = ?13 AND step_id IS ?14 AND question = ?15
                    AND nth = ?16 AND status = ?17"
            }
        },
        params![
            json(&row.choices),
            row.default,
            row.status.as_str(),
            nanoseconds(row.asked_at),
            deadline.map(|deadline| nanoseconds(deadline.at)),
            deadline.map(|deadline| &deadline.moment.boot_id),
            deadline.map(|deadline| deadline.moment.nanoseconds),
            row.answer,
            row.answered_at.map(nanoseconds),
            row.timed_out,
            row.resumed_at.map(nanoseconds),
            row.id.as_str(),
            row.run_id.as_str(),
            row.place.step_id.as_ref().map(StepId::as_str),
            row.place.text,
            row.place.nth,
            from.map(QuestionStatus::as_str),
        ],
    )?;
    if written == 0 {
        let what = format!("question {}", row.id);
        return Err(elsewhere(what, from.map(QuestionStatus::as_str)));
    }
    Ok(())
}

fn put_effect(
    transaction: &Transaction<'_>,
    from: Option<EffectStatus>,
    row: &EffectRow,
) -> Result<(), StateError> {
    let written = transaction.execute(
        match from {
            None => {
                "INSERT INTO effects (status, commit_id, error, ended_at, id, run_id, step_id,
                     workspace_id, intent, created_at)
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10 WHERE ?11 IS NULL
                 ON CONFLICT DO NOTHING"
            }
            Some(_) => {
                "UPDATE effects SET status = ?1, commit_id = ?2, error = ?3, ended_at = ?4
                  WHERE id = ?5 AND run_id = ?6 AND step_id = ?7 AND workspace_id = ?8
                    AND intent = ?9 AND created_at = ?10 AND status = ?11"
            }
        },
        params![
            row.status.as_str(),
            row.commit,
            row.error.as_ref().map(json),
            row.ended_at.map(nanoseconds),
            row.id.as_str(),
            row.run_id.as_str(),
            row.step_id.as_str(),
            row.workspace_id,
            json(&row.intent),
            nanoseconds(row.created_at),
            from.map(EffectStatus::as_str),
        ],
    )?;
    if written == 0 {
        let what = format!("effect {}", row.id);
        return Err(elsewhere(what, from.map(EffectStatus::as_str)));
    }
    Ok(())
}

fn record_commit(transaction: &Transaction<'_>, commit: &CommitRecord) -> Result<(), StateError> {
    transaction.execute(
        "INSERT INTO commits (vcs, commit_id, run_id, step_id, message, author_name, author_email,
             files_changed, insertions, deletions, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
         ON CONFLICT (vcs, commit_id) DO UPDATE SET message = excluded.message,
             author_name = excluded.author_name, author_email = excluded.author_email,
             files_changed = excluded.files_changed, insertions = excluded.insertions,
             deletions = excluded.deletions",
        params![
            commit.vcs,
            commit.commit,
            commit.run_id.as_str(),
            commit.step_id.as_ref().map(StepId::as_str),
            commit.message,
            commit.author.name,
            commit.author.email,
            count(commit.files_changed),
            count(commit.insertions),
            count(commit.deletions),
            nanoseconds(commit.created_at),
        ],
    )?;
    Ok(())
}

/// The error of a compare-and-swap of a row that found something else.
fn elsewhere(what: String, from: Option<&'static str>) -> StateError {
    match from {
        None => StateError::Exists { what },
        Some(from) => StateError::Conflict {
            what,
            expected: from.to_owned(),
            found: "something else by now".to_owned(),
        },
    }
}

fn move_run(
    transaction: &Transaction<'_>,
    id: &RunId,
    from: RunStatus,
    to: RunStatus,
    at: Timestamp,
    ending: Option<&RunEnding>,
) -> Result<(), StateError> {
    let at = nanoseconds(at);
    let moved = transaction.execute(
        "UPDATE runs SET status = ?1, version = version + 1,
             started_at = coalesce(started_at, ?2), ended_at = ?3,
             exit_code = ?4, error = ?5, output = ?6, workspace = ?7
          WHERE id = ?8 AND status = ?9",
        params![
            to.as_str(),
            (to == RunStatus::Running).then_some(at),
            to.is_terminal().then_some(at),
            ending.and_then(|e| e.exit_code),
            ending.and_then(|e| e.error.as_ref()).map(json),
            ending.map(|e| json(&e.output)),
            ending.map(|e| json(&e.workspace)),
            id.as_str(),
            from.as_str(),
        ],
    )?;
    if moved == 0 {
        return Err(lost(transaction, "runs", "run", id.as_str(), from.as_str()));
    }
    Ok(())
}

/// Why a transition found no row: it is elsewhere, or not there.
fn lost(
    transaction: &Transaction<'_>,
    table: &'static str,
    noun: &str,
    id: &str,
    expected: &str,
) -> StateError {
    let what = format!("{noun} {id}");
    let found = transaction
        .query_row(
            &format!("SELECT status FROM {table} WHERE id = ?1"),
            params![id],
            |row| row.get::<_, String>(0),
        )
        .optional();
    match found {
        Ok(Some(found)) => StateError::Conflict {
            what,
            expected: expected.to_owned(),
            found,
        },
        Ok(None) => StateError::NotFound { what },
        Err(e) => e.into(),
    }
}

/// Deals the places of these snapshots out anew, in the order of `ids`.
fn order_snapshots(transaction: &Transaction<'_>, ids: &[SnapshotId]) -> Result<(), StateError> {
    let mut places = Vec::with_capacity(ids.len());
    {
        let mut find =
            transaction.prepare_cached("SELECT position FROM snapshots WHERE id = ?1")?;
        for id in ids {
            let found: Option<i64> = find
                .query_row(params![id.as_str()], |row| row.get(0))
                .optional()?;
            places.extend(found.map(|place| (id, place)));
        }
    }
    let mut in_order: Vec<i64> = places.iter().map(|(_, place)| *place).collect();
    in_order.sort_unstable();
    let moved: Vec<_> = places
        .into_iter()
        .zip(in_order)
        .filter(|((_, from), to)| from != to)
        .map(|((id, _), to)| (id, to))
        .collect();
    let mut put = transaction.prepare_cached("UPDATE snapshots SET position = ?2 WHERE id = ?1")?;
    // No two may ever have one place, so they leave all of theirs first. None in use is negative.
    for (id, place) in &moved {
        put.execute(params![id.as_str(), -place])?;
    }
    for (id, place) in &moved {
        put.execute(params![id.as_str(), place])?;
    }
    Ok(())
}

/// Appends an event at the next place of its session; the stored one, if its id is there already.
fn append(transaction: &Transaction<'_>, event: &NewEvent) -> Result<Event, StateError> {
    if let Some(stored) = find_event(transaction, &event.id)? {
        return Ok(stored);
    }
    let sequence: Option<i64> = transaction
        .query_row(
            "UPDATE sessions SET last_sequence = last_sequence + 1 WHERE id = ?1
             RETURNING last_sequence",
            params![event.session_id.as_str()],
            |row| row.get(0),
        )
        .optional()?;
    let Some(sequence) = sequence else {
        let what = format!("session {}", event.session_id);
        return Err(StateError::NotFound { what });
    };
    transaction
        .prepare_cached(
            "INSERT INTO events (id, session_id, sequence, run_id, type, timestamp, schema_version, data)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            event.id.as_str(),
            event.session_id.as_str(),
            sequence,
            event.run_id.as_ref().map(RunId::as_str),
            event.event_type.as_str(),
            nanoseconds(event.at),
            EVENT_SCHEMA_VERSION,
            json(&event.data),
        ])?;
    Ok(Event {
        id: event.id.clone(),
        event_type: event.event_type.clone(),
        timestamp: event.at,
        session_id: event.session_id.clone(),
        run_id: event.run_id.clone(),
        sequence: sequence.unsigned_abs(),
        schema_version: EVENT_SCHEMA_VERSION,
        data: event.data.clone(),
    })
}

fn find_event(connection: &Connection, id: &EventId) -> Result<Option<Event>, StateError> {
    let mut statement = connection.prepare_cached(&format!("{SELECT_EVENT} WHERE id = ?1"))?;
    let mut rows = statement.query(params![id.as_str()])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    row_sum::check(row)?;
    let (_, event) = read_event(row)?;
    Ok(Some(event))
}

fn delete_artifact(
    transaction: &Transaction<'_>,
    key: &str,
    at: Timestamp,
) -> Result<usize, StateError> {
    Ok(transaction.execute(
        "UPDATE artifacts SET deleted_at = ?1 WHERE key = ?2 AND deleted_at IS NULL",
        params![nanoseconds(at), key],
    )?)
}

const SELECT_SESSION: &str = concat!(
    "SELECT id, status, version, created_at, ended_at, ",
    damaged!(sessions),
    " FROM sessions"
);

fn read_session(row: &Row<'_>) -> Result<SessionRow, StateError> {
    Ok(SessionRow {
        id: id(row.get(0)?)?,
        status: word(row.get(1)?, SessionStatus::parse)?,
        version: row.get::<_, i64>(2)?.unsigned_abs(),
        created_at: time(row.get(3)?)?,
        ended_at: row.get::<_, Option<i64>>(4)?.map(time).transpose()?,
    })
}

const SELECT_RUN: &str = concat!(
    "SELECT id, session_id, engine_id, status, input, options, workspace_id, \
     workspace_path, before_snapshot, after_snapshot, created_at, started_at, ended_at, exit_code, \
     error, output, workspace, ",
    damaged!(runs),
    " FROM runs"
);

fn read_run(row: &Row<'_>) -> Result<RunRow, StateError> {
    let workspace = match row.get::<_, Option<String>>(6)? {
        None => None,
        Some(workspace_id) => {
            let bytes: Vec<u8> = row.get(7)?;
            Some(RunWorkspace {
                workspace_id,
                path: PathBuf::from(std::ffi::OsString::from_vec(bytes)),
                before: id(row.get(8)?)?,
                after: id(row.get(9)?)?,
            })
        }
    };
    let document = |at: usize| -> Result<Value, StateError> {
        row.get::<_, Option<String>>(at)?
            .map_or(Ok(Value::Null), |text| parse(&text))
    };
    Ok(RunRow {
        id: id(row.get(0)?)?,
        session_id: id(row.get(1)?)?,
        engine_id: id(row.get(2)?)?,
        status: word(row.get(3)?, RunStatus::parse)?,
        input: row.get(4)?,
        options: document(5)?,
        workspace,
        created_at: time(row.get(10)?)?,
        started_at: optional_time(row, 11)?,
        ended_at: optional_time(row, 12)?,
        exit_code: row.get(13)?,
        error: row
            .get::<_, Option<String>>(14)?
            .map(|text| parse::<Failure>(&text))
            .transpose()?,
        output: document(15)?,
        summary: document(16)?,
    })
}

const SELECT_LEASE: &str = concat!(
    "SELECT run_id, owner, epoch, boot_id, expires_at, heartbeat_at, cancel_requested_at, ",
    damaged!(leases),
    " FROM leases"
);

fn read_lease(row: &Row<'_>) -> Result<Lease, StateError> {
    Ok(Lease {
        owner: id(row.get(1)?)?,
        epoch: row.get::<_, i64>(2)?.unsigned_abs(),
        expires: Moment {
            boot_id: row.get(3)?,
            nanoseconds: row.get(4)?,
        },
        heartbeat_at: time(row.get(5)?)?,
        cancel_requested_at: optional_time(row, 6)?,
    })
}

const SELECT_PHASE: &str = concat!(
    "SELECT name, iteration, status, started_at, completed_at, duration_ms, ",
    damaged!(phases),
    " FROM phases"
);

fn read_phase(row: &Row<'_>) -> Result<PhaseRow, StateError> {
    Ok(PhaseRow {
        key: PhaseKey {
            phase: row.get(0)?,
            iteration: row.get(1)?,
        },
        status: word(row.get(2)?, StepStatus::parse)?,
        started_at: optional_time(row, 3)?,
        completed_at: optional_time(row, 4)?,
        duration_ms: optional_count(row, 5)?,
    })
}

const SELECT_STEP: &str = concat!(
    "SELECT id, phase, iteration, name, status, attempt, definition_hash, snapshot_before, \
     snapshot_after, commit_created, result, error, started_at, completed_at, duration_ms, \
     begun_order, ended_order, ",
    damaged!(steps),
    " FROM steps"
);

fn read_step(row: &Row<'_>) -> Result<StepRow, StateError> {
    let text = |at: usize| row.get::<_, Option<String>>(at);
    Ok(StepRow {
        id: id(row.get(0)?)?,
        phase: PhaseKey {
            phase: row.get(1)?,
            iteration: row.get(2)?,
        },
        name: row.get(3)?,
        status: word(row.get(4)?, StepStatus::parse)?,
        attempt: row.get(5)?,
        definition_hash: row.get(6)?,
        snapshot_before: text(7)?.map(id).transpose()?,
        snapshot_after: text(8)?.map(id).transpose()?,
        commit_created: text(9)?,
        result: text(10)?.map(|text| parse(&text)).transpose()?,
        error: text(11)?.map(|text| parse(&text)).transpose()?,
        started_at: optional_time(row, 12)?,
        completed_at: optional_time(row, 13)?,
        duration_ms: optional_count(row, 14)?,
        begun_order: optional_count(row, 15)?,
        ended_order: optional_count(row, 16)?,
    })
}

const SELECT_TASK: &str = concat!(
    "SELECT name, run_id, step_id, attempt, status, error, started_at, completed_at, duration_ms, ",
    damaged!(tasks),
    " FROM tasks"
);

fn read_task(row: &Row<'_>) -> Result<TaskRow, StateError> {
    let error = row.get::<_, Option<String>>(5)?;
    Ok(TaskRow {
        name: row.get(0)?,
        run_id: id(row.get(1)?)?,
        step_id: id(row.get(2)?)?,
        attempt: row.get(3)?,
        status: word(row.get(4)?, StepStatus::parse)?,
        error: error.map(|text| parse(&text)).transpose()?,
        started_at: time(row.get(6)?)?,
        completed_at: optional_time(row, 7)?,
        duration_ms: optional_count(row, 8)?,
    })
}

const SELECT_QUESTION: &str = concat!(
    "SELECT id, run_id, step_id, question, nth, choices, default_answer, status, asked_at, \
     deadline_at, deadline_boot_id, deadline_boottime, answer, answered_at, timed_out, resumed_at, ",
    damaged!(questions),
    " FROM questions"
);

fn read_question(row: &Row<'_>) -> Result<QuestionRow, StateError> {
    let deadline = match (optional_time(row, 9)?, row.get(10)?, row.get(11)?) {
        (Some(at), Some(boot_id), Some(nanoseconds)) => Some(Deadline {
            at,
            moment: Moment {
                boot_id,
                nanoseconds,
            },
        }),
        _ => None,
    };
    Ok(QuestionRow {
        id: id(row.get(0)?)?,
        run_id: id(row.get(1)?)?,
        place: QuestionPlace {
            step_id: row.get::<_, Option<String>>(2)?.map(id).transpose()?,
            text: row.get(3)?,
            nth: row.get(4)?,
        },
        choices: parse(&row.get::<_, String>(5)?)?,
        default: row.get(6)?,
        status: word(row.get(7)?, QuestionStatus::parse)?,
        asked_at: time(row.get(8)?)?,
        deadline,
        answer: row.get(12)?,
        answered_at: optional_time(row, 13)?,
        timed_out: row.get(14)?,
        resumed_at: optional_time(row, 15)?,
    })
}

const SELECT_EFFECT: &str = concat!(
    "SELECT id, run_id, step_id, workspace_id, status, intent, commit_id, error, created_at, ended_at, ",
    damaged!(effects),
    " FROM effects"
);

fn read_effect(row: &Row<'_>) -> Result<EffectRow, StateError> {
    let error = row.get::<_, Option<String>>(7)?;
    Ok(EffectRow {
        id: id(row.get(0)?)?,
        run_id: id(row.get(1)?)?,
        step_id: id(row.get(2)?)?,
        workspace_id: row.get(3)?,
        status: word(row.get(4)?, EffectStatus::parse)?,
        intent: parse(&row.get::<_, String>(5)?)?,
        commit: row.get(6)?,
        error: error.map(|text| parse(&text)).transpose()?,
        created_at: time(row.get(8)?)?,
        ended_at: optional_time(row, 9)?,
    })
}

const SELECT_COMMIT: &str = concat!(
    "SELECT commit_id, vcs, run_id, step_id, message, author_name, author_email, files_changed, \
     insertions, deletions, created_at, ",
    damaged!(commits),
    " FROM commits"
);

fn read_commit(row: &Row<'_>) -> Result<CommitRecord, StateError> {
    let counted = |at: usize| row.get::<_, i64>(at).map(i64::unsigned_abs);
    Ok(CommitRecord {
        commit: row.get(0)?,
        vcs: row.get(1)?,
        run_id: id(row.get(2)?)?,
        step_id: row.get::<_, Option<String>>(3)?.map(id).transpose()?,
        message: row.get(4)?,
        author: Signature::new(row.get::<_, String>(5)?, row.get::<_, String>(6)?),
        files_changed: counted(7)?,
        insertions: counted(8)?,
        deletions: counted(9)?,
        created_at: time(row.get(10)?)?,
    })
}

fn optional_time(row: &Row<'_>, at: usize) -> Result<Option<Timestamp>, StateError> {
    row.get::<_, Option<i64>>(at)?.map(time).transpose()
}

fn optional_count(row: &Row<'_>, at: usize) -> Result<Option<u64>, StateError> {
    Ok(row.get::<_, Option<i64>>(at)?.map(i64::unsigned_abs))
}

const SELECT_EVENT_TIME: &str = concat!(
    "SELECT position, ",
    damaged!(event_times),
    " FROM event_times WHERE session_id = ?1 AND latest < ?2 ORDER BY latest DESC LIMIT 1"
);

const SELECT_EVENT: &str = concat!(
    "SELECT position, id, type, timestamp, session_id, run_id, sequence, schema_version, data, ",
    damaged!(events),
    " FROM events"
);

/// The statement for a query. In a session the order of the sequence is that of writing, and leads straight to
/// where a page begins, however much is before it and in other sessions.
fn select_events(query: &EventQuery) -> String {
    let is_of_session = query.session_id.is_some();
    let conditions = [
        (!is_of_session, "position > ?1"),
        (
            is_of_session,
            // With a sign before it no index is searched by the position.
            "session_id = ?2 AND +position > ?1 AND sequence > max(coalesce(?5, 0), coalesce(
               (SELECT sequence FROM events WHERE position = ?1 AND session_id = ?2), 0))",
        ),
        (query.run_id.is_some(), "run_id = ?3"),
        (query.event_type.is_some(), "type = ?4"),
        (query.before.is_some(), "sequence < ?6"),
        (query.since.is_some(), "timestamp >= ?7"),
    ];
    let order = match is_of_session {
        true => "sequence",
        false => "position",
    };
    format!(
        "{SELECT_EVENT}{} ORDER BY {order} LIMIT ?8",
        all_of(&conditions)
    )
}

/// A clause of SQL for those that are wanted; nothing for none.
fn all_of(conditions: &[(bool, &str)]) -> String {
    let wanted = conditions.iter().filter(|(is_wanted, _)| *is_wanted);
    let wanted: Vec<&str> = wanted.map(|(_, condition)| *condition).collect();
    match wanted.as_slice() {
        [] => String::new(),
        wanted => format!(" WHERE {}", wanted.join(" AND ")),
    }
}

fn read_event(row: &Row<'_>) -> Result<(u64, Event), StateError> {
    let event = Event {
        id: id(row.get(1)?)?,
        event_type: EventType::new(row.get::<_, String>(2)?),
        timestamp: time(row.get(3)?)?,
        session_id: id(row.get(4)?)?,
        run_id: row.get::<_, Option<String>>(5)?.map(id).transpose()?,
        sequence: row.get::<_, i64>(6)?.unsigned_abs(),
        schema_version: row.get(7)?,
        data: parse(&row.get::<_, String>(8)?)?,
    };
    Ok((row.get::<_, i64>(0)?.unsigned_abs(), event))
}

const SELECT_RESTORE: &str = concat!(
    "SELECT guard, workspace_id, session_id, run_id, target, purpose, \
     repository, created_at, outcome, ",
    damaged!(restores),
    " FROM restores"
);

fn read_restore(row: &Row<'_>) -> Result<RestoreRow, StateError> {
    Ok(RestoreRow {
        guard: id(row.get(0)?)?,
        workspace_id: row.get(1)?,
        session_id: id(row.get(2)?)?,
        run_id: row.get::<_, Option<String>>(3)?.map(id).transpose()?,
        target: id(row.get(4)?)?,
        purpose: word(row.get(5)?, RestorePurpose::parse)?,
        repository: row.get(6)?,
        at: time(row.get(7)?)?,
        outcome: row
            .get::<_, Option<String>>(8)?
            .map(|text| parse(&text))
            .transpose()?,
    })
}

const SELECT_SNAPSHOT: &str = concat!(
    "SELECT workspace_id, session_id, run_id, document, ",
    damaged!(snapshots),
    " FROM snapshots"
);

fn read_snapshot(row: &Row<'_>) -> Result<SnapshotRow, StateError> {
    Ok(SnapshotRow {
        workspace_id: row.get(0)?,
        session_id: row.get::<_, Option<String>>(1)?.map(id).transpose()?,
        run_id: row.get::<_, Option<String>>(2)?.map(id).transpose()?,
        snapshot: parse(&row.get::<_, String>(3)?)?,
    })
}

const SELECT_OPERATION: &str = concat!(
    "SELECT id, workspace_id, session_id, run_id, kind, before_snapshot, \
     after_snapshot, paths, repository, created_at, ",
    damaged!(operations),
    " FROM operations"
);

fn read_operation(row: &Row<'_>) -> Result<OperationRow, StateError> {
    let kind = |text: &str| match text {
        "run" => Some(OperationKind::Run),
        "restore" => Some(OperationKind::Restore),
        "undo" => Some(OperationKind::Undo),
        _ => None,
    };
    Ok(OperationRow {
        id: id(row.get(0)?)?,
        workspace_id: row.get(1)?,
        session_id: id(row.get(2)?)?,
        run_id: row.get::<_, Option<String>>(3)?.map(id).transpose()?,
        kind: word(row.get(4)?, kind)?,
        before: id(row.get(5)?)?,
        after: id(row.get(6)?)?,
        paths: row
            .get::<_, Option<String>>(7)?
            .map(|text| parse(&text))
            .transpose()?,
        repository: row.get(8)?,
        at: time(row.get(9)?)?,
    })
}

const SELECT_ARTIFACT: &str = concat!(
    "SELECT id, session_id, run_id, key, content_type, byte_size, checksum, \
     storage_backend, storage_ref, metadata, created_at, deleted_at, ",
    damaged!(artifacts),
    " FROM artifacts"
);

fn read_artifact(row: &Row<'_>) -> Result<ArtifactRecord, StateError> {
    Ok(ArtifactRecord {
        id: id(row.get(0)?)?,
        session_id: id(row.get(1)?)?,
        run_id: row.get::<_, Option<String>>(2)?.map(id).transpose()?,
        key: row.get(3)?,
        content_type: row.get(4)?,
        byte_size: row.get::<_, i64>(5)?.unsigned_abs(),
        checksum: row.get(6)?,
        storage_backend: row.get(7)?,
        storage_ref: row.get(8)?,
        metadata: parse(&row.get::<_, String>(9)?)?,
        created_at: time(row.get(10)?)?,
        deleted_at: row.get::<_, Option<i64>>(11)?.map(time).transpose()?,
    })
}

/// Nanoseconds since the Unix epoch, which fit until the year 2262; beyond, the last that fits.
fn nanoseconds(at: Timestamp) -> i64 {
    let bounded = at
        .as_nanosecond()
        .clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    i64::try_from(bounded).expect("it was clamped")
}

fn time(nanoseconds: i64) -> Result<Timestamp, StateError> {
    Timestamp::from_nanosecond(i128::from(nanoseconds)).map_err(|e| StateError::Corrupt {
        detail: format!("a row has the time {nanoseconds}: {e}"),
    })
}

/// SQLite's integers are signed; what does not fit is larger than any count there is.
fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// SQLite takes a negative limit for none.
fn limit(limit: Option<u64>) -> i64 {
    limit.map_or(-1, count)
}

fn id<T: std::str::FromStr>(text: String) -> Result<T, StateError>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|e: T::Err| StateError::Corrupt {
        detail: format!("a row has a bad id: {e}"),
    })
}

fn word<T>(text: String, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, StateError> {
    parse(&text).ok_or_else(|| StateError::Corrupt {
        detail: format!("a row has the unknown state {text:?}"),
    })
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("a document is plain data")
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, StateError> {
    serde_json::from_str(text).map_err(|e| StateError::Corrupt {
        detail: format!("a row has a bad document: {e}"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::session;
    use crate::state::contract::{TestState, state_store_contract};

    /// A database in a directory of its own.
    struct OnDisk(tempfile::TempDir);

    impl TestState for OnDisk {
        fn open(&self) -> Box<dyn StateStore> {
            Box::new(SqliteStore::open(self.0.path()).unwrap())
        }
    }

    state_store_contract!(on_disk, super::OnDisk(tempfile::tempdir().unwrap()));

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn started(directory: &Path, id: &str) -> (SqliteStore, SessionId) {
        let mut store = SqliteStore::open(directory).unwrap();
        let id: SessionId = id.parse().unwrap();
        store.commit(&session::creation(&id, at(1))).unwrap();
        (store, id)
    }

    fn note(session: &SessionId, data: Value) -> NewEvent {
        NewEvent::new(EventType::new("noted"), session, None, at(2), data)
    }

    fn sequences(store: &SqliteStore, session: &SessionId) -> Vec<u64> {
        let events = store.events(&EventQuery::session(session.clone()), 0);
        events.unwrap().iter().map(|(_, e)| e.sequence).collect()
    }

    #[test]
    fn concurrent_appends_of_several_connections_leave_no_gap() {
        let state = tempfile::tempdir().unwrap();
        let (store, session) = started(state.path(), "s");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let session = session.clone();
                scope.spawn(|| {
                    let session = session;
                    let mut store = SqliteStore::open(state.path()).unwrap();
                    for _ in 0..25 {
                        let event = note(&session, json!({}));
                        store.commit(&[Change::Append(event)]).unwrap();
                    }
                });
            }
        });
        let expected: Vec<u64> = (1..=102).collect();
        assert_eq!(sequences(&store, &session), expected);
    }

    #[test]
    fn what_was_taken_out_is_in_no_byte_of_the_files_once_they_are_scrubbed() {
        let state = tempfile::tempdir().unwrap();
        let (mut store, session) = started(state.path(), "s");
        // Long enough for pages of its own, and short enough to share one.
        for length in [40, 40_000] {
            let text = "needle ".repeat(length / 7);
            let event = note(&session, json!({ "text": text }));
            store.commit(&[Change::Append(event)]).unwrap();
        }
        let has_needle = || {
            let files = fs::read_dir(state.path()).unwrap();
            let mut files = files.map(|entry| fs::read(entry.unwrap().path()).unwrap());
            files.any(|bytes| bytes.windows(6).any(|part| part == b"needle"))
        };
        assert!(has_needle());
        store.connection.execute("DELETE FROM events", ()).unwrap();
        assert!(has_needle(), "SQLite leaves what was deleted");

        let mut other = connect(&state.path().join(DATABASE)).unwrap();
        let reading = other.transaction().unwrap();
        let count = |row: &Row<'_>| row.get::<_, i64>(0);
        let runs = reading.query_row("SELECT count(*) FROM runs", (), count);
        runs.unwrap();
        let error = store.commit(&[Change::Scrub]).unwrap_err();
        assert_eq!(
            error.kind(),
            stillframe_backends::ErrorKind::Busy,
            "{error}"
        );
        drop(reading);
        store.commit(&[Change::Scrub]).unwrap();
        assert!(!has_needle());
    }

    /// How SQLite goes about a statement.
    fn plan_of(store: &SqliteStore, sql: &str) -> String {
        let mut explained = store
            .connection
            .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
            .unwrap();
        let steps = explained.raw_query().mapped(|row| row.get(3));
        let steps: Vec<String> = steps.map(Result::unwrap).collect();
        steps.join("; ")
    }

    #[test]
    fn a_page_of_events_is_searched_for_and_neither_scanned_nor_sorted() {
        let state = tempfile::tempdir().unwrap();
        let (store, session) = started(state.path(), "s");
        let of_session = EventQuery::session(session);
        let of_run = EventQuery::all().run("r".parse().unwrap());
        for (query, expected) in [
            (of_session.clone(), "(session_id=? AND sequence>?)"),
            (of_session.clone().after(7), "(session_id=? AND sequence>?)"),
            (
                of_session.after(7).before(9),
                "(session_id=? AND sequence>? AND sequence<?)",
            ),
            (of_run, "(run_id=? AND position>?)"),
            (EventQuery::all(), "(rowid>?)"),
        ] {
            let plan = plan_of(&store, &select_events(&query));
            assert!(plan.contains(expected), "{query:?}: {plan}");
            let is_slow = plan.contains("SCAN") || plan.contains("TEMP B-TREE");
            assert!(!is_slow, "{query:?}: {plan}");
        }
    }

    #[test]
    fn what_follows_a_position_is_what_was_written_after_it_in_every_session() {
        let state = tempfile::tempdir().unwrap();
        let (mut store, one) = started(state.path(), "one");
        let (_, other) = started(state.path(), "other");
        for at in 0..6 {
            let session = [&one, &other][at % 2];
            let event = note(session, json!({}));
            store.commit(&[Change::Append(event)]).unwrap();
        }
        let all = store.events(&EventQuery::all(), 0).unwrap();
        for session in [&one, &other] {
            for after in 0..=all.len() as u64 + 1 {
                let query = EventQuery::session(session.clone()).after(1);
                let found = store.events(&query, after).unwrap();
                let expected = all.iter().filter(|(position, event)| {
                    *position > after && event.session_id == *session && event.sequence > 1
                });
                assert_eq!(found, expected.cloned().collect::<Vec<_>>(), "{after}");
            }
        }
    }

    #[test]
    fn what_others_commit_is_told_once_and_what_one_commits_oneself_is_not() {
        let state = tempfile::tempdir().unwrap();
        let (mut store, session) = started(state.path(), "s");
        let mut other = SqliteStore::open(state.path()).unwrap();
        store.is_changed_by_others().unwrap();
        let append = [Change::Append(note(&session, json!({})))];
        store.commit(&append).unwrap();
        assert!(!store.is_changed_by_others().unwrap());
        let append = [Change::Append(note(&session, json!({})))];
        other.commit(&append).unwrap();
        assert!(store.is_changed_by_others().unwrap());
        assert!(!store.is_changed_by_others().unwrap());
    }

    #[test]
    fn the_database_is_private_and_written_ahead() {
        let state = tempfile::tempdir().unwrap();
        let (store, _) = started(state.path(), "s");
        for name in ["stillframe.db", "stillframe.db-wal", "stillframe.db-shm"] {
            let meta = fs::metadata(state.path().join(name)).unwrap();
            assert_eq!(meta.permissions().mode() & 0o777, 0o600, "{name}");
        }
        for (name, expected) in [
            ("synchronous", 2),
            ("foreign_keys", 1),
            ("trusted_schema", 0),
        ] {
            assert_eq!(pragma(&store.connection, name).unwrap(), expected, "{name}");
        }
    }

    // The numbers are those of linux/magic.h, as rustix has them where it does.
    #[test]
    fn a_network_file_system_is_known_by_its_number_and_a_local_one_is_none() {
        let nfs = rustix::fs::NFS_SUPER_MAGIC as u64;
        assert_eq!(network_file_system(nfs), Some("NFS"));
        assert_eq!(network_file_system(0xff53_4d42), Some("CIFS"));
        for local in [0xef53, 0x0102_1994, 0x9123_683e, 0x5846_5342] {
            assert_eq!(network_file_system(local), None, "{local:x}");
        }
    }

    #[test]
    fn many_that_make_the_database_at_once_all_get_it() {
        for _ in 0..10 {
            let state = tempfile::tempdir().unwrap();
            std::thread::scope(|scope| {
                let opened: Vec<_> = (0..8)
                    .map(|_| scope.spawn(|| SqliteStore::open(state.path()).map(|_| ())))
                    .collect();
                for thread in opened {
                    thread.join().unwrap().unwrap();
                }
            });
        }
    }

    #[test]
    fn a_reader_cannot_write() {
        let state = tempfile::tempdir().unwrap();
        let (_, session) = started(state.path(), "s");
        let mut reader = SqliteStore::open_reader(state.path()).unwrap();
        let refused = reader.commit(&[Change::Append(note(&session, json!({})))]);
        assert!(refused.is_err());
        assert_eq!(sequences(&reader, &session), [1, 2]);
    }

    #[test]
    fn a_database_of_a_newer_version_is_left_as_it_is() {
        let state = tempfile::tempdir().unwrap();
        let (store, _) = started(state.path(), "s");
        store
            .connection
            .execute_batch("PRAGMA user_version = 999")
            .unwrap();
        drop(store);
        let path = state.path().join(DATABASE);
        let before = fs::read(&path).unwrap();
        let refused = SqliteStore::open(state.path()).unwrap_err();
        assert_eq!(refused.kind(), stillframe_backends::ErrorKind::Unsupported);
        assert!(refused.to_string().contains("999"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), before, "byte for byte");
    }

    #[test]
    fn a_file_that_is_no_database_of_ours_is_corrupt_and_left_as_it_is() {
        let state = tempfile::tempdir().unwrap();
        let path = state.path().join(DATABASE);
        let garbage = vec![b'x'; 4096];
        fs::write(&path, &garbage).unwrap();
        let refused = SqliteStore::open(state.path()).unwrap_err();
        assert_eq!(refused.kind(), stillframe_backends::ErrorKind::Corrupt);
        assert_eq!(fs::read(&path).unwrap(), garbage);

        fs::remove_file(&path).unwrap();
        let foreign = Connection::open(&path).unwrap();
        foreign.execute_batch("CREATE TABLE notes (text)").unwrap();
        drop(foreign);
        let refused = SqliteStore::open(state.path()).unwrap_err();
        assert_eq!(refused.kind(), stillframe_backends::ErrorKind::Corrupt);
    }

    #[test]
    fn an_older_database_is_copied_before_it_is_migrated() {
        let state = tempfile::tempdir().unwrap();
        let (store, session) = started(state.path(), "s");
        drop(store);
        let version = MIGRATIONS.len() as i64;
        let more = [MIGRATIONS, &["ALTER TABLE sessions ADD COLUMN note TEXT;"]].concat();
        let migrated = SqliteStore::open_with(state.path(), &more).unwrap();
        let found = pragma(&migrated.connection, "user_version").unwrap();
        assert_eq!(found, version + 1);
        migrated
            .connection
            .query_row("SELECT note FROM sessions", (), |row| {
                row.get::<_, Option<String>>(0)
            })
            .expect("the column is there");
        assert_eq!(
            sequences(&migrated, &session),
            [1, 2],
            "and so is what was kept"
        );
        drop(migrated);

        let backup = state.path().join(format!("stillframe.db.v{version}.bak"));
        let copy = Connection::open(&backup).unwrap();
        assert_eq!(pragma(&copy, "user_version").unwrap(), version);
        assert!(
            copy.prepare("SELECT note FROM sessions").is_err(),
            "as it was"
        );

        let refused = SqliteStore::open(state.path()).unwrap_err();
        assert!(matches!(
            refused,
            StateError::VersionTooNew { found, .. } if found == version + 1
        ));
    }

    #[test]
    fn rows_from_before_there_were_sums_get_theirs() {
        let state = tempfile::tempdir().unwrap();
        let id: SessionId = "s".parse().unwrap();
        let older = SqliteStore::open_with(state.path(), &MIGRATIONS[..2]).unwrap();
        let rows = "INSERT INTO sessions VALUES ('s', 'active', 2, 2, 5, NULL);
             INSERT INTO events VALUES (1, 'evt_1', 's', 1, NULL, 'noted', 5, 1, '{}');
             INSERT INTO events VALUES (2, 'evt_2', 's', 2, NULL, 'noted', 5, 1, '{}');";
        older.connection.execute_batch(rows).unwrap();
        drop(older);
        let store = SqliteStore::open(state.path()).unwrap();
        assert_eq!(sequences(&store, &id), [1, 2]);
        assert_eq!(store.problems().unwrap(), [""; 0]);
    }

    #[test]
    fn a_migration_that_fails_changes_nothing() {
        let state = tempfile::tempdir().unwrap();
        let (store, session) = started(state.path(), "s");
        drop(store);
        let fails = "CREATE TABLE half (a); SELECT no_such_function();";
        let bad = [MIGRATIONS, &[fails]].concat();
        assert!(SqliteStore::open_with(state.path(), &bad).is_err());
        let store = SqliteStore::open(state.path()).unwrap();
        assert_eq!(sequences(&store, &session), [1, 2]);
        assert!(store.connection.prepare("SELECT a FROM half").is_err());
    }
}
