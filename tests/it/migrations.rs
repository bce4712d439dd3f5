//! A database of an earlier version on a machine that does not let it be migrated. Databases that
//! are migrated, of every version, are in `engine/src/state/earlier_versions.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use rusqlite::Connection;
use rusqlite::types::Value;
use stillframe_tests::capability::{Mounts, can_inject};
use stillframe_tests::{Output, TestWorkspace};

const VERSION: i64 = 2;

/// Makes a database of version 2, as the engine of that version did.
fn make(database: &Path) {
    // SQLite follows links, and would leave the namespace of another process by its path.
    let made = tempfile::NamedTempFile::new().unwrap();
    let connection = Connection::open(made.path()).unwrap();
    let rows = [
        include_str!("../../engine/src/state/migrations/0001.sql"),
        include_str!("../../engine/src/state/migrations/0002.sql"),
        include_str!("../../engine/src/state/fixtures/0001.sql"),
        include_str!("../../engine/src/state/fixtures/0002.sql"),
    ];
    let rows = rows.concat();
    let rows = rows.replace("@PATH@", "2f6e6f7768657265");
    connection
        .execute_batch(&format!(
            "PRAGMA journal_mode = WAL; {rows}
             PRAGMA user_version = {VERSION}; PRAGMA application_id = {};",
            0x5374_696c
        ))
        .unwrap();
    connection.close().unwrap();
    fs::copy(made.path(), database).unwrap();
}

/// The version, and every value that version 2 had: of a copy, since to look is to recover.
fn content(state: &Path) -> (i64, BTreeMap<String, Vec<Vec<Value>>>) {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(state).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name == "stillframe.db" || name == "stillframe.db-wal" {
            fs::copy(&path, copy.path().join(name)).unwrap();
        }
    }
    let connection = Connection::open(copy.path().join("stillframe.db")).unwrap();
    let of_version_2 = Connection::open_in_memory().unwrap();
    of_version_2
        .execute_batch(concat!(
            include_str!("../../engine/src/state/migrations/0001.sql"),
            include_str!("../../engine/src/state/migrations/0002.sql")
        ))
        .unwrap();
    let mut tables = of_version_2
        .prepare(
            "SELECT t.name, group_concat(c.name)
               FROM sqlite_schema AS t, pragma_table_info(t.name) AS c
              WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%' GROUP BY t.name",
        )
        .unwrap();
    let tables = tables.query_map((), |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
    });
    let version = connection.query_row("PRAGMA user_version", (), |row| row.get::<_, i64>(0));
    let version = version.unwrap();
    let mut all = BTreeMap::new();
    for (table, columns) in tables.unwrap().map(Result::unwrap) {
        // It has another name since version 8.
        let columns = match version {
            ..8 => columns,
            _ => columns.replace("last_sequence", "sequence_floor"),
        };
        let count = columns.split(',').count();
        let mut rows = connection
            .prepare(&format!("SELECT {columns} FROM {table} ORDER BY rowid"))
            .unwrap();
        let rows = rows.query_map((), |row| (0..count).map(|at| row.get(at)).collect());
        all.insert(table, rows.unwrap().map(Result::unwrap).collect());
    }
    (version, all)
}

/// Events and sessions alone: runs that an engine left are settled by whoever opens.
fn events_are_there(output: Output) {
    let events = output.ok().json_lines();
    let numbers = events
        .iter()
        .map(|event| event["sequence"].as_u64().unwrap());
    assert!(numbers.eq(1..=events.len() as u64), "{events:?}");
    assert!(events.len() >= 11, "{events:?}");
    assert_eq!(events[10]["id"], "evt_13");
}

