//! `runs`, `show`: what is known of runs, and of one run or snapshot in full.

use serde::Serialize;
use serde_json::Value;
use stillframe::{Error, ErrorKind, RunQuery, RunRecord, Snapshot};

use super::{Tools, snapshot};
use crate::failure::Failure;
use crate::output::{self, Reply};

/// Lists the runs in a workspace.
pub(super) async fn runs(tools: &Tools, query: RunQuery) -> Result<Reply, Failure> {
    let runs = tools.engine.runs(query).await?;
    let reply = Reply::new(tools.json, &runs, || listing(&runs));
    Ok(match runs.is_empty() {
        true => reply.note("there were no runs in this workspace yet"),
        false => reply,
    })
}

/// Shows the run or the snapshot with this id, or the only one whose id begins so.
pub(super) async fn show(tools: &Tools, id: &str) -> Result<Reply, Failure> {
    let run = tools.engine.find_run(id).await;
    let snapshot = tools.engine.find_snapshot(id).await;
    match one_of(id, run, snapshot)? {
        Shown::Run(record) => {
            let mut snapshots = Vec::new();
            for id in snapshot_ids(&record.workspace) {
                match tools.engine.find_snapshot(id).await {
                    Ok(snapshot) => snapshots.push(snapshot),
                    // Forgotten since.
                    Err(e) if e.kind() == ErrorKind::NotFound => {}
                    Err(e) => return Err(e.into()),
                }
            }
            let document = RunInFull {
                record: &record,
                snapshots: &snapshots,
            };
            let text = || description(&record, &snapshots);
            Ok(Reply::new(tools.json, &document, text))
        }
        Shown::Snapshot(snapshot) => Ok(Reply::new(tools.json, &snapshot, || {
            snapshot::description(&snapshot)
        })),
    }
}

/// What an id names.
#[derive(Debug)]
enum Shown {
    Run(Box<RunRecord>),
    Snapshot(Box<Snapshot>),
}

/// A run with the snapshots around it that are still kept, so with their coverage.
#[derive(Serialize)]
struct RunInFull<'a> {
    #[serde(flatten)]
    record: &'a RunRecord,
    snapshots: &'a [Snapshot],
}

