//! The state in SQLite: write-ahead log, every commit synced.

mod agents;
mod allowed_findings;
mod artifacts;
mod branches;
mod came_for;
mod changes;
mod checkpoints;
mod copied;
mod effects;
mod events;
mod follow_ups;
mod forgetting;
mod interrupted;
mod isolations;
mod leases;
mod lost;
mod notices;
mod opening;
mod packed;
mod pins;
mod quarantine;
mod questions;
mod queue;
mod queue_state;
mod removals;
mod restores;
mod reviews;
mod run_state;
mod run_totals;
mod runs;
mod sessions;
mod snapshots;
mod steps;
mod tool_calls;
mod values;
mod work_tasks;

use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::{Connection, Row, TransactionBehavior, params};
use stillframe_backends::{ErrorKind, Label, SnapshotId};

use crate::events::event::Event;
use crate::events::floor::EventFloor;
use crate::events::query::EventQuery;
use crate::id::{EventId, QuestionId, RunId, SessionId};
use crate::policy::used::UsedTotal;
use crate::records::agent::AgentRecord;
use crate::records::artifact::{ArtifactRecord, SessionStats};
use crate::records::effect::{CommitRecord, EffectRow};
use crate::records::isolation::IsolationRow;
use crate::records::lease::Lease;
use crate::records::operation::OperationRow;
use crate::records::question::QuestionRow;
use crate::records::queue::{Legible, QueueRow, TakenRow};
use crate::records::restore_document::RestoreRow;
use crate::records::review::ReviewRecord;
use crate::records::revision::RevisionRow;
use crate::records::run_row::RunRow;
use crate::records::run_state::{StateTransition, StateValue};
use crate::records::run_totals::RunTotals;
use crate::records::session::{SessionDetails, SessionRow};
use crate::records::snapshot::{PinRow, SnapshotRow};
use crate::records::step::{PhaseKey, PhaseRow, StepRow};
use crate::records::task::TaskRow;
use crate::records::tool_call::ToolCallRow;
use crate::state::change::{Change, DueSession, SessionExtent};
use crate::state::error::StateError;
use crate::state::hold::Hold;
use crate::state::row_sum::{self, damaged};
use crate::state::{RunFilter, SessionFilter, SnapshotFilter, StateStore};

use agents::{SELECT_AGENT, read_agent};
use artifacts::{SELECT_ARTIFACT, read_artifact};
use changes::apply;
use effects::{SELECT_COMMIT, SELECT_EFFECT, read_commit, read_effect};
use events::{
    Appended, SELECT_EVENT_TIME, SELECT_LAST_POSITION, SELECT_NEXT_EVENT_TIME, find_event,
    read_event, select_events, types_of,
};
use forgetting::{due_sessions, event_floor, removals, session_extent};
use isolations::{SELECT_ISOLATION, SELECT_REVISIONS, read_isolation, read_revision};
use leases::{SELECT_LEASE, fence, read_lease};
use opening::pragma;
use pins::{SELECT_PIN, read_pin};
use questions::{SELECT_QUESTION, read_question};
use queue::{HEADS, SELECT_QUEUE, read_queue, read_taken};
use removals::check_accepts;
use restores::{SELECT_RESTORE, read_restore};
use reviews::{SELECT_REVIEW, read_review};
use run_state::{
    SELECT_STATE_TRANSITION, SELECT_STATE_VALUE, read_state_transition, read_state_value,
};
use run_totals::{
    SELECT_LAST_AT, SELECT_TOTALS, SELECT_USED, read_last_at, read_totals, read_used,
};
use runs::{SELECT_RUN, read_run};
use sessions::{SELECT_DETAILS, SELECT_SESSION, read_details, read_session, select_sessions};
use snapshots::{
    LABEL_IS, LABEL_IS_NOT, SELECT_OPERATION, SELECT_SNAPSHOT, read_operation, read_snapshot,
};
use steps::{SELECT_PHASE, SELECT_STEP, SELECT_TASK, read_phase, read_step, read_task};
use tool_calls::{SELECT_TOOL_CALL, read_tool_call};
use values::{all_of, count, id, json, limit, nanoseconds};

