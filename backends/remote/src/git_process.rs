//! The processes of git: the only ones that are started here.
//!
//! git speaks with remotes for us, and does nothing else: no commit, merge or checkout is its work.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};
use stillframe_disk::operation::Operation;
use stillframe_model::error::printable;
use stillframe_model::interrupted::Interrupted;
use stillframe_model::path::printable_name;

use crate::address::Address;
use crate::configuration::Configuration;
use crate::credential::Credential;
use crate::environment::Environment;
use crate::own_children::{self, OwnChild};

/// How long a call of git may take by default.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(120);

/// How often a call that waits looks whether it is cancelled.
const LOOK: Duration = Duration::from_millis(20);

/// How long git and its helpers may take to remove their lock files, some of which are in the
/// remote where that is a path, before they are killed.
const GRACE: Duration = Duration::from_secs(2);

/// What is kept of the end of standard error, where the reasons are. What comes before are the
/// words of hooks.
const MAX_STDERR_BYTES: usize = 64 * 1024;

/// git, at work in a store of ours: a bare repository that nobody else writes to.
#[derive(Clone, Debug)]
pub struct Git {
    store: PathBuf,
    environment: Environment,
    limit: Duration,
    /// Directories with objects that git goes by besides, as it reads them of a variable.
    objects: OsString,
    /// Whether history goes on where the store says that it ends.
    is_whole: bool,
}

/// What git is to do.
pub(crate) struct Call<'a> {
    pub(crate) address: &'a Address,
    pub(crate) credential: &'a Credential,
    /// The command, with options and operands.
    pub(crate) args: Vec<OsString>,
    /// More than that on standard output is an error.
    pub(crate) max_stdout_bytes: usize,
}

/// What git said.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The exit code; `None`: somebody's signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    /// The last lines of it.
    pub(crate) stderr: Vec<u8>,
}

/// Why a call of git has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GitError {
    /// There is no git, it cannot be executed, or there is no store. Nothing was sent.
    #[error("git cannot be started in {}", printable(store))]
    NotStarted {
        /// The store.
        store: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Cancelled, or not done in time. git and its helpers were ended; what it was about to do at
    /// the remote may be done or not.
    #[error("git was ended: {0}")]
    Stopped(Interrupted),
    /// git said more than can be, and was ended.
    #[error("git was ended: it wrote more than {limit} bytes")]
    TooMuch {
        /// What it may write.
        limit: usize,
    },
    /// The user's global configuration, which was to say who asks, cannot be read. Nothing was
    /// sent.
    #[error("git cannot read the user's configuration: {said}")]
    UserConfiguration {
        /// One line of git's.
        said: String,
    },
    /// The process could not be followed, and was ended.
    #[error("git could not be followed")]
    Lost {
        /// What the kernel said.
        source: io::Error,
    },
}

impl Git {
    /// git for the bare repository at `store`, an absolute path.
    pub fn new(store: impl Into<PathBuf>, environment: Environment) -> Self {
        Self {
            store: store.into(),
            environment,
            limit: DEFAULT_LIMIT,
            objects: OsString::new(),
            is_whole: false,
        }
    }

    /// Sets how long one call may take. Default: [`DEFAULT_LIMIT`].
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Has git take no notice of where the history of the store ends, so that what comes before
    /// comes, too.
    pub fn whole(mut self) -> Self {
        self.is_whole = true;
        self
    }

    /// Has git go by the objects in these directories, too: what they have is not fetched again,
    /// and does not come into the store.
    pub fn borrowing(mut self, directories: impl IntoIterator<Item = PathBuf>) -> Self {
        // git separates them so, and takes a quotation mark for the begin of a name in quotes.
        let is_plain = |path: &&PathBuf| {
            let bytes = path.as_os_str().as_bytes();
            !bytes.contains(&b':') && bytes.first() != Some(&b'"')
        };
        let directories: Vec<PathBuf> = directories.into_iter().collect();
        let names = directories.iter().filter(is_plain);
        let names: Vec<&OsStr> = names.map(|path| path.as_os_str()).collect();
        self.objects = names.join(OsStr::new(":"));
        self
    }

