//! Runs that cannot go on without a person: they are saved, wait, and go on with new input. The
//! oracle is git.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use stillframe::tasks::{Block, FollowUpInput, WorkBranchOptions};
use stillframe::{
    Adapter, AdapterError, AdapterOutput, Engine, EngineOptions, ErrorKind, RunContext, RunId,
    RunOptions, RunStatus, WorkspaceOptions,
};
use stillframe_backends::{LockedWorkspace, Operation, StateDir, Workspace};
use stillframe_tests::{Output, TestWorkspace, git};

use super::tasks::{KILLS, counted};

const BRANCH: &str = "stillframe/task/42";

/// Asks until there is an answer, and then writes it down.
const ASKS: &str = r#"
echo asked >> log
if [ -z "$STILLFRAME_INPUT_ID" ]; then stillframe task block "which port?" > said; exit 3; fi
echo "$STILLFRAME_INPUT_ID $STILLFRAME_INPUT $(cat "$STILLFRAME_INPUT_FILE")" >> answers
"#;

/// A repository with a remote, whose commands find Stillframe.
fn scene() -> TestWorkspace {
    let mut ws = TestWorkspace::repository();
    git::text(
        &ws.home(),
        ws.base(),
        ["init", "-q", "--bare", "remote.git"],
    );
    ws.git(["remote", "add", "origin", "../remote.git"]);
    let own = stillframe_tests::binary::stillframe().parent().unwrap();
    let paths = std::env::var("PATH").unwrap();
    ws.set_env("PATH", format!("{}:{paths}", own.display()));
    ws
}

fn remote(ws: &TestWorkspace) -> PathBuf {
    ws.base().join("remote.git")
}

/// Where the remote has a branch, as git itself says.
fn at(ws: &TestWorkspace, branch: &str) -> Option<String> {
    let full = format!("refs/heads/{branch}");
    let listed = git::text(&ws.home(), &remote(ws), ["ls-remote", ".", &full]);
    listed.split_whitespace().next().map(str::to_owned)
}

fn run(ws: &TestWorkspace, script: &str) -> Output {
    run_with(ws, &[], script)
}

fn run_with(ws: &TestWorkspace, options: &[&str], script: &str) -> Output {
    let args = [
        &["run", "--task", "42"],
        options,
        &["--", "sh", "-c", script],
    ];
    ws.try_json(args.concat())
}

fn blocked(ws: &TestWorkspace) -> Value {
    run(ws, ASKS).exits(75).json()
}

fn follow_up(ws: &TestWorkspace, id: &str, text: &str) -> Output {
    ws.try_json(["task", "follow-up", "42", "--input-id", id, "--text", text])
}

/// Goes on with another command than the one on record.
fn follow_up_with(ws: &TestWorkspace, id: &str, script: &str) -> Output {
    let args = ["task", "follow-up", "42", "--input-id", id];
    ws.try_json([&args[..], &["--", "sh", "-c", script]].concat())
}

fn task(ws: &TestWorkspace) -> Value {
    ws.json(["task", "show", "42"])
}

fn types(ws: &TestWorkspace, run: &Value) -> Vec<String> {
    let shown = ws.show(run["run_id"].as_str().unwrap());
    let types = shown["events"].as_array().unwrap().iter();
    types
        .map(|event| event["type"].as_str().unwrap().to_owned())
        .collect()
}

fn count(types: &[String], name: &str) -> usize {
    types.iter().filter(|one| *one == name).count()
}

