//! The objects of the user's repository, loose and packed, its alternates' included.
//!
//! libgit2 is not used: version 1.9.7 waits for ever on a truncated loose object, and it maps
//! packs, so a pack that is truncated meanwhile ends the process.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::git_dir::{Found, GitDir, Kind, path_of};
use super::{RepositoryError, is_absent};
use crate::contents::ContentError;
use crate::error::{PathError, printable};
use crate::loose::{Checked, LooseObject};
use crate::operation::Operation;
use crate::pack::{DeltaBases, Pack, StoredAs};
use crate::quoted::unquoted;
use crate::store_error::StoreError;
use crate::{ObjectId, ObjectKind};

/// How deep alternates may name alternates: git's own limit.
const MAX_ALTERNATE_DEPTH: usize = 5;
/// How many directories with objects a repository may have in all.
const MAX_OBJECT_DIRS: usize = 32;
/// A list of a few paths.
const MAX_ALTERNATES_BYTES: u64 = 1024 * 1024;
/// git's housekeeping begins at fifty.
const MAX_PACKS: usize = 20_000;
/// A blob up to this size is checked before any of it is passed on.
const MAX_HELD_BYTES: u64 = 4 << 20;
/// Memory is taken as content arrives, not as a header promises; up to this it is taken at once.
const MAX_TRUSTED_BYTES: u64 = 1024 * 1024;

/// The objects of a repository.
#[derive(Debug)]
pub(super) struct Objects {
    /// The repository's own first.
    directories: Vec<ObjectDir>,
    bases: DeltaBases,
}

#[derive(Debug)]
struct ObjectDir {
    directory: GitDir,
    /// Those seen so far; housekeeping may add and remove some at any time.
    packs: Mutex<Vec<Arc<Pack>>>,
}

impl Objects {
    /// Opens `objects` of a common directory, and follows its alternates.
    ///
    /// One that is named twice, or names itself, counts once; one that is not there is left out, as
    /// git does. Chains that are too long, and too many directories, are an error.
    pub(super) fn open(common: &GitDir) -> Result<Self, RepositoryError> {
        let own = common.directory("objects")?;
        let own = own.ok_or_else(|| RepositoryError::Damaged {
            path: common.disk_path("objects"),
            reason: "it is missing".to_owned(),
        })?;
        let mut directories = vec![ObjectDir::new(own)];
        let mut depths = vec![0];
        let mut at = 0;
        while at < directories.len() {
            for path in directories[at].alternates()? {
                let Some(directory) = open_alternate(&path)? else {
                    continue;
                };
                let is_known = |d: &ObjectDir| d.directory.identity() == directory.identity();
                if directories.iter().any(is_known) {
                    continue;
                }
                let too_large = |what: &str, limit: usize| RepositoryError::TooLarge {
                    what: format!("{what} {}", printable(common.path())),
                    limit: limit as u64,
                    actual: limit as u64 + 1,
                };
                if depths[at] == MAX_ALTERNATE_DEPTH {
                    return Err(too_large("the depth of alternates of", MAX_ALTERNATE_DEPTH));
                }
                if directories.len() == MAX_OBJECT_DIRS {
                    let what = "the number of directories with objects of";
                    return Err(too_large(what, MAX_OBJECT_DIRS));
                }
                directories.push(ObjectDir::new(directory));
                depths.push(depths[at] + 1);
            }
            at += 1;
        }
        Ok(Self {
            directories,
            bases: DeltaBases::default(),
        })
    }

