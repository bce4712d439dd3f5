//! Somebody else changes the workspace in the middle of a restore, at every call of it in turn.
//!
//! The program waits before each of its calls, so that whoever meddles is never too late: what
//! racers meet by chance is met here each time.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::torture::call_class::CallClass;
use crate::torture::checker::{self, Finding, Kind};
use crate::torture::scene::{Scene, Stage};
use crate::torture::tracer::{Refusal, Tracer};
use crate::torture::{Options, Report, workers};
use crate::{TestWorkspace, git, view};

/// What somebody does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    /// Writes a file that is about to be replaced.
    Edit,
    /// Puts another file in its place.
    Replace,
    /// Makes a file where there was none, or the restore removes one.
    Create,
    /// Makes a file in a directory that the restore removes.
    Fill,
    /// Moves a directory away and puts a link to one outside in its place.
    Divert,
    /// Takes git's lock of the index.
    Lock,
}

impl Deed {
    /// What is done to files.
    const TO_FILES: [Self; 5] = [
        Self::Edit,
        Self::Replace,
        Self::Create,
        Self::Fill,
        Self::Divert,
    ];
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Edit => "edit",
            Self::Replace => "replace",
            Self::Create => "create",
            Self::Fill => "fill",
            Self::Lock => "lock",
            Self::Divert => "divert",
        })
    }
}

/// The calls before which somebody meddles: those that change something, and those that look.
const MOMENTS: [CallClass; 6] = [
    CallClass::Rename,
    CallClass::MakeDirectory,
    CallClass::Remove,
    CallClass::Attributes,
    CallClass::OpenToRead,
    CallClass::Stat,
];

/// What somebody wrote, which is nowhere else.
const TYPED: &str = "typed in the middle of a restore\n";

/// What git takes before it writes the index.
const LOCK: &str = ".git/index.lock";

/// Meddles with restores until it was done as often as is wanted, or at every call with every deed,
/// or the time is over.
pub fn run(options: &Options) -> Result<Report, Refusal> {
    let tracer = Tracer::new(&options.launcher)?;
    let begin = Instant::now();
    let next = AtomicUsize::new(0);
    workers::all("meddle", options, |_| {
        let mut report = Report::new("meddle");
        let (restore, undo) = (Scene::Restore.stage(&tracer)?, Scene::Undo.stage(&tracer)?);
        // Locks are links, and that of the index is among the last. Before it any moment will do.
        let links = moments(&undo, &tracer, &[CallClass::Link])?;
        let links = links.into_iter().take(8);
        let mut plan: Vec<_> = links.map(|moment| (&undo, moment, Deed::Lock)).collect();
        for moment in moments(&restore, &tracer, &MOMENTS)? {
            plan.extend(Deed::TO_FILES.map(|deed| (&restore, moment, deed)));
        }
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let is_over = at >= options.operations
                || begin.elapsed() >= options.time
                || options.is_enough(&report);
            let Some((stage, moment, deed)) = plan.get(at).filter(|_| !is_over) else {
                return Ok(report);
            };
            meddle(stage, &tracer, *moment, *deed, &mut report)?;
        }
    })
}

/// Every call of these classes, class by class, from the last on: the first belong to the guard.
fn moments(
    stage: &Stage,
    tracer: &Tracer,
    classes: &[CallClass],
) -> Result<Vec<(CallClass, usize)>, Refusal> {
    stage.begin(tracer)?;
    let counts: BTreeMap<_, _> = tracer.run(&stage.call(), None)?.counts;
    let of = |class: &CallClass| counts.get(class).copied().unwrap_or(0);
    let each = |class: &CallClass| {
        let class = *class;
        (1..=of(&class)).rev().map(move |nth| (class, nth))
    };
    Ok(classes.iter().flat_map(each).collect())
}

