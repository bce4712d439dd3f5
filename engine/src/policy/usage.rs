//! What a run used: tokens, and what they cost.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::AgentId;

/// Tokens of models, and what they cost.
///
/// Serialised, it is the data of an event `token_usage_updated`: what was used *since the last
/// report*, not the total so far, so that the reports of several agents add up. A key that is left
/// out counts as zero; further keys are the writer's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    // A host may write it by itself, and leave out what is zero.
    schemars(extend("required" = []))
)]
#[serde(default)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens that were given to a model.
    pub input_tokens: u64,
    /// Tokens that a model answered with.
    pub output_tokens: u64,
    /// What that cost, in the currency that the host counts in; `None`: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
}

impl Usage {
    /// So many tokens.
    pub fn tokens(input: u64, output: u64) -> Self {
        Self {
            input_tokens: input,
            output_tokens: output,
            cost: None,
        }
    }

    /// Sets [`Usage::cost`].
    pub fn cost(mut self, cost: f64) -> Self {
        self.cost = Some(cost);
        self
    }

    /// All tokens together.
    pub fn total_tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cost: match (self.cost, other.cost) {
                (None, None) => None,
                (one, two) => Some(one.unwrap_or(0.0) + two.unwrap_or(0.0)),
            },
        }
    }

    /// Reads what an event says; or what is wrong with it.
    pub(crate) fn of_data(data: &Value) -> Result<Self, String> {
        if !data.is_object() {
            return Err("it is no object".to_owned());
        }
        let usage = Self::deserialize(data).map_err(|e| e.to_string())?;
        match usage
            .cost
            .is_some_and(|cost| cost < 0.0 || !cost.is_finite())
        {
            true => Err("its cost is negative".to_owned()),
            false => Ok(usage),
        }
    }
}

/// The agent that an event says used it, if it says that.
pub(crate) fn agent_of(data: &Value) -> Option<AgentId> {
    #[derive(Deserialize)]
    struct Said {
        agent_id: AgentId,
    }
    Said::deserialize(data).ok().map(|said| said.agent_id)
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens", self.total_tokens())?;
        match self.cost {
            Some(cost) => write!(f, ", at a cost of {cost}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn usage_is_read_as_it_is_written_and_nothing_else_is_taken_for_it() {
        let all = Usage::tokens(5, 7).cost(0.25);
        assert_eq!(Usage::of_data(&json!(all)), Ok(all));
        assert_eq!(
            json!(Usage::tokens(5, 0)).to_string(),
            r#"{"input_tokens":5,"output_tokens":0}"#
        );
        let some = json!({ "output_tokens": 3, "model": "m" });
        assert_eq!(Usage::of_data(&some), Ok(Usage::tokens(0, 3)));
        for wrong in [
            json!(null),
            json!([1, 2]),
            json!({ "input_tokens": -1 }),
            json!({ "input_tokens": "many" }),
            json!({ "output_tokens": 1.5 }),
            json!({ "cost": -0.1 }),
            json!({ "cost": "free" }),
        ] {
            assert!(Usage::of_data(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_id_names_no_agent() {
        let agent_id = AgentId::random();
        let said = json!({ "agent_id": agent_id, "output_tokens": 3 });
        assert_eq!(agent_of(&said), Some(agent_id));
        for said in [
            json!(null),
            json!([1, 2]),
            json!({}),
            json!({ "agent_id": null }),
            json!({ "agent_id": 7 }),
            json!({ "agent_id": "" }),
        ] {
            assert_eq!(agent_of(&said), None, "{said}");
        }
    }

    #[test]
    fn usage_adds_up() {
        let sum = Usage::tokens(1, 2).and(Usage::tokens(3, u64::MAX).cost(0.5));
        assert_eq!(sum, Usage::tokens(4, u64::MAX).cost(0.5));
        assert_eq!(sum.total_tokens(), u64::MAX);
        assert_eq!(Usage::default().and(Usage::default()).cost, None);
    }
}