#[test]
fn a_blocked_run_is_on_its_branch_and_goes_on_with_one_input_from_there() {
    let ws = scene();
    let waits = blocked(&ws);
    assert_eq!(waits["status"], "awaiting_followup", "{waits}");
    assert!(waits["error"].is_null(), "{waits}");
    let made = waits["follow_up"]["last_checkpoint"].as_str().unwrap();
    assert_eq!(at(&ws, BRANCH).as_deref(), Some(made));
    assert_eq!(waits["follow_up"]["branch"], BRANCH);
    assert_eq!(waits["follow_up"]["waiting_reason"], "which port?");
    let said = git::text(&ws.home(), &remote(&ws), ["log", "-1", "--format=%B", made]);
    let run = waits["run_id"].as_str().unwrap();
    let subject = format!("[checkpoint] stillframe run {run}\n");
    assert!(said.starts_with(&subject), "{said}");
    assert!(said.contains("\nCheckpoint-Kind: blocked"), "{said}");
    let told = types(&ws, &waits);
    let order = [
        "block_reported",
        "run_blocked",
        "persist_started",
        "persist_pushed",
        "checkpoint_ready",
        "followup_waiting",
    ];
    let found: Vec<&String> = told
        .iter()
        .filter(|one| order.contains(&one.as_str()))
        .collect();
    assert_eq!(found, order);
    let shown = task(&ws);
    assert_eq!(shown["status"], "awaiting_followup");
    assert_eq!(shown["run_id"], *run);
    assert_eq!(shown["follow_up"], waits["follow_up"]);
    assert_eq!(shown["checkpoints"][0]["kind"], "blocked");

    let notices = ws.json(["notices", "--pending"]);
    let [notice] = notices.as_array().unwrap().as_slice() else {
        panic!("{notices}");
    };
    assert_eq!(
        (&notice["kind"], &notice["commit"]),
        (&json!("checkpoint_ready"), &json!(made))
    );
    let text = notice["text"].as_str().unwrap();
    assert!(text.contains("- Blocked: `which port?`\n"), "{text}");
    assert!(text.contains(&format!("- Branch: `{BRANCH}`\n")), "{text}");

    // It is nobody's but that of new input.
    let refused = ws
        .try_json(["run", "--task", "42", "--", "true"])
        .exits(125);
    let refused = refused.error("Conflict");
    assert!(
        refused.contains("task follow-up 42") && refused.contains(run),
        "{refused}"
    );
    assert_eq!(run_again(&ws, run)["status"], "awaiting_followup");
    for (id, kind) in [
        ("0", "InvalidOptions"),
        ("18446744073709551615", "InvalidOptions"),
    ] {
        follow_up(&ws, id, "x").exits(1).error(kind);
    }
    let ours = format!("> <!-- stillframe-action:{} -->", "0a".repeat(32));
    follow_up(&ws, "7", &ours).exits(1).error("Conflict");
    assert_eq!(types(&ws, &waits), told, "no trace");

    let done = follow_up(&ws, "7", "it is 8080").ok().json();
    assert_eq!(
        (&done["run_id"], &done["status"]),
        (&waits["run_id"], &json!("completed"))
    );
    assert_eq!(ws.text("log"), "asked\nasked\n");
    assert_eq!(ws.text("answers"), "7 it is 8080 it is 8080\n");
    let tip = at(&ws, BRANCH).unwrap();
    assert_eq!(done["workspace"]["saved"]["commit"], *tip);
    let parent = git::text(&ws.home(), &remote(&ws), ["rev-parse", &format!("{tip}^")]);
    assert_eq!(parent, made, "it goes on from the head that waited");
    let told = types(&ws, &done);
    for once in ["followup_detected", "followup_consumed", "followup_resumed"] {
        assert_eq!(count(&told, once), 1, "{told:?}");
    }
    let shown = task(&ws);
    assert_eq!(shown["status"], "completed");
    assert_eq!(
        (&shown["input_cursor"], &shown["follow_up"]),
        (&json!(7), &Value::Null)
    );
    follow_up(&ws, "8", "x").exits(1).error("Conflict");
    git::run(
        &ws.home(),
        &remote(&ws),
        ["fsck", "--strict", "--no-dangling"],
    );
}

/// Starts a run again by its id, which is answered from its record while it waits.
fn run_again(ws: &TestWorkspace, id: &str) -> Value {
    ws.try_json(["run", "--run-id", id, "--", "false"])
        .exits(75)
        .json()
}

#[test]
fn a_second_block_has_the_new_commit_and_input_is_taken_once_and_in_order() {
    let ws = scene();
    let first = blocked(&ws)["follow_up"]["last_checkpoint"].clone();
    let again = "echo more >> log; stillframe task block 'and which host?' >&2; exit 0";
    let second = follow_up_with(&ws, "7", again).exits(75).json();
    assert_eq!(second["follow_up"]["waiting_reason"], "and which host?");
    let commit = second["follow_up"]["last_checkpoint"].as_str().unwrap();
    assert_ne!(first, *commit);
    assert_eq!(at(&ws, BRANCH).as_deref(), Some(commit));
    for old in ["6", "7"] {
        follow_up(&ws, old, "x").exits(1).error("Conflict");
    }
    assert_eq!(task(&ws)["follow_up"], second["follow_up"]);
    // What was started with is on record.
    follow_up(&ws, "8", "x").ok();
    assert!(
        ws.text("answers").starts_with("8 x"),
        "{}",
        ws.text("answers")
    );
}

#[test]
fn of_two_that_go_on_with_a_task_one_does() {
    let ws = scene();
    for round in 0..4_u64 {
        blocked(&ws);
        let id = (round + 1).to_string();
        let claims = [(); 2].map(|()| {
            let args = ["--json", "task", "follow-up", "42", "--input-id", &id];
            ws.call(args).start()
        });
        let mut codes: Vec<i32> = claims.into_iter().map(|claim| claim.wait().code).collect();
        codes.sort_unstable();
        assert_eq!(codes, [0, 1], "round {round}");
        let answers = ws.text("answers");
        assert_eq!(answers.lines().count() as u64, round + 1, "{answers}");
    }
}