#[cfg(test)]
pub(super) use opening::MIGRATIONS;

/// The name of the database in the state directory.
pub(crate) const DATABASE: &str = "stillframe.db";

/// So many snapshots count as the newest: as many as a run of another backend's may have put before
/// one.
const NEWEST: i64 = 4;

/// So many bytes of the database that are free are worth writing it anew.
const MUCH_FREE: i64 = 1 << 20;

/// The state in one SQLite database. One connection; open another to read beside a writer.
#[derive(Debug)]
pub(crate) struct SqliteStore {
    connection: Connection,
    /// The file of its write-ahead log. SQLite tells its path only where that is UTF-8.
    log: PathBuf,
    /// What SQLite said when it was last asked whether others had committed.
    seen_version: Option<i64>,
}

impl StateStore for SqliteStore {
    fn commit(&mut self, changes: &[Change]) -> Result<Vec<Event>, StateError> {
        let events = match changes.iter().all(Change::is_of_a_capture) {
            // SQLite waits for the directory as well, with every first commit of a connection. Who
            // sees such a row before it is durable sees what the store has already.
            true => {
                let events = self.synced_by_us(|store| store.apply_all(changes))?;
                self.sync_log()?;
                events
            }
            false => self.apply_all(changes)?,
        };
        if changes.iter().any(|change| matches!(change, Change::Scrub)) {
            self.scrub()?;
        }
        if changes
            .iter()
            .any(|change| matches!(change, Change::Compact))
        {
            self.compact()?;
        }
        Ok(events)
    }

    fn commit_each(&mut self, batches: &[&[Change]]) -> Vec<Result<Vec<Event>, StateError>> {
        let is_alone = |change: &Change| matches!(change, Change::Scrub | Change::Compact);
        let together = match batches {
            [] | [_] => None,
            several if several.iter().copied().flatten().any(is_alone) => None,
            // Mostly none is refused, and to be able to undo one of them costs each.
            several => match self.apply_together(several) {
                Ok(answers) => Some(answers.into_iter().map(Ok).collect()),
                // It was waited for long enough.
                Err(e) if e.kind() == ErrorKind::Busy => {
                    let error = Arc::new(e);
                    let each = |_| Err(StateError::OfAll(Arc::clone(&error)));
                    Some(several.iter().map(each).collect())
                }
                Err(_) => self.apply_each(several).ok(),
            },
        };
        // Whatever kept them from being written together, each hears of its own error.
        together.unwrap_or_else(|| batches.iter().map(|batch| self.commit(batch)).collect())
    }

    fn is_changed_by_others(&mut self) -> Result<bool, StateError> {
        // What this connection itself commits does not change it.
        let version = pragma(&self.connection, "data_version")?;
        Ok(self.seen_version.replace(version) != Some(version))
    }

    fn has_long_log(&self) -> bool {
        self.has_outgrown_log()
    }

    fn fold(&mut self) -> Result<(), StateError> {
        let pragma = "PRAGMA wal_checkpoint(PASSIVE)";
        let (pages, folded): (i64, i64) = self
            .connection
            .query_row(pragma, (), |row| Ok((row.get(1)?, row.get(2)?)))?;
        if pages == 0 || pages != folded {
            return Ok(());
        }
        // The next commit restarts the log, and syncs its header before anything follows. So this
        // writes something that changes nothing.
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        for change in ["+ 1", "- 1"] {
            let sql =
                format!("UPDATE sqlite_sequence SET seq = seq {change} WHERE name = 'events'");
            transaction.execute(&sql, ())?;
        }
        Ok(transaction.commit()?)
    }

    fn session(&self, id: &SessionId) -> Result<Option<SessionRow>, StateError> {
        self.one(
            &format!("{SELECT_SESSION} WHERE id = ?1"),
            params![id.as_str()],
            read_session,
        )
    }

