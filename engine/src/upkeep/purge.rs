//! Removing content, such as a leaked secret, from everything that is stored for a workspace.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read};

use jiff::Timestamp;
use serde::Serialize;
use stillframe_artifact_store::{ArtifactKey, ArtifactMeta};
use stillframe_backends::{
    Backend, BackendKind, ContentId, ErrorKind, FoundContent, KeptContent, Label, LockedWorkspace,
    Operation, PatchText, PathError, Problem, Proof, PurgeTarget, Purging, SnapshotId, Workspace,
    printable,
};

use crate::actors::core::Core;
use crate::actors::{HOSTS_STORE, Parts};
use crate::error::Error;
use crate::events::data::ContentPurged;
use crate::events::event::EventType;
use crate::id::{RunId, SessionId};
use crate::records::artifact::ArtifactRecord;
use crate::records::run_document::KeptPatch;
use crate::run::lock::RunLock;
use crate::state::RunFilter;
use crate::state::change::{Change, NewEvent};
use crate::state::registering::MAX_WAIT;
use crate::state::sqlite::DATABASE;
use crate::upkeep::{content, gc};
use crate::workspace::cancellation::{self, Cancellation};
use crate::workspace::opened::Opened;
use crate::workspace::{adoption, backends, turn};

/// The name of the operation, for messages to those who wait for the workspace.
const WHAT: &str = "a purge";

/// What a purge would remove. Nothing in it was done yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct PurgePlan {
    /// The content, by its id in each backend that has it.
    pub contents: Vec<FoundContent>,
    /// The snapshots that have some of it, of each backend, oldest first.
    pub snapshots: Vec<PurgedSnapshot>,
    /// The length of all content together. The space that it uses, and that is freed, may be less.
    pub bytes: u64,
    /// The runs whose record has a patch with some of it.
    pub runs: Vec<RunId>,
    /// The keys of the artifacts that are removed: patches with some of the content, and artifacts
    /// that are the content.
    pub artifacts: Vec<String>,
    /// Matching content that is kept, sorted by path.
    pub kept: Vec<KeptContent>,
    /// Snapshots that could not be read. Content that only they have stays.
    pub unreadable: Vec<Problem>,
}

/// A snapshot with content that a purge removes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct PurgedSnapshot {
    /// The snapshot.
    pub id: SnapshotId,
    /// Who captured it.
    pub backend: BackendKind,
    /// What it was taken for; null, if the log does not know it.
    pub label: Option<Label>,
    /// When it was taken; null, if the log does not know it.
    pub captured_at: Option<Timestamp>,
    /// At how many paths it has such content.
    pub paths: u64,
}

/// What a purge did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct PurgeOutcome {
    /// What was removed.
    #[serde(flatten)]
    pub purged: PurgePlan,
    /// By how many bytes the stores of the workspace became smaller; zero if they grew, because
    /// parts of a hard-linked pack had to be copied.
    pub freed_bytes: u64,
    /// Copies of the database from before a migration, which were removed as a whole.
    pub backups_removed: Vec<String>,
    /// What was searched afterwards.
    pub proof: Proof,
    /// The artifacts that were read afterwards.
    pub artifacts_read: u64,
}

impl PurgeOutcome {
    /// Whether it is proven that nothing of the content is left: everything could be searched.
    pub fn is_proven(&self) -> bool {
        self.proof.unproven.is_empty() && self.purged.unreadable.is_empty()
    }
}

/// Says what a purge would remove.
pub(crate) async fn plan(
    core: &Core,
    opened: Opened,
    target: PurgeTarget,
) -> Result<PurgePlan, Error> {
    let parts = core.parts.clone();
    let cancel = Cancellation::of(core, &opened.options);
    let op = cancel.operation();
    core.parts
        .blocking
        .run(move || search(&op, &parts, &opened.workspace, &target))
        .await?
}

