//! A disk in memory, the log of what was written to it, and what of that a power cut can leave.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::torture::random::Random;

/// What a file system writes at a time, and what a disk may lose without its neighbours: bytes.
pub(crate) const BLOCK: usize = 4096;

/// What a disk writes whole or not at all: bytes.
pub(crate) const SECTOR: usize = 512;

/// The content of a disk. A copy of it costs a pointer for each block.
#[derive(Clone)]
pub(crate) struct Image {
    /// `None` is a block of zeros.
    blocks: Vec<Option<Arc<[u8; BLOCK]>>>,
}

/// What happened to a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// These bytes were written from this one on. They may be in the disk's own memory.
    Write {
        /// The first byte.
        offset: usize,
        /// What was written.
        bytes: Vec<u8>,
    },
    /// Everything before is on the disk itself.
    Flush,
}

/// A disk that remembers what happened to it.
pub(crate) struct Disk {
    image: Image,
    log: Vec<Entry>,
}

/// What a power cut leaves of what was written since the last flush.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cut {
    /// How many entries of the log came before it.
    pub(crate) at: usize,
    /// How many of them are on the disk for certain.
    pub(crate) flushed: usize,
    /// The blocks that are too, by number and in the order in which they were written, each with
    /// the sectors of it that are: bit n is sector n.
    survivors: Vec<(usize, u8)>,
    /// How many blocks there were.
    of: usize,
}

/// Every sector of a block.
const WHOLE: u8 = u8::MAX;

impl Image {
    /// A disk of this many bytes, all of them zero.
    pub(crate) fn zeros(size: usize) -> Self {
        Self {
            blocks: vec![None; size.div_ceil(BLOCK)],
        }
    }

    /// A disk with this content.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let block = |chunk: &[u8]| {
            let is_zero = chunk.iter().all(|byte| *byte == 0);
            (!is_zero).then(|| {
                let mut block = [0; BLOCK];
                block[..chunk.len()].copy_from_slice(chunk);
                Arc::new(block)
            })
        };
        Self {
            blocks: bytes.chunks(BLOCK).map(block).collect(),
        }
    }

    /// Its size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.blocks.len() * BLOCK
    }

    /// Up to `size` bytes from `offset` on; fewer at the end.
    pub(crate) fn read(&self, offset: usize, size: usize) -> Vec<u8> {
        let end = offset.saturating_add(size).min(self.size());
        let mut bytes = Vec::with_capacity(end.saturating_sub(offset));
        let mut at = offset;
        while at < end {
            let (number, from) = (at / BLOCK, at % BLOCK);
            let to = BLOCK.min(from + end - at);
            match &self.blocks[number] {
                Some(block) => bytes.extend_from_slice(&block[from..to]),
                None => bytes.resize(bytes.len() + to - from, 0),
            }
            at += to - from;
        }
        bytes
    }

    /// Writes as much of `bytes` as there is room for.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        for (number, from, part) in parts(offset, bytes) {
            let Some(block) = self.blocks.get_mut(number) else {
                return;
            };
            let block = block.get_or_insert_with(|| Arc::new([0; BLOCK]));
            Arc::make_mut(block)[from..from + part.len()].copy_from_slice(part);
        }
    }
}

/// The parts of a write, one for each block that it touches: the block's number, the first byte of
/// it, and what is written there.
fn parts(offset: usize, bytes: &[u8]) -> impl Iterator<Item = (usize, usize, &[u8])> {
    let mut at = offset;
    let mut left = bytes;
    std::iter::from_fn(move || {
        if left.is_empty() {
            return None;
        }
        let (number, from) = (at / BLOCK, at % BLOCK);
        let (part, rest) = left.split_at(left.len().min(BLOCK - from));
        at += part.len();
        left = rest;
        Some((number, from, part))
    })
}

impl Disk {
    /// A disk with this content, to which nothing has happened.
    pub(crate) fn new(image: Image) -> Self {
        Self {
            image,
            log: Vec::new(),
        }
    }

    /// What is on it, flushed or not.
    pub(crate) fn image(&self) -> &Image {
        &self.image
    }

    /// How much has happened to it.
    pub(crate) fn happened(&self) -> usize {
        self.log.len()
    }

    /// What has happened to it.
    pub(crate) fn into_log(self) -> Vec<Entry> {
        self.log
    }

    /// Writes, and notes it.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.image.write(offset, bytes);
        let bytes = bytes.to_vec();
        self.log.push(Entry::Write { offset, bytes });
    }

    /// Notes that everything before is to be on the disk.
    pub(crate) fn flush(&mut self) {
        self.log.push(Entry::Flush);
    }
}

