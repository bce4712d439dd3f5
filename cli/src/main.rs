//! The `stillframe` command: a host of the engine like any other.
//!
//! `args.rs` has the arguments, `request.rs` their meaning, `commands/` the commands. Only
//! `output.rs` writes output (at a terminal through `pager.rs`). This file calls them in order and
//! has the exit codes.

mod args;
mod branch;
mod commands;
mod config;
mod copying;
mod failure;
mod guardian;
mod logging;
mod notice_command;
mod output;
mod pager;
mod paint;
mod patch_view;
mod progress;
mod request;
#[cfg(test)]
mod schemas;
mod signals;
mod step_file;
mod token_command;
mod toml_text;
mod user_command;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use clap::error::ErrorKind as UsageErrorKind;
use stillframe::backends::{StateDir, WorkspaceError, printable};
use stillframe::options::{LogRetention, RetentionOptions};
use stillframe::{Engine, EngineOptions, ErrorKind};
use tokio::runtime::{Builder, Runtime};

use crate::args::{Args, Command};
use crate::commands::Tools;
use crate::config::{Config, MAX_STORE_BYTES};
use crate::failure::{Failure, StatePlace};
use crate::logging::Wanted;
use crate::notice_command::{NoticeCommand, NoticeSettings};
use crate::output::{Console, Reply};
use crate::paint::ColorChoice;
use crate::progress::ProgressLine;
use crate::request::{Request, Surroundings};

fn main() -> ExitCode {
    if let Some(code) = stillframe::commands::be_guardian() {
        return code;
    }
    signals::note_ignored();
    let typed: Vec<OsString> = std::env::args_os().collect();
    let args = match Args::try_parse_from(&typed) {
        Ok(args) => args,
        Err(e) => return explain(&e, &typed),
    };
    let console = Console::new(args.json, args.color);
    let is_run = args.command.is_run();
    let wanted = Wanted {
        filter: args.log.clone(),
        env: std::env::var_os(logging::LOG),
        format: args.log_format,
        shows_warnings: console.shows_notes(),
    };
    let code = logging::begin(wanted)
        .and_then(|()| answer(args, console))
        .and_then(|reply| console.deliver(reply))
        .unwrap_or_else(|failure| {
            console.fail(&failure);
            failure.own_exit_code(is_run)
        });
    ExitCode::from(code)
}

/// Finds out what is meant, and does it.
fn answer(args: Args, console: Console) -> Result<Reply, Failure> {
    let named_workspace = args.workspace.clone().map(PathBuf::from);
    // What is wrong in the file is no reason not to say where it is.
    let config = match args.command {
        Command::Config { .. } | Command::Completions { .. } => Config::default(),
        _ => Config::load(config::path(|name| std::env::var_os(name)).as_deref())?,
    };
    let surroundings = surroundings(config);
    let request = Request::lower(args.command, args.workspace, args.json, &surroundings)?;
    match request {
        Request::Completions(shell) => return Ok(commands::completions(shell)),
        Request::Config(request) => return commands::config(args.json, request),
        _ => {}
    }
    let settings = surroundings.config.settings(request.workspace());
    let state_dir = state_dir()?;
    if let Some(workspace) = request.workspace() {
        let is_chosen =
            named_workspace.is_none() && is_below(surroundings.current_dir.as_deref(), workspace);
        refuse_state_inside(&state_dir, workspace).map_err(|failure| match is_chosen {
            true => no_workspace_above(workspace),
            false => failure,
        })?;
    }
    let quota =
        config::max_store_bytes(std::env::var_os(MAX_STORE_BYTES), settings.max_store_bytes)?;
    let options = EngineOptions::default()
        .state_dir(state_dir.clone())
        .max_store_bytes(quota)
        .secret_rules(surroundings.config.secret_rules());
    let options = match branch::of_left(settings.task) {
        Some(credentials) => options.credentials(credentials),
        None => options,
    };
    let options = match surroundings.config.notices() {
        Some(set) if !request.needs_no_writing() && !notice_command::is_within() => {
            telling(options, set, &state_dir)
        }
        _ => options,
    };
    let retention = settings.retention.filter(|_| !args.no_retention);
    let retention = retention.map(|retention| (retention, settings.log_retention));
    carry_out(
        options,
        args.json,
        console,
        named_workspace,
        request,
        retention,
    )
    .map_err(|failure| failure.with_place(|| StatePlace::look(&state_dir)))
}

