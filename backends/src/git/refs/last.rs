//! A note about the ref that was made last, so that making the next one, or counting the refs, need
//! not read all of them.
//!
//! The note is a file beside the refs, and may be missing. It is valid only if nothing was
//! published since. The directory `by-id` shows this: every ref gets a file there before the ref is
//! made. (Versions that do not know the note make it after the ref.) A power cut may lose that file
//! and keep the note, so the note is not valid after a reboot.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::{Birth, Refs, SnapshotRef, parent, seq_of};
use crate::caches::{LAST_REF, SHORTCUTS};
use crate::error::PathError;
use crate::operation::Operation;
use crate::{durable, note};

/// The longest names of so many refs, and some numbers.
const MAX_BYTES: u64 = 32 << 10;
/// The most directories that the note lists as synced: that of operations by hand, and those of the
/// last runs.
const MAX_SYNCED: usize = 8;

/// What the file says.
#[derive(Debug, PartialEq, Eq)]
struct LastRef {
    /// Which start of the machine it was written after.
    boot: String,
    name: String,
    /// How many refs of snapshots there were, with this one.
    count: u64,
    /// When the directory of shortcuts was last changed: its ctime, which nobody sets back.
    changed: (i64, i64),
    /// Directories of refs that were synced with all above them, as which they were; the last one
    /// first.
    synced: Vec<(String, Birth)>,
}

/// The ref that was published last, and how many there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Newest {
    pub(crate) found: SnapshotRef,
    pub(crate) count: u64,
}

impl Refs {
    /// What was published last, if that is known without a look at all of them.
    pub(crate) fn last(&self) -> Option<Newest> {
        let last = self.noted()?;
        let is_last = Some(last.changed) == self.changed();
        let found = is_last.then(|| self.get(&last.name).ok()).flatten()??;
        let count = last.count;
        Some(Newest { found, count })
    }

    /// As what this directory of refs, by its name, was synced with all above it, as far as the
    /// file knows.
    pub(super) fn noted_as_synced(&self, directory: &str) -> Option<Birth> {
        let synced = self.noted()?.synced.into_iter();
        let mut its = synced.filter(|(name, _)| name == directory);
        its.next().map(|(_, birth)| birth)
    }

    /// Notes which ref was made last, after its shortcut was, where `before` is what was known when
    /// it was made. Best effort.
    pub(crate) fn note_last(&self, op: &Operation, made: &SnapshotRef, before: Option<&Newest>) {
        // The next number was taken right after.
        let follows = before.filter(|before| before.found.seq + 1 == made.seq);
        let count = match follows {
            Some(before) => before.count + 1,
            None => self.count().unwrap_or(0),
        };
        // One that is there counts as one.
        if count == 0 {
            let _ = self.forget_last(op);
            return;
        }
        let directory = parent(Path::new(&made.name)).to_string_lossy().into_owned();
        let earlier = self.noted().map_or_else(Vec::new, |noted| noted.synced);
        let others = earlier.into_iter().filter(|(name, _)| *name != directory);
        let its = self.synced_as(&directory);
        let its = its.map(|birth| (directory.clone(), birth)).into_iter();
        let synced: Vec<_> = its.chain(others).take(MAX_SYNCED).collect();
        let note = note::boot()
            .zip(self.changed())
            .map(|(boot, changed)| LastRef {
                boot,
                name: made.name.clone(),
                count,
                changed,
                synced,
            });
        let noted = note.map(|last| note::write(op, &self.last_path(), &last.to_text()));
        if !matches!(noted, Some(Ok(()))) {
            let _ = self.forget_last(op);
        }
    }

    /// Makes the next capture read all of them.
    pub(crate) fn forget_last(&self, op: &Operation) -> Result<(), PathError> {
        durable::remove_file(op, &self.last_path())
    }

    /// What was noted since the machine's last start.
    fn noted(&self) -> Option<LastRef> {
        let noted = LastRef::parse(&note::read(&self.last_path(), MAX_BYTES)?)?;
        (noted.boot == note::boot()?).then_some(noted)
    }

    fn last_path(&self) -> PathBuf {
        self.git_dir.join(LAST_REF)
    }

    fn changed(&self) -> Option<(i64, i64)> {
        let found = fs::symlink_metadata(self.git_dir.join(SHORTCUTS)).ok()?;
        Some((found.ctime(), found.ctime_nsec()))
    }
}

impl LastRef {
    /// A line for each part.
    fn to_text(&self) -> String {
        let (seconds, nanoseconds) = self.changed;
        let mut text = format!(
            "{}\n{}\n{}\n{seconds} {nanoseconds}\n",
            self.boot, self.name, self.count
        );
        for (name, birth) in &self.synced {
            text.push_str(&format!("{} {} {name}\n", birth.inode, birth.born_ns));
        }
        text
    }

    /// `None` if that is not what somebody wrote.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let mut next = || lines.next();
        let (boot, name, count, changed) = (next()?, next()?, next()?, next()?);
        let (seconds, nanoseconds) = changed.split_once(' ')?;
        let synced = lines.map(|line| {
            let (inode, rest) = line.split_once(' ')?;
            let (born_ns, name) = rest.split_once(' ')?;
            let birth = Birth {
                inode: inode.parse().ok()?,
                born_ns: born_ns.parse().ok()?,
            };
            Some((name.to_owned(), birth))
        });
        let synced = synced.collect::<Option<_>>()?;
        let changed = (seconds.parse().ok()?, nanoseconds.parse().ok()?);
        let count = count.parse().ok()?;
        seq_of(name).map(|_| Self {
            boot: boot.to_owned(),
            name: name.to_owned(),
            count,
            changed,
            synced,
        })
    }
}

impl Birth {
    /// That of the directory at `path`; `None`: there is none, or its file system does not tell.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let found = fs::symlink_metadata(path).ok()?;
        let born: io::Result<_> = found.created();
        let born = born.ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(Self {
            inode: found.ino(),
            born_ns: born.as_nanos(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read_again() {
        let note = LastRef {
            boot: "a-boot".to_owned(),
            name: "refs/snapshots/s/manual/7".to_owned(),
            count: 5,
            changed: (1_700_000_000, 5),
            synced: [("a", 3), ("b", 4)]
                .map(|(name, inode)| (name.to_owned(), Birth { inode, born_ns: 5 }))
                .into(),
        };
        assert_eq!(LastRef::parse(&note.to_text()), Some(note));
    }
}
