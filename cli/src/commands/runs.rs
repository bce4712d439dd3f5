//! `runs`: runs as text, listed or in full, and what a run does while it does it.

use std::time::Duration;

use stillframe::events::{EventQuery, EventType};
use stillframe::options::RunQuery;
use stillframe::records::{
    PhaseRecord, QuestionRecord, ReviewRecord, RunExport, RunRecord, StateValue, TokenTotals,
    ToolCallRecord, ToolCallStatus, WorkspaceSummary,
};
use stillframe::{Error, ErrorKind, Event, SnapshotId};

use super::{Tools, above, questions, snapshot};
use crate::failure::{self, Failure};
use crate::output::{self, Reply};
use crate::signals::Signals;

/// Lists the runs in a workspace.
pub(super) async fn runs(tools: &Tools, query: RunQuery) -> Result<Reply, Failure> {
    let is_chosen = query.incomplete
        || query.session_id.is_some()
        || !query.statuses.is_empty()
        || query.since.is_some()
        || query.until.is_some();
    let runs = tools.engine.runs(query).await?;
    let reply = Reply::new(tools.json, &runs, || listing(&runs));
    Ok(match runs.is_empty() {
        true if is_chosen => reply.note("there are no such runs"),
        true => reply.note("there were no runs in this workspace yet"),
        false => reply,
    })
}

/// The run of this id, or the only one whose id begins so: of any workspace, or else of this one.
pub(super) async fn by_id(tools: &Tools, id: &str) -> Result<RunRecord, Error> {
    match tools.engine.find_run(id).await {
        Err(e) if e.kind() == ErrorKind::InvalidOptions => match above::own(tools).await {
            Some(own) => tools.engine.find_run_of(&own, id).await.map_err(|_| e),
            None => Err(e),
        },
        found => found,
    }
}

/// Lets a person read the reply page by page. What is typed meanwhile is the pager's, so an
/// interrupt does not end this program and leave the pager alone with the shell at one terminal.
pub(super) fn paged(tools: &Tools, reply: Reply) -> Result<Reply, Failure> {
    if tools.console.is_at_terminal() {
        Signals::listen()?;
    }
    Ok(reply.paged())
}

/// Says what a run does as it does it, until it ends, or until a signal comes.
pub(super) async fn follow(tools: &Tools, id: &str) -> Result<Reply, Failure> {
    let record = by_id(tools, id).await?;
    let mut signals = Signals::listen()?;
    let query = EventQuery::session(record.session_id).run(record.id.clone());
    if record.status.is_terminal() {
        let mut ends = query.clone();
        ends.event_types = ENDS.to_vec();
        if tools.engine.events(ends).await?.is_empty() {
            return Ok(Reply::default().note("its events were removed"));
        }
    }
    let mut events = tools.engine.subscribe(query)?;
    loop {
        let event = tokio::select! {
            number = signals.next() => {
                return Ok(Reply::default().exit_code(failure::exit_code_of(number)));
            }
            event = events.next() => event,
        };
        let Some(event) = event else {
            return Ok(Reply::default());
        };
        let event = event?;
        if !tools.console.line(&progress(&event))? {
            return Ok(Reply::default());
        }
        if is_rest(&event.event_type) {
            // One that was gone on with since has more to say.
            let later = EventQuery::session(event.session_id)
                .run(record.id.clone())
                .after(event.sequence)
                .limit(1);
            if tools.engine.events(later).await?.is_empty() {
                return Ok(Reply::default());
            }
        }
        if ENDS.contains(&event.event_type) {
            return Ok(Reply::default());
        }
    }
}

/// Whether nothing follows until somebody goes on with the run.
fn is_rest(event_type: &EventType) -> bool {
    [
        EventType::RUN_INTERRUPTED,
        EventType::QUESTION_PARKED,
        EventType::FOLLOWUP_WAITING,
    ]
    .contains(event_type)
}

