//! The user's index after a commit: the paths that the commit changed get the entries of the
//! commit.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::io::Errno;

use super::staged::digest;
use super::tree_changes::{Side, TreeChange};
use crate::descriptor;
use crate::git::index::within;
use crate::git::user_index::{IndexEntry, IndexStat, MODE_SUBMODULE, UserIndex};
use crate::git::{ObjectHasher, ObjectId, ObjectKind};
use crate::path::RelPath;
use crate::store_error::StoreError;
use crate::tree::EntryKind;
use crate::worktree::root::Root;

/// What an index follows.
pub(super) struct Follow<'a> {
    /// Between the parent's tree and the commit's.
    pub(super) changes: &'a [TreeChange],
    /// What the index staged when the commit was prepared.
    pub(super) prepared: Option<&'a str>,
    /// Whether the ref still has what the commit has at a path.
    pub(super) is_current: &'a dyn Fn(&TreeChange) -> bool,
    /// The whole tree of the commit, as changes; `None`: the ref has gone on from there.
    pub(super) whole: Option<&'a dyn Fn() -> Result<Vec<TreeChange>, StoreError>>,
    /// When the index was last written, in seconds since the Unix epoch.
    pub(super) modified_s: i64,
    /// What was to be committed, below the workspace; none: everything.
    pub(super) paths: &'a [RelPath],
    /// For the stat data of what is on disk as committed.
    pub(super) root: &'a Root,
    /// The workspace below the work tree.
    pub(super) scope: &'a RelPath,
}

impl Follow<'_> {
    /// The entries that the index gets; `None` if it stays as it is.
    ///
    /// An entry that somebody else has set since stays, and so does one in a conflict or outside of
    /// a sparse checkout.
    pub(super) fn updated(
        &self,
        index: Option<UserIndex>,
    ) -> Result<Option<(u32, Vec<IndexEntry>)>, StoreError> {
        let is_as_prepared = match &index {
            Some(index) => self.prepared == Some(&*digest(&index.entries)),
            None => self.prepared.is_none(),
        };
        let is_there = index.is_some();
        let (version, entries) = match index {
            Some(index) if index.unwritable_form().is_some() => return Ok(None),
            Some(index) => (index.version, index.entries),
            None => (2, Vec::new()),
        };
        let mut entries = Entries::of(entries);
        let whole = match self.whole.filter(|_| is_there && is_as_prepared) {
            Some(whole) => Some(sides(whole()?)),
            None => None,
        };
        let mut is_changed = match &whole {
            Some(committed) => self.forget_what_is_gone(&mut entries, committed),
            None => false,
        };
        let changes: Vec<&TreeChange> = self
            .changes
            .iter()
            .filter(|change| {
                entries.staged(&change.path).is_some_and(|now| {
                    now != change.new
                        && (is_as_prepared || now == change.old)
                        && (self.is_current)(change)
                })
            })
            .collect();
        // What goes makes room for what comes.
        for change in changes.iter().filter(|change| change.new.is_none()) {
            entries.0.remove(&change.path);
            is_changed = true;
        }
        for change in changes {
            let Some(new) = change.new else { continue };
            if entries.has_room_for(&change.path) {
                let stat = self.stat(&change.path, new).unwrap_or_default();
                entries.set(&change.path, new, stat);
                is_changed = true;
            }
        }
        if let Some(committed) = whole {
            is_changed |= self.take_back_what_is_there(&mut entries, committed);
        }
        if is_changed {
            self.doubt_what_may_have_changed(&mut entries);
        }
        Ok(is_changed.then(|| (version, entries.0.into_values().flatten().collect())))
    }

    /// What was staged and is not on disk any more was not to be committed: it goes, though the
    /// commit changes nothing at its path.
    fn forget_what_is_gone(
        &self,
        entries: &mut Entries,
        committed: &BTreeMap<RelPath, Side>,
    ) -> bool {
        let is_gone = |below: &RelPath| match self.root.lstat(below) {
            Ok(stat) => stat.file_type().is_dir(),
            Err(errno) => matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP),
        };
        let count = entries.0.len();
        entries.0.retain(|path, staged| {
            let [entry] = staged.as_slice() else {
                return true;
            };
            let is_ours = entry.stage == 0
                && !entry.is_skip_worktree
                && !entry.is_assume_unchanged
                && entry.mode != MODE_SUBMODULE
                && !committed.contains_key(path);
            let below = within(path, self.scope).filter(|below| self.is_wanted(below));
            !(is_ours && below.is_some_and(|below| is_gone(&below)))
        });
        entries.0.len() != count
    }

    /// What was staged otherwise, and is on disk as the commit has it, is staged so again.
    fn take_back_what_is_there(
        &self,
        entries: &mut Entries,
        committed: BTreeMap<RelPath, Side>,
    ) -> bool {
        let mut is_changed = false;
        for (path, side) in committed {
            let is_wanted = within(&path, self.scope).is_some_and(|below| self.is_wanted(&below));
            let is_other = entries.staged(&path).is_some_and(|now| now != Some(side));
            if is_wanted
                && is_other
                && entries.has_room_for(&path)
                && let Some(stat) = self.stat(&path, side)
            {
                entries.set(&path, side, stat);
                is_changed = true;
            }
        }
        is_changed
    }

    /// An index tells by its own time which files may have been changed since without their stat
    /// data showing it (git's Documentation/technical/racy-git). With a later time that is lost, so
    /// what it doubted is looked at now, or by git.
    fn doubt_what_may_have_changed(&self, entries: &mut Entries) {
        for (path, staged) in &mut entries.0 {
            for entry in staged {
                // Not every git goes by fractions of a second.
                let is_doubted = i64::from(entry.stat.mtime.0) >= self.modified_s;
                if is_doubted && entry.mode != MODE_SUBMODULE {
                    entry.stat = self.stat(path, (entry.mode, entry.id)).unwrap_or_default();
                }
            }
        }
    }

    fn is_wanted(&self, below: &RelPath) -> bool {
        self.paths.is_empty() || self.paths.iter().any(|path| below.starts_with(path))
    }

    /// The stat data of a file or link that is on disk, byte for byte, as committed. Without them
    /// git looks for itself.
    fn stat(&self, path: &RelPath, (mode, id): Side) -> Option<IndexStat> {
        let kind = EntryKind::from_git_mode(mode).filter(|_| mode != MODE_SUBMODULE)?;
        let below = within(path, self.scope)?;
        let (directory, name) = self.root.open_parent(&below).ok()?;
        let (found, before) = match kind {
            EntryKind::Symlink => {
                let before = kernel_stat(directory.as_fd(), name)?;
                let text = descriptor::read_link_at(directory.as_fd(), name).ok()?;
                (ObjectId::of(ObjectKind::Blob, &text).ok()?, before)
            }
            EntryKind::File | EntryKind::Executable => {
                let mut file = descriptor::open_file_at(directory.as_fd(), name).ok()?;
                let before = rustix::fs::fstat(&file).ok()?;
                let is_executable = before.st_mode & 0o100 != 0;
                if before.st_mode & 0o170_000 != 0o100_000
                    || is_executable != (kind == EntryKind::Executable)
                {
                    return None;
                }
                let size = u64::try_from(before.st_size).ok()?;
                let mut hasher = ObjectHasher::new(ObjectKind::Blob, size);
                let mut piece = vec![0; 64 * 1024];
                loop {
                    match file.read(&mut piece).ok()? {
                        0 => break,
                        count => hasher.update(&piece[..count]),
                    }
                }
                (hasher.finish().ok()?, before)
            }
        };
        let after = kernel_stat(directory.as_fd(), name)?;
        let (before, after) = (index_stat(&before), index_stat(&after));
        (found == id && before == after).then_some(after)
    }
}

