//! The adapter for a command of the operating system.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io::{IsTerminal as _, PipeReader, PipeWriter};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use stillframe_backends::{ErrorKind, printable, printable_bytes};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::sync::mpsc;

use crate::blocking::Blocking;
use crate::error::Error;
use crate::failure::Failure;
use crate::process::group::ProcessGroup;
use crate::process::guardian_channel::{self, GUARDIAN, Streams};
use crate::process::input_file::{Input, InputFile};
use crate::process::orphans::{self, Orphans};
use crate::process::output::{OutputPiece, Silence, Stream, Wanted};
use crate::process::started::{Guarded, Left, Started};
use crate::process::survivors::{CURRENT_RUN, CURRENT_STATE, state_mark};
use crate::process::terminal::{ModesKept, Terminal};
use crate::records::output::{AdapterOutput, CommandResult};
use crate::step::adapter::Adapter;
use crate::step::adapter_error::{AdapterError, Ending};
use crate::step::artifact::own_key;
use crate::step::context::RunContext;

/// How much of each output stream of a command is kept by default, in bytes.
pub const DEFAULT_MAX_OUTPUT_BYTES: usize = 1_048_576;

/// Runs a command as the work of a run.
///
/// The command leads a process group of its own, and nothing of that group outlives the run: what
/// the command left in the background is killed when the command ends. A process that started its
/// own session, or its own group as an interactive shell does for its jobs, is not part of the
/// group; see [`CommandAdapter::adopt_orphans`].
#[derive(Clone, Debug)]
pub struct CommandAdapter {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, Option<OsString>)>,
    cwd: Option<PathBuf>,
    timeout: Option<Duration>,
    idle_timeout: Option<Duration>,
    max_output_bytes: usize,
    keeps_all_output: bool,
    output: CommandOutput,
    stdin: CommandInput,
    end_signal: EndSignal,
    adopts_orphans: bool,
    guardian: Option<WhenKilled>,
    ignored: Vec<i32>,
}

/// What a host does when somebody has killed the guardian of its command.
#[derive(Clone)]
struct WhenKilled(Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for WhenKilled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WhenKilled").finish_non_exhaustive()
    }
}

/// The signal that asks a command to end when its run is cancelled. Clones share it.
///
/// It is read when the run is cancelled, so a host that cancels because it received a signal can
/// pass that signal on.
#[derive(Clone, Debug)]
pub struct EndSignal(Arc<AtomicI32>);

/// Where a command's output goes.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum CommandOutput {
    /// Kept, up to the cap. The default.
    #[default]
    Capture,
    /// The host's own stdout and stderr, as they are; nothing is kept in the result.
    Inherit,
    /// Both to the host's stderr; nothing is kept in the result.
    Stderr,
    /// Kept, up to the cap, and every piece sent as it comes. Pieces are dropped when nobody
    /// receives; a receiver that is slow makes the command wait.
    Stream(mpsc::Sender<OutputPiece>),
}

/// Where a command reads from.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommandInput {
    /// Nothing: end of file at once. The default.
    #[default]
    Nothing,
    /// The host's stdin, unless it is a terminal: that stays with the host, and the command gets
    /// nothing.
    Inherit,
    /// The host's stdin, and its terminal with it, as a shell gives it to a job.
    ///
    /// If the host is in the foreground of its terminal and reads from it, the command's process
    /// group is in the foreground for as long as it works: it reads what is typed, and Ctrl-C is
    /// the command's, not the host's. Where stdin is something else, the command gets the terminal
    /// when it asks for it. When the command is stopped (Ctrl-Z), the host's process group is
    /// stopped too, so that the shell which waits for it goes on, and once that continues the
    /// host, the command goes on. When it ends, the host has its terminal back; if it failed, with
    /// the modes that it had before.
    ///
    /// It is for a host that is a command itself. One with an interface of its own on the terminal
    /// would lose it for the time of the run.
    Foreground,
    /// These bytes, and then the end of the file. A command that ends or closes its stdin before it
    /// has read them all is none the worse for it.
    Bytes(Vec<u8>),
}

