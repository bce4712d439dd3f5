//! Whether anything is lost, said by what is not under test: a naive walker of the workspace, git
//! on the store, and what the program answers against what it was asked.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;

use serde_json::Value;
use walkdir::WalkDir;

use crate::torture::call_class::CallClass;
use crate::torture::fault::{Code, Fault};
use crate::torture::sandbox::Picture;
use crate::torture::tracer::{Injection, Traced};
use crate::{Output, TestWorkspace, json, oracle};

/// What an error may be called: the kinds of error that a host can act on.
const KINDS: [&str; 15] = [
    "InvalidOptions",
    "NotFound",
    "Busy",
    "Conflict",
    "HeadMoved",
    "Unsupported",
    "Unreadable",
    "LimitExceeded",
    "NoSpace",
    "Corrupt",
    "HostileRepository",
    "Unavailable",
    "Cancelled",
    "Timeout",
    "Storage",
];

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What sort of thing.
    pub kind: Kind,
    /// What exactly.
    pub text: String,
}

/// The sorts of things that must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Bytes that were there, or were acknowledged, are nowhere, or elsewhere than they may be.
    Lost,
    /// The store is damaged.
    Damaged,
    /// It died otherwise than it was killed, or said why it failed in no document of ours.
    Untyped,
    /// It said that it was done, and it was not.
    Untrue,
    /// What the kernel may do at any time was taken for a failure.
    NotRetried,
    /// It did not end.
    Hang,
    /// A lock is left that nobody holds.
    LeftLock,
    /// It wrote in the user's repository, where it may not.
    Repository,
    /// It read or wrote where it has no business.
    Escape,
    /// Something relies on what a power cut may take.
    Unordered,
    /// A harness did not find a bug that was there, or found one that was not.
    Toothless,
    /// A command that nothing disturbed did not work afterwards.
    Stuck,
}

/// A snapshot that somebody was told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Its id.
    pub id: String,
    /// The commit that it is, in the store.
    pub commit: String,
}

impl Acknowledged {
    /// The snapshot of a document.
    pub fn of(document: &Value) -> Option<Self> {
        Some(Self {
            id: document["id"].as_str()?.to_owned(),
            commit: document["ref"].as_str()?.to_owned(),
        })
    }
}

impl Finding {
    /// A finding of this sort.
    pub fn new(kind: Kind, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { kind, text }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.text)
    }
}

/// How a disturbed program ended.
///
/// `done`: the exit code of one that did its work.
pub fn ending(traced: &Traced, injection: &Injection, done: i32) -> Vec<Finding> {
    let output = &traced.output;
    let mut findings: Vec<Finding> = hang(traced).into_iter().collect();
    if traced.hung {
        return findings;
    }
    if output.stderr_text().contains("panicked at") {
        findings.push(Finding::new(Kind::Untyped, format!("a panic: {output}")));
        return findings;
    }
    if injection.fault == Fault::Kill {
        if output.code != 137 {
            let text = format!("it was killed, and did not die: {output}");
            findings.push(Finding::new(Kind::Untyped, text));
        }
        return findings;
    }
    let could_answer = !traced.hit.as_ref().is_some_and(|hit| hit.is_answer);
    if output.code == done {
        if could_answer && serde_json::from_slice::<Value>(&output.stdout).is_err() {
            findings.push(Finding::new(Kind::Untrue, format!("no document: {output}")));
        }
        return findings;
    }
    if !matches!(output.code, 1 | 125) {
        let text = format!("no exit code of ours: {output}");
        findings.push(Finding::new(Kind::Untyped, text));
    } else if could_answer && kind_of(output).is_none() {
        let text = format!("no kind of error that is known: {output}");
        findings.push(Finding::new(Kind::Untyped, text));
    }
    if is_harmless(injection) {
        let text = format!("it gave up where it could have gone on: {output}");
        findings.push(Finding::new(Kind::NotRetried, text));
    }
    findings
}

/// That a program did not end within its time.
pub fn hang(traced: &Traced) -> Option<Finding> {
    let text = || format!("it did not end: {}", traced.output);
    traced.hung.then(|| Finding::new(Kind::Hang, text()))
}

