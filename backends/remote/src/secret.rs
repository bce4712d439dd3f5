//! A value that is for one process and for nobody's eyes.

use std::ffi::OsStr;
use std::fmt;
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt as _;

use stillframe_model::error::ErrorKind;

/// A token or password. It is not printed, also not with `{:?}`, and its memory is overwritten
/// when it is dropped.
///
/// What the standard library copies of it for the environment of a process is not overwritten: it
/// is gone with the call that the token is for.
pub struct Secret(Box<[u8]>);

/// Why a text is no token. The text is not in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token is empty or has control characters")]
pub struct InvalidSecret;

impl InvalidSecret {
    /// The kind at the API.
    pub fn kind(self) -> ErrorKind {
        ErrorKind::InvalidOptions
    }
}

impl Secret {
    /// Takes a token as a variable has it or a program prints it: one end of line after it is none
    /// of its characters. Any other control character is refused, since helpers of git's take one
    /// value a line.
    pub fn new(mut text: Vec<u8>) -> Result<Self, InvalidSecret> {
        let mut length = text.len();
        for end in [b'\n', b'\r'] {
            if text[..length].last() == Some(&end) {
                length -= 1;
            }
        }
        let is_sound = length > 0 && !text[..length].iter().any(u8::is_ascii_control);
        let value = is_sound.then(|| text[..length].into());
        wipe(&mut text);
        value.map(Self).ok_or(InvalidSecret)
    }

    pub(crate) fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    /// Whether it is no mere word.
    pub(crate) fn is_long(&self) -> bool {
        self.0.len() >= 8
    }

    /// `text` with `***` in every place where the value stands.
    pub(crate) fn taken_out_of(&self, text: &str) -> String {
        match std::str::from_utf8(&self.0) {
            Ok(value) => text.replace(value, "***"),
            // What is no text is in none.
            Err(_) => text.to_owned(),
        }
    }
}

impl Clone for Secret {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// Overwrites `bytes` with zeros.
fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    // Somebody may look at it, for all that the compiler knows, so the zeros are written.
    black_box(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_line_and_shows_itself_nowhere() {
        for text in ["secret", "secret\n", "secret\r\n"] {
            let token = Secret::new(text.into()).unwrap();
            assert_eq!(token.as_os_str(), "secret", "{text:?}");
            assert_eq!(format!("{token:?}"), "Secret(***)");
            assert_eq!(token.taken_out_of("a secret, secret"), "a ***, ***");
        }
        for text in ["", "\n", "a\nb", "a\n\n", "a\0"] {
            assert_eq!(
                Secret::new(text.into()).unwrap_err(),
                InvalidSecret,
                "{text:?}"
            );
        }
    }
}
