//! Unified patches that git applies.
//!
//! The format is git's own (`Documentation/diff-generate-patch`, and for what its reader accepts,
//! `apply.c`). `git apply --binary`, with or without `--index`, makes the earlier tree into
//! exactly the later one, as long as git converts no line endings on the way: attributes such as
//! `text` and `eol` are obeyed by `git apply`, and no patch can tell it not to.
//!
//! A patch of several paths is their sections one after the other, **in the order of the paths'
//! bytes**. A file that becomes a directory, or the reverse, needs no other order: `git apply`
//! checks all sections first, then removes everything that goes, then makes what comes. It reads
//! no patch above 1023 MiB.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{self, Write};
use std::ops::Range;
use std::time::Instant;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use similar::algorithms::{Compact, DiffHook, myers};

use crate::diff::Approximation;
use crate::git::{ObjectId, ObjectKind};
use crate::path::RelPath;
use crate::tree::{ContentId, EntryKind};

/// How many unchanged lines surround a change, as in git's default.
const CONTEXT: usize = 3;

/// How much of a file git looks at for a NUL (`FIRST_FEW_BYTES` of its `xdiff-interface.c`).
pub(crate) const BINARY_PROBE_BYTES: usize = 8000;

/// Above this, git takes any file for binary: the default of its `core.bigFileThreshold`.
pub(crate) const MAX_TEXT_BYTES: usize = 512 << 20;

/// The most changed text of a side, in bytes, that is ever compared line by line. Beyond it nobody
/// reads the hunks, and the compressed file is the smaller patch.
pub(crate) const MAX_COMPARED_BYTES: usize = 32 << 20;

/// The most changed text of a side, in lines, that is compared line by line. It bounds memory
/// (about 100 bytes a line), the time that counting takes on the worst pair (seconds), and the
/// depth to which the searches recurse: they halve ranges as a rule, but a pair made for it has
/// them peel off some 500 lines a time, and a thousand levels fit in the stack of any thread.
const MAX_COMPARED_LINES: usize = 512 << 10;

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

/// What `git diff --numstat` says of a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LineCounts {
    /// Lines that only the later side has; 0 for a binary.
    pub(crate) insertions: u64,
    /// Lines that only the earlier side has; 0 for a binary.
    pub(crate) deletions: u64,
    /// Whether one of the sides is binary: a NUL in its first 8000 bytes, or more than 512 MiB.
    pub(crate) is_binary: bool,
}

/// How much may be spent on one pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The most changed text of a side, in bytes, that is compared line by line; never more than
    /// 32 MiB and 524 288 lines.
    pub(crate) max_compared_bytes: u64,
    /// When the search for a short patch stops.
    pub(crate) deadline: Option<Instant>,
}

/// What came of comparing a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Compared {
    pub(crate) counts: LineCounts,
    /// Why the counts, and the hunks, are larger than need be; `None` if they are git's.
    pub(crate) approximation: Option<Approximation>,
}

/// Writes the patch of one path, and answers as [`count`] does.
///
/// Nothing is written where the sides are equal. A file that became a link, or the reverse, is a
/// deletion and a creation, as git has it. What is binary, and what is too much text to compare
/// (more than 32 MiB or 524 288 lines changed on a side), goes out compressed and whole, both ways.
/// Text beyond a smaller limit is one hunk, from the first difference to the last.
///
/// At the deadline the search for a short patch stops; what was not searched is replaced as a whole,
/// so the patch is longer and still right. While there is time, the same pair gives the same
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

/// Counts the lines in which two contents differ, as `git diff --numstat --no-renames` does.
///
/// The counts are git's own unless there was too much text to compare (see [`write`]) or too little
/// time: then every line between the first and the last difference counts as changed that was not
/// found to be the same.
pub(crate) fn count(old: Option<&[u8]>, new: Option<&[u8]>, limits: &Limits) -> Compared {
    let pair = Pair::new(old.unwrap_or_default(), new.unwrap_or_default());
    pair.compare(limits).compared
}

fn bytes_of<'a>(side: Option<Side<'a>>) -> &'a [u8] {
    side.map(|side| side.bytes).unwrap_or_default()
}

/// Two contents, and how many bytes they share at both ends, in whole lines.
struct Pair<'a> {
    old: &'a [u8],
    new: &'a [u8],
    head: usize,
    tail: usize,
}

impl<'a> Pair<'a> {
    fn new(old: &'a [u8], new: &'a [u8]) -> Self {
        let same = common_prefix(old, new);
        let head = if same == old.len() && same == new.len() {
            same
        } else {
            old[..same]
                .iter()
                .rposition(|b| *b == b'\n')
                .map_or(0, |at| at + 1)
        };
        let (old_rest, new_rest) = (&old[head..], &new[head..]);
        let same = common_suffix(old_rest, new_rest);
        let begins_a_line =
            |rest: &[u8]| same == rest.len() || rest[rest.len() - same - 1] == b'\n';
        let tail = if begins_a_line(old_rest) && begins_a_line(new_rest) {
            same
        } else {
            let shared = &old_rest[old_rest.len() - same..];
            shared
                .iter()
                .position(|b| *b == b'\n')
                .map_or(0, |at| same - at - 1)
        };
        Self {
            old,
            new,
            head,
            tail,
        }
    }

    /// What lies between the shared ends.
    fn changed(&self) -> (&'a [u8], &'a [u8]) {
        (
            &self.old[self.head..self.old.len() - self.tail],
            &self.new[self.head..self.new.len() - self.tail],
        )
    }

    fn is_equal(&self) -> bool {
        self.head == self.old.len() && self.head == self.new.len()
    }

    fn is_binary(&self) -> bool {
        is_binary(self.old) || is_binary(self.new)
    }

