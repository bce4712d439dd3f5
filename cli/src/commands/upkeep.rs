//! `verify` and `gc`: checking the stores, and removing what need not be kept.

use std::path::Path;

use serde::Serialize;
use stillframe::backends::{Problem, printable};
use stillframe::options::{GcOptions, LogRetention};
use stillframe::records::SessionNeed;
use stillframe::upkeep::{GcOutcome, LogTrimOutcome, VerifyOutcome};
use stillframe::{ErrorKind, SnapshotId, WorkspaceOptions};

use super::{Tools, restore};
use crate::failure::Failure;
use crate::output::{self, Reply};

/// Proves everything restorable, or names what is not.
pub(super) async fn verify(tools: &Tools, workspace: WorkspaceOptions) -> Result<Reply, Failure> {
    match tools.engine.verify(&workspace).await {
        // The log became unreadable on the way.
        Err(e) if e.kind() == ErrorKind::Corrupt => {
            verify_without_log(tools.json, &tools.state_dir, &workspace, e.into())
        }
        outcome => Ok(verified(tools.json, &outcome?, &tools.state_dir)),
    }
}

/// Proves what the stores have where the log of snapshots and runs cannot be read, for this reason.
pub(crate) fn verify_without_log(
    json: bool,
    state_dir: &Path,
    workspace: &WorkspaceOptions,
    reason: Failure,
) -> Result<Reply, Failure> {
    let Ok(mut outcome) = stillframe::upkeep::verify_without_log(state_dir, workspace) else {
        return Err(reason);
    };
    outcome.log = Some(stillframe::records::Failure::new(
        reason.kind().as_str(),
        reason.message(),
    ));
    Ok(verified(json, &outcome, state_dir))
}

fn verified(json: bool, outcome: &VerifyOutcome, state_dir: &Path) -> Reply {
    let reply = Reply::new(json, outcome, || findings(outcome));
    if outcome.is_sound() {
        return reply;
    }
    let way_out = way_out(outcome, state_dir);
    reply
        .exit_code(Failure::exit_code(false))
        .note(way_out.clone())
        .failed(way_out)
}

/// Whether a clean-up gives up what has this problem: nothing is known to be wrong with what the
/// disk did not give.
fn is_damage(problem: &Problem) -> bool {
    problem.kind.is_none_or(|kind| kind == ErrorKind::Corrupt)
}

/// What can be done about what was found.
fn way_out(outcome: &VerifyOutcome, state_dir: &Path) -> String {
    let is_of_artifacts = |problem: &Problem| problem.what == "artifacts";
    let unusable = outcome.store.iter().find(|p| is_of_artifacts(p));
    let is_given_up = |problem: &Problem| !is_of_artifacts(problem) && is_damage(problem);
    let is_more = outcome.store.iter().any(is_given_up)
        || outcome
            .snapshots
            .iter()
            .any(|snapshot| snapshot.problems.iter().any(is_damage));
    if outcome.log.is_some() {
        return "the snapshots that are not listed can be restored once the database is moved away, with the files \
                whose names begin with its own: a new one is made, and finds them; runs and events are lost"
            .to_owned();
    }
    let mut parts = vec![
        "something that is kept is damaged; what is not listed can still be restored".to_owned(),
    ];
    if is_more {
        parts.push("\"stillframe gc --forget-damaged\" gives up what cannot".to_owned());
    }
    parts.extend(unusable.map(|problem| artifacts_again(problem, state_dir)));
    parts.join("; ")
}

/// How the store of artifacts comes back, which no clean-up repairs.
fn artifacts_again(problem: &Problem, state_dir: &Path) -> String {
    let place = state_dir.join("artifacts");
    match problem.kind {
        // It has a format that is not known.
        Some(ErrorKind::Unsupported) => format!(
            "if no newer version of stillframe wrote {}, remove that file: it is made anew, and the artifacts \
             are as they were",
            printable(&place.join("format.json"))
        ),
        _ => format!("put {} right to use artifacts again", printable(&place)),
    }
}

/// Forgets what need not be kept.
pub(super) async fn gc(
    tools: &Tools,
    workspace: WorkspaceOptions,
    options: GcOptions,
    log: Option<LogRetention>,
) -> Result<Reply, Failure> {
    // First, so that the clean-up gives back what the log no longer needs.
    let log = match log {
        Some(kept) => Some(tools.engine.trim_log(kept).await?),
        None => None,
    };
    let told = log.as_ref().filter(|log| log.has_removed());
    let cleaned = tools.engine.gc(&workspace, options).await;
    let mut gc = cleaned.map_err(|e| match told {
        Some(log) => Failure::from(e).adding(&removed(log)),
        None => e.into(),
    })?;
    gc.freed_bytes += told.map_or(0, |log| log.freed_bytes);
    let warnings = warnings(&gc);
    let document = GcDocument { gc, log };
    let balance = || document.log.as_ref().map_or(String::new(), trimmed) + &balance(&document.gc);
    Ok(Reply::new(tools.json, &document, balance).warnings(warnings))
}

