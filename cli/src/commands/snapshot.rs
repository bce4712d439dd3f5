//! `snapshot`, `list`, and the messages about a snapshot.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use stillframe::backends::{KeptHistory, Label, Omission, OmissionReason, RetainContent, Search};
use stillframe::options::SnapshotQuery;
use stillframe::{Error, ErrorKind, Snapshot, SnapshotId, WorkspaceOptions};

use super::diff::standing;
use super::{Tools, above, restore};
use crate::failure::Failure;
use crate::output::{self, Reply};

/// How many omissions are named one by one; a person who wants more asks for all of them.
const MAX_NAMED: usize = 10;

/// Takes a snapshot.
pub(super) async fn snapshot(
    tools: &Tools,
    workspace: WorkspaceOptions,
    label: Label,
) -> Result<Reply, Failure> {
    let session = tools.engine.workspace_session(&workspace.path).await?;
    let snapshot = session.snapshot(&workspace, label).await?;
    let text = || format!("{}\n", snapshot.id);
    let limits = limits(tools, &snapshot, workspace.retain_content).await;
    Ok(Reply::new(tools.json, &snapshot, text)
        .note(cost(&snapshot))
        .warnings(limits)
        .warnings(warnings([&snapshot])))
}

/// What a snapshot that was just taken cannot be used for.
async fn limits(tools: &Tools, snapshot: &Snapshot, retain: RetainContent) -> Vec<String> {
    let without = without_content(snapshot, retain, "it cannot be restored");
    let has_content = snapshot.metadata.has_content != Some(false);
    let copied = match has_content && restore::is_copied_only(tools, snapshot).await {
        true => Some(restore::copy_command(&snapshot.id, &tools.elsewhere())),
        false => None,
    };
    without.into_iter().chain(copied).collect()
}

/// Takes a snapshot, unless nothing differs from the newest.
pub(super) async fn snapshot_if_changed(
    tools: &Tools,
    workspace: WorkspaceOptions,
    label: Label,
) -> Result<Reply, Failure> {
    let session = tools.engine.workspace_session(&workspace.path).await?;
    let taken = session.snapshot_if_changed(&workspace, label).await?;
    let snapshot = &taken.snapshot;
    let note = match taken.unchanged {
        true => format!(
            "nothing differs from {}, taken {:.0}; no other was taken",
            snapshot.id, snapshot.captured_at
        ),
        false => cost(snapshot),
    };
    let text = || format!("{}\n", snapshot.id);
    let limits = limits(tools, snapshot, workspace.retain_content).await;
    Ok(Reply::new(tools.json, &taken, text)
        .note(note)
        .warnings(limits)
        .warnings(warnings([snapshot])))
}

/// Keeps a snapshot whatever its age.
pub(super) async fn pin(
    tools: &Tools,
    workspace: &WorkspaceOptions,
    id: &str,
) -> Result<Reply, Failure> {
    let snapshot = tools.engine.pin_snapshot(workspace, id).await?;
    Ok(pinned(tools.json, &snapshot, true))
}

/// Lets clean-ups take a snapshot again.
pub(super) async fn unpin(
    tools: &Tools,
    workspace: &WorkspaceOptions,
    id: &str,
) -> Result<Reply, Failure> {
    let snapshot = tools.engine.unpin_snapshot(workspace, id).await?;
    Ok(pinned(tools.json, &snapshot, false))
}

fn pinned(json: bool, snapshot: &Snapshot, is_pinned: bool) -> Reply {
    let document = PinnedDocument {
        id: &snapshot.id,
        pinned: is_pinned,
    };
    Reply::new(json, &document, || format!("{}\n", snapshot.id))
}

/// What `snapshot pin` and `snapshot unpin` print.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PinnedDocument<'a> {
    /// The snapshot.
    id: &'a SnapshotId,
    /// Whether it is kept whatever its age.
    pinned: bool,
}

/// A snapshot as `list` has it.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ListedDocument<'a> {
    #[serde(flatten)]
    snapshot: &'a Snapshot,
    /// Whether it is kept whatever its age. Left out if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pinned: bool,
}

/// The snapshot of this name; in this workspace, if there is one.
pub(super) async fn by_name(
    tools: &Tools,
    name: &str,
    workspace: Option<&WorkspaceOptions>,
) -> Result<Snapshot, Failure> {
    Ok(match workspace {
        Some(workspace) => tools.engine.find_snapshot_of(workspace, name).await?,
        None => by_id(tools, name).await?,
    })
}

