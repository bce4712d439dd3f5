//! The upkeep methods of an engine: verifying, cleaning up, and purging secrets.

use std::io::Write;
use std::time::Duration;

use stillframe_artifact_store::ArtifactKey;
use stillframe_backends::{
    Displaced, ErrorKind, Label, ListedFile, Operation, PathError, PurgeTarget, RelPath, Snapshot,
    SnapshotId, StoredSnapshot, Why, Workspace,
};

use super::Engine;
use crate::actors::Parts;
use crate::actors::core::Core;
use crate::error::Error;
use crate::id::SessionId;
use crate::options::{GcOptions, LogRetention, RetentionOptions, WorkspaceOptions};
use crate::records::outcome::StoredFile;
use crate::state::snapshot_name;
use crate::upkeep::claims;
use crate::upkeep::gc::{self, GcOutcome, RemovalOutcome};
use crate::upkeep::purge::{self, PurgeOutcome, PurgePlan};
use crate::upkeep::retention::{self, RetentionOutcome};
use crate::upkeep::trim::{self, LogTrimOutcome};
use crate::upkeep::verify::{self, VerifyOutcome};
use crate::workspace::cancellation::Cancellation;
use crate::workspace::opened::Opened;
use crate::workspace::{adoption, backends, compare, turn};

impl Engine {
    /// Checks that every snapshot of a workspace can be restored, and that every artifact is
    /// undamaged.
    ///
    /// It reads everything that they need. A snapshot that the log did not know of gets its row.
    pub async fn verify(&self, workspace: &WorkspaceOptions) -> Result<VerifyOutcome, Error> {
        let opened = self.core.open(workspace).await?;
        let core = self.core.clone();
        self.core
            .operation(async move {
                let cancel = Cancellation::of(&core, &opened.options);
                let is_writable = core.parts.state_dir.is_writable();
                let adopted = match is_writable {
                    true => adopt(&core, &opened, core.parts.settings.lock_timeout).await,
                    false => Ok(()),
                };
                match adopted {
                    // If a row cannot be written, the verification reports the snapshot.
                    Err(e) if e.kind() == ErrorKind::Corrupt => {}
                    adopted => adopted?,
                }
                let op = cancel.operation();
                let (parts, workspace) = (core.parts.clone(), opened.workspace.clone());
                let prove = move || verify::logged(&op, &parts, &workspace);
                let mut found = core.parts.blocking.run_long(prove.clone()).await?;
                if is_writable && !found.as_ref().is_ok_and(verify::StoreVerdicts::is_sound) {
                    // A clean-up that went on meanwhile looks like damage. Nobody is at work beside
                    // this.
                    let lock = opened.workspace.clone();
                    let lock_timeout = core.parts.settings.lock_timeout;
                    let prove_alone = move || {
                        let _locked = lock.lock(&Operation::unbounded(), lock_timeout)?;
                        prove()
                    };
                    found = core.parts.blocking.run_long(prove_alone).await?;
                }
                let mut found = found?;
                found.store.extend(verify::artifact_store(&core).await?);
                let artifacts = tokio::select! {
                    artifacts = verify::artifacts(&core) => artifacts?,
                    () = cancel.told() => return Err(Error::new(ErrorKind::Cancelled, "cancelled")),
                };
                Ok(VerifyOutcome {
                    adopted: core.parts.adopted.take(opened.workspace.id()),
                    snapshots: found.snapshots,
                    artifacts,
                    store: found.store,
                    log: verify::log(&core, &cancel).await?,
                })
            })
            .await
    }

    /// Removes snapshots that need not be kept, and frees their space.
    ///
    /// # Errors
    ///
    /// `LimitExceeded`: what has to be kept is larger than the quota. Everything else was removed.
    pub async fn gc(
        &self,
        workspace: &WorkspaceOptions,
        options: GcOptions,
    ) -> Result<GcOutcome, Error> {
        let opened = self.core.open(workspace).await?;
        let core = self.core.clone();
        self.core
            .operation(async move {
                let collect = async || {
                    if !options.dry_run
                        && let Err(e) = trim::finish(&core).await
                    {
                        tracing::warn!(error = %e.chain(), "sessions that were being removed are still there");
                    }
                    gc::collect(&core, opened.clone(), options.clone()).await
                };
                let parts = &core.parts;
                parts.reserve.if_needed(&parts.blocking, collect).await
            })
            .await
    }

