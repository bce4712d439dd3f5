//! Loose objects: files with one object each, `objects/<2 digits>/<38 digits>`.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use super::inflate::Inflate;
use super::pack::copy_exactly;
use super::{ObjectHasher, ObjectId, ObjectKind};
use crate::contents::ContentError;
use crate::error::{PathError, printable};
use crate::operation::Operation;
use crate::store_error::StoreError;

/// No stream of zlib's inflates to more bytes than this for each of its own (zlib's technical
/// notes, "Maximum Compression Factor"): what claims more is lying.
const MAX_EXPANSION: u64 = 1032;
/// A kind, a space, twenty digits and a NUL.
const MAX_HEADER_BYTES: usize = 32;

/// A loose object whose header was read. Its content is still to be checked.
pub struct LooseObject<'p, R> {
    /// What the header claims.
    pub kind: ObjectKind,
    /// What the header claims, in bytes; possible for a file of this length.
    pub size: u64,
    content: Inflate<BufReader<R>>,
    path: &'p Path,
}

impl<'p> LooseObject<'p, File> {
    /// Reads the header of `file`. `path` is for messages.
    pub fn of_file(file: File, path: &'p Path) -> Result<Self, StoreError> {
        let length = file
            .metadata()
            .map_err(PathError::at("look at", path))?
            .len();
        Self::new(file, length, path)
    }
}

impl<'p, R: Read> LooseObject<'p, R> {
    /// Reads the header of a file of `length` bytes. `path` is for messages.
    pub fn new(file: R, length: u64, path: &'p Path) -> Result<Self, StoreError> {
        let mut content = Inflate::new(BufReader::with_capacity(16 * 1024, file));
        let mut header = Vec::with_capacity(MAX_HEADER_BYTES);
        let mut byte = [0];
        loop {
            match content.read(&mut byte) {
                Ok(0) => return Err(corrupt(path, "it has no header")),
                Ok(_) if byte[0] == 0 => break,
                Ok(_) if header.len() == MAX_HEADER_BYTES => {
                    return Err(corrupt(path, "it has no header"));
                }
                Ok(_) => header.push(byte[0]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(unreadable(path, e)),
            }
        }
        let (kind, size) =
            parse_header(&header).ok_or_else(|| corrupt(path, "its header is malformed"))?;
        if size > length.saturating_mul(MAX_EXPANSION) {
            return Err(corrupt(path, "it claims more than its bytes can hold"));
        }
        Ok(Self {
            kind,
            size,
            content,
            path,
        })
    }

    /// Passes the content on, and checks that all of it is the object `id`. On `Err` some of it may
    /// have been passed on.
    pub fn verify_to(
        mut self,
        op: &Operation,
        id: &ObjectId,
        out: &mut dyn Write,
    ) -> Result<(), ContentError> {
        let mut checked = Checked::new(self.kind, self.size, out);
        copy_exactly(op, &mut self.content, self.size, &mut checked, |e| {
            unreadable(self.path, e)
        })?;
        checked.finish(id)?;
        match self.content.ends_its_input() {
            Ok(true) => Ok(()),
            Ok(false) => Err(corrupt(self.path, "something follows the object").into()),
            Err(e) => Err(unreadable(self.path, e).into()),
        }
    }
}

/// Passes bytes on and hashes them.
pub struct Checked<'a> {
    out: &'a mut dyn Write,
    hasher: ObjectHasher,
}

impl<'a> Checked<'a> {
    /// For an object of `size` bytes.
    pub fn new(kind: ObjectKind, size: u64, out: &'a mut dyn Write) -> Self {
        Self {
            out,
            hasher: ObjectHasher::new(kind, size),
        }
    }

    /// `Corrupt` unless the object `id` was passed on.
    pub fn finish(self, id: &ObjectId) -> Result<(), StoreError> {
        match self.hasher.finish() {
            Ok(found) if found == *id => Ok(()),
            Ok(found) => Err(StoreError::corrupt(
                id.to_string(),
                format!("its bytes are those of {found}"),
            )),
            Err(collision) => Err(StoreError::corrupt(id.to_string(), collision.to_string())),
        }
    }
}

impl Write for Checked<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn parse_header(header: &[u8]) -> Option<(ObjectKind, u64)> {
    let space = header.iter().position(|b| *b == b' ')?;
    let kind = match &header[..space] {
        b"commit" => ObjectKind::Commit,
        b"tree" => ObjectKind::Tree,
        b"blob" => ObjectKind::Blob,
        _ => return None,
    };
    let digits = std::str::from_utf8(&header[space + 1..]).ok()?;
    if !digits.bytes().all(|b| b.is_ascii_digit()) || (digits.len() > 1 && digits.starts_with('0'))
    {
        return None;
    }
    Some((kind, digits.parse().ok()?))
}

fn corrupt(path: &Path, detail: &str) -> StoreError {
    StoreError::corrupt(printable(path), detail)
}

fn unreadable(path: &Path, error: io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => {
            corrupt(path, &error.to_string())
        }
        _ => PathError::at("read", path)(error).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::test_repository::TestRepository;

    fn deflated(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn read(bytes: &[u8], id: &ObjectId) -> Result<Vec<u8>, StoreError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("object");
        fs::write(&path, bytes).unwrap();
        let object = LooseObject::of_file(File::open(&path).unwrap(), &path)?;
        let mut out = Vec::new();
        match object.verify_to(&Operation::unbounded(), id, &mut out) {
            Ok(()) => Ok(out),
            Err(ContentError::Store(error)) => Err(error),
            Err(ContentError::Sink(error)) => panic!("memory refused: {error}"),
        }
    }

    #[test]
    fn objects_that_git_wrote_are_read() {
        let repository = TestRepository::with_commit();
        let objects = repository.git(&["cat-file", "--batch-all-objects", "--batch-check"]);
        assert_eq!(objects.lines().count(), 4, "a blob, two trees, a commit");
        for line in objects.lines() {
            let (id, kind) = (&line[..40], line[41..].split(' ').next().unwrap());
            let path = format!(".git/objects/{}/{}", &id[..2], &id[2..]);
            let bytes = fs::read(repository.path.join(path)).unwrap();
            let content = read(&bytes, &id.parse().unwrap()).unwrap();
            let expected = repository.run(&repository.path, &["cat-file", kind, id]);
            assert!(content == expected.stdout, "{line}");
        }
    }

    #[test]
    fn whatever_is_wrong_with_an_object_is_corrupt() {
        let content = b"blob 12\0some content";
        let id = ObjectId::of(ObjectKind::Blob, b"some content").unwrap();
        let good = deflated(content);
        assert_eq!(read(&good, &id).unwrap(), b"some content");
        let mut bad = vec![
            Vec::new(),
            vec![0; 50],
            [&good[..], b"more"].concat(),
            deflated(b"blob 12\0some contenT"),
            deflated(b"blob 11\0some content"),
            deflated(b"blob 13\0some content"),
            deflated(b"blob 012\0some content"),
            deflated(b"blob +12\0some content"),
            deflated(b"tree 12\0some content"),
            deflated(b"blog 12\0some content"),
            deflated(b"blob 1073741824\0some content"),
            deflated(b"blob 99999999999999999999999\0some content"),
            deflated(&[b'x'; 1000]),
        ];
        bad.extend((1..good.len()).map(|length| good[..length].to_vec()));
        for bytes in bad {
            let result = read(&bytes, &id);
            assert!(
                matches!(result, Err(StoreError::Corrupt { .. })),
                "{bytes:?}: {result:?}"
            );
        }
    }
}