/// The snapshot of this id, or the only one whose id begins so: of any workspace, or else of this
/// one.
async fn by_id(tools: &Tools, id: &str) -> Result<Snapshot, Error> {
    let found = tools.engine.find_snapshot(id).await;
    match found {
        Err(e) if e.kind() == ErrorKind::InvalidOptions => match above::own(tools).await {
            Some(own) => {
                let of_own = tools.engine.find_snapshot_of(&own, id).await;
                of_own.map_err(|_| e)
            }
            None => Err(e),
        },
        found => found,
    }
}

/// That a snapshot has digests alone, which nobody asked for, and what follows from that.
pub(super) fn without_content(
    snapshot: &Snapshot,
    retain: RetainContent,
    what_follows: &str,
) -> Option<String> {
    match (retain, snapshot.metadata.has_content) {
        (RetainContent::UpTo(limit), Some(false)) => Some(format!(
            "{what_follows}: more than {} of content is new here, so that digests alone are kept; --retain-content keeps all",
            output::size(limit)
        )),
        _ => None,
    }
}

/// Lists the snapshots of a workspace.
pub(super) async fn list(tools: &Tools, query: SnapshotQuery) -> Result<Reply, Failure> {
    let is_chosen = query.label.is_some() || query.since.is_some() || query.limit.is_some();
    let snapshots = tools.engine.snapshots(query).await?;
    let pinned = tools.engine.pinned_snapshots().await?;
    let rows = snapshots.iter().map(|snapshot| ListedDocument {
        snapshot,
        pinned: pinned.contains(&snapshot.id),
    });
    let rows: Vec<ListedDocument<'_>> = rows.collect();
    let reply = Reply::new(tools.json, &rows, || listing(&rows));
    Ok(match snapshots.is_empty() {
        true if is_chosen => reply.note("there are no such snapshots"),
        true => reply.note("there are no snapshots of this workspace yet"),
        false => reply,
    })
}

/// What a capture saw and cost.
fn cost(snapshot: &Snapshot) -> String {
    let metadata = &snapshot.metadata;
    format!(
        "{} captured with {} in {} ms; {} hashed, {} read",
        output::count(metadata.files, "file"),
        snapshot.backend,
        metadata.duration_ms,
        output::count(metadata.files_hashed, "file"),
        output::size(metadata.bytes_read)
    )
}

fn listing(snapshots: &[ListedDocument<'_>]) -> String {
    let rows: Vec<Vec<String>> = snapshots
        .iter()
        .map(|row| {
            let snapshot = row.snapshot;
            vec![
                snapshot.id.to_string(),
                format!("{:.0}", snapshot.captured_at),
                snapshot.backend.to_string(),
                output::count(snapshot.metadata.files, "file"),
                output::printable(snapshot.label.as_str()),
                if row.pinned { "pinned" } else { "" }.to_owned(),
            ]
        })
        .collect();
    output::table(&rows)
}

/// A snapshot in full.
pub(super) fn description(snapshot: &Snapshot, is_pinned: bool) -> String {
    let metadata = &snapshot.metadata;
    let mut rows = vec![
        ("snapshot", snapshot.id.to_string()),
        ("label", output::printable(snapshot.label.as_str())),
        ("taken", snapshot.captured_at.to_string()),
        ("workspace", stillframe::backends::printable(&snapshot.path)),
        ("backend", snapshot.backend.to_string()),
        ("ref", output::printable(&snapshot.reference)),
    ];
    if is_pinned {
        rows.push(("pinned", "yes, until it is unpinned".to_owned()));
    }
    let mut optional = |name, value: &Option<String>| {
        rows.extend(value.as_deref().map(|v| (name, output::printable(v))));
    };
    optional("tree", &snapshot.tree);
    optional("HEAD", &metadata.head_ref);
    optional("branch", &metadata.branch);
    if let Some(dirty) = metadata.dirty {
        let text = if dirty { "yes" } else { "no, it is as HEAD" };
        rows.push(("dirty", text.to_owned()));
    }
    rows.extend(
        metadata
            .history
            .as_ref()
            .map(|kept| ("history", history(kept))),
    );
    rows.push(("captured", cost(snapshot)));
    if metadata.has_content == Some(false) {
        rows.push((
            "content",
            "not kept: it can be compared and not restored".to_owned(),
        ));
    }
    rows.extend(search(&metadata.search).map(|text| ("looked at", text)));
    rows.push((
        "left out",
        match snapshot.omissions().len() {
            0 => "nothing".to_owned(),
            number => output::count(number as u64, "path"),
        },
    ));
    let warnings = metadata.warnings.iter();
    rows.extend(warnings.map(|warning| ("warning", own_warning(warning))));
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), value])
        .collect();
    let mut text = output::table(&rows);
    for omission in snapshot.omissions() {
        text.push_str(&format!("  {}\n", named(omission)));
    }
    for nested in &snapshot.nested_repositories {
        let standing = standing(&nested.state);
        text.push_str(&format!(
            "nested repository {} at {standing}\n",
            nested.path
        ));
    }
    for names in &snapshot.hard_links {
        text.push_str(&format!("one file: {}\n", output::some_of(names)));
    }
    text
}

