//! The content of a `config.toml`. Pure, except that it looks up which directories the file names.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use stillframe::backends::IgnoreOptions;
use stillframe::secrets::{SecretRule, SecretRules};
use stillframe::tasks::{OnDivergence, WorkBranchOptions};
use toml::Spanned;

use crate::args;
use crate::step_file::Lasting;
use crate::toml_text;

/// All of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Document {
    /// For every workspace.
    pub(super) general: Sections,
    /// What is a secret value besides what the built-in rules know.
    pub(super) secret_rules: BTreeMap<String, Given<String>>,
    /// For one, by its path: absolute, and without links where it is there.
    workspaces: BTreeMap<PathBuf, Sections>,
}

/// A value, and where it begins in the text.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Spanned<T>", bound = "T: Deserialize<'de>")]
pub(super) struct Given<T> {
    pub(super) value: T,
    /// In bytes.
    pub(super) at: usize,
}

impl<T> From<Spanned<T>> for Given<T> {
    fn from(spanned: Spanned<T>) -> Self {
        Self {
            at: spanned.span().start,
            value: spanned.into_inner(),
        }
    }
}

/// What can be set for all and for one.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Sections {
    pub(super) ignore: Ignore,
    pub(super) limits: Limits,
    pub(super) retention: Retention,
    pub(super) task: Task,
    pub(super) notices: Notices,
}

/// What to leave out, beyond what is left out anyway.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Ignore {
    pub(super) paths: Option<Given<Vec<String>>>,
    pub(super) globs: Option<Given<Vec<String>>>,
}

/// How much is captured and kept; zero: no limit.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Limits {
    pub(super) max_untracked_file_bytes: Option<Given<Size>>,
    pub(super) max_files: Option<Given<u64>>,
    pub(super) max_new_bytes: Option<Given<Size>>,
    pub(super) max_patch_bytes: Option<Given<Size>>,
    pub(super) max_store_bytes: Option<Given<Size>>,
    pub(super) retain_content_bytes: Option<Given<Size>>,
}

/// Which snapshots are kept; and of the log, which all workspaces share, which events and sessions.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Retention {
    pub(super) enabled: Option<Given<bool>>,
    pub(super) older_than: Option<Given<Lasting>>,
    pub(super) step_snapshots: Option<Given<u64>>,
    pub(super) events_older_than: Option<Given<Lasting>>,
    pub(super) max_events: Option<Given<u64>>,
    pub(super) sessions_older_than: Option<Given<Lasting>>,
    pub(super) max_ended_sessions: Option<Given<u64>>,
}

impl Retention {
    /// Each key that is about the log, where it is set, and whether it is zero.
    fn of_log(&self) -> impl Iterator<Item = (&'static str, usize, bool)> {
        let age = |name, given: &Option<Given<Lasting>>| {
            let given = given.as_ref()?;
            Some((name, given.at, given.value.duration.is_zero()))
        };
        let number = |name, given: &Option<Given<u64>>| {
            let given = given.as_ref()?;
            Some((name, given.at, given.value == 0))
        };
        let all = [
            age("events_older_than", &self.events_older_than),
            number("max_events", &self.max_events),
            age("sessions_older_than", &self.sessions_older_than),
            number("max_ended_sessions", &self.max_ended_sessions),
        ];
        all.into_iter().flatten()
    }
}

/// Where the work of tasks goes, and how a remote is asked.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Task {
    pub(super) remote: Option<Given<String>>,
    pub(super) namespace: Option<Given<String>>,
    pub(super) token_env: Option<Given<String>>,
    pub(super) token_command: Option<Given<String>>,
    pub(super) credential: Option<Given<Helpers>>,
    pub(super) checkpoint_interval: Option<Given<Lasting>>,
    pub(super) on_divergence: Option<Given<OnDivergence>>,
}

/// Whose helpers know the credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Helpers {
    /// Those of the user's global configuration of git.
    Git,
}