/// Nothing follows these.
const ENDS: [EventType; 4] = [
    EventType::RUN_COMPLETED,
    EventType::RUN_FAILED,
    EventType::RUN_CANCELLED,
    EventType::RUN_TIMEOUT,
];

/// One line of what a run does.
fn progress(event: &Event) -> String {
    let data = &event.data;
    let text = |key: &str| data[key].as_str().unwrap_or_default();
    let iteration = match data["iteration"].as_u64() {
        None | Some(0) => String::new(),
        Some(number) => format!("[{number}]"),
    };
    let mut line = format!("{:.0}  {}", event.timestamp, event.event_type);
    if !text("phase").is_empty() {
        line.push_str(&format!("  {}{iteration}", text("phase")));
    }
    if !text("step").is_empty() {
        line.push_str(&format!("/{}", text("step")));
    }
    if !text("task").is_empty() {
        line.push_str(&format!("  {}", text("task")));
    }
    if let Some(attempt) = data["attempt"].as_u64().filter(|attempt| *attempt > 1) {
        line.push_str(&format!("  attempt {attempt}"));
    }
    if let Some(ms) = data["duration_ms"].as_u64() {
        let took = output::lasting(Duration::from_millis(ms));
        line.push_str(&format!("  {took}"));
    }
    for key in [
        "label",
        "snapshot_id",
        "commit",
        "question_id",
        "question",
        "answer",
        "reason",
        "message",
    ] {
        if !text(key).is_empty() {
            line.push_str(&format!("  {}", text(key)));
        }
    }
    format!("{}\n", output::printable(&line))
}

/// The phases of a run with their steps, as a tree; nothing if it has none.
fn tree(phases: &[PhaseRecord]) -> String {
    let mut rows = Vec::new();
    let lasting = |ms: Option<u64>| {
        ms.map(|ms| output::lasting(Duration::from_millis(ms)))
            .unwrap_or_default()
    };
    for phase in phases {
        let name = match phase.iteration {
            0 => phase.name.clone(),
            iteration => format!("{}[{iteration}]", phase.name),
        };
        rows.push(vec![
            output::printable(&name),
            phase.status.to_string(),
            lasting(phase.duration_ms),
        ]);
        for (place, step) in phase.steps.iter().enumerate() {
            let branch = match place + 1 == phase.steps.len() {
                true => "└─",
                false => "├─",
            };
            let mut row = vec![
                format!("{branch} {}", output::printable(&step.name)),
                step.status.to_string(),
                lasting(step.duration_ms),
            ];
            let id =
                |id: &Option<SnapshotId>| id.as_ref().map_or("–".to_owned(), |id| id.to_string());
            let mut said = Vec::new();
            if step.snapshot_before.is_some() || step.snapshot_after.is_some() {
                let (before, after) = (id(&step.snapshot_before), id(&step.snapshot_after));
                said.push(format!("{before} → {after}"));
            }
            if let Some(commit) = &step.commit_created {
                said.push(format!("commit {}", output::printable(commit)));
            }
            if step.attempt > 1 {
                said.push(format!("attempt {}", step.attempt));
            }
            if let Some(error) = &step.error {
                said.push(output::printable(&error.message));
            }
            row.push(said.join(", "));
            rows.push(row);
            let stem = match place + 1 == phase.steps.len() {
                true => "   ",
                false => "│  ",
            };
            for task in &step.tasks {
                let error = task.error.as_ref();
                rows.push(vec![
                    format!("{stem}· {}", output::printable(&task.name)),
                    task.status.to_string(),
                    lasting(task.duration_ms),
                    error.map_or(String::new(), |e| output::printable(&e.message)),
                ]);
            }
        }
    }
    match rows.is_empty() {
        true => String::new(),
        false => format!("\n{}", output::table(&rows)),
    }
}

/// What a run asked, a line each; nothing if it asked nothing.
fn asked(questions: &[QuestionRecord]) -> String {
    let rows: Vec<Vec<String>> = questions
        .iter()
        .map(|question| {
            let answer = question.answer.as_deref().map(output::printable);
            vec![
                question.id.to_string(),
                question.status.to_string(),
                questions::line(question),
                answer.unwrap_or_default(),
            ]
        })
        .collect();
    match rows.is_empty() {
        true => String::new(),
        false => format!("\n{}", output::table(&rows)),
    }
}

