//! What Stillframe is measured with: trees that are the same every time, the least that any capture
//! has to do, and others doing the same work.
//!
//! `cargo bench -p stillframe-benches` runs the criterion benchmarks;
//! `cargo run --release -p stillframe-benches --bin compare` makes the tables of `docs/benchmarks`,
//! in which everything is measured in one run, one after the other in turns.

#![expect(
    clippy::disallowed_methods,
    reason = "others are what is compared with"
)]

pub mod case;
mod floor;
mod git;
mod growth;
mod measure;
mod mutation;
pub mod peers;
mod plot;
mod random;
mod report;
mod subjects;
mod target;
mod tree;
mod usage;

pub use floor::{Floor, floor};
pub use git::{GitPeer, Way, git};
pub use growth::{Growth, fit};
pub use measure::{Row, Summary, Times, Work};
pub use mutation::{Changes, Mutation, mutate};
pub use plot::{bars, lines};
pub use random::Random;
pub use report::{Used, growth_table, summary_of_targets, table, usage_table};
pub use subjects::Stillframe;
pub use target::{MOST_GROWTH_WATCHED, TARGETS, Target, Verdict, ratio};
pub use tree::{Shape, Tree, TreeOptions, generate, standing};
pub use usage::{TELL_PEAK, Usage, tell_peak, usage};
