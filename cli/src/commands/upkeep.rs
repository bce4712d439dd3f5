//! `verify` and `gc`: whether all is whole, and what need not be kept.

use stillframe::{GcOptions, GcOutcome, VerifyOutcome, WorkspaceOptions};

use super::Tools;
use crate::failure::Failure;
use crate::output::{self, Reply};

/// Proves everything restorable, or names what is not.
pub(super) async fn verify(tools: &Tools, workspace: WorkspaceOptions) -> Result<Reply, Failure> {
    let outcome = tools.engine.verify(&workspace).await?;
    let reply = Reply::new(tools.json, &outcome, || findings(&outcome));
    Ok(match outcome.is_sound() {
        true => reply,
        false => reply
            .exit_code(Failure::exit_code(false))
            .note("something that is kept is damaged; what is not listed can still be restored"),
    })
}

/// Forgets what need not be kept.
pub(super) async fn gc(
    tools: &Tools,
    workspace: WorkspaceOptions,
    options: GcOptions,
) -> Result<Reply, Failure> {
    let outcome = tools.engine.gc(&workspace, options).await?;
    Ok(Reply::new(tools.json, &outcome, || balance(&outcome)))
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
    for artifact in &outcome.artifacts {
        text.push_str(&format!(
            "artifact {}: {}\n",
            output::printable(&artifact.key),
            output::printable(&artifact.error.message)
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
            "{} can be compared but not restored: taken without \"--retain-content\"\n",
            output::count(compared as u64, "snapshot")
        ));
    }
    text
}

fn balance(outcome: &GcOutcome) -> String {
    let mut text = String::new();
    for id in &outcome.forgotten {
        text.push_str(&format!("forgot {id}\n"));
    }
    for key in &outcome.artifacts_removed {
        text.push_str(&format!("removed artifact {}\n", output::printable(key)));
    }
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
    }

    #[test]
    fn nothing_to_verify_is_sound() {
        assert_eq!(
            findings(&VerifyOutcome::default()),
            "0 snapshots can be restored\n"
        );
    }
}
