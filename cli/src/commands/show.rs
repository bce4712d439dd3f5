//! `show`: a run, a session or a snapshot in full.

use serde::Serialize;
use stillframe::backends::Displaced;
use stillframe::options::SnapshotQuery;
use stillframe::records::RunRecord;
use stillframe::{Error, ErrorKind, Snapshot, WorkspaceOptions};

use super::runs::{self, paged};
use super::sessions::SessionDocument;
use super::{Tools, above, snapshot};
use crate::failure::Failure;
use crate::output::{self, Reply};

/// What an id names.
#[derive(Debug)]
enum Shown {
    Run(Box<RunRecord>),
    Snapshot(Box<Snapshot>),
    Session(Box<SessionDocument>),
}

/// Shows the run of exactly this id, else the session; else the only run or snapshot whose id
/// begins so; the snapshot that the name means in this workspace, if there is one.
pub(super) async fn show(
    tools: &Tools,
    id: &str,
    workspace: Option<WorkspaceOptions>,
) -> Result<Reply, Failure> {
    let run = tools.engine.find_run(id).await;
    let shown = match workspace {
        None => match run {
            Ok(run) if run.id.as_str() == id => Shown::Run(Box::new(run)),
            run => match SessionDocument::of(tools, id).await {
                Err(e) if e.kind() == ErrorKind::NotFound => shown_by_id(tools, id, run).await?,
                session => Shown::Session(Box::new(session?)),
            },
        },
        // No beginning of a run's id is meant by such a name, but a host may have called a run just
        // so.
        Some(workspace) => match run.ok().filter(|run| run.id.as_str() == id) {
            Some(run) => Shown::Run(Box::new(run)),
            None => Shown::Snapshot(Box::new(
                snapshot::by_name(tools, id, Some(&workspace)).await?,
            )),
        },
    };
    let reply = match shown {
        Shown::Run(record) => {
            let run = tools.engine.export_run(record.id.as_str()).await?;
            let pinned = tools.engine.pinned_snapshots().await?;
            Reply::new(tools.json, &run, || runs::description(&run, &pinned))
        }
        Shown::Session(session) => Reply::new(tools.json, &*session, || session.description()),
        Shown::Snapshot(snapshot) => {
            let displaced = tools.engine.displaced(&snapshot).await?;
            let pinned = tools.engine.pinned_snapshots().await?;
            let document = SnapshotDocument {
                snapshot: &snapshot,
                pinned: pinned.contains(&snapshot.id),
                displaced: &displaced,
            };
            Reply::new(tools.json, &document, || {
                snapshot::description(&snapshot, document.pinned) + &beside(&displaced)
            })
        }
    };
    paged(tools, reply)
}

/// What has this id, or alone an id that begins so: of all workspaces, or else of this one.
async fn shown_by_id(
    tools: &Tools,
    id: &str,
    run: Result<RunRecord, Error>,
) -> Result<Shown, Failure> {
    let snapshot = tools.engine.find_snapshot(id).await;
    let is_several = |kind: Option<ErrorKind>| kind == Some(ErrorKind::InvalidOptions);
    let is_open = is_several(run.as_ref().err().map(Error::kind))
        || is_several(snapshot.as_ref().err().map(Error::kind))
        || (run.is_ok() && snapshot.is_ok());
    let is_exact = run.as_ref().is_ok_and(|run| run.id.as_str() == id)
        || snapshot.as_ref().is_ok_and(|found| found.id.as_str() == id);
    if is_open
        && !is_exact
        && let Some(own) = above::own(tools).await
    {
        let of_own = tools.engine.find_run_of(&own, id).await;
        let its = tools.engine.find_snapshot_of(&own, id).await;
        let is_run = !of_own.as_ref().is_err_and(is_unknown);
        match (
            is_run,
            its.is_ok() || begins_a_snapshot(tools, &own, id).await?,
        ) {
            (false, false) => {}
            (true, false) => return Ok(Shown::Run(Box::new(of_own?))),
            (_, true) => return one_of(id, of_own, its),
        }
    }
    one_of(id, run, snapshot)
}

