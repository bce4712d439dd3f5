//! `restore`, and the messages about a restore, a rollback or an undo.

use serde::Serialize;
use serde_json::Value;
use stillframe::backends::{
    Conflict, LostAttributes, ModeChange, MovedTag, Omission, OmissionReason, PlanId, RefChange,
    RelPath, RepositoryChanges, RestorePlan, SkipReason, Skipped,
};
use stillframe::options::CopyRequest;
use stillframe::records::{LeftRef, RestoreDocument, RestoreStatus, UndoPlan, Undone};
use stillframe::{ErrorKind, RestoreRequest, Snapshot, SnapshotId, WorkspaceOptions};

use super::{Tools, above};
use crate::failure::Failure;
use crate::output::{self, Reply};

/// How many kept paths the lines after a run name one by one.
pub(super) const MAX_NAMED: usize = 10;

/// Says what a restore would do.
pub(super) async fn plan(
    tools: &Tools,
    workspace: WorkspaceOptions,
    request: RestoreRequest,
) -> Result<Reply, Failure> {
    let session = tools.engine.workspace_session(&workspace.path).await?;
    let plan = session.plan_restore(&workspace, request).await?;
    let named = above::to_name(tools, &workspace.path);
    Ok(planned(tools.json, &plan, None, named.as_deref()))
}

/// Says what an undo would do.
pub(super) fn planned_undo(json: bool, planned_undo: &UndoPlan) -> Reply {
    planned(json, &planned_undo.plan, Some(&planned_undo.undone), None)
}

/// `named`: what has to be added to be about this workspace, which paths are then named from.
fn planned(json: bool, plan: &RestorePlan, undone: Option<&Undone>, named: Option<&str>) -> Reply {
    let reply = Reply::new(json, &PlanDocument::of(plan, undone), || preview(plan));
    let id = &plan.id;
    match (plan.is_empty(), named) {
        (true, _) => reply,
        (false, None) => reply.note(format!(
            "nothing was touched; add \"--apply {id}\" in place of --plan to do exactly this"
        )),
        (false, Some(named)) => reply.note(format!(
            "nothing was touched; add \"--apply {id} {named}\" in place of --plan, and name paths from there, to do exactly this"
        )),
    }
}

/// Restores.
pub(super) async fn restore(
    tools: &Tools,
    workspace: WorkspaceOptions,
    request: RestoreRequest,
) -> Result<Reply, Failure> {
    let session = tools.engine.workspace_session(&workspace.path).await?;
    let document = session.restore(&workspace, request).await?;
    let reply = Reply::new(tools.json, &document, || {
        report(&document, &[], &[], &above::git(&workspace.path))
    });
    Ok(ended(reply, &document))
}

/// Puts what a snapshot has elsewhere.
pub(super) async fn copy(
    tools: &Tools,
    workspace: WorkspaceOptions,
    request: CopyRequest,
) -> Result<Reply, Failure> {
    let session = tools.engine.workspace_session(&workspace.path).await?;
    let copied = session.copy(&workspace, request).await?;
    let missing = copied
        .skipped
        .iter()
        .map(|skipped| format!("not there: {} ({})", skipped.path, skipped.reason));
    let text = || {
        let to = stillframe::backends::printable(&copied.to);
        format!("{} in {to}\n", output::count(copied.files, "file"))
    };
    Ok(Reply::new(tools.json, &copied, text).warnings(missing.collect()))
}

/// Whether it is known that nothing can be put back in place where this was captured.
pub(super) async fn is_copied_only(tools: &Tools, snapshot: &Snapshot) -> bool {
    let checked = tools.engine.check_restore_place(snapshot).await;
    checked.is_err_and(|e| e.kind() == ErrorKind::Unsupported)
}

/// What gives back what such a snapshot has. `elsewhere` is added to the command line so that it is
/// about this workspace.
pub(super) fn copy_command(snapshot: &SnapshotId, elsewhere: &str) -> String {
    format!(
        "no directory outside of the workspace on its file system can be written to, so restores and undos are refused; \"stillframe restore {snapshot}{elsewhere} --to DIR\" makes a copy of what was there"
    )
}

/// The answer of a restore or an undo that ended like this.
pub(super) fn ended(reply: Reply, document: &RestoreDocument) -> Reply {
    match exit_code(document) {
        0 => reply,
        code => reply.failed(upshot(document)).exit_code(code),
    }
}

