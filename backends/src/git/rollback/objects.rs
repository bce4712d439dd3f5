//! The objects of a user's repository, opened through libgit2 once it is seen that nothing there is a trap for it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use crate::git::ObjectId;
use crate::git::history;
use crate::git::libgit2::oid_of;
use crate::regular_file::open_regular;

/// A commit of more is none that anybody wrote.
const MAX_COMMIT_BYTES: usize = 16 << 20;

/// Nobody borrows from more directories of objects.
const MAX_ALTERNATES: usize = 100;
/// A list of alternates of more is none that anybody wrote.
const MAX_ALTERNATES_BYTES: u64 = 64 << 10;

/// The objects of a repository, without the repository: no configuration is read.
pub(in crate::git) struct Objects {
    odb: Option<git2::Odb<'static>>,
    directory: PathBuf,
}

impl Objects {
    pub(in crate::git) fn open(common_dir: &Path) -> Self {
        let objects = common_dir.join("objects");
        let is_safe = is_safe_to_open(&objects);
        let open = || {
            let odb = git2::Odb::new().ok()?;
            odb.add_disk_alternate(objects.to_str()?).ok()?;
            Some(odb)
        };
        Self {
            odb: is_safe.then(open).flatten(),
            directory: objects,
        }
    }

    /// Whether the object is there. Where that cannot be told, it is taken to be.
    pub(in crate::git) fn has(&self, id: ObjectId) -> bool {
        self.odb.as_ref().is_none_or(|odb| odb.exists(oid_of(id)))
    }

    /// Whether the commit is there, with all parents that it names. Where that cannot be told, it is taken to be.
    pub(super) fn has_with_parents(&self, id: ObjectId) -> bool {
        self.has(id) && self.parents(id).into_iter().all(|parent| self.has(parent))
    }

    fn parents(&self, id: ObjectId) -> Vec<ObjectId> {
        let Some(odb) = self.odb.as_ref().filter(|_| self.is_safe_to_read(id)) else {
            return Vec::new();
        };
        let is_commit = |(size, kind)| kind == git2::ObjectType::Commit && size <= MAX_COMMIT_BYTES;
        if !odb.read_header(oid_of(id)).is_ok_and(is_commit) {
            return Vec::new();
        }
        let commit = odb.read(oid_of(id));
        commit.map_or_else(
            |_| Vec::new(),
            |commit| history::parents_of(id, commit.data()),
        )
    }

    /// It would wait for ever on a FIFO in the place of a loose object too.
    fn is_safe_to_read(&self, id: ObjectId) -> bool {
        let digits = id.to_string();
        let loose = self.directory.join(&digits[..2]).join(&digits[2..]);
        std::fs::symlink_metadata(loose).map_or(true, |meta| meta.is_file())
    }
}

/// Whether libgit2 can open a directory of objects, and those that it borrows from: it would wait for ever on a FIFO in the
/// place of a pack, an index or the list of alternates.
fn is_safe_to_open(objects: &Path) -> bool {
    let mut pending = vec![objects.to_owned()];
    let mut seen = BTreeSet::new();
    while let Some(objects) = pending.pop() {
        if !seen.insert(objects.canonicalize().unwrap_or_else(|_| objects.clone())) {
            continue;
        }
        let list = objects.join("info/alternates");
        if seen.len() > MAX_ALTERNATES || !is_file_or_absent(&list) || has_trap(&objects) {
            return false;
        }
        pending.extend(alternates(&list).map(|path| objects.join(path)));
    }
    true
}

fn is_file_or_absent(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |found| found.is_file())
}

/// Whether something other than a file has the name of a pack, or of an index of packs.
fn has_trap(objects: &Path) -> bool {
    let is_opened = |name: &[u8]| {
        name.ends_with(b".idx") || name.ends_with(b".pack") || name == b"multi-pack-index"
    };
    let names = std::fs::read_dir(objects.join("pack"));
    let mut names = names.into_iter().flatten().flatten();
    names.any(|entry| is_opened(entry.file_name().as_bytes()) && !is_file_or_absent(&entry.path()))
}

/// The directories that a list of alternates names; none if it cannot be read.
fn alternates(list: &Path) -> impl Iterator<Item = PathBuf> {
    let mut text = Vec::new();
    let read = open_regular(File::options().read(true), list)
        .and_then(|file| file.take(MAX_ALTERNATES_BYTES).read_to_end(&mut text));
    let text = read.map_or_else(|_| Vec::new(), |_| text);
    let lines: Vec<Vec<u8>> = text.split(|byte| *byte == b'\n').map(Vec::from).collect();
    let lines = lines.into_iter();
    let named = lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    named.map(|line| PathBuf::from(OsString::from_vec(line)))
}
