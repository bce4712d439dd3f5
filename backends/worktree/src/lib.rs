//! The files of a workspace: walked, watched, read and put back, and what is remembered of them in
//! between.
//!
//! The only code that touches the files of a workspace. Every component of a path is opened
//! relative to the workspace's [`root`], and no link is followed. What is known of the last look is
//! in a [`stat_cache`]; [`walk`] compares that with what is there, and [`watch`] tells where to
//! look. A restore stages new bytes ([`staging`]), writes its intent down ([`journal`]) and then
//! renames ([`apply`]). Nothing here has code of git's formats, of a store or of a snapshot's
//! record. A host finds what it needs of it in the crate `stillframe`.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests start others that are their oracles"
    )
)]

#[macro_use(seeded_bug)]
extern crate stillframe_disk;

pub mod apply;
pub mod area;
pub mod attributes;
pub mod clock;
pub mod displaced;
mod file_system_kind;
#[cfg(test)]
#[path = "../../../tests/support/holder.rs"]
mod holder;
pub mod journal;
pub mod memory;
#[cfg(test)]
#[path = "../../../tests/support/must_run.rs"]
mod must_run;
pub mod read;
pub mod remembered;
pub mod root;
pub mod shards;
pub mod staging;
pub mod stat_cache;
pub mod tally;
pub mod walk;
pub mod watch;

#[cfg(test)]
use stillframe_disk::interrupt;
use stillframe_disk::{
    bulk, codec, descriptor, durable, faults, file_system_of, note, operation, parallel, quota,
};
use stillframe_model::{
    contents, coverage, error, file_system, identity, interrupted, path, plan_id, problem,
    progress, restore_plan, search, snapshot, snapshot_error, store_error, tree,
};
