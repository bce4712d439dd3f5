//! The refs of a repository, read as files.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::lock::{Locks, New, Place, Verdict};
use super::moves::shown;
use crate::error::PathError;
use crate::git::ObjectId;
use crate::git::directory::{Create, open_below, open_directory, read_file};
use crate::git::put_error::PutError;
use crate::git::repository::split;
use crate::operation::Operation;

/// The most that is read of a loose ref or of HEAD; git writes far less.
const MAX_REF_BYTES: u64 = 4096;

/// The most that is read of `packed-refs`: some ten million refs.
const MAX_PACKED_REFS_BYTES: u64 = 1024 * 1024 * 1024;

pub(in crate::git) const PACKED_REFS: &str = "packed-refs";

/// The refs of a repository, read as files.
pub(in crate::git) struct Refs {
    pub(in crate::git) common: OwnedFd,
    pub(in crate::git) path: PathBuf,
}

impl Refs {
    pub(in crate::git) fn open(common_dir: &Path) -> Result<Self, PutError> {
        Ok(Self {
            common: open_directory(common_dir)?,
            path: common_dir.to_owned(),
        })
    }

    /// The commit that a ref names; `None` if there is no such ref. A symbolic ref is an error.
    pub(in crate::git) fn resolve(
        &self,
        op: &Operation,
        name: &str,
    ) -> Result<Option<ObjectId>, PutError> {
        let Some(text) = self.loose(op, name)? else {
            let packed = self.packed()?;
            return Ok(packed.as_deref().and_then(|p| find_packed(p, name)));
        };
        let text = String::from_utf8_lossy(&text);
        text.trim().parse().map(Some).map_err(|_| PutError::Unsafe {
            what: name.to_owned(),
            problem: "a symbolic ref, or damaged",
        })
    }

    /// The ref that a symbolic one leads to, as it says.
    pub(super) fn leads_to(&self, op: &Operation, name: &str) -> Option<String> {
        let text = String::from_utf8(self.loose(op, name).ok()??).ok()?;
        Some(text.strip_prefix("ref:")?.trim().to_owned())
    }

    /// The text of a loose ref; `None` if there is none, as where another ref stands above it.
    fn loose(&self, op: &Operation, name: &str) -> Result<Option<Vec<u8>>, PutError> {
        let (directory, leaf) = split(name);
        match open_below(op, self.common.as_fd(), directory, Create::No) {
            Ok(Some(fd)) => read_file(fd.as_fd(), leaf.as_bytes(), MAX_REF_BYTES, &self.path),
            Ok(None) => Ok(None),
            Err(Errno::NOTDIR) if self.loose_above(op, name)?.is_some() => Ok(None),
            Err(errno) => Err(self.unsafe_path(name, errno)),
        }
    }

    pub(in crate::git) fn packed(&self) -> Result<Option<Vec<u8>>, PutError> {
        read_file(
            self.common.as_fd(),
            PACKED_REFS.as_bytes(),
            MAX_PACKED_REFS_BYTES,
            &self.path,
        )
    }

    /// Removes what a crash has left of a lock of ours for a ref.
    pub(in crate::git) fn release_what_a_crash_left(
        &self,
        op: &Operation,
        locks: &Locks<'_>,
        name: &str,
    ) {
        let (above, leaf) = split(name);
        let opened = open_below(op, self.common.as_fd(), above, Create::No);
        // A ref or a link in place of the directory is told by what looks for the ref.
        let Ok(Some(directory)) = opened else {
            return;
        };
        let place = Place {
            directory: directory.as_fd(),
            path: &self.path.join(above),
            name: leaf,
        };
        locks.release_what_a_crash_left(op, &place);
    }

    /// A directory with refs, made where it is missing.
    pub(super) fn directory(&self, op: &Operation, name: &str) -> Result<OwnedFd, PutError> {
        let opened = open_below(op, self.common.as_fd(), name, Create::Yes)
            .map_err(|errno| self.unsafe_path(name, errno))?;
        Ok(opened.expect("made where it was missing"))
    }

