//! Removing events, runs and sessions that need not be kept.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rusqlite::{Connection, params};

use super::events::Appended;
use super::events::last_sequence;
use super::removals::{BEING_REMOVED, check_being_removed, conflict};
use super::values::{count, id, limit, nanoseconds};
use crate::events::floor::{EventFloor, EventPlace};
use crate::id::{RunId, SessionId};
use crate::records::session_need::SessionNeed;
use crate::state::change::{DueSession, SessionExtent, SessionRemoval};
use crate::state::error::StateError;
use crate::state::row_sum::{self, damaged};

/// The name of all sessions in `event_floors`.
const ALL: &str = "";

/// Removes events, and the rows of the artifacts that have their data.
pub(super) fn forget_events(
    transaction: &Connection,
    events: &[EventPlace],
) -> Result<(), StateError> {
    let mut floors: BTreeMap<&str, EventFloor> = BTreeMap::new();
    let mut remove_event = transaction.prepare_cached(
        "DELETE FROM events WHERE position = ?1 AND session_id = ?2 AND sequence = ?3",
    )?;
    let mut remove_data = transaction
        .prepare_cached("DELETE FROM artifacts WHERE key = ?1 AND deleted_at IS NULL")?;
    for event in events {
        let session_id = event.session_id.as_str();
        let removed = remove_event.execute(params![
            count(event.position),
            session_id,
            count(event.sequence)
        ])?;
        // Where somebody else has removed it, one that was sent again has the data.
        if let Some(key) = event.data_ref.as_ref().filter(|_| removed > 0) {
            remove_data.execute(params![key])?;
        }
        for (name, sequence) in [(session_id, event.sequence), (ALL, 0)] {
            let floor = floors.entry(name).or_default();
            floor.sequence = floor.sequence.max(sequence);
            floor.position = floor.position.max(event.position);
        }
    }
    for (name, floor) in floors {
        raise_floor(transaction, name, floor)?;
    }
    Ok(())
}

/// Writes up to where events were removed, so that what was counted before goes on being counted.
fn raise_floor(
    transaction: &Connection,
    name: &str,
    removed: EventFloor,
) -> Result<(), StateError> {
    let floor = event_floor(transaction, name)?;
    let sequence = count(floor.sequence.max(removed.sequence));
    let position = count(floor.position.max(removed.position));
    transaction
        .prepare_cached(
            "INSERT OR REPLACE INTO event_floors (session_id, sequence, position, row_sum)
             VALUES (?1, ?2, ?3, row_sum('event_floors', ?1, ?2, ?3))",
        )?
        .execute(params![name, sequence, position])?;
    transaction
        .prepare_cached(
            "UPDATE sessions SET sequence_floor = ?2 WHERE id = ?1 AND sequence_floor < ?2",
        )?
        .execute(params![name, sequence])?;
    // They lead to what is not there. The latest stays, with which the next one is compared.
    transaction
        .prepare_cached(
            "DELETE FROM event_times
              WHERE session_id = ?1
                AND position < (SELECT coalesce(min(position), 0) FROM events)
                AND latest < (SELECT max(latest) FROM event_times WHERE session_id = ?1)",
        )?
        .execute(params![name])?;
    Ok(())
}

/// Up to where the events of this name were removed.
pub(super) fn event_floor(connection: &Connection, name: &str) -> Result<EventFloor, StateError> {
    let mut statement = connection.prepare_cached(concat!(
        "SELECT session_id, sequence, position, ",
        damaged!(event_floors),
        " FROM event_floors WHERE session_id = ?1"
    ))?;
    let mut rows = statement.query(params![name])?;
    let Some(row) = rows.next()? else {
        return Ok(EventFloor::default());
    };
    row_sum::check(row)?;
    Ok(EventFloor {
        sequence: row.get::<_, i64>(1)?.unsigned_abs(),
        position: row.get::<_, i64>(2)?.unsigned_abs(),
    })
}

/// The tables with rows of a run that go with it. What has an owner beside the run stays, or goes
/// in its own way.
const OF_RUNS: &str = "
    SELECT t.name FROM sqlite_schema AS t, pragma_table_info(t.name) AS c
     WHERE t.type = 'table' AND c.name = 'run_id'
       AND t.name NOT IN ('events', 'snapshots', 'artifacts', 'restores')";

