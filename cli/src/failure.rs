//! Why a command failed, and the message for it.

use std::path::{Path, PathBuf};

use serde::Serialize;
use stillframe::backends::{
    FileSystem, file_system_of, printable, printable_bytes, printable_size,
};
use stillframe::events::PositionsForgotten;
use stillframe::records::{self, RunDocument};
use stillframe::{ErrorDocument, ErrorKind, RunId};

/// The exit code of a command that the engine failed.
const EXIT_FAILED: u8 = 1;
/// The exit code of `run` and `resume` when the engine failed; all others are the command's own.
const EXIT_RUN_FAILED: u8 = 125;

/// The exit code when what was typed, or what is set, is wrong.
const EXIT_USAGE: u8 = 2;

/// How a message ends that says what is wrong with the state directory.
const NOT_WRITABLE: &str = "cannot be written";
/// The same of one that cannot be read.
const NOT_READABLE: &str = "cannot be read";

/// What to do where something is in it, and nothing can be written.
const ONLY_READ: &str = "what only tells what is there works; for all else set STILLFRAME_HOME to a copy of the whole \
                         directory that can be written, or to another, which has none of its snapshots";

/// How a file system is named that is not the state directory's.
const NAMED_PLACE: &str = "the file system at ";

/// What a clean-up needs to begin, in bytes: the memory that the processes of the database share,
/// its log, and the files of an engine.
const ROOM_TO_CLEAN: u64 = 1 << 20;

/// What a message says where a limit of the process is what stood in the way.
const FILE_SIZE_LIMIT: &str = "(RLIMIT_FSIZE)";

/// Why the command could not do its part.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: ErrorKind,
    /// With its sources, in one line.
    message: String,
    /// Whether the workspace may have been changed.
    touched: bool,
    /// The run in which it happened, if there was one.
    run_id: Option<RunId>,
    /// Where a reader goes on whose place in the log was removed.
    forgotten: Option<Box<PositionsForgotten>>,
    /// What became of the run, if there was one; neither hides the other.
    run: Option<Box<RunDocument>>,
    /// The signal that asked for the command to end, if that is why.
    signal: Option<u8>,
    /// Whether what is typed or set is wrong, so that nothing was begun.
    is_usage: bool,
    /// The exit code of the command that was to be run, where it could not be.
    command_code: Option<u8>,
    /// The full file system, if that is the cause and it is known.
    full: Option<FileSystem>,
    /// Whether the state directory is there, and cannot be written.
    is_only_read: bool,
}

/// How a reader says where it goes on in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// By a position, `--from`.
    Position,
    /// By a number of a session, `--after`.
    Number,
}

/// What can be said of the place where everything is kept.
#[derive(Debug)]
pub(crate) struct StatePlace {
    /// The state directory.
    path: PathBuf,
    is_there: bool,
    is_writable: bool,
    /// Whether it can be listed, and what is in it be opened.
    is_readable: bool,
    /// Where its file system is mounted.
    mount_point: Option<PathBuf>,
    /// What that still has for this user, in bytes, where it says so.
    free_bytes: Option<u64>,
    /// Whether a clean-up can work there: there is free space or the reserve.
    has_room_to_clean: bool,
    /// How large the process may make a file, in bytes, if that is limited.
    max_file_bytes: Option<u64>,
}

impl StatePlace {
    /// Looks at the directory, or at what is there of the way to it. Writes nothing.
    pub(crate) fn look(state_dir: &Path) -> Self {
        let there = state_dir.ancestors().find(|path| path.exists());
        let there = there.unwrap_or(state_dir);
        let access = |how| rustix::fs::access(there, how).is_ok();
        let file_system = file_system_of(there);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
        Self {
            path: state_dir.to_owned(),
            is_there: there == state_dir,
            is_writable: access(rustix::fs::Access::WRITE_OK),
            is_readable: access(rustix::fs::Access::READ_OK | rustix::fs::Access::EXEC_OK),
            has_room_to_clean: state_dir.join("reserve").exists()
                || file_system
                    .as_ref()
                    .and_then(|found| found.free_bytes)
                    .is_none_or(|free| free >= ROOM_TO_CLEAN),
            free_bytes: file_system.as_ref().and_then(|found| found.free_bytes),
            mount_point: file_system.map(|found| found.mount_point),
            max_file_bytes: limit.current,
        }
    }
}

/// What a command that failed prints.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ErrorAndRun<'a> {
    /// What failed.
    error: ErrorDocument,
    /// What became of the run, if there was one. Left out if not.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<&'a RunDocument>,
}

