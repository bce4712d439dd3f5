//! Purging: finding content in all snapshots, and removing its bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::sync::Arc;

use super::collect::{list, name_of};
use super::{ObjectId, Store};
use crate::contents::ContentError;
use crate::durable;
use crate::error::{PathError, printable};
use crate::git::history::List;
use crate::git::index;
use crate::git::nodes::tree_of;
use crate::git::object_id::sha1;
use crate::git::pack::{CHECKSUM_BYTES, Pack, PackWriter, StoredAs};
use crate::git::rules::IGNORE_FILE;
use crate::git::user_index::{self, IndexError};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::problem::Problem;
use crate::purge::{
    FoundContents, KeptContent, Places, Proof, PurgeError, Purged, Wanted, is_empty_content,
};
use crate::record::Record;
use crate::store_error::StoreError;
use crate::tree::{Change, ContentId};

/// What git puts beside a pack, and the pack itself.
const PACK_EXTENSIONS: [&str; 7] = ["pack", "idx", "rev", "bitmap", "mtimes", "keep", "promisor"];

impl Store {
    /// Finds what is wanted in the trees of all snapshots, guards included, and in the indexes that
    /// were kept with them.
    ///
    /// Reads each tree once that differs from that of the snapshot before, and each index twice.
    pub(crate) fn find_content(
        &self,
        op: &Operation,
        wanted: &Wanted,
    ) -> Result<FoundContents, PurgeError> {
        let purged = self.purged()?;
        let mut search = Search::default();
        let mut unreadable = Vec::new();
        self.each_snapshot(op, &mut unreadable, &mut |record, changes| {
            for (path, id) in changes.iter().filter_map(new_content) {
                search.note(wanted, path, id);
            }
            let staged = self.indexed(op, record, &mut search.indexes)?;
            for (path, id) in staged.iter().filter(|(path, id)| {
                wanted.has(&(*id).into()) || wanted.names(path) && !path.is_root()
            }) {
                if self.contains(id)? || purged.contains(&(*id).into()) {
                    search.note(wanted, path, (*id).into());
                }
            }
            for (path, id) in self.in_history(op, record)? {
                search.note(wanted, &path, id.into());
            }
            Ok(())
        })?;
        let ids = search.contents();
        let mut places = Places::default();
        let mut present = BTreeMap::<RelPath, ContentId>::new();
        let mut passed_over = Vec::new();
        self.each_snapshot(op, &mut passed_over, &mut |record, changes| {
            for change in changes {
                present.remove(&change.path);
                if let Some((path, id)) = new_content(change).filter(|(_, id)| ids.contains(id)) {
                    present.insert(path.clone(), id);
                    places.add(id, path, wanted.names(path));
                }
            }
            let mut count = present.len() as u64;
            for (path, id) in self.indexed(op, record, &mut search.indexes)?.iter() {
                let id = ContentId::from(*id);
                if ids.contains(&id) && present.get(path) != Some(&id) {
                    places.add(id, path, wanted.names(path));
                    count += 1;
                }
            }
            for (path, id) in self.in_history(op, record)? {
                let id = ContentId::from(id);
                if ids.contains(&id) {
                    places.add(id, &path, wanted.names(&path));
                    count += 1;
                }
            }
            places.add_snapshot(&record.snapshot.id, count);
            Ok(())
        })?;
        let mut found = places.into_found(&purged, |id| self.other_id(op, id))?;
        (found.kept, found.unreadable) = (search.kept(), unreadable);
        Ok(found)
    }

