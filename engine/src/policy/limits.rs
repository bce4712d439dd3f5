//! The limits of a run, and what goes beyond them. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Number;
use stillframe_backends::{Diff, EntryKind, PathGlobs, RelPath, printable_size};

use crate::policy::usage::Usage;
use crate::policy::violation::{PolicyViolation, ViolationAction, ViolationKind};

/// The most paths that a violation names in its data.
const MAX_PATHS: usize = 100;

/// The most paths that a violation names in its message.
const MAX_TOLD_PATHS: usize = 5;

/// What a run may do, without anybody being asked. Default: no limits.
///
/// They are stored with the run, and hold when it is resumed too: those that are given then can
/// only be stricter. What was used is counted over all resumptions.
///
/// The limits of changes, which need a workspace, are checked when the work of the run has ended,
/// against the [diff](crate::backends::Diff) of its two snapshots. So they hold for whatever
/// changes a file, such as a command of a shell. A run that went beyond one is `failed`, and is
/// rolled back if that was asked for. A path that a rule leaves out of the snapshots is not
/// checked, unless [`include`](crate::WorkspaceOptions::include) captures it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RunLimits {
    /// How long the work may take, without the time for which the run rests, or does nothing but
    /// wait for an answer of a person; after that it is cancelled, and the run is `failed`. (After
    /// [`RunOptions::timeout`](crate::RunOptions::timeout) it is `timeout`, and that time begins
    /// anew when the run is resumed.)
    #[serde(
        rename = "max_duration_ms",
        with = "milliseconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_duration: Option<Duration>,
    /// How often tools may be called: by the engine, or by an agent whose adapter tells of it with
    /// `tool_call_started`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tool_calls: Option<Limit<u64>>,
    /// How many tokens may be used, input and output together, as
    /// [reported](crate::RunContext::report_usage).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<Limit<u64>>,
    /// How much that may cost, in the currency of the reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<Limit<f64>>,
    /// How many files and links may be added, modified or deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_changed_files: Option<u64>,
    /// How many bytes the files and links that were added or modified may have together, as they
    /// are when the work has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_changed_bytes: Option<u64>,
    /// Paths that must not change, with all below them: globs, in which `*` and `?` do not cross
    /// `/`, `**/` is zero or more directories, and a trailing `**` everything below. One without
    /// `/` holds for that name in every directory. Content, kind, permission bits, coming and going
    /// all count as a change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forbidden_paths: Vec<String>,
}

/// A limit, and what happens when it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Limit<T> {
    /// The most that is allowed.
    pub max: T,
    /// What happens beyond it.
    #[serde(default)]
    pub action: LimitAction,
}

/// What happens when a limit is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LimitAction {
    /// Each further call or report is refused, and the adapter goes on as it likes.
    #[default]
    Deny,
    /// The work is cancelled, and the run is `failed`.
    Cancel,
}

impl<T> Limit<T> {
    /// Beyond this, calls or reports are refused.
    pub fn deny(max: T) -> Self {
        Self {
            max,
            action: LimitAction::Deny,
        }
    }

    /// Beyond this, the work is cancelled.
    pub fn cancel(max: T) -> Self {
        Self {
            max,
            action: LimitAction::Cancel,
        }
    }
}

impl<T> Limit<T> {
    /// The stricter of both. Where one of them cancels, what is beyond the lower one does: it would
    /// come to that anyway, or a little later.
    fn within(self, other: Self, min: impl FnOnce(T, T) -> T) -> Self {
        let cancels = [self.action, other.action].contains(&LimitAction::Cancel);
        Self {
            max: min(self.max, other.max),
            action: match cancels {
                true => LimitAction::Cancel,
                false => LimitAction::Deny,
            },
        }
    }
}

impl<T> From<T> for Limit<T> {
    /// As [`Limit::deny`].
    fn from(max: T) -> Self {
        Self::deny(max)
    }
}

