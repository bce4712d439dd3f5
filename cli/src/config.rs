//! The user's configuration, `config.toml`: settings for every workspace, or for one of them.
//!
//! The program reads the file and treats its settings like options of the command line. The library
//! does not know the file. A file in a workspace is never configuration.

mod document;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use stillframe::backends::{IgnoreOptions, printable};
use stillframe::options::{
    DEFAULT_MAX_PATCH_BYTES, DEFAULT_MAX_UNTRACKED_FILE_BYTES, LogRetention, RetentionOptions,
};
use stillframe::secrets::SecretRule;
use stillframe::tasks::{OnDivergence, WorkBranchOptions, without_login};
use stillframe::{EngineOptions, ErrorKind};

use self::document::{Document, Given, Sections};
use crate::failure::Failure;
use crate::notice_command::NoticeSettings;
use crate::toml_text;
use crate::user_command::UserCommand;

/// How much new content is kept in a plain directory by default, in bytes: a person wants to be
/// able to undo a command, but not to fill the disk.
pub(crate) const DEFAULT_RETAIN_CONTENT_BYTES: u64 = 1 << 30;

/// The variable with the largest that the store of a workspace may be, for every command that adds
/// to one.
pub(crate) const MAX_STORE_BYTES: &str = "STILLFRAME_MAX_STORE_BYTES";

/// The largest file, in bytes: settings, and no data.
const MAX_BYTES: u64 = 1 << 20;

/// The keys that say how a remote is asked, of which one counts.
const LOGIN_KEYS: [&str; 3] = ["task.token_env", "task.token_command", "task.credential"];

/// What the file says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    text: String,
    document: Document,
}

/// What is set for one workspace; `None`: nothing, so that the default holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Of the workspace and of all.
    pub(crate) ignore: IgnoreOptions,
    pub(crate) max_untracked_file_bytes: Option<u64>,
    pub(crate) max_files: Option<u64>,
    pub(crate) max_new_bytes: Option<u64>,
    pub(crate) max_patch_bytes: Option<u64>,
    pub(crate) max_store_bytes: Option<u64>,
    pub(crate) retain_content_bytes: Option<u64>,
    /// Which snapshots are kept without being asked; `None`: all of them.
    pub(crate) retention: Option<RetentionOptions>,
    /// What is kept of the log, where retention is asked for; by default all of it.
    pub(crate) log_retention: LogRetention,
    /// Where the work of tasks goes, and how a remote is asked.
    pub(crate) task: TaskSettings,
}

/// What is set of tasks; `None`: nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskSettings {
    pub(crate) namespace: Option<String>,
    pub(crate) remote: Option<Scoped<String>>,
    pub(crate) login: Option<Scoped<Login>>,
    /// How often what a run has done so far is saved; zero: never.
    pub(crate) checkpoint_interval: Option<Duration>,
    /// What is done where others have gone on with a branch.
    pub(crate) on_divergence: Option<OnDivergence>,
}

/// A value, and whom it is set for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scoped<T> {
    pub(crate) value: T,
    /// Whether it is set for every workspace, and not for this one.
    pub(crate) is_for_all: bool,
}

/// How a remote is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Login {
    /// With the token of this variable.
    Variable(String),
    /// With the token that this command line prints.
    Command(String),
    /// By the helpers of the user's global configuration of git.
    UserGit,
}

/// A value that holds, and who set it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Held {
    /// Section and name, with a dot between; of a task the name alone.
    pub(crate) key: &'static str,
    /// What holds.
    pub(crate) value: Value,
    /// Who set it.
    pub(crate) source: Source,
    /// The line of the file; `None`: it is not from there.
    pub(crate) line: Option<usize>,
    /// The variable of the environment; `None`: it is not from there.
    pub(crate) variable: Option<&'static str>,
}

impl Held {
    /// That nobody has set it, where nothing is what holds then.
    pub(crate) fn default_of(key: &'static str) -> Self {
        Self {
            key,
            value: Value::Null,
            source: Source::Default,
            line: None,
            variable: None,
        }
    }
}

/// Who set a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    /// Nobody.
    Default,
    /// The file, for every workspace.
    File,
    /// The file, for this workspace.
    Workspace,
    /// A variable of the environment.
    Environment,
    /// Whoever typed the command.
    CommandLine,
    /// The repository in the workspace, whose remote has this address.
    Repository,
}

/// A key of the file.
struct Key {
    name: &'static str,
    default: Value,
    of: fn(&Sections) -> Option<(Value, usize)>,
    /// Whether what is set for all holds beside what is set for one workspace.
    adds: bool,
}

