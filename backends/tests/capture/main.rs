//! Capturing, through the public API of the crate, with git and a naive walker as oracles.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests start git and others that are their oracles"
)]

mod diffs;
mod facts;
mod ground;
#[path = "../../../tests/support/holder.rs"]
mod holder;
mod index;
mod kinds;
#[path = "../../../tests/support/must_run.rs"]
mod must_run;
mod property;
mod races;
mod trouble;
mod watched;