/// Removes content from everything that is kept for a workspace, and proves it.
///
/// A cancellation during the search touches nothing. Once the list is written, the purge runs to
/// its end, because a partly removed secret helps nobody.
pub(crate) async fn purge(
    core: &Core,
    opened: Opened,
    target: PurgeTarget,
) -> Result<PurgeOutcome, Error> {
    let parts = core.parts.clone();
    let lock_timeout = parts.settings.lock_timeout;
    let workspace = opened.workspace.clone();
    let cancel = Cancellation::of(core, &opened.options);
    let op = cancel.operation();
    let locking = RunLock::acquire(&workspace, WHAT, lock_timeout, &parts.blocking);
    let lock = cancel.wait_for(locking, "waiting for its turn").await?;
    turn::cancellable(
        core,
        &workspace,
        WHAT,
        lock_timeout,
        &cancel,
        move |locked| {
            let _lock = lock;
            adoption::adopt(&op, &parts, locked, adoption::Untold::Tell)?;
            let plan = search(&op, &parts, locked, &target)?;
            let outcome = carry_out(&op.to_its_end(), &parts, locked, plan)?;
            tell(&parts, locked, &outcome)?;
            Ok(outcome)
        },
    )
    .await
}

/// Finds everything that a purge of `target` concerns, which must be something. Blocks.
fn search(
    op: &Operation,
    parts: &Parts,
    workspace: &Workspace,
    target: &PurgeTarget,
) -> Result<PurgePlan, Error> {
    let looked = look(op, parts, workspace, target);
    // However deep it was noticed, this is what it means.
    if let Some(refused) = cancellation::refusal(op, "it was searched for") {
        return Err(refused);
    }
    let plan = looked?;
    refuse_nothing(&plan, target)?;
    Ok(plan)
}

/// Puts a purge on record, by counts and ids: a path may tell what a secret is for.
fn tell(parts: &Parts, locked: &LockedWorkspace, outcome: &PurgeOutcome) -> Result<(), Error> {
    let session_id = SessionId::of_workspace(locked.id());
    let mut changes = adoption::of_new_session(parts, &session_id)?;
    let said = ContentPurged {
        contents: outcome.purged.contents.len(),
        bytes: outcome.purged.bytes,
        snapshots: outcome.purged.snapshots.iter().map(|s| &s.id).collect(),
        runs: &outcome.purged.runs,
        artifacts: outcome.purged.artifacts.len(),
        freed_bytes: outcome.freed_bytes,
        proven: outcome.is_proven(),
    };
    let event = NewEvent::new(
        EventType::WORKSPACE_CONTENT_PURGED,
        &session_id,
        None,
        parts.now(),
        said,
    );
    changes.push(Change::Append(event));
    parts.writer.commit_blocking(changes)?;
    Ok(())
}

/// In the order in which nothing can be read that is not wholly there: each step may be repeated,
/// and after the first nobody is handed the content any more.
fn carry_out(
    op: &Operation,
    parts: &Parts,
    locked: &mut LockedWorkspace,
    plan: PurgePlan,
) -> Result<PurgeOutcome, Error> {
    let before = stored_bytes(parts, locked)?;
    let mut proof = Proof::default();
    for backend in backends::backends(parts) {
        let found = purging(&*backend)?.purge(op, locked, &plan.contents, parts.now())?;
        // Both look at what restores displaced.
        proof.displaced = 0;
        proof = proof.and(found);
    }
    gc::drop_strays(op, parts, locked)?;
    remove_patches(parts, &plan)?;
    let backups_removed = remove_backups(parts)?;
    parts.writer.commit_blocking(vec![Change::Scrub])?;
    let mut artifacts = Artifacts::default();
    artifacts.look(op, parts, &plan.contents)?;
    proof.unproven.extend(artifacts.unreadable);
    for key in artifacts.with_content {
        let problem = Problem::new(format!("artifact {key}"), "it came back meanwhile");
        proof.unproven.push(problem);
    }
    proof.unproven.sort_by(|a, b| a.what.cmp(&b.what));
    proof.unproven.dedup();
    Ok(PurgeOutcome {
        freed_bytes: before.saturating_sub(stored_bytes(parts, locked)?),
        purged: plan,
        backups_removed,
        proof,
        artifacts_read: artifacts.read,
    })
}

