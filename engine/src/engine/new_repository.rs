//! Repositories that are made or cloned.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stillframe_backends::{
    Backend, BranchError, CommitError, ErrorKind, Interrupt, Label, LockedWorkspace, NewRepository,
    Operation, Place, PlaceError, RelPath, RepositoryRestore, RestoreGoal, RestoreOptions, Scratch,
    Skipped, Snapshot, Switch, SwitchRequest, printable,
};
use stillframe_disk::durable;
use stillframe_remote::address::{Address, ParsedAddress};
use stillframe_remote::credential::Credential;
use stillframe_remote::environment::Environment;
use stillframe_remote::failure_kind::FailureKind;
use stillframe_remote::git_process::Git;
use stillframe_remote::remote::Remote;

use super::Engine;
use crate::actors::Parts;
use crate::actors::core::Core;
use crate::error::Error;
use crate::failure::Failure;
use crate::id::SessionId;
use crate::options::new_repository::{DEFAULT_BRANCH, address_of};
use crate::options::{CloneOptions, InitOptions, WorkspaceOptions};
use crate::records::new_repository::NewRepositoryRecord;
use crate::workspace::cancellation::{Cancellation, refusal};
use crate::workspace::opened::Opened;
use crate::workspace::{capture, turn};

/// What git has everything of a repository in.
const GIT_DIR: &str = ".git";

/// What a clone is doing while it may be cancelled.
const CLONING: &str = "cloning";

impl Engine {
    /// Makes a repository for a new project: a directory that is new or empty gets a repository
    /// with one commit without files, `Initial commit`, on the branch of the options. The commit is
    /// by whom `user.name` and `user.email` of the user's own configuration of git name, or else by
    /// `Stillframe <stillframe@localhost>`. No template and no hook of the user's takes part.
    ///
    /// The repository is there whole, durably, or not at all. Then its session is made, as
    /// [`Engine::workspace_session`] would.
    ///
    /// # Errors
    ///
    /// Nothing was touched. `Conflict`: something is in the directory, or in its place.
    /// `InvalidOptions`: git has no such branch, the directory lies in the state directory, or
    /// there is none above it.
    pub async fn init(&self, options: InitOptions) -> Result<NewRepositoryRecord, Error> {
        let core = self.core.clone();
        let made = self.core.operation(async move {
            let parts = core.parts.clone();
            let make = move || init(&parts, &options);
            let (path, branch, commit) = core.parts.blocking.run(make).await??;
            let opened = core.open(&WorkspaceOptions::at(&path)).await?;
            Ok(NewRepositoryRecord {
                session_id: known(&core, &opened).await?,
                path,
                branch,
                commit: Some(commit),
                remote: None,
                files: 0,
                skipped: Vec::new(),
                unconverted_paths: Vec::new(),
                submodules: Vec::new(),
            })
        });
        Box::pin(made).await
    }

    /// Clones a repository into a directory that is new or empty.
    ///
    /// git fetches every branch and tag, without a template and without a checkout: files, index,
    /// branch and HEAD are written here, as a restore writes them, with line ends and `$Id$` as git
    /// has them. HEAD names the remote's default branch, and `origin` is the address without
    /// anything that is secret. No filter, hook or helper of the repository is run. A token is in
    /// the environment of the processes of git, and nowhere else.
    ///
    /// ```no_run
    /// # use stillframe::options::CloneOptions;
    /// # async fn clone(engine: stillframe::Engine) -> Result<(), stillframe::Error> {
    /// let cloned = engine
    ///     .clone_repository(CloneOptions::of("acme/web", "/srv/web"))
    ///     .await?;
    /// println!("{} is on {}", cloned.path.display(), cloned.branch);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A remote that has no commit yet, or whose HEAD names no branch that is there, gives a clone
    /// without files, on `main`, which has no commit yet.
    ///
    /// # Errors
    ///
    /// Nothing is left of it: there is no directory, or it is empty as before. `Conflict`:
    /// something is in the directory, or in its place. `InvalidOptions`: the address cannot be right,
    /// the directory lies in the state directory, or there is none above it. `NotFound`: the address
    /// is a path where nothing is. `Unavailable`: the remote refused, or could not be reached.
    /// `Timeout`: [`CloneOptions::timeout`] was over. `NoSpace`, `Storage`: the disk.
    pub async fn clone_repository(
        &self,
        options: CloneOptions,
    ) -> Result<NewRepositoryRecord, Error> {
        let core = self.core.clone();
        let cloned = self.core.operation(async move {
            let to = options.to.clone();
            let cloned = Box::pin(clone_repository(&core, options)).await;
            cloned.map_err(|error| error.map_source(|source| NotCloned { to, source }))
        });
        Box::pin(cloned).await
    }
}

