//! Unified patches that git applies.
//!
//! The format is git's own (`Documentation/diff-generate-patch`, and for what its reader accepts,
//! `apply.c`). `git apply --binary`, with or without `--index`, turns the earlier tree into exactly
//! the later one, unless git converts line endings: `git apply` obeys attributes such as `text` and
//! `eol`, and a patch cannot change that.
//!
//! A patch of several paths has one section for each, **in the order of the paths' bytes**. A file
//! that becomes a directory, or the reverse, needs no other order: `git apply` first checks all
//! sections, then removes all deleted files, then creates new ones. It reads no patch above 1023
//! MiB.

use std::io::{self, Write};
use std::ops::Range;

use crate::git::{ObjectId, ObjectKind};
use crate::path::RelPath;
use crate::tree::{ContentId, EntryKind};

mod comparison;
mod literal;

pub(crate) use comparison::{
    BINARY_PROBE_BYTES, Compared, Limits, LineCounts, MAX_COMPARED_BYTES, MAX_TEXT_BYTES, count,
    is_binary,
};
use comparison::{Edit, Form, Pair, count_lines, lines};

/// How many unchanged lines surround a change, as in git's default.
const CONTEXT: usize = 3;

/// What one side of a change holds.
#[derive(Clone, Copy)]
pub(crate) struct Side<'a> {
    pub(crate) kind: EntryKind,
    /// The id of `bytes`.
    pub(crate) id: ContentId,
    /// The content, or the link's text.
    pub(crate) bytes: &'a [u8],
}

/// One side of a change that is too large to be held.
#[derive(Clone, Copy)]
pub(crate) struct Streamed<'a> {
    pub(crate) kind: EntryKind,
    pub(crate) id: ObjectId,
    /// In bytes.
    pub(crate) size: u64,
    /// Writes all of the content.
    pub(crate) copy: &'a dyn Fn(&mut dyn Write) -> io::Result<()>,
}

/// Writes the patch of one path, and answers as [`count`] does.
///
/// Nothing is written where the sides are equal. A file that became a link, or the reverse, is a
/// deletion and a creation, as git has it. What is binary, and what is too much text to compare
/// (more than 32 MiB or 524 288 lines changed on a side), goes out compressed and whole, both ways.
/// Text beyond a smaller limit is one hunk, from the first difference to the last.
///
/// At the deadline the search for a short patch stops; what was not searched is replaced as a
/// whole, so the patch is longer and still right. While there is time, the same pair gives the same
/// bytes. `out` gets many small writes: hand in something that buffers.
///
/// # Errors
///
/// Those of `out`; what was written by then is no patch. And `InvalidData`, if an id is a blake3
/// and the content, hashed as git does, is half of a SHA-1 collision.
pub(crate) fn write(
    out: &mut dyn Write,
    path: &RelPath,
    old: Option<Side<'_>>,
    new: Option<Side<'_>>,
    limits: &Limits,
) -> io::Result<Compared> {
    let pair = Pair::new(bytes_of(old), bytes_of(new));
    let comparison = pair.compare(limits);
    let is_link = |side: Side<'_>| side.kind == EntryKind::Symlink;
    match (old, new) {
        (Some(o), Some(n)) if is_link(o) != is_link(n) => {
            let (gone, come) = (Pair::new(o.bytes, b""), Pair::new(b"", n.bytes));
            write_section(out, path, old, None, &gone, &gone.compare(limits).form)?;
            write_section(out, path, None, new, &come, &come.compare(limits).form)?;
        }
        _ => write_section(out, path, old, new, &pair, &comparison.form)?,
    }
    Ok(comparison.compared)
}

fn bytes_of<'a>(side: Option<Side<'a>>) -> &'a [u8] {
    side.map(|side| side.bytes).unwrap_or_default()
}

