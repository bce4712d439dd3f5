//! What is kept and told of: statuses with their transitions, rows, and the documents that a host gets. Values, and
//! functions over them; nothing here writes.
//!
//! It knows the ids and `events`.

pub(crate) mod artifact;
pub(crate) mod effect;
pub(crate) mod lease;
pub(crate) mod operation;
pub(crate) mod outcome;
pub(crate) mod output;
pub(crate) mod question;
pub(crate) mod recovery;
pub(crate) mod restore_document;
pub(crate) mod run;
pub(crate) mod run_document;
pub(crate) mod run_record;
pub(crate) mod run_row;
pub(crate) mod session;
pub(crate) mod snapshot;
pub(crate) mod step;
pub(crate) mod step_record;
pub(crate) mod task;
