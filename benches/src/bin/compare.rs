//! Measures Stillframe, the least that any capture has to do, and others doing the same work, in turns
//! and in one run. Prints a table, and with `--write DIR` puts it there, with a picture.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use stillframe_backends::Strategy;
use stillframe_benches::peers::{self, FOR_CHANGES};
use stillframe_benches::{
    GitPeer, OURS, Stillframe, TELL_PEAK, Times, Tree, TreeOptions, fit, floor, generate,
    mutate_by, plot, table, tell_peak, usage,
};

const USAGE: &str = "\
usage: compare [--files N[,N...]] [--rounds N] [--only TEXT] [--slow] [--cold] [--no-usage] [--write DIR]

  --files N,...  sizes of the repositories that are made (default 100000)
  --rounds N     how often everything is measured; medians are shown (default 5)
  --only TEXT    only the groups whose name contains TEXT: capture, many, diff, restore, hash, usage
  --slow         also what takes seconds: the common way after changes, libgit2, b3sum, restic, borg
  --cold         also without the page cache, where this user may drop it
  --no-usage     without peak memory and system calls
  --write DIR    also write DIR/<files>.md and DIR/<files>.svg";

struct Options {
    files: Vec<usize>,
    rounds: usize,
    only: Option<String>,
    slow: bool,
    cold: bool,
    usage: bool,
    write: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(TELL_PEAK) => {
            tell_peak(&arguments[1..]).expect("it runs");
            return ExitCode::SUCCESS;
        }
        Some(ONE) => {
            one(&arguments[1..]);
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let Some(options) = options(&arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut sizes = Vec::new();
    for files in &options.files {
        let text = compare(*files, &options, &mut sizes);
        println!("{text}");
    }
    for case in ["unchanged", "170 changes, after", "first capture, clean"] {
        let points: Vec<(f64, f64)> = sizes
            .iter()
            .filter(|(c, ..)| c == case)
            .map(|(_, files, ms)| (*files, *ms))
            .collect();
        if let Some((start, slope)) = fit(&points) {
            println!(
                "{case}: about {start:.1} ms and {:.3} ms for each thousand files",
                slope * 1e3
            );
        }
    }
    ExitCode::SUCCESS
}

fn options(arguments: &[String]) -> Option<Options> {
    let mut options = Options {
        files: vec![100_000],
        rounds: 5,
        only: None,
        slow: false,
        cold: false,
        usage: true,
        write: None,
    };
    let mut arguments = arguments.iter();
    while let Some(name) = arguments.next() {
        match name.as_str() {
            "--files" => {
                let sizes = arguments.next()?.split(',').map(|n| n.parse().ok());
                options.files = sizes.collect::<Option<_>>()?;
            }
            "--rounds" => {
                options.rounds = arguments
                    .next()?
                    .parse()
                    .ok()
                    .filter(|rounds| *rounds > 0)?;
            }
            "--only" => options.only = Some(arguments.next()?.clone()),
            "--slow" => options.slow = true,
            "--cold" => options.cold = true,
            "--no-usage" => options.usage = false,
            "--write" => options.write = Some(arguments.next()?.into()),
            _ => return None,
        }
    }
    Some(options)
}

/// One repository, and everybody who looks at it.
struct Ground<'o> {
    options: &'o Options,
    times: Times,
    home: tempfile::TempDir,
    tree: Tree,
    git: GitPeer,
    stillframe: Stillframe,
    threads: usize,
    nonce: u64,
}

/// Some cases on one repository, which they leave as they found it.
type Group<'o> = fn(&mut Ground<'o>);

