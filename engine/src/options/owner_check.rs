//! The port by which a host says who may decide about what a run has handed in.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::records::isolated_run::IsolatedRun;

/// Says who may decide about what a run has handed in. It is asked before each decision, and nothing
/// is decided by anybody else.
///
/// ```
/// use stillframe::options::OwnerCheck;
/// use stillframe::records::IsolatedRun;
///
/// struct OfTeam;
///
/// impl OwnerCheck for OfTeam {
///     async fn may_decide(&self, run: &IsolatedRun, reviewer: Option<&str>) -> bool {
///         # let is_of_team = |name: &str, _: &str| name == "ann";
///         reviewer.is_some_and(|name| is_of_team(name, run.session_id.as_str()))
///     }
/// }
/// ```
pub trait OwnerCheck: Send + Sync + 'static {
    /// Whether `reviewer`, as the decision names them, may decide about `run`.
    fn may_decide(
        &self,
        run: &IsolatedRun,
        reviewer: Option<&str>,
    ) -> impl Future<Output = bool> + Send;
}

/// A check as a trait object.
pub(crate) type BoxCheck = Arc<dyn AnyCheck>;

/// [`OwnerCheck`] in a form that can be a trait object.
pub(crate) trait AnyCheck: Send + Sync + 'static {
    /// As [`OwnerCheck::may_decide`].
    fn may_decide(
        self: Arc<Self>,
        run: IsolatedRun,
        reviewer: Option<String>,
    ) -> Pin<Box<dyn Future<Output = bool> + Send>>;
}

impl<C: OwnerCheck> AnyCheck for C {
    fn may_decide(
        self: Arc<Self>,
        run: IsolatedRun,
        reviewer: Option<String>,
    ) -> Pin<Box<dyn Future<Output = bool> + Send>> {
        Box::pin(async move { OwnerCheck::may_decide(&*self, &run, reviewer.as_deref()).await })
    }
}