    /// Removes the snapshots with these [names](crate::SnapshotName), all or none, and frees their
    /// space.
    ///
    /// # Errors
    ///
    /// `Conflict`: one is pinned, or is needed by a run that has not ended, by a restore under way,
    /// or to undo the latest operation. Nothing was removed.
    pub async fn remove_snapshots(
        &self,
        workspace: &WorkspaceOptions,
        names: Vec<String>,
    ) -> Result<RemovalOutcome, Error> {
        let opened = self.core.open_known(workspace).await?;
        let core = self.core.clone();
        self.core
            .operation(async move { gc::remove(&core, opened, names).await })
            .await
    }

    /// Pins the snapshot with this [name](crate::SnapshotName): no clean-up removes it until it is
    /// unpinned. May be repeated.
    pub async fn pin_snapshot(
        &self,
        workspace: &WorkspaceOptions,
        name: &str,
    ) -> Result<Snapshot, Error> {
        self.set_pin(workspace, name, true).await
    }

    /// Reverses [`Engine::pin_snapshot`]. May be repeated.
    pub async fn unpin_snapshot(
        &self,
        workspace: &WorkspaceOptions,
        name: &str,
    ) -> Result<Snapshot, Error> {
        self.set_pin(workspace, name, false).await
    }

    async fn set_pin(
        &self,
        workspace: &WorkspaceOptions,
        name: &str,
        is_pinned: bool,
    ) -> Result<Snapshot, Error> {
        let opened = self.core.open_known(workspace).await?;
        self.core.relearn(&opened.workspace).await?;
        let (core, name) = (self.core.clone(), name.to_owned());
        self.core
            .operation(async move { claims::set_pin(&core, opened, name, is_pinned).await })
            .await
    }

    /// The ids of all snapshots that are pinned, in the order in which they were.
    pub async fn pinned_snapshots(&self) -> Result<Vec<SnapshotId>, Error> {
        let rows = self.read(|store| store.pins()).await?;
        Ok(rows.into_iter().map(|row| row.snapshot_id).collect())
    }

    /// Removes old snapshots, as [`RetentionOptions`] say.
    ///
    /// It may be called after every operation in the workspace: it does something at most once a
    /// day, which it remembers by a file in the store. The first time that something is due it only
    /// announces it, by an event and its answer, and begins seven days later. It does not wait for
    /// locks, and frees space for two seconds at most; [`Engine::gc`] frees the rest.
    ///
    /// # Errors
    ///
    /// `Conflict`: the dates of the snapshots contradict their order, so their ages are not
    /// reliable. Nothing was removed.
    pub async fn apply_retention(
        &self,
        workspace: &WorkspaceOptions,
        options: RetentionOptions,
    ) -> Result<RetentionOutcome, Error> {
        let opened = self.core.open_known(workspace).await?;
        let core = self.core.clone();
        self.core
            .operation(async move { retention::apply(&core, opened, options).await })
            .await
    }

    /// Removes old events, and old sessions that have ended with all that is on record of them, as
    /// the options say; by default nothing. It may be called at any time, while runs go on, and
    /// repeated: a removal that was interrupted is finished by the next engine, or the next
    /// clean-up.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use stillframe::events::{EventQuery, PositionsForgotten};
    /// # use stillframe::options::LogRetention;
    /// # async fn keep(engine: stillframe::Engine, mut stored: u64) -> Result<(), stillframe::Error> {
    /// let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
    /// let kept = LogRetention::default().events_older_than(days(90)).sessions_older_than(days(365));
    /// engine.trim_log(kept).await?;
    /// // A reader that was away for longer is told, and where to go on.
    /// let mut events = engine.subscribe(EventQuery::all().after_position(stored))?;
    /// if let Some(Err(error)) = events.next().await
    ///     && let Some(forgotten) = error.wrapped::<PositionsForgotten>()
    /// {
    ///     stored = forgotten.oldest - 1; // Or it stays, with `EventQuery::gaps_before`.
    /// }
    /// # let _ = stored;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A reader that has come to a position, or in a session to a number, after which events were
    /// removed is told with `PositionsForgotten`; so it never misses one unknowingly. A reader that
    /// begins without one gets what is kept, of a session without gaps. Numbers and positions are
    /// not used again, not even by a session that is made anew under the id of a removed one. The
    /// id of a removed run or event is unknown from then on: what is sent under it is done again.
    ///
    /// It removes few at a time, so that others can write in between. A session to which something
    /// is written meanwhile stays as a whole; once its removal has begun, writing to it is
    /// `Conflict`. Sessions and content of artifacts are removed while nobody stores an artifact:
    /// they may have to wait for the next call.
    ///
    /// # Errors
    ///
    /// `Corrupt`: an event that would be removed is damaged. What came before it was removed.
    /// `Busy`: artifacts are stored all the time; the next call goes on. Where something was
    /// removed before the error, it wraps a [`LogTrimStopped`](crate::upkeep::LogTrimStopped) that
    /// says how much.
    pub async fn trim_log(&self, kept: LogRetention) -> Result<LogTrimOutcome, Error> {
        let core = self.core.clone();
        self.core
            .operation(async move {
                let trim = || trim::trim(&core, &kept, None);
                let parts = &core.parts;
                parts.reserve.if_needed(&parts.blocking, trim).await
            })
            .await
    }

