//! Saving the work of a task while a command does it.

use std::convert::Infallible;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use stillframe::tasks::Checkpointed;
use stillframe::{Adapter, AdapterError, AdapterOutput, Error, RunContext};

use crate::output::{Console, printable};
use crate::progress::ProgressLine;

/// Work that is saved from time to time while it is done.
pub(super) struct Saved<A> {
    pub(super) adapter: A,
    /// `None`: only once it has ended.
    pub(super) every: Option<Duration>,
    pub(super) console: Console,
    pub(super) progress: Option<ProgressLine>,
}

impl<A: Adapter> Adapter for Saved<A> {
    fn check(&self, workspace: Option<&Path>) -> Result<(), Error> {
        self.adapter.check(workspace)
    }

    fn calls_model(&self) -> bool {
        self.adapter.calls_model()
    }

    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        let Some(every) = self.every else {
            return self.adapter.run(context).await;
        };
        let _hidden = self.progress.as_ref().map(ProgressLine::hide);
        let saving = self.save(every, context.clone());
        tokio::select! {
            biased;
            done = self.adapter.run(context) => done,
            never = saving => match never {},
        }
    }
}

impl<A: Adapter> Saved<A> {
    fn save(
        &self,
        every: Duration,
        context: RunContext,
    ) -> impl Future<Output = Infallible> + Send {
        let console = self.console;
        async move {
            let mut told = None;
            loop {
                tokio::time::sleep(every).await;
                let answer = context.checkpoint().await;
                if context.cancellation.is_cancelled() {
                    // The end of the run says where the work is.
                    std::future::pending::<()>().await;
                }
                let why = why_not(answer);
                // What stays as it is was said.
                if let Some((kind, line)) = &why
                    && told.as_ref() != Some(kind)
                {
                    console.warn(&format!(
                        "the work so far is not saved: {}",
                        printable(line)
                    ));
                }
                told = why.map(|(kind, _)| kind);
            }
        }
    }
}

/// The kind of what keeps the work from the branch, and the reason in one line.
fn why_not(answer: Result<Checkpointed, Error>) -> Option<(String, String)> {
    match answer {
        Ok(Checkpointed::Made(saved)) => saved.failure.zip(saved.error),
        Ok(Checkpointed::NotMade(why)) => Some((why.kind.unwrap_or_default(), why.message)),
        // Of several repositories.
        Ok(Checkpointed::Each(each)) => each.into_iter().find_map(|(_, one)| why_not(Ok(one))),
        Ok(_) => None,
        Err(e) => Some((e.kind().to_string(), e.to_string())),
    }
}