impl Failure {
    /// A failure before anything was touched.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            touched: false,
            run_id: None,
            forgotten: None,
            run: None,
            signal: None,
            is_usage: false,
            command_code: None,
            full: None,
            is_only_read: false,
        }
    }

    /// What is typed or set is wrong: exit code 2.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self {
            is_usage: true,
            ..Self::invalid(message)
        }
    }

    /// The command was asked by this signal to end, and did.
    #[must_use]
    pub(crate) fn by_signal(mut self, number: u8) -> Self {
        self.signal = Some(number);
        self
    }

    /// The command that was to be run would have ended with this code.
    #[must_use]
    pub(crate) fn of_command(mut self, code: u8) -> Self {
        self.command_code = Some(code);
        self
    }

    /// Says this too.
    #[must_use]
    pub(crate) fn adding(mut self, text: &str) -> Self {
        self.message.push_str("; ");
        self.message.push_str(text);
        self
    }

    /// Says with which option a reader goes on whose place in the log was removed.
    #[must_use]
    pub(crate) fn going_on(self, place: Place) -> Self {
        let Some(forgotten) = &self.forgotten else {
            return self;
        };
        let option = match (place, forgotten.oldest_sequence) {
            (Place::Number, Some(oldest)) => format!("--after {}", oldest - 1),
            _ => format!("--from {}", forgotten.oldest - 1),
        };
        self.adding(&format!("{option} shows what is kept"))
    }

    /// Something that was typed cannot be right.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidOptions, message)
    }

    /// Something that was named is not there.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    /// Says more of the full file system, and of the state directory, where it may be what stood in
    /// the way.
    #[must_use]
    pub(crate) fn with_place(mut self, place: impl FnOnce() -> StatePlace) -> Self {
        if matches!(self.kind, ErrorKind::Storage | ErrorKind::NoSpace)
            && !self.message.contains(NAMED_PLACE)
        {
            let place = place();
            if let Some(said) = self.of_place(&place) {
                self.message.push_str(&said);
            }
            self.is_only_read = place.is_there && place.is_readable && !place.is_writable;
        }
        self
    }

    fn of_place(&self, place: &StatePlace) -> Option<String> {
        let path = printable(&place.path);
        let is_elsewhere =
            |full: &&FileSystem| place.mount_point.as_ref() != Some(&full.mount_point);
        let limit = |free: Option<u64>| {
            let limit = place
                .max_file_bytes
                .filter(|_| self.kind == ErrorKind::NoSpace)?;
            free.is_none_or(|free| limit < free).then(|| {
                format!(
                    "; this process may make no file larger than {} {FILE_SIZE_LIMIT}",
                    printable_size(limit)
                )
            })
        };
        if let Some(full) = self.full.as_ref().filter(is_elsewhere) {
            if let Some(said) = limit(full.free_bytes) {
                return Some(said);
            }
            let free = full.free_bytes.map(printable_size);
            let free = free.map_or_else(|| "no room".to_owned(), |free| format!("{free} free"));
            let mount_point = printable(&full.mount_point);
            return Some(format!("; {NAMED_PLACE}{mount_point} has {free}"));
        }
        if !place.is_readable {
            return Some(format!("; the state directory {path} {NOT_READABLE}"));
        }
        if !place.is_writable {
            return Some(format!("; the state directory {path} {NOT_WRITABLE}"));
        }
        if let Some(said) = limit(place.free_bytes) {
            return Some(said);
        }
        match (self.kind, place.free_bytes) {
            (ErrorKind::NoSpace, Some(free)) if !place.has_room_to_clean => Some(format!(
                "; the file system of the state directory {path} has {} free, and \"stillframe gc\" itself needs up \
                 to a megabyte: remove something else there first, or set STILLFRAME_HOME to a directory with more",
                printable_size(free)
            )),
            (ErrorKind::NoSpace, Some(free)) => Some(format!(
                "; the file system of the state directory {path} has {} free",
                printable_size(free)
            )),
            _ if self.message.starts_with("the state ") && !self.message.contains(&path) => {
                Some(format!("; the state directory is {path}"))
            }
            _ => None,
        }
    }

    /// What a caller can do about it.
    pub(crate) fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What is wrong, with its sources.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The exit code; `is_run`: of `stillframe run` and `stillframe resume`.
    pub(crate) fn exit_code(is_run: bool) -> u8 {
        if is_run { EXIT_RUN_FAILED } else { EXIT_FAILED }
    }

    /// The exit code of this one: as [`Failure::exit_code`], unless a signal asked for it.
    pub(crate) fn own_exit_code(&self, is_run: bool) -> u8 {
        match self.signal {
            Some(number) => exit_code_of(number),
            None if self.is_usage => EXIT_USAGE,
            None => self.command_code.unwrap_or_else(|| Self::exit_code(is_run)),
        }
    }

    /// `{"error": {"kind", "message", "touched", "retryable", "run_id"}}`; and `run`, where there
    /// is an outcome of one.
    pub(crate) fn document(&self) -> String {
        let document = ErrorAndRun {
            error: ErrorDocument {
                kind: self.kind.as_str().to_owned(),
                message: one_line(&self.message),
                touched: self.touched,
                retryable: self.kind.is_retryable(),
                run_id: self.run_id.clone(),
                oldest: self.forgotten.as_ref().map(|forgotten| forgotten.oldest),
                oldest_sequence: self.forgotten.as_ref().and_then(|of| of.oldest_sequence),
            },
            run: self.run.as_deref(),
        };
        serde_json::to_string(&document).expect("a document is plain data")
    }

    /// One line for people: what, and what to do.
    pub(crate) fn line(&self) -> String {
        let message = one_line(&self.message);
        let advice = match self.is_only_read && message.ends_with(NOT_WRITABLE) {
            true => Some(ONLY_READ),
            false => advice(self.kind, &message),
        };
        match advice {
            Some(advice) => format!("{message}; {advice}"),
            None => message,
        }
    }
}

