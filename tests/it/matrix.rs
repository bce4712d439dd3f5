//! What may lie in a workspace, and what may be wrong with its repository: each taken through all
//! that is done with a workspace. `docs/faults.md` has the table.

mod content;
mod repository;
