//! Keeping what the refs of a repository name with a snapshot, and what became of them between two.

use std::collections::{BTreeMap, BTreeSet};

use crate::backend::StoreError;
use crate::git::pack::PackWriter;
use crate::git::store::Store;
use crate::git::{ObjectId, ObjectKind};
use crate::record::{GitState, Head};
use crate::restore::{ContentError, RefChange};

/// Ours, of which a restore tells by itself.
const OWN: &str = "refs/stillframe/";

/// Puts the names of the refs and what they name into the pack unless the store has them; answers with
/// the blob.
///
pub(super) fn keep(
    refs: &BTreeMap<String, ObjectId>,
    store: &Store,
    pack: &PackWriter,
) -> Result<Option<ObjectId>, StoreError> {
    let text = written(refs);
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
    if was == is {
        return Ok(Vec::from_iter(head));
    }
    let (was, is) = (read(store, &was)?, read(store, &is)?);
    let names: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    let changed = names.into_iter().filter_map(|name| {
        let id = |refs: &BTreeMap<String, ObjectId>| refs.get(name).map(ToString::to_string);
        change(name, id(&was), id(&is))
    });
    Ok(head.into_iter().chain(changed).collect())
}

fn change(name: &str, before: Option<String>, after: Option<String>) -> Option<RefChange> {
    (before != after).then(|| RefChange {
        name: name.to_owned(),
        before,
        after,
    })
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

fn read(store: &Store, blob: &ObjectId) -> Result<BTreeMap<String, ObjectId>, StoreError> {
    let mut bytes = Vec::new();
    match store.blob_to(blob, &mut bytes) {
        Ok(_) => {}
        Err(ContentError::Store(error)) => return Err(error),
        Err(ContentError::Sink(_)) => unreachable!("a vector takes every byte"),
    }
    parsed(&bytes).ok_or_else(|| {
        StoreError::corrupt(format!("blob {blob}"), "it is no list of refs".to_owned())
    })
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
