//! What is kept without being asked, and let go of without being asked.
//!
//! A host applies it as often as it likes; it looks at most once a day, and the first time it only says what
//! it would do.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use stillframe_backends::{
    ErrorKind, Interrupt, Label, LockedWorkspace, SnapshotId, Workspace, open_regular,
};

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::error::Error;
use crate::events::event::{EventQuery, EventType};
use crate::id::{RunId, SessionId};
use crate::options::{DAY, RetentionOptions};
use crate::records::snapshot::SnapshotRow;
use crate::state::StateStore;
use crate::state::change::{Change, NewEvent};
use crate::state::error::StateError;
use crate::upkeep::claims::Claims;
use crate::upkeep::gc::{self, Upkeep};
use crate::workspace::opened::Opened;
use crate::workspace::{adoption, turn};

/// How long after it was announced the retention begins.
const NOTICE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How long it may take to free what nothing needs any more: whoever waits has asked for something else. What is
/// not freed by then goes with the next look, or the next clean-up.
const PATIENCE: Duration = Duration::from_secs(2);

/// The file in the store of a workspace that says when it was looked at last.
const LOOKED_FILE: &str = "retention";

/// What came of a look at what need not be kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "did", rename_all = "snake_case")]
#[non_exhaustive]
pub enum RetentionOutcome {
    /// Nothing: it has looked today, somebody else is at work, nothing is due, or it has yet to begin.
    Nothing,
    /// It has said for the first time what it would do, and has done nothing.
    #[non_exhaustive]
    Announced {
        /// How many snapshots would have been forgotten.
        snapshots: u64,
        /// When it begins.
        begins_at: Timestamp,
    },
    /// It has forgotten snapshots.
    #[non_exhaustive]
    Forgot {
        /// Oldest first.
        snapshots: Vec<SnapshotId>,
        /// By how many bytes less the store and the artifacts occupy than before.
        freed_bytes: u64,
        /// Whether there was no time to free all that nothing needs any more.
        is_cut_short: bool,
    },
}

/// Looks at a workspace, if that is due, and lets go of what need not be kept.
pub(crate) async fn apply(
    core: &Core,
    opened: Opened,
    options: RetentionOptions,
) -> Result<RetentionOutcome, Error> {
    let parts = core.parts.clone();
    let workspace = opened.workspace.clone();
    let look = {
        let (workspace, now) = (workspace.clone(), parts.now());
        move || has_looked_today(&workspace, now)
    };
    if core.parts.blocking.run(look).await? {
        return Ok(RetentionOutcome::Nothing);
    }
    let what = "the retention";
    let applied = turn::work(core, &workspace, what, Duration::ZERO, move |locked| {
        carry_out(&parts, locked, &options)
    });
    match applied.await {
        // Whoever is at work there applies it, or the next one.
        Err(e) if e.kind() == ErrorKind::Busy => Ok(RetentionOutcome::Nothing),
        applied => applied,
    }
}

fn carry_out(
    parts: &Parts,
    locked: &mut LockedWorkspace,
    options: &RetentionOptions,
) -> Result<RetentionOutcome, Error> {
    let now = parts.now();
    note_look(locked, now);
    let mut upkeep = Upkeep::read(parts, locked)?;
    let due = upkeep.past_retention(locked, options, now)?;
    if due.is_empty() {
        return Ok(RetentionOutcome::Nothing);
    }
    let session_id = SessionId::of_workspace(locked.id());
    match parts
        .reader
        .read_blocking(|store| begins_at(store, &session_id))?
    {
        None => announce(parts, &session_id, due.len() as u64, now),
        Some(begins_at) if now < begins_at => Ok(RetentionOutcome::Nothing),
        Some(_) => {
            upkeep.measure(locked)?;
            upkeep.forget(locked, due)?;
            let interrupt = Interrupt::after(PATIENCE);
            let is_cut_short = match interrupt.during(|| upkeep.collect(locked)) {
                Err(e) if e.kind() == ErrorKind::Timeout => true,
                collected => {
                    collected?;
                    false
                }
            };
            Ok(RetentionOutcome::Forgot {
                snapshots: upkeep.outcome.forgotten,
                freed_bytes: upkeep.outcome.freed_bytes,
                is_cut_short,
            })
        }
    }
}

