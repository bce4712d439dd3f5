//! The program through which a person reads a long answer at a terminal: `$PAGER`, else `less`.
//!
//! Only the user's environment chooses the pager, never a repository or a workspace.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::process::{Child, Command, Stdio};

use crate::failure::Failure;

/// How to start a pager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pager {
    program: OsString,
    args: Vec<OsString>,
    /// What its environment has beside this one's.
    env: Vec<(&'static str, &'static str)>,
}

/// The exit codes with which a shell says that it could not start what it was told to.
const NOT_STARTED: [i32; 2] = [126, 127];

impl Pager {
    /// The one that the environment asks for; `None`: answers go to the terminal as they are.
    ///
    /// A command line with anything in it that means something to a shell is the shell's. Where the
    /// terminal cannot move its cursor a pager is in the way.
    pub(crate) fn of(variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        if !can_be_drawn_on(&variable) {
            return None;
        }
        let line = variable("PAGER").unwrap_or_else(|| "less".into());
        let means_something = |byte: &u8| b"|&;<>()$`\\\"'*?[#~=%{}!\n".contains(byte);
        let words: Vec<OsString> = match line.as_bytes().iter().any(means_something) {
            true => ["/bin/sh".into(), "-c".into(), line].into(),
            false => line
                .as_bytes()
                .split(u8::is_ascii_whitespace)
                .filter(|word| !word.is_empty())
                .map(|word| OsString::from_vec(word.to_vec()))
                .collect(),
        };
        let (program, args) = words.split_first()?;
        if program == "cat" && args.is_empty() {
            return None;
        }
        Some(Self {
            program: program.clone(),
            args: args.to_vec(),
            // As git has it: what fits on the screen is left there, colours are shown, and lines
            // not cut.
            env: match variable("LESS") {
                None => vec![("LESS", "FRX")],
                Some(_) => Vec::new(),
            },
        })
    }

    /// Lets `write` write into the pager, and waits until it has been read. `false`: there is no
    /// such pager, and nothing was shown. Leaving the pager early is not an error.
    pub(crate) fn show(
        &self,
        write: impl FnOnce(&mut dyn Write) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let Ok(mut child) = self.start() else {
            return Ok(false);
        };
        let mut into = child.stdin.take().expect("it was asked for");
        let written = write(&mut into);
        // It reads until there is nobody who could write more.
        drop(into);
        let code = child.wait().ok().and_then(|status| status.code());
        written?;
        Ok(!code.is_some_and(|code| NOT_STARTED.contains(&code)))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "what the user's own environment names, at the user's own terminal"
    )]
    fn start(&self) -> io::Result<Child> {
        Command::new(&self.program)
            .args(&self.args)
            .envs(self.env.iter().copied())
            .stdin(Stdio::piped())
            .spawn()
    }
}

/// Whether the terminal is one that knows more than to print one line after the other.
pub(crate) fn can_be_drawn_on(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let terminal = variable("TERM").unwrap_or_default();
    !terminal.is_empty() && terminal != OsStr::new("dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pager: Option<&str>, less: Option<&str>, term: &str) -> Option<Pager> {
        Pager::of(|name| match name {
            "PAGER" => pager.map(Into::into),
            "LESS" => less.map(Into::into),
            "TERM" => Some(term.into()),
            _ => None,
        })
    }

    fn words(pager: &Pager) -> Vec<&str> {
        let all = [&pager.program].into_iter().chain(&pager.args);
        all.map(|word| word.to_str().expect("it is text")).collect()
    }

    #[test]
    fn the_environment_says_which() {
        for (pager, expected) in [
            (None, Some(&["less"][..])),
            (Some("more"), Some(&["more"])),
            (Some(" less  -R "), Some(&["less", "-R"])),
            (Some("a | b"), Some(&["/bin/sh", "-c", "a | b"])),
            (Some("a '$b'"), Some(&["/bin/sh", "-c", "a '$b'"])),
            (Some("cat"), None),
            (Some(""), None),
            (Some("  "), None),
        ] {
            let found = of(pager, None, "xterm");
            assert_eq!(found.as_ref().map(words).as_deref(), expected, "{pager:?}");
        }
        for term in ["", "dumb"] {
            assert_eq!(of(Some("less"), None, term), None);
        }
    }

    #[test]
    fn less_gets_what_git_gives_it_unless_the_user_has_said_how() {
        let env = |less| of(None, less, "xterm").expect("there is one").env;
        assert_eq!(env(None), [("LESS", "FRX")]);
        assert_eq!(env(Some("")), []);
        assert_eq!(env(Some("-S")), []);
    }

    #[test]
    fn a_pager_that_is_missing_showed_nothing_and_one_that_leaves_early_is_no_failure() {
        let is_shown = |pager: &str| {
            let pager = of(Some(pager), None, "xterm").expect("there is one");
            let shown = pager.show(|out| {
                // Far more than a pipe holds.
                let _ = out.write_all(&vec![b'x'; 1 << 20]);
                Ok(())
            });
            shown.expect("it is no failure")
        };
        assert!(!is_shown("/not/there"));
        assert!(!is_shown("/not/there | /not/there"));
        assert!(is_shown("true"));
        assert!(is_shown("false"));
    }
}
