//! The options of a step: its name, its definition, and when it is retried.

use std::time::Duration;

use serde_json::Value;

/// What to do with a step besides its work.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StepOptions {
    /// The name, 1 to 200 bytes; it belongs to this step in its phase for ever.
    pub name: String,
    /// What the step does, in the host's words: a prompt, a command, a version. A step on record
    /// with another definition is refused, because the recorded result would belong to other work.
    /// Default: null.
    pub definition: Value,
    /// Whether the step is tried again when it fails. Default: it is not.
    pub retry: RetryPolicy,
    /// What to do with a step that was interrupted. Default: [`Rerun::FromBefore`] if possible,
    /// else [`Rerun::InPlace`].
    pub rerun: Option<Rerun>,
    /// Whether the workspace is captured before and after the step. Default: it is.
    pub snapshots: bool,
}

/// How an interrupted step is run again. What it left is in a snapshot in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rerun {
    /// First the workspace, index and branch are restored from the snapshot before the step. This
    /// is refused if other steps were at work since, because it would undo their work, and if that
    /// snapshot has no content.
    FromBefore,
    /// On what is there.
    InPlace,
    /// A person decides: `from_before`, `in_place`, or `give_up`, which fails the step. See
    /// [`StepContext::ask`](crate::steps::StepContext::ask) for how long that may take.
    Ask,
}

/// How often a step that fails is tried, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// How many attempts there are at most; zero is one.
    pub attempts: u32,
    /// How long after the first failure the second attempt begins; each further wait is twice as
    /// long.
    pub first_delay: Duration,
    /// The longest wait.
    pub max_delay: Duration,
}

impl RetryPolicy {
    /// One attempt.
    pub const NEVER: Self = Self {
        attempts: 1,
        first_delay: Duration::ZERO,
        max_delay: Duration::ZERO,
    };

    /// Three attempts, the second 30 seconds after the first, then twice as long, and at most 300
    /// seconds.
    pub const STANDARD: Self = Self {
        attempts: 3,
        first_delay: Duration::from_secs(30),
        max_delay: Duration::from_secs(300),
    };

    stillframe_model::setters! {
        attempts: u32,
        first_delay: Duration,
        max_delay: Duration,
    }

    /// How long to wait after `failed` attempts in a row; `None`: there is no other.
    pub fn delay(&self, failed: u32) -> Option<Duration> {
        if failed >= self.attempts {
            return None;
        }
        let doubled = 2_u32.saturating_pow(failed.saturating_sub(1));
        Some(self.first_delay.saturating_mul(doubled).min(self.max_delay))
    }
}

impl Default for RetryPolicy {
    /// [`RetryPolicy::NEVER`].
    fn default() -> Self {
        Self::NEVER
    }
}

impl StepOptions {
    /// The step of this name, with every option at its default.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            definition: Value::Null,
            retry: RetryPolicy::NEVER,
            rerun: None,
            snapshots: true,
        }
    }

    stillframe_model::setters! {
        definition: impl Into<Value>,
        retry: RetryPolicy,
        rerun: Rerun,
        snapshots: bool,
    }

    /// Tells definitions apart.
    pub(crate) fn definition_hash(&self) -> String {
        definition_hash(&self.definition)
    }
}

/// The blake3 of a definition's JSON, whose keys are in order.
pub(crate) fn definition_hash(definition: &Value) -> String {
    blake3::hash(definition.to_string().as_bytes())
        .to_hex()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let standard = RetryPolicy::STANDARD;
        let seconds = |policy: RetryPolicy, failed| policy.delay(failed).map(|d| d.as_secs());
        assert_eq!(seconds(standard, 1), Some(30));
        assert_eq!(seconds(standard, 2), Some(60));
        assert_eq!(seconds(standard, 3), None, "three attempts");
        let many = standard.attempts(u32::MAX);
        assert_eq!(seconds(many, 4), Some(240));
        assert_eq!(seconds(many, 5), Some(300));
        assert_eq!(seconds(many, 4_000_000_000), Some(300));
        assert_eq!(RetryPolicy::NEVER.delay(1), None);
        assert_eq!(RetryPolicy::NEVER.attempts(0).delay(1), None);
    }

    #[test]
    fn a_definition_is_told_apart_by_what_it_says_and_not_by_its_order() {
        let hash = |text: &str| definition_hash(&serde_json::from_str(text).unwrap());
        assert_eq!(hash(r#"{"a": 1, "b": 2}"#), hash(r#"{"b":2,"a":1}"#));
        assert_ne!(hash(r#"{"a": 1}"#), hash(r#"{"a": 2}"#));
        let unsaid = StepOptions::new("a");
        assert_eq!(unsaid.definition_hash(), hash("null"));
    }
}