/// What a clean-up did, and what it removed from the log, if that was asked for.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct GcDocument {
    #[serde(flatten)]
    gc: GcOutcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<LogTrimOutcome>,
}

/// What was removed from the log, for people.
fn trimmed(log: &LogTrimOutcome) -> String {
    let mut text = removed(log) + "\n";
    let kept: u64 = log.sessions_kept.values().sum();
    if kept > 0 {
        let stay = if kept == 1 {
            "is due and stays"
        } else {
            "are due and stay"
        };
        let sessions = output::count(kept, "session");
        let because = log.sessions_kept.iter();
        let because =
            because.map(|(need, sessions)| format!("{sessions} because of {}", noun(*need)));
        let because: Vec<String> = because.collect();
        text += &format!("{sessions} {stay}: {}\n", because.join(", "));
    }
    text
}

/// What went from the log, in one line.
pub(super) fn removed(log: &LogTrimOutcome) -> String {
    let removed = match log.dry_run {
        true => "would remove",
        false => "removed",
    };
    format!(
        "{removed} {} and {} from the log, with {} of {}",
        output::count(log.events, "event"),
        output::count(log.sessions, "session"),
        output::count(log.artifacts, "artifact"),
        output::size(log.freed_bytes),
    )
}

/// What needs a session.
fn noun(need: SessionNeed) -> &'static str {
    match need {
        SessionNeed::Run => "a run that has not ended",
        SessionNeed::Snapshot => "a snapshot that is kept",
        SessionNeed::Restore => "a restore that is under way",
        SessionNeed::Prompt => "a prompt of an agent in another session",
        SessionNeed::Undo => "what can be undone",
        SessionNeed::Effect => "a commit that is not settled",
        SessionNeed::Worktree => "a worktree of a run that is kept",
        SessionNeed::Event => "an event that is needed",
        SessionNeed::OtherStore => "artifacts in another store",
        SessionNeed::InUse => "work that goes on",
        _ => "something that needs it",
    }
}

/// Forgets snapshots by name.
pub(super) async fn remove(
    tools: &Tools,
    workspace: WorkspaceOptions,
    ids: Vec<String>,
) -> Result<Reply, Failure> {
    let removal = tools.engine.remove_snapshots(&workspace, ids).await?;
    let mut warnings = warnings(&removal.gc);
    let lost = removal.not_undoable.iter();
    warnings.extend(lost.map(|run_id| format!("run {run_id} can be undone no more")));
    let reply = Reply::new(tools.json, &removal, || balance(&removal.gc)).warnings(warnings);
    Ok(match removal.kept.first() {
        None => reply,
        Some(id) => reply
            .exit_code(Failure::exit_code(false))
            .failed(format!("snapshot {id} was kept")),
    })
}

/// What a person should know of a clean-up, beside what went.
fn warnings(outcome: &GcOutcome) -> Vec<String> {
    let damaged = |problem: &Problem| {
        let (what, detail) = (
            output::printable(&problem.what),
            output::printable(&problem.detail),
        );
        match is_damage(problem) {
            true => format!(
                "{what} is damaged ({detail}), so no content was removed; \"stillframe gc \
                 --forget-damaged\" gives up what cannot be restored"
            ),
            false => format!("{what} cannot be read ({detail}), so no content was removed"),
        }
    };
    let kept = |problem: &Problem| {
        format!(
            "{}: {}",
            output::printable(&problem.what),
            output::printable(&problem.detail)
        )
    };
    let pinned = |id: &SnapshotId| {
        format!(
            "{id} is damaged and was kept, because it is pinned; \"stillframe snapshot unpin {id}\" first"
        )
    };
    let unusable = |problem: &Problem| format!("no artifact was removed: {}", kept(problem));
    let damaged = outcome.unreadable.iter().map(damaged);
    let warnings = damaged
        .chain(outcome.artifacts_unusable.iter().map(unusable))
        .chain(outcome.safety_refs.kept.iter().map(kept))
        .chain(outcome.damaged_pinned.iter().map(pinned));
    warnings.collect()
}