impl Task {
    /// Where it is said how a remote is asked. It may be said in one way.
    pub(super) fn of_login(&self) -> impl Iterator<Item = usize> {
        let env = self.token_env.as_ref().map(|given| given.at);
        let command = self.token_command.as_ref().map(|given| given.at);
        let helpers = self.credential.as_ref().map(|given| given.at);
        [env, command, helpers].into_iter().flatten()
    }

    /// What the types do not say: where it is wrong, and how.
    fn check(&self) -> Result<(), (usize, String)> {
        if let Some(Given { value, at }) = &self.remote {
            let what = match value.as_str() {
                "" => "remote is empty",
                path if path.starts_with('.') => "remote is a path, which has to begin with \"/\"",
                _ => "",
            };
            if !what.is_empty() {
                return Err((*at, what.to_owned()));
            }
            let any = WorkBranchOptions::of("1").remote(value.clone());
            any.branch_name().map_err(|e| (*at, e.to_string()))?;
        }
        if let Some(Given { value, at }) = &self.namespace {
            let any = WorkBranchOptions::of("1").namespace(value.clone());
            any.branch_name().map_err(|e| (*at, e.to_string()))?;
        }
        if let Some(Given { value, at }) = &self.token_env {
            args::variable(value).map_err(|what| (*at, what))?;
        }
        if let Some(Given { value, at }) = &self.token_command {
            args::shell_line(value).map_err(|what| (*at, what))?;
        }
        match self
            .of_login()
            .max()
            .filter(|_| self.of_login().count() > 1)
        {
            Some(last) => Err((
                last,
                "of token_env, token_command and credential one can be set in one place".to_owned(),
            )),
            None => Ok(()),
        }
    }
}

/// Who tells people of the work of tasks, of all workspaces.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Notices {
    pub(super) command: Option<Given<String>>,
    pub(super) shows_command: Option<Given<String>>,
    pub(super) env: Option<Given<Vec<String>>>,
    pub(super) timeout: Option<Given<Lasting>>,
}

impl Notices {
    /// Where anything of it is set.
    fn places(&self) -> impl Iterator<Item = usize> {
        let command = self.command.as_ref().map(|given| given.at);
        let shows = self.shows_command.as_ref().map(|given| given.at);
        let env = self.env.as_ref().map(|given| given.at);
        let timeout = self.timeout.as_ref().map(|given| given.at);
        [command, shows, env, timeout].into_iter().flatten()
    }

    /// What the types do not say: where it is wrong, and how.
    fn check(&self) -> Result<(), (usize, String)> {
        for Given { value, at } in [&self.command, &self.shows_command].into_iter().flatten() {
            args::shell_line(value).map_err(|what| (*at, what))?;
        }
        if let Some(Given { value, at }) = &self.env {
            for name in value {
                args::variable(name).map_err(|what| (*at, what))?;
            }
        }
        if let Some(Given { value, at }) = &self.timeout
            && value.duration.is_zero()
        {
            return Err((*at, "timeout has to be more than zero".to_owned()));
        }
        match self.places().next() {
            Some(at) if self.command.is_none() => {
                let what = "of notices a command has to be set, which sends them";
                Err((at, what.to_owned()))
            }
            _ => Ok(()),
        }
    }
}

/// A number of bytes, as a number or as it is typed: `65536`, `"64K"`, `"2G"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Size(pub(super) u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SizeVisitor;

        impl Visitor<'_> for SizeVisitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes, such as 65536 or \"64K\"")
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
                let bytes = u64::try_from(bytes);
                bytes
                    .map(Size)
                    .map_err(|_| E::custom("a number of bytes is not negative"))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                args::bytes(text).map(Size).map_err(E::custom)
            }
        }

        deserializer.deserialize_any(SizeVisitor)
    }
}

/// As it is written: the sections for all, and those for one below its path.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Written {
    ignore: Ignore,
    limits: Limits,
    retention: Retention,
    task: Task,
    notices: Notices,
    secret_rules: BTreeMap<String, Given<String>>,
    workspace: BTreeMap<Spanned<String>, Sections>,
}

