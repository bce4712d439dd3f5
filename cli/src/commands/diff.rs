//! `diff`: comparing two snapshots, or a snapshot with the present workspace.

use std::collections::HashSet;

use stillframe::backends::{
    ApproximatedFile, Approximation, BackendKind, ChangedFile, Diff, FileStatus, ModeChange,
    NestedChange, NestedState, Omission, OmissionReason, OperationChange, RelPath,
    SkipWorktreeChange,
};
use stillframe::options::DiffEnd;
use stillframe::records::DiffOutcome;
use stillframe::{DiffRequest, Error, ErrorKind, Snapshot, WorkspaceOptions};

use super::diffstat::{self, Changed, Row};
use super::{Tools, above};
use crate::failure::Failure;
use crate::output::{self, Answer, Reply};
use crate::paint::{Colour, Paint};
use crate::request::DiffView;

/// Compares.
pub(super) async fn diff(
    tools: &Tools,
    workspace: WorkspaceOptions,
    request: DiffRequest,
    view: DiffView,
) -> Result<Reply, Failure> {
    let session = tools.engine.workspace_session(&workspace.path).await?;
    let to = request.to.clone();
    let outcome = session.diff(&workspace, request).await;
    let outcome = outcome.map_err(|error| match is_a_path(&error, &to, &workspace) {
        true => Failure::from(error).adding("a path comes after both sides, or after \"--\""),
        false => error.into(),
    })?;
    if tools.json {
        return Ok(Reply::new(true, &outcome.diff, String::new));
    }
    shown(outcome, view, tools.console.paint()).map(Reply::paged)
}

pub(super) fn shown(outcome: DiffOutcome, view: DiffView, paint: Paint) -> Result<Reply, Failure> {
    let diff = &outcome.diff;
    let text = match view {
        DiffView::Patch if !diff.has_patch && diff.files_changed > 0 => {
            return Err(Failure::new(ErrorKind::Unsupported, no_patch(diff)));
        }
        DiffView::Patch => {
            let answer = outcome.patch.map_or(Answer::Nothing, Answer::Patch);
            return Ok(Reply::of(answer).notes(untold(diff)));
        }
        DiffView::NameOnly => names(&diff.changed_paths),
        DiffView::NameStatus => name_statuses(diff),
        DiffView::Stat if compares_lines(diff) => stat(diff, paint),
        DiffView::Summary | DiffView::Stat => summary(diff, paint),
    };
    let reply = Reply::of(Answer::Text(text)).notes(unsearched(diff));
    Ok(match view {
        DiffView::Stat if !compares_lines(diff) && diff.files_changed > 0 => reply.note(format!(
            "the {} backend counts no lines, so this is the list of what changed",
            diff.backend
        )),
        DiffView::NameOnly | DiffView::NameStatus => reply.notes(untold(diff)),
        _ => reply,
    })
}

/// Whether what was not found is a file that was named where a snapshot is.
fn is_a_path(error: &Error, to: &DiffEnd, workspace: &WorkspaceOptions) -> bool {
    let DiffEnd::Snapshot(text) = to else {
        return false;
    };
    let is_there = || workspace.path.join(text).symlink_metadata().is_ok();
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::InvalidOptions
    ) && is_there()
}

fn compares_lines(diff: &Diff) -> bool {
    diff.backend != BackendKind::Hash
}

/// That not every rename was looked for.
fn unsearched(diff: &Diff) -> Vec<String> {
    let note = "so much came and went that of what was renamed and edited at once only files that kept their names were found";
    match diff.renames_incomplete {
        true => vec![note.to_owned()],
        false => Vec::new(),
    }
}

fn no_patch(diff: &Diff) -> String {
    let made_none = format!("the {} backend made none", diff.backend);
    let why = diff.no_patch.as_ref().unwrap_or(&made_none);
    format!("there is no patch: {why}; --name-status lists what changed")
}

/// `2 files changed, 10 insertions(+), 1 deletion(-), permissions of 1 path changed`.
pub(super) fn totals(diff: &Diff) -> String {
    totals_of(diff, diff.files_changed, [diff.insertions, diff.deletions])
}

