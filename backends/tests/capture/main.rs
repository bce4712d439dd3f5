//! Capturing, through the public API of the crate, with git and a naive walker as oracles.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod facts;
mod ground;
mod index;
mod kinds;
mod property;
mod races;
mod trouble;