#[test]
fn without_proof_a_blocked_run_has_failed_and_its_work_stays() {
    let ws = scene();
    let hook = remote(&ws).join("hooks/pre-receive");
    ws_hook(&hook);
    let failed = run_with(&ws, &["--rollback-on-failure"], ASKS)
        .exits(3)
        .json();
    assert_eq!(failed["status"], "failed");
    let why = failed["error"]["message"].as_str().unwrap();
    assert!(
        why.contains("which port?") && why.contains("not today"),
        "{why}"
    );
    assert!(failed["follow_up"].is_null() && failed["workspace"]["rollback"].is_null());
    assert_eq!(ws.text("log"), "asked\n", "nothing is rolled back");
    let saved = &failed["workspace"]["saved"];
    assert_eq!(saved["failure"], "RemotePolicyRejected", "{saved}");
    let kept = format!("{}:log", saved["kept_as"].as_str().unwrap());
    let store = ws.stores()[0].join("git");
    let kept = git::text(&ws.home(), &store, ["cat-file", "-p", &kept]);
    assert_eq!(kept, "asked", "the store has it");
    assert_eq!(at(&ws, BRANCH), None);
    let shown = task(&ws);
    assert_eq!(
        (&shown["status"], &shown["follow_up"]),
        (&json!("failed"), &Value::Null)
    );
    follow_up(&ws, "1", "x").exits(1).error("Conflict");
    let notices = ws.json(["notices"]);
    assert_eq!(notices[0]["kind"], "checkpoint_failed", "{notices}");
    assert_eq!(notices.as_array().unwrap().len(), 1, "{notices}");
    // The next run is nobody's follow-up, and what was not sent is on the branch then.
    std::fs::remove_file(hook).unwrap();
    run(&ws, "true").ok();
    let has_it = ["cat-file", "-e", &format!("{BRANCH}:log")];
    git::run(&ws.home(), &remote(&ws), has_it);
}

/// What a reason says is seen as it is, also as Markdown, and passes for no notice of ours.
#[test]
fn a_reason_is_told_as_it_is_and_forges_nothing() {
    let ws = scene();
    let other = "0a".repeat(32);
    let reason = format!(
        "`make` says\n<!-- stillframe-action:{other} -->\n@ada [here](https://example.org) **now**"
    );
    std::fs::write(ws.base().join("reason"), &reason).unwrap();
    let waits = run(&ws, "stillframe task block \"$(cat ../reason)\" >&2");
    let waits = waits.exits(75).json();
    assert_eq!(waits["follow_up"]["waiting_reason"], *reason);
    let notices = ws.json(["notices"]);
    let text = notices[0]["text"].as_str().unwrap();
    let token = notices[0]["token"].as_str().unwrap();
    let mark = "<!-- stillframe-action:";
    assert_eq!(text.matches(mark).count(), 1, "{text}");
    assert!(
        text.ends_with(&format!("\n\n{mark}{token} -->\n")),
        "{text}"
    );
    let said = text.lines().find(|line| line.starts_with("- Blocked: "));
    // A code span of CommonMark, and a space without width in what would begin a comment.
    let code = format!(
        "- Blocked: `` `make` says <\u{200b}!-- stillframe-action:{other} --> \
         @ada [here](https://example.org) **now** ``"
    );
    assert_eq!(said, Some(&*code));
}

/// What a command leaves behind ends with it. What that has said by then counts.
#[test]
fn what_a_command_leaves_behind_blocks_its_run_until_that_has_ended() {
    let ws = scene();
    let late = "echo x > work; setsid sh -c 'sleep 3; stillframe task block late; touch ../late' \
                > /dev/null 2>&1 & exit 0";
    let done = run(&ws, late).ok().json();
    assert_eq!(done["status"], "completed", "{done}");
    thread::sleep(Duration::from_millis(3500));
    assert!(!ws.base().join("late").exists(), "it is gone");
    assert_eq!(count(&types(&ws, &done), "block_reported"), 0);
    assert_eq!(task(&ws)["status"], "completed");
    // Whoever says so of a run that has ended is told.
    let id = done["run_id"].as_str().unwrap();
    let call = ws.call(["--json", "task", "block", "late"]);
    let refused = call.env("STILLFRAME_CURRENT_RUN", id).run().exits(1);
    let said = refused.error("Conflict");
    assert!(said.contains("not at work"), "{said}");
    assert_eq!(count(&types(&ws, &done), "block_reported"), 0);

    let soon = "setsid sh -c 'stillframe task block soon; touch ../soon; sleep 60' > /dev/null 2>&1 & \
                until [ -e ../soon ]; do sleep 0.01; done";
    let waits = run(&ws, soon).exits(75).json();
    assert_eq!(waits["follow_up"]["waiting_reason"], "soon");
}

