//! The only bridge from async code to blocking code.

pub(crate) mod lanes;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;

use stillframe_backends::ErrorKind;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinHandle;
use tracing::Span;

use crate::blocking::lanes::{Demand, Lanes};
use crate::error::Error;
use crate::records::queue::Priority;

/// Threads that may block, and how many of them at once. Clones share the numbers.
///
/// Work that may take long has threads of its own, so that a brief step never waits for it.
#[derive(Clone, Debug)]
pub(crate) struct Blocking {
    brief: Arc<Semaphore>,
    long: Arc<Lanes>,
    puts: Arc<Semaphore>,
    aside: Arc<Semaphore>,
}

/// How many pieces of work of a host may be aside at once. What blocks for ever has its thread for
/// ever, and a process has few thousands of them.
const MAX_ASIDE: usize = 32;

/// Leave to do a piece of work aside: see [`Blocking::aside`].
pub(crate) struct Aside {
    _permit: OwnedSemaphorePermit,
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

/// Does `work`; a panic of it comes back as what it was thrown with.
pub(crate) async fn caught<T>(work: impl Future<Output = T>) -> Result<T, Box<dyn Any + Send>> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        match polled {
            Ok(polled) => polled.map(Ok),
            Err(payload) => Poll::Ready(Err(payload)),
        }
    })
    .await
}

impl Blocking {
    /// At most so many brief steps at once, as many pieces of long work, and as many puts of
    /// artifacts; more wait for their turn.
    pub(crate) fn new(threads: usize) -> Self {
        let turns = || Arc::new(Semaphore::new(threads.min(Semaphore::MAX_PERMITS)));
        Self {
            brief: turns(),
            long: Lanes::new(threads),
            puts: turns(),
            aside: Arc::new(Semaphore::new(MAX_ASIDE)),
        }
    }

    /// Starts long `work`, which never panics, on a thread that may block, and waits for nothing:
    /// where no thread is free it is started once it is its turn. `is_large`, which is brief, says
    /// how long it may take, and is asked only then.
    pub(crate) fn start(
        &self,
        priority: Priority,
        is_large: impl FnOnce() -> bool + Send + 'static,
        work: impl FnOnce() + Send + 'static,
    ) {
        let unknown = Demand {
            priority,
            ..Demand::UNKNOWN
        };
        let work = of_any_type(work);
        if let Some(slot) = self.long.try_take(unknown) {
            return drop(on_a_thread(slot, work));
        }
        let (blocking, is_large) = (self.clone(), of_any_type(is_large));
        tokio::spawn(async move {
            let is_large = blocking.briefly(is_large).await;
            let is_large = is_large.and_then(own_type).unwrap_or(true);
            let slot = blocking.long.take(Demand { priority, is_large }).await;
            drop(on_a_thread(slot, work));
        });
    }

    /// Waits for `asked` on a thread that may block.
    pub(crate) fn wait_for<T>(asked: impl Future<Output = T>) -> T {
        tokio::runtime::Handle::current().block_on(asked)
    }

    /// Starts `work`, which never panics, on a thread of its own, which takes no turn: somebody who
    /// has one may be waiting for it.
    pub(crate) fn start_beside(&self, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let span = Span::current();
        let work = move || span.in_scope(work);
        std::thread::Builder::new().spawn(work).map(drop)
    }

    /// Waits until fewer than [`MAX_ASIDE`] pieces of work are aside.
    pub(crate) async fn may_go_aside(&self) -> Aside {
        let permit = Arc::clone(&self.aside).acquire_owned().await;
        Aside {
            _permit: permit.expect("the semaphore is never closed"),
        }
    }

