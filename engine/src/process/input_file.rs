//! The input that a run goes on with, as its command gets it.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use tokio::process::Command;

use crate::id::EngineId;

use crate::step::context::RunContext;

/// The variables of a command's environment: the number of what it goes on with, its text, and the
/// path of a file that has the text.
type Names = [&'static str; 3];

/// Of new input.
const INPUT: Names = [
    "STILLFRAME_INPUT_ID",
    "STILLFRAME_INPUT",
    "STILLFRAME_INPUT_FILE",
];

/// Of what is to be changed in what was handed in.
const REVISION: Names = [
    "STILLFRAME_REVISION",
    "STILLFRAME_REVIEW_COMMENT",
    "STILLFRAME_REVIEW_COMMENT_FILE",
];

/// What a run goes on with.
pub(super) struct Input {
    names: Names,
    number: u64,
    text: String,
}

/// An input, and a file with its text for as long as this is. It is the user's alone.
pub(super) struct InputFile {
    input: Input,
    file: NamedTempFile,
}

impl Input {
    /// What a run goes on with, if it does.
    pub(super) fn of(context: &RunContext) -> Option<Self> {
        let revision = context.revision.as_ref().map(|revision| Self {
            names: REVISION,
            number: revision.number,
            text: revision.comment.clone(),
        });
        let input = context.follow_up.as_ref().map(|input| Self {
            names: INPUT,
            number: input.id,
            text: input.text.clone(),
        });
        input.or(revision)
    }
}

/// Where such files are in a state directory.
pub(crate) fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join("inputs")
}

/// The engine that has made a file of this name; `None`: none has.
pub(crate) fn owner(name: &str) -> Option<EngineId> {
    name.rsplit_once('.')?.0.parse().ok()
}

impl InputFile {
    /// One of an engine, in its state directory: where that is killed, the next one removes it.
    pub(super) fn of(input: Input, state_dir: &Path, engine: &EngineId) -> std::io::Result<Self> {
        let directory = directory(state_dir);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)?;
        let mut file = tempfile::Builder::new()
            .prefix(&format!("{engine}."))
            .tempfile_in(directory)?;
        file.write_all(input.text.as_bytes())?;
        Ok(Self { input, file })
    }

    /// Gives it to a command; without one, what an outer run has given is taken away.
    pub(super) fn give(input: Option<&Self>, command: &mut Command) {
        for name in INPUT.into_iter().chain(REVISION) {
            command.env_remove(name);
        }
        if let Some(Self { input, file }) = input {
            let [number, text, path] = input.names;
            command.env(number, input.number.to_string());
            command.env(text, &input.text);
            command.env(path, file.path());
        }
    }
}