/// Does little, and has the workspace held by somebody from then on.
struct Holds {
    held: Arc<Mutex<Option<LockedWorkspace>>>,
    fails: bool,
}

impl Adapter for Holds {
    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        let place = context.workspace.clone().unwrap();
        append(&place, "work");
        let state = place.parent().unwrap().join("state");
        let state = StateDir::open(&state).unwrap();
        let workspace = Workspace::open(&place, &state).unwrap();
        let locked = workspace.lock(&Operation::unbounded(), Duration::from_secs(10));
        *self.held.lock().unwrap() = Some(locked.unwrap());
        match self.fails {
            true => Err(AdapterError::failed("no luck")),
            false => Ok(AdapterOutput::empty()),
        }
    }
}

/// The run is at work until what it left is captured, and whoever is told that it will be blocked
/// is not deceived.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_is_taken_counts_though_the_work_has_ended() {
    let ws = scene();
    let options = || EngineOptions::default().state_dir(ws.state());
    let (engine, other) = tokio::join!(Engine::start(options()), Engine::start(options()));
    let (engine, other) = (engine.unwrap(), other.unwrap());
    let session = engine.session("s").await.unwrap();
    // What it left is on the branch also where the workspace has it no more.
    for fails in [false, true] {
        let held = Arc::new(Mutex::new(None));
        let id: RunId = format!("r-{fails}").parse().unwrap();
        let place = WorkspaceOptions::at(ws.root()).rollback_on_failure(true);
        let options = RunOptions::new("x")
            .run_id(id.clone())
            .workspace(place)
            .work_branch(WorkBranchOptions::of("42"));
        let adapter = Holds {
            held: Arc::clone(&held),
            fails,
        };
        let running = session.execute_run(options, adapter);
        let reporting = async {
            while held.lock().unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // Nobody can see from outside that the engine has looked for reports.
            tokio::time::sleep(Duration::from_millis(300)).await;
            other.report_block(&id, "which port?").await.unwrap();
            drop(held.lock().unwrap().take());
        };
        let (outcome, ()) = tokio::join!(running, reporting);
        let outcome = outcome.unwrap();
        assert_eq!(
            outcome.run.status,
            RunStatus::AwaitingFollowup,
            "{outcome:?}"
        );
        let waits = outcome.follow_up.unwrap();
        assert_eq!(waits.waiting_reason, "which port?");
        assert_eq!(at(&ws, BRANCH), Some(waits.last_checkpoint));
        let late = other.report_block(&id, "once more").await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Conflict);
        let lines = git::text(&ws.home(), &remote(&ws), ["show", &format!("{BRANCH}:log")]);
        assert_eq!(lines.lines().count(), 1 + usize::from(fails), "{lines}");
        engine.cancel_run(&id).await.unwrap();
    }
    engine.shutdown().await.unwrap();
    other.shutdown().await.unwrap();
}

fn ws_hook(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, "#!/bin/sh\necho not today >&2\nexit 1\n").unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_run_that_nobody_could_go_on_with_has_failed() {
    let ws = scene();
    ws.git(["remote", "remove", "origin"]);
    let failed = run(&ws, ASKS).exits(3).json();
    let why = failed["error"]["message"].as_str().unwrap();
    assert!(why.contains("there is no remote"), "{why}");
    assert_eq!(failed["workspace"]["saved"]["state"], "recorded_only");

    let plain = scene();
    let args = ["run", "--", "sh", "-c", "stillframe task block why"];
    let refused = plain.try_json(args);
    refused.exits(1);
    let outside = plain.try_json(["task", "block", "why"]).exits(2);
    let said = outside.error("InvalidOptions");
    assert!(said.contains("no command of a run"), "{said}");
    plain.try_json(["task", "block", " "]).exits(2);
    plain
        .try_json(["task", "follow-up", "42", "--input-id", "1"])
        .exits(1)
        .error("NotFound");
}

#[test]
fn a_head_that_was_not_sent_is_sent_though_nothing_is_new() {
    let ws = scene();
    let waits = run(&ws, "stillframe task block why >&2").exits(75).json();
    let head = ws.git(["rev-parse", "HEAD"]);
    assert_eq!(waits["follow_up"]["last_checkpoint"], *head);
    assert_eq!(at(&ws, BRANCH), Some(head));
    assert_eq!(waits["workspace"]["saved"]["is_new"], false);
}

