//! Which files a side has renamed, as git's merge finds it (`diffcore-rename.c`): by the same
//! content, then by a name that no other has, then by how similar they are.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::contents::Contents;
use super::directories::{self, Moves, Removed};
use crate::diff::fingerprint::WHOLE;
use crate::git::ObjectId;
use crate::git::ObjectKind;
use crate::git::commit::{Side, is_file};
use crate::path::RelPath;
use crate::store_error::StoreError;

/// The share of a file that is in both of a rename: git's default of `merge.renames`.
const MIN_SIMILARITY: u32 = WHOLE / 2;

/// The same, where no other file has their name.
const MIN_SIMILARITY_BY_NAME: u32 = MIN_SIMILARITY + (WHOLE - MIN_SIMILARITY) / 2;

/// How many files with the content of an added one are looked at for one of its name.
const MAX_ALTERNATIVES: usize = 100;

/// How many deleted files are kept in mind for each added one.
const MAX_BEST: usize = 4;

/// More pairs of files are not compared with each other.
pub(super) const MAX_COMPARED_PAIRS: usize = 1_000_000;

/// A file of the base that the side has no more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deleted<'a> {
    pub(super) path: &'a RelPath,
    pub(super) file: Side,
    pub(super) wanted: Wanted,
}

/// Why it matters where a file went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    No,
    /// Others of its directory may follow.
    Moved,
    /// The other side has changed it.
    Changed,
}

/// A file that the base has not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Added<'a> {
    pub(super) path: &'a RelPath,
    pub(super) file: Side,
}

