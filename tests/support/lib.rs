//! Support for the acceptance tests: workspaces, hermetic git, views of a whole state, and oracles
//! that are not Stillframe.
//!
//! A test makes a [`TestWorkspace`], changes files in it, calls the built program and looks:
//!
//! ```no_run
//! use stillframe_tests::{TestWorkspace, view};
//!
//! let ws = TestWorkspace::repository();
//! ws.write("kept", "one\n");
//! let snapshot = ws.snapshot();
//! let before = view::worktree(ws.root());
//!
//! ws.write("kept", "changed\n");
//! ws.restore(&snapshot);
//! view::same(&before, &view::worktree(ws.root()), "every byte, mode and link");
//! ```
//!
//! Nothing is shared between two tests: each has its own directories, HOME and state directory.

#![expect(
    clippy::disallowed_methods,
    reason = "tests start the program under test, and those that are its oracles"
)]

pub mod artifact_store;
pub mod binary;
pub mod caches;
pub mod call;
pub mod canary;
pub mod capability;
pub mod choice;
pub mod earlier;
pub mod git;
pub mod json;
mod must_run;
pub mod mutate;
pub mod oracle;
pub mod schema;
pub mod servers;
pub mod shapes;
mod terminal;
pub mod torture;
pub mod view;
mod workspace;

pub use call::{Call, Output, Running, is_stopped};
pub use json::Snap;
pub use terminal::Terminal;
pub use workspace::{TestWorkspace, copy_whole, make_fifo};