/// What a whole tree has at its paths.
fn sides(whole: Vec<TreeChange>) -> BTreeMap<RelPath, Side> {
    let side = |change: TreeChange| Some((change.path, change.new?));
    whole.into_iter().filter_map(side).collect()
}

fn kernel_stat(directory: BorrowedFd<'_>, name: &[u8]) -> Option<rustix::fs::Stat> {
    use std::os::unix::ffi::OsStrExt as _;

    let name = std::ffi::OsStr::from_bytes(name);
    rustix::fs::statat(directory, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).ok()
}

/// As git keeps it: each value cut to 32 bits, but a size that would then be nothing.
pub(in crate::git) fn index_stat(stat: &rustix::fs::Stat) -> IndexStat {
    let cut = |value: i64| value as u32;
    IndexStat {
        ctime: (cut(stat.st_ctime), stat.st_ctime_nsec as u32),
        mtime: (cut(stat.st_mtime), stat.st_mtime_nsec as u32),
        dev: stat.st_dev as u32,
        ino: stat.st_ino as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: match cut(stat.st_size) {
            0 if stat.st_size != 0 => 0x8000_0000,
            size => size,
        },
    }
}

/// The entries of an index by their paths, with all of their stages.
struct Entries(BTreeMap<RelPath, Vec<IndexEntry>>);

impl Entries {
    fn of(entries: Vec<IndexEntry>) -> Self {
        let mut by_path: BTreeMap<RelPath, Vec<IndexEntry>> = BTreeMap::new();
        for entry in entries {
            by_path.entry(entry.path.clone()).or_default().push(entry);
        }
        Self(by_path)
    }

    /// What is staged at a path; `None` if that is not ours to set.
    fn staged(&self, path: &RelPath) -> Option<Option<Side>> {
        match self.0.get(path).map(Vec::as_slice) {
            None => Some(None),
            // Announced, and nothing more.
            Some([entry]) if entry.stage == 0 && entry.is_intent_to_add => Some(None),
            Some([entry]) if entry.stage == 0 && !entry.is_skip_worktree => {
                Some(Some((entry.mode, entry.id)))
            }
            Some(_) => None,
        }
    }

    /// Whether no entry is above the path, or below it.
    fn has_room_for(&self, path: &RelPath) -> bool {
        let mut above = path.parent();
        while let Some(at) = above {
            if self.0.contains_key(&at) {
                return false;
            }
            above = at.parent();
        }
        let below = [path.as_bytes(), b"/"].concat();
        let from = RelPath::new([&below[..], b"\x01"].concat()).expect("a name below a path");
        let after = self.0.range(from..).next();
        after.is_none_or(|(next, _)| !next.as_bytes().starts_with(&below))
    }

    fn set(&mut self, path: &RelPath, (mode, id): Side, stat: IndexStat) {
        let was = self.0.get(path).and_then(|entries| entries.first());
        let entry = IndexEntry {
            path: path.clone(),
            mode,
            id,
            stat,
            stage: 0,
            is_intent_to_add: false,
            is_skip_worktree: false,
            is_assume_unchanged: was.is_some_and(|entry| entry.is_assume_unchanged),
        };
        self.0.insert(path.clone(), vec![entry]);
    }
}