/// Writes the section of one path whose sides are of one type, links or files.
fn write_section(
    out: &mut dyn Write,
    path: &RelPath,
    old: Option<Side<'_>>,
    new: Option<Side<'_>>,
    pair: &Pair<'_>,
    form: &Form,
) -> io::Result<()> {
    let mode = |side: Side<'_>| side.kind.git_mode();
    let (old_mode, new_mode) = (old.map(mode), new.map(mode));
    if old_mode == new_mode && pair.is_equal() {
        return Ok(());
    }
    write_header(out, path, old_mode, new_mode)?;
    if old.is_some() && new.is_some() && pair.is_equal() {
        return Ok(());
    }
    write_index_line(out, (git_id(old)?, old_mode), (git_id(new)?, new_mode))?;
    if pair.is_equal() {
        // An empty file came or went.
        return Ok(());
    }
    let Form::Hunks(edits) = form else {
        out.write_all(b"GIT binary patch\n")?;
        let literal = |out: &mut dyn Write, bytes: &[u8]| {
            literal::write(out, bytes.len() as u64, &|sink| sink.write_all(bytes))
        };
        literal(out, pair.new)?;
        return literal(out, pair.old);
    };
    let (old_name, new_name) = (quoted(b"a/", path), quoted(b"b/", path));
    write_file_line(out, b"--- ", old.map(|_| &old_name[..]))?;
    write_file_line(out, b"+++ ", new.map(|_| &new_name[..]))?;
    write_hunks(out, pair, edits)
}

/// Writes the patch of one path with a side that is too large to be held: both contents go out
/// compressed and whole, as streams. As for a binary, no lines are counted.
pub(crate) fn write_streamed(
    out: &mut dyn Write,
    path: &RelPath,
    old: Option<Streamed<'_>>,
    new: Option<Streamed<'_>>,
) -> io::Result<()> {
    if let (Some(o), Some(n)) = (old, new)
        && (o.kind == EntryKind::Symlink) != (n.kind == EntryKind::Symlink)
    {
        write_streamed(out, path, old, None)?;
        return write_streamed(out, path, None, new);
    }
    let mode = |side: Streamed<'_>| side.kind.git_mode();
    let (old_mode, new_mode) = (old.map(mode), new.map(mode));
    let id = |side: Option<Streamed<'_>>| side.map_or(ObjectId([0; 20]), |side| side.id);
    write_header(out, path, old_mode, new_mode)?;
    if id(old) == id(new) {
        return Ok(());
    }
    write_index_line(out, (id(old), old_mode), (id(new), new_mode))?;
    out.write_all(b"GIT binary patch\n")?;
    for side in [new, old] {
        match side {
            Some(side) => literal::write(out, side.size, side.copy)?,
            None => literal::write(out, 0, &|_| Ok(()))?,
        }
    }
    Ok(())
}

/// Writes what a section begins with: names and modes.
fn write_header(
    out: &mut dyn Write,
    path: &RelPath,
    old_mode: Option<u32>,
    new_mode: Option<u32>,
) -> io::Result<()> {
    out.write_all(b"diff --git ")?;
    out.write_all(&quoted(b"a/", path))?;
    out.write_all(b" ")?;
    out.write_all(&quoted(b"b/", path))?;
    out.write_all(b"\n")?;
    match (old_mode, new_mode) {
        (Some(old), Some(new)) if old == new => Ok(()),
        (Some(old), Some(new)) => write!(out, "old mode {old:06o}\nnew mode {new:06o}\n"),
        (Some(old), None) => writeln!(out, "deleted file mode {old:06o}"),
        (None, Some(new)) => writeln!(out, "new file mode {new:06o}"),
        (None, None) => Ok(()),
    }
}

/// Whole ids: `git apply` wants them for a binary, and `git apply --3way` finds the blob.
fn write_index_line(
    out: &mut dyn Write,
    (old_id, old_mode): (ObjectId, Option<u32>),
    (new_id, new_mode): (ObjectId, Option<u32>),
) -> io::Result<()> {
    write!(out, "index {old_id}..{new_id}")?;
    match (old_mode, new_mode) {
        (Some(old), Some(new)) if old == new => writeln!(out, " {new:06o}"),
        _ => writeln!(out),
    }
}

/// The blob's id as git has it: the one that is known, or the content hashed. All zeros stand for
/// nothing.
fn git_id(side: Option<Side<'_>>) -> io::Result<ObjectId> {
    match side {
        None => Ok(ObjectId([0; 20])),
        Some(Side {
            id: ContentId::Sha1(id),
            ..
        }) => Ok(ObjectId(id)),
        Some(Side { bytes, .. }) => ObjectId::of(ObjectKind::Blob, bytes)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e)),
    }
}

