//! Cancelling blocking work: by the host, by a deadline, or when the engine stops.

use stillframe_backends::{Interrupt, Operation};
use tokio_util::sync::CancellationToken;

use crate::actors::core::Core;
use crate::error::Error;
use crate::options::WorkspaceOptions;

/// Cancels one operation: when its host does, when its time is up, and when the engine ends.
///
/// After it is dropped no cancellation is forwarded; dropping it does not stop work under way.
#[derive(Debug)]
pub(crate) struct Cancellation {
    interrupt: Interrupt,
    told: CancellationToken,
    forwarder: tokio::task::JoinHandle<()>,
}

impl Cancellation {
    /// That of an operation with these options. Its time begins here.
    pub(crate) fn of(core: &Core, options: &WorkspaceOptions) -> Self {
        let interrupt = match options.timeout {
            Some(limit) => Interrupt::after(limit),
            None => Interrupt::never(),
        };
        Self::by(core, &options.cancellation, interrupt)
    }

    /// By this token of a host, and when the time of `interrupt` is up.
    pub(crate) fn by(core: &Core, host: &CancellationToken, interrupt: Interrupt) -> Self {
        let told = CancellationToken::new();
        // Blocking work may end before a task notices a cancellation that came before the work.
        if host.is_cancelled() {
            interrupt.cancel();
            told.cancel();
        }
        let forwarder = {
            let (host, engine) = (host.clone(), core.stopping.clone());
            let (interrupt, told) = (interrupt.clone(), told.clone());
            async move {
                tokio::select! {
                    () = host.cancelled() => {}
                    () = engine.cancelled() => {}
                }
                interrupt.cancel();
                told.cancel();
            }
        };
        Self {
            interrupt,
            told,
            forwarder: tokio::spawn(forwarder),
        }
    }

    /// For work that blocks.
    pub(crate) fn operation(&self) -> Operation {
        Operation::unbounded().cancelled_by(&self.interrupt)
    }

    /// Ends once somebody cancels the operation. That its time is up is not told here: to wait for
    /// a turn has a deadline of its own.
    pub(crate) async fn told(&self) {
        self.told.cancelled().await;
    }

    /// Waits for what has not begun to touch anything, unless somebody wants the operation to stop.
    pub(crate) async fn wait_for<T>(
        &self,
        waiting: impl Future<Output = Result<T, Error>>,
        doing: &str,
    ) -> Result<T, Error> {
        tokio::select! {
            biased;
            came = waiting => came,
            () = self.told() => Err(refusal(&self.operation(), doing)
                .expect("who was told has cancelled it")),
        }
    }
}

impl Drop for Cancellation {
    fn drop(&mut self) {
        self.forwarder.abort();
    }
}

/// Why an operation is to stop, if it is, beside what it was doing.
pub(crate) fn refusal(op: &Operation, doing: &str) -> Option<Error> {
    let interrupted = op.check().err()?;
    let message = format!("{interrupted}, while {doing}; nothing was touched");
    Some(Error::new(interrupted.kind(), message))
}