impl fmt::Debug for CommandInput {
    /// Without the bytes, which may be many, and secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("Nothing"),
            Self::Inherit => f.write_str("Inherit"),
            Self::Foreground => f.write_str("Foreground"),
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
        }
    }
}

/// The streams of a command that is to be started.
struct Pipes {
    /// What the command gets.
    streams: Streams<OwnedFd>,
    /// Where its input is written to.
    input: Option<PipeWriter>,
    /// Where its stdout and stderr are read, if they are.
    output: [Option<PipeReader>; 2],
    /// Where they are passed on to, if they are.
    passed_to: [Option<OwnedFd>; 2],
}

/// Why a command was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AskedToEnd {
    Cancelled,
    TimeIsUp,
    Idle,
}

impl AskedToEnd {
    fn is_timeout(self) -> bool {
        matches!(self, Self::TimeIsUp | Self::Idle)
    }
}

impl CommandAdapter {
    /// Runs `program`, looked up in `PATH` unless it has a slash.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            cwd: None,
            timeout: None,
            idle_timeout: None,
            max_output_bytes: DEFAULT_MAX_OUTPUT_BYTES,
            keeps_all_output: false,
            output: CommandOutput::Capture,
            stdin: CommandInput::Nothing,
            end_signal: EndSignal::default(),
            adopts_orphans: false,
            guardian: None,
            ignored: Vec::new(),
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args
            .extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable, beside those of the host.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let value = Some(value.as_ref().to_owned());
        self.env.push((name.as_ref().to_owned(), value));
        self
    }

    /// Takes away an environment variable of the host.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), None));
        self
    }

    /// Where it runs. Default: the workspace, else the host's current directory.
    pub fn cwd(mut self, path: impl AsRef<Path>) -> Self {
        self.cwd = Some(path.as_ref().to_owned());
        self
    }

    /// How long it may take. Default: no limit.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// How long it may write nothing to stdout and stderr; then it is ended as by
    /// [`timeout`](Self::timeout). Default: no limit.
    ///
    /// It counts from the start of the command, and from each byte that is read. As long as output
    /// waits for the host or a store, the command is not idle. Zero is refused when the run begins.
    ///
    /// The engine has to see the output for it. With [`CommandOutput::Inherit`] and
    /// [`CommandOutput::Stderr`] it then reads both streams and passes every byte on, in the order
    /// of each stream: the command writes to pipes, also where the host is at a terminal.
    pub fn idle_timeout(mut self, limit: Duration) -> Self {
        self.idle_timeout = Some(limit);
        self
    }

    /// How much of each stream is kept in the result, in bytes. Default: 1 048 576.
    pub fn max_output_bytes(mut self, bytes: usize) -> Self {
        self.max_output_bytes = bytes;
        self
    }

    /// Whether all of each stream becomes an artifact of the run, whatever its length, beside what
    /// the result has. Default: no.
    ///
    /// A stream is stored while it is read, in bounded memory, and also where a timeout or a
    /// cancellation ends the command. [`CommandResult::stdout_ref`] and `stderr_ref` have the keys,
    /// and so has the record of the run; an empty stream has none. If it cannot be stored,
    /// [`CommandResult::output_error`] says why, and the command runs on. Output is passed on as
    /// with [`idle_timeout`](Self::idle_timeout).
    pub fn keep_all_output(mut self, keeps: bool) -> Self {
        self.keeps_all_output = keeps;
        self
    }

    /// Where its output goes. Default: kept.
    pub fn output(mut self, output: CommandOutput) -> Self {
        self.output = output;
        self
    }

    /// Where it reads from. Default: nothing.
    pub fn stdin(mut self, input: CommandInput) -> Self {
        self.stdin = input;
        self
    }

    /// Whether processes that left the command's process group are ended with it too. Default: no.
    ///
    /// While the command runs, the host's process becomes the parent of all orphans of the command
    /// (`PR_SET_CHILD_SUBREAPER`), and once the command has ended, every child of the host is
    /// killed. So it is only for a host that starts nothing else meanwhile, and one command at a
    /// time. If the host has children when the command starts, this option has no effect. Neither
    /// counts of git, by which work is saved meanwhile, and of what is started by
    /// [`start_own_child`](crate::commands::start_own_child).
    pub fn adopt_orphans(mut self, adopts: bool) -> Self {
        self.adopts_orphans = adopts;
        self
    }

    /// Has a guardian process start the command. If the host dies, even by SIGKILL, the guardian
    /// ends the command and everything that it started. Default: no guardian.
    ///
    /// The guardian is the host's own program, started a second time. So the program has to call
    /// [`be_guardian`](crate::commands::be_guardian) first; otherwise a second host would start.
    /// The guardian is the parent of the command and of its orphans. If no guardian can be started,
    /// the host starts the command itself.
    ///
    /// The guardian may be killed, for example by a command that kills its parent. Then the rest of
    /// the command is ended, if the host [adopts](Self::adopt_orphans) orphans, and `when_killed`
    /// is called; a host that is itself a command line program may end there. If `when_killed`
    /// returns, the run fails.
    pub fn guardian(mut self, when_killed: impl Fn() + Send + Sync + 'static) -> Self {
        self.guardian = Some(WhenKilled(Arc::new(when_killed)));
        self
    }

    /// Has the command ignore these signals, by their numbers, when it starts. Default: those that
    /// the host ignores, but SIGPIPE, which is as by default in everything that is started.
    ///
    /// For a host that was started with signals ignored and catches them: a signal that is caught
    /// is as by default in what is started. Then `/bin/sh` is started, ignores them, and becomes
    /// the command.
    pub fn ignoring(mut self, signals: impl IntoIterator<Item = i32>) -> Self {
        self.ignored.extend(signals);
        self
    }

    /// The signal that asks the command to end when its run is cancelled. Default: SIGTERM.
    ///
    /// If that does not end the command soon, SIGTERM follows, and then SIGKILL.
    pub fn end_signal(mut self, signal: EndSignal) -> Self {
        self.end_signal = signal;
        self
    }
}

