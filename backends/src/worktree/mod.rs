//! The only code that touches workspace files. Both backends use it.
//!
//! Nothing here follows a link: every component is opened relative to the workspace's root.

pub(crate) mod durable;
pub(crate) mod root;