fn findings(outcome: &VerifyOutcome) -> String {
    let mut text = String::new();
    let snapshots = &outcome.snapshots;
    for snapshot in snapshots.iter().filter(|s| !s.problems.is_empty()) {
        text.push_str(&format!("{} cannot be restored:\n", snapshot.id));
        for problem in &snapshot.problems {
            text.push_str(&format!(
                "  {}: {}\n",
                output::printable(&problem.what),
                output::printable(&problem.detail)
            ));
        }
    }
    for problem in &outcome.store {
        text.push_str(&format!(
            "{}: {}\n",
            output::printable(&problem.what),
            output::printable(&problem.detail)
        ));
    }
    if let Some(log) = &outcome.log {
        text.push_str(&format!(
            "the log of runs and snapshots is damaged: {}\n",
            output::printable(&log.message)
        ));
    }
    for artifact in &outcome.artifacts {
        text.push_str(&format!(
            "artifact {}: {}\n",
            output::printable(&artifact.key),
            output::printable(&artifact.error.message)
        ));
    }
    for snapshot in snapshots.iter().filter(|s| !s.purged.is_empty()) {
        text.push_str(&format!(
            "{} lacks what was purged: {}\n",
            snapshot.id,
            output::some_of(&snapshot.purged)
        ));
    }
    if !outcome.adopted.is_empty() {
        text.push_str(&format!(
            "the log did not know of {}, and does now: {}\n",
            output::count(outcome.adopted.len() as u64, "snapshot"),
            output::some_of(&outcome.adopted)
        ));
    }
    let restorable = snapshots.iter().filter(|s| s.is_restorable()).count();
    let compared = snapshots
        .iter()
        .filter(|s| s.problems.is_empty() && s.without_content)
        .count();
    text.push_str(&format!(
        "{} can be restored\n",
        output::count(restorable as u64, "snapshot")
    ));
    if compared > 0 {
        text.push_str(&format!(
            "{} can be compared but not restored: their content was not kept, by an option or a limit\n",
            output::count(compared as u64, "snapshot")
        ));
    }
    text
}

fn balance(outcome: &GcOutcome) -> String {
    let mut text = String::new();
    let forgot = match outcome.dry_run {
        true => "would forget",
        false => "forgot",
    };
    for id in &outcome.forgotten {
        text.push_str(&format!("{forgot} {id}\n"));
    }
    let removed = match outcome.dry_run {
        true => "would remove",
        false => "removed",
    };
    let artifacts = outcome.artifacts_removed.iter();
    let artifacts = artifacts.map(|key| format!("{removed} artifact {}\n", output::printable(key)));
    if outcome.dry_run {
        text.extend(artifacts);
        text.push_str(&format!(
            "nothing was done; {} would be kept, {} used now\n",
            output::count(outcome.kept, "snapshot"),
            output::size(outcome.used_bytes)
        ));
        return text;
    }
    let refs = &outcome.safety_refs;
    for line in restore::moved_tags(&refs.moved) {
        text.push_str(&format!("{line}\n"));
    }
    for name in &refs.removed {
        text.push_str(&format!(
            "removed {} from the repository\n",
            output::printable(name)
        ));
    }
    text.extend(artifacts);
    text.push_str(&format!(
        "{} freed; {} kept, {} used\n",
        output::size(outcome.freed_bytes),
        output::count(outcome.kept, "snapshot"),
        output::size(outcome.used_bytes)
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clean_up_names_what_it_forgot() {
        let mut outcome = GcOutcome::default();
        outcome.forgotten = vec![format!("snap_{}", "a".repeat(32)).parse().expect("an id")];
        outcome.artifacts_removed = vec!["patch\u{1b}".to_owned()];
        (outcome.freed_bytes, outcome.used_bytes, outcome.kept) = (2048, 512, 1);
        assert_eq!(
            balance(&outcome),
            format!(
                "forgot snap_{}\nremoved artifact patch\\u{{1b}}\n\
                 2.0 KiB freed; 1 snapshot kept, 512 bytes used\n",
                "a".repeat(32)
            )
        );
        outcome.dry_run = true;
        assert_eq!(
            balance(&outcome),
            format!(
                "would forget snap_{}\nwould remove artifact patch\\u{{1b}}\n\
                 nothing was done; 1 snapshot would be kept, 512 bytes used now\n",
                "a".repeat(32)
            )
        );
    }

    #[test]
    fn nothing_to_verify_is_sound() {
        assert_eq!(
            findings(&VerifyOutcome::default()),
            "0 snapshots can be restored\n"
        );
    }

    #[test]
    fn what_the_disk_did_not_give_is_not_advised_to_be_given_up() {
        let way_out = |problem: Problem| {
            let mut outcome = VerifyOutcome::default();
            outcome.store = vec![problem];
            way_out(&outcome, Path::new("/state"))
        };
        let damaged = Problem::new("refs/1", "it names nothing");
        let not_given = damaged.clone().of_kind(ErrorKind::Storage);
        assert!(way_out(damaged.clone()).contains("--forget-damaged"));
        assert!(!way_out(not_given.clone()).contains("--forget-damaged"));

        let warned = |problem: Problem| {
            let mut outcome = GcOutcome::default();
            outcome.unreadable = vec![problem];
            warnings(&outcome).concat()
        };
        assert!(warned(damaged).contains("--forget-damaged"));
        assert!(!warned(not_given).contains("--forget-damaged"));
    }
}
