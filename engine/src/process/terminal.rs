//! Giving the terminal to a command while it works: job control, as in a shell.
//!
//! A command leads a process group of its own, and a terminal has one group in the foreground. Only
//! that group may read; the kernel stops any other that tries. So the group of the command is put
//! into the foreground while it works, and the host's own group afterwards (tcsetpgrp(3),
//! credentials(7)).

use std::fs::File;
use std::io::IsTerminal as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal as MaskedSignal};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use rustix::termios::{OptionalActions, Termios};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

use crate::blocking::Blocking;
use crate::process::group::ProcessGroup;
use crate::process::started::Stops;
use crate::process::stat::ProcessStat;

/// How long a command in the background that asks for the terminal is left stopped before the host
/// stops too. A shell that ends a stopped job continues it for that, so the command asks again just
/// when the host hears that it is to end, and that has to come first.
const BACKGROUND_PAUSE: Duration = Duration::from_millis(200);

/// The controlling terminal of the host, and which group is in its foreground.
#[derive(Debug)]
pub(crate) struct Terminal {
    device: OwnedFd,
    /// Whether the host reads from it too.
    is_stdin: bool,
    host: Pid,
    lent: Option<Lent>,
    /// How a command that was stopped had it.
    command_modes: Option<Termios>,
    changes: SignalStream,
    /// Who hears of the stops of the command, where that is not this process.
    told: Option<Stops>,
    continued: SignalStream,
}

/// A terminal that was lent to a command.
#[derive(Debug)]
struct Lent {
    /// How the host had it; `None`: that could not be read.
    host_modes: Option<Termios>,
}

/// Who a terminal belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Foreground {
    Host,
    Command,
    Other,
}

/// What to do about a command that was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reaction {
    /// It goes on with what it has.
    Continue,
    /// It gets the terminal, and goes on.
    Lend,
    /// The host's shell gets the terminal, and the host is stopped too.
    Suspend,
    /// It stays stopped, until it is continued by the one who stopped it.
    Leave,
    /// It needs a terminal that it cannot have.
    HangUp,
}

/// Decides about a command that `signal` stopped. `is_orphaned`: nobody waits for the host who
/// would continue it, so that it must not stop.
fn reaction(signal: Signal, foreground: Foreground, is_orphaned: bool) -> Reaction {
    let wants_terminal = matches!(signal, Signal::TTIN | Signal::TTOU);
    match (wants_terminal, foreground) {
        // It asked before it had it.
        (true, Foreground::Command) => Reaction::Continue,
        (true, Foreground::Host) => Reaction::Lend,
        (true, Foreground::Other) if is_orphaned => Reaction::HangUp,
        (true, Foreground::Other) => Reaction::Suspend,
        (false, Foreground::Command) if !is_orphaned => Reaction::Suspend,
        // Ctrl-Z has no meaning where there is no shell to go back to.
        (false, Foreground::Command) if signal == Signal::TSTP => Reaction::Continue,
        // Another process stopped it, and will continue it.
        (false, _) => Reaction::Leave,
    }
}

impl Terminal {
    /// The controlling terminal of this process; `None`: it has none. Blocks, though not for long.
    ///
    /// From here on the process hears of children that stop. Needs a runtime.
    pub(crate) fn of_host() -> std::io::Result<Option<Self>> {
        let stdin = std::io::stdin();
        let is_controlling =
            stdin.is_terminal() && rustix::termios::tcgetpgrp(stdin.as_fd()).is_ok();
        let device = match is_controlling {
            true => stdin.as_fd().try_clone_to_owned()?,
            false => match File::options().read(true).write(true).open("/dev/tty") {
                Ok(file) => OwnedFd::from(file),
                // There is none, and so nothing to do.
                Err(_) => return Ok(None),
            },
        };
        Ok(Some(Self {
            device,
            is_stdin: is_controlling,
            host: rustix::process::getpgrp(),
            lent: None,
            command_modes: None,
            changes: signal(SignalKind::child())?,
            told: None,
            continued: signal(SignalKind::from_raw(Signal::CONT.as_raw()))?,
        }))
    }

