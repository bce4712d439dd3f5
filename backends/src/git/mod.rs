//! The git backend: trees and blobs in a private repository, cheap because it borrows what the
//! user's repository already has.

pub(crate) mod attributes;
mod backend;
pub(crate) mod capture;
mod commit;
mod compare;
mod deflate;
mod directory;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod heal;
mod history;
mod index;
mod inflate;
mod keep;
mod kept_refs;
pub(crate) mod libgit2;
mod line_diffs;
mod loose;
mod loose_writer;
mod lost;
pub(crate) mod nested;
mod nodes;
mod object_id;
mod operation;
pub(crate) mod pack;
mod put_error;
mod quoted;
pub(crate) mod refs;
mod renames;
pub(crate) mod repository;
pub(crate) mod rollback;
mod rules;
mod safety_refs;
mod skip_worktree;
pub(crate) mod store;
mod submodules;
#[cfg(test)]
pub(crate) mod test_repository;
pub(crate) mod tree_lookup;
pub(crate) mod tree_object;
mod tree_rules;
mod trees;
pub(crate) mod user_index;
mod worktrees;

pub(crate) use backend::{GitBackend, probe};
pub(crate) use object_id::{Collision, ObjectHasher, ObjectId, ObjectKind};