fn announce(
    parts: &Parts,
    session_id: &SessionId,
    snapshots: u64,
    now: Timestamp,
) -> Result<RetentionOutcome, Error> {
    let begins_at = now.checked_add(NOTICE).unwrap_or(Timestamp::MAX);
    let mut changes = adoption::of_new_session(parts, session_id)?;
    let data = json!({ "snapshots": snapshots, "begins_at": begins_at });
    changes.push(Change::Append(NewEvent::new(
        EventType::WORKSPACE_RETENTION_ANNOUNCED,
        session_id,
        None,
        now,
        data,
    )));
    parts.writer.commit_blocking(changes)?;
    Ok(RetentionOutcome::Announced {
        snapshots,
        begins_at,
    })
}

/// When the retention of a workspace begins; `None`: nobody was told of it.
fn begins_at(
    store: &dyn StateStore,
    session_id: &SessionId,
) -> Result<Option<Timestamp>, StateError> {
    let query =
        EventQuery::session(session_id.clone()).of_type(EventType::WORKSPACE_RETENTION_ANNOUNCED);
    let told = store.events(&query, 1)?;
    let at = told.first().map(|(_, event)| event.timestamp);
    Ok(at.map(|at| at.checked_add(NOTICE).unwrap_or(Timestamp::MAX)))
}

fn looked_path(workspace: &Workspace) -> PathBuf {
    workspace.store_path().join(LOOKED_FILE)
}

/// Whether it was looked at within a day. What cannot be read, and a look to come, are none.
fn has_looked_today(workspace: &Workspace, now: Timestamp) -> bool {
    let looked = read_look(&looked_path(workspace));
    let since = looked.and_then(|at| Duration::try_from(now.duration_since(at)).ok());
    since.is_some_and(|since| since < DAY)
}

fn read_look(path: &Path) -> Option<Timestamp> {
    let file = open_regular(OpenOptions::new().read(true), path).ok()?;
    let mut text = String::new();
    file.take(64).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Best effort: without it, it is looked again.
fn note_look(workspace: &Workspace, now: Timestamp) {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let file = open_regular(&mut options, &looked_path(workspace));
    let _ = file.and_then(|mut file| file.write_all(now.to_string().as_bytes()));
}

/// The snapshots that need not be kept, oldest first. Pure.
///
/// `snapshots` are newest first, and can be read; what is claimed stays, and so does the newest.
pub(crate) fn due(
    snapshots: &[&SnapshotRow],
    claims: &Claims,
    options: &RetentionOptions,
    now: Timestamp,
) -> Vec<SnapshotId> {
    let is_old = |at: Timestamp| {
        let lived = Duration::try_from(now.duration_since(at));
        lived.is_ok_and(|lived| lived > options.older_than)
    };
    let stays = |place: usize, row: &SnapshotRow| place == 0 || claims.hold(&row.snapshot.id);
    // A run is as old as the last that is kept of it, and is not old where one of its two stays anyway.
    let mut runs: HashMap<&RunId, Timestamp> = HashMap::new();
    for (place, row) in snapshots.iter().enumerate() {
        if let Some(run_id) = &row.run_id
            && is_border(&row.snapshot.label)
        {
            let known = runs.entry(run_id).or_insert(Timestamp::MIN);
            *known = match stays(place, row) {
                true => Timestamp::MAX,
                false => (*known).max(row.snapshot.captured_at),
            };
        }
    }
    let mut steps: HashMap<&RunId, u64> = HashMap::new();
    let mut due = Vec::new();
    for (place, row) in snapshots.iter().enumerate() {
        let (label, at) = (&row.snapshot.label, row.snapshot.captured_at);
        let is_due = match &row.run_id {
            Some(run_id) if is_border(label) => is_old(runs[run_id]),
            Some(run_id) if *label == Label::STEP => {
                let newer = steps.entry(run_id).or_default();
                *newer += 1;
                *newer > options.step_snapshots || is_old(at)
            }
            _ => is_of_engine(label) && is_old(at),
        };
        if is_due && !stays(place, row) {
            due.push(row.snapshot.id.clone());
        }
    }
    due.reverse();
    due
}

/// Whether it is where a run began or ended.
fn is_border(label: &Label) -> bool {
    [Label::BEFORE, Label::AFTER, Label::AFTER_FAILURE].contains(label)
}

/// Whether nobody has said in words of their own what it was taken for.
fn is_of_engine(label: &Label) -> bool {
    is_border(label) || [Label::GUARD, Label::MANUAL, Label::STEP].contains(label)
}

impl Upkeep<'_> {
    /// The snapshots that the retention lets go of, oldest first.
    pub(crate) fn past_retention(
        &self,
        locked: &LockedWorkspace,
        options: &RetentionOptions,
        now: Timestamp,
    ) -> Result<Vec<SnapshotId>, Error> {
        let mut claims = self.claims.clone();
        self.parts
            .reader
            .read_blocking(|store| claims.add_latest(store, locked.id()))?;
        let all: Vec<&SnapshotRow> = self.snapshots.iter().collect();
        if due(&all, &claims, options, now).is_empty() {
            // Without a look at the store.
            return Ok(Vec::new());
        }
        let unreadable = self.unreadable(locked)?;
        let readable = |row: &&SnapshotRow| !unreadable.contains(&row.snapshot.id);
        let readable: Vec<&SnapshotRow> = all.into_iter().filter(readable).collect();
        gc::refuse_contradicting_dates(&readable, now)?;
        Ok(due(&readable, &claims, options, now))
    }
}

