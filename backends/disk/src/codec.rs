//! The file format of manifests and stat caches. The restore journal has frames of another format,
//! and shares the encoding of their bodies.
//!
//! A file, or a frame of one, is: magic (8 bytes), version (`u32`), length of the body (`u64`),
//! blake3 of the body (32 bytes), body; numbers are little-endian. The checksum is compared before
//! anything is decoded. Memory for a length field is allocated only if the file has that many
//! bytes.

use std::cmp::Ordering;

use bincode::Options as _;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How much every file, or frame of one, begins with.
pub const HEADER_BYTES: usize = 8 + 4 + 8 + blake3::OUT_LEN;

/// One kind of file.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// What such a file begins with.
    pub magic: [u8; 8],
    /// The only version that is written or read.
    pub version: u32,
    /// The longest file that is written or read, header and all.
    pub max_bytes: u64,
}

/// Why bytes are no file of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It was written by a version that this one does not read.
    TooNew {
        /// Its version.
        found: u32,
    },
    /// It is something else, or not what was written.
    Damaged {
        /// How, as a sentence without its full stop.
        how: &'static str,
    },
}

/// A value has more bytes than a file of its format may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl Format {
    /// The bytes of the file that holds `value`.
    pub fn encode(&self, value: &impl Serialize) -> Result<Vec<u8>, TooLong> {
        // In one piece, and in one pass: a limit would be checked by another one.
        let mut bytes = vec![0; HEADER_BYTES];
        let whole = bincode::DefaultOptions::new().with_fixint_encoding();
        // What is serialized is plain data in memory: nothing but its size can be wrong.
        whole
            .serialize_into(&mut bytes, value)
            .map_err(|_| TooLong)?;
        if bytes.len() as u64 > self.max_bytes {
            return Err(TooLong);
        }
        let (header, body) = bytes.split_at_mut(HEADER_BYTES);
        let digest = blake3::hash(body);
        let parts: [&[u8]; 4] = [
            &self.magic,
            &self.version.to_le_bytes(),
            &(body.len() as u64).to_le_bytes(),
            digest.as_bytes(),
        ];
        header.copy_from_slice(&parts.concat());
        Ok(bytes)
    }

    /// Reads what [`Format::encode`] wrote.
    pub fn decode<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, Unusable> {
        let (header, body) = self.split_header(bytes)?;
        match header.body_bytes.cmp(&(body.len() as u64)) {
            Ordering::Equal => header.decode(body),
            Ordering::Greater => Err(CUT_SHORT),
            Ordering::Less => Err(Unusable::Damaged {
                how: "its length is not what it says",
            }),
        }
    }

    /// How many bytes [`Format::encode`] made of the value that `header` begins, itself among them.
    pub fn length(&self, header: &[u8; HEADER_BYTES]) -> Result<u64, Unusable> {
        let (header, _) = self.split_header(header)?;
        let length = (HEADER_BYTES as u64).checked_add(header.body_bytes);
        length.ok_or(CUT_SHORT)
    }

    /// Whether `bytes` are a file as [`Format::encode`] makes them: its checksum holds. Whether it
    /// can be decoded is not looked at.
    pub fn is_whole(&self, bytes: &[u8]) -> bool {
        let split = self.split_header(bytes);
        split.is_ok_and(|(header, body)| {
            header.body_bytes == body.len() as u64 && header.check(body).is_ok()
        })
    }

    /// The header that `bytes` begin with, and what follows it.
    fn split_header<'b>(&self, bytes: &'b [u8]) -> Result<(Header<'b>, &'b [u8]), Unusable> {
        let rest = bytes.strip_prefix(&self.magic).ok_or_else(|| match bytes {
            [] => Unusable::Damaged { how: "it is empty" },
            _ if self.magic.starts_with(bytes) => CUT_SHORT,
            _ => Unusable::Damaged {
                how: "it is a file of another kind",
            },
        })?;
        let (version, rest) = rest.split_first_chunk::<4>().ok_or(CUT_SHORT)?;
        let found = u32::from_le_bytes(*version);
        if found > self.version {
            return Err(Unusable::TooNew { found });
        }
        if found != self.version {
            return Err(Unusable::Damaged {
                how: "there is no such version of it",
            });
        }
        let (length, rest) = rest.split_first_chunk::<8>().ok_or(CUT_SHORT)?;
        let (digest, rest) = rest.split_first_chunk::<32>().ok_or(CUT_SHORT)?;
        let header = Header {
            body_bytes: u64::from_le_bytes(*length),
            digest,
        };
        Ok((header, rest))
    }
}

const CUT_SHORT: Unusable = Unusable::Damaged {
    how: "it is cut short",
};

struct Header<'b> {
    body_bytes: u64,
    digest: &'b [u8; blake3::OUT_LEN],
}

impl Header<'_> {
    fn decode<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, Unusable> {
        self.check(body)?;
        deserialize(body).ok_or(Unusable::Damaged {
            how: "it cannot be decoded",
        })
    }

    fn check(&self, body: &[u8]) -> Result<(), Unusable> {
        match blake3::hash(body).as_bytes() == self.digest {
            true => Ok(()),
            false => Err(Unusable::Damaged {
                how: "its checksum does not hold",
            }),
        }
    }
}

