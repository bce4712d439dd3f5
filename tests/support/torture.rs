//! Harnesses that disturb the built program in every way that a machine can, and look whether
//! anything was lost: `cargo run -p stillframe-tests --bin torture -- <harness>`.
//!
//! [`faults`] makes one system call fail, or kills the program there; [`recovery`] kills restores,
//! and then what finishes them; [`soak`] kills random commands at random moments, with the user's
//! own git between them; [`invariants`] plays generated histories; [`steps`] kills runs of steps,
//! which go on; [`power`] cuts the power, and the disk loses what was not flushed; [`races`] swaps
//! what is in the workspace for something else while it is worked on, and [`meddle`] does so before
//! each call of a restore; [`order`] says what relies on something that is not synced, and [`torn`]
//! tears journals. What is right afterwards is said by [`checker`], from what a naive walker sees
//! and what git itself says of the store. [`teeth`] builds the program with bugs, which the others
//! have to find.

pub mod call_class;
pub mod checker;
pub mod fault;
pub mod faults;
pub mod history;
pub mod invariants;
pub mod meddle;
pub mod options;
pub mod order;
pub mod power;
pub mod races;
pub mod random;
pub mod recovery;
pub mod report;
pub mod sandbox;
pub mod scene;
pub mod soak;
pub mod steps;
pub mod teeth;
pub mod torn;
pub mod tracer;
mod workers;
pub mod world;

pub use options::Options;
pub use report::Report;
pub use tracer::{Refusal, Tracer};
