//! The name of a plan.

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

/// Names a plan by its content: two plans with one id do the same to the same state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct PlanId(String);

impl PlanId {
    /// The id of the plan whose content has this digest: `plan_` and 32 hexadecimal digits.
    pub fn of_digest(digest: &[u8; 32]) -> Self {
        Self(format!("plan_{}", HEXLOWER.encode(&digest[..16])))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PlanId {
    type Err = std::convert::Infallible;

    /// Takes any text: an id that is no plan's own matches none.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}
