//! Decisions about work that leaves the machine: where a task's branch is resumed, when its work is
//! saved, what follows if it was not, who may go on with it, and what people are told.
//!
//! Pure functions over values and rows. It uses `records` and the error of the API.

pub(crate) mod claim;
pub(crate) mod failures;
pub(crate) mod forge;
pub(crate) mod interval;
pub(crate) mod notices;
pub(crate) mod quarantine;
pub(crate) mod resume;
pub(crate) mod retries;
pub(crate) mod standing;
pub(crate) mod summary;
