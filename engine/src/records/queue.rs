//! The queue of runs: its rows, and which run is begun next. Values and functions over them.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{RunId, SessionId};

/// How urgent a run is. Interactive runs are begun before batch runs, and their captures are done
/// first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Priority {
    /// Somebody waits for it.
    #[default]
    Interactive,
    /// Nobody waits for it. After four interactive runs in a row a batch run is begun, if one can
    /// begin.
    Batch,
}

/// A run's place in the queue of submitted runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct QueueRecord {
    /// The name of the adapter that does its work.
    pub adapter: String,
    /// What the adapter is made from.
    pub input: serde_json::Value,
    /// How urgent it is.
    pub priority: Priority,
    /// Its place among the runs that wait, which begins at 1: interactive runs before batch runs,
    /// each in the order of their submission. `None`: it waits no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u64>,
}

/// Where a submitted run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum QueueState {
    /// It waits to be begun.
    Waiting,
    /// An engine has taken it to begin it, and its work has not begun.
    Claimed,
    /// Its work is under way.
    UnderWay,
    /// It has ended, or rests.
    Over,
}

/// A submitted run, as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct QueueRow {
    /// Its place in the order of submission; 0: it has none yet.
    pub(crate) position: u64,
    pub(crate) run_id: RunId,
    pub(crate) session_id: SessionId,
    pub(crate) adapter: String,
    pub(crate) input: serde_json::Value,
    pub(crate) priority: Priority,
    pub(crate) workspace_id: Option<String>,
    pub(crate) state: QueueState,
}

/// A submitted run that is claimed or under way, as far as it keeps others from being begun.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TakenRow {
    pub(crate) run_id: RunId,
    pub(crate) session_id: SessionId,
    pub(crate) workspace_id: Option<String>,
}

/// Rows that can be read, and what is wrong with others: one that is damaged keeps nobody from
/// reading the rest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Legible<T> {
    pub(crate) rows: Vec<T>,
    pub(crate) damaged: Vec<String>,
}

impl<T> Default for Legible<T> {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            damaged: Vec::new(),
        }
    }
}

/// So many interactive runs are begun in a row before a batch run that could be: batch work goes on
/// though interactive runs never cease. The same holds in each session, where batch work takes at
/// most a fifth of the turns from interactive runs.
pub(crate) const INTERACTIVE_IN_A_ROW: u32 = 4;

/// What is under way, as far as it keeps queued runs from being begun.
#[derive(Clone, Debug, Default)]
pub(crate) struct Occupied {
    /// How many submitted runs of a session are claimed or under way, in any engine.
    pub(crate) sessions: HashMap<SessionId, usize>,
    /// The workspaces that are known to be in use.
    pub(crate) workspaces: HashSet<String>,
}

/// How many runs may be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// How many more in this engine.
    pub(crate) runs: usize,
    /// How many may be under way in one session.
    pub(crate) in_session: usize,
}

/// How many interactive runs were begun since the last batch run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turns {
    all: u32,
    /// In a session where a batch run waits: a turn of all goes to another session while this one
    /// is at work.
    sessions: HashMap<SessionId, u32>,
}

/// Which of `heads` are begun now, in this order. `heads` has the first run that waits of each
/// session and priority, in the order of submission; `has_adapter` says of which this engine has
/// the adapter.
///
/// The runs that wait behind a head are never begun before it.
pub(crate) fn choose<'a>(
    heads: &'a [QueueRow],
    mut occupied: Occupied,
    mut room: Room,
    turns: &mut Turns,
    has_adapter: impl Fn(&str) -> bool,
) -> Vec<&'a QueueRow> {
    let mut left: Vec<&QueueRow> = heads
        .iter()
        .filter(|row| has_adapter(&row.adapter))
        .collect();
    let is_batch = |row: &QueueRow| row.priority == Priority::Batch;
    turns.sessions.retain(|id, _| {
        let mut of_session = left.iter().filter(|row| row.session_id == *id);
        of_session.any(|row| is_batch(row))
    });
    let mut chosen = Vec::new();
    while room.runs > 0 {
        let can_begin = |row: &QueueRow| {
            let in_session = occupied.sessions.get(&row.session_id);
            let workspace = row.workspace_id.as_ref();
            in_session.is_none_or(|count| *count < room.in_session)
                && !workspace.is_some_and(|id| occupied.workspaces.contains(id))
        };
        let is_turn_of_batch_in = |id: &SessionId| {
            let in_a_row = turns.sessions.get(id).copied().unwrap_or(0);
            let mut of_session = left.iter().filter(|row| row.session_id == *id);
            in_a_row >= INTERACTIVE_IN_A_ROW
                && of_session.any(|row| is_batch(row) && can_begin(row))
        };
        let first = |is_wanted: &dyn Fn(&QueueRow) -> bool| {
            let mut of = left.iter().enumerate();
            of.find(|(_, row)| can_begin(row) && is_wanted(row))
                .map(|(at, _)| at)
        };
        // In the place of the interactive runs of its session.
        let urgent = first(&|row| is_batch(row) == is_turn_of_batch_in(&row.session_id));
        let batch = first(&is_batch);
        let next = match turns.all >= INTERACTIVE_IN_A_ROW {
            true => batch.or(urgent),
            false => urgent.or(batch),
        };
        let Some(next) = next else { break };
        let row = left.remove(next);
        match row.priority {
            Priority::Interactive => {
                turns.all = turns.all.saturating_add(1);
                let mut of_session = left.iter().filter(|r| r.session_id == row.session_id);
                if of_session.any(|row| is_batch(row)) {
                    *turns.sessions.entry(row.session_id.clone()).or_default() += 1;
                }
            }
            Priority::Batch => {
                turns.all = 0;
                turns.sessions.remove(&row.session_id);
            }
        }
        *occupied.sessions.entry(row.session_id.clone()).or_default() += 1;
        occupied.workspaces.extend(row.workspace_id.clone());
        room.runs -= 1;
        chosen.push(row);
    }
    chosen
}

