use std::fmt;
use std::ops::Range;

/// Where a secret value is, and which rule recognised it. The value itself is not in here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The name of the rule, as in `github_token`.
    pub rule: String,
    /// The line in which the value starts. The first line is 1, and each `\n` starts another.
    pub line: u64,
    /// The bytes of the value: of the token alone, without what leads up to it.
    pub range: Range<usize>,
    /// Tells this value from others, so that a user can allow it without storing it.
    pub fingerprint: Fingerprint,
}

/// What identifies a secret value: a blake3 hash of the rule's name and the value. It is written
/// as 64 hex digits.
///
/// The same value under the same rule has the same fingerprint, wherever it is found and by
/// whichever version. A long random value cannot be had from its fingerprint; a short password can
/// be guessed, as from any hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

/// Fingerprints are stored by users, so this never changes.
const CONTEXT: &str = "stillframe-secrets fingerprint of a secret value";

impl Fingerprint {
    pub(crate) fn of(rule: &str, value: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        // The name of a rule has no zero byte, so this says where it ends.
        hasher.update(rule.as_bytes()).update(&[0]).update(value);
        Self(*hasher.finalize().as_bytes())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}
