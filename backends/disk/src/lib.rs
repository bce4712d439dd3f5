//! The tools that Stillframe writes with: durable writes (a file is whole or absent, even after a
//! power cut), locks, the format of its own files, threads, and the operation, which carries
//! everything that can stop it: a cancellation, a quota, and in tests a fault.
//!
//! Nothing here knows git, a workspace, or the content of the files. Hosts use the crate
//! `stillframe`, which exports the parts of this crate that they need.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests start others that are their oracles"
    )
)]

// First, because the macro in it is in scope from here on.
#[doc(hidden)]
#[macro_use]
pub mod seeded;

pub mod blob;
pub mod bulk;
pub mod codec;
pub mod deadline;
pub mod descriptor;
pub mod directory;
pub mod durable;
pub mod faults;
pub mod file_system_of;
pub mod interrupt;
pub mod lock;
pub mod note;
pub mod operation;
pub mod pace;
pub mod parallel;

pub mod quota;
pub mod regular_file;
pub mod removal;
mod temporary;
#[cfg(any(test, feature = "testing"))]
pub mod trial;
