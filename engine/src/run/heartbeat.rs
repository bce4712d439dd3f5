//! Holding a run: taking and renewing its lease, and noticing cancellations and the loss of the
//! lease.

use std::time::Duration;

use stillframe_backends::ErrorKind;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::error::Error;
use crate::records::lease::{Lease, Moment};
use crate::state::change::Change;
use crate::state::hold::Hold;

/// How often a run looks whether somebody asks it to stop through the log, at least.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A lease of this engine from now on.
pub(crate) fn new_lease(parts: &Parts, epoch: u64) -> Result<Lease, Error> {
    Ok(Lease {
        owner: parts.engine_id.clone(),
        epoch,
        expires: Moment::now()?.after(parts.settings.lease_expiry),
        heartbeat_at: parts.now(),
        cancel_requested_at: None,
    })
}

/// Holds the lease of a run while the run is under way, and notices cancellations that are
/// requested through the log. Cancels `lost` once the run is another engine's.
pub(crate) async fn tend(
    core: Core,
    hold: Hold,
    cancellation: CancellationToken,
    lost: CancellationToken,
) {
    let heartbeat = core.parts.settings.heartbeat;
    let mut renewed = Instant::now();
    loop {
        tokio::time::sleep(heartbeat.min(LOOK_EVERY)).await;
        let run_id = hold.run_id.clone();
        let found = core
            .parts
            .reader
            .read(move |store| store.lease(&run_id))
            .await;
        match found {
            Ok(Some(lease)) if lease.epoch == hold.epoch => {
                if lease.cancel_requested_at.is_some() {
                    cancellation.cancel();
                }
            }
            Ok(_) => return lost.cancel(),
            // The next look may succeed, and the renewal notices an engine that took the run over
            // meanwhile.
            Err(_) => {}
        }
        if renewed.elapsed() < heartbeat {
            continue;
        }
        let Ok(now) = Moment::now() else { continue };
        let renew = Change::RenewLease {
            run_id: hold.run_id.clone(),
            epoch: hold.epoch,
            expires: now.after(core.parts.settings.lease_expiry),
            at: core.parts.now(),
        };
        match core.parts.writer.commit(vec![renew]).await {
            Ok(_) => renewed = Instant::now(),
            Err(e) if e.kind() == ErrorKind::Conflict => return lost.cancel(),
            Err(_) => {}
        }
    }
}