#[test]
fn a_workspace_that_cannot_come_to_the_branch_claims_nothing_and_later_does() {
    let ws = scene();
    let waits = blocked(&ws);
    // Somebody goes on with the branch, and somebody with the workspace.
    let (home, other) = (ws.home(), ws.base().join("other"));
    let path = other.to_str().unwrap();
    git::text(
        &home,
        &remote(&ws),
        ["clone", "-q", "-b", BRANCH, ".", path],
    );
    std::fs::write(other.join("log"), "reviewed\n").unwrap();
    git::text(&home, &other, ["commit", "-qam", "review"]);
    git::text(&home, &other, ["push", "-q"]);
    ws.write("log", "somebody's own\n");
    let told = types(&ws, &waits);
    follow_up(&ws, "7", "8080").exits(1).error("Conflict");
    assert_eq!(types(&ws, &waits), told);
    assert_eq!(ws.text("log"), "somebody's own\n");
    assert_eq!(task(&ws)["input_cursor"], 0);
    ws.write("log", "asked\n");
    // Who wants to go on from what was asked about, and from nothing else, does not.
    let asked = waits["follow_up"]["last_checkpoint"].as_str().unwrap();
    let args = [
        "task",
        "follow-up",
        "42",
        "--input-id",
        "7",
        "--expect",
        asked,
    ];
    ws.try_json(args).exits(1).error("Conflict");
    assert_eq!(types(&ws, &waits), told);
    assert_eq!(task(&ws)["input_cursor"], 0);
    follow_up(&ws, "7", "8080").ok();
    assert_eq!(ws.text("log"), "reviewed\nasked\n");
}

#[test]
fn a_task_that_waits_is_given_up_with_its_run() {
    let ws = scene();
    let waits = blocked(&ws);
    let run_id = waits["run_id"].as_str().unwrap();
    ws.json(["cancel", run_id]);
    let shown = task(&ws);
    assert_eq!(
        (&shown["status"], &shown["follow_up"]),
        (&json!("open"), &Value::Null)
    );
    follow_up(&ws, "7", "x").exits(1).error("Conflict");
    run(&ws, "true").ok();
    assert_eq!(task(&ws)["status"], "completed");
    run(&ws, "exit 1").exits(1);
    assert_eq!(task(&ws)["status"], "failed");
}

#[test]
fn what_was_proven_before_is_no_proof_of_what_is_there() {
    let ws = scene();
    ws.json(["task", "checkpoint", "42"]);
    let gone = remote(&ws).with_extension("gone");
    let script = format!(
        "mv {} {}; stillframe task block why",
        remote(&ws).display(),
        gone.display()
    );
    let failed = run(&ws, &script).exits(125).json();
    assert_eq!(failed["status"], "failed", "{failed}");
    assert_eq!(task(&ws)["status"], "failed");
}

#[test]
fn a_second_question_on_the_same_commit_is_told_too() {
    let ws = scene();
    run(&ws, "stillframe task block first >&2").exits(75);
    let again = "stillframe task block second >&2";
    follow_up_with(&ws, "1", again).exits(75);
    let notices = ws.json(["notices"]);
    let [first, second] = notices.as_array().unwrap().as_slice() else {
        panic!("{notices}");
    };
    assert_eq!(first["commit"], second["commit"]);
    assert_ne!(first["token"], second["token"]);
    assert!(
        second["text"].as_str().unwrap().contains("second"),
        "{second}"
    );
}

#[test]
fn a_command_that_cannot_be_started_uses_up_no_input() {
    let ws = scene();
    blocked(&ws);
    ws.write("plain", "no program\n");
    for (program, code) in [("./nope", 127), ("no-such-program", 127), ("./plain", 126)] {
        let args = ["task", "follow-up", "42", "--input-id", "1", "--", program];
        let message = ws.try_json(args).exits(code).error("NotFound");
        assert!(message.contains("nothing was claimed"), "{message}");
        assert!(message.contains("stillframe task resume 42"), "{message}");
        let shown = task(&ws);
        assert_eq!(
            (&shown["status"], &shown["input_cursor"]),
            (&"awaiting_followup".into(), &0.into())
        );
    }
    // One that is there and fails has begun.
    follow_up_with(&ws, "1", "exit 4").exits(4);
    assert_eq!(task(&ws)["input_cursor"], 1);
}

#[test]
fn a_task_is_named_as_a_shell_takes_it() {
    let ws = scene();
    let args = ["run", "--task", "it's", "--namespace", "A B/c", "--"];
    let command = ["sh", "-c", "stillframe task block why >&2"];
    let waits = ws.stillframe([&args[..], &command].concat()).exits(75);
    let said = waits.stderr_text();
    let name = stillframe::backends::shell_word(b"a-b/c/it's");
    let hint = format!("stillframe task follow-up {name} --input-id N");
    assert!(said.contains(&hint), "{said}");
}