/// The exit code of a restore or an undo. Paths that were left as they are do not count: they are
/// named.
fn exit_code(document: &RestoreDocument) -> u8 {
    match document.status {
        RestoreStatus::Completed => 0,
        _ => Failure::exit_code(false),
    }
}

/// A plan as a JSON document: the keys of a restore, of which nothing was done, and the plan's.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PlanDocument<'a> {
    /// What would be undone. Left out of the plan of a restore.
    #[serde(skip_serializing_if = "Option::is_none")]
    undone: Option<&'a Undone>,
    /// `planned`.
    #[cfg_attr(test, schemars(extend("const" = "planned")))]
    status: &'static str,
    /// What carries out exactly this plan, with `--apply`.
    plan_id: &'a PlanId,
    /// Null: nothing was done.
    guard_snapshot: Option<SnapshotId>,
    /// Null: nothing was done.
    safety_tag: Option<String>,
    /// Empty: nothing was done.
    restored: [RelPath; 0],
    /// Ignored paths that would stay.
    leftover_ignored: &'a [RelPath],
    /// What would be left as it is, and why.
    skipped: &'a [Skipped],
    /// Null.
    error: Option<String>,
    /// The snapshot that it leads to.
    target: &'a SnapshotId,
    /// The files and links that would be made or replaced.
    writes: Vec<PlannedWrite<'a>>,
    /// The files and links that would be removed.
    removals: Vec<&'a RelPath>,
    /// What no snapshot has and would be moved out of the way.
    displaced: Vec<&'a RelPath>,
    /// The directories that would be made.
    make_directories: Vec<Directory<'a>>,
    /// The directories that would be removed.
    remove_directories: &'a [RelPath],
    /// The permission bits that would change.
    modes: &'a [ModeChange],
    /// The files that would be merged with what was changed since. Left out if there are none.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    merged: &'a [RelPath],
    /// The files that cannot be merged. Left out if there are none.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    conflicts: &'a [Conflict],
    /// What would change in the repository.
    repository: &'a RepositoryChanges,
}

/// A file or link that a plan makes or replaces.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct PlannedWrite<'a> {
    /// Where.
    path: &'a RelPath,
    /// Whether something that was captured is there.
    replaces: bool,
    /// `file`, `executable` or `symlink`.
    kind: &'static str,
    /// The id of the content, in hexadecimal.
    content: String,
    /// Its permission bits; null for a link.
    mode: Option<u32>,
}

/// A directory that a plan makes.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Directory<'a> {
    /// Where.
    path: &'a RelPath,
    /// Its permission bits.
    mode: u32,
}

impl<'a> PlanDocument<'a> {
    fn of(plan: &'a RestorePlan, undone: Option<&'a Undone>) -> Self {
        Self {
            undone,
            status: "planned",
            plan_id: &plan.id,
            guard_snapshot: None,
            safety_tag: None,
            restored: [],
            leftover_ignored: &plan.leftover_ignored,
            skipped: &plan.skipped,
            error: None,
            target: &plan.target,
            writes: plan
                .writes
                .iter()
                .map(|write| PlannedWrite {
                    path: &write.path,
                    replaces: write.current.is_some(),
                    kind: write.entry.kind.as_str(),
                    content: write.entry.id.to_string(),
                    mode: write.mode,
                })
                .collect(),
            removals: plan.removals.iter().map(|removal| &removal.path).collect(),
            displaced: plan.displaced.iter().map(|o| &o.path).collect(),
            make_directories: plan
                .make_directories
                .iter()
                .map(|(path, mode)| Directory { path, mode: *mode })
                .collect(),
            remove_directories: &plan.remove_directories,
            modes: &plan.modes,
            merged: &plan.merged,
            conflicts: &plan.conflicts,
            repository: &plan.repository,
        }
    }
}