/// With the commands of the user, which tell people of notices. The engine ends once they have, or
/// would have had to.
fn telling(options: EngineOptions, set: NoticeSettings, state_dir: &Path) -> EngineOptions {
    let both = set.timeout.saturating_mul(2);
    let grace = both.saturating_add(Duration::from_secs(1));
    let grace = options.shutdown_grace.max(grace);
    let file = state_dir.join("notice.json");
    options
        .shutdown_grace(grace)
        .notice_timeout(set.timeout)
        .notices(NoticeCommand {
            settings: set,
            file,
        })
}

/// Does it with an engine on this state directory.
fn carry_out(
    options: EngineOptions,
    json: bool,
    console: Console,
    named_workspace: Option<PathBuf>,
    request: Request,
    retention: Option<(RetentionOptions, LogRetention)>,
) -> Result<Reply, Failure> {
    let progress = ProgressLine::on_terminal();
    let state_dir = options.state_dir.clone().expect("it was chosen");
    let options = options.allow_reading_alone(request.needs_no_writing());
    let options = match progress.clone() {
        Some(line) => options.progress(move |progress| line.report(progress)),
        None => options,
    };
    let runtime = runtime(&request)
        .map_err(|e| Failure::new(ErrorKind::Storage, format!("cannot start threads: {e}")))?;
    runtime.block_on(async {
        if let Err(e) = signals::outlive_file_size_limit() {
            let message = format!("signals cannot be caught, so nothing was done: {e}");
            return Err(Failure::new(ErrorKind::of_storage(&e), message));
        }
        let engine = match Engine::start(options).await {
            Ok(engine) => engine,
            // What it cannot start without is no reason to leave the rest unproven.
            Err(e) => {
                return match request {
                    Request::Verify(workspace) if e.kind() == ErrorKind::Corrupt => {
                        commands::verify_without_log(json, &state_dir, &workspace, e.into())
                    }
                    _ => Err(e.into()),
                };
            }
        };
        for survivor in &engine.recovery().survivors {
            console.note(&output::printable(&format!(
                "{survivor} is at work, which run {} had started before it was killed; no run begins in its workspace until that has ended",
                survivor.run_id
            )));
        }
        let tools = Tools {
            engine: engine.clone(),
            state_dir: state_dir.clone(),
            json,
            named_workspace,
            console,
            progress: progress.clone(),
            retention,
        };
        let reply = Box::pin(commands::carry_out(&tools, request)).await;
        if let Some(progress) = progress {
            progress.clear();
        }
        // What was done is durable already, so an engine that stops badly takes nothing of it back.
        if let Err(e) = engine.shutdown().await {
            console.note(&Failure::from(e).line());
        }
        reply
    })
}

/// What the futures of a request run on. Where one waits for the other one thread does for all of
/// them, and it is there.
fn runtime(request: &Request) -> io::Result<Runtime> {
    let mut threads = match request.is_one_question() {
        true => Builder::new_current_thread(),
        false => Builder::new_multi_thread(),
    };
    threads.enable_all().build()
}

fn state_dir() -> Result<PathBuf, Failure> {
    StateDir::default_path(|name| std::env::var_os(name)).ok_or_else(|| {
        Failure::invalid(
            "there is no place to keep anything: set STILLFRAME_HOME to a directory, or HOME",
        )
    })
}

/// Whether the current directory is below the one that what was typed is about.
fn is_below(current: Option<&Path>, workspace: &Path) -> bool {
    current.is_some_and(|current| current != workspace && current.starts_with(workspace))
}

/// Nobody named the directory, and it is nobody's workspace.
fn no_workspace_above(directory: &Path) -> Failure {
    Failure::invalid(format!(
        "no workspace that the current directory is in has what was named: {} has both, and the state directory too; name a workspace with --workspace DIR",
        printable(directory)
    ))
}

/// Fails if the state directory lies inside the workspace. The engine refuses that too, but it
/// has to make its state directory first, and a refused command leaves nothing behind.
fn refuse_state_inside(state_dir: &Path, workspace: &Path) -> Result<(), Failure> {
    let Ok(workspace) = std::fs::canonicalize(workspace) else {
        // What is wrong with it, the engine says better.
        return Ok(());
    };
    match resolved(state_dir) {
        Some(state) if state.starts_with(&workspace) => {
            let refusal = WorkspaceError::StateInside { state, workspace };
            Err(Failure::new(refusal.kind(), refusal.to_string()))
        }
        _ => Ok(()),
    }
}

