//! `worktree`: where runs work, and letting go of it.

use std::io::Cursor;
use std::os::unix::ffi::OsStrExt as _;

use stillframe::ErrorKind;

use super::review::{branch, listing};
use super::{Tools, to_the_end};
use crate::failure::Failure;
use crate::output::{Answer, Reply};
use crate::request::WorktreeRequest;

/// What is asked of the worktrees of runs.
pub(super) async fn answer(tools: &Tools, request: WorktreeRequest) -> Result<Reply, Failure> {
    match request {
        WorktreeRequest::List => list(tools).await,
        WorktreeRequest::Path(run) => path(tools, &run).await,
        WorktreeRequest::Discard(run) => to_the_end(tools, discard(tools, &run)).await,
    }
}

async fn list(tools: &Tools) -> Result<Reply, Failure> {
    let kept = tools.engine.isolated_runs().await?;
    let reply = Reply::new(tools.json, &kept, || listing(&kept));
    Ok(match kept.is_empty() {
        true => reply.note("no run has a worktree"),
        false => reply,
    })
}

async fn path(tools: &Tools, run: &str) -> Result<Reply, Failure> {
    let review = tools.engine.review(run).await?;
    let run = review.run();
    if let Some(at) = run.isolation.let_go_at {
        let message = format!(
            "the worktree of run {} was let go of at {at:.0}; \"stillframe show {}\" lists its snapshots",
            run.run_id, run.run_id
        );
        return Err(Failure::new(ErrorKind::NotFound, message));
    }
    if tools.json {
        return Ok(Reply::new(true, run, String::new));
    }
    let mut bytes = run.isolation.worktree_path.as_os_str().as_bytes().to_vec();
    bytes.push(b'\n');
    Ok(Reply::of(Answer::Bytes(Box::new(Cursor::new(bytes)))))
}

async fn discard(tools: &Tools, run: &str) -> Result<Reply, Failure> {
    let gone = tools.engine.discard_worktree(run).await?;
    let (id, isolation) = (&gone.run.run_id, &gone.run.isolation);
    let reply = Reply::new(tools.json, &gone, || {
        let branch = branch(&isolation.worktree_branch);
        format!("the worktree of run {id} is let go of, and the branch {branch} with it\n")
    });
    Ok(match &gone.snapshot_id {
        Some(snapshot) => reply.note(format!(
            "what was there is snapshot {snapshot}: \"stillframe restore {snapshot} --to DIR\" puts it elsewhere"
        )),
        None => reply,
    })
}