impl From<stillframe::Error> for Failure {
    fn from(error: stillframe::Error) -> Self {
        Self {
            kind: error.kind(),
            message: records::Failure::from(&error).message,
            touched: error.touched(),
            run_id: error.run_id().cloned(),
            forgotten: error.wrapped().cloned().map(Box::new),
            run: error.outcome().map(|outcome| Box::new(outcome.document())),
            signal: None,
            is_usage: false,
            command_code: None,
            full: match error.kind() {
                ErrorKind::NoSpace => error.path().and_then(file_system_of),
                _ => None,
            },
            is_only_read: false,
        }
    }
}

/// Nothing in it can break the line, or do anything to a terminal.
fn one_line(message: &str) -> String {
    printable_bytes(message.as_bytes())
}

/// What to do about an error of this kind, unless the message says so itself.
fn advice(kind: ErrorKind, message: &str) -> Option<&'static str> {
    if message.contains("\"stillframe ") || message.contains("--") {
        return None;
    }
    match kind {
        ErrorKind::Storage | ErrorKind::NoSpace
            if message.ends_with(NOT_WRITABLE) || message.ends_with(NOT_READABLE) =>
        {
            Some("set STILLFRAME_HOME to a directory that can be")
        }
        // A file that somebody named.
        ErrorKind::NotFound if message.ends_with("nothing was run") => None,
        ErrorKind::NotFound if message.contains("snapshot") => {
            Some("\"stillframe list\" shows the snapshots of a workspace")
        }
        ErrorKind::NotFound if message.contains("run") => {
            Some("\"stillframe runs\" shows the runs in a workspace")
        }
        ErrorKind::NotFound if message.contains("artifact") => {
            Some("\"stillframe artifact list\" shows them")
        }
        ErrorKind::Conflict if message.contains("make a new plan") => {
            Some("\"stillframe restore SNAPSHOT --plan\" makes one and shows it")
        }
        ErrorKind::Unsupported if message.contains("retain") => {
            Some("--retain-content keeps the content of files")
        }
        ErrorKind::Busy => Some("try again when that is done"),
        ErrorKind::NoSpace if message.contains(NAMED_PLACE) => Some("free some space there"),
        ErrorKind::NoSpace if message.contains(FILE_SIZE_LIMIT) => {
            Some("raise that limit (ulimit -f)")
        }
        ErrorKind::NoSpace => Some(
            "free some space there, for example with \"stillframe gc\", or set STILLFRAME_HOME to a \
             directory with more",
        ),
        ErrorKind::HostileRepository if message.contains("nothing was captured") => {
            Some("put that right, or take the files alone with --strategy hash")
        }
        ErrorKind::Corrupt => Some("\"stillframe verify\" says what is damaged"),
        _ => None,
    }
}