/// Whether a program is expected to do its work as if nothing had happened: read(2) and write(2)
/// may do less than they were asked for, and may be interrupted, at any time.
fn is_harmless(injection: &Injection) -> bool {
    let may_be_less = matches!(injection.class, CallClass::Read | CallClass::Write);
    may_be_less
        && matches!(
            injection.fault,
            Fault::Short | Fault::Fails(Code::Interrupted)
        )
}

/// The kind of the error that a document tells of, if that is one of ours: of the command, or of
/// what the engine did before or after the work of a run.
pub fn kind_of(output: &Output) -> Option<&'static str> {
    let document: Value = serde_json::from_slice(&output.stdout).ok()?;
    let of_the_command = Some(&document["error"]).filter(|e| e["touched"].is_boolean());
    let workspace = &document["workspace"];
    let of_the_engine = [&workspace["error"], &workspace["rollback"]["error"]];
    let of_the_engine = of_the_engine.into_iter().find(|e| e.is_object());
    let error = of_the_command.or(of_the_engine)?;
    error["message"].as_str().filter(|m| !m.is_empty())?;
    let kind = error["kind"].as_str()?;
    KINDS.into_iter().find(|known| *known == kind)
}

/// A snapshot that was answered for: it has this tree, and says that nothing is left out, unless
/// permission to read was denied.
pub fn snapshot_answer(document: &Value, tree: &str, fault: Fault) -> Option<Finding> {
    let omissions = document["omissions"].as_array();
    let untrue = |text: String| Some(Finding::new(Kind::Untrue, text));
    let Some(omissions) = omissions else {
        return untrue(format!("a snapshot has omissions: {document}"));
    };
    // One rule of the workspaces leaves one file out, and a snapshot says so.
    let unexpected = |o: &&Value| o["reason"] != "ignored";
    if let Some(omission) = omissions.iter().find(unexpected) {
        let is_denied = fault == Fault::Fails(Code::Access) && omission["reason"] == "unreadable";
        return match is_denied {
            true => None,
            false => untrue(format!("{omission} is left out after {fault}")),
        };
    }
    // A rule that may not be read leaves nothing out, which is more than was asked for.
    let has_all = fault == Fault::Fails(Code::Access) && omissions.is_empty();
    if document["tree"] != tree && !has_all {
        let found = &document["tree"];
        return untrue(format!("its tree is {found}, git says {tree}: {document}"));
    }
    None
}

/// A restore that answers that it is done: what differs from where it was to lead is named in
/// `skipped`, and what differs in the repository in `error`.
pub fn restore_answer(document: &Value, now: &Picture, target: &Picture) -> Option<Finding> {
    let skipped = match document["skipped"].is_array() {
        true => json::names_in(&document["skipped"]),
        false => Vec::new(),
    };
    // A directory stays for what stays in it.
    let is_named = |path: &str| {
        let mut skipped = skipped.iter();
        skipped.any(|skipped| is_below(path, skipped) || is_below(skipped, path))
    };
    let mut silent = now.files.differing(&target.files);
    silent.retain(|path| !is_named(path));
    if document["error"].is_null() {
        silent.extend(now.repository.differing(&target.repository));
    }
    let is_true = document["status"] == "completed" && silent.is_empty();
    let text = || format!("it says nothing of {silent:?}: {document}");
    (!is_true).then(|| Finding::new(Kind::Untrue, text()))
}

