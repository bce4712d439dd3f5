//! The small file that leads from a key to its content.
//!
//! One line of JSON that ends in a member `checksum`: the blake3 of all bytes before that member.
//! The checksum is compared before anything is parsed, so a damaged record is never used.

use serde::{Deserialize, Serialize};

use crate::ArtifactMeta;
use crate::digest::Digest;
use crate::key::ArtifactKey;

/// The longest file that can be a record: a key of 512 characters that all need a backslash, two
/// digests and a length take less than half of it.
pub(crate) const MAX_BYTES: u64 = 4096;

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    version: u32,
    key: ArtifactKey,
    bytes: u64,
    blake3: Digest,
}

/// The bytes of the record.
pub(crate) fn encode(meta: &ArtifactMeta) -> Vec<u8> {
    let body = Body {
        version: VERSION,
        key: meta.key.clone(),
        bytes: meta.bytes,
        blake3: meta.blake3,
    };
    let mut text = serde_json::to_vec(&body).expect("text and numbers are JSON");
    text.pop();
    let tail = tail(Digest::of(&text));
    text.extend_from_slice(tail.as_bytes());
    text
}

/// What the record of a key with the digest `key` says; `None` if it is damaged.
pub(crate) fn decode(record: &[u8], key: Digest) -> Option<ArtifactMeta> {
    let tail_bytes = tail(key).len();
    let (text, rest) = record.split_at_checked(record.len().checked_sub(tail_bytes)?)?;
    if rest != tail(Digest::of(text)).as_bytes() {
        return None;
    }
    let mut json = text.to_vec();
    json.push(b'}');
    let body: Body = serde_json::from_slice(&json).ok()?;
    // The key: a record that was moved under another key's name is as wrong as a changed one.
    (body.version == VERSION && body.key.hash() == key)
        .then(|| ArtifactMeta::new(body.key, body.bytes, body.blake3))
}

fn tail(checksum: Digest) -> String {
    format!(",\"checksum\":\"{checksum}\"}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(key: &str) -> ArtifactMeta {
        ArtifactMeta::new(ArtifactKey::new(key).unwrap(), 3, Digest::of(b"abc"))
    }

    #[test]
    fn a_record_is_one_line_of_json_with_a_version() {
        let record = encode(&meta("a \"quoted\" key"));
        let json: serde_json::Value = serde_json::from_slice(&record).unwrap();
        assert_eq!(json["version"], 1);
        assert_eq!(json["key"], "a \"quoted\" key");
        assert_eq!(json["bytes"], 3);
        assert_eq!(json["blake3"], Digest::of(b"abc").to_string());
        assert_eq!(record.iter().filter(|b| **b == b'\n').count(), 1);
    }

    #[test]
    fn the_longest_record_fits() {
        let mut longest = meta(&"\\".repeat(ArtifactKey::MAX_BYTES));
        longest.bytes = u64::MAX;
        assert!(encode(&longest).len() as u64 <= MAX_BYTES);
        assert_eq!(decode(&encode(&longest), longest.key.hash()), Some(longest));
    }

    #[test]
    fn a_record_with_any_bit_flipped_or_any_byte_missing_says_nothing() {
        let meta = meta("patch_1_2");
        let record = encode(&meta);
        let hash = meta.key.hash();
        assert_eq!(decode(&record, hash), Some(meta));
        for bit in 0..record.len() * 8 {
            let mut flipped = record.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&flipped, hash), None, "bit {bit}");
        }
        for length in 0..record.len() {
            assert_eq!(decode(&record[..length], hash), None, "{length} bytes");
        }
    }

    #[test]
    fn a_record_under_another_name_says_nothing() {
        let record = encode(&meta("one"));
        assert_eq!(decode(&record, meta("two").key.hash()), None);
    }

    #[test]
    fn a_record_of_another_version_says_nothing() {
        let meta = meta("key");
        let text = String::from_utf8(encode(&meta)).unwrap();
        let (body, _) = text.split_once(",\"checksum\"").unwrap();
        let body = body.replace("\"version\":1", "\"version\":2");
        let record = body.clone() + &tail(Digest::of(body.as_bytes()));
        assert_eq!(decode(record.as_bytes(), meta.key.hash()), None);
    }
}
