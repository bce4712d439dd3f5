//! Calling the program under test, and what came of it.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::schema::Schemas;
use crate::terminal::Terminal;

/// A call that has not begun. Its environment holds only what is set here.
#[must_use = "nothing happens before `run` or `start`"]
#[derive(Clone)]
pub struct Call {
    program: PathBuf,
    args: Vec<OsString>,
    cwd: PathBuf,
    env: Vec<(OsString, OsString)>,
    uid: Option<u32>,
    stdin: Vec<u8>,
    deadline: Duration,
}

/// A call that goes on. Dropping it kills the process.
pub struct Running {
    pid: Pid,
    status: Receiver<ExitStatus>,
    ended: Option<ExitStatus>,
    stdout: Stream,
    stderr: Stream,
    deadline: Instant,
    what: String,
    typed: Option<Vec<OsString>>,
}

/// What came of a call.
#[derive(Clone, Debug)]
pub struct Output {
    /// The exit code; 128 + N for a program that signal N ended.
    pub code: i32,
    /// Everything on standard output.
    pub stdout: Vec<u8>,
    /// Everything on standard error.
    pub stderr: Vec<u8>,
    /// How long it took.
    pub took: Duration,
    what: String,
    /// The arguments of the program under test, if it was called.
    typed: Option<Vec<OsString>>,
}

struct Stream {
    bytes: Arc<Mutex<Vec<u8>>>,
    closed: Receiver<()>,
}

impl Call {
    /// A call of `program` in the directory `cwd` with an empty environment.
    pub fn new(program: impl Into<PathBuf>, cwd: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            cwd: cwd.into(),
            env: Vec::new(),
            uid: None,
            stdin: Vec::new(),
            // Far above what anything here takes on a busy machine, far below "for ever".
            deadline: Duration::from_secs(60),
        }
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args
            .extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Sets the directory to start in.
    pub fn cwd(mut self, cwd: impl Into<PathBuf>) -> Self {
        self.cwd = cwd.into();
        self
    }

    /// Sets a variable of the environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let name = name.as_ref().to_owned();
        self.env.retain(|(n, _)| *n != name);
        self.env.push((name, value.as_ref().to_owned()));
        self
    }

    /// Takes a variable out of the environment.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.env.retain(|(n, _)| n != name.as_ref());
        self
    }

    /// Runs as this user, with the group of the same number and no other group.
    pub fn uid(mut self, uid: u32) -> Self {
        self.uid = Some(uid);
        self
    }

    /// Sets what the program reads on standard input. Default: nothing.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// Sets how long it may take before the test fails. Default: a minute.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Puts another program in front, which gets this call as its last arguments.
    pub fn through<S: AsRef<OsStr>>(
        mut self,
        program: impl Into<PathBuf>,
        args: impl IntoIterator<Item = S>,
    ) -> Self {
        let mut all: Vec<OsString> = args.into_iter().map(|a| a.as_ref().to_owned()).collect();
        all.push(std::mem::replace(&mut self.program, program.into()).into());
        all.append(&mut self.args);
        self.args = all;
        self
    }

    /// Starts it and waits for its end.
    #[track_caller]
    pub fn run(self) -> Output {
        self.start().wait()
    }

    /// Starts it at a terminal of its own, where somebody can type; what was set as its input is
    /// left out.
    #[track_caller]
    pub fn at_terminal(self) -> Terminal {
        let mut command = Command::new(&self.program);
        command.args(&self.args).current_dir(&self.cwd);
        command.envs(self.env);
        Terminal::start(&command)
    }

    /// The command that this call is, without its input, in a process group of its own.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .current_dir(&self.cwd)
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .process_group(0);
        if let Some(uid) = self.uid {
            command.uid(uid).gid(uid);
        }
        command
    }

    /// The program and its arguments, for people.
    pub(crate) fn what(&self) -> String {
        let mut what = self.program.display().to_string();
        for arg in &self.args {
            let _ = write!(what, " {}", arg.as_encoded_bytes().escape_ascii());
        }
        what
    }

    /// The arguments of the program under test, if this calls it, be it through another program.
    fn typed(&self) -> Option<Vec<OsString>> {
        let is_it = |word: &OsStr| Path::new(word).file_name() == Some("stillframe".as_ref());
        match is_it(self.program.as_os_str()) {
            true => Some(self.args.clone()),
            false => {
                let at = self.args.iter().position(|word| is_it(word))?;
                Some(self.args[at + 1..].to_vec())
            }
        }
    }

    /// Starts it.
    #[track_caller]
    pub fn start(self) -> Running {
        let (what, typed) = (self.what(), self.typed());
        let mut child = self
            .command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {what}: {e}"));
        let pid = Pid::from_child(&child);
        let mut stdin = child.stdin.take().expect("it is piped");
        let input = self.stdin;
        thread::spawn(move || {
            // A program that does not read its input is free to do so.
            let _ = stdin.write_all(&input);
        });
        let stdout = Stream::of(child.stdout.take().expect("it is piped"));
        let stderr = Stream::of(child.stderr.take().expect("it is piped"));
        let (sender, status) = mpsc::channel();
        thread::spawn(move || {
            let status = child.wait().expect("a child can be waited for");
            let _ = sender.send(status);
        });
        Running {
            pid,
            status,
            ended: None,
            stdout,
            stderr,
            deadline: Instant::now() + self.deadline,
            what,
            typed,
        }
    }
}