    fn sessions(&self, filter: &SessionFilter) -> Result<Vec<SessionRow>, StateError> {
        self.all(
            &select_sessions(filter),
            params![
                (!filter.statuses.is_empty()).then(|| json(&filter.statuses)),
                filter.agent_id,
                filter.parent_id.as_ref().map(SessionId::as_str),
                (!filter.tags.is_empty()).then(|| json(&filter.tags)),
                limit(filter.limit),
            ],
            read_session,
        )
    }

    fn session_details(&self, id: &SessionId) -> Result<SessionDetails, StateError> {
        let found = self.one(SELECT_DETAILS, params![id.as_str()], read_details)?;
        Ok(found.unwrap_or_default())
    }

    fn run(&self, id: &RunId) -> Result<Option<RunRow>, StateError> {
        self.one(
            &format!("{SELECT_RUN} WHERE id = ?1"),
            params![id.as_str()],
            read_run,
        )
    }

    fn runs(&self, filter: &RunFilter) -> Result<Vec<RunRow>, StateError> {
        // Only what is asked for stands in the statement: what may be null is looked up in no
        // index.
        let conditions = [
            (filter.session_id.is_some(), "session_id = ?1"),
            (filter.workspace_id.is_some(), "workspace_id = ?2"),
            (
                !filter.statuses.is_empty(),
                "status IN (SELECT value FROM json_each(?3))",
            ),
            (filter.since.is_some(), "created_at >= ?4"),
            (filter.until.is_some(), "created_at < ?5"),
            (
                filter.in_place,
                "NOT EXISTS (SELECT 1 FROM isolations AS i WHERE i.run_id = runs.id)",
            ),
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

    fn runs_that_begin(
        &self,
        prefixes: &[String],
        workspace_id: Option<&str>,
    ) -> Result<Vec<RunId>, StateError> {
        let mut found = Vec::new();
        for prefix in prefixes {
            found.extend(self.all(
                concat!(
                    "SELECT id, ",
                    damaged!(runs),
                    " FROM runs WHERE substr(id, 1, length(?1)) = ?1",
                    " AND (?2 IS NULL OR workspace_id = ?2) LIMIT 3"
                ),
                params![prefix, workspace_id],
                |row| id(row.get(0)?),
            )?);
        }
        found.sort();
        found.dedup();
        Ok(found)
    }

    fn count_runs_that_begin(
        &self,
        prefixes: &[String; 2],
        workspace_id: Option<&str>,
    ) -> Result<u64, StateError> {
        self.count(
            "SELECT count(*) FROM runs
             WHERE (substr(id, 1, length(?1)) = ?1 OR substr(id, 1, length(?2)) = ?2)
               AND (?3 IS NULL OR workspace_id = ?3)",
            params![prefixes[0], prefixes[1], workspace_id],
        )
    }

    fn runs_not_ended(&self) -> Result<Vec<RunRow>, StateError> {
        self.all(
            // As the index has it, so that it is used.
            &format!(
                "{SELECT_RUN} WHERE status IN ('pending', 'running', 'asking', 'waiting_for_input', 'interrupted',
                       'persisting', 'blocked', 'checkpointing', 'awaiting_followup',
                       'candidate', 'awaiting_review', 'merging')
                   AND NOT EXISTS (SELECT 1 FROM queue WHERE run_id = runs.id AND state = 'waiting')
                 ORDER BY position"
            ),
            (),
            read_run,
        )
    }

    fn queue_row(&self, run_id: &RunId) -> Result<Option<QueueRow>, StateError> {
        self.one(
            &format!("{SELECT_QUEUE} WHERE run_id = ?1"),
            params![run_id.as_str()],
            read_queue,
        )
    }

    fn queued_in(&self, session_id: &SessionId) -> Result<u64, StateError> {
        self.count(
            "SELECT count(*) FROM queue WHERE session_id = ?1 AND state = 'waiting'",
            params![session_id.as_str()],
        )
    }

    fn queue_length(&self) -> Result<u64, StateError> {
        Ok(queue::waiting(&self.connection)?)
    }

    fn queue_heads(&self) -> Result<Legible<QueueRow>, StateError> {
        let mut heads = Legible::default();
        let mut statement = self.connection.prepare_cached(HEADS)?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            match row_sum::check(row).and_then(|()| read_queue(row)) {
                Ok(row) => heads.rows.push(row),
                Err(StateError::Corrupt { detail }) => heads.damaged.push(detail),
                Err(e) => return Err(e),
            }
        }
        Ok(heads)
    }

