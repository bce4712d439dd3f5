//! What a host says of a task whose work goes to a branch.

use std::fmt;
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stillframe_remote::ObjectId;
use stillframe_remote::address::{Address, ParsedAddress, without_login};
use stillframe_remote::branch_name::{BranchName, Namespace, TaskId};
use stillframe_remote::git_process::DEFAULT_LIMIT;

use crate::error::Error;
use crate::options::credentials::{BoxCredentials, CredentialProvider};
use crate::records::kept_branch::KeptBranch;
use crate::records::step::milliseconds;

/// How often the progress of a run is saved by default: little is lost then, and a remote is asked
/// seldom.
const DEFAULT_CHECKPOINT_INTERVAL: Duration = Duration::from_secs(120);

/// What is done where others have gone on with a task's branch, so that its work cannot be added.
///
/// What is on the branch stays in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum OnDivergence {
    /// The work goes to a branch beside it.
    #[default]
    SideBranch,
    /// The work is merged with what is there, by lines as git merges, in the store; the workspace
    /// stays as it is until the task is resumed. Where both have changed the same lines, or
    /// somebody is on the branch before the merge is, the work goes to a branch beside it.
    Merge,
}

/// A task, and where its work goes: to a branch of a remote that is the task's alone.
///
/// ```no_run
/// # use stillframe::tasks::WorkBranchOptions;
/// # use stillframe::WorkspaceOptions;
/// # async fn save(session: stillframe::SessionManager) -> Result<(), stillframe::Error> {
/// let branch = WorkBranchOptions::of("42").remote("origin".to_owned());
/// let saved = session
///     .checkpoint(&WorkspaceOptions::at("/src/app"), &branch)
///     .await?;
/// match &saved.failure {
///     None => println!("{} has {:?}", saved.branch, saved.commit),
///     Some(kind) => println!("kept as {:?}, not sent: {kind}", saved.kept_as),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct WorkBranchOptions {
    /// What the host calls the task: one component of a branch's name, as git allows it.
    pub task: String,
    /// `PLATFORM/PROJECT`, where several projects share the remote: each is made a slug. A remote
    /// has tasks with a namespace or without, never both. Default: none.
    pub namespace: Option<String>,
    /// Where the branch is: the name of a remote of the repository, or an address (`https`, `ssh`,
    /// `git`, `file`, or a path, a relative one from the current directory). Default: the
    /// repository's remote `origin`; where it has none, work is kept in the store alone.
    pub remote: Option<String>,
    /// Where a branch begins that is nowhere yet: a commit by its full id, a branch or a tag of the
    /// repository. Default: what HEAD names.
    pub start_point: Option<String>,
    /// The commit that the task is expected to go on from, by its full id: where a resume, or a run
    /// that begins, would go on from another one, the remote is asked once more, and then it is
    /// `Conflict`. What is saved does not depend on it. Default: any.
    pub expected: Option<String>,
    /// The message of the commits, in the place of `[checkpoint] stillframe run …`; `{runId}`,
    /// `{task}` and `{step}`, the step that the run is in, stand for these. Trailers that name them
    /// follow in any case.
    pub message: Option<String>,
    /// Where that is, once it is known: it is not looked for again.
    pub(crate) pinned: Option<Pinned>,
    /// Who asks the remote. Default: what its address says, or else who [the engine's
    /// options](crate::EngineOptions::credentials) name; over ssh the user's agent and keys in any
    /// case.
    pub(crate) credentials: Option<BoxCredentials>,
    /// How long one call of git may take. Default: 120 seconds.
    pub call_timeout: Duration,
    /// The most bytes of files that the commits of one push may add, uncompressed; what has more is
    /// kept in the store, and is `TooLarge`. Default: any.
    pub max_push_bytes: Option<u64>,
    /// How often the progress of a run is saved at most: see
    /// [`RunContext::checkpoint`](crate::RunContext::checkpoint). Zero: never, unless it is asked
    /// for. Default: 120 seconds.
    pub checkpoint_interval: Duration,
    /// What is done where others have gone on with the branch. Default: the work goes to a branch
    /// beside it.
    pub on_divergence: OnDivergence,
}

/// The address of a task's remote, if there is one.
#[derive(Clone)]
pub(crate) struct Pinned(pub(crate) Option<ParsedAddress>);

/// The names of a task, read and checked.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) task: TaskId,
    pub(crate) namespace: Option<Namespace>,
    pub(crate) branch: BranchName,
}

impl WorkBranchOptions {
    /// The task of this id, with every option at its default.
    pub fn of(task: impl Into<String>) -> Self {
        Self {
            task: task.into(),
            namespace: None,
            remote: None,
            start_point: None,
            expected: None,
            message: None,
            pinned: None,
            credentials: None,
            call_timeout: DEFAULT_LIMIT,
            max_push_bytes: None,
            checkpoint_interval: DEFAULT_CHECKPOINT_INTERVAL,
            on_divergence: OnDivergence::default(),
        }
    }

    stillframe_model::setters! {
        namespace: String,
        remote: String,
        start_point: String,
        expected: String,
        message: String,
        call_timeout: Duration,
        max_push_bytes: u64,
        checkpoint_interval: Duration,
        on_divergence: OnDivergence,
    }

    /// With the address that was found; `None`: there is no remote.
    pub(crate) fn pinned_to(mut self, address: Option<ParsedAddress>) -> Self {
        self.pinned = Some(Pinned(address));
        self
    }

    /// Sets who asks the remote.
    pub fn credentials(mut self, provider: impl CredentialProvider) -> Self {
        self.credentials = Some(Arc::new(provider));
        self
    }

