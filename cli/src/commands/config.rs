//! `config`: showing and checking the configuration file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::Serialize;
use stillframe::backends::printable;

use crate::config::{self, Config, Held, Source};
use crate::failure::Failure;
use crate::output::{self, Reply};
use crate::request::ConfigRequest;

/// What `config show` prints.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Shown<'a> {
    /// The file; null where there is no place for one.
    path: Option<String>,
    /// Whether it is there.
    exists: bool,
    /// Each key with what holds.
    values: &'a [Held],
}

/// What `config path` prints.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Place {
    /// The file.
    path: String,
    /// Whether it is there.
    exists: bool,
}

/// What `config check` prints. Of a file that is wrong it prints an error.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Checked {
    /// The file; null where there is no place for one.
    path: Option<String>,
    /// Whether it is there; if not, the defaults hold.
    exists: bool,
    /// Always true.
    sound: bool,
}

/// Answers what is asked of the file. It needs no engine, and no state directory.
pub(crate) fn config(json: bool, request: ConfigRequest) -> Result<Reply, Failure> {
    let path = config::path(variable);
    match request {
        ConfigRequest::Path => where_it_is(json, path),
        ConfigRequest::Show(workspace) => {
            let held = Config::load(path.as_deref())?.held(workspace.as_deref(), variable);
            Ok(shown(json, path.as_deref(), &held))
        }
        ConfigRequest::Check => {
            let set = Config::load(path.as_deref())?.settings(None);
            config::max_store_bytes(variable(config::MAX_STORE_BYTES), set.max_store_bytes)?;
            let exists = path.as_deref().is_some_and(Path::exists);
            let shown = path.as_deref().map(printable);
            let document = Checked {
                path: shown.clone(),
                exists,
                sound: true,
            };
            let named = shown.unwrap_or_else(|| "the file".to_owned());
            let text = match exists {
                true => format!("{named} is right\n"),
                false => format!("{named} is not there, so that the defaults hold\n"),
            };
            Ok(Reply::new(json, &document, || text))
        }
    }
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn where_it_is(json: bool, path: Option<PathBuf>) -> Result<Reply, Failure> {
    let path = path.ok_or_else(|| {
        Failure::usage("there is no place for it: set XDG_CONFIG_HOME or HOME to an absolute path")
    })?;
    let document = Place {
        path: printable(&path),
        exists: path.exists(),
    };
    Ok(Reply::new(json, &document, || {
        format!("{}\n", printable(&path))
    }))
}

fn shown(json: bool, path: Option<&Path>, held: &[Held]) -> Reply {
    let document = Shown {
        path: path.map(printable),
        exists: path.is_some_and(Path::exists),
        values: held,
    };
    Reply::new(json, &document, || {
        let rows: Vec<Vec<String>> = held.iter().map(row).collect();
        output::table(&rows)
    })
}

/// What is set, and who set it, as a row of a table.
pub(super) fn row(held: &Held) -> Vec<String> {
    let source = match (held.source, held.line, held.variable) {
        (Source::Workspace, Some(line), _) => {
            format!("config.toml, line {line}, for this workspace")
        }
        (_, Some(line), _) => format!("config.toml, line {line}"),
        (_, _, Some(variable)) => format!("${variable}"),
        (Source::CommandLine, ..) => "command line".to_owned(),
        (Source::Repository, ..) => "repository".to_owned(),
        _ => "default".to_owned(),
    };
    let value = output::printable(&held.value.to_string());
    vec![held.key.to_owned(), value, source]
}