impl Priority {
    /// The name that JSON documents use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Batch => "batch",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "interactive" => Self::Interactive,
            "batch" => Self::Batch,
            _ => return None,
        })
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl QueueState {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Claimed => "claimed",
            Self::UnderWay => "under_way",
            Self::Over => "over",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "waiting" => Self::Waiting,
            "claimed" => Self::Claimed,
            "under_way" => Self::UnderWay,
            "over" => Self::Over,
            _ => return None,
        })
    }

    /// Whether the work of the run has not begun, and will.
    pub(crate) fn is_queued(self) -> bool {
        matches!(self, Self::Waiting | Self::Claimed)
    }
}

impl QueueRow {
    /// What a host is told of it, with its place if it waits.
    pub(crate) fn record(self, place: Option<u64>) -> QueueRecord {
        QueueRecord {
            adapter: self.adapter,
            input: self.input,
            priority: self.priority,
            place,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(position: u64, session: u8, priority: Priority, workspace: Option<u8>) -> QueueRow {
        QueueRow {
            position,
            run_id: format!("r{position}").parse().unwrap(),
            session_id: format!("s{session}").parse().unwrap(),
            adapter: "agent".to_owned(),
            input: serde_json::Value::Null,
            priority,
            workspace_id: workspace.map(|id| id.to_string()),
            state: QueueState::Waiting,
        }
    }

    /// The first of each session and priority, as the log gives them.
    fn heads(waiting: &[QueueRow]) -> Vec<QueueRow> {
        let mut seen = HashSet::new();
        let is_first = |row: &&QueueRow| seen.insert((row.session_id.clone(), row.priority));
        waiting.iter().filter(is_first).cloned().collect()
    }

    /// Begins one after the other, each ended before the next, and answers with their positions.
    fn one_by_one(mut waiting: Vec<QueueRow>) -> Vec<u64> {
        let (mut turns, mut order) = (Turns::default(), Vec::new());
        let room = Room {
            runs: 1,
            in_session: 1,
        };
        while !waiting.is_empty() {
            let heads = heads(&waiting);
            let chosen = choose(&heads, Occupied::default(), room, &mut turns, |_| true);
            assert_eq!(chosen.len(), 1, "nothing stands in the way");
            order.push(chosen[0].position);
            waiting.retain(|row| row.position != chosen[0].position);
        }
        order
    }

    #[test]
    fn interactive_runs_go_first_and_every_fifth_is_a_batch_run() {
        use Priority::{Batch, Interactive};
        let mut waiting: Vec<QueueRow> = (1..=3).map(|at| row(at, 1, Batch, None)).collect();
        waiting.extend((4..=13).map(|at| row(at, 2, Interactive, None)));
        let order = one_by_one(waiting);
        assert_eq!(order, [4, 5, 6, 7, 1, 8, 9, 10, 11, 2, 12, 13, 3]);
    }

    #[test]
    fn a_batch_run_has_its_turn_in_its_session_whatever_others_do() {
        use Priority::{Batch, Interactive};
        let mut waiting: Vec<QueueRow> = vec![row(1, 1, Batch, None)];
        waiting.extend((2..=30).map(|at| row(at, 1, Interactive, None)));
        waiting.extend((31..=60).map(|at| row(at, 2, Batch, None)));
        let room = Room {
            runs: 1,
            in_session: 1,
        };
        let mut turns = Turns::default();
        // Whenever it is the turn of a batch run, the first session is at work.
        let mut of_first = Vec::new();
        for _ in 0..5 {
            let begun = choose_one(&mut waiting, Occupied::default(), room, &mut turns);
            of_first.push(begun);
            turns.all = INTERACTIVE_IN_A_ROW;
            let at_work = Occupied {
                sessions: HashMap::from([("s1".parse().unwrap(), 1)]),
                workspaces: HashSet::new(),
            };
            assert!(choose_one(&mut waiting, at_work, room, &mut turns) > 30);
        }
        assert_eq!(of_first, [2, 3, 4, 5, 1]);
    }

    fn choose_one(
        waiting: &mut Vec<QueueRow>,
        occupied: Occupied,
        room: Room,
        turns: &mut Turns,
    ) -> u64 {
        let heads = heads(waiting);
        let position = choose(&heads, occupied, room, turns, |_| true)[0].position;
        waiting.retain(|row| row.position != position);
        position
    }

    #[test]
    fn what_cannot_begin_takes_no_turn() {
        use Priority::{Batch, Interactive};
        let waiting = [
            row(1, 1, Interactive, Some(1)),
            row(2, 2, Interactive, Some(1)),
            row(3, 3, Batch, None),
            row(4, 4, Batch, Some(2)),
        ];
        let occupied = Occupied {
            sessions: HashMap::from([("s3".parse().unwrap(), 1)]),
            workspaces: HashSet::new(),
        };
        let room = Room {
            runs: 4,
            in_session: 1,
        };
        let mut turns = Turns::default();
        let chosen = choose(&waiting, occupied, room, &mut turns, |_| true);
        let positions: Vec<u64> = chosen.iter().map(|row| row.position).collect();
        assert_eq!(
            positions,
            [1, 4],
            "2 shares the workspace of 1, and session 3 is at work"
        );
        let nobody = choose(&waiting, Occupied::default(), room, &mut turns, |_| false);
        assert_eq!(nobody, [] as [&QueueRow; 0]);
    }

    fn rows() -> impl Strategy<Value = Vec<QueueRow>> {
        let one = (0..5u8, any::<bool>(), proptest::option::of(0..4u8));
        proptest::collection::vec(one, 0..60).prop_map(|rows| {
            let rows = rows.into_iter().zip(1..);
            rows.map(|((session, is_batch, workspace), position)| {
                let priority = match is_batch {
                    true => Priority::Batch,
                    false => Priority::Interactive,
                };
                row(position, session, priority, workspace)
            })
            .collect()
        })
    }

    proptest! {
        #[test]
        fn each_is_begun_once_and_in_order_within_session_and_priority(waiting in rows()) {
            let order = one_by_one(waiting.clone());
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (1..=waiting.len() as u64).collect::<Vec<_>>());
            let of = |position: &u64| &waiting[*position as usize - 1];
            let mut last = HashMap::new();
            for position in &order {
                let row = of(position);
                let before = last.insert((&row.session_id, row.priority), *position);
                prop_assert!(before.is_none_or(|before| before < *position));
            }
            // No batch run waits for more than four others while there is one, in its session too.
            for session in 0..5 {
                let session = format!("s{session}").parse().unwrap();
                let of_session = order.iter().map(of).filter(|row| row.session_id == session);
                let priorities: Vec<Priority> = of_session.map(|row| row.priority).collect();
                let mut in_a_row = 0;
                for (at, priority) in priorities.iter().enumerate() {
                    in_a_row = match priority {
                        Priority::Batch => 0,
                        Priority::Interactive => in_a_row + 1,
                    };
                    let has_batch = priorities[at..].contains(&Priority::Batch);
                    prop_assert!(in_a_row <= INTERACTIVE_IN_A_ROW || !has_batch);
                }
            }
            let mut in_a_row = 0;
            for (at, position) in order.iter().enumerate() {
                match of(position).priority {
                    Priority::Batch => in_a_row = 0,
                    Priority::Interactive => in_a_row += 1,
                }
                let has_batch = order[at..].iter().any(|p| of(p).priority == Priority::Batch);
                prop_assert!(in_a_row <= INTERACTIVE_IN_A_ROW || !has_batch);
            }
        }

        #[test]
        fn no_limit_is_exceeded_and_no_room_is_left_that_a_head_could_take(
            waiting in rows(), runs in 0..6usize, in_session in 1..3usize,
            busy in proptest::collection::hash_set(0..4u8, 0..3),
            at_work in proptest::collection::hash_map(0..5u8, 0..3usize, 0..4),
        ) {
            let heads = heads(&waiting);
            let occupied = Occupied {
                sessions: at_work
                    .iter()
                    .map(|(session, count)| (format!("s{session}").parse().unwrap(), *count))
                    .collect(),
                workspaces: busy.iter().map(u8::to_string).collect(),
            };
            let room = Room { runs, in_session };
            let chosen = choose(&heads, occupied.clone(), room, &mut Turns::default(), |_| true);
            prop_assert!(chosen.len() <= runs);
            let mut after = occupied;
            for row in &chosen {
                let count = after.sessions.entry(row.session_id.clone()).or_default();
                *count += 1;
                prop_assert!(*count <= in_session);
                if let Some(id) = &row.workspace_id {
                    prop_assert!(after.workspaces.insert(id.clone()), "one run in a workspace");
                }
            }
            if chosen.len() < runs {
                for row in heads.iter().filter(|row| !chosen.contains(row)) {
                    let count = after.sessions.get(&row.session_id).copied().unwrap_or(0);
                    let is_busy = row.workspace_id.as_ref().is_some_and(|id| after.workspaces.contains(id));
                    prop_assert!(count >= in_session || is_busy, "{row:?} could have begun");
                }
            }
        }
    }
}