/// The tables with rows of a session that go with it.
const OF_SESSIONS: &str = "
    SELECT t.name FROM sqlite_schema AS t, pragma_table_info(t.name) AS c
     WHERE t.type = 'table' AND c.name = 'session_id'
       AND t.name NOT IN ('runs', 'events', 'snapshots', 'restores', 'event_floors')";

/// Deletes from the tables that `tables` finds what belongs to `owner`.
fn delete_of(
    transaction: &Connection,
    tables: &str,
    column: &str,
    owner: &str,
) -> Result<(), StateError> {
    let mut names = transaction.prepare_cached(tables)?;
    let mut rows = names.query(())?;
    while let Some(row) = rows.next()? {
        let table: String = row.get(0)?;
        transaction
            .prepare_cached(&format!("DELETE FROM {table} WHERE {column} = ?1"))?
            .execute(params![owner])?;
    }
    Ok(())
}

/// Removes runs that have ended.
pub(super) fn forget_runs(transaction: &Connection, ids: &[RunId]) -> Result<(), StateError> {
    // Rows of one run refer to one another; until the end of the transaction that may be broken.
    transaction.execute_batch("PRAGMA defer_foreign_keys = ON")?;
    for id in ids {
        let is_under_way: bool = transaction
            .prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM runs WHERE id = ?1 AND ended_at IS NULL)",
            )?
            .query_row(params![id.as_str()], |row| row.get(0))?;
        if is_under_way {
            return Err(StateError::Conflict {
                what: format!("run {id}"),
                expected: "ended".to_owned(),
                found: "under way".to_owned(),
            });
        }
        delete_of(transaction, OF_RUNS, "run_id", id.as_str())?;
        transaction
            .prepare_cached("DELETE FROM runs WHERE id = ?1")?
            .execute(params![id.as_str()])?;
    }
    Ok(())
}

/// Begins to remove a session, if that is as it was looked at and nothing needs it.
pub(super) fn begin_removal(
    transaction: &Connection,
    removal: &SessionRemoval,
    appended: &mut Appended,
) -> Result<(), StateError> {
    appended.look_again(&removal.id);
    let (id, at) = (&removal.id, nanoseconds(removal.at));
    if !is_removable(transaction, removal)? || session_extent(transaction, id)? != removal.seen {
        return Err(conflict(id, "ended and needed by nothing", "in use"));
    }
    let begun = transaction.execute(
        "INSERT INTO removals (session_id, begun_at, row_sum)
         VALUES (?1, ?2, row_sum('removals', ?1, ?2)) ON CONFLICT (session_id) DO NOTHING",
        params![id.as_str(), at],
    )?;
    if begun == 0 {
        return Err(conflict(id, "kept", BEING_REMOVED));
    }
    transaction.execute(
        "UPDATE artifacts SET deleted_at = ?2 WHERE session_id = ?1 AND deleted_at IS NULL",
        params![id.as_str(), at],
    )?;
    Ok(())
}

/// The sessions that are being removed.
pub(super) fn removals(connection: &Connection) -> Result<Vec<SessionId>, StateError> {
    let mut statement = connection.prepare_cached(concat!(
        "SELECT session_id, ",
        damaged!(removals),
        " FROM removals ORDER BY begun_at"
    ))?;
    let mut rows = statement.query(())?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        row_sum::check(row)?;
        found.push(id(row.get(0)?)?);
    }
    Ok(found)
}

/// How much was ever written to a session.
pub(super) fn session_extent(
    connection: &Connection,
    id: &SessionId,
) -> Result<SessionExtent, StateError> {
    let mut artifacts =
        connection.prepare_cached("SELECT count(*) FROM artifacts WHERE session_id = ?1")?;
    Ok(SessionExtent {
        last_sequence: last_sequence(connection, id)?.unsigned_abs(),
        artifacts: artifacts
            .query_row(params![id.as_str()], |row| row.get::<_, i64>(0))?
            .unsigned_abs(),
    })
}