impl EndSignal {
    /// The signal with this number. An invalid number means SIGTERM.
    pub fn new(number: i32) -> Self {
        Self(Arc::new(AtomicI32::new(number)))
    }

    /// Chooses another one, for all clones.
    pub fn set(&self, number: i32) {
        self.0.store(number, Ordering::Relaxed);
    }

    fn get(&self) -> Signal {
        Signal::from_named_raw(self.0.load(Ordering::Relaxed)).unwrap_or(Signal::TERM)
    }
}

impl Default for EndSignal {
    /// SIGTERM.
    fn default() -> Self {
        Self::new(Signal::TERM.as_raw())
    }
}

impl Adapter for CommandAdapter {
    fn check(&self, workspace: Option<&Path>) -> Result<(), Error> {
        if self.idle_timeout == Some(Duration::ZERO) {
            let message = "the idle timeout of the command is zero, so that it would end at once";
            return Err(Error::invalid_options(message));
        }
        let cwd = self.working_directory(workspace);
        let is_directory = cwd
            .as_deref()
            .is_none_or(|path| std::fs::metadata(path).is_ok_and(|m| m.is_dir()));
        if is_directory {
            return Ok(());
        }
        let cwd = cwd.expect("only one that was given can be wrong");
        Err(Error::invalid_options(format!(
            "the working directory of the command is not a directory: {}",
            printable(&cwd)
        )))
    }

    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        // A question that an adapter asks beside its command does not stop the clock of the run.
        let _part = context.steps.part(context.within);
        let cwd = self.working_directory(context.workspace.as_deref());
        let began = Instant::now();
        let cannot = |what: &'static str| {
            move |e: std::io::Error| AdapterError::failed(format!("cannot {what}: {e}"))
        };
        let pipes = self.pipes().map_err(cannot("pass on its streams"))?;
        let input = self.input(&context).await;
        let input = input.map_err(cannot("give it the input"))?;
        let terminal = self.terminal(&context.blocking).await;
        let mut terminal = terminal.map_err(cannot("give it the terminal"))?;
        let mut orphans = self.orphans(&context.blocking).await;
        let given = (&context, input.as_ref());
        let mut child = match self.start(cwd.as_deref(), pipes.streams, given).await {
            Ok(child) => child,
            Err(e) => return Err(self.not_started(&e, cwd.as_deref(), began).await),
        };
        // From here on nothing of the group outlives this future, however it ends.
        let mut group = ProcessGroup::of(&child);
        if let Some(orphans) = &mut orphans {
            orphans.spare(child.child());
        }
        let stops = child.stops();
        if let Some(terminal) = &mut terminal {
            terminal.begin(&group, stops);
        }
        let silence = Silence::begin();
        let [stdout, stderr] = self.read(pipes.output, pipes.passed_to, &silence, &context);

        let (status, ending) = {
            let waiting = self.wait(&mut child, &group, terminal.as_mut(), &silence, &context);
            let waiting = self.fed(pipes.input, waiting);
            tokio::pin!(waiting);
            loop {
                tokio::select! {
                    biased;
                    ended = &mut waiting => break ended,
                    () = tokio::time::sleep(orphans::REAP_EVERY) => {}
                }
                if let Some(orphans) = &orphans {
                    orphans.reap(&context.blocking).await;
                }
            }
        };
        let left = child.end().await;
        group.end(&context.blocking).await;
        match orphans {
            Some(orphans) if left == Left::Nothing => orphans.release(),
            Some(orphans) => orphans.end(&context.blocking).await,
            None => {}
        }
        let had_terminal = terminal.as_ref().is_some_and(Terminal::is_lent);
        if let Some(terminal) = &mut terminal {
            let is_success = status.as_ref().is_ok_and(ExitStatus::success);
            terminal.take_back(match is_success && ending.is_none() {
                true => ModesKept::Yes,
                false => ModesKept::No,
            });
        }
        if let (Left::Killed, Some(WhenKilled(then))) = (left, &self.guardian) {
            then();
        }
        let mut result = self.result(cwd.as_deref(), began);
        result.had_terminal = had_terminal;
        result.signal = status.as_ref().ok().and_then(|status| status.signal());
        result.timed_out = ending.is_some_and(AskedToEnd::is_timeout);
        result.exit_code = self.exit_code(&status, ending);
        let [stdout, stderr] = [stdout, stderr].map(|s| s.finish(&context.cancellation));
        let (stdout, stderr) = tokio::join!(stdout, stderr);
        result.has_written(stdout, stderr);
        self.send_exit(result.exit_code);

        let error = self.error(&status, ending, result.exit_code);
        let output = AdapterOutput {
            exit_code: Some(result.exit_code),
            command: Some(result),
            ..AdapterOutput::default()
        };
        match error {
            None => Ok(output),
            Some(error) => Err(error.output(output)),
        }
    }
}

