//! The command that prints a token, which the user has typed or set.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use stillframe::tasks::Secret;
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use crate::user_command::{Group, UserCommand, ended};

/// How long it may take. It may ask a person for a touch or a passphrase, in a window of its own.
const LIMIT: Duration = Duration::from_secs(60);

/// How long what it has written may take to be read once it has ended.
const READ: Duration = Duration::from_millis(100);

/// What it may print: a token, and what somebody has noted beside it.
const MAX_BYTES: usize = 1 << 20;

/// The variable in which it finds the address that the token is for.
const REMOTE: &str = "STILLFRAME_REMOTE";

/// It is run without the variables of git, so that no repository takes part in what it does, with
/// nothing to read. What it says on standard error is nobody's: it may be what is secret.
#[derive(Clone, Debug)]
pub(crate) struct TokenCommand {
    command: UserCommand,
    limit: Duration,
}

impl TokenCommand {
    pub(crate) fn new(line: String) -> Self {
        Self {
            command: UserCommand::new(line),
            limit: LIMIT,
        }
    }

    /// The first line that it prints. `Err` says in one line why there is none, without anything
    /// that it printed.
    pub(crate) async fn token(&self, remote: &str) -> Result<Secret, String> {
        let printed = match timeout(self.limit, self.printed(remote)).await {
            Ok(Ok(Ended::Well(printed))) => {
                Secret::new(printed).map_err(|_| "printed no token in its first line".to_owned())
            }
            Ok(Ok(Ended::Badly(status))) => Err(ended(status)),
            Ok(Ok(Ended::TooMuch)) => Err(format!("printed more than {MAX_BYTES} bytes")),
            Ok(Err(e)) => Err(format!("could not be run: {e}")),
            Err(_) => Err(format!(
                "was killed, because it took more than {} seconds",
                self.limit.as_secs_f32()
            )),
        };
        printed.map_err(|what| format!("the token command{} {what}", self.command.name()))
    }

    /// Its first line, and how it ended.
    async fn printed(&self, remote: &str) -> io::Result<Ended> {
        let mut group = self.start(remote)?;
        let mut stdout = group.child.stdout.take().expect("it was asked for");
        let (mut printed, mut is_open) = (Vec::new(), true);
        let status = loop {
            tokio::select! {
                biased;
                read = stdout.read_buf(&mut printed), if is_open => is_open = read? > 0,
                status = group.child.wait() => break status?,
            }
            if printed.len() > MAX_BYTES {
                return Ok(Ended::TooMuch);
            }
        };
        // What it has left behind may hold the pipe open; what it wrote itself is there.
        while is_open && printed.len() <= MAX_BYTES {
            let read = timeout(READ, stdout.read_buf(&mut printed)).await;
            is_open = matches!(read, Ok(Ok(1..)));
        }
        if !status.success() {
            return Ok(Ended::Badly(status));
        }
        let line = printed.iter().position(|byte| *byte == b'\n');
        printed.truncate(line.unwrap_or(printed.len()));
        Ok(Ended::Well(printed))
    }

    fn start(&self, remote: &str) -> io::Result<Group> {
        self.command.start(|command| {
            for (name, _) in std::env::vars_os() {
                if name.as_encoded_bytes().starts_with(b"GIT_") {
                    command.env_remove(name);
                }
            }
            command
                .env(REMOTE, remote)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
        })
    }
}

/// How it ended.
enum Ended {
    /// With this in its first line.
    Well(Vec<u8>),
    Badly(ExitStatus),
    TooMuch,
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use stillframe::tasks::Credential;
    use tokio::runtime::Builder;

    use super::*;

    fn token_within(line: &str, limit: Duration) -> Result<String, String> {
        let command = TokenCommand {
            command: UserCommand::new(line.to_owned()),
            limit,
        };
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a thread can be had");
        let token = runtime.block_on(command.token("https://git.example.com/a.git"))?;
        // What is secret is not shown, so it is compared.
        let Credential::Token { token, .. } = Credential::token(token, None) else {
            panic!("it is a token");
        };
        Ok(format!("{token:?}"))
    }

    #[test]
    fn what_is_wrong_is_said_without_what_was_printed() {
        for (line, said) in [
            (
                "echo s3cret; exit 3",
                "the token command (echo …) exited with code 3",
            ),
            (
                "echo s3cret >&2; kill -9 $$",
                "the token command (echo …) was ended by signal 9",
            ),
            (
                "true",
                "the token command (true …) printed no token in its first line",
            ),
            (
                "echo; echo s3cret",
                "the token command (echo …) printed no token in its first line",
            ),
            (
                "printf 's3\\tcret'",
                "the token command (printf …) printed no token in its first line",
            ),
            (
                "yes s3cret",
                "the token command (yes …) printed more than 1048576 bytes",
            ),
            ("A=s3cret; exit 1", "the token command exited with code 1"),
            (
                "/nowhere/s",
                "the token command (/nowhere/s …) exited with code 127",
            ),
        ] {
            let wrong = token_within(line, LIMIT).expect_err(line);
            assert_eq!(wrong, said);
        }
    }

    #[test]
    fn one_that_hangs_is_killed_with_all_that_it_started() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let pid = directory.path().join("pid");
        let line = format!("sh -c 'echo $$ >{}; exec sleep 600'; true", pid.display());
        let begin = Instant::now();
        let wrong = token_within(&line, Duration::from_secs(2)).expect_err("it hangs");
        assert!(wrong.contains("took more than 2 seconds"), "{wrong}");
        assert!(begin.elapsed() < Duration::from_secs(60));
        let pid = std::fs::read_to_string(pid).expect("it had begun");
        let stat = std::path::Path::new("/proc").join(pid.trim()).join("stat");
        let is_at_work = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z"));
        while is_at_work() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it is left");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn one_that_leaves_somebody_behind_is_not_waited_for() {
        let begin = Instant::now();
        token_within("sleep 30 & echo s3cret", LIMIT).expect("it printed one");
        assert!(begin.elapsed() < Duration::from_secs(25));
    }
}
