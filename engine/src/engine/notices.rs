//! What people outside are told of the work of tasks.

use std::sync::Weak;

use super::Engine;
use crate::actors::core::{Core, Shared};
use crate::error::Error;
use crate::records::notice::NoticeRecord;
use crate::saving::outbox::{self, Which};
use crate::saving::recorded;

impl Engine {
    /// What people are told, or were, of the work of tasks, in the order in which it was written.
    /// It is kept whether or not somebody tells them.
    pub async fn notices(&self) -> Result<Vec<NoticeRecord>, Error> {
        self.read(|store| {
            let found = outbox::with_tasks(store, false)?.into_iter();
            Ok(found
                .map(|(row, task)| recorded::notice(&row, &task))
                .collect())
        })
        .await
    }

    /// Sends all notices that are to be sent, also those whose next try is later, and once more
    /// those that were given up after their last try. Answers what became of each that was tried.
    /// One that another engine is sending is left to that, and one that its target never takes
    /// stays given up.
    ///
    /// # Errors
    ///
    /// `InvalidOptions`: this engine has [no sink](crate::EngineOptions::notices). That a notice
    /// was not sent is no error: [`NoticeRecord::error`] says why.
    pub async fn send_notices(&self) -> Result<Vec<NoticeRecord>, Error> {
        let Some(sink) = self.core.parts.settings.notice_sink.clone() else {
            return Err(Error::invalid_options(
                "this engine has no sink for notices; nothing was sent",
            ));
        };
        let core = self.core.clone();
        self.core
            .operation(async move { outbox::send(&core, &sink, Which::All).await })
            .await
    }
}

/// Sends the notices that are due, for as long as the engine is there and takes work, and once more
/// after that.
pub(super) async fn send_those_due(engine: Weak<Shared>) {
    loop {
        let Some(core) = engine.upgrade().map(Core::from) else {
            return;
        };
        let is_last = core.is_closing();
        let parts = core.parts.clone();
        if let Some(sink) = &parts.settings.notice_sink
            && let Err(e) = outbox::send(&core, sink, Which::Due).await
        {
            tracing::warn!(error = %e.chain(), "notices are not sent");
        }
        drop(core);
        if is_last {
            return;
        }
        tokio::select! {
            () = parts.notice_bell.notified() => {}
            () = tokio::time::sleep(parts.settings.question_sweep) => {}
            () = parts.stopped.cancelled() => return,
        }
    }
}
