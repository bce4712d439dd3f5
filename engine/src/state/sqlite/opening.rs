//! Opening the database: setting up a connection, refusing unknown databases, and migrating older
//! ones.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rusqlite::{Connection, TransactionBehavior};
use stillframe_backends::{Operation, PathError, open_regular};
use stillframe_disk::deadline::Deadline;
use stillframe_disk::lock::lock_within;

use super::{DATABASE, SqliteStore};
use crate::state::error::StateError;
use crate::state::row_sum;

/// Held while a database is made or brought up to date. Its text tells the log whose name is
/// durable.
const OPENING_LOCK: &str = "opening.lock";

/// Older ones may damage a database whose log is reset while another process reads it
/// (<https://www.sqlite.org/releaselog/3_51_3.html>).
const OLDEST_SQLITE: i32 = 3_051_003;

/// Says in the file's header whose database it is: "Stil".
const APPLICATION_ID: i64 = 0x5374_696c;

/// What takes version n to n + 1, from 0 on. Only ever appended to.
pub(in crate::state) const MIGRATIONS: &[&str] = &[
    include_str!("../migrations/0001.sql"),
    include_str!("../migrations/0002.sql"),
    include_str!("../migrations/0003.sql"),
    include_str!("../migrations/0004.sql"),
    include_str!("../migrations/0005.sql"),
    include_str!("../migrations/0006.sql"),
    include_str!("../migrations/0007.sql"),
    include_str!("../migrations/0008.sql"),
    include_str!("../migrations/0009.sql"),
    include_str!("../migrations/0010.sql"),
    include_str!("../migrations/0011.sql"),
    include_str!("../migrations/0012.sql"),
    include_str!("../migrations/0013.sql"),
    include_str!("../migrations/0014.sql"),
    include_str!("../migrations/0015.sql"),
    include_str!("../migrations/0016.sql"),
    include_str!("../migrations/0017.sql"),
    include_str!("../migrations/0018.sql"),
    include_str!("../migrations/0019.sql"),
    include_str!("../migrations/0020.sql"),
    include_str!("../migrations/0021.sql"),
    include_str!("../migrations/0022.sql"),
    include_str!("../migrations/0023.sql"),
    include_str!("../migrations/0024.sql"),
];

/// Two numbers.
const MAX_NOTE_BYTES: u64 = 128;

/// How many statements are kept prepared: more than one run and its steps need in turns.
const MAX_PREPARED: usize = 128;

/// How long a statement waits for another process before it is busy.
const BUSY_TIMEOUT: Duration = Duration::from_millis(5_000);

impl SqliteStore {
    /// Opens the database in `state_dir`, making or migrating it if need be.
    ///
    /// A database of a newer version is left as it is. One of an older version is copied to
    /// `stillframe.db.v<version>.bak` before anything of it is changed.
    pub(crate) fn open(state_dir: &Path) -> Result<Self, StateError> {
        Self::open_with(state_dir, MIGRATIONS)
            .map_err(|error| naming(&state_dir.join(DATABASE), error))
    }

    /// As [`SqliteStore::open`], where these are all the versions that there are.
    pub(in crate::state) fn open_with(
        state_dir: &Path,
        migrations: &[&str],
    ) -> Result<Self, StateError> {
        refuse_old_sqlite()?;
        refuse_network_file_system(state_dir)?;
        let path = state_dir.join(DATABASE);
        // Two processes that make one database new at once would find it locked, and SQLite does
        // not wait for that: the switch to a write-ahead log knows no busy handler. The lock lies
        // in a file of its own, because closing the database's would drop SQLite's.
        let lock_path = state_dir.join(OPENING_LOCK);
        let opening = open_or_make(&lock_path).map_err(PathError::at("open", &lock_path))?;
        lock_within(
            &Operation::unbounded(),
            &opening,
            Deadline::after(BUSY_TIMEOUT),
        )
        .and_then(|is_ours| match is_ours {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        })
        .map_err(PathError::at("lock", &lock_path))?;
        make_private_database(&path)?;
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
        note_log(opening, &path).map_err(PathError::at("write", &lock_path))?;
        Ok(Self::new(connection, &path))
    }

    /// Makes what was committed survive a power cut, where SQLite did not.
    pub(super) fn sync_log(&self) -> Result<(), StateError> {
        open_regular(fs::OpenOptions::new().read(true), &self.log)
            .and_then(|log| log.sync_data())
            .map_err(PathError::at("sync", &self.log))?;
        Ok(())
    }

    /// Whether the file of the log has outgrown what it is cut to when a log begins anew.
    pub(super) fn has_outgrown_log(&self) -> bool {
        fs::symlink_metadata(&self.log).is_ok_and(|found| found.len() > MAX_LOG_BYTES)
    }

