//! The list of packs that the stat cache relies on, and checking that they did not change.
//!
//! The cache says that the content of an unchanged file is in the store, and a capture does not
//! check each object. It only checks each pack, and the directories of loose objects. If a pack is
//! gone, has another size or was written to, or if a loose object is gone, the cache is not used,
//! and everything that the workspace or its repository still has is stored again. Damage that does
//! not change the times of a file is found when the object is read, and by [`Store::verify`].

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::{PackSet, Store};
use crate::caches::VOUCHED_PACKS;
use crate::durable;
use crate::error::PathError;
use crate::faults::Effect;
use crate::git::pack::Pack;
use crate::operation::Operation;
use crate::regular_file::open_regular;
use crate::store_error::StoreError;
use crate::worktree::shards;

/// More than a hundred thousand packs.
const MAX_FILE_BYTES: u64 = 32 << 20;
/// A larger pack is not read for a new time alone. git gives a pack that the repository shares with
/// the store the present time whenever it is asked to write an object that the pack has; to read
/// this much costs about a tenth of a second.
const MAX_READ_BYTES: u64 = 64 << 20;

/// What is known of the packs of a store.
#[derive(Debug, Default)]
pub(super) struct Vouched {
    /// By name, without an extension. `None`: not read yet.
    listed: Option<BTreeMap<String, Listed>>,
    /// What the directories of loose objects were like.
    loose: String,
    /// Whether the file says something else of a pack than `listed`, or is not there.
    is_stale: bool,
}

/// A pack as it was when it was last looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listed {
    pack: Stamp,
    index: Stamp,
    is_sound: bool,
}

/// What tells a file that was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    inode: u64,
    mtime_s: i64,
    mtime_ns: i64,
}

impl Store {
    /// Whether every pack that was there when the last capture ended still is what it was. `false`
    /// also if that is not known.
    ///
    /// What lies in a pack that was damaged does not count as stored from here on; it is still
    /// read, as far as it can be.
    pub(crate) fn is_vouched_for(&self, op: &Operation) -> Result<bool, StoreError> {
        let path = self.git_dir.join(VOUCHED_PACKS);
        let bytes = match durable::read(&path, MAX_FILE_BYTES) {
            Ok(bytes) => bytes,
            Err(StoreError::Corrupt { .. }) => None,
            Err(error) => return Err(error),
        };
        let mut is_stale = false;
        self.has_new_loose.store(false, Ordering::Relaxed);
        let known = bytes.and_then(|bytes| parse(&bytes));
        let loose = shards::stamp_of(&self.git_dir.join("objects"))?;
        let mut is_vouched_for = known.as_ref().is_some_and(|(_, known)| *known == loose);
        is_stale |= !is_vouched_for;
        let mut listed = known.map(|(listed, _)| listed).unwrap_or_default();
        let mut doubted = HashSet::new();
        let mut gone = Vec::new();
        for (name, known) in &mut listed {
            let index = self.pack_dir().join(format!("{name}.idx"));
            let Some(found) = Listed::look(&index)? else {
                gone.push(name.clone());
                continue;
            };
            if !found.is_same(known) {
                is_stale = true;
                let is_sound = match found.may_be_same(known) {
                    true => known.is_sound,
                    false => is_right(op, &index)?,
                };
                is_vouched_for &= is_sound || !known.is_sound;
                *known = Listed { is_sound, ..found };
            }
            if !known.is_sound {
                doubted.insert(index);
            }
        }
        is_vouched_for &= gone.is_empty();
        is_stale |= !gone.is_empty();
        for name in gone {
            listed.remove(&name);
        }
        // Not at once: who refreshes the packs holds those first.
        let was_doubted = {
            let mut held = self.doubted.lock().expect("no panic while it is held");
            std::mem::replace(&mut *held, doubted.clone())
        };
        if was_doubted != doubted {
            *self.packs.lock().expect("no panic while it is held") = Default::default();
        }
        *self.vouched.lock().expect("no panic while it is held") = Vouched {
            listed: Some(listed),
            loose,
            is_stale,
        };
        Ok(is_vouched_for)
    }

    /// Notes the packs that there are at the end of a capture. Best effort: what is not noted, the
    /// next capture does not rely on.
    pub(crate) fn vouch(&self, op: &Operation) {
        if self.note_packs(op).is_err() {
            let _ = self.forget_vouched(op);
        }
    }

    /// Forgets what was noted, before packs are removed.
    pub(super) fn forget_vouched(&self, op: &Operation) -> Result<(), PathError> {
        *self.vouched.lock().expect("no panic while it is held") = Vouched::default();
        durable::remove_file(op, &self.git_dir.join(VOUCHED_PACKS))
    }

    /// Removes the notes of packs that are about to be removed because nothing needs them.
    pub(super) fn no_longer_vouch_for(&self, packs: &[PathBuf]) {
        let mut held = self.vouched.lock().expect("no panic while it is held");
        if let Some(listed) = &mut held.listed {
            for pack in packs {
                listed.remove(&name_of(pack));
            }
            held.is_stale = true;
        }
    }

