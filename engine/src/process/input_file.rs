//! The input that a run goes on with, as its command gets it.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use tokio::process::Command;

use crate::id::EngineId;

use crate::records::follow_up::FollowUpInput;

/// The variables of a command's environment: the number of the input, its text, and the path of a
/// file that has the text.
const INPUT_ID: &str = "STILLFRAME_INPUT_ID";
const INPUT: &str = "STILLFRAME_INPUT";
const INPUT_FILE: &str = "STILLFRAME_INPUT_FILE";

/// An input, and a file with its text for as long as this is. It is the user's alone.
pub(super) struct InputFile {
    input: FollowUpInput,
    file: NamedTempFile,
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
    pub(super) fn of(
        input: &FollowUpInput,
        state_dir: &Path,
        engine: &EngineId,
    ) -> std::io::Result<Self> {
        let directory = directory(state_dir);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)?;
        let mut file = tempfile::Builder::new()
            .prefix(&format!("{engine}."))
            .tempfile_in(directory)?;
        file.write_all(input.text.as_bytes())?;
        Ok(Self {
            input: input.clone(),
            file,
        })
    }

    /// Gives it to a command; without one, what an outer run has given is taken away.
    pub(super) fn give(input: Option<&Self>, command: &mut Command) {
        for name in [INPUT_ID, INPUT, INPUT_FILE] {
            command.env_remove(name);
        }
        if let Some(Self { input, file }) = input {
            command.env(INPUT_ID, input.id.to_string());
            command.env(INPUT, &input.text);
            command.env(INPUT_FILE, file.path());
        }
    }
}