#[test]
fn input_goes_to_the_workspace_that_one_is_in() {
    let ws = scene();
    let other = ws.base().join("other");
    let (home, path) = (ws.home(), other.to_str().unwrap());
    git::text(
        &home,
        ws.base(),
        ["clone", "-q", ws.root().to_str().unwrap(), path],
    );
    git::text(&home, ws.base(), ["init", "-q", "--bare", "second.git"]);
    git::text(
        &home,
        &other,
        ["remote", "set-url", "origin", "../second.git"],
    );
    let first = blocked(&ws);
    let args = ["--json", "run", "--task", "42", "--", "sh", "-c", ASKS];
    ws.call(args).cwd(&other).run().exits(75);
    let claim = |input: &str| {
        [
            "--json",
            "task",
            "follow-up",
            "42",
            "--input-id",
            input,
            "--text",
            "x",
        ]
        .map(str::to_owned)
    };
    // From neither of them nobody knows which is meant.
    let refused = ws.call(claim("1")).cwd(ws.base()).run().exits(1);
    let said = refused.error("Conflict");
    assert!(
        said.contains("several workspaces") && said.contains(path),
        "{said}"
    );
    let done = ws.call(claim("1")).run().ok().json();
    assert_eq!(done["run_id"], first["run_id"]);
    assert!(ws.exists("answers") && !other.join("answers").exists());
    ws.call(claim("1")).cwd(&other).run().ok();
    assert!(other.join("answers").exists());
}

#[test]
fn a_run_that_was_refused_while_its_task_waits_is_refused_again() {
    let ws = scene();
    blocked(&ws);
    let args = [
        "run", "--run-id", "x", "--task", "42", "--", "touch", "done",
    ];
    for _ in 0..2 {
        ws.try_json(args).exits(125).error("Conflict");
        assert!(!ws.exists("done"));
    }
    follow_up(&ws, "1", "8080").ok();
    ws.git(["switch", "-qf", "main"]);
    ws.try_json(args).ok();
    assert_eq!(
        ws.git(["branch", "--show-current"]),
        BRANCH,
        "it goes on from there"
    );
    assert!(ws.exists("answers") && ws.exists("done"));
}

#[test]
fn a_command_that_is_ended_or_did_what_it_must_not_has_not_blocked() {
    let ws = scene();
    let ended = run_with(
        &ws,
        &["--timeout", "1s"],
        "stillframe task block why >&2; sleep 60",
    )
    .exits(124)
    .json();
    assert_eq!(ended["status"], "timeout");
    let failed = run_with(
        &ws,
        &["--forbid", "x"],
        "echo > x; stillframe task block why >&2",
    )
    .exits(77)
    .json();
    assert_eq!(failed["status"], "failed");
    assert_eq!(task(&ws)["status"], "failed");
}

#[test]
fn whoever_cancels_while_it_is_saved_is_told_where_the_work_is() {
    let ws = scene();
    let hook = remote(&ws).join("hooks/pre-receive");
    ws_hook(&hook);
    std::fs::write(&hook, "#!/bin/sh\ntouch ../sending; sleep 2\n").unwrap();
    let args = ["--json", "run", "--task", "42", "--", "sh", "-c", ASKS];
    let mut running = ws.call(args).start();
    let sending = ws.base().join("sending");
    running.until("it is being sent", |_| sending.exists());
    running.signal(rustix::process::Signal::INT);
    let output = running.wait();
    let outcome = output.exits(130).json();
    assert_eq!(outcome["status"], "cancelled", "{outcome}");
    let saved = &outcome["workspace"]["saved"];
    assert_eq!(saved["state"], "pushed", "{outcome}");
    assert_eq!(at(&ws, BRANCH).as_deref(), saved["commit"].as_str());
    assert_eq!(task(&ws)["status"], "open");
}

#[test]
fn what_was_saved_beside_the_branch_is_what_a_follow_up_goes_on_with() {
    let ws = scene();
    let diverges = format!(
        "c=$(git -c user.name=o -c user.email=o@example.org commit-tree -m other 'HEAD^{{tree}}'); git push -q origin $c:refs/heads/{BRANCH}; \
         echo work > work; stillframe task block why >&2"
    );
    let waits = run(&ws, &diverges).exits(75).json();
    let beside = waits["follow_up"]["branch"].as_str().unwrap();
    assert!(
        beside.starts_with("stillframe/task/42--diverged-"),
        "{waits}"
    );
    ws.git(["switch", "-q", "main"]);
    ws.git(["clean", "-qfd"]);
    let script = "test -f work && echo more >> work";
    follow_up_with(&ws, "1", script).ok();
    assert_eq!(ws.git(["branch", "--show-current"]), beside);
    let shown = git::text(
        &ws.home(),
        &remote(&ws),
        ["show", &format!("{beside}:work")],
    );
    assert_eq!(shown, "work\nmore");
}