    /// As [`Engine::trim_log`], for a host that calls it after every operation: it does something
    /// at most once a day in a state directory, which it remembers by a file there, and begins
    /// nothing more after two seconds; the next day goes on. `None`: it was done within a day.
    ///
    /// # Errors
    ///
    /// Those of [`Engine::trim_log`].
    pub async fn apply_log_retention(
        &self,
        kept: LogRetention,
    ) -> Result<Option<LogTrimOutcome>, Error> {
        let core = self.core.clone();
        self.core
            .operation(async move { trim::apply(&core, &kept).await })
            .await
    }

    /// Says what [`Engine::purge`] would remove. It only reads: every tree, and every artifact.
    pub async fn plan_purge(
        &self,
        workspace: &WorkspaceOptions,
        target: PurgeTarget,
    ) -> Result<PurgePlan, Error> {
        let opened = self.core.open_known(workspace).await?;
        let core = self.core.clone();
        self.core
            .operation(async move { purge::plan(&core, opened, target).await })
            .await
    }

    /// Removes content, such as a leaked secret, from every snapshot of a workspace and from the
    /// patches of its runs, and proves that it is gone.
    ///
    /// Snapshots keep their ids and all other content. A restore leaves a purged path alone and
    /// names it, and no later snapshot stores the content again. The user's own repository and the
    /// files of the workspace are not touched. Look at [`PurgeOutcome::is_proven`].
    ///
    /// # Errors
    ///
    /// `NotFound`: no snapshot has any of it. `Busy`: a run or a restore is under way. `Cancelled`
    /// and `Timeout`: nothing was touched; once the removal has begun, it cannot be cancelled.
    /// After any other error the same purge, or [`Engine::gc`], finishes it. A workspace whose
    /// directory is gone is not an error: its snapshots still exist.
    pub async fn purge(
        &self,
        workspace: &WorkspaceOptions,
        target: PurgeTarget,
    ) -> Result<PurgeOutcome, Error> {
        let opened = self.core.open_known(workspace).await?;
        let core = self.core.clone();
        self.core
            .operation(async move { purge::purge(&core, opened, target).await })
            .await
    }

    /// Whether `path` would be captured now, or is part of `snapshot`, and why or why not.
    pub async fn why(
        &self,
        workspace: &WorkspaceOptions,
        path: RelPath,
        snapshot: Option<&str>,
    ) -> Result<Why, Error> {
        let opened = self.core.open(workspace).await?;
        if snapshot.is_some() {
            self.core.relearn(&opened.workspace).await?;
        }
        let core = self.core.clone();
        let snapshot = snapshot.map(str::to_owned);
        self.core
            .operation(async move { why(&core, opened, path, snapshot).await })
            .await
    }

    /// The entries of a snapshot, sorted by path, even if its workspace was moved. No content is
    /// read, so it works for snapshots without content.
    pub async fn files(&self, snapshot: &Snapshot) -> Result<Vec<ListedFile>, Error> {
        self.where_kept(snapshot, |_, stored| {
            Ok(stored.files(&Operation::unbounded())?)
        })
        .await
    }

    /// The file or link at a path of a snapshot, even if its workspace was moved. `NotFound` names
    /// both if there is none; a directory is `InvalidOptions`, and a snapshot without content
    /// `Unsupported`.
    pub async fn read_file(
        &self,
        snapshot: &Snapshot,
        path: &RelPath,
    ) -> Result<StoredFile, Error> {
        let path = path.clone();
        self.where_kept(snapshot, move |parts, stored| {
            let read =
                |out: &mut dyn Write| Ok(stored.read_file(&Operation::unbounded(), &path, out)?);
            let (entry, content) = compare::spooled(parts, read)?;
            let metadata = content
                .metadata()
                .map_err(PathError::at("look at", &path.as_path()))?;
            Ok(StoredFile {
                kind: entry.kind,
                bytes: metadata.len(),
                content,
            })
        })
        .await
    }