/// That nothing is left of a clone.
#[derive(Debug, thiserror::Error)]
#[error("nothing was cloned into {}", printable(to))]
struct NotCloned {
    to: PathBuf,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// Makes the repository; answers with where it is, its branch and its commit. Blocks.
fn init(parts: &Parts, options: &InitOptions) -> Result<(PathBuf, String, String), Error> {
    let op = &Operation::unbounded();
    let place = place_of(parts, &options.to)?;
    let scratch = place.scratch(op)?;
    let told = |error| of_place(&place, &scratch, error);
    let made = NewRepository::make(op, &scratch.tree(), &options.branch).map_err(told)?;
    let commit = made.commit(op, parts.now()).map_err(told)?;
    durable::sync_file_system(op, &scratch.tree()).map_err(|e| place.told(e, &scratch))?;
    place.fill(op, &scratch, GIT_DIR)?;
    Ok((place.path(), options.branch.clone(), commit))
}

/// A place that is new or empty.
fn place_of(parts: &Parts, to: &Path) -> Result<Place, Error> {
    let state_dir = parts.state_dir.path();
    Place::find(to, &[(state_dir, "the state directory")]).map_err(|error| match error {
        PlaceError::Occupied(_) => Error::new(ErrorKind::Conflict, error),
        error => error.into(),
    })
}

/// The error, which may be of a name in `scratch` that nobody knows, as one of the place.
fn of_place(place: &Place, scratch: &Scratch, error: CommitError) -> Error {
    let kind = error.kind();
    let message = crate::error::chain(&error);
    let hidden = scratch.tree().display().to_string();
    Error::new(kind, message.replace(&hidden, &printable(&place.path())))
}

/// The session of a workspace.
async fn known(core: &Core, opened: &Opened) -> Result<SessionId, Error> {
    let id = SessionId::of_workspace(opened.workspace.id());
    core.ensure_session(&id, None).await?;
    Ok(id)
}

async fn clone_repository(
    core: &Core,
    options: CloneOptions,
) -> Result<NewRepositoryRecord, Error> {
    let parts = &core.parts;
    let interrupt = Interrupt::after(options.timeout);
    let cancel = Cancellation::by(core, &options.cancellation, interrupt);
    let (found, to, typed) = (parts.clone(), options.to.clone(), options.address.clone());
    let find = move || Ok::<_, Error>((parsed(&typed)?, place_of(&found, &to)?));
    let (address, place) = parts.blocking.run(find).await??;
    let fetching = Fetching {
        credential: credential_of(&address, &options, &cancel).await?,
        address,
        limit: options.timeout,
    };
    let remote = fetching.address.address.to_string();
    let op = cancel.operation();
    let fetch = move || fetching.fetch(&op, &place).map(|fetched| (place, fetched));
    let (place, fetched) = parts.blocking.run_beside(fetch).await??;
    let Fetched {
        scratch,
        repository,
        has_commit,
    } = fetched;
    let path = place.path();
    let checked_out = checked_out(core, &cancel, &path, &repository, has_commit).await;
    let (opened, written) = match checked_out {
        Ok(checked_out) => checked_out,
        Err(NotCheckedOut { error, names }) => {
            let clear = move || place.clear(&scratch, &names);
            let cleared = parts.blocking.run(clear).await.map_err(Error::from);
            return Err(match cleared.and_then(|cleared| Ok(cleared?)) {
                Ok(()) => error,
                Err(left) => Error::new(
                    error.kind(),
                    format!(
                        "{}; what was made is there still: {}",
                        error.chain(),
                        left.chain()
                    ),
                )
                .touched_if(true),
            });
        }
    };
    Ok(NewRepositoryRecord {
        session_id: known(core, &opened).await?,
        path,
        branch: repository.branch().to_owned(),
        commit: written.commit,
        remote: Some(remote),
        files: written.files,
        skipped: written.skipped,
        unconverted_paths: written.unconverted,
        submodules: written.submodules,
    })
}

/// Reads the address.
fn parsed(typed: &OsStr) -> Result<ParsedAddress, Error> {
    let base = std::env::current_dir().map_err(|e| Error::new(ErrorKind::Unavailable, e))?;
    let parsed = Address::parse(&address_of(typed)?, &base);
    let parsed = parsed.map_err(|e| Error::new(e.kind(), e))?;
    match parsed.address.directory() {
        Some(directory) if !directory.exists() => Err(Error::not_found(format!(
            "there is no directory {}",
            printable(directory)
        ))),
        _ => Ok(parsed),
    }
}

/// Who asks the remote.
async fn credential_of(
    address: &ParsedAddress,
    options: &CloneOptions,
    cancel: &Cancellation,
) -> Result<Credential, Error> {
    let provider = match &options.credentials {
        Some(provider) if address.address.takes_token() => provider.clone(),
        _ => return Ok(Credential::of_login(address.login.clone())),
    };
    let name = address.address.to_string();
    let refused = |why: &str| {
        let why = Failure::of_work(why.trim()).line();
        Error::unavailable(format!("who asks {name} is not known: {why}"))
    };
    let answer = provider.answer(name.clone());
    tokio::select! {
        biased;
        answer = answer => match answer {
            Ok(credential) => Ok(credential.beside(address.login.clone())),
            Err(why) => Err(refused(&why)),
        },
        () = tokio::time::sleep(options.timeout) => Err(refused("nobody said so in time")),
        () = cancel.told() => Err(refusal(&cancel.operation(), CLONING)
            .expect("who was told has cancelled it")),
    }
}

/// What is fetched, by whom, and how long that may take.
struct Fetching {
    address: ParsedAddress,
    credential: Credential,
    limit: Duration,
}

/// A repository in its place, with all that a remote has, and no file yet.
struct Fetched {
    /// Where what is taken back goes.
    scratch: Scratch,
    repository: NewRepository,
    /// Whether the remote has the branch that HEAD names.
    has_commit: bool,
}

impl Fetching {
    /// Fetches into a repository, and puts that in its place. Blocks.
    fn fetch(&self, op: &Operation, place: &Place) -> Result<Fetched, Error> {
        let scratch = place.scratch(op)?;
        let told = |error| of_place(place, &scratch, error);
        let made = NewRepository::make(op, &scratch.tree(), DEFAULT_BRANCH);
        let mut repository = made.map_err(told)?;
        let environment = Environment::of(std::env::vars_os());
        let git = Git::new(repository.git_dir(), environment).limit(self.limit);
        let remote = Remote {
            git: &git,
            address: &self.address.address,
            credential: &self.credential,
        };
        let refused = |failure: FailureKind, why: String| {
            let kind = match (op.check(), failure) {
                (Err(interrupted), _) => interrupted.kind(),
                (Ok(()), FailureKind::LocalGit) => ErrorKind::Storage,
                _ => ErrorKind::Unavailable,
            };
            Error::new(kind, why)
        };
        let refs = remote.refs(op);
        let refs = refs.map_err(|e| refused(e.failure(), crate::error::chain(&e)))?;
        if !refs.is_empty() {
            let all = remote.fetch_all(op);
            all.map_err(|e| refused(e.failure(), crate::error::chain(&e)))?;
        }
        let begun = refs.branch_of_clone();
        let url = self.address.address.text();
        repository.follow(op, url, begun).map_err(told)?;
        durable::sync_file_system(op, &scratch.tree()).map_err(|e| place.told(e, &scratch))?;
        let has_commit = begun.is_some();
        place.fill(op, &scratch, GIT_DIR)?;
        Ok(Fetched {
            scratch,
            repository,
            has_commit,
        })
    }
}

/// What was written of a branch.
#[derive(Default)]
struct Written {
    commit: Option<String>,
    files: u64,
    skipped: Vec<Skipped>,
    unconverted: Vec<RelPath>,
    submodules: Vec<RelPath>,
}

/// Why a branch was not checked out, and the names in the directory that may have been made.
struct NotCheckedOut {
    error: Error,
    names: BTreeSet<OsString>,
}

impl From<Error> for NotCheckedOut {
    fn from(error: Error) -> Self {
        Self {
            error,
            names: BTreeSet::from([GIT_DIR.into()]),
        }
    }
}

/// Writes the files of the branch that HEAD names.
async fn checked_out(
    core: &Core,
    cancel: &Cancellation,
    path: &Path,
    repository: &NewRepository,
    has_commit: bool,
) -> Result<(Opened, Written), NotCheckedOut> {
    // What a branch has is written whatever its size.
    let options = WorkspaceOptions::at(path).max_untracked_file_bytes(0);
    let opened = core.open(&options).await?;
    if !has_commit {
        return Ok((opened, Written::default()));
    }
    let checkout = Checkout {
        parts: core.parts.clone(),
        opened: opened.clone(),
        branch: repository.branch().to_owned(),
    };
    let (op, timeout) = (cancel.operation(), core.parts.settings.lock_timeout);
    let write = move |locked: &mut LockedWorkspace| Ok(checkout.write(&op, locked));
    let what = "a clone";
    let written = turn::cancellable(core, &opened.workspace, what, timeout, cancel, write).await?;
    Ok((opened, written?))
}

/// The files of a branch on their way. What it does blocks.
struct Checkout {
    parts: Parts,
    opened: Opened,
    branch: String,
}

impl Checkout {
    fn write(
        &self,
        op: &Operation,
        locked: &mut LockedWorkspace,
    ) -> Result<Written, NotCheckedOut> {
        let backend = self.opened.detect(&self.parts)?;
        let mut captured = Vec::new();
        let written = self.written(op, locked, &*backend, &mut captured);
        // Nothing goes back to a directory without files, and a clone that failed is gone.
        let op = &op.to_its_end();
        let ids: Vec<_> = captured.into_iter().map(|snapshot| snapshot.id).collect();
        let mut forgotten = backend.forget(op, locked, &ids, &[]);
        if written.is_err() {
            forgotten = forgotten.and_then(|()| backend.collect(op, locked).map(drop));
        }
        if forgotten.is_err() {
            self.parts.lock.leave_work();
        }
        written
    }

