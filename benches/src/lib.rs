//! What Stillframe is measured with: trees that are the same every time, and git doing the same
//! work.
//!
//! `cargo bench -p stillframe-benches` runs the criterion benchmarks;
//! `cargo run --release -p stillframe-benches --bin compare` prints the table of README.md, in
//! which everything is measured in one run, one after the other in turns.

#![expect(clippy::disallowed_methods, reason = "git is what is compared with")]

mod random;
mod subjects;
mod tree;

pub use random::Random;
pub use subjects::{GitPeer, Stillframe};
pub use tree::{Mutation, Tree, TreeOptions, generate, git, mutate, mutate_by};
