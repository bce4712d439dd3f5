//! The files of a workspace: walking, watching, reading and restoring them, and caching their state
//! between captures.
//!
//! No other code touches the files of a workspace. Every component of a path is opened relative to
//! the workspace's [`root`], and no link is followed. A [`stat_cache`] has what the last capture
//! saw; [`walk`] compares it with the files, and [`watch`] says where to look. A restore stages new
//! bytes ([`staging`]), writes its intent ([`journal`]) and then renames ([`apply`]). This crate
//! knows nothing of git's formats, of stores or of records of snapshots. Hosts use the crate
//! `stillframe`, which exports the parts of this crate that they need.

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
pub mod brought;
pub mod clock;
pub mod displaced;
pub mod extent;
mod file_system_kind;
#[cfg(test)]
#[path = "../../../tests/support/holder.rs"]
mod holder;
pub mod journal;
pub mod memory;
#[cfg(test)]
#[path = "../../../tests/support/must_run.rs"]
mod must_run;
pub mod new_files;
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
