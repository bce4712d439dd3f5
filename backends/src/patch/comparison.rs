//! Comparing two contents line by line.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::Range;
use std::time::Instant;

use similar::algorithms::{Compact, DiffHook, myers};

use crate::diff::Approximation;

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
pub(super) const MAX_COMPARED_LINES: usize = 512 << 10;

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

/// Counts the lines in which two contents differ, as `git diff --numstat --no-renames` does.
///
/// The counts are git's own unless there was too much text to compare (see [`write`]) or too little
/// time: then every line between the first and the last difference counts as changed that was not
/// found to be the same.
pub(crate) fn count(old: Option<&[u8]>, new: Option<&[u8]>, limits: &Limits) -> Compared {
    let pair = Pair::new(old.unwrap_or_default(), new.unwrap_or_default());
    pair.compare(limits).compared
}

/// Two contents, and how many bytes they share at both ends, in whole lines.
pub(super) struct Pair<'a> {
    pub(super) old: &'a [u8],
    pub(super) new: &'a [u8],
    pub(super) head: usize,
    pub(super) tail: usize,
}

impl<'a> Pair<'a> {
    pub(super) fn new(old: &'a [u8], new: &'a [u8]) -> Self {
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
    pub(super) fn changed(&self) -> (&'a [u8], &'a [u8]) {
        (
            &self.old[self.head..self.old.len() - self.tail],
            &self.new[self.head..self.new.len() - self.tail],
        )
    }

    pub(super) fn is_equal(&self) -> bool {
        self.head == self.old.len() && self.head == self.new.len()
    }

    fn is_binary(&self) -> bool {
        is_binary(self.old) || is_binary(self.new)
    }

    pub(super) fn compare(&self, limits: &Limits) -> Comparison {
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
    pub(super) fn edits(&self, lines: &Lines, deadline: Option<Instant>) -> Vec<Edit> {
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
pub(super) struct Comparison {
    pub(super) form: Form,
    pub(super) compared: Compared,
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
pub(super) enum Form {
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
pub(super) struct Lines {
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
    pub(super) fn of(pair: &Pair<'_>) -> Self {
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
    /// `similar` and git's `xdiffi.c` search for the shortest way until they have gone 256 steps
    /// from both ends. Before that, git leaves out lines that the other file has not at all, which
    /// changes nothing, and some that it has very often (`xdl_cleanup_records`), which may;
    /// `similar` does that only where both sides have more than 511 lines.
    pub(super) fn is_shortest(&self, found: LineCounts) -> bool {
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
pub(super) struct Edit {
    pub(super) old: Range<usize>,
    pub(super) new: Range<usize>,
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
pub(super) fn count_with_xdiff(old: &[u8], new: &[u8]) -> Option<LineCounts> {
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

/// Whether git takes this for something else than text, or it is too long to be compared by lines.
pub(crate) fn is_binary(bytes: &[u8]) -> bool {
    bytes.len() > MAX_TEXT_BYTES || bytes[..bytes.len().min(BINARY_PROBE_BYTES)].contains(&0)
}

fn is_comparable(bytes: &[u8]) -> bool {
    bytes.len() <= MAX_COMPARED_BYTES && count_lines(bytes) <= MAX_COMPARED_LINES as u64
}

/// The lines with their newlines; only the last can lack one. A carriage return ends no line.
pub(super) fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split_inclusive(|b| *b == b'\n')
}

pub(super) fn count_lines(bytes: &[u8]) -> u64 {
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
