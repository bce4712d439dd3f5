//! Reading TOML that a person wrote, and reporting the line of a mistake.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::output;

/// The text of a file. Links are followed, because the user may have made one. What is no regular
/// file, or has more than `max_bytes`, is [`io::ErrorKind::InvalidInput`].
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
    let message = error.message().lines().collect::<Vec<_>>().join("; ");
    let value = error.span().and_then(|span| text.get(span));
    let message = output::shortened(&plain(&message, value.unwrap_or_default()));
    match error.span() {
        Some(span) => at_line(text, line_of(text, span.start), &message),
        None => message,
    }
}

/// The words of the parser, which are of types, as words of what may be written. `value`: what is
/// written there.
fn plain(message: &str, value: &str) -> String {
    let kinds = ["invalid type: ", "invalid value: "];
    let of_value = kinds.iter().find_map(|kind| message.strip_prefix(kind));
    let Some((found, wanted)) = of_value.and_then(|rest| rest.rsplit_once(", expected ")) else {
        return message.to_owned();
    };
    let is_whole = found.starts_with("integer `");
    let wanted = match wanted {
        "u8" | "u16" | "u32" | "u64" | "usize" if is_whole && found.starts_with("integer `-") => {
            "a whole number of 0 or more"
        }
        "u8" if is_whole => "255 at most",
        "u16" if is_whole => "65535 at most",
        "u32" if is_whole => "4294967295 at most",
        "u64" | "usize" if is_whole => "18446744073709551615 at most",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, such as 0, 3 or 100",
        "a boolean" => "true or false",
        "a string" => "text in quotes",
        "a sequence" => "a list, such as [\"a\", \"b\"]",
        "a map" => "a section with keys of its own",
        of_type if of_type.starts_with("struct ") => "a section with keys of its own",
        other => other,
    };
    let found = found
        .trim_end_matches(" as i128")
        .trim_end_matches(" as u128");
    let number = ["integer `", "floating point `"]
        .iter()
        .find_map(|kind| found.strip_prefix(kind));
    let found = match (number, found.strip_prefix("string ")) {
        (Some(number), _) => format!("the number {}", number.trim_end_matches('`')),
        (_, Some(text)) => format!("the text {text}"),
        _ => match found {
            "sequence" => "a list".to_owned(),
            // The parser takes a date for a section with one key.
            "map" if value.starts_with(|first: char| first.is_ascii_digit()) => {
                format!("the date or time {value}")
            }
            "map" => "a section".to_owned(),
            other => other.strip_prefix("boolean ").unwrap_or(other).to_owned(),
        },
    };
    format!("this is {found}, and has to be {wanted}")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_value_has_to_be_is_said_in_words_of_the_file() {
        for (said, expected) in [
            (
                "invalid type: string \"3\", expected u64",
                "this is the text \"3\", and has to be a whole number, such as 0, 3 or 100",
            ),
            (
                "invalid value: integer `-3`, expected u64",
                "this is the number -3, and has to be a whole number of 0 or more",
            ),
            (
                "invalid type: integer `99999999999999999999` as i128, expected u64",
                "this is the number 99999999999999999999, and has to be 18446744073709551615 at most",
            ),
            (
                "invalid type: floating point `1.5`, expected a number of bytes, such as 65536 or \"64K\"",
                "this is the number 1.5, and has to be a number of bytes, such as 65536 or \"64K\"",
            ),
            (
                "invalid type: boolean `true`, expected a string",
                "this is `true`, and has to be text in quotes",
            ),
            (
                "invalid type: string \"x\", expected a sequence",
                "this is the text \"x\", and has to be a list, such as [\"a\", \"b\"]",
            ),
            (
                "invalid type: integer `3`, expected struct Ignore",
                "this is the number 3, and has to be a section with keys of its own",
            ),
            ("duplicate key", "duplicate key"),
        ] {
            assert_eq!(plain(said, ""), expected);
        }
    }

    #[test]
    fn a_date_is_a_date_and_a_number_that_is_too_large_has_a_limit() {
        #[derive(Debug, serde::Deserialize)]
        struct Limits {
            #[serde(rename = "max_files")]
            _max_files: u64,
        }
        for (value, expected) in [
            (
                "2026-02-03",
                "this is the date or time 2026-02-03, and has to be a whole number",
            ),
            (
                "07:32:00",
                "this is the date or time 07:32:00, and has to be a whole number",
            ),
            (
                "{ a = 1 }",
                "this is a section, and has to be a whole number",
            ),
            (
                "99999999999999999999",
                "this is the number 99999999999999999999, and has to be 18446744073709551615 at most",
            ),
            (
                "18446744073709551616",
                "this is the number 18446744073709551616, and has to be 18446744073709551615 at most",
            ),
            (
                "-1",
                "this is the number -1, and has to be a whole number of 0 or more",
            ),
        ] {
            let text = format!("max_files = {value}\n");
            let error = toml::from_str::<Limits>(&text).expect_err("it is refused");
            let said = located(&text, &error);
            assert!(said.contains(expected), "{value}: {said}");
        }
        let text = "max_files = 18446744073709551615\n";
        toml::from_str::<Limits>(text).expect("it is taken");
    }
}
