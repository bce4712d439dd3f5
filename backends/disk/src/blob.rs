//! Content in files that are named by the blake3 of their bytes, each in a directory that is named
//! by the first two digits of that.

use std::io::{self, Read};

/// How much is read and hashed at a time: enough that system calls cost little beside hashing, and
/// nothing to speak of for each of many that are on their way at once.
const BUFFER_BYTES: usize = 256 * 1024;

/// The name of content: 64 lower-case hexadecimal digits.
pub fn name_of(digest: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*digest).to_hex().to_string()
}

/// The name of the directory that content lies in: a few files in each keep every look-up short.
pub fn shard_of(digest: &[u8; 32]) -> String {
    format!("{:02x}", digest[0])
}

/// The digest that has this name; `None`: none. One digest has one name.
pub fn digest_of(name: &str) -> Option<[u8; 32]> {
    let digest = *blake3::Hash::from_hex(name).ok()?.as_bytes();
    (name_of(&digest) == name).then_some(digest)
}

/// Why content was not read to its end.
#[derive(Debug)]
pub enum Stopped<E> {
    /// It could not be read.
    Read(io::Error),
    /// `take` failed.
    Take(E),
}

/// Reads `content` to its end and hands it to `take` piece by piece. Answers with its length in
/// bytes and its digest.
pub fn read<E>(
    content: &mut (impl Read + ?Sized),
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(u64, [u8; 32]), Stopped<E>> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut bytes = 0;
    loop {
        let length = match content.read(&mut buffer) {
            Ok(0) => return Ok((bytes, *hasher.finalize().as_bytes())),
            Ok(length) => length,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(Stopped::Read(e)),
        };
        // The reader may be a host's: one that lies about its length must not bring us down.
        let piece = buffer.get(..length).ok_or_else(|| {
            Stopped::Read(io::Error::other("more bytes were read than asked for"))
        })?;
        hasher.update(piece);
        take(piece).map_err(Stopped::Take)?;
        bytes += length as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_has_one_name_and_lies_where_its_first_digits_say() {
        // The blake3 of nothing, from the test vectors of BLAKE3-team/BLAKE3.
        let name = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        let digest = *blake3::hash(b"").as_bytes();
        assert_eq!(name_of(&digest), name);
        assert_eq!(shard_of(&digest), "af");
        assert_eq!(digest_of(name), Some(digest));
        for other in ["", &name[..63], &format!("{name}0"), &name.to_uppercase()] {
            assert_eq!(digest_of(other), None, "{other:?}");
        }
    }

    #[test]
    fn content_is_handed_on_as_it_is_read_and_hashed() {
        let content: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        let mut taken = Vec::new();
        let read = read::<()>(&mut &*content, |piece| {
            taken.extend_from_slice(piece);
            Ok(())
        });
        let expected = (800_000, *blake3::hash(&content).as_bytes());
        assert_eq!(read.unwrap(), expected);
        assert!(taken == content);
    }
}