/// A name as git writes it: in C's string syntax if it holds anything that could be misread.
fn quoted(prefix: &[u8], path: &RelPath) -> Vec<u8> {
    let name = path.as_bytes();
    let is_plain = |b: &u8| matches!(b, b' '..=b'~') && !matches!(b, b'"' | b'\\');
    if name.iter().all(is_plain) {
        return [prefix, name].concat();
    }
    let mut out = vec![b'"'];
    out.extend_from_slice(prefix);
    for byte in name {
        match byte {
            0x07 => out.extend(b"\\a"),
            0x08 => out.extend(b"\\b"),
            b'\t' => out.extend(b"\\t"),
            b'\n' => out.extend(b"\\n"),
            0x0b => out.extend(b"\\v"),
            0x0c => out.extend(b"\\f"),
            b'\r' => out.extend(b"\\r"),
            b'"' => out.extend(b"\\\""),
            b'\\' => out.extend(b"\\\\"),
            b if is_plain(b) => out.push(*b),
            b => out.extend(format!("\\{b:03o}").bytes()),
        }
    }
    out.push(b'"');
    out
}

fn write_file_line(out: &mut dyn Write, mark: &[u8], name: Option<&[u8]>) -> io::Result<()> {
    let name = name.unwrap_or(b"/dev/null");
    out.write_all(mark)?;
    out.write_all(name)?;
    // A tab ends a name with spaces: other readers than git's look for a date after the space.
    if name.contains(&b' ') {
        out.write_all(b"\t")?;
    }
    out.write_all(b"\n")
}

fn write_hunks(out: &mut dyn Write, pair: &Pair<'_>, edits: &[Edit]) -> io::Result<()> {
    let begin = context_before(&pair.old[..pair.head]);
    let line = count_lines(&pair.old[..begin]) as usize;
    let mut old = Cursor::new(&pair.old[begin..], line);
    let mut new = Cursor::new(&pair.new[begin..], line);
    let tail = &pair.old[pair.old.len() - pair.tail..];
    let end = edits.last().map_or(0, |edit| edit.old.end) + lines(tail).take(CONTEXT).count();
    let are_near = |a: &Edit, b: &Edit| b.old.start - a.old.end <= 2 * CONTEXT;
    for hunk in edits.chunk_by(are_near) {
        let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else {
            continue;
        };
        let before = first.old.start.min(CONTEXT);
        let after = (end - last.old.end).min(CONTEXT);
        out.write_all(b"@@ -")?;
        write_range(out, first.old.start - before..last.old.end + after)?;
        out.write_all(b" +")?;
        write_range(out, first.new.start - before..last.new.end + after)?;
        out.write_all(b" @@\n")?;

        old.copy_to(first.old.start - before, None, out)?;
        for edit in hunk {
            old.copy_to(edit.old.start, Some(b' '), out)?;
            new.copy_to(edit.new.start, None, out)?;
            old.copy_to(edit.old.end, Some(b'-'), out)?;
            new.copy_to(edit.new.end, Some(b'+'), out)?;
        }
        old.copy_to(last.old.end + after, Some(b' '), out)?;
    }
    Ok(())
}

fn write_range(out: &mut dyn Write, lines: Range<usize>) -> io::Result<()> {
    match lines.len() {
        // An empty range is named by the line before it.
        0 => write!(out, "{},0", lines.start),
        1 => write!(out, "{}", lines.start + 1),
        len => write!(out, "{},{len}", lines.start + 1),
    }
}

/// Where the lines begin that surround a change which comes after `head`, whole lines.
fn context_before(head: &[u8]) -> usize {
    let newlines = head.iter().enumerate().rev().filter(|(_, b)| **b == b'\n');
    // The last one ends the line before the change.
    newlines.map(|(at, _)| at + 1).nth(CONTEXT).unwrap_or(0)
}

/// A place between two lines of a text.
struct Cursor<'a> {
    rest: &'a [u8],
    line: usize,
}

impl<'a> Cursor<'a> {
    fn new(rest: &'a [u8], line: usize) -> Self {
        Self { rest, line }
    }

    /// Goes on to `line`. What is passed is written with `mark` before each line, or skipped.
    fn copy_to(&mut self, line: usize, mark: Option<u8>, out: &mut dyn Write) -> io::Result<()> {
        while self.line < line {
            let len = self.rest.iter().position(|b| *b == b'\n').map(|at| at + 1);
            let (text, rest) = self.rest.split_at(len.unwrap_or(self.rest.len()));
            if let Some(mark) = mark {
                out.write_all(&[mark])?;
                out.write_all(text)?;
                if len.is_none() {
                    out.write_all(b"\n\\ No newline at end of file\n")?;
                }
            }
            self.rest = rest;
            self.line += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
