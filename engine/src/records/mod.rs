//! What is kept and told of: statuses with their transitions, rows, and the documents that a host gets. Values, and
//! functions over them; nothing here reads or writes.
//!
//! It knows the ids and `events`.

pub(crate) mod effect;
pub(crate) mod lease;
pub(crate) mod outcome;
pub(crate) mod question;
pub(crate) mod record;
pub(crate) mod run;
pub(crate) mod session;
pub(crate) mod step;
pub(crate) mod task;
