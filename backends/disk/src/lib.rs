//! What Stillframe writes with: files that are whole or absent also after a power cut, locks, the
//! form of its own files, work on every core, and what stops an operation: a wish to stop, a limit,
//! and in tests a fault.
//!
//! Nothing here knows git, a workspace, or what is in the files. A host finds what it needs of it in
//! the crate `stillframe`.

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

pub mod codec;
pub mod descriptor;
pub mod durable;
pub mod faults;
pub mod file_system_of;
pub mod interrupt;
pub mod lock;
pub mod note;
pub mod parallel;
pub mod patience;
pub mod regular_file;
pub mod remains;
pub mod room;