/// The run that a command is of, and the input that it goes on with.
type Given<'a> = (&'a RunContext, Option<&'a InputFile>);

/// As timeout(1) has it.
const EXIT_TIMED_OUT: i32 = 124;
/// As the shell has it: found, but not to be executed.
const EXIT_NOT_EXECUTABLE: i32 = 126;
/// As the shell has it: not found.
const EXIT_NOT_FOUND: i32 = 127;

/// How long a command may take to end after another signal than SIGTERM, before that: an
/// interactive one may take a first SIGINT to stop what it is at alone.
const END_GRACE: Duration = Duration::from_millis(1_500);

/// How long a command may take to clean up after SIGTERM, before SIGKILL. Both together are less
/// than what the engine grants an adapter after a cancellation, so that the output is kept.
const TERM_GRACE: Duration = Duration::from_secs(2);

impl CommandAdapter {
    fn working_directory(&self, workspace: Option<&Path>) -> Option<PathBuf> {
        self.cwd.clone().or_else(|| workspace.map(Path::to_owned))
    }

    /// What the command reads from and writes to, and the other ends of that.
    fn pipes(&self) -> std::io::Result<Pipes> {
        let mut input = None;
        let stdin = std::io::stdin();
        let stdin = match &self.stdin {
            CommandInput::Foreground => stdin.as_fd().try_clone_to_owned()?,
            CommandInput::Inherit if !stdin.is_terminal() => stdin.as_fd().try_clone_to_owned()?,
            CommandInput::Inherit | CommandInput::Nothing => File::open("/dev/null")?.into(),
            CommandInput::Bytes(_) => {
                let (stdin, own) = std::io::pipe()?;
                input = Some(own);
                stdin.into()
            }
        };
        let stdout = || std::io::stdout().as_fd().try_clone_to_owned();
        let stderr = || std::io::stderr().as_fd().try_clone_to_owned();
        let hosts = match &self.output {
            CommandOutput::Capture | CommandOutput::Stream(_) => None,
            CommandOutput::Inherit => Some([stdout()?, stderr()?]),
            CommandOutput::Stderr => Some([stderr()?, stderr()?]),
        };
        let is_seen = self.idle_timeout.is_some() || self.keeps_all_output;
        let passed_to = match hosts {
            Some([stdout, stderr]) if !is_seen => {
                return Ok(Pipes {
                    streams: [stdin, stdout, stderr],
                    input,
                    output: [None, None],
                    passed_to: [None, None],
                });
            }
            Some(hosts) => hosts.map(Some),
            None => [None, None],
        };
        let (out, stdout) = std::io::pipe()?;
        let (err, stderr) = std::io::pipe()?;
        Ok(Pipes {
            streams: [stdin, stdout.into(), stderr.into()],
            input,
            output: [Some(out), Some(err)],
            passed_to,
        })
    }

