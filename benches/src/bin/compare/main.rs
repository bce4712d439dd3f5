//! Measures Stillframe, the least that any capture has to do, and others doing the same work, in
//! turns and in one run. Prints tables, and with `--write DIR` puts them there, with pictures.
//! `docs/benchmarks/README.md` says what the cases and the others are.

mod captures;
mod diffs;
mod ground;
mod hashes;
mod large_files;
mod options;
mod output;
mod tasks;
mod usages;
mod worktrees;

use std::process::ExitCode;

use stillframe_benches::{Shape, TELL_PEAK, tell_peak};

use ground::Ground;
use options::Options;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(TELL_PEAK) => {
            tell_peak(&arguments[1..]).expect("it runs");
            return ExitCode::SUCCESS;
        }
        Some(usages::ONE) => {
            usages::one(&arguments[1..]);
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let Some(mut options) = Options::of(&arguments) else {
        eprintln!("{}", options::USAGE);
        return ExitCode::from(2);
    };
    // Asked for once: each time takes what everybody else on the machine has in memory.
    options.cold = options.cold && ground::drop_caches();
    let _lock = options.lock_trees();
    // None is let go of before the last is measured: files that are made where many were deleted
    // just before are slow to make.
    let mut done = Vec::new();
    for files in &options.files {
        let grounds = measure(*files, &options);
        output::size(*files, &grounds, &options);
        done.push((*files, grounds));
    }
    output::growth(&done, &options);
    ExitCode::SUCCESS
}

/// Some cases on one repository, which they leave as they found it.
type Group = fn(&mut Ground<'_>);

/// The groups of cases, and the repositories that they are measured on.
const GROUPS: [(&str, Shape, Group); 10] = [
    ("capture", Shape::Mixed, |g| g.captures()),
    ("watched", Shape::Mixed, |g| g.watched()),
    ("many", Shape::Mixed, |g| g.many_changes()),
    ("diff", Shape::Mixed, |g| g.diffs()),
    ("restore", Shape::Mixed, |g| g.restores()),
    ("hash", Shape::Mixed, |g| g.hashes()),
    ("task", Shape::Mixed, |g| g.tasks()),
    ("worktree", Shape::Mixed, |g| g.worktrees()),
    ("tiny directories", Shape::TinyDirectories, |g| g.captures()),
    ("one directory", Shape::OneDirectory, |g| g.captures()),
];

fn measure<'o>(files: usize, options: &'o Options) -> Vec<Ground<'o>> {
    let wanted: Vec<_> = GROUPS
        .iter()
        .filter(|(name, ..)| options.wants(name))
        .collect();
    let mut grounds = Vec::new();
    for shape in [Shape::Mixed, Shape::TinyDirectories, Shape::OneDirectory] {
        let is_used = wanted.iter().any(|(_, of, _)| *of == shape)
            || shape == Shape::Mixed && options.usage && options.wants("usage");
        if is_used {
            grounds.push(Ground::new(shape, files, options));
        }
    }
    let mut large = options
        .wants("large files")
        .then(|| Ground::for_large_files(options));
    for round in 1..=options.rounds {
        for ground in &mut grounds {
            let shape = ground.shape;
            for (name, _, group) in wanted.iter().filter(|(_, of, _)| *of == shape) {
                eprintln!("round {round} of {}: {name}", options.rounds);
                group(ground);
            }
        }
        if let Some(ground) = &mut large {
            eprintln!("round {round} of {}: large files", options.rounds);
            ground.large_files();
        }
    }
    grounds.extend(large);
    if options.usage && options.wants("usage") {
        for ground in &mut grounds {
            ground.usages();
        }
    }
    grounds
}
