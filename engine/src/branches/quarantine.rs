//! What of a task's work no remote is proven to have. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::records::checkpoint::{CheckpointKind, CheckpointRow, CheckpointStatus};

/// Work that only the store has: a checkpoint, and those that it goes on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unsaved {
    /// It has the work of all.
    pub(crate) newest: CheckpointRow,
    /// The others, the oldest first. Nothing that is saved, or that the next checkpoint is made on,
    /// goes on from them alone.
    pub(crate) earlier: Vec<CheckpointRow>,
}

/// What is not proven saved of the checkpoints of one name in one repository, the oldest first.
/// Several tasks may have that name, at several remotes: what one of them has is saved, and of rows
/// that say the same the last counts.
///
/// A checkpoint is made on the last one that was sent, or on one since that was not refused: see
/// [`base_of_next`](crate::records::checkpoint::base_of_next). So one that is proven saves those
/// before it, back to one that was refused or let go of. The same commit may be made again, once it
/// may be sent: where one of a task is proven, so are all of it. A merge has nothing of its own:
/// what it merges is a checkpoint, and the branch's.
pub(crate) fn unsaved<'a>(
    checkpoints: impl IntoIterator<Item = &'a CheckpointRow>,
) -> Vec<Unsaved> {
    let mut by_number: BTreeMap<u64, &CheckpointRow> = BTreeMap::new();
    let mut proven = BTreeSet::new();
    for row in checkpoints {
        if row.status == CheckpointStatus::Proven {
            proven.insert((&row.task_id, &row.commit));
        }
        if row.kind == CheckpointKind::Merge {
            continue;
        }
        let known = by_number.entry(row.seq).or_insert(row);
        if weight(row.status) >= weight(known.status) {
            *known = row;
        }
    }
    let mut found = Vec::new();
    let mut pending: Vec<CheckpointRow> = Vec::new();
    for row in by_number.into_values() {
        let is_saved = proven.contains(&(&row.task_id, &row.commit));
        match row.status {
            CheckpointStatus::Proven => pending.clear(),
            // It has what it goes on from.
            CheckpointStatus::Refused if is_saved => drop(since_sent(&mut pending)),
            CheckpointStatus::Made | CheckpointStatus::Sent if is_saved => {}
            CheckpointStatus::Made | CheckpointStatus::Sent => pending.push(row.clone()),
            CheckpointStatus::Refused => {
                let earlier = since_sent(&mut pending);
                let newest = row.clone();
                found.push(Unsaved { newest, earlier });
            }
            // Nothing that is kept goes on from it.
            CheckpointStatus::Discarded => {}
        }
    }
    found.extend(pending.pop().map(|newest| Unsaved {
        newest,
        earlier: pending,
    }));
    found.sort_by_key(|unsaved| unsaved.newest.seq);
    let mut of_commits: Vec<Unsaved> = Vec::new();
    for unsaved in found {
        let has_it = |other: &&mut Unsaved| other.newest.commit == unsaved.newest.commit;
        match of_commits.iter_mut().find(has_it) {
            // It was made again in the same second, and refused again.
            Some(same) => same
                .earlier
                .extend([unsaved.earlier, vec![unsaved.newest]].concat()),
            None => of_commits.push(unsaved),
        }
    }
    of_commits
}

/// The numbers of the checkpoints that the store need not keep any more: the user has let go of
/// them, wherever they were to go.
pub(crate) fn released(checkpoints: &[CheckpointRow]) -> BTreeSet<u64> {
    let is_gone = |row: &&CheckpointRow| row.status == CheckpointStatus::Discarded;
    let gone = checkpoints.iter().filter(is_gone);
    let mut gone: BTreeSet<u64> = gone.map(|row| row.seq).collect();
    for kept in checkpoints.iter().filter(|row| !is_gone(row)) {
        gone.remove(&kept.seq);
    }
    gone
}

/// What was made since the last one that was sent, which the next checkpoint is made on in place of
/// these.
fn since_sent(pending: &mut Vec<CheckpointRow>) -> Vec<CheckpointRow> {
    let sent = pending
        .iter()
        .rposition(|row| row.status == CheckpointStatus::Sent);
    pending.split_off(sent.map_or(0, |at| at + 1))
}

