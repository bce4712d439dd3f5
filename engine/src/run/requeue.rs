//! Putting a submitted run back into the queue whose work has not begun.

use crate::actors::core::Core;
use crate::error::Error;
use crate::id::RunId;
use crate::records::lease::{Lease, Moment};
use crate::state::change::{Change, Withdrawal};

/// Puts back a run that was claimed under `epoch`, so that any engine may begin it; one whose
/// session has ended meanwhile is cancelled.
///
/// # Errors
///
/// `Conflict`: it was taken over, its work has begun, or somebody has asked for its end.
pub(crate) async fn put_back(core: &Core, run_id: &RunId, epoch: u64) -> Result<(), Error> {
    let parts = &core.parts;
    let at = parts.now();
    let free = Lease::of_nobody(parts.engine_id.clone(), epoch + 1, Moment::now()?, at);
    let back = Change::Requeue {
        run_id: run_id.clone(),
        epoch,
        free: Box::new(free),
        withdrawal: Box::new(Withdrawal::at(at)),
    };
    parts.writer.commit(vec![back]).await?;
    parts.queue_bell.notify_one();
    Ok(())
}
