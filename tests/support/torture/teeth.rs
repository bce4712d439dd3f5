//! Whether the harnesses bite: the program is built with bugs, one of which is made at a time, and
//! the harness or test that is there for it has to find it. With none it has to find nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use crate::binary;
use crate::call::SEEDED_BUG;
use crate::torture::checker::{Finding, Kind};
use crate::torture::tracer::{Refusal, Tracer};
use crate::torture::{Options, Report};

/// A bug, and what finds it.
#[derive(Clone, Copy, Debug)]
pub struct Tooth {
    /// What `seeded_bug!` calls it.
    pub bug: &'static str,
    /// What goes wrong.
    pub what: &'static str,
    /// What is there to find it.
    pub found_by: FoundBy,
    /// A part of what that says of it.
    pub says: &'static str,
}

/// A harness of `torture`, or an acceptance test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FoundBy {
    /// `torture` with these arguments.
    Harness(&'static [&'static str]),
    /// The test of this name in `tests/it`.
    Test(&'static str),
}

use FoundBy::{Harness, Test};

/// Power cuts, seen in the order of the calls.
const ORDER: FoundBy = Harness(&["order"]);
/// Somebody who changes the workspace in the middle of a restore.
const MEDDLE: FoundBy = Harness(&["meddle", "--operations", "240"]);

/// Every bug, with what finds it.
pub const TEETH: [Tooth; 28] = [
    Tooth {
        bug: "answer-not-first",
        what: "a second answer takes the place of the first",
        found_by: Test("questions::a_run_that_asks_rests_and_goes_on_once_with_the_answer"),
        says: "exit code of",
    },
    Tooth {
        bug: "commit-made-anew",
        what: "a step that is gone back from commits under another time",
        found_by: Test("commits::a_commit_of_a_step_that_is_killed_at_any_step_is_made_once"),
        says: "the same commit",
    },
    Tooth {
        bug: "pack-not-synced",
        what: "objects are named before their bytes are synced",
        found_by: ORDER,
        says: "is named before its bytes are synced",
    },
    Tooth {
        bug: "pack-directory-not-synced",
        what: "a ref is made before the names of its objects are synced",
        found_by: ORDER,
        says: "a ref is made before the names in",
    },
    Tooth {
        bug: "ref-not-synced",
        what: "a snapshot is answered for before its ref is synced",
        found_by: ORDER,
        says: "it answers before the names in",
    },
    Tooth {
        bug: "ref-before-pack",
        what: "a ref is made before its objects are there",
        found_by: ORDER,
        says: "which is not there",
    },
    Tooth {
        bug: "artifact-not-synced",
        what: "an artifact is named before its bytes are synced",
        found_by: ORDER,
        says: "is named before its bytes are synced",
    },
    Tooth {
        bug: "artifact-named-before-content",
        what: "the record of an artifact comes before its content",
        found_by: ORDER,
        says: "an artifact is named before",
    },
    Tooth {
        bug: "intent-not-synced",
        what: "files are moved before the intent to do so is synced",
        found_by: ORDER,
        says: "before the intent is synced",
    },
    Tooth {
        bug: "renames-without-intent",
        what: "files are moved before the intent to do so is written",
        found_by: Harness(&["recovery", "--operations", "60"]),
        says: "Lost",
    },
    Tooth {
        bug: "torn-frame-accepted",
        what: "a journal is believed though its checksum does not hold",
        found_by: Harness(&["torn", "--operations", "64"]),
        says: "FOUND",
    },
    Tooth {
        bug: "link-followed-by-the-walk",
        what: "a capture reads through links",
        found_by: Harness(&["faults", "--scene", "first snapshot", "--operations", "8"]),
        says: "git says",
    },
    Tooth {
        bug: "link-followed-by-the-apply",
        what: "a restore writes through links",
        found_by: MEDDLE,
        says: "outside of the workspace",
    },
    Tooth {
        bug: "guard-not-compared",
        what: "a restore displaces what its guard did not see",
        found_by: MEDDLE,
        says: "in neither the workspace nor a snapshot",
    },
    Tooth {
        bug: "guard-not-published",
        what: "a restore goes without a guard",
        found_by: Harness(&["faults", "--scene", "restore", "--operations", "12"]),
        says: "FOUND",
    },
    Tooth {
        bug: "directory-removed-with-all-in-it",
        what: "a directory goes with what no guard has",
        found_by: MEDDLE,
        says: "in neither the workspace nor a snapshot",
    },
    Tooth {
        bug: "no-descriptor-is-no-directory",
        what: "without a descriptor a directory is taken for absent",
        found_by: Harness(&[
            "faults",
            "--scene",
            "first snapshot",
            "--call",
            "open to read",
            "--fault",
            "EMFILE",
            "--operations",
            "200",
        ]),
        says: "Untrue",
    },
    Tooth {
        bug: "list-error-is-end",
        what: "a directory that cannot be listed is taken for empty",
        found_by: Harness(&[
            "faults",
            "--scene",
            "first snapshot",
            "--call",
            "list",
            "--fault",
            "EIO",
            "--operations",
            "40",
        ]),
        says: "Untrue",
    },
    Tooth {
        bug: "read-error-is-end",
        what: "rules that cannot be read are taken for none",
        found_by: Harness(&[
            "faults",
            "--scene",
            "first snapshot",
            "--call",
            "read",
            "--fault",
            "EIO",
            "--operations",
            "160",
        ]),
        says: "Untrue",
    },
    Tooth {
        bug: "look-error-is-absence",
        what: "an index that cannot be looked at is taken for absent, and its pack for garbage",
        found_by: Harness(&[
            "faults",
            "--scene",
            "gc",
            "--call",
            "stat",
            "--fault",
            "EIO",
            "--at",
            ".idx",
            "--operations",
            "60",
        ]),
        says: "FOUND",
    },
    Tooth {
        bug: "short-write-taken-for-whole",
        what: "a write of less is taken for whole",
        found_by: Harness(&[
            "faults",
            "--scene",
            "first snapshot",
            "--call",
            "write",
            "--fault",
            "short",
            "--operations",
            "60",
        ]),
        says: "FOUND",
    },
    Tooth {
        bug: "lock-left",
        what: "a lock stays in the user's repository",
        found_by: Harness(&["faults", "--scene", "undo", "--operations", "8"]),
        says: "stillframe-",
    },
    Tooth {
        bug: "ctime-not-compared",
        what: "a file whose mtime was set back is taken for unchanged",
        found_by: Test("capture::an_edit_whose_mtime_is_set_back_is_seen"),
        says: "panicked",
    },
    Tooth {
        bug: "pin-ignored",
        what: "a collection takes what an open run needs",
        found_by: Test("artifacts::a_clean_up_in_a_run_keeps_what_the_run_goes_back_to"),
        says: "panicked",
    },
    Tooth {
        bug: "foreign-lock-deleted",
        what: "somebody else's lock in the user's repository is deleted",
        found_by: Harness(&["meddle", "--operations", "8"]),
        says: "lock of the index is gone",
    },
    Tooth {
        bug: "ignored-file-deleted",
        what: "a restore deletes what a rule protects",
        found_by: Test(
            "untracked_ignored::an_ignored_file_in_the_place_of_a_captured_one_is_kept_and_named",
        ),
        says: "panicked",
    },
    Tooth {
        bug: "later-edit-overwritten",
        what: "an undo overwrites what was edited since",
        found_by: Test("undo::later_edits_of_others_are_kept_and_named"),
        says: "panicked",
    },
    Tooth {
        bug: "kept-index-not-searched",
        what: "a purge misses what only an index names",
        found_by: Test("purge::a_secret_that_is_only_staged_is_found_and_goes"),
        says: "panicked",
    },
];

