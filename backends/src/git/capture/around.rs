//! The state of the repository at a capture, and which parts of it are stored with the capture.

use std::collections::BTreeMap;

use super::seed::Seed;
use super::sink::GitSink;
use super::walk::WalkResult;
use super::{Request, Setting, Source};
use crate::git::ObjectId;
use crate::git::history::{self, Keeper};
use crate::git::kept_refs::{self, RefDetails};
use crate::git::operation::{self, KeptOperation};
use crate::git::repository::{Head, SharedRefs, UserRepository};
use crate::record::GitState;
use crate::snapshot_error::SnapshotError;

/// Where the repository stood.
#[derive(Default)]
pub(super) struct Around {
    /// `None`: there is no repository.
    pub(super) state: Option<GitState>,
    /// The tree of HEAD's commit; `None`: there is none, or it is damaged.
    pub(super) head_tree: Option<ObjectId>,
    pub(super) operation: KeptOperation,
    pub(super) refs: KeptRefs,
}

/// What is kept of refs and of the history that only they reach.
#[derive(Default)]
pub(super) struct KeptRefs {
    /// The blob with what they name; `None`: that is not kept.
    ids: Option<ObjectId>,
    /// The blob with what their ids do not tell.
    details: Option<ObjectId>,
    pub(super) history: history::KeptCommits,
}

impl Around {
    /// The blobs that have to be kept for it.
    pub(super) fn blobs(&self) -> impl Iterator<Item = ObjectId> {
        let refs = self.refs.ids.into_iter().chain(self.refs.details);
        let history = self.refs.history.ids.iter().copied();
        self.operation.blobs().chain(refs).chain(history)
    }
}

impl Setting<'_> {
    /// Looks at the repository, and keeps what a restore of it would need.
    pub(super) fn around(
        &self,
        seed: &Seed,
        seen: &mut WalkResult,
    ) -> Result<Around, SnapshotError> {
        let Some(repository) = self.repository else {
            return Ok(Around::default());
        };
        let Request {
            source,
            store,
            options,
            branches,
            ..
        } = self.request;
        let head = repository.head()?;
        // A commit that is not here, or damaged, is no reason to capture nothing.
        let head_tree = repository
            .head_tree(self.request.op, &head)
            .unwrap_or_default();
        let is_damaged = matches!(source, Source::WithoutIndex(_));
        let GitSink { pack, purged, .. } = self.sink;
        let operation = operation::keep(repository, is_damaged, store, pack, purged)?;
        let refs = match options.keep_refs {
            true => self.keep_refs(repository, &head)?,
            false => KeptRefs::default(),
        };
        let branches = branches.iter().chain(&operation.branches);
        let state = GitState {
            common_dir: repository.known_as(),
            branches: tips_of(repository, branches, &head),
            head,
            refs: refs.ids,
            ref_details: refs.details,
            history: refs.history.list,
            index: seed.index,
            index_modified_ns: seed.index_modified_ns,
            safety_refs: options.safety_refs.clone(),
            in_progress: operation.in_progress.map(str::to_owned),
            operation: operation.files.clone(),
            scope: repository.scope().clone(),
            outside_rules: std::mem::take(&mut seen.outside_rules),
            rules_above: std::mem::take(&mut seen.rules_above),
        };
        Ok(Around {
            state: Some(state),
            head_tree,
            operation,
            refs,
        })
    }

    /// Keeps what the refs name, and the commits that only HEAD reaches. Refs that cannot be read
    /// are no reason to capture nothing: then they are not kept.
    fn keep_refs(
        &self,
        repository: &UserRepository,
        head: &Head,
    ) -> Result<KeptRefs, SnapshotError> {
        let Ok(SharedRefs {
            ids: named,
            symbolic,
        }) = repository.shared_refs("refs")
        else {
            return Ok(KeptRefs::default());
        };
        let Request { store, options, .. } = self.request;
        let GitSink { pack, purged, .. } = self.sink;
        let ids = kept_refs::keep(&named, store, pack)?;
        // As little is a log of stashes that cannot be read.
        let details = match repository.stashes() {
            Ok(stashes) => {
                let details = RefDetails { symbolic, stashes };
                kept_refs::keep_details(&details, store, pack)?
            }
            Err(_) => None,
        };
        let keeper = Keeper {
            op: self.request.op,
            repository,
            store,
            pack,
            purged,
            borrow: options.borrow,
        };
        let history = keeper.keep(head, &named)?;
        Ok(KeptRefs {
            ids,
            details,
            history,
        })
    }
}

/// The tips of these branches, without HEAD's own, which HEAD has. One whose ref is a trap, damaged
/// or a name for another ref is left out: a rollback then leaves it where it is, and says so.
fn tips_of<'a>(
    repository: &UserRepository,
    branches: impl Iterator<Item = &'a String>,
    head: &Head,
) -> BTreeMap<String, Option<ObjectId>> {
    branches
        .filter(|name| head.branch() != Some(name))
        .filter_map(|name| Some((name.clone(), repository.tip(name).ok()?)))
        .collect()
}