/// What a snapshot keeps of the commits that only HEAD's branch reaches.
fn history(kept: &KeptHistory) -> String {
    let commits = output::count(kept.commits, "commit");
    let rest = kept.not_kept_from.as_ref();
    let rest = rest.map(|id| format!(", and not {} or what is before it", output::printable(id)));
    format!(
        "{commits} that no other ref reaches{}",
        rest.unwrap_or_default()
    )
}

/// Where a capture looked for changes, if a watch was asked for.
pub(super) fn search(search: &Search) -> Option<String> {
    match search {
        Search::Walked { because } => because.map(|reason| format!("every file: {reason}")),
        Search::Watched { directories } => Some(match directories {
            0 => "no file: nothing had happened".to_owned(),
            1 => "1 directory, in which something had happened".to_owned(),
            more => format!("{more} directories, in which something had happened"),
        }),
        _ => None,
    }
}

/// A capture's own warning, with the command that it leaves to the program to name.
fn own_warning(warning: &str) -> String {
    let command = "\"stillframe verify\" says";
    output::printable(&warning.replace("verifying the snapshots tells", command))
}

/// What a person should know: the captures' own warnings, each once, and what was not captured:
/// each path once, the first [`MAX_NAMED`] by name.
pub(super) fn warnings<'a>(snapshots: impl IntoIterator<Item = &'a Snapshot>) -> Vec<String> {
    let mut own = BTreeSet::new();
    let mut omissions = BTreeMap::new();
    let mut lister = None;
    for snapshot in snapshots {
        own.extend(snapshot.metadata.warnings.iter().map(|w| own_warning(w)));
        for omission in snapshot.omissions() {
            if is_surprising(omission.reason) {
                omissions.entry(&omission.path).or_insert(omission);
                lister = Some(&snapshot.id);
            }
        }
    }
    let mut lines: Vec<String> = own.into_iter().collect();
    let named = omissions.values().take(MAX_NAMED).copied().map(named);
    lines.extend(named.map(|name| format!("not captured: {name}")));
    if let (Some(id), true) = (lister, omissions.len() > MAX_NAMED) {
        lines.push(format!(
            "not captured: {} more; \"stillframe show {id}\" lists them",
            output::count((omissions.len() - MAX_NAMED) as u64, "path")
        ));
    }
    lines
}

fn named(omission: &Omission) -> String {
    match omission.bytes {
        Some(bytes) => format!("{} ({}, {bytes} bytes)", omission.path, omission.reason),
        None => format!("{} ({})", omission.path, omission.reason),
    }
}

