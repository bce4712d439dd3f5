//! Finding renames of files that were edited too: added and deleted files are read and compared on
//! every core. `diff/renames.rs` decides which pairs are renames.

use std::collections::HashMap;

use crate::diff::fingerprint::Fingerprint;
use crate::diff::renames::{self, Candidate, MIN_SIMILARITY_BY_NAME, Pair, Unpaired};
use crate::diff::{Diff, DiffOptions, Renames};
use crate::diff_error::DiffError;
use crate::git::line_diffs::{self, blob_id};
use crate::git::store::{Reader, Store};
use crate::operation::Operation;
use crate::parallel;
use crate::purge::Purged;
use crate::tree::{Change, Entry};

/// A file larger than this counts only as the same or as another one; edited renames of it are
/// rare.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// The most that is read to compare each with each. What people move and edit at once is far less,
/// and what is kept of it in memory is in proportion.
const MAX_READ_BYTES: u64 = 64 << 20;

/// Small files are the rule: a thread earns its keep with few.
const FILES_PER_THREAD: usize = 8;

/// Finds the renames among `changes`, which are sorted by path, compares each as one file, and puts
/// them into `diff`.
pub(super) fn find(
    op: &Operation,
    store: &Store,
    changes: &[Change],
    options: &DiffOptions,
    diff: &mut Diff,
) -> Result<(), DiffError> {
    let set = store.reader_set()?;
    let files = Files {
        op,
        reader: store.reader(&set),
        purged: store.purged()?,
        changes,
    };
    let mut pairs = renames::exact(changes);
    let mut unpaired = Unpaired::new(changes, &pairs, |entry| files.size(store, entry))?;
    pairs.extend(files.similar_by_name(&unpaired)?);
    unpaired.retain_unpaired(&pairs);
    match unpaired.comparable().filter(|files| are_little(files)) {
        Some(files_left) => pairs.extend(files.similar(&unpaired, &files_left)?),
        None => diff.renames_incomplete = true,
    }
    pairs.sort_unstable_by_key(|pair| pair.to);
    diff.set_renamed(changes, &pairs, Renames::Similar);
    let as_one: Vec<Change> = pairs.iter().map(|pair| pair.as_one(changes)).collect();
    line_diffs::compare_renamed(op, store, &as_one, options, &mut diff.renamed)
}

/// Whether so much is read.
fn are_little(files: &[Candidate]) -> bool {
    let bytes: u64 = files.iter().filter_map(|file| file.size).sum();
    bytes <= MAX_READ_BYTES
}

/// What the threads share.
struct Files<'a> {
    op: &'a Operation,
    reader: Reader<'a>,
    purged: Purged,
    changes: &'a [Change],
}

impl Files<'_> {
    /// The size of a content that may be compared.
    fn size(&self, store: &Store, entry: Entry) -> Result<Option<u64>, DiffError> {
        self.op.check()?;
        if self.purged.contains(&entry.id) {
            return Ok(None);
        }
        let size = store.blob_size(&blob_id(entry))?;
        Ok((size <= MAX_FILE_BYTES).then_some(size))
    }

    /// The fingerprint of what came or went at this place.
    fn fingerprint(&self, at: usize) -> Result<Fingerprint, DiffError> {
        self.op.check()?;
        let change = &self.changes[at];
        let entry = change.old.or(change.new).expect("a change has a side");
        let bytes = self.reader.blob(self.op, &blob_id(entry), MAX_FILE_BYTES)?;
        Ok(Fingerprint::of(&bytes.expect("its size was looked at")))
    }

    /// Those with a name that no other file has.
    fn similar_by_name(&self, unpaired: &Unpaired<'_>) -> Result<Vec<Pair>, DiffError> {
        let named = unpaired.of_one_name();
        let compared = parallel::map(&named, FILES_PER_THREAD, |&[from, to]| {
            let (old, new) = (self.fingerprint(from)?, self.fingerprint(to)?);
            Ok(Pair::new(from, to, old.similarity_to(&new)))
        });
        let pairs: Result<Vec<Pair>, DiffError> = compared.into_iter().collect();
        let is_similar = |pair: &Pair| pair.similarity >= MIN_SIMILARITY_BY_NAME;
        Ok(pairs?.into_iter().filter(is_similar).collect())
    }

    /// Those that are left, each compared with each. `files`: what has to be read for that.
    fn similar(
        &self,
        unpaired: &Unpaired<'_>,
        files: &[Candidate],
    ) -> Result<Vec<Pair>, DiffError> {
        let prints = parallel::map(files, FILES_PER_THREAD, |file| {
            Ok((file.at, self.fingerprint(file.at)?))
        });
        let prints: Result<HashMap<usize, Fingerprint>, DiffError> = prints.into_iter().collect();
        let prints = prints?;
        let similarity = |from: usize, to: usize| prints[&from].similarity_to(&prints[&to]);
        let best = parallel::map(unpaired.destinations(), FILES_PER_THREAD, |to| {
            self.op.check()?;
            Ok(unpaired.best_for(*to, similarity))
        });
        let best: Result<Vec<Vec<Pair>>, DiffError> = best.into_iter().collect();
        Ok(unpaired.chosen(best?.concat()))
    }
}
