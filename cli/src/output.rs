//! The answer of a command, and the only code that writes it.
//!
//! stdout has the answer: one JSON document with `--json`, text for people without. stderr has
//! everything else that is for people. With `--json`, and where stderr is no terminal, that is
//! warnings and the line that says why the command failed.

use std::fmt::{Display, Write as _};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal as _, Read, Seek as _, Write};
use std::time::Duration;

use serde::Serialize;
use stillframe::backends::printable_bytes;
/// A size for people: `512 bytes`, `1.5 MiB`.
pub(crate) use stillframe::backends::printable_size as size;

use crate::copying::{Copying, copy_to, stdout_failed, told};
use crate::failure::Failure;
use crate::pager::Pager;
use crate::paint::{ColorChoice, Paint};
use crate::patch_view;

/// What a command answers.
#[derive(Default)]
pub(crate) struct Reply {
    /// For stdout.
    pub(crate) answer: Answer,
    /// Whether a person may want to read the answer page by page.
    pub(crate) is_paged: bool,
    /// For people, on stderr; one line each.
    pub(crate) notes: Vec<String>,
    /// For people, on stderr, also where notes are not wanted; one line each.
    pub(crate) warnings: Vec<String>,
    /// Why the command failed although it has an answer, in one line.
    pub(crate) failure: Option<String>,
    /// The exit code.
    pub(crate) exit_code: u8,
}

/// What goes to stdout.
#[derive(Default)]
pub(crate) enum Answer {
    /// Nothing.
    #[default]
    Nothing,
    /// Text, with its last newline.
    Text(String),
    /// Bytes as they are.
    Bytes(Box<dyn Read>),
    /// A patch: as it is, but for colours where they are wanted, and at a terminal harmless.
    Patch(File),
    /// What a file holds: as it is, and at a terminal harmless.
    File(File),
}

impl Reply {
    /// The document, if one is wanted, else the text.
    pub(crate) fn new(json: bool, document: &impl Document, text: impl FnOnce() -> String) -> Self {
        Self::of(Answer::Text(match json {
            true => json_line(document),
            false => text(),
        }))
    }

    /// An answer, and nothing else.
    pub(crate) fn of(answer: Answer) -> Self {
        Self {
            answer,
            ..Self::default()
        }
    }

    /// Lets a person who sits at a terminal read the answer page by page.
    pub(crate) fn paged(mut self) -> Self {
        self.is_paged = true;
        self
    }

    /// Adds a note.
    pub(crate) fn note(mut self, line: impl Into<String>) -> Self {
        self.notes.push(line.into());
        self
    }

    /// Adds notes.
    pub(crate) fn notes(mut self, lines: Vec<String>) -> Self {
        self.notes.extend(lines);
        self
    }

    /// Adds warnings.
    pub(crate) fn warnings(mut self, lines: Vec<String>) -> Self {
        self.warnings.extend(lines);
        self
    }

    /// Says that the command failed and why, in one line. With `--json` that line is on stderr
    /// beside the document, because a script may send stdout elsewhere. Without, the answer or a
    /// note has it.
    pub(crate) fn failed(mut self, line: impl Into<String>) -> Self {
        self.failure = Some(line.into());
        self
    }

    /// Sets the exit code.
    pub(crate) fn exit_code(mut self, code: u8) -> Self {
        self.exit_code = code;
        self
    }
}

/// What can be printed as JSON.
#[cfg(not(test))]
pub(crate) trait Document: Serialize {}
#[cfg(not(test))]
impl<T: Serialize + ?Sized> Document for T {}

/// What can be printed as JSON: all of it has a schema, see `schemas.rs`.
#[cfg(test)]
pub(crate) trait Document: Serialize + schemars::JsonSchema {}
#[cfg(test)]
impl<T: Serialize + schemars::JsonSchema + ?Sized> Document for T {}

/// A document on a line of its own.
pub(crate) fn json_line(document: &impl Document) -> String {
    let mut line = serde_json::to_string(document).expect("a document is plain data");
    line.push('\n');
    line
}

/// stdout and stderr.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Console {
    json: bool,
    shows_notes: bool,
    /// Whether the answer is for a person at a terminal.
    is_at_terminal: bool,
    paint: Paint,
}

impl Console {
    /// `json`: whether stdout gets documents alone.
    pub(crate) fn new(json: bool, color: ColorChoice) -> Self {
        let is_at_terminal = !json && io::stdout().is_terminal();
        Self {
            json,
            shows_notes: !json || io::stderr().is_terminal(),
            is_at_terminal,
            paint: Paint::new(color, is_at_terminal, |name| std::env::var_os(name)),
        }
    }

    /// Whether the answer is for a person at a terminal.
    pub(crate) fn is_at_terminal(self) -> bool {
        self.is_at_terminal
    }

    /// The colours of the answer.
    pub(crate) fn paint(self) -> Paint {
        self.paint
    }

    /// Writes everything; answers with the exit code.
    pub(crate) fn deliver(self, reply: Reply) -> Result<u8, Failure> {
        for line in &reply.warnings {
            self.warn(line);
        }
        // Before the answer, so that a person who looks at both reads the answer last.
        for line in &reply.notes {
            self.note(line);
        }
        let is_said = |line: &String| {
            reply.warnings.contains(line) || self.shows_notes && reply.notes.contains(line)
        };
        if let Some(line) = reply.failure.filter(|line| self.json && !is_said(line)) {
            to_stderr(&line);
        }
        let mut answer = reply.answer;
        if reply.is_paged
            && self.is_at_terminal
            && let Some(pager) = Pager::of(|name| std::env::var_os(name))
            && pager.show(|out| self.write(&mut answer, out))?
        {
            return Ok(reply.exit_code);
        }
        let mut stdout = io::stdout().lock();
        self.write(&mut answer, &mut stdout)
            .map(|()| reply.exit_code)
    }

