//! Sorted names of a directory with their data, in two allocations.
//!
//! A workspace has a few thousand directories and a hundred times as many names: an allocation for
//! each name would cost more than everything else that a capture does to an unchanged one.

use std::cmp::Ordering;
use std::ops::Range;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::CachedEntry;

/// Names in the order of their bytes, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameList {
    bytes: Bytes,
    ends: Vec<u32>,
}

/// Files and links with their names, in the order of the names' bytes, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entries {
    names: Bytes,
    slots: Vec<Slot>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Slot {
    /// Where the name ends; it begins where the one before ends.
    end: u32,
    entry: CachedEntry,
}

/// Bytes that are written as one piece, not as a sequence of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Bytes(Vec<u8>);

impl NameList {
    /// The names of `spans` in `bytes`, which are in any order.
    pub(crate) fn sorted(bytes: &[u8], spans: &mut [(u32, u32)]) -> Self {
        let name = |(start, end): (u32, u32)| &bytes[start as usize..end as usize];
        spans.sort_unstable_by(|a, b| name(*a).cmp(name(*b)));
        let mut names = Self {
            bytes: Bytes(Vec::with_capacity(bytes.len())),
            ends: Vec::with_capacity(spans.len()),
        };
        for span in spans {
            let name = name(*span);
            // A directory that changes while it is listed may give a name twice.
            if names.last() != Some(name) {
                names.push(name);
            }
        }
        names
    }

    /// Whether every name lies in the bytes, in order.
    pub(super) fn is_sound(&self) -> bool {
        is_sound(&self.bytes.0, self.ends.iter().copied())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The name at a place.
    pub fn get(&self, at: usize) -> &[u8] {
        &self.bytes.0[start(at, |i| self.ends[i])..self.ends[at] as usize]
    }

    /// The last one.
    pub fn last(&self) -> Option<&[u8]> {
        Some(self.get(self.len().checked_sub(1)?))
    }

    /// All of them, sorted.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        (0..self.len()).map(|at| self.get(at))
    }

    /// The place of `name`, or else where it would belong.
    pub fn find(&self, name: &[u8]) -> Result<usize, usize> {
        search(self.len(), |at| self.get(at).cmp(name))
    }

    /// Whether the name is among them.
    pub fn contains(&self, name: &[u8]) -> bool {
        self.find(name).is_ok()
    }

    /// Adds a name that sorts after all that are there.
    pub fn push(&mut self, name: &[u8]) {
        debug_assert!(self.last().is_none_or(|last| last < name), "in order");
        self.ends.push(append(&mut self.bytes.0, name));
    }

    /// Adds a name, wherever it belongs; false if it was there.
    pub fn insert(&mut self, name: &[u8]) -> bool {
        let Err(at) = self.find(name) else {
            return false;
        };
        let names: Vec<Box<[u8]>> = self.iter().map(Box::from).collect();
        *self = Self::default();
        for before in &names[..at] {
            self.push(before);
        }
        self.push(name);
        for after in &names[at..] {
            self.push(after);
        }
        true
    }

    /// Adds the names of `other` in `range`, which sort after all that are there.
    pub(crate) fn extend_from(&mut self, other: &Self, range: Range<usize>) {
        let [from, to] = [range.start, range.end].map(|at| start(at, |i| other.ends[i]));
        let ends = other.ends[range].iter();
        let moved = moved(from, self.bytes.0.len());
        self.ends.extend(ends.map(|end| moved(*end)));
        self.bytes.0.extend_from_slice(&other.bytes.0[from..to]);
    }
}

impl Entries {
    /// Whether every name lies in the bytes, in order.
    pub(super) fn is_sound(&self) -> bool {
        is_sound(&self.names.0, self.slots.iter().map(|slot| slot.end))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The name at a place.
    pub fn name(&self, at: usize) -> &[u8] {
        &self.names.0[start(at, |i| self.slots[i].end)..self.slots[at].end as usize]
    }

    /// The name at a place, and what is known of it.
    pub fn get(&self, at: usize) -> (&[u8], &CachedEntry) {
        (self.name(at), &self.slots[at].entry)
    }

    /// The last name.
    pub fn last(&self) -> Option<&[u8]> {
        Some(self.name(self.len().checked_sub(1)?))
    }

    /// The place of `name`, or else where it would belong.
    pub fn find(&self, name: &[u8]) -> Result<usize, usize> {
        search(self.len(), |at| self.name(at).cmp(name))
    }

    /// All of them, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &CachedEntry)> + Clone {
        (0..self.len()).map(|at| self.get(at))
    }

    /// Adds an entry whose name sorts after all that are there.
    pub fn push(&mut self, name: &[u8], entry: CachedEntry) {
        debug_assert!(self.last().is_none_or(|last| last < name), "in order");
        let end = append(&mut self.names.0, name);
        self.slots.push(Slot { end, entry });
    }