    /// Does `work` with `snapshot` where it is kept.
    async fn where_kept<T: Send + 'static>(
        &self,
        snapshot: &Snapshot,
        work: impl FnOnce(&Parts, &dyn StoredSnapshot) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let unknown = || Error::not_found(format!("snapshot {} is not kept any more", snapshot.id));
        let id = snapshot.id.clone();
        let row = self.read(move |store| store.snapshot(&id)).await?;
        let row = row.ok_or_else(unknown)?;
        let parts = self.core.parts.clone();
        let done = self.core.parts.blocking.run_long(move || {
            let Some(workspace) = Workspace::kept(&row.workspace_id, &parts.state_dir) else {
                return Ok(None);
            };
            let backend = backends::backend_of(&parts, row.snapshot.backend)?;
            let stored = backend.open(&Operation::unbounded(), &workspace, &row.snapshot)?;
            work(&parts, &*stored).map(Some)
        });
        done.await??.ok_or_else(unknown)
    }

    /// The files that the restore with this guard moved aside although no snapshot has them, such
    /// as a FIFO or a file that was too large to be captured: sorted by path, with their present
    /// place. Restoring the guard restores them. For any other snapshot the list is empty.
    pub async fn displaced(&self, guard: &Snapshot) -> Result<Vec<Displaced>, Error> {
        if guard.label != Label::GUARD {
            return Ok(Vec::new());
        }
        let opened = self.core.open(&WorkspaceOptions::at(&guard.path)).await?;
        let guard = guard.id.clone();
        let look = move || Ok(opened.workspace.displaced(&guard)?);
        self.core.parts.blocking.run(look).await?
    }

    /// Says whether restores in the workspace of `snapshot` can work at all: `Unsupported`, with
    /// the reason, if every one would be refused, so that only copies are possible
    /// ([`SessionManager::copy`](crate::SessionManager::copy)). Cheap; the snapshot is not read.
    pub async fn check_restore_place(&self, snapshot: &Snapshot) -> Result<(), Error> {
        let opened = self
            .core
            .open(&WorkspaceOptions::at(&snapshot.path))
            .await?;
        let (parts, kind) = (self.core.parts.clone(), snapshot.backend);
        self.core
            .parts
            .blocking
            .run(move || {
                let backend = backends::backend_of(&parts, kind)?;
                Ok(backend.check_restore_place(&opened.workspace)?)
            })
            .await?
    }

    /// Deletes an artifact; the key may be used again. It waits until nobody stores an artifact, at
    /// most 30 seconds: then it is `Busy`. `NotFound` if there is none, and `Unavailable` if it is
    /// kept by another store than this engine has.
    pub async fn remove_artifact(&self, key: &str) -> Result<(), Error> {
        let artifact = self.artifact(key).await?;
        self.core.parts.artifacts.check_kept_here(&artifact)?;
        let core = self.core.clone();
        let key = ArtifactKey::new(key)?;
        self.core
            .operation(async move { gc::remove_artifact(&core, key).await })
            .await
    }
}

async fn why(
    core: &Core,
    opened: Opened,
    path: RelPath,
    snapshot: Option<String>,
) -> Result<Why, Error> {
    let parts = core.parts.clone();
    let workspace = opened.workspace.clone();
    let cancel = Cancellation::of(core, &opened.options);
    let op = cancel.operation();
    let Some(text) = snapshot else {
        let lock_timeout = parts.settings.lock_timeout;
        let what = "a question";
        return turn::cancellable(
            core,
            &workspace,
            what,
            lock_timeout,
            &cancel,
            move |locked| {
                let backend = opened.detect(&parts)?;
                let session_id = SessionId::of_workspace(locked.id());
                let label = stillframe_backends::Label::MANUAL;
                let options = opened.snapshot_options(&parts, label, &session_id, None);
                Ok(backend.why(&op, locked, &path, &options)?)
            },
        )
        .await;
    };
    core.parts
        .blocking
        .run(move || {
            let row = parts
                .reader
                .read_blocking_with(|s| snapshot_name::find_snapshot(s, &text, Some(&workspace)))?;
            let backend = backends::backend_of(&parts, row.snapshot.backend)?;
            let stored = backend.open(&op, &workspace, &row.snapshot)?;
            Ok(stored.why(&op, &path)?)
        })
        .await?
}

/// Gives a row to every snapshot of a workspace that the log does not know of.
async fn adopt(core: &Core, opened: &Opened, lock_timeout: Duration) -> Result<(), Error> {
    let parts = core.parts.clone();
    let work = move |locked: &mut stillframe_backends::LockedWorkspace| {
        adoption::adopt(
            &Operation::unbounded(),
            &parts,
            locked,
            adoption::Untold::Tell,
        )
    };
    turn::work(core, &opened.workspace, "recovery", lock_timeout, work).await
}
