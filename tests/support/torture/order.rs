//! Whether everything is synced before something relies on it: the calls of an undisturbed command,
//! in their order.
//!
//! A power cut keeps what was synced, and of the rest whatever it likes. So no name may be given to
//! bytes that are not synced, no ref to objects whose names are not, nothing of the workspace may
//! move before the intent is on disk, and nothing may be answered that a cut takes back.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::caches;
use crate::torture::call_class::CallClass;
use crate::torture::checker::{Finding, Kind};
use crate::torture::scene::Scene;
use crate::torture::tracer::{Refusal, Seen, Tracer};
use crate::torture::{Options, Report};

/// Looks at the calls of every scene once.
pub fn run(scenes: &[Scene], options: &Options) -> Result<Report, Refusal> {
    let tracer = Tracer::new(&options.launcher)?;
    let begin = std::time::Instant::now();
    let mut report = Report::new("order");
    for scene in scenes {
        let stage = scene.stage(&tracer)?;
        stage.begin(&tracer)?;
        let ws = &stage.sandbox.ws;
        let mut ledger = Ledger::new(ws.root(), &ws.state());
        let traced = tracer.watch(&stage.call(), &mut |seen| ledger.note(seen))?;
        report.tried += 1;
        report.hit += ledger.relied;
        report.count("scene", scene.to_string());
        let case = scene.to_string();
        if traced.output.code != stage.done() {
            let text = format!("nothing disturbs it, and yet: {}", traced.output);
            report.find(&case, [Finding::new(Kind::Stuck, text)]);
        }
        report.find(&case, ledger.findings);
    }
    report.took = begin.elapsed();
    Ok(report)
}

/// What a power cut could take at this moment, and what relied on it too early.
#[derive(Debug, Default)]
struct Ledger {
    workspace: PathBuf,
    state: PathBuf,
    /// Files that were written since they were synced.
    bytes: BTreeSet<PathBuf>,
    /// Directories in which names came since they were synced.
    names: BTreeSet<PathBuf>,
    /// How often something relied on what came before it.
    relied: usize,
    findings: Vec<Finding>,
}

impl Ledger {
    fn new(workspace: &Path, state: &Path) -> Self {
        Self {
            workspace: workspace.to_owned(),
            state: state.to_owned(),
            ..Self::default()
        }
    }

    /// A call is about to be made.
    fn note(&mut self, seen: &Seen) {
        match seen.class {
            CallClass::Write if seen.is_answer => self.answers(),
            CallClass::Write | CallClass::Resize => {
                self.bytes.insert(seen.path.clone());
            }
            CallClass::Sync => {
                self.bytes.remove(&seen.path);
                self.names.remove(&seen.path);
                if seen.is_of_all {
                    self.bytes.clear();
                    self.names.clear();
                }
            }
            CallClass::OpenToWrite if !seen.path.exists() => self.names_in(&seen.path),
            CallClass::MakeDirectory | CallClass::Link => self.names_in(&seen.path),
            CallClass::Rename => self.renames(seen),
            CallClass::Remove => {
                self.bytes.remove(&seen.path);
                self.names.remove(&seen.path);
            }
            _ => {}
        }
    }

    fn names_in(&mut self, path: &Path) {
        self.names.extend(path.parent().map(Path::to_owned));
    }

    fn renames(&mut self, seen: &Seen) {
        let from = seen.from.clone().unwrap_or_default();
        let to = &seen.path;
        let git_dir = self.workspace.join(".git");
        let workspace = self.workspace.clone();
        let is_of_the_repository = |path: &Path| path.starts_with(&git_dir);
        let is_file = |path: &Path| path.starts_with(&workspace) && !is_of_the_repository(path);
        if is_file(&from) || is_file(to) {
            self.moves_a_file(&from, to);
        }
        let is_kept = to.starts_with(&self.state) && caches::kind(to).is_none();
        if (is_kept || is_of_the_repository(to)) && self.bytes.contains(&from) {
            self.find(format!(
                "{} is named before its bytes are synced",
                shown(to)
            ));
        }
        if is_below(to, &self.state, "refs/snapshots") || is_below(to, &self.state, "refs/guards") {
            self.relied += 1;
            self.wants_names("a ref is made", |path| path.contains("/git/objects"));
            self.wants_bytes("a ref is made", |path| path.contains("/git/objects/pack/"));
            self.wants_objects(&from);
        }
        if is_below(to, &self.state, "artifacts/keys") {
            self.relied += 1;
            self.wants_names("an artifact is named", |path| {
                path.contains("/artifacts/blobs/")
            });
            self.wants_content(&from);
        }
        if self.bytes.remove(&from) {
            self.bytes.insert(to.clone());
        }
        self.names_in(to);
    }

    /// A file of the workspace comes, goes or is replaced: by what is synced, and after the intent
    /// is.
    fn moves_a_file(&mut self, from: &Path, to: &Path) {
        self.relied += 1;
        if self.bytes.contains(from) {
            let text = format!("{} is put in place before its bytes are synced", shown(to));
            self.find(text);
        }
        let journals = journals(&self.state);
        if !journals.iter().any(|journal| intends(journal)) {
            self.find(format!("{} is moved without an intent", shown(to)));
        }
        let unsynced = journals
            .iter()
            .find(|journal| self.bytes.contains(*journal));
        if unsynced.is_some() {
            self.find(format!(
                "{} is moved before the intent is synced",
                shown(to)
            ));
        }
    }

