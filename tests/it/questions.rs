//! Runs that ask people, from the command line.

use serde_json::Value;
use stillframe_tests::TestWorkspace;

/// A file with a step, one that asks, and one after it; each leaves a line in `done`, which is
/// outside of what goes back.
fn plan(ws: &TestWorkspace, more: &str) -> String {
    let done = ws.outside().join("done").display().to_string();
    let file = ws.outside().join("plan.toml");
    let text = format!(
        r#"
        [[step]]
        name = "first"
        command = "echo first >> {done}"

        [[step]]
        name = "asks"
        ask = "go on?"
        choices = ["yes", "no"]
        {more}
        command = "echo heard $STILLFRAME_ANSWER >> {done}"

        [[step]]
        name = "last"
        command = "echo last >> {done}; echo new > new"
        "#
    );
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

fn done(ws: &TestWorkspace) -> Vec<String> {
    let text = std::fs::read_to_string(ws.outside().join("done")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The id of the one question that waits.
fn open(ws: &TestWorkspace) -> String {
    let open = ws.json(["answer"]);
    assert_eq!(open.as_array().unwrap().len(), 1, "{open}");
    open[0]["question_id"].as_str().unwrap().to_owned()
}

fn park(ws: &TestWorkspace, plan: &str) -> Value {
    let args = [
        "run", "--steps", plan, "--run-id", "r", "--wait", "0s", "--json",
    ];
    ws.stillframe(args).exits(75).json()
}

#[test]
fn a_run_that_asks_rests_and_goes_on_once_with_the_answer() {
    let ws = TestWorkspace::repository();
    let plan = plan(&ws, "");
    let outcome = park(&ws, &plan);
    assert_eq!(outcome["status"], "waiting_for_input");
    assert_eq!(outcome["error"], Value::Null);
    assert_eq!(outcome["questions"][0]["question"], "go on?");
    assert_eq!(done(&ws), ["first"]);
    // It holds nothing: others work here meanwhile, and what they do stays.
    ws.run::<&str>([], "echo mine > mine").ok();
    let question = open(&ws);
    let again = ws.stillframe(["resume", "r"]).exits(75).stderr_text();
    assert!(
        again.contains(&format!("stillframe answer {question} ANSWER")),
        "{again}"
    );
    ws.stillframe(["answer", &question, "perhaps"]).exits(1);
    let said = ws
        .stillframe(["answer", &question, "yes"])
        .ok()
        .stderr_text();
    assert!(said.contains("stillframe resume r"), "{said}");
    ws.stillframe(["answer", &question, "no"]).exits(1);
    let incomplete = ws.json(["runs", "--incomplete"]);
    assert_eq!(incomplete[0]["run_id"], "r");
    ws.stillframe(["resume", "r"]).ok();
    assert_eq!(done(&ws), ["first", "heard yes", "last"]);
    assert_eq!(ws.text("mine"), "mine\n");
    let record = ws.json(["answer", &question[..12]]);
    assert_eq!(record["status"], "answered");
    assert!(record["resumed_at"].is_string(), "{record}");
    // What has ended is answered from its record.
    ws.stillframe(["resume", "r"]).ok();
    assert_eq!(done(&ws).len(), 3);
}

#[test]
fn of_two_answers_at_once_one_counts() {
    let ws = TestWorkspace::repository();
    park(&ws, &plan(&ws, ""));
    let question = open(&ws);
    let codes: Vec<i32> = std::thread::scope(|scope| {
        let answers = ["yes", "no", "yes", "no"].map(|answer| {
            let (ws, question) = (&ws, &question);
            scope.spawn(move || ws.call(["answer", question, answer]).run().code)
        });
        answers.into_iter().map(|a| a.join().unwrap()).collect()
    });
    assert_eq!(codes.iter().filter(|code| **code == 0).count(), 1);
    let events = ws.events(["--session", session(&ws).as_str()]);
    let answered = |event: &&Value| event["type"] == "question_answered";
    assert_eq!(events.iter().filter(answered).count(), 1);
}

fn session(ws: &TestWorkspace) -> String {
    let run = ws.show("r");
    run["session_id"].as_str().unwrap().to_owned()
}

#[test]
fn one_whose_process_is_killed_while_it_asks_rests_and_does_not_ask_again() {
    let ws = TestWorkspace::repository();
    let plan = plan(&ws, "");
    let mut running = ws.call(["run", "--steps", &plan, "--run-id", "r"]).start();
    running.until("it asks", |_| ws.json(["answer"]) != serde_json::json!([]));
    let question = open(&ws);
    running.kill();
    running.wait().exits(137);
    ws.stillframe(["answer", &question, "no"]).ok();
    assert_eq!(ws.show("r")["status"], "waiting_for_input");
    ws.stillframe(["resume", "r"]).ok();
    assert_eq!(done(&ws), ["first", "heard no", "last"]);
    let run = ws.show("r");
    assert_eq!(run["status"], "completed");
    assert_eq!(run["questions"].as_array().unwrap().len(), 1, "{run}");
    let events = ws.events(["--session", session(&ws).as_str()]);
    let sequences: Vec<u64> = events
        .iter()
        .map(|event| event["sequence"].as_u64().unwrap())
        .collect();
    let wanted: Vec<u64> = (1..=sequences.len() as u64).collect();
    assert_eq!(sequences, wanted, "no gap");
}

#[test]
fn at_the_deadline_the_default_counts() {
    let ws = TestWorkspace::repository();
    let plan = plan(&ws, "deadline = '1s'\ndefault = 'no'");
    let args = ["run", "--steps", &plan, "--run-id", "r"];
    let said = ws.stillframe(args).ok().stderr_text();
    assert!(said.contains("the answer is \"no\", by default"), "{said}");
    assert_eq!(done(&ws), ["first", "heard no", "last"]);
}

#[test]
fn a_run_that_is_cancelled_while_it_rests_takes_no_answer() {
    let ws = TestWorkspace::repository();
    park(&ws, &plan(&ws, ""));
    let question = open(&ws);
    ws.stillframe(["cancel", "r"]).ok();
    ws.stillframe(["answer", &question, "yes"]).exits(1);
    assert_eq!(ws.json(["answer"]), serde_json::json!([]));
    assert_eq!(ws.show("r")["status"], "cancelled");
    assert_eq!(done(&ws), ["first"]);
    ws.stillframe(["answer", "que_ffff"]).exits(1);
}

#[test]
fn a_run_that_goes_on_by_another_file_is_resumed_by_that_one() {
    let ws = TestWorkspace::repository();
    let file = plan(&ws, "");
    park(&ws, &file);
    ws.stillframe(["answer", &open(&ws), "yes"]).ok();
    let text = std::fs::read_to_string(&file).unwrap();
    let other = ws.outside().join("other.toml");
    let more = "[[step]]\nname = \"more\"\nask = \"more?\"";
    std::fs::write(&other, format!("{text}\n{more}\n")).unwrap();
    let other = other.display().to_string();
    let again = ["run", "--steps", &other, "--run-id", "r", "--wait", "0s"];
    ws.stillframe(again).exits(75);
    ws.stillframe(["answer", &open(&ws), "all"]).ok();
    let said = ws.stillframe(["resume", "r"]).ok().stderr_text();
    assert!(said.contains("[4/4] steps/more"), "{said}");
    assert_eq!(done(&ws), ["first", "heard yes", "last"]);
}

#[test]
fn of_many_that_resume_at_once_one_goes_on() {
    let ws = TestWorkspace::repository();
    park(&ws, &plan(&ws, ""));
    ws.stillframe(["answer", &open(&ws), "yes"]).ok();
    let outputs = std::thread::scope(|scope| {
        let resumers = [(); 4].map(|()| {
            let ws = &ws;
            scope.spawn(move || ws.call(["--json", "resume", "r"]).run())
        });
        resumers.map(|resumer| resumer.join().unwrap())
    });
    assert_eq!(done(&ws), ["first", "heard yes", "last"], "each once");
    let mut went_on = 0;
    for output in &outputs {
        let document = output.json();
        match output.code {
            // Whoever comes when it has ended is told how.
            0 if document["is_stored"] == true => {}
            0 => went_on += 1,
            _ => {
                let kind = document["error"]["kind"].as_str().unwrap();
                assert!(["Busy", "Conflict"].contains(&kind), "{output}");
            }
        }
    }
    assert_eq!(went_on, 1);
    assert_eq!(ws.show("r")["lease"]["epoch"], 2, "taken once");
}

#[test]
fn what_is_done_while_a_run_asks_is_no_work_of_its_step() {
    let ws = TestWorkspace::repository();
    ws.git(["config", "user.name", "Somebody"]);
    ws.git(["config", "user.email", "somebody@example.com"]);
    for commits in [false, true] {
        let plan = plan(&ws, "");
        let id = format!("r{commits}");
        let mut running = ws
            .call(["run", "--steps", &plan, "--run-id", &id, "--wait", "2s"])
            .start();
        running.until("it asks", |_| ws.json(["answer"]) != serde_json::json!([]));
        let mine = format!("mine{commits}");
        ws.write(&mine, "while it waits\n");
        ws.write("README", format!("hello\nmine {commits}\n"));
        if commits {
            ws.git(["add", "-A"]);
            ws.git(["commit", "-q", "-m", "mine"]);
        }
        let head = ws.git(["rev-parse", "HEAD"]);
        running.wait().exits(75);
        ws.stillframe(["answer", &open(&ws), "yes"]).ok();
        ws.stillframe(["resume", &id]).ok();
        assert_eq!(ws.text(&mine), "while it waits\n");
        assert_eq!(ws.text("README"), format!("hello\nmine {commits}\n"));
        assert_eq!(ws.git(["rev-parse", "HEAD"]), head);
    }
}

#[test]
fn a_deadline_that_passes_as_the_run_is_put_to_rest_is_answered_once() {
    for _ in 0..4 {
        let ws = TestWorkspace::repository();
        let plan = plan(&ws, "deadline = '1s'\ndefault = 'no'");
        let args = ["run", "--steps", &plan, "--run-id", "r", "--wait", "1s"];
        let code = ws.call(args).run().code;
        assert!(code == 0 || code == 75, "{code}");
        ws.stillframe(["resume", "r"]).ok();
        assert_eq!(done(&ws), ["first", "heard no", "last"]);
    }
}

#[test]
fn a_step_that_only_asked_goes_on_though_the_branch_was_moved_meanwhile() {
    for rerun in ["from_before", "ask", "in_place"] {
        let ws = TestWorkspace::repository();
        park(&ws, &plan(&ws, &format!("rerun = '{rerun}'")));
        ws.write("mine", "mine\n");
        ws.commit("mine");
        ws.stillframe(["answer", &open(&ws), "yes"]).ok();
        ws.stillframe(["resume", "r"]).ok();
        assert_eq!(done(&ws), ["first", "heard yes", "last"], "{rerun}");
        assert_eq!(ws.text("mine"), "mine\n");
        let questions = ws.show("r")["questions"].as_array().unwrap().len();
        assert_eq!(questions, 1, "{rerun}: it was not cut off");
    }
}
