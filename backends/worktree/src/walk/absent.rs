//! Entries of the index in directories that do not exist.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::coverage::Omission;
use crate::path::RelPath;
use crate::stat_cache::{CachedDirectory, Delta, Directories, Flags, StatCache};

use super::building::{Building, Known};
use super::found::Found;

/// Names in `delta.removed` the directories that are not there any more, and takes out of it what a
/// walk saw below them before they went. `before` is what the last capture saw; `gone` were looked
/// for in vain.
pub(super) fn remove_gone(delta: &mut Delta, before: &Directories, gone: Vec<RelPath>) {
    let mut roots: HashSet<RelPath> = gone.into_iter().collect();
    for (path, directory) in &delta.directories {
        let Some(known) = before.get(path) else {
            continue;
        };
        if known.children == directory.children {
            continue;
        }
        let left = known.children.iter();
        let left = left.filter(|name| !directory.children.contains(name));
        roots.extend(left.map(|name| path.join(name)));
    }
    if roots.is_empty() {
        return;
    }
    delta.directories.retain(|path, _| {
        let mut at = Some(path.clone());
        while let Some(path) = at {
            if roots.contains(&path) {
                return false;
            }
            at = path.parent();
        }
        true
    });
    let mut pending: Vec<RelPath> = roots.into_iter().collect();
    while let Some(path) = pending.pop() {
        if let Some(known) = before.get(&path) {
            pending.extend(known.children.iter().map(|name| path.join(name)));
            delta.removed.insert(path);
        }
    }
}

/// Carries over what the index has in directories that are gone, those of `absent` among them, and
/// what a sparse checkout left out there.
pub(super) fn remember(
    delta: &mut Delta,
    cache: &StatCache,
    before: &Directories,
    absent: &BTreeSet<RelPath>,
    omissions: &BTreeMap<RelPath, Omission>,
    found: &mut Found,
) {
    for path in absent {
        if !delta.directories.contains_key(path) {
            delta.removed.insert(path.clone());
        }
    }
    let gone: Vec<(RelPath, &Arc<CachedDirectory>)> = delta
        .removed
        .iter()
        .filter_map(|path| Some((path.clone(), before.get(path)?)))
        .filter(|(_, cached)| cached.has_tracked())
        .collect();
    if gone.is_empty() {
        return;
    }
    let hidden = hidden(gone.iter().map(|(path, _)| path), delta, before, omissions);
    let mut standing = Vec::new();
    for (path, cached) in gone {
        let mut kept = Building::new(Some(cached), true, cached.mode);
        for at in 0..cached.entries.len() {
            let known = Known::at(cached, at);
            if hidden.contains(&path) {
                found.keep_unseen(&path, &known, &mut kept);
            } else {
                found.keep_absent(cache, &path, &known, &mut kept);
            }
        }
        let kept = kept.finish(None);
        delta.removed.remove(&path);
        if kept.entries.iter().any(|(_, entry)| entry.is_captured()) {
            standing.push(path.clone());
        }
        if !Arc::ptr_eq(&kept, cached) {
            delta.directories.insert(path, kept);
        }
    }
    // A directory that only the index has still needs a place in the directories above it, so
    // that what a sparse checkout left out stays in the tree.
    let mut touched = BTreeSet::new();
    for path in standing {
        let mut child = path;
        while let Some(parent) = child.parent() {
            let above = delta.get(before, &parent);
            if above.is_some_and(|above| above.children.contains(child.name())) {
                break;
            }
            if above.is_none() {
                let made = CachedDirectory {
                    is_absent: true,
                    mode: 0o755,
                    ..Default::default()
                };
                delta.removed.remove(&parent);
                delta.directories.insert(parent.clone(), Arc::new(made));
            }
            let above = delta.get_mut(before, &parent);
            let above = above.expect("it was there, or was made");
            above.children.insert(child.name());
            touched.insert(parent.clone());
            child = parent;
        }
    }
    // What is as it was is one with what it was, so that nothing is made or written again for it.
    for path in touched {
        let is_same = before
            .get(&path)
            .zip(delta.directories.get(&path))
            .is_some_and(|(before, now)| now.is_same_but_tree(before));
        if is_same {
            delta.directories.remove(&path);
        }
    }
}

/// Those of `paths` that something hides: they lie below what was omitted, or below a file or link
/// that has taken a directory's place. Whether they are there was not seen, or plays no part.
fn hidden<'p>(
    paths: impl Iterator<Item = &'p RelPath>,
    delta: &Delta,
    before: &Directories,
    omissions: &BTreeMap<RelPath, Omission>,
) -> HashSet<RelPath> {
    let mut known: HashMap<RelPath, bool> = HashMap::new();
    for path in paths {
        let mut asked = Vec::new();
        let mut at = path.clone();
        let is_hidden = loop {
            if let Some(is_hidden) = known.get(&at) {
                break *is_hidden;
            }
            if omissions.contains_key(&at) {
                break true;
            }
            let Some(parent) = at.parent() else {
                break false;
            };
            let name = at.name().to_owned();
            asked.push(std::mem::replace(&mut at, parent));
            if let Some(above) = delta.get(before, &at) {
                break above
                    .entry(&name)
                    .is_some_and(|e| !e.flags.has(Flags::ABSENT));
            }
        };
        known.extend(asked.into_iter().map(|path| (path, is_hidden)));
    }
    known.retain(|_, is_hidden| *is_hidden);
    known.into_keys().collect()
}