/// A plan for people.
fn preview(plan: &RestorePlan) -> String {
    let mut lines = Vec::new();
    for write in &plan.writes {
        let is_merged = plan.merged.binary_search(&write.path).is_ok();
        let verb = match write.current {
            Some(_) if is_merged => "merge",
            Some(_) => "replace",
            None => "create",
        };
        lines.push(format!("{verb:8} {}", write.path));
    }
    for removal in &plan.removals {
        lines.push(format!("remove   {}", removal.path));
    }
    for omission in &plan.displaced {
        lines.push(format!(
            "displace {} ({})",
            omission.path,
            in_the_way(omission)
        ));
    }
    for (path, _) in &plan.make_directories {
        lines.push(format!("create   {path}/"));
    }
    for path in &plan.remove_directories {
        lines.push(format!("remove   {path}/"));
    }
    for change in &plan.modes {
        let (from, to) = (change.from, change.to);
        lines.push(format!("chmod    {} ({from:04o} to {to:04o})", change.path));
    }
    lines.extend(repository(&plan.repository));
    lines.extend(
        plan.skipped
            .iter()
            .map(|skipped| left(skipped, &plan.conflicts)),
    );
    lines.extend(plan.leftover_ignored.iter().map(leftover));
    let is_all = plan.skipped.is_empty() && plan.leftover_ignored.is_empty();
    lines.push(match (plan.is_empty(), is_all) {
        (true, true) => format!("nothing to do: all is as {} has it", plan.target),
        (true, false) => format!("nothing else differs from {}", plan.target),
        (false, _) => format!("plan {}", plan.id),
    });
    lines.join("\n") + "\n"
}

/// What a plan changes in the repository, for people.
fn repository(changes: &RepositoryChanges) -> Vec<String> {
    let mut lines: Vec<String> = changes.refs.iter().map(moved).collect();
    lines.extend(changes.index.as_ref().map(|index| match index.to {
        Some(_) => "replace  git's index".to_owned(),
        None => "remove   git's index".to_owned(),
    }));
    let operation = changes.operation.iter();
    lines.extend(operation.map(|file| format!("change   .git/{}", output::printable(file))));
    lines.extend(changes.problem.iter().map(|problem| {
        format!(
            "left     git's part: {}",
            output::printable(&problem.message)
        )
    }));
    lines
}

/// A ref that comes to name something else, for people.
fn moved(change: &RefChange) -> String {
    let name = output::printable(&change.name);
    let short = |id: &str| match id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => id.chars().take(12).collect(),
        false => output::printable(id),
    };
    match (&change.before, &change.after) {
        (Some(from), Some(to)) => format!("move     {name} ({} to {})", short(from), short(to)),
        (None, Some(to)) => format!("create   {name} ({})", short(to)),
        (Some(from), None) => format!("remove   {name} (it is at {})", short(from)),
        (None, None) => format!("keep     {name}"),
    }
}

/// What is moved out of the way without having been captured.
fn in_the_way(omission: &Omission) -> String {
    match (omission.reason, omission.bytes) {
        (OmissionReason::Special, _) => "a FIFO, socket or device in the way".to_owned(),
        (reason, Some(bytes)) => format!("a file in the way: {reason}, {}", output::size(bytes)),
        (reason, None) => format!("in the way: {reason}"),
    }
}

/// What a restore or an undo did, for people. Of an undo, with the files in which it met edits.
/// `git` calls git for the repository of the workspace.
pub(super) fn report(
    document: &RestoreDocument,
    merged: &[RelPath],
    conflicts: &[Conflict],
    git: &str,
) -> String {
    let mut lines: Vec<String> = document
        .restored
        .iter()
        .map(|path| match merged.binary_search(path).is_ok() {
            true => format!("merged   {path} (what was edited since stays in it)"),
            false => format!("restored {path}"),
        })
        .collect();
    let skipped = document.skipped.iter();
    lines.extend(skipped.map(|skipped| left(skipped, conflicts)));
    lines.extend(document.leftover_ignored.iter().map(leftover));
    lines.extend(document.attributes_lost.iter().map(lost));
    lines.extend(refs_left(&document.refs_left, git));
    lines.push(upshot(document));
    if let Some(tag) = &document.safety_tag {
        // It is made first, and what is left may be the move.
        let what = match document.error {
            None => "HEAD or its branch was moved; the commit where it was is kept by",
            Some(_) => "the commit where HEAD or its branch was is kept by",
        };
        lines.push(format!("{what} {}", output::printable(tag)));
    }
    lines.extend(moved_tags(&document.moved_tags));
    lines.join("\n") + "\n"
}

