//! `review`: what runs have handed in, and decisions about it.

use stillframe::backends::{DiffOptions, Renames, printable as printable_path};
use stillframe::options::Approval;
use stillframe::records::{
    IsolatedRun, IsolationRecord, MergeMode, MergeOutcome, MergedRun, RunDocument,
};
use stillframe::{Error, ErrorKind, RunStatus};

use super::{Tools, diff, to_the_end};
use crate::failure::Failure;
use crate::output::{Reply, count, printable, short, some_of, table};
use crate::request::{ApproveRequest, DiffView, ReviewRequest};

/// What is asked of reviews.
pub(super) async fn answer(tools: &Tools, request: ReviewRequest) -> Result<Reply, Failure> {
    match request {
        ReviewRequest::List => list(tools).await,
        ReviewRequest::Show(run) => show(tools, &run).await,
        ReviewRequest::Diff(run, view) => compare(tools, &run, view).await,
        ReviewRequest::Approve(request) => to_the_end(tools, approve(tools, &request)).await,
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

async fn approve(tools: &Tools, request: &ApproveRequest) -> Result<Reply, Failure> {
    let review = tools.engine.review(&request.run).await?;
    let run = review.run();
    if let (Some(seen), Some(commit)) = (&request.commit, &run.isolation.commit)
        && !commit.starts_with(&**seen)
    {
        return Err(Failure::new(
            ErrorKind::Conflict,
            format!(
                "the review of run {} is stale: it has handed in {commit}, and not {seen}; nothing was merged",
                run.run_id
            ),
        ));
    }
    let mut approval = Approval::of(run)?
        .ref_only(request.ref_only)
        .require_current_base(request.require_current_base);
    approval.reviewer.clone_from(&request.by);
    let outcome = review.approve(approval).await?;
    let id = run.run_id.to_string();
    let run = tools.engine.review(&id).await?;
    let run = run.run();
    let reply = Reply::new(tools.json, run, || match &outcome {
        MergeOutcome::Merged(merged) => format!("{}\n", told_of_merge(&run.isolation, merged)),
        _ => String::new(),
    });
    let reply = reply.warnings(left_behind(&outcome));
    let reply = match outcome {
        MergeOutcome::Merged(_) => reply.warnings(not_merged_with_it(&id, &run.isolation)),
        _ => reply,
    };
    Ok(match not_merged(&id, &outcome) {
        None => reply,
        Some(why) => reply.failed(&why).note(why).exit_code(1),
    })
}

/// What was in the worktree of a merged run and in no commit.
fn not_merged_with_it(run: &str, isolation: &IsolationRecord) -> Vec<String> {
    let paths = isolation
        .out_of_scope
        .iter()
        .chain(&isolation.unconverted_paths);
    let paths: Vec<_> = paths.cloned().collect();
    if paths.is_empty() {
        return Vec::new();
    }
    vec![format!(
        "{} changed by the run and not in the commit: {}; the last snapshot that \"stillframe show {run}\" lists has them",
        count(paths.len() as u64, "path"),
        some_of(&paths)
    )]
}

/// That it was merged, in a line.
fn told_of_merge(isolation: &IsolationRecord, merged: &MergedRun) -> String {
    let into = branch(&isolation.originating_branch);
    let how = match (merged.fast_forward, merged.mode) {
        (true, MergeMode::RefOnly) => "a fast-forward; no file was touched",
        (true, _) => "a fast-forward, with the files of its checkout",
        (false, MergeMode::RefOnly) => "a merge; no file was touched",
        (false, _) => "a merge, with the files of its checkout",
    };
    format!("{into} is at {} now: {how}", short(&merged.new_head))
}

/// Why it was not merged, and what can be done; `None`: it was.
fn not_merged(run: &str, outcome: &MergeOutcome) -> Option<String> {
    match outcome {
        MergeOutcome::Merged(_) => None,
        MergeOutcome::Blocked { reason } => Some(format!(
            "nothing was merged: {}; run {run} still waits for a decision",
            printable(reason)
        )),
        MergeOutcome::Conflict { files, more } => Some(format!(
            "nothing was merged: others have changed the same in {}; \"stillframe worktree path {run}\" prints where the work is",
            match more {
                0 => some_of(files),
                more => format!("{} and {more} more", some_of(files)),
            }
        )),
        _ => Some("nothing was merged".to_owned()),
    }
}

/// The checkouts that a merge has left behind.
fn left_behind(outcome: &MergeOutcome) -> Vec<String> {
    let MergeOutcome::Merged(merged) = outcome else {
        return Vec::new();
    };
    let left = merged.left_behind.iter();
    let left = left.map(|at| {
        format!(
            "{at} has the files from before, and git shows there what was merged as taken back: \"git reset --hard\" brings them along, and loses what is changed there"
        )
    });
    let kept = (!merged.kept.is_empty()).then(|| {
        format!(
            "somebody changed {} in that moment, and it stayed: git shows there what was merged as taken back",
            some_of(&merged.kept)
        )
    });
    left.chain(kept).collect()
}

/// Merges what a run has just handed in, and says so in its document.
pub(super) async fn merge_at_once(
    tools: &Tools,
    document: &mut RunDocument,
) -> Result<Vec<String>, Error> {
    let id = document.run_id.to_string();
    let review = tools.engine.review(&id).await?;
    let outcome = review.approve(Approval::of(review.run())?).await?;
    let run = tools.engine.review(&id).await?;
    document.status = run.run().status;
    document.isolation = Some(run.run().isolation.clone());
    Ok(not_merged(&id, &outcome).into_iter().collect())
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
                format!(
                    "{} of {}",
                    branch(&run.isolation.originating_branch),
                    printable_path(&run.isolation.repository_path)
                ),
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
    for revision in &run.revisions {
        let by = revision.reviewer.as_deref().unwrap_or("somebody");
        rows.push((
            "asked for",
            printable(&format!("{by}: {}", revision.comment)),
        ));
    }
    if let Some(merge) = &isolation.merge {
        rows.push(("merge", printable(&merge.text())));
    }
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
        (RunStatus::Merged, _) => match &isolation.merge {
            Some(MergeOutcome::Merged(merged)) => vec![told_of_merge(isolation, merged)],
            _ => Vec::new(),
        },
        (_, Some(_)) => {
            vec!["it changed nothing that could be committed, and its worktree is gone".to_owned()]
        }
        (RunStatus::AwaitingReview, None) => {
            let commit = isolation.commit.as_deref().map(short).unwrap_or_default();
            vec![
                format!(
                    "{commit} on {} waits for a decision: \"stillframe review diff {run_id}\" shows it, \"stillframe review approve {run_id}\" merges it, \"stillframe review decline {run_id}\" declines it",
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