    /// Opens a database that [`SqliteStore::open`] has opened before, for reading alone.
    pub(crate) fn open_reader(state_dir: &Path) -> Result<Self, StateError> {
        let path = state_dir.join(DATABASE);
        let connection = connect(&path)?;
        connection.execute_batch("PRAGMA query_only = ON")?;
        Ok(Self::new(connection, &path))
    }

    /// As [`SqliteStore::open_reader`], of a database that may not have been opened before; `None`:
    /// it has to be made, or brought up to date, by [`SqliteStore::open`]. Nothing is made or
    /// changed but what SQLite itself puts beside a database, and nothing is synced.
    pub(crate) fn open_as_it_is(state_dir: &Path) -> Result<Option<Self>, StateError> {
        refuse_old_sqlite()?;
        refuse_network_file_system(state_dir)?;
        let path = state_dir.join(DATABASE);
        let is_ready = fs::symlink_metadata(&path)
            .is_ok_and(|meta| meta.is_file() && meta.len() > 0 && meta.mode() & 0o077 == 0);
        let lock_path = state_dir.join(OPENING_LOCK);
        let noted = open_regular(fs::OpenOptions::new().read(true), &lock_path)
            .and_then(|mut file| note_in(&mut file));
        let has_durable_log = log_of(&path).is_some_and(|log| noted.is_ok_and(|n| n == log));
        if !is_ready || !has_durable_log {
            return Ok(None);
        }
        let opened = Self::open_reader(state_dir).and_then(|mut reader| {
            let newest = MIGRATIONS.len() as i64;
            let connection = &mut reader.connection;
            let found = refuse_other_databases(connection, &path, newest)?;
            Ok((found == newest && is_written_ahead(connection)?).then_some(reader))
        });
        opened.map_err(|error| naming(&path, error))
    }

    fn new(connection: Connection, path: &Path) -> Self {
        Self {
            connection,
            log: log_path(path),
            seen_version: None,
        }
    }
}

/// Where SQLite puts the log of a database.
fn log_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// What tells the log of the database from any other; `None`: there is none, or nobody can tell.
fn log_of(database: &Path) -> Option<String> {
    let found = fs::symlink_metadata(log_path(database)).ok()?;
    let born = found.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(format!("{} {}\n", found.ino(), born.as_nanos()))
}

/// What the text of the lock file says.
fn note_in(lock: &mut fs::File) -> io::Result<String> {
    let mut noted = String::new();
    lock.take(MAX_NOTE_BYTES).read_to_string(&mut noted)?;
    Ok(noted)
}

/// Makes the name of the log durable, unless the lock file says that it is, and writes that down
/// there. `lock` is held.
fn note_log(mut lock: fs::File, database: &Path) -> io::Result<()> {
    let log = log_of(database);
    if log.is_some() && note_in(&mut lock).ok() == log {
        return Ok(());
    }
    let directory = database.parent().expect("it lies in the state directory");
    fs::File::open(directory)?.sync_all()?;
    lock.set_len(0)?;
    lock.write_all_at(log.unwrap_or_default().as_bytes(), 0)
}

/// Opens a file of ours, or makes it.
fn open_or_make(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    open_regular(options.mode(0o600), path)
}

/// Has a database that nobody else may read at `path`: SQLite would make one that everybody may
/// read whom the umask lets in, and its companions take over the permissions of the database. The
/// lock of those who open is held.
///
/// An existing file is never opened here: closing any descriptor of a file releases all locks that
/// the process has on it (fcntl(2)), and SQLite's connections depend on these locks.
fn make_private_database(path: &Path) -> Result<(), PathError> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_file() => meta,
        // Made by nobody else meanwhile, or no file, which is refused.
        _ => {
            let made = open_or_make(path).map_err(PathError::at("open", path))?;
            made.metadata().map_err(PathError::at("look at", path))?
        }
    };
    if meta.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))
            .map_err(PathError::at("make private", path))?;
    }
    Ok(())
}

fn refuse_old_sqlite() -> Result<(), StateError> {
    if rusqlite::version_number() < OLDEST_SQLITE {
        return Err(StateError::Unsupported(format!(
            "SQLite {} is older than 3.51.3",
            rusqlite::version()
        )));
    }
    Ok(())
}

/// Says which database is damaged, which SQLite does not, or newer.
pub(super) fn naming(path: &Path, error: StateError) -> StateError {
    match error {
        StateError::VersionTooNew {
            found, supported, ..
        } => StateError::VersionTooNew {
            path: path.to_owned(),
            found,
            supported,
        },
        StateError::Sqlite(source) if is_damage(&source) => StateError::Corrupt {
            detail: format!("{}: {source}", path.display()),
        },
        error => error,
    }
}

