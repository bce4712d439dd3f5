//! Reading many blobs: every pack is opened once, and every index gone through once.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use super::{MAX_HELD_BYTES, Store, check_bytes};
use crate::contents::{ContentError, Contents};
use crate::git::object_id::sha1;
use crate::git::pack::Pack;
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::store_error::StoreError;
use crate::tree::ContentId;

/// Blobs of a store, opened for reading. Threads may share it.
#[derive(Debug)]
pub(crate) struct Blobs {
    op: Operation,
    store: Arc<Store>,
    packs: Vec<Pack>,
    places: HashMap<ObjectId, InPack>,
}

/// Where an object lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct InPack {
    /// The place in [`Blobs::packs`].
    pack: u32,
    offset: u64,
}

impl Store {
    /// Opens the blobs with these ids. That one of them is missing is found when it is read.
    pub(crate) fn blobs(
        self: Arc<Self>,
        op: &Operation,
        mut ids: Vec<ObjectId>,
    ) -> Result<Blobs, StoreError> {
        ids.sort_unstable();
        ids.dedup();
        let set = self.packs()?;
        let (mut packs, mut places) = (Vec::new(), HashMap::with_capacity(ids.len()));
        for pack in &set.packs {
            if ids.is_empty() {
                break;
            }
            let mut found = Vec::new();
            let went_through = pack
                .index
                .each_offset(op, &ids, &mut |at, offset| found.push((at, offset)));
            // A pack that is gone or damaged: each object is looked for everywhere when it is read.
            let Ok(held) = went_through.and_then(|()| pack.held_open()) else {
                continue;
            };
            if found.is_empty() {
                continue;
            }
            let number = u32::try_from(packs.len()).expect("fewer packs than that are open");
            packs.push(held);
            places.extend(found.into_iter().map(|(at, offset)| {
                let pack = number;
                (ids[at], InPack { pack, offset })
            }));
            ids.retain(|id| !places.contains_key(id));
        }
        Ok(Blobs {
            op: op.clone(),
            store: self,
            packs,
            places,
        })
    }
}

impl Blobs {
    /// The blob, from the pack that was found to have it; `None` if it is not to be had there, or
    /// is too large to be held.
    fn packed(&self, id: &ObjectId) -> Option<Vec<u8>> {
        let place = self.places.get(id)?;
        let pack = &self.packs[place.pack as usize];
        let read = pack.object(&self.op, place.offset, MAX_HELD_BYTES, &self.store.bases);
        let (kind, bytes) = read.ok()?;
        let is_sound = kind == ObjectKind::Blob && check_bytes(id, kind, &bytes).is_ok();
        is_sound.then_some(bytes)
    }
}

/// The id of a blob, of an id that this backend gave.
fn own(id: &ContentId) -> Result<ObjectId, StoreError> {
    sha1(id).ok_or_else(|| StoreError::corrupt(id.to_string(), "it is no id of this backend"))
}

impl Contents for Blobs {
    fn place(&self, id: &ContentId) -> u64 {
        let place = sha1(id).and_then(|id| self.places.get(&id).copied());
        // No pack is larger than 256 TiB.
        place.map_or(u64::MAX, |at| u64::from(at.pack) << 48 | at.offset)
    }

    fn length(&self, id: &ContentId) -> Result<u64, StoreError> {
        self.store.blob_size(&own(id)?)
    }

    fn write(&self, id: &ContentId, sink: &mut dyn Write) -> Result<(), ContentError> {
        let object = own(id)?;
        match self.packed(&object) {
            Some(bytes) => sink.write_all(&bytes).map_err(ContentError::Sink),
            // Another place may do better, and if none does it knows why.
            None => self.store.blob_to(&self.op, &object, sink).map(drop),
        }
    }
}