impl Stream {
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (sender, closed) = mpsc::channel();
        let target = Arc::clone(&bytes);
        thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok(n @ 1..) = pipe.read(&mut buffer) {
                target
                    .lock()
                    .expect("nobody panics with the lock")
                    .extend_from_slice(&buffer[..n]);
            }
            let _ = sender.send(());
        });
        Self { bytes, closed }
    }

    fn so_far(&self) -> Vec<u8> {
        self.bytes
            .lock()
            .expect("nobody panics with the lock")
            .clone()
    }
}

impl Running {
    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends `signal` to the process alone.
    pub fn signal(&self, signal: Signal) {
        // It may have ended already.
        let _ = rustix::process::kill_process(self.pid, signal);
    }

    /// Everything that it has written to standard output so far.
    pub fn stdout_so_far(&self) -> String {
        String::from_utf8_lossy(&self.stdout.so_far()).into_owned()
    }

    /// Looks again and again until `done`, at most until the deadline.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        while !done(self) {
            if Instant::now() > self.deadline {
                self.kill();
                panic!("{}: waited in vain until {what}", self.what);
            }
            // The program is watched mid-way, and nothing wakes us.
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the process and what it started in its group.
    pub fn kill(&mut self) {
        if self.ended.is_none() {
            let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
        }
    }

    /// Waits for the end. Fails the test if that does not come within the deadline.
    #[track_caller]
    pub fn wait(mut self) -> Output {
        let begin = Instant::now();
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        let Ok(status) = self.status.recv_timeout(left(self.deadline)) else {
            self.kill();
            panic!("{} did not end in time", self.what);
        };
        self.ended = Some(status);
        for stream in [&self.stdout, &self.stderr] {
            assert!(
                stream.closed.recv_timeout(left(self.deadline)).is_ok(),
                "{} has ended, but somebody still holds its output open",
                self.what
            );
        }
        Output {
            code: status
                .code()
                .unwrap_or_else(|| 128 + status.signal().expect("it ended somehow")),
            stdout: self.stdout.so_far(),
            stderr: self.stderr.so_far(),
            took: begin.elapsed(),
            what: std::mem::take(&mut self.what),
            typed: self.typed.take(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Output {
    /// What came of a call that somebody else looked after.
    pub(crate) fn new(
        what: String,
        code: i32,
        stdout: Vec<u8>,
        stderr: Vec<u8>,
        took: Duration,
    ) -> Self {
        Self {
            code,
            stdout,
            stderr,
            took,
            what,
            typed: None,
        }
    }

    /// Asserts that the exit code is zero.
    #[track_caller]
    pub fn ok(self) -> Self {
        self.exits(0)
    }

    /// Asserts the exit code.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "exit code of {self}");
        self
    }

    /// The one JSON document on standard output, which is as the schemas of its command say.
    #[track_caller]
    pub fn json(&self) -> Value {
        let document = serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|e| panic!("standard output is not one JSON document ({e}): {self}"));
        let _ = self.check(&document);
        document
    }

    /// The JSON documents on standard output, one for each line, which are as the schemas of their
    /// command say.
    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        self.stdout_text()
            .lines()
            .map(|line| {
                let document = serde_json::from_str(line)
                    .unwrap_or_else(|e| panic!("not a JSON document ({e}): {line:?} of {self}"));
                let _ = self.check(&document);
                document
            })
            .collect()
    }

    /// The files of `docs/schema` that have the documents on standard output.
    #[track_caller]
    pub fn schemas(&self) -> Vec<&'static str> {
        let documents = serde_json::Deserializer::from_slice(&self.stdout).into_iter();
        let documents = documents.map(|document| document.expect("it is JSON"));
        documents
            .filter_map(|document| self.check(&document))
            .collect()
    }

