//! What a newcomer tries first does what it is shown to do: the transcripts of the README, and the
//! examples of the engine.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use serde_json::Value;
use stillframe_tests::{Call, TestWorkspace, binary, json};

const README: &str = include_str!("../../README.md");

/// The text of the first block of the README that begins with three backticks and `language`,
/// behind `after`.
fn block(after: &str, language: &str) -> &'static str {
    let (_, rest) = README.split_once(after).expect("the README has it");
    let (_, rest) = rest
        .split_once(&format!("```{language}\n"))
        .expect("a block begins");
    rest.split_once("```").expect("a block ends").0
}

/// What `command` prints, as a shell runs it in the workspace: stderr, then stdout.
fn typed(ws: &TestWorkspace, command: &str) -> String {
    let script = format!("stillframe() {{ \"$0\" \"$@\"; }}\n{command}");
    let output = ws
        .call::<&str>([])
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .through("/bin/sh", ["-c", &script])
        .run()
        .ok();
    output.stderr_text() + &output.stdout_text()
}

/// Gives ids names that say which of them are the same: `run 1`, `snap 1`, `snap 2`.
fn named(text: &str) -> String {
    let mut names = HashMap::new();
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('_') {
        let (before, behind) = (&rest[..at], &rest[at + 1..]);
        let is_digit = |c: char| matches!(c, '0'..='9' | 'a'..='f');
        let digits = behind.find(|c| !is_digit(c)).unwrap_or(behind.len());
        let kind = ["run", "snap"]
            .into_iter()
            .find(|kind| before.ends_with(kind));
        match kind.filter(|_| digits == 32) {
            Some(kind) => {
                let number = names.len() + 1;
                let name = names
                    .entry(&behind[..32])
                    .or_insert(format!("{kind} {number}"));
                out.push_str(before.strip_suffix(kind).unwrap());
                out.push_str(name);
                rest = &behind[32..];
            }
            None => {
                out.push_str(&rest[..=at]);
                rest = behind;
            }
        }
    }
    out + rest
}

#[test]
fn ids_are_named_by_their_order() {
    let (a, b) = ("a".repeat(32), "b".repeat(32));
    let text = format!("a_b run_{a}, snap_{b} and run_{a}_x snap_12");
    assert_eq!(named(&text), "a_b run 1, snap 2 and run 1_x snap_12");
}

#[test]
fn the_first_two_commands_of_the_readme_print_what_it_shows() {
    let ws = TestWorkspace::unborn();
    for name in ["README.md", "LICENSE-MIT"] {
        fs::copy(binary::project().join(name), ws.path(name)).unwrap();
    }
    ws.commit("a clone");
    let before = stillframe_tests::view::worktree(ws.root());
    let mut printed = Vec::new();
    for line in block("## Try it", "sh").lines() {
        let built = "cargo run --release -p stillframe-cli -- ";
        let arguments = line.strip_prefix(built).expect("it builds and runs");
        printed.push(typed(&ws, &format!("stillframe {arguments}")));
    }
    assert_eq!(printed.len(), 2);
    let shown = block("## Try it", "text");
    assert_eq!(named(&printed.join("\n")), named(shown));
    let after = stillframe_tests::view::worktree(ws.root());
    stillframe_tests::view::same(&before, &after, "undo took everything back");
}

#[test]
fn a_repository_of_ones_own_behaves_as_the_readme_shows() {
    let ws = TestWorkspace::unborn();
    ws.write("Makefile", "all:\n\tcc main.c\n");
    ws.write(
        "main.c",
        "#include <stdio.h>\n\nint main(void)\n{\n\tputs(\"hello\");\n}\n",
    );
    ws.commit("first");
    ws.write("notes.txt", "in no commit\n");
    let shown = block("In a repository of your own", "console");
    let mut printed = String::new();
    let mut commands = 0;
    for command in shown.lines().filter_map(|line| line.strip_prefix("$ ")) {
        printed += &format!("$ {command}\n{}", typed(&ws, command));
        commands += 1;
    }
    assert_eq!(named(&printed), named(shown));
    assert!(commands >= 5, "{shown}");
    assert_eq!(ws.text("notes.txt"), "in no commit\n");
}

/// Runs an example in an empty directory with a state directory of its own.
fn example(ws: &TestWorkspace, name: &str, args: &[&str]) -> String {
    let call = Call::new(binary::example(name), ws.root()).args(args);
    let call = call
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", ws.home())
        .env("STILLFRAME_HOME", ws.state())
        .env("TMPDIR", ws.outside())
        // One does a thousand runs, beside other tests.
        .deadline(Duration::from_secs(300));
    let output = call.run().ok();
    assert_eq!(output.stderr_text(), "", "{output}");
    output.stdout_text()
}

