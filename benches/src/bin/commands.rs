//! How long a command of the program takes as a process, beside `git status`, and whether it takes
//! longer the more snapshots there are.
//!
//! ```text
//! cargo build --release -p stillframe-cli
//! cargo run --release -p stillframe-benches --bin commands -- target/release/stillframe \
//!     [FILES [SNAPSHOTS,… [ROUNDS]]]
//! ```
//!
//! A repository of `FILES` files is captured until it has as many snapshots as that, a file edited
//! before each; then every command is measured once a round, in turns, with its output thrown away.
//! Everything is in a temporary directory (`TMPDIR`). Beside them: as many syncs as a snapshot
//! waits for, each of a small file that was just written there.

#![expect(clippy::disallowed_methods, reason = "programs are what is measured")]

use std::error::Error;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stillframe_benches::{Times, TreeOptions, generate};

/// See docs/adr/0036-what-a-snapshot-waits-for.md.
const SYNCS: usize = 6;
const GIT: &str = "git status --porcelain";
const SYNCING: &str = "6 syncs";
const SNAPSHOT: &str = "snapshot, unchanged";

/// The program, and where it works.
struct Place {
    program: PathBuf,
    work_tree: PathBuf,
    state: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: commands PROGRAM [FILES [SNAPSHOTS,… [ROUNDS]]]";
    let program = fs::canonicalize(arguments.next().ok_or(usage)?)?;
    let files: usize = arguments.next().map_or(Ok(240), |text| text.parse())?;
    let numbers = arguments.next().unwrap_or_else(|| "10".to_owned());
    let numbers: Vec<usize> = numbers
        .split(',')
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let rounds: usize = arguments.next().map_or(Ok(25), |text| text.parse())?;

    let home = tempfile::tempdir()?;
    let tree = generate(&home.path().join("tree"), TreeOptions::new(files))?;
    tree.settle()?;
    let place = Place {
        program,
        work_tree: tree.path.clone(),
        state: home.path().join("state"),
    };
    let edited = tree.path.join(&tree.files[0]);
    let was = fs::read(&edited)?;
    println!(
        "| {files} files, snapshots | command | median, ms | least | to git status | without 6 syncs |"
    );
    println!("|--:|---|--:|--:|--:|--:|");
    let mut made = 0;
    for number in numbers {
        while made < number {
            made += 1;
            fs::write(&edited, format!("edit {made}\n"))?;
            place.stillframe(&["snapshot"])?;
        }
        fs::write(&edited, &was)?;
        tree.settle()?;
        // What is measured finds nothing to do. It adds one snapshot a round.
        place.stillframe(&["snapshot"])?;
        let times = place.measured(rounds, home.path())?;
        made += 1 + rounds;
        print_rows(&times, number);
    }
    Ok(())
}

fn print_rows(times: &Times, number: usize) {
    let case = "";
    let seconds = |subject: &str| {
        times
            .median(case, subject)
            .unwrap_or_default()
            .as_secs_f64()
    };
    let git = seconds(GIT);
    for row in times.of_case(case) {
        let Ok(summary) = row.result else { continue };
        let median = summary.median.as_secs_f64();
        let without = match row.subject {
            SNAPSHOT => format!("{:.2}", (median - seconds(SYNCING)) / git),
            _ => String::new(),
        };
        println!(
            "| {number} | {} | {:.2} | {:.2} | {:.2} | {without} |",
            row.subject,
            median * 1e3,
            summary.least.as_secs_f64() * 1e3,
            median / git,
        );
    }
}

impl Place {
    fn measured(&self, rounds: usize, home: &Path) -> Result<Times, Box<dyn Error>> {
        let mut times = Times::default();
        for _ in 0..rounds {
            let mut git = Command::new("git");
            git.args(["status", "--porcelain"]);
            // It writes the index anew if it may.
            git.env("GIT_OPTIONAL_LOCKS", "0");
            times.take("", GIT, || self.run(git))?;
            times.take("", SYNCING, || sync_some(home))?;
            for (subject, arguments) in [
                ("--version", &["--version"][..]),
                ("list --limit 10", &["list", "--limit", "10"]),
                ("show latest", &["show", "latest"]),
                (SNAPSHOT, &["snapshot"]),
            ] {
                times.take("", subject, || self.stillframe(arguments))?;
            }
        }
        Ok(times)
    }

    fn stillframe(&self, arguments: &[&str]) -> Result<(), Box<dyn Error>> {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("STILLFRAME_HOME", &self.state);
        self.run(command)
    }

    fn run(&self, mut command: Command) -> Result<(), Box<dyn Error>> {
        let output = command
            .current_dir(&self.work_tree)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output()?;
        match output.status.success() {
            true => Ok(()),
            false => {
                Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
            }
        }
    }
}

/// As a snapshot does it: a small file, made and synced.
fn sync_some(home: &Path) -> Result<(), Box<dyn Error>> {
    for _ in 0..SYNCS {
        let path = home.join("synced");
        let mut file = File::create(&path)?;
        file.write_all(b"a small file\n")?;
        file.sync_all()?;
        fs::remove_file(path)?;
    }
    Ok(())
}
