//! The message of a commit with its trailers, and its author, as `git commit` and `git
//! interpret-trailers` make them.

use crate::commit::{CommitError, CommitRequest, Signature};
use crate::git::repository::Settings;

/// What git writes by itself at the end of a message.
const GITS_OWN: [&str; 2] = ["Signed-off-by: ", "(cherry picked from commit "];

impl CommitRequest {
    /// The whole message that is asked for, as
    /// [`CommitIntent::message`](crate::CommitIntent::message) has it: without superfluous blanks,
    /// with its trailers, and with a line end.
    ///
    /// # Errors
    ///
    /// [`CommitError::InvalidOptions`]: there is no message, or it or a trailer is not text that a
    /// commit can have.
    pub fn whole_message(&self) -> Result<String, CommitError> {
        message_of(self)
    }
}

/// The whole message that `request` asks for: without superfluous blanks, and with a line end.
pub(super) fn message_of(request: &CommitRequest) -> Result<String, CommitError> {
    let invalid = |what: &str| CommitError::InvalidOptions(what.to_owned());
    if request.message.contains('\0') {
        return Err(invalid("the message holds a NUL byte"));
    }
    let mut message = cleaned(&request.message);
    if message.is_empty() {
        return Err(invalid("the message is empty"));
    }
    let mut lines = String::new();
    for (key, value) in &request.trailers {
        let is_key = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if key.is_empty() || !key.chars().all(is_key) {
            return Err(CommitError::InvalidOptions(format!(
                "{key:?} is no key of a trailer: it has letters, digits and \"-\""
            )));
        }
        let value = value.trim();
        if value.is_empty() || value.contains(['\n', '\r', '\0']) {
            return Err(CommitError::InvalidOptions(format!(
                "the value of the trailer {key} is not one line of text"
            )));
        }
        lines.push_str(&format!("{key}: {value}\n"));
    }
    if !lines.is_empty() {
        if trailer_block(&message).is_none() {
            message.push('\n');
        }
        message.push_str(&lines);
    }
    Ok(message)
}

/// The lines of the block of trailers that ends a message; none if there is no such block.
pub(in crate::git) fn trailers(message: &str) -> Vec<&str> {
    trailer_block(message).map_or_else(Vec::new, |block| {
        block.lines().filter(|line| !line.is_empty()).collect()
    })
}

/// What a reflog tells of a commit.
pub(super) fn subject(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    first.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Blanks at the end of lines go, and so do empty lines around the text and all but one of those in
/// it.
fn cleaned(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len() + 1);
    let mut is_after_gap = false;
    for line in text.split('\n') {
        let line = line.trim_end_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b');
        if line.is_empty() {
            is_after_gap = !cleaned.is_empty();
            continue;
        }
        if std::mem::take(&mut is_after_gap) {
            cleaned.push('\n');
        }
        cleaned.push_str(line);
        cleaned.push('\n');
    }
    cleaned
}

/// The last paragraph of a message, if it is a block of trailers. The first one never is.
///
/// As git has it: all lines are trailers or go on with one; or git wrote one of them, and a quarter
/// of the lines are trailers.
fn trailer_block(message: &str) -> Option<&str> {
    let body = message.trim_end_matches('\n');
    let (_, block) = body.rsplit_once("\n\n")?;
    let (mut trailers, mut others) = (0_usize, 0_usize);
    let mut has_gits_own = false;
    // Lines that go on with something are of its kind.
    let mut is_in_trailer = false;
    for line in block.lines() {
        if line.starts_with([' ', '\t']) {
            if !is_in_trailer {
                others += 1;
            }
            continue;
        }
        let is_gits_own = GITS_OWN.iter().any(|own| line.starts_with(own));
        has_gits_own |= is_gits_own;
        is_in_trailer = is_gits_own || is_trailer(line);
        match is_in_trailer {
            true => trailers += 1,
            false => others += 1,
        }
    }
    let is_block = match has_gits_own {
        true => trailers * 3 >= others,
        false => trailers > 0 && others == 0,
    };
    is_block.then_some(block)
}

/// `Key: value`; blanks may stand before the colon.
fn is_trailer(line: &str) -> bool {
    line.split_once(':').is_some_and(|(key, _)| {
        let key = key.trim_end_matches([' ', '\t']);
        !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    })
}

/// Who signs the commit: whom the request names, or the user that git's configuration names.
pub(super) fn signature_of(
    request: &CommitRequest,
    settings: &Settings,
) -> Result<Signature, CommitError> {
    let signature = match &request.author {
        Some(author) => author.clone(),
        None => {
            let value = |key| settings.text("user", key).filter(|v| !v.trim().is_empty());
            let (Some(name), Some(email)) = (value("name"), value("email")) else {
                // Not asked for wrongly: it can be made once that is set.
                return Err(CommitError::Unsupported(
                    "nobody is named who commits: set user.name and user.email with \"git config\", or \
                     give an author"
                        .to_owned(),
                ));
            };
            Signature::new(name, email)
        }
    };
    check_signature(&signature)?;
    Ok(Signature {
        name: stripped(&signature.name).to_owned(),
        email: stripped(&signature.email).to_owned(),
    })
}

