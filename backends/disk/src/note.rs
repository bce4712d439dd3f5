//! Notes: small caches of what a store found out about itself. A note is a text followed by its
//! checksum, in a file that is not synced. If a note is missing or damaged, the store is searched
//! again.

use std::fs;
use std::path::Path;

use crate::durable;
use crate::operation::Operation;
use stillframe_model::error::PathError;

/// Writes the note, in place of the one that is there. `text` must end with a newline.
pub fn write(op: &Operation, path: &Path, text: &str) -> Result<(), PathError> {
    durable::replace_unsynced(op, path, sealed(text).as_bytes())
}

/// The text of the note. `None`: there is none, its checksum does not match, or it is longer than
/// `max_bytes`.
pub fn read(path: &Path, max_bytes: u64) -> Option<String> {
    unsealed(durable::read(path, max_bytes).ok()??)
}

fn sealed(text: &str) -> String {
    format!("{text}{}\n", blake3::hash(text.as_bytes()).to_hex())
}

fn unsealed(bytes: Vec<u8>) -> Option<String> {
    let mut text = String::from_utf8(bytes).ok()?;
    let sum = text.strip_suffix('\n')?;
    let end = sum.rfind('\n')? + 1;
    let is_whole = sum[end..] == *blake3::hash(&text.as_bytes()[..end]).to_hex();
    text.truncate(end);
    is_whole.then_some(text)
}

/// Which start of the machine this is; `None`: the kernel does not say. A power cut can lose what
/// was not synced and still leave the note about it, so most notes are valid only until the next
/// start.
pub fn boot() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bit_that_flips_makes_it_say_nothing() {
        let whole = sealed("a-boot\nrefs/snapshots/s/manual/7\n5\n").into_bytes();
        let text = "a-boot\nrefs/snapshots/s/manual/7\n5\n";
        assert_eq!(unsealed(whole.clone()).as_deref(), Some(text));
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            assert_eq!(unsealed(flipped), None, "byte {at}");
            assert_eq!(unsealed(whole[..at].to_vec()), None, "{at} bytes");
        }
    }
}
