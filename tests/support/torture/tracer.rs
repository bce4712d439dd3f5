//! Runs a program, and does something to one of its system calls.
//!
//! The program is started by a launcher, which asks to be traced, installs a seccomp filter that
//! stops at the system calls in question and at no other, and then becomes the program. A call
//! that stops is left alone, skipped with an error for an answer, made shorter, or never made
//! because the process is killed; see `SECCOMP_RET_TRACE` in seccomp(2) and ptrace(2).
//!
//! What the dynamic loader does before `main` counts as little as what the programs do that the
//! traced one starts.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::torture::call_class::{CallClass, Made, Subject};
use crate::torture::fault::Fault;
use crate::{Call, Output};

/// The first argument that makes `torture` a launcher.
pub const LAUNCH: &str = "--launch";

/// The exit code of a launcher that may not do its work.
const REFUSED: i32 = 119;

/// Why nothing can be disturbed here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Registers are read on x86-64 only.
    #[error("system calls are traced on x86-64 only")]
    Architecture,
    /// The kernel, or a container, does not let us trace.
    #[error("this machine does not let a program be traced: {0}")]
    Machine(String),
    /// The kernel, or a container, gives us no mounts or no block device.
    #[error("this machine does not let a disk be made: {0}")]
    Mounts(String),
}

/// What is to be done, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Injection {
    /// To a call of this class.
    pub class: CallClass,
    /// To which of them, counted from 1 over all threads of the process.
    pub nth: usize,
    /// What is done.
    pub fault: Fault,
}

/// What came of a traced call.
#[derive(Debug)]
pub struct Traced {
    /// What it answered. A death by a signal is the exit code 128 + N.
    pub output: Output,
    /// The call that it was done to, with the path that it is about, if it came to that.
    pub hit: Option<Hit>,
    /// How many calls of each class there were.
    pub counts: BTreeMap<CallClass, usize>,
    /// It did not end within its time, and was killed.
    pub hung: bool,
}

/// The call that something was done to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Its number.
    pub number: i64,
    /// Which file it is about, as far as it says; may be empty.
    pub path: String,
    /// It was about standard output or standard error, so less may have been said.
    pub is_answer: bool,
}

/// A call that is about to be made, and waits for whoever looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its class.
    pub class: CallClass,
    /// Which of its class it is, counted from 1 over all threads of the process.
    pub nth: usize,
    /// The file that it is about, absolute; of a call with two, the new name. Empty: it is about
    /// none.
    pub path: PathBuf,
    /// The old name, of a call with two.
    pub from: Option<PathBuf>,
    /// It is about standard output.
    pub is_answer: bool,
    /// It is about everything on the file system of its path.
    pub is_of_all: bool,
}

/// Looks at calls before they are made.
type Bystander<'a> = &'a mut dyn FnMut(&Seen);

/// Runs programs under a filter.
#[derive(Clone, Debug)]
pub struct Tracer {
    launcher: PathBuf,
    deadline: Duration,
}

/// One process that is being traced.
struct Tracee<'a> {
    main: Pid,
    memory: File,
    injection: Option<&'a Injection>,
    bystander: Option<Bystander<'a>>,
    /// `main` has begun: the loader is done.
    has_begun: bool,
    /// Threads of the process itself.
    ours: BTreeSet<Pid>,
    /// Threads of the programs that it started.
    others: BTreeSet<Pid>,
    counts: BTreeMap<CallClass, usize>,
    hit: Option<Hit>,
}