/// What a rollback did, for people: a few lines. `git` calls git for the repository of the
/// workspace.
pub(super) fn rollback_story(document: &RestoreDocument, git: &str) -> Vec<String> {
    let mut lines = vec![match document.status {
        RestoreStatus::Completed => format!("rolled back: {}", upshot(document)),
        _ => upshot(document),
    }];
    // A build that was cleaned loses ignored files by the thousand; the others are told first.
    let is_ignored = |s: &&Skipped| {
        use OmissionReason::{Excluded, Ignored};
        matches!(s.reason, SkipReason::Omitted(Ignored | Excluded))
    };
    let (ignored, others): (Vec<_>, Vec<_>) = document.skipped.iter().partition(is_ignored);
    lines.extend(others.into_iter().chain(ignored).take(MAX_NAMED).map(kept));
    if document.skipped.len() > MAX_NAMED {
        lines.push(format!(
            "kept     {} more",
            output::count((document.skipped.len() - MAX_NAMED) as u64, "path")
        ));
    }
    lines.extend(left_alone(&document.leftover_ignored));
    lines.extend(document.attributes_lost.iter().take(MAX_NAMED).map(lost));
    lines.extend(refs_left(&document.refs_left, git));
    if let Some(tag) = &document.safety_tag {
        lines.push(format!(
            "the old tip of the branch is kept by {}",
            output::printable(tag)
        ));
    }
    lines.extend(moved_tags(&document.moved_tags));
    lines
}

/// Which refs of the run are left, a line each, with the command that takes it back.
fn refs_left(left: &[LeftRef], git: &str) -> Vec<String> {
    let line = |left: &LeftRef| {
        let what = became_of(&left.change);
        match (left.undo_with(git), &left.checked_out_at) {
            (Some(undo), _) => {
                let undo = output::printable(&undo);
                format!("left     {what}; \"{undo}\" takes that back")
            }
            (None, Some(tree)) => {
                format!("left     {what}; the work tree {tree} has it checked out")
            }
            (None, None) => format!("left     {what}"),
        }
    };
    let mut lines: Vec<String> = left.iter().take(MAX_NAMED).map(line).collect();
    if left.len() > MAX_NAMED {
        let more = output::count((left.len() - MAX_NAMED) as u64, "ref");
        lines.push(format!("left     {more} more of the run"));
    }
    lines
}

/// What became of a ref, in a few words.
fn became_of(change: &RefChange) -> String {
    let dropped = change.dropped.len();
    if dropped > 0 && change.after.is_some() && change.after != change.before {
        return format!("stash moved, {dropped} dropped");
    }
    if dropped > 0 {
        let plural = if dropped == 1 { "" } else { "es" };
        return format!("{dropped} stash{plural} dropped");
    }
    let verb = match (&change.before, &change.after) {
        (None, _) => "made",
        (_, None) => "deleted",
        _ => "moved",
    };
    format!("{} {verb}", ref_name(&change.name))
}

/// A ref as people name it.
fn ref_name(full: &str) -> String {
    let below = |directory: &str| full.strip_prefix(directory).map(output::printable);
    match full {
        "refs/stash" => "stash".to_owned(),
        _ => below("refs/heads/")
            .map(|name| format!("branch {name}"))
            .or_else(|| below("refs/tags/").map(|name| format!("tag {name}")))
            .or_else(|| below("refs/remotes/").map(|name| format!("remote branch {name}")))
            .unwrap_or_else(|| output::printable(full)),
    }
}

/// What a run did to refs, in one line; nothing of HEAD and the branch `told`, of which another
/// line tells.
pub(super) fn refs_story(refs: &[RefChange], told: Option<&str>) -> Option<String> {
    let is_news = |change: &&RefChange| {
        let own = change.name.strip_prefix("refs/heads/");
        change.name != "HEAD" && (own.is_none() || own != told)
    };
    let news: Vec<String> = refs.iter().filter(is_news).map(became_of).collect();
    let more = news.len().saturating_sub(MAX_NAMED);
    let named = news.get(..MAX_NAMED).unwrap_or(&news).join(", ");
    let more = match more {
        0 => String::new(),
        more => format!(" … and {more} more"),
    };
    (!news.is_empty()).then(|| format!("refs: {named}{more}"))
}

/// Which tags of an earlier version were moved, a line each.
pub(super) fn moved_tags(moved: &[MovedTag]) -> impl Iterator<Item = String> {
    moved.iter().map(|tag| {
        format!(
            "moved the tag {} to {}, where no push of tags takes it",
            output::printable(&tag.from),
            output::printable(&tag.to)
        )
    })
}