    /// Moves a ref from one commit to another, by compare-and-swap.
    pub(in crate::git) fn move_to(
        &self,
        op: &Operation,
        locks: &Locks<'_>,
        name: &str,
        from: Option<ObjectId>,
        to: Option<ObjectId>,
    ) -> Result<(), PutError> {
        let (directory, leaf) = split(name);
        let opened = self.directory(op, directory)?;
        let path = self.path.join(directory);
        let place = Place {
            directory: opened.as_fd(),
            path: &path,
            name: leaf,
        };
        // The loose file is not the whole truth: a ref may be packed.
        let is_right = |_: Option<&[u8]>| {
            let now = self.resolve(op, name)?;
            if now == to {
                return Ok(Verdict::Right);
            }
            if now != from {
                return Err(PutError::Moved {
                    what: name.to_owned(),
                    expected: shown(from),
                    found: shown(now),
                });
            }
            match (from, to) {
                (_, None) => self.drop_packed(op, locks, name)?,
                (Some(_), Some(_)) => self.make_room(op, opened.as_fd(), name)?,
                (None, Some(_)) => {
                    // It may have come since there was found to be room.
                    if let Some((what, _)) = self.in_the_way_of(op, name)?.pop_first() {
                        return Err(PutError::Changed { what });
                    }
                    self.make_room(op, opened.as_fd(), name)?;
                }
            }
            Ok(Verdict::Replace)
        };
        let text = to.map(|commit| format!("{commit}\n"));
        locks.replace(
            op,
            &place,
            text.as_ref().map(|t| New::of(t.as_bytes())),
            &is_right,
        )
    }

    fn drop_packed(&self, op: &Operation, locks: &Locks<'_>, name: &str) -> Result<(), PutError> {
        let Some(text) = self.packed()? else {
            return Ok(());
        };
        if find_packed(&text, name).is_none() {
            return Ok(());
        }
        let place = Place {
            directory: self.common.as_fd(),
            path: &self.path,
            name: PACKED_REFS,
        };
        let kept = without_packed(&text, name);
        let is_right = |now: Option<&[u8]>| match now {
            Some(now) if now == text => Ok(Verdict::Replace),
            _ => Err(PutError::Moved {
                what: "packed-refs".to_owned(),
                expected: "as it was read".to_owned(),
                found: "changed".to_owned(),
            }),
        };
        locks.replace(op, &place, Some(New::of(&kept)), &is_right)
    }

    pub(in crate::git) fn unsafe_path(&self, name: &str, errno: Errno) -> PutError {
        match errno {
            Errno::LOOP | Errno::NOTDIR => PutError::Unsafe {
                what: name.to_owned(),
                problem: "below a link, or below another ref",
            },
            errno => PathError::at("open", self.path.join(name))(errno).into(),
        }
    }
}

/// The id of `name` in the text of `packed-refs`.
pub(in crate::git) fn find_packed(text: &[u8], name: &str) -> Option<ObjectId> {
    text.split(|b| *b == b'\n').find_map(|line| {
        let (id, rest) = line.split_at_checked(40)?;
        if rest.strip_prefix(b" ")?.trim_ascii_end() != name.as_bytes() {
            return None;
        }
        std::str::from_utf8(id).ok()?.parse().ok()
    })
}

/// What the text of `packed-refs` names, each by an id and a name, but for names that are not
/// UTF-8.
pub(super) fn packed_refs(text: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.split(|b| *b == b'\n');
    lines.filter_map(|line| {
        let (id, name) = std::str::from_utf8(line).ok()?.split_at_checked(40)?;
        Some((id, name.strip_prefix(' ')?.trim_ascii_end()))
    })
}

/// The text of `packed-refs` without `name`, and without the line that peels it.
pub(in crate::git) fn without_packed(text: &[u8], name: &str) -> Vec<u8> {
    let mut kept = Vec::with_capacity(text.len());
    let mut is_dropping = false;
    for line in text.split_inclusive(|b| *b == b'\n') {
        is_dropping = if line.starts_with(b"^") {
            is_dropping
        } else {
            line.get(40..)
                .and_then(|rest| rest.strip_prefix(b" "))
                .is_some_and(|rest| rest.trim_ascii_end() == name.as_bytes())
        };
        if !is_dropping {
            kept.extend_from_slice(line);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_packed_refs_goes_with_the_line_that_peels_it() {
        let id = "0123456789012345678901234567890123456789";
        let text = format!(
            "# pack-refs with: peeled fully-peeled sorted \n{id} refs/heads/a\n{id} refs/tags/b\n^{id}\n{id} refs/tags/b2\n"
        );
        assert_eq!(find_packed(text.as_bytes(), "refs/tags/b"), id.parse().ok());
        assert_eq!(find_packed(text.as_bytes(), "refs/tags"), None);
        let kept = without_packed(text.as_bytes(), "refs/tags/b");
        assert_eq!(
            String::from_utf8(kept).unwrap(),
            text.replace(&format!("{id} refs/tags/b\n^{id}\n"), "")
        );
    }
}
