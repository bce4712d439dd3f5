//! What a host chooses for a repository that is made or cloned.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::options::credentials::{BoxCredentials, CredentialProvider};

/// The branch that a new project begins on by default.
pub(crate) const DEFAULT_BRANCH: &str = "main";

/// How long a clone may take by default.
const DEFAULT_CLONE_TIMEOUT: Duration = Duration::from_secs(300);

/// A repository for a new project: see [`Engine::init`](crate::Engine::init).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InitOptions {
    /// The directory, which is new or empty. What is above it is there.
    pub to: PathBuf,
    /// The branch that its first commit is on, without `refs/heads/`. Default: `main`.
    pub branch: String,
}

impl InitOptions {
    /// In this directory.
    pub fn at(to: impl Into<PathBuf>) -> Self {
        Self {
            to: to.into(),
            branch: DEFAULT_BRANCH.to_owned(),
        }
    }

    stillframe_model::setters! {
        branch: String,
    }
}

/// A repository to be cloned: see [`Engine::clone_repository`](crate::Engine::clone_repository).
#[derive(Clone)]
#[non_exhaustive]
pub struct CloneOptions {
    /// What is cloned: an address (`https`, `ssh`, `git`, `file`, or a path that begins with `/`,
    /// `./` or `../`), or `OWNER/REPO` for `https://github.com/OWNER/REPO`.
    pub address: OsString,
    /// The directory, which is new or empty. What is above it is there.
    pub to: PathBuf,
    /// Who asks the remote. Default: what the address says; over ssh the user's agent and keys in
    /// any case.
    pub(crate) credentials: Option<BoxCredentials>,
    /// How long all of it may take. Default: 300 seconds.
    pub timeout: Duration,
    /// Cancelling it ends the clone, which is `Cancelled` and leaves nothing, unless it is there
    /// whole by then. Default: a token that nobody cancels.
    pub cancellation: CancellationToken,
}

impl CloneOptions {
    /// What is at `address`, into the directory `to`.
    pub fn of(address: impl Into<OsString>, to: impl Into<PathBuf>) -> Self {
        Self {
            address: address.into(),
            to: to.into(),
            credentials: None,
            timeout: DEFAULT_CLONE_TIMEOUT,
            cancellation: CancellationToken::new(),
        }
    }

    stillframe_model::setters! {
        timeout: Duration,
        cancellation: CancellationToken,
    }

    /// Sets who asks the remote.
    pub fn credentials(mut self, provider: impl CredentialProvider) -> Self {
        self.credentials = Some(Arc::new(provider));
        self
    }
}

/// Without the address, which may have a password in it.
impl fmt::Debug for CloneOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloneOptions")
            .field("to", &self.to)
            .field("has_credentials", &self.credentials.is_some())
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// The address that `typed` means.
pub(crate) fn address_of(typed: &OsStr) -> Result<OsString, Error> {
    let bytes = typed.as_bytes();
    let is_path = ["/", "./", "../"]
        .iter()
        .any(|start| bytes.starts_with(start.as_bytes()));
    if is_path || bytes.contains(&b':') || [".", ".."].iter().any(|name| typed == *name) {
        return Ok(typed.to_owned());
    }
    let is_name = |part: &str| {
        let is_sound = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && part.bytes().all(is_sound)
    };
    let parts = typed.to_str().and_then(|typed| typed.split_once('/'));
    match parts.filter(|(owner, repository)| is_name(owner) && is_name(repository)) {
        Some((owner, repository)) => Ok(format!("https://github.com/{owner}/{repository}").into()),
        None => Err(Error::invalid_options(
            "what is to be cloned is no address, no OWNER/REPO, and no path that begins with /, ./ or ../; nothing \
             was made",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_and_repository_are_githubs_and_all_else_is_as_it_is() {
        for (typed, meant) in [
            ("acme/web", "https://github.com/acme/web"),
            ("a-b/c.d_e", "https://github.com/a-b/c.d_e"),
            ("https://example.org/a", "https://example.org/a"),
            ("me@example.org:a/b", "me@example.org:a/b"),
            ("/srv/a.git", "/srv/a.git"),
            ("./acme/web", "./acme/web"),
            ("../web", "../web"),
            ("..", ".."),
        ] {
            assert_eq!(address_of(typed.as_ref()).unwrap(), meant, "{typed}");
        }
        for typed in ["", "web", "a/b/c", "acme/", "-o/x", "a/.x", "a b/c", "~/a"] {
            let error = address_of(typed.as_ref()).expect_err(typed);
            assert_eq!(error.kind(), stillframe_backends::ErrorKind::InvalidOptions);
        }
    }

    #[test]
    fn what_is_printed_of_a_clone_has_no_password() {
        let options = CloneOptions::of("https://me:s3cret@example.org/a", "/a");
        assert!(!format!("{options:?}").contains("s3cret"));
    }
}
