//! Who asks the remote of a task, and by whom.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use stillframe_backends::Operation;
use stillframe_remote::address::ParsedAddress;
use stillframe_remote::advertised::Advertised;
use stillframe_remote::credential::Credential;
use stillframe_remote::environment::Environment;
use stillframe_remote::failure_kind::FailureKind;
use stillframe_remote::git_process::Git;
use stillframe_remote::remote::{ListError, Remote};

use crate::actors::patience::Patience;
use crate::failure::Failure;
use crate::options::work_branch::WorkBranchOptions;
use crate::saving::sending::NotSent;
use crate::saving::target::Target;
use crate::workspace::cancellation::Cancellation;

/// Who is asked, and by whom.
#[derive(Clone)]
pub(super) struct Asking {
    address: ParsedAddress,
    credential: Credential,
    git: Git,
    /// Where somebody else waits meanwhile.
    patience: Option<Patience>,
    /// How long one call of git may take.
    limit: Duration,
}

/// `None`: there is no remote.
pub(super) async fn asking(
    target: &Target,
    branch: &WorkBranchOptions,
    patience: Option<&Patience>,
    cancel: &Cancellation,
) -> Option<Result<Asking, NotSent>> {
    let address = target.address.clone()?;
    let limit = branch.call_timeout;
    let name = address.address.to_string();
    let Some(first) = patience.map_or(Some(limit), |patience| {
        patience.with(&name, limit, Instant::now())
    }) else {
        return Some(Err(silent(&name)));
    };
    let known = match &branch.credentials {
        Some(provider) if address.address.takes_token() => {
            let answer = provider.clone().answer(name.clone());
            tokio::select! {
                biased;
                answer = answer => answer.map_err(|why| (FailureKind::AuthDenied, why)),
                () = tokio::time::sleep(first) => {
                    if let Some(patience) = patience {
                        patience.ended(&name, Instant::now());
                    }
                    Err((FailureKind::AuthDenied, "nobody said so in time".to_owned()))
                }
                () = cancel.told() => {
                    Err((FailureKind::NetworkBlip, "it was cancelled".to_owned()))
                }
            }
        }
        _ => Ok(Credential::of_login(address.login.clone())),
    };
    let credential = match known {
        Ok(credential) => credential.beside(address.login.clone()),
        Err((kind, why)) => {
            let why = Failure::of_work(why.trim()).line();
            let why = format!("who asks {} is not known: {why}", address.address);
            return Some(Err(NotSent::new(kind, why)));
        }
    };
    let store = target
        .checkpoints()
        .sending_repository(&target.opened.workspace);
    let git = Git::new(store, Environment::of(std::env::vars_os())).limit(limit);
    Some(Ok(Asking {
        address,
        credential,
        git,
        patience: patience.cloned(),
        limit,
    }))
}

impl Asking {
    /// As this, for what is fetched: git goes by the objects in these directories too.
    pub(super) fn with_objects_of(mut self, directories: Vec<PathBuf>) -> Self {
        self.git = self.git.borrowing(directories);
        self
    }

    /// As this, for what is fetched with all of its history.
    pub(super) fn whole(mut self) -> Self {
        self.git = self.git.whole();
        self
    }

    pub(super) fn remote(&self) -> Remote<'_> {
        Remote {
            git: &self.git,
            address: &self.address.address,
            credential: &self.credential,
        }
    }

    /// What the remote has. Blocks.
    pub(super) fn refs(&self, op: &Operation) -> Result<Option<Advertised>, NotSent> {
        let refused = |e: ListError| NotSent::new(e.failure(), crate::error::chain(&e));
        let Some(patience) = &self.patience else {
            return self.remote().refs(op).map(Some).map_err(refused);
        };
        let name = self.address.address.to_string();
        let began = Instant::now();
        let Some(first) = patience.with(&name, self.limit, began) else {
            return Err(silent(&name));
        };
        let git = self.git.clone().limit(first);
        let remote = Remote {
            git: &git,
            ..self.remote()
        };
        remote.refs(op).map(Some).map_err(|e| {
            if began.elapsed() >= first {
                patience.ended(&name, Instant::now());
            }
            refused(e)
        })
    }
}

/// That a remote is not asked, because nobody answered there a moment ago.
fn silent(name: &str) -> NotSent {
    let why = format!("{name} is not asked: it did not answer a moment ago");
    NotSent::new(FailureKind::NetworkBlip, why)
}