impl Tracer {
    /// A tracer with this launcher, once it was seen to work here.
    pub fn new(launcher: &Path) -> Result<Self, Refusal> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(Refusal::Architecture);
        }
        let tracer = Self {
            launcher: launcher.to_owned(),
            deadline: Duration::from_secs(20),
        };
        let probe = Call::new("/bin/sh", "/").args(["-c", "exit 7"]);
        let output = tracer.run(&probe, None)?.output;
        match output.code {
            7 => Ok(tracer),
            _ => Err(Refusal::Machine(output.stderr_text())),
        }
    }

    /// Sets how long a program may take. Default: 20 seconds.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Runs `call` to its end, and to the end of everything that it started.
    pub fn run(&self, call: &Call, injection: Option<&Injection>) -> Result<Traced, Refusal> {
        self.trace(call, injection, None)
    }

    /// Runs `call` likewise, and shows each call to `bystander` before it is made: the program
    /// waits meanwhile, so that anything can be done to its files.
    pub fn watch(&self, call: &Call, bystander: &mut dyn FnMut(&Seen)) -> Result<Traced, Refusal> {
        self.trace(call, None, Some(bystander))
    }

    fn trace<'a>(
        &self,
        call: &Call,
        injection: Option<&'a Injection>,
        bystander: Option<Bystander<'a>>,
    ) -> Result<Traced, Refusal> {
        let machine = |e: &dyn std::fmt::Display| Refusal::Machine(e.to_string());
        let mut stdout = tempfile::tempfile().map_err(|e| machine(&e))?;
        let mut stderr = tempfile::tempfile().map_err(|e| machine(&e))?;
        let begin = Instant::now();
        let child = self
            .command(call, injection)
            .stdin(Stdio::null())
            .stdout(stdout.try_clone().map_err(|e| machine(&e))?)
            .stderr(stderr.try_clone().map_err(|e| machine(&e))?)
            .spawn()
            .map_err(|e| machine(&e))?;
        let main = Pid::from_raw(i32::try_from(child.id()).expect("pids are small"));
        let first = waitpid(main, Some(WaitPidFlag::__WALL)).map_err(|e| machine(&e))?;
        if !matches!(first, WaitStatus::Stopped(_, Signal::SIGSTOP)) {
            return Err(Refusal::Machine(text_of(&mut stderr)));
        }
        ptrace::setoptions(main, stops()).map_err(|e| machine(&e))?;
        let mut tracee = Tracee {
            main,
            // The launcher's; the program's, once it has become that.
            memory: File::open("/dev/null").map_err(|e| machine(&e))?,
            injection,
            bystander,
            has_begun: false,
            ours: BTreeSet::from([main]),
            others: BTreeSet::new(),
            counts: BTreeMap::new(),
            hit: None,
        };
        let hung = AtomicBool::new(false);
        let (done, is_done) = mpsc::channel::<()>();
        let code = thread::scope(|scope| {
            scope.spawn(|| {
                let is_done = is_done;
                if is_done.recv_timeout(self.deadline) == Err(mpsc::RecvTimeoutError::Timeout) {
                    hung.store(true, Ordering::Relaxed);
                    // It may have ended this moment.
                    let _ = kill(main, Signal::SIGKILL);
                }
            });
            let code = tracee.until_the_end();
            drop(done);
            code
        });
        if code == REFUSED {
            return Err(Refusal::Machine(text_of(&mut stderr)));
        }
        let bytes = |file: &mut File| bytes_of(file).map_err(|e| machine(&e));
        let (out, err) = (bytes(&mut stdout)?, bytes(&mut stderr)?);
        Ok(Traced {
            output: Output::new(call.what(), code, out, err, begin.elapsed()),
            hit: tracee.hit,
            counts: tracee.counts,
            hung: hung.into_inner(),
        })
    }

    /// The launcher with `call` for its arguments.
    fn command(&self, call: &Call, injection: Option<&Injection>) -> Command {
        let numbers: BTreeSet<i64> = match injection {
            Some(injection) => injection.class.numbers().collect(),
            None => CallClass::ALL
                .into_iter()
                .flat_map(CallClass::numbers)
                .collect(),
        };
        let numbers: Vec<String> = numbers.iter().map(i64::to_string).collect();
        let target = call.command();
        let mut command = Command::new(&self.launcher);
        command
            .arg(LAUNCH)
            .arg(numbers.join(","))
            .arg(target.get_program())
            .args(target.get_args())
            .env_clear()
            .envs(
                target
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .process_group(0);
        if let Some(dir) = target.get_current_dir() {
            command.current_dir(dir);
        }
        command
    }
}