    /// Calls `visit` for each snapshot, oldest first, with the changes from the one before that
    /// could be read. Those that cannot be read are named in `unreadable`.
    fn each_snapshot(
        &self,
        op: &Operation,
        unreadable: &mut Vec<Problem>,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError> {
        let mut before = None;
        for (found, record) in self.scan(op)? {
            op.check()?;
            let read = record.and_then(|record| {
                let tree = tree_of(&record)?;
                Ok((self.tree_changes(op, before, Some(tree))?, tree, record))
            });
            match read {
                Ok((changes, tree, record)) => {
                    visit(&record, &changes)?;
                    before = Some(tree);
                }
                Err(error @ (StoreError::Io(_) | StoreError::Interrupted(_))) => return Err(error),
                Err(error) => unreadable.push(Problem::new(found.name, error.to_string())),
            }
        }
        Ok(())
    }

    /// The files of the index that was kept with a snapshot, relative to the workspace. One that
    /// cannot be parsed has none: nothing was kept for its sake.
    fn indexed(
        &self,
        op: &Operation,
        record: &Record,
        last: &mut Option<(ObjectId, Arc<Indexed>)>,
    ) -> Result<Arc<Indexed>, StoreError> {
        const GITLINK: u32 = 0o160_000;
        const DIRECTORY: u32 = 0o040_000;
        if seeded_bug!("kept-index-not-searched") {
            return Ok(Arc::default());
        }
        let Some((git, blob)) = record.git.as_ref().and_then(|git| Some((git, git.index?))) else {
            return Ok(Arc::default());
        };
        if let Some((known, indexed)) = last
            && *known == blob
        {
            return Ok(Arc::clone(indexed));
        }
        let bytes = match self.read(op, &blob, u64::MAX) {
            Ok((_, bytes)) => bytes,
            // `verify` names it.
            Err(StoreError::Corrupt { .. }) => return Ok(Arc::default()),
            Err(error) => return Err(error),
        };
        let no_shared_index = |_: &ObjectId| -> Result<Vec<u8>, IndexError> { Ok(Vec::new()) };
        let parsed = user_index::parse(&bytes, &mut { no_shared_index });
        let entries = parsed.map(|index| index.entries).unwrap_or_default();
        let indexed: Indexed = entries
            .iter()
            .filter(|entry| entry.mode != GITLINK && entry.mode != DIRECTORY)
            .filter_map(|entry| Some((index::within(&entry.path, &git.scope)?, entry.id)))
            .collect();
        let indexed = Arc::new(indexed);
        *last = Some((blob, Arc::clone(&indexed)));
        Ok(indexed)
    }

    /// The files of the commits that were kept with a snapshot, relative to the workspace, as far
    /// as each commit brought them. What cannot be read has none: `verify` names it.
    fn in_history(
        &self,
        op: &Operation,
        record: &Record,
    ) -> Result<Vec<(RelPath, ObjectId)>, StoreError> {
        let git = record.git.as_ref();
        let Some((git, list)) = git.and_then(|git| Some((git, git.history?))) else {
            return Ok(Vec::new());
        };
        let read = |id: &ObjectId| Ok(self.read(op, id, u64::MAX)?.1);
        let files = List::read(&list, &read).and_then(|list| list.files(&read));
        match files {
            Ok(files) => Ok(files
                .into_iter()
                .filter_map(|(path, id)| Some((index::within(&path, &git.scope)?, id)))
                .collect()),
            Err(StoreError::Corrupt { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// The length of a blob and its blake3; `None`: it is not to be had.
    fn other_id(
        &self,
        op: &Operation,
        id: &ContentId,
    ) -> Result<Option<(u64, ContentId)>, StoreError> {
        let Some(object) = sha1(id) else {
            return Ok(None);
        };
        let mut hasher = blake3::Hasher::new();
        match self.blob_to(op, &object, &mut hasher) {
            Ok(bytes) => Ok(Some((
                bytes,
                ContentId::Blake3(*hasher.finalize().as_bytes()),
            ))),
            Err(ContentError::Store(StoreError::Corrupt { .. })) => Ok(None),
            Err(ContentError::Store(error)) => Err(error),
            Err(ContentError::Sink(_)) => unreachable!("a hasher takes every byte"),
        }
    }

    /// Removes the bytes of everything that was purged: packs that have some of it go, after what
    /// else is needed from them is in a pack of our own, whatever they are links of; so do loose
    /// objects.
    ///
    /// May be repeated, and goes on where a kill ended it. What else is needed stays readable
    /// throughout, but for objects that are damaged: they go with their pack.
    pub(crate) fn drop_purged(&self, op: &Operation, purged: &Purged) -> Result<(), StoreError> {
        let gone = objects_of(purged);
        if gone.is_empty() {
            return Ok(());
        }
        self.refresh()?;
        let set = self.packs()?;
        let mut affected = Vec::new();
        for pack in set.all() {
            if has_any(op, pack, &gone)? {
                affected.push(Arc::clone(pack));
            }
        }
        if !affected.is_empty() {
            let needed = match self.live(op) {
                Ok(live) => Some(live),
                // What a damaged snapshot needs is not known: nothing is taken for garbage.
                Err(StoreError::Corrupt { .. }) => None,
                Err(error) => return Err(error),
            };
            let writer = self.writer(op)?;
            for pack in &affected {
                self.copy_but(op, pack, &gone, needed.as_deref(), &writer)?;
            }
            writer.finish()?;
            self.forget_vouched(op)?;
            let paths: Vec<_> = affected.iter().map(|p| p.path().to_owned()).collect();
            self.remove_packs(op, &paths)?;
        }
        for id in &gone {
            let path = self.loose_path(id);
            if path.symlink_metadata().is_ok() {
                durable::remove_file(op, &path)?;
                let directory = path.parent().expect("objects are two levels deep");
                durable::sync_directory(op, directory)?;
            }
        }
        self.bases.clear();
        *self
            .last_published
            .lock()
            .expect("no panic while it is held") = None;
        self.refresh()?;
        Ok(())
    }

    /// Copies the objects of `pack` that are not `gone`, and `needed` if that is known.
    fn copy_but(
        &self,
        op: &Operation,
        pack: &Pack,
        gone: &[ObjectId],
        needed: Option<&[ObjectId]>,
        writer: &PackWriter,
    ) -> Result<(), StoreError> {
        let meta =
            fs::symlink_metadata(pack.path()).map_err(PathError::at("look at", pack.path()))?;
        let mut all = pack.index.entries(op)?;
        all.sort_unstable_by_key(|(_, offset, _)| *offset);
        let end = meta.len().saturating_sub(CHECKSUM_BYTES);
        let ends = all.iter().skip(1).map(|(_, offset, _)| *offset);
        for (&(id, offset, crc32), end) in all.iter().zip(ends.chain([end])) {
            let is_needed = needed.is_none_or(|needed| needed.binary_search(&id).is_ok());
            if !is_needed || gone.binary_search(&id).is_ok() {
                continue;
            }
            let place = (offset, end.saturating_sub(offset));
            let copied = match pack.entry_at(offset) {
                Ok((StoredAs::Whole(_), _)) => writer.add_entry_of(pack, id, place, crc32),
                // What it is made from may be what goes.
                Ok(_) => self.read(op, &id, u64::MAX).and_then(|(kind, bytes)| {
                    writer.add(kind, id, &bytes)?;
                    Ok(())
                }),
                Err(error) => Err(error),
            };
            match copied {
                Ok(()) => {}
                // Another place may have it; if none has, `verify` names it.
                Err(StoreError::Corrupt { .. }) => {
                    if let Ok((kind, bytes)) = self.read(op, &id, u64::MAX) {
                        writer.add(kind, id, &bytes)?;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Looks at every object of the store, and names what was purged and is there, or cannot be
    /// ruled out.
    pub(crate) fn prove_purged(
        &self,
        op: &Operation,
        purged: &Purged,
    ) -> Result<Proof, StoreError> {
        let gone = objects_of(purged);
        self.refresh()?;
        let set = self.packs()?;
        let mut proof = Proof::default();
        let unproven =
            |path: &std::path::Path, detail: &str| Problem::new(printable(path), detail.to_owned());
        for pack in set.all() {
            proof.packs += 1;
            proof.objects += u64::from(pack.index.count());
            if has_any(op, pack, &gone)? {
                let problem = unproven(pack.path(), "it has content that was purged");
                proof.unproven.push(problem);
            }
        }
        for (path, detail) in &set.broken {
            let detail = format!("what it has cannot be told: {detail}");
            proof.unproven.push(unproven(path, &detail));
        }
        for path in list(&self.pack_dir())? {
            let extension = path.extension().and_then(|e| e.to_str());
            if !extension.is_some_and(|e| PACK_EXTENSIONS.contains(&e)) {
                proof
                    .unproven
                    .push(unproven(&path, "it is not of the store"));
            }
        }
        for shard in list(&self.git_dir.join("objects"))? {
            if name_of(&shard).is_none_or(|name| name.len() != 2) {
                continue;
            }
            for path in list(&shard)? {
                proof.files += 1;
                let id = name_of(&shard)
                    .zip(name_of(&path))
                    .and_then(|(a, b)| format!("{a}{b}").parse::<ObjectId>().ok());
                let detail = match id {
                    None => "it is no object",
                    Some(id) if gone.binary_search(&id).is_ok() => "it was purged",
                    Some(_) => continue,
                };
                proof.unproven.push(unproven(&path, detail));
            }
        }
        Ok(proof)
    }
}

/// What is done with each snapshot: its record, and the changes from the one before.
type Visit<'a> = dyn FnMut(&Record, &[Change]) -> Result<(), StoreError> + 'a;

/// The files of an index, by path.
type Indexed = Vec<(RelPath, ObjectId)>;

/// What is found of the wanted content while the snapshots are gone through.
#[derive(Default)]
struct Search {
    /// The wanted content, and the paths by which it was found.
    found: HashMap<ContentId, BTreeSet<RelPath>>,
    /// The content of ignore files.
    rules: BTreeSet<ContentId>,
    indexes: Option<(ObjectId, Arc<Indexed>)>,
}

impl Search {
    fn note(&mut self, wanted: &Wanted, path: &RelPath, id: ContentId) {
        if path.name() == IGNORE_FILE {
            self.rules.insert(id);
        }
        if wanted.has(&id) || wanted.names(path) {
            self.found.entry(id).or_default().insert(path.clone());
        }
    }

    fn reason_to_keep(&self, id: &ContentId) -> Option<&'static str> {
        if is_empty_content(id) {
            Some("empty")
        } else {
            self.rules.contains(id).then_some("ignore_rules")
        }
    }

    fn contents(&self) -> BTreeSet<ContentId> {
        let ids = self.found.keys().copied();
        ids.filter(|id| self.reason_to_keep(id).is_none()).collect()
    }

    fn kept(&self) -> Vec<KeptContent> {
        let mut kept: Vec<KeptContent> = self
            .found
            .iter()
            .filter_map(|(id, paths)| Some((self.reason_to_keep(id)?, paths)))
            .flat_map(|(reason, paths)| {
                paths.iter().map(move |path| KeptContent {
                    path: path.clone(),
                    reason,
                })
            })
            .collect();
        kept.sort();
        kept.dedup();
        kept
    }
}

fn new_content(change: &Change) -> Option<(&RelPath, ContentId)> {
    Some((&change.path, change.new?.id))
}

/// The purged ids that an object of git's can have, sorted.
pub(in crate::git) fn objects_of(purged: &Purged) -> Vec<ObjectId> {
    let mut ids: Vec<ObjectId> = purged.ids().filter_map(sha1).collect();
    ids.sort_unstable();
    ids
}

/// Whether the pack has one of `ids`, which are sorted.
fn has_any(op: &Operation, pack: &Pack, ids: &[ObjectId]) -> Result<bool, StoreError> {
    let mut has = false;
    pack.index.each_hit(op, ids, &mut |_| has = true)?;
    Ok(has)
}