/// Finds everything that a purge of `target` concerns. Blocks.
fn look(
    op: &Operation,
    parts: &Parts,
    workspace: &Workspace,
    target: &PurgeTarget,
) -> Result<PurgePlan, Error> {
    let rows = parts
        .reader
        .read_blocking(|store| store.snapshots(workspace.id()))?;
    let rows: BTreeMap<_, _> = rows
        .into_iter()
        .map(|row| (row.snapshot.id.clone(), row.snapshot))
        .collect();
    let backends = backends::backends(parts);
    // What one backend has under its id, the other may have at a path that the target does not
    // name.
    let mut also = BTreeSet::new();
    let found = loop {
        let known: Vec<ContentId> = also.iter().copied().collect();
        let mut all = Vec::new();
        for backend in &backends {
            let found = purging(&**backend)?.find_content(op, workspace, target, &known)?;
            for content in &found.contents {
                also.insert(content.id);
                also.extend(content.other_id);
            }
            all.push((backend.kind(), found));
        }
        if also.len() == known.len() {
            break all;
        }
    };
    let mut plan = PurgePlan::default();
    let mut counted = HashSet::new();
    for (kind, found) in found {
        for content in &found.contents {
            let ids = [Some(content.id), content.other_id];
            if !ids.into_iter().flatten().any(|id| counted.contains(&id)) {
                plan.bytes += content.bytes.unwrap_or(0);
            }
            counted.extend(ids.into_iter().flatten());
        }
        plan.contents.extend(found.contents);
        plan.snapshots
            .extend(found.snapshots.into_iter().map(|(id, paths)| {
                let row = rows.get(&id);
                PurgedSnapshot {
                    backend: kind,
                    label: row.map(|snapshot| snapshot.label.clone()),
                    captured_at: row.map(|snapshot| snapshot.captured_at),
                    paths,
                    id,
                }
            }));
        plan.kept.extend(found.kept);
        plan.unreadable.extend(found.unreadable);
    }
    plan.kept.sort();
    plan.kept.dedup();
    if let PurgeTarget::Content(id) = target
        && plan.contents.is_empty()
        && plan.kept.is_empty()
    {
        // Of a guard that is forgotten the files may be there that its restore displaced.
        let displaced = workspace.find_displaced(op, id)?;
        plan.bytes = displaced.contents.iter().filter_map(|c| c.bytes).sum();
        plan.contents = displaced.contents;
        plan.unreadable.extend(displaced.unreadable);
    }
    plan.runs = runs_with(parts, workspace, &digits_of(&plan.contents))?;
    let mut artifacts = Artifacts::default();
    artifacts.look(op, parts, &plan.contents)?;
    plan.artifacts = artifacts.with_content;
    Ok(plan)
}

fn purging(backend: &dyn Backend) -> Result<&dyn Purging, Error> {
    backend.purging().ok_or_else(|| {
        let kind = backend.kind();
        Error::new(
            ErrorKind::Unsupported,
            format!("the backend {kind} cannot purge; nothing was purged"),
        )
    })
}

fn refuse_nothing(plan: &PurgePlan, target: &PurgeTarget) -> Result<(), Error> {
    if !plan.contents.is_empty() {
        return Ok(());
    }
    let asked = match target {
        PurgeTarget::Path(path) => format!("{path}"),
        PurgeTarget::Glob(glob) => format!("what {glob:?} matches"),
        PurgeTarget::Content(id) => format!("content {id}"),
        _ => "it".to_owned(),
    };
    let why = match (plan.kept.first(), plan.unreadable.first()) {
        (Some(kept), _) if kept.reason == "empty" => "has bytes to purge there",
        (Some(_), _) => "has it but as the text of ignore files, which stay",
        (None, Some(_)) => "that can be read has it, and some cannot: see \"stillframe verify\"",
        (None, None) => "has it",
    };
    Err(Error::not_found(format!(
        "{asked}: no snapshot of this workspace {why}; nothing was purged"
    )))
}

fn stored_bytes(parts: &Parts, workspace: &Workspace) -> Result<u64, Error> {
    let mut bytes = 0;
    for backend in backends::backends(parts) {
        bytes += backend.store_bytes(workspace)?;
    }
    Ok(bytes)
}

