//! A patch, or the content of a file, as shown to a person. Pure except for reader and writer.
//!
//! The format of a patch is git's (`Documentation/diff-generate-patch`): sections that begin with
//! `diff --git`, hunks whose headers say how many lines belong to each side.

use std::borrow::Cow;
use std::io::{self, BufRead, Write};

use stillframe::backends::printable_bytes;

use crate::copying::Copying;
use crate::paint::{Colour, Paint};

/// Copies a patch, each line in its colour. `is_harmless`: so that a terminal executes nothing of
/// it, and is no patch any more.
pub(crate) fn copy_patch(
    patch: &mut dyn BufRead,
    out: &mut dyn Write,
    paint: Paint,
    is_harmless: bool,
) -> Result<(), Copying> {
    let mut place = Place::default();
    each_line(patch, |text, end| {
        let shown = match is_harmless {
            true => Cow::Owned(harmless(text).into_bytes()),
            false => Cow::Borrowed(text),
        };
        match place.next(text) {
            Some(colour) => paint.write(colour, &shown, out)?,
            None => out.write_all(&shown)?,
        }
        out.write_all(end)
    })
}

/// Copies what a file holds so that a terminal executes nothing of it.
pub(crate) fn copy_harmless(text: &mut dyn BufRead, out: &mut dyn Write) -> Result<(), Copying> {
    each_line(text, |text, end| {
        out.write_all(harmless(text).as_bytes())?;
        out.write_all(end)
    })
}

/// Calls `take` with each line and what ends it, which the last may lack.
fn each_line(
    source: &mut dyn BufRead,
    mut take: impl FnMut(&[u8], &[u8]) -> io::Result<()>,
) -> Result<(), Copying> {
    let mut line = Vec::new();
    while source.read_until(b'\n', &mut line).map_err(Copying::Read)? > 0 {
        let taken = match line.strip_suffix(b"\n") {
            Some(text) => take(text, b"\n"),
            None => take(&line, b""),
        };
        taken.map_err(Copying::Write)?;
        line.clear();
    }
    Ok(())
}

/// A line with its control characters escaped, but for tabs, which move nothing but what comes
/// after.
fn harmless(line: &[u8]) -> String {
    let parts: Vec<String> = line.split(|b| *b == b'\t').map(printable_bytes).collect();
    parts.join("\t")
}

/// Where in a patch a line is.
#[derive(Default)]
struct Place {
    /// How many lines of the hunk are still to come of the earlier and of the later side.
    left: (u64, u64),
    /// Whether it is within the compressed content of a binary file.
    is_binary: bool,
}

impl Place {
    /// The colour of the next line, and goes on to the one after it.
    fn next(&mut self, line: &[u8]) -> Option<Colour> {
        let (old, new) = self.left;
        if old > 0 || new > 0 {
            let (old_less, new_less) = (old.saturating_sub(1), new.saturating_sub(1));
            return match line.first() {
                Some(b'+') => {
                    self.left = (old, new_less);
                    Some(Colour::Green)
                }
                Some(b'-') => {
                    self.left = (old_less, new);
                    Some(Colour::Red)
                }
                Some(b'\\') => None,
                _ => {
                    self.left = (old_less, new_less);
                    None
                }
            };
        }
        if let Some(ranges) = line.strip_prefix(b"@@ ") {
            self.left = hunk(ranges).unwrap_or((0, 0));
            return Some(Colour::Cyan);
        }
        if line.starts_with(b"diff --git ") {
            self.is_binary = false;
        }
        let is_header = !self.is_binary && !line.starts_with(b"\\");
        self.is_binary |= line == b"GIT binary patch";
        is_header.then_some(Colour::Bold)
    }
}
/// How many lines of each side are in the hunk with the header `@@ -5,3 +5,4 @@ …`.
fn hunk(ranges: &[u8]) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(ranges.split(|b| *b == b'@').next()?).ok()?;
    let mut parts = text.split_ascii_whitespace();
    let old = parts.next()?.strip_prefix('-')?;
    let new = parts.next()?.strip_prefix('+')?;
    let length = |range: &str| match range.split_once(',') {
        Some((_, length)) => length.parse().ok(),
        None => Some(1),
    };
    Some((length(old)?, length(new)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &[u8] = b"\
diff --git a/a file b/a file\n\
index 1..2 100644\n\
--- a/a file\t\n\
+++ b/a file\t\n\
@@ -1,3 +1,3 @@\n one\n\
--- a/not a header\n\
+++ b/nor this\n three\n\
@@ -9 +9,2 @@ diff --git a/x b/x\n\
-nine\n\
\\ No newline at end of file\n\
+nine\n\
+diff --git a/x b/x\n\
diff --git a/b b/b\n\
GIT binary patch\n\
literal 5\n\
+cmZQzU|?Wi\n\
\n\
diff --git a/gone b/gone\n\
deleted file mode 100644\n\
@@ -1,2 +0,0 @@\n\
-1\n\
-2";

    fn coloured(patch: &[u8]) -> String {
        let mut place = Place::default();
        let letter = |line| match place.next(line) {
            Some(Colour::Bold) => 'b',
            Some(Colour::Cyan) => '@',
            Some(Colour::Green) => '+',
            Some(Colour::Red) => '-',
            None => '.',
        };
        patch.split(|b| *b == b'\n').map(letter).collect()
    }

    #[test]
    fn lines_have_their_colour_by_where_they_are() {
        assert_eq!(coloured(PATCH), "bbbb@.-+.@-.++bb...bb@--");
    }

    #[test]
    fn a_patch_without_colours_is_copied_as_it_is() {
        let mut out = Vec::new();
        copy_patch(&mut &PATCH[..], &mut out, Paint::default(), false).expect("it is in memory");
        assert_eq!(out, PATCH);
    }

    #[test]
    fn a_terminal_executes_nothing_of_what_is_shown() {
        let text = &b"\tif \x1b]0;x\x07 \\n\r\n\xff\x9b31m"[..];
        let mut out = Vec::new();
        copy_patch(&mut &text[..], &mut out, Paint::default(), true).expect("it is in memory");
        let text = String::from_utf8(out).expect("it is printable");
        assert_eq!(text, "\tif \\u{1b}]0;x\\u{7} \\n\\r\n\\xff\\x9b31m");
    }

    #[test]
    fn broken_patches_are_no_panic() {
        for patch in [
            &b"@@ -1,5 +1,5 @@\n+x\n"[..],
            b"+x\n-y\n",
            b"diff --git \n@@ nonsense @@\n@@ -1,99999999999999999999 +1 @@\n",
            b"GIT binary patch\n",
            b"diff --git a/x b/x\n@@ -1,2 +1 @@\n+a\n+b\n+c\n",
        ] {
            coloured(patch);
        }
    }
}
