//! The port by which a host says who asks a remote.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use stillframe_remote::credential::Credential;

/// Knows who asks a remote.
///
/// It is asked each time before a remote of `https` is, and its answer is kept in memory until that
/// is done: by other protocols no token is sent. Dropping the future ends the question. A token is
/// in the environment of the processes of git that need it, and nowhere else.
///
/// ```
/// use stillframe::tasks::{Credential, CredentialProvider, Secret};
///
/// struct OfVault;
///
/// impl CredentialProvider for OfVault {
///     async fn credential(&self, remote: &str) -> Result<Credential, String> {
///         # let of_vault = |_: &str| Some("t0ken".to_owned());
///         let token = of_vault(remote).ok_or("the vault has no token for it")?;
///         let token = Secret::new(token.into()).map_err(|e| e.to_string())?;
///         Ok(Credential::token(token, None))
///     }
/// }
/// ```
pub trait CredentialProvider: Send + Sync + 'static {
    /// Who asks `remote`, an address without credentials. `Err` says in one line why that is not
    /// known: the remote is then not asked, and the work is kept in the store.
    fn credential(&self, remote: &str) -> impl Future<Output = Result<Credential, String>> + Send;
}

/// A provider as a trait object.
pub(crate) type BoxCredentials = Arc<dyn AnyCredentials>;

type Answer = Pin<Box<dyn Future<Output = Result<Credential, String>> + Send>>;

/// [`CredentialProvider`] in a form that can be a trait object.
pub(crate) trait AnyCredentials: Send + Sync + 'static {
    /// As [`CredentialProvider::credential`].
    fn answer(self: Arc<Self>, remote: String) -> Answer;
}

impl<P: CredentialProvider> AnyCredentials for P {
    fn answer(self: Arc<Self>, remote: String) -> Answer {
        Box::pin(async move { self.credential(&remote).await })
    }
}