    /// Writes an answer. One whose beginning was written before is written from its beginning.
    fn write(self, answer: &mut Answer, out: &mut dyn Write) -> Result<(), Failure> {
        match answer {
            Answer::Nothing => Ok(()),
            Answer::Text(text) => told(copy_to(&mut text.as_bytes(), out)),
            Answer::Bytes(bytes) => told(copy_to(bytes, out)),
            Answer::Patch(patch) => told(self.write_patch(patch, out)),
            Answer::File(file) => told(self.write_file(file, out)),
        }
    }

    fn write_file(self, file: &mut File, out: &mut dyn Write) -> Result<(), Copying> {
        file.rewind().map_err(Copying::Read)?;
        if !self.is_at_terminal {
            return copy_to(file, out);
        }
        let mut out = BufWriter::new(out);
        patch_view::copy_harmless(&mut BufReader::new(file), &mut out)?;
        out.flush().map_err(Copying::Write)
    }

    fn write_patch(self, patch: &mut File, out: &mut dyn Write) -> Result<(), Copying> {
        patch.rewind().map_err(Copying::Read)?;
        if !self.is_at_terminal && self.paint == Paint::default() {
            return copy_to(patch, out);
        }
        let mut out = BufWriter::new(out);
        let mut patch = BufReader::new(patch);
        patch_view::copy_patch(&mut patch, &mut out, self.paint, self.is_at_terminal)?;
        out.flush().map_err(Copying::Write)
    }

    /// Writes a piece of the answer at once. `false`: nobody reads it any more.
    pub(crate) fn line(self, line: &str) -> Result<bool, Failure> {
        let mut stdout = io::stdout().lock();
        let written = stdout
            .write_all(line.as_bytes())
            .and_then(|()| stdout.flush());
        match written {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(e) => Err(stdout_failed(&e)),
        }
    }

    /// Says why the command failed: in the document, if one is wanted, and on stderr.
    pub(crate) fn fail(self, failure: &Failure) {
        if self.json {
            // Where that fails, stderr says it all the same.
            let _ = self.line(&(failure.document() + "\n"));
        }
        to_stderr(&failure.line());
    }

    /// Whether anybody is shown what is only for people.
    pub(crate) fn shows_notes(self) -> bool {
        self.shows_notes
    }

    /// A line for people.
    pub(crate) fn note(self, line: &str) {
        if self.shows_notes {
            to_stderr(line);
        }
    }

    /// A line for people that is also shown where notes are not wanted.
    pub(crate) fn warn(self, line: &str) {
        to_stderr(&format!("warning: {line}"));
    }
}

/// Where the lines of the log go.
pub(crate) fn log_writer() -> io::Stderr {
    io::stderr()
}

pub(crate) fn to_stderr(line: &str) {
    // A stderr that is gone cannot be told so.
    let _ = writeln!(io::stderr().lock(), "stillframe: {line}");
}

/// Text from outside, on one line and harmless for a terminal.
pub(crate) fn printable(text: &str) -> String {
    printable_bytes(text.as_bytes())
}

/// The most characters of what somebody wrote that a message repeats.
const MAX_ECHOED: usize = 200;

/// The beginning of `text`, for a message that is about it.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_ECHOED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The digits of a commit that people read.
const SHORT: usize = 7;

/// The first digits of a commit.
pub(crate) fn short(commit: &str) -> &str {
    commit.get(..SHORT).unwrap_or(commit)
}

/// A task with its namespace, as it is typed.
pub(crate) fn name_of(namespace: Option<&str>, task: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}/{task}"),
        None => task.to_owned(),
    }
}

/// `1 file`, `2 files`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

/// The first few of `paths` in one line, and how many more there are: `a, b, c … and 4 more`.
pub(crate) fn some_of<T: Display>(named: &[T]) -> String {
    const MAX_NAMED: usize = 3;
    let beyond = named.len().saturating_sub(MAX_NAMED);
    let named: Vec<String> = named.iter().take(MAX_NAMED).map(T::to_string).collect();
    let named = named.join(", ");
    match beyond {
        0 => named,
        more => format!("{named} … and {more} more"),
    }
}

/// A length of time for people.
pub(crate) fn lasting(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// Rows whose columns stand one below the other, two spaces apart; each row on a line.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|at| {
            let cells = rows.iter().filter_map(|row| row.get(at));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_a_document_or_text_and_never_both() {
        let document = serde_json::json!({"a": [1, "x\ny"]});
        for (json, expected) in [(true, "{\"a\":[1,\"x\\ny\"]}\n"), (false, "text\n")] {
            let Answer::Text(text) = Reply::new(json, &document, || "text\n".to_owned()).answer
            else {
                panic!("it is text");
            };
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn a_few_paths_are_named_and_the_others_counted() {
        use stillframe::backends::RelPath;
        let paths = |n: usize| -> Vec<RelPath> {
            let names = ["a", "b\n", "c", "d", "e"];
            names[..n]
                .iter()
                .map(|p| RelPath::new(*p).expect("valid"))
                .collect()
        };
        assert_eq!(some_of(&paths(1)), "a");
        assert_eq!(some_of(&paths(3)), "a, b\\n, c");
        assert_eq!(some_of(&paths(5)), "a, b\\n, c … and 2 more");
    }

    #[test]
    fn columns_stand_one_below_the_other() {
        let row = |cells: &[&str]| cells.iter().map(ToString::to_string).collect();
        let text = table(&[row(&["a", "bb", "c"]), row(&["äää", "b", ""]), row(&["x"])]);
        assert_eq!(text, "a    bb  c\näää  b\nx\n");
        assert_eq!(table(&[]), "");
    }
}