    pub(crate) fn call(&self, call: Call<'_>, op: &Operation) -> Result<Answer, GitError> {
        let helpers = match call.credential {
            Credential::UserGit { .. } if call.address.credential_scope().is_some() => {
                self.helpers_of_user(op)?
            }
            _ => Vec::new(),
        };
        let configuration = Configuration::new(call.address, call.credential, helpers);
        let mut command = self.command();
        command.args(&call.args);
        command.envs(configuration.into_variables());
        command.env("GIT_CONFIG_GLOBAL", "/dev/null");
        if self.is_whole {
            // Without a name there is no such file (shallow.c).
            command.env("GIT_SHALLOW_FILE", "");
        }
        if !self.objects.is_empty() {
            command.env("GIT_ALTERNATE_OBJECT_DIRECTORIES", &self.objects);
        }
        let is_users = matches!(call.credential, Credential::UserGit { .. });
        if call.address.credential_scope().is_some() && !is_users {
            // curl takes credentials from ~/.netrc, and the host's would not be asked for.
            command.env("HOME", &self.store);
        }
        self.run(command, call.max_stdout_bytes, op)
    }

    /// The settings `credential.*` of the user's global configuration.
    fn helpers_of_user(&self, op: &Operation) -> Result<Vec<(OsString, OsString)>, GitError> {
        let mut command = self.command();
        command.args(["config", "--global", "--includes", "--null"]);
        command.args(["--get-regexp", r"^credential\."]);
        let answer = self.run(command, MAX_STDERR_BYTES, op)?;
        // 1: it has none of them.
        if !matches!(answer.code, Some(0 | 1)) {
            let said = String::from_utf8_lossy(&answer.stderr);
            let said = printable_name(said.lines().next().unwrap_or_default().as_bytes());
            return Err(GitError::UserConfiguration { said });
        }
        let records = answer.stdout.split(|b| *b == 0);
        let setting = |record: &[u8]| {
            let at = record.iter().position(|b| *b == b'\n');
            let (key, value) = match at {
                Some(at) => (&record[..at], &record[at + 1..]),
                // A name alone means that it is so.
                None => (record, &b"true"[..]),
            };
            (
                OsString::from_vec(key.to_vec()),
                OsStr::from_bytes(value).to_owned(),
            )
        };
        Ok(records.filter(|r| !r.is_empty()).map(setting).collect())
    }

    /// git with nothing of this process but what the environment lets through.
    fn command(&self) -> Command {
        #[expect(
            clippy::disallowed_methods,
            reason = "git is started here, and nowhere else"
        )]
        let mut command = Command::new("git");
        command.env_clear();
        let variables = self.environment.variables().iter();
        command.envs(variables.map(|(name, value)| (name, value)));
        command.current_dir(&self.store).env("GIT_DIR", &self.store);
        for (name, value) in [
            ("LC_ALL", "C"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_ATTR_NOSYSTEM", "1"),
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_ASKPASS", ""),
            // core.gitProxy is a list whose first value counts.
            ("GIT_PROXY_COMMAND", ""),
            ("SSH_ASKPASS_REQUIRE", "never"),
            ("GIT_NO_REPLACE_OBJECTS", "1"),
            ("GIT_NO_LAZY_FETCH", "1"),
            ("GIT_OPTIONAL_LOCKS", "0"),
        ] {
            command.env(name, value);
        }
        command
    }

    fn run(&self, mut command: Command, max: usize, op: &Operation) -> Result<Answer, GitError> {
        op.check().map_err(GitError::Stopped)?;
        let end = Instant::now().checked_add(self.limit);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let spawn = || command.process_group(0).spawn();
        let child = own_children::start(spawn, |child: &Child| Some(child.id()));
        let (child, own) = child.map_err(|source| GitError::NotStarted {
            store: self.store.clone(),
            source,
        })?;
        // Its copies of what is secret go with it.
        drop(command);
        let lost = |source: io::Error| GitError::Lost { source };
        let mut group = Group::of(child, own).map_err(lost)?;
        loop {
            op.check().map_err(GitError::Stopped)?;
            if end.is_some_and(|end| Instant::now() >= end) {
                let after = self.limit;
                return Err(GitError::Stopped(Interrupted::TimedOut { after }));
            }
            let has_ended = group.attend(LOOK).map_err(lost)?;
            if group.stdout.bytes.len() > max {
                return Err(GitError::TooMuch { limit: max });
            }
            if has_ended {
                return group.answer().map_err(lost);
            }
        }
    }
}

/// A process, the group that it leads, and what they write. Ended as a whole when it is dropped
/// before its answer.
struct Group {
    /// `None`: it was waited for.
    child: Option<Child>,
    id: Pid,
    leader: OwnedFd,
    stdout: Pipe<ChildStdout>,
    stderr: Pipe<ChildStderr>,
    /// Let go of after it was waited for.
    _own: OwnChild,
}