#[test]
fn a_migration_that_is_killed_leaves_the_old_version_or_the_new_one() {
    if !can_inject() {
        return;
    }
    let mut endings = BTreeSet::new();
    for call in ["write", "pwrite64", "fdatasync", "fsync", "ftruncate"] {
        for nth in (1..).map(|i: u32| 1 << (i - 1)) {
            let mut ws = TestWorkspace::plain();
            ws.damages_the_store();
            fs::create_dir(ws.state()).unwrap();
            make(&ws.state().join("stillframe.db"));
            let (_, before) = content(&ws.state());
            let trace = format!("trace={call}");
            let inject = format!("inject={call}:signal=KILL:when={nth}");
            let strace = ["-f", "-o", "/dev/null", "-e", &trace, "-e", &inject];
            let killed = ws
                .call(["--json", "verify"])
                .through("strace", strace)
                .run();
            let was_killed = killed.stdout.is_empty();
            let (version, after) = content(&ws.state());
            let what = format!("killed at {call} {nth}");
            if version == VERSION {
                assert!(after == before, "{what}: as it was");
            } else {
                for table in ["snapshots", "operations", "artifacts"] {
                    assert_eq!(after[table], before[table], "{what}");
                }
                assert!(ws.state().join("stillframe.db.v2.bak").exists(), "{what}");
            }
            if was_killed {
                endings.insert(version);
            }
            events_are_there(ws.try_json(["events", "--session", "ticket"]));
            if !was_killed || nth > 4096 {
                break;
            }
        }
    }
    assert_eq!(endings.len(), 2, "both endings were seen: {endings:?}");
}

#[test]
fn a_database_for_whose_migration_there_is_no_room_stays_as_it_is() {
    let Some(mounts) = Mounts::new() else { return };
    let mut ws = TestWorkspace::plain();
    ws.damages_the_store();
    fs::create_dir(ws.state()).unwrap();
    mounts.tmpfs(&ws.state(), "8m");
    let state = ws.state().display().to_string();
    mounts.shell(&format!("chmod 700 '{state}'"));
    let seen = mounts.path(&ws.state());
    make(&seen.join("stillframe.db"));
    let (_, before) = content(&seen);
    let events = |ws: &TestWorkspace| {
        let call = ws.call(["--json", "events", "--session", "ticket"]);
        mounts.inside(call, ws.root()).run()
    };
    let mut refused = 0;
    for free_kib in (0..).step_by(24) {
        mounts.shell(&format!(
            "cat /dev/zero > '{state}/fill' 2>/dev/null
             size=$(stat -c %s '{state}/fill'); truncate -s $((size - {free_kib} * 1024)) '{state}/fill'"
        ));
        let output = events(&ws);
        if output.code == 0 {
            break;
        }
        let message = output.refused("NoSpace");
        assert!(message.contains("has "), "{message}");
        let (version, after) = content(&seen);
        if version == VERSION {
            assert!(after == before, "with {free_kib} KiB free");
            refused += 1;
        }
        fs::remove_file(seen.join("fill")).unwrap();
        assert!(free_kib < 4096, "it has to go at some time");
    }
    assert!(refused > 1, "it was refused at several places: {refused}");
    let _ = fs::remove_file(seen.join("fill"));
    events_are_there(events(&ws));
}

#[test]
fn a_database_of_an_earlier_version_that_cannot_be_written_stays_as_it_is() {
    let Some(mounts) = Mounts::new() else { return };
    let mut ws = TestWorkspace::plain();
    ws.damages_the_store();
    fs::create_dir(ws.state()).unwrap();
    mounts.tmpfs(&ws.state(), "8m");
    let state = ws.state().display().to_string();
    mounts.shell(&format!("chmod 700 '{state}'"));
    let seen = mounts.path(&ws.state());
    make(&seen.join("stillframe.db"));
    let before = fs::read(seen.join("stillframe.db")).unwrap();
    mounts.shell(&format!("mount -o remount,ro '{state}'"));
    let events = |ws: &TestWorkspace| {
        let call = ws.call(["--json", "events", "--session", "ticket"]);
        mounts.inside(call, ws.root()).run()
    };
    // What is there is told from a copy; whoever would write is refused.
    events_are_there(events(&ws));
    let snapshot = mounts.inside(ws.call(["--json", "snapshot"]), ws.root());
    let message = snapshot.run().refused("Storage");
    assert!(
        message.ends_with(&format!("{state} cannot be written")),
        "{message}"
    );
    assert!(!seen.join("stillframe.db.v2.bak").exists());
    assert_eq!(fs::read(seen.join("stillframe.db")).unwrap(), before);
    mounts.shell(&format!("mount -o remount,rw '{state}'"));
    events_are_there(events(&ws));
    assert!(seen.join("stillframe.db.v2.bak").exists());
}