#[test]
fn the_minimal_host_says_what_a_command_changed() {
    let ws = TestWorkspace::repository();
    let text = example(&ws, "minimal_host", &["touch", "hello"]);
    assert_eq!(text, "the run is completed\n1 files changed\n  \"hello\"\n");
    assert!(ws.exists("hello"));
}

#[test]
fn the_custom_adapter_prints_the_document_of_its_run() {
    let ws = TestWorkspace::plain();
    let text = example(&ws, "custom_adapter", &[]);
    let run: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(run["status"], "completed");
    assert_eq!(run["session_id"], "example");
    let added = json::names(&run["workspace"]["diff"]["added"]);
    assert_eq!(added, ["file-0", "file-1", "file-2"]);
}

#[test]
fn the_watcher_prints_every_event_in_its_order() {
    let ws = TestWorkspace::plain();
    let text = example(&ws, "watch_events", &[]);
    let lines: Vec<&str> = text.lines().collect();
    let (count, events) = lines.split_last().unwrap();
    assert_eq!(*count, format!("{} events", events.len()));
    let mut types = Vec::new();
    for (at, line) in events.iter().enumerate() {
        let mut words = line.split_whitespace();
        assert_eq!(words.next(), Some(&*(at + 1).to_string()), "no gap: {text}");
        types.push(words.next().unwrap());
    }
    assert_eq!(types.first(), Some(&"session_created"), "{text}");
    assert_eq!(types.last(), Some(&"session_completed"), "{text}");
    for expected in ["run_started", "workspace_diff_computed", "run_completed"] {
        assert!(types.contains(&expected), "{expected}: {text}");
    }
}

#[test]
fn the_custom_backend_puts_the_poem_back() {
    let ws = TestWorkspace::plain();
    let text = example(&ws, "custom_backend", &[]);
    assert_eq!(
        text,
        "the run is failed, and the poem is: roses are red\n\n"
    );
}

#[test]
fn the_second_machine_goes_on_where_the_first_one_died() {
    let ws = TestWorkspace::plain();
    let text = example(&ws, "two_machines", &[]);
    assert_eq!(
        text,
        "the first machine died: true\n\
         the second one has 4 of 5 parts\n\
         stillframe/task/42 waits: what is the last part?\n\
         the run is completed\n\
         stillframe/task/42 has all: true\n"
    );
}

#[test]
fn the_endpoint_for_prometheus_has_what_was_counted() {
    let ws = TestWorkspace::plain();
    let text = example(&ws, "prometheus", &["once"]);
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains(&format!("Content-Length: {}", body.len())),
        "{head}"
    );
    for line in [
        "# TYPE stillframe_captures_total counter",
        "stillframe_captures_total{backend=\"hash\"} 2",
        "stillframe_runs_total{status=\"completed\"} 1",
        "# TYPE stillframe_capture_duration_seconds histogram",
        "stillframe_capture_duration_seconds_bucket{le=\"+Inf\"} 2",
        "stillframe_capture_duration_seconds_count 2",
    ] {
        assert!(body.lines().any(|l| l == line), "{line}: {body}");
    }
    let described = body
        .lines()
        .filter(|line| line.starts_with("# HELP stillframe_"));
    assert!(described.count() >= 14, "{body}");
}

#[test]
fn the_host_does_a_thousand_runs_and_what_the_guide_says_of_it() {
    let ws = TestWorkspace::plain();
    let text = example(&ws, "host", &[]);
    let lines: Vec<&str> = text.lines().collect();
    let number = |line: &str, before: &str, after: &str| -> u64 {
        let rest = line.strip_prefix(before).expect(before);
        rest.strip_suffix(after).expect(after).parse().unwrap()
    };
    // Each of the runs that had ended by then has told of several things.
    assert!(number(lines[0], "the subscriber died at position ", "") > 1000);
    assert_eq!(
        lines[1..6],
        [
            "1000 runs have ended",
            "a run is failed: it changed what must not change (.github/**): .github/ci.yml",
            "asked: \"a call of tool \\\"Bash\\\": may it use a shell?\"",
            "the deployment says \"version 2 is out\"",
            "1001 of 1002 runs are completed",
        ]
    );
    // Of twenty runs: that it began, what was asked and answered, what it used, and that it ended.
    let entries = number(lines[6], "the transcript of ticket-0 has ", " entries");
    assert!(entries >= 20 * 5, "{text}");
    assert_eq!(lines.len(), 7, "{text}");
}

// A new example has to have its test here
#[test]
fn every_example_of_the_engine_is_run() {
    let tests = include_str!("examples.rs");
    let directory = binary::project().join("engine/examples");
    let mut names = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let name = name.trim_end_matches(".rs");
        assert!(
            tests.contains(&format!("example(&ws, \"{name}\"")),
            "{name}"
        );
        names += 1;
    }
    assert!(names >= 4);
}