/// The totals of a diff in which so many files and lines are told.
fn totals_of(diff: &Diff, files: u64, [insertions, deletions]: [u64; 2]) -> String {
    let mut parts = vec![match files {
        0 => "no file changed".to_owned(),
        files => format!("{} changed", output::count(files, "file")),
    }];
    for (number, noun, sign) in [(insertions, "insertion", '+'), (deletions, "deletion", '-')] {
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

/// A file as people see it: what was renamed is one file.
struct Seen<'a> {
    file: &'a ChangedFile,
    /// In percent; `None`: it was not renamed.
    similarity: Option<u8>,
}

/// Every changed file, sorted by path.
fn seen(diff: &Diff) -> Vec<Seen<'_>> {
    let renamed = || diff.renamed.iter().filter(|pair| pair.changed.is_some());
    let paired: HashSet<&RelPath> = renamed().flat_map(|pair| [&pair.from, &pair.to]).collect();
    let alone = diff
        .files
        .iter()
        .filter(|file| !paired.contains(&file.path));
    let alone = alone.map(|file| Seen {
        file,
        similarity: None,
    });
    let renamed = renamed().filter_map(|pair| {
        let file = pair.changed.as_ref()?;
        let similarity = Some(pair.similarity);
        Some(Seen { file, similarity })
    });
    let mut all: Vec<Seen<'_>> = alone.chain(renamed).collect();
    all.sort_by_key(|seen| &seen.file.path);
    all
}

impl Seen<'_> {
    /// Where it is, and where it was if that is another place.
    fn name(&self) -> String {
        match (&self.file.from, self.similarity) {
            (Some(from), Some(_)) => moved(from, &self.file.path),
            _ => self.file.path.to_string(),
        }
    }

    fn letter(&self) -> char {
        match (self.similarity, self.file.status) {
            (Some(_), _) => 'R',
            (None, FileStatus::Added) => 'A',
            (None, FileStatus::Modified) => 'M',
            (None, FileStatus::Deleted) => 'D',
        }
    }

    /// `A new.txt`, `R src/{old.c => new.c} (87%)`.
    fn line(&self, paint: Paint) -> String {
        let similarity = match self.similarity {
            None | Some(100) => String::new(),
            Some(percent) => format!(" ({percent}%)"),
        };
        let line = format!("{} {}{similarity}", self.letter(), self.name());
        match self.letter() {
            'A' => paint.text(Colour::Green, &line),
            'D' => paint.text(Colour::Red, &line),
            _ => line,
        }
    }

    /// As `git diff --name-status` has it.
    fn name_status(&self) -> String {
        let path = &self.file.path;
        match (&self.file.from, self.similarity) {
            (Some(from), Some(percent)) => format!("R{percent:03}\t{from}\t{path}\n"),
            _ => format!("{}\t{path}\n", self.letter()),
        }
    }

    /// As `git diff --summary` has it; `None`: the mode is the same.
    fn mode_change(&self) -> Option<String> {
        let (old, new) = self.file.old_mode.zip(self.file.new_mode)?;
        let (old, new) = (old.git_mode(), new.git_mode());
        let path = &self.file.path;
        (old != new).then(|| format!("mode change {old:06o} => {new:06o} {path}\n"))
    }

    fn row(&self) -> Row {
        let file = self.file;
        Row {
            name: self.name(),
            changed: match file.binary {
                true => Changed::Binary {
                    old: file.old_bytes.unwrap_or(0),
                    new: file.new_bytes.unwrap_or(0),
                },
                false => Changed::Lines {
                    insertions: file.insertions,
                    deletions: file.deletions,
                },
            },
        }
    }
}

/// Two paths, with the directories that both have told once, as git does: `src/{old =>
/// new}/main.rs`.
fn moved(from: &RelPath, to: &RelPath) -> String {
    let (a, b) = (from.to_string(), to.to_string());
    if [(&a, from), (&b, to)]
        .iter()
        .any(|(text, path)| text.as_bytes() != path.as_bytes())
    {
        return format!("{a} => {b}");
    }
    let is_slash = |byte: &u8| *byte == b'/';
    let shared = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let before = a.as_bytes()[..shared].iter().rposition(is_slash);
    let before = before.map_or(0, |at| at + 1);
    // The slash before what differs may be the one behind it, of a path that is a level shorter.
    let floor = before.saturating_sub(1);
    let ends = a[floor..].bytes().rev().zip(b[floor..].bytes().rev());
    let shared = ends.take_while(|(a, b)| a == b).count();
    let after = a.as_bytes()[a.len() - shared..].iter().position(is_slash);
    let after = after.map_or(0, |at| shared - at);
    if before + after == 0 {
        return format!("{a} => {b}");
    }
    let middle = |text: &str| -> String {
        let middle = text.get(before..text.len() - after);
        middle.unwrap_or_default().to_owned()
    };
    let (old, new) = (middle(&a), middle(&b));
    format!(
        "{}{{{old} => {new}}}{}",
        &a[..before],
        &a[a.len() - after..]
    )
}