/// The user that git's configuration names, or else Stillframe itself.
pub(in crate::git) fn signature_of_user(settings: &Settings) -> Signature {
    let value = |key| settings.text("user", key).filter(|v| !v.trim().is_empty());
    let of_user = value("name").zip(value("email"));
    let of_user = of_user.map(|(name, email)| Signature::new(name.trim(), email.trim()));
    // One that no commit can hold is as good as none.
    let of_user = of_user.filter(|signature| check_signature(signature).is_ok());
    of_user.unwrap_or_else(|| Signature::new("Stillframe", "stillframe@localhost"))
}

/// Whether a commit can hold it.
pub(in crate::git) fn check_signature(signature: &Signature) -> Result<(), CommitError> {
    for (what, text) in [("name", &signature.name), ("address", &signature.email)] {
        if text.contains(['<', '>', '\n', '\r', '\0']) {
            return Err(CommitError::InvalidOptions(format!(
                "the author's {what} {text:?} holds what none may: \"<\", \">\", a line end or NUL"
            )));
        }
        if stripped(text).is_empty() {
            return Err(CommitError::InvalidOptions(format!(
                "the author's {what} is empty"
            )));
        }
    }
    Ok(())
}

/// Without what git takes off the ends of names and addresses.
fn stripped(text: &str) -> &str {
    text.trim_matches(|c: char| c <= ' ' || ".,:;<>\"\\'".contains(c))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use jiff::Timestamp;

    use super::*;
    use crate::git::test_repository::TestRepository;

    const MESSAGES: [&str; 15] = [
        "subject",
        "subject\n",
        "\n\n  subject  \n\n\n\nbody \t\n\n",
        "subject\n\nbody\nmore",
        "subject\n\nReviewed-by: somebody",
        "Fixes: this is the subject",
        "Fixes: this is the subject\n\nKey: value",
        "subject\n\nbody\nKey: value",
        "subject\n\nKey: value\n  goes on\nOther-key: value",
        "subject\n\nKey: value\nno trailer",
        "subject\n\nSigned-off-by: A <a@b>\nno trailer\nno trailer",
        "subject\n\nSigned-off-by: A <a@b>\nno\nno\nno\nno\nno",
        "subject\n\n(cherry picked from commit 0123456789012345678901234567890123456789)",
        "subject\n\nnot a key: value",
        "subject\n\nKey: value\n\ntext after it",
    ];

    fn request(message: &str) -> CommitRequest {
        CommitRequest::new(message, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn trailers_stand_where_git_puts_them() {
        let git = TestRepository::new();
        for message in MESSAGES {
            let ours = message_of(
                &request(message)
                    .trailer("Run-Id", "run_7")
                    .trailer("Step", "a: b"),
            )
            .unwrap();
            fs::write(git.beside("message"), message).unwrap();
            let cleaned = git.run(
                &git.path,
                &["commit", "-q", "--allow-empty", "-F", "../message"],
            );
            assert!(cleaned.status.success(), "{message:?}");
            let theirs = git.run(&git.path, &["log", "-1", "--format=%B"]).stdout;
            let plain = message_of(&request(message)).unwrap();
            assert_eq!(format!("{plain}\n"), String::from_utf8_lossy(&theirs));
            fs::write(git.beside("message"), &plain).unwrap();
            let args = [
                "interpret-trailers",
                "--no-divider",
                "--if-exists=add",
                "--trailer=Run-Id: run_7",
                "--trailer=Step: a: b",
                "../message",
            ];
            let theirs = git.run(&git.path, &args);
            assert_eq!(ours, String::from_utf8_lossy(&theirs.stdout), "{message:?}");
            assert!(trailers(&ours).ends_with(&["Run-Id: run_7", "Step: a: b"]));
        }
    }

    #[test]
    fn what_cannot_be_in_a_message_or_a_signature_is_refused() {
        let refused = |request: CommitRequest| {
            let error = message_of(&request).unwrap_err();
            assert!(matches!(error, CommitError::InvalidOptions(_)), "{error}");
        };
        for message in ["", " \n\t\n", "a\0b"] {
            refused(request(message));
        }
        for (key, value) in [
            ("", "v"),
            ("no key", "v"),
            ("Key:", "v"),
            ("K\n", "v"),
            ("Key", ""),
            ("Key", "two\nlines"),
        ] {
            refused(request("subject").trailer(key, value));
        }
        for (name, email) in [
            ("", "a@b"),
            ("A <b>", "a@b"),
            ("A\nB", "a@b"),
            ("A", "<a@b>"),
            ("A", " "),
            ("A", "a\0b"),
            ("...", "a@b"),
        ] {
            let error = check_signature(&Signature::new(name, email)).unwrap_err();
            assert!(matches!(error, CommitError::InvalidOptions(_)), "{error}");
        }
    }
}