    /// Does `work` on a thread of its own, so that nothing waits for it that must not: it may
    /// block, though it should not. Once this is dropped, `work` is dropped where it next waits. A
    /// panic comes back as what it was thrown with; `None`: the runtime is going down. `leave` is
    /// given back once the thread is at its end, however long nobody waits for it.
    pub(crate) async fn aside<T: Send + 'static>(
        &self,
        leave: Aside,
        work: impl Future<Output = T> + Send + 'static,
    ) -> std::io::Result<Option<Result<T, Box<dyn Any + Send>>>> {
        let (mut tell, told) = oneshot::channel();
        let runtime = tokio::runtime::Handle::current();
        self.start_beside(move || {
            let done = runtime.block_on(async {
                tokio::select! {
                    biased;
                    done = caught(work) => Some(done),
                    () = tell.closed() => None,
                }
            });
            drop(leave);
            if let Some(done) = done {
                // Nobody waits any more where this fails.
                let _ = tell.send(done);
            }
        })?;
        Ok(told.await.ok())
    }

    /// Runs a brief step on a thread that may block.
    ///
    /// The work runs to its end even if the caller is dropped or its actor killed, so it has to
    /// own what it locked. A panic comes back as a failed step.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StepLost> {
        own_type(self.briefly(of_any_type(work)).await?)
    }

    /// As [`Blocking::run`], for work that may take long.
    pub(crate) async fn run_long<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StepLost> {
        own_type(self.at_length(of_any_type(work)).await?)
    }

    /// As [`Blocking::run_long`], for a put of an artifact. Puts have turns of their own: who puts
    /// one keeps clean-ups out, and long work may be a clean-up that waits for that.
    pub(crate) async fn run_put<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StepLost> {
        let permit = turn(&self.puts).await;
        own_type(done_on_a_thread(permit, of_any_type(work)).await?)
    }

    /// As [`Blocking::run_long`], without a turn: for work that mostly waits for others, who may
    /// need the turn. The caller sees to it that there is little of it at once.
    pub(crate) async fn run_beside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StepLost> {
        own_type(done_on_a_thread((), of_any_type(work)).await?)
    }

    async fn briefly(&self, work: Work) -> Result<Done, StepLost> {
        done_on_a_thread(turn(&self.brief).await, work).await
    }

    async fn at_length(&self, work: Work) -> Result<Done, StepLost> {
        let slot = self.long.take(Demand::UNKNOWN).await;
        done_on_a_thread(slot, work).await
    }
}

/// A piece of work without its type. There are hundreds, and what a runtime needs for each type of
/// task would be in the program for every one of them.
type Work = Box<dyn FnOnce() -> Done + Send>;

/// What a piece of work came to.
type Done = Box<dyn Any + Send>;

fn of_any_type<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Work {
    Box::new(|| Box::new(work()))
}

fn own_type<T: 'static>(done: Done) -> Result<T, StepLost> {
    let own = done.downcast().map(|done| *done);
    own.map_err(|_| unreachable!("work comes to what it returns"))
}

async fn turn(turns: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    let permit = Arc::clone(turns).acquire_owned().await;
    permit.expect("the semaphore is never closed")
}

/// Does `work` on a thread that may block; a panic comes back as a failed step.
async fn done_on_a_thread(permit: impl Send + 'static, work: Work) -> Result<Done, StepLost> {
    let done = on_a_thread(permit, work).await;
    done.unwrap_or_else(|_| {
        let message = "the runtime is shutting down".to_owned();
        Err(StepLost { message })
    })
}

/// Does `work` on a thread that may block, as a part of the caller's span. Nothing else in the
/// engine calls `spawn_blocking`.
#[expect(clippy::disallowed_methods, reason = "this is the seam")]
fn on_a_thread(permit: impl Send + 'static, work: Work) -> JoinHandle<Result<Done, StepLost>> {
    let span = Span::current();
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let done = span.in_scope(|| catch_unwind(AssertUnwindSafe(work)));
        done.map_err(|payload| StepLost::panicked(&*payload))
    })
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
    async fn a_panic_after_a_wait_is_caught_with_what_it_said() {
        let work = async {
            tokio::task::yield_now().await;
            panic!("the disk is made of cheese");
        };
        let payload = caught(work).await.map(|(): ()| "it came back").unwrap_err();
        assert!(panic_text(&*payload).contains("made of cheese"));
        assert_eq!(caught(async { 7 }).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn work_that_is_started_waits_for_a_thread_and_its_caller_does_not() {
        let blocking = Blocking::new(1);
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (done, mut is_done) = tokio::sync::mpsc::unbounded_channel();
        let also_done = done.clone();
        let is_large = || true;
        blocking.start(Priority::Interactive, is_large, move || {
            wait.recv().expect("the sender is alive");
            done.send("first").expect("the receiver is alive");
        });
        blocking.start(Priority::Interactive, is_large, move || {
            also_done.send("second").expect("the receiver is alive");
        });
        go.send(()).expect("the work waits");
        assert_eq!(is_done.recv().await, Some("first"));
        assert_eq!(is_done.recv().await, Some("second"));
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