fn summary(diff: &Diff, paint: Paint) -> String {
    let seen = seen(diff);
    let lines: String = seen.iter().map(|seen| seen.line(paint) + "\n").collect();
    lines + &behind(diff, &seen)
}

/// Lines and bytes for each file, as `git diff --stat` has it.
fn stat(diff: &Diff, paint: Paint) -> String {
    let seen = seen(diff);
    let unseen = diff.approximated.iter().filter(|file| file.left_out);
    let unseen: HashSet<&RelPath> = unseen.map(|file| &file.path).collect();
    let told = seen.iter().filter(|seen| !unseen.contains(&seen.file.path));
    let rows: Vec<Row> = told.map(Seen::row).collect();
    diffstat::drawn(&rows, paint) + &behind(diff, &seen)
}

/// What comes behind the files, for people.
fn behind(diff: &Diff, seen: &[Seen<'_>]) -> String {
    let modes: String = seen.iter().filter_map(Seen::mode_change).collect();
    let sum = |of: fn(&ChangedFile) -> u64| seen.iter().map(|seen| of(seen.file)).sum();
    let lines = [sum(|file| file.insertions), sum(|file| file.deletions)];
    let totals = totals_of(diff, seen.len() as u64, lines);
    format!("{modes}{}{totals}\n", beside(diff))
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
        .chain(sparseness(&diff.skip_worktree))
        .collect()
}

/// The files that git's index leaves out of the work tree, or has there again, one line for each;
/// of a large checkout the first ones, and how many more.
fn sparseness(changes: &[SkipWorktreeChange]) -> impl Iterator<Item = String> {
    const MAX_NAMED: usize = 100;
    let named = changes.iter().take(MAX_NAMED).map(|change| {
        let path = &change.path;
        match change.to {
            true => format!("absent {path} (git's index leaves it out of the work tree)\n"),
            false => format!("present {path} (git's index has it in the work tree again)\n"),
        }
    });
    let more = changes.len().saturating_sub(MAX_NAMED) as u64;
    let more = (more > 0).then(|| {
        let files = output::count(more, "file");
        format!(
            "{files} more left out of the work tree or taken into it again; --json has them all\n"
        )
    });
    named.chain(more)
}

/// What a rollback or an undo leaves of the sparse checkout of a run that changed this between two
/// snapshots: git's settings and patterns, which no snapshot has.
///
/// What became of the index is on record, and not which command did it. A file of which the
/// snapshot has the bytes though git's index leaves it out tells of `update-index --skip-worktree`,
/// and of no sparse checkout. A command is named only where the one side had no sparse checkout: it
/// would end the user's own.
pub(super) fn sparse_settings(
    changes: &[SkipWorktreeChange],
    before: &Snapshot,
    after: &Snapshot,
) -> Option<String> {
    let is_sparse = |omission: &Omission| omission.reason == OmissionReason::Sparse;
    let is_absent = |snapshot: &Snapshot, path: &RelPath| {
        let omission = snapshot.omissions.covers(path);
        omission.is_some_and(is_sparse)
    };
    let has_some = |snapshot: &Snapshot| snapshot.omissions().iter().any(is_sparse);
    let left_out = changes.iter().any(|c| c.to && is_absent(after, &c.path));
    let taken_in = changes.iter().any(|c| !c.to && is_absent(before, &c.path));
    let settings =
        "git's settings of sparse checkouts (core.sparseCheckout), which no snapshot has";
    let git = above::git(&after.path);
    let what = match (left_out, taken_in) {
        (false, false) => return None,
        (true, false) if !has_some(before) => format!(
            "{settings}; if the run began a sparse checkout, \"{git} sparse-checkout disable\" ends it"
        ),
        (false, true) if !has_some(after) => format!(
            "{settings}; if the run ended a sparse checkout, \"{git} sparse-checkout init\" begins it again, with --no-cone if it was not one of whole directories"
        ),
        _ => "git's patterns of sparse checkouts (info/sparse-checkout in the git directory) as the run left \
              them, which no snapshot has"
            .to_owned(),
    };
    Some(format!("left     {what}"))
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

/// Every changed path after `A`, `M`, `D` or `R`, sorted by path.
fn name_statuses(diff: &Diff) -> String {
    seen(diff).iter().map(Seen::name_status).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn diff(added: &[&str], modified: &[&str], deleted: &[&str]) -> Diff {
        let mut changed = [added, modified, deleted].concat();
        changed.sort_unstable();
        let file = |(at, path): (usize, &&str)| {
            let status = match (added.contains(path), deleted.contains(path)) {
                (true, _) => "added",
                (_, true) => "deleted",
                _ => "modified",
            };
            let [insertions, deletions] = if at == 0 { [10, 1] } else { [0, 0] };
            json!({
                "path": path, "status": status, "insertions": insertions, "deletions": deletions,
                "binary": false, "old_mode": "100644", "new_mode": "100644", "from": null,
            })
        };
        let files: Vec<_> = changed.iter().enumerate().map(file).collect();
        serde_json::from_value(json!({
            "files": files,
            "backend": "git", "from_ref": "a", "to_ref": "b", "files_changed": changed.len(),
            "insertions": 10, "deletions": 1, "changed_paths": changed, "added": added,
            "modified": modified, "deleted": deleted, "has_patch": false, "patch": null,
            "patch_ref": null, "patch_bytes": null, "patch_truncated": false,
        }))
        .expect("it is a diff")
    }

    fn plain(diff: &Diff) -> String {
        summary(diff, Paint::default())
    }

    #[test]
    fn a_summary_lists_all_paths_in_one_order_with_their_status() {
        assert_eq!(
            plain(&diff(&["b", "d"], &["a"], &["c"])),
            "M a\nA b\nD c\nA d\n4 files changed, 10 insertions(+), 1 deletion(-)\n"
        );
        let mut none = diff(&[], &[], &[]);
        (none.insertions, none.deletions) = (0, 0);
        assert_eq!(plain(&none), "no file changed\n");
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
            plain(&beside),
            "chmod key (0644 to 0600)\nmkdir new/\nmkdir new too/\nrmdir old/\n\
             hidden secret (by an ignore rule that came since)\n\
             no file changed, permissions of 1 path changed, 2 empty directories made, \
             1 empty directory removed\n"
        );
        assert_eq!(name_statuses(&beside), "", "a script gets git's form alone");
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
            plain(&moved),
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
            plain(&approximate),
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
    fn what_was_renamed_is_one_file_with_what_both_paths_have_told_once() {
        for (from, to, expected) in [
            ("a", "b", "a => b"),
            ("a", "d/a", "a => d/a"),
            ("d/a", "a", "d/a => a"),
            ("d/a", "d/b", "d/{a => b}"),
            ("d/x/a", "d/y/a", "d/{x => y}/a"),
            ("x/d/a", "y/d/a", "{x => y}/d/a"),
            ("d/a", "d/e/a", "d/{ => e}/a"),
            ("d/e/a", "d/a", "d/{e => }/a"),
            ("ä/x", "ö/x", "{ä => ö}/x"),
            ("d/é", "d/è", "d/{é => è}"),
            ("d/a\n", "d/b", "d/a\\n => d/b"),
        ] {
            let path = |text: &str| RelPath::new(text).expect("it is valid");
            assert_eq!(moved(&path(from), &path(to)), expected);
        }
        let mut moved = diff(&["new", "other"], &[], &["old"]);
        moved.renamed = serde_json::from_value(json!([{
            "from": "old", "to": "new", "similarity": 87, "changed": {
                "path": "new", "status": "modified", "insertions": 2, "deletions": 3, "binary": false,
                "old_mode": "100644", "new_mode": "100755", "from": "old",
            },
        }]))
        .expect("they are renamed");
        assert_eq!(
            plain(&moved),
            "R old => new (87%)\nA other\nmode change 100644 => 100755 new\n\
             2 files changed, 2 insertions(+), 3 deletions(-)\n"
        );
        assert_eq!(name_statuses(&moved), "R087\told\tnew\nA\tother\n");
        assert_eq!(names(&moved.changed_paths), "new\nold\nother\n");
        moved.renamed[0].changed = None;
        assert_eq!(name_statuses(&moved), "A\tnew\nD\told\nA\tother\n");
    }

    #[test]
    fn names_are_escaped_for_people() {
        let hostile = diff(&["\u{1b}]8;;x\u{7}", "\u{202e}rtl"], &[], &[]);
        assert_eq!(
            names(&hostile.changed_paths),
            "\\u{1b}]8;;x\\u{7}\n\\u{202e}rtl\n"
        );
        assert_eq!(
            name_statuses(&hostile),
            "A\t\\u{1b}]8;;x\\u{7}\nA\t\\u{202e}rtl\n"
        );
    }
}
