//! A run from its acceptance to its end.
//!
//! It uses `step`, `process`, `workspace` and the folders below them. It reaches sessions only
//! through their actor.

pub(crate) mod cancel;
pub(crate) mod candidate;
pub(crate) mod closing;
pub(crate) mod end;
pub(crate) mod execute;
pub(crate) mod give_up;
pub(crate) mod heartbeat;
pub(crate) mod left_reviews;
pub(crate) mod let_go;
pub(crate) mod lock;
pub(crate) mod merging;
mod on_record;
pub(crate) mod owner;
mod patch;
pub(crate) mod recorded;
mod requeue;
pub(crate) mod reviewing;
pub(crate) mod saving;
pub(crate) mod settle;
pub(crate) mod stored;
pub(crate) mod waiting;
