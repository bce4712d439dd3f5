//! Who asks the remote of a task, and by whom.

use std::path::PathBuf;

use stillframe_backends::Operation;
use stillframe_remote::address::{Login, ParsedAddress};
use stillframe_remote::advertised::Advertised;
use stillframe_remote::credential::Credential;
use stillframe_remote::environment::Environment;
use stillframe_remote::failure_kind::FailureKind;
use stillframe_remote::git_process::Git;
use stillframe_remote::remote::Remote;

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
}

/// `None`: there is no remote.
pub(super) async fn asking(
    target: &Target,
    branch: &WorkBranchOptions,
    cancel: &Cancellation,
) -> Option<Result<Asking, NotSent>> {
    let address = target.address.clone()?;
    let known = match &branch.credentials {
        Some(provider) if address.address.takes_token() => {
            let answer = provider.clone().answer(address.address.to_string());
            tokio::select! {
                biased;
                answer = answer => answer.map_err(|why| (FailureKind::AuthDenied, why)),
                () = tokio::time::sleep(branch.call_timeout) => {
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
        // As git itself does: helpers are asked for what the address does not say.
        Ok(Credential::UserGit { user: None }) => match address.login.clone() {
            Some(Login {
                user,
                password: None,
            }) => Credential::UserGit { user: Some(user) },
            Some(login) => Credential::of_login(Some(login)),
            None => Credential::UserGit { user: None },
        },
        Ok(credential) => credential,
        Err((kind, why)) => {
            let why = Failure::of_work(why.trim()).line();
            let why = format!("who asks {} is not known: {why}", address.address);
            return Some(Err(NotSent::new(kind, why)));
        }
    };
    let store = target
        .checkpoints()
        .sending_repository(&target.opened.workspace);
    let git = Git::new(store, Environment::of(std::env::vars_os())).limit(branch.call_timeout);
    Some(Ok(Asking {
        address,
        credential,
        git,
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
        let refs = self.remote().refs(op);
        let refused = |e: stillframe_remote::remote::ListError| {
            NotSent::new(e.failure(), crate::error::chain(&e))
        };
        refs.map(Some).map_err(refused)
    }
}
