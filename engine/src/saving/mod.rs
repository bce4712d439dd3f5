//! Work that leaves the machine, carried out: a task's work becomes a commit in the private store,
//! is looked through for secrets, sent to the task's branch, and proven to be there.
//!
//! It uses `branches`, which decides, and the folders below that. Nothing in the user's repository
//! or workspace changes here. What speaks with a remote blocks, and has no lock of a workspace.

mod arrived;
mod asking;
mod lock;
mod making;
mod others;
pub(crate) mod outbox;
pub(crate) mod quarantine;
pub(crate) mod recorded;
pub(crate) mod repository;
pub(crate) mod resend;
pub(crate) mod resume;
pub(crate) mod save;
mod sending;
mod switching;
pub(crate) mod target;
mod told;
pub(crate) mod waiting;
mod way;
pub(crate) mod work;
