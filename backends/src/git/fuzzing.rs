//! The decoders of git's own formats, as functions of bytes: see [`crate::fuzzing`].

use std::fs;
use std::io::{self, Read as _};

use super::loose::LooseObject;
use super::object_id::ObjectId;
use super::pack::{DeltaBases, Pack};
use super::user_index::{self, IndexError, Visited};
use super::{attributes, tree_object};
use crate::error::ErrorKind;
use crate::fuzzing::{MAX_CONTENT_BYTES, with_directory};
use crate::operation::Operation;
use stillframe_git::inflate::{self, Inflate};
use stillframe_git::quoted;

const SOME_ID: ObjectId = ObjectId([7; 20]);

/// An index file. What is taken is in order, and is the same whether it is held or visited.
pub(crate) fn user_index(bytes: &[u8]) {
    let mut shared = |_: &ObjectId| Err(IndexError::BadLink("there is none"));
    let parsed = user_index::parse::<IndexError>(bytes, &mut shared);
    let mut rest = bytes;
    let mut source = |into: &mut [u8]| {
        let count = rest.read(into).expect("it is in memory");
        Ok::<_, IndexError>(count)
    };
    let mut count = 0;
    let visited = user_index::visit(&mut source, bytes.len() as u64, &mut |_| count += 1);
    if let (Ok(index), Ok(Visited::All)) = (&parsed, &visited) {
        assert_eq!(index.entries.len(), count, "both see the same");
    }
    if let Ok(index) = parsed {
        // An entry has sixty-two bytes and a path, or shares that with the one before.
        assert!(
            index.entries.len() <= bytes.len() / 62,
            "no entry is invented"
        );
        assert!(
            index.entries.is_sorted_by_key(|entry| entry.path.clone()),
            "it is in order"
        );
    }
}

/// A tree. What is taken is what git would write, but for modes that stand for others in old trees.
pub(crate) fn tree(bytes: &[u8]) {
    if let Ok(mut items) = tree_object::parse(&SOME_ID, bytes) {
        let written = tree_object::serialize(&mut items);
        let again = tree_object::parse(&SOME_ID, &written).expect("what is written is read");
        assert_eq!(again, items, "it says the same");
        assert!(
            written.len() <= bytes.len() + items.len(),
            "nothing is invented"
        );
    }
    let count = tree_object::raw_items(SOME_ID, bytes).count();
    assert!(count <= bytes.len() / 24 + 1, "no name is invented");
}

/// A deflated stream. What is taken is what flate2 makes of it, and its beginning is that of the
/// whole.
pub(crate) fn deflated(bytes: &[u8]) {
    let mut ours = Vec::new();
    let read = Inflate::new(bytes)
        .take(MAX_CONTENT_BYTES)
        .read_to_end(&mut ours);
    let mut theirs = Vec::new();
    let expected = flate2::bufread::ZlibDecoder::new(bytes)
        .take(MAX_CONTENT_BYTES)
        .read_to_end(&mut theirs);
    if (ours.len() as u64) < MAX_CONTENT_BYTES {
        assert_eq!(read.is_ok(), expected.is_ok(), "{read:?}, {expected:?}");
    }
    if read.is_ok() {
        assert_eq!(ours, theirs);
        let mut room = [0; 32];
        if let Some(beginning) = inflate::beginning(bytes, &mut room, |so_far| so_far.len() > 3) {
            assert!(ours.starts_with(beginning));
        }
    }
}

/// A loose object. It is handed out as `SOME_ID` never is.
pub(crate) fn loose(bytes: &[u8]) {
    let path = std::path::Path::new("object");
    let length = bytes.len() as u64;
    if let Ok(object) = LooseObject::new(io::Cursor::new(bytes), length, path) {
        assert!(
            object.size <= length.saturating_mul(2048),
            "no more than can be deflated"
        );
        let verified = object.verify_to(&Operation::unbounded(), &SOME_ID, &mut io::sink());
        assert!(verified.is_err(), "nothing has this id");
    }
}

/// A pack and its index: the length of the first as four bytes, little-endian, then both. An object
/// that is found right has its id.
pub(crate) fn pack(bytes: &[u8]) {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else {
        return;
    };
    let length = u32::from_le_bytes(*length) as usize;
    let Some((pack, index)) = rest.split_at_checked(length) else {
        return;
    };
    with_directory(|directory| {
        fs::write(directory.join("p.pack"), pack).expect("memory takes it");
        fs::write(directory.join("p.idx"), index).expect("memory takes it");
        let Ok(pack) = Pack::open(&directory.join("p.idx")) else {
            return;
        };
        assert!(u64::from(pack.index.count()) <= index.len() as u64 / 24);
        let _ = (pack.check(), pack.verify(&Operation::unbounded()));
        let bases = DeltaBases::default();
        for (id, offset, _) in pack
            .index
            .entries(&Operation::unbounded())
            .unwrap_or_default()
        {
            let size = pack.object_size(offset);
            let whole = pack.object(&Operation::unbounded(), offset, MAX_CONTENT_BYTES, &bases);
            if let (Ok((_, size)), Ok((kind, bytes))) = (&size, &whole) {
                assert_eq!(*size, bytes.len() as u64, "{id} as {kind:?}");
            }
        }
    });
}

/// A file of attributes.
pub(crate) fn attributes(bytes: &[u8]) {
    let _ = attributes::AttributeFile::parse(bytes);
    if let Some((name, rest)) = quoted::unquoted(bytes) {
        assert!(name.len() + rest.len() < bytes.len());
    }
}

/// The refs of a store: a loose one and a packed one.
pub(crate) fn refs(bytes: &[u8]) {
    with_directory(|git_dir| {
        let loose = git_dir.join("refs/snapshots/s/r");
        fs::create_dir_all(&loose).expect("memory takes it");
        fs::write(loose.join("1"), bytes).expect("memory takes it");
        fs::write(git_dir.join("packed-refs"), bytes).expect("memory takes it");
        let refs = super::refs::Refs::new(git_dir);
        for found in refs.snapshots().unwrap_or_default() {
            assert!(super::refs::is_of_snapshot(&found.name), "{found:?}");
        }
        let broken = refs.found().map_err(|error| error.kind());
        assert!(
            matches!(broken, Ok(_) | Err(ErrorKind::Corrupt)),
            "{broken:?}"
        );
        let _ = refs.latest();
    });
}