#[cfg(test)]
mod tests {
    use stillframe_backends::{BackendKind, Snapshot};

    use super::*;
    use crate::upkeep::claims::Claim;

    fn id(number: u64) -> SnapshotId {
        format!("snap_{number:032x}").parse().expect("an id")
    }

    fn pinned(numbers: &[u64]) -> Claims {
        let mut claims = Claims::default();
        for number in numbers {
            claims.add(id(*number), Claim::Pin);
        }
        claims
    }

    /// A snapshot of this age in days, with this label, of this run.
    fn row(number: u64, days: i64, label: &str, run: Option<&str>) -> SnapshotRow {
        SnapshotRow {
            workspace_id: "w".to_owned(),
            session_id: None,
            run_id: run.map(|run| run.parse().expect("an id")),
            snapshot: Snapshot::new(
                id(number),
                BackendKind::Git,
                "/w".into(),
                "ref".to_owned(),
                Label::new(label.to_owned()),
                Timestamp::from_second((1000 - days) * 86_400).expect("a time"),
            ),
        }
    }

    #[test]
    fn what_is_old_goes_but_for_what_is_named() {
        let now = Timestamp::from_second(1000 * 86_400).expect("a time");
        let rows = [
            row(0, 200, "manual", None),
            row(1, 10, "after", Some("long")),
            row(2, 100, "before", Some("long")),
            row(3, 100, "guard", Some("long")),
            row(4, 91, "my own words", None),
            row(5, 91, "manual", None),
            row(6, 89, "guard", None),
            row(7, 120, "after_failure", Some("old")),
            row(8, 121, "before", Some("old")),
            row(9, 121, "step", Some("old")),
            row(10, 150, "manual", None),
        ];
        let rows: Vec<&SnapshotRow> = rows.iter().collect();
        let claims = pinned(&[10]);
        let due = |options: &RetentionOptions| -> Vec<SnapshotId> {
            super::due(&rows, &claims, options, now)
        };
        let usual = RetentionOptions::default();
        assert_eq!(
            due(&usual),
            [9, 8, 7, 5, 3].map(id),
            "oldest first, the newest never"
        );
        assert_eq!(due(&usual.clone().older_than(DAY * 130)), [0; 0].map(id));
        assert_eq!(
            due(&usual.older_than(DAY * 5)),
            [9, 8, 7, 6, 5, 3, 2, 1].map(id)
        );
    }

    #[test]
    fn a_run_is_kept_whole_where_one_of_its_two_stays() {
        let now = Timestamp::from_second(1000 * 86_400).expect("a time");
        let rows = [
            row(0, 100, "after", Some("newest")),
            row(1, 101, "before", Some("newest")),
            row(2, 102, "after", Some("pinned")),
            row(3, 103, "step", Some("pinned")),
            row(4, 104, "before", Some("pinned")),
            row(5, 105, "after", Some("old")),
            row(6, 106, "before", Some("old")),
        ];
        let rows: Vec<&SnapshotRow> = rows.iter().collect();
        for claims in [pinned(&[2]), pinned(&[4])] {
            let due = due(&rows, &claims, &RetentionOptions::default(), now);
            assert_eq!(due, [6, 5, 3].map(id));
        }
    }

    #[test]
    fn of_each_run_so_many_steps_are_kept_however_new_they_are() {
        let now = Timestamp::from_second(1000 * 86_400).expect("a time");
        let mut rows = vec![row(0, 0, "after", Some("a"))];
        rows.extend((1..=60).map(|number| row(number, 1, "step", Some("a"))));
        rows.extend((61..=110).map(|number| row(number, 1, "step", Some("b"))));
        rows.push(row(111, 2, "before", Some("a")));
        let rows: Vec<&SnapshotRow> = rows.iter().collect();
        let claims = pinned(&[55]);
        let due = due(&rows, &claims, &RetentionOptions::default(), now);
        let expected: Vec<SnapshotId> = (51..=60).rev().filter(|n| *n != 55).map(id).collect();
        assert_eq!(due, expected);
    }
}
