//! A started command, in this process or through a guardian: its process id, stopping it, and its
//! end.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStdout};
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::process::guardian_channel::{WORD_BYTES, Word};

/// A command that was started.
#[derive(Debug)]
pub(crate) enum Started {
    /// As a child of this process.
    Child(Child),
    /// As a child of a guardian.
    Guarded(Guarded),
}

/// A command that a guardian started for this process.
#[derive(Debug)]
pub(crate) struct Guarded {
    guardian: Child,
    /// `None`: the guardian was gone before it could say that.
    command: Option<Pid>,
    ended: watch::Receiver<Option<ExitStatus>>,
    stops: Option<mpsc::UnboundedReceiver<Signal>>,
    /// Has the socket: its end is what the guardian waits for.
    listening: AbortOnDropHandle<()>,
}

/// What a guardian left when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing of the command runs.
    Nothing,
    /// Nobody has looked.
    Unknown,
    /// Nobody has looked, because somebody killed the guardian.
    Killed,
}

/// Who hears of the stops of a command, if not this process itself.
pub(crate) type Stops = mpsc::UnboundedReceiver<Signal>;

impl Started {
    /// The command's process; `None`: it has been waited for.
    pub(crate) fn id(&self) -> Option<Pid> {
        match self {
            Self::Child(child) => pid_of(child),
            Self::Guarded(guarded) => guarded.command,
        }
    }

    /// The child of this process that is waited for here.
    pub(crate) fn child(&self) -> Option<Pid> {
        match self {
            Self::Child(child) => pid_of(child),
            Self::Guarded(guarded) => pid_of(&guarded.guardian),
        }
    }

    /// What tells of the stops of a command that is no child of this process. Once.
    pub(crate) fn stops(&mut self) -> Option<Stops> {
        match self {
            Self::Child(_) => None,
            Self::Guarded(guarded) => guarded.stops.take(),
        }
    }

    /// Waits until the command itself has ended. Nothing is lost if the future is dropped.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        match self {
            Self::Child(child) => child.wait().await,
            Self::Guarded(guarded) => {
                let ended = guarded.ended.wait_for(Option::is_some).await;
                ended.ok().and_then(|status| *status).ok_or_else(|| {
                    io::Error::other(
                        "its guardian is gone; what was left of the command has been ended",
                    )
                })
            }
        }
    }

    /// Has the guardian end what there is of the command; comes back once it is done with that.
    pub(crate) async fn end(&mut self) -> Left {
        match self {
            Self::Child(_) => Left::Unknown,
            Self::Guarded(guarded) => {
                guarded.listening.abort();
                match guarded.guardian.wait().await {
                    Ok(status) if status.success() => Left::Nothing,
                    Ok(status) if status.signal() == Some(Signal::KILL.as_raw()) => Left::Killed,
                    _ => Left::Unknown,
                }
            }
        }
    }
}

impl Guarded {
    /// Comes back once `guardian`, which was told what to start, has started it. `host`: this end
    /// of the socket.
    pub(crate) async fn listen(guardian: Child, mut host: ChildStdout) -> io::Result<Self> {
        let command = match word(&mut host).await {
            Ok(Word::Started(id)) => Pid::from_raw(id),
            Ok(Word::NotStarted(errno)) => return Err(io::Error::from_raw_os_error(errno)),
            // The command may have begun, and have killed its parent as the first thing that it
            // did.
            Ok(_) | Err(_) => None,
        };
        let (end, ended) = watch::channel(None);
        let (stop, stops) = mpsc::unbounded_channel();
        let listening = tokio::spawn(async move {
            loop {
                match word(&mut host).await {
                    Ok(Word::Stopped(number)) => {
                        if let Some(signal) = Signal::from_named_raw(number) {
                            let _ = stop.send(signal);
                        }
                    }
                    Ok(Word::Ended(status)) => {
                        end.send_replace(Some(ExitStatus::from_raw(status)));
                        // The socket stays: its end would be the end of the guardian.
                    }
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
        });
        Ok(Self {
            guardian,
            command,
            ended,
            stops: Some(stops),
            listening: AbortOnDropHandle::new(listening),
        })
    }
}

async fn word(host: &mut ChildStdout) -> io::Result<Word> {
    let mut bytes = [0; WORD_BYTES];
    host.read_exact(&mut bytes).await?;
    Word::from_bytes(bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn pid_of(child: &Child) -> Option<Pid> {
    let id = child.id().and_then(|id| i32::try_from(id).ok())?;
    Pid::from_raw(id)
}