#[test]
fn a_blocked_run_that_was_merged_with_what_others_did_goes_on_with_both() {
    let ws = scene();
    let script = format!(
        "t=$({{ git ls-tree HEAD; printf '100644 blob %s\tother\n' $(echo o | git hash-object -w --stdin); }} | git mktree); \
         c=$(git -c user.name=o -c user.email=o@example.org commit-tree -p HEAD -m other $t); \
         git push -q origin $c:refs/heads/{BRANCH}; echo work > work; stillframe task block why >&2"
    );
    let waits = run_with(&ws, &["--on-divergence", "merge"], &script)
        .exits(75)
        .json();
    assert_eq!(waits["workspace"]["saved"]["state"], "recovered", "{waits}");
    let merge = waits["follow_up"]["last_checkpoint"].as_str().unwrap();
    assert_eq!(at(&ws, BRANCH).as_deref(), Some(merge));
    let both = "test -f work && test -f other && echo more >> work";
    follow_up_with(&ws, "1", both).ok();
    let listed = git::text(&ws.home(), &remote(&ws), ["ls-tree", "--name-only", BRANCH]);
    assert!(
        listed.contains("other") && listed.contains("work"),
        "{listed}"
    );
}

/// A host's agent, which asks in its second step.
struct Agent;

impl Adapter for Agent {
    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        let place = context.workspace.clone().unwrap();
        let phase = context.phase("work");
        phase
            .step("first", async |_| {
                append(&place, "first");
                Ok(())
            })
            .await?;
        let answer = phase
            .step("second", async |_| {
                append(&place, "second");
                match &context.follow_up {
                    Some(input) => Ok(input.text.clone()),
                    None => {
                        let block = Block::new("which port?").flow("deploy");
                        Err(context.blocked(block.context(json!({ "file": "a.toml" }))))
                    }
                }
            })
            .await?;
        Ok(AdapterOutput::with_data(json!(answer)))
    }
}

fn append(place: &Path, line: &str) {
    use std::io::Write as _;
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .append(true)
        .create(true)
        .open(place.join("log"))
        .unwrap();
    writeln!(file, "{line}").unwrap();
}

#[tokio::test]
async fn a_host_goes_on_with_input_of_those_that_may_and_its_step_with_what_it_had() {
    let ws = scene();
    let options = || EngineOptions::default().state_dir(ws.state());
    let engine = Engine::start(options()).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let run = RunOptions::new("x")
        .workspace(WorkspaceOptions::at(ws.root()))
        .work_branch(WorkBranchOptions::of("42"));
    let waits = session.execute_run(run, Agent).await.unwrap();
    assert_eq!(waits.run.status, RunStatus::AwaitingFollowup, "{waits:?}");
    let follow_up = waits.follow_up.unwrap();
    assert_eq!(
        (&*follow_up.flow, &*follow_up.waiting_reason),
        ("deploy", "which port?")
    );
    assert_eq!(follow_up.context, json!({ "file": "a.toml" }));
    assert_eq!(at(&ws, BRANCH), Some(follow_up.last_checkpoint));
    engine.shutdown().await.unwrap();

    let engine = Engine::start(options()).await.unwrap();
    let claim = |input| engine.claim_follow_up("42", input, RunOptions::new(""), Agent);
    let input = |id| FollowUpInput::new(id, "8080");
    for refused in [
        input(3).is_of_bot(true),
        input(3).is_of_allowed_author(false),
    ] {
        assert_eq!(
            claim(refused).await.unwrap_err().kind(),
            ErrorKind::Conflict
        );
    }
    let long = FollowUpInput::new(3, "x".repeat(65_537));
    assert_eq!(
        claim(long).await.unwrap_err().kind(),
        ErrorKind::LimitExceeded
    );
    let nul = FollowUpInput::new(3, "a\0b");
    assert_eq!(
        claim(nul).await.unwrap_err().kind(),
        ErrorKind::InvalidOptions
    );
    let other = RunOptions::new("").work_branch(WorkBranchOptions::of("43"));
    let other = engine.claim_follow_up("42", input(3), other, Agent).await;
    assert_eq!(other.unwrap_err().kind(), ErrorKind::InvalidOptions);

    let done = claim(input(3)).await.unwrap();
    assert_eq!(done.run.status, RunStatus::Completed, "{done:?}");
    assert_eq!(done.run_id, waits.run_id);
    assert_eq!(done.run.output.unwrap().data, json!("8080"));
    assert_eq!(
        ws.text("log"),
        "first\nsecond\nsecond\n",
        "it kept what it had"
    );
    assert_eq!(
        claim(input(4)).await.unwrap_err().kind(),
        ErrorKind::Conflict
    );
    engine.shutdown().await.unwrap();
}

