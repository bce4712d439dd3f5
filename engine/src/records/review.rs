//! The records of reviews. Each type here is also a JSON document.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stillframe_backends::ErrorKind;
use stillframe_secrets::SecretRules;

use crate::events::data;
use crate::id::{ReviewId, RunId, SessionId, StepId};

/// The longest name of what is reviewed, and of a file in it, in bytes.
const MAX_REF_BYTES: usize = 4_096;

/// The most bytes of the summary, and of all issues as JSON.
const MAX_BYTES: usize = 64 * 1024;

/// What a review is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReviewTarget {
    /// A commit.
    Commit,
    /// The difference between two states.
    Diff,
    /// A pull request.
    Pr,
    /// Files as they are.
    Files,
}

/// How much an issue matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReviewSeverity {
    /// A matter of taste.
    Nit,
    /// It should be better.
    Minor,
    /// It is wrong.
    Major,
    /// It does harm.
    Critical,
}

/// One thing that a reviewer found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ReviewIssue {
    /// How much it matters.
    pub severity: ReviewSeverity,
    /// The file that it is about.
    pub file: Option<String>,
    /// The line in it; the first is 1.
    pub line: Option<u64>,
    /// What is wrong.
    pub message: String,
    /// What would be better.
    pub suggestion: Option<String>,
}

/// A review, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ReviewRecord {
    /// The review.
    #[serde(rename = "review_id")]
    pub id: ReviewId,
    /// The session that it was recorded in.
    pub session_id: SessionId,
    /// The run that it belongs to, if any.
    pub run_id: Option<RunId>,
    /// The step in which the run recorded it; `None`: outside of any.
    pub step_id: Option<StepId>,
    /// What it is of.
    pub target_type: ReviewTarget,
    /// Which one, such as the id of a commit, a range, or the address of a pull request.
    pub target_ref: String,
    /// Whether the reviewer approves of it.
    pub approved: bool,
    /// Whether it must not go on as it is.
    pub blocking: bool,
    /// What the reviewer says of it as a whole.
    pub summary: String,
    /// What was found, in the reviewer's order.
    pub issues: Vec<ReviewIssue>,
    /// When it was recorded.
    pub created_at: Timestamp,
}

/// A review that is about to be recorded: see
/// [`RunContext::record_review`](crate::RunContext::record_review) and
/// [`SessionManager::record_review`](crate::SessionManager::record_review).
///
/// ```
/// use stillframe::records::{ReviewDraft, ReviewIssue, ReviewSeverity, ReviewTarget};
///
/// let issue = ReviewIssue::new(ReviewSeverity::Major, "it divides by zero")
///     .at("src/mean.rs", 12)
///     .suggestion("answer with None for an empty list");
/// let review = ReviewDraft::new(ReviewTarget::Commit, "2f1c0de")
///     .blocking(true)
///     .summary("The mean of nothing is not a number.")
///     .issue(issue);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReviewDraft {
    /// What it is of.
    pub target_type: ReviewTarget,
    /// Which one: 1 to 4,096 bytes.
    pub target_ref: String,
    /// A run of the session that it belongs to. That of an adapter belongs to its run. Default:
    /// none.
    pub run_id: Option<RunId>,
    /// Whether the reviewer approves of it. Default: false.
    pub approved: bool,
    /// Whether it must not go on as it is. Default: false.
    pub blocking: bool,
    /// What the reviewer says of it as a whole, at most 64 KiB. Default: nothing.
    pub summary: String,
    /// What was found, at most 64 KiB as JSON. Default: nothing.
    pub issues: Vec<ReviewIssue>,
}

impl ReviewRecord {
    /// Takes secret values out of what the reviewer says.
    pub(crate) fn redact(&mut self, rules: &SecretRules) {
        let mut said = vec![&mut self.summary];
        for issue in &mut self.issues {
            said.push(&mut issue.message);
            said.extend(&mut issue.suggestion);
        }
        for text in said {
            *text = rules.redact(text).into_owned();
        }
    }
}

