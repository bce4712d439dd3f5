//! What is typed of a task's branch.

use std::ffi::OsStr;

use serde_json::json;
use stillframe::backends::{AllowedSecret, RelPath};
use stillframe::options::CloneOptions;
use stillframe::tasks::{Credential, CredentialProvider, Secret, WorkBranchOptions, without_login};

use crate::args::{BranchArgs, PlaceArgs, TokenArgs};
use crate::config::{Held, Login, Scoped, Source, TaskSettings};
use crate::failure::Failure;
use crate::token_command::TokenCommand;

/// The digits of a fingerprint.
const FINGERPRINT_CHARS: usize = 64;

/// The branch of a task as it is typed, or else set; there may be one.
pub(crate) fn of_task(
    task: String,
    args: BranchArgs,
    set: TaskSettings,
) -> Result<WorkBranchOptions, Failure> {
    let mut options = at_place(task, args.place, set)?;
    options.message = args.message;
    Ok(match args.on_divergence {
        Some(chosen) => options.on_divergence(chosen),
        None => options,
    })
}

/// The same, without what only saving it takes.
pub(crate) fn at_place(
    task: String,
    args: PlaceArgs,
    set: TaskSettings,
) -> Result<WorkBranchOptions, Failure> {
    let mut options = WorkBranchOptions::of(task);
    options.namespace = args.namespace.or(set.namespace);
    if let Some(interval) = set.checkpoint_interval {
        options = options.checkpoint_interval(interval);
    }
    if let Some(chosen) = set.on_divergence {
        options = options.on_divergence(chosen);
    }
    let login = match (args.token.token_env, args.token.token_command) {
        (Some(name), _) => Some((Login::Variable(name), true)),
        (_, Some(line)) => Some((Login::Command(line), true)),
        (None, None) => {
            let is_chosen = args.remote.is_some() || set.remote.as_ref().is_some_and(is_chosen);
            set.login
                .map(|login| (login.value, is_chosen || !login.is_for_all))
        }
    };
    options.remote = args.remote.or(set.remote.map(|remote| remote.value));
    if let Some((login, is_for_this)) = login {
        let only = (!is_for_this).then(String::new);
        options = options.credentials(Asking { login, only });
    }
    named(&options)?;
    Ok(options)
}

/// The branch of a run's task, which goes where that went.
pub(crate) fn of_run(
    kept: WorkBranchOptions,
    (message, token): (Option<String>, TokenArgs),
    mut set: TaskSettings,
) -> Result<WorkBranchOptions, Failure> {
    set.namespace = None;
    // What the user has set is no more the user's choice of a place than it was for the run.
    let of_set = set.remote.as_ref();
    let is_set = of_set.map(|remote| without_login(&remote.value)) == kept.remote;
    if !is_set {
        set.remote = None;
    }
    let args = BranchArgs {
        place: PlaceArgs {
            namespace: kept.namespace,
            remote: kept.remote.filter(|_| !is_set),
            token,
        },
        message: message.or(kept.message),
        on_divergence: Some(kept.on_divergence),
    };
    of_task(kept.task, args, set)
}

/// What is typed of a task's branch, and of what is set that which is not. `held`: all that is set.
pub(crate) fn settings(args: &BranchArgs, held: Vec<Held>) -> Vec<Held> {
    let remote = args.place.remote.as_deref().map(without_login);
    let typed = [
        ("remote", &remote),
        ("namespace", &args.place.namespace),
        ("message", &args.message),
        ("token_env", &args.place.token.token_env),
        ("token_command", &args.place.token.token_command),
    ];
    let typed = typed.map(|(key, value)| (key, value.as_ref().map(|value| json!(value))));
    let chosen = args.on_divergence.map(|chosen| json!(chosen));
    let typed: Vec<_> = typed
        .into_iter()
        .chain([("on_divergence", chosen)])
        .collect();
    let message = Held::default_of("message");
    let of_task = held.into_iter().filter_map(|held| {
        let key = held.key.strip_prefix("task.")?;
        Some(Held { key, ..held })
    });
    let is_login_typed =
        args.place.token.token_env.is_some() || args.place.token.token_command.is_some();
    let of_login = ["token_env", "token_command", "credential"];
    let overridden = |held: Held| {
        let given = typed.iter().find(|(key, _)| *key == held.key);
        match given.and_then(|(_, value)| value.clone()) {
            Some(value) => Held {
                value,
                source: Source::CommandLine,
                ..Held::default_of(held.key)
            },
            // One way to ask is typed, and so the others are not taken.
            None if is_login_typed && of_login.contains(&held.key) => Held::default_of(held.key),
            None => held,
        }
    };
    of_task.chain([message]).map(overridden).collect()
}