impl fmt::Display for FoundBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Harness(args) => write!(f, "torture {}", args.join(" ")),
            Test(name) => write!(f, "test {name}"),
        }
    }
}

/// Builds the program with every bug in it, and lets each be found; or the one of this name.
///
/// # Panics
///
/// If the program cannot be built, or there are no acceptance tests.
pub fn run(bug: Option<&str>, options: &Options) -> Result<Report, Refusal> {
    // What cannot be traced cannot be disturbed either.
    Tracer::new(&options.launcher)?;
    let begin = Instant::now();
    let mouth = Mouth {
        program: binary::seeded(),
        launcher: options.launcher.clone(),
        tests: binary::acceptance_tests().expect("the acceptance tests are built"),
    };
    let chosen = TEETH
        .iter()
        .filter(|tooth| bug.is_none_or(|bug| bug == tooth.bug));
    let chosen: Vec<Tooth> = chosen.copied().collect();
    let healthy: BTreeSet<FoundBy> = chosen.iter().map(|tooth| tooth.found_by).collect();
    let bitten = chosen.iter().map(|tooth| (tooth.found_by, Some(*tooth)));
    let work: Vec<_> = bitten
        .chain(healthy.into_iter().map(|by| (by, None)))
        .collect();
    let work = Mutex::new(work.into_iter());
    let mut report = Report::new("teeth");
    let parts: Vec<Report> = thread::scope(|scope| {
        let worker = || {
            let mut report = Report::new("teeth");
            while let Some((by, tooth)) = next(&work) {
                mouth.bite(by, tooth, &mut report);
            }
            report
        };
        let workers: Vec<_> = (0..options.workers).map(|_| scope.spawn(worker)).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| worker.join();
        let joined = workers.into_iter().map(join);
        joined
            .map(|part| part.expect("a bite does not panic"))
            .collect()
    });
    for part in parts {
        report.merge(part);
    }
    report.took = begin.elapsed();
    Ok(report)
}

