//! The port by which a host tells people what became of a task's work.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::records::notice::NoticeRecord;

/// Tells people outside: writes a comment, calls a webhook, sends a mail.
///
/// One notice of an engine is sent at a time, and one engine at a time sends a notice. Before each
/// try the target is asked whether it shows the notice. So people see a notice once where the
/// target can be read back, also if this process is killed in between; elsewhere at least once,
/// with the token as a key by which the target may know it. Dropping a future ends what it does:
/// that happens after [`EngineOptions::notice_timeout`](crate::EngineOptions::notice_timeout), and
/// when the engine stops.
///
/// ```
/// use stillframe::records::NoticeRecord;
/// use stillframe::tasks::{NoticeError, NoticeSink, Shown};
///
/// struct OfForge;
///
/// impl NoticeSink for OfForge {
///     async fn send(&self, notice: &NoticeRecord) -> Result<(), NoticeError> {
///         # let comment = |_: &str, _: &str| 201;
///         match comment(&notice.task, &notice.text) {
///             201 => Ok(()),
///             404 => Err(NoticeError::Never("there is no such issue".to_owned())),
///             status => Err(NoticeError::Later(format!("the forge answered {status}"))),
///         }
///     }
///
///     async fn shows(&self, token: &str) -> Result<Shown, NoticeError> {
///         # let comments: Vec<String> = Vec::new();
///         Ok(Shown::of(comments.iter().any(|text| text.contains(token))))
///     }
/// }
/// ```
pub trait NoticeSink: Send + Sync + 'static {
    /// Sends a notice. `Ok`: people see it from now on.
    fn send(&self, notice: &NoticeRecord) -> impl Future<Output = Result<(), NoticeError>> + Send;

    /// Whether the target shows the notice with this token, also if a process sent it that was
    /// killed meanwhile. `Err`: the notice is not sent this time.
    fn shows(&self, token: &str) -> impl Future<Output = Result<Shown, NoticeError>> + Send;
}

/// Whether a target shows a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shown {
    /// It does: nothing is sent.
    Yes,
    /// It does not.
    No,
    /// It cannot be read back: the notice is sent.
    Unknown,
}

impl Shown {
    /// Of a target that was read.
    pub fn of(is_there: bool) -> Self {
        match is_there {
            true => Self::Yes,
            false => Self::No,
        }
    }
}

/// Why a notice was not sent: one line, from which secret values are taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoticeError {
    /// Another try may succeed. There are three, 30 and 60 seconds apart.
    #[error("{0}")]
    Later(String),
    /// No other try would: the notice is given up.
    #[error("{0}")]
    Never(String),
}

/// A sink as a trait object.
pub(crate) type BoxSink = Arc<dyn AnySink>;

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, NoticeError>> + Send>>;

/// [`NoticeSink`] in a form that can be a trait object.
pub(crate) trait AnySink: Send + Sync + 'static {
    /// As [`NoticeSink::send`].
    fn send(self: Arc<Self>, notice: NoticeRecord) -> Answer<()>;

    /// As [`NoticeSink::shows`].
    fn shows(self: Arc<Self>, token: String) -> Answer<Shown>;
}

impl<S: NoticeSink> AnySink for S {
    fn send(self: Arc<Self>, notice: NoticeRecord) -> Answer<()> {
        Box::pin(async move { NoticeSink::send(&*self, &notice).await })
    }

    fn shows(self: Arc<Self>, token: String) -> Answer<Shown> {
        Box::pin(async move { NoticeSink::shows(&*self, &token).await })
    }
}