/// The place of the file, where the environment has these variables; `None`: there is none.
pub(crate) fn path(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name| {
        let path = variable(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let home = || absolute("HOME").map(|home| home.join(".config"));
    let directory = absolute("XDG_CONFIG_HOME").or_else(home)?;
    Some(directory.join("stillframe/config.toml"))
}

/// The largest that a store may be, by the environment or else as it is set. What a quota that was
/// not understood would hold is nothing.
pub(crate) fn max_store_bytes(value: Option<OsString>, set: Option<u64>) -> Result<u64, Failure> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(set.unwrap_or(0));
    };
    let text = value.to_string_lossy();
    crate::args::bytes(&text).map_err(|e| {
        Failure::invalid(format!(
            "{MAX_STORE_BYTES} is {text:?}, which is no size: {e}"
        ))
    })
}

impl Config {
    /// Reads the file; one that is not there says nothing.
    pub(crate) fn load(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let wrong = |what: String| Failure::usage(format!("{}: {what}", printable(path)));
        match toml_text::read(path, MAX_BYTES) {
            Ok(text) => Self::parse(text).map_err(wrong),
            Err(e) if is_absent(&e) => Ok(Self::default()),
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => Err(wrong(format!("it {e}"))),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                Err(wrong(format!("it cannot be read: {e}")))
            }
            // Nothing in it is wrong: the disk, or what this process may have open.
            Err(e) => Err(Failure::new(
                ErrorKind::of_storage(&e),
                format!("{} cannot be read: {e}", printable(path)),
            )),
        }
    }

    /// What `text` says; the error says where it is wrong.
    fn parse(text: String) -> Result<Self, String> {
        let document = Document::parse(&text)?;
        Ok(Self { text, document })
    }

    /// What is set for the workspace at this path.
    pub(crate) fn settings(&self, workspace: Option<&Path>) -> Settings {
        let layers = self.layers(workspace);
        let mut ignore = IgnoreOptions::default();
        for layer in layers.iter().rev() {
            let given =
                |list: &Option<Given<Vec<String>>>| list.clone().map_or(Vec::new(), |g| g.value);
            ignore.paths.extend(given(&layer.ignore.paths));
            ignore.globs.extend(given(&layer.ignore.globs));
        }
        let size = |of: fn(&Sections) -> Option<u64>| layers.iter().find_map(|layer| of(layer));
        Settings {
            ignore,
            max_untracked_file_bytes: size(|s| {
                Some(s.limits.max_untracked_file_bytes.as_ref()?.value.0)
            }),
            max_files: size(|s| Some(s.limits.max_files.as_ref()?.value)),
            max_new_bytes: size(|s| Some(s.limits.max_new_bytes.as_ref()?.value.0)),
            max_patch_bytes: size(|s| Some(s.limits.max_patch_bytes.as_ref()?.value.0)),
            max_store_bytes: size(|s| Some(s.limits.max_store_bytes.as_ref()?.value.0)),
            retain_content_bytes: size(|s| Some(s.limits.retain_content_bytes.as_ref()?.value.0)),
            retention: retention(&layers),
            log_retention: log_retention(&self.document.general),
            task: self.task(&layers),
        }
    }

    fn task(&self, layers: &[&Sections]) -> TaskSettings {
        let is_for_all = |layer: &Sections| std::ptr::eq(layer, &self.document.general);
        let namespace = layers.iter().find_map(|s| s.task.namespace.as_ref());
        let remote = layers.iter().find_map(|layer| {
            let value = layer.task.remote.as_ref()?.value.clone();
            let is_for_all = is_for_all(layer);
            Some(Scoped { value, is_for_all })
        });
        let login = layers.iter().find_map(|layer| {
            let task = &layer.task;
            let env = task
                .token_env
                .as_ref()
                .map(|g| Login::Variable(g.value.clone()));
            let command = || {
                task.token_command
                    .as_ref()
                    .map(|g| Login::Command(g.value.clone()))
            };
            let helpers = || task.credential.as_ref().map(|_| Login::UserGit);
            let value = env.or_else(command).or_else(helpers)?;
            let is_for_all = is_for_all(layer);
            Some(Scoped { value, is_for_all })
        });
        let interval = layers
            .iter()
            .find_map(|s| s.task.checkpoint_interval.as_ref());
        let on_divergence = layers.iter().find_map(|s| s.task.on_divergence.as_ref());
        TaskSettings {
            on_divergence: on_divergence.map(|given| given.value),
            namespace: namespace.map(|given| given.value.clone()),
            remote,
            login,
            checkpoint_interval: interval.map(|given| given.value.duration),
        }
    }

    /// Who tells people of notices; `None`: nobody.
    pub(crate) fn notices(&self) -> Option<NoticeSettings> {
        let set = &self.document.general.notices;
        let line = |given: &Given<String>| UserCommand::new(given.value.clone());
        let timeout = set.timeout.as_ref().map(|given| given.value.duration);
        Some(NoticeSettings {
            command: line(set.command.as_ref()?),
            shows_command: set.shows_command.as_ref().map(line),
            env: set.env.as_ref().map_or(Vec::new(), |g| g.value.clone()),
            timeout: timeout.unwrap_or(EngineOptions::default().notice_timeout),
        })
    }

    /// What is a secret value besides what the built-in rules know.
    pub(crate) fn secret_rules(&self) -> Vec<SecretRule> {
        let rules = self.document.secret_rules.iter();
        rules
            .map(|(name, given)| SecretRule::new(name.clone(), given.value.clone()))
            .collect()
    }

    /// Every value that holds in the workspace at this path, and who set it.
    pub(crate) fn held(
        &self,
        workspace: Option<&Path>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Vec<Held> {
        let layers = self.layers(workspace);
        let of_keys = keys();
        let of_keys = of_keys
            .iter()
            .flat_map(|key| self.held_of(key, &layers, &variable));
        of_keys.chain(self.rules_held()).collect()
    }

    /// The names of the secret rules.
    fn rules_held(&self) -> Vec<Held> {
        let held = |value, source, line| Held {
            value,
            source,
            line,
            ..Held::default_of("secret_rules")
        };
        let rules = self.document.secret_rules.iter();
        let rules = rules.map(|(name, given)| {
            let line = toml_text::line_of(&self.text, given.at);
            held(json!(name), Source::File, Some(line))
        });
        match self.document.secret_rules.is_empty() {
            true => vec![held(json!([]), Source::Default, None)],
            false => rules.collect(),
        }
    }

    fn held_of(
        &self,
        key: &Key,
        layers: &[&Sections],
        variable: &impl Fn(&str) -> Option<OsString>,
    ) -> Vec<Held> {
        let held = |value, source| Held {
            value,
            source,
            ..Held::default_of(key.name)
        };
        if key.name == "limits.max_store_bytes"
            && let Some(bytes) = variable(MAX_STORE_BYTES).filter(|value| !value.is_empty())
        {
            let bytes = bytes.to_string_lossy();
            let value =
                crate::args::bytes(&bytes).map_or_else(|_| json!(bytes), |bytes| json!(bytes));
            return vec![Held {
                variable: Some(MAX_STORE_BYTES),
                ..held(value, Source::Environment)
            }];
        }
        // Who says for one workspace how a remote is asked says all of that.
        let says_it = |layer: &&Sections| layer.task.of_login().next().is_some();
        let layers = match layers.iter().position(says_it) {
            Some(at) if LOGIN_KEYS.contains(&key.name) => &layers[at..=at],
            _ => layers,
        };
        let set = layers.iter().filter_map(|layer| {
            let (value, offset) = (key.of)(layer)?;
            let source = match std::ptr::eq(*layer, &self.document.general) {
                true => Source::File,
                false => Source::Workspace,
            };
            Some(Held {
                line: Some(toml_text::line_of(&self.text, offset)),
                ..held(value, source)
            })
        });
        let set: Vec<Held> = set.take(if key.adds { layers.len() } else { 1 }).collect();
        match set.is_empty() {
            true => vec![held(key.default.clone(), Source::Default)],
            false => set,
        }
    }

    /// What counts for a workspace, the first that says something most.
    fn layers(&self, workspace: Option<&Path>) -> Vec<&Sections> {
        let real = workspace.map(|path| std::fs::canonicalize(path).unwrap_or(path.to_owned()));
        let own = real.and_then(|workspace| self.document.of_workspace(&workspace));
        own.into_iter().chain([&self.document.general]).collect()
    }
}

