//! The one error of the API: a kind that a host can act on, and the chain below it.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use stillframe_backends::{
    DiffError, ErrorKind, LockError, ReadError, RestoreError, SnapshotError, StoreError,
    WorkspaceError, printable,
};

use crate::events::event::InvalidEventType;
use crate::events::floor::PositionsForgotten;
use crate::failure::Failure;
use crate::id::RunId;
use crate::records::outcome::RunOutcome;

/// Why the engine failed to do something.
///
/// The message is one line, lower case, and says what was and was not touched; the chain of
/// sources says why.
#[derive(Debug)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    touched: bool,
    run_id: Option<RunId>,
    outcome: Option<RunOutcome>,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// An [`Error`] as a JSON document: `{kind, message, touched, retryable, run_id}`, and what its
/// kind adds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorDocument {
    /// The name of the [`ErrorKind`].
    pub kind: String,
    /// The message with its sources, in one line.
    pub message: String,
    /// Whether the workspace may have been changed.
    pub touched: bool,
    /// Whether the same call may succeed later: [`ErrorKind::is_retryable`].
    pub retryable: bool,
    /// The run in which it happened; null where there is none.
    pub run_id: Option<RunId>,
    /// Of `PositionsForgotten`: [`PositionsForgotten::oldest`]. Otherwise left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest: Option<u64>,
    /// Of `PositionsForgotten`: [`PositionsForgotten::oldest_sequence`]. Otherwise left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_sequence: Option<u64>,
}

impl Error {
    /// Wraps `source`; nothing was touched.
    pub(crate) fn new(
        kind: ErrorKind,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            inner: Box::new(Inner {
                kind,
                touched: false,
                run_id: None,
                outcome: None,
                source: source.into(),
            }),
        }
    }

    /// For adapters that refuse their options before the run begins.
    pub fn invalid_options(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidOptions, message.into())
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message.into())
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message.into())
    }

    /// Says more around what it wraps.
    pub(crate) fn map_source<E: std::error::Error + Send + Sync + 'static>(
        mut self,
        more: impl FnOnce(Box<dyn std::error::Error + Send + Sync>) -> E,
    ) -> Self {
        let inner = *self.inner;
        let source = Box::new(more(inner.source));
        self.inner = Box::new(Inner { source, ..inner });
        self
    }

    /// Notes that the workspace may have been changed.
    pub(crate) fn touched_if(mut self, touched: bool) -> Self {
        self.inner.touched |= touched;
        self
    }

    /// Notes the run in which it happened.
    pub(crate) fn in_run(mut self, run_id: RunId) -> Self {
        self.inner.run_id = Some(run_id);
        self
    }

    /// Keeps what became of the run beside the error, so that neither hides the other.
    pub(crate) fn with_outcome(mut self, outcome: RunOutcome) -> Self {
        self.inner.run_id = Some(outcome.run_id.clone());
        self.inner.outcome = Some(outcome);
        self
    }

    /// The error of the crates below that it wraps, if that is of this type: what it tells apart
    /// beyond its kind.
    pub fn wrapped<E: std::error::Error + 'static>(&self) -> Option<&E> {
        self.inner.source.downcast_ref()
    }

    /// What a host can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Whether the same call, made again later, may succeed: [`ErrorKind::is_retryable`].
    pub fn is_retryable(&self) -> bool {
        self.kind().is_retryable()
    }

    /// Whether the workspace may have been changed. `false`: nothing was touched.
    pub fn touched(&self) -> bool {
        self.inner.touched
    }

    /// What a system call failed at, if that is the reason.
    pub fn path(&self) -> Option<&Path> {
        let first: &(dyn std::error::Error + 'static) = &*self.inner.source;
        let mut reasons = std::iter::successors(Some(first), |error| error.source());
        reasons.find_map(|error| {
            let failed = error.downcast_ref::<stillframe_backends::PathError>();
            failed.map(|error| &*error.path)
        })
    }

    /// The run that was refused or could not be recorded, if one was accepted at all.
    pub fn run_id(&self) -> Option<&RunId> {
        self.inner.run_id.as_ref()
    }

    /// The outcome of a run whose end could not be recorded. Its work was done.
    pub fn outcome(&self) -> Option<&RunOutcome> {
        self.inner.outcome.as_ref()
    }

    /// The message and its sources, in one line.
    pub fn chain(&self) -> String {
        chain(self)
    }

    /// The JSON document of this error.
    pub fn document(&self) -> ErrorDocument {
        ErrorDocument {
            kind: self.kind().as_str().to_owned(),
            message: self.chain(),
            touched: self.touched(),
            retryable: self.is_retryable(),
            run_id: self.run_id().cloned(),
            oldest: self.forgotten().map(|forgotten| forgotten.oldest),
            oldest_sequence: self
                .forgotten()
                .and_then(|forgotten| forgotten.oldest_sequence),
        }
    }

    fn forgotten(&self) -> Option<&PositionsForgotten> {
        self.wrapped()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.source.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // Display already prints the wrapped error itself.
        self.inner.source.source()
    }
}

