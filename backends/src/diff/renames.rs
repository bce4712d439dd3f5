//! Finding renames: pairs of a deleted and an added file, as git finds them (`diffcore-rename.c`).
//! Pure.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::diff::ChangedFile;
use crate::diff::fingerprint::{WHOLE, can_be_similar};
use crate::path::RelPath;
use crate::tree::{Change, ContentId, Entry, EntryKind};

/// How many deleted files with the content of an added one are looked at for one of the same name:
/// as many as git looks at.
const MAX_ALTERNATIVES: usize = 100;

/// How similar two files must be to be one: git's default.
const MIN_SIMILARITY: u32 = WHOLE / 2;

/// How similar two files must be to be one because no other has their name: half-way between that
/// and the same.
pub(crate) const MIN_SIMILARITY_BY_NAME: u32 = MIN_SIMILARITY + (WHOLE - MIN_SIMILARITY) / 2;

/// The most pairs of files that are compared: the square of git's default for `diff.renameLimit`.
const MAX_COMPARED_PAIRS: u64 = 1000 * 1000;

/// How many deleted files are kept in mind for each added one.
const MAX_BEST: usize = 4;

/// How renames are looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renames {
    /// By the whole content, which is known by its id, so that nothing has to be read.
    #[default]
    Exact,
    /// As `git diff -M` does: also files of which half of the content is the same. They are read
    /// for that.
    Similar,
}

/// A file that is at another path. The one is in [`Diff::deleted`](crate::Diff::deleted) and the
/// other in [`Diff::added`](crate::Diff::added) all the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Renamed {
    /// The path that the earlier side has.
    pub from: RelPath,
    /// The path that the later side has.
    pub to: RelPath,
    /// How much of the content is the same, in percent. In JSON left out where it is 100.
    #[serde(default = "all", skip_serializing_if = "is_all")]
    pub similarity: u8,
    /// The two compared as one file that was modified, if [`Renames::Similar`] were looked for.
    /// What a limit of [`DiffOptions`](crate::DiffOptions) keeps from being compared counts every
    /// line that may differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<ChangedFile>,
}

fn all() -> u8 {
    100
}

fn is_all(similarity: &u8) -> bool {
    *similarity == all()
}

/// A deleted and an added file that are taken for one, by their places among the changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// At most [`WHOLE`].
    pub(crate) similarity: u32,
}

impl Pair {
    pub(crate) fn new(from: usize, to: usize, similarity: u32) -> Self {
        Self {
            from,
            to,
            similarity,
        }
    }

    /// The two as one file that was modified.
    pub(crate) fn as_one(&self, changes: &[Change]) -> Change {
        Change {
            path: changes[self.to].path.clone(),
            old: changes[self.from].old,
            new: changes[self.to].new,
        }
    }

    pub(crate) fn percent(&self) -> u8 {
        u8::try_from(self.similarity * 100 / WHOLE).unwrap_or(all())
    }
}

/// Pairs deleted with added files that have the same content, each at most once, sorted by the
/// added path. Of several the one with the same name is taken, else the first. A link is no file.
///
/// `changes` are sorted by path. No content is read.
pub(crate) fn exact(changes: &[Change]) -> Vec<Pair> {
    let mut sources: HashMap<(ContentId, bool), BTreeSet<usize>> = HashMap::new();
    for (at, change) in changes.iter().enumerate() {
        if let (Some(old), None) = (change.old, change.new) {
            sources.entry(key(old)).or_default().insert(at);
        }
    }
    let mut pairs = Vec::new();
    for (to, change) in changes.iter().enumerate() {
        let (None, Some(new)) = (change.old, change.new) else {
            continue;
        };
        let Some(alike) = sources.get_mut(&key(new)) else {
            continue;
        };
        let name = change.path.name();
        let mut looked_at = alike.iter().take(MAX_ALTERNATIVES);
        let same_name = looked_at.find(|at| changes[**at].path.name() == name);
        let Some(from) = same_name.or(alike.first()).copied() else {
            continue;
        };
        alike.remove(&from);
        pairs.push(Pair::new(from, to, WHOLE));
    }
    pairs
}

/// What two files have in common that are taken for one: the content, and whether it is that of a
/// link.
fn key(entry: Entry) -> (ContentId, bool) {
    (entry.id, entry.kind == EntryKind::Symlink)
}