/// Removes a session that is being removed and has nothing left.
pub(super) fn forget_session(transaction: &Connection, id: &SessionId) -> Result<(), StateError> {
    check_being_removed(transaction, id)?;
    let has_more: bool = transaction
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM runs WHERE session_id = ?1)
                 OR EXISTS (SELECT 1 FROM events WHERE session_id = ?1)",
        )?
        .query_row(params![id.as_str()], |row| row.get(0))?;
    if has_more {
        return Err(conflict(id, "without runs and events", "in use"));
    }
    delete_of(transaction, OF_SESSIONS, "session_id", id.as_str())?;
    transaction
        .prepare_cached("DELETE FROM sessions WHERE id = ?1")?
        .execute(params![id.as_str()])?;
    Ok(())
}

/// Which of the sessions `own` that have ended is needed, and by what, as `SessionNeed::stored`
/// takes it; null: by nothing.
macro_rules! needed_by {
    () => {
        "CASE
            WHEN EXISTS (SELECT 1 FROM runs WHERE session_id = own.id AND ended_at IS NULL)
            THEN 'run'
            WHEN own.id IN (SELECT session_id FROM snapshots)
              OR EXISTS (SELECT 1 FROM runs AS r
                          WHERE r.session_id = own.id
                            AND r.id IN (SELECT run_id FROM snapshots))
            THEN 'snapshot'
            WHEN own.id IN (SELECT session_id FROM restores)
            THEN 'restore'
            -- What is a prompt of an agent in a run of another session goes with that. The keys of
            -- all prompts are looked up once.
            WHEN EXISTS (
                 SELECT 1 FROM artifacts AS a
                  WHERE a.session_id = own.id AND a.deleted_at IS NULL
                    AND a.key IN (SELECT p.value FROM agents, json_each(prompts) AS p)
                    AND EXISTS (
                        SELECT 1 FROM agents AS g JOIN runs AS r ON r.id = g.run_id,
                               json_each(g.prompts) AS p
                         WHERE p.value = a.key AND r.session_id <> own.id))
            THEN 'prompt'
            -- The latest operation of a workspace says what an undo is about, though its snapshots
            -- are gone.
            WHEN EXISTS (
                 SELECT 1 FROM operations AS o
                  WHERE session_id = own.id
                    AND (NOT EXISTS (SELECT 1 FROM operations AS later
                                      WHERE later.workspace_id = o.workspace_id
                                        AND later.position > o.position)
                     OR EXISTS (SELECT 1 FROM snapshots WHERE id = o.before_snapshot)
                     OR EXISTS (SELECT 1 FROM snapshots WHERE id = o.after_snapshot)))
            THEN 'undo'
            WHEN EXISTS (SELECT 1 FROM runs AS r JOIN effects AS e ON e.run_id = r.id
                          WHERE r.session_id = own.id AND e.status = 'pending')
            THEN 'effect'
            WHEN EXISTS (SELECT 1 FROM runs AS r JOIN isolations AS i ON i.run_id = r.id
                          WHERE r.session_id = own.id AND i.let_go_at IS NULL)
            THEN 'worktree'
            -- Where the engine needs an event of a session, the session stays.
            WHEN EXISTS (
                 SELECT 1 FROM events
                  WHERE session_id = own.id
                    AND type IN ('workspace_cleaned_up', 'workspace_retention_announced',
                                 'workspace_rolled_back')
                    AND (type <> 'workspace_rolled_back' OR instr(data, 'refs/tags/')))
            THEN 'event'
         END"
    };
}

/// Sessions that have ended and are due, the oldest first, with what needs them.
pub(super) fn due_sessions(
    connection: &Connection,
    ended_before: Option<Timestamp>,
    keep: Option<u64>,
) -> Result<Vec<DueSession>, StateError> {
    let mut statement = connection.prepare_cached(concat!(
        "SELECT id, ",
        damaged!(sessions),
        ", ",
        needed_by!(),
        " FROM sessions AS own
          WHERE ended_at IS NOT NULL
            AND (ended_at < ?1 OR id IN (
                 SELECT id FROM sessions WHERE ended_at IS NOT NULL
                  ORDER BY ended_at DESC, rowid DESC LIMIT -1 OFFSET ?2))
          ORDER BY ended_at, rowid"
    ))?;
    let mut rows = statement.query(params![
        ended_before.map(nanoseconds),
        keep.map_or(i64::MAX, |keep| limit(Some(keep))),
    ])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        row_sum::check(row)?;
        found.push(DueSession {
            id: id(row.get(0)?)?,
            needed_by: need(row.get(2)?)?,
        });
    }
    Ok(found)
}

