//! The rules by which Stillframe recognises secret values: what it takes out of everything that
//! is written into its log, and what must not be in commits that are pushed.
//!
//! Seven families are built in, and a host adds rules of its own by name and pattern.
//! [`SecretRules::find`] reports where values are, and [`SecretRules::redact`] replaces them. A
//! rule recognises the *form* of a value: a password without a form of its own is not found.
//!
//! Nothing here does I/O, and no finding, error or `Debug` output shows a value or a pattern.
//!
//! ```
//! use stillframe_secrets::{SecretRule, SecretRules};
//!
//! let rules = SecretRules::with([SecretRule::new("acme_key", r"acme-[0-9a-f]{16}")])?;
//! let text = "first line\nACME=acme-0123456789abcdef make test";
//!
//! let findings = rules.find(text.as_bytes());
//! assert_eq!((findings[0].rule.as_str(), findings[0].line), ("acme_key", 2));
//! assert_eq!(rules.redact(text), "first line\nACME=[redacted:acme_key] make test");
//! # Ok::<(), stillframe_secrets::SecretRuleError>(())
//! ```

mod add_element;
mod families;
mod finding;
mod hit;
mod marks;
mod redact;
mod rule;
mod rules;
mod settled;
#[cfg(test)]
mod tests;

pub use finding::{Finding, Fingerprint};
pub use rule::{SecretRule, SecretRuleError};
pub use rules::SecretRules;