/// Whether the id of a snapshot of this workspace begins so, were it of several.
async fn begins_a_snapshot(tools: &Tools, own: &WorkspaceOptions, id: &str) -> Result<bool, Error> {
    let digits = id.strip_prefix("snap_").unwrap_or(id);
    let all = tools.engine.snapshots(SnapshotQuery::of(own)).await?;
    Ok(all
        .iter()
        .map(|found| found.id.as_str())
        .any(|found| found.starts_with(id) || found["snap_".len()..].starts_with(digits)))
}

/// Decides what `id` names, by what was found under it.
fn one_of(
    id: &str,
    run: Result<RunRecord, Error>,
    snapshot: Result<Snapshot, Error>,
) -> Result<Shown, Failure> {
    match (run, snapshot) {
        (Ok(run), _) if run.id.as_str() == id => Ok(Shown::Run(Box::new(run))),
        (_, Ok(snapshot)) if snapshot.id.as_str() == id => Ok(Shown::Snapshot(Box::new(snapshot))),
        (Ok(run), Ok(snapshot)) => Err(Failure::invalid(format!(
            "{id:?} is the beginning of several ids, such as {} and {}; give more of it",
            run.id, snapshot.id
        ))),
        (Ok(_), Err(e)) if !is_unknown(&e) => Err(e.into()),
        (Ok(run), Err(_)) => Ok(Shown::Run(Box::new(run))),
        (Err(e), Ok(_)) if !is_unknown(&e) => Err(e.into()),
        (_, Ok(snapshot)) => Ok(Shown::Snapshot(Box::new(snapshot))),
        (Err(run), Err(snapshot)) => {
            Err(match (is_unknown(&run), is_unknown(&snapshot)) {
                // Nobody means a run by that, and of a snapshot it is known since when there is
                // none.
                (true, true) if id.starts_with("snap_") => snapshot.into(),
                (true, true) => Failure::not_found(format!(
                    "there is no run, snapshot or session {id:?}; \"stillframe runs\", \"stillframe list\" and \"stillframe sessions\" show them"
                )),
                (true, false) => snapshot.into(),
                (false, true) => run.into(),
                (false, false) => {
                    Failure::new(run.kind(), format!("{}; {}", run.chain(), snapshot.chain()))
                }
            })
        }
    }
}

fn is_unknown(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

/// A snapshot, and what the restore that it is the guard of displaced and no snapshot holds.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SnapshotDocument<'a> {
    #[serde(flatten)]
    snapshot: &'a Snapshot,
    /// Whether it is kept whatever its age. Left out if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pinned: bool,
    /// What the restore that it is the guard of displaced. Left out if there is nothing.
    #[serde(skip_serializing_if = "<[Displaced]>::is_empty")]
    displaced: &'a [Displaced],
}

/// What lies beside a guard, for people.
fn beside(displaced: &[Displaced]) -> String {
    let lines = displaced.iter().map(|Displaced { omission, at, .. }| {
        let (path, reason) = (&omission.path, omission.reason);
        let at = output::printable(&at.to_string_lossy());
        format!("displaced {path} ({reason}), which a restore of this guard puts back: {at}\n")
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::runs::tests::{run, snapshot};

    fn error() -> Error {
        Error::invalid_options("ambiguous")
    }

    #[test]
    fn an_id_names_a_run_or_a_snapshot_and_never_either() {
        assert!(matches!(
            one_of("run_1", Ok(run()), Err(error())),
            Ok(Shown::Run(_))
        ));
        assert!(matches!(
            one_of("run_1", Ok(run()), Ok(snapshot())),
            Ok(Shown::Run(_))
        ));
        let both = one_of("run", Ok(run()), Ok(snapshot())).expect_err("ambiguous");
        assert_eq!(both.kind(), ErrorKind::InvalidOptions);
        assert!(both.line().contains("run_1"), "{}", both.line());
        let ambiguous_run = one_of("x", Err(error()), Ok(snapshot())).expect_err("ambiguous");
        assert_eq!(ambiguous_run.kind(), ErrorKind::InvalidOptions);
        let several = one_of("run", Ok(run()), Err(error())).expect_err("ambiguous");
        assert_eq!(several.kind(), ErrorKind::InvalidOptions);
        let all = snapshot().id;
        assert!(matches!(
            one_of(all.as_str(), Err(error()), Ok(snapshot())),
            Ok(Shown::Snapshot(_))
        ));
    }
}