impl From<LimitAction> for ViolationAction {
    fn from(action: LimitAction) -> Self {
        match action {
            LimitAction::Deny => Self::Deny,
            LimitAction::Cancel => Self::Cancel,
        }
    }
}

impl RunLimits {
    stillframe_model::setters! {
        max_duration: Duration,
        max_changed_files: u64,
        max_changed_bytes: u64,
    }

    /// Sets [`RunLimits::max_tool_calls`].
    pub fn max_tool_calls(mut self, limit: impl Into<Limit<u64>>) -> Self {
        self.max_tool_calls = Some(limit.into());
        self
    }

    /// Sets [`RunLimits::max_tokens`].
    pub fn max_tokens(mut self, limit: impl Into<Limit<u64>>) -> Self {
        self.max_tokens = Some(limit.into());
        self
    }

    /// Sets [`RunLimits::max_cost`].
    pub fn max_cost(mut self, limit: impl Into<Limit<f64>>) -> Self {
        self.max_cost = Some(limit.into());
        self
    }

    /// Adds to [`RunLimits::forbidden_paths`].
    pub fn forbid<T: Into<String>>(mut self, globs: impl IntoIterator<Item = T>) -> Self {
        self.forbidden_paths
            .extend(globs.into_iter().map(Into::into));
        self
    }

    /// Whether there is no limit.
    pub(crate) fn are_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether what changes is limited.
    pub(crate) fn are_of_changes(&self) -> bool {
        self.max_changed_files.is_some()
            || self.max_changed_bytes.is_some()
            || !self.forbidden_paths.is_empty()
    }

    /// These, but for the limits of changes: of a run that has no workspace.
    pub(crate) fn without_changes(self) -> Self {
        Self {
            max_changed_files: None,
            max_changed_bytes: None,
            forbidden_paths: Vec::new(),
            ..self
        }
    }

    /// Why they cannot be limits of a run.
    pub(crate) fn defect(&self) -> Option<String> {
        if self.max_duration.is_some_and(|limit| limit.is_zero()) {
            return Some("max_duration must not be zero, because no work could be done".to_owned());
        }
        let cost = self.max_cost.map(|limit| limit.max);
        if let Some(cost) = cost.filter(|cost| !cost.is_finite() || *cost < 0.0) {
            return Some(format!(
                "max_cost must be a number from zero on, unlike {cost}"
            ));
        }
        let globs = PathGlobs::new(&self.forbidden_paths);
        globs.err().map(|wrong| format!("forbidden_paths: {wrong}"))
    }

    /// These, and for what they say nothing about, `defaults`. What is forbidden by either is
    /// forbidden.
    pub(crate) fn over(self, defaults: &Self) -> Self {
        let mut forbidden_paths = defaults.forbidden_paths.clone();
        let own = self.forbidden_paths.into_iter();
        forbidden_paths.extend(own.filter(|glob| !defaults.forbidden_paths.contains(glob)));
        Self {
            max_duration: self.max_duration.or(defaults.max_duration),
            max_tool_calls: self.max_tool_calls.or(defaults.max_tool_calls),
            max_tokens: self.max_tokens.or(defaults.max_tokens),
            max_cost: self.max_cost.or(defaults.max_cost),
            max_changed_files: self.max_changed_files.or(defaults.max_changed_files),
            max_changed_bytes: self.max_changed_bytes.or(defaults.max_changed_bytes),
            forbidden_paths,
        }
    }

    /// The stricter of both, one by one.
    pub(crate) fn within(self, bound: &Self) -> Self {
        Self {
            max_duration: lower(self.max_duration, bound.max_duration, Duration::min),
            max_tool_calls: lower(self.max_tool_calls, bound.max_tool_calls, |one, other| {
                one.within(other, u64::min)
            }),
            max_tokens: lower(self.max_tokens, bound.max_tokens, |one, other| {
                one.within(other, u64::min)
            }),
            max_cost: lower(self.max_cost, bound.max_cost, |one, other| {
                one.within(other, f64::min)
            }),
            max_changed_files: lower(self.max_changed_files, bound.max_changed_files, u64::min),
            max_changed_bytes: lower(self.max_changed_bytes, bound.max_changed_bytes, u64::min),
            ..self.over(bound)
        }
    }

