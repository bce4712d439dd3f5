//! Storing the refs of a repository with a snapshot, and comparing them between two snapshots.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::contents::ContentError;
use crate::git::pack::PackWriter;
use crate::git::repository::Head;
use crate::git::repository::{MAX_STASHES, Stash};
use crate::git::store::Store;
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::record::GitState;
use crate::restore::{DroppedStash, RefChange};
use crate::store_error::StoreError;

/// Ours, of which a restore tells by itself.
const OWN: &str = "refs/stillframe/";

/// The newest stash, and in the log of it the others.
const STASH: &str = "refs/stash";

/// What begins a line of the details that is of a symbolic ref.
const SYMBOLIC: &str = "ref: ";

/// What the ids of refs do not tell.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RefDetails {
    /// The ref that each symbolic one leads to.
    pub(super) symbolic: BTreeMap<String, String>,
    /// The newest first, at most [`MAX_STASHES`].
    pub(super) stashes: Vec<Stash>,
}

/// Puts the names of the refs and what they name into the pack unless the store has them; answers
/// with the blob.
pub(super) fn keep(
    refs: &BTreeMap<String, ObjectId>,
    store: &Store,
    pack: &PackWriter,
) -> Result<Option<ObjectId>, StoreError> {
    add(&written(refs), store, pack)
}

/// The same for facts that those ids do not have. An empty result is stored too, because it differs
/// from an unknown one.
pub(super) fn keep_details(
    details: &RefDetails,
    store: &Store,
    pack: &PackWriter,
) -> Result<Option<ObjectId>, StoreError> {
    add(&details.written(), store, pack)
}

fn add(text: &str, store: &Store, pack: &PackWriter) -> Result<Option<ObjectId>, StoreError> {
    let Ok(id) = ObjectId::of(ObjectKind::Blob, text.as_bytes()) else {
        return Ok(None);
    };
    if !store.contains(&id)? {
        pack.add(ObjectKind::Blob, id, text.as_bytes())?;
    }
    Ok(Some(id))
}

/// What became of HEAD and the refs between two states; nothing where one did not keep them.
pub(super) fn changes(
    op: &Operation,
    store: &Store,
    before: Option<&GitState>,
    after: Option<&GitState>,
) -> Result<Vec<RefChange>, StoreError> {
    let (Some(before), Some(after)) = (before, after) else {
        return Ok(Vec::new());
    };
    let (Some(was), Some(is)) = (before.refs, after.refs) else {
        return Ok(Vec::new());
    };
    let head = change("HEAD", Some(named(&before.head)), Some(named(&after.head)));
    // Of a snapshot by an earlier version that is not known, and of one side alone it says nothing.
    let details = before.ref_details.zip(after.ref_details);
    if was == is && details.is_none_or(|(was, is)| was == is) {
        return Ok(Vec::from_iter(head));
    }
    let (mut was, mut is) = (
        Said::of_ids(op, store, &was)?,
        Said::of_ids(op, store, &is)?,
    );
    if let Some((of_was, of_is)) = details {
        was.add(RefDetails::read(op, store, &of_was)?);
        is.add(RefDetails::read(op, store, &of_is)?);
    }
    Ok(head.into_iter().chain(was.changes_to(&is)).collect())
}

/// What is known of all refs.
#[derive(Debug, Default)]
struct Said {
    /// An id, or the name of another ref.
    refs: BTreeMap<String, String>,
    stashes: Vec<Stash>,
}

impl Said {
    fn of_ids(op: &Operation, store: &Store, blob: &ObjectId) -> Result<Self, StoreError> {
        let refs = read(op, store, blob)?.into_iter();
        Ok(Self {
            refs: refs.map(|(name, id)| (name, id.to_string())).collect(),
            stashes: Vec::new(),
        })
    }

    fn add(&mut self, details: RefDetails) {
        self.refs.extend(details.symbolic);
        self.stashes = details.stashes;
    }