/// One restore, with one deed before one of its calls.
fn meddle(
    stage: &Stage,
    tracer: &Tracer,
    (class, nth): (CallClass, usize),
    deed: Deed,
    report: &mut Report,
) -> Result<(), Refusal> {
    stage.begin(tracer)?;
    let ws = &stage.sandbox.ws;
    let outside = ws.outside().join("canary");
    fs::create_dir_all(&outside).expect("it can be made");
    fs::write(outside.join("inside"), "outside\n").expect("it can be written");
    let canary = view::worktree(&outside);
    let mut done = None;
    let traced = tracer.watch(&stage.call(), &mut |seen| {
        if (seen.class, seen.nth) == (class, nth) {
            done = Some(act(deed, ws, &outside));
        }
    })?;
    report.tried += 1;
    let case = format!("{} before {class} {nth}", deed);
    report.find(&case, checker::hang(&traced));
    let Some(typed_at) = done else {
        return Ok(());
    };
    report.hit += 1;
    report.count("deed", deed.to_string());
    let is_typed = checker::kind_of(&traced.output).is_some();
    if traced.output.code != 0 && !is_typed {
        let text = traced.output.to_string();
        report.find(&case, [Finding::new(Kind::Untyped, text)]);
    }
    let outcome = checker::kind_of(&traced.output).unwrap_or("done");
    report.count("outcome", outcome);
    if let Some(lines) = view::difference(&canary, &view::worktree(&outside)) {
        let text = format!("it reached outside of the workspace:\n{lines}");
        report.find(&case, [Finding::new(Kind::Escape, text)]);
    }
    report.find(&case, typed_at.and_then(|path| lost(ws, path)));
    report.find(&case, checker::store(ws, &[]));
    let lock = ws.path(LOCK);
    if deed == Deed::Lock && fs::read(&lock).ok().as_deref() != Some(TYPED.as_bytes()) {
        let text = "somebody else's lock of the index is gone".to_owned();
        report.find(&case, [Finding::new(Kind::Lost, text)]);
    }
    // Whoever took it gives it back.
    let _ = fs::remove_file(lock);
    report.find(&case, checker::locks(ws));
    Ok(())
}

/// Does it; answers with where something was typed that must not be lost. What was not possible at
/// this moment is left.
fn act(deed: Deed, ws: &TestWorkspace, outside: &Path) -> Option<&'static str> {
    let write = |path: &'static str| fs::write(ws.path(path), TYPED).ok().map(|()| path);
    match deed {
        Deed::Edit => write("README"),
        Deed::Replace => {
            fs::remove_file(ws.path("README")).ok()?;
            write("README")
        }
        Deed::Create => {
            // It may be a link by now.
            let is_free = ws.path("tool").symlink_metadata().is_err();
            is_free.then(|| write("tool"))?
        }
        Deed::Fill => write("new/typed"),
        Deed::Lock => {
            fs::write(ws.path(LOCK), TYPED).expect("it can be written");
            None
        }
        Deed::Divert => {
            let dir = ws.path("dir");
            let is_directory = dir.symlink_metadata().is_ok_and(|meta| meta.is_dir());
            if is_directory && fs::rename(&dir, outside.with_file_name("moved")).is_ok() {
                let _ = std::os::unix::fs::symlink(outside, &dir);
            }
            None
        }
    }
}

/// What was typed is in the workspace, or in a snapshot.
fn lost(ws: &TestWorkspace, path: &str) -> Option<Finding> {
    if fs::read(ws.path(path)).is_ok_and(|bytes| bytes == TYPED.as_bytes()) {
        return None;
    }
    let id = git::call(&ws.home(), ws.root(), ["hash-object", "--stdin"]);
    let id = id.stdin(TYPED).run().stdout_text();
    let has_it = |store: &Path| {
        let objects = ["rev-list", "--all", "--objects"];
        let listed = git::call(&ws.home(), &store.join("git"), objects).run();
        listed.stdout_text().contains(id.trim())
    };
    let is_kept = ws.stores().iter().any(|store| has_it(store));
    let text = || format!("what was typed in {path} is in neither the workspace nor a snapshot");
    (!is_kept).then(|| Finding::new(Kind::Lost, text()))
}