/// Whether a path is another one, or lies below it.
pub(crate) fn is_below(path: &str, above: &str) -> bool {
    let rest = path.strip_prefix(above);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What is there may be one of `known`. With `may_be_mixed` each path may be of another of them, or
/// nothing: whether that can be put back is for others to see.
pub fn workspace(now: &Picture, known: &[&Picture], may_be_mixed: bool) -> Option<Finding> {
    if known.contains(&now) {
        return None;
    }
    let mut strangers = now.strangers(known);
    if may_be_mixed {
        strangers.retain(|path| now.has_bytes(path));
    }
    let lost = |text: String| Some(Finding::new(Kind::Lost, text));
    if !strangers.is_empty() {
        let lines = known.iter().filter_map(|k| k.difference(now));
        let lines: Vec<String> = lines.collect();
        let text = format!("nobody put {strangers:?} so:\n{}", lines.join("or\n"));
        return lost(text);
    }
    if !may_be_mixed {
        let lines: Vec<String> = known.iter().filter_map(|k| k.difference(now)).collect();
        return lost(format!("neither before nor after:\n{}", lines.join("or\n")));
    }
    None
}

/// Whether the store is whole, by what git says of it, and has every one of these snapshots.
pub fn store(ws: &TestWorkspace, acknowledged: &[Acknowledged]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(complaint) = oracle::fsck_complaint(&ws.state()) {
        findings.push(Finding::new(Kind::Damaged, complaint));
    }
    let named = commits_with_refs(ws);
    for snapshot in acknowledged {
        if !named.contains(&snapshot.commit) {
            let text = format!(
                "no ref names {}, the snapshot {}",
                snapshot.commit, snapshot.id
            );
            findings.push(Finding::new(Kind::Lost, text));
        }
    }
    findings
}

/// What the refs of the stores name, as their files say.
fn commits_with_refs(ws: &TestWorkspace) -> BTreeSet<String> {
    let mut commits = BTreeSet::new();
    for store in ws.stores() {
        let walk = WalkDir::new(store.join("git/refs"));
        for entry in walk
            .into_iter()
            .flatten()
            .filter(|e| e.file_type().is_file())
        {
            if let Ok(text) = fs::read_to_string(entry.path()) {
                commits.insert(text.trim().to_owned());
            }
        }
        if let Ok(text) = fs::read_to_string(store.join("git/packed-refs")) {
            let words = text.lines().filter_map(|line| line.split(' ').next());
            commits.extend(words.map(str::to_owned));
        }
    }
    commits
}

/// What `verify` answers: that every snapshot can be restored, and all of these are among them.
pub fn verdict(output: &Output, acknowledged: &[Acknowledged]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let snapshots = document["snapshots"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let has_problems = |s: &&Value| s["problems"].as_array().is_none_or(|p| !p.is_empty());
    if output.code != 0 || snapshots.iter().any(|s| has_problems(&s)) {
        findings.push(Finding::new(
            Kind::Damaged,
            format!("verify says: {output}"),
        ));
    }
    for wanted in acknowledged {
        if !snapshots.iter().any(|s| s["id"] == wanted.id.as_str()) {
            let text = format!("verify knows nothing of {}: {output}", wanted.id);
            findings.push(Finding::new(Kind::Lost, text));
        }
    }
    findings
}

/// Locks that are left though nobody is at work: in the user's repository, in the store, and of
/// engines.
pub fn locks(ws: &TestWorkspace) -> Vec<Finding> {
    let mut places = vec![ws.root().join(".git"), ws.state().join("engines")];
    places.extend(ws.stores().into_iter().map(|store| store.join("git")));
    let is_lock = |path: &Path| path.extension().is_some_and(|e| e == "lock");
    places
        .iter()
        .flat_map(|place| WalkDir::new(place).into_iter().flatten())
        .filter(|entry| entry.file_type().is_file() && is_lock(entry.path()))
        .map(|entry| {
            let text = format!("{} is left", entry.path().display());
            Finding::new(Kind::LeftLock, text)
        })
        .collect()
}

/// An undisturbed command; what it answered, or that it did not work.
pub fn undisturbed(ws: &TestWorkspace, args: &[&str]) -> Result<Output, Finding> {
    let output = ws.try_json(args);
    match output.code {
        0 => Ok(output),
        _ => Err(Finding::new(
            Kind::Stuck,
            format!("nothing disturbs it, and yet: {output}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torture::tracer::Hit;
    use serde_json::json;
    use std::collections::BTreeMap;
    use std::time::Duration;

    const FAILED: Fault = Fault::Fails(Code::Io);

    fn kinds(findings: &[Finding]) -> Vec<Kind> {
        findings.iter().map(|finding| finding.kind).collect()
    }

    fn ended(code: i32, stdout: &str, stderr: &str, fault: Fault) -> Vec<Kind> {
        ended_at(code, stdout, stderr, fault, false)
    }

    fn ended_at(code: i32, stdout: &str, stderr: &str, fault: Fault, is_answer: bool) -> Vec<Kind> {
        let took = Duration::ZERO;
        let traced = Traced {
            output: Output::new("x".into(), code, stdout.into(), stderr.into(), took),
            hit: Some(Hit {
                number: 0,
                path: String::new(),
                is_answer,
            }),
            counts: BTreeMap::new(),
            hung: false,
        };
        let injection = Injection {
            class: CallClass::Write,
            nth: 1,
            fault,
        };
        kinds(&ending(&traced, &injection, 0))
    }

    fn error(kind: &str) -> String {
        json!({"error": {"kind": kind, "message": "m", "touched": false}}).to_string()
    }

    #[test]
    fn an_ending_is_ours_or_it_is_found() {
        assert_eq!(ended(0, "{}", "", FAILED), []);
        assert_eq!(ended(1, &error("Storage"), "", FAILED), []);
        assert_eq!(ended(137, "", "", Fault::Kill), []);
        assert_eq!(ended(1, &error("internal"), "", FAILED), [Kind::Untyped]);
        assert_eq!(ended(1, "", "", FAILED), [Kind::Untyped]);
        assert_eq!(ended_at(1, "", "", FAILED, true), [], "it could not say");
        let panic = "thread 'main' panicked at src/x.rs";
        assert_eq!(ended(0, "{}", panic, FAILED), [Kind::Untyped]);
        assert_eq!(ended(134, "", "", FAILED), [Kind::Untyped], "a signal");
        assert_eq!(ended(137, "", "", FAILED), [Kind::Untyped], "not ours");
        assert_eq!(ended(0, "{}", "", Fault::Kill), [Kind::Untyped]);
        assert_eq!(ended(0, "", "", FAILED), [Kind::Untrue], "nothing is said");
        let gave_up = ended(1, &error("Storage"), "", Fault::Short);
        assert_eq!(gave_up, [Kind::NotRetried]);
    }

    #[test]
    fn a_lost_byte_is_found() {
        let ws = TestWorkspace::repository();
        ws.write("a", "1\n");
        ws.write("b", "1\n");
        let before = Picture::of(&ws);
        ws.write("a", "2\n");
        ws.write("b", "2\n");
        let after = Picture::of(&ws);
        let known = [&before, &after];
        assert_eq!(workspace(&before, &known, false), None);
        assert_eq!(workspace(&after, &known, false), None);
        ws.write("b", "1\n");
        let mixed = Picture::of(&ws);
        assert_eq!(workspace(&mixed, &known, true), None);
        let kind = |f: Option<Finding>| f.map(|f| f.kind);
        assert_eq!(kind(workspace(&mixed, &known, false)), Some(Kind::Lost));
        ws.write("b", "1");
        let short = Picture::of(&ws);
        assert_eq!(kind(workspace(&short, &known, true)), Some(Kind::Lost));
        ws.remove("b");
        let absent = Picture::of(&ws);
        assert_eq!(workspace(&absent, &known, true), None);
        assert_eq!(kind(workspace(&absent, &known, false)), Some(Kind::Lost));
        ws.write("b", "1\n");
        ws.git(["update-ref", "-d", "HEAD"]);
        let moved = Picture::of(&ws);
        assert_eq!(kind(workspace(&moved, &known, true)), Some(Kind::Lost));
    }

    #[test]
    fn a_snapshot_that_is_gone_or_damaged_is_found() {
        let mut ws = TestWorkspace::repository();
        ws.write("file", "x\n");
        let snapshot = Acknowledged::of(&ws.snapshot().json).unwrap();
        let known = [snapshot];
        assert_eq!(store(&ws, &known), []);
        assert_eq!(verdict(&ws.try_json(["verify"]), &known), []);
        ws.damages_the_store();
        let refs = ws.stores()[0].join("git/refs");
        let files = WalkDir::new(&refs).into_iter().flatten();
        for entry in files.filter(|e| e.file_type().is_file()) {
            fs::remove_file(entry.path()).unwrap();
        }
        assert_eq!(kinds(&store(&ws, &known)), [Kind::Lost]);
        let missing = Output::new(
            "verify".into(),
            0,
            json!({"snapshots": []}).to_string().into(),
            Vec::new(),
            Duration::ZERO,
        );
        assert_eq!(kinds(&verdict(&missing, &known)), [Kind::Lost]);
    }

    #[test]
    fn a_flipped_bit_in_the_store_is_found() {
        let mut ws = TestWorkspace::repository();
        ws.write("file", "x\n");
        let snapshot = Acknowledged::of(&ws.snapshot().json).unwrap();
        ws.damages_the_store();
        let packs = WalkDir::new(ws.stores()[0].join("git/objects/pack"));
        let is_pack = |path: &Path| path.extension().is_some_and(|e| e == "pack");
        let pack = packs.into_iter().flatten().find(|e| is_pack(e.path()));
        let pack = pack.unwrap().into_path();
        let mut bytes = fs::read(&pack).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::remove_file(&pack).unwrap();
        fs::write(&pack, bytes).unwrap();
        assert_eq!(kinds(&store(&ws, &[snapshot])), [Kind::Damaged]);
    }

    #[test]
    fn an_answer_that_is_not_true_is_found() {
        let answer = json!({"tree": "t", "omissions": []});
        assert_eq!(snapshot_answer(&answer, "t", FAILED), None);
        assert!(snapshot_answer(&answer, "other", FAILED).is_some());
        let fewer = json!({"tree": "t", "omissions": [{"path": "a", "reason": "unreadable"}]});
        assert!(snapshot_answer(&fewer, "t", FAILED).is_some());
        let denied = Fault::Fails(Code::Access);
        assert_eq!(snapshot_answer(&fewer, "t", denied), None);
        assert_eq!(snapshot_answer(&answer, "more", denied), None);
        let ruled = json!({"tree": "t", "omissions": [{"path": "a", "reason": "ignored"}]});
        assert_eq!(snapshot_answer(&ruled, "t", denied), None);
        assert!(snapshot_answer(&ruled, "other", denied).is_some());
    }

    #[test]
    fn a_path_that_was_left_alone_in_silence_is_found() {
        let ws = TestWorkspace::repository();
        ws.write("dir/a", "1\n");
        let target = Picture::of(&ws);
        ws.write("dir/a", "2\n");
        let now = Picture::of(&ws);
        let answer =
            |skipped: Value| json!({"status": "completed", "error": null, "skipped": skipped});
        let silent = restore_answer(&answer(json!([])), &now, &target);
        assert_eq!(silent.map(|f| f.kind), Some(Kind::Untrue));
        let named = answer(json!([{"path": "dir", "reason": "unreadable"}]));
        assert_eq!(restore_answer(&named, &now, &target), None);
        assert_eq!(restore_answer(&answer(json!([])), &target, &target), None);
    }

    #[test]
    fn a_lock_that_is_left_is_found() {
        let ws = TestWorkspace::repository();
        ws.snapshot();
        assert_eq!(locks(&ws), []);
        ws.write(".git/index.lock", "");
        let store = ws.stores()[0].join("git/refs/snapshots/x.lock");
        fs::write(store, "").unwrap();
        assert_eq!(kinds(&locks(&ws)), [Kind::LeftLock, Kind::LeftLock]);
    }

    #[test]
    fn a_command_that_does_not_work_is_found() {
        let ws = TestWorkspace::repository();
        assert!(undisturbed(&ws, &["list"]).is_ok());
        let stuck = undisturbed(&ws, &["show", "snap_nothing"]);
        assert_eq!(stuck.map(drop).map_err(|f| f.kind), Err(Kind::Stuck));
    }
}
