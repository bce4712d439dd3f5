//! Processes of a run that are still running although its engine has died.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use stillframe_backends::printable_bytes;

use crate::blocking::Blocking;
use crate::id::RunId;
use crate::process::guardian_channel::GUARDIAN;
use crate::records::recovery::Survivor;

/// The variable that names its run to a command. Whatever the command starts inherits it, and the
/// id of a run is used once in a state directory, so that no process can be taken for another that
/// has its id by now.
pub(crate) const CURRENT_RUN: &str = "STILLFRAME_CURRENT_RUN";

/// The variable that says in which state directory that run is on record: a host may choose the
/// same id in two.
pub(crate) const CURRENT_STATE: &str = "STILLFRAME_CURRENT_STATE";

/// What a state directory is known by, as long as processes live: its device and inode, which a
/// new name or another path to it do not change, and which no other directory of the machine has.
/// `None`: it cannot be looked at. Blocks.
pub(crate) fn state_mark(state_dir: &Path) -> Option<String> {
    let found = fs::metadata(state_dir).ok()?;
    Some(format!("{}:{}", found.dev(), found.ino()))
}

/// Whether a process with this environment is of a run that is on record in the state directory of
/// this mark. One that does not say in which it is, because it was started by an earlier version or
/// has lost the variable, may be.
fn is_of(environment: &[u8], run: &RunId, state: Option<&str>) -> bool {
    let value = |name: &str| {
        let mut variables = environment.split(|b| *b == 0);
        variables.find_map(|v| v.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    };
    let is_other = |here: &str| value(CURRENT_STATE).is_some_and(|its| its != here.as_bytes());
    value(CURRENT_RUN) == Some(run.as_str().as_bytes()) && !state.is_some_and(is_other)
}

/// How long a guardian takes at most to end what it guards, once its host is dead.
const GUARDIAN_TIMEOUT: Duration = Duration::from_secs(2);

/// How often those that a guardian ends are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The processes that `run` had started, which is on record in `state_dir`, and that can still do
/// something, by their environment. Blocks.
///
/// Not seen are those of other users, and those that were started with another environment (`env
/// -i`, `sudo`) or have overwritten it.
pub(crate) fn survivors(run: &RunId, state_dir: &Path) -> Vec<Survivor> {
    let state = state_mark(state_dir);
    let us = rustix::process::getpid().as_raw_nonzero().get();
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut survivors: Vec<Survivor> = processes
        .flatten()
        .filter_map(|entry| {
            let process = entry.file_name().to_str()?.parse().ok()?;
            // That of one that only waits to be reaped is empty.
            let environment = fs::read(entry.path().join("environ")).ok()?;
            let is_marked = is_of(&environment, run, state.as_deref());
            (process != us && is_marked).then(|| Survivor {
                process,
                name: name(process),
                run_id: run.clone(),
            })
        })
        .collect();
    survivors.sort_by_key(|survivor| survivor.process);
    survivors
}

/// As [`survivors`], once a guardian among them has ended what it guards.
pub(crate) async fn unguarded(run: &RunId, state_dir: &Path, blocking: &Blocking) -> Vec<Survivor> {
    let began = Instant::now();
    loop {
        let (asked, state_dir) = (run.clone(), state_dir.to_owned());
        let look = move || {
            let found = survivors(&asked, &state_dir);
            let is_guarded = found.iter().any(|survivor| is_guardian(survivor.process));
            (found, is_guarded)
        };
        // Only a runtime that is going down does not look.
        let (found, is_guarded) = blocking.run(look).await.unwrap_or_default();
        if !is_guarded || began.elapsed() > GUARDIAN_TIMEOUT {
            return found;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// A few of them, in words.
pub(crate) fn some_of(survivors: &[Survivor]) -> String {
    /// The most that a message lists.
    const MAX: usize = 5;
    let named: Vec<String> = survivors
        .iter()
        .take(MAX)
        .map(Survivor::to_string)
        .collect();
    match survivors.len().saturating_sub(MAX) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

fn name(process: i32) -> String {
    let name = fs::read(format!("/proc/{process}/comm")).unwrap_or_default();
    printable_bytes(name.trim_ascii_end())
}

fn is_guardian(process: i32) -> bool {
    let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    line.split(|b| *b == 0).nth(1) == Some(GUARDIAN.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::Stdio;

    use super::*;

    #[test]
    fn what_inherits_the_name_of_a_run_is_of_that_run_and_of_no_other() {
        let run = RunId::random();
        let state = Path::new("/");
        #[expect(clippy::disallowed_methods, reason = "a process is to be found")]
        let mut child = std::process::Command::new("cat")
            .env(CURRENT_RUN, run.as_str())
            .env(CURRENT_STATE, state_mark(state).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The kernel lets a parent go on before the program has its environment, but not before it
        // has answered.
        child.stdin.as_mut().unwrap().write_all(b"?").unwrap();
        let mut answer = [0];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut answer)
            .unwrap();
        let found = survivors(&run, state);
        let elsewhere = survivors(&run, Path::new("/proc"));
        let prefix: RunId = run.as_str()[..8].parse().unwrap();
        let others = survivors(&prefix, state);
        child.kill().unwrap();
        // Not reaped yet.
        let mut is_gone = false;
        for _ in 0..1_000_000 {
            is_gone = survivors(&run, state).is_empty();
            if is_gone {
                break;
            }
        }
        child.wait().unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].process.unsigned_abs(), child.id());
        assert_eq!(
            found[0].to_string(),
            format!("process {} (cat)", child.id())
        );
        assert!(others.is_empty(), "{others:?}");
        assert!(elsewhere.is_empty(), "{elsewhere:?}");
        assert!(is_gone, "one that has ended does nothing any more");
    }

    #[test]
    fn a_process_is_of_a_run_and_of_the_state_directory_in_which_that_is() {
        let run: RunId = "ticket-42".parse().unwrap();
        let ours = "STILLFRAME_CURRENT_RUN=ticket-42";
        let at = |state: &str| format!("A=b\0{ours}\0STILLFRAME_CURRENT_STATE={state}\0");
        for (environment, state, is_its) in [
            (at("1:2"), Some("1:2"), true),
            (at("1:2"), Some("1:20"), false),
            (at("1:20"), Some("1:2"), false),
            (at(""), Some("1:2"), false),
            (at("1:2"), None, true),
            (format!("{ours}\0"), Some("1:2"), true),
            (format!("{ours}\0"), None, true),
            (format!("{ours}0\0"), None, false),
            (format!("X{ours}\0"), None, false),
            (
                "STILLFRAME_CURRENT_STATE=1:2\0".to_owned(),
                Some("1:2"),
                false,
            ),
            (String::new(), None, false),
        ] {
            let found = is_of(environment.as_bytes(), &run, state);
            assert_eq!(found, is_its, "{environment:?} {state:?}");
        }
    }

    #[test]
    fn of_many_a_few_are_named() {
        let one = |process| Survivor {
            process,
            name: "sh".to_owned(),
            run_id: RunId::random(),
        };
        assert_eq!(some_of(&[one(1), one(2)]), "process 1 (sh), process 2 (sh)");
        let many: Vec<_> = (1..9).map(one).collect();
        assert!(some_of(&many).ends_with("process 5 (sh) and 3 more"));
    }
}
