//! `diff`: two snapshots compared, or one with the workspace as it is.

use std::io::{self, BufReader};

use stillframe::backends::{
    ApproximatedFile, Approximation, ModeChange, NestedChange, NestedState, OperationChange,
};
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
            return Err(Failure::new(ErrorKind::Unsupported, no_patch(diff)));
        }
        (DiffView::Patch, None) => String::new(),
        (DiffView::Patch, Some(patch)) => {
            let reply = Reply {
                answer: Answer::Bytes(Box::new(patch)),
                ..Reply::default()
            };
            return Ok(reply.notes(untold(diff)));
        }
        (DiffView::Stat, Some(patch)) if !lacks_patch => {
            let files = diffstat::of_patch(BufReader::new(patch)).map_err(unreadable)?;
            format!(
                "{}{}{}\n",
                diffstat::drawn(&files),
                beside(diff),
                totals(diff)
            )
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
        (DiffView::NameOnly | DiffView::NameStatus, _) => reply.notes(untold(diff)),
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

/// `2 files changed, 10 insertions(+), 1 deletion(-), permissions of 1 path changed`.
pub(super) fn totals(diff: &Diff) -> String {
    let mut parts = vec![match diff.files_changed {
        0 => "no file changed".to_owned(),
        files => format!("{} changed", output::count(files, "file")),
    }];
    for (number, noun, sign) in [
        (diff.insertions, "insertion", '+'),
        (diff.deletions, "deletion", '-'),
    ] {
        if number > 0 {
            parts.push(format!("{}({sign})", output::count(number, noun)));
        }
    }
    parts.extend(beside_totals(diff));
    parts.join(", ")
}

/// What git does not record, counted; what did not happen is left out.
fn beside_totals(diff: &Diff) -> Vec<String> {
    let mut parts = Vec::new();
    if !diff.permissions_changed.is_empty() {
        let paths = output::count(diff.permissions_changed.len() as u64, "path");
        parts.push(format!("permissions of {paths} changed"));
    }
    for (directories, what) in [
        (&diff.directories_added, "made"),
        (&diff.directories_deleted, "removed"),
    ] {
        match directories.len() {
            0 => {}
            1 => parts.push(format!("1 empty directory {what}")),
            more => parts.push(format!("{more} empty directories {what}")),
        }
    }
    match diff.nested_repositories.len() {
        0 => {}
        1 => parts.push("1 nested repository moved".to_owned()),
        more => parts.push(format!("{more} nested repositories moved")),
    }
    for (is_out, what) in [
        (true, "left out of the work tree"),
        (false, "taken into it again"),
    ] {
        let count = diff
            .skip_worktree
            .iter()
            .filter(|change| change.to == is_out);
        match count.count() as u64 {
            0 => {}
            files => parts.push(format!(
                "{} {what} by git's index",
                output::count(files, "file")
            )),
        }
    }
    parts.extend(diff.operation.as_ref().and_then(operation));
    parts
}

/// What became of git's operations; `None`: only what git remembers of one is another.
fn operation(change: &OperationChange) -> Option<String> {
    let OperationChange { from, to, .. } = change;
    Some(match (from.as_deref(), to.as_deref()) {
        (None, None) => return None,
        (None, Some(begun)) => format!("a {} began", output::printable(begun)),
        (Some(ended), None) => format!("the {} ended", output::printable(ended)),
        (Some(old), Some(new)) if old == new => format!("the {} went on", output::printable(new)),
        (Some(old), Some(new)) => {
            let (old, new) = (output::printable(old), output::printable(new));
            format!("the {old} ended and a {new} began")
        }
    })
}

/// What became of a nested repository.
fn nested(change: &NestedChange) -> String {
    let (old, new) = match (&change.from, &change.to) {
        (Some(old), Some(new)) => (old, new),
        (None, Some(new)) => return format!("is new, {}", standing(new)),
        (Some(old), None) => return format!("is gone, was {}", standing(old)),
        (None, None) => return "cannot be told".to_owned(),
    };
    let mut parts = Vec::new();
    if standing(old) != standing(new) {
        parts.push(format!("from {} to {}", standing(old), standing(new)));
    }
    if old.index != new.index {
        parts.push("its index changed".to_owned());
    }
    parts.join(", ")
}

/// Where a nested repository stands, in words.
pub(super) fn standing(state: &NestedState) -> String {
    let branch = state.branch.as_deref();
    let branch = branch.map(|name| name.strip_prefix("refs/heads/").unwrap_or(name));
    let commit = state.head_ref.as_deref();
    let head = match (branch, commit) {
        (Some(branch), Some(commit)) => format!("{commit} ({})", output::printable(branch)),
        (Some(branch), None) => format!("{} without a commit", output::printable(branch)),
        (None, Some(commit)) => format!("{commit} (detached)"),
        (None, None) => "unread".to_owned(),
    };
    match &state.problem {
        Some(problem) => format!("{head}: {}", output::printable(problem)),
        None => head,
    }
}

/// New paths that are in no list of changes, because rules hide them that came with them.
pub(super) fn hidden(diff: &Diff) -> Option<String> {
    let paths = &diff.newly_ignored;
    let count = output::count(paths.len() as u64, "new path");
    let verb = if paths.len() == 1 { "is" } else { "are" };
    let named = output::some_of(paths);
    (!paths.is_empty())
        .then(|| format!("{count} {verb} hidden by ignore rules that came since: {named}"))
}

/// What the views for scripts, which have git's form, do not tell.
fn untold(diff: &Diff) -> Vec<String> {
    let beside = beside_totals(diff);
    let beside = (!beside.is_empty()).then(|| {
        format!(
            "not among these: {}; the plain diff lists them",
            beside.join(", ")
        )
    });
    let hidden = hidden(diff).into_iter();
    beside
        .into_iter()
        .chain(hidden)
        .chain(approximated(diff))
        .chain(unseen(diff))
        .collect()
}

fn summary(diff: &Diff) -> String {
    format!("{}{}{}\n", statuses(diff, ' '), beside(diff), totals(diff))
}

/// What git does not record, one line for each path.
fn beside(diff: &Diff) -> String {
    let permissions = diff.permissions_changed.iter().map(|change| {
        let ModeChange { path, from, to } = change;
        format!("chmod {path} ({from:04o} to {to:04o})\n")
    });
    let made = diff
        .directories_added
        .iter()
        .map(|path| format!("mkdir {path}/\n"));
    let removed = diff
        .directories_deleted
        .iter()
        .map(|path| format!("rmdir {path}/\n"));
    let ignored = diff.newly_ignored.iter();
    let ignored =
        ignored.map(|path| format!("hidden {path} (by an ignore rule that came since)\n"));
    let approximated = diff.approximated.iter().map(|file| {
        let (path, counts) = (&file.path, counts_of(file));
        match file.left_out {
            true => format!("unseen {path} (one side left it out: {})\n", file.reason),
            false => format!("approximated {path} ({counts}: {})\n", why(file.reason)),
        }
    });
    permissions
        .chain(made)
        .chain(removed)
        .chain(ignored)
        .chain(approximated)
        .chain(
            diff.nested_repositories
                .iter()
                .map(|change| format!("nested {} ({})\n", change.path, nested(change))),
        )
        .collect()
}

/// What a file whose lines were not compared as git does adds to the totals.
fn counts_of(file: &ApproximatedFile) -> String {
    if file.left_out {
        return "not counted".to_owned();
    }
    let bound = match file.reason {
        Approximation::TooLarge => "at least",
        Approximation::Purged => return "not counted".to_owned(),
        _ => "at most",
    };
    format!("{bound} +{} -{}", file.insertions, file.deletions)
}

fn why(reason: Approximation) -> &'static str {
    match reason {
        Approximation::TooLarge => "it is too large to be compared line by line",
        Approximation::TooMuchChanged => "too much of it changed to be compared line by line",
        Approximation::OutOfTime => "there was no time to compare it to the end",
        Approximation::Purged => "its content was purged, and the patch leaves it out",
        _ => "it was not compared line by line",
    }
}

