//! `diff`: two snapshots compared, or one with the workspace as it is.

use std::io::{self, BufReader};

use stillframe::{Diff, DiffOutcome, DiffRequest, ErrorKind, RelPath, WorkspaceOptions};

use super::{Tools, diffstat};
use crate::failure::Failure;
use crate::output::{self, Answer, Reply};
use crate::request::DiffView;

/// Compares.
pub(super) async fn diff(
    tools: &Tools,
    workspace: WorkspaceOptions,
    request: DiffRequest,
    view: DiffView,
) -> Result<Reply, Failure> {
    let session = tools.engine.workspace_session(&workspace.path).await?;
    let outcome = session.diff(&workspace, request).await?;
    if tools.json {
        return Ok(Reply::new(true, &outcome.diff, String::new));
    }
    shown(outcome, view)
}

fn shown(outcome: DiffOutcome, view: DiffView) -> Result<Reply, Failure> {
    let diff = &outcome.diff;
    let lacks_patch = !diff.has_patch && diff.files_changed > 0;
    let text = match (view, outcome.patch) {
        (DiffView::Patch, _) if lacks_patch => {
            return Ok(Reply::default().note(no_patch(diff)));
        }
        (DiffView::Patch, None) => String::new(),
        (DiffView::Patch, Some(patch)) => {
            return Ok(Reply {
                answer: Answer::Bytes(Box::new(patch)),
                ..Reply::default()
            });
        }
        (DiffView::Stat, Some(patch)) if !lacks_patch => {
            let files = diffstat::of_patch(BufReader::new(patch)).map_err(unreadable)?;
            let mut text = diffstat::drawn(&files);
            text.push_str(&totals(diff));
            text.push('\n');
            text
        }
        (DiffView::NameOnly, _) => names(&diff.changed_paths),
        (DiffView::NameStatus, _) => statuses(diff, '\t'),
        (DiffView::Summary | DiffView::Stat, _) => summary(diff),
    };
    let reply = Reply {
        answer: Answer::Text(text),
        ..Reply::default()
    };
    Ok(match (view, lacks_patch) {
        (DiffView::Stat, true) => reply.note(no_patch(diff)),
        _ => reply,
    })
}

fn no_patch(diff: &Diff) -> String {
    format!(
        "the {} backend does not compare lines, so there is no patch; --name-status lists what changed",
        diff.backend
    )
}

fn unreadable(error: io::Error) -> Failure {
    let kind = ErrorKind::of_storage(&error);
    Failure::new(kind, format!("the patch cannot be read: {error}"))
}

/// `2 files changed, 10 insertions(+), 1 deletion(-)`.
pub(super) fn totals(diff: &Diff) -> String {
    if diff.files_changed == 0 {
        return "no file changed".to_owned();
    }
    let mut text = format!("{} changed", output::count(diff.files_changed, "file"));
    for (number, noun, sign) in [
        (diff.insertions, "insertion", '+'),
        (diff.deletions, "deletion", '-'),
    ] {
        if number > 0 {
            text.push_str(&format!(", {}({sign})", output::count(number, noun)));
        }
    }
    text
}

fn summary(diff: &Diff) -> String {
    format!("{}{}\n", statuses(diff, ' '), totals(diff))
}

fn names(paths: &[RelPath]) -> String {
    paths.iter().map(|path| format!("{path}\n")).collect()
}

/// Every changed path after `A`, `M` or `D`, sorted by path.
fn statuses(diff: &Diff, separator: char) -> String {
    let mut all: Vec<(&RelPath, char)> = [
        (&diff.added, 'A'),
        (&diff.modified, 'M'),
        (&diff.deleted, 'D'),
    ]
    .into_iter()
    .flat_map(|(paths, status)| paths.iter().map(move |path| (path, status)))
    .collect();
    all.sort();
    all.iter()
        .map(|(path, status)| format!("{status}{separator}{path}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn diff(added: &[&str], modified: &[&str], deleted: &[&str]) -> Diff {
        let mut changed = [added, modified, deleted].concat();
        changed.sort_unstable();
        serde_json::from_value(json!({
            "backend": "git", "from_ref": "a", "to_ref": "b", "files_changed": changed.len(),
            "insertions": 10, "deletions": 1, "changed_paths": changed, "added": added,
            "modified": modified, "deleted": deleted, "has_patch": false, "patch": null,
            "patch_ref": null, "patch_bytes": null, "patch_truncated": false,
        }))
        .expect("it is a diff")
    }

    #[test]
    fn a_summary_lists_all_paths_in_one_order_with_their_status() {
        assert_eq!(
            summary(&diff(&["b", "d"], &["a"], &["c"])),
            "M a\nA b\nD c\nA d\n4 files changed, 10 insertions(+), 1 deletion(-)\n"
        );
        let mut none = diff(&[], &[], &[]);
        (none.insertions, none.deletions) = (0, 0);
        assert_eq!(summary(&none), "no file changed\n");
    }

    #[test]
    fn what_did_not_happen_is_not_counted() {
        let mut only_modes = diff(&[], &["a"], &[]);
        (only_modes.insertions, only_modes.deletions) = (0, 0);
        assert_eq!(totals(&only_modes), "1 file changed");
    }

    #[test]
    fn names_are_escaped_for_people() {
        let hostile = diff(&["\u{1b}]8;;x\u{7}", "\u{202e}rtl"], &[], &[]);
        assert_eq!(
            names(&hostile.changed_paths),
            "\\u{1b}]8;;x\\u{7}\n\\u{202e}rtl\n"
        );
        assert_eq!(
            statuses(&hostile, '\t'),
            "A\t\\u{1b}]8;;x\\u{7}\nA\t\\u{202e}rtl\n"
        );
    }
}