fn compare(files: usize, options: &Options, sizes: &mut Vec<(String, f64, f64)>) -> String {
    eprintln!("making a repository of {files} files");
    let home = tempfile::tempdir().expect("a directory");
    let tree = generate(&home.path().join("tree"), TreeOptions::new(files)).expect("made");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut ground = Ground {
        git: GitPeer::new(&tree.path, home.path()),
        stillframe: Stillframe::open(&tree.path, &home.path().join("state")),
        options,
        times: Times::default(),
        home,
        tree,
        threads,
        nonce: 0,
    };
    let groups: [(&str, Group<'_>); 5] = [
        ("capture", Ground::captures),
        ("many changes", Ground::many_changes),
        ("diff", Ground::diffs),
        ("restore", Ground::restores),
        ("hash", Ground::hashes),
    ];
    for round in 1..=options.rounds {
        for (name, group) in groups.iter().filter(|(name, _)| options.wants(name)) {
            eprintln!("round {round} of {}: {name}", options.rounds);
            group(&mut ground);
        }
    }
    for case in ground.times.cases() {
        let ours = ground.times.of_case(case);
        if let Some((_, summary)) = ours.iter().find(|(subject, _)| *subject == OURS) {
            sizes.push((
                case.clone(),
                files as f64,
                summary.median.as_secs_f64() * 1e3,
            ));
        }
    }
    let mut text = format!(
        "{files} files, medians of {} rounds, {threads} cores\n\n{}",
        options.rounds,
        table(&ground.times)
    );
    if options.usage && options.wants("usage") {
        text.push_str(&ground.usages());
    }
    if let Some(directory) = &options.write {
        std::fs::create_dir_all(directory).expect("it can be made");
        let name = |extension| directory.join(format!("{files}.{extension}"));
        std::fs::write(name("md"), &text).expect("it can be written");
        let title = format!("{files} files, medians of {} rounds", options.rounds);
        std::fs::write(name("svg"), plot(&ground.times, &title)).expect("it can be written");
    }
    text
}

impl Options {
    fn wants(&self, group: &str) -> bool {
        self.only
            .as_ref()
            .is_none_or(|only| group.contains(only.as_str()))
    }
}

impl Ground<'_> {
    fn floor(&mut self, case: &str) {
        let (path, threads) = (&self.tree.path, self.threads);
        let subject = format!("floor, {threads} threads");
        self.times.take(case, &subject, || {
            floor(path, threads, false).expect("it can be read")
        });
    }

    fn captures(&mut self) {
        let case = "first capture, clean";
        let fresh = tempfile::tempdir_in(self.home.path()).expect("a directory");
        self.times.take(case, OURS, || {
            Stillframe::open(&self.tree.path, &fresh.path().join("s")).snapshot()
        });
        drop(fresh);
        self.floor(case);
        let git = &self.git;
        self.times.take(case, "git status", || git.status());
        self.times
            .take(case, "git, copied index", || git.tree_copied_index());
        let common = self
            .times
            .take(case, "git, common way", || git.tree_common_way());
        if self.options.slow {
            let path = &self.tree.path;
            let tree = self
                .times
                .take(case, "libgit2 add_all", || peers::libgit2_tree(path));
            assert_eq!(tree, common, "both see one tree");
        }
        let clean = self.stillframe.snapshot();
        assert_eq!(clean.tree, Some(common), "both see one tree");
        git.tree_persistent_index();

        let case = "unchanged";
        self.times.take(case, OURS, || self.stillframe.snapshot());
        self.floor(case);
        self.times.take(case, "git, persistent index", || {
            self.git.tree_persistent_index()
        });
        self.others(case);
        if self.options.cold && drop_caches() {
            let case = "unchanged, cold";
            self.times.take(case, OURS, || self.stillframe.snapshot());
            drop_caches();
            self.floor(case);
            drop_caches();
            self.times.take(case, "git, persistent index", || {
                self.git.tree_persistent_index()
            });
        }
        self.after("170 changes, after", (100, 50, 20));
    }

    fn many_changes(&mut self) {
        let files = self.tree.files.len();
        self.stillframe.snapshot();
        self.git.tree_persistent_index();
        self.after(
            &format!("{} new files, after", files / 5),
            (0, files / 5, 0),
        );
        self.after(
            &format!("{} changed, after", files / 10),
            (files / 10, 0, 0),
        );
    }

    /// What a capture costs after changes, which are taken back.
    fn after(&mut self, case: &str, (modified, added, deleted): (usize, usize, usize)) {
        self.nonce += 1;
        let mutate = |nonce| mutate_by(&self.tree, nonce, modified, added, deleted);
        let mutation = mutate(self.nonce).expect("mutated");
        let ours = self.times.take(case, OURS, || self.stillframe.snapshot());
        let git = &self.git;
        let theirs = self.times.take(case, "git, persistent index", || {
            git.tree_persistent_index()
        });
        assert_eq!(ours.tree, Some(theirs), "both see one tree");
        let path = &self.tree.path;
        let subject = format!("floor, {} threads", self.threads);
        self.times.take(case, &subject, || {
            floor(path, self.threads, false).expect("it can be read")
        });
        mutation.revert().expect("reverted");
        if self.options.slow {
            let mutation = mutate(self.nonce + 1_000_000).expect("mutated");
            self.times
                .take(case, "git, common way", || git.tree_common_way());
            mutation.revert().expect("reverted");
        }
        self.stillframe.snapshot();
        git.tree_persistent_index();
    }

    /// Programs that may be installed.
    fn others(&mut self, case: &str) {
        for peer in FOR_CHANGES {
            let is_slow = !peer.name.contains("status");
            if (is_slow && !self.options.slow) || !peer.is_installed() {
                continue;
            }
            let scratch = tempfile::tempdir_in(self.home.path()).expect("a directory");
            peer.prepare(&self.tree.path, scratch.path());
            self.times.take(case, peer.name, || {
                peer.run(&self.tree.path, scratch.path())
            });
        }
    }

    /// Two snapshots with `changed` files between them, and git's trees of the same; the work tree
    /// holds the second.
    fn two(&mut self, changed: usize) -> Two {
        let from = self.stillframe.snapshot();
        let from_tree = self.git.tree_persistent_index();
        self.nonce += 1;
        let deleted = changed / 8;
        let mutation = mutate_by(
            &self.tree,
            self.nonce,
            changed - 3 * deleted,
            2 * deleted,
            deleted,
        );
        let mutation = mutation.expect("mutated");
        let to = self.stillframe.snapshot();
        let to_tree = self.git.tree_persistent_index();
        Two {
            from,
            to,
            from_tree,
            to_tree,
            mutation,
        }
    }

    fn diffs(&mut self) {
        for changed in [170, 1700] {
            let case = format!("diff with patch, {changed} files");
            let two = self.two(changed);
            self.times
                .take(&case, OURS, || self.stillframe.diff(&two.from, &two.to));
            self.times.take(&case, "git diff-tree -p", || {
                self.git.diff(&two.from_tree, &two.to_tree)
            });
            two.mutation.revert().expect("reverted");
        }
    }

    fn restores(&mut self) {
        for changed in [170, 1700] {
            let case = format!("restore, {changed} files");
            let two = self.two(changed);
            let outcome = self
                .times
                .take(&case, OURS, || self.stillframe.restore(&two.from));
            let parts = outcome.durations;
            for (part, time) in [
                ("apply alone", parts.apply),
                ("guard", parts.guard),
                ("plan", parts.plan),
                ("verification", parts.verify),
            ] {
                self.times.add(&case, &format!("{OURS}: {part}"), time);
            }
            self.stillframe.restore(&two.to);
            self.git.tree_persistent_index();
            self.times.take(&case, "git read-tree --reset -u", || {
                self.git.restore(&two.from_tree)
            });
            two.mutation.revert().expect("reverted");
        }
    }

    fn hashes(&mut self) {
        let case = "hash backend, first";
        let fresh = tempfile::tempdir_in(self.home.path()).expect("a directory");
        let open = |state: &Path| Stillframe::open_with(&self.tree.path, state, Strategy::Hash);
        let state = fresh.path().join("s");
        self.times.take(case, OURS, || open(&state).snapshot());
        let subject = format!("reading every byte, {} threads", self.threads);
        self.times.take(case, &subject, || {
            floor(&self.tree.path, self.threads, true).expect("it can be read")
        });
        if self.options.slow {
            let started = Instant::now();
            if peers::b3sum(&self.tree.files, &self.tree.path) {
                self.times.add(case, "b3sum", started.elapsed());
            }
        }
        let case = "hash backend, unchanged";
        let hash = open(&state);
        hash.snapshot();
        self.times.take(case, OURS, || hash.snapshot());
        drop(hash);
        self.floor(case);
        if self.options.slow {
            self.others(case);
        }
    }

    /// Peak memory and system calls, each in a process of its own.
    fn usages(&self) -> String {
        let program = std::env::current_exe().expect("it runs");
        let text = |path: &Path| path.to_str().expect("made by us").to_owned();
        let state = self.home.path().join("usage");
        let mut lines = String::from(
            "\n| Case | Subject | Peak memory, MiB | System calls |\n|---|---|--:|--:|\n",
        );
        let mut add = |case: &str, subject: &str, command: &[String]| {
            let used = usage(&program, command, self.home.path()).expect("it runs");
            let calls = used.system_calls.map_or(String::new(), |n| n.to_string());
            lines.push_str(&format!(
                "| {case} | {subject} | {:.1} | {calls} |\n",
                used.peak_kib as f64 / 1024.0
            ));
        };
        let ours = |what: &str| {
            let tree = text(&self.tree.path);
            vec![
                text(&program),
                ONE.to_owned(),
                what.to_owned(),
                tree,
                text(&state),
            ]
        };
        add("first capture, clean", OURS, &ours("first"));
        add("unchanged", OURS, &ours("unchanged"));
        let added = self.tree.files.len() / 5;
        let mutation = mutate_by(&self.tree, 0, 0, added, 0).expect("mutated");
        let case = format!("first capture, {added} new files");
        add(&case, OURS, &ours("first"));
        mutation.revert().expect("reverted");
        add("looking at every name", "floor", &ours("floor"));
        let git = |arguments: &[&str]| {
            let all = ["git", "-C", &text(&self.tree.path)];
            all.iter()
                .chain(arguments)
                .map(|a| (*a).to_owned())
                .collect::<Vec<_>>()
        };
        add("status", "git", &git(&["status", "--porcelain"]));
        lines
    }
}

struct Two {
    from: stillframe_backends::Snapshot,
    to: stillframe_backends::Snapshot,
    from_tree: String,
    to_tree: String,
    mutation: stillframe_benches::Mutation,
}

/// The argument with which this program does one thing once: `first`, `unchanged` or `floor`, then
/// the work tree and a state directory.
const ONE: &str = "--one";

fn one(arguments: &[String]) {
    let [what, tree, state] = arguments else {
        panic!("what, work tree, state directory");
    };
    let (tree, state) = (Path::new(tree), Path::new(state));
    match what.as_str() {
        "floor" => drop(floor(tree, 2, false).expect("it can be read")),
        "first" => {
            let _ = std::fs::remove_dir_all(state);
            Stillframe::open(tree, state).snapshot();
        }
        "unchanged" => drop(Stillframe::open(tree, state).snapshot()),
        other => panic!("nobody measures {other}"),
    }
}

/// Drops the page cache; false where this user may not.
fn drop_caches() -> bool {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}
