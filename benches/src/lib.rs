//! What Stillframe is measured with: trees that are the same every time, the least that any capture
//! has to do, and others doing the same work.
//!
//! `cargo bench -p stillframe-benches` runs the criterion benchmarks;
//! `cargo run --release -p stillframe-benches --bin compare` prints the table of README.md, in
//! which everything is measured in one run, one after the other in turns.

#![expect(
    clippy::disallowed_methods,
    reason = "others are what is compared with"
)]

mod floor;
mod measure;
pub mod peers;
mod random;
mod report;
mod subjects;
mod tree;

pub use floor::{Floor, floor};
pub use measure::{Summary, TELL_PEAK, Times, Usage, tell_peak, usage};
pub use random::Random;
pub use report::{OURS, fit, plot, table};
pub use subjects::{GitPeer, Stillframe};
pub use tree::{Mutation, Tree, TreeOptions, generate, git, mutate, mutate_by};
