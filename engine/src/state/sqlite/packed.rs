//! Long text, compressed.

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;

/// The longest text that is unpacked: as long as the record of a snapshot may be.
const MAX_BYTES: u64 = 1 << 30;

/// `text` as a zlib stream.
pub(super) fn pack(text: &str) -> Vec<u8> {
    let mut packer = ZlibEncoder::new(Vec::new(), Compression::default());
    packer
        .write_all(text.as_bytes())
        .expect("memory can be written to");
    packer.finish().expect("memory can be written to")
}

/// What [`pack`] was given; `None`: it gave something else.
pub(super) fn unpack(packed: &[u8]) -> Option<String> {
    let mut text = String::new();
    ZlibDecoder::new(packed)
        .take(MAX_BYTES)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back_and_what_is_alike_takes_little() {
        for text in ["", "x", &"the same again, ".repeat(10_000)] {
            let packed = pack(text);
            assert_eq!(unpack(&packed).as_deref(), Some(text));
            assert!(packed.len() < text.len() / 50 + 20, "{}", packed.len());
        }
        assert_eq!(unpack(b"something else"), None);
        let packed = pack("cut short");
        assert_eq!(unpack(&packed[..packed.len() / 2]), None);
    }
}
