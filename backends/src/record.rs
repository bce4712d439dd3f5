//! The record of a snapshot: a JSON document that the store has beside the content.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::capture_rules::CaptureRules;
use crate::coverage::OmissionReason;
use crate::git::ObjectId;
use crate::git::repository::{Head, OperationFiles, OutsideRules};
use crate::host_rules::IgnoreOptions;
use crate::identity::KnownDirectory;
use crate::path::RelPath;
use crate::snapshot::Snapshot;
use crate::store_error::StoreError;
use crate::tree::Modes;

/// The newest format that this version reads and the one that it writes. Older ones are read too.
pub(crate) const RECORD_VERSION: u32 = 3;

/// Records from this version on know of nested repositories and of the files of git's operations.
pub(crate) const KNOWS_NESTED: u32 = 2;

/// The largest one that is read, in bytes: a workspace of millions of odd permission bits.
pub(crate) const MAX_RECORD_BYTES: u64 = 1 << 30;

/// A snapshot with everything that a restore needs and the tree cannot hold.
///
/// It is JSON, because people may keep snapshots for years; docs/format.md describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// See [`RECORD_VERSION`].
    pub(crate) version: u32,
    /// The description. Its `ref` is empty in the stored form of the git backend, because the id
    /// of the commit depends on this document; reading fills it in.
    pub(crate) snapshot: Snapshot,
    /// Directories with nothing captured in them, sorted. The workspace itself is never listed.
    pub(crate) empty_directories: Vec<RelPath>,
    /// Permission bits that the tree cannot hold.
    pub(crate) modes: Modes,
    /// What the host asked to leave out.
    pub(crate) ignore: IgnoreOptions,
    /// Paths that the host asked to capture although a rule ignores them.
    pub(crate) include: Vec<RelPath>,
    /// Untracked files larger than this, in bytes, were left out; zero: no limit. `None`: an older
    /// version did not write it down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_untracked_file_bytes: Option<u64>,
    /// Whether the content of every file is kept, so that the snapshot can be put back.
    pub(crate) has_content: bool,
    /// The state of the repository around the files; `None` for the hash backend.
    pub(crate) git: Option<GitState>,
}

impl Record {
    /// What the host asked for when it was captured.
    pub(crate) fn rules(&self) -> CaptureRules {
        CaptureRules {
            ignore: self.ignore.clone(),
            include: self.include.clone(),
            max_untracked_file_bytes: self.max_untracked_file_bytes,
        }
    }

    /// Whether both describe the same files and the same omissions, whatever else differs. What a
    /// rule leaves out may have another size.
    pub(crate) fn has_the_same(&self, other: &Self) -> bool {
        self.snapshot.same_content(&other.snapshot)
            && self.has_content == other.has_content
            && self.empty_directories == other.empty_directories
            && self.modes == other.modes
            && self.rules() == other.rules()
            && self.snapshot.nested_repositories == other.snapshot.nested_repositories
            && left_out(&self.snapshot).eq(left_out(&other.snapshot))
    }

    /// Reads the stored form; `of` names the snapshot in errors. A newer version is refused before
    /// the rest is looked at.
    pub(crate) fn from_json(text: &[u8], of: &str) -> Result<Self, StoreError> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let what = format!("the record of {of}");
        let cannot =
            |e: serde_json::Error| StoreError::corrupt(&what, format!("it cannot be read: {e}"));
        let Version { version } = serde_json::from_slice(text).map_err(cannot)?;
        if version > RECORD_VERSION {
            return Err(StoreError::VersionTooNew {
                what,
                found: version,
                supported: RECORD_VERSION,
            });
        }
        serde_json::from_slice(text).map_err(cannot)
    }
}