#[test]
fn whoever_is_killed_no_task_is_left_to_nobody_and_no_input_is_taken_twice() {
    let rounds = counted(KILLS, 30);
    let ws = scene();
    // Where people are told, and can be read back.
    let told = ws.base().join("told");
    std::fs::write(&told, "").unwrap();
    let config = ws.home().join(".config/stillframe");
    std::fs::create_dir_all(&config).unwrap();
    let text = format!(
        "[notices]\ncommand = 'cat >> {0}'\nshows_command = 'grep -q $STILLFRAME_NOTICE_TOKEN {0}'\n",
        told.display()
    );
    std::fs::write(config.join("config.toml"), text).unwrap();
    let shift = u64::from(std::process::id()) % 15;
    let mut input = 0;
    for round in 0..rounds {
        let tasks = ws.json(["task", "list"]);
        let waits = tasks[0]["status"] == "awaiting_followup";
        let id = (input + 1).to_string();
        let args = match waits {
            true => vec!["--json", "task", "follow-up", "42", "--input-id", &id],
            false => vec!["--json", "run", "--task", "42", "--", "sh", "-c", ASKS],
        };
        input += u64::from(waits);
        let mut running = ws.call(args).start();
        // From before the work to after the end, in steps that are others each time.
        thread::sleep(Duration::from_millis(
            (round % 30) * 15 + (shift + round / 30) % 15,
        ));
        running.kill();
        drop(running.wait());
        ws.json(["snapshot"]);
        let inputs = std::fs::read_dir(ws.state().join("inputs"));
        assert_eq!(inputs.map_or(0, Iterator::count), 0, "round {round}");
        let waiting: Vec<Value> = (ws.json(["runs"]).as_array().unwrap().iter())
            .filter(|run| {
                let status = run["status"].as_str().unwrap();
                let rests = status == "awaiting_followup";
                assert!(rests || ["failed", "completed"].contains(&status), "{run}");
                rests
            })
            .cloned()
            .collect();
        if ws.json(["task", "list"]).as_array().unwrap().is_empty() {
            continue;
        }
        let shown = task(&ws);
        let waits = shown["status"] == "awaiting_followup";
        assert_eq!(waiting.len(), usize::from(waits), "round {round}: {shown}");
        assert_ne!(shown["status"], "running", "round {round}: {shown}");
        assert_eq!(
            waits,
            !shown["follow_up"].is_null(),
            "round {round}: {shown}"
        );
        let mut commits = Vec::new();
        for made in shown["checkpoints"].as_array().unwrap() {
            let commit = made["commit"].as_str().unwrap();
            assert!(!commits.contains(&commit), "round {round}: {shown}");
            commits.push(commit);
            if made["status"] == "proven" {
                let tip = at(&ws, made["branch"].as_str().unwrap()).unwrap();
                let is_there = ["merge-base", "--is-ancestor", commit, &tip];
                git::run(&ws.home(), &remote(&ws), is_there);
            }
        }
        if waits {
            assert_eq!(shown["run_id"], waiting[0]["run_id"], "round {round}");
            let commit = shown["follow_up"]["last_checkpoint"].as_str().unwrap();
            let tip = at(&ws, BRANCH).unwrap();
            let is_there = ["merge-base", "--is-ancestor", commit, &tip];
            git::run(&ws.home(), &remote(&ws), is_there);
        }
    }
    if ws.exists("answers") {
        let answers = ws.text("answers");
        let mut ids: Vec<&str> = answers
            .lines()
            .map(|l| l.split(' ').next().unwrap())
            .collect();
        let all = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), all, "{answers}");
    }
    let told = std::fs::read_to_string(told).unwrap();
    for notice in ws.json(["notices"]).as_array().unwrap() {
        let mark = format!("stillframe-action:{}", notice["token"].as_str().unwrap());
        let times = told.matches(&mark).count();
        assert!(times <= 1, "{times}: {notice}");
        assert!(times == 1 || notice["status"] != "succeeded", "{notice}");
    }
    let consumed = ws.events([] as [&str; 0]);
    let consumed = consumed
        .iter()
        .filter(|one| one["type"] == "followup_consumed");
    let mut ids: Vec<u64> = consumed
        .map(|one| one["data"]["input_id"].as_u64().unwrap())
        .collect();
    let all = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), all, "{ids:?}");
    git::run(
        &ws.home(),
        &remote(&ws),
        ["fsck", "--strict", "--no-dangling"],
    );
}
