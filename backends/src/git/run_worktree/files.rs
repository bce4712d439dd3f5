//! The files of a run's work tree, written as git writes them when it checks a commit out.

use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use super::contents::{Item, TreeContents};
use crate::contents::ContentError;
use crate::error::PathError;
use crate::git::ObjectId;
use crate::git::commit::{Conversion, MAX_ATTRIBUTES_BYTES, Smudging, index_stat};
use crate::git::repository::UserRepository;
use crate::git::user_index::IndexStat;
use crate::operation::Operation;
use crate::parallel;
use crate::path::RelPath;
use crate::run_worktree::RunWorktreeError;
use crate::store_error::StoreError;
use crate::tree::EntryKind;
use crate::worktree::new_files::{Hand, NewFiles};

/// Fewer files than this are written by one thread.
const FILES_PER_THREAD: usize = 64;

/// A pointer of git-lfs has a few lines.
const MAX_POINTER_BYTES: usize = 1024;

/// Where the files come from.
pub(super) struct Source<'a> {
    pub(super) op: &'a Operation,
    pub(super) repository: &'a UserRepository,
    pub(super) commit: ObjectId,
    pub(super) contents: &'a TreeContents,
    pub(super) smudging: &'a Smudging,
}

/// What became of an item.
#[derive(Clone, Copy, Default)]
pub(super) struct Written {
    pub(super) stat: IndexStat,
    /// Of a file.
    pub(super) bytes: u64,
    /// It has what is stored, though more applies to it.
    pub(super) is_unconverted: bool,
}

impl Source<'_> {
    /// Writes all of it on every core; answers in the order of the items.
    pub(super) fn write_to(&self, files: &NewFiles<'_>) -> Result<Vec<Written>, RunWorktreeError> {
        let has_failed = AtomicBool::new(false);
        let items = &self.contents.items;
        let parts = parallel::in_parts(items, FILES_PER_THREAD, |part| {
            let written = self.write_part(part, files.hand(), &has_failed);
            has_failed.fetch_or(written.is_err(), Ordering::Relaxed);
            written
        });
        let mut all = Vec::with_capacity(items.len());
        for part in parts {
            all.extend(part?);
        }
        Ok(all)
    }

    /// Ends early once another thread has failed, whose error is told.
    fn write_part(
        &self,
        part: &[Item],
        mut hand: Hand<'_>,
        has_failed: &AtomicBool,
    ) -> Result<Vec<Written>, RunWorktreeError> {
        let is_file =
            |item: &&Item| matches!(item.kind, Some(EntryKind::File | EntryKind::Executable));
        let paths = part.iter().filter(is_file).map(|item| &item.path);
        let mut read = |directory: &RelPath| self.attribute_file(directory);
        let conversions = self.smudging.conversions(paths, &mut read)?;
        let mut conversions = conversions.into_iter();
        let mut written = Vec::with_capacity(part.len());
        for item in part {
            if has_failed.load(Ordering::Relaxed) {
                break;
            }
            let done = match item.kind {
                None => hand.directory(&item.path).map(|()| Written::default()),
                Some(EntryKind::Symlink) => self.link(item, &mut hand),
                Some(kind) => {
                    let conversion = conversions.next().expect("each file has one");
                    self.file(item, kind, &conversion, &mut hand)
                }
            };
            written.push(done.map_err(|error| self.error(error, item, &hand))?);
        }
        Ok(written)
    }

    /// The text of the attribute file that the tree has in a directory; one that is too large is
    /// none, as with git.
    fn attribute_file(
        &self,
        directory: &RelPath,
    ) -> Result<Option<Vec<u8>>, crate::commit::CommitError> {
        let Some(id) = self.contents.attributes.get(directory) else {
            return Ok(None);
        };
        let sizes = self.repository.object_sizes(self.op, &[*id])?;
        if sizes[0].is_some_and(|size| size > MAX_ATTRIBUTES_BYTES) {
            return Ok(None);
        }
        let object = self
            .repository
            .read_object(self.op, *id, MAX_ATTRIBUTES_BYTES)?;
        Ok(object.map(|(_, bytes)| bytes))
    }

    fn link(&self, item: &Item, hand: &mut Hand<'_>) -> Result<Written, ContentError> {
        let mut text = Vec::new();
        self.blob_to(item.id, &mut text)?;
        // Where links are switched off, git keeps the text of one in a file.
        let stat = match self.smudging.settings().is_on("core", "symlinks") {
            Some(false) => hand.file(&item.path, false, |out| put(out, &text))?,
            _ => hand.link(&item.path, &text)?,
        };
        Ok(Written {
            stat: index_stat(&stat),
            ..Written::default()
        })
    }

    fn file(
        &self,
        item: &Item,
        kind: EntryKind,
        conversion: &Conversion,
        hand: &mut Hand<'_>,
    ) -> Result<Written, ContentError> {
        let mut is_unconverted = false;
        let stat = hand.file(&item.path, kind == EntryKind::Executable, |out| {
            if conversion.writes_as_stored() && conversion.unsupported.is_none() {
                return self.blob_to(item.id, out);
            }
            let mut bytes = Vec::new();
            self.blob_to(item.id, &mut bytes)?;
            let bytes = conversion.to_worktree(&bytes, item.id);
            if let Some(mut object) = self.large_object(conversion, &bytes) {
                io::copy(&mut object, out).map_err(ContentError::Sink)?;
                return Ok(());
            }
            is_unconverted = conversion.unsupported.is_some();
            put(out, &bytes)
        })?;
        Ok(Written {
            stat: index_stat(&stat),
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            is_unconverted,
        })
    }

    /// What a pointer of git-lfs stands for, if that is here.
    fn large_object(&self, conversion: &Conversion, pointer: &[u8]) -> Option<File> {
        if !conversion.is_large_file_storage() {
            return None;
        }
        let (digits, size) = pointed_at(pointer)?;
        let objects = self.repository.common_dir().join("lfs/objects");
        let path = objects.join(&digits[..2]).join(&digits[2..4]).join(digits);
        let object = crate::open_regular(File::options().read(true), &path).ok()?;
        let is_whole = object.metadata().is_ok_and(|found| found.len() == size);
        is_whole.then_some(object)
    }

    fn blob_to(&self, id: ObjectId, out: &mut dyn Write) -> Result<(), ContentError> {
        match self.repository.blob_to(self.op, id, out)? {
            true => Ok(()),
            false => {
                Err(StoreError::corrupt(id.to_string(), crate::git::repository::NOT_THERE).into())
            }
        }
    }

    fn error(&self, error: ContentError, item: &Item, hand: &Hand<'_>) -> RunWorktreeError {
        match error {
            ContentError::Sink(source) => {
                PathError::at("write", hand.told(&item.path))(source).into()
            }
            ContentError::Store(error) => of_commit(error, self.commit),
        }
    }
}

