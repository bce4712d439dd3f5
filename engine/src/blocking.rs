//! The one seam between async code and code that blocks.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use stillframe_backends::ErrorKind;
use tokio::sync::Semaphore;

use crate::error::Error;

/// Threads that may block, and how many of them at once. Clones share the number.
#[derive(Clone, Debug)]
pub(crate) struct Blocking {
    permits: Arc<Semaphore>,
}

/// A step that did not come to its end: it panicked, or the runtime is going down.
#[derive(Debug, thiserror::Error)]
#[error("an internal step failed: {message}")]
pub(crate) struct StepLost {
    message: String,
}

impl StepLost {
    /// The step panicked with this payload.
    pub(crate) fn panicked(payload: &(dyn Any + Send)) -> Self {
        let message = format!("panicked: {}", panic_text(payload));
        Self { message }
    }
}

impl From<StepLost> for Error {
    fn from(source: StepLost) -> Self {
        Self::new(ErrorKind::Storage, source)
    }
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

impl Blocking {
    /// At most `threads` steps at once; more wait for their turn.
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(threads)),
        }
    }

    /// Runs `work` on a thread that may block. Nothing else in the engine calls `spawn_blocking`.
    ///
    /// The work runs to its end even if the caller is dropped or its actor killed, so it has to
    /// own what it locked. A panic comes back as a failed step.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StepLost> {
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        #[expect(clippy::disallowed_methods, reason = "this is the seam")]
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            catch_unwind(AssertUnwindSafe(work)).map_err(|payload| StepLost::panicked(&*payload))
        });
        match task.await {
            Ok(result) => result,
            Err(_) => Err(StepLost {
                message: "the runtime is shutting down".to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_a_failed_step_that_says_what_it_said() {
        let blocking = Blocking::new(1);
        let lost = blocking.run(|| panic!("the disk is made of cheese")).await;
        let lost = lost.map(|()| "it came back").unwrap_err();
        assert!(lost.to_string().contains("made of cheese"), "{lost}");
        assert_eq!(blocking.run(|| 7).await.unwrap(), 7, "the permit is back");
    }

    #[tokio::test]
    async fn the_work_goes_on_though_the_caller_is_dropped() {
        let blocking = Blocking::new(1);
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (done, mut is_done) = tokio::sync::mpsc::unbounded_channel();
        let caller = blocking.clone();
        let task = tokio::spawn(async move {
            caller
                .run(move || {
                    wait.recv().expect("the sender is alive");
                    done.send("to its end").expect("the receiver is alive");
                })
                .await
        });
        tokio::task::yield_now().await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        go.send(()).expect("the work waits");
        assert_eq!(is_done.recv().await, Some("to its end"));
    }
}
