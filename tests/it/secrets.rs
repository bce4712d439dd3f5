//! Secret values in commands, and transcripts, from the command line.

use stillframe_tests::TestWorkspace;

/// A value that the rules know, put together here so that it is in no file.
fn secret() -> String {
    format!("ghp_{}", "aB3".repeat(12))
}

#[test]
fn a_secret_in_a_command_is_in_no_record_of_it() {
    let ws = TestWorkspace::plain();
    let command = format!("echo {} > /dev/null; exit 3", secret());
    let run = ws.run::<&str>([], &command).json();
    let id = run["run_id"].as_str().unwrap();
    for args in [
        &["show", id][..],
        &["runs"],
        &["events"],
        &["transcript", id],
        &["transcript", id, "--json"],
    ] {
        let output = ws.stillframe(args).ok();
        let text = output.stdout_text();
        assert!(!text.is_empty() && !text.contains(&secret()), "{output}");
    }
    for file in ["stillframe.db", "stillframe.db-wal"] {
        let bytes = std::fs::read(ws.state().join(file)).unwrap_or_default();
        let value = secret();
        let found = bytes
            .windows(value.len())
            .any(|part| part == value.as_bytes());
        assert!(!found, "{file}");
    }
    let text = ws.stillframe(["transcript", id]).ok().stdout_text();
    assert!(text.contains(&format!("run {id} started\n    ")), "{text}");
    assert!(
        text.contains("echo [redacted:github_token] > /dev/null; exit 3"),
        "{text}"
    );
    assert!(text.contains("run failed"), "{text}");
    let lines = ws
        .stillframe(["transcript", id, "--json"])
        .ok()
        .json_lines();
    assert_eq!(lines[0]["kind"], "run_started");
    assert_eq!(lines.last().unwrap()["kind"], "run_ended");
    let session = lines[0]["session_id"].as_str().unwrap();
    let of_session = ws
        .stillframe(["transcript", session, "--json"])
        .ok()
        .json_lines();
    assert_eq!(of_session, lines);
    let after = lines[0]["position"].to_string();
    let rest = ws.stillframe(["transcript", id, "--json", "--from", &after]);
    assert_eq!(rest.ok().json_lines(), lines[1..]);
    let unknown = ws.try_json(["transcript", "nothing"]);
    assert_eq!(unknown.exits(1).json()["error"]["kind"], "NotFound");
}

#[test]
fn the_commands_of_a_run_of_steps_that_have_a_secret_are_not_run_from_the_log() {
    let ws = TestWorkspace::plain();
    let (file, made) = (ws.outside().join("plan.toml"), ws.outside().join("made"));
    let command = format!("echo {} >> {}", secret(), made.display());
    let text = format!(
        "[[step]]\nname = \"asks\"\nask = \"go on?\"\nchoices = [\"yes\"]\ncommand = \"{command}\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    let steps = [
        "run", "--steps", &file, "--run-id", "r", "--wait", "0s", "--json",
    ];
    assert_eq!(ws.stillframe(steps).json()["status"], "waiting_for_input");
    let question = ws.json(["answer"])[0]["question_id"]
        .as_str()
        .unwrap()
        .to_owned();
    ws.stillframe(["answer", &question, "yes"]).ok();

    let refused = ws.try_json(["resume", "r"]);
    let told = refused.json()["error"]["message"].to_string();
    assert!(told.contains("run --run-id r --steps FILE"), "{told}");
    assert!(!made.exists(), "no other command was run in its place");
    assert_eq!(ws.stillframe(steps).json()["status"], "completed");
    assert_eq!(std::fs::read_to_string(&made).unwrap(), secret() + "\n");
    let bytes = std::fs::read(ws.state().join("stillframe.db")).unwrap();
    let value = secret();
    assert!(
        !bytes
            .windows(value.len())
            .any(|part| part == value.as_bytes())
    );
}
