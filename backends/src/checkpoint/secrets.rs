//! What sending a commit would reveal: the search for secret values, and what it finds.

use std::collections::BTreeSet;

use stillframe_secrets::SecretRules;

use crate::path::RelPath;

/// What to search for secret values.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SecretSearch {
    /// The full id of the commit that is to be sent, which the store has.
    pub commit: String,
    /// The full ids of the commits that the refs of the remote name. One that is not known here is
    /// taken to reach nothing, so that more is searched. Default: none.
    pub on_remote: Vec<String>,
    /// What is secret.
    pub rules: SecretRules,
    /// The findings that the user knows to be none. Default: none.
    pub allowed: BTreeSet<AllowedSecret>,
}

impl SecretSearch {
    /// What `commit` reveals, by these rules.
    pub fn new(commit: impl Into<String>, rules: SecretRules) -> Self {
        Self {
            commit: commit.into(),
            on_remote: Vec::new(),
            rules,
            allowed: BTreeSet::new(),
        }
    }

    stillframe_model::setters! {
        on_remote: Vec<String>,
        allowed: BTreeSet<AllowedSecret>,
    }
}

/// A finding that the user knows to be no secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct AllowedSecret {
    /// The name of the rule.
    pub rule: String,
    /// As [`SecretFinding::path`].
    pub path: RelPath,
    /// As [`SecretFinding::fingerprint`].
    pub fingerprint: String,
}

impl AllowedSecret {
    /// What this rule finds at this path, of this fingerprint.
    pub fn new(rule: impl Into<String>, path: RelPath, fingerprint: impl Into<String>) -> Self {
        Self {
            rule: rule.into(),
            path,
            fingerprint: fingerprint.into(),
        }
    }

    /// This, as a finding names it: without secret values in its path.
    #[must_use]
    pub fn redacted(mut self, rules: &SecretRules) -> Self {
        self.path = path_without_values(rules, &self.path);
        self
    }
}

/// A path without the secret values in it.
pub(crate) fn path_without_values(rules: &SecretRules, path: &RelPath) -> RelPath {
    if rules.find(path.as_bytes()).is_empty() {
        return path.clone();
    }
    let text = String::from_utf8_lossy(path.as_bytes());
    let redacted = rules.redact(&text);
    RelPath::new(redacted.as_bytes()).unwrap_or_else(|_| RelPath::root())
}

/// What sending a commit would reveal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RevealedSecrets {
    /// The secret values that are not allowed: by commit, the oldest first, then by path and line.
    pub findings: Vec<SecretFinding>,
    /// How many others were found that are allowed.
    pub allowed: u64,
    /// How many commits would be sent that the remote is not known to have.
    pub commits: u64,
    /// How many files were read, each content once, those before a change included.
    pub blobs: u64,
    /// The bytes of these.
    pub bytes: u64,
}

/// A secret value that a commit adds. The value itself is not in here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct SecretFinding {
    /// The full id of the commit that adds it.
    pub commit: String,
    /// The file, from the top of the work tree, with values in its name taken out; the root where
    /// it is in the message of the commit, or in who made it.
    pub path: RelPath,
    /// The line of the file, from 1, or of the commit as git stores it. 0 where it is in the name
    /// of the file.
    pub line: u64,
    /// Where in the commit it is.
    pub place: SecretPlace,
    /// The name of the rule, as in `github_token`.
    pub rule: String,
    /// Tells the value from others, in hexadecimal (`stillframe_secrets::Fingerprint`).
    pub fingerprint: String,
}

/// Where a secret value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SecretPlace {
    /// In the content of a file, or where a link leads.
    Content,
    /// In the path of a file.
    Name,
    /// In the message of the commit, or in who made it.
    Message,
}
