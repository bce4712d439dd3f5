//! A call at a terminal: a pseudo-terminal that it is the session leader of.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use rustix::pty::OpenptFlags;

/// How long anything at a terminal may take before the test fails.
const DEADLINE: Duration = Duration::from_secs(20);

/// A program that has a terminal to itself, and somebody who types. Dropping it hangs up.
pub struct Terminal {
    keyboard: File,
    shown: Receiver<Vec<u8>>,
    /// Everything that was shown.
    text: Vec<u8>,
    /// How much of it was waited for.
    seen: usize,
    leader: Child,
}

impl Terminal {
    /// Starts `command` as the leader of a session with a terminal of its own.
    #[track_caller]
    pub(crate) fn start(command: &Command) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let controller = rustix::pty::openpt(flags).expect("there are pseudo-terminals");
        rustix::pty::grantpt(&controller).expect("it is ours");
        rustix::pty::unlockpt(&controller).expect("it is ours");
        let device = rustix::pty::ioctl_tiocgptpeer(&controller, flags).expect("it is unlocked");
        let device = File::from(device);
        let end = || Stdio::from(device.try_clone().expect("a descriptor can be copied"));
        // In the group of the test, so that it need not fork to make a session: it becomes the
        // program.
        let mut leader = Command::new("setsid");
        leader.arg("--ctty").arg(command.get_program());
        leader.args(command.get_args()).env_clear();
        leader.envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))));
        leader.current_dir(command.get_current_dir().expect("a call says where"));
        let leader = leader.stdin(end()).stdout(end()).stderr(end()).spawn();
        let leader = leader.expect("setsid of util-linux is there");
        drop(device);
        let keyboard = File::from(controller);
        let mut screen = keyboard.try_clone().expect("a descriptor can be copied");
        let (sender, shown) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // The end is an error, EIO: nobody has the terminal open any more.
            while let Ok(n @ 1..) = screen.read(&mut buffer) {
                if sender.send(buffer[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            keyboard,
            shown,
            text: Vec::new(),
            seen: 0,
            leader,
        }
    }

    /// Types `keys`, as they are.
    #[track_caller]
    pub fn types(&mut self, keys: &str) {
        let typed = self.keyboard.write_all(keys.as_bytes());
        typed.unwrap_or_else(|e| panic!("the terminal is gone ({e}): {}", self.text()));
    }

    /// Waits until `text` is shown, after what was waited for before. What is typed is shown too.
    #[track_caller]
    pub fn shows(&mut self, text: &str) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let rest = &self.text[self.seen..];
            if let Some(at) = rest.windows(text.len()).position(|w| w == text.as_bytes()) {
                self.seen += at + text.len();
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.shown.recv_timeout(left) {
                Ok(bytes) => self.text.extend(bytes),
                Err(_) => panic!("{text:?} was not shown after this: {}", self.text()),
            }
        }
    }

    /// Waits for the end of the program; answers with its exit code.
    #[track_caller]
    pub fn ends(&mut self) -> i32 {
        let deadline = Instant::now() + DEADLINE;
        // Until everybody is gone who could still show something.
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.shown.recv_timeout(left) {
                Ok(bytes) => self.text.extend(bytes),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    panic!("it does not end: {}", self.text())
                }
            }
        }
        let status = self.leader.wait().expect("a child can be waited for");
        status
            .code()
            .unwrap_or_else(|| 128 + status.signal().expect("it ended somehow"))
    }

    /// Everything that was shown.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.text).into_owned()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The death of its leader hangs up the session.
        let _ = rustix::process::kill_process(Pid::from_child(&self.leader), Signal::KILL);
        let _ = self.leader.wait();
    }
}