pub(crate) use stillframe_model::error::chain;

macro_rules! from_leaf {
    ($($leaf:ty),+ $(,)?) => {$(
        impl From<$leaf> for Error {
            fn from(source: $leaf) -> Self {
                Self::new(source.kind(), source)
            }
        }
    )+};
}

from_leaf!(
    SnapshotError,
    StoreError,
    DiffError,
    ReadError,
    LockError,
    WorkspaceError,
    stillframe_backends::PlaceError,
    stillframe_artifact_store::InvalidKey,
    stillframe_artifact_store::OpenError,
    stillframe_artifact_store::PutError,
    stillframe_artifact_store::GetError,
    stillframe_artifact_store::DeleteError,
    stillframe_artifact_store::StoreError,
);

impl From<stillframe_backends::PathError> for Error {
    fn from(source: stillframe_backends::PathError) -> Self {
        Self::new(source.storage_kind(), source)
    }
}

impl From<RestoreError> for Error {
    fn from(source: RestoreError) -> Self {
        let touched = source.touched();
        Self::new(source.kind(), source).touched_if(touched)
    }
}

impl From<InvalidEventType> for Error {
    fn from(source: InvalidEventType) -> Self {
        Self::new(ErrorKind::InvalidOptions, source)
    }
}

impl From<crate::id::InvalidId> for Error {
    fn from(source: crate::id::InvalidId) -> Self {
        Self::new(ErrorKind::InvalidOptions, source)
    }
}

impl From<&crate::error::Error> for Failure {
    fn from(error: &crate::error::Error) -> Self {
        let message = match way_on(error) {
            Some(way) => format!("{}; {way}", error.chain()),
            None => error.chain(),
        };
        Self::new(error.kind().as_str(), message)
    }
}

/// The commands that are a way on, of what tells more than its kind. Whoever reads a failure that
/// is on record has no error to ask.
fn way_on(error: &Error) -> Option<String> {
    if let Some(WorkspaceError::Gone { path }) = error.wrapped() {
        let path = printable(path);
        return Some(format!(
            "\"stillframe list --workspace {path}\" names them, and \"stillframe restore SNAPSHOT \
             --workspace {path}\" makes it again"
        ));
    }
    let way = match error.wrapped()? {
        RestoreError::NoPlace(_) => {
            "\"stillframe restore SNAPSHOT --to DIR\" puts a copy elsewhere".to_owned()
        }
        RestoreError::NothingLeft { before, after, .. } => format!(
            "\"stillframe restore {before}\" makes it again as it was before the operation, \
             \"stillframe restore {after}\" as it was after"
        ),
        RestoreError::TargetCorrupt { .. } => {
            "\"stillframe verify\" says what is damaged".to_owned()
        }
        _ => return None,
    };
    Some(way)
}

/// The error of a call on an engine that is gone.
pub(crate) fn stopped() -> Error {
    Error::unavailable("the engine has stopped")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_document_says_whether_to_try_again_and_in_which_run_it_was() {
        let busy = Error::new(ErrorKind::Busy, "it is in use").in_run("run_1".parse().unwrap());
        let none = Error::not_found("there is none");
        let texts = [busy, none].map(|e| serde_json::to_string(&e.document()).unwrap());
        assert_eq!(
            texts,
            [
                r#"{"kind":"Busy","message":"it is in use","touched":false,"retryable":true,"run_id":"run_1"}"#,
                r#"{"kind":"NotFound","message":"there is none","touched":false,"retryable":false,"run_id":null}"#,
            ]
        );
    }

    #[test]
    fn a_failure_on_record_names_the_way_on() {
        let id = |digit: &str| {
            let id = format!("snap_{}", digit.repeat(32));
            id.parse().expect("an id")
        };
        let corrupt = RestoreError::TargetCorrupt {
            snapshot: id("1"),
            detail: "it lacks a file".to_owned(),
        };
        let nothing_left = RestoreError::NothingLeft {
            workspace: PathBuf::from("/w"),
            before: id("1"),
            after: id("2"),
        };
        let gone = WorkspaceError::Gone {
            path: PathBuf::from("/w"),
        };
        let restore = |digit: &str| format!("\"stillframe restore snap_{}\"", digit.repeat(32));
        for (error, ways) in [
            (corrupt.into(), vec!["\"stillframe verify\"".to_owned()]),
            (nothing_left.into(), vec![restore("1"), restore("2")]),
            (
                gone.into(),
                vec!["\"stillframe list --workspace /w\"".to_owned()],
            ),
            (
                RestoreError::NoPlace("no".to_owned()).into(),
                vec!["\"stillframe restore SNAPSHOT --to DIR\"".to_owned()],
            ),
            (Error::not_found("none"), Vec::new()),
        ] {
            let error: Error = error;
            let failure = Failure::from(&error);
            assert_eq!(failure.kind.as_deref(), Some(error.kind().as_str()));
            for way in &ways {
                assert!(failure.message.contains(way), "{}", failure.message);
            }
            assert_eq!(failure.message == error.chain(), ways.is_empty());
        }
    }
}