/// The ids of git's as patches name them.
fn digits_of(contents: &[FoundContent]) -> HashSet<String> {
    let ids = contents.iter().flat_map(|c| [Some(c.id), c.other_id]);
    ids.flatten()
        .filter(|id| matches!(id, ContentId::Sha1(_)))
        .map(|id| id.to_string())
        .collect()
}

/// The runs of the workspace whose record has a patch that names one of these blobs.
fn runs_with(
    parts: &Parts,
    workspace: &Workspace,
    digits: &HashSet<String>,
) -> Result<Vec<RunId>, Error> {
    let filter = RunFilter {
        workspace_id: Some(workspace.id().to_owned()),
        ..RunFilter::default()
    };
    let runs = parts.reader.read_blocking(|store| store.runs(&filter))?;
    let mut with = Vec::new();
    for run in runs {
        let is_with = match run.seen().patch {
            None => continue,
            Some(KeptPatch::Text(PatchText(bytes))) => names_any(&mut &*bytes, digits)
                .map_err(|e| Error::new(ErrorKind::Storage, e.to_string()))?,
            Some(KeptPatch::Unreadable(_)) => true,
        };
        if is_with {
            with.push(run.id);
        }
    }
    Ok(with)
}

/// Whether a patch says that it is made from, or makes, one of these blobs.
fn names_any(patch: &mut dyn Read, digits: &HashSet<String>) -> io::Result<bool> {
    /// `index`, two ids and a mode fit; a longer line is content.
    const MAX_LINE: usize = 128;
    let mut patch = BufReader::with_capacity(256 * 1024, patch);
    let mut line = Vec::with_capacity(MAX_LINE);
    loop {
        let piece = patch.fill_buf()?;
        if piece.is_empty() {
            return Ok(is_of_any(&line, digits));
        }
        let end = piece.iter().position(|b| *b == b'\n');
        let part = &piece[..end.unwrap_or(piece.len())];
        let room = MAX_LINE.saturating_sub(line.len());
        line.extend_from_slice(&part[..part.len().min(room)]);
        let used = part.len() + usize::from(end.is_some());
        patch.consume(used);
        if end.is_some() {
            if is_of_any(&line, digits) {
                return Ok(true);
            }
            line.clear();
        }
    }
}

/// Whether the line is `index OLD..NEW` with one of these ids.
fn is_of_any(line: &[u8], digits: &HashSet<String>) -> bool {
    let ids = line.strip_prefix(b"index ").and_then(|rest| {
        let text = std::str::from_utf8(rest.split(|b| *b == b' ').next()?).ok()?;
        text.split_once("..")
    });
    ids.is_some_and(|(old, new)| digits.contains(old) || digits.contains(new))
}

/// What is in the artifact store.
#[derive(Default)]
struct Artifacts {
    /// The keys of those with purged content, sorted.
    with_content: Vec<String>,
    read: u64,
    unreadable: Vec<Problem>,
}

impl Artifacts {
    /// Reads every artifact. Blocks.
    fn look(
        &mut self,
        op: &Operation,
        parts: &Parts,
        contents: &[FoundContent],
    ) -> Result<(), Error> {
        let digits = digits_of(contents);
        let ids = contents.iter().flat_map(|c| [Some(c.id), c.other_id]);
        let whole: HashSet<String> = ids.flatten().map(|id| id.to_string()).collect();
        let rows = parts.reader.read_blocking(|store| store.artifacts(None))?;
        if !parts.artifacts.is_there() {
            self.note_elsewhere(parts, &rows, &[]);
            return Ok(());
        }
        let store = parts.artifacts.store()?;
        let list = store.list()?;
        self.note_elsewhere(parts, &rows, &list.artifacts);
        for damaged in list.damaged {
            let problem = Problem::new(damaged, "the record of this artifact is damaged");
            self.unreadable.push(problem);
        }
        for artifact in list.artifacts {
            if op.check().is_err() {
                // Who asked says what that means.
                return Ok(());
            }
            if whole.contains(&artifact.blake3.to_string()) {
                self.with_content.push(artifact.key.as_str().to_owned());
                continue;
            }
            let read = store
                .get(&artifact.key)
                .map_err(|e| e.to_string())
                .and_then(|mut content| {
                    names_any(&mut content, &digits).map_err(|e| e.to_string())
                });
            self.read += 1;
            match read {
                Ok(false) => {}
                Ok(true) => self.with_content.push(artifact.key.as_str().to_owned()),
                Err(detail) => {
                    let what = format!("artifact {}", artifact.key.as_str());
                    self.unreadable.push(Problem::new(what, detail));
                }
            }
        }
        Ok(())
    }