/// The exit code of a command that ended because it was asked to by this signal.
pub(crate) fn exit_code_of(signal: u8) -> u8 {
    128 + signal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_has_kind_message_and_what_a_host_decides_by() {
        let failure = Failure::not_found("there is no snapshot \"x\ny\"");
        let document: serde_json::Value =
            serde_json::from_str(&failure.document()).expect("it is JSON");
        assert_eq!(
            document,
            serde_json::json!({"error": {
                "kind": "NotFound",
                "message": "there is no snapshot \"x\\ny\"",
                "touched": false,
                "retryable": false,
                "run_id": null,
            }})
        );
    }

    #[test]
    fn a_line_says_what_and_what_to_do_and_is_one_line() {
        let failure = Failure::new(ErrorKind::Busy, "the workspace /w\u{1b}[2J\n is in use");
        assert_eq!(
            failure.line(),
            "the workspace /w\\u{1b}[2J\\n is in use; try again when that is done"
        );
        let advised = "snapshot snap_1 is damaged, run \"stillframe verify\"";
        let failure = Failure::new(ErrorKind::Corrupt, advised);
        assert_eq!(failure.line(), advised, "not said twice");
    }

    #[test]
    fn a_state_directory_in_the_way_is_named_with_what_to_do() {
        let place = |is_writable| {
            move || StatePlace {
                path: PathBuf::from("/s t/stillframe home"),
                is_there: false,
                is_writable,
                is_readable: true,
                has_room_to_clean: true,
                mount_point: None,
                free_bytes: Some(2048),
                max_file_bytes: None,
            }
        };
        let storage = |kind| Failure::new(kind, "cannot write x");
        let there = || StatePlace {
            is_there: true,
            ..place(false)()
        };
        assert_eq!(
            storage(ErrorKind::Storage).with_place(there).line(),
            "cannot write x; the state directory /s t/stillframe home cannot be written; what only tells what is \
             there works; for all else set STILLFRAME_HOME to a copy of the whole directory that can be written, or \
             to another, which has none of its snapshots"
        );
        assert_eq!(
            storage(ErrorKind::Storage).with_place(place(false)).line(),
            "cannot write x; the state directory /s t/stillframe home cannot be written; set \
             STILLFRAME_HOME to a directory that can be"
        );
        assert_eq!(
            storage(ErrorKind::NoSpace).with_place(place(true)).line(),
            "cannot write x; the file system of the state directory /s t/stillframe home has 2.0 KiB \
             free; free some space there, for example with \"stillframe gc\", or set STILLFRAME_HOME \
             to a directory with more"
        );
        let failed = Failure::new(ErrorKind::Storage, "the state database failed");
        assert_eq!(
            failed.with_place(place(true)).line(),
            "the state database failed; the state directory is /s t/stillframe home"
        );
        let other = |kind, is_writable| storage(kind).with_place(place(is_writable)).message;
        assert_eq!(other(ErrorKind::Storage, true), "cannot write x");
        assert_eq!(other(ErrorKind::Busy, false), "cannot write x");
    }

    #[test]
    fn what_stood_in_the_way_is_named_and_nothing_else() {
        let place = |max_file_bytes| {
            move || StatePlace {
                path: PathBuf::from("/state"),
                is_there: true,
                is_writable: true,
                is_readable: true,
                has_room_to_clean: true,
                mount_point: Some(PathBuf::from("/")),
                free_bytes: Some(2048),
                max_file_bytes,
            }
        };
        let full = || Failure::new(ErrorKind::NoSpace, "cannot write x");
        assert_eq!(
            full().with_place(place(Some(1024))).line(),
            "cannot write x; this process may make no file larger than 1.0 KiB (RLIMIT_FSIZE); \
             raise that limit (ulimit -f)"
        );
        let disk = full().with_place(place(Some(4096))).line();
        assert!(disk.contains("has 2.0 KiB free"), "{disk}");
        let elsewhere = Failure {
            full: file_system_of(Path::new("/proc")),
            ..full()
        };
        assert_eq!(
            elsewhere.with_place(place(None)).line(),
            "cannot write x; the file system at /proc has no room; free some space there"
        );
        let said =
            "the restore has to write 9 bytes to the file system at /w, which has 3 bytes free";
        let failure = Failure::new(ErrorKind::NoSpace, said);
        assert_eq!(
            failure.with_place(place(None)).line(),
            format!("{said}; free some space there")
        );
    }

    #[test]
    fn a_clean_up_is_no_advice_where_it_has_no_room_itself() {
        let place = || StatePlace {
            is_there: true,
            path: PathBuf::from("/state"),
            is_writable: true,
            is_readable: true,
            has_room_to_clean: false,
            mount_point: None,
            free_bytes: Some(0),
            max_file_bytes: None,
        };
        assert_eq!(
            Failure::new(ErrorKind::NoSpace, "cannot write x")
                .with_place(place)
                .line(),
            "cannot write x; the file system of the state directory /state has 0 bytes free, and \
             \"stillframe gc\" itself needs up to a megabyte: remove something else there first, or set \
             STILLFRAME_HOME to a directory with more"
        );
    }

    #[test]
    fn only_a_run_has_an_exit_code_of_its_own_for_a_failed_engine() {
        assert_eq!(
            (Failure::exit_code(false), Failure::exit_code(true)),
            (1, 125)
        );
    }
}