/// What was left out and why, with its size where that is the reason or may be.
fn left_out(snapshot: &Snapshot) -> impl Iterator<Item = (&RelPath, OmissionReason, Option<u64>)> {
    snapshot.omissions().iter().map(|omission| {
        let is_by_rule = matches!(
            omission.reason,
            OmissionReason::Ignored | OmissionReason::Excluded
        );
        let bytes = omission.bytes.filter(|_| !is_by_rule);
        (&omission.path, omission.reason, bytes)
    })
}

/// The state of the user's repository when a snapshot was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GitState {
    /// The directory with refs and objects: by it a repository is known again.
    pub(crate) common_dir: KnownDirectory,
    /// What HEAD named.
    pub(crate) head: Head,
    /// The tips of further branches by full name, `None` for one that did not exist: those that the
    /// snapshot which this one follows knew. See
    /// [`SnapshotOptions::since`](crate::SnapshotOptions).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) branches: BTreeMap<String, Option<ObjectId>>,
    /// The blob in the store with what the refs named that all worktrees share
    /// ([`refs`](crate::git::kept_refs)); `None`: that was not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refs: Option<ObjectId>,
    /// The blob in the store with what the ids of refs do not tell
    /// ([`refs`](crate::git::kept_refs)): symbolic refs and stashes; `None`: that was not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ref_details: Option<ObjectId>,
    /// The blob in the store with the list of commits that are kept ([`history`](crate::git));
    /// `None`: none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) history: Option<ObjectId>,
    /// The blob in the store with the bytes of the user's index; `None`: there was no index.
    pub(crate) index: Option<ObjectId>,
    /// When that was last written, in nanoseconds since the Unix epoch; `None`: that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) index_modified_ns: Option<i64>,
    /// The safety refs that the restore makes of which this is the guard, by full name, with the
    /// commit that each keeps. What the restore came to does not change this.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) safety_refs: BTreeMap<String, ObjectId>,
    /// merge, rebase, cherry-pick, revert or bisect, if one was in progress.
    pub(crate) in_progress: Option<String>,
    /// The files by which git goes on with it. `None`: they were not kept, which says nothing of
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) operation: Option<OperationFiles>,
    /// The workspace below the work tree.
    pub(crate) scope: RelPath,
    /// Ignore rules that lie outside of the work tree, the weakest first: the user's own, then
    /// `info/exclude`.
    pub(crate) outside_rules: Vec<OutsideRules>,
    /// Ignore rules of the directories above the workspace, each with its directory below the work
    /// tree.
    pub(crate) rules_above: Vec<(RelPath, OutsideRules)>,
}

impl GitState {
    /// Whether both are of a repository that stood the same, but for what was staged.
    pub(crate) fn stands_the_same(&self, other: &Self) -> bool {
        self.common_dir == other.common_dir
            && self.head == other.head
            && self.in_progress == other.in_progress
            && self.operation == other.operation
            && self.scope == other.scope
            && self.outside_rules == other.outside_rules
            && self.rules_above == other.rules_above
    }

