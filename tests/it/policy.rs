//! `stillframe run` with paths that must not change, and limits of what does.

use stillframe_tests::TestWorkspace;

#[test]
fn a_run_that_changes_a_forbidden_path_fails_by_name_and_goes_back() {
    let ws = TestWorkspace::repository();
    ws.write(".github/workflows/ci.yml", "on: push\n");
    let script = "echo evil >> .github/workflows/ci.yml && echo fine > new";
    let options = ["--forbid", ".github", "--rollback-on-failure"];
    let failed = ws.run(options, script).exits(77).json();
    assert_eq!(failed["status"], "failed");
    assert_eq!(failed["exit_code"], 0, "the command's own is kept");
    assert_eq!(failed["error"]["kind"], "PolicyViolation");
    let message = failed["error"]["message"].as_str().unwrap();
    assert!(message.contains(".github/workflows/ci.yml"), "{message}");
    assert_eq!(failed["workspace"]["rollback"]["status"], "completed");
    assert_eq!(ws.text(".github/workflows/ci.yml"), "on: push\n");
    assert!(!ws.exists("new"));

    let run_id = failed["run_id"].as_str().unwrap();
    let events = ws.events(["--run", run_id, "--type", "policy_violation"]);
    assert_eq!(events.len(), 1);
    let event = &events[0];
    assert_eq!(event["data"]["kind"], "forbidden_paths");
    assert_eq!(event["data"]["glob"], ".github");
    let paths = &event["data"]["paths"];
    assert_eq!(paths, &serde_json::json!([".github/workflows/ci.yml"]));

    // For people, on one line.
    let told = ws.stillframe([
        "run",
        "--forbid",
        ".github",
        "--",
        "/bin/sh",
        "-c",
        "rm -r .github",
    ]);
    let told = told.exits(77);
    let line = "failed: it changed what must not change (.github): .github/workflows/ci.yml";
    assert!(told.stderr_text().contains(line), "{}", told.stderr_text());
    ws.run(["--forbid", ".github"], "echo x > elsewhere").ok();
}

#[test]
fn a_rule_of_the_runs_own_hides_nothing_that_is_forbidden() {
    for script in [
        "echo .github >> .gitignore && mkdir -p .github/workflows && echo x > .github/workflows/a",
        "mkdir -p .git/info && echo .github >> .git/info/exclude && mkdir -p .github/workflows && \
         echo x > .github/workflows/a",
        "git init -q .github && echo x > .github/a",
    ] {
        for glob in [".github", ".github/**", ".github/workflows/*"] {
            let ws = TestWorkspace::repository();
            let failed = ws.run(["--forbid", glob], script).exits(77).json();
            let message = failed["error"]["message"].as_str().unwrap();
            assert!(message.contains(".github"), "{glob}: {message}");
        }
    }
}

#[test]
fn a_rule_of_the_runs_own_hides_nothing_from_the_limits_of_changes() {
    for rules in [".gitignore", ".git/info/exclude"] {
        for limit in ["--max-changed-files", "--max-changed-bytes"] {
            let ws = TestWorkspace::repository();
            let script = format!(
                "mkdir -p .git/info out; echo out >> {rules}; touch out/1; head -c 9000 /dev/zero > out/2"
            );
            let failed = ws.run([limit, "1000"], &script).exits(77).json();
            let message = failed["error"]["message"].as_str().unwrap();
            let hidden = "a new ignore rule hides what is new: out";
            assert!(message.ends_with(hidden), "{message}");
        }
    }
}

#[test]
fn limits_of_changes_have_their_options() {
    let ws = TestWorkspace::repository();
    let script = "echo 1 > a; echo 2 > b; head -c 3000 /dev/zero > c";
    let failed = ws
        .run(["--max-changed-files", "2"], script)
        .exits(77)
        .json();
    let message = failed["error"]["message"].as_str().unwrap();
    assert_eq!(message, "it changed 3 files, and the limit is 2: a, b, c");
    ws.run(
        ["--max-changed-files", "0", "--max-changed-bytes", "0"],
        "true",
    )
    .ok();
    let failed = ws
        .run(["--max-changed-bytes", "1K"], "rm a; echo x >> c")
        .exits(77)
        .json();
    let message = failed["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("the files that it changed have 2.9 KiB"),
        "{message}"
    );
    // A command that fails keeps its code, and both are told.
    let failed = ws
        .run(["--max-changed-files", "0"], "echo x > d; exit 3")
        .exits(3)
        .json();
    let message = failed["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("code 3; and it changed 1 file, "),
        "{message}"
    );
}

// It was the engine's failure, 125, and named a field of the library.
#[test]
fn a_glob_that_could_never_match_is_refused_and_nothing_is_run() {
    let ws = TestWorkspace::repository();
    for glob in ["[a", "", "/etc", ".github/"] {
        let refused = ws.run(["--forbid", glob], "echo x > made").exits(2);
        let message = refused.error("InvalidOptions");
        assert!(message.contains(&format!("{glob:?}")), "{message}");
        assert!(message.contains("--forbid"), "{message}");
    }
    assert!(!ws.exists("made"));
    ws.stillframe(["run", "--max-changed-files", "few", "--", "true"])
        .exits(2);
}