/// What is missing is the commit's.
pub(super) fn of_commit(error: StoreError, commit: ObjectId) -> RunWorktreeError {
    match error {
        StoreError::Corrupt { what, detail } if detail == crate::git::repository::NOT_THERE => {
            RunWorktreeError::Incomplete {
                object: what,
                commit: commit.to_string(),
            }
        }
        error => error.into(),
    }
}

fn put(out: &mut dyn Write, bytes: &[u8]) -> Result<(), ContentError> {
    out.write_all(bytes).map_err(ContentError::Sink)
}

/// The SHA-256 in hexadecimal digits, and the size, of what a pointer of git-lfs stands for.
fn pointed_at(pointer: &[u8]) -> Option<(&str, u64)> {
    let text = std::str::from_utf8(pointer).ok()?;
    if pointer.len() > MAX_POINTER_BYTES || !text.starts_with("version ") {
        return None;
    }
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
    let digits = value("oid sha256:")?;
    let is_id = digits.len() == 64
        && digits
            .bytes()
            .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    Some((digits, value("size ")?.parse().ok()?)).filter(|_| is_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_is_told_from_all_else() {
        let digits = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393";
        let pointer = format!(
            "version https://git-lfs.github.com/spec/v1\noid sha256:{digits}\nsize 12345\n"
        );
        assert_eq!(pointed_at(pointer.as_bytes()), Some((digits, 12345)));
        for other in [
            pointer.replace("version", "revision"),
            pointer.replace(digits, "../../../../etc/passwd"),
            pointer.replace("size 12345", "size many"),
            format!("{pointer}{}", "x".repeat(1024)),
        ] {
            assert_eq!(pointed_at(other.as_bytes()), None, "{other}");
        }
    }
}
