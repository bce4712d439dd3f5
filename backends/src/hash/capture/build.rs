//! The manifest of a capture: what it is called, and its bytes where they are needed.

use std::ops::Deref;

use crate::codec::TooLong;
use crate::hash::manifest::Listing;
use crate::parallel;
use crate::snapshot_error::SnapshotError;
use crate::worktree::memory::Closing;
use crate::worktree::stat_cache::EntryStat;

/// From this number of files on, a second thread is started: it encodes the manifest while it is
/// hashed, and writes the cache while the manifest is written. For fewer files it costs more than
/// it saves.
pub(in crate::hash) const MIN_FILES_TO_WRITE_ASIDE: u64 = 5_000;

/// The name of a manifest, and what is known of its file.
pub(super) struct Built {
    pub(super) reference: String,
    pub(super) proof: Option<EntryStat>,
    /// Its bytes, if they were encoded together with its digest.
    pub(super) encoded: Option<Result<Vec<u8>, TooLong>>,
}

/// Computes the name of the manifest. If it is going to be written, it is encoded at the same time:
/// a changed workspace nearly always has a manifest that the store lacks.
pub(super) fn build<'a>(
    closing: &Closing,
    listing: &impl Deref<Target = Listing<'a>>,
    is_written: bool,
) -> Result<Built, SnapshotError> {
    if let Some(known) = closing.inventory() {
        return Ok(Built {
            reference: known.reference.clone(),
            proof: known.proof,
            encoded: None,
        });
    }
    let listing: &Listing<'a> = listing;
    let (encoded, digest) = match is_written && is_large(closing) {
        true => {
            let (encoded, digest) = parallel::both(|| listing.encode(), || listing.digest());
            (Some(encoded), digest?)
        }
        false => (None, listing.digest()?),
    };
    Ok(Built {
        reference: digest.to_hex().to_string(),
        proof: None,
        encoded,
    })
}

pub(super) fn is_large(closing: &Closing) -> bool {
    closing.tally().files() >= MIN_FILES_TO_WRITE_ASIDE
}