impl Tracee<'_> {
    /// Lets it run; answers with the exit code.
    fn until_the_end(&mut self) -> i32 {
        let mut code = None;
        self.go_on(self.main, None);
        loop {
            // Only what this thread has started: others trace too.
            let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
            match waitpid(Pid::from_raw(-1), Some(flags)) {
                Ok(WaitStatus::Exited(pid, status)) if pid == self.main => code = Some(status),
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == self.main => {
                    code = Some(128 + signal as i32);
                }
                Ok(WaitStatus::Stopped(pid, Signal::SIGSTOP)) => self.go_on(pid, None),
                Ok(WaitStatus::Stopped(pid, signal)) => self.go_on(pid, Some(signal)),
                Ok(WaitStatus::PtraceEvent(pid, _, event)) => {
                    match event {
                        libc::PTRACE_EVENT_EXEC if pid == self.main => self.look_into_memory(),
                        libc::PTRACE_EVENT_SECCOMP => self.at_a_call(pid),
                        _ => {}
                    }
                    self.go_on(pid, None);
                }
                Ok(_) | Err(Errno::EINTR) => {}
                // Nobody is left.
                Err(_) => break,
            }
        }
        code.unwrap_or(128 + Signal::SIGKILL as i32)
    }

    fn go_on(&self, pid: Pid, signal: Option<Signal>) {
        // It may have been killed meanwhile, which the next wait tells.
        let _ = ptrace::cont(pid, signal);
    }

    fn look_into_memory(&mut self) {
        if let Ok(memory) = File::open(format!("/proc/{}/mem", self.main)) {
            self.memory = memory;
        }
    }

    /// A thread is about to make a call that the filter knows.
    fn at_a_call(&mut self, pid: Pid) {
        if !self.is_ours(pid) || (self.injection.is_some() && self.hit.is_some()) {
            self.let_go(pid);
            return;
        }
        let Ok(made) = registers::read(pid) else {
            return;
        };
        if made.number == BEGIN {
            self.has_begun = true;
        }
        if !self.has_begun {
            return;
        }
        let flags = |address| self.word(address);
        let Some(class) = CallClass::of(&made, flags) else {
            return;
        };
        let wanted = self.injection.filter(|i| i.class == class);
        if self.injection.is_some() && wanted.is_none() {
            return;
        }
        let Some(path) = self.subject(pid, &made) else {
            return;
        };
        let is_short = wanted.is_some_and(|i| i.fault == Fault::Short);
        let length = made.length_at().map(|at| (at, made.args[at]));
        let can_be_short = length.is_some_and(|(_, bytes)| bytes > 1);
        if is_short && !can_be_short {
            return;
        }
        let count = self.counts.entry(class).or_default();
        *count += 1;
        let nth = *count;
        if self.bystander.is_some() {
            let seen = self.seen(pid, &made, class, nth);
            if let Some(bystander) = &mut self.bystander {
                bystander(&seen);
            }
        }
        let Some(injection) = wanted.filter(|i| i.nth == nth) else {
            return;
        };
        let is_done = match injection.fault {
            Fault::Fails(code) => registers::skip(pid, code.errno()),
            Fault::Short => {
                let (at, bytes) = length.expect("it can be short");
                registers::set_argument(pid, at, bytes / 2)
            }
            Fault::Kill => kill(self.main, Signal::SIGKILL),
        };
        if is_done.is_ok() {
            let is_answer = made.subject() == Subject::Descriptor && matches!(made.args[0], 1 | 2);
            self.hit = Some(Hit {
                number: made.number,
                path,
                is_answer,
            });
        }
    }

    /// No call of this thread is of interest any more, nor of those that it starts: they need not
    /// stop.
    fn let_go(&self, pid: Pid) {
        const SUSPEND_SECCOMP: i32 = 1 << 21; // PTRACE_O_SUSPEND_SECCOMP in ptrace(2)
        let options = stops() | ptrace::Options::from_bits_retain(SUSPEND_SECCOMP);
        // Who may not have it that way is stopped in vain.
        let _ = ptrace::setoptions(pid, options);
    }

    fn is_ours(&mut self, pid: Pid) -> bool {
        if !self.ours.contains(&pid) && !self.others.contains(&pid) {
            let is_thread = Path::new(&format!("/proc/{}/task/{pid}", self.main)).exists();
            match is_thread {
                true => self.ours.insert(pid),
                false => self.others.insert(pid),
            };
        }
        self.ours.contains(&pid)
    }

    /// The file that the call is about. `None`: it is no file that a disk could fail.
    fn subject(&self, pid: Pid, made: &Made) -> Option<String> {
        let path = match made.subject() {
            Subject::Nothing => return Some(String::new()),
            Subject::Path(at) => self.text(made.args[at]),
            Subject::Descriptor => {
                let descriptor = i32::try_from(made.args[0]).ok()?;
                let link = format!("/proc/{pid}/fd/{descriptor}");
                let path = std::fs::read_link(link).ok()?;
                let path = path.to_string_lossy().into_owned();
                if !path.starts_with('/') {
                    return None;
                }
                path
            }
        };
        let is_of_the_kernel = ["/proc/", "/sys/", "/dev/urandom", "/dev/null"]
            .iter()
            .any(|place| path.starts_with(place));
        (!is_of_the_kernel).then_some(path)
    }

    /// All that a bystander wants to know of a call.
    fn seen(&self, pid: Pid, made: &Made, class: CallClass, nth: usize) -> Seen {
        let (from, path) = match made.number {
            libc::SYS_rename | libc::SYS_link => (
                Some(self.file_at(pid, None, made.args[0])),
                self.file_at(pid, None, made.args[1]),
            ),
            libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat => (
                Some(self.file_at(pid, Some(made.args[0]), made.args[1])),
                self.file_at(pid, Some(made.args[2]), made.args[3]),
            ),
            libc::SYS_symlinkat => (None, self.file_at(pid, Some(made.args[1]), made.args[2])),
            _ => match made.subject() {
                Subject::Nothing => (None, PathBuf::new()),
                Subject::Descriptor => (None, descriptor(pid, made.args[0])),
                // What takes a path second takes a directory first.
                Subject::Path(0) => (None, self.file_at(pid, None, made.args[0])),
                Subject::Path(at) => (
                    None,
                    self.file_at(pid, Some(made.args[at - 1]), made.args[at]),
                ),
            },
        };
        Seen {
            class,
            nth,
            path,
            from,
            is_answer: made.subject() == Subject::Descriptor && made.args[0] == 1,
            is_of_all: made.number == libc::SYS_syncfs,
        }
    }

    /// The path at `address`, taken from a directory: the current one, if there is no other.
    fn file_at(&self, pid: Pid, directory: Option<u64>, address: u64) -> PathBuf {
        let mut bytes = vec![0; 4096];
        let read = self.memory.read_at(&mut bytes, address).unwrap_or(0);
        let end = bytes[..read].iter().position(|b| *b == 0).unwrap_or(read);
        let path = Path::new(OsStr::from_bytes(&bytes[..end]));
        if path.is_absolute() {
            return path.to_owned();
        }
        // The kernel takes it for an `int`.
        let current = |fd: &u64| *fd as u32 == libc::AT_FDCWD.cast_unsigned();
        match directory.filter(|fd| !current(fd)) {
            Some(fd) => descriptor(pid, fd).join(path),
            None => std::fs::read_link(format!("/proc/{pid}/cwd"))
                .unwrap_or_default()
                .join(path),
        }
    }

    fn word(&self, address: u64) -> u64 {
        let mut word = [0; 8];
        match self.memory.read_exact_at(&mut word, address) {
            Ok(()) => u64::from_ne_bytes(word),
            Err(_) => 0,
        }
    }

    /// The text at `address`, as much of it as is worth showing.
    fn text(&self, address: u64) -> String {
        let mut bytes = [0; 256];
        let read = self.memory.read_at(&mut bytes, address).unwrap_or(0);
        let end = bytes[..read].iter().position(|b| *b == 0).unwrap_or(read);
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}