    /// The same entries, in the memory of `others` if those have the same names.
    pub(crate) fn in_place_of(self, mut others: Self) -> Self {
        if self.names != others.names || self.slots.len() != others.slots.len() {
            return self;
        }
        others.slots.clone_from_slice(&self.slots);
        others
    }

    /// The entry at a place, to be changed.
    pub fn entry_mut(&mut self, at: usize) -> &mut CachedEntry {
        &mut self.slots[at].entry
    }

    /// All of them, sorted by name, to be changed.
    pub fn entries_mut(&mut self) -> impl Iterator<Item = &mut CachedEntry> {
        self.slots.iter_mut().map(|slot| &mut slot.entry)
    }

    /// Keeps the entries that `is_kept` says yes to.
    pub fn retain(&mut self, is_kept: impl Fn(&CachedEntry) -> bool) {
        if self.slots.iter().all(|slot| is_kept(&slot.entry)) {
            return;
        }
        let mut kept = Self::default();
        for (name, entry) in self.iter().filter(|(_, entry)| is_kept(entry)) {
            kept.push(name, entry.clone());
        }
        *self = kept;
    }

    /// Adds `more`, whose names are in order and not among those that are there.
    pub fn merge(&mut self, more: Vec<(&[u8], CachedEntry)>) {
        if more.is_empty() {
            return;
        }
        let mut more = more.into_iter().peekable();
        let mut merged = Self::default();
        merged.slots.reserve(self.len() + more.len());
        for (name, entry) in self.iter() {
            while let Some((name, entry)) = more.next_if(|(before, _)| *before < name) {
                merged.push(name, entry);
            }
            merged.push(name, entry.clone());
        }
        for (name, entry) in more {
            merged.push(name, entry);
        }
        *self = merged;
    }

    /// Takes the memory for as many entries as `other` has, at once.
    pub(crate) fn reserve_as(&mut self, other: &Self) {
        self.names.0.reserve_exact(other.names.0.len());
        self.slots.reserve_exact(other.slots.len());
    }

    /// Forgets all entries, and keeps the memory.
    pub fn clear(&mut self) {
        self.names.0.clear();
        self.slots.clear();
    }

    /// Adds the entries of `other` in `range`, whose names sort after all that are there.
    pub(crate) fn extend_from(&mut self, other: &Self, range: Range<usize>) {
        let [from, to] = [range.start, range.end].map(|at| start(at, |i| other.slots[i].end));
        let slots = other.slots[range].iter();
        let moved = moved(from, self.names.0.len());
        self.slots.extend(slots.map(|slot| Slot {
            end: moved(slot.end),
            entry: slot.entry.clone(),
        }));
        self.names.0.extend_from_slice(&other.names.0[from..to]);
    }

    /// Puts the names in another order.
    #[cfg(test)]
    pub(super) fn damage_order(&mut self) {
        self.names.0.reverse();
    }

    /// Lets the last name end where there are no bytes.
    #[cfg(test)]
    pub(super) fn damage_end(&mut self) {
        self.slots.last_mut().expect("there is an entry").end += 1;
    }

    pub(crate) fn shrink(&mut self) {
        self.names.0.shrink_to_fit();
        self.slots.shrink_to_fit();
    }
}

fn start(at: usize, end: impl Fn(usize) -> u32) -> usize {
    at.checked_sub(1).map_or(0, |before| end(before) as usize)
}

/// Where the end of a name lies once the bytes from `from` on lie at `to`.
fn moved(from: usize, to: usize) -> impl Fn(u32) -> u32 {
    move |end| u32::try_from(end as usize - from + to).expect(FEW)
}

/// Why a place in the names of a directory is a `u32`.
const FEW: &str = "the names of one directory are less than 4 GiB";

fn is_sound(bytes: &[u8], ends: impl Iterator<Item = u32>) -> bool {
    let (mut at, mut before) = (0, None);
    for end in ends {
        let Some(name) = bytes.get(at..end as usize) else {
            return false;
        };
        if name.is_empty() || before >= Some(name) {
            return false;
        }
        (at, before) = (end as usize, Some(name));
    }
    at == bytes.len()
}

fn append(bytes: &mut Vec<u8>, name: &[u8]) -> u32 {
    bytes.extend_from_slice(name);
    u32::try_from(bytes.len()).expect(FEW)
}

fn search(len: usize, compare: impl Fn(usize) -> Ordering) -> Result<usize, usize> {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low + (high - low) / 2;
        match compare(middle) {
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
            Ordering::Equal => return Ok(middle),
        }
    }
    Err(low)
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }

            fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }
        }
        deserializer.deserialize_byte_buf(Visitor)
    }
}
