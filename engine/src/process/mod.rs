//! The processes of a run's command: starting, observing and ending the command and everything that
//! it has started.
//!
//! It uses the adapter of `step`, and knows only the ids of runs.

pub(crate) mod command;
pub(crate) mod group;
pub(crate) mod guardian;
pub(crate) mod guardian_channel;
pub(crate) mod input_file;
pub(crate) mod orphans;
pub(crate) mod output;
pub(crate) mod started;
pub(crate) mod stat;
pub(crate) mod survivors;
pub(crate) mod terminal;
