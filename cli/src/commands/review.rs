//! `review`: what runs have handed in, and decisions about it.

use stillframe::RunStatus;
use stillframe::backends::{DiffOptions, Renames, printable as printable_path};
use stillframe::records::{IsolatedRun, IsolationRecord};

use super::{Tools, diff, to_the_end};
use crate::failure::Failure;
use crate::output::{Reply, count, printable, short, some_of, table};
use crate::request::{DiffView, ReviewRequest};

/// What is asked of reviews.
pub(super) async fn answer(tools: &Tools, request: ReviewRequest) -> Result<Reply, Failure> {
    match request {
        ReviewRequest::List => list(tools).await,
        ReviewRequest::Show(run) => show(tools, &run).await,
        ReviewRequest::Diff(run, view) => compare(tools, &run, view).await,
        ReviewRequest::Decline { run, by } => {
            to_the_end(tools, decline(tools, &run, by.as_deref())).await
        }
    }
}

async fn list(tools: &Tools) -> Result<Reply, Failure> {
    let waiting = tools.engine.pending_reviews().await?;
    let reply = Reply::new(tools.json, &waiting, || listing(&waiting));
    Ok(match waiting.is_empty() {
        true => reply.note("nothing waits for a decision"),
        false => reply,
    })
}

async fn show(tools: &Tools, run: &str) -> Result<Reply, Failure> {
    let review = tools.engine.review(run).await?;
    let run = review.run();
    Ok(Reply::new(tools.json, run, || told(run)))
}

async fn compare(tools: &Tools, run: &str, view: DiffView) -> Result<Reply, Failure> {
    let review = tools.engine.review(run).await?;
    let mut options = DiffOptions::default();
    options.capture_patch = view == DiffView::Patch;
    if !tools.json && view != DiffView::Patch {
        options.renames = Renames::Similar;
    }
    let outcome = review.diff(options).await?;
    if tools.json {
        return Ok(Reply::new(true, &outcome.diff, String::new));
    }
    diff::shown(outcome, view, tools.console.paint()).map(Reply::paged)
}

async fn decline(tools: &Tools, run: &str, by: Option<&str>) -> Result<Reply, Failure> {
    let review = tools.engine.review(run).await?;
    let run = review.decline(by).await?;
    let id = &run.run_id;
    Ok(Reply::new(tools.json, &run, || {
        format!(
            "run {id} is declined, and {} is as it was\n",
            branch(&run.isolation.originating_branch)
        )
    })
    .note(format!(
        "its worktree and its branch stay: \"stillframe worktree discard {id}\" lets go of them"
    )))
}

/// Runs with worktrees of their own, one a line.
pub(super) fn listing(runs: &[IsolatedRun]) -> String {
    let rows: Vec<Vec<String>> = runs
        .iter()
        .map(|run| {
            vec![
                run.run_id.to_string(),
                format!("{:.0}", run.created_at),
                run.status.as_str().to_owned(),
                branch(&run.isolation.originating_branch),
                printable(&run.input),
            ]
        })
        .collect();
    table(&rows)
}

/// What a run has handed in, for people.
fn told(run: &IsolatedRun) -> String {
    let isolation = &run.isolation;
    let or_none = |of: Option<&str>| of.unwrap_or("none").to_owned();
    let mut rows = vec![
        ("run", run.run_id.to_string()),
        ("status", run.status.as_str().to_owned()),
        ("for", printable(&run.input)),
        ("repository", printable_path(&isolation.repository_path)),
        (
            "cut from",
            format!(
                "{} at {}",
                branch(&isolation.originating_branch),
                short(&isolation.base)
            ),
        ),
        ("branch", branch(&isolation.worktree_branch)),
        ("worktree", printable_path(&isolation.worktree_path)),
        ("commit", or_none(isolation.commit.as_deref())),
        ("tree", or_none(isolation.tree.as_deref())),
        ("patch", or_none(isolation.diff.as_deref())),
    ];
    if let Some(by) = &isolation.reviewed_by {
        rows.push(("reviewed by", printable(by)));
    }
    for (what, paths) in [
        ("out of scope", &isolation.out_of_scope),
        ("unconverted", &isolation.unconverted_paths),
    ] {
        if !paths.is_empty() {
            rows.push((what, some_of(paths)));
        }
    }
    if let Some(at) = isolation.let_go_at {
        rows.push(("let go of", format!("{at:.0}")));
    }
    let rows = rows
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), value]);
    table(&rows.collect::<Vec<_>>())
}

/// A branch as people call it.
pub(super) fn branch(name: &str) -> String {
    printable(name.strip_prefix("refs/heads/").unwrap_or(name))
}

/// What people are told of a run's own worktree once the run has ended or waits.
pub(super) fn what_next(
    run_id: &str,
    status: RunStatus,
    isolation: &IsolationRecord,
) -> Vec<String> {
    match (status, isolation.let_go_at) {
        (_, Some(_)) => {
            vec!["it changed nothing that could be committed, and its worktree is gone".to_owned()]
        }
        (RunStatus::AwaitingReview, None) => {
            let commit = isolation.commit.as_deref().map(short).unwrap_or_default();
            vec![
                format!(
                    "{commit} on {} waits for a decision: \"stillframe review diff {run_id}\" shows it, \"stillframe review decline {run_id}\" declines it",
                    branch(&isolation.worktree_branch)
                ),
                format!("\"stillframe worktree path {run_id}\" prints where it is"),
            ]
        }
        _ => vec![format!(
            "what it left is in its worktree: \"stillframe worktree path {run_id}\" prints where, \"stillframe worktree discard {run_id}\" lets go of it"
        )],
    }
}

/// What of a run's changes is not in what it has handed in.
pub(super) fn left_out(isolation: &IsolationRecord) -> Vec<String> {
    let mut warnings = Vec::new();
    let (outside, unconverted) = (&isolation.out_of_scope, &isolation.unconverted_paths);
    if !outside.is_empty() {
        warnings.push(format!(
            "{} out of scope, in the worktree and not in the commit: {}",
            count(outside.len() as u64, "changed path"),
            some_of(outside)
        ));
    }
    if !unconverted.is_empty() {
        warnings.push(format!(
            "in the commit as they were, because no filter is run: {}",
            some_of(unconverted)
        ));
    }
    warnings
}