impl ReviewIssue {
    /// Something that matters so much.
    pub fn new(severity: ReviewSeverity, message: impl Into<String>) -> Self {
        Self {
            severity,
            file: None,
            line: None,
            message: message.into(),
            suggestion: None,
        }
    }

    /// Sets [`ReviewIssue::file`] and [`ReviewIssue::line`].
    pub fn at(mut self, file: impl Into<String>, line: u64) -> Self {
        self.line = Some(line);
        self.file(file)
    }

    /// Sets [`ReviewIssue::file`].
    pub fn file(mut self, file: impl Into<String>) -> Self {
        self.file = Some(file.into());
        self
    }

    /// Sets [`ReviewIssue::suggestion`].
    pub fn suggestion(mut self, suggestion: impl Into<String>) -> Self {
        self.suggestion = Some(suggestion.into());
        self
    }
}

impl ReviewDraft {
    /// A review of this that does not approve and does not block.
    pub fn new(target_type: ReviewTarget, target_ref: impl Into<String>) -> Self {
        Self {
            target_type,
            target_ref: target_ref.into(),
            run_id: None,
            approved: false,
            blocking: false,
            summary: String::new(),
            issues: Vec::new(),
        }
    }

    /// Sets [`ReviewDraft::run_id`].
    pub fn run(mut self, id: RunId) -> Self {
        self.run_id = Some(id);
        self
    }

    /// Sets [`ReviewDraft::approved`].
    pub fn approved(mut self, approved: bool) -> Self {
        self.approved = approved;
        self
    }

    /// Sets [`ReviewDraft::blocking`].
    pub fn blocking(mut self, blocking: bool) -> Self {
        self.blocking = blocking;
        self
    }

    /// Sets [`ReviewDraft::summary`].
    pub fn summary(mut self, summary: impl Into<String>) -> Self {
        self.summary = summary.into();
        self
    }

    /// Adds to [`ReviewDraft::issues`].
    pub fn issue(mut self, issue: ReviewIssue) -> Self {
        self.issues.push(issue);
        self
    }

    /// Refuses what cannot be kept.
    pub(crate) fn check(&self) -> Result<(), InvalidReview> {
        let files = self.issues.iter().filter_map(|issue| issue.file.as_ref());
        for (what, text) in std::iter::once(("target", &self.target_ref))
            .chain(files.map(|file| ("file of an issue", file)))
        {
            if !(1..=MAX_REF_BYTES).contains(&text.len()) {
                let text = text.clone();
                return Err(InvalidReview::Name { what, text });
            }
        }
        if self.approved && self.blocking {
            return Err(InvalidReview::Contradiction);
        }
        let sizes = [
            ("summary", self.summary.len()),
            ("issues", data::bytes(&self.issues).len()),
        ];
        match sizes.into_iter().find(|(_, bytes)| *bytes > MAX_BYTES) {
            Some((what, bytes)) => Err(InvalidReview::TooLarge { what, bytes }),
            None => Ok(()),
        }
    }
}

/// A review cannot be kept on record.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidReview {
    #[error(
        "the {what} of a review has 1 to {MAX_REF_BYTES} bytes, unlike {text:.40?}; nothing was written"
    )]
    Name { what: &'static str, text: String },
    #[error("a review that is blocking does not approve; nothing was written")]
    Contradiction,
    #[error(
        "the {what} of a review has {bytes} bytes, and {MAX_BYTES} is the limit; nothing was written"
    )]
    TooLarge { what: &'static str, bytes: usize },
}

impl InvalidReview {
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            Self::Name { .. } | Self::Contradiction => ErrorKind::InvalidOptions,
            Self::TooLarge { .. } => ErrorKind::LimitExceeded,
        }
    }
}

impl ReviewTarget {
    const ALL: [Self; 4] = [Self::Commit, Self::Diff, Self::Pr, Self::Files];

    /// The target of this name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }

    /// Its name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Diff => "diff",
            Self::Pr => "pr",
            Self::Files => "files",
        }
    }
}

impl fmt::Display for ReviewTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
