//! Writing loose objects into the user's repository, as git does: an object is written under a
//! temporary name, synced, and renamed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::directory::{Create, give_to, open_below, open_directory};
use super::put_error::PutError;
use super::{ObjectId, ObjectKind};
use crate::error::{PathError, printable};
use crate::operation::Operation;

/// The directory with the objects of a repository. No link below the common directory is followed.
pub struct LooseWriter {
    op: Operation,
    objects: OwnedFd,
    path: PathBuf,
    /// The directories with new names, by their two digits.
    unsynced: BTreeSet<String>,
}

impl LooseWriter {
    /// Opens `objects` in a common directory.
    pub fn open(op: &Operation, common_dir: &Path) -> Result<Self, PutError> {
        let path = common_dir.join("objects");
        let common = open_directory(common_dir)?;
        let objects = open_below(op, common.as_fd(), "objects", Create::No)
            .map_err(|errno| unsafe_or_failed(&path, errno))?;
        match objects {
            Some(objects) => Ok(Self {
                op: op.clone(),
                objects,
                path,
                unsynced: BTreeSet::new(),
            }),
            None => Err(PathError::at("open", path)(Errno::NOENT).into()),
        }
    }

    /// Writes an object of `size` bytes, which `content` passes on; that they are those of `id` is
    /// for the caller to know. The object survives a power cut once [`LooseWriter::sync`] has been
    /// called too.
    pub fn write(
        &mut self,
        kind: ObjectKind,
        id: &ObjectId,
        size: u64,
        content: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), PutError> {
        let digits = id.to_string();
        let (above, name) = digits.split_at(2);
        let path = self.path.join(above);
        let directory = open_below(&self.op, self.objects.as_fd(), above, Create::Yes)
            .map_err(|errno| unsafe_or_failed(&path, errno))?
            .expect("made where it was missing");
        let like = rustix::fs::fstat(&directory).map_err(PathError::at("look at", &path))?;
        let staged = format!("tmp_obj_{}", uuid::Uuid::new_v4().simple());
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.op
            .before()
            .map_err(PathError::at("write", path.join(name)))?;
        let fd = rustix::fs::openat(&directory, &*staged, flags, Mode::from_raw_mode(0o600))
            .map_err(PathError::at("write", path.join(name)))?;
        let mut file = File::from(fd);
        let written = self.op.before().and_then(|()| {
            let mut encoder = ZlibEncoder::new(&mut file, Compression::fast());
            encoder.write_all(format!("{} {size}\0", kind.as_str()).as_bytes())?;
            content(&mut encoder)?;
            encoder.finish()?;
            give_to(file.as_fd(), &like)?;
            file.set_permissions(std::fs::Permissions::from_mode(0o444))?;
            file.sync_all()?;
            self.op.before()?;
            Ok(rustix::fs::renameat(
                &directory, &*staged, &directory, name,
            )?)
        });
        if let Err(source) = written {
            if self.op.before().is_ok() {
                let _ = rustix::fs::unlinkat(&directory, &*staged, AtFlags::empty());
            }
            return Err(PathError::at("write", path.join(name))(source).into());
        }
        self.unsynced.insert(above.to_owned());
        Ok(())
    }

    /// Makes what was written survive a power cut.
    pub fn sync(mut self) -> Result<(), PutError> {
        if self.unsynced.is_empty() {
            return Ok(());
        }
        for above in std::mem::take(&mut self.unsynced) {
            let path = self.path.join(&above);
            let directory = open_below(&self.op, self.objects.as_fd(), &above, Create::No)
                .map_err(|errno| unsafe_or_failed(&path, errno))?;
            if let Some(directory) = directory {
                self.op.before().map_err(PathError::at("sync", &path))?;
                rustix::fs::fsync(&directory).map_err(PathError::at("sync", &path))?;
            }
        }
        self.op
            .before()
            .map_err(PathError::at("sync", &self.path))?;
        rustix::fs::fsync(&self.objects).map_err(PathError::at("sync", &self.path))?;
        Ok(())
    }
}

fn unsafe_or_failed(path: &Path, errno: Errno) -> PutError {
    match errno {
        Errno::LOOP | Errno::NOTDIR => PutError::Unsafe {
            what: printable(path),
            problem: "a link, or no directory",
        },
        errno => PathError::at("open", path)(errno).into(),
    }
}
