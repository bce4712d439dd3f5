//! The only code that touches workspace files. Both backends use it.
//!
//! Nothing here follows a link: every component is opened relative to the workspace's root.

pub(crate) mod apply;
pub(crate) mod area;
pub(crate) mod attributes;
pub(crate) mod displaced;
pub(crate) mod file_system;
pub(crate) mod journal;
pub(crate) mod memory;
pub(crate) mod read;
pub(crate) mod remembered;
pub(crate) mod root;
pub(crate) mod shards;
pub(crate) mod staging;
pub(crate) mod stat_cache;
pub(crate) mod tally;
pub(crate) mod walk;
pub(crate) mod watch;