    fn compare(&self, limits: &Limits) -> Comparison {
        if self.is_binary() {
            let counts = LineCounts {
                is_binary: true,
                ..LineCounts::default()
            };
            return Comparison::new(Form::Literals, counts, None);
        }
        if self.is_equal() {
            return Comparison::default();
        }
        let (old, new) = self.changed();
        let (old_lines, new_lines) = (count_lines(old), count_lines(new));
        let every_line = LineCounts {
            insertions: new_lines,
            deletions: old_lines,
            is_binary: false,
        };
        let bytes = old.len().max(new.len());
        // Lines that only come or only go are not compared with anything.
        if old.is_empty() || new.is_empty() {
            let form = match bytes > MAX_COMPARED_BYTES {
                true => Form::Literals,
                false => Form::Hunks(vec![self.whole()]),
            };
            return Comparison::new(form, every_line, None);
        }
        let too_much = Some(Approximation::TooMuchChanged);
        if bytes > MAX_COMPARED_BYTES || old_lines.max(new_lines) > MAX_COMPARED_LINES as u64 {
            return Comparison::new(Form::Literals, every_line, too_much);
        }
        if bytes as u64 > limits.max_compared_bytes {
            return Comparison::new(Form::Hunks(vec![self.whole()]), every_line, too_much);
        }
        let is_late = || limits.deadline.is_some_and(|at| Instant::now() >= at);
        if is_late() {
            let form = Form::Hunks(vec![self.whole()]);
            return Comparison::new(form, every_line, Some(Approximation::OutOfTime));
        }
        let lines = Lines::of(self);
        let edits = self.edits(&lines, limits.deadline);
        let sum = |of: fn(&Edit) -> &Range<usize>| edits.iter().map(|e| of(e).len() as u64).sum();
        let found = LineCounts {
            insertions: sum(|edit| &edit.new),
            deletions: sum(|edit| &edit.old),
            is_binary: false,
        };
        // The search does not say whether it was stopped, so it is asked what time it is.
        if is_late() {
            let late = Some(Approximation::OutOfTime);
            return Comparison::new(Form::Hunks(edits), found, late);
        }
        let counts = match lines.is_shortest(found) {
            true => found,
            // libgit2 fails here only for want of memory; what was found is an upper bound.
            false => self.count_as_git_does().unwrap_or(found),
        };
        Comparison::new(Form::Hunks(edits), counts, None)
    }

    /// All that lies between the shared ends, replaced.
    fn whole(&self) -> Edit {
        let (old, new) = self.changed();
        let first = count_lines(&self.old[..self.head]) as usize;
        Edit {
            old: first..first + count_lines(old) as usize,
            new: first..first + count_lines(new) as usize,
        }
    }

    fn count_as_git_does(&self) -> Option<LineCounts> {
        let (old, new) = self.changed();
        // Whole files where possible: git's shortcuts look at how frequent a line is in the shared
        // ends too. Without those, one made pair in ten was counted differently.
        if is_comparable(self.old) && is_comparable(self.new) {
            count_with_xdiff(self.old, self.new)
        } else {
            count_with_xdiff(old, new)
        }
    }

    /// The changes in the order of their lines, at least one unchanged line between two of them.
    fn edits(&self, lines: &Lines, deadline: Option<Instant>) -> Vec<Edit> {
        let first = count_lines(&self.old[..self.head]) as usize;
        let (old, new) = (&lines.old[..], &lines.new[..]);
        // Slides changes so that they meet, which makes fewer of them.
        let mut search = Compact::new(Matches::default(), old, new);
        let (olds, news) = (0..old.len(), 0..new.len());
        let Ok(()) = myers::diff_deadline(&mut search, old, olds, new, news, deadline);

        let mut edits = Vec::new();
        let (mut old_at, mut new_at) = (0, 0);
        let end = (old.len(), new.len(), 0);
        for (old_start, new_start, len) in search.into_inner().0.into_iter().chain([end]) {
            debug_assert!(old_at <= old_start && new_at <= new_start, "in order");
            debug_assert_eq!(
                old[old_start..old_start + len],
                new[new_start..new_start + len],
                "a match is one"
            );
            if old_at < old_start || new_at < new_start {
                edits.push(Edit {
                    old: first + old_at..first + old_start,
                    new: first + new_at..first + new_start,
                });
            }
            (old_at, new_at) = (old_start + len, new_start + len);
        }
        edits
    }
}

/// What a pair differs in, and how that is written.
#[derive(Default)]
struct Comparison {
    form: Form,
    compared: Compared,
}

impl Comparison {
    fn new(form: Form, counts: LineCounts, approximation: Option<Approximation>) -> Self {
        let compared = Compared {
            counts,
            approximation,
        };
        Self { form, compared }
    }
}

/// What a section holds.
enum Form {
    /// Lines; none where the contents are equal.
    Hunks(Vec<Edit>),
    /// Both contents, compressed.
    Literals,
}

impl Default for Form {
    fn default() -> Self {
        Self::Hunks(Vec::new())
    }
}

/// The changed lines of a pair as numbers, the same for the same line, so that comparing two is
/// comparing two numbers; and how often each line is in either file.
struct Lines {
    old: Vec<u32>,
    new: Vec<u32>,
    /// By number: in the whole of the old file, and of the new.
    occurrences: Vec<[u32; 2]>,
    /// The lines of the whole old file, and of the new.
    totals: [u64; 2],
    /// Whether no changed line of one side is one of the other.
    is_disjoint: bool,
}

impl Lines {
    fn of(pair: &Pair<'_>) -> Self {
        let (old, new) = pair.changed();
        let mut numbers: HashMap<&[u8], u32> = HashMap::new();
        let mut occurrences: Vec<[u32; 2]> = Vec::new();
        let mut number = |text, side: usize| -> Vec<u32> {
            lines(text)
                .map(|line| {
                    let number = *numbers.entry(line).or_insert_with(|| {
                        occurrences.push([0; 2]);
                        (occurrences.len() - 1) as u32
                    });
                    occurrences[number as usize][side] += 1;
                    number
                })
                .collect()
        };
        let (old, new) = (number(old, 0), number(new, 1));
        let (head, tail) = (
            &pair.old[..pair.head],
            &pair.old[pair.old.len() - pair.tail..],
        );
        let is_disjoint = occurrences.iter().all(|[old, new]| *old == 0 || *new == 0);
        let mut shared = 0;
        // Only what is not much is looked at: more of it would take longer than what it spares.
        let is_little = head.len() + tail.len() <= MAX_SHARED_BYTES;
        if is_little && !is_disjoint {
            for line in lines(head).chain(lines(tail)) {
                shared += 1;
                if let Some(number) = numbers.get(line) {
                    let [in_old, in_new] = &mut occurrences[*number as usize];
                    (*in_old, *in_new) = (*in_old + 1, *in_new + 1);
                }
            }
        }
        let totals = match is_little {
            true => [shared + old.len() as u64, shared + new.len() as u64],
            // With no lines at all, every line is frequent.
            false => [0; 2],
        };
        Self {
            old,
            new,
            occurrences,
            totals,
            is_disjoint,
        }
    }