    /// Brings the workspace, which has nothing, to the branch; `captured` gets what was captured
    /// for that.
    fn written(
        &self,
        op: &Operation,
        locked: &mut LockedWorkspace,
        backend: &dyn Backend,
        captured: &mut Vec<Snapshot>,
    ) -> Result<Written, NotCheckedOut> {
        let session_id = SessionId::of_workspace(locked.id());
        let options = |label| {
            let opened = &self.opened;
            opened.snapshot_options(&self.parts, label, &session_id, None)
        };
        let failed = |error: BranchError| Error::new(error.kind(), error);
        let branches = backend.branches().ok_or_else(|| {
            let message = "the backend of this engine has no branches";
            Error::new(ErrorKind::Unsupported, message)
        })?;
        let (full, of_remote) = (
            format!("refs/heads/{}", self.branch),
            format!("refs/remotes/origin/{}", self.branch),
        );
        let commit = branches.tip(locked, &of_remote).map_err(failed)?;
        let taken = options(Label::GUARD).branches(vec![full.clone()]);
        let from = capture::take(op, locked, backend, &taken).map_err(Error::from)?;
        captured.push(from.clone());
        let request = SwitchRequest::new(full, commit.clone(), self.parts.now());
        let request = request.owner(taken.owner).writes_unconverted(true);
        let switch = branches.prepare_switch(op, locked, &from.id, &request);
        let Switch {
            to,
            paths,
            submodules,
            unconverted,
            ..
        } = switch.map_err(failed)?;
        captured.push(to.clone());
        let files = paths.len() as u64;
        let names = paths.iter().filter_map(|path| path.names().next());
        let names = names.map(|name| OsStr::from_bytes(name).to_owned());
        let names: BTreeSet<OsString> = names.chain([GIT_DIR.into()]).collect();
        let goal = RestoreGoal::Undo {
            before: to.clone(),
            after: from.clone(),
            // All of it, with the empty directories of submodules.
            paths: None,
        };
        let mut guard = options(Label::GUARD);
        guard.id = from.id.clone();
        let restore = RestoreOptions::new(guard).repository(RepositoryRestore::Switch {
            to,
            from,
            reached: Vec::new(),
            merges: false,
        });
        let restored = backend.restore(op, locked, &goal, &restore);
        let restored = match restored {
            Ok(restored) => restored,
            Err(e) => {
                return Err(NotCheckedOut {
                    error: e.into(),
                    names,
                });
            }
        };
        captured.extend([restored.guard, restored.result]);
        if let Some(problem) = restored.repository_error {
            let error = Error::new(problem.kind, problem.message);
            return Err(NotCheckedOut { error, names });
        }
        Ok(Written {
            commit,
            files: files - restored.skipped.len() as u64,
            skipped: restored.skipped,
            unconverted,
            submodules,
        })
    }
}