/// Files whose lines were not compared as git does, in one line.
pub(super) fn approximated(diff: &Diff) -> Option<String> {
    let compared = diff.approximated.iter().filter(|file| !file.left_out);
    let paths: Vec<RelPath> = compared.map(|f| f.path.clone()).collect();
    let count = output::count(paths.len() as u64, "file");
    let verb = if paths.len() == 1 { "was" } else { "were" };
    let named = output::some_of(&paths);
    (!paths.is_empty()).then(|| {
        format!("{count} {verb} not compared line by line, so counts are approximate: {named}")
    })
}

/// Changed files of which one side has no content, in one line.
pub(super) fn unseen(diff: &Diff) -> Option<String> {
    const MAX_NAMED: usize = 5;
    let all: Vec<&ApproximatedFile> = diff.approximated.iter().filter(|f| f.left_out).collect();
    let count = output::count(all.len() as u64, "changed file");
    let verb = if all.len() == 1 { "was" } else { "were" };
    let named = all.iter().take(MAX_NAMED);
    let named: Vec<String> = named
        .map(|f| format!("{} ({})", f.path, f.reason))
        .collect();
    let more = match all.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!all.is_empty()).then(|| {
        format!(
            "{count} {verb} left out on one side, so that nothing more is known: {}{more}",
            named.join(", ")
        )
    })
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
    fn what_git_does_not_record_is_listed_and_counted() {
        let mut beside = diff(&[], &[], &[]);
        (beside.insertions, beside.deletions) = (0, 0);
        beside.permissions_changed = serde_json::from_value(json!([
            {"path": "key", "from": 0o644, "to": 0o600},
        ]))
        .expect("they are changes");
        let path = |text: &str| RelPath::new(text).expect("it is valid");
        beside.directories_added = vec![path("new"), path("new too")];
        beside.directories_deleted = vec![path("old")];
        beside.newly_ignored = vec![path("secret")];
        assert_eq!(
            summary(&beside),
            "chmod key (0644 to 0600)\nmkdir new/\nmkdir new too/\nrmdir old/\n\
             hidden secret (by an ignore rule that came since)\n\
             no file changed, permissions of 1 path changed, 2 empty directories made, \
             1 empty directory removed\n"
        );
        assert_eq!(
            statuses(&beside, '\t'),
            "",
            "a script gets git's form alone"
        );
        assert_eq!(
            untold(&beside),
            [
                "not among these: permissions of 1 path changed, 2 empty directories made, \
                 1 empty directory removed; the plain diff lists them",
                "1 new path is hidden by ignore rules that came since: secret",
            ]
        );
    }

    #[test]
    fn what_became_of_nested_repositories_and_of_an_operation_is_told() {
        let mut moved = diff(&[], &[], &[]);
        (moved.insertions, moved.deletions) = (0, 0);
        moved.nested_repositories = serde_json::from_value(json!([
            {"path": "a",
             "from": {"branch": "refs/heads/main", "head_ref": "1", "index": "x"},
             "to": {"branch": null, "head_ref": "2", "index": "y"}},
            {"path": "b", "from": null,
             "to": {"branch": "refs/heads/\u{1b}", "head_ref": null, "index": null}},
            {"path": "c",
             "from": {"branch": null, "head_ref": null, "index": null, "problem": "HEAD is a FIFO"},
             "to": null},
        ]))
        .expect("they are changes");
        moved.operation =
            serde_json::from_value(json!({"from": null, "to": "merge", "files": ["MERGE_HEAD"]}))
                .expect("it is a change");
        assert_eq!(
            summary(&moved),
            "nested a (from 1 (main) to 2 (detached), its index changed)\n\
             nested b (is new, \\u{1b} without a commit)\n\
             nested c (is gone, was unread: HEAD is a FIFO)\n\
             no file changed, 3 nested repositories moved, a merge began\n"
        );
        for (from, to, told) in [
            (Some("merge"), None, Some("the merge ended")),
            (Some("rebase"), Some("rebase"), Some("the rebase went on")),
            (
                Some("merge"),
                Some("bisect"),
                Some("the merge ended and a bisect began"),
            ),
            (None, None, None),
        ] {
            let change = json!({"from": from, "to": to, "files": ["ORIG_HEAD"]});
            let change = serde_json::from_value(change).expect("it is a change");
            assert_eq!(operation(&change).as_deref(), told);
        }
    }

    #[test]
    fn counts_that_are_not_exact_are_said_to_be_so() {
        let mut approximate = diff(&[], &["a", "b"], &[]);
        approximate.approximated = serde_json::from_value(json!([
            {"path": "a", "reason": "out_of_time", "insertions": 7, "deletions": 1},
            {"path": "b", "reason": "too_large", "insertions": 3, "deletions": 0},
        ]))
        .expect("they are files");
        assert_eq!(
            summary(&approximate),
            "M a\nM b\n\
             approximated a (at most +7 -1: there was no time to compare it to the end)\n\
             approximated b (at least +3 -0: it is too large to be compared line by line)\n\
             2 files changed, 10 insertions(+), 1 deletion(-)\n"
        );
        assert_eq!(
            untold(&approximate),
            ["2 files were not compared line by line, so counts are approximate: a, b"]
        );
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