    /// Whether edits with these counts are as few as there can be, and git too finds so few.
    ///
    /// `similar` and git's `xdiffi.c` search for the shortest way until they have gone 256 steps from
    /// both ends. Before that, git leaves out lines that the other file has not at all, which changes
    /// nothing, and some that it has very often (`xdl_cleanup_records`), which may; `similar` does
    /// that only where both sides have more than 511 lines.
    fn is_shortest(&self, found: LineCounts) -> bool {
        if self.is_disjoint {
            return true;
        }
        let is_frequent = |number: &u32, other: usize, total: u64| {
            u64::from(self.occurrences[*number as usize][other]) >= frequent(total)
        };
        found.insertions + found.deletions <= MAX_SHORTEST_EDITS
            && self.old.len().min(self.new.len()) < MAX_SEARCHED_WHOLE
            && !self.old.iter().any(|n| is_frequent(n, 1, self.totals[0]))
            && !self.new.iter().any(|n| is_frequent(n, 0, self.totals[1]))
    }
}

/// How much of the shared ends is looked at to learn how frequent a line is, in bytes.
const MAX_SHARED_BYTES: usize = 1 << 20;

/// Far from the 512 edits at which a search begins to take shortcuts.
const MAX_SHORTEST_EDITS: u64 = 250;

/// `similar` looks at all lines of sides that both have as many as this before it searches.
const MAX_SEARCHED_WHOLE: usize = 512;

/// How often a line has to be in the other file for git to think of leaving it out
/// (`xdl_bogosqrt` of `xutils.c`, `XDL_MAX_EQLIMIT` of `xprepare.c`).
fn frequent(lines: u64) -> u64 {
    let mut root = 1;
    let mut rest = lines;
    while rest > 0 {
        root <<= 1;
        rest >>= 2;
    }
    root.min(1024)
}

/// Lines that are replaced by others. Both ranges count lines of the whole file, from 0.
struct Edit {
    old: Range<usize>,
    new: Range<usize>,
}

/// The runs of lines that both sides share: place in the old, place in the new, length.
///
/// What lies between them is the patch. So a patch can only be wrong if lines that differ were
/// called equal.
#[derive(Default)]
struct Matches(Vec<(usize, usize, usize)>);

impl DiffHook for Matches {
    type Error = Infallible;

    fn equal(&mut self, old: usize, new: usize, len: usize) -> Result<(), Infallible> {
        if len > 0 {
            self.0.push((old, new, len));
        }
        Ok(())
    }
}

/// Counts with git's own algorithm, which libgit2 carries.
///
/// The text comes from `similar`, whose search takes other shortcuts: of 1000 random pairs of up to
/// 1200 lines, 227 had other counts in their hunks. libgit2's are git's on every pair of the tests.
fn count_with_xdiff(old: &[u8], new: &[u8]) -> Option<LineCounts> {
    let mut options = git2::DiffOptions::new();
    // Whether this is text is decided already, and context only costs memory.
    options.force_text(true).context_lines(0);
    let patch = git2::Patch::from_buffers(old, None, new, None, Some(&mut options)).ok()?;
    let (_, insertions, deletions) = patch.line_stats().ok()?;
    Some(LineCounts {
        insertions: insertions as u64,
        deletions: deletions as u64,
        is_binary: false,
    })
}

fn is_binary(bytes: &[u8]) -> bool {
    bytes.len() > MAX_TEXT_BYTES || bytes[..bytes.len().min(BINARY_PROBE_BYTES)].contains(&0)
}

fn is_comparable(bytes: &[u8]) -> bool {
    bytes.len() <= MAX_COMPARED_BYTES && count_lines(bytes) <= MAX_COMPARED_LINES as u64
}

/// The lines with their newlines; only the last can lack one. A carriage return ends no line.
fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split_inclusive(|b| *b == b'\n')
}

fn count_lines(bytes: &[u8]) -> u64 {
    let newlines = bytes.iter().filter(|b| **b == b'\n').count();
    let is_open = bytes.last().is_some_and(|b| *b != b'\n');
    newlines as u64 + u64::from(is_open)
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    // Whole blocks first: comparing them is many times faster than looking at each byte.
    const BLOCK: usize = 256;
    let blocks = a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK));
    let skipped = BLOCK * blocks.take_while(|(a, b)| a == b).count();
    let rest = a[skipped..].iter().zip(&b[skipped..]);
    skipped + rest.take_while(|(a, b)| a == b).count()
}

fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    const BLOCK: usize = 256;
    let blocks = a.rchunks_exact(BLOCK).zip(b.rchunks_exact(BLOCK));
    let skipped = BLOCK * blocks.take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[..a.len() - skipped], &b[..b.len() - skipped]);
    let rest = a.iter().rev().zip(b.iter().rev());
    skipped + rest.take_while(|(a, b)| a == b).count()
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
            write_literal(out, bytes.len() as u64, &|sink| sink.write_all(bytes))
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
            Some(side) => write_literal(out, side.size, side.copy)?,
            None => write_literal(out, 0, &|_| Ok(()))?,
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

/// Writes one direction of a binary patch: the whole content, compressed.
fn write_literal(
    out: &mut dyn Write,
    size: u64,
    copy: &dyn Fn(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    writeln!(out, "literal {size}")?;
    let mut compressed = ZlibEncoder::new(Base85::new(&mut *out), Compression::default());
    copy(&mut compressed)?;
    compressed.finish()?.finish()?;
    out.write_all(b"\n")
}

/// Writes bytes as lines of git's base 85 (`base85.c`): a letter for the number of bytes, up to 52,
/// then five digits for every four of them, the last four filled up with zeros.
struct Base85<'a> {
    out: &'a mut dyn Write,
    line: [u8; 52],
    len: usize,
}

impl<'a> Base85<'a> {
    const DIGITS: &'static [u8; 85] =
        b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