    /// Gives the terminal to a command that reads from it, if the host has it.
    ///
    /// Where stdin is something else, a process beside the host may be reading from the terminal,
    /// as in `cat | host`; the command gets it when it asks for it. `told`: what tells of the stops
    /// of a command that is no child of this process.
    pub(crate) fn begin(&mut self, group: &ProcessGroup, told: Option<Stops>) {
        self.told = told;
        if self.is_stdin && self.foreground(group) == Foreground::Host {
            self.lend(group);
        }
    }

    /// Does, for as long as it is polled, what a shell does for its job. Comes back when the
    /// command has asked for a terminal that it cannot have.
    pub(crate) async fn attend(&mut self, group: &ProcessGroup, blocking: &Blocking) {
        loop {
            let signal = self.stop_of(group, blocking).await;
            let is_orphaned = blocking.run(is_orphaned).await.unwrap_or(true);
            match reaction(signal, self.foreground(group), is_orphaned) {
                Reaction::Continue => group.signal(Signal::CONT),
                Reaction::Lend => self.lend(group),
                Reaction::Suspend => {
                    if self.lent.is_none() {
                        tokio::time::sleep(BACKGROUND_PAUSE).await;
                    }
                    match self.foreground(group) {
                        // It was brought back meanwhile.
                        Foreground::Host => self.lend(group),
                        _ => self.suspend(group, signal).await,
                    }
                }
                Reaction::Leave => {}
                Reaction::HangUp => return,
            }
        }
    }

    /// Whether the command has it.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// Takes the terminal back, if it was lent. `keep`: whether the modes that the command has
    /// set stay, which is what a program such as stty is for; one that failed has left them by
    /// accident.
    pub(crate) fn take_back(&mut self, keep: ModesKept) {
        let Some(lent) = self.lent.take() else { return };
        in_background(|| {
            if let (ModesKept::No, Some(modes)) = (keep, &lent.host_modes) {
                self.set_modes(modes);
            }
            // A terminal that was hung up has no foreground group.
            let _ = rustix::termios::tcsetpgrp(&self.device, self.host);
        });
    }

    fn lend(&mut self, group: &ProcessGroup) {
        let Some(id) = group.id() else { return };
        let host_modes = rustix::termios::tcgetattr(&self.device).ok();
        in_background(|| {
            if let Some(modes) = self.command_modes.take() {
                self.set_modes(&modes);
            }
            // A terminal that was hung up has no foreground group, and reading from it says so.
            let _ = rustix::termios::tcsetpgrp(&self.device, id);
        });
        self.lent.get_or_insert(Lent { host_modes });
        // It may have been faster, and been stopped for it.
        group.signal(Signal::CONT);
    }

    /// Stops the host's own group with the signal that stopped the command, so that the shell that
    /// waits for it goes on; comes back once it is continued.
    async fn suspend(&mut self, group: &ProcessGroup, signal: Signal) {
        if self.lent.is_some() {
            self.command_modes = rustix::termios::tcgetattr(&self.device).ok();
        }
        self.take_back(ModesKept::No);
        // Of an earlier time.
        while let Some(Some(())) = now_or_never(self.continued.recv()) {}
        if rustix::process::kill_process_group(self.host, signal).is_ok() {
            self.continued.recv().await;
        }
        match self.foreground(group) {
            Foreground::Host => self.lend(group),
            // In the background it goes on without, until it asks.
            _ => group.signal(Signal::CONT),
        }
    }