    /// What became of each, by name.
    fn changes_to(&self, later: &Self) -> Vec<RefChange> {
        let mut dropped = dropped(&self.stashes, &later.stashes);
        let names: BTreeSet<&str> = self
            .refs
            .keys()
            .chain(later.refs.keys())
            .map(|n| &**n)
            .collect();
        let changed = names.into_iter().filter_map(|name| {
            let (before, after) = (self.refs.get(name).cloned(), later.refs.get(name).cloned());
            let mut changed = RefChange::new(name, before, after);
            if name == STASH {
                changed.dropped = std::mem::take(&mut dropped);
            }
            (changed.before != changed.after || !changed.dropped.is_empty()).then_some(changed)
        });
        changed.collect()
    }
}

/// The stashes that are listed no more, the oldest first: so they are to be stored again.
fn dropped(before: &[Stash], after: &[Stash]) -> Vec<DroppedStash> {
    let listed: HashSet<&ObjectId> = after.iter().map(|stash| &stash.commit).collect();
    let place = |of: &Stash| before.iter().position(|stash| stash.commit == of.commit);
    // What is older than the last of a full list may be there all the same. One that was too old to
    // be listed before came into the list because of those that went.
    let known = match after.last() {
        Some(oldest) if after.len() == MAX_STASHES => match place(oldest) {
            Some(at) => at,
            None if after.iter().any(|stash| place(stash).is_some()) => before.len(),
            None => 0,
        },
        _ => before.len(),
    };
    let gone = before[..known].iter().rev();
    let gone = gone.filter(|stash| !listed.contains(&stash.commit));
    gone.map(|stash| DroppedStash::new(stash.commit.to_string(), stash.message.clone()))
        .collect()
}

fn change(name: &str, before: Option<String>, after: Option<String>) -> Option<RefChange> {
    (before != after).then(|| RefChange::new(name, before, after))
}

/// The branch that HEAD names, or the commit where it names none.
fn named(head: &Head) -> String {
    match head {
        Head::Unborn { branch } | Head::Branch { branch, .. } => branch.clone(),
        Head::Detached { commit } => commit.to_string(),
    }
}

/// A line for each ref: the id, a space, the name; by name. It is the form of `git for-each-ref
/// --format='%(objectname) %(refname)'`.
fn written(refs: &BTreeMap<String, ObjectId>) -> String {
    let others = refs.iter().filter(|(name, _)| !name.starts_with(OWN));
    others.map(|(name, id)| format!("{id} {name}\n")).collect()
}

impl RefDetails {
    /// A line `ref: TARGET NAME` for each symbolic ref, by name, then one of id, space and message
    /// for each stash.
    fn written(&self) -> String {
        let symbolic = self.symbolic.iter();
        let symbolic = symbolic.filter(|(name, _)| !name.starts_with(OWN));
        let symbolic = symbolic.map(|(name, target)| format!("{SYMBOLIC}{target} {name}\n"));
        let stashes = self.stashes.iter();
        let stashes = stashes.map(|stash| format!("{} {}\n", stash.commit, stash.message));
        symbolic.chain(stashes).collect()
    }

    fn parsed(bytes: &[u8]) -> Option<Self> {
        let mut details = Self::default();
        for line in std::str::from_utf8(bytes).ok()?.split_terminator('\n') {
            let (first, rest) = line
                .strip_prefix(SYMBOLIC)
                .unwrap_or(line)
                .split_once(' ')?;
            match line.starts_with(SYMBOLIC) {
                true => drop(details.symbolic.insert(rest.to_owned(), first.to_owned())),
                false => details.stashes.push(Stash {
                    commit: first.parse().ok()?,
                    message: rest.to_owned(),
                }),
            }
        }
        Some(details)
    }

    fn read(op: &Operation, store: &Store, blob: &ObjectId) -> Result<Self, StoreError> {
        Self::parsed(&bytes_of(op, store, blob)?).ok_or_else(|| no_list(blob))
    }
}

fn read(
    op: &Operation,
    store: &Store,
    blob: &ObjectId,
) -> Result<BTreeMap<String, ObjectId>, StoreError> {
    parsed(&bytes_of(op, store, blob)?).ok_or_else(|| no_list(blob))
}