/// How the calls of tools in a run ended, as `7 calls, 2 failed`; `None`: there were none.
fn tools(calls: &[ToolCallRecord]) -> Option<String> {
    let mut said = output::count(u64::try_from(calls.len()).ok()?, "call");
    for status in [
        ToolCallStatus::Running,
        ToolCallStatus::Failed,
        ToolCallStatus::Interrupted,
    ] {
        match calls.iter().filter(|call| call.status == status).count() {
            0 => {}
            count => said += &format!(", {count} {status}"),
        }
    }
    (!calls.is_empty()).then_some(said)
}

/// The rows of what was seen of the workspace of a run.
fn seen(workspace: &WorkspaceSummary) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if let Some(diff) = &workspace.diff {
        rows.push((
            "changed",
            format!(
                "{}, {} added, {} removed",
                output::count(diff.files_changed, "file"),
                output::count(diff.insertions, "line"),
                diff.deletions
            ),
        ));
        if let Some(story) = super::restore::refs_story(&diff.refs, None) {
            rows.push(("refs", story.trim_start_matches("refs: ").to_owned()));
        }
    }
    if workspace.patch_purged {
        rows.push(("patch", "purged".to_owned()));
    }
    if let Some(key) = &workspace.patch_ref {
        rows.push(("patch", format!("artifact {}", output::printable(key))));
    }
    if let Some(rollback) = &workspace.rollback {
        rows.push(("rollback", rollback.status.as_str().to_owned()));
    }
    if let Some(error) = &workspace.error {
        rows.push(("engine", output::printable(&error.message)));
    }
    rows
}

/// The reviews of a run, a line each; nothing if there are none.
fn reviews(reviews: &[ReviewRecord]) -> String {
    let rows: Vec<Vec<String>> = reviews
        .iter()
        .map(|review| {
            let judgement = match (review.approved, review.blocking) {
                (_, true) => "blocking",
                (true, false) => "approved",
                (false, false) => "not approved",
            };
            let target = output::printable(&review.target_ref);
            let issues = u64::try_from(review.issues.len()).unwrap_or(u64::MAX);
            vec![
                format!("review of {} {target}", review.target_type),
                judgement.to_owned(),
                output::count(issues, "issue"),
                shortened(&review.summary),
            ]
        })
        .collect();
    match rows.is_empty() {
        true => String::new(),
        false => format!("\n{}", output::table(&rows)),
    }
}

/// The state that a run keeps, a line each; nothing if it keeps none.
fn state(values: &[StateValue]) -> String {
    let rows: Vec<Vec<String>> = values
        .iter()
        .map(|value| {
            vec![
                format!("state {}", output::printable(&value.key)),
                shortened(&value.value.to_string()),
                format!("since {:.0}", value.changed_at),
            ]
        })
        .collect();
    match rows.is_empty() {
        true => String::new(),
        false => format!("\n{}", output::table(&rows)),
    }
}

/// The beginning of a text that may be long, for one line.
fn shortened(text: &str) -> String {
    /// So much is seen at a glance.
    const MAX_CHARS: usize = 60;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => output::printable(&text[..end]) + "…",
        None => output::printable(text),
    }
}

pub(super) fn listing(runs: &[RunRecord]) -> String {
    let rows: Vec<Vec<String>> = runs
        .iter()
        .map(|run| {
            let seen = run.workspace.as_ref();
            let changed = seen.and_then(|seen| Some(seen.diff.as_ref()?.files_changed));
            vec![
                run.id.to_string(),
                format!("{:.0}", run.created_at),
                run.status.as_str().to_owned(),
                match queued(run) {
                    Some(place) => place,
                    None => changed
                        .map(|n| output::count(n, "file"))
                        .unwrap_or_default(),
                },
                output::printable(&run.input),
            ]
        })
        .collect();
    output::table(&rows)
}