/// What is left to do.
type Work = Mutex<std::vec::IntoIter<(FoundBy, Option<Tooth>)>>;

fn next(work: &Work) -> Option<(FoundBy, Option<Tooth>)> {
    work.lock().expect("nobody panics with the lock").next()
}

/// What bites, and into what.
struct Mouth {
    program: PathBuf,
    launcher: PathBuf,
    tests: PathBuf,
}

impl Mouth {
    /// Lets something look for a bug that is there, or with none at all.
    fn bite(&self, by: FoundBy, tooth: Option<Tooth>, report: &mut Report) {
        let begin = Instant::now();
        let mut command = match by {
            Harness(args) => {
                let mut command = Command::new(&self.launcher);
                command.args(args).args(["--workers", "1", "--until-found"]);
                command
            }
            Test(name) => {
                let mut command = Command::new(&self.tests);
                command.args(["--exact", name]);
                command
            }
        };
        command.env("STILLFRAME_BIN", &self.program);
        match tooth {
            Some(tooth) => command.env(SEEDED_BUG, tooth.bug),
            None => command.env_remove(SEEDED_BUG),
        };
        let output = command.output().expect("what was built can be started");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let has_run = match by {
            Harness(_) => matches!(output.status.code(), Some(0 | 1)),
            // One that is not there passes in silence.
            Test(_) => text.contains("running 1 test"),
        };
        let seconds = begin.elapsed().as_secs_f64();
        let case = match tooth {
            Some(tooth) => format!("{}, {by}", tooth.bug),
            None => format!("no bug, {by}"),
        };
        let toothless = |text: String| Finding::new(Kind::Toothless, text);
        if !has_run {
            report.find(&case, [toothless(format!("it cannot look: {text}"))]);
            return;
        }
        match tooth {
            Some(tooth) => {
                report.tried += 1;
                let is_found = !output.status.success() && text.contains(tooth.says);
                let row = format!(
                    "{}: {} ({seconds:.1} s)",
                    tooth.bug,
                    first_words(&text, tooth.says)
                );
                if is_found {
                    report.hit += 1;
                    report.count("found", row);
                } else {
                    let why = format!("{} was not found ({seconds:.1} s): {text}", tooth.what);
                    report.find(&case, [toothless(why)]);
                }
            }
            None if output.status.success() => {
                report.count(
                    "nothing found without a bug",
                    format!("{by} ({seconds:.1} s)"),
                );
            }
            None => report.find(
                &case,
                [toothless(format!("there is no bug, and yet: {text}"))],
            ),
        }
    }
}

/// The line in which something is said, short enough for a table.
fn first_words(text: &str, says: &str) -> String {
    let line = text.lines().find(|line| line.contains(says));
    let line = line.unwrap_or_default();
    let from = line.find("): ").map_or(0, |at| at + 3);
    line[from..].chars().take(160).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every bug that the sources name.
    fn sown() -> BTreeSet<String> {
        let sources = ["artifact-store/src", "backends", "engine/src", "cli/src"];
        let files = sources.into_iter().flat_map(|directory| {
            walkdir::WalkDir::new(binary::project().join(directory)).into_iter()
        });
        let mut sown = BTreeSet::new();
        for entry in files
            .flatten()
            .filter(|e| e.file_type().is_file() && e.file_name() != "seeded.rs")
        {
            let text = std::fs::read_to_string(entry.path()).unwrap();
            let names = text.split("seeded_bug!(\"").skip(1);
            sown.extend(names.map(|part| part.split('"').next().unwrap().to_owned()));
        }
        sown
    }

    #[test]
    fn every_bug_that_is_sown_has_what_finds_it() {
        let found: BTreeSet<String> = TEETH.iter().map(|tooth| tooth.bug.to_owned()).collect();
        assert_eq!(sown(), found);
        assert!(
            TEETH.len() >= 15 && found.len() == TEETH.len(),
            "none twice"
        );
    }

    // A program that can be told to lose bytes is nothing to give to anybody
    #[test]
    fn the_program_knows_none_of_the_bugs() {
        let bytes = std::fs::read(binary::stillframe()).unwrap();
        // Not by windows of bytes: the program is long, and a search of text is quick in any build.
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("STILLFRAME_HOME"), "it can be looked for");
        assert!(!text.contains(SEEDED_BUG));
        for tooth in TEETH {
            assert!(!text.contains(tooth.bug), "{}", tooth.bug);
        }
    }
}
