//! The signals that ask the program to stop, and the ignored signals that it passes on to the
//! command of a run.

use std::io;
use std::sync::LazyLock;

use stillframe::ErrorKind;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// SIGHUP, SIGINT, SIGQUIT and SIGTERM, caught from [`Signals::listen`] on.
///
/// A SIGHUP that was ignored when the process was started stays ignored, because `nohup` means it.
/// The others are caught in any case: a script that starts something in the background has SIGINT
/// and SIGQUIT ignored below it, and a host below that may still want to stop a run.
pub(crate) struct Signals {
    hang_up: Option<Signal>,
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
}

impl Signals {
    /// Catches the signals, for as long as the process lives. Needs a runtime.
    pub(crate) fn listen() -> Result<Self, Failure> {
        Self::catch().map_err(|e| {
            let message = format!("signals cannot be caught, so nothing was done: {e}");
            Failure::new(ErrorKind::of_storage(&e), message)
        })
    }

    fn catch() -> io::Result<Self> {
        Ok(Self {
            hang_up: match is_ignored(*IGNORED, SignalKind::hangup()) {
                true => None,
                false => Some(signal(SignalKind::hangup())?),
            },
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next signal; answers with its number.
    pub(crate) async fn next(&mut self) -> u8 {
        tokio::select! {
            () = next_of(self.hang_up.as_mut()) => number(SignalKind::hangup()),
            () = next_of(Some(&mut self.interrupt)) => number(SignalKind::interrupt()),
            () = next_of(Some(&mut self.quit)) => number(SignalKind::quit()),
            () = next_of(Some(&mut self.terminate)) => number(SignalKind::terminate()),
        }
    }
}

/// The signals that were ignored when the process was started, as [`ignored_signals`] has them. To
/// be looked at before any is caught.
static IGNORED: LazyLock<u64> = LazyLock::new(|| {
    // Where there is no such file, none is known to be ignored.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_signals(&status)
});

/// Notes which signals are ignored. Before anything else.
pub(crate) fn note_ignored() {
    LazyLock::force(&IGNORED);
}

/// The numbers of the signals that were ignored when the process was started, and are caught by
/// now.
pub(crate) fn ignored_and_caught() -> impl Iterator<Item = i32> {
    let caught = [
        SignalKind::interrupt(),
        SignalKind::quit(),
        SignalKind::terminate(),
        // By whatever waits for children.
        SignalKind::child(),
    ];
    let ignored = caught
        .into_iter()
        .filter(|kind| is_ignored(*IGNORED, *kind));
    ignored.map(|kind| kind.as_raw_value())
}

/// Has what is written beyond the limit of a file's size (RLIMIT_FSIZE) fail, as it does on a full
/// disk, where a signal would end the process. Needs a runtime.
///
/// It is caught and not ignored: so it is as by default in what is started. One that is ignored
/// already stays so there.
pub(crate) fn outlive_file_size_limit() -> io::Result<()> {
    let too_long = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    match is_ignored(*IGNORED, too_long) {
        true => Ok(()),
        // Nobody waits for it; that it is caught lasts as long as the process.
        false => signal(too_long).map(drop),
    }
}

/// Waits for ever where there is nothing to wait for.
async fn next_of(signal: Option<&mut Signal>) {
    let came = match signal {
        Some(signal) => signal.recv().await.is_some(),
        None => false,
    };
    if !came {
        std::future::pending().await
    }
}

fn number(kind: SignalKind) -> u8 {
    u8::try_from(kind.as_raw_value()).expect("signals have small numbers")
}

/// The mask of ignored signals in the text of `/proc/self/status` (proc(5)): bit N-1 is signal N.
fn ignored_signals(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

fn is_ignored(mask: u64, kind: SignalKind) -> bool {
    mask >> (kind.as_raw_value() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::exit_code_of;

    #[test]
    fn what_nohup_ignores_stays_ignored() {
        let nohup =
            ignored_signals("Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n");
        assert!(is_ignored(nohup, SignalKind::hangup()));
        assert!(!is_ignored(nohup, SignalKind::interrupt()));
        assert!(!is_ignored(nohup, SignalKind::terminate()));
        for text in ["", "SigIgn:\n", "SigIgn:\tnonsense\n"] {
            assert_eq!(ignored_signals(text), 0, "{text:?}");
        }
    }

    #[test]
    fn an_interrupted_command_exits_as_a_shell_has_it() {
        let codes = [
            SignalKind::hangup(),
            SignalKind::interrupt(),
            SignalKind::quit(),
            SignalKind::terminate(),
        ]
        .map(|kind| exit_code_of(number(kind)));
        assert_eq!(codes, [129, 130, 131, 143]);
    }
}
