//! The schemas of all that `--json` prints, in `docs/schema/`: generated from the types, and
//! compared.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use stillframe::backends::{CopyOutcome, Diff, Why};
use stillframe::records::{
    AllowedSecretRecord, ArtifactRecord, DiscardedWorktree, ExportLine, ExportOutcome, IsolatedRun,
    NewRepositoryRecord, NoticeRecord, QuarantineRestore, QuarantinedWork, QuestionRecord,
    RestoreDocument, ResumedWork, RunDocument, RunExport, RunRecord, SavedWork, SessionRecord,
    TakenSnapshot, TranscriptEntry, UndoOutcome, WorkTaskRecord,
};
use stillframe::schema::{self, JsonSchema, Schema};
use stillframe::upkeep::{PurgeOutcome, PurgePlan, RemovalOutcome, VerifyOutcome};

use crate::args::Args;
use crate::commands::{
    artifact, config, content, files, restore, sessions, show, snapshot, task, upkeep,
};
use crate::failure::ErrorAndRun;

/// The command that writes `docs/schema/` anew.
const WRITE: &str = "STILLFRAME_WRITE_SCHEMAS=1 cargo test -p stillframe-cli schemas";

/// Each schema by the name of its file.
fn schemas() -> BTreeMap<&'static str, Schema> {
    fn of<T: JsonSchema>() -> Schema {
        schema::of::<T>()
    }
    BTreeMap::from([
        ("answer-list", of::<Vec<QuestionRecord>>()),
        ("answer", of::<QuestionRecord>()),
        ("artifact-get", of::<artifact::Content<'_>>()),
        ("artifact-list", of::<Vec<ArtifactRecord>>()),
        ("artifact-rm", of::<artifact::Removed<'_>>()),
        ("cancel", of::<RunRecord>()),
        ("clone", of::<NewRepositoryRecord>()),
        ("config-check", of::<config::Checked>()),
        ("config-path", of::<config::Place>()),
        ("config-show", of::<config::Shown<'_>>()),
        ("diff", of::<Diff>()),
        ("error", of::<ErrorAndRun<'_>>()),
        ("event", schema::of_events()),
        ("export-line", of::<ExportLine>()),
        ("export", of::<ExportOutcome>()),
        ("gc", of::<upkeep::GcDocument>()),
        ("init", of::<NewRepositoryRecord>()),
        ("notices", of::<Vec<NoticeRecord>>()),
        ("list", of::<Vec<snapshot::ListedDocument<'_>>>()),
        ("purge-plan", of::<PurgePlan>()),
        ("purge", of::<PurgeOutcome>()),
        ("restore-copy", of::<CopyOutcome>()),
        ("restore-plan", of::<restore::PlanDocument<'_>>()),
        ("restore", of::<RestoreDocument>()),
        ("review-approve", of::<IsolatedRun>()),
        ("review-decline", of::<IsolatedRun>()),
        ("review-diff", of::<Diff>()),
        ("review-list", of::<Vec<IsolatedRun>>()),
        ("review-show", of::<IsolatedRun>()),
        ("run", of::<RunDocument>()),
        ("runs", of::<Vec<RunRecord>>()),
        ("show-file", of::<content::Document<'_>>()),
        ("show-files", of::<Vec<files::FileDocument<'_>>>()),
        ("show-run", of::<RunExport>()),
        ("sessions", of::<Vec<SessionRecord>>()),
        ("show-session", of::<sessions::SessionDocument>()),
        ("show-snapshot", of::<show::SnapshotDocument<'_>>()),
        ("snapshot-pin", of::<snapshot::PinnedDocument<'_>>()),
        ("snapshot-rm", of::<RemovalOutcome>()),
        ("snapshot", of::<TakenSnapshot>()),
        ("task-allow-secret-list", of::<Vec<AllowedSecretRecord>>()),
        ("task-allow-secret", of::<task::Allowed<'_>>()),
        ("task-block", of::<task::Reported<'_>>()),
        ("task-checkpoint", of::<SavedWork>()),
        ("task-quarantine-discard", of::<QuarantinedWork>()),
        ("task-quarantine-list", of::<Vec<QuarantinedWork>>()),
        ("task-quarantine-restore", of::<QuarantineRestore>()),
        ("task-resume", of::<ResumedWork>()),
        ("task-list", of::<Vec<WorkTaskRecord>>()),
        ("task-name", of::<task::Named<'_>>()),
        ("task-show", of::<task::Shown>()),
        ("transcript", of::<TranscriptEntry>()),
        ("undo", of::<UndoOutcome>()),
        ("verify", of::<VerifyOutcome>()),
        ("why", of::<Why>()),
        ("worktree-discard", of::<DiscardedWorktree>()),
        ("worktree-list", of::<Vec<IsolatedRun>>()),
        ("worktree-path", of::<IsolatedRun>()),
    ])
}

/// `docs/schema/`.
fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema")
}

/// What each row of the table in its README has in its first and in its second column.
fn table() -> Vec<(BTreeSet<String>, BTreeSet<String>)> {
    let readme = fs::read_to_string(directory().join("README.md")).expect("there is one");
    let named = |column: &str| {
        let words = column.split('`').skip(1).step_by(2);
        words.map(str::to_owned).collect()
    };
    let rows = readme.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let (commands, files) = row.split_once(" | ").expect("a row has two columns");
        (named(&format!("`{commands}")), named(files))
    })
    .collect()
}

/// Each command that can be typed.
fn commands(of: &clap::Command, path: &str, found: &mut BTreeSet<String>) {
    for command in of.get_subcommands() {
        let path = format!("{path} {}", command.get_name());
        if !command.is_subcommand_required_set() {
            found.insert(path.trim().to_owned());
        }
        commands(command, &path, found);
    }
}

#[test]
fn the_schemas_in_the_documents_are_those_of_the_types() {
    let is_to_write = std::env::var_os("STILLFRAME_WRITE_SCHEMAS").is_some();
    let directory = directory();
    let mut left: BTreeSet<String> = fs::read_dir(&directory)
        .expect("there is such a directory")
        .map(|entry| entry.expect("it can be read").file_name().into_string())
        .map(|name| name.expect("it is text"))
        .filter(|name| name.ends_with(".json"))
        .collect();
    for (name, schema) in schemas() {
        let file = format!("{name}.json");
        let text = serde_json::to_string_pretty(&schema).expect("it is plain data") + "\n";
        let path = directory.join(&file);
        if is_to_write {
            fs::write(&path, &text).expect("the source can be written");
        }
        let is_same = fs::read_to_string(&path).is_ok_and(|found| found == text);
        assert!(
            is_same,
            "docs/schema/{file} is of other types; write it anew with: {WRITE}"
        );
        left.remove(&file);
    }
    assert!(left.is_empty(), "nothing is described by {left:?}");
}

#[test]
fn every_command_has_its_schemas_in_the_table_and_every_schema_its_command() {
    let mut all = BTreeSet::new();
    commands(&Args::command(), "", &mut all);
    assert!(all.len() > 20, "{all:?}");
    assert!(
        all.remove("completions"),
        "it prints a script whatever is asked for"
    );
    let (mut named, mut files) = (BTreeSet::new(), BTreeSet::from(["error.json".to_owned()]));
    for (commands, schemas) in table() {
        assert!(
            !commands.is_empty() && !schemas.is_empty(),
            "{commands:?}: {schemas:?}"
        );
        named.extend(commands);
        files.extend(schemas);
    }
    assert_eq!(
        named, all,
        "the table of docs/schema/README.md has every command"
    );
    let written = schemas().into_keys().map(|name| format!("{name}.json"));
    assert_eq!(
        files,
        written.collect(),
        "the table of docs/schema/README.md has every file"
    );
}