    fn queue_taken(&self) -> Result<Legible<TakenRow>, StateError> {
        let mut taken = Legible::default();
        let mut statement = self.connection.prepare_cached(&format!(
            "{SELECT_QUEUE} WHERE state IN ('claimed', 'under_way') ORDER BY position"
        ))?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            if let Err(StateError::Corrupt { detail }) = row_sum::check(row) {
                taken.damaged.push(detail);
            }
            match read_taken(row) {
                Ok(row) => taken.rows.push(row),
                Err(StateError::Corrupt { detail }) => taken.damaged.push(detail),
                Err(e) => return Err(e),
            }
        }
        Ok(taken)
    }

    fn queue_waiting(&self) -> Result<Vec<(RunId, String)>, StateError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT run_id, adapter FROM queue WHERE state = 'waiting'
              ORDER BY priority <> 'interactive', position",
        )?;
        let mut rows = statement.query(())?;
        let mut waiting = Vec::new();
        while let Some(row) = rows.next()? {
            waiting.push((id(row.get(0)?)?, row.get(1)?));
        }
        Ok(waiting)
    }

    fn lease(&self, run_id: &RunId) -> Result<Option<Lease>, StateError> {
        self.one(
            &format!("{SELECT_LEASE} WHERE run_id = ?1"),
            params![run_id.as_str()],
            read_lease,
        )
    }

    fn check_holds(&self, hold: &Hold) -> Result<(), StateError> {
        fence(&self.connection, &hold.run_id, hold.epoch)
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

    fn run_totals(&self, run_id: &RunId) -> Result<Option<RunTotals>, StateError> {
        self.one(SELECT_TOTALS, params![run_id.as_str()], read_totals)
    }

    fn used_total(&self, run_id: &RunId) -> Result<UsedTotal, StateError> {
        let found = self.one(SELECT_USED, params![run_id.as_str()], read_used)?;
        Ok(found.unwrap_or_default())
    }

    fn last_event_at(&self, run_id: &RunId) -> Result<Option<Timestamp>, StateError> {
        let found = self.one(SELECT_LAST_AT, params![run_id.as_str()], read_last_at)?;
        Ok(found.flatten())
    }

    fn agents(&self, run_id: &RunId) -> Result<Vec<AgentRecord>, StateError> {
        self.all(
            &format!("{SELECT_AGENT} WHERE run_id = ?1 ORDER BY position"),
            params![run_id.as_str()],
            read_agent,
        )
    }

    fn prompt_keys(&self) -> Result<Vec<String>, StateError> {
        let agents = self.all(SELECT_AGENT, (), read_agent)?;
        Ok(agents.into_iter().flat_map(|agent| agent.prompts).collect())
    }

    fn reviews(
        &self,
        session_id: Option<&SessionId>,
        run_id: Option<&RunId>,
    ) -> Result<Vec<ReviewRecord>, StateError> {
        let conditions = [
            (session_id.is_some(), "session_id = ?1"),
            (run_id.is_some(), "run_id = ?2"),
        ];
        self.all(
            &format!(
                "{SELECT_REVIEW}{} ORDER BY position LIMIT ?3",
                all_of(&conditions)
            ),
            params![
                session_id.map(SessionId::as_str),
                run_id.map(RunId::as_str),
                // With it the statement has as many parameters, whatever is asked for.
                limit(None),
            ],
            read_review,
        )
    }

    fn tool_calls(&self, run_id: &RunId) -> Result<Vec<ToolCallRow>, StateError> {
        self.all(
            &format!("{SELECT_TOOL_CALL} WHERE run_id = ?1 ORDER BY position"),
            params![run_id.as_str()],
            read_tool_call,
        )
    }

    fn state_values(&self, run_id: &RunId) -> Result<Vec<StateValue>, StateError> {
        self.all(
            &format!("{SELECT_STATE_VALUE} WHERE run_id = ?1 ORDER BY key"),
            params![run_id.as_str()],
            read_state_value,
        )
    }

    fn state_value(&self, run_id: &RunId, key: &str) -> Result<Option<StateValue>, StateError> {
        self.one(
            &format!("{SELECT_STATE_VALUE} WHERE run_id = ?1 AND key = ?2"),
            params![run_id.as_str(), key],
            read_state_value,
        )
    }

    fn state_transitions(&self, run_id: &RunId) -> Result<Vec<StateTransition>, StateError> {
        self.all(
            &format!("{SELECT_STATE_TRANSITION} WHERE run_id = ?1 ORDER BY position"),
            params![run_id.as_str()],
            read_state_transition,
        )
    }

    fn events(&self, query: &EventQuery) -> Result<Vec<Event>, StateError> {
        let before_all = self.last_before(query)?;
        let after = query.after_position.unwrap_or(0);
        self.all_checked(
            &select_events(query),
            params![
                count(after.max(before_all)),
                query.session_id.as_ref().map(SessionId::as_str),
                query.run_id.as_ref().map(RunId::as_str),
                types_of(query),
                query.after.map(count),
                query.before.map(count),
                query.since.map(nanoseconds),
                limit(query.limit),
            ],
            read_event,
        )
    }

    fn last_position(&self) -> Result<u64, StateError> {
        self.count(SELECT_LAST_POSITION, ())
    }

    fn event_floor(&self, session_id: Option<&SessionId>) -> Result<EventFloor, StateError> {
        event_floor(&self.connection, session_id.map_or("", SessionId::as_str))
    }

    fn last_position_before(&self, time: Timestamp) -> Result<u64, StateError> {
        let last = self.last_position()?;
        // There is a row for each second that the latest time moves on by: up to the row that
        // follows one, every event is of less than a second later.
        let read =
            |row: &Row<'_>| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(0)?.unsigned_abs()));
        let before = nanoseconds(time)
            .saturating_sub(1_000_000_000)
            .saturating_add(1);
        let Some((latest, _)) = self.one(SELECT_EVENT_TIME, params!["", before], read)? else {
            return Ok(0);
        };
        let next = self.one(SELECT_NEXT_EVENT_TIME, params!["", latest], read)?;
        Ok(next.map_or(last, |(_, position)| position.saturating_sub(1)))
    }

    fn position_before_last(&self, last: u64, but: &[SessionId]) -> Result<u64, StateError> {
        self.count(
            "SELECT coalesce((SELECT position FROM events
                               WHERE session_id NOT IN (SELECT value FROM json_each(?2))
                               ORDER BY position DESC LIMIT 1 OFFSET ?1), 0)",
            params![limit(Some(last)), json(&but)],
        )
    }

    fn due_sessions(
        &self,
        ended_before: Option<Timestamp>,
        keep: Option<u64>,
    ) -> Result<Vec<DueSession>, StateError> {
        due_sessions(&self.connection, ended_before, keep)
    }

    fn removals(&self) -> Result<Vec<SessionId>, StateError> {
        removals(&self.connection)
    }

    fn check_accepts(&self, id: &SessionId) -> Result<(), StateError> {
        check_accepts(&self.connection, id)
    }

    fn session_extent(&self, id: &SessionId) -> Result<SessionExtent, StateError> {
        session_extent(&self.connection, id)
    }

    fn artifact_stores(&self, session_id: &SessionId) -> Result<Vec<String>, StateError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT DISTINCT storage_backend FROM artifacts WHERE session_id = ?1",
        )?;
        let kinds = statement.query_map(params![session_id.as_str()], |row| row.get(0))?;
        Ok(kinds.collect::<Result<_, _>>()?)
    }

    fn artifact_keys(&self, session_id: &SessionId) -> Result<Vec<String>, StateError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT DISTINCT key FROM artifacts AS own WHERE session_id = ?1
                AND NOT EXISTS (SELECT 1 FROM artifacts AS other
                                 WHERE other.key = own.key AND other.deleted_at IS NULL
                                   AND other.session_id <> ?1)",
        )?;
        let mut rows = statement.query(params![session_id.as_str()])?;
        let mut keys = Vec::new();
        while let Some(row) = rows.next()? {
            keys.push(row.get(0)?);
        }
        Ok(keys)
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

    fn find_snapshots(&self, filter: &SnapshotFilter) -> Result<Vec<SnapshotRow>, StateError> {
        let conditions = [
            (true, "workspace_id = ?1"),
            (filter.label.is_some(), LABEL_IS),
            (filter.but.is_some(), LABEL_IS_NOT),
            (filter.since.is_some(), "captured_at >= ?4"),
            (filter.run_id.is_some(), "run_id = ?5"),
            (
                filter.in_place,
                "NOT EXISTS (SELECT 1 FROM isolations AS i WHERE i.run_id = snapshots.run_id)",
            ),
        ];
        let sql = format!(
            "{SELECT_SNAPSHOT}{} ORDER BY position DESC LIMIT ?6 OFFSET ?7",
            all_of(&conditions)
        );
        self.all(
            &sql,
            params![
                filter.workspace_id,
                filter.label.as_ref().map(Label::as_str),
                filter.but.as_ref().map(Label::as_str),
                filter.since.map(nanoseconds),
                filter.run_id.as_ref().map(RunId::as_str),
                limit(filter.limit),
                count(filter.skip),
            ],
            read_snapshot,
        )
    }

    fn snapshot_count(&self, workspace_id: &str) -> Result<u64, StateError> {
        self.count(
            "SELECT count(*) FROM snapshots WHERE workspace_id = ?1",
            params![workspace_id],
        )
    }

    fn snapshot_ids(&self, workspace_id: &str) -> Result<Vec<SnapshotId>, StateError> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT id FROM snapshots WHERE workspace_id = ?1")?;
        let mut rows = statement.query(params![workspace_id])?;
        let mut ids = Vec::new();
        while let Some(row) = rows.next()? {
            ids.push(id(row.get(0)?)?);
        }
        Ok(ids)
    }

    fn is_among_newest(&self, workspace_id: &str, reference: &str) -> Result<bool, StateError> {
        let found = self.count(
            "SELECT EXISTS (
                 SELECT 1 FROM (SELECT document FROM snapshots WHERE workspace_id = ?1
                                 ORDER BY position DESC LIMIT ?3)
                  WHERE instr(document, ?2))",
            params![workspace_id, reference, NEWEST],
        )?;
        Ok(found != 0)
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

    fn pins(&self) -> Result<Vec<PinRow>, StateError> {
        self.all(&format!("{SELECT_PIN} ORDER BY rowid"), (), read_pin)
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

    fn artifacts_of_run(
        &self,
        session_id: &SessionId,
        run_id: &RunId,
    ) -> Result<Vec<ArtifactRecord>, StateError> {
        self.all(
            &format!(
                "{SELECT_ARTIFACT} WHERE deleted_at IS NULL AND session_id = ?1 AND run_id = ?2
                 ORDER BY position"
            ),
            params![session_id.as_str(), run_id.as_str()],
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

    fn isolation(&self, run_id: &RunId) -> Result<Option<IsolationRow>, StateError> {
        self.one(
            &format!("{SELECT_ISOLATION} WHERE run_id = ?1"),
            params![run_id.as_str()],
            read_isolation,
        )
    }

    fn revisions(&self, run_id: &RunId) -> Result<Vec<RevisionRow>, StateError> {
        self.all(SELECT_REVISIONS, params![run_id.as_str()], read_revision)
    }

    fn isolations_kept(&self) -> Result<Vec<IsolationRow>, StateError> {
        self.all(
            &format!("{SELECT_ISOLATION} WHERE let_go_at IS NULL ORDER BY position"),
            (),
            read_isolation,
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
    /// Applies changes as one transaction.
    fn apply_all(&mut self, changes: &[Change]) -> Result<Vec<Event>, StateError> {
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut appended = Appended::default();
        for change in changes {
            apply(&transaction, change, &mut appended)?;
        }
        transaction.commit()?;
        Ok(appended.events)
    }

    /// Applies batches as parts of one transaction. `Err`: nothing was written, since one of them
    /// is refused, or could not be written.
    fn apply_together(&mut self, batches: &[&[Change]]) -> Result<Vec<Vec<Event>>, StateError> {
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut appended = Appended::default();
        let mut answers = Vec::with_capacity(batches.len());
        for changes in batches {
            for change in *changes {
                apply(&transaction, change, &mut appended)?;
            }
            answers.push(appended.take());
        }
        transaction.commit()?;
        Ok(answers)
    }

    /// As [`SqliteStore::apply_together`], of which those that are refused are undone. `Err`:
    /// nothing was written.
    fn apply_each(
        &mut self,
        batches: &[&[Change]],
    ) -> Result<Vec<Result<Vec<Event>, StateError>>, StateError> {
        let mut transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut appended = Appended::default();
        let mut answers = Vec::with_capacity(batches.len());
        for changes in batches {
            let part = transaction.savepoint()?;
            let applied = changes
                .iter()
                .try_for_each(|change| apply(&part, change, &mut appended));
            answers.push(match applied {
                Ok(()) => {
                    part.commit()?;
                    Ok(appended.take())
                }
                // SQLite gave up the whole transaction. What follows would be one of its own.
                Err(e) if part.is_autocommit() => return Err(e),
                Err(e) => {
                    part.finish()?;
                    appended.undone();
                    Err(e)
                }
            });
        }
        transaction.commit()?;
        Ok(answers)
    }

    /// Does something whose commit SQLite does not sync. What is folded into the database is synced
    /// all the same.
    fn synced_by_us<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, StateError>,
    ) -> Result<T, StateError> {
        self.connection
            .execute_batch("PRAGMA synchronous = NORMAL")?;
        let done = work(self);
        self.connection.execute_batch("PRAGMA synchronous = FULL")?;
        done
    }

    /// Writes the database anew, without the pages and the parts of pages that nothing is in any
    /// more, and empties the log.
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

    /// Writes the database anew if a quarter of it, and at least [`MUCH_FREE`], is free. The log is
    /// emptied where nobody reads: else it is later.
    fn compact(&self) -> Result<(), StateError> {
        let of = |name: &str| pragma(&self.connection, name);
        let (free, pages, page) = (of("freelist_count")?, of("page_count")?, of("page_size")?);
        if free * page < MUCH_FREE || free < pages / 4 {
            return Ok(());
        }
        self.connection.execute_batch("VACUUM;")?;
        let pragma = "PRAGMA wal_checkpoint(TRUNCATE)";
        Ok(self.connection.query_row(pragma, (), |_| Ok(()))?)
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

    /// A position behind which all events since the time of a query are, of its session if it has
    /// one; 0 if none is known, or it has no time.
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
        self.all_checked(sql, params, |row| {
            row_sum::check(row)?;
            read(row)
        })
    }

    /// As [`SqliteStore::all`], where `read` checks the sum of the row.
    fn all_checked<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        read: impl Fn(&Row<'_>) -> Result<T, StateError>,
    ) -> Result<Vec<T>, StateError> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        let mut all = Vec::new();
        while let Some(row) = rows.next()? {
            all.push(read(row)?);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use serde_json::{Value, json};

    use super::opening::connect;
    use super::*;
    use crate::events::event::EventType;
    use crate::state::change::NewEvent;
    use crate::state::contract::{TestState, state_store_contract};
    use crate::state::new_session;

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

    pub(super) fn started(directory: &Path, id: &str) -> (SqliteStore, SessionId) {
        let mut store = SqliteStore::open(directory).unwrap();
        let id: SessionId = id.parse().unwrap();
        store.commit(&new_session::creation(&id, at(1))).unwrap();
        (store, id)
    }

    pub(super) fn note(session: &SessionId, data: Value) -> NewEvent {
        NewEvent::new(EventType::new("noted"), session, None, at(2), data)
    }

    pub(super) fn sequences(store: &SqliteStore, session: &SessionId) -> Vec<u64> {
        let events = store.events(&EventQuery::session(session.clone()));
        events.unwrap().iter().map(|e| e.sequence).collect()
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

    #[test]
    fn what_is_free_is_given_back_where_it_is_much_and_also_while_somebody_reads() {
        let state = tempfile::tempdir().unwrap();
        let (mut store, session) = started(state.path(), "s");
        let text = "x".repeat(100_000);
        let bytes = || fs::metadata(state.path().join(DATABASE)).unwrap().len();
        let fill = |store: &mut SqliteStore, count: usize| {
            let events = (0..count).map(|_| Change::Append(note(&session, json!({"text": text}))));
            store.commit(&Vec::from_iter(events)).unwrap();
            store
                .connection
                .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
                .unwrap();
        };
        fill(&mut store, 30);
        let full = bytes();
        assert!(full > 3_000_000, "{full}");
        let last = |count: i64| format!("DELETE FROM events WHERE sequence > {}", 30 - count);
        // A tenth of it is not worth it.
        store.connection.execute(&last(3), ()).unwrap();
        store.commit(&[Change::Compact]).unwrap();
        assert_eq!(bytes(), full);
        store.connection.execute(&last(25), ()).unwrap();
        let mut other = connect(&state.path().join(DATABASE)).unwrap();
        let reading = other.transaction().unwrap();
        let count = |row: &Row<'_>| row.get::<_, i64>(0);
        reading
            .query_row("SELECT count(*) FROM runs", (), count)
            .unwrap();
        store.commit(&[Change::Compact]).unwrap();
        drop(reading);
        fill(&mut store, 0);
        assert!(bytes() < full / 3, "{} of {full}", bytes());
        assert!(
            !sequences(&store, &session).is_empty(),
            "what is left is there"
        );
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
                of_session.clone().after(7).before(9),
                "(session_id=? AND sequence>? AND sequence<?)",
            ),
            (
                of_session
                    .clone()
                    .of_type(EventType::RUN_FAILED)
                    .of_type(EventType::RUN_TIMEOUT),
                "(session_id=? AND sequence>?)",
            ),
            (
                of_session.clone().of_type(EventType::RUN_FAILED),
                "(session_id=? AND type=? AND sequence>?)",
            ),
            (of_run, "(run_id=? AND position>?)"),
            (EventQuery::all(), "(rowid>?)"),
        ] {
            let plan = plan_of(&store, &select_events(&query));
            assert!(plan.contains(expected), "{query:?}: {plan}");
            // The types that are asked for are a list.
            let plan = plan.replace("SCAN json_each", "");
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
        let all = store.events(&EventQuery::all()).unwrap();
        for session in [&one, &other] {
            for after in 0..=all.len() as u64 + 1 {
                let query = EventQuery::session(session.clone())
                    .after(1)
                    .after_position(after);
                let found = store.events(&query).unwrap();
                let expected = all.iter().filter(|event| {
                    event.position > after && event.session_id == *session && event.sequence > 1
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
}
