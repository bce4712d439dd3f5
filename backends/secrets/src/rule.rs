use std::fmt;

use regex_automata::meta;
use regex_syntax::hir::Hir;

/// A host's own rule: a name, and a pattern of what is secret. [`SecretRules::with`] checks both.
///
/// The pattern has the syntax of the crate `regex`. It is matched against bytes: classes such as
/// `\w` and the flag `i` know ASCII alone, `.` is any byte but `\n`, and `^` and `$` are the ends
/// of the text unless the pattern says `(?m)`. All that the pattern matches is the value. If it has
/// a group named `secret`, as in `password: (?<secret>\S+)`, only the group is.
///
/// The built-in rules take time in proportion to the text. A pattern without a bound such as
/// `a.*b` may take the square of it on text that is made for this purpose.
///
/// [`SecretRules::with`]: crate::SecretRules::with
#[derive(Clone, PartialEq, Eq)]
pub struct SecretRule {
    name: String,
    pattern: String,
}

/// Why a host's rule was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretRuleError {
    /// The name is not 1 to 64 lower-case letters, digits and `_`, of which the first is a letter.
    #[error(
        "{name:?} cannot name a rule for secrets: a name has 1 to 64 lower-case letters, digits \
         or underscores, and begins with a letter"
    )]
    Name {
        /// The name that was given.
        name: String,
    },
    /// Another rule has the name: one of the host's, or one that is built in.
    #[error("there are two rules for secrets named {name:?}")]
    Duplicate {
        /// The name that was given twice.
        name: String,
    },
    /// The pattern is no regular expression, uses Unicode classes, or needs more than 1 MiB.
    #[error("the pattern of the rule {name:?} cannot be used: {reason}")]
    Pattern {
        /// The name of the rule.
        name: String,
        /// What is wrong. It has no part of the pattern, which may contain a secret itself.
        reason: String,
    },
    /// The pattern matches the empty string, and so everywhere.
    #[error("the pattern of the rule {name:?} matches the empty string")]
    Empty {
        /// The name of the rule.
        name: String,
    },
}

/// A pattern may be as long as a list of all tokens of a host, and is no reason to run out of
/// memory.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// The group of a pattern that is the value.
const GROUP: &str = "secret";

impl SecretRule {
    /// A rule that calls `name` what `pattern` matches.
    pub fn new(name: impl Into<String>, pattern: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            pattern: pattern.into(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn check_name(&self) -> Result<(), SecretRuleError> {
        let begins_well = self
            .name
            .starts_with(|first: char| first.is_ascii_lowercase());
        let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if begins_well && self.name.len() <= 64 && self.name.chars().all(is_allowed) {
            return Ok(());
        }
        Err(SecretRuleError::Name {
            name: self.name.clone(),
        })
    }

    /// The parsed pattern, which matches one byte or more.
    pub(crate) fn parse(&self) -> Result<Hir, SecretRuleError> {
        let hir = parse(&self.pattern).map_err(|reason| self.refused(reason))?;
        match hir.properties().minimum_len() {
            Some(0) => Err(SecretRuleError::Empty {
                name: self.name.clone(),
            }),
            _ => Ok(hir),
        }
    }

    pub(crate) fn refused(&self, reason: impl fmt::Display) -> SecretRuleError {
        SecretRuleError::Pattern {
            name: self.name.clone(),
            reason: reason.to_string(),
        }
    }
}

/// The pattern is left out: it may have a value in it.
impl fmt::Debug for SecretRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretRule")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A rule of the host's that was compiled.
#[derive(Clone)]
pub(crate) struct AddedRule {
    pub(crate) name: String,
    regex: meta::Regex,
    group: Option<usize>,
}

impl AddedRule {
    pub(crate) fn compile(rule: &SecretRule, hir: &Hir) -> Result<Self, SecretRuleError> {
        let regex = builder()
            .build_from_hir(hir)
            .map_err(|_| rule.refused("it is too large"))?;
        let group = regex
            .group_info()
            .to_index(regex_automata::PatternID::ZERO, GROUP);
        Ok(Self {
            name: rule.name.clone(),
            regex,
            group,
        })
    }

    /// Calls `each` with every value in `bytes`, in their order.
    pub(crate) fn each_value(&self, bytes: &[u8], mut each: impl FnMut(std::ops::Range<usize>)) {
        let Some(group) = self.group else {
            return self
                .regex
                .find_iter(bytes)
                .for_each(|found| each(found.range()));
        };
        for found in self.regex.captures_iter(bytes) {
            // A group in a branch that did not match leaves no way to tell what is secret.
            let value = found.get_group(group).or_else(|| found.get_group(0));
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                each(value.range());
            }
        }
    }
}

/// Looks for a built-in pattern of literals alone: with vector instructions and no automaton.
pub(crate) fn literals(pattern: &str) -> meta::Regex {
    let hir = parse(pattern).expect("the pattern is right");
    builder()
        .build_from_hir(&hir)
        .expect("the pattern is small")
}

/// Says on failure what is wrong, without any part of the pattern.
fn parse(pattern: &str) -> Result<Hir, String> {
    let mut parser = regex_syntax::ParserBuilder::new();
    let parsed = parser.unicode(false).utf8(false).build().parse(pattern);
    parsed.map_err(|error| match error {
        regex_syntax::Error::Parse(error) => error.kind().to_string(),
        regex_syntax::Error::Translate(error) => error.kind().to_string(),
        _ => "it is no regular expression".to_owned(),
    })
}

pub(crate) fn builder() -> meta::Builder {
    let mut builder = meta::Builder::new();
    builder.configure(
        meta::Config::new()
            .utf8_empty(false)
            .nfa_size_limit(Some(MAX_PATTERN_BYTES)),
    );
    builder
}