    /// Begins to read what the command writes to stdout and stderr.
    fn read(
        &self,
        [out, err]: [Option<PipeReader>; 2],
        [to_stdout, to_stderr]: [Option<OwnedFd>; 2],
        silence: &Silence,
        context: &RunContext,
    ) -> [Stream; 2] {
        let wanted = |name: &str, piece: fn(Vec<u8>) -> OutputPiece, passed_to| {
            let stem = format!("command_{name}_{}_", context.run_id);
            Wanted {
                max_bytes: match self.output {
                    CommandOutput::Capture | CommandOutput::Stream(_) => self.max_output_bytes,
                    CommandOutput::Inherit | CommandOutput::Stderr => 0,
                },
                sender: match &self.output {
                    CommandOutput::Stream(sender) => Some((sender.clone(), piece)),
                    _ => None,
                },
                passed_to,
                key: self
                    .keeps_all_output
                    .then(|| own_key(&stem).expect("an id is short and printable")),
            }
        };
        let stdout = wanted("stdout", OutputPiece::Stdout, to_stdout);
        let stderr = wanted("stderr", OutputPiece::Stderr, to_stderr);
        [
            Stream::read(out, stdout, silence, context),
            Stream::read(err, stderr, silence, context),
        ]
    }

    /// Does `work`, and meanwhile gives the command its input.
    async fn fed<T>(&self, pipe: Option<PipeWriter>, work: impl Future<Output = T>) -> T {
        let fed = async {
            if let (Some(pipe), CommandInput::Bytes(bytes)) = (pipe, &self.stdin) {
                let pipe = std::process::ChildStdin::from(OwnedFd::from(pipe));
                // Only a runtime that is going down takes none.
                if let Ok(mut pipe) = tokio::process::ChildStdin::from_std(pipe) {
                    // Whoever closes it wants no more, which is no failure.
                    let _ = pipe.write_all(bytes).await;
                }
            }
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            biased;
            done = work => done,
            never = fed => match never {},
        }
    }

    /// Starts the command, by a guardian if there is to be one.
    async fn start(
        &self,
        cwd: Option<&Path>,
        streams: Streams<OwnedFd>,
        given: Given<'_>,
    ) -> std::io::Result<Started> {
        if self.guardian.is_some() {
            match self.guarded(cwd, &streams, given).await {
                Ok(started) => return started.map(Started::Guarded),
                Err(error) => {
                    tracing::warn!(%error, "nothing ends the command when this process is killed");
                }
            }
        }
        let [stdin, stdout, stderr] = streams.map(Stdio::from);
        let words = self.words(cwd);
        let mut command = self.prepared(&words[0], cwd, given);
        command.args(&words[1..]);
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        command.spawn().map(Started::Child)
    }

