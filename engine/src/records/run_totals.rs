//! What a run amounts to: its agents, calls of tools, tokens and iterations.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::events::event::EventType;
use crate::records::transcript::text;

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

/// What an event says was used since the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct TokensUsed {
    /// Which agent used them. One that is on no record is nobody.
    #[serde(deserialize_with = "text")]
    pub(crate) agent_id: Option<String>,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
}

impl TokensUsed {
    /// What an event says; `None`: nothing that could be added up.
    pub(crate) fn told(event_type: &EventType, data: &Value) -> Option<Self> {
        let is_told = *event_type == EventType::TOKEN_USAGE_UPDATED && data.is_object();
        let used = is_told.then(|| Self::deserialize(data).ok()).flatten()?;
        (used.input_tokens > 0 || used.output_tokens > 0).then_some(used)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_be_added_up_counts_as_not_said() {
        let told = |data: &Value| TokensUsed::told(&EventType::TOKEN_USAGE_UPDATED, data);
        for data in [
            json!(null),
            json!([1, 2]),
            json!({}),
            json!({ "input_tokens": 0 }),
            json!({ "input_tokens": -1 }),
            json!({ "input_tokens": 1.5, "output_tokens": 1 }),
            json!({ "output_tokens": "many" }),
        ] {
            assert_eq!(told(&data), None, "{data}");
        }
        let data = json!({ "output_tokens": 3, "model": "m" });
        let used = TokensUsed {
            agent_id: None,
            input_tokens: 0,
            output_tokens: 3,
        };
        assert_eq!(told(&data), Some(used));
        assert_eq!(TokensUsed::told(&EventType::MESSAGE_SENT, &data), None);
    }
}
