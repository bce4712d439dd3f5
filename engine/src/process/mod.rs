//! The command of a run as processes: how it is started, watched and ended, with everything that it
//! has started.
//!
//! It knows of `step` what an adapter is, and nothing of runs but their ids.

pub(crate) mod command;
pub(crate) mod group;
pub(crate) mod guardian;
pub(crate) mod guardian_channel;
pub(crate) mod orphans;
pub(crate) mod started;
pub(crate) mod stat;
pub(crate) mod survivors;
pub(crate) mod terminal;
