//! The host's work, which runs between the before- and the after-snapshot.

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use crate::error::Error;
use crate::records::output::AdapterOutput;
use crate::step::adapter_error::AdapterError;
use crate::step::context::RunContext;

/// Does the work of a run.
///
/// The engine calls [`Adapter::run`] once for each run, after the before-snapshot is durable. When
/// the future ends, everything that the work started must have ended, because the after-snapshot,
/// and possibly a rollback, follow at once. A panic is a failed run.
pub trait Adapter: Send + Sync + 'static {
    /// Refuses options that cannot be right, before anything is done.
    fn check(&self, workspace: Option<&Path>) -> Result<(), Error> {
        let _ = workspace;
        Ok(())
    }

    /// Whether the work is a call of a model, which may never answer. Default: no.
    ///
    /// The run of such a call has a timeout of 60 seconds, unless it has [one of its
    /// own](crate::RunOptions::timeout); waiting for a person does not count. As after any timeout,
    /// the work then has five seconds to end by itself.
    fn calls_model(&self) -> bool {
        false
    }

    /// Does the work, until it is done or [`RunContext::cancellation`] is cancelled.
    ///
    /// A future that does not end within five seconds after the cancellation is dropped.
    fn run(
        &self,
        context: RunContext,
    ) -> impl Future<Output = Result<AdapterOutput, AdapterError>> + Send;
}

impl<A: Adapter> Adapter for Arc<A> {
    fn check(&self, workspace: Option<&Path>) -> Result<(), Error> {
        A::check(self, workspace)
    }

    fn calls_model(&self) -> bool {
        A::calls_model(self)
    }

    fn run(
        &self,
        context: RunContext,
    ) -> impl Future<Output = Result<AdapterOutput, AdapterError>> + Send {
        A::run(self, context)
    }
}

/// An adapter as a trait object, for hosts that choose one at run time.
pub struct BoxAdapter(Box<dyn ErasedAdapter>);

type AdapterFuture<'a> =
    Pin<Box<dyn Future<Output = Result<AdapterOutput, AdapterError>> + Send + 'a>>;

/// [`Adapter`] in a form that can be a trait object.
trait ErasedAdapter: Send + Sync + 'static {
    fn check(&self, workspace: Option<&Path>) -> Result<(), Error>;
    fn calls_model(&self) -> bool;
    fn run(&self, context: RunContext) -> AdapterFuture<'_>;
}

impl<A: Adapter> ErasedAdapter for A {
    fn check(&self, workspace: Option<&Path>) -> Result<(), Error> {
        Adapter::check(self, workspace)
    }

    fn calls_model(&self) -> bool {
        Adapter::calls_model(self)
    }

    fn run(&self, context: RunContext) -> AdapterFuture<'_> {
        Box::pin(Adapter::run(self, context))
    }
}

impl BoxAdapter {
    /// Forgets the type of `adapter`.
    pub fn new(adapter: impl Adapter) -> Self {
        Self(Box::new(adapter))
    }
}

impl fmt::Debug for BoxAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoxAdapter")
    }
}

impl Adapter for BoxAdapter {
    fn check(&self, workspace: Option<&Path>) -> Result<(), Error> {
        self.0.check(workspace)
    }

    fn calls_model(&self) -> bool {
        self.0.calls_model()
    }

    fn run(
        &self,
        context: RunContext,
    ) -> impl Future<Output = Result<AdapterOutput, AdapterError>> + Send {
        self.0.run(context)
    }
}