/// With who asks the remote, as it is typed, or else set: its address is the user's own.
pub(crate) fn of_clone(options: CloneOptions, args: TokenArgs, set: TaskSettings) -> CloneOptions {
    let login = match (args.token_env, args.token_command) {
        (Some(name), _) => Some(Login::Variable(name)),
        (_, Some(line)) => Some(Login::Command(line)),
        (None, None) => set.login.map(|login| login.value),
    };
    match login {
        Some(login) => options.credentials(Asking { login, only: None }),
        None => options,
    }
}

/// How the remote of work is asked that a killed run left. Where that run was is not known here, so
/// that a token is only for the address that is set beside it.
pub(crate) fn of_left(set: TaskSettings) -> Option<impl CredentialProvider> {
    let login = set.login?.value;
    let address = set.remote.map(|remote| without_login(&remote.value));
    Some(Asking {
        login,
        only: Some(address.unwrap_or_default()),
    })
}

/// Whether the user has chosen this remote for this workspace, or wrote its address. What is
/// neither is a name, and any repository has an address for that.
fn is_chosen(remote: &Scoped<String>) -> bool {
    !remote.is_for_all || remote.value.contains("://")
}

/// The branch of a task; that there can be none is a mistake of who typed it.
pub(crate) fn named(options: &WorkBranchOptions) -> Result<String, Failure> {
    let named = options.branch_name();
    named.map_err(|e| Failure::usage(e.to_string()))
}

/// How a remote is asked.
struct Asking {
    login: Login,
    /// The address that a token is for; `None`: any. One that is set for every workspace is not for
    /// whatever address a repository comes with; git's helpers look at the address themselves.
    only: Option<String>,
}

impl CredentialProvider for Asking {
    async fn credential(&self, remote: &str) -> Result<Credential, String> {
        let token = match &self.login {
            Login::UserGit => return Ok(Credential::UserGit { user: None }),
            _ if self.only.as_ref().is_some_and(|only| only != remote) => {
                return Err(
                    "config.toml does not say that its token is for this address, and a repository may have any; set it \
                     there as the remote, or type --remote"
                        .to_owned(),
                );
            }
            Login::Variable(name) => of_variable(name)?,
            Login::Command(line) => TokenCommand::new(line.clone()).token(remote).await?,
        };
        Ok(Credential::token(token, None))
    }
}

/// The token of a variable.
fn of_variable(name: &str) -> Result<Secret, String> {
    let token = std::env::var_os(name).filter(|token| !token.is_empty());
    let token = token.ok_or_else(|| format!("{name} is not set"))?;
    Secret::new(token.into_encoded_bytes()).map_err(|_| format!("{name} has no token in it"))
}

/// A finding as it was typed.
pub(crate) fn finding(
    rule: String,
    path: &OsStr,
    fingerprint: String,
) -> Result<AllowedSecret, Failure> {
    let typed = path.as_encoded_bytes();
    let path = match typed {
        b"." => Ok(RelPath::root()),
        typed => RelPath::new(typed),
    };
    let path = path.map_err(|e| Failure::usage(e.to_string()))?;
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if fingerprint.len() != FINGERPRINT_CHARS || !fingerprint.bytes().all(is_digit) {
        return Err(Failure::usage(format!(
            "a fingerprint has {FINGERPRINT_CHARS} hexadecimal digits, as \"task checkpoint\" prints them; nothing was done"
        )));
    }
    Ok(AllowedSecret::new(rule, path, fingerprint))
}