impl Document {
    /// What `text` says; the error says where it is wrong.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let written: Written =
            toml::from_str(text).map_err(|error| toml_text::located(text, &error))?;
        let mut document = Self {
            general: Sections {
                ignore: written.ignore,
                limits: written.limits,
                retention: written.retention,
                task: written.task,
                notices: written.notices,
            },
            secret_rules: checked(text, written.secret_rules)?,
            workspaces: BTreeMap::new(),
        };
        document.general.check(text)?;
        for (path, sections) in written.workspace {
            sections.check(text)?;
            let wrong = |what: &str| {
                let line = toml_text::line_of(text, path.span().start);
                toml_text::at_line(text, line, what)
            };
            let named = PathBuf::from(path.get_ref());
            if let Some((key, at, _)) = sections.retention.of_log().next() {
                let what = format!(
                    "{key} is not set for one workspace, because all of them share the log; set it in [retention]"
                );
                return Err(toml_text::at_line(
                    text,
                    toml_text::line_of(text, at),
                    &what,
                ));
            }
            if let Some(at) = sections.notices.places().next() {
                let what = "notices are not set for one workspace, because they are of tasks; set them in [notices]";
                return Err(toml_text::at_line(text, toml_text::line_of(text, at), what));
            }
            if !named.is_absolute() {
                return Err(wrong("the path of a workspace begins with \"/\""));
            }
            let real = std::fs::canonicalize(&named).unwrap_or(named);
            if document.workspaces.insert(real, sections).is_some() {
                return Err(wrong("this workspace is there twice"));
            }
        }
        Ok(document)
    }

    /// What is set for the workspace at this path alone.
    pub(super) fn of_workspace(&self, workspace: &Path) -> Option<&Sections> {
        self.workspaces.get(workspace)
    }
}

impl Sections {
    /// What the types do not say.
    fn check(&self, text: &str) -> Result<(), String> {
        let wrong =
            |at: usize, what: &str| toml_text::at_line(text, toml_text::line_of(text, at), what);
        if let Some(Given { value: Size(0), at }) = &self.limits.max_patch_bytes {
            let what = "max_patch_bytes must not be zero; --no-patch switches the patch off";
            return Err(wrong(*at, what));
        }
        if let Some(Given { value, at }) = &self.retention.older_than
            && value.duration.is_zero()
        {
            let what = "older_than has to be more than zero, which would be everything; enabled = false switches it \
                        off, and \"stillframe gc --older-than 0d\" forgets all that need not be kept, once";
            return Err(wrong(*at, what));
        }
        if let Some((key, at, _)) = self.retention.of_log().find(|(_, _, is_zero)| *is_zero) {
            let (option, zero) = match key.ends_with("older_than") {
                true => (key.replace('_', "-"), "0d"),
                false => (key.replace('_', "-"), "0"),
            };
            let what = format!(
                "{key} has to be more than zero, which would be everything; \"stillframe gc --{option} {zero}\" removes \
                 all that need not be kept, once"
            );
            return Err(wrong(at, &what));
        }
        self.task.check().map_err(|(at, what)| wrong(at, &what))?;
        self.notices
            .check()
            .map_err(|(at, what)| wrong(at, &what))?;
        let Ignore { paths, globs } = &self.ignore;
        if let Some(Given { value, at }) = paths {
            let mut rules = IgnoreOptions::default();
            rules.paths.clone_from(value);
            rules.check().map_err(|what| wrong(*at, &what))?;
        }
        if let Some(Given { value, at }) = globs {
            let mut rules = IgnoreOptions::default();
            rules.globs.clone_from(value);
            rules.check().map_err(|what| wrong(*at, &what))?;
        }
        Ok(())
    }
}

/// Tries each rule, so that the line of one that cannot be used is known.
fn checked(
    text: &str,
    rules: BTreeMap<String, Given<String>>,
) -> Result<BTreeMap<String, Given<String>>, String> {
    for (name, Given { value, at }) in &rules {
        let rule = SecretRule::new(name.clone(), value.clone());
        SecretRules::with([rule])
            .map_err(|e| toml_text::at_line(text, toml_text::line_of(text, *at), &e.to_string()))?;
    }
    Ok(rules)
}
