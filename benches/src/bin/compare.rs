//! Prints how long Stillframe and git take for the same work, measured in turns in one run.
//!
//! `cargo run --release -p stillframe-benches --bin compare -- [--files N] [--rounds N]`

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stillframe_benches::{GitPeer, Stillframe, TreeOptions, generate, mutate};

/// What is measured, in the order of the table.
const CASES: [(&str, &str, &str); 9] = [
    ("first capture, clean", "stillframe", ""),
    ("first capture, clean", "git status", "stillframe"),
    ("first capture, clean", "git, copied index", "stillframe"),
    ("first capture, clean", "git, common way", "stillframe"),
    ("unchanged", "stillframe", ""),
    ("unchanged", "git, persistent index", "stillframe"),
    ("170 changes", "stillframe", ""),
    ("170 changes", "git, persistent index", "stillframe"),
    ("170 changes", "git, common way", "stillframe"),
];

/// The cases on a changed tree.
const CHANGED_CASES: [(&str, &str, &str); 4] = [
    ("diff with patch", "stillframe", ""),
    ("diff with patch", "git diff-tree -p", "stillframe"),
    ("restore 170 changes", "stillframe", ""),
    (
        "restore 170 changes",
        "git read-tree --reset -u",
        "stillframe",
    ),
];

fn main() {
    let (files, rounds) = arguments();
    eprintln!("making a repository of {files} files");
    let home = tempfile::tempdir().expect("a directory");
    let tree = generate(&home.path().join("tree"), TreeOptions::new(files)).expect("made");
    let git = GitPeer::new(&tree.path, home.path());
    let mut stillframe = Stillframe::open(&tree.path, &home.path().join("state"));
    let clean = stillframe.snapshot();
    assert_eq!(
        clean.tree.as_deref(),
        Some(git.tree_common_way().as_str()),
        "both see one tree"
    );
    let clean_tree = git.tree_persistent_index();

    let mut times = Times::default();
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        let fresh = tempfile::tempdir_in(home.path()).expect("a directory");
        times.take("first capture, clean", "stillframe", || {
            Stillframe::open(&tree.path, &fresh.path().join("s")).snapshot();
        });
        times.take("first capture, clean", "git status", || git.status());
        times.take("first capture, clean", "git, copied index", || {
            drop(git.tree_copied_index())
        });
        times.take("first capture, clean", "git, common way", || {
            drop(git.tree_common_way())
        });
        times.take("unchanged", "stillframe", || drop(stillframe.snapshot()));
        times.take("unchanged", "git, persistent index", || {
            drop(git.tree_persistent_index())
        });

        let nonce = round as u64 + 1;
        let mutation = mutate(&tree, nonce).expect("mutated");
        let mut changed = None;
        times.take("170 changes", "stillframe", || {
            changed = Some(stillframe.snapshot())
        });
        let mut changed_tree = String::new();
        times.take("170 changes", "git, persistent index", || {
            changed_tree = git.tree_persistent_index();
        });
        let changed = changed.expect("it was captured");
        assert_eq!(
            changed.tree.as_deref(),
            Some(changed_tree.as_str()),
            "both see one tree"
        );
        mutation.revert().expect("reverted");
        let mutation = mutate(&tree, nonce + 1000).expect("mutated");
        times.take("170 changes", "git, common way", || {
            drop(git.tree_common_way())
        });
        mutation.revert().expect("reverted");
        stillframe.snapshot();
        git.tree_persistent_index();

        times.take("diff with patch", "stillframe", || {
            drop(stillframe.diff(&clean, &changed))
        });
        times.take("diff with patch", "git diff-tree -p", || {
            git.diff(&clean_tree, &changed_tree)
        });
        stillframe.restore(&changed);
        times.take("restore 170 changes", "stillframe", || {
            drop(stillframe.restore(&clean))
        });
        git.restore(&changed_tree);
        times.take("restore 170 changes", "git read-tree --reset -u", || {
            git.restore(&clean_tree)
        });
        stillframe.snapshot();
    }
    println!("{files} files, medians of {rounds} rounds\n");
    println!("| Case | Subject | Median | Spread | stillframe / this |");
    println!("|---|---|--:|--:|--:|");
    for (case, subject, against) in CASES.iter().chain(&CHANGED_CASES) {
        let own = times.of(case, subject);
        let ratio = match times.of(case, against) {
            Some(stillframe) => {
                own.map(|own| stillframe.median.as_secs_f64() / own.median.as_secs_f64())
            }
            None => None,
        };
        let Some(own) = own else { continue };
        let ratio = ratio.map_or(String::new(), |r| format!("{r:.2}"));
        println!(
            "| {case} | {subject} | {:.0} ms | {:.0}–{:.0} | {ratio} |",
            own.median.as_secs_f64() * 1e3,
            own.least.as_secs_f64() * 1e3,
            own.most.as_secs_f64() * 1e3,
        );
    }
}

#[derive(Default)]
struct Times(BTreeMap<(String, String), Vec<Duration>>);

#[derive(Clone, Copy)]
struct Summary {
    median: Duration,
    least: Duration,
    most: Duration,
}

impl Times {
    fn take(&mut self, case: &str, subject: &str, work: impl FnOnce()) {
        let started = Instant::now();
        work();
        let elapsed = started.elapsed();
        self.0
            .entry((case.to_owned(), subject.to_owned()))
            .or_default()
            .push(elapsed);
    }

    fn of(&self, case: &str, subject: &str) -> Option<Summary> {
        let mut all = self.0.get(&(case.to_owned(), subject.to_owned()))?.clone();
        all.sort_unstable();
        Some(Summary {
            median: all[all.len() / 2],
            least: all[0],
            most: all[all.len() - 1],
        })
    }
}

fn arguments() -> (usize, usize) {
    let (mut files, mut rounds) = (100_000, 5);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().and_then(|text| text.parse().ok());
        match (name.as_str(), value) {
            ("--files", Some(value)) => files = value,
            ("--rounds", Some(value)) if value > 0 => rounds = value,
            _ => {
                eprintln!("usage: compare [--files N] [--rounds N]");
                std::process::exit(2);
            }
        }
    }
    (files, rounds)
}