/// Deleted and added files that are in no pair, in the order of their paths.
pub(crate) struct Unpaired<'a> {
    changes: &'a [Change],
    sources: Vec<Candidate>,
    destinations: Vec<Candidate>,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// Its place among the changes.
    pub(crate) at: usize,
    /// Of its content, in bytes; `None`: it is not compared.
    pub(crate) size: Option<u64>,
}

impl<'a> Unpaired<'a> {
    /// Everything that came or went and is in none of `pairs`. `size` answers with that of a
    /// content which may be compared.
    pub(crate) fn new<E>(
        changes: &'a [Change],
        pairs: &[Pair],
        mut size: impl FnMut(Entry) -> Result<Option<u64>, E>,
    ) -> Result<Self, E> {
        let mut unpaired = Self {
            changes,
            sources: Vec::new(),
            destinations: Vec::new(),
        };
        for (at, change) in changes.iter().enumerate() {
            let list = match (change.old, change.new) {
                (Some(_), None) => &mut unpaired.sources,
                (None, Some(_)) => &mut unpaired.destinations,
                _ => continue,
            };
            list.push(Candidate { at, size: None });
        }
        unpaired.retain_unpaired(pairs);
        if unpaired.sources.is_empty() || unpaired.destinations.is_empty() {
            return Ok(unpaired);
        }
        let sources = unpaired.sources.iter_mut();
        for one in sources.chain(&mut unpaired.destinations) {
            let entry = changes[one.at].old.or(changes[one.at].new);
            let file = entry.filter(|entry| entry.kind != EntryKind::Symlink);
            one.size = file.map_or(Ok(None), &mut size)?;
        }
        Ok(unpaired)
    }

    /// Takes out what is in `pairs`.
    pub(crate) fn retain_unpaired(&mut self, pairs: &[Pair]) {
        let paired: BTreeSet<usize> = pairs.iter().flat_map(|pair| [pair.from, pair.to]).collect();
        self.sources.retain(|one| !paired.contains(&one.at));
        self.destinations.retain(|one| !paired.contains(&one.at));
    }

    /// The deleted and the added file of each name that one of either has, if they may be
    /// [that similar](MIN_SIMILARITY_BY_NAME).
    pub(crate) fn of_one_name(&self) -> Vec<[usize; 2]> {
        let unique = |candidates: &[Candidate]| {
            let mut names: HashMap<&[u8], Option<Candidate>> = HashMap::new();
            for one in candidates {
                let name = self.changes[one.at].path.name();
                let is_first = !names.contains_key(name);
                names.insert(name, is_first.then_some(*one));
            }
            names
        };
        let (sources, destinations) = (unique(&self.sources), unique(&self.destinations));
        let mut pairs: Vec<[usize; 2]> = sources
            .iter()
            .filter_map(|(name, from)| {
                let (from, to) = ((*from)?, (*destinations.get(name)?)?);
                are_comparable(from, to, MIN_SIMILARITY_BY_NAME).then_some([from.at, to.at])
            })
            .collect();
        pairs.sort_unstable();
        pairs
    }

    /// The added files, each of which is to be compared with all that were deleted.
    pub(crate) fn destinations(&self) -> &[Candidate] {
        &self.destinations
    }

    /// Those that have one on the other side which they may be similar to; `None`: that are more
    /// pairs than are compared.
    pub(crate) fn comparable(&self) -> Option<Vec<Candidate>> {
        let pairs = self.sources.len() as u64 * self.destinations.len() as u64;
        if pairs > MAX_COMPARED_PAIRS {
            return None;
        }
        let with_one_of = |others: &[Candidate], one: &Candidate| {
            let mut others = others.iter();
            others.any(|other| are_comparable(*one, *other, MIN_SIMILARITY))
        };
        let sources = self.sources.iter();
        let sources = sources.filter(|one| with_one_of(&self.destinations, one));
        let destinations = self.destinations.iter();
        let destinations = destinations.filter(|one| with_one_of(&self.sources, one));
        Some(sources.chain(destinations).copied().collect())
    }

    /// The deleted files that are the most similar to an added one. `similarity` is asked of places
    /// among the changes.
    pub(crate) fn best_for(
        &self,
        to: Candidate,
        similarity: impl Fn(usize, usize) -> u32,
    ) -> Vec<Pair> {
        let mut best: Vec<Pair> = Vec::with_capacity(MAX_BEST);
        for from in &self.sources {
            // One that is not similar at all has its place too, as git has it, which decides among
            // equals.
            let similarity = match are_comparable(*from, to, MIN_SIMILARITY) {
                true => similarity(from.at, to.at),
                false => 0,
            };
            let pair = Pair::new(from.at, to.at, similarity);
            if best.len() < MAX_BEST {
                best.push(pair);
                continue;
            }
            let worst = (0..MAX_BEST).min_by_key(|at| self.rank(&best[*at]));
            if let Some(at) = worst.filter(|at| self.rank(&best[*at]) < self.rank(&pair)) {
                best[at] = pair;
            }
        }
        best
    }