impl Cut {
    /// What a power cut after `at` entries of the log may leave.
    ///
    /// What was written before the last flush is there. Of what came after it any part may be, in
    /// any order: a block that was written twice may have its first content. One time in two the
    /// block that was written last of those that are left is torn: some of its sectors have the old
    /// content.
    pub(crate) fn at(log: &[Entry], at: usize, random: &mut Random) -> Self {
        let flushed = log[..at].iter().rposition(|entry| *entry == Entry::Flush);
        let flushed = flushed.map_or(0, |flush| flush + 1);
        let of = blocks_written(&log[flushed..at]).count();
        // All, none, or so many of sixteen.
        let odds = *random.one_of(&[16, 16, 0, 4, 8, 12]);
        let mut survivors = Vec::new();
        for number in 0..of {
            if random.below(16) < odds {
                survivors.push((number, WHOLE));
            }
        }
        if random.once_in(2)
            && let Some((_, sectors)) = survivors.last_mut()
        {
            *sectors = match random.once_in(2) {
                // The head of it, as of a write that was interrupted.
                true => WHOLE >> (1 + random.below(7)),
                false => u8::try_from(1 + random.below(254)).expect("it is below 255"),
            };
        }
        Self {
            at,
            flushed,
            survivors,
            of,
        }
    }

    /// The disk after it, of one that had `base` before all of the log.
    pub(crate) fn image(&self, base: &Image, log: &[Entry]) -> Image {
        let mut image = base.clone();
        for entry in &log[..self.flushed] {
            if let Entry::Write { offset, bytes } = entry {
                image.write(*offset, bytes);
            }
        }
        let written: Vec<_> = blocks_written(&log[self.flushed..self.at]).collect();
        for (number, sectors) in &self.survivors {
            let (offset, bytes) = written[*number];
            for (at, sector) in sectors_of(offset, bytes) {
                if sectors & (1 << (at % BLOCK / SECTOR)) != 0 {
                    image.write(at, sector);
                }
            }
        }
        image
    }

    /// Whether the block that was written last of those that are left has sectors of the old
    /// content.
    pub(crate) fn is_torn(&self) -> bool {
        self.survivors
            .last()
            .is_some_and(|(_, sectors)| *sectors != WHOLE)
    }

    /// Whether it left something that was written later, and not something that was written before.
    pub(crate) fn is_reordered(&self) -> bool {
        let last = self.survivors.last().map_or(0, |(number, _)| number + 1);
        self.survivors.len() < last
    }
}

/// What the writes of a log wrote, a block or less at a time.
fn blocks_written(log: &[Entry]) -> impl Iterator<Item = (usize, &[u8])> {
    log.iter()
        .filter_map(|entry| match entry {
            Entry::Write { offset, bytes } => Some((*offset, bytes.as_slice())),
            Entry::Flush => None,
        })
        .flat_map(|(offset, bytes)| {
            parts(offset, bytes).map(|(number, from, part)| (number * BLOCK + from, part))
        })
}

/// The sectors of a part of a block, each with where it begins.
fn sectors_of(offset: usize, bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let sectors = bytes.chunks(SECTOR).enumerate();
    sectors.map(move |(number, sector)| (offset + number * SECTOR, sector))
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cut at {}, flushed at {}, {} of {} blocks since",
            self.at,
            self.flushed,
            self.survivors.len(),
            self.of
        )?;
        if self.is_torn() {
            f.write_str(", the last one torn")?;
        }
        Ok(())
    }
}