/// Where a tracee stops: at the calls of the filter, and when there is more to trace.
fn stops() -> ptrace::Options {
    ptrace::Options::PTRACE_O_EXITKILL
        | ptrace::Options::PTRACE_O_TRACECLONE
        | ptrace::Options::PTRACE_O_TRACEFORK
        | ptrace::Options::PTRACE_O_TRACEVFORK
        | ptrace::Options::PTRACE_O_TRACEEXEC
        | ptrace::Options::PTRACE_O_TRACESECCOMP
}

/// What a descriptor of a process leads to.
fn descriptor(pid: Pid, number: u64) -> PathBuf {
    std::fs::read_link(format!("/proc/{pid}/fd/{number}")).unwrap_or_default()
}

/// The first call of the standard library of Rust: it looks whether the standard descriptors are
/// open. What comes before it is the loader's.
const BEGIN: i64 = libc::SYS_poll;

/// What the launcher does with what follows [`LAUNCH`]: it lets itself be traced, installs the
/// filter and becomes the program. Answers with an exit code if it cannot.
pub fn launch(mut args: impl Iterator<Item = OsString>) -> i32 {
    let Some(numbers) = args.next() else {
        return REFUSED;
    };
    let numbers = numbers.to_string_lossy().into_owned();
    let Some(program) = args.next() else {
        return REFUSED;
    };
    let refused = |what: &str, why: &dyn std::fmt::Display| {
        eprintln!("{what}: {why}");
        REFUSED
    };
    let filter = match filter(&numbers) {
        Ok(filter) => filter,
        Err(e) => return refused("the filter cannot be made", &e),
    };
    if let Err(e) = ptrace::traceme() {
        return refused("ptrace is refused", &e);
    }
    // Whoever traces sets its options, and lets us go on.
    if let Err(e) = raise(Signal::SIGSTOP) {
        return refused("it cannot be stopped", &e);
    }
    if let Err(e) = seccompiler::apply_filter(&filter) {
        return refused("a filter is refused", &e);
    }
    let error = Command::new(program).args(args).exec();
    refused("the program cannot be started", &error)
}

