//! What a run amounts to: its agents, calls of tools, tokens and iterations.

use serde::{Deserialize, Serialize};

/// The tokens of models that a run has used, as far as events `token_usage_updated` told it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct TokenTotals {
    /// Tokens that were given to models.
    pub input_tokens: u64,
    /// Tokens that models answered with.
    pub output_tokens: u64,
}

/// What a run amounts to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunTotals {
    pub(crate) agents: u64,
    pub(crate) tool_calls: u64,
    pub(crate) iterations: u64,
    pub(crate) tokens: TokenTotals,
}
