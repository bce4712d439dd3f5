//! Running git itself, with nothing of this machine's configuration.

use std::ffi::OsStr;
use std::path::Path;

use crate::call::{Call, Output, base_env};

/// Who commits in the tests.
pub const AUTHOR: &str = "Author of the tests <author@example.org>";

/// A call of git in `dir`, with `home` as HOME, fixed times and a fixed identity.
///
/// The identity comes from the environment, so a repository has none configured.
pub fn call<S: AsRef<OsStr>>(home: &Path, dir: &Path, args: impl IntoIterator<Item = S>) -> Call {
    let mut call = Call::new("git", dir).args(args);
    for (name, value) in base_env(home) {
        call = call.env(name, value);
    }
    let config = [
        ("init.defaultBranch", "main"),
        ("protocol.file.allow", "always"),
        ("gc.auto", "0"),
        ("maintenance.auto", "false"),
        ("core.fsync", "none"),
    ];
    call = call.env("GIT_CONFIG_COUNT", config.len().to_string());
    for (at, (key, value)) in config.iter().enumerate() {
        call = call
            .env(format!("GIT_CONFIG_KEY_{at}"), key)
            .env(format!("GIT_CONFIG_VALUE_{at}"), value);
    }
    call.env("GIT_CONFIG_NOSYSTEM", "1")
        // Sample hooks only cost time.
        .env("GIT_TEMPLATE_DIR", "")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_EDITOR", "true")
        .env("GIT_AUTHOR_NAME", "Author of the tests")
        .env("GIT_AUTHOR_EMAIL", "author@example.org")
        .env("GIT_COMMITTER_NAME", "Author of the tests")
        .env("GIT_COMMITTER_EMAIL", "author@example.org")
        .env("GIT_AUTHOR_DATE", "2024-01-02T03:04:05Z")
        .env("GIT_COMMITTER_DATE", "2024-01-02T03:04:05Z")
}

/// Runs git and asserts success.
#[track_caller]
pub fn run<S: AsRef<OsStr>>(home: &Path, dir: &Path, args: impl IntoIterator<Item = S>) -> Output {
    call(home, dir, args).run().ok()
}

/// Runs git, asserts success, and answers with what it printed, without the end of the last line.
#[track_caller]
pub fn text<S: AsRef<OsStr>>(home: &Path, dir: &Path, args: impl IntoIterator<Item = S>) -> String {
    let text = run(home, dir, args).stdout_text();
    text.strip_suffix('\n').unwrap_or(&text).to_owned()
}
