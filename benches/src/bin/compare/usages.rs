//! Peak memory and system calls, each in a process of its own.

use std::cell::Cell;
use std::path::Path;

use stillframe_backends::Strategy;
use stillframe_benches::case::{
    AFTER_FRESH, COMMON_WAY, FIRST, HASH_FIRST, NEW_FILES, OURS, PERSISTENT_INDEX, UNCHANGED_FRESH,
};
use stillframe_benches::{Changes, Mutation, Stillframe, Used, Way, floor, usage};

use crate::ground::{Ground, Site};
use crate::large_files::{self, LargeFile};

/// The argument with which this program does one thing once: `first`, `fresh`, `hash` or `floor`,
/// then the work tree and a state directory.
pub(crate) const ONE: &str = "--one";

/// Does it.
pub(crate) fn one(arguments: &[String]) {
    let [what, tree, state] = arguments else {
        panic!("what, work tree, state directory");
    };
    let (tree, state) = (Path::new(tree), Path::new(state));
    let new = |strategy| {
        let _ = std::fs::remove_dir_all(state);
        Stillframe::open_with(tree, state, strategy).snapshot();
    };
    match what.as_str() {
        "floor" => drop(floor(tree, 2, false).expect("it can be read")),
        "first" => new(Strategy::Auto),
        "hash" => new(Strategy::Hash),
        "fresh" => drop(Stillframe::open(tree, state).snapshot()),
        other => panic!("nobody measures {other}"),
    }
}

/// The most memory, in MiB, that a capture should hold with so many files, a fifth of them being
/// new.
fn max_mib(files: usize, are_new: bool) -> Option<u64> {
    match (files, are_new) {
        (0..=100_000, true) => Some(160),
        (0..=100_000, false) => Some(48),
        (100_001..=1_000_000, _) => Some(256),
        _ => None,
    }
}

/// The most memory, in MiB, that a capture should hold because of a large file.
const MAX_MIB_OF_A_LARGE_FILE: u64 = 64;

impl Ground<'_> {
    pub(crate) fn usages(&mut self) {
        eprintln!("memory and system calls: {}", self.title);
        match self.suffix {
            "-large-files" => self.usage_of_a_large_file(),
            "" => {
                self.usage_of_captures();
                self.usage_of_others();
            }
            _ => self.usage_of_captures(),
        }
    }

    fn usage_of_captures(&mut self) {
        let bound = max_mib(self.site.tree.files.len(), false);
        let bound_new = max_mib(self.site.tree.files.len(), true);
        let ours = |what| ours(&self.site, what);
        let (first, fresh, hash) = (ours("first"), ours("fresh"), ours("hash"));
        self.use_of(FIRST, OURS, bound, &first, |_| ());
        self.use_of(UNCHANGED_FRESH, OURS, bound, &fresh, |_| ());
        self.use_after(AFTER_FRESH, OURS, bound, &fresh, Changes::RUN);
        let fifth = Changes {
            modified: 0,
            added: self.site.tree.files.len() / 5,
            deleted: 0,
        };
        self.use_after(NEW_FILES, OURS, bound_new, &fresh, fifth);
        self.use_of(HASH_FIRST, OURS, bound, &hash, |_| ());
    }

    fn usage_of_others(&mut self) {
        let floor = ours(&self.site, "floor");
        self.use_of(UNCHANGED_FRESH, "floor, 2 threads", None, &floor, |_| ());
        let all = "git read-tree HEAD && git add -A && git write-tree";
        let common = git(&self.site, Way::Common, all);
        let index = self.site.state(&format!("index-{:?}", Way::Common));
        self.use_of(FIRST, COMMON_WAY, None, &common, |_| {
            let _ = std::fs::remove_file(&index);
        });
        let persistent = git(&self.site, Way::Persistent, "git add -A && git write-tree");
        self.site.sync();
        self.use_of(UNCHANGED_FRESH, PERSISTENT_INDEX, None, &persistent, |_| ());
        self.use_after(
            AFTER_FRESH,
            PERSISTENT_INDEX,
            None,
            &persistent,
            Changes::RUN,
        );
    }

    fn usage_of_a_large_file(&mut self) {
        let mib = self.options.large_mib;
        let bound = Some(MAX_MIB_OF_A_LARGE_FILE);
        let (first, fresh) = (ours(&self.site, "first"), ours(&self.site, "fresh"));
        self.use_of("without it", OURS, None, &first, |_| ());
        let file = Cell::new(None);
        self.use_of(&large_files::case(mib), OURS, bound, &fresh, |site| {
            file.set(Some(LargeFile::make(site, mib)));
        });
        file.into_inner().expect("it was made").remove();
    }

    /// What `command` uses after changes, which are taken back.
    fn use_after(
        &mut self,
        case: &str,
        subject: &str,
        max_mib: Option<u64>,
        command: &[String],
        changes: Changes,
    ) {
        let mutation: Cell<Option<Mutation>> = Cell::new(None);
        let revert = || {
            if let Some(mutation) = mutation.take() {
                mutation.revert().expect("it can be taken back");
            }
        };
        self.use_of(case, subject, max_mib, command, |site| {
            revert();
            mutation.set(Some(site.mutate(changes)));
        });
        revert();
    }

    fn use_of(
        &mut self,
        case: &str,
        subject: &str,
        max_mib: Option<u64>,
        command: &[String],
        before: impl Fn(&Site),
    ) {
        let program = std::env::current_exe().expect("it runs");
        let site = &self.site;
        let usage =
            usage(&program, command, site.scratch.path(), || before(site)).expect("it runs");
        self.used.push(Used {
            case: case.to_owned(),
            subject: subject.to_owned(),
            usage,
            max_mib,
        });
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("made by us").to_owned()
}

fn ours(site: &Site, what: &str) -> Vec<String> {
    let program = std::env::current_exe().expect("it runs");
    let state = match what {
        "hash" => site.state("usage-hash"),
        _ => site.state("usage"),
    };
    [text(&program), ONE.to_owned(), what.to_owned()]
        .into_iter()
        .chain([text(&site.tree.path), text(&state)])
        .collect()
}

/// Several commands in a shell, in one of git's ways.
fn git(site: &Site, way: Way, script: &str) -> Vec<String> {
    let mut command = vec![
        "env".to_owned(),
        format!("--chdir={}", text(&site.tree.path)),
        "GIT_CONFIG_NOSYSTEM=1".to_owned(),
        "GIT_CONFIG_GLOBAL=/dev/null".to_owned(),
    ];
    for (name, value) in site.git.environment(way) {
        command.push(format!("{name}={}", text(&value)));
    }
    command.extend(["sh", "-c", script].map(str::to_owned));
    command
}