fn no_list(blob: &ObjectId) -> StoreError {
    StoreError::corrupt(format!("blob {blob}"), "it is no list of refs".to_owned())
}

fn bytes_of(op: &Operation, store: &Store, blob: &ObjectId) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    match store.blob_to(op, blob, &mut bytes) {
        Ok(_) => Ok(bytes),
        Err(ContentError::Store(error)) => Err(error),
        Err(ContentError::Sink(_)) => unreachable!("a vector takes every byte"),
    }
}

fn parsed(bytes: &[u8]) -> Option<BTreeMap<String, ObjectId>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let line = |line: &str| {
        let (id, name) = line.split_once(' ')?;
        Some((name.to_owned(), id.parse().ok()?))
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stashes(numbers: impl IntoIterator<Item = usize>) -> Vec<Stash> {
        let stash = |n: usize| Stash {
            commit: format!("{n:040}").parse().unwrap(),
            message: format!("said  of {n} "),
        };
        numbers.into_iter().map(stash).collect()
    }

    #[test]
    fn details_that_are_written_are_read() {
        let links = [
            ("refs/heads/a", "refs/heads/b"),
            ("refs/remotes/o/HEAD", "refs/remotes/o/x"),
        ];
        let links = links.map(|(name, target)| (name.to_owned(), target.to_owned()));
        let mut details = RefDetails {
            symbolic: links.into(),
            stashes: stashes([3, 1]),
        };
        details.stashes[1].message.clear();
        let text = details.written();
        assert_eq!(RefDetails::parsed(text.as_bytes()), Some(details));
        assert_eq!(RefDetails::parsed(b""), Some(RefDetails::default()));
        for damaged in ["nothing\n", "12 said\n", "ref: refs/heads/a\n"] {
            assert_eq!(RefDetails::parsed(damaged.as_bytes()), None, "{damaged}");
        }
    }

    #[test]
    fn what_is_older_than_a_full_list_is_not_called_dropped() {
        let dropped = |before: &[Stash], after: &[Stash]| -> Vec<usize> {
            let dropped = super::dropped(before, after).into_iter();
            dropped.map(|stash| stash.commit.parse().unwrap()).collect()
        };
        let (few, all) = (stashes([3, 2, 1]), stashes((0..MAX_STASHES).rev()));
        assert_eq!(dropped(&few, &stashes([9, 2])), [1, 3]);
        assert_eq!(dropped(&few, &[]), [1, 2, 3]);
        assert_eq!(dropped(&all, &all), [0; 0]);
        let another = stashes(std::iter::once(99).chain((1..MAX_STASHES).rev()));
        assert_eq!(
            dropped(&all, &another),
            [0; 0],
            "it is the one after the last of them"
        );
        let one_gone = stashes(
            [99, 98]
                .into_iter()
                .chain((2..MAX_STASHES).rev().filter(|n| *n != 7))
                .chain([1]),
        );
        assert_eq!(one_gone.len(), MAX_STASHES);
        assert_eq!(dropped(&all, &one_gone), [7]);
        let others = stashes(100..100 + MAX_STASHES);
        assert_eq!(dropped(&all, &others), [0; 0]);
    }

    #[test]
    fn what_is_written_is_read_and_what_is_ours_is_left_out() {
        let id = |digit: &str| -> ObjectId { digit.repeat(40).parse().unwrap() };
        let mut refs: BTreeMap<String, ObjectId> = BTreeMap::new();
        for (name, digit) in [
            ("refs/heads/a b", "1"),
            ("refs/stash", "2"),
            ("refs/tags/v1", "3"),
        ] {
            refs.insert(name.to_owned(), id(digit));
        }
        let mut with_own = refs.clone();
        with_own.insert("refs/stillframe/safety/run_1-1".to_owned(), id("4"));
        let text = written(&with_own);
        assert_eq!(text.lines().count(), 3);
        assert_eq!(parsed(text.as_bytes()), Some(refs));
        for damaged in ["nothing\n", "12 refs/heads/a\n"] {
            assert_eq!(parsed(damaged.as_bytes()), None, "{damaged}");
        }
    }
}