/// Whether a session is one of [`due_sessions`] that nothing needs. The writer asks this for each
/// one that goes, however many there are.
fn is_removable(connection: &Connection, removal: &SessionRemoval) -> Result<bool, StateError> {
    let mut statement = connection.prepare_cached(concat!(
        "SELECT id, ",
        damaged!(sessions),
        ", ",
        needed_by!(),
        " FROM sessions AS own
          WHERE id = ?3 AND ended_at IS NOT NULL
            AND (ended_at < ?1 OR ?2 IS NOT NULL AND ?2 <= (
                 SELECT count(*) FROM (
                     SELECT 1 FROM sessions AS later
                      WHERE later.ended_at > own.ended_at
                         OR later.ended_at = own.ended_at AND later.rowid > own.rowid
                      LIMIT ?2)))"
    ))?;
    let mut rows = statement.query(params![
        removal.ended_before.map(nanoseconds),
        removal.keep.map(|keep| limit(Some(keep))),
        removal.id.as_str(),
    ])?;
    let Some(row) = rows.next()? else {
        return Ok(false);
    };
    row_sum::check(row)?;
    Ok(need(row.get(2)?)?.is_none())
}

/// What needs a session, as a statement says.
fn need(stored: Option<String>) -> Result<Option<SessionNeed>, StateError> {
    let Some(stored) = stored else {
        return Ok(None);
    };
    let need = SessionNeed::stored(&stored);
    let unknown = || StateError::Corrupt {
        detail: format!("{stored:?} needs a session"),
    };
    need.map(Some).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::session::SessionStatus;
    use crate::state::StateStore as _;
    use crate::state::change::Change;
    use crate::state::new_session;
    use crate::state::sqlite::SqliteStore;

    // Two statements said which sessions may go, each in its own words.
    #[test]
    fn a_session_may_be_removed_if_it_is_due_and_nothing_needs_it() {
        let state = tempfile::tempdir().unwrap();
        let mut store = SqliteStore::open(state.path()).unwrap();
        let at = |second| Timestamp::from_second(second).unwrap();
        // Some ended together, and not in the order in which they began.
        let ends = [Some(30), None, Some(10), Some(30), Some(20), Some(10)];
        let ids: Vec<SessionId> = (0..ends.len())
            .map(|at| format!("s{at}").parse().unwrap())
            .collect();
        for (id, end) in ids.iter().zip(ends) {
            store.commit(&new_session::creation(id, at(1))).unwrap();
            let ended = end.map(|end| Change::MoveSession {
                id: id.clone(),
                from: SessionStatus::Active,
                version: 2,
                to: SessionStatus::Completed,
                at: at(end),
            });
            store
                .commit(&ended.into_iter().collect::<Vec<_>>())
                .unwrap();
        }
        // The engine needs an event of it.
        let needed = "UPDATE events SET type = 'workspace_cleaned_up'
                       WHERE session_id = 's4' AND sequence = 1";
        store.connection.execute(needed, ()).unwrap();

        let times = [None, Some(at(10)), Some(at(20)), Some(at(31))];
        let keeps = [None, Some(0), Some(1), Some(2), Some(3), Some(9)];
        let mut seen = std::collections::BTreeSet::new();
        for (ended_before, keep) in times.into_iter().flat_map(|t| keeps.map(|k| (t, k))) {
            let due = due_sessions(&store.connection, ended_before, keep).unwrap();
            seen.insert(due.len());
            for id in &ids {
                let found = due.iter().find(|session| session.id == *id);
                let removal = SessionRemoval {
                    id: id.clone(),
                    ended_before,
                    keep,
                    seen: SessionExtent::default(),
                    at: at(40),
                };
                let may_go = is_removable(&store.connection, &removal).unwrap();
                let expected = found.is_some_and(|session| session.needed_by.is_none());
                assert_eq!(may_go, expected, "{removal:?}");
                let needed_by = found.and_then(|session| session.needed_by);
                let expected = found.filter(|_| id.as_str() == "s4");
                assert_eq!(needed_by, expected.map(|_| SessionNeed::Event));
            }
        }
        assert_eq!(seen, (0..=5).filter(|count| *count != 1).collect());
    }
}