    /// Waits until the command is stopped, and answers by which signal.
    async fn stop_of(&mut self, group: &ProcessGroup, blocking: &Blocking) -> Signal {
        let Some(leader) = group.id() else {
            return std::future::pending().await;
        };
        if let Some(told) = &mut self.told {
            while let Some(signal) = told.recv().await {
                // As waitid(2) has it: one that has gone on meanwhile is not stopped.
                let stat = blocking.run(move || ProcessStat::of(leader)).await;
                if !matches!(stat, Ok(Ok(stat)) if !stat.is_stopped()) {
                    return signal;
                }
            }
            return std::future::pending().await;
        }
        loop {
            // It is ours to wait for; only its stops are taken notice of, not its end.
            let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
            let status = rustix::process::waitid(WaitId::Pid(leader), options);
            let number = status.ok().flatten().and_then(|s| s.stopping_signal());
            if let Some(signal) = number.and_then(Signal::from_named_raw) {
                return signal;
            }
            if self.changes.recv().await.is_none() {
                return std::future::pending().await;
            }
        }
    }

    fn foreground(&self, group: &ProcessGroup) -> Foreground {
        match rustix::termios::tcgetpgrp(&self.device) {
            Ok(id) if id == self.host => Foreground::Host,
            Ok(id) if Some(id) == group.id() => Foreground::Command,
            _ => Foreground::Other,
        }
    }

    /// At once: output that a stopped terminal holds back must not hold us up.
    fn set_modes(&self, modes: &Termios) {
        // A terminal that was hung up has no modes.
        let _ = rustix::termios::tcsetattr(&self.device, OptionalActions::Now, modes);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back(ModesKept::No);
    }
}

/// Whether a command's terminal modes outlive it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModesKept {
    /// They stay.
    Yes,
    /// The terminal is as it was when it was lent.
    No,
}

/// Does `work` on a terminal whose foreground another group may have.
///
/// A group in the background that changes its terminal is stopped by SIGTTOU, unless the thread
/// that does it has that signal blocked (tcsetpgrp(3)).
fn in_background(work: impl FnOnce()) {
    let mut mask = SigSet::empty();
    mask.add(MaskedSignal::SIGTTOU);
    let before = mask.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    work();
    if let Ok(before) = before {
        // What was the mask is one.
        let _ = before.thread_set_mask();
    }
}

/// Whether nobody would continue this process if it was stopped: it has no ancestor in another
/// group of its session, as a shell is (setpgid(2), orphaned process group). Blocks.
fn is_orphaned() -> bool {
    let (group, session) = (rustix::process::getpgrp(), rustix::process::getsid(None));
    let mut parent = rustix::process::getppid();
    while let Some(pid) = parent {
        if rustix::process::getsid(Some(pid)) != session {
            return true;
        }
        if rustix::process::getpgid(Some(pid)) != Ok(group) {
            return false;
        }
        parent = ProcessStat::of(pid)
            .ok()
            .and_then(|stat| Pid::from_raw(stat.parent));
    }
    true
}

/// What `future` has ready.
fn now_or_never<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_about_a_command_that_is_stopped() {
        use Foreground::{Command, Host, Other};
        use Reaction::{Continue, HangUp, Leave, Lend, Suspend};
        for (signal, foreground, with_a_shell, orphaned) in [
            (Signal::TTIN, Command, Continue, Continue),
            (Signal::TTOU, Command, Continue, Continue),
            (Signal::TTIN, Host, Lend, Lend),
            (Signal::TTOU, Host, Lend, Lend),
            (Signal::TTIN, Other, Suspend, HangUp),
            (Signal::TTOU, Other, Suspend, HangUp),
            (Signal::TSTP, Command, Suspend, Continue),
            (Signal::TSTP, Host, Leave, Leave),
            (Signal::TSTP, Other, Leave, Leave),
            (Signal::STOP, Command, Suspend, Leave),
            (Signal::STOP, Host, Leave, Leave),
            (Signal::STOP, Other, Leave, Leave),
        ] {
            let case = format!("{signal:?} {foreground:?}");
            assert_eq!(reaction(signal, foreground, false), with_a_shell, "{case}");
            assert_eq!(reaction(signal, foreground, true), orphaned, "{case}");
        }
    }
}
