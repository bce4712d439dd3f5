//! The operations that are disturbed, each in a tiny workspace of its own.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::torture::call_class::CallClass;
use crate::torture::checker::{self, Acknowledged, Finding, Kind};
use crate::torture::fault::{Code, Fault};
use crate::torture::sandbox::{self, Picture, Sandbox};
use crate::torture::tracer::{Injection, Refusal, Traced, Tracer};
use crate::{Call, Output, Snap, TestWorkspace, oracle, view};

/// What is disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scene {
    /// The first snapshot of a workspace, which makes the state directory.
    First,
    /// A snapshot after edits.
    Edits,
    /// A restore.
    Restore,
    /// A run that fails and is rolled back, with index and branch.
    Rollback,
    /// An undo of a run.
    Undo,
    /// A collection that forgets all snapshots but one.
    Collect,
    /// A run with a patch that goes to the artifact store.
    Artifact,
    /// Opening the state after a restore was killed half way, which finishes it.
    Recovery,
}

/// A scene that is set: it can be played again and again.
pub struct Stage {
    /// Which.
    pub scene: Scene,
    /// Where.
    pub sandbox: Sandbox,
    /// The arguments of the command.
    args: Vec<String>,
    /// The exit code of the command if nothing disturbs it.
    done: i32,
    /// The snapshots that have to outlive it.
    acknowledged: Vec<Acknowledged>,
    /// What is there before.
    before: State,
    /// What else may be there after it.
    after: Option<State>,
    /// The patch of the run, which git applies.
    patch: Vec<u8>,
    /// Where the restore is killed that has to be finished.
    killed_at: Option<Injection>,
    /// How often its aftermath was looked at.
    played: AtomicUsize,
    /// The faults that left nothing, after which nothing was wrong.
    clean: Mutex<BTreeSet<Fault>>,
}

/// How many disturbances there are for each `verify` after one.
const VERIFY_EVERY: usize = 4;

/// How the workspace may be.
struct State {
    picture: Picture,
    /// The tree that git makes of it.
    tree: String,
}

/// What came of one disturbance.
#[derive(Debug)]
pub struct Trial {
    /// What was disturbed; `None`: the call was not reached, so nothing was.
    pub hit: Option<String>,
    /// How it ended: `done`, `killed`, or the kind of the error.
    pub outcome: String,
    /// What must not be.
    pub findings: Vec<Finding>,
}

impl Scene {
    /// Every scene.
    pub const ALL: [Self; 8] = [
        Self::First,
        Self::Edits,
        Self::Restore,
        Self::Rollback,
        Self::Undo,
        Self::Collect,
        Self::Artifact,
        Self::Recovery,
    ];

    /// Sets the scene.
    ///
    /// # Panics
    ///
    /// If the program cannot do the operation undisturbed.
    pub fn stage(self, tracer: &Tracer) -> Result<Stage, Refusal> {
        let mut stage = self.below(&sandbox::place());
        if self == Self::Recovery {
            stage.killed_at = Some(stage.past_the_intent(tracer)?);
        }
        Ok(stage)
    }

    /// Sets the scene in a new directory below `place`. Nothing has been killed there, so that
    /// [`Scene::Recovery`] has nothing to finish.
    pub(crate) fn below(self, place: &Path) -> Stage {
        let ws = repository(place);
        let mut args: Vec<String> = vec!["--json".into()];
        let mut add = |more: &[&str]| args.extend(more.iter().map(|arg| (*arg).to_owned()));
        let mut acknowledged = Vec::new();
        let mut after = None;
        let mut done = 0;
        let mut patch = Vec::new();
        match self {
            Self::First => add(&["snapshot"]),
            Self::Edits => {
                acknowledged.push(snapshot(&ws));
                edit(&ws);
                add(&["snapshot"]);
            }
            Self::Restore | Self::Recovery => {
                let target = snapshot(&ws);
                after = Some(State::of(&ws));
                edit(&ws);
                add(&match self {
                    Self::Restore => vec!["restore", target.id.as_str()],
                    _ => vec!["list"],
                });
                acknowledged.push(target);
            }
            Self::Rollback => {
                acknowledged.push(snapshot(&ws));
                let script = work_of_a_run(&ws) + "; exit 1";
                after = Some(what_comes_of(&ws, &script));
                add(&[
                    "run",
                    "--rollback-on-failure",
                    "--",
                    "/bin/sh",
                    "-c",
                    &script,
                ]);
                done = 1;
            }
            Self::Undo => {
                let script = work_of_a_run(&ws);
                after = Some(State::of(&ws));
                let run = ws.run::<&str>([], &script).ok().json();
                for name in ["before_snapshot", "after_snapshot"] {
                    acknowledged.extend(Acknowledged::of(&run["workspace"][name]));
                }
                add(&["undo"]);
            }
            Self::Collect => {
                snapshot(&ws);
                edit(&ws);
                snapshot(&ws);
                ws.restore(&ws.snapshot());
                ws.write("README", "newest\n");
                acknowledged.push(snapshot(&ws));
                add(&["gc", "--keep", "1"]);
            }
            Self::Artifact => {
                acknowledged.push(snapshot(&ws));
                let large: String = (0..900).map(|line| format!("line {line}\n")).collect();
                outside(&ws, "large", large.as_bytes());
                let script = "mv ../outside/large large";
                after = Some(what_comes_of(&ws, script));
                patch = patch_of(&ws, script);
                add(&[
                    "run",
                    "--max-patch-bytes",
                    "100",
                    "--",
                    "/bin/sh",
                    "-c",
                    script,
                ]);
            }
        }
        Stage {
            scene: self,
            before: State::of(&ws),
            sandbox: Sandbox::new(ws),
            args,
            done,
            acknowledged,
            after,
            patch,
            killed_at: None,
            played: AtomicUsize::new(0),
            clean: Mutex::default(),
        }
    }

