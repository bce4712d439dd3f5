//! `init` and `clone`: repositories that are made.

use stillframe::backends::printable;
use stillframe::options::{CloneOptions, InitOptions};
use stillframe::records::NewRepositoryRecord;

use super::{Tools, until_a_signal};
use crate::failure::Failure;
use crate::output::{Reply, count, printable as printable_text, short, some_of};

/// Makes a repository.
pub(super) async fn init(tools: &Tools, options: InitOptions) -> Result<Reply, Failure> {
    let made = tools.engine.init(options).await?;
    Ok(Reply::new(tools.json, &made, || {
        format!("a repository is in {}\n", place(&made))
    }))
}

/// Clones a repository.
pub(super) async fn clone(tools: &Tools, options: CloneOptions) -> Result<Reply, Failure> {
    until_a_signal(|cancellation| cloned(tools, options.cancellation(cancellation))).await
}

async fn cloned(tools: &Tools, options: CloneOptions) -> Result<Reply, Failure> {
    let cloned = tools.engine.clone_repository(options).await?;
    let reply = Reply::new(tools.json, &cloned, || {
        let remote = cloned.remote.as_deref().unwrap_or_default();
        let files = count(cloned.files, "file");
        format!(
            "{} is in {}, {files}\n",
            printable_text(remote),
            place(&cloned)
        )
    });
    let skipped = cloned.skipped.iter();
    let skipped: Vec<String> = skipped
        .map(|skipped| {
            format!(
                "{} is not as the branch has it ({})",
                skipped.path, skipped.reason
            )
        })
        .collect();
    let mut notes = Vec::new();
    if cloned.commit.is_none() {
        notes.push(
            "the remote has no branch to begin on, so that no file was written; \"git switch BRANCH\" takes another"
                .to_owned(),
        );
    }
    if !cloned.unconverted_paths.is_empty() {
        notes.push(format!(
            "as they are stored, because no filter is run: {}; of Git LFS, git lfs pull brings the content",
            some_of(&cloned.unconverted_paths)
        ));
    }
    if !cloned.submodules.is_empty() {
        notes.push(format!(
            "submodules were not fetched: {}; git submodule update --init does",
            some_of(&cloned.submodules)
        ));
    }
    let code = u8::from(!skipped.is_empty());
    Ok(reply.warnings(skipped).notes(notes).exit_code(code))
}

/// Where it is, and what HEAD names.
fn place(made: &NewRepositoryRecord) -> String {
    let branch = printable_text(&made.branch);
    let at = made.commit.as_deref().map(short);
    let at = at.map_or_else(
        || "without a commit".to_owned(),
        |commit| format!("at {commit}"),
    );
    format!("{}, on {branch} {at}", printable(&made.path))
}