    /// Notes the artifacts on record that another store has, where nobody has looked. Two stores
    /// of hosts have one kind, so of these it also counts what the store lists.
    fn note_elsewhere(&mut self, parts: &Parts, rows: &[ArtifactRecord], listed: &[ArtifactMeta]) {
        let keys: HashSet<&str> = listed.iter().map(|meta| meta.key.as_str()).collect();
        let is_hosts = parts.artifacts.kind() == HOSTS_STORE;
        for row in rows {
            let is_unlisted = is_hosts && !keys.contains(row.key.as_str());
            if is_unlisted || parts.artifacts.check_kept_here(row).is_err() {
                let what = format!("artifact {}", row.key);
                let detail = parts.artifacts.elsewhere(row);
                self.unreadable.push(Problem::new(what, detail));
            }
        }
    }
}

/// Removes artifacts, what says that they are there first, and patches in records of runs.
fn remove_patches(parts: &Parts, plan: &PurgePlan) -> Result<(), Error> {
    for key in &plan.artifacts {
        let change = Change::DeleteArtifact {
            key: key.clone(),
            id: None,
            at: parts.now(),
        };
        let remove = |changes: Vec<Change>| {
            let keys = vec![ArtifactKey::new(key.clone())?];
            content::remove(parts, changes, keys, MAX_WAIT)?.ok_or_else(content::busy)
        };
        match remove(vec![change]) {
            // A purge that was killed had come so far; or the host put it there without a row.
            Err(e) if e.kind() == ErrorKind::NotFound => drop(remove(Vec::new())?),
            removed => drop(removed?),
        }
    }
    if let Some(files) = parts.artifacts.files()? {
        files.gc()?;
    }
    let gone = Change::RemovePatches {
        runs: plan.runs.clone(),
        artifacts: plan.artifacts.clone(),
    };
    parts.writer.commit_blocking(vec![gone])?;
    Ok(())
}

/// Removes the copies of the database that were made before it was migrated: they have the patches
/// of their time, and nothing that the database has not.
fn remove_backups(parts: &Parts) -> Result<Vec<String>, Error> {
    let directory = parts.state_dir.path();
    let at = |operation| PathError::at(operation, directory);
    let mut removed = Vec::new();
    for entry in fs::read_dir(directory).map_err(at("list"))? {
        let name = entry.map_err(at("list"))?.file_name();
        let is_backup = name.to_str().is_some_and(|name| {
            let rest = name.strip_prefix(DATABASE);
            rest.is_some_and(|rest| rest.starts_with(".v") && rest.ends_with(".bak"))
        });
        if is_backup {
            let path = directory.join(&name);
            fs::remove_file(&path).map_err(PathError::at("remove", &path))?;
            removed.push(printable(&path));
        }
    }
    removed.sort();
    Ok(removed)
}

impl From<stillframe_backends::PurgeError> for Error {
    fn from(source: stillframe_backends::PurgeError) -> Self {
        Self::new(source.kind(), source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_with_the_blob_is_known_by_its_header_and_by_nothing_else() {
        let (secret, other) = ("ab".repeat(20), "cd".repeat(20));
        let digits = HashSet::from([secret.clone()]);
        let names = |text: &str| names_any(&mut text.as_bytes(), &digits).expect("it is memory");
        assert!(names(&format!("diff\nindex {other}..{secret}\n+x\n")));
        assert!(names(&format!("index {secret}..{other} 100644")));
        assert!(!names(&format!("index {other}..{other}\n")));
        assert!(!names(&format!("+index {other}..{secret}\n")));
        assert!(!names(&format!(" index {other}..{secret}\n")));
        assert!(!names(""));
        let long = "x".repeat(1 << 20);
        assert!(names(&format!("{long}\nindex {other}..{secret}\n{long}")));
        assert!(!names(&format!("{long}index {other}..{secret}\n")));
    }
}