/// The bytes of `value`, if they are no more than `max_bytes`.
pub fn serialize(value: &impl Serialize, max_bytes: u64) -> Result<Vec<u8>, TooLong> {
    // What is serialized is plain data in memory: nothing but its size can be wrong.
    codec(max_bytes).serialize(value).map_err(|_| TooLong)
}

/// The value that `bytes` are, all of them; `None` if they are none. Their checksum held.
pub fn deserialize<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    codec(bytes.len() as u64).deserialize(bytes).ok()
}

/// The value that `bytes` begin with, and what follows it; `None` if they begin with none.
pub fn split_first<T: DeserializeOwned>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let mut rest = bytes;
    let first = codec(bytes.len() as u64).deserialize_from(&mut rest).ok()?;
    Some((first, rest))
}

fn codec(max_bytes: u64) -> impl bincode::Options {
    bincode::DefaultOptions::new()
        .with_fixint_encoding()
        .with_limit(max_bytes)
        .reject_trailing_bytes()
}

/// Tests for every file of a [`Format`].
#[cfg(any(test, feature = "testing"))]
pub mod contract {
    use super::{Format, HEADER_BYTES};

    /// `decode` must take `bytes`, which are whole, for `value`, and anything else that is made of
    /// them here for nothing: `None`.
    pub fn only_whole_files_are_read<T: PartialEq + std::fmt::Debug>(
        bytes: &[u8],
        value: &T,
        decode: impl Fn(&[u8]) -> Option<T>,
    ) {
        assert_eq!(decode(bytes).as_ref(), Some(value), "it is whole");
        for at in 0..bytes.len() {
            assert_eq!(decode(&bytes[..at]), None, "cut off at {at}");
            for bit in 0..8 {
                let mut damaged = bytes.to_vec();
                damaged[at] ^= 1 << bit;
                assert_eq!(decode(&damaged), None, "bit {bit} of byte {at}");
            }
        }
        for tail in [&[0][..], &[0; 100], bytes] {
            assert_eq!(decode(&[bytes, tail].concat()), None, "something follows");
        }
    }

    /// A file whose header fits its body, whatever that is.
    pub fn sealed(format: &Format, body: &[u8]) -> Vec<u8> {
        let mut bytes = format.magic.to_vec();
        bytes.extend_from_slice(&format.version.to_le_bytes());
        bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
        bytes.extend_from_slice(blake3::hash(body).as_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    /// `bytes` with the eight bytes at `at` of the body replaced by an absurd length, and the
    /// checksum made to hold again.
    pub fn with_absurd_length(format: &Format, bytes: &[u8], at: usize) -> Vec<u8> {
        let mut body = bytes[HEADER_BYTES..].to_vec();
        body[at..at + 8].copy_from_slice(&(1_u64 << 60).to_le_bytes());
        sealed(format, &body)
    }

    /// How many bytes the body of a file has.
    pub fn body_bytes(bytes: &[u8]) -> usize {
        bytes.len() - HEADER_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: Format = Format {
        magic: *b"sftests\n",
        version: 3,
        max_bytes: 200,
    };

    #[test]
    fn only_whole_files_are_read() {
        let value = (7_u32, "text".to_owned(), vec![1_u64, 2]);
        let bytes = FORMAT.encode(&value).unwrap();
        contract::only_whole_files_are_read(&bytes, &value, |bytes| FORMAT.decode(bytes).ok());
    }

    #[test]
    fn a_newer_version_is_told_from_a_damaged_file() {
        let mut bytes = FORMAT.encode(&1_u8).unwrap();
        bytes[8] = 4;
        let found = FORMAT.decode::<u8>(&bytes).unwrap_err();
        assert_eq!(found, Unusable::TooNew { found: 4 });
        bytes[8] = 2;
        let found = FORMAT.decode::<u8>(&bytes).unwrap_err();
        assert!(matches!(found, Unusable::Damaged { .. }));
    }

    #[test]
    fn what_could_not_be_read_back_is_not_written() {
        let fits = vec![0_u8; 200 - HEADER_BYTES - 8];
        let bytes = FORMAT.encode(&fits).unwrap();
        assert_eq!(bytes.len() as u64, FORMAT.max_bytes);
        assert_eq!(FORMAT.decode::<Vec<u8>>(&bytes), Ok(fits));
        let too_long = vec![0_u8; 200 - HEADER_BYTES - 7];
        assert_eq!(FORMAT.encode(&too_long), Err(TooLong));
    }

    #[test]
    fn a_length_that_no_bytes_follow_is_not_allocated() {
        for text in [u64::MAX, 1 << 60, 1 << 40, 9] {
            let bytes = contract::sealed(&FORMAT, &text.to_le_bytes());
            let damaged = Err(Unusable::Damaged {
                how: "it cannot be decoded",
            });
            assert_eq!(FORMAT.decode::<String>(&bytes), damaged);
            assert_eq!(
                FORMAT.decode::<Vec<u64>>(&bytes).map(drop),
                damaged.clone().map(drop)
            );
        }
    }
}