    /// Of these pairs, sorted by the added path, those that count: the most similar first, and each
    /// file in one alone.
    pub(crate) fn chosen(&self, mut pairs: Vec<Pair>) -> Vec<Pair> {
        pairs.retain(|pair| pair.similarity >= MIN_SIMILARITY);
        pairs.sort_by_key(|pair| Reverse(self.rank(pair)));
        let mut taken = BTreeSet::new();
        pairs.retain(|pair| {
            let is_free = !taken.contains(&pair.from) && !taken.contains(&pair.to);
            if is_free {
                taken.extend([pair.from, pair.to]);
            }
            is_free
        });
        pairs
    }

    /// What decides between two pairs: how similar they are, then whether the name is the same.
    fn rank(&self, pair: &Pair) -> (u32, bool) {
        let name = |at: usize| self.changes[at].path.name();
        (pair.similarity, name(pair.from) == name(pair.to))
    }
}

fn are_comparable(from: Candidate, to: Candidate, minimum: u32) -> bool {
    let sizes = from.size.zip(to.size);
    sizes.is_some_and(|(from, to)| can_be_similar([from, to], minimum))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(content: u8, kind: EntryKind) -> Entry {
        Entry {
            kind,
            id: ContentId::Sha1([content; 20]),
        }
    }

    /// Changes of files by path and content on either side, zero for none; sorted.
    fn changes(files: &[(&str, u8, u8)]) -> Vec<Change> {
        let side = |content| (content > 0).then(|| entry(content, EntryKind::File));
        let change = |(path, old, new): &(&str, u8, u8)| Change {
            path: RelPath::new(*path).expect("it is valid"),
            old: side(*old),
            new: side(*new),
        };
        let mut changes: Vec<Change> = files.iter().map(change).collect();
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        changes
    }

    fn found(changes: &[Change]) -> Vec<(String, String)> {
        let path = |at: usize| changes[at].path.to_string();
        let pairs = exact(changes).into_iter();
        pairs.map(|pair| (path(pair.from), path(pair.to))).collect()
    }

    fn pair(from: &str, to: &str) -> (String, String) {
        (from.to_owned(), to.to_owned())
    }

    #[test]
    fn the_same_content_that_went_and_came_is_a_rename() {
        let moved = changes(&[
            ("a", 1, 0),
            ("b", 0, 1),
            ("c", 1, 2),
            ("d", 2, 0),
            ("e", 0, 3),
        ]);
        assert_eq!(found(&moved), [pair("a", "b")]);
    }

    #[test]
    fn each_file_is_in_one_pair_at_most_and_the_same_name_comes_first() {
        let moved = changes(&[
            ("a/one", 1, 0),
            ("a/two", 1, 0),
            ("b/three", 0, 1),
            ("b/two", 0, 1),
            ("c", 0, 1),
        ]);
        let expected = [pair("a/one", "b/three"), pair("a/two", "b/two")];
        assert_eq!(found(&moved), expected);
        let moved = changes(&[("a/one", 1, 0), ("a/two", 1, 0), ("b/two", 0, 1)]);
        assert_eq!(found(&moved), [pair("a/two", "b/two")]);
    }

    #[test]
    fn a_link_is_no_file_and_the_executable_bit_makes_no_other_file() {
        let with = |old, new| {
            let mut moved = changes(&[("a", 1, 0), ("b", 0, 1)]);
            moved[0].old = Some(entry(1, old));
            moved[1].new = Some(entry(1, new));
            found(&moved).len()
        };
        assert_eq!(with(EntryKind::File, EntryKind::Executable), 1);
        assert_eq!(with(EntryKind::Symlink, EntryKind::Symlink), 1);
        assert_eq!(with(EntryKind::File, EntryKind::Symlink), 0);
        assert_eq!(with(EntryKind::Symlink, EntryKind::Executable), 0);
    }

    #[test]
    fn a_crowd_of_the_same_content_is_paired_in_order() {
        let names = |letter: char| (0..3000).map(move |n| format!("{letter}/{letter}{n:04}"));
        let (gone, come): (Vec<String>, Vec<String>) = (names('a').collect(), names('b').collect());
        let files: Vec<(&str, u8, u8)> = gone
            .iter()
            .map(|path| (path.as_str(), 1, 0))
            .chain(come.iter().map(|path| (path.as_str(), 0, 1)))
            .collect();
        let pairs = found(&changes(&files));
        let expected: Vec<_> = gone.into_iter().zip(come).collect();
        assert_eq!(pairs, expected);
    }

    /// Pairs of a search in which files are as similar as `table` has it, in percent, by their
    /// places.
    fn similar(changes: &[Change], table: &[(usize, usize, u32)]) -> Vec<(String, String)> {
        let exact = exact(changes);
        let size = |_| Ok::<_, std::convert::Infallible>(Some(100));
        let Ok(unpaired) = Unpaired::new(changes, &exact, size);
        let similarity = |from, to| {
            let row = table.iter().find(|row| (row.0, row.1) == (from, to));
            row.map_or(0, |row| row.2 * WHOLE / 100)
        };
        let destinations = unpaired.destinations().iter();
        let best = destinations.flat_map(|to| unpaired.best_for(*to, similarity));
        let chosen = unpaired.chosen(best.collect());
        let path = |at: usize| changes[at].path.to_string();
        let pairs = chosen.into_iter();
        pairs.map(|pair| (path(pair.from), path(pair.to))).collect()
    }

    #[test]
    fn the_most_similar_are_paired_first_and_the_same_name_decides_between_equals() {
        // a, b and c/d went, e, f and g/d came.
        let moved = changes(&[
            ("a", 1, 0),
            ("b", 2, 0),
            ("c/d", 3, 0),
            ("e", 0, 4),
            ("f", 0, 5),
            ("g/d", 0, 6),
        ]);
        let table = [
            (0, 3, 60),
            (0, 4, 90),
            (1, 3, 49),
            (1, 4, 80),
            (2, 5, 70),
            (0, 5, 70),
        ];
        let expected = [pair("a", "f"), pair("c/d", "g/d")];
        assert_eq!(similar(&moved, &table), expected);
        let table = [(0, 5, 70), (2, 5, 70), (2, 4, 50)];
        assert_eq!(similar(&moved, &table), [pair("c/d", "g/d")]);
    }

    #[test]
    fn names_that_one_file_has_on_either_side_are_looked_at_first() {
        let moved = changes(&[
            ("a/one", 1, 0),
            ("a/two", 2, 0),
            ("b/one", 0, 3),
            ("b/two", 0, 4),
            ("c/two", 0, 5),
        ]);
        let size = |_| Ok::<_, std::convert::Infallible>(Some(100));
        let Ok(mut unpaired) = Unpaired::new(&moved, &[], size);
        assert_eq!(unpaired.of_one_name(), [[0, 2]]);
        unpaired.retain_unpaired(&[Pair::new(1, 4, WHOLE)]);
        assert_eq!(unpaired.of_one_name(), [[0, 2]]);
        assert_eq!(unpaired.comparable().map(|files| files.len()), Some(3));
    }

    #[test]
    fn what_cannot_be_similar_is_not_asked_for_and_a_crowd_is_given_up() {
        let moved = changes(&[("a", 1, 0), ("b", 0, 2), ("c", 0, 3)]);
        let size = |entry: Entry| {
            Ok::<_, std::convert::Infallible>(match entry.id.as_bytes()[0] {
                1 => Some(100),
                2 => Some(49),
                _ => None,
            })
        };
        let Ok(unpaired) = Unpaired::new(&moved, &[], size);
        assert_eq!(unpaired.comparable().map(|files| files.len()), Some(0));
        let names: Vec<String> = (0..1001).map(|n| format!("{n:04}")).collect();
        let crowd = |gone: usize, come: usize| {
            let gone = names[..gone].iter().map(|name| format!("a/{name}"));
            let come = names[..come].iter().map(|name| format!("b/{name}"));
            let files: Vec<(String, u8, u8)> = gone
                .map(|path| (path, 1, 0))
                .chain(come.map(|path| (path, 0, 2)))
                .collect();
            let files: Vec<_> = files.iter().map(|(p, o, n)| (p.as_str(), *o, *n)).collect();
            let moved = changes(&files);
            let Ok(unpaired) =
                Unpaired::new(&moved, &[], |_| Ok::<_, std::convert::Infallible>(Some(1)));
            unpaired.comparable().is_some()
        };
        assert!(crowd(1000, 1000));
        assert!(!crowd(1000, 1001));
    }
}
