//! What is known of the record that was published last, so that who asks how many there are need
//! not list them.
//!
//! A note beside the records has it. It may be missing, and it counts only as long as the directory
//! of records is as it was then, by its ctime, which nobody sets back; and until the machine is
//! started again, since a power cut may take records and leave the note. It is removed before a
//! record is published, so that what dies in between leaves none.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use super::store::HashStore;
use crate::caches::LAST_RECORD;
use crate::error::PathError;
use crate::operation::Operation;
use crate::{durable, note};

/// An id of a start, a digest and three numbers.
const MAX_BYTES: u64 = 1000;

/// The snapshot that was published last, and how many there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Newest {
    /// Its manifest.
    pub(super) reference: String,
    pub(super) count: u64,
}

impl HashStore {
    /// What was published last, if that is known without a look at all of them.
    pub(super) fn last(&self) -> Option<Newest> {
        let text = note::read(&self.note_path(), MAX_BYTES)?;
        let mut lines = text.lines();
        let (of, reference, count) = (lines.next()?, lines.next()?, lines.next()?);
        (of == self.state_of_records()?).then_some(())?;
        Some(Newest {
            reference: reference.to_owned(),
            count: count.parse().ok()?,
        })
    }

    /// Notes that a record was published, where `before` is what was known before it. Best effort.
    pub(super) fn note_last(&self, op: &Operation, reference: &str, before: Option<&Newest>) {
        let count = match before {
            Some(before) => Ok(before.count + 1),
            None => self.ids().map(|ids| ids.len() as u64),
        };
        if let (Ok(count), Some(state)) = (count, self.state_of_records()) {
            let text = format!("{state}\n{reference}\n{count}\n");
            let _ = note::write(op, &self.note_path(), &text);
        }
    }

    /// Has whoever asks next look at all of them.
    pub(super) fn forget_last(&self, op: &Operation) -> Result<(), PathError> {
        durable::remove_file(op, &self.note_path())
    }

    fn note_path(&self) -> PathBuf {
        self.directory().join(LAST_RECORD)
    }

    /// What is another once a record came or went, or the machine was started again.
    fn state_of_records(&self) -> Option<String> {
        let found = fs::symlink_metadata(self.records_directory()).ok()?;
        let (seconds, nanoseconds) = (found.ctime(), found.ctime_nsec());
        Some(format!("{} {seconds} {nanoseconds}", note::boot()?))
    }
}
