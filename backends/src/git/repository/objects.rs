//! The objects of the user's repository, loose and packed, its alternates' included.
//!
//! libgit2 reads none of them: version 1.9.7 waits for ever on a truncated loose object, and it maps
//! packs, so that one that is cut short meanwhile ends the process.

use std::collections::HashSet;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use flate2::bufread::ZlibDecoder;

use super::git_dir::{Found, GitDir, Kind, path_of};
use super::{RepositoryError, is_absent};
use crate::backend::StoreError;
use crate::error::{PathError, printable};
use crate::git::pack::{DeltaBases, Pack};
use crate::git::{ObjectHasher, ObjectId, ObjectKind};

/// How deep alternates may name alternates: git's own limit.
const MAX_ALTERNATE_DEPTH: usize = 5;
/// How many directories with objects a repository may have in all.
const MAX_OBJECT_DIRS: usize = 32;
/// A list of a few paths.
const MAX_ALTERNATES_BYTES: u64 = 1024 * 1024;
/// git's housekeeping begins at fifty.
const MAX_PACKS: usize = 20_000;
/// Kind, blank, a number of 20 digits and NUL.
const MAX_HEADER_BYTES: usize = 32;
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
        id: ObjectId,
        max_bytes: u64,
    ) -> Result<Option<(ObjectKind, Vec<u8>)>, RepositoryError> {
        // A damaged copy is no failure while there may be another.
        let mut failure = None;
        for directory in &self.directories {
            match directory.read_loose(id, max_bytes) {
                Ok(Some(object)) => return Ok(Some(object)),
                Ok(None) => {}
                Err(error) => keep(&mut failure, error)?,
            }
        }
        for directory in &self.directories {
            for pack in directory.known_packs() {
                match self.read_packed(&pack, id, max_bytes) {
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
                match self.read_packed(&pack, id, max_bytes) {
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

    /// See [`UserRepository::object_size`](super::UserRepository::object_size). Only the header is
    /// read, so nothing proves that the content is in order.
    pub(super) fn size(&self, id: ObjectId) -> Result<Option<u64>, RepositoryError> {
        let mut failure = None;
        for directory in &self.directories {
            let mut packs = directory.known_packs();
            if packs.is_empty() {
                packs = directory.new_packs(id, &mut failure)?;
            }
            for pack in packs {
                let failed = |error| from_pack(id, pack.path(), error);
                if let Some(offset) = pack.index.find(&id).map_err(failed)? {
                    return Ok(Some(pack.object_size(offset).map_err(failed)?.1));
                }
            }
        }
        for directory in &self.directories {
            if let Some((_, size)) = directory.loose_header(id)? {
                return Ok(Some(size));
            }
        }
        // Housekeeping may have packed it meanwhile.
        Ok(self
            .read(id, u64::MAX)?
            .map(|(_, bytes)| bytes.len() as u64))
    }

    fn read_packed(
        &self,
        pack: &Pack,
        id: ObjectId,
        max_bytes: u64,
    ) -> Result<Option<(ObjectKind, Vec<u8>)>, RepositoryError> {
        let failed = |error| from_pack(id, pack.path(), error);
        let Some(offset) = pack.index.find(&id).map_err(failed)? else {
            return Ok(None);
        };
        let (_, size) = pack.object_size(offset).map_err(failed)?;
        refuse_larger(id, size, max_bytes)?;
        let (kind, bytes) = pack
            .object(offset, max_bytes, &self.bases)
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

/// Keeps `error` as the answer unless a good copy is found; a trap or a limit is the answer at once.
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
                    unquoted(line).ok_or_else(|| RepositoryError::Damaged {
                        path: self.directory.disk_path(name),
                        reason: "a quoted path does not end".to_owned(),
                    })?
                } else {
                    line.to_vec()
                };
                Ok(self.directory.path().join(path_of(&path)))
            })
            .collect()
    }

    fn read_loose(
        &self,
        id: ObjectId,
        max_bytes: u64,
    ) -> Result<Option<(ObjectKind, Vec<u8>)>, RepositoryError> {
        let digits = id.to_string();
        let name = format!("{}/{}", &digits[..2], &digits[2..]);
        let Found::File(file, _) = self.directory.find(&name)? else {
            return Ok(None);
        };
        let path = || self.directory.disk_path(&name);
        let mut reader = Inflating {
            content: ZlibDecoder::new(BufReader::new(file)),
        };
        match reader.object(id, max_bytes) {
            Ok(object) => Ok(Some(object)),
            Err(LooseError::TooLarge(error)) => Err(error),
            Err(LooseError::Corrupt(detail)) => Err(RepositoryError::CorruptObject {
                id,
                path: path(),
                detail: detail.to_owned(),
            }),
            // What the kernel refused has a number; what the decoder did not like has none.
            Err(LooseError::Read(e)) if e.raw_os_error().is_some() => {
                Err(PathError::at("read", path())(e).into())
            }
            Err(LooseError::Read(e)) => Err(RepositoryError::CorruptObject {
                id,
                path: path(),
                detail: e.to_string(),
            }),
        }
    }

    fn loose_header(&self, id: ObjectId) -> Result<Option<(ObjectKind, u64)>, RepositoryError> {
        let digits = id.to_string();
        let name = format!("{}/{}", &digits[..2], &digits[2..]);
        let Found::File(file, _) = self.directory.find(&name)? else {
            return Ok(None);
        };
        let mut reader = Inflating {
            content: ZlibDecoder::new(BufReader::new(file)),
        };
        // A damaged object says nothing about its size: whoever needs it reads another copy.
        Ok(reader.header().ok())
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
                Err(error) => keep(failure, from_pack(id, &path, error))?,
            }
        }
        known.extend(new.iter().cloned());
        Ok(new)
    }
}