/// That a part of the way is no directory is as good as that there is none.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn retention(layers: &[&Sections]) -> Option<RetentionOptions> {
    let enabled = layers.iter().find_map(|s| s.retention.enabled.as_ref());
    if enabled.is_some_and(|enabled| !enabled.value) {
        return None;
    }
    let mut options = RetentionOptions::default();
    if let Some(age) = layers.iter().find_map(|s| s.retention.older_than.as_ref()) {
        options = options.older_than(age.value.duration);
    }
    if let Some(steps) = layers
        .iter()
        .find_map(|s| s.retention.step_snapshots.as_ref())
    {
        options = options.step_snapshots(steps.value);
    }
    Some(options)
}

fn log_retention(general: &Sections) -> LogRetention {
    let set = &general.retention;
    let mut kept = LogRetention::default();
    kept.events_older_than = set.events_older_than.as_ref().map(|age| age.value.duration);
    kept.max_events = set.max_events.as_ref().map(|number| number.value);
    kept.sessions_older_than = set
        .sessions_older_than
        .as_ref()
        .map(|age| age.value.duration);
    kept.max_ended_sessions = set.max_ended_sessions.as_ref().map(|number| number.value);
    kept
}

/// Every key that the file may have, with the default.
fn keys() -> Vec<Key> {
    let retention = RetentionOptions::default();
    let interval = WorkBranchOptions::of("").checkpoint_interval;
    let key = |name, default, of| Key {
        name,
        default,
        of,
        adds: false,
    };
    let list = |name, of| Key {
        adds: true,
        ..key(name, json!([]), of)
    };
    vec![
        list("ignore.paths", |s| given(&s.ignore.paths)),
        list("ignore.globs", |s| given(&s.ignore.globs)),
        key(
            "limits.max_untracked_file_bytes",
            json!(DEFAULT_MAX_UNTRACKED_FILE_BYTES),
            |s| given(&s.limits.max_untracked_file_bytes),
        ),
        key("limits.max_files", json!(0), |s| given(&s.limits.max_files)),
        key("limits.max_new_bytes", json!(0), |s| {
            given(&s.limits.max_new_bytes)
        }),
        key(
            "limits.max_patch_bytes",
            json!(DEFAULT_MAX_PATCH_BYTES),
            |s| given(&s.limits.max_patch_bytes),
        ),
        key("limits.max_store_bytes", json!(0), |s| {
            given(&s.limits.max_store_bytes)
        }),
        key(
            "limits.retain_content_bytes",
            json!(DEFAULT_RETAIN_CONTENT_BYTES),
            |s| given(&s.limits.retain_content_bytes),
        ),
        key("retention.enabled", json!(true), |s| {
            given(&s.retention.enabled)
        }),
        key(
            "retention.older_than",
            json!(in_days(retention.older_than)),
            |s| given(&s.retention.older_than),
        ),
        key(
            "retention.step_snapshots",
            json!(retention.step_snapshots),
            |s| given(&s.retention.step_snapshots),
        ),
        key("retention.events_older_than", Value::Null, |s| {
            given(&s.retention.events_older_than)
        }),
        key("retention.max_events", Value::Null, |s| {
            given(&s.retention.max_events)
        }),
        key("retention.sessions_older_than", Value::Null, |s| {
            given(&s.retention.sessions_older_than)
        }),
        key("retention.max_ended_sessions", Value::Null, |s| {
            given(&s.retention.max_ended_sessions)
        }),
        key("task.remote", Value::Null, |s| {
            let set = s.task.remote.as_ref()?;
            Some((json!(without_login(&set.value)), set.at))
        }),
        key("task.namespace", Value::Null, |s| given(&s.task.namespace)),
        key(LOGIN_KEYS[0], Value::Null, |s| given(&s.task.token_env)),
        key(LOGIN_KEYS[1], Value::Null, |s| given(&s.task.token_command)),
        key(LOGIN_KEYS[2], Value::Null, |s| given(&s.task.credential)),
        key(
            "task.checkpoint_interval",
            json!(in_seconds(interval)),
            |s| given(&s.task.checkpoint_interval),
        ),
        key("task.on_divergence", json!(OnDivergence::default()), |s| {
            given(&s.task.on_divergence)
        }),
        key("notices.command", Value::Null, |s| {
            given(&s.notices.command)
        }),
        key("notices.shows_command", Value::Null, |s| {
            given(&s.notices.shows_command)
        }),
        key("notices.env", json!([]), |s| given(&s.notices.env)),
        key(
            "notices.timeout",
            json!(in_seconds(EngineOptions::default().notice_timeout)),
            |s| given(&s.notices.timeout),
        ),
    ]
}

/// A value as a document shows it, and where the file has it.
fn given<T: Serialize>(given: &Option<Given<T>>) -> Option<(Value, usize)> {
    let given = given.as_ref()?;
    Some((json!(given.value), given.at))
}

/// As a user would write it.
fn in_seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs())
}

/// As a user would write it.
fn in_days(duration: Duration) -> String {
    format!("{}d", duration.as_secs() / (24 * 60 * 60))
}

#[cfg(test)]
mod tests;