    fn note_packs(&self, op: &Operation) -> Result<(), StoreError> {
        let set = self.packs()?;
        let mut held = self.vouched.lock().expect("no panic while it is held");
        if held.listed.is_none() {
            // A capture that publishes without reading it first has no cache.
            return Ok(());
        }
        let Vouched {
            listed,
            loose,
            is_stale,
        } = &mut *held;
        let listed = listed.as_mut().expect("it was just seen");
        let mut new = String::new();
        if self.has_new_loose.swap(false, Ordering::Relaxed) {
            *loose = shards::stamp_of(&self.git_dir.join("objects"))?;
            new.push_str(&loose_line(loose));
        }
        for index in set.packs.iter().map(|pack| pack.index.path()) {
            let name = name_of(index);
            if listed.contains_key(&name) {
                continue;
            }
            if let Some(found) = Listed::look(index)? {
                new.push_str(&found.line(&name));
                listed.insert(name, found);
            }
        }
        let path = self.git_dir.join(VOUCHED_PACKS);
        if *is_stale {
            let lines = listed.iter().map(|(name, listed)| listed.line(name));
            let text: String = std::iter::once(loose_line(loose)).chain(lines).collect();
            durable::replace_unsynced(op, &path, text.as_bytes())?;
            *is_stale = false;
        } else if !new.is_empty() {
            let reserved = op.reserve();
            op.effect(Effect::Write(&path))
                .and_then(|()| Ok(reserved.up_to(new.len() as u64)?))
                .and_then(|()| {
                    let mut options = fs::OpenOptions::new();
                    let mut file = open_regular(options.append(true).mode(0o600), &path)?;
                    file.write_all(new.as_bytes())
                })
                .map_err(PathError::at("append to", &path))?;
            reserved.keep();
        }
        Ok(())
    }
}

impl PackSet {
    /// All packs that can be opened; those that are damaged come last.
    pub(super) fn all(&self) -> impl Iterator<Item = &std::sync::Arc<Pack>> {
        self.packs.iter().chain(&self.doubted)
    }
}

impl Listed {
    /// The pack of this index as it is; `None` if one of the two is gone.
    fn look(index: &Path) -> Result<Option<Self>, StoreError> {
        let stamps = (
            Stamp::look(&index.with_extension("pack"))?,
            Stamp::look(index)?,
        );
        Ok(match stamps {
            (Some(pack), Some(index)) => Some(Self {
                pack,
                index,
                is_sound: true,
            }),
            _ => None,
        })
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.pack, self.index) == (other.pack, other.index)
    }

    /// Whether the two differ in nothing but what a touch changes, and it would cost too much to
    /// see.
    fn may_be_same(&self, other: &Self) -> bool {
        let sizes = |listed: &Self| (listed.pack.bytes, listed.index.bytes);
        sizes(self) == sizes(other)
            && self.pack.inode == other.pack.inode
            && self.index.inode == other.index.inode
            && self.pack.bytes > MAX_READ_BYTES
    }

    fn line(&self, name: &str) -> String {
        let stamp = |s: &Stamp| format!("{} {} {} {}", s.bytes, s.inode, s.mtime_s, s.mtime_ns);
        let word = if self.is_sound { "sound" } else { "damaged" };
        format!(
            "{name} {} {} {word}\n",
            stamp(&self.pack),
            stamp(&self.index)
        )
    }
}

impl Stamp {
    fn look(path: &Path) -> Result<Option<Self>, StoreError> {
        match fs::symlink_metadata(path) {
            Ok(meta) => Ok(Some(Self {
                bytes: meta.len(),
                inode: meta.ino(),
                mtime_s: meta.mtime(),
                mtime_ns: meta.mtime_nsec(),
            })),
            Err(e) if super::is_absent(Some(&e)) => Ok(None),
            Err(e) => Err(PathError::at("look at", path)(e).into()),
        }
    }
}