/// Where a run waits, if it does.
fn queued(run: &RunRecord) -> Option<String> {
    let queue = run.queue.as_ref()?;
    let (place, adapter) = (queue.place?, output::printable(&queue.adapter));
    Some(format!(
        "{place} in the queue ({}, {adapter})",
        queue.priority
    ))
}

/// A run in full.
/// Where a run stands, and what it ends as if that is known before.
fn status(run: &RunRecord) -> String {
    match run.ends_as {
        Some(ends) => format!("{}, and then {ends}", run.status),
        None => run.status.to_string(),
    }
}

pub(super) fn description(export: &RunExport, pinned: &[SnapshotId]) -> String {
    let (run, snapshots) = (&export.run, &export.snapshots);
    let mut rows = vec![
        ("run", run.id.to_string()),
        ("session", run.session_id.to_string()),
        ("status", status(run)),
        ("input", output::printable(&run.input)),
    ];
    if let Some(queue) = &run.queue {
        let place = queue
            .place
            .map(|place| format!("{place} of those that wait"));
        rows.extend(place.map(|place| ("place", place)));
        rows.push(("adapter", output::printable(&queue.adapter)));
        rows.push(("priority", queue.priority.to_string()));
    }
    if let Some(code) = run.exit_code {
        rows.push(("exit code", code.to_string()));
    }
    if let Some(error) = &run.error {
        rows.push(("error", output::printable(&error.message)));
    }
    if let Some(path) = &run.workspace_path {
        rows.push(("workspace", output::printable(path)));
    }
    rows.push(("created", run.created_at.to_string()));
    rows.extend(run.started_at.map(|at| ("started", at.to_string())));
    rows.extend(run.ended_at.map(|at| ("ended", at.to_string())));
    rows.extend(run.workspace.iter().flat_map(|workspace| seen(workspace)));
    if run.total_agents > 0 {
        rows.push(("agents", run.total_agents.to_string()));
    }
    let tokens = run.total_tokens;
    if tokens != TokenTotals::default() {
        let (input, output) = (tokens.input_tokens, tokens.output_tokens);
        rows.push(("tokens", format!("{input} given, {output} answered")));
    }
    rows.extend(tools(&export.tool_calls).map(|said| ("tools", said)));
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), value])
        .collect();
    let mut text = output::table(&rows);
    text.push_str(&tree(&export.phases));
    text.push_str(&asked(&export.questions));
    text.push_str(&reviews(&export.reviews));
    text.push_str(&state(&export.state));
    let workspace = run.workspace.as_ref();
    let diff = workspace.and_then(|workspace| workspace.diff.as_ref());
    for path in diff.into_iter().flat_map(|diff| &diff.changed_paths) {
        text.push_str(&format!("  {path}\n"));
    }
    // Those around its steps are named above.
    let around = workspace.map(|workspace| [&workspace.before_snapshot, &workspace.after_snapshot]);
    let around: Vec<&SnapshotId> = around.into_iter().flatten().flatten().collect();
    for snapshot in snapshots {
        if !around.contains(&&snapshot.id) {
            continue;
        }
        text.push('\n');
        text.push_str(&snapshot::description(
            snapshot,
            pinned.contains(&snapshot.id),
        ));
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use stillframe::Snapshot;

    use super::*;
    use crate::commands::snapshot::tests::snapshot_json;

    pub(crate) fn run() -> RunRecord {
        serde_json::from_value(json!({
            "run_id": "run_1", "session_id": "ses_1", "status": "failed",
            "input": "make\u{1b}[2J test", "workspace_path": "/w",
            "created_at": "2026-02-03T04:05:06.789Z", "started_at": "2026-02-03T04:05:07Z",
            "ended_at": null, "exit_code": 2,
            "error": {"kind": null, "message": "the command exited with code 2"},
            "options": {},
            "output": null,
            "workspace": {
                "before_snapshot": "snap_a", "after_snapshot": null,
                "diff": {
                    "files_changed": 2, "insertions": 3, "deletions": 1,
                    "changed_paths": ["a", {"base64": "Yf8="}],
                },
                "rollback": {
                    "status": "completed", "guard_snapshot": null, "safety_tag": null,
                    "restored": [], "leftover_ignored": [], "skipped": [], "error": null,
                },
                "error": null,
            },
        }))
        .expect("it is a run")
    }

    pub(crate) fn snapshot() -> Snapshot {
        serde_json::from_value(snapshot_json('a', &[("out", "ignored")])).expect("a snapshot")
    }

    #[test]
    fn a_run_is_listed_on_one_line() {
        assert_eq!(
            listing(&[run()]),
            "run_1  2026-02-03T04:05:06Z  failed  2 files  make\\u{1b}[2J test\n"
        );
    }

    #[test]
    fn a_run_that_waits_is_listed_and_shown_with_its_place() {
        let mut document = serde_json::to_value(run()).expect("plain data");
        document["status"] = json!("pending");
        document["workspace"] = json!(null);
        document["queue"] =
            json!({"adapter": "agent", "input": {"ticket": 42}, "priority": "batch", "place": 3});
        let run: RunRecord = serde_json::from_value(document.clone()).expect("it is a run");
        assert_eq!(
            listing(&[run]),
            "run_1  2026-02-03T04:05:06Z  pending  3 in the queue (batch, agent)  make\\u{1b}[2J test\n"
        );
        document["lease"] = json!(null);
        for key in ["phases", "snapshots", "artifacts", "events"] {
            document[key] = json!([]);
        }
        let shown: RunExport = serde_json::from_value(document).expect("it is a run in full");
        let text = description(&shown, &[]);
        for line in [
            "place      3 of those that wait\n",
            "adapter    agent\n",
            "priority   batch\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    fn export(phases: serde_json::Value) -> RunExport {
        let mut document = serde_json::to_value(run()).expect("plain data");
        document["lease"] = json!(null);
        document["phases"] = phases;
        document["snapshots"] = json!([snapshot()]);
        document["artifacts"] = json!([]);
        document["events"] = json!([]);
        serde_json::from_value(document).expect("it is a run in full")
    }

    #[test]
    fn a_run_in_full_has_its_paths_and_the_coverage_of_its_snapshots() {
        let mut export = export(json!([]));
        let workspace = export.run.workspace.as_mut().expect("it has one");
        workspace.before_snapshot = Some(export.snapshots[0].id.clone());
        let text = description(&export, &[]);
        for part in [
            "exit code  2\n",
            "error      the command exited with code 2\n",
            "changed    2 files, 3 lines added, 1 removed\n",
            "rollback   completed\n",
            "  a\n  a\\xff\n",
            "  out (ignored)\n",
        ] {
            assert!(text.contains(part), "{part:?} is in {text}");
        }
        let document = serde_json::to_value(&export).expect("plain data");
        assert_eq!(document["run_id"], "run_1");
        assert_eq!(
            document["snapshots"][0]["omissions"][0]["reason"],
            "ignored"
        );
    }

    #[test]
    fn phases_and_steps_are_a_tree() {
        let step = |name: &str, status: &str, attempt: u32, error: Option<&str>| {
            json!({
                "step_id": "stp_1", "name": name, "status": status, "attempt": attempt,
                "snapshot_before": null, "snapshot_after": null, "commit_created": null,
                "result": null, "error": error.map(|e| json!({"kind": null, "message": e})),
                "started_at": null, "completed_at": null, "duration_ms": 1_500,
            })
        };
        let phase = |name: &str, iteration: u32, steps: serde_json::Value| {
            json!({
                "name": name, "iteration": iteration, "status": "running", "started_at": null,
                "completed_at": null, "duration_ms": null, "steps": steps,
            })
        };
        let text = tree(
            &export(json!([
                phase("plan", 0, json!([step("a", "completed", 1, None)])),
                phase(
                    "edit\u{1b}",
                    2,
                    json!([
                        step("b", "completed", 1, None),
                        step("c", "failed", 3, Some("no luck"))
                    ])
                ),
            ]))
            .phases,
        );
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "",
                "plan           running",
                "└─ a           completed  1.5 s",
                "edit\\u{1b}[2]  running",
                "├─ b           completed  1.5 s",
                "└─ c           failed     1.5 s  attempt 3, no luck",
            ]
        );
        assert_eq!(tree(&[]), "");
    }

    #[test]
    fn the_state_of_a_run_is_a_line_each_and_a_long_value_is_shortened() {
        let mut export = export(json!([]));
        let at = "2026-02-03T04:05:06.789Z";
        let values = json!([
            { "key": "log\u{1b}", "value": "x".repeat(80), "changed_at": at },
            { "key": "page", "value": { "n": 7 }, "changed_at": at },
        ]);
        export.state = serde_json::from_value(values).expect("the state of a run");
        let text = description(&export, &[]);
        let long = format!("state log\\u{{1b}}  \"{}…  since", "x".repeat(59));
        for line in [
            &long,
            "state page       {\"n\":7}",
            "since 2026-02-03T04:05:06Z\n",
        ] {
            assert!(text.contains(line), "{line:?} is in {text}");
        }
    }

    #[test]
    fn the_calls_of_tools_are_counted_by_how_they_ended() {
        let mut export = export(json!([]));
        assert!(!description(&export, &[]).contains("tools"));
        let call = |id: &str, status: &str| json!({ "call_id": id, "source": "engine", "tool_name": "Edit", "status": status });
        let calls = json!([
            call("1", "completed"),
            call("2", "failed"),
            call("3", "interrupted"),
            call("4", "failed")
        ]);
        export.run.total_agents = 2;
        export.run.total_tokens = serde_json::from_value(json!({
            "input_tokens": 1200, "output_tokens": 310,
        }))
        .expect("tokens");
        export.tool_calls = serde_json::from_value(calls).expect("calls of tools");
        let text = description(&export, &[]);
        let line = "tools      4 calls, 2 failed, 1 interrupted\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("agents     2\n"), "{text}");
        let line = "tokens     1200 given, 310 answered\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn a_review_of_a_run_is_a_line() {
        let mut export = export(json!([]));
        let review = json!({
            "review_id": "rev_1", "session_id": "ses_1", "run_id": "run_1", "step_id": null,
            "target_type": "commit", "target_ref": "2f1c\u{1b}", "approved": false,
            "blocking": true, "summary": "It divides by zero.", "created_at": "2026-02-03T04:05:06Z",
            "issues": [{ "severity": "major", "message": "x" }],
        });
        export.reviews = serde_json::from_value(json!([review])).expect("a review");
        let text = description(&export, &[]);
        let line = "review of commit 2f1c\\u{1b}  blocking  1 issue  It divides by zero.\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn what_a_run_does_is_a_line_each() {
        let event: Event = serde_json::from_value(json!({
            "id": "evt_1", "type": "step_failed", "timestamp": "2026-02-03T04:05:06.789Z",
            "session_id": "s", "run_id": "r", "sequence": 7, "schema_version": 1,
            "data": {"phase": "edit", "iteration": 2, "step": "apply", "attempt": 2,
                     "duration_ms": 61_000, "reason": "no\u{1b} luck"},
        }))
        .expect("an event");
        assert_eq!(
            progress(&event),
            "2026-02-03T04:05:06Z  step_failed  edit[2]/apply  attempt 2  1 min 1 s  no\\u{1b} luck\n"
        );
        assert!(!ENDS.contains(&event.event_type));
        let interrupted = EventType::RUN_INTERRUPTED;
        assert!(is_rest(&interrupted) && !ENDS.contains(&interrupted));
        assert!(is_rest(&EventType::FOLLOWUP_WAITING));
        assert!(ENDS.contains(&EventType::RUN_CANCELLED));
    }
}