    /// The name of the task's branch, without `refs/heads/`.
    ///
    /// # Errors
    ///
    /// `InvalidOptions`: git would refuse the name, a part of it is empty as a slug, or it has more
    /// than 200 bytes; the commit that is expected has no full id; or the remote cannot be an
    /// address, and is no name of one.
    pub fn branch_name(&self) -> Result<String, Error> {
        Ok(self.names()?.branch.as_str().to_owned())
    }

    /// What is kept of it.
    pub(crate) fn kept(&self) -> KeptBranch {
        KeptBranch {
            task: self.task.clone(),
            namespace: self.namespace.clone(),
            remote: self
                .remote
                .as_deref()
                .map(|remote| from_anywhere(&without_login(remote))),
            message: self.message.clone(),
            max_push_bytes: self.max_push_bytes,
            checkpoint_interval_ms: Some(milliseconds(self.checkpoint_interval)),
            merges: self.on_divergence == OnDivergence::Merge,
        }
    }

    /// Of what was kept: nobody asks.
    pub(crate) fn of_kept(kept: KeptBranch) -> Self {
        let interval = kept.checkpoint_interval_ms.map(Duration::from_millis);
        Self {
            namespace: kept.namespace,
            remote: kept.remote,
            message: kept.message,
            max_push_bytes: kept.max_push_bytes,
            checkpoint_interval: interval.unwrap_or(DEFAULT_CHECKPOINT_INTERVAL),
            on_divergence: match kept.merges {
                true => OnDivergence::Merge,
                false => OnDivergence::SideBranch,
            },
            ..Self::of(kept.task)
        }
    }

    pub(crate) fn names(&self) -> Result<Names, Error> {
        let refused = |e: stillframe_remote::branch_name::BranchNameError| Error::new(e.kind(), e);
        let task = TaskId::new(&self.task).map_err(refused)?;
        let namespace = self.namespace.as_deref().map(Namespace::parse);
        let namespace = namespace.transpose().map_err(refused)?;
        let branch = BranchName::of_task(&task, namespace.as_ref()).map_err(refused)?;
        if let Some(expected) = &self.expected
            && expected.parse::<ObjectId>().is_err()
        {
            return Err(Error::invalid_options(format!(
                "the commit {expected:?} that is expected is no full id; nothing was done"
            )));
        }
        if let Some(remote) = self.remote.as_deref().filter(|remote| is_address(remote)) {
            Address::parse(remote.as_ref(), Path::new("/"))
                .map_err(|e| Error::invalid_options(format!("{e}; nothing was done")))?;
        }
        Ok(Names {
            task,
            namespace,
            branch,
        })
    }
}

/// A remote, also for somebody who is in another directory.
fn from_anywhere(remote: &str) -> String {
    let path = Path::new(remote);
    let is_relative = matches!(
        path.components().next(),
        Some(Component::CurDir | Component::ParentDir)
    );
    let absolute = is_relative
        .then(|| std::path::absolute(path).ok())
        .flatten();
    let absolute = absolute.and_then(|path| path.into_os_string().into_string().ok());
    absolute.unwrap_or_else(|| remote.to_owned())
}

/// Whether what was typed is an address or a path, and no name of a remote.
pub(crate) fn is_address(typed: &str) -> bool {
    typed.contains("://")
        || typed.contains(':')
        || [".", ".."].contains(&typed)
        || ["/", "./", "../"]
            .iter()
            .any(|start| typed.starts_with(start))
}

impl fmt::Debug for WorkBranchOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkBranchOptions")
            .field("task", &self.task)
            .field("namespace", &self.namespace)
            .field("has_credentials", &self.credentials.is_some())
            .field("call_timeout", &self.call_timeout)
            .field("max_push_bytes", &self.max_push_bytes)
            .field("checkpoint_interval", &self.checkpoint_interval)
            .field("on_divergence", &self.on_divergence)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_is_named_in_full() {
        let named = |expected: String| WorkBranchOptions::of("42").expected(expected).branch_name();
        assert_eq!(named("0a".repeat(20)).unwrap(), "stillframe/task/42");
        for beginning in ["0a0a0a0".to_owned(), "HEAD".to_owned(), String::new()] {
            let refused = named(beginning).unwrap_err();
            assert_eq!(
                refused.kind(),
                stillframe_backends::ErrorKind::InvalidOptions
            );
        }
    }

    #[test]
    fn what_is_kept_means_the_same_wherever_it_is_read() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        for (remote, kept) in [
            ("origin", "origin".to_owned()),
            ("team/origin", "team/origin".to_owned()),
            (
                "https://example.org/a.git",
                "https://example.org/a.git".to_owned(),
            ),
            ("/srv/a.git", "/srv/a.git".to_owned()),
            // Who asks is not kept.
            (
                "https://user:pass@example.org/a.git",
                "https://example.org/a.git".to_owned(),
            ),
            ("../a.git", format!("{here}/../a.git")),
            ("./a.git", format!("{here}/a.git")),
        ] {
            let options = WorkBranchOptions::of("42").remote(remote.to_owned());
            let options = options.checkpoint_interval(Duration::from_millis(7));
            let options = options.on_divergence(OnDivergence::Merge);
            let again = WorkBranchOptions::of_kept(options.kept());
            assert_eq!(again.remote, Some(kept), "{remote}");
            assert_eq!(again.checkpoint_interval, Duration::from_millis(7));
            assert_eq!(again.on_divergence, OnDivergence::Merge);
        }
    }
}