    /// Whether the user's repository is not to be written at all, not even its times.
    fn leaves_the_repository_alone(self) -> bool {
        matches!(
            self,
            Self::First | Self::Edits | Self::Restore | Self::Collect | Self::Recovery
        )
    }
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "first snapshot",
            Self::Edits => "snapshot after edits",
            Self::Restore => "restore",
            Self::Rollback => "run rolled back",
            Self::Undo => "undo",
            Self::Collect => "gc",
            Self::Artifact => "run with artifact",
            Self::Recovery => "recovery",
        })
    }
}

impl State {
    fn of(ws: &TestWorkspace) -> Self {
        Self {
            picture: Picture::of(ws),
            tree: oracle::raw_tree(ws),
        }
    }
}

impl Stage {
    /// The command that is disturbed.
    pub fn call(&self) -> Call {
        self.sandbox.ws.call(&self.args)
    }

    /// The exit code of the command if nothing disturbs it.
    pub fn done(&self) -> i32 {
        self.done
    }

    /// Every fault that the command can meet: for each class of calls as many as an undisturbed
    /// command makes.
    pub fn injections(&self, tracer: &Tracer) -> Result<Vec<Injection>, Refusal> {
        self.begin(tracer)?;
        let counts = tracer.run(&self.call(), None)?.counts;
        let mut all = Vec::new();
        for (class, count) in counts {
            for fault in class.faults() {
                all.extend((1..=count).map(|nth| Injection {
                    class,
                    nth,
                    fault: *fault,
                }));
            }
        }
        Ok(all)
    }

    /// Makes everything as it is before the command.
    pub fn begin(&self, tracer: &Tracer) -> Result<(), Refusal> {
        self.sandbox.reset();
        if let Some(kill) = &self.killed_at {
            tracer.run(&self.restore(), Some(kill))?;
        }
        Ok(())
    }

    /// A restore of the first snapshot.
    pub(crate) fn restore(&self) -> Call {
        let id = self.acknowledged[0].id.as_str();
        self.sandbox.ws.call(["--json", "restore", id])
    }

    /// A rename at which a restore that is killed has done some of its steps, and not all of them.
    ///
    /// # Panics
    ///
    /// If there is none, because a restore does not go by renames.
    fn past_the_intent(&self, tracer: &Tracer) -> Result<Injection, Refusal> {
        let target = self.after.as_ref().map(|state| &state.picture);
        for nth in 1..60 {
            let kill = Injection {
                class: CallClass::Rename,
                nth,
                fault: Fault::Kill,
            };
            self.sandbox.reset();
            if tracer.run(&self.restore(), Some(&kill))?.hit.is_none() {
                break;
            }
            let now = Picture::of(&self.sandbox.ws);
            if now != self.before.picture && Some(&now) != target {
                return Ok(kill);
            }
        }
        panic!("no rename is in the middle of a restore");
    }