/// Decides what `id` names, by what was found under it.
fn one_of(
    id: &str,
    run: Result<RunRecord, Error>,
    snapshot: Result<Snapshot, Error>,
) -> Result<Shown, Failure> {
    match (run, snapshot) {
        (Ok(run), Ok(snapshot)) if run.id.as_str() != id => Err(Failure::invalid(format!(
            "{id:?} is the beginning of several ids, such as {} and {}; give more of it",
            run.id, snapshot.id
        ))),
        (Ok(run), _) => Ok(Shown::Run(Box::new(run))),
        (Err(e), Ok(_)) if e.kind() != ErrorKind::NotFound => Err(e.into()),
        (_, Ok(snapshot)) => Ok(Shown::Snapshot(Box::new(snapshot))),
        (Err(run), Err(snapshot)) => {
            let is_unknown = |error: &Error| error.kind() == ErrorKind::NotFound;
            Err(match (is_unknown(&run), is_unknown(&snapshot)) {
                (true, true) => Failure::not_found(format!(
                    "there is no run or snapshot {id:?}; \"stillframe runs\" and \"stillframe list\" show them"
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

/// The ids of the snapshots before and after a run, as far as its summary has them.
fn snapshot_ids(workspace: &Value) -> impl Iterator<Item = &str> {
    ["before_snapshot", "after_snapshot"]
        .into_iter()
        .filter_map(|key| workspace[key].as_str())
}

fn listing(runs: &[RunRecord]) -> String {
    let rows: Vec<Vec<String>> = runs
        .iter()
        .map(|run| {
            let changed = run.workspace["diff"]["files_changed"].as_u64();
            vec![
                run.id.to_string(),
                format!("{:.0}", run.created_at),
                run.status.as_str().to_owned(),
                changed
                    .map(|n| output::count(n, "file"))
                    .unwrap_or_default(),
                output::printable(&run.input),
            ]
        })
        .collect();
    output::table(&rows)
}

/// A run in full.
fn description(run: &RunRecord, snapshots: &[Snapshot]) -> String {
    let mut rows = vec![
        ("run", run.id.to_string()),
        ("session", run.session_id.to_string()),
        ("status", run.status.as_str().to_owned()),
        ("input", output::printable(&run.input)),
    ];
    if let Some(code) = run.exit_code {
        rows.push(("exit code", code.to_string()));
    }
    if let Some(error) = &run.error {
        rows.push(("error", output::printable(&error.message)));
    }
    if let Some(path) = &run.workspace_path {
        rows.push(("workspace", output::printable(path)));
    }
    rows.push(("created", run.created_at.to_string()));
    rows.extend(run.started_at.map(|at| ("started", at.to_string())));
    rows.extend(run.ended_at.map(|at| ("ended", at.to_string())));
    let diff = &run.workspace["diff"];
    if let Some(changed) = diff["files_changed"].as_u64() {
        let lines = |key: &str| diff[key].as_u64().unwrap_or(0);
        rows.push((
            "changed",
            format!(
                "{}, {} lines added, {} removed",
                output::count(changed, "file"),
                lines("insertions"),
                lines("deletions")
            ),
        ));
    }
    if run.workspace["patch_purged"] == true {
        rows.push(("patch", "purged".to_owned()));
    }
    if let Some(key) = run.workspace["patch_ref"].as_str() {
        rows.push(("patch", format!("artifact {}", output::printable(key))));
    }
    for (key, name) in [("rollback", "rollback"), ("error", "engine")] {
        let part = &run.workspace[key];
        if let Some(text) = part["status"].as_str().or(part["message"].as_str()) {
            rows.push((name, output::printable(text)));
        }
    }
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), value])
        .collect();
    let mut text = output::table(&rows);
    for path in diff["changed_paths"].as_array().into_iter().flatten() {
        if let Ok(path) = serde_json::from_value::<stillframe::RelPath>(path.clone()) {
            text.push_str(&format!("  {path}\n"));
        }
    }
    for snapshot in snapshots {
        text.push('\n');
        text.push_str(&snapshot::description(snapshot));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::snapshot::tests::snapshot_json;

    fn run() -> RunRecord {
        serde_json::from_value(json!({
            "run_id": "run_1", "session_id": "ses_1", "status": "failed",
            "input": "make\u{1b}[2J test", "workspace_path": "/w",
            "created_at": "2026-02-03T04:05:06.789Z", "started_at": "2026-02-03T04:05:07Z",
            "ended_at": null, "exit_code": 2,
            "error": {"kind": null, "message": "the command exited with code 2"},
            "options": {},
            "output": null,
            "workspace": {
                "before_snapshot": "snap_a", "after_snapshot": null,
                "diff": {
                    "files_changed": 2, "insertions": 3, "deletions": 1,
                    "changed_paths": ["a", {"base64": "Yf8="}],
                },
                "rollback": {"status": "completed"}, "error": null,
            },
        }))
        .expect("it is a run")
    }

    fn snapshot() -> Snapshot {
        serde_json::from_value(snapshot_json('a', &[("out", "ignored")])).expect("a snapshot")
    }

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
    }

    #[test]
    fn a_run_is_listed_on_one_line() {
        assert_eq!(
            listing(&[run()]),
            "run_1  2026-02-03T04:05:06Z  failed  2 files  make\\u{1b}[2J test\n"
        );
    }

    #[test]
    fn a_run_in_full_has_its_paths_and_the_coverage_of_its_snapshots() {
        let text = description(&run(), &[snapshot()]);
        for part in [
            "exit code  2\n",
            "error      the command exited with code 2\n",
            "changed    2 files, 3 lines added, 1 removed\n",
            "rollback   completed\n",
            "  a\n  a\\xff\n",
            "  out (ignored)\n",
        ] {
            assert!(text.contains(part), "{part:?} is in {text}");
        }
        assert_eq!(
            snapshot_ids(&run().workspace).collect::<Vec<_>>(),
            ["snap_a"]
        );
        let document = serde_json::to_value(RunInFull {
            record: &run(),
            snapshots: &[snapshot()],
        })
        .expect("plain data");
        assert_eq!(document["run_id"], "run_1");
        assert_eq!(
            document["snapshots"][0]["omissions"][0]["reason"],
            "ignored"
        );
    }
}
