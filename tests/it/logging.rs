//! What the program tells of itself on stderr: warnings by themselves, and more for who asks.

use rustix::process::Signal;
use serde_json::Value;
use stillframe_tests::{Call, Output, TestWorkspace, copy_whole};

/// A state directory in which a run died whose workspace is gone since, and a copy of it: the first
/// engine that starts warns of that.
fn warned_of() -> TestWorkspace {
    let ws = TestWorkspace::plain();
    let lost = ws.outside().join("lost");
    std::fs::create_dir(&lost).unwrap();
    let started = ws.outside().join("started");
    let script = format!(": > '{}'; exec sleep 60", started.display());
    let run = ["run", "--", "/bin/sh", "-c", &script];
    let mut running = ws.call(run).cwd(&lost).start();
    running.until("the command is at work", |_| started.exists());
    running.signal(Signal::KILL);
    running.kill();
    std::fs::remove_dir_all(&lost).unwrap();
    copy_whole(&ws.state(), &ws.outside().join("state"));
    ws
}

const WARNING: &str = "not recovered";

/// A command that is the first to start an engine since.
fn runs(ws: &TestWorkspace, options: &[&str]) -> Call {
    copy_whole(&ws.outside().join("state"), &ws.state());
    ws.call(options.iter().chain(&["runs"]))
}

/// The lines on stderr that tell of the warning.
fn warnings(output: &Output) -> Vec<String> {
    let text = output.stderr_text();
    let lines = text.lines().filter(|line| line.contains(WARNING));
    lines.map(str::to_owned).collect()
}

#[test]
fn a_warning_is_shown_by_itself_and_not_beside_a_document() {
    let ws = warned_of();
    let output = runs(&ws, &[]).run().ok();
    let told = warnings(&output);
    assert_eq!(told.len(), 1, "{output}");
    assert!(
        told[0].starts_with("stillframe: warning: not recovered "),
        "{output}"
    );
    assert!(told[0].contains("lost"), "it names the path: {output}");

    let quiet = runs(&ws, &["--json"]).run().ok();
    assert_eq!(quiet.stderr_text(), "", "a script finds nothing else there");
    quiet.json();
    let asked = runs(&ws, &["--json", "--log", "warn"]).run().ok();
    assert_eq!(warnings(&asked).len(), 1, "{asked}");
    asked.json();
}

#[test]
fn the_option_comes_before_the_environment() {
    let ws = warned_of();
    for (options, env, is_shown) in [
        (&["--log", "off"][..], None, false),
        (&["--log", "error"], Some("trace"), false),
        (&[], Some("off"), false),
        (&[], Some(""), true),
        (&["--log", "stillframe=warn"], Some("off"), true),
        (&["--log", "warn,stillframe=off"], None, false),
    ] {
        let mut call = runs(&ws, options);
        if let Some(env) = env {
            call = call.env("STILLFRAME_LOG", env);
        }
        let output = call.run().ok();
        assert_eq!(
            !warnings(&output).is_empty(),
            is_shown,
            "{options:?} {env:?}: {output}"
        );
    }
}

#[test]
fn who_asks_gets_time_level_and_spans_as_text_or_as_documents() {
    let ws = TestWorkspace::repository();
    let output = ws.stillframe(["snapshot", "--log", "info"]).ok();
    let told = output.stderr_text();
    let capture = told.lines().find(|line| line.contains("capture{"));
    let capture = capture.unwrap_or_else(|| panic!("{output}"));
    for part in [
        " INFO ",
        "snapshot_id=\"snap_",
        "backend=\"git\"",
        "files=",
        "time.busy=",
    ] {
        assert!(capture.contains(part), "{part}: {capture}");
    }
    assert!(
        !told.contains("state_commit"),
        "that is for debug: {output}"
    );
    assert!(
        !told.contains("ractor"),
        "a level is for our own parts: {output}"
    );
    let output = ws.stillframe(["snapshot", "--log", "off,ractor=info"]).ok();
    assert!(output.stderr_text().contains("ractor"), "{output}");
    let output = ws
        .stillframe(["snapshot", "--log", "stillframe=debug"])
        .ok();
    assert!(output.stderr_text().contains("state_commit{"), "{output}");

    let run = ["run", "--log", "info", "--log-format", "json", "--", "true"];
    let output = ws.stillframe(run).ok();
    let told = output.stderr_text();
    let documents: Vec<Value> = told
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let captures = documents
        .iter()
        .filter(|line| line["span"]["name"] == "capture");
    let captures: Vec<&Value> = captures.collect();
    assert_eq!(captures.len(), 2, "{output}");
    for capture in captures {
        assert_eq!(capture["level"], "INFO");
        assert!(capture["timestamp"].is_string() && capture["target"].is_string());
        assert!(capture["span"]["duration_ms"].is_u64(), "{capture}");
        let of_run = capture["spans"].as_array().unwrap().iter();
        let of_run: Vec<&Value> = of_run.filter(|span| span["name"] == "run").collect();
        assert_eq!(of_run.len(), 1, "it belongs to its run: {capture}");
        assert!(of_run[0]["run_id"].as_str().unwrap().starts_with("run_"));
    }
}

#[test]
fn a_wrong_filter_or_format_is_a_wrong_command_line() {
    let ws = TestWorkspace::plain();
    for (call, named) in [
        (ws.call(["list", "--log", "loud"]), "--log: \"loud\""),
        (ws.call(["list", "--log", "info,x=y"]), "--log: \"x=y\""),
        (ws.call(["list", "--log", ""]), "--log: \"\""),
        (
            ws.call(["list"]).env("STILLFRAME_LOG", "wran"),
            "STILLFRAME_LOG: \"wran\"",
        ),
        (
            ws.call(["run", "--log", "loud", "--", "true"]),
            "--log: \"loud\"",
        ),
        (ws.call(["list", "--log-format", "xml"]), "xml"),
    ] {
        let output = ws.untouched(|| call.run().exits(2));
        assert!(output.stderr_text().contains(named), "{named}: {output}");
        assert!(output.stdout.is_empty(), "{output}");
    }
    let output = ws.try_json(["list", "--log", "loud"]).exits(2);
    assert_eq!(output.json()["error"]["kind"], "InvalidOptions");
    assert!(!ws.state().join("workspaces").exists(), "nothing was made");
}