    fn new(out: &'a mut dyn Write) -> Self {
        Self {
            out,
            line: [0; 52],
            len: 0,
        }
    }

    /// Writes the line that is not full.
    fn finish(mut self) -> io::Result<()> {
        if self.len > 0 {
            self.write_line()
        } else {
            Ok(())
        }
    }

    fn write_line(&mut self) -> io::Result<()> {
        let mut text = Vec::with_capacity(1 + 52 / 4 * 5 + 1);
        text.push(match self.len as u8 {
            len @ ..=26 => b'A' + len - 1,
            len => b'a' + len - 27,
        });
        self.line[self.len..].fill(0);
        for four in self.line[..self.len.next_multiple_of(4)].chunks_exact(4) {
            let mut number = u32::from_be_bytes(four.try_into().expect("chunks of four"));
            let mut digits = [0; 5];
            for digit in digits.iter_mut().rev() {
                *digit = Self::DIGITS[(number % 85) as usize];
                number /= 85;
            }
            text.extend(digits);
        }
        text.push(b'\n');
        self.len = 0;
        self.out.write_all(&text)
    }
}

impl Write for Base85<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.len == self.line.len() {
            self.write_line()?;
        }
        let taken = bytes.len().min(self.line.len() - self.len);
        self.line[self.len..self.len + taken].copy_from_slice(&bytes[..taken]);
        self.len += taken;
        Ok(taken)
    }

    /// Does nothing: a line ends where it is full or at the end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::Path;
    use std::process::{Command, Stdio};

    use proptest::prelude::*;
    use proptest::sample::select;
    use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
    use tempfile::TempDir;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Node {
        kind: EntryKind,
        bytes: Vec<u8>,
    }

    fn file(bytes: impl Into<Vec<u8>>) -> Option<Node> {
        node(EntryKind::File, bytes)
    }

    fn script(bytes: impl Into<Vec<u8>>) -> Option<Node> {
        node(EntryKind::Executable, bytes)
    }

    fn link(text: impl Into<Vec<u8>>) -> Option<Node> {
        node(EntryKind::Symlink, text)
    }

    fn node(kind: EntryKind, bytes: impl Into<Vec<u8>>) -> Option<Node> {
        let bytes = bytes.into();
        Some(Node { kind, bytes })
    }

    type Tree = BTreeMap<Vec<u8>, Node>;

    /// Two trees, from what each path holds before and after.
    fn trees<'a>(
        changes: impl IntoIterator<Item = (&'a [u8], Option<Node>, Option<Node>)>,
    ) -> (Tree, Tree) {
        let (mut before, mut after) = (Tree::new(), Tree::new());
        for (path, old, new) in changes {
            before.extend(old.map(|node| (path.to_vec(), node)));
            after.extend(new.map(|node| (path.to_vec(), node)));
        }
        (before, after)
    }

    /// As much as a search can take.
    const GENEROUS: Limits = Limits {
        max_compared_bytes: u64::MAX,
        deadline: None,
    };

    fn side(node: &Node) -> Side<'_> {
        Side {
            kind: node.kind,
            id: ObjectId::of(ObjectKind::Blob, &node.bytes).unwrap().into(),
            bytes: &node.bytes,
        }
    }

    fn patch_of_path(path: &[u8], old: Option<&Node>, new: Option<&Node>) -> (Vec<u8>, LineCounts) {
        let mut out = Vec::new();
        let path = RelPath::new(path).unwrap();
        let compared = write(&mut out, &path, old.map(side), new.map(side), &GENEROUS).unwrap();
        let bytes = |node: Option<&'_ Node>| node.map(|node| node.bytes.clone());
        let (old, new) = (bytes(old), bytes(new));
        let counted = count(old.as_deref(), new.as_deref(), &GENEROUS);
        assert_eq!(counted, compared, "with and without the patch");
        (out, compared.counts)
    }

    /// The whole patch, and the counts of every path that differs.
    fn patch_of(before: &Tree, after: &Tree) -> (Vec<u8>, BTreeMap<Vec<u8>, LineCounts>) {
        let (mut patch, mut counts) = (Vec::new(), BTreeMap::new());
        let both: Tree = before.clone().into_iter().chain(after.clone()).collect();
        for path in both.keys() {
            let (old, new) = (before.get(path), after.get(path));
            let (section, counted) = patch_of_path(path, old, new);
            assert_eq!(
                section.is_empty(),
                old == new,
                "a section where the sides differ"
            );
            patch.extend(section);
            if old != new {
                counts.insert(path.clone(), counted);
            }
        }
        (patch, counts)
    }

    #[test]
    fn contents_that_are_streamed_make_the_same_trees() {
        let binary = || file(b"\0\xff".repeat(100));
        let (before, after) = trees([
            (&b"changed"[..], file("one\n"), binary()),
            (b"added", None, binary()),
            (b"deleted", binary(), None),
            (b"emptied", binary(), file("")),
            (b"mode", binary(), script(b"\0\xff".repeat(100))),
            (b"became-a-file", link("target"), binary()),
        ]);
        let mut patch = Vec::new();
        let both: Tree = before.clone().into_iter().chain(after.clone()).collect();
        for path in both.keys() {
            let (old, new) = (before.get(path), after.get(path));
            let copy = |node: Option<&Node>, out: &mut dyn Write| {
                out.write_all(node.map_or(&b""[..], |n| &n.bytes))
            };
            let copy_old = |out: &mut dyn Write| copy(old, out);
            let copy_new = |out: &mut dyn Write| copy(new, out);
            let old = old.map(|node| streamed(node, &copy_old));
            let new = new.map(|node| streamed(node, &copy_new));
            write_streamed(&mut patch, &RelPath::new(&path[..]).unwrap(), old, new).unwrap();
        }
        let git = Git::new();
        let plain = tempfile::tempdir().unwrap();
        store(plain.path(), &before);
        let mut apply = git.command(&["apply", "--binary"]);
        apply
            .current_dir(plain.path())
            .env("GIT_DIR", git.path("none"));
        finish(apply, &patch);
        assert_eq!(load(plain.path()), after, "every byte, mode and link");
    }

    fn streamed<'a>(
        node: &Node,
        copy: &'a dyn Fn(&mut dyn Write) -> io::Result<()>,
    ) -> Streamed<'a> {
        let id = ObjectId::of(ObjectKind::Blob, &node.bytes).unwrap();
        Streamed {
            kind: node.kind,
            id,
            size: node.bytes.len() as u64,
            copy,
        }
    }

    /// A repository that no setting of this machine reaches.
    struct Git {
        directory: TempDir,
    }

    impl Git {
        fn new() -> Self {
            let git = Self {
                directory: tempfile::tempdir().unwrap(),
            };
            for name in ["home", "before", "after"] {
                fs::create_dir(git.path(name)).unwrap();
            }
            git.run(&["init", "--quiet"], b"");
            git
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.directory.path().join(name)
        }

        fn command(&self, arguments: &[&str]) -> Command {
            let mut command = Command::new("git");
            command
                .args(arguments)
                .current_dir(self.directory.path())
                .env_clear()
                .env("PATH", std::env::var_os("PATH").unwrap())
                .env("HOME", self.path("home"))
                .env("LC_ALL", "C")
                .env("GIT_CONFIG_NOSYSTEM", "1")
                .env("GIT_CONFIG_GLOBAL", "/dev/null")
                .env("GIT_DIR", self.path(".git"));
            command
        }

        fn run(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
            finish(self.command(arguments), input)
        }

        /// The id of git's tree for what lies in the directory `name`.
        fn tree_of(&self, name: &str) -> String {
            for arguments in [&["add", "--all"][..], &["write-tree"]] {
                let mut command = self.command(arguments);
                command.current_dir(self.path(name));
                command.env("GIT_WORK_TREE", self.path(name));
                command.env("GIT_INDEX_FILE", self.path(&format!("{name}.index")));
                let id = finish(command, b"");
                if !id.is_empty() {
                    return String::from_utf8(id).unwrap().trim().to_owned();
                }
            }
            unreachable!("write-tree prints an id")
        }

        /// What `git diff --numstat` says, by path.
        fn numstat(&self, before: &str, after: &str) -> BTreeMap<Vec<u8>, LineCounts> {
            let arguments = ["diff", "--numstat", "--no-renames", "-z", before, after];
            let text = self.run(&arguments, b"");
            text.split(|b| *b == 0)
                .filter(|line| !line.is_empty())
                .map(|line| {
                    let fields: Vec<_> = line.splitn(3, |b| *b == b'\t').collect();
                    let number = |field: &[u8]| std::str::from_utf8(field).unwrap().parse().ok();
                    let counts = LineCounts {
                        insertions: number(fields[0]).unwrap_or(0),
                        deletions: number(fields[1]).unwrap_or(0),
                        is_binary: fields[0] == b"-",
                    };
                    (fields[2].to_vec(), counts)
                })
                .collect()
        }

        /// Has git itself turn `before` into `after` with our patch, once in a plain directory and
        /// once with its index, and compares both with `after`, and our counts with its own.
        fn check(&self, before: &Tree, after: &Tree) {
            let (patch, counts) = patch_of(before, after);
            store(&self.path("before"), before);
            store(&self.path("after"), after);
            let (old, new) = (self.tree_of("before"), self.tree_of("after"));
            assert_eq!(counts, self.numstat(&old, &new), "git counts the same");

            let plain = tempfile::tempdir().unwrap();
            store(plain.path(), before);
            let mut apply = self.command(&["apply", "--binary"]);
            apply
                .current_dir(plain.path())
                .env("GIT_DIR", self.path("none"));
            finish(apply, &patch);
            assert_eq!(load(plain.path()), *after, "every byte, mode and link");

            let mut apply = self.command(&["apply", "--index"]);
            apply.current_dir(self.path("before"));
            apply.env("GIT_WORK_TREE", self.path("before"));
            apply.env("GIT_INDEX_FILE", self.path("before.index"));
            finish(apply, &patch);
            assert_eq!(
                load(&self.path("before")),
                *after,
                "every byte, mode and link"
            );
            assert_eq!(self.tree_of("before"), new, "and the same tree");
        }
    }

    fn finish(mut command: Command, input: &[u8]) -> Vec<u8> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let output = std::thread::scope(|scope| {
            scope.spawn(move || stdin.write_all(input));
            child.wait_with_output().unwrap()
        });
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {stderr}");
        output.stdout
    }

    fn store(directory: &Path, tree: &Tree) {
        for (path, node) in tree {
            let disk_path = directory.join(OsStr::from_bytes(path));
            fs::create_dir_all(disk_path.parent().unwrap()).unwrap();
            if node.kind == EntryKind::Symlink {
                symlink(OsStr::from_bytes(&node.bytes), &disk_path).unwrap();
                continue;
            }
            fs::write(&disk_path, &node.bytes).unwrap();
            let mode = node.kind.git_mode() & 0o777;
            fs::set_permissions(&disk_path, fs::Permissions::from_mode(mode)).unwrap();
        }
    }

    fn load(directory: &Path) -> Tree {
        let mut tree = Tree::new();
        for entry in walkdir::WalkDir::new(directory) {
            let entry = entry.unwrap();
            let rel_path = entry.path().strip_prefix(directory).unwrap();
            let found = if entry.file_type().is_dir() {
                continue;
            } else if entry.path_is_symlink() {
                let target = fs::read_link(entry.path()).unwrap();
                link(target.as_os_str().as_bytes())
            } else if entry.metadata().unwrap().permissions().mode() & 0o100 != 0 {
                script(fs::read(entry.path()).unwrap())
            } else {
                file(fs::read(entry.path()).unwrap())
            };
            tree.extend(found.map(|node| (rel_path.as_os_str().as_bytes().to_vec(), node)));
        }
        tree
    }

    /// Lines of a few words, so that they recur, with every kind of ending.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let line = select(vec![
            "one\n",
            "two\n",
            "three\n",
            "\n",
            "}\n",
            "  indented\n",
            "crlf\r\n",
            "\r\n",
            "a\rb\n",
            "-minus\n",
            "+plus\n",
            "@@ -1 +1 @@\n",
            "\\ No newline at end of file\n",
            "caf\u{e9}\n",
            "diff --git a/x b/x\n",
            "trailing  \n",
            "nul\0\n",
        ]);
        let end = select(vec!["", "", "", "open", "open\r", "\r", " "]);
        (prop::collection::vec(line, 0..60), end, 0..9).prop_map(|(mut lines, end, with_nul)| {
            if with_nul > 0 {
                lines.retain(|line| !line.contains('\0'));
            }
            (lines.concat() + end).into_bytes()
        })
    }

    fn content() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            8 => text(),
            1 => Just(Vec::new()),
            1 => prop::collection::vec(any::<u8>(), 0..300),
            // A NUL on both sides of the place up to which git looks.
            1 => (7998usize..8003, text()).prop_map(|(at, mut text)| {
                text.extend(b"long\n".repeat(1700));
                text[at] = 0;
                text
            }),
        ]
    }

    fn any_node() -> impl Strategy<Value = Node> {
        use EntryKind::{Executable, File, Symlink};
        (
            select(vec![File, File, File, Executable, Symlink]),
            content(),
        )
            .prop_map(|(kind, bytes)| match kind {
                Symlink => Node {
                    kind,
                    bytes: format!("../to/{}", bytes.len()).into_bytes(),
                },
                kind => Node { kind, bytes },
            })
    }

    /// What a path holds before and after: often an edited text, sometimes two unrelated things.
    fn change() -> impl Strategy<Value = (Option<Node>, Option<Node>)> {
        let edited = (any_node(), any::<prop::sample::Index>(), 0..6, text()).prop_map(
            |(old, at, how, insert)| {
                let mut new = old.clone();
                let at = at.index(new.bytes.len() + 1);
                match (how, new.kind) {
                    (0, EntryKind::File) => new.kind = EntryKind::Executable,
                    (1, EntryKind::Executable) => new.kind = EntryKind::File,
                    (_, EntryKind::Symlink) => new.bytes.push(b'x'),
                    (2, _) => new.bytes.truncate(at),
                    (3, _) => drop(new.bytes.drain(..at)),
                    _ => drop(new.bytes.splice(at..at, insert)),
                }
                (Some(old), Some(new))
            },
        );
        let any_two = (prop::option::of(any_node()), prop::option::of(any_node()));
        prop_oneof![2 => edited, 1 => any_two]
    }

    /// Names that a reader of patches can misread.
    fn names() -> Vec<&'static [u8]> {
        let names =
            b"plain|plain.txt|with space| leading|trailing |  |x b/x|x b/x b/x|a/b/c|a b/a b|\
            b/plain|dev/null|tab\there|tab\t|new\nline|\n|\r|\"|\"quoted\"|back\\slash|\\|\\n|\
            bell\x07\x08\x0b\x0c|\x01|\x7f|\xc3\xbcml\xc3\xa4ut|\xff\xfe|\xe2\x80\xae|-dash|--- a|\
            2020-01-01 00:00:00|stamp\t2020-01-01|{a => b}|a => b|*|?[x]|:(top)x|$HOME|'single'|\
            deep/ /er/\t/name|~|#x|%s";
        let mut names: Vec<&[u8]> = names.split(|b| *b == b'|').collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn git_makes_before_into_after_with_any_patch_and_counts_the_same_lines() {
        // A fixed seed: what fails once fails again. Each case is some forty pairs.
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
        let config = ProptestConfig {
            cases: 14,
            max_shrink_iters: 30,
            failure_persistence: None,
            ..ProptestConfig::default()
        };
        let changes = prop::collection::vec(change(), names().len());
        TestRunner::new_with_rng(config, rng)
            .run(&changes, |changes| {
                let paired = names().into_iter().zip(changes);
                let (before, after) = trees(paired.map(|(name, (old, new))| (name, old, new)));
                Git::new().check(&before, &after);
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn a_path_may_be_a_file_then_a_directory_or_a_link_in_any_order() {
        let thing = || file("thing\n");
        let (mut before, mut after) = (Tree::new(), Tree::new());
        // What can be at a name: nothing, a file, a link to a file or to a directory, a directory.
        let shapes: [&[(&[u8], Option<Node>)]; 6] = [
            &[],
            &[(b"", thing())],
            &[(b"", link("nowhere"))],
            &[(b"", link("real"))],
            &[(b"/x", thing())],
            &[(b"/x", script("other\n")), (b"/y/z", thing())],
        ];
        for (i, old) in shapes.iter().enumerate() {
            for (j, new) in shapes.iter().enumerate() {
                for (tree, shape) in [(&mut before, old), (&mut after, new)] {
                    for (suffix, node) in *shape {
                        let path = [format!("{i}to{j}").as_bytes(), suffix].concat();
                        tree.extend(node.clone().map(|node| (path, node)));
                    }
                    // What the link leads to has a file of the same name.
                    tree.extend(thing().map(|node| (b"real/x".to_vec(), node)));
                }
            }
        }
        Git::new().check(&before, &after);
    }

    #[test]
    fn where_nothing_is_left_to_choice_the_patch_is_gits_own() {
        let mut changes: Vec<(&[u8], Option<Node>, Option<Node>)> = Vec::new();
        for (i, name) in names().into_iter().enumerate() {
            let change = match i % 9 {
                0 => (file("one\n"), file("two")),
                1 => (None, file("one\ntwo\n")),
                2 => (script("one\n"), None),
                3 => (file("one\r\n"), script("one\r\n")),
                4 => (file(""), script("one\n")),
                5 => (link("one"), link("two")),
                6 => (file("one\n"), link("one")),
                7 => (None, file("")),
                _ => (script(""), None),
            };
            changes.push((name, change.0, change.1));
        }
        let (before, after) = trees(changes);
        let git = Git::new();
        store(&git.path("before"), &before);
        store(&git.path("after"), &after);
        let (old, new) = (git.tree_of("before"), git.tree_of("after"));
        let theirs = git.run(&["diff", "--full-index", "--no-renames", &old, &new], b"");
        let ours = patch_of(&before, &after).0;
        assert_eq!(
            String::from_utf8_lossy(&ours),
            String::from_utf8_lossy(&theirs)
        );
    }

    #[test]
    fn binary_content_is_there_both_ways_so_the_patch_can_be_reversed() {
        let long: Vec<u8> = (0..5000).map(|n| (n * n % 251) as u8).collect();
        let (before, after) = trees([
            (&b"edited"[..], file(*b"\0old"), file(long.clone())),
            (b"created", None, file(long.clone())),
            (b"deleted", file(long), None),
            (b"emptied", file(*b"\0"), file("")),
            (b"became text", script(*b"a\0b\n"), script("a b\n")),
        ]);
        let (patch, _) = patch_of(&before, &after);
        let git = Git::new();
        git.check(&before, &after);
        let mut undo = git.command(&["apply", "--binary", "--reverse"]);
        undo.current_dir(git.path("before"));
        undo.env("GIT_WORK_TREE", git.path("before"));
        finish(undo, &patch);
        assert_eq!(load(&git.path("before")), before, "every byte");
    }

    #[test]
    fn hunks_have_three_lines_around_them_and_meet_where_those_touch() {
        let line = |n: &usize| format!("{n}\n");
        let old: String = (1..=40).map(|n| line(&n)).collect();
        let mut edited: Vec<String> = (1..=40).map(|n| line(&n)).collect();
        edited[9] = "ten\n".to_owned();
        edited[16] = "seventeen\n".to_owned();
        edited.remove(30);
        let new = edited.concat();
        let (patch, counts) = patch_of_path(b"f", file(old).as_ref(), file(new).as_ref());
        let patch = String::from_utf8(patch).unwrap();
        let hunks: Vec<_> = patch
            .lines()
            .filter(|line| line.starts_with("@@"))
            .collect();
        assert_eq!(hunks, ["@@ -7,14 +7,14 @@", "@@ -28,7 +28,6 @@"]);
        assert_eq!((counts.insertions, counts.deletions), (2, 3));
    }

    /// Numbers that look random and are always the same.
    struct Noise(u64);

    impl Noise {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }

        fn lines(&mut self, count: usize, words: u64) -> Vec<u8> {
            let line = |_| format!("{:x}\n", self.below(words)).into_bytes();
            (0..count).flat_map(line).collect()
        }
    }

    #[test]
    fn pairs_on_which_searches_differ_are_counted_as_git_counts_them() {
        let mut noise = Noise(0x2545_f491_4f6c_dd1d);
        let (mut before, mut after) = (Tree::new(), Tree::new());
        for i in 0..300 {
            let (len, words) = (1 + noise.below(900) as usize, 1 + noise.below(400));
            let mut old = noise.lines(len, words);
            let mut new = match i % 3 {
                0 => edited(&old, &mut noise),
                _ => noise.lines(len, words),
            };
            if i % 3 == 1 {
                // What the two share at their ends is frequent in between too.
                let ends = b"}\n".repeat(noise.below(400) as usize);
                for (text, mark) in [(&mut old, "old"), (&mut new, "new")] {
                    let middle = mixed(mark, &mut noise);
                    *text = [&ends[..], b"start\n", &middle, b"end\n", &ends].concat();
                }
            }
            for text in [&mut old, &mut new] {
                if noise.below(4) == 0 {
                    text.pop();
                }
            }
            let name = format!("{i:03}").into_bytes();
            before.extend(file(old).map(|node| (name.clone(), node)));
            after.extend(file(new).map(|node| (name, node)));
        }
        Git::new().check(&before, &after);
    }

    #[test]
    fn where_one_search_is_enough_it_counts_as_git_does() {
        let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
        let mut searched = [0, 0];
        for i in 0..3000 {
            let (len, words) = (1 + noise.below(600) as usize, 1 + noise.below(2000));
            let old = noise.lines(len, words);
            let mut new = edited(&old, &mut noise);
            if i % 2 == 0 {
                // Edits in one place, as people make them; a line that is everywhere among them.
                let at = lines(&old).take(len / 3).map(<[u8]>::len).sum::<usize>();
                let to = at + lines(&old[at..]).take(6).map(<[u8]>::len).sum::<usize>();
                let middle = edited(&[&old[at..to], b"}\n\n"].concat(), &mut noise);
                new = [&old[..at], &middle, &old[to..]].concat();
            }
            let pair = Pair::new(&old, &new);
            let (changed_old, changed_new) = pair.changed();
            if changed_old.is_empty() || changed_new.is_empty() {
                continue;
            }
            let lines = Lines::of(&pair);
            let mut found = LineCounts::default();
            for edit in pair.edits(&lines, None) {
                found.deletions += edit.old.len() as u64;
                found.insertions += edit.new.len() as u64;
            }
            let is_enough = lines.is_shortest(found);
            searched[usize::from(is_enough)] += 1;
            if is_enough {
                assert_eq!(count_with_xdiff(&old, &new), Some(found), "pair {i}");
            }
        }
        assert!(
            searched.iter().all(|n| *n > 100),
            "both happen: {searched:?}"
        );
    }

    /// `text` with lines removed, added and doubled.
    fn edited(text: &[u8], noise: &mut Noise) -> Vec<u8> {
        let mut out = Vec::new();
        for line in lines(text) {
            match noise.below(12) {
                0 => {}
                1 => out.extend(b"new\n"),
                2 => out.extend([line, line].concat()),
                _ => out.extend(line),
            }
        }
        out
    }

    /// Lines that are nowhere else, some that may be, and one again and again.
    fn mixed(mark: &str, noise: &mut Noise) -> Vec<u8> {
        let mut out = Vec::new();
        for n in 0..20 + noise.below(100) {
            match noise.below(4) {
                0 => out.extend(b"}\n"),
                1 => out.extend(format!("word {}\n", noise.below(20)).bytes()),
                _ => out.extend(format!("{mark} {n}\n").bytes()),
            }
        }
        out
    }

    #[test]
    fn a_patch_is_right_when_there_is_no_time_to_search() {
        let mut noise = Noise(99);
        let (old, new) = (noise.lines(3000, 50), noise.lines(3000, 50));
        let (old, new) = (file(old).unwrap(), file(new).unwrap());
        let path = RelPath::new("f").unwrap();
        let (searched, counts) = patch_of_path(b"f", Some(&old), Some(&new));
        let mut hasty = Vec::new();
        let at_once = Limits {
            deadline: Some(Instant::now()),
            ..GENEROUS
        };
        let sides = (Some(side(&old)), Some(side(&new)));
        let compared = write(&mut hasty, &path, sides.0, sides.1, &at_once).unwrap();
        assert!(hasty.len() > searched.len(), "the deadline was looked at");
        assert_eq!(compared.approximation, Some(Approximation::OutOfTime));
        assert!(
            compared.counts.insertions > counts.insertions,
            "an upper bound"
        );
        assert_eq!(
            compared,
            count(Some(&old.bytes), Some(&new.bytes), &at_once),
            "with and without the patch"
        );

        let directory = tempfile::tempdir().unwrap();
        store(directory.path(), &Tree::from([(b"f".to_vec(), old)]));
        let mut apply = Git::new().command(&["apply"]);
        apply.current_dir(directory.path());
        finish(apply, &hasty);
        assert_eq!(load(directory.path()), Tree::from([(b"f".to_vec(), new)]));
    }

    /// Every line is there once, and no line is where the other text has it.
    fn shuffled(count: usize, seed: u64) -> Vec<u8> {
        let mut noise = Noise(seed);
        let mut order: Vec<usize> = (0..count).collect();
        for i in (1..count).rev() {
            order.swap(i, noise.below(i as u64 + 1) as usize);
        }
        order
            .iter()
            .flat_map(|n| format!("{n:x}\n").into_bytes())
            .collect()
    }

    #[test]
    fn text_that_is_too_much_to_compare_goes_out_whole_and_compressed() {
        let lines = MAX_COMPARED_LINES + 1;
        let bytes = |byte: u8| [vec![byte; MAX_COMPARED_BYTES], b"\n".to_vec()].concat();
        let (before, after) = trees([
            (
                &b"lines"[..],
                file(shuffled(lines, 1)),
                file(shuffled(lines, 2)),
            ),
            (b"bytes", file(bytes(b'a')), file(bytes(b'b'))),
        ]);
        let (patch, counts) = patch_of(&before, &after);
        let literals = patch
            .split(|b| *b == b'\n')
            .filter(|line| line.starts_with(b"literal "));
        assert_eq!(literals.count(), 4, "two files, both ways");
        let every_line = LineCounts {
            insertions: lines as u64,
            deletions: lines as u64,
            is_binary: false,
        };
        assert_eq!(counts[&b"lines"[..]], every_line, "an upper bound");

        let directory = tempfile::tempdir().unwrap();
        store(directory.path(), &before);
        let mut apply = Git::new().command(&["apply", "--binary"]);
        apply.current_dir(directory.path());
        finish(apply, &patch);
        assert!(load(directory.path()) == after, "every byte");
    }

    #[test]
    fn a_small_change_in_a_very_long_text_is_a_small_patch_with_gits_counts() {
        let text = b"alike\n".repeat(2 * MAX_COMPARED_LINES);
        let line = text.len() / 2..text.len() / 2 + 6;
        let mut edited = text.clone();
        edited.splice(line.clone(), *b"but\nthese\n");
        let mut longer = text.clone();
        longer.extend(b"the end");
        let (before, after) = trees([
            (&b"edited"[..], file(&text[..]), file(edited)),
            (b"longer", file(&text[..]), file(longer)),
        ]);
        let (patch, _) = patch_of(&before, &after);
        assert!(patch.len() < 1000, "{} bytes", patch.len());
        Git::new().check(&before, &after);
    }

    #[test]
    fn a_pair_made_to_recurse_deeply_fits_in_a_small_stack() {
        // Short stretches that share words but not their order, each followed by a match that is
        // just long enough to be taken for a good place to split.
        let mut noise = Noise(5);
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for block in 0..MAX_COMPARED_LINES / 650 {
            old.extend(noise.lines(200, MAX_COMPARED_LINES as u64));
            new.extend(noise.lines(200, MAX_COMPARED_LINES as u64));
            let shared = (0..450).flat_map(|n| format!("s{:x}\n", block * 450 + n).into_bytes());
            let shared: Vec<u8> = shared.collect();
            old.extend(&shared);
            new.extend(&shared);
        }
        let half_of_a_usual_stack = 1 << 20;
        let search = move || {
            let pair = Pair::new(&old, &new);
            let comparison = pair.compare(&GENEROUS);
            let Form::Hunks(edits) = comparison.form else {
                panic!("it is text");
            };
            (edits.len(), comparison.compared.counts)
        };
        let thread = std::thread::Builder::new().stack_size(half_of_a_usual_stack);
        let (edits, counts) = thread.spawn(search).unwrap().join().unwrap();
        assert!(
            edits > MAX_COMPARED_LINES / 650,
            "the stretches were searched one by one"
        );
        assert!(
            counts.insertions < MAX_COMPARED_LINES as u64 / 2,
            "the matches were found"
        );
    }

    #[test]
    fn a_blake3_id_is_never_taken_for_gits() {
        let node = file("one\n").unwrap();
        let id = ContentId::Blake3(*blake3::hash(&node.bytes).as_bytes());
        let hashed = Side { id, ..side(&node) };
        let mut out = Vec::new();
        let path = RelPath::new("f").unwrap();
        write(&mut out, &path, None, Some(hashed), &GENEROUS).unwrap();
        assert_eq!(out, patch_of_path(b"f", None, Some(&node)).0);
    }

    /// Takes so many bytes, then fails; remembers the largest write.
    struct Full {
        left: usize,
        largest: usize,
    }

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.largest = self.largest.max(bytes.len());
            self.left = self
                .left
                .checked_sub(bytes.len())
                .ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_patch_is_a_stream_and_a_full_disk_is_an_error_at_any_byte() {
        let mut noise = Noise(3);
        let text = file(noise.lines(400, 10)).unwrap();
        let mut binary = text.clone();
        binary.bytes.insert(0, 0);
        let path = RelPath::new("f").unwrap();
        for node in [text, binary] {
            let size = patch_of_path(b"f", None, Some(&node)).0.len();
            for left in 0..=size {
                let mut out = Full { left, largest: 0 };
                let result = write(&mut out, &path, None, Some(side(&node)), &GENEROUS);
                match result {
                    Ok(_) => assert_eq!(left, size, "nothing was lost"),
                    Err(e) => assert_eq!(e.kind(), io::ErrorKind::StorageFull),
                }
                assert!(out.largest < 100, "no piece is larger than a line");
                assert!(left < size || out.left == 0, "all was taken");
            }
        }
    }
}