/// A cut at `first` that leaves nothing but what was flushed; then cuts at every place of the log
/// from `from` on, in an order that `random` says, as many as are wanted and no two of them the
/// same. Fewer, if there are not as many.
pub(crate) fn cuts(
    log: &[Entry],
    from: usize,
    first: usize,
    wanted: usize,
    random: &mut Random,
) -> Vec<Cut> {
    let mut places: Vec<usize> = (from..=log.len()).collect();
    let mut cuts = vec![Cut {
        survivors: Vec::new(),
        ..Cut::at(log, first, random)
    }];
    let mut seen = BTreeSet::from([(cuts[0].flushed, Vec::new())]);
    // A place with few writes since the flush soon has no other ways to go.
    let mut in_vain = 0;
    while cuts.len() < wanted && in_vain < 20 {
        let before = cuts.len();
        random.shuffle(&mut places);
        for at in &places {
            let cut = Cut::at(log, *at, random);
            // Two places may leave the same.
            let leaves = (cut.flushed, cut.survivors.clone());
            if cuts.len() < wanted && seen.insert(leaves) {
                cuts.push(cut);
            }
        }
        in_vain = match cuts.len() == before {
            true => in_vain + 1,
            false => 0,
        };
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(byte: u8) -> Vec<u8> {
        vec![byte; BLOCK]
    }

    fn write(number: usize, byte: u8) -> Entry {
        Entry::Write {
            offset: number * BLOCK,
            bytes: block(byte),
        }
    }

    #[test]
    fn what_is_written_is_read_wherever_it_begins() {
        let mut image = Image::zeros(4 * BLOCK);
        let bytes: Vec<u8> = (0..BLOCK + 700).map(|n| (n % 251) as u8).collect();
        image.write(BLOCK - 300, &bytes);
        assert_eq!(image.read(BLOCK - 300, bytes.len()), bytes);
        assert_eq!(image.read(0, BLOCK - 300), vec![0; BLOCK - 300]);
        assert_eq!(image.read(3 * BLOCK, 2 * BLOCK), vec![0; BLOCK], "the end");
        let copy = image.clone();
        image.write(0, &block(7));
        assert_eq!(copy.read(0, 1), [0], "a copy stays as it was");
        assert_eq!(
            Image::of(&copy.read(0, copy.size())).read(0, 4 * BLOCK),
            copy.read(0, 4 * BLOCK)
        );
    }

    #[test]
    fn what_was_flushed_is_left_and_of_what_came_after_any_part() {
        let log = [write(0, 1), Entry::Flush, write(0, 2), write(1, 3)];
        let base = Image::zeros(2 * BLOCK);
        let mut random = Random::new(1);
        let mut seen = BTreeSet::new();
        for _ in 0..300 {
            let cut = Cut::at(&log, log.len(), &mut random);
            let image = cut.image(&base, &log);
            let (first, second) = (image.read(0, BLOCK), image.read(BLOCK, BLOCK));
            assert!(first.iter().all(|byte| matches!(byte, 1 | 2)), "{cut}");
            assert!(second.iter().all(|byte| matches!(byte, 0 | 3)), "{cut}");
            let torn = first.windows(2).any(|two| two[0] != two[1])
                || second.windows(2).any(|two| two[0] != two[1]);
            assert_eq!(torn, cut.is_torn(), "{cut}");
            seen.insert((first[0], second[0], torn));
        }
        for whole in [(1, 0), (2, 0), (1, 3), (2, 3)] {
            assert!(seen.contains(&(whole.0, whole.1, false)), "{seen:?}");
        }
        assert!(seen.iter().any(|(_, _, torn)| *torn), "{seen:?}");
        assert!(log.len() > 3 && Cut::at(&log, 2, &mut random).of == 0);
    }

    #[test]
    fn sectors_are_torn_and_nothing_smaller() {
        let log = [write(0, 9)];
        let mut random = Random::new(3);
        for _ in 0..100 {
            let image = Cut::at(&log, 1, &mut random).image(&Image::zeros(BLOCK), &log);
            for sector in image.read(0, BLOCK).chunks(SECTOR) {
                assert!(sector.iter().all(|byte| *byte == sector[0]));
            }
        }
    }

    #[test]
    fn no_cut_is_made_twice_and_every_place_is_one() {
        let log: Vec<Entry> = (0..6)
            .flat_map(|n| [write(n, 1), write(n + 1, 2), Entry::Flush])
            .collect();
        let all = cuts(&log, 0, 5, 60, &mut Random::new(5));
        assert_eq!(all.len(), 60);
        let unique: BTreeSet<_> = all.iter().map(|c| (c.flushed, &c.survivors)).collect();
        assert_eq!(unique.len(), all.len());
        assert_eq!(
            all,
            cuts(&log, 0, 5, 60, &mut Random::new(5)),
            "the seed decides"
        );
        let flushed: BTreeSet<_> = all.iter().map(|cut| cut.flushed).collect();
        assert_eq!(flushed.len(), 7);
        assert_eq!(
            (all[0].at, all[0].survivors.len()),
            (5, 0),
            "the harshest first"
        );
        let nothing = [Entry::Flush, Entry::Flush];
        assert_eq!(
            cuts(&nothing, 1, 2, 60, &mut Random::new(5)).len(),
            2,
            "there are no more"
        );
    }
}
