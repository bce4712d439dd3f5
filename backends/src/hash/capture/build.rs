//! The manifest of a capture: what it is called, and its bytes where they are needed.

use std::ops::Deref;

use crate::codec::TooLong;
use crate::hash::manifest::Listing;
use crate::parallel;
use crate::snapshot_error::SnapshotError;
use crate::worktree::memory::Closing;
use crate::worktree::stat_cache::EntryStat;

/// From so many files on the cache is written while the manifest is: for fewer a thread is not
/// worth its while.
pub(in crate::hash) const MIN_FILES_TO_WRITE_ASIDE: u64 = 5_000;

/// What a manifest is called, and what is known of its file.
pub(super) struct Built {
    pub(super) reference: String,
    pub(super) proof: Option<EntryStat>,
    /// The bytes of it, where they were made on the way.
    pub(super) encoded: Option<Result<Vec<u8>, TooLong>>,
}

/// Names the manifest. What is new has most likely a manifest that is new, so its bytes are made
/// beside its digest if it is going to be written.
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