/// What counts of several rows of one checkpoint.
fn weight(status: CheckpointStatus) -> u8 {
    match status {
        CheckpointStatus::Made => 0,
        CheckpointStatus::Sent => 1,
        CheckpointStatus::Refused => 2,
        CheckpointStatus::Discarded => 3,
        CheckpointStatus::Proven => 4,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::CheckpointStatus::{Discarded, Made, Proven, Refused, Sent};
    use super::*;

    fn row(task: &str, seq: u64, status: CheckpointStatus) -> CheckpointRow {
        CheckpointRow {
            task_id: task.parse().unwrap(),
            repository: "web".to_owned(),
            seq,
            kind: CheckpointKind::Wip,
            made_by: None,
            commit: format!("c{seq}"),
            status,
            remote: None,
            branch: None,
            advanced_to: None,
            failure: None,
            error: None,
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
        }
    }

    /// The numbers of each, the newest last.
    fn numbers(rows: &[CheckpointRow]) -> Vec<Vec<u64>> {
        let of = |unsaved: Unsaved| {
            let all = unsaved.earlier.iter().chain([&unsaved.newest]);
            all.map(|row| row.seq).collect()
        };
        unsaved(rows).into_iter().map(of).collect()
    }

    #[test]
    fn what_no_proven_one_goes_on_from_is_not_saved() {
        let rows = |statuses: &[CheckpointStatus]| {
            let statuses = statuses.iter().zip(1..);
            let rows: Vec<_> = statuses.map(|(s, seq)| row("t", seq, *s)).collect();
            numbers(&rows)
        };
        let none: [Vec<u64>; 0] = [];
        assert_eq!(rows(&[]), none);
        assert_eq!(rows(&[Proven]), none);
        assert_eq!(rows(&[Made, Made, Proven]), none, "it goes on from both");
        assert_eq!(rows(&[Sent, Proven]), none);
        assert_eq!(rows(&[Proven, Made, Made]), [[2, 3]]);
        assert_eq!(rows(&[Proven, Sent]), [[2]]);
        assert_eq!(rows(&[Refused, Proven]), [[1]], "it is made without that");
        assert_eq!(rows(&[Made, Refused, Proven]), [[1, 2]]);
        assert_eq!(rows(&[Refused, Refused]), [[1], [2]]);
        let mut twice = [row("t", 1, Refused), row("t", 2, Refused)];
        twice[1].commit = twice[0].commit.clone();
        assert_eq!(numbers(&twice), [[2, 1]], "what is listed is one commit");
        twice[1].status = Proven;
        assert_eq!(numbers(&twice), none, "the same commit was let through");
        twice[1].task_id = "u".parse().unwrap();
        assert_eq!(numbers(&twice), [[1]], "at another remote");
        let mut later = [Made, Refused, Proven].map(|status| row("t", 1, status));
        for (row, seq) in later.iter_mut().zip(1..) {
            (row.seq, row.commit) = (seq, format!("c{}", seq.min(2)));
        }
        assert_eq!(numbers(&later), none, "it has what it goes on from");
        assert_eq!(rows(&[Made, Refused, Made]), [vec![1, 2], vec![3]]);
        // The next was made on what was sent, and has it.
        assert_eq!(rows(&[Made, Sent, Made, Refused, Proven]), [[3, 4]]);
        assert_eq!(rows(&[Sent, Refused, Made]), [vec![2], vec![1, 3]]);
        assert_eq!(rows(&[Discarded, Discarded, Made]), [[3]]);
        assert_eq!(rows(&[Proven, Discarded]), none);
    }

    #[test]
    fn what_one_of_several_remotes_has_is_saved_and_a_merge_is_nothing_of_its_own() {
        assert_eq!(
            numbers(&[row("t", 1, Made), row("u", 1, Proven)]),
            [] as [Vec<u64>; 0]
        );
        assert_eq!(numbers(&[row("t", 1, Made), row("u", 1, Refused)]), [[1]]);
        let equal = unsaved(&[row("t", 1, Made), row("u", 1, Made)]);
        assert_eq!(equal[0].newest, row("u", 1, Made));
        let merge = CheckpointRow {
            kind: CheckpointKind::Merge,
            ..row("t", 2, Made)
        };
        assert_eq!(numbers(&[row("t", 1, Proven), merge]), [] as [Vec<u64>; 0]);
    }

    #[test]
    fn the_store_keeps_what_anybody_has_not_let_go_of() {
        let rows = [
            row("t", 1, Discarded),
            row("t", 2, Discarded),
            row("u", 2, Proven),
            row("t", 3, Made),
        ];
        assert_eq!(released(&rows), BTreeSet::from([1]));
    }
}
