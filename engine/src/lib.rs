//! Workspace snapshot engine for agent runs.
