//! What an adapter can do in its run: phases, steps, tools, questions, events and
//! artifacts, and their records.
//!
//! It uses `saving` and the folders below it. It does not know how a run begins or ends.

pub(crate) mod adapter;
pub(crate) mod adapter_error;
pub(crate) mod adapters;
pub(crate) mod agent;
pub(crate) mod answering;
pub(crate) mod artifact;
pub(crate) mod beside;
pub(crate) mod checkpointed;
pub(crate) mod commit;
pub(crate) mod context;
pub(crate) mod emit;
pub(crate) mod message_stream;
pub(crate) mod options;
pub(crate) mod oversight;
pub(crate) mod phase;
pub(crate) mod pieces;
pub(crate) mod plan;
pub(crate) mod question;
pub(crate) mod review;
pub(crate) mod run_state;
pub(crate) mod step_error;
pub(crate) mod step_log;
pub(crate) mod tool;
pub(crate) mod tool_counters;
pub(crate) mod work_clock;