/// A filter that stops at these system calls, and at the one that tells that `main` has begun.
fn filter(numbers: &str) -> Result<BpfProgram, String> {
    let arch = std::env::consts::ARCH
        .try_into()
        .map_err(|e: seccompiler::BackendError| e.to_string())?;
    let mut rules: BTreeMap<i64, Vec<seccompiler::SeccompRule>> = BTreeMap::new();
    for number in numbers.split(',').filter(|n| !n.is_empty()) {
        let number = number
            .parse()
            .map_err(|_| format!("{number:?} is no number"))?;
        rules.insert(number, Vec::new());
    }
    rules.insert(BEGIN, Vec::new());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Trace(0), arch);
    filter
        .and_then(BpfProgram::try_from)
        .map_err(|e| e.to_string())
}

fn bytes_of(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn text_of(file: &mut File) -> String {
    let bytes = bytes_of(file).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// The registers of a thread that is about to make a system call.
#[cfg(target_arch = "x86_64")]
mod registers {
    use nix::errno::Errno;
    use nix::sys::ptrace;
    use nix::unistd::Pid;

    use super::Made;

    pub(super) fn read(pid: Pid) -> Result<Made, Errno> {
        let r = ptrace::getregs(pid)?;
        Ok(Made {
            number: r.orig_rax.cast_signed(),
            args: [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9],
        })
    }

    /// The call is not made, and answers with this error.
    pub(super) fn skip(pid: Pid, errno: Errno) -> Result<(), Errno> {
        let mut r = ptrace::getregs(pid)?;
        r.orig_rax = u64::MAX;
        r.rax = (-i64::from(errno as i32)).cast_unsigned();
        ptrace::setregs(pid, r)
    }

    pub(super) fn set_argument(pid: Pid, at: usize, value: u64) -> Result<(), Errno> {
        let mut r = ptrace::getregs(pid)?;
        let register = match at {
            0 => &mut r.rdi,
            1 => &mut r.rsi,
            2 => &mut r.rdx,
            3 => &mut r.r10,
            4 => &mut r.r8,
            _ => &mut r.r9,
        };
        *register = value;
        ptrace::setregs(pid, r)
    }
}

/// [`Tracer::new`] has refused before any of this is called.
#[cfg(not(target_arch = "x86_64"))]
mod registers {
    use nix::errno::Errno;
    use nix::unistd::Pid;

    use super::Made;

    pub(super) fn read(_: Pid) -> Result<Made, Errno> {
        Err(Errno::ENOSYS)
    }

    pub(super) fn skip(_: Pid, _: Errno) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    pub(super) fn set_argument(_: Pid, _: usize, _: u64) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }
}
