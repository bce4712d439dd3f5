//! Showing the progress of a long capture on a terminal.

use std::io::IsTerminal as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use stillframe::backends::Progress;

use crate::output;

/// How long a capture takes before anything is shown: what is done sooner needs no explanation.
const QUIET: Duration = Duration::from_secs(1);

/// How often the line changes: faster than this nobody reads it.
const REFRESH: Duration = Duration::from_millis(100);

/// A line on stderr that says how far a capture has come. Cheap to clone.
///
/// It is drawn from the thread that captures and by nobody else, so once [`ProgressLine::clear`]
/// is back the terminal is left alone until the next capture.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgressLine {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    began: Option<Instant>,
    drawn: Option<Instant>,
    entries: u64,
    bar: Option<ProgressBar>,
    /// Somebody else has the terminal.
    is_hidden: bool,
}

impl ProgressLine {
    /// A line, if stderr is a terminal.
    pub(crate) fn on_terminal() -> Option<Self> {
        std::io::stderr().is_terminal().then(Self::default)
    }

    /// Takes note of how far a capture has come, and draws it when that is due.
    pub(crate) fn report(&self, progress: Progress) {
        // Several threads may report; one of them is enough to draw.
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        let now = Instant::now();
        if state.is_due(progress, now) {
            let bar = state.bar.get_or_insert_with(spinner);
            bar.set_message(text(progress));
            bar.tick();
        }
    }

    /// Takes the line away.
    pub(crate) fn clear(&self) {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(bar) = state.bar.take() {
            bar.finish_and_clear();
        }
        *state = State {
            is_hidden: state.is_hidden,
            ..State::default()
        };
    }

    /// Takes the line away and draws none, as long as the answer lives: somebody else has the
    /// terminal.
    pub(crate) fn hide(&self) -> Hidden {
        self.clear();
        self.set_hidden(true);
        Hidden(self.clone())
    }

    fn set_hidden(&self, is_hidden: bool) {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        state.is_hidden = is_hidden;
    }
}

/// That no line is drawn.
pub(crate) struct Hidden(ProgressLine);

impl Drop for Hidden {
    fn drop(&mut self) {
        self.0.set_hidden(false);
    }
}

impl State {
    /// Whether the line should be drawn now. A count that is smaller than the last one belongs to
    /// another capture.
    fn is_due(&mut self, progress: Progress, now: Instant) -> bool {
        if progress.entries < self.entries {
            self.began = None;
        }
        self.entries = progress.entries;
        if self.is_hidden {
            return false;
        }
        let began = *self.began.get_or_insert(now);
        let is_fresh = |drawn: Instant| now.duration_since(drawn) < REFRESH;
        if now.duration_since(began) < QUIET || self.drawn.is_some_and(is_fresh) {
            return false;
        }
        self.drawn = Some(now);
        true
    }
}

fn spinner() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg}").expect("the template is constant");
    ProgressBar::new_spinner().with_style(style)
}

fn text(progress: Progress) -> String {
    format!(
        "capturing: {} looked at, {} read",
        match progress.entries {
            1 => "1 entry".to_owned(),
            entries => format!("{entries} entries"),
        },
        output::size(progress.bytes_read)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(entries: u64) -> Progress {
        let mut progress = Progress::default();
        progress.entries = entries;
        progress
    }

    #[test]
    fn nothing_is_shown_before_a_second_and_not_too_often_after() {
        let begin = Instant::now();
        let after = |millis| begin + Duration::from_millis(millis);
        let mut state = State::default();
        assert!(!state.is_due(at(1), begin));
        assert!(!state.is_due(at(500), after(999)));
        assert!(state.is_due(at(600), after(1000)));
        assert!(!state.is_due(at(601), after(1050)));
        assert!(state.is_due(at(700), after(1100)));
    }

    #[test]
    fn the_next_capture_gets_its_own_quiet_second() {
        let begin = Instant::now();
        let after = |millis| begin + Duration::from_millis(millis);
        let mut state = State::default();
        assert!(!state.is_due(at(1), begin));
        assert!(state.is_due(at(900), after(2000)));
        assert!(
            !state.is_due(at(1), after(3000)),
            "fewer entries: another capture"
        );
        assert!(!state.is_due(at(500), after(3900)));
        assert!(state.is_due(at(600), after(4000)));
    }

    #[test]
    fn nothing_is_shown_while_somebody_else_has_the_terminal() {
        let begin = Instant::now();
        let after = |millis| begin + Duration::from_millis(millis);
        let line = ProgressLine::default();
        let hidden = line.hide();
        let is_due = |entries, at| {
            line.state
                .lock()
                .unwrap()
                .is_due(super::tests::at(entries), at)
        };
        assert!(!is_due(1, begin) && !is_due(9, after(5000)));
        drop(hidden);
        assert!(!is_due(1, after(6000)) && is_due(9, after(7000)));
    }

    #[test]
    fn it_says_how_much_was_looked_at() {
        assert_eq!(text(at(1)), "capturing: 1 entry looked at, 0 bytes read");
    }
}