    /// Plays the scene with this disturbance.
    pub fn play(&self, tracer: &Tracer, injection: &Injection) -> Result<Trial, Refusal> {
        self.begin(tracer)?;
        let repository = view::git_dir(self.sandbox.ws.root());
        let traced = tracer.run(&self.call(), Some(injection))?;
        let Some(hit) = &traced.hit else {
            return Ok(Trial {
                hit: None,
                outcome: "not reached".into(),
                findings: Vec::new(),
            });
        };
        let left_nothing = self.killed_at.is_none() && self.is_as_before();
        let mut findings = checker::ending(&traced, injection, self.done);
        let outcome = self.outcome(&traced);
        let is_hung = traced.hung;
        let hit = hit.path.clone();
        if !is_hung {
            findings.extend(self.answer(&traced.output, injection.fault));
        }
        findings.extend(match left_nothing {
            true => self.aftermath_of_nothing(injection.fault),
            false => self.aftermath(injection.fault),
        });
        if self.scene.leaves_the_repository_alone() {
            let now = view::git_dir(self.sandbox.ws.root());
            if let Some(lines) = view::difference(&repository, &now) {
                findings.push(Finding::new(Kind::Repository, lines));
            }
        }
        Ok(Trial {
            hit: Some(hit),
            outcome,
            findings,
        })
    }

    /// Whether the command runs another, which may be under way when something happens.
    fn is_run(&self) -> bool {
        matches!(self.scene, Scene::Rollback | Scene::Artifact)
    }

    fn outcome(&self, traced: &Traced) -> String {
        let output = &traced.output;
        if traced.hung {
            "hung".into()
        } else if output.code == self.done {
            "done".into()
        } else if output.code == 137 {
            "killed".into()
        } else if let Some(kind) = checker::kind_of(output) {
            kind.into()
        } else {
            format!("exit code {}", output.code)
        }
    }

