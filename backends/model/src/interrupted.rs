//! Why work was stopped before its end.

use std::io;
use std::time::Duration;

use crate::error_kind::ErrorKind;

/// The work was stopped on request, or its time was up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Interrupted {
    /// Somebody asked for it.
    #[error("cancelled")]
    Cancelled,
    /// The deadline passed.
    #[error("not done within {}", humane(*after))]
    TimedOut {
        /// How long the work was allowed to take.
        after: Duration,
    },
}

fn humane(duration: Duration) -> String {
    format!("{} ms", duration.as_millis())
}

impl Interrupted {
    /// The kind at the API.
    pub fn kind(self) -> ErrorKind {
        match self {
            Self::Cancelled => ErrorKind::Cancelled,
            Self::TimedOut { .. } => ErrorKind::Timeout,
        }
    }

    /// Why an input or output was not tried, if that is why.
    pub fn in_io(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

/// For where nothing but an I/O error can be told: `Interrupted::in_io` finds it again.
impl From<Interrupted> for io::Error {
    fn from(interrupted: Interrupted) -> Self {
        Self::other(interrupted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_that_was_not_tried_says_why() {
        let error = io::Error::from(Interrupted::Cancelled);
        assert_eq!(Interrupted::in_io(&error), Some(Interrupted::Cancelled));
        assert_eq!(ErrorKind::of_storage(&error), ErrorKind::Cancelled);
        assert_eq!(Interrupted::in_io(&io::Error::other("cancelled")), None);
    }
}
