//! git's own formats, read without git: objects, packs, indexes, refs, ignore rules, attributes and
//! configuration.
//!
//! [`repository::UserRepository`] reads a user's repository and never writes to it. The tools for
//! code that may write are here too: directories ([`directory`]), loose objects ([`loose_writer`])
//! and packs ([`pack::PackWriter`]). Nothing here captures or restores, and nothing here runs a
//! program. Hosts use the crate `stillframe`, which exports the parts of this crate that they need.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests start git and others that are their oracles"
    )
)]

#[macro_use(seeded_bug)]
extern crate stillframe_disk;

pub mod attribute_line;
pub mod attributes;
mod deflate;
pub mod directory;
pub mod ignore_rules;
pub mod inflate;
pub mod loose;
pub mod loose_writer;
pub mod object_id;
pub mod pack;
pub mod path_pattern;
pub mod put_error;
pub mod quoted;
pub mod repository;
#[cfg(any(test, feature = "testing"))]
pub mod test_repository;
pub mod tree_lookup;
pub mod tree_object;
pub mod user_index;

use stillframe_disk::{descriptor, durable, operation, pace, parallel, regular_file};
#[cfg(test)]
use stillframe_disk::{faults, interrupt, trial};
use stillframe_model::{
    contents, dot_git, error, identity, interrupted, path, repository_changes, snapshot_error,
    store_error, tree,
};

pub use object_id::{Collision, ObjectHasher, ObjectId, ObjectKind};
