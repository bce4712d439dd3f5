//! Colours in the output, if they are enabled.

use std::ffi::OsString;
use std::io::{self, Write};

use crate::pager;

/// When there are colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ColorChoice {
    /// At a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Wherever the answer goes.
    Always,
    /// Nowhere.
    Never,
}

/// Whether an answer is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Paint {
    is_wanted: bool,
}

/// The colours, which are git's for the same things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    /// What came.
    Green,
    /// What went.
    Red,
    /// Where it is.
    Cyan,
    /// What it is about.
    Bold,
}

impl Colour {
    /// What begins it (ECMA-48, "select graphic rendition").
    fn begin(self) -> &'static str {
        match self {
            Self::Green => "\x1b[32m",
            Self::Red => "\x1b[31m",
            Self::Cyan => "\x1b[36m",
            Self::Bold => "\x1b[1m",
        }
    }
}

const END: &str = "\x1b[m";

impl Paint {
    /// By what was asked for, and what the environment says (<https://no-color.org>).
    pub(crate) fn new(
        choice: ColorChoice,
        is_terminal: bool,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Self {
        let is_refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_wanted = match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => is_terminal && !is_refused && pager::can_be_drawn_on(variable),
        };
        Self { is_wanted }
    }

    /// `text` in this colour. The empty text stays empty.
    pub(crate) fn text(self, colour: Colour, text: &str) -> String {
        let [begin, end] = self.around(colour, text.as_bytes());
        format!("{begin}{text}{end}")
    }

    /// Writes `text` in this colour.
    pub(crate) fn write(self, colour: Colour, text: &[u8], out: &mut dyn Write) -> io::Result<()> {
        let [begin, end] = self.around(colour, text);
        out.write_all(begin.as_bytes())?;
        out.write_all(text)?;
        out.write_all(end.as_bytes())
    }

    fn around(self, colour: Colour, text: &[u8]) -> [&'static str; 2] {
        match self.is_wanted && !text.is_empty() {
            true => [colour.begin(), END],
            false => ["", ""],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_comes_before_the_environment_and_that_before_the_terminal() {
        use ColorChoice::{Always, Auto, Never};
        for (choice, is_terminal, no_color, term, expected) in [
            (Auto, true, None, "xterm", true),
            (Auto, true, Some(""), "xterm", true),
            (Auto, true, Some("1"), "xterm", false),
            (Auto, true, None, "dumb", false),
            (Auto, false, None, "xterm", false),
            (Always, false, Some("1"), "dumb", true),
            (Never, true, None, "xterm", false),
        ] {
            let paint = Paint::new(choice, is_terminal, |name| match name {
                "NO_COLOR" => no_color.map(Into::into),
                "TERM" => Some(term.into()),
                _ => None,
            });
            let case = (choice, is_terminal, no_color, term);
            assert_eq!(paint.is_wanted, expected, "{case:?}");
        }
    }

    #[test]
    fn a_colour_ends_where_the_text_does() {
        let paint = Paint { is_wanted: true };
        assert_eq!(paint.text(Colour::Green, "+"), "\x1b[32m+\x1b[m");
        assert_eq!(paint.text(Colour::Green, ""), "");
        assert_eq!(Paint::default().text(Colour::Red, "-"), "-");
    }
}
