//! What an artifact is asked for by.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// The name of an artifact: 1 to 512 bytes of UTF-8 without control characters.
///
/// Otherwise it is free text, compared byte by byte. `../x`, `/etc/passwd` and `%2e%2e` are keys
/// like any other, because no store makes a path of a key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ArtifactKey(String);

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// The text has no characters.
    #[error("an artifact key cannot be empty")]
    Empty,
    /// The text is longer than [`ArtifactKey::MAX_BYTES`].
    #[error(
        "an artifact key has at most {} bytes, this one has {bytes}",
        ArtifactKey::MAX_BYTES
    )]
    TooLong {
        /// The length of the text.
        bytes: usize,
    },
    /// The text holds NUL, a line end, an escape or another control character.
    #[error("an artifact key has no control characters, this one has one at byte {offset}")]
    ControlCharacter {
        /// Where the first one is.
        offset: usize,
    },
}

impl InvalidKey {
    /// What a caller can do about it.
    pub fn kind(&self) -> crate::ErrorKind {
        crate::ErrorKind::InvalidOptions
    }
}

impl ArtifactKey {
    /// The longest key, in bytes: room for a name made of two ids of 200 characters, and little
    /// enough that its record stays within one block of a disk.
    pub const MAX_BYTES: usize = 512;

    /// Checks `text`.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidKey> {
        let text = text.into();
        if text.is_empty() {
            return Err(InvalidKey::Empty);
        }
        if text.len() > Self::MAX_BYTES {
            return Err(InvalidKey::TooLong { bytes: text.len() });
        }
        // They would let a key write over the line of a terminal or a log that names it.
        match text.char_indices().find(|(_, c)| c.is_control()) {
            Some((offset, _)) => Err(InvalidKey::ControlCharacter { offset }),
            None => Ok(Self(text)),
        }
    }

    /// The text of the key.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What stands for the key wherever a file name is needed.
    pub(crate) fn hash(&self) -> Digest {
        Digest::of(self.0.as_bytes())
    }
}

impl TryFrom<String> for ArtifactKey {
    type Error = InvalidKey;

    fn try_from(text: String) -> Result<Self, InvalidKey> {
        Self::new(text)
    }
}

impl FromStr for ArtifactKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        Self::new(text)
    }
}

impl From<ArtifactKey> for String {
    fn from(key: ArtifactKey) -> Self {
        key.0
    }
}

impl AsRef<str> for ArtifactKey {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// The text as it is. Messages use the `Debug` form, which escapes what a terminal would obey.
impl fmt::Display for ArtifactKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ArtifactKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_key_that_looks_like_a_path_is_free_text() {
        for text in [
            "../x",
            "/etc/passwd",
            "%2e%2e",
            "\\..\\",
            ".",
            "..",
            "-",
            "a b",
            "\u{e9}",
        ] {
            assert_eq!(ArtifactKey::new(text).unwrap().as_str(), text);
        }
    }

    #[test]
    fn a_text_that_is_no_key_is_refused_with_its_reason() {
        assert_eq!(ArtifactKey::new(""), Err(InvalidKey::Empty));
        for (text, offset) in [
            ("a\0b", 1),
            ("\u{e9}\n", 2),
            ("\u{1b}[2J", 0),
            ("\u{9b}", 0),
        ] {
            let refused = Err(InvalidKey::ControlCharacter { offset });
            assert_eq!(ArtifactKey::new(text), refused, "{text:?}");
        }
        let longest = "x".repeat(512);
        assert_eq!(
            ArtifactKey::new(longest.as_str()).unwrap().as_str(),
            longest
        );
        assert_eq!(
            ArtifactKey::new("x".repeat(10_000)),
            Err(InvalidKey::TooLong { bytes: 10_000 })
        );
        assert_eq!(
            ArtifactKey::new("\u{e9}".repeat(257)),
            Err(InvalidKey::TooLong { bytes: 514 }),
            "bytes count, not characters"
        );
    }

    #[test]
    fn a_message_escapes_what_turns_text_around() {
        let key = ArtifactKey::new("a\u{202e}b").unwrap();
        assert_eq!(format!("{key:?}"), r#""a\u{202e}b""#);
    }

    proptest! {
        #[test]
        fn a_text_is_a_key_exactly_if_the_rules_say_so(
            text in prop_oneof!["\\PC{0,40}", "(?s).{0,20}", "[a-z\u{e9}]{250,520}"],
        ) {
            let is_legal = (1..=512).contains(&text.len()) && !text.chars().any(char::is_control);
            let key = ArtifactKey::new(text.clone());
            prop_assert_eq!(key.is_ok(), is_legal);
            if let Ok(key) = key {
                let json = serde_json::to_string(&key).unwrap();
                prop_assert_eq!(serde_json::from_str::<ArtifactKey>(&json).unwrap(), key);
                prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
            }
        }
    }
}