    fn answers(&mut self) {
        self.relied += 1;
        let is_durable = |path: &str| {
            path.contains("/git/refs/")
                || path.contains("/git/objects/pack")
                || path.contains("/artifacts/")
        };
        let is_done = |path: &str| is_durable(path) && !path.contains("/staging");
        self.wants_names("it answers", is_done);
        self.wants_bytes("it answers", |path| path.ends_with("/restore.journal"));
    }

    /// The pack with what a staged ref names has its name: packs of a snapshot are never empty.
    fn wants_objects(&mut self, staged_ref: &Path) {
        let commit = std::fs::read_to_string(staged_ref).unwrap_or_default();
        let git_dir = staged_ref.parent().unwrap_or(staged_ref);
        let mut call = crate::Call::new("git", git_dir).env("GIT_DIR", git_dir);
        call = call
            .env("PATH", "/usr/bin:/bin")
            .env("GIT_CONFIG_NOSYSTEM", "1");
        let found = call.args(["cat-file", "-e", commit.trim()]).run();
        if found.code != 0 {
            self.find(format!(
                "a ref is made to {}, which is not there",
                commit.trim()
            ));
        }
    }

    /// The content that a staged record leads to has its name.
    fn wants_content(&mut self, record: &Path) {
        let text = std::fs::read_to_string(record).unwrap_or_default();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let digest = value["blake3"].as_str().unwrap_or("??");
        let blob = self
            .state
            .join("artifacts/blobs")
            .join(&digest[..2])
            .join(digest);
        if !blob.exists() {
            self.find(format!(
                "an artifact is named before {} is there",
                shown(&blob)
            ));
        }
    }

    fn wants_names(&mut self, what: &str, of: impl Fn(&str) -> bool) {
        let below = |path: &&PathBuf| path.starts_with(&self.state) && of(&path.to_string_lossy());
        let early = self.names.iter().find(below).map(|path| shown(path));
        if let Some(path) = early {
            self.find(format!("{what} before the names in {path} are synced"));
        }
    }

    fn wants_bytes(&mut self, what: &str, of: impl Fn(&str) -> bool) {
        let early = self.bytes.iter().find(|path| of(&path.to_string_lossy()));
        if let Some(path) = early.map(|path| shown(path)) {
            self.find(format!("{what} before the bytes of {path} are synced"));
        }
    }

    fn find(&mut self, text: String) {
        let finding = Finding::new(Kind::Unordered, text);
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }
}

fn is_below(path: &Path, state: &Path, what: &str) -> bool {
    path.starts_with(state) && path.to_string_lossy().contains(&format!("/{what}/"))
}

/// The end of a path, which tells what it is.
fn shown(path: &Path) -> String {
    let names: Vec<_> = path.iter().collect();
    let last = &names[names.len().saturating_sub(4)..];
    last.iter().collect::<PathBuf>().display().to_string()
}

fn journals(state: &Path) -> Vec<PathBuf> {
    let stores = std::fs::read_dir(state.join("workspaces"));
    let stores = stores.into_iter().flatten().flatten();
    let journals = stores.map(|store| store.path().join("restore.journal"));
    journals.filter(|journal| journal.exists()).collect()
}

/// Whether a journal has a frame of the kind Intent, as docs/format.md describes it.
fn intends(journal: &Path) -> bool {
    const INTENT: u8 = 3;
    let bytes = std::fs::read(journal).unwrap_or_default();
    let mut rest = &bytes[..];
    while let Some((header, after)) = rest.split_at_checked(37) {
        if header[28] == INTENT {
            return true;
        }
        let length = u32::from_le_bytes(header[33..37].try_into().expect("four bytes"));
        rest = after.get(length as usize + 32..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(class: CallClass, path: &str) -> Seen {
        Seen {
            class,
            nth: 1,
            path: path.into(),
            from: None,
            is_answer: false,
            is_of_all: false,
        }
    }

    fn rename(from: &str, to: &str) -> Seen {
        Seen {
            from: Some(from.into()),
            ..seen(CallClass::Rename, to)
        }
    }

    fn findings(calls: &[Seen]) -> Vec<String> {
        let mut ledger = Ledger::new(Path::new("/none/work"), Path::new("/none/state"));
        calls.iter().for_each(|call| ledger.note(call));
        ledger.findings.into_iter().map(|f| f.text).collect()
    }

    #[test]
    fn a_name_for_bytes_that_are_not_synced_is_found() {
        let write = seen(CallClass::Write, "/none/state/w/git/tmp");
        let sync = seen(CallClass::Sync, "/none/state/w/git/tmp");
        let name = rename("/none/state/w/git/tmp", "/none/state/w/git/objects/pack/p");
        assert_eq!(findings(&[write.clone(), sync, name.clone()]), [""; 0]);
        let early = findings(&[write, name]);
        assert_eq!(early.len(), 1, "{early:?}");
    }

    #[test]
    fn an_answer_before_the_names_are_synced_is_found() {
        let name = rename("/none/state/a", "/none/state/w/git/objects/pack/p.idx");
        let sync = seen(CallClass::Sync, "/none/state/w/git/objects/pack");
        let answer = Seen {
            is_answer: true,
            ..seen(CallClass::Write, "/dev/pts/0")
        };
        assert_eq!(findings(&[name.clone(), sync, answer.clone()]), [""; 0]);
        assert_eq!(findings(&[name, answer]).len(), 1);
    }

    #[test]
    fn a_file_that_is_moved_without_an_intent_is_found() {
        let found = findings(&[rename("/none/state/w/staged/1", "/none/work/a")]);
        assert_eq!(found, ["/none/work/a is moved without an intent"]);
    }
}