    /// The directories, absolute.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.directories.iter().map(|d| d.directory.path())
    }

    /// See [`UserRepository::read_object`](super::UserRepository::read_object).
    pub(super) fn read(
        &self,
        op: &Operation,
        id: ObjectId,
        max_bytes: u64,
    ) -> Result<Option<(ObjectKind, Vec<u8>)>, RepositoryError> {
        // A damaged copy is no failure while there may be another.
        let mut failure = None;
        for directory in &self.directories {
            match directory.read_loose(op, id, max_bytes) {
                Ok(Some(object)) => return Ok(Some(object)),
                Ok(None) => {}
                Err(error) => keep(&mut failure, error)?,
            }
        }
        for directory in &self.directories {
            for pack in directory.known_packs() {
                match self.read_packed(op, &pack, id, max_bytes) {
                    Ok(Some(object)) => return Ok(Some(object)),
                    Ok(None) => {}
                    // Housekeeping took it away; then its objects are in a new one.
                    Err(RepositoryError::Io(e)) if is_absent(&e.source) => {}
                    Err(error) => keep(&mut failure, error)?,
                }
            }
        }
        for directory in &self.directories {
            for pack in directory.new_packs(id, &mut failure)? {
                match self.read_packed(op, &pack, id, max_bytes) {
                    Ok(Some(object)) => return Ok(Some(object)),
                    Ok(None) => {}
                    Err(error) => keep(&mut failure, error)?,
                }
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(None),
        }
    }

    /// See [`UserRepository::blob_to`](super::UserRepository::blob_to).
    pub(super) fn write_to(
        &self,
        op: &Operation,
        id: ObjectId,
        out: &mut dyn Write,
    ) -> Result<bool, ContentError> {
        let packs = || self.directories.iter().flat_map(ObjectDir::known_packs);
        let find = |pack: &Pack| Ok::<_, StoreError>(pack.index.find(&id).ok().flatten());
        for pack in packs() {
            let Some(offset) = find(&pack)? else { continue };
            // What is wrong with this copy is told, or passed over, by who looks for all of them.
            let Ok((_, size)) = pack.object_size(offset) else {
                break;
            };
            let is_whole = |offset| matches!(pack.entry_at(offset), Ok((StoredAs::Whole(_), _)));
            if size > MAX_HELD_BYTES && is_whole(offset) {
                let mut checked = Checked::new(ObjectKind::Blob, size, out);
                pack.whole_object_to(op, offset, &mut checked)?;
                return Ok(checked.finish(&id).map(|()| true)?);
            }
            let Ok((kind, bytes)) = pack.object(op, offset, u64::MAX, &self.bases) else {
                op.check().map_err(StoreError::from)?;
                break;
            };
            if ObjectId::of_trusted(kind, &bytes) == id {
                out.write_all(&bytes).map_err(ContentError::Sink)?;
                return Ok(true);
            }
        }
        for directory in &self.directories {
            let loose = directory.loose_file(id).map_err(as_corrupt(id))?;
            let Some((file, path)) = loose else { continue };
            if let Ok(object) = LooseObject::of_file(file, &path)
                && object.size > MAX_HELD_BYTES
            {
                return object.verify_to(op, &id, out).map(|()| true);
            }
        }
        match self.read(op, id, u64::MAX).map_err(as_corrupt(id))? {
            Some((_, bytes)) => out.write_all(&bytes).map_err(ContentError::Sink)?,
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Whether the object is in a pack that is known, or loose.
    fn contains(&self, id: ObjectId) -> Result<bool, RepositoryError> {
        for directory in &self.directories {
            let packs = directory.known_packs();
            if packs
                .iter()
                .any(|pack| matches!(pack.index.find(&id), Ok(Some(_))))
            {
                return Ok(true);
            }
        }
        for directory in &self.directories {
            if directory.loose_file(id)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// See [`UserRepository::object_sizes`](super::UserRepository::object_sizes).
    pub(super) fn sizes(
        &self,
        op: &Operation,
        ids: &[ObjectId],
    ) -> Result<Vec<Option<u64>>, RepositoryError> {
        if ids.is_sorted_by(|a, b| a < b) {
            return self.sizes_of_sorted(op, ids);
        }
        let mut sorted = ids.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let sizes = self.sizes_of_sorted(op, &sorted)?;
        let size_of = |id| sizes[sorted.partition_point(|other| other < id)];
        Ok(ids.iter().map(size_of).collect())
    }

    /// As [`Objects::sizes`], of ids that are sorted and unique, as they are in a pack's index.
    fn sizes_of_sorted(
        &self,
        op: &Operation,
        ids: &[ObjectId],
    ) -> Result<Vec<Option<u64>>, RepositoryError> {
        let mut sizes = vec![None; ids.len()];
        let mut open: Vec<usize> = (0..ids.len()).collect();
        for directory in &self.directories {
            let Some(first) = open.first() else {
                break;
            };
            // A pack that cannot be read tells nothing, and is no failure of this.
            directory.new_packs(ids[*first], &mut None)?;
            for pack in directory.known_packs() {
                if open.len() == ids.len() {
                    let _ = pack.sizes(op, ids, &mut |at, size| sizes[at] = Some(size));
                } else {
                    let wanted: Vec<ObjectId> = open.iter().map(|at| ids[*at]).collect();
                    let _ = pack.sizes(op, &wanted, &mut |at, size| sizes[open[at]] = Some(size));
                }
                open.retain(|at| sizes[*at].is_none());
            }
        }
        for directory in &self.directories {
            for at in &open {
                if sizes[*at].is_none() {
                    sizes[*at] = directory.loose_size(ids[*at])?;
                }
            }
        }
        Ok(sizes)
    }

    fn read_packed(
        &self,
        op: &Operation,
        pack: &Pack,
        id: ObjectId,
        max_bytes: u64,
    ) -> Result<Option<(ObjectKind, Vec<u8>)>, RepositoryError> {
        let failed = |error| from_store(id, pack.path(), error);
        let Some(offset) = pack.index.find(&id).map_err(failed)? else {
            return Ok(None);
        };
        let (_, size) = pack.object_size(offset).map_err(failed)?;
        refuse_larger(id, size, max_bytes)?;
        let (kind, bytes) = pack
            .object(op, offset, max_bytes, &self.bases)
            .map_err(failed)?;
        let corrupt = |detail: &str| RepositoryError::CorruptObject {
            id,
            path: pack.path().to_owned(),
            detail: detail.to_owned(),
        };
        match ObjectId::of(kind, &bytes) {
            Ok(found) if found == id => Ok(Some((kind, bytes))),
            Ok(_) => Err(corrupt("its content has another id")),
            Err(collision) => Err(corrupt(&collision.to_string())),
        }
    }
}

/// The objects of a repository by its common directory alone: no configuration is read.
#[derive(Debug)]
pub struct RepositoryObjects(Option<Objects>);

impl RepositoryObjects {
    /// Opens them, with all packs that are there now.
    pub fn open(common_dir: &Path) -> Self {
        let open = || {
            let objects = Objects::open(&GitDir::open(common_dir)?)?;
            for directory in &objects.directories {
                // A pack that cannot be read has nothing.
                directory.new_packs(ObjectId([0; 20]), &mut None)?;
            }
            Ok::<_, RepositoryError>(objects)
        };
        Self(open().ok())
    }

    /// Whether the object is there. Where that cannot be told, because of a trap, it is taken to
    /// be.
    pub fn has(&self, id: ObjectId) -> bool {
        let contains = |objects: &Objects| objects.contains(id).unwrap_or(true);
        self.0.as_ref().is_none_or(contains)
    }

    /// Those of `ids`, sorted and unique, of which [`RepositoryObjects::has`] says no. Each pack's
    /// index is read once for all of them, not once for each.
    pub fn missing(&self, op: &Operation, mut ids: Vec<ObjectId>) -> Vec<ObjectId> {
        let directories = self.0.iter().flat_map(|objects| &objects.directories);
        for pack in directories.flat_map(ObjectDir::known_packs) {
            let mut is_found = vec![false; ids.len()];
            // Of an index that cannot be read to its end, each id is asked for below.
            let _ = pack
                .index
                .each_offset(op, &ids, &mut |at, _| is_found[at] = true);
            let mut is_found = is_found.into_iter();
            ids.retain(|_| is_found.next() == Some(false));
        }
        ids.retain(|id| !self.has(*id));
        ids
    }

    /// The bytes of a commit of at most `max_bytes`; `None`: it is not there, damaged or no commit.
    pub fn commit(&self, op: &Operation, id: ObjectId, max_bytes: u64) -> Option<Vec<u8>> {
        match self.0.as_ref()?.read(op, id, max_bytes) {
            Ok(Some((ObjectKind::Commit, bytes))) => Some(bytes),
            _ => None,
        }
    }
}

/// As an error of a place with content.
fn as_corrupt(id: ObjectId) -> impl FnOnce(RepositoryError) -> StoreError {
    move |error| match error {
        RepositoryError::Interrupted(why) => StoreError::Interrupted(why),
        RepositoryError::Io(source) => source.into(),
        error => StoreError::corrupt(id.to_string(), error.to_string()),
    }
}

/// Keeps `error` as the answer unless a good copy is found; a trap or a limit is the answer at
/// once.
fn keep(
    failure: &mut Option<RepositoryError>,
    error: RepositoryError,
) -> Result<(), RepositoryError> {
    match error {
        RepositoryError::CorruptObject { .. } | RepositoryError::Io(_) => {
            failure.get_or_insert(error);
            Ok(())
        }
        _ => Err(error),
    }
}

impl ObjectDir {
    fn new(directory: GitDir) -> Self {
        Self {
            directory,
            packs: Mutex::default(),
        }
    }

    /// The paths that `info/alternates` names. Relative ones start from here.
    fn alternates(&self) -> Result<Vec<PathBuf>, RepositoryError> {
        let name = "info/alternates";
        let text = self.directory.read(name, MAX_ALTERNATES_BYTES)?;
        let text = text.unwrap_or_default();
        let lines = text.split(|b| *b == b'\n');
        lines
            .filter(|line| !line.is_empty() && !line.starts_with(b"#"))
            .map(|line| {
                // git takes a quoted line apart, and any other as it is.
                let path = if line.starts_with(b"\"") {
                    match unquoted(line) {
                        Some((path, [])) => path,
                        _ => {
                            return Err(RepositoryError::Damaged {
                                path: self.directory.disk_path(name),
                                reason: "a quoted path does not end".to_owned(),
                            });
                        }
                    }
                } else {
                    line.to_vec()
                };
                Ok(self.directory.path().join(path_of(&path)))
            })
            .collect()
    }

    fn read_loose(
        &self,
        op: &Operation,
        id: ObjectId,
        max_bytes: u64,
    ) -> Result<Option<(ObjectKind, Vec<u8>)>, RepositoryError> {
        let Some((file, path)) = self.loose_file(id)? else {
            return Ok(None);
        };
        let failed = |error| from_store(id, &path, error);
        let object = LooseObject::of_file(file, &path).map_err(failed)?;
        refuse_larger(id, object.size, max_bytes)?;
        let kind = object.kind;
        let mut bytes = Vec::with_capacity(
            usize::try_from(object.size.min(MAX_TRUSTED_BYTES)).expect("a small number"),
        );
        match object.verify_to(op, &id, &mut bytes) {
            Ok(()) => Ok(Some((kind, bytes))),
            Err(ContentError::Store(error)) => Err(failed(error)),
            Err(ContentError::Sink(_)) => unreachable!("a vector takes every byte"),
        }
    }

    /// The size that the header of a loose object claims. A damaged one says nothing about it.
    fn loose_size(&self, id: ObjectId) -> Result<Option<u64>, RepositoryError> {
        let Some((file, path)) = self.loose_file(id)? else {
            return Ok(None);
        };
        let object = LooseObject::of_file(file, &path);
        Ok(object.ok().map(|object| object.size))
    }

    fn loose_file(&self, id: ObjectId) -> Result<Option<(File, PathBuf)>, RepositoryError> {
        let digits = id.to_string();
        let name = format!("{}/{}", &digits[..2], &digits[2..]);
        Ok(match self.directory.find(&name)? {
            Found::File(file, _) => Some((file, self.directory.disk_path(&name))),
            Found::Directory | Found::Nothing => None,
        })
    }

    fn known_packs(&self) -> Vec<Arc<Pack>> {
        self.packs
            .lock()
            .expect("no panic while it is held")
            .clone()
    }

    /// Lists `pack` again; answers with the packs that were not known. One that cannot be opened is
    /// kept as the reason why `id` was not found.
    fn new_packs(
        &self,
        id: ObjectId,
        failure: &mut Option<RepositoryError>,
    ) -> Result<Vec<Arc<Pack>>, RepositoryError> {
        let Some(directory) = self.directory.directory("pack")? else {
            return Ok(Vec::new());
        };
        let names = directory.list(MAX_PACKS, |name| name.ends_with(b".idx"))?;
        let mut known = self.packs.lock().expect("no panic while it is held");
        let pack_path = |index: &String| directory.disk_path(index).with_extension("pack");
        let paths: HashSet<PathBuf> = names.iter().map(pack_path).collect();
        known.retain(|pack| paths.contains(pack.path()));
        let known_paths: HashSet<&Path> = known.iter().map(|pack| pack.path()).collect();
        let mut new = Vec::new();
        for name in &names {
            let path = pack_path(name);
            if known_paths.contains(path.as_path()) {
                continue;
            }
            let pack_name = format!("{}.pack", name.trim_end_matches(".idx"));
            let is_whole =
                directory.kind(name)? == Kind::File && directory.kind(&pack_name)? == Kind::File;
            if !is_whole {
                continue;
            }
            match Pack::open(&directory.disk_path(name)) {
                Ok(pack) => new.push(Arc::new(pack)),
                Err(error) => keep(failure, from_store(id, &path, error))?,
            }
        }
        known.extend(new.iter().cloned());
        Ok(new)
    }
}

fn from_store(id: ObjectId, path: &Path, error: StoreError) -> RepositoryError {
    let detail = match error {
        StoreError::Io(source) => return RepositoryError::Io(source),
        StoreError::Interrupted(interrupted) => return interrupted.into(),
        StoreError::Corrupt { detail, .. } => detail,
        other => other.to_string(),
    };
    RepositoryError::CorruptObject {
        id,
        path: path.to_owned(),
        detail,
    }
}

fn refuse_larger(id: ObjectId, size: u64, max_bytes: u64) -> Result<(), RepositoryError> {
    if size <= max_bytes {
        return Ok(());
    }
    Err(RepositoryError::TooLarge {
        what: format!("the size of object {id}"),
        limit: max_bytes,
        actual: size,
    })
}

/// Opens the object directory of another repository; `None` if there is none.
fn open_alternate(path: &Path) -> Result<Option<GitDir>, RepositoryError> {
    let path = match fs::canonicalize(path) {
        Ok(path) => path,
        Err(e) if is_absent(&e) => return Ok(None),
        // No file can have such a name.
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => return Ok(None),
        Err(e) => return Err(PathError::at("resolve", path)(e).into()),
    };
    match fs::symlink_metadata(&path) {
        Ok(meta) if meta.is_dir() => GitDir::open(&path).map(Some),
        Ok(_) => Ok(None),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(PathError::at("look at", path)(e).into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::super::testing::*;
    use super::*;
    use crate::error::ErrorKind;
    use crate::snapshot_error::SnapshotError;
    use crate::test_repository::TestRepository;

    /// The objects of a commit with a directory: commit, trees, blobs.
    fn objects_of(git: &TestRepository) -> Vec<(ObjectId, ObjectKind, Vec<u8>)> {
        let list = git.git(&["rev-list", "--objects", "--no-object-names", "--all"]);
        let object = |line: &str| {
            let (text, kind) = (id(line), git.git(&["cat-file", "-t", line]));
            let content = git.run(&git.path, &["cat-file", &kind, line]).stdout;
            let kind = match kind.as_str() {
                "commit" => ObjectKind::Commit,
                "tree" => ObjectKind::Tree,
                _ => ObjectKind::Blob,
            };
            (text, kind, content)
        };
        list.lines().map(object).collect()
    }

    #[test]
    fn what_git_has_is_there_and_what_nobody_can_tell_is_taken_to_be() {
        let git = TestRepository::with_commit();
        git.git(&["repack", "-adq"]);
        git.write("loose", "content");
        git.commit("second");
        let borrower = git.beside("borrower");
        git.git(&["clone", "-qs", ".", borrower.to_str().unwrap()]);
        for common_dir in [git.path.join(".git"), borrower.join(".git")] {
            let objects = RepositoryObjects::open(&common_dir);
            for (id, kind, content) in objects_of(&git) {
                assert!(objects.has(id));
                let commit = objects.commit(&Operation::unbounded(), id, 1 << 20);
                assert_eq!(commit, (kind == ObjectKind::Commit).then_some(content));
            }
            let absent = [ObjectId([7; 20]), ObjectId([0xf7; 20])];
            let mut ids: Vec<ObjectId> = objects_of(&git).iter().map(|object| object.0).collect();
            ids.extend(absent);
            ids.sort_unstable();
            assert_eq!(objects.missing(&Operation::unbounded(), ids), absent);
            assert!(!objects.has(ObjectId([7; 20])));
            assert_eq!(
                objects.commit(&Operation::unbounded(), ObjectId([7; 20]), 1 << 20),
                None
            );
        }

        // A pack without a sound index has nothing.
        let head = id(&git.git(&["rev-parse", "HEAD~"]));
        let directory = git.path.join(".git/objects/pack");
        let indexes = fs::read_dir(&directory).unwrap().map(|e| e.unwrap().path());
        for path in indexes.filter(|path| path.extension().is_some_and(|e| e == "idx")) {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            fs::write(&path, "no index").unwrap();
        }
        let objects = RepositoryObjects::open(&git.path.join(".git"));
        assert!(!objects.has(head));
        assert_eq!(objects.missing(&Operation::unbounded(), vec![head]), [head]);

        // A trap tells nothing.
        let digits = "08".repeat(20);
        let loose = git.path.join(".git/objects/08");
        fs::create_dir_all(&loose).unwrap();
        fifo(&loose.join(&digits[2..]));
        let common_dir = git.path.join(".git");
        assert!(in_time(
            move || RepositoryObjects::open(&common_dir).has(ObjectId([8; 20]))
        ));
        fs::remove_dir_all(&directory).unwrap();
        symlink(git.beside("elsewhere"), &directory).unwrap();
        let objects = RepositoryObjects::open(&git.path.join(".git"));
        assert!(objects.has(ObjectId([9; 20])));
        let nothing: [ObjectId; 0] = [];
        assert_eq!(
            objects.missing(&Operation::unbounded(), vec![ObjectId([9; 20])]),
            nothing
        );
    }

    #[test]
    fn sizes_are_told_of_ids_in_any_order_however_often_one_is_named() {
        let git = TestRepository::new();
        for n in 0..300 {
            git.write(format!("dir/{n}"), "x".repeat(n));
        }
        git.commit("first");
        git.git(&["repack", "-adq"]);
        for n in 0..20 {
            git.write(format!("loose/{n}"), "y".repeat(n));
        }
        git.commit("second");
        let told = git.git(&[
            "cat-file",
            "--batch-all-objects",
            "--unordered",
            "--batch-check=%(objectname) %(objectsize)",
        ]);
        let mut told: Vec<(ObjectId, Option<u64>)> = told
            .lines()
            .map(|line| line.split_once(' ').unwrap())
            .map(|(id_text, size)| (id(id_text), Some(size.parse().unwrap())))
            .collect();
        assert!(told.len() > 320);
        told.push((ObjectId([0; 20]), None));
        told.insert(0, (ObjectId([0xff; 20]), None));
        let again: Vec<_> = told.iter().copied().step_by(3).collect();
        told.extend(again.iter().chain(&again));
        let sizes = |told: &[(ObjectId, Option<u64>)]| {
            let ids: Vec<ObjectId> = told.iter().map(|(id, _)| *id).collect();
            let sizes = found(&git.path)
                .object_sizes(&Operation::unbounded(), &ids)
                .unwrap();
            assert!(sizes.iter().eq(told.iter().map(|(_, size)| size)));
        };
        sizes(&told);
        told.sort_unstable();
        sizes(&told);
        told.reverse();
        sizes(&told);
        told.truncate(2);
        sizes(&told);
        sizes(&[]);
    }

    #[test]
    fn objects_are_read_loose_packed_and_from_packs_that_came_later() {
        let git = TestRepository::with_commit();
        // Large and alike, so that a pack holds some of them as deltas.
        for n in 0..4 {
            let lines: String = (0..2000)
                .map(|l| format!("line {l} {}\n", l % (n + 7)))
                .collect();
            git.write("large", lines);
            git.commit("large");
        }
        git.write("empty", "");
        git.commit("empty");
        let objects = objects_of(&git);
        assert!(objects.len() > 10);
        let repository = found(&git.path);
        for round in ["loose", "packed", "packed again"] {
            for (id, kind, content) in &objects {
                let read = repository
                    .read_object(&Operation::unbounded(), *id, 1 << 20)
                    .unwrap();
                assert_eq!(read, Some((*kind, content.clone())), "{round}: {id}");
            }
            git.write("more", round);
            git.commit(round);
            git.git(&["repack", "-q", "-a", "-d", "-f"]);
        }
        let absent = id(&"12".repeat(20));
        assert_eq!(
            repository
                .read_object(&Operation::unbounded(), absent, 1000)
                .unwrap(),
            None
        );
        let (big, _, content) = objects.iter().max_by_key(|(_, _, c)| c.len()).unwrap();
        let too_large =
            repository.read_object(&Operation::unbounded(), *big, content.len() as u64 - 1);
        assert!(matches!(too_large, Err(RepositoryError::TooLarge { .. })));
    }

    #[test]
    fn a_damaged_loose_object_is_corrupt_in_time_unless_there_is_another_copy() {
        let git = TestRepository::with_commit();
        let text = "some content that is long enough to be cut\n".repeat(200);
        git.write("file", &text);
        git.commit("file");
        let blob = git.git(&["rev-parse", "HEAD:file"]);
        let path = git
            .path
            .join(format!(".git/objects/{}/{}", &blob[..2], &blob[2..]));
        let intact = fs::read(&path).unwrap();
        let blob = id(&blob);
        let half = intact.len() / 2;
        let mut flipped = intact.clone();
        flipped[half] ^= 0x10;
        let mut without_checksum = intact.clone();
        without_checksum.truncate(intact.len() - 4);
        let damages = [
            ("empty", Vec::new()),
            ("truncated", intact[..half].to_vec()),
            ("truncated in the header", intact[..3].to_vec()),
            ("without its checksum", without_checksum),
            ("zeroed", vec![0; intact.len()]),
            ("one bit", flipped),
            ("garbage behind it", [&intact[..], b"x"].concat()),
            ("another object", deflated(b"blob 1\0x")),
            ("claims more", deflated(b"blob 1073741824\0x")),
            (
                "claims less",
                deflated(&[b"blob 1\0", text.as_bytes()].concat()),
            ),
            (
                "claims nonsense",
                deflated(b"blob 99999999999999999999999\0x"),
            ),
            ("signed size", deflated(b"blob +1\0x")),
            ("unknown kind", deflated(b"thing 1\0x")),
            ("endless header", deflated(&[b'b'; 100_000])),
        ];
        for (what, bytes) in &damages {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            fs::write(&path, bytes).unwrap();
            let workspace = git.path.clone();
            let result = in_time(move || {
                found(&workspace).read_object(&Operation::unbounded(), blob, 2 << 30)
            });
            assert!(
                matches!(&result, Err(RepositoryError::CorruptObject { id, .. }) if *id == blob),
                "{what}: {result:?}"
            );
            let kind = SnapshotError::from(result.unwrap_err()).kind();
            assert_eq!(kind, ErrorKind::Corrupt, "{what}");
        }
        fs::write(&path, &intact).unwrap();
        git.git(&["repack", "-q", "-a"]);
        fs::write(&path, b"").unwrap();
        let read = found(&git.path)
            .read_object(&Operation::unbounded(), blob, 1 << 20)
            .unwrap();
        assert_eq!(
            read,
            Some((ObjectKind::Blob, text.into_bytes())),
            "the packed copy"
        );
    }

    #[test]
    fn a_damaged_pack_is_corrupt_and_one_without_its_index_is_not_there() {
        let git = TestRepository::with_commit();
        let commit = id(&git.git(&["rev-parse", "HEAD"]));
        git.git(&["repack", "-q", "-a", "-d"]);
        let directory = git.path.join(".git/objects/pack");
        let file = |extension: &str| {
            let entries = fs::read_dir(&directory).unwrap().map(|e| e.unwrap().path());
            let mut files = entries.filter(|p| p.extension().is_some_and(|e| e == extension));
            files.next().unwrap()
        };
        let (pack, index) = (file("pack"), file("idx"));
        for path in [&pack, &index] {
            let intact = fs::read(path).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
            for bytes in [
                Vec::new(),
                vec![0xff; intact.len()],
                intact[..intact.len() / 2].to_vec(),
            ] {
                fs::write(path, bytes).unwrap();
                let workspace = git.path.clone();
                let result = in_time(move || {
                    found(&workspace).read_object(&Operation::unbounded(), commit, 1 << 20)
                });
                assert!(
                    matches!(result, Err(RepositoryError::CorruptObject { .. })),
                    "{}: {result:?}",
                    path.display()
                );
            }
            fs::write(path, intact).unwrap();
        }
        assert!(
            found(&git.path)
                .read_object(&Operation::unbounded(), commit, 1 << 20)
                .unwrap()
                .is_some()
        );
        fs::remove_file(&pack).unwrap();
        assert_eq!(
            found(&git.path)
                .read_object(&Operation::unbounded(), commit, 1 << 20)
                .unwrap(),
            None
        );
        fifo(&pack);
        let workspace = git.path.clone();
        let result = in_time(move || {
            found(&workspace).read_object(&Operation::unbounded(), commit, 1 << 20)
        });
        assert!(is_hostile(&result), "{result:?}");
    }

    #[test]
    fn objects_of_alternates_are_read() {
        let source = TestRepository::with_commit();
        let git = TestRepository::new();
        let objects = source.path.join(".git/objects");
        fs::write(
            alternates(&git),
            format!("# comment\n\n{}\n", objects.display()),
        )
        .unwrap();
        let commit = id(&source.git(&["rev-parse", "HEAD"]));
        let repository = found(&git.path);
        assert_eq!(
            repository.object_dirs().unwrap(),
            [git.path.join(".git/objects"), objects.clone()]
        );
        assert!(
            repository
                .read_object(&Operation::unbounded(), commit, 1 << 20)
                .unwrap()
                .is_some()
        );
        source.git(&["repack", "-q", "-a", "-d"]);
        assert!(
            found(&git.path)
                .read_object(&Operation::unbounded(), commit, 1 << 20)
                .unwrap()
                .is_some()
        );

        fs::create_dir(git.beside("o \"dd\n")).unwrap();
        symlink(&objects, git.beside("o \"dd\n").join("link")).unwrap();
        symlink(&objects, git.beside("near")).unwrap();
        for line in [
            "../../../near".to_owned(),
            "\"../../../o \\\"dd\\n/link\"".to_owned(),
            "\"../../../o \\042dd\\012/link\"".to_owned(),
        ] {
            fs::write(alternates(&git), format!("{line}\n")).unwrap();
            let args = ["cat-file", "-e", &commit.to_string()];
            assert!(
                git.run(&git.path, &args).status.success(),
                "git takes {line}"
            );
            let read = found(&git.path)
                .read_object(&Operation::unbounded(), commit, 1 << 20)
                .unwrap();
            assert!(read.is_some(), "{line}");
        }
    }

    #[test]
    fn alternates_that_go_round_count_once_and_missing_ones_not_at_all() {
        let git = TestRepository::with_commit();
        let other = TestRepository::with_commit();
        let own = git.path.join(".git/objects");
        let others = other.path.join(".git/objects");
        let text = format!(
            "{}\n.\n/nowhere/objects\n{}\n",
            own.display(),
            others.display()
        );
        fs::write(alternates(&git), &text).unwrap();
        fs::write(
            alternates(&other),
            format!("{}\n{}\n", own.display(), others.display()),
        )
        .unwrap();
        assert_eq!(found(&git.path).object_dirs().unwrap(), [own, others]);
    }

    #[test]
    fn alternates_are_neither_deep_nor_many() {
        let git = TestRepository::with_commit();
        let directory = |n: usize| git.beside(&format!("objects-{n}"));
        let name = |path: &Path, text: String| {
            fs::create_dir_all(path.join("info")).unwrap();
            fs::write(path.join("info/alternates"), text).unwrap();
        };
        let own = git.path.join(".git/objects");
        name(&own, format!("{}\n", directory(1).display()));
        for n in 1..=5 {
            let next = if n < 5 {
                format!("{}\n", directory(n + 1).display())
            } else {
                String::new()
            };
            name(&directory(n), next);
        }
        assert_eq!(found(&git.path).object_dirs().unwrap().len(), 6);
        name(&directory(6), String::new());
        name(&directory(5), format!("{}\n", directory(6).display()));
        let too_deep = found(&git.path).object_dirs();
        assert!(
            matches!(too_deep, Err(RepositoryError::TooLarge { limit: 5, .. })),
            "{too_deep:?}"
        );

        let mut many = String::new();
        for n in 100..140 {
            fs::create_dir(directory(n)).unwrap();
            many.push_str(&format!("{}\n", directory(n).display()));
        }
        name(&own, many);
        let too_many = found(&git.path).object_dirs();
        assert!(
            matches!(too_many, Err(RepositoryError::TooLarge { limit: 32, .. })),
            "{too_many:?}"
        );
    }

    #[test]
    fn an_object_that_a_partial_clone_lacks_is_none_and_a_missing_commit_is_named() {
        let git = TestRepository::with_commit();
        let blob = git.git(&["rev-parse", "HEAD:src/main.c"]);
        let commit = git.git(&["rev-parse", "HEAD"]);
        for object in [&blob, &commit] {
            let path = format!(".git/objects/{}/{}", &object[..2], &object[2..]);
            fs::remove_file(git.path.join(path)).unwrap();
        }
        let repository = found(&git.path);
        assert_eq!(
            repository
                .read_object(&Operation::unbounded(), id(&blob), 1000)
                .unwrap(),
            None
        );
        let head = repository.head().unwrap();
        let result = repository.head_tree(&Operation::unbounded(), &head);
        assert!(
            matches!(&result, Err(RepositoryError::MissingObject { id: missing })
                if *missing == id(&commit))
        );
    }
}