    /// Starts a guardian, which starts the command; the outer error is why there is none.
    async fn guarded(
        &self,
        cwd: Option<&Path>,
        streams: &Streams<OwnedFd>,
        given: Given<'_>,
    ) -> std::io::Result<std::io::Result<Guarded>> {
        let (host, socket) = UnixStream::pair()?;
        let mut command = self.prepared(guardian_channel::own_program().as_os_str(), cwd, given);
        command.arg0("stillframe").arg(GUARDIAN);
        command.stdin(OwnedFd::from(socket));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn()?;
        // Its end of the socket is its own alone from here on.
        drop(command);
        let words = self.words(cwd);
        let [stdin, stdout, stderr] = streams;
        let streams = [stdin.try_clone()?, stdout.try_clone()?, stderr.try_clone()?];
        let send = move || {
            let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
            guardian_channel::send(
                &host,
                &words,
                streams.each_ref().map(|stream| stream.as_fd()),
            )?;
            Ok::<_, std::io::Error>(host)
        };
        let lost = |_| std::io::Error::other("the runtime is shutting down");
        let host = given.0.blocking.run(send).await.map_err(lost)??;
        let host = std::process::ChildStdout::from(OwnedFd::from(host));
        let host = tokio::process::ChildStdout::from_std(host)?;
        Ok(Guarded::listen(process, host).await)
    }

    /// The program to start and its arguments: those of the command, or of a shell that becomes it.
    /// One that a shell would not find is started as it is, so that the system says what is wrong
    /// with it.
    fn words(&self, cwd: Option<&Path>) -> Vec<OsString> {
        let command = std::iter::once(&self.program).chain(&self.args).cloned();
        if self.ignored.is_empty() || !self.is_found(cwd) {
            return command.collect();
        }
        let numbers: Vec<String> = self.ignored.iter().map(i32::to_string).collect();
        let script = format!("trap '' {}; exec \"$@\"", numbers.join(" "));
        let shell = ["/bin/sh", "-c", &script, "sh"].map(OsString::from);
        shell.into_iter().chain(command).collect()
    }

    /// The exit code with which this command would end in `workspace` because its program cannot be
    /// started, as far as the files say now: 127, there is none; 126, it may not be executed.
    /// `None`: it can be.
    pub fn cannot_start(&self, workspace: Option<&Path>) -> Option<u8> {
        let cwd = self.working_directory(workspace);
        if self.is_found(cwd.as_deref()) {
            return None;
        }
        let here = cwd.unwrap_or_default();
        let is_there = self.program.as_bytes().contains(&b'/') && here.join(&self.program).exists();
        let code = match is_there {
            true => EXIT_NOT_EXECUTABLE,
            false => EXIT_NOT_FOUND,
        };
        u8::try_from(code).ok()
    }

    /// Whether there is such a program, and it may be executed.
    fn is_found(&self, cwd: Option<&Path>) -> bool {
        let here = cwd.unwrap_or(Path::new("."));
        let is_program = |directory: &Path| {
            let path = here.join(directory).join(&self.program);
            path.is_file() && rustix::fs::access(&path, rustix::fs::Access::EXEC_OK).is_ok()
        };
        if self.program.as_bytes().contains(&b'/') {
            return is_program(Path::new(""));
        }
        let own = self.env.iter().rfind(|(name, _)| name == "PATH");
        let path = match own {
            Some((_, value)) => value.clone(),
            None => std::env::var_os("PATH"),
        };
        let directories = path.unwrap_or_default();
        std::env::split_paths(&directories).any(|directory| is_program(&directory))
    }