/// What an event of a restore says of a HEAD that it switched back, in one line.
pub(super) fn head_story(head: &Value) -> Option<String> {
    let (from, to) = (head["from"].as_str()?, head["to"].as_str()?);
    Some(output::printable(&format!(
        "HEAD names {to} again; it was {from}"
    )))
}

/// One line about attributes that a file did not get.
fn lost(lost: &LostAttributes) -> String {
    let names = match lost.names.is_empty() {
        true => "extended attributes".to_owned(),
        false => output::printable(&lost.names.join(", ")),
    };
    format!(
        "lost     {names} of {}, which the trash of the guard has: {}",
        lost.path,
        output::printable(&lost.reason)
    )
}

/// One line about an ignored path that came since.
fn leftover(path: &RelPath) -> String {
    format!("kept     {path} (ignored; it came after the snapshot)")
}

/// One line about ignored paths that came since.
fn left_alone(paths: &[RelPath]) -> Option<String> {
    let count = output::count(paths.len() as u64, "ignored path");
    let named = output::some_of(paths);
    (!paths.is_empty()).then(|| format!("kept     {count} that came since: {named}"))
}

/// One line that says how a restore ended.
pub(super) fn upshot(document: &RestoreDocument) -> String {
    let error = document
        .error
        .as_ref()
        .map(|error| format!(": {}", output::printable(&error.message)))
        .unwrap_or_default();
    let guard = document
        .guard_snapshot
        .as_ref()
        .map(|guard| format!("; what was there is kept as {guard}"))
        .unwrap_or_default();
    let done = done(document);
    match document.status {
        RestoreStatus::Completed if !error.is_empty() => {
            format!("{done}, but not everything of the repository{error}{guard}")
        }
        RestoreStatus::Completed
            if document.restored.is_empty() && !document.skipped.is_empty() =>
        {
            let kept = output::count(document.skipped.len() as u64, "path");
            let done = match document.repository {
                Some(_) => done,
                None => "nothing was restored".to_owned(),
            };
            format!("{done}, {kept} kept as is{guard}")
        }
        RestoreStatus::Completed if is_nothing(document) => {
            format!("nothing had to be restored{guard}")
        }
        RestoreStatus::Completed => format!("{done}{guard}"),
        RestoreStatus::Refused if error.contains("nothing was touched") => {
            format!("refused{error}")
        }
        RestoreStatus::Refused => format!("refused, and nothing was touched{error}"),
        _ => format!("not finished, recovery will finish it{error}{guard}"),
    }
}

/// Whether neither a path nor anything of the repository was put back.
fn is_nothing(document: &RestoreDocument) -> bool {
    document.restored.is_empty() && document.repository.is_none()
}

/// What a restore put back. Paths speak for what went with them.
fn done(document: &RestoreDocument) -> String {
    match &document.repository {
        Some(repository) if document.restored.is_empty() => {
            format!("{} put back", parts_of(repository))
        }
        _ => {
            let restored = output::count(document.restored.len() as u64, "path");
            format!("{restored} restored")
        }
    }
}

