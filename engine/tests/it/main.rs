//! The engine through its public API, over a backend that copies files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../examples/custom_backend/copying.rs"]
mod copying;
#[path = "../../examples/prometheus/recorder.rs"]
mod recorder;
mod support;

mod agents;
mod artifacts;
mod coming_back;
mod commands;
mod commits;
mod events;
mod export;
mod folders;
mod lifecycle;
mod limits;
mod log_trim;
mod policy;
mod questions;
mod queue;
mod recovery;
mod restores;
mod reviews;
mod run_state;
mod runs;
mod secrets;
mod sessions;
mod steps;
mod telemetry;
mod tool_calls;
mod tools;
mod totals;
mod transcript;
mod upkeep;
mod watch;
