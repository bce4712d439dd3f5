use std::fmt;
use std::ops::Range;

use regex_automata::meta;

use crate::families::{self, FAMILIES};
use crate::finding::{Finding, Fingerprint};
use crate::hit::Hit;
use crate::marks;
use crate::rule::{AddedRule, SecretRule, SecretRuleError, builder};

/// What is secret: the built-in rules, and those that a host added. Cheap to clone.
///
/// | Rule | Recognises |
/// |---|---|
/// | `nuget_password` | the `value` of an XML element `add` whose `key` is `ClearTextPassword`; names, key and the order of attributes as anybody writes them, on one line or several; not a reference such as `%NAME%` |
/// | `npm_token` | after `_authToken` and `=`: 16 or more letters, digits and `. _ - + / =` |
/// | `anthropic_key` | `sk-ant-oat` or `sk-ant-api` at a word start, and 8 or more letters, digits, `_` and `-` |
/// | `openai_key` | `sk-` at a word start, and 20 or more letters, digits, `_` and `-` |
/// | `github_token` | `ghp_` at a word start, and 20 or more letters and digits |
/// | `gitlab_token` | `glpat-` at a word start, and 20 or more letters, digits, `_` and `-` |
/// | `jwt` | three parts of base64url joined by dots, of which the first begins with `eyJ` |
///
/// A word starts where no letter, digit or `_` of ASCII is before it. The letters of an escape such
/// as `\n`, `\u003d` or `%3D`, and of a terminal's colours, are no part of a word.
#[derive(Clone)]
pub struct SecretRules {
    /// The beginnings of everything that the built-in rules recognise.
    beginnings: meta::Regex,
    marks: meta::Regex,
    added: Vec<AddedRule>,
    /// All patterns of `added` in one, which sees in one pass that text has none of them.
    any_added: Option<meta::Regex>,
}

impl SecretRules {
    /// The rules that are built in.
    pub fn new() -> Self {
        Self {
            beginnings: families::beginnings(),
            marks: marks::openings(),
            added: Vec::new(),
            any_added: None,
        }
    }

    /// The rules that are built in, and `rules`.
    ///
    /// # Errors
    ///
    /// A bad name or pattern, a pattern that matches the empty string, and two rules of one name
    /// are refused. The error names the rule.
    pub fn with(rules: impl IntoIterator<Item = SecretRule>) -> Result<Self, SecretRuleError> {
        let mut all = Self::new();
        let mut patterns = Vec::new();
        for rule in rules {
            rule.check_name()?;
            if all.names().any(|name| name == rule.name()) {
                return Err(SecretRuleError::Duplicate {
                    name: rule.name().to_owned(),
                });
            }
            let pattern = rule.parse()?;
            all.added.push(AddedRule::compile(&rule, &pattern)?);
            patterns.push(pattern);
        }
        if !patterns.is_empty() {
            // Each was within the limit. If all together are not, each is looked for alone.
            all.any_added = builder().build_many_from_hir(&patterns).ok();
        }
        Ok(all)
    }

    /// Every secret value in `bytes`, by where it starts. Values of different rules may overlap.
    ///
    /// `bytes` need not be UTF-8. A mark that [`redact`](Self::redact) left is no value.
    pub fn find(&self, bytes: &[u8]) -> Vec<Finding> {
        let mut line = 1;
        let mut counted_to = 0;
        let with_place = |hit: Hit| {
            let start = hit.range.start;
            let newlines = bytes[counted_to..start]
                .iter()
                .filter(|byte| **byte == b'\n');
            line += newlines.count() as u64;
            counted_to = start;
            let rule = self.name(hit.rule);
            Finding {
                rule: rule.to_owned(),
                line,
                fingerprint: Fingerprint::of(rule, &bytes[hit.range.clone()]),
                range: hit.range,
            }
        };
        self.hits(bytes).0.into_iter().map(with_place).collect()
    }

    /// The values in `bytes` by where they start, of several at one place the longest first, and
    /// the marks there, which are not looked for if there is no value.
    pub(crate) fn hits(&self, bytes: &[u8]) -> (Vec<Hit>, Vec<Range<usize>>) {
        let mut hits = families::hits(&self.beginnings, bytes);
        if self
            .any_added
            .as_ref()
            .is_none_or(|any| any.is_match(bytes))
        {
            for (index, rule) in self.added.iter().enumerate() {
                let rule_index = FAMILIES.len() + index;
                rule.each_value(bytes, |range| {
                    hits.push(Hit {
                        rule: rule_index,
                        range,
                    });
                });
            }
        }
        if hits.is_empty() {
            return (hits, Vec::new());
        }
        let is_known = |name: &[u8]| self.names().any(|known| known.as_bytes() == name);
        let marks = marks::find(&self.marks, bytes, is_known);
        hits.retain(|hit| !marks::cover(&marks, &hit.range));
        hits.sort_unstable_by_key(|hit| {
            (hit.range.start, std::cmp::Reverse(hit.range.end), hit.rule)
        });
        (hits, marks)
    }

    pub(crate) fn has_added(&self) -> bool {
        !self.added.is_empty()
    }

    /// Whether a built-in value may begin in `tail`, which goes on.
    pub(crate) fn may_begin_in(&self, tail: &[u8]) -> bool {
        self.beginnings.is_match(tail) || families::may_begin_at_end(tail)
    }

    pub(crate) fn name(&self, rule: usize) -> &str {
        match rule.checked_sub(FAMILIES.len()) {
            None => FAMILIES[rule],
            Some(added) => &self.added[added].name,
        }
    }

    /// The names of all of them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let added = self.added.iter().map(|rule| rule.name.as_str());
        FAMILIES.into_iter().chain(added)
    }
}

impl Default for SecretRules {
    fn default() -> Self {
        Self::new()
    }
}

/// The names alone: a pattern may have a value in it.
impl fmt::Debug for SecretRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretRules")?;
        f.debug_set().entries(self.names()).finish()
    }
}