/// The parts of a repository, in words.
fn parts_of(changes: &RepositoryChanges) -> String {
    let mut parts: Vec<String> = changes.refs.iter().map(|r| ref_name(&r.name)).collect();
    parts.extend(changes.index.is_some().then(|| "git's index".to_owned()));
    let is_operation = !changes.operation.is_empty();
    parts.extend(is_operation.then(|| "the files of git's operation".to_owned()));
    match parts.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Why a path stays as it is, in one line.
fn left(skipped: &Skipped, conflicts: &[Conflict]) -> String {
    let conflict = conflicts.binary_search_by(|conflict| conflict.path.cmp(&skipped.path));
    conflict.map_or_else(|_| kept(skipped), |at| in_conflict(&conflicts[at]))
}

fn in_conflict(conflict: &Conflict) -> String {
    let places = output::count(conflict.regions.len() as u64, "place");
    let path = &conflict.path;
    format!("kept     {path} (edited since where it would change, in {places})")
}

/// The same of one in which no edit was met.
pub(super) fn kept(skipped: &Skipped) -> String {
    let why = match skipped.reason {
        SkipReason::EditedSince => "edited since",
        SkipReason::ChangedMeanwhile => "changed meanwhile",
        SkipReason::DirectoryNotEmpty => "it stays with something in it that stays",
        SkipReason::NestedRepository => "a nested repository",
        SkipReason::Refused => "the system refused it",
        SkipReason::Omitted(reason) => {
            // It may also be gone: nobody can put it back.
            return format!("left     {} (not captured: {reason})", skipped.path);
        }
        _ => "left as it is",
    };
    format!("kept     {} ({why})", skipped.path)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn guard() -> String {
        format!("snap_{}", "c".repeat(32))
    }

    fn document(changes: Value) -> RestoreDocument {
        let mut document = json!({
            "status": "completed", "plan_id": "plan_1", "guard_snapshot": guard(),
            "safety_tag": null, "restored": ["a", "b"], "leftover_ignored": [], "skipped": [],
            "error": null,
        });
        for (key, value) in changes.as_object().expect("an object") {
            document[key] = value.clone();
        }
        serde_json::from_value(document).expect("it is the document of a restore")
    }

    fn plan(changes: Value) -> RestorePlan {
        let mut plan = json!({
            "id": "plan_1", "target": guard(), "writes": [], "removals": [], "displaced": [],
            "make_directories": [], "remove_directories": [], "modes": [], "skipped": [],
        });
        for (key, value) in changes.as_object().expect("an object") {
            plan[key] = value.clone();
        }
        serde_json::from_value(plan).expect("it is a plan")
    }

    #[test]
    fn an_undo_names_what_it_merged_and_in_how_many_places_it_met_edits() {
        let skipped = json!([
            {"path": "b", "reason": "edited_since"}, {"path": "c", "reason": "edited_since"},
        ]);
        let document = document(json!({"restored": ["a", "d"], "skipped": skipped}));
        let conflict = json!({"path": "c", "regions": [
            {"current": "1", "after": "2", "before": "3"},
            {"current": "", "after": "2", "before": {"base64": "/w=="}},
        ]});
        let conflict: Conflict = serde_json::from_value(conflict).unwrap();
        assert_eq!(conflict.regions[1].before, b"\xff");
        let merged = [RelPath::new("d").unwrap()];
        let report = report(&document, &merged, &[conflict], "git");
        let lines: Vec<&str> = report.lines().take(4).collect();
        assert_eq!(
            lines,
            [
                "restored a",
                "merged   d (what was edited since stays in it)",
                "kept     b (edited since)",
                "kept     c (edited since where it would change, in 2 places)",
            ]
        );
    }

    #[test]
    fn what_was_kept_is_named_with_its_reason_and_is_no_failure() {
        let document = document(json!({
            "restored": ["a"],
            "skipped": [{"path": "b", "reason": "edited_since"}, {"path": "c", "reason": "too_large"}],
            "leftover_ignored": ["out"],
        }));
        assert_eq!(
            report(&document, &[], &[], "git"),
            format!(
                "restored a\n\
                 kept     b (edited since)\n\
                 left     c (not captured: too_large)\n\
                 kept     out (ignored; it came after the snapshot)\n\
                 1 path restored; what was there is kept as {}\n",
                guard()
            )
        );
        assert_eq!(exit_code(&document), 0);
    }

    #[test]
    fn a_restore_that_was_not_done_is_exit_code_1_and_says_whether_anything_was_touched() {
        let error = json!({"kind": "HeadMoved", "message": "HEAD is elsewhere"});
        for (status, expected) in [
            (
                "refused",
                "refused, and nothing was touched: HEAD is elsewhere",
            ),
            (
                "failed",
                "not finished, recovery will finish it: HEAD is elsewhere",
            ),
        ] {
            let document = document(json!({
                "status": status, "error": error, "restored": [], "guard_snapshot": null,
            }));
            assert_eq!(report(&document, &[], &[], "git"), format!("{expected}\n"));
            assert_eq!(rollback_story(&document, "git"), [expected]);
            assert_eq!(exit_code(&document), 1);
        }
    }

    #[test]
    fn a_restore_without_the_repository_says_so() {
        let document = document(json!({
            "error": {"kind": "NotFound", "message": ".git is gone"}, "guard_snapshot": null,
        }));
        let line = "2 paths restored, but not everything of the repository: .git is gone";
        assert_eq!(
            report(&document, &[], &[], "git").lines().last(),
            Some(line)
        );
        assert_eq!(exit_code(&document), 0);
    }

    #[test]
    fn the_story_of_a_rollback_stays_short() {
        let skipped: Vec<Value> = (10..30)
            .map(|n| json!({"path": format!("f{n}"), "reason": "changed_meanwhile"}))
            .collect();
        let lines = rollback_story(&document(json!({"skipped": skipped})), "git");
        assert_eq!(lines.len(), 12);
        assert_eq!(lines[11], "kept     10 paths more");
    }

    #[test]
    fn the_story_of_a_rollback_tells_ignored_files_that_are_gone_last() {
        let mut skipped: Vec<Value> = (10..30)
            .map(|n| json!({"path": format!("f{n}.o"), "reason": "ignored"}))
            .collect();
        skipped.push(json!({"path": "g", "reason": "too_large"}));
        let lines = rollback_story(&document(json!({"skipped": skipped})), "git");
        assert_eq!(lines[1], "left     g (not captured: too_large)");
        assert_eq!(lines[2], "left     f10.o (not captured: ignored)");
        assert_eq!(lines.len(), 12);
    }

    #[test]
    fn the_story_of_a_rollback_names_what_is_ignored_and_was_left() {
        let lines = rollback_story(
            &document(json!({"leftover_ignored": ["a", "b", "c", "d"]})),
            "git",
        );
        assert_eq!(
            lines[1],
            "kept     4 ignored paths that came since: a, b, c … and 1 more"
        );
        assert_eq!(lines.len(), 2, "{lines:?}");
    }

    #[test]
    fn a_plan_names_every_path_and_its_id() {
        let entry = stillframe::backends::Entry {
            kind: stillframe::backends::EntryKind::Executable,
            id: stillframe::backends::ContentId::Sha1([0xab; 20]),
        };
        let plan = plan(json!({
            "writes": [
                {"path": "new", "current": null, "entry": entry, "mode": 0o644},
                {"path": "old", "current": entry, "entry": entry, "mode": 0o644},
            ],
            "removals": [{"path": "gone", "current": entry}],
            "displaced": [
                {"path": "log", "reason": "too_large", "bytes": 104_857_601},
                {"path": "pipe", "reason": "special", "bytes": null},
            ],
            "make_directories": [["empty", 0o755]],
            "remove_directories": ["d"],
            "modes": [{"path": "m", "from": 0o600, "to": 0o644}],
            "skipped": [{"path": "k", "reason": "edited_since"}],
            "leftover_ignored": ["l"],
        }));
        assert_eq!(
            preview(&plan),
            "create   new\nreplace  old\nremove   gone\n\
             displace log (a file in the way: too_large, 100.0 MiB)\n\
             displace pipe (a FIFO, socket or device in the way)\ncreate   empty/\nremove   d/\n\
             chmod    m (0600 to 0644)\nkept     k (edited since)\n\
             kept     l (ignored; it came after the snapshot)\nplan plan_1\n"
        );
        let document = serde_json::to_value(PlanDocument::of(&plan, None)).expect("plain data");
        assert_eq!(document["plan_id"], "plan_1");
        assert_eq!(document["status"], "planned");
        assert_eq!(document["restored"], json!([]), "nothing was");
        assert_eq!(
            document["writes"][0],
            json!({
                "path": "new", "replaces": false, "kind": "executable", "content": "ab".repeat(20),
                "mode": 0o644,
            })
        );
        assert_eq!(document["removals"], json!(["gone"]));
        assert_eq!(document["displaced"], json!(["log", "pipe"]));
        assert_eq!(document["leftover_ignored"], json!(["l"]));
        assert_eq!(
            document["make_directories"][0],
            json!({"path": "empty", "mode": 0o755})
        );
    }

    #[test]
    fn a_plan_with_nothing_to_do_says_so() {
        let text = format!("nothing to do: all is as {} has it\n", guard());
        assert_eq!(preview(&plan(json!({}))), text);
    }

    #[test]
    fn what_is_only_kept_is_neither_restored_nor_as_the_snapshot_has_it() {
        let skipped = json!([{"path": "d", "reason": "directory_not_empty"}]);
        let kept = "kept     d (it stays with something in it that stays)\n";
        assert_eq!(
            preview(&plan(json!({"skipped": skipped}))),
            format!("{kept}nothing else differs from {}\n", guard())
        );
        assert_eq!(
            report(
                &document(json!({"restored": [], "skipped": skipped})),
                &[],
                &[],
                "git"
            ),
            format!(
                "{kept}nothing was restored, 1 path kept as is; what was there is kept as {}\n",
                guard()
            )
        );
    }
}