fn from_pack(id: ObjectId, path: &Path, error: StoreError) -> RepositoryError {
    match error {
        StoreError::Io(source) => RepositoryError::Io(source),
        other => RepositoryError::CorruptObject {
            id,
            path: path.to_owned(),
            detail: other.to_string(),
        },
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
        // No file has such a name, so nobody meant one.
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

/// What a line in double quotes stands for, as in C. `None`: it does not end, or holds an escape
/// that git does not write.
fn unquoted(line: &[u8]) -> Option<Vec<u8>> {
    let mut rest = line.strip_prefix(b"\"")?.iter().copied();
    let mut path = Vec::new();
    loop {
        path.push(match rest.next()? {
            b'"' => return rest.next().is_none().then_some(path),
            b'\\' => match rest.next()? {
                b'a' => 0x07,
                b'b' => 0x08,
                b'f' => 0x0c,
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'v' => 0x0b,
                byte @ (b'\\' | b'"') => byte,
                high @ b'0'..=b'3' => {
                    let digits = [high, rest.next()?, rest.next()?];
                    let digits = std::str::from_utf8(&digits).ok()?.to_owned();
                    u8::from_str_radix(&digits, 8).ok()?
                }
                _ => return None,
            },
            byte => byte,
        });
    }
}

enum LooseError {
    Corrupt(&'static str),
    TooLarge(RepositoryError),
    Read(io::Error),
}

impl From<io::Error> for LooseError {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

/// A loose object: header and content in one zlib stream (`gitformat-loose`).
struct Inflating<R> {
    content: ZlibDecoder<BufReader<R>>,
}

impl<R: Read> Inflating<R> {
    fn object(
        &mut self,
        id: ObjectId,
        max_bytes: u64,
    ) -> Result<(ObjectKind, Vec<u8>), LooseError> {
        let (kind, size) = self.header()?;
        refuse_larger(id, size, max_bytes).map_err(LooseError::TooLarge)?;
        let mut bytes = Vec::with_capacity(
            usize::try_from(size.min(MAX_TRUSTED_BYTES)).expect("a small number"),
        );
        self.content.by_ref().take(size).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != size {
            return Err(LooseError::Corrupt("it is shorter than its header says"));
        }
        // Reading on to the end of the stream also compares its checksum.
        if self.content.read(&mut [0])? != 0 {
            return Err(LooseError::Corrupt("it is longer than its header says"));
        }
        if !self.content.get_mut().fill_buf()?.is_empty() {
            return Err(LooseError::Corrupt("it is followed by garbage"));
        }
        let mut hasher = ObjectHasher::new(kind, size);
        hasher.update(&bytes);
        match hasher.finish() {
            Ok(found) if found == id => Ok((kind, bytes)),
            Ok(_) => Err(LooseError::Corrupt("its content has another id")),
            Err(_) => Err(LooseError::Corrupt("it is half of a SHA-1 collision")),
        }
    }

    fn header(&mut self) -> Result<(ObjectKind, u64), LooseError> {
        const MALFORMED: LooseError = LooseError::Corrupt("its header is malformed");
        let mut header = Vec::with_capacity(MAX_HEADER_BYTES);
        loop {
            let mut byte = [0];
            if self.content.read(&mut byte)? == 0 || header.len() == MAX_HEADER_BYTES {
                return Err(MALFORMED);
            }
            if byte[0] == 0 {
                break;
            }
            header.push(byte[0]);
        }
        let header = std::str::from_utf8(&header).map_err(|_| MALFORMED)?;
        let (kind, size) = header.split_once(' ').ok_or(MALFORMED)?;
        let kind = match kind {
            "blob" => ObjectKind::Blob,
            "tree" => ObjectKind::Tree,
            "commit" => ObjectKind::Commit,
            "tag" => return Err(LooseError::Corrupt("it is a tag")),
            _ => return Err(MALFORMED),
        };
        let is_number = !size.is_empty() && size.bytes().all(|b| b.is_ascii_digit());
        let size = size.parse().ok().filter(|_| is_number).ok_or(MALFORMED)?;
        Ok((kind, size))
    }
}