/// What is read of one stream.
struct Pipe<R> {
    /// `None`: it was closed.
    reader: Option<R>,
    bytes: Vec<u8>,
}

impl Group {
    fn of(mut child: Child, own: OwnChild) -> io::Result<Self> {
        let id = Pid::from_child(&child);
        let leader = match rustix::process::pidfd_open(id, PidfdFlags::empty()) {
            Ok(leader) => leader,
            Err(error) => {
                let _ = rustix::process::kill_process_group(id, Signal::KILL);
                let _ = child.wait();
                return Err(error.into());
            }
        };
        Ok(Self {
            stdout: Pipe::of(child.stdout.take()),
            stderr: Pipe::of(child.stderr.take()),
            child: Some(child),
            id,
            leader,
            _own: own,
        })
    }

    /// Waits for something to read or for the end of the leader, at most this long. Whether the
    /// leader has ended.
    fn attend(&mut self, patience: Duration) -> io::Result<bool> {
        let (out, err, end) = {
            let leader = Some(self.leader.as_fd());
            let waited = [self.stdout.fd(), self.stderr.fd(), leader];
            let [out, err, end] = ready(waited, patience)?;
            (out, err, end)
        };
        if out {
            self.stdout.read()?;
        }
        if err {
            self.stderr.read()?;
            self.stderr.keep_end();
        }
        Ok(end)
    }

    /// What the leader, which has ended, said. Somebody whom it left behind, as the hooks of a
    /// remote may on this machine, is nobody whom we wait for, or end.
    fn answer(mut self) -> io::Result<Answer> {
        loop {
            let before = (self.stdout.bytes.len(), self.stderr.bytes.len());
            self.attend(Duration::ZERO)?;
            if before == (self.stdout.bytes.len(), self.stderr.bytes.len()) {
                break;
            }
        }
        let mut child = self.child.take().expect("it was not waited for");
        let code = child.wait()?.code();
        Ok(Answer {
            code,
            stdout: std::mem::take(&mut self.stdout.bytes),
            stderr: std::mem::take(&mut self.stderr.bytes),
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        // The leader is not waited for yet, so no other group has this id.
        let _ = rustix::process::kill_process_group(self.id, Signal::TERM);
        let begin = Instant::now();
        loop {
            // What holds standard error open is still at work.
            let left = GRACE.saturating_sub(begin.elapsed());
            let has_ended = self.attend(left.min(LOOK)).unwrap_or(true);
            self.stdout.bytes.clear();
            if left.is_zero() || has_ended && self.stderr.reader.is_none() {
                break;
            }
        }
        let _ = rustix::process::kill_process_group(self.id, Signal::KILL);
        let _ = child.wait();
    }
}

impl<R: Read + AsFd> Pipe<R> {
    fn of(reader: Option<R>) -> Self {
        let bytes = Vec::new();
        Self { reader, bytes }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.reader.as_ref().map(AsFd::as_fd)
    }

    /// Reads once what is there.
    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        let Some(reader) = &mut self.reader else {
            return Ok(());
        };
        match reader.read(&mut buffer) {
            Ok(0) => self.reader = None,
            Ok(n) => self.bytes.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Forgets all but the last whole lines.
    fn keep_end(&mut self) {
        let Some(excess) = self.bytes.len().checked_sub(2 * MAX_STDERR_BYTES) else {
            return;
        };
        let from = excess + MAX_STDERR_BYTES;
        let line = self.bytes[from..].iter().position(|b| *b == b'\n');
        self.bytes.drain(..line.map_or(from, |at| from + at + 1));
    }
}

/// Which of these can be read, or have ended.
fn ready<const N: usize>(
    waited: [Option<BorrowedFd<'_>>; N],
    patience: Duration,
) -> io::Result<[bool; N]> {
    let mut polled: Vec<PollFd<'_>> = waited
        .iter()
        .flatten()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    let patience = Timespec::try_from(patience).expect("it is short");
    match poll(&mut polled, Some(&patience)) {
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Ok([false; N]),
        Err(error) => return Err(error.into()),
    }
    let mut polled = polled.iter();
    Ok(waited.map(|fd| {
        let polled = fd.and_then(|_| polled.next());
        polled.is_some_and(|fd| !fd.revents().is_empty())
    }))
}
