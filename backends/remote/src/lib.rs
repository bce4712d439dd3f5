//! How work leaves the machine: the names of work branches ([`branch_name`]), the addresses of
//! remotes ([`address`]), and git on the network, which lists, fetches, pushes and proves
//! ([`remote`], [`push`], [`proof`]).
//!
//! Commits are sent by their ids from a store of ours, a bare repository that nobody else writes
//! to. Nothing here makes a commit, decides what is pushed, or touches the user's repository.
//! [`git_process`] is the only module of Stillframe that starts git. Everything blocks. Hosts use
//! the crate `stillframe`.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests start git and others that are their oracles"
    )
)]

pub mod address;
pub mod advertised;
pub mod branch_name;
mod complaint;
mod configuration;
pub mod credential;
pub mod environment;
pub mod failure_kind;
pub mod git_process;
pub mod own_children;
pub mod proof;
pub mod push;
mod push_outcome;
pub mod remote;
pub mod secret;
mod slug;
#[cfg(test)]
mod tests;

pub use push_outcome::Pushed;
pub use stillframe_git::ObjectId;
