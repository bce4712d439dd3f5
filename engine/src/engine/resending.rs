//! Sending again what was not sent for a reason that may pass.

use std::sync::Weak;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::actors::core::{Core, Shared};
use crate::saving::resend;

/// How soon it is noticed that the engine is to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Sends again what is due, for as long as the engine is there and takes work. A command that is
/// over soon does not begin with it.
pub(super) async fn send_those_due(engine: Weak<Shared>) {
    loop {
        let Some(parts) = engine.upgrade().map(|shared| shared.parts.clone()) else {
            return;
        };
        tokio::select! {
            () = tokio::time::sleep(parts.settings.question_sweep) => {}
            () = parts.stopped.cancelled() => return,
        }
        let Some(core) = engine.upgrade().map(Core::from) else {
            return;
        };
        if core.is_closing() {
            return;
        }
        let stop = CancellationToken::new();
        let (own, told) = (core.clone(), stop.clone());
        let sending = core.operation(async move { resend::send_due(&own, &told).await });
        let mut sending = Box::pin(sending);
        let sent = loop {
            tokio::select! {
                sent = &mut sending => break sent,
                // Whoever comes next sends it.
                () = tokio::time::sleep(LOOK) => if core.is_closing() { stop.cancel() },
            }
        };
        if let Err(e) = sent {
            tracing::warn!(error = %e.chain(), "work is not sent again");
        }
    }
}
