//! Text in TOML that somebody has written: reading it, and saying where it is wrong.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::output;

/// The text of a file. Links are followed: whoever names the file may have made one. What is no regular file,
/// or has more than `max_bytes`, is [`io::ErrorKind::InvalidInput`].
pub(crate) fn read(path: &Path, max_bytes: u64) -> io::Result<String> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    // A FIFO would be waited for.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(wrong("is no regular file".to_owned()));
    }
    let mut text = String::new();
    file.take(max_bytes + 1).read_to_string(&mut text)?;
    if text.len() as u64 > max_bytes {
        return Err(wrong(format!("has more than {max_bytes} bytes")));
    }
    Ok(text)
}

/// What is wrong in `text`, and in which line, in one line.
pub(crate) fn located(text: &str, error: &toml::de::Error) -> String {
    let message = output::shortened(&error.message().lines().collect::<Vec<_>>().join("; "));
    match error.span() {
        Some(span) => at_line(text, line_of(text, span.start), &message),
        None => message,
    }
}

/// What is wrong in this line of `text`.
pub(crate) fn at_line(text: &str, number: usize, message: &str) -> String {
    let line = text.lines().nth(number - 1).unwrap_or_default();
    let line = output::shortened(line.trim());
    format!("line {number}, {line:?}: {message}")
}

/// The line in which the byte at `offset` lies, from 1.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    before.filter(|byte| **byte == b'\n').count() + 1
}