/// Whether it has a write-ahead log.
fn is_written_ahead(connection: &Connection) -> Result<bool, StateError> {
    let mode: String = connection.query_row("PRAGMA journal_mode", (), |row| row.get(0))?;
    Ok(mode.eq_ignore_ascii_case("wal"))
}

fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    matches!(
        error.sqlite_error_code(),
        Some(DatabaseCorrupt | NotADatabase)
    )
}

/// With this many pages in the log, the next commit folds them into the database. Opening a
/// database that no other process has open reads all of its log, at five microseconds a page.
const MAX_LOG_PAGES: u32 = 250;

/// The file of a log of so many pages: its header, and one before each page.
const MAX_LOG_BYTES: u64 = 32 + (24 + 4096) * MAX_LOG_PAGES as u64;

pub(super) fn connect(path: &Path) -> Result<Connection, StateError> {
    use rusqlite::OpenFlags;
    use rusqlite::config::DbConfig;
    let connection = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW,
    )?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(MAX_PREPARED);
    row_sum::register(&connection)?;
    // What is in the log is as durable as what is in the database, and to fold it in takes syncs.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.execute_batch(&format!(
        "PRAGMA synchronous = FULL;
         PRAGMA foreign_keys = ON;
         PRAGMA trusted_schema = OFF;
         PRAGMA wal_autocheckpoint = {MAX_LOG_PAGES};
         PRAGMA journal_size_limit = {MAX_LOG_BYTES};",
    ))?;
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

/// Fails on what is not ours, or newer than we are; an empty file is neither. Answers with the
/// version. Changes nothing.
fn refuse_other_databases(
    connection: &mut Connection,
    path: &Path,
    supported: i64,
) -> Result<i64, StateError> {
    // In one transaction, because another process may be making the database at this moment.
    let transaction = connection.transaction()?;
    let found = pragma(&transaction, "user_version")?;
    let owner = pragma(&transaction, "application_id")?;
    let tables: i64 =
        transaction.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0))?;
    drop(transaction);
    if tables == 0 && found == 0 && owner == 0 {
        return Ok(found);
    }
    if owner != APPLICATION_ID {
        return Err(StateError::Corrupt {
            detail: format!("{} is the database of another program", path.display()),
        });
    }
    if found < 1 {
        return Err(StateError::Corrupt {
            detail: format!("{} has tables and the version {found}", path.display()),
        });
    }
    if found > supported {
        return Err(StateError::VersionTooNew {
            path: path.to_owned(),
            found,
            supported,
        });
    }
    Ok(found)
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

pub(super) fn pragma(connection: &Connection, name: &str) -> Result<i64, rusqlite::Error> {
    connection.query_row(&format!("PRAGMA {name}"), (), |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::id::SessionId;
    use crate::state::StateStore as _;
    use crate::state::change::Change;
    use crate::state::sqlite::tests::{note, sequences, started};

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
    fn a_database_whose_version_was_lost_is_corrupt_and_left_as_it_is() {
        for version in [0, -5] {
            let state = tempfile::tempdir().unwrap();
            drop(started(state.path(), "s"));
            let path = state.path().join(DATABASE);
            let disk = Connection::open(&path).unwrap();
            disk.execute_batch(&format!("PRAGMA user_version = {version}"))
                .unwrap();
            disk.close().unwrap();
            let before = fs::read(&path).unwrap();
            let refused = SqliteStore::open(state.path()).unwrap_err();
            let said = refused.to_string();
            assert!(matches!(refused, StateError::Corrupt { .. }), "{said}");
            assert!(
                said.ends_with(&format!("has tables and the version {version}")),
                "{said}"
            );
            assert_eq!(fs::read(&path).unwrap(), before);
        }
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

    // The reader's locks went with the descriptor of whoever opened the database to write, and any
    // other process could take the log away from under both
    #[test]
    fn who_opens_a_database_leaves_the_locks_of_others_in_this_process_alone() {
        let state = tempfile::tempdir().unwrap();
        let first = SqliteStore::open(state.path()).unwrap();
        let path = state.path().join(DATABASE);
        let inode = format!(":{} ", fs::metadata(&path).unwrap().ino());
        let is_locked = || {
            let locks = fs::read_to_string("/proc/locks").unwrap();
            let mut its = locks.lines().filter(|line| line.contains("POSIX"));
            its.any(|line| line.contains(&inode))
        };
        assert!(is_locked(), "a connection holds one");
        let second = SqliteStore::open(state.path()).unwrap();
        assert!(is_locked(), "with another connection");
        drop(second);
        assert!(is_locked(), "after it");
        drop(first);
        assert!(!is_locked());
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
