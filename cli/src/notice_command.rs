//! The commands that the user has set to tell people of notices.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::FlockOperation;
use stillframe::backends::open_regular;
use stillframe::records::NoticeRecord;
use stillframe::tasks::{NoticeError, NoticeSink, Shown};
use tokio::io::AsyncReadExt as _;

use crate::user_command::{UserCommand, ended};

/// The exit code by which a command says that no other try would help.
const NEVER: i32 = 3;

/// The exit code by which it says that the notice is not shown.
const NOT_SHOWN: i32 = 1;

/// The variable with the token of the notice.
const TOKEN: &str = "STILLFRAME_NOTICE_TOKEN";

/// What it gets of this process's variables, beside `XDG_*` and what the user names.
const PASSED_ON: [&str; 17] = [
    "ALL_PROXY",
    "HOME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LANG",
    "LOGNAME",
    "NO_PROXY",
    "PATH",
    "SSH_AUTH_SOCK",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TZ",
    "USER",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// How often is looked whether an earlier command has ended.
const LOOK: Duration = Duration::from_millis(10);

/// How long what it has written may take to be read once it has ended.
const READ: Duration = Duration::from_millis(100);

/// How much is kept of the end of what it says on standard error.
const MAX_BYTES: usize = 4096;

/// What the user has set of notices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoticeSettings {
    /// Sends the notice that it reads.
    pub(crate) command: UserCommand,
    /// Looks whether a notice is shown; `None`: nobody can.
    pub(crate) shows_command: Option<UserCommand>,
    /// The variables that they get as well.
    pub(crate) env: Vec<String>,
    /// How long each call may take.
    pub(crate) timeout: Duration,
}

/// Tells people by the commands of the user.
///
/// Of those that use one state directory, one is at work at a time: also one whose engine was
/// killed is waited for, which may still be sending. What they read is a file that is locked, and
/// the lock is theirs too until they end.
pub(crate) struct NoticeCommand {
    pub(crate) settings: NoticeSettings,
    /// What they read.
    pub(crate) file: PathBuf,
}

/// Whether a notice command has started this process: it waits for this one, and nothing is sent
/// meanwhile.
pub(crate) fn is_within() -> bool {
    std::env::var_os(TOKEN).is_some()
}

impl NoticeSink for NoticeCommand {
    async fn send(&self, notice: &NoticeRecord) -> Result<(), NoticeError> {
        let document = serde_json::to_vec(notice).expect("a notice is plain data");
        let command = &self.settings.command;
        let (status, said) = self.run(command, &notice.token, &document).await?;
        match status.success() {
            true => Ok(()),
            false => Err(wrong(command, status, &said)),
        }
    }

    async fn shows(&self, token: &str) -> Result<Shown, NoticeError> {
        let Some(command) = &self.settings.shows_command else {
            return Ok(Shown::Unknown);
        };
        let (status, said) = self.run(command, token, b"").await?;
        match status.code() {
            Some(0) => Ok(Shown::Yes),
            Some(NOT_SHOWN) => Ok(Shown::No),
            _ => Err(wrong(command, status, &said)),
        }
    }
}

/// Why a command has not done what it was to do.
fn wrong(command: &UserCommand, status: ExitStatus, said: &[u8]) -> NoticeError {
    let said = String::from_utf8_lossy(said);
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty());
    let said = last.map_or(String::new(), |last| format!(": {last}"));
    let what = format!(
        "the notice command{} {}{said}",
        command.name(),
        ended(status)
    );
    match status.code() {
        Some(NEVER) => NoticeError::Never(what),
        _ => NoticeError::Later(what),
    }
}

impl NoticeCommand {
    /// How a command ended that reads `input`, and the end of what it said on standard error.
    async fn run(
        &self,
        command: &UserCommand,
        token: &str,
        input: &[u8],
    ) -> Result<(ExitStatus, Vec<u8>), NoticeError> {
        let failed = |e: io::Error| {
            NoticeError::Later(format!(
                "the notice command{} could not be run: {e}",
                command.name()
            ))
        };
        let input = Input::write(&self.file, input).await.map_err(failed)?;
        let stdin = input.0.try_clone().map_err(failed)?;
        let group = command.start(|command| {
            command.env_clear();
            for (name, value) in std::env::vars_os() {
                let is_named = |known: &str| name == *known;
                if name.as_encoded_bytes().starts_with(b"XDG_")
                    || name.as_encoded_bytes().starts_with(b"LC_")
                    || PASSED_ON.into_iter().any(is_named)
                    || self.settings.env.iter().any(|known| is_named(known))
                {
                    command.env(name, value);
                }
            }
            command
                .env(TOKEN, token)
                .stdin(stdin)
                .stdout(Stdio::null())
                .stderr(Stdio::piped());
        });
        let mut group = group.map_err(failed)?;
        let mut stderr = group.child.stderr.take().expect("it was asked for");
        let (mut said, mut is_open) = (Vec::new(), true);
        let status = loop {
            tokio::select! {
                biased;
                read = stderr.read_buf(&mut said), if is_open => {
                    is_open = read.map_err(failed)? > 0;
                    said.drain(..said.len().saturating_sub(MAX_BYTES));
                }
                status = group.child.wait() => break status.map_err(failed)?,
            }
        };
        // What it has left behind may hold the pipe open; what it wrote itself is there.
        while is_open && said.len() < 2 * MAX_BYTES {
            let read = tokio::time::timeout(READ, stderr.read_buf(&mut said)).await;
            is_open = matches!(read, Ok(Ok(1..)));
        }
        Ok((status, said))
    }
}

/// What a command reads, which nobody else's does meanwhile.
struct Input(File);

impl Input {
    /// Waits until no other command is at work.
    async fn write(path: &Path, content: &[u8]) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = open_regular(options.mode(0o600), path)?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            tokio::time::sleep(LOOK).await;
        }
        let mut input = Self(file);
        input.0.set_len(0)?;
        input.0.write_all(content)?;
        // The command reads on from where this is.
        input.0.rewind()?;
        Ok(input)
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        // The next one writes it anew.
        let _ = self.0.set_len(0);
        // The command, and what it has left behind, have the same lock.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}