/// Whether leaving it out is not what was asked for, by rules, by options or by git's nature.
fn is_surprising(reason: OmissionReason) -> bool {
    !matches!(
        reason,
        OmissionReason::Ignored
            | OmissionReason::Excluded
            | OmissionReason::GitDir
            | OmissionReason::Sparse
    )
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A snapshot with these omissions: path, reason, bytes.
    pub(in crate::commands) fn snapshot_json(digit: char, omissions: &[(&str, &str)]) -> Value {
        let omissions: Vec<Value> = omissions
            .iter()
            .map(|(path, reason)| {
                let bytes = (*reason == "too_large").then_some(200_000_000);
                json!({"path": path, "reason": reason, "bytes": bytes})
            })
            .collect();
        json!({
            "id": format!("snap_{}", digit.to_string().repeat(32)),
            "backend": "git", "path": "/w", "ref": "c0ffee", "tree": "7ree", "label": "before",
            "captured_at": "2026-02-03T04:05:06.789Z",
            "metadata": {
                "head_ref": null, "branch": "main", "dirty": true, "includes_untracked": true,
                "files": 3, "files_hashed": 1, "bytes_read": 2048, "duration_ms": 12,
            },
            "omissions": omissions,
        })
    }

    fn snapshot(digit: char, omissions: &[(&str, &str)]) -> Snapshot {
        serde_json::from_value(snapshot_json(digit, omissions)).expect("it is a snapshot")
    }

    #[test]
    fn only_surprises_are_warned_of_and_each_once() {
        let before = snapshot(
            'a',
            &[
                ("big", "too_large"),
                ("fifo", "special"),
                ("ignored", "ignored"),
                ("m", "git_dir"),
                ("node_modules", "excluded"),
                ("s", "sparse"),
            ],
        );
        let after = snapshot('b', &[("big", "too_large"), ("secret\u{1b}", "unreadable")]);
        assert_eq!(
            warnings([&before, &after]),
            [
                "not captured: big (too_large, 200000000 bytes)",
                "not captured: fifo (special)",
                "not captured: secret\\u{1b} (unreadable)",
            ]
        );
    }

    #[test]
    fn after_ten_warnings_there_is_a_count() {
        let names: Vec<String> = (10..25).map(|n| format!("f{n}")).collect();
        let omissions: Vec<(&str, &str)> = names
            .iter()
            .map(|name| (name.as_str(), "unstable"))
            .collect();
        let many = snapshot('a', &omissions);
        let lines = warnings([&many]);
        assert_eq!(lines.len(), 11);
        assert_eq!(lines[9], "not captured: f19 (unstable)");
        let rest = format!(
            "not captured: 5 paths more; \"stillframe show {}\" lists them",
            many.id
        );
        assert_eq!(lines[10], rest);
        assert_eq!(
            warnings([&snapshot('a', &omissions[..10])]).len(),
            10,
            "ten need no count"
        );
    }

    #[test]
    fn a_description_says_where_a_watched_capture_looked() {
        let described = |search: Value| {
            let mut document = snapshot_json('a', &[]);
            document["metadata"]["search"] = search;
            let snapshot = serde_json::from_value(document).expect("it is a snapshot");
            let text = description(&snapshot, false);
            let line = text.lines().find(|line| line.starts_with("looked at"));
            line.map(|line| line["looked at".len()..].trim().to_owned())
        };
        let cases = [
            (json!({"how": "walked"}), None),
            (
                json!({"how": "walked", "because": "watch_limit"}),
                Some("every file: the user may not watch that many directories"),
            ),
            (
                json!({"how": "watched", "directories": 0}),
                Some("no file: nothing had happened"),
            ),
            (
                json!({"how": "watched", "directories": 2}),
                Some("2 directories, in which something had happened"),
            ),
        ];
        for (search, line) in cases {
            assert_eq!(described(search.clone()).as_deref(), line, "{search}");
        }
        assert_eq!(
            search(&snapshot('a', &[]).metadata.search),
            None,
            "an old one"
        );
    }

    #[test]
    fn a_listing_has_a_line_for_each_snapshot() {
        assert_eq!(
            listing(&[
                ListedDocument {
                    snapshot: &snapshot('a', &[]),
                    pinned: false
                },
                ListedDocument {
                    snapshot: &snapshot('b', &[]),
                    pinned: true
                },
            ]),
            "snap_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa  2026-02-03T04:05:06Z  git  3 files  before\n\
             snap_bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb  2026-02-03T04:05:06Z  git  3 files  before  pinned\n"
        );
    }

    #[test]
    fn a_description_names_everything_that_was_left_out() {
        let text = description(
            &snapshot('a', &[("big", "too_large"), ("out", "ignored")]),
            true,
        );
        assert!(text.contains("pinned     yes"), "{text}");
        assert!(text.contains("left out   2 paths\n"), "{text}");
        assert!(
            text.ends_with("  big (too_large, 200000000 bytes)\n  out (ignored)\n"),
            "{text}"
        );
        assert!(text.contains("branch     main\n"), "{text}");
        assert!(!text.contains("HEAD  "), "unborn: {text}");
    }
}