/// Whether pack and index are what they were written as.
fn is_right(op: &Operation, index: &Path) -> Result<bool, StoreError> {
    match Pack::open(index).and_then(|pack| pack.verify(op)) {
        Ok(()) => Ok(true),
        Err(StoreError::Corrupt { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn name_of(index: &Path) -> String {
    let stem = index.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// How the line begins that has the stamp of the directories of loose objects.
const LOOSE: &str = "loose ";

fn loose_line(stamp: &str) -> String {
    format!("{LOOSE}{stamp}\n")
}

/// What the file says of packs, and of loose objects; `None` unless all of it can be read. Of one
/// thing the last line counts.
fn parse(bytes: &[u8]) -> Option<(BTreeMap<String, Listed>, String)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut listed = BTreeMap::new();
    let mut loose = None;
    for line in text.split_inclusive('\n') {
        // The last one may have been cut short.
        let line = line.strip_suffix('\n')?;
        if let Some(stamp) = line.strip_prefix(LOOSE) {
            loose = Some(stamp.to_owned());
            continue;
        }
        let mut words = line.split(' ');
        let name = words.next().filter(|name| name.starts_with("pack-"))?;
        let mut stamp = || {
            Some(Stamp {
                bytes: words.next()?.parse().ok()?,
                inode: words.next()?.parse().ok()?,
                mtime_s: words.next()?.parse().ok()?,
                mtime_ns: words.next()?.parse().ok()?,
            })
        };
        let (pack, index) = (stamp()?, stamp()?);
        let is_sound = match words.next()? {
            "sound" => true,
            "damaged" => false,
            _ => return None,
        };
        if words.next().is_some() || name.contains('/') {
            return None;
        }
        let found = Listed {
            pack,
            index,
            is_sound,
        };
        listed.insert(name.to_owned(), found);
    }
    Some((listed, loose?))
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    /// A store in which a capture has ended.
    fn vouched() -> TestStore {
        let test = TestStore::new();
        assert!(
            !test.store.is_vouched_for(&Operation::unbounded()).unwrap(),
            "nobody knows"
        );
        test.publish(&owner("s", "r"), &[("a", noise(900, 1))]);
        test.store.vouch(&Operation::unbounded());
        test
    }

    #[test]
    fn what_was_noted_is_believed_until_a_pack_is_gone_or_written_to() {
        let test = vouched();
        let next = || {
            let store = test.reopened();
            let believed = store.is_vouched_for(&Operation::unbounded()).unwrap();
            let is_there = store.contains(&blob_id(&noise(900, 1))).unwrap();
            store.vouch(&Operation::unbounded());
            (believed, is_there)
        };
        assert_eq!(next(), (true, true));
        test.publish(&owner("s", "r"), &[("a", "2")]);
        assert_eq!(next(), (true, true), "a pack that is not listed yet");
        assert_eq!(next(), (true, true));

        let pack = {
            let set = test.store.packs().unwrap();
            let id = blob_id(&noise(900, 1));
            let has = |pack: &&std::sync::Arc<Pack>| pack.index.contains(&id).unwrap();
            set.packs.iter().find(has).unwrap().path().to_owned()
        };
        let original = fs::read(&pack).unwrap();
        replace(&pack, &original);
        assert_eq!(next(), (true, true), "it is what it was");
        let mut damaged = original.clone();
        damaged[400] ^= 1;
        replace(&pack, &damaged);
        assert_eq!(next(), (false, false), "what is in it does not count");
        assert_eq!(next(), (true, false), "that is known by now");
        replace(&pack, &original);
        assert_eq!(next(), (true, true), "it was repaired");
        fs::remove_file(pack.with_extension("idx")).unwrap();
        assert_eq!(next(), (false, false));
        assert_eq!(next(), (true, false));
    }

    #[test]
    fn what_a_damaged_pack_still_has_can_be_read() {
        let test = TestStore::new();
        test.store.is_vouched_for(&Operation::unbounded()).unwrap();
        let files = [("a", noise(900, 1)), ("b", noise(900, 2))];
        test.publish(&owner("s", "r"), &files);
        test.store.vouch(&Operation::unbounded());
        let pack = test.packs().remove(0);
        let ids = files.each_ref().map(|(_, bytes)| blob_id(bytes));
        let at = {
            let set = test.store.packs().unwrap();
            set.packs[0].index.find(&ids[1]).unwrap().unwrap()
        };
        let mut bytes = fs::read(&pack).unwrap();
        bytes[at as usize + 400] ^= 1;
        replace(&pack, &bytes);
        let store = test.reopened();
        assert!(!store.is_vouched_for(&Operation::unbounded()).unwrap());
        assert!(ids.iter().all(|id| !store.contains(id).unwrap()));
        assert_eq!(
            store
                .missing(&Operation::unbounded(), ids.to_vec())
                .unwrap()
                .len(),
            2
        );
        assert_eq!(
            store.read(&Operation::unbounded(), &ids[0], 900).unwrap().1,
            files[0].1
        );
        assert!(store.read(&Operation::unbounded(), &ids[1], 900).is_err());
    }

    #[test]
    fn a_list_that_cannot_be_read_vouches_for_nothing() {
        let test = vouched();
        let path = test.store.git_dir.join(VOUCHED_PACKS);
        let whole = fs::read(&path).unwrap();
        assert!(parse(&whole).is_some_and(|(listed, _)| listed.len() == 1));
        let first_line = whole.iter().position(|b| *b == b'\n').unwrap() + 1;
        // After a whole line it says less, and nothing wrong.
        for cut in (0..whole.len()).filter(|cut| *cut != first_line) {
            fs::write(&path, &whole[..cut]).unwrap();
            assert!(
                !test
                    .reopened()
                    .is_vouched_for(&Operation::unbounded())
                    .unwrap(),
                "at {cut}"
            );
        }
        fs::write(
            &path,
            [&whole[..], b"pack-../x 1 1 1 1 1 1 1 1 sound\n"].concat(),
        )
        .unwrap();
        assert!(
            !test
                .reopened()
                .is_vouched_for(&Operation::unbounded())
                .unwrap()
        );
        test.store.collect(&Operation::unbounded()).unwrap();
        assert!(!path.exists(), "packs come and go");
    }
}
