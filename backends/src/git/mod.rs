//! The git backend: trees and blobs in a private repository. It is cheap because it borrows the
//! objects that the user's repository already has.

mod backend;
mod branch_merge;
mod branches;
pub(crate) mod capture;
mod checkpoint;
mod commit;
mod compare;
mod either;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod heal;
mod history;
mod index;
mod keep;
mod kept_refs;
pub(crate) mod libgit2;
mod line_diffs;
mod lost;
mod merge;
pub(crate) mod nested;
pub(crate) mod new_repository;
mod nodes;
mod operation;
pub(crate) mod refs;
mod renames;
pub(crate) mod rollback;
mod rules;
mod run_worktree;
mod safety_refs;
mod skip_worktree;
pub(crate) mod store;
mod submodules;
mod switch;
mod tree_rules;
mod trees;
mod worktrees;

pub(crate) use backend::{GitBackend, probe};
#[cfg(test)]
pub(crate) use stillframe_git::test_repository;
pub(crate) use stillframe_git::{Collision, ObjectHasher, ObjectId, ObjectKind};
pub(crate) use stillframe_git::{
    attribute_line, attributes, directory, loose, loose_writer, object_id, pack, put_error,
    repository, tree_lookup, tree_object, user_index,
};