    /// What is not true of the answer of a command that says that it did its work.
    fn answer(&self, output: &Output, fault: Fault) -> Vec<Finding> {
        if output.code != self.done {
            return Vec::new();
        }
        let Ok(document) = serde_json::from_slice::<Value>(&output.stdout) else {
            // Found already, unless nothing could be said.
            return Vec::new();
        };
        let ws = &self.sandbox.ws;
        let untrue = |text: String| Finding::new(Kind::Untrue, format!("{text}: {document}"));
        let now = || Picture::of(ws);
        let mut findings = Vec::new();
        match self.scene {
            Scene::First | Scene::Edits => {
                findings.extend(checker::snapshot_answer(
                    &document,
                    &self.before.tree,
                    fault,
                ));
                match Acknowledged::of(&document) {
                    Some(snapshot) => findings.extend(checker::store(ws, &[snapshot])),
                    None => findings.push(untrue("it has no id".into())),
                }
            }
            Scene::Restore | Scene::Undo => {
                let after = self.after.as_ref().map(|state| &state.picture);
                let answer = after.map(|after| checker::restore_answer(&document, &now(), after));
                findings.extend(answer.flatten());
            }
            Scene::Rollback => {
                let rollback = &document["workspace"]["rollback"];
                // One that failed says so, in words that are looked at elsewhere.
                if rollback["status"] == "completed" {
                    let before = &self.before.picture;
                    findings.extend(checker::restore_answer(rollback, &now(), before));
                }
            }
            Scene::Artifact => {
                let snapshots = ["before_snapshot", "after_snapshot"];
                let snapshots = snapshots.map(|name| unread(&document["workspace"][name]));
                let patch = without(&self.patch, &snapshots.concat());
                let diff = &document["workspace"]["diff"];
                let got = match diff["patch_ref"].as_str() {
                    Some(key) => ws.stillframe(["artifact", "get", key]).stdout,
                    // What is left of it is no large one.
                    None => diff["patch"].as_str().unwrap_or_default().into(),
                };
                if got != patch {
                    findings.push(untrue("its artifact is not the patch".into()));
                }
            }
            Scene::Collect => {
                let kept = &self.acknowledged[0].id;
                let forgotten = document["forgotten"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                if forgotten.is_empty() || forgotten.iter().any(|id| id == kept.as_str()) {
                    findings.push(untrue("it forgot nothing, or the newest".into()));
                }
            }
            Scene::Recovery => {
                let ids: Vec<&str> = document
                    .as_array()
                    .map(|list| list.iter().filter_map(|s| s["id"].as_str()).collect())
                    .unwrap_or_default();
                if self
                    .acknowledged
                    .iter()
                    .any(|a| !ids.contains(&a.id.as_str()))
                {
                    findings.push(untrue("a snapshot is missing".into()));
                }
            }
        }
        findings
    }

    /// Whether a command changes something in the workspace.
    pub(crate) fn is_changed_by(&self, call: Call) -> bool {
        let before = Picture::of(&self.sandbox.ws);
        call.run();
        Picture::of(&self.sandbox.ws) != before
    }

    /// Asserts that the command did its work.
    #[track_caller]
    pub(crate) fn has_worked(&self, output: &Output) {
        assert_eq!(output.code, self.done, "nothing disturbed it: {output}");
    }

    /// What is wrong after the power failed, before the command answered or after this answer.
    pub(crate) fn outlives(&self, answered: Option<&Output>) -> Vec<Finding> {
        let as_killed = Fault::Kill;
        let Some(output) = answered else {
            return self.aftermath(as_killed);
        };
        let mut findings = self.answer(output, as_killed);
        findings.extend(self.aftermath_of(as_killed, &snapshots_in(&output.json())));
        findings
    }

    /// Whether all is, byte for byte, as [`Stage::begin`] makes it.
    fn is_as_before(&self) -> bool {
        // Whose it was last is said in a lock, and means something only while it is held.
        let is_note = |path: &PathBuf| {
            let meta = self.sandbox.ws.base().join(path).symlink_metadata();
            path.starts_with("state/workspaces")
                && path.ends_with("lock")
                && meta.is_ok_and(|meta| meta.is_file())
        };
        self.sandbox.changed().iter().all(is_note)
    }

    /// What is wrong after this fault if it left nothing: the same each time, so once without a
    /// finding is enough.
    fn aftermath_of_nothing(&self, fault: Fault) -> Vec<Finding> {
        let clean = || self.clean.lock().expect("nobody panics with the lock");
        if clean().contains(&fault) {
            return Vec::new();
        }
        let findings = self.aftermath(fault);
        if findings.is_empty() {
            clean().insert(fault);
        }
        findings
    }

    /// What is wrong after this fault, and commands that nothing disturbs.
    pub fn aftermath(&self, fault: Fault) -> Vec<Finding> {
        self.aftermath_of(fault, &[])
    }

    /// The same, of a command that told of these snapshots.
    fn aftermath_of(&self, fault: Fault, told: &[Acknowledged]) -> Vec<Finding> {
        // What was killed is carried on to its end; what failed may stay half done.
        let can_be_taken_back = self.after.is_some();
        let may_be_mixed = can_be_taken_back && (fault != Fault::Kill || self.is_run());
        let ws = &self.sandbox.ws;
        let mut findings = Vec::new();
        let mut acknowledged = self.acknowledged.clone();
        acknowledged.extend_from_slice(told);
        let next = checker::undisturbed(ws, &["snapshot"]).map(|output| output.json());
        let now = Picture::of(ws);
        let states: Vec<&State> = [&self.before].into_iter().chain(&self.after).collect();
        let known: Vec<&Picture> = states.iter().map(|state| &state.picture).collect();
        findings.extend(checker::workspace(&now, &known, may_be_mixed));
        match next {
            Ok(document) => {
                let state = states.iter().find(|state| state.picture == now);
                if let Some(state) = state {
                    let undisturbed = Fault::Kill;
                    let finding = checker::snapshot_answer(&document, &state.tree, undisturbed);
                    // What a rule that was not read has let in once goes on being captured.
                    let has_all = document["omissions"].as_array().is_some_and(Vec::is_empty);
                    let was_let_in = fault == Fault::Fails(Code::Access) && has_all;
                    findings.extend(finding.filter(|_| !was_let_in));
                }
                acknowledged.extend(Acknowledged::of(&document));
            }
            Err(finding) => findings.push(finding),
        }
        if can_be_taken_back && now != self.before.picture {
            findings.extend(self.way_back(fault));
        }
        if self.scene == Scene::Collect {
            // It keeps the newest alone.
            acknowledged.retain(|snapshot| !self.acknowledged.contains(snapshot));
        }
        findings.extend(checker::store(ws, &acknowledged));
        // What git says of the store is looked at each time; what we say ourselves, now and then.
        if self
            .played
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(VERIFY_EVERY)
        {
            findings.extend(checker::verdict(&ws.try_json(["verify"]), &acknowledged));
        }
        findings.extend(checker::locks(ws));
        findings
    }
}

impl Stage {
    /// What is wrong with taking back what was done.
    fn way_back(&self, fault: Fault) -> Option<Finding> {
        let ws = &self.sandbox.ws;
        let undone = ws.try_json(["undo"]);
        let document: Value = serde_json::from_slice(&undone.stdout).unwrap_or_default();
        let before = &self.before.picture;
        let now = || Picture::of(ws);
        let lost = |what: &str, lines: &str| {
            Some(Finding::new(
                Kind::Lost,
                format!("{what}:\n{lines}{undone}"),
            ))
        };
        if undone.code == 0 {
            let undone_to = now();
            let is_told = !document["error"].is_null();
            let lines = match is_told && fault != Fault::Kill {
                // What of the repository could not be read for a moment is not put back, and the
                // answer says so.
                true => view::difference(&before.files, &undone_to.files),
                false => before.difference(&undone_to),
            };
            let lines = lines?;
            let guard = document["undone"]["before"]
                .as_str()
                .filter(|_| fault != Fault::Kill);
            let Some(guard) = guard else {
                return lost("an undo does not lead back", &lines);
            };
            // A path that failed half way is not as the operation left it, so an undo leaves it
            // alone. What was there is in the guard.
            if let Err(finding) = checker::undisturbed(ws, &["restore", guard]) {
                return Some(finding);
            }
            // What could not be read before a run replaced it is in no snapshot, which says so.
            let unread = match self.is_run() && fault == Fault::Fails(Code::Access) {
                true => unread(&ws.show(guard)),
                false => Vec::new(),
            };
            let without = |view: &view::View| {
                let drop = |view: view::View, path: &String| view.without(path);
                unread.iter().fold(view.clone(), drop)
            };
            let has_all = now().files.has_all_of(&without(&before.files));
            return (!has_all).then(|| lost("not even the guard leads back", &lines))?;
        }
        // What a run did whose end could not be seen cannot be taken back by itself, and the
        // message says what leads back instead.
        let message = document["error"]["message"].as_str().unwrap_or_default();
        let before_the_run = message
            .split('"')
            .find_map(|quoted| quoted.strip_prefix("stillframe restore "));
        let Some(id) = before_the_run else {
            return Some(Finding::new(
                Kind::Stuck,
                format!("there is no undo: {undone}"),
            ));
        };
        if let Err(finding) = checker::undisturbed(ws, &["restore", id]) {
            return Some(finding);
        }
        let lines = view::difference(&before.files, &now().files);
        lines.and_then(|lines| lost("what was there before does not lead back", &lines))
    }
}

/// The snapshots that an answer has in full: its own, or those of a run.
fn snapshots_in(document: &Value) -> Vec<Acknowledged> {
    let of_the_run = &document["workspace"];
    let places = [
        document,
        &of_the_run["before_snapshot"],
        &of_the_run["after_snapshot"],
    ];
    places.into_iter().filter_map(Acknowledged::of).collect()
}

/// The paths that a snapshot names as unreadable.
fn unread(snapshot: &Value) -> Vec<String> {
    let omissions = Snap::of(snapshot).omissions().into_iter();
    let unreadable = omissions.filter(|(_, reason)| reason == "unreadable");
    unreadable.map(|(path, _)| path).collect()
}

/// A patch of files with plain names, without those that are `named`, or are below one that is.
fn without(patch: &[u8], named: &[String]) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut is_kept = true;
    for line in patch.split_inclusive(|byte| *byte == b'\n') {
        if let Some(names) = line.strip_prefix(b"diff --git ") {
            let names = String::from_utf8_lossy(names);
            let path = names
                .split(' ')
                .next()
                .and_then(|name| name.strip_prefix("a/"));
            is_kept =
                !path.is_some_and(|path| named.iter().any(|named| checker::is_below(path, named)));
        }
        if is_kept {
            kept.extend_from_slice(line);
        }
    }
    kept
}

