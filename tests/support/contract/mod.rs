//! Contracts: for each port the promises that every implementation keeps, one plain function each.

pub mod artifact_store;
pub mod backend;