/// Where `path` is, or will be once it is made: without links in the part that exists.
fn resolved(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find_map(|ancestor| {
        let real = std::fs::canonicalize(ancestor).ok()?;
        let rest = path
            .strip_prefix(ancestor)
            .expect("an ancestor begins the path");
        Some(real.join(rest))
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the clock that everything else here is handed"
)]
fn surroundings(config: Config) -> Surroundings {
    let real = |path: PathBuf| std::fs::canonicalize(path).ok();
    Surroundings {
        current_dir: std::env::current_dir().ok().and_then(real),
        home: std::env::home_dir().and_then(real),
        run_id: std::env::var_os("STILLFRAME_RUN_ID"),
        current_run: std::env::var_os("STILLFRAME_CURRENT_RUN"),
        current_state: std::env::var_os("STILLFRAME_CURRENT_STATE"),
        now: jiff::Timestamp::now(),
        config,
    }
}

/// Prints what clap has to say: help and version on stdout, what is wrong on stderr, or as a
/// document if one is wanted.
fn explain(error: &clap::Error, typed: &[OsString]) -> ExitCode {
    let code = u8::try_from(error.exit_code()).unwrap_or(2);
    if error.use_stderr() && wants_json(typed) {
        Console::new(true, ColorChoice::Never).fail(&Failure::invalid(usage_message(error)));
    } else {
        // A stream that is gone cannot be told so.
        let _ = error.print();
    }
    ExitCode::from(code)
}

/// Whether `--json` is among what was typed for Stillframe itself.
fn wants_json(typed: &[OsString]) -> bool {
    typed
        .iter()
        .take_while(|arg| *arg != "--")
        .any(|arg| arg == "--json")
}

/// The first paragraph of what clap says, in one line.
fn usage_message(error: &clap::Error) -> String {
    if error.kind() == UsageErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "a command is missing; \"stillframe --help\" lists them".to_owned();
    }
    let text = error.to_string();
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = paragraph.split_whitespace().collect();
    let message = words.join(" ");
    message
        .strip_prefix("error: ")
        .unwrap_or(&message)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(args: &[&str]) -> Vec<OsString> {
        args.iter().map(OsString::from).collect()
    }

    #[test]
    fn json_counts_before_the_dashes_alone() {
        assert!(wants_json(&typed(&["stillframe", "list", "--json"])));
        assert!(!wants_json(&typed(&[
            "stillframe",
            "run",
            "--",
            "x",
            "--json"
        ])));
    }

    #[test]
    fn a_state_directory_is_found_inside_before_it_is_made() {
        let base = tempfile::tempdir().expect("a directory can be made");
        let base = std::fs::canonicalize(base.path()).expect("it was made");
        let workspace = base.join("workspace");
        std::fs::create_dir(&workspace).expect("it can be made");
        std::os::unix::fs::symlink(&workspace, base.join("link")).expect("it can be made");
        for inside in [
            "workspace",
            "workspace/state",
            "workspace/not/there/yet",
            "link/state",
        ] {
            let failure = refuse_state_inside(&base.join(inside), &base.join("link"))
                .expect_err("it is refused");
            assert_eq!(failure.kind(), ErrorKind::InvalidOptions, "{inside}");
        }
        for beside in ["", "state", "workspace-state", "not/there/yet"] {
            assert!(
                refuse_state_inside(&base.join(beside), &workspace).is_ok(),
                "{beside}"
            );
        }
        assert_eq!(
            std::fs::read_dir(&workspace).expect("it is there").count(),
            0
        );
    }

    #[test]
    fn a_usage_error_fits_in_one_line() {
        for (args, expected) in [
            (
                &["stillframe", "list", "--wrong"][..],
                "unexpected argument '--wrong' found",
            ),
            (
                &["stillframe"],
                "a command is missing; \"stillframe --help\" lists them",
            ),
            (
                &["stillframe", "run", "--json"],
                "the following required arguments were not provided: <CMD>...",
            ),
        ] {
            let error = Args::try_parse_from(args).expect_err("it is refused");
            assert_eq!(usage_message(&error), expected);
        }
    }
}