    /// What one more call of a tool violates, after so many.
    pub(crate) fn refuse_call(&self, calls: u64) -> Option<PolicyViolation> {
        let limit = self.max_tool_calls.filter(|limit| calls >= limit.max)?;
        let message = format!(
            "the limit of calls of tools is {}, and this is one more",
            limit.max
        );
        let action = limit.action.into();
        Some(PolicyViolation {
            limit: Some(limit.max.into()),
            found: Some(calls.saturating_add(1).into()),
            ..PolicyViolation::new(ViolationKind::MaxToolCalls, action, message)
        })
    }

    /// What a run violates that has used so much.
    pub(crate) fn of_usage(&self, used: &Usage) -> Vec<PolicyViolation> {
        let tokens = used.total_tokens();
        let of_tokens = self.max_tokens.filter(|limit| tokens > limit.max);
        let of_tokens = of_tokens.map(|limit| {
            let message = format!(
                "it has used {tokens} tokens, and the limit is {}",
                limit.max
            );
            PolicyViolation {
                limit: Some(limit.max.into()),
                found: Some(tokens.into()),
                ..PolicyViolation::new(ViolationKind::MaxTokens, limit.action.into(), message)
            }
        });
        let cost = used.cost.unwrap_or(0.0);
        let of_cost = self.max_cost.filter(|limit| cost > limit.max);
        let of_cost = of_cost.map(|limit| {
            let message = format!("it has cost {cost}, and the limit is {}", limit.max);
            PolicyViolation {
                limit: Number::from_f64(limit.max),
                found: Number::from_f64(cost),
                ..PolicyViolation::new(ViolationKind::MaxCost, limit.action.into(), message)
            }
        });
        of_tokens.into_iter().chain(of_cost).collect()
    }

    /// What work violates that has taken all of its time.
    pub(crate) fn of_duration(&self) -> Option<PolicyViolation> {
        let limit = u64::try_from(self.max_duration?.as_millis()).unwrap_or(u64::MAX);
        let message = format!("the {limit} ms are up that its work may take");
        Some(PolicyViolation {
            limit: Some(limit.into()),
            ..PolicyViolation::new(ViolationKind::MaxDuration, ViolationAction::Cancel, message)
        })
    }

    /// What these changes violate. `bytes`: what the changed files have.
    pub(crate) fn of_changes(&self, diff: &Diff, bytes: Option<u64>) -> Vec<PolicyViolation> {
        let fail = ViolationAction::Fail;
        let mut all = of_paths(&self.forbidden_paths, diff);
        let is_counted = self.max_changed_files.or(self.max_changed_bytes).is_some();
        if is_counted && !diff.newly_ignored.is_empty() {
            let hidden = some_of(&diff.newly_ignored);
            all.push(unknown_changes(&format!(
                "a new ignore rule hides what is new: {hidden}"
            )));
        }
        let files = diff.files_changed;
        if let Some(limit) = self.max_changed_files.filter(|limit| files > *limit) {
            let message = format!(
                "it changed {files} {}, and the limit is {limit}: {}",
                if files == 1 { "file" } else { "files" },
                some_of(&diff.changed_paths)
            );
            all.push(PolicyViolation {
                limit: Some(limit.into()),
                found: Some(files.into()),
                ..naming(
                    &diff.changed_paths,
                    PolicyViolation::new(ViolationKind::MaxChangedFiles, fail, message),
                )
            });
        }
        let bytes = bytes.unwrap_or(0);
        if let Some(limit) = self.max_changed_bytes.filter(|limit| bytes > *limit) {
            let message = format!(
                "the files that it changed have {}, and the limit is {}: {}",
                printable_size(bytes),
                printable_size(limit),
                some_of(&diff.changed_paths)
            );
            all.push(PolicyViolation {
                limit: Some(limit.into()),
                found: Some(bytes.into()),
                ..naming(
                    &diff.changed_paths,
                    PolicyViolation::new(ViolationKind::MaxChangedBytes, fail, message),
                )
            });
        }
        all
    }
}

