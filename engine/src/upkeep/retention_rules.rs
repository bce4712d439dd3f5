//! Which snapshots retention removes. Pure.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use stillframe_backends::{Label, SnapshotId};

use crate::id::RunId;
use crate::options::RetentionOptions;
use crate::records::snapshot::SnapshotRow;
use crate::upkeep::claims::Claims;

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
    // A run is as old as the last that is kept of it, and is not old where one of its two stays
    // anyway.
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
pub(crate) fn is_border(label: &Label) -> bool {
    [Label::BEFORE, Label::AFTER, Label::AFTER_FAILURE].contains(label)
}

/// Whether nobody has said in words of their own what it was taken for.
pub(crate) fn is_of_engine(label: &Label) -> bool {
    let around_switches = [Label::RESUME, Label::BRANCH];
    let others = [Label::GUARD, Label::MANUAL, Label::STEP];
    is_border(label) || others.contains(label) || around_switches.contains(label)
}

#[cfg(test)]
mod tests {
    use stillframe_backends::{BackendKind, Snapshot};

    use super::*;
    use crate::options::DAY;
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
            row(11, 122, "branch", None),
            row(12, 122, "resume", None),
        ];
        let rows: Vec<&SnapshotRow> = rows.iter().collect();
        let claims = pinned(&[10]);
        let due = |options: &RetentionOptions| -> Vec<SnapshotId> {
            super::due(&rows, &claims, options, now)
        };
        let usual = RetentionOptions::default();
        assert_eq!(
            due(&usual),
            [12, 11, 9, 8, 7, 5, 3].map(id),
            "oldest first, the newest never"
        );
        assert_eq!(due(&usual.clone().older_than(DAY * 130)), [0; 0].map(id));
        assert_eq!(
            due(&usual.older_than(DAY * 5)),
            [12, 11, 9, 8, 7, 6, 5, 3, 2, 1].map(id)
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