/// A repository with a few files of each sort, and a file that a rule leaves out.
fn repository(place: &Path) -> TestWorkspace {
    let ws = TestWorkspace::below(place);
    ws.git(["init", "-q"]);
    ws.write("README", "hello\n");
    ws.write("dir/inside", "inside\n");
    ws.write("dir/other", "other\n");
    ws.write_executable("tool", "one\n");
    ws.symlink("link", "README");
    ws.write(".gitignore", "*.log\n");
    ws.commit_settled("first");
    ws.write("untracked", "nowhere else\n");
    ws.write("left.log", "ignored\n");
    ws.write("README", "edited, not committed\n");
    ws.mkdir("empty");
    ws.settle();
    ws
}

/// What a user or a run does to the files: each sort of change once.
fn edit(ws: &TestWorkspace) {
    ws.write("README", "edited again\n");
    ws.remove("dir");
    ws.symlink("dir", "tool");
    ws.remove("tool");
    ws.write("new/deep", "new\n");
    ws.chmod("untracked", 0o755);
    ws.settle();
}

fn snapshot(ws: &TestWorkspace) -> Acknowledged {
    let Snap { json } = ws.snapshot();
    Acknowledged::of(&json).expect("it has an id and a commit")
}

fn outside(ws: &TestWorkspace, name: &str, content: &[u8]) {
    fs::write(ws.outside().join(name), content).expect("it can be written");
}