/// From where to where, each path at most once. Both lists are sorted by path.
pub(super) fn find(
    deleted: &[Deleted<'_>],
    added: &[Added<'_>],
    removed: &mut Removed,
    contents: &mut Contents<'_>,
) -> Result<Vec<(RelPath, RelPath)>, StoreError> {
    let empty = ObjectId::of(ObjectKind::Blob, b"");
    let is_empty = |file: Side| empty.as_ref().is_ok_and(|empty| file.1 == *empty);
    let mut finding = Finding {
        deleted: deleted
            .iter()
            .filter(|one| !is_empty(one.file))
            .copied()
            .collect(),
        added: added
            .iter()
            .filter(|one| !is_empty(one.file))
            .copied()
            .collect(),
        from: BTreeMap::new(),
        used: HashSet::new(),
    };
    if !finding
        .deleted
        .iter()
        .any(|one| one.wanted == Wanted::Changed)
    {
        return Ok(Vec::new());
    }
    finding.exact();
    let moves = finding.by_name(removed, contents)?;
    finding.leave_what_no_longer_matters(removed, moves);
    finding.by_content(contents)?;
    let path = |(to, from): (&usize, &usize)| {
        (
            finding.deleted[*from].path.clone(),
            finding.added[*to].path.clone(),
        )
    };
    Ok(finding.from.iter().map(path).collect())
}

struct Finding<'a> {
    deleted: Vec<Deleted<'a>>,
    added: Vec<Added<'a>>,
    /// Of an added file the deleted one, by their places.
    from: BTreeMap<usize, usize>,
    /// The deleted files that are in it.
    used: HashSet<usize>,
}

impl Finding<'_> {
    fn pair(&mut self, from: usize, to: usize) {
        self.from.insert(to, from);
        self.used.insert(from);
    }

    /// The same content. A link, or a submodule, has to stay one.
    fn exact(&mut self) {
        let key = |(mode, id): Side| (id, if is_file((mode, id)) { 0 } else { mode });
        let mut alike: HashMap<_, BTreeSet<usize>> = HashMap::new();
        for (at, one) in self.deleted.iter().enumerate() {
            alike.entry(key(one.file)).or_default().insert(at);
        }
        for to in 0..self.added.len() {
            let Some(alike) = alike.get_mut(&key(self.added[to].file)) else {
                continue;
            };
            let name = self.added[to].path.name();
            let mut looked_at = alike.iter().take(MAX_ALTERNATIVES);
            let of_name = looked_at.find(|at| self.deleted[**at].path.name() == name);
            let Some(from) = of_name.or(alike.first()).copied() else {
                continue;
            };
            alike.remove(&from);
            self.pair(from, to);
        }
    }

    /// A name that one deleted and one added file has; or, where several have it, what lies where
    /// other files of the directory went.
    fn by_name(
        &mut self,
        removed: &Removed,
        contents: &mut Contents<'_>,
    ) -> Result<Moves, StoreError> {
        let mut deleted: HashMap<&[u8], usize> = HashMap::new();
        for (at, one) in self.deleted.iter().enumerate() {
            if !self.used.contains(&at) {
                *deleted.entry(one.path.name()).or_default() += 1;
            }
        }
        let mut added: HashMap<&[u8], Vec<usize>> = HashMap::new();
        for (at, one) in self.added.iter().enumerate() {
            if !self.from.contains_key(&at) {
                added.entry(one.path.name()).or_default().push(at);
            }
        }
        let mut moves = Moves::default();
        for (to, from) in &self.from {
            moves.add(removed, self.deleted[*from].path, self.added[*to].path);
        }
        let went = moves.most();
        for from in 0..self.deleted.len() {
            let Deleted { path, file, wanted } = self.deleted[from];
            if wanted == Wanted::No || self.used.contains(&from) {
                continue;
            }
            let to = match added.get(path.name()).map(Vec::as_slice) {
                None => continue,
                Some([to]) if deleted[path.name()] == 1 => *to,
                Some(several) => {
                    let directory = path.parent().and_then(|parent| went.get(&parent));
                    let Some(to) = directory.map(|directory| directory.join(path.name())) else {
                        continue;
                    };
                    match several.iter().find(|at| *self.added[**at].path == to) {
                        Some(to) => *to,
                        None => continue,
                    }
                }
            };
            if self.from.contains_key(&to) {
                continue;
            }
            let new = self.added[to].file;
            if contents.similarity(file, new)? >= MIN_SIMILARITY_BY_NAME {
                self.pair(from, to);
                moves.add(removed, path, self.added[to].path);
            }
        }
        Ok(moves)
    }

    /// Where a directory went may be known by now.
    fn leave_what_no_longer_matters(&mut self, removed: &mut Removed, mut moves: Moves) {
        let left = self.deleted.iter().enumerate();
        let left = left.filter(|(at, one)| !self.used.contains(at) && one.wanted != Wanted::No);
        let left: Vec<&RelPath> = left.map(|(_, one)| one.path).collect();
        moves.settle(removed, &left);
        for one in &mut self.deleted {
            if one.wanted == Wanted::Moved && !directories::matters(removed, one.path) {
                one.wanted = Wanted::No;
            }
        }
    }

    /// The most similar first, and each file in one alone.
    fn by_content(&mut self, contents: &mut Contents<'_>) -> Result<(), StoreError> {
        let is_free =
            |at: &usize| !self.used.contains(at) && self.deleted[*at].wanted != Wanted::No;
        let deleted: Vec<usize> = (0..self.deleted.len()).filter(is_free).collect();
        let is_free = |at: &usize| !self.from.contains_key(at);
        let added: Vec<usize> = (0..self.added.len()).filter(is_free).collect();
        if deleted.len().saturating_mul(added.len()) > MAX_COMPARED_PAIRS {
            return Ok(());
        }
        let mut pairs = Vec::new();
        for to in &added {
            let new = self.added[*to];
            let mut best: Vec<Pair> = Vec::with_capacity(MAX_BEST);
            for from in &deleted {
                let old = self.deleted[*from];
                let pair = Pair {
                    rank: (
                        contents.similarity(old.file, new.file)?,
                        old.path.name() == new.path.name(),
                    ),
                    from: *from,
                    to: *to,
                };
                if best.len() < MAX_BEST {
                    best.push(pair);
                } else if let Some(worst) = best.iter_mut().min_by_key(|pair| pair.rank)
                    && worst.rank < pair.rank
                {
                    *worst = pair;
                }
            }
            pairs.append(&mut best);
        }
        pairs.retain(|pair| pair.rank.0 >= MIN_SIMILARITY);
        pairs.sort_by_key(|pair| std::cmp::Reverse(pair.rank));
        for Pair { from, to, .. } in pairs {
            if !self.used.contains(&from) && !self.from.contains_key(&to) {
                self.pair(from, to);
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    /// How similar they are, and whether the name is the same.
    rank: (u32, bool),
    from: usize,
    to: usize,
}