    /// A command with the environment and the place of this one, as the leader of a process group.
    fn prepared(
        &self,
        program: &OsStr,
        cwd: Option<&Path>,
        (context, input): Given<'_>,
    ) -> Command {
        #[expect(
            clippy::disallowed_methods,
            reason = "programs are started here: the host's own"
        )]
        let mut command = Command::new(program);
        command.process_group(0);
        // It names the run that the host is to start, not one that this command is to start.
        command.env_remove("STILLFRAME_RUN_ID");
        command.env(CURRENT_RUN, context.run_id.as_str());
        InputFile::give(input, &mut command);
        match state_mark(context.steps.state_dir()) {
            Some(mark) => command.env(CURRENT_STATE, mark),
            // That of another run would be wrong.
            None => command.env_remove(CURRENT_STATE),
        };
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(cwd) = cwd {
            command.current_dir(cwd);
        }
        command
    }

    /// The input that the command is to get, if the run goes on with one.
    async fn input(&self, context: &RunContext) -> std::io::Result<Option<InputFile>> {
        let Some(input) = Input::of(context) else {
            return Ok(None);
        };
        let lost = |_| std::io::Error::other("the runtime is shutting down");
        let (state_dir, engine) = context.steps.held_by();
        let file = move || InputFile::of(input, &state_dir, &engine);
        context.blocking.run(file).await.map_err(lost)?.map(Some)
    }

    /// The terminal that the command is to get; `None`: it gets none, or there is none.
    async fn terminal(&self, blocking: &Blocking) -> std::io::Result<Option<Terminal>> {
        if self.stdin != CommandInput::Foreground {
            return Ok(None);
        }
        let lost = |_| std::io::Error::other("the runtime is shutting down");
        blocking.run(Terminal::of_host).await.map_err(lost)?
    }

    /// Where this is asked for and can be done: the way to what leaves the command's group.
    async fn orphans(&self, blocking: &Blocking) -> Option<Orphans> {
        if !self.adopts_orphans {
            return None;
        }
        // Without it the command works as well; what leaves its group is only not found.
        match blocking.run(Orphans::adopt).await {
            Ok(Ok(orphans)) => orphans,
            Ok(Err(error)) => {
                tracing::warn!(%error, "what leaves the command's group will not be found");
                None
            }
            Err(_) => None,
        }
    }

    /// Waits until the command itself has ended, and ends it when its time is up or it is
    /// cancelled.
    async fn wait(
        &self,
        child: &mut Started,
        group: &ProcessGroup,
        terminal: Option<&mut Terminal>,
        silence: &Silence,
        context: &RunContext,
    ) -> (std::io::Result<ExitStatus>, Option<AskedToEnd>) {
        let time_is_up = async {
            match self.timeout {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        let is_idle = async {
            match self.idle_timeout {
                Some(limit) => silence.lasts(limit).await,
                None => std::future::pending().await,
            }
        };
        let terminal_is_missing = async {
            match terminal {
                Some(terminal) => terminal.attend(group, &context.blocking).await,
                None => std::future::pending().await,
            }
        };
        let ending = tokio::select! {
            biased;
            status = child.wait() => return (status, None),
            () = context.cancellation.cancelled() => Some(AskedToEnd::Cancelled),
            () = time_is_up => Some(AskedToEnd::TimeIsUp),
            () = is_idle => Some(AskedToEnd::Idle),
            () = terminal_is_missing => None,
        };
        let first = match ending {
            Some(AskedToEnd::Cancelled) => self.end_signal.get(),
            Some(_) => Signal::TERM,
            // As the kernel does with a stopped group that nobody can continue.
            None => Signal::HUP,
        };
        let steps = [(first, END_GRACE), (Signal::TERM, TERM_GRACE)];
        let steps = &steps[usize::from(first == Signal::TERM)..];
        for (signal, grace) in steps.iter().copied() {
            group.ask(signal);
            if let Ok(status) = tokio::time::timeout(grace, child.wait()).await {
                return (status, ending);
            }
        }
        group.signal(Signal::KILL);
        let status = child.wait().await;
        (status, ending)
    }

    async fn not_started(
        &self,
        error: &std::io::Error,
        cwd: Option<&Path>,
        began: Instant,
    ) -> AdapterError {
        let exit_code = match error.kind() {
            std::io::ErrorKind::NotFound => EXIT_NOT_FOUND,
            _ => EXIT_NOT_EXECUTABLE,
        };
        let mut result = self.result(cwd, began);
        result.exit_code = exit_code;
        self.send_exit(exit_code);
        let message = format!(
            "the command {} cannot be started: {error}",
            printable(Path::new(&self.program))
        );
        let failure = match exit_code {
            EXIT_NOT_FOUND => Failure::new(ErrorKind::NotFound.as_str(), message),
            _ => Failure::new(ErrorKind::Unsupported.as_str(), message),
        };
        AdapterError::new(Ending::Failed, failure).output(AdapterOutput {
            exit_code: Some(exit_code),
            command: Some(result),
            ..AdapterOutput::default()
        })
    }

    fn result(&self, cwd: Option<&Path>, began: Instant) -> CommandResult {
        let cwd = cwd
            .map(Path::to_owned)
            .or_else(|| std::env::current_dir().ok());
        CommandResult {
            command: printable_bytes(self.program.as_encoded_bytes()),
            args: self
                .args
                .iter()
                .map(|arg| printable_bytes(arg.as_encoded_bytes()))
                .collect(),
            cwd: cwd.as_deref().map(printable).unwrap_or_default(),
            exit_code: 0,
            stdout: String::new(),
            stderr: String::new(),
            stdout_bytes: 0,
            stderr_bytes: 0,
            stdout_ref: None,
            stderr_ref: None,
            output_error: None,
            stdout_truncated: false,
            stderr_truncated: false,
            duration_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            timed_out: false,
            signal: None,
            had_terminal: false,
        }
    }

    /// The exit code of a command that ended so. `ending`: what it was asked to end for.
    fn exit_code(&self, status: &std::io::Result<ExitStatus>, ending: Option<AskedToEnd>) -> i32 {
        match (status, ending) {
            (_, Some(AskedToEnd::TimeIsUp | AskedToEnd::Idle)) => EXIT_TIMED_OUT,
            // What was asked to end did not do what it was there for, whatever it answers.
            (Ok(status), Some(_)) if status.success() => 128 + self.end_signal.get().as_raw(),
            (Ok(status), _) => exit_code(*status),
            (Err(_), _) => EXIT_NOT_EXECUTABLE,
        }
    }

    /// Why a command that ended so did not end well; `None`: it did.
    fn error(
        &self,
        status: &std::io::Result<ExitStatus>,
        ending: Option<AskedToEnd>,
        exit_code: i32,
    ) -> Option<AdapterError> {
        match (status, ending) {
            (_, Some(AskedToEnd::Idle)) => Some(AdapterError::timed_out(format!(
                "the command was idle, wrote nothing for {} ms, and was ended",
                self.idle_timeout.unwrap_or_default().as_millis()
            ))),
            (_, Some(AskedToEnd::TimeIsUp)) => Some(AdapterError::timed_out(format!(
                "the command was not done within {} ms and was ended",
                self.timeout.unwrap_or_default().as_millis()
            ))),
            (_, Some(AskedToEnd::Cancelled)) => {
                Some(AdapterError::cancelled("the command was ended on request"))
            }
            (Err(e), None) => Some(AdapterError::failed(format!(
                "the end of the command could not be seen: {e}"
            ))),
            (Ok(status), None) if !status.success() => {
                Some(AdapterError::failed(match status.signal() {
                    Some(signal) => format!("the command was ended by signal {signal}"),
                    None => format!("the command exited with code {exit_code}"),
                }))
            }
            (Ok(_), None) => None,
        }
    }

    /// Sends the last piece. It waits for a slow receiver, the run does not.
    fn send_exit(&self, exit_code: i32) {
        if let CommandOutput::Stream(sender) = &self.output {
            let sender = sender.clone();
            tokio::spawn(async move { sender.send(OutputPiece::Exit(exit_code)).await });
        }
    }
}

/// Starts a command for a guardian, as the leader of a process group: its program and arguments,
/// and its streams.
pub(crate) fn start_guarded(words: &[OsString], streams: Streams<OwnedFd>) -> std::io::Result<Pid> {
    let none = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    let (program, args) = words.split_first().ok_or_else(none)?;
    #[expect(
        clippy::disallowed_methods,
        reason = "programs are started here: the host's own"
    )]
    let mut command = std::process::Command::new(program);
    let [stdin, stdout, stderr] = streams.map(Stdio::from);
    command.args(args).process_group(0);
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    Ok(Pid::from_child(&command.spawn()?))
}

fn exit_code(status: ExitStatus) -> i32 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => EXIT_NOT_EXECUTABLE,
    }
}