/// A script that changes files, index and branch, ends one operation of git's and begins another,
/// each of them at once or not at all.
fn work_of_a_run(ws: &TestWorkspace) -> String {
    ws.write(".git/sequencer/todo", "pick 0123456 what was under way\n");
    let head = ws.git(["rev-parse", "HEAD"]);
    outside(ws, "MERGE_HEAD", format!("{head}\n").as_bytes());
    outside(ws, "README", b"by the run\n");
    outside(ws, "made", b"by the run\n");
    let args = [
        "commit-tree",
        "HEAD^{tree}",
        "-p",
        "HEAD",
        "-m",
        "by the run",
    ];
    let tip = ws.git(args);
    outside(ws, "tip", format!("{tip}\n").as_bytes());
    let index = ws.outside().join("index");
    let add = ws.git_call(["add", "-A"]).env("GIT_INDEX_FILE", &index);
    add.run().ok();
    "mv ../outside/README ../outside/made . && mv ../outside/tip .git/refs/heads/main && \
     mv ../outside/index .git/index && mv .git/sequencer ../outside/sequencer && \
     mv ../outside/MERGE_HEAD .git/MERGE_HEAD"
        .into()
}

/// The workspace after the script; then it is as it was.
fn what_comes_of(ws: &TestWorkspace, script: &str) -> State {
    sandbox::and_back(ws, || {
        let shell = Call::new("/bin/sh", ws.root()).env("PATH", "/usr/bin:/bin");
        shell.args(["-c", script]).run();
        State::of(ws)
    })
}

/// The patch of a run of the script, with which git makes what is there after it of what was there
/// before.
fn patch_of(ws: &TestWorkspace, script: &str) -> Vec<u8> {
    let before = ws.copy();
    sandbox::and_back(ws, || {
        let run = ws.run(["--max-patch-bytes", "100"], script).ok().json();
        let key = run["workspace"]["diff"]["patch_ref"].as_str();
        let key = key.expect("a large patch is an artifact");
        let patch = ws.stillframe(["artifact", "get", key]).ok().stdout;
        oracle::applies(&patch, before.path(), ws.root());
        patch
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_left_a_byte_or_took_one_has_not_left_nothing() {
        let stage = Scene::Edits.below(&sandbox::place());
        let ws = &stage.sandbox.ws;
        let store = ws.stores().remove(0);
        assert!(stage.is_as_before());
        fs::write(store.join("lock"), "process 1 (somebody)").unwrap();
        assert!(stage.is_as_before(), "a lock says whose it was last");
        let harms: [&dyn Fn(); 6] = [
            &|| ws.write("README", "Edited again\n"),
            &|| ws.write("lock", ""),
            &|| ws.chmod("README", 0o600),
            &|| fs::write(ws.root().join(".git/index.lock"), "").unwrap(),
            &|| fs::remove_file(store.join("lock")).unwrap(),
            &|| fs::write(store.join("git/HEAD"), "ref: refs/heads/Main\n").unwrap(),
        ];
        for (at, harm) in harms.iter().enumerate() {
            stage.sandbox.reset();
            assert!(stage.is_as_before());
            harm();
            assert!(!stage.is_as_before(), "harm {at}");
        }
    }

    #[test]
    fn what_a_fault_left_is_looked_at_each_time_that_it_is_not_clean() {
        let stage = Scene::Edits.below(&sandbox::place());
        fs::write(stage.sandbox.ws.root().join(".git/index.lock"), "").unwrap();
        for _ in 0..2 {
            let findings = stage.aftermath_of_nothing(Fault::Kill);
            let kinds: Vec<Kind> = findings.iter().map(|finding| finding.kind).collect();
            assert!(kinds.contains(&Kind::LeftLock), "{findings:?}");
        }
        stage.sandbox.reset();
        assert_eq!(stage.aftermath_of_nothing(Fault::Kill), []);
        assert_eq!(*stage.clean.lock().unwrap(), BTreeSet::from([Fault::Kill]));
    }
}
