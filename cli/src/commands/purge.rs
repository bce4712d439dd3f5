//! `purge`: removing a leaked secret from every snapshot.

use stillframe::WorkspaceOptions;
use stillframe::backends::PurgeTarget;
use stillframe::upkeep::{PurgeOutcome, PurgePlan};

use super::{Tools, above};
use crate::failure::Failure;
use crate::output::{self, Reply};

const UNPROVEN: &str = "it could not be proven that nothing is left; see what is not proven";

/// Says what a purge would remove.
pub(super) async fn plan(
    tools: &Tools,
    workspace: WorkspaceOptions,
    target: PurgeTarget,
) -> Result<Reply, Failure> {
    let plan = tools.engine.plan_purge(&workspace, target).await?;
    let how = match above::to_name(tools, &workspace.path) {
        None => "the same command without --plan does it".to_owned(),
        Some(named) => format!(
            "the same command with \"{named}\" in place of --plan, and with paths from there, does it"
        ),
    };
    Ok(Reply::new(tools.json, &plan, || listing(&plan))
        .warnings(doubts(&plan))
        .note(format!("this is a plan, nothing was removed; {how}")))
}

/// Removes it, and says what was looked at afterwards.
pub(super) async fn purge(
    tools: &Tools,
    workspace: WorkspaceOptions,
    target: PurgeTarget,
) -> Result<Reply, Failure> {
    let outcome = tools.engine.purge(&workspace, target).await?;
    let reply = Reply::new(tools.json, &outcome, || {
        listing(&outcome.purged) + &proof(&outcome, &above::git(&workspace.path))
    })
    .warnings(doubts(&outcome.purged));
    Ok(match outcome.is_proven() {
        true => reply.note(
            "the files of the workspace and the user's own repository were not touched, and may \
             still have it; a secret that leaked has to be replaced all the same",
        ),
        false => reply
            .exit_code(Failure::exit_code(false))
            .note(UNPROVEN)
            .failed(UNPROVEN),
    })
}

fn listing(plan: &PurgePlan) -> String {
    let mut text = String::new();
    for content in &plan.contents {
        let bytes = match content.bytes {
            Some(bytes) => output::count(bytes, "byte"),
            None => "length unknown".to_owned(),
        };
        let before = match content.purged {
            true => ", purged before",
            false => "",
        };
        text.push_str(&format!("content {} ({bytes}{before})\n", content.id));
        for path in &content.paths {
            text.push_str(&format!("  {path}\n"));
        }
        for path in &content.also_at {
            text.push_str(&format!("  {path} (not named, and the same bytes)\n"));
        }
    }
    for kept in &plan.kept {
        text.push_str(&format!("stays: {} ({})\n", kept.path, kept.reason));
    }
    for snapshot in &plan.snapshots {
        let label = snapshot.label.as_ref().map(|label| label.to_string());
        text.push_str(&format!(
            "in {} ({}, {})\n",
            snapshot.id,
            output::printable(label.as_deref().unwrap_or("not in the log")),
            output::count(snapshot.paths, "path"),
        ));
    }
    for run in &plan.runs {
        text.push_str(&format!("in the patch of {run}\n"));
    }
    for key in &plan.artifacts {
        text.push_str(&format!("in artifact {}\n", output::printable(key)));
    }
    let snapshots = output::count(plan.snapshots.len() as u64, "snapshot");
    let bytes = output::count(plan.bytes, "byte");
    text.push_str(&format!("{bytes} of content in {snapshots}\n"));
    text
}

/// `git` calls git for the repository of the workspace.
fn proof(outcome: &PurgeOutcome, git: &str) -> String {
    let mut text = String::new();
    for backup in &outcome.backups_removed {
        text.push_str(&format!("removed {}\n", output::printable(backup)));
    }
    let proof = &outcome.proof;
    for problem in &proof.unproven {
        text.push_str(&format!(
            "not proven: {}: {}\n",
            output::printable(&problem.what),
            output::printable(&problem.detail)
        ));
    }
    for name in &proof.safety_refs {
        let name = output::printable(name);
        text.push_str(&format!(
            "still in the repository, by {name}; \"{git} update-ref --no-deref -d {name}\" removes that\n"
        ));
    }
    for name in &proof.safety_refs_unsearched {
        let name = output::printable(name);
        text.push_str(&format!(
            "perhaps still in the repository, by {name}, which could not be searched to its end; \"{git} update-ref \
             --no-deref -d {name}\" removes that\n"
        ));
    }
    text.push_str(&format!(
        "removed; looked at {} in {}, {} of the store, {} that restores displaced, {}, and wrote the \
         database anew\n",
        output::count(proof.objects, "object"),
        output::count(proof.packs, "pack"),
        output::count(proof.files, "file"),
        output::count(proof.displaced, "file"),
        output::count(outcome.artifacts_read, "artifact"),
    ));
    text
}

fn doubts(plan: &PurgePlan) -> Vec<String> {
    let unreadable = plan.unreadable.iter();
    unreadable
        .map(|problem| {
            format!(
                "{} cannot be looked at, and what it alone has stays: {}",
                output::printable(&problem.what),
                output::printable(&problem.detail)
            )
        })
        .collect()
}