    /// The tip of each branch that is known by name, `None` for one that did not exist: HEAD's own,
    /// and [`GitState::branches`].
    pub(crate) fn tips(&self) -> BTreeMap<&str, Option<ObjectId>> {
        let others = self.branches.iter().map(|(name, tip)| (&**name, *tip));
        let own = self.head.branch().map(|name| (name, self.head.commit()));
        others.chain(own).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = r#"{"common_dir":{"device":1,"inode":2},"head":{"state":"branch",
        "branch":"refs/heads/main","commit":"0123456789012345678901234567890123456789"},
        "index":null,"in_progress":null,"scope":"","outside_rules":[],"rules_above":[]}"#;

    #[test]
    fn a_state_without_further_branches_is_written_as_it_always_was() {
        let state: GitState = serde_json::from_str(OLD).unwrap();
        assert_eq!(state.common_dir.born_ns, None);
        assert_eq!(state.common_dir.identity.inode, 2);
        let tip = "0123456789012345678901234567890123456789".parse().ok();
        assert_eq!(state.tips(), BTreeMap::from([("refs/heads/main", tip)]));
        let written: serde_json::Value = serde_json::to_value(&state).unwrap();
        assert_eq!(
            written,
            serde_json::from_str::<serde_json::Value>(OLD).unwrap()
        );
    }

    /// A record as the first version wrote it.
    fn first_version() -> Record {
        let text = format!(
            r#"{{"version":1,"snapshot":{{"id":"snap_00000000000000000000000000000001","backend":"git",
            "path":"/w","ref":"","tree":null,"label":"before","captured_at":"2026-01-01T00:00:00Z",
            "metadata":{{"head_ref":null,"branch":"main","dirty":false,"includes_untracked":true,"files":1,
            "files_hashed":1,"bytes_read":1,"duration_ms":1}},"omissions":[]}},"empty_directories":[],
            "modes":{{"file":420,"executable":493,"directory":493,"exceptions":[]}},
            "ignore":{{"paths":[],"globs":[]}},"include":[],"has_content":true,"git":{OLD}}}"#
        );
        Record::from_json(text.as_bytes(), "a snapshot").unwrap()
    }

    #[test]
    fn a_record_of_the_first_version_says_nothing_of_operations_and_nested_repositories() {
        use crate::diff::Diff;
        use crate::nested::{NestedRepository, NestedState};
        use crate::snapshot::BackendKind;

        let old = first_version();
        let mut new = old.clone();
        new.version = RECORD_VERSION;
        let path = RelPath::new("sub").unwrap();
        new.snapshot.nested_repositories =
            vec![NestedRepository::new(path, NestedState::default())];
        let mut files = OperationFiles::default();
        files.directories.insert("sequencer".to_owned());
        new.git.as_mut().unwrap().operation = Some(files);
        let between = |from: &Record, to: &Record| {
            Diff::of_changes(BackendKind::Git, "a", "b", &[])
                .with_nested(from, to)
                .with_operation(from.git.as_ref(), to.git.as_ref())
        };
        assert!(between(&old, &new).is_empty() && between(&new, &old).is_empty());
        let mut none = new.clone();
        none.snapshot.nested_repositories.clear();
        none.git.as_mut().unwrap().operation = Some(OperationFiles::default());
        let diff = between(&none, &new);
        assert_eq!(diff.nested_repositories.len(), 1);
        assert_eq!(diff.operation.unwrap().files, ["sequencer"]);
    }

    #[test]
    fn a_record_of_the_first_version_says_nothing_of_its_limit() {
        assert_eq!(first_version().rules(), CaptureRules::default());
        let mut record = first_version();
        record.max_untracked_file_bytes = Some(0);
        let text = serde_json::to_vec(&record).unwrap();
        let read = Record::from_json(&text, "a snapshot").unwrap();
        assert_eq!(read.rules().max_untracked_file_bytes, Some(0));
    }

    #[test]
    fn a_state_whose_operation_was_not_kept_is_told_from_one_without_any() {
        let old: GitState = serde_json::from_str(OLD).unwrap();
        assert_eq!(old.operation, None);
        let none = GitState {
            operation: Some(OperationFiles::default()),
            ..old
        };
        let text = serde_json::to_string(&none).unwrap();
        assert!(text.contains(r#""operation":{}"#), "{text}");
        assert_eq!(serde_json::from_str::<GitState>(&text).unwrap(), none);
    }

    #[test]
    fn a_deleted_branch_is_told_from_one_that_nobody_looked_at() {
        let mut state: GitState = serde_json::from_str(OLD).unwrap();
        state.branches.insert("refs/heads/gone".to_owned(), None);
        let text = serde_json::to_string(&state).unwrap();
        let read: GitState = serde_json::from_str(&text).unwrap();
        assert_eq!(read, state);
        assert_eq!(read.tips().get("refs/heads/gone"), Some(&None));
        assert_eq!(read.tips().get("refs/heads/other"), None);
    }
}
