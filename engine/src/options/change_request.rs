//! What somebody wants to have changed in what a run has handed in.

use stillframe_backends::ErrorKind;

use crate::error::Error;
use crate::options::approval::check_reviewer;

/// The longest comment, in characters.
const MAX_COMMENT_CHARS: usize = 8_000;

/// What somebody wants to have changed in what a run has handed in: see
/// [`Engine::request_changes`](crate::Engine::request_changes).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangeRequest {
    /// What, in 1 to 8 000 characters. Control characters but line ends and tabs are left out.
    pub comment: String,
    /// Whose decision it is, in 1 to 200 characters. Default: nobody says.
    pub reviewer: Option<String>,
}

impl ChangeRequest {
    /// A request for this.
    pub fn new(comment: impl Into<String>) -> Self {
        Self {
            comment: comment.into(),
            reviewer: None,
        }
    }

    stillframe_model::setters! {
        reviewer: String,
    }

    /// The comment without control characters, if that can be one.
    pub(crate) fn cleaned(&self) -> Result<String, Error> {
        check_reviewer(self.reviewer.as_deref())?;
        let count = self.comment.chars().count();
        let is_kept = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
        let cleaned: String = self.comment.chars().filter(is_kept).collect();
        match count <= MAX_COMMENT_CHARS && !cleaned.trim().is_empty() {
            true => Ok(cleaned),
            false => Err(Error::invalid_options(format!(
                "a comment has 1 to {MAX_COMMENT_CHARS} characters, and this one has {count}; nothing was decided"
            ))),
        }
    }
}

/// Refuses one more revision than a run may have.
pub(crate) fn check_count(before: usize) -> Result<(), Error> {
    match before < MAX_REVISIONS {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::LimitExceeded,
            format!(
                "the run has had {before} revisions, which is the most; nothing was decided: approve or decline it"
            ),
        )),
    }
}

/// How often changes may be asked for of one run.
const MAX_REVISIONS: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_has_text_within_its_limit_and_no_control_characters() {
        let cleaned = |comment: &str| ChangeRequest::new(comment).cleaned();
        assert_eq!(cleaned("a\u{1b}[31mb\r\n\tc\0").unwrap(), "a[31mb\n\tc");
        assert_eq!(cleaned(&"é".repeat(8_000)).unwrap().chars().count(), 8_000);
        for wrong in ["", " \n", "\u{7}", &"é".repeat(8_001)] {
            assert_eq!(
                cleaned(wrong).unwrap_err().kind(),
                ErrorKind::InvalidOptions
            );
        }
        let nobody = ChangeRequest::new("a").reviewer(String::new());
        assert_eq!(
            nobody.cleaned().unwrap_err().kind(),
            ErrorKind::InvalidOptions
        );
        assert!(check_count(9).is_ok());
        assert_eq!(
            check_count(10).unwrap_err().kind(),
            ErrorKind::LimitExceeded
        );
    }
}