/// The lower of what is there.
fn lower<T>(one: Option<T>, other: Option<T>, min: impl FnOnce(T, T) -> T) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(min(one, other)),
        (one, other) => one.or(other),
    }
}

/// That nothing can be said of the limits of changes, because what was changed is not known.
pub(crate) fn unknown_changes(why: &str) -> PolicyViolation {
    let message = format!("what it changed is not known, and its limits cannot be checked: {why}");
    PolicyViolation::new(
        ViolationKind::ChangesUnknown,
        ViolationAction::Fail,
        message,
    )
}

/// The changes of paths that must not change, by the first glob that each is under.
fn of_paths(globs: &[String], diff: &Diff) -> Vec<PolicyViolation> {
    // They were checked when the run was accepted.
    let Ok(compiled) = PathGlobs::new(globs) else {
        return vec![unknown_changes("what is forbidden cannot be read")];
    };
    let mut by_glob: BTreeMap<&str, Vec<RelPath>> = BTreeMap::new();
    // What lies below a directory that a rule of the run's hides, in a repository of its own, or
    // behind a link is in no snapshot.
    let links = diff
        .files
        .iter()
        .filter(|file| file.new_mode == Some(EntryKind::Symlink));
    let nested = diff.nested_repositories.iter().map(|change| &change.path);
    let unseen = diff.newly_ignored.iter().chain(nested);
    let unseen = unseen.chain(links.map(|link| &link.path));
    let unseen = unseen.filter_map(|path| {
        let glob = compiled.matching_in_tree(path);
        Some((glob.or_else(|| compiled.leading_into(path))?, path))
    });
    let changed = changed_paths(diff);
    let seen = changed.filter_map(|path| Some((compiled.matching_in_tree(path)?, path)));
    for (glob, path) in seen.chain(unseen) {
        by_glob.entry(glob).or_default().push(path.clone());
    }
    let violation = |(glob, mut paths): (&str, Vec<RelPath>)| {
        paths.sort();
        paths.dedup();
        let message = format!(
            "it changed what must not change ({glob}): {}",
            some_of(&paths)
        );
        let kind = ViolationKind::ForbiddenPaths;
        PolicyViolation {
            glob: Some(glob.to_owned()),
            ..naming(
                &paths,
                PolicyViolation::new(kind, ViolationAction::Fail, message),
            )
        }
    };
    by_glob.into_iter().map(violation).collect()
}

/// Every path of which a comparison says that something of it is not as it was.
fn changed_paths(diff: &Diff) -> impl Iterator<Item = &RelPath> {
    let modes = diff.permissions_changed.iter().map(|change| &change.path);
    let sparse = diff.skip_worktree.iter().map(|change| &change.path);
    diff.changed_paths
        .iter()
        .chain(&diff.directories_added)
        .chain(&diff.directories_deleted)
        .chain(modes)
        .chain(sparse)
}

/// With the paths that it is about.
fn naming(paths: &[RelPath], violation: PolicyViolation) -> PolicyViolation {
    let is_more = paths.len() > MAX_PATHS;
    PolicyViolation {
        paths: paths.iter().take(MAX_PATHS).cloned().collect(),
        total_paths: is_more.then_some(paths.len() as u64),
        ..violation
    }
}

/// The first of them, and how many others there are.
fn some_of(paths: &[RelPath]) -> String {
    let told: Vec<String> = paths
        .iter()
        .take(MAX_TOLD_PATHS)
        .map(RelPath::to_string)
        .collect();
    match paths.len().saturating_sub(MAX_TOLD_PATHS) {
        0 => told.join(", "),
        more => format!("{} and {more} more", told.join(", ")),
    }
}

/// A duration as whole milliseconds.
mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let count = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        duration.map(count).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::deserialize(deserializer)?.map(Duration::from_millis))
    }
}
