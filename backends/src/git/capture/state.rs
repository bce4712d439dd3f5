//! What a capture says of the repository around the files.

use std::collections::BTreeMap;

use crate::git::ObjectId;
use crate::git::repository::{Head, UserRepository};

/// Where these branches are; HEAD's own is told by HEAD. One whose ref is a trap, damaged or a name
/// for another ref is left out: a rollback then leaves it where it is, and says so.
pub(super) fn tips_of<'a>(
    repository: &UserRepository,
    branches: impl Iterator<Item = &'a String>,
    head: &Head,
) -> BTreeMap<String, Option<ObjectId>> {
    branches
        .filter(|name| head.branch() != Some(name))
        .filter_map(|name| Some((name.clone(), repository.tip(name).ok()?)))
        .collect()
}

pub(super) fn short_branch(full: &str) -> String {
    full.strip_prefix("refs/heads/").unwrap_or(full).to_owned()
}