    #[track_caller]
    fn check(&self, document: &Value) -> Option<&'static str> {
        let typed = self.typed.as_ref()?;
        match Schemas::get().check_printed(typed, document) {
            Ok(file) => file,
            Err(why) => panic!("docs/schema has another document:\n{why}\n{self}"),
        }
    }

    /// Asserts exit code 1 and, on standard output, a JSON document that says so: an error of this
    /// kind, which left everything untouched. Answers with its message.
    #[track_caller]
    pub fn refused(self, kind: &str) -> String {
        let output = self.exits(1);
        output.error(kind)
    }

    /// Asserts that the document on standard output is an error of this kind which left everything
    /// untouched, whatever the exit code, and that the last line on standard error says the same.
    /// Answers with its message.
    #[track_caller]
    pub fn error(&self, kind: &str) -> String {
        let document = self.json();
        let error = &document["error"];
        assert_eq!(error["kind"], kind, "the kind of error of {self}");
        assert_eq!(error["touched"], false, "nothing was touched by {self}");
        let message = error["message"]
            .as_str()
            .unwrap_or_else(|| panic!("an error has a message: {self}"));
        assert!(!message.is_empty(), "an error has a message: {self}");
        assert!(!message.contains('\n'), "a message is one line: {self}");
        let told = self.stderr_text();
        let told = told.lines().next_back().unwrap_or_default();
        assert!(
            told.starts_with(&format!("stillframe: {message}")),
            "stderr says it too: {self}"
        );
        message.to_owned()
    }

    /// Standard output as text.
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

impl std::fmt::Display for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cut = |text: String| -> String { text.chars().take(4000).collect() };
        write!(
            f,
            "{}\nexit code: {}\nstdout: {}\nstderr: {}",
            self.what,
            self.code,
            cut(self.stdout_text()),
            cut(self.stderr_text())
        )
    }
}

/// The variable that chooses a bug of a program that was built with the feature `seeded-bugs`.
pub(crate) const SEEDED_BUG: &str = "STILLFRAME_SEEDED_BUG";

/// The variables that every program of a test gets, beside those of the test.
pub(crate) fn base_env(home: &Path) -> Vec<(OsString, OsString)> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let mut env: Vec<(OsString, OsString)> = vec![
        ("PATH".into(), path),
        ("HOME".into(), home.into()),
        ("LC_ALL".into(), "C.UTF-8".into()),
        ("TERM".into(), "dumb".into()),
    ];
    // A build that measures coverage says with the first where to write; the second chooses a bug
    // of a program that was built with some.
    for name in ["LLVM_PROFILE_FILE", SEEDED_BUG] {
        if let Some(value) = std::env::var_os(name) {
            env.push((name.into(), value));
        }
    }
    env
}

/// Whether no thread of a process goes on: it was sent SIGSTOP, or its tracer holds it. Each thread
/// stops for itself, a while after the signal.
pub fn is_stopped(process: Pid) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    tasks.is_ok_and(|tasks| {
        let mut states = tasks.filter_map(|task| {
            let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
            stat.rsplit(") ").next()?.chars().next()
        });
        states.all(|state| matches!(state, 'T' | 't'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Call {
        Call::new("/bin/sh", "/").args(["-c", script])
    }

    #[test]
    fn both_streams_and_the_exit_code_come_back() {
        let output = shell("printf out; printf err >&2; exit 3").run();
        assert_eq!(output.code, 3);
        assert_eq!(output.stdout, b"out");
        assert_eq!(output.stderr, b"err");
    }

    #[test]
    fn a_death_by_signal_is_128_and_its_number() {
        assert_eq!(shell("kill -TERM $$").run().code, 143);
    }

    #[test]
    fn the_environment_holds_only_what_was_set() {
        let output = Call::new("/usr/bin/env", "/").env("A", "1").run();
        assert_eq!(output.stdout, b"A=1\n");
    }

    #[test]
    fn a_program_that_never_ends_fails_the_test() {
        let call = shell("sleep 100").deadline(Duration::from_millis(50));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| call.run()));
        let message = outcome.expect_err("it has to fail");
        let text = message.downcast_ref::<String>().expect("a message");
        assert!(text.contains("did not end in time"), "{text}");
    }

    #[test]
    fn a_program_put_in_front_gets_the_call_as_arguments() {
        let output = Call::new("/bin/echo", "/")
            .args(["a", "b"])
            .through("/usr/bin/env", ["X=1"])
            .run();
        assert_eq!(output.stdout, b"a b\n");
    }
}
