//! The extensions of an index file, which follow its entries.

use sha1::{Digest as _, Sha1};

use super::stream::scan;
use super::{IndexError, TRAILER_BYTES, source_of};
use crate::ObjectId;

/// The trees that git has for directories whose entries did not change.
const TREES: &[u8; 4] = b"TREE";

/// Where the extensions begin, with a digest of their names.
const PLACES: &[u8; 4] = b"EOIE";

/// The trees that an index's cache of trees names; none if it has no such cache, or if the cache
/// cannot be read.
pub fn cached_trees(index: &[u8]) -> Vec<ObjectId> {
    let found = extensions(index).unwrap_or_default();
    let caches = found.iter().filter(|extension| &extension.name == TREES);
    let named = caches.map(|cache| trees(&cache.bytes[8..]).unwrap_or_default());
    named.collect::<Vec<_>>().concat()
}

/// The same index without that cache.
pub fn without_cached_trees(index: &[u8]) -> Result<Vec<u8>, IndexError> {
    let found = extensions(index)?;
    let all: usize = found.iter().map(|extension| extension.bytes.len()).sum();
    let end = index.len() - TRAILER_BYTES;
    let mut bytes = index[..end - all].to_vec();
    for extension in found {
        if ![TREES, PLACES].contains(&&extension.name) {
            bytes.extend(extension.bytes);
        }
    }
    // Under `index.skipHash` git leaves the checksum out.
    match index[end..] == [0; TRAILER_BYTES] {
        true => bytes.extend([0; TRAILER_BYTES]),
        false => {
            let checksum = Sha1::digest(&bytes);
            bytes.extend(checksum);
        }
    }
    Ok(bytes)
}

struct Extension<'a> {
    name: [u8; 4],
    /// With its name and length.
    bytes: &'a [u8],
}

fn extensions(index: &[u8]) -> Result<Vec<Extension<'_>>, IndexError> {
    let outline = scan(&mut source_of(index), index.len() as u64, &mut |_, _| {})?;
    let end = index.len() - TRAILER_BYTES;
    let length = usize::try_from(outline.extension_bytes).expect("they are in memory");
    let mut rest = &index[end - length..end];
    let mut found = Vec::new();
    while let Some((name, [a, b, c, d, ..])) = rest.split_first_chunk() {
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        let (bytes, after) = rest.split_at(8 + length);
        found.push(Extension { name: *name, bytes });
        rest = after;
    }
    Ok(found)
}

/// Of each directory a name, a NUL, how many entries and directories it has, and unless it was
/// changed its id.
fn trees(mut rest: &[u8]) -> Option<Vec<ObjectId>> {
    let mut ids = Vec::new();
    while !rest.is_empty() {
        let name = rest.iter().position(|byte| *byte == 0)?;
        let counts = &rest[name + 1..];
        let end = counts.iter().position(|byte| *byte == b'\n')?;
        let is_changed = counts[0] == b'-';
        rest = &counts[end + 1..];
        if !is_changed {
            let (id, after) = rest.split_first_chunk()?;
            ids.push(ObjectId(*id));
            rest = after;
        }
    }
    Some(ids)
}
