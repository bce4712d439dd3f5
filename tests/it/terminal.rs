//! `stillframe run` at a terminal: the command has it while it works, as the job of a shell has.

use stillframe_tests::{Call, Terminal, TestWorkspace, binary};

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// `stillframe run -- sh -c SCRIPT`, at a terminal of its own.
fn run(ws: &TestWorkspace, script: &str) -> Terminal {
    ws.call(["run", "--", "/bin/sh", "-c", script])
        .at_terminal()
}

/// A shell that a person types at, with `stillframe` in the variable `S`.
fn shell(ws: &TestWorkspace) -> Terminal {
    let mut terminal = shell_call(ws, ["-i", "-s"]).at_terminal();
    terminal.shows("ready> ");
    terminal
}

/// A call of the shell with these arguments, with `stillframe` in the variable `S`.
fn shell_call<const N: usize>(ws: &TestWorkspace, args: [&str; N]) -> Call {
    // The last argument that this adds is a parameter of the shell, which nobody looks at.
    ws.call::<&str>([])
        .env("S", binary::stillframe())
        .env("PS1", "ready> ")
        .through("/bin/sh", args)
}

// A command that sets the terminal goes on once it has it, and not before, so what is typed after
// that is typed at the command. In texts that are typed, a name with empty quotes in it does not
// look like what it prints.

#[test]
fn a_command_reads_what_is_typed() {
    let ws = TestWorkspace::repository();
    let mut terminal = run(
        &ws,
        "echo at work; read line; echo \"got <$line>\" | tee new",
    );
    terminal.shows("at work");
    terminal.types("hello\n");
    terminal.shows("got <hello>");
    assert_eq!(terminal.ends(), 0, "{}", terminal.text());
    assert_eq!(ws.text("new"), "got <hello>\n");
    assert_eq!(ws.json(["runs"])[0]["status"], "completed");
}

#[test]
fn a_command_is_in_the_foreground_and_may_set_the_terminal() {
    let ws = TestWorkspace::repository();
    // tpgid of /proc/<pid>/stat, which is the group in the foreground, is that of the command.
    let script = "stty -echo && cut -d ' ' -f 5,8 /proc/$$/stat && echo set";
    let mut terminal = run(&ws, script);
    terminal.shows("set");
    assert_eq!(terminal.ends(), 0, "{}", terminal.text());
    let text = terminal.text();
    let numbers: Vec<&str> = text.lines().next().unwrap().split(' ').collect();
    assert_eq!(numbers[0].trim(), numbers[1].trim(), "{text}");
}

// 128 and the number of the signal
#[test]
fn ctrl_c_is_the_commands_and_a_command_that_dies_of_it_is_a_failed_run() {
    let ws = TestWorkspace::repository();
    let script = "echo x > new; stty echo; echo at work; read line";
    let mut terminal = ws
        .call([
            "run",
            "--rollback-on-failure",
            "--",
            "/bin/sh",
            "-c",
            script,
        ])
        .at_terminal();
    terminal.shows("at work");
    terminal.types(CTRL_C);
    assert_eq!(terminal.ends(), 130, "{}", terminal.text());
    let run = &ws.json(["runs"])[0];
    assert_eq!(run["status"], "failed", "{run}");
    assert_eq!(run["exit_code"], 130, "{run}");
    assert_eq!(run["workspace"]["rollback"]["status"], "completed", "{run}");
    assert!(!ws.exists("new"));
}

#[test]
fn a_command_that_handles_ctrl_c_goes_on() {
    let ws = TestWorkspace::repository();
    let script = "trap 'echo not yet' INT; stty echo; echo at work; until read line; do :; done; echo \"<$line>\"";
    let mut terminal = run(&ws, script);
    terminal.shows("at work");
    terminal.types(CTRL_C);
    terminal.shows("not yet");
    terminal.types("hello\n");
    terminal.shows("<hello>");
    assert_eq!(terminal.ends(), 0, "{}", terminal.text());
    assert_eq!(ws.json(["runs"])[0]["status"], "completed");
}

#[test]
fn whoever_started_it_has_the_terminal_back_whatever_the_end() {
    let ws = TestWorkspace::repository();
    for (options, end) in [
        ("", "true"),
        ("", "exit 3"),
        ("", "kill -9 $$"),
        ("--timeout 500ms", "sleep 60"),
    ] {
        // A shell without job control, so that nobody else puts it right.
        let script = format!(
            "$S run {options} -- /bin/sh -c '{end}'; echo over; read line && echo \"got <$line>\""
        );
        let mut terminal = shell_call(&ws, ["-c", &script]).at_terminal();
        terminal.shows("over");
        terminal.types("hello\n");
        terminal.shows("got <hello>");
        assert_eq!(terminal.ends(), 0, "{end}: {}", terminal.text());
    }
}

#[test]
fn a_command_that_cannot_be_started_does_not_cost_the_terminal() {
    let ws = TestWorkspace::repository();
    let script = "$S run -- ./no-such-command; read line && echo \"got <$line>\"";
    let mut terminal = shell_call(&ws, ["-c", script]).at_terminal();
    terminal.types("hello\n");
    terminal.shows("got <hello>");
    assert_eq!(terminal.ends(), 0, "{}", terminal.text());
}

#[test]
fn a_command_that_died_in_raw_mode_leaves_the_terminal_as_it_was() {
    let ws = TestWorkspace::repository();
    for (end, expected) in [
        ("kill -9 $$", "echo"),
        ("exit 1", "echo"),
        ("true", "-echo"),
    ] {
        let script = format!(
            "$S run -- /bin/sh -c 'stty -icanon -echo; {end}'; stty -a | tr ' ;' '\\n\\n' | grep -x -e echo -e -echo; echo over"
        );
        let mut terminal = shell_call(&ws, ["-c", &script]).at_terminal();
        terminal.shows("over");
        terminal.ends();
        let text = terminal.text();
        let mode = text.lines().find(|line| line.trim_end().ends_with("echo"));
        assert_eq!(mode.map(str::trim_end), Some(expected), "{end}: {text}");
    }
}

#[test]
fn ctrl_z_leads_back_to_the_shell_and_fg_to_the_command() {
    let ws = TestWorkspace::repository();
    let mut terminal = shell(&ws);
    let script = "stty echo; echo at w\"\"ork; while read line && [ $line != end ]; do \
        echo \"got <$line>\" | tee new; done";
    for _ in 0..2 {
        terminal.types(&format!("$S run -- /bin/sh -c '{script}'\n"));
        terminal.shows("at work");
        for round in ["one", "two"] {
            terminal.types(CTRL_Z);
            terminal.shows("ready> ");
            terminal.types(&format!("echo in the sh\"\"ell, {round}\n"));
            terminal.shows(&format!("in the shell, {round}"));
            terminal.shows("ready> ");
            terminal.types(&format!("fg\n{round}\n"));
            terminal.shows(&format!("got <{round}>"));
        }
        terminal.types("end\n");
        terminal.shows("ready> ");
        terminal.types("echo code $?.\n");
        terminal.shows("code 0.");
    }
    terminal.types("exit\n");
    terminal.ends();
    let runs = ws.json(["runs"]);
    assert_eq!(runs.as_array().unwrap().len(), 2);
    assert_eq!(runs[0]["status"], "completed", "{runs}");
    assert_eq!(ws.text("new"), "got <two>\n");
}

#[test]
fn a_stopped_run_that_is_told_to_end_ends() {
    let ws = TestWorkspace::repository();
    let mut terminal = shell(&ws);
    terminal.types("$S run -- /bin/sh -c 'stty echo; echo at w\"\"ork; read line'\n");
    terminal.shows("at work");
    terminal.types(CTRL_Z);
    terminal.shows("ready> ");
    terminal.types("kill %1; kill -CONT %1\n");
    terminal.shows("was cancelled");
    terminal.types("exec true\n");
    terminal.ends();
    let run = &ws.json(["runs"])[0];
    assert_eq!(run["status"], "cancelled", "{run}");
    assert_eq!(run["exit_code"], 143, "{run}");
}

#[test]
fn a_run_in_the_background_waits_for_the_terminal_until_it_is_brought_back() {
    let ws = TestWorkspace::repository();
    let mut terminal = shell(&ws);
    terminal.types("$S run -- /bin/sh -c 'echo at w\"\"ork; read line; echo \"got <$line>\"' &\n");
    terminal.shows("at work");
    // The shell knows no sooner that it waits than the kernel: it asks until it does.
    terminal.types("until jobs >~/jobs; grep -q Stopped ~/jobs; do :; done; echo it w\"\"aits\n");
    terminal.shows("it waits");
    terminal.types("fg\n");
    terminal.shows("run -- /bin/sh");
    terminal.types("hello\n");
    terminal.shows("got <hello>");
    terminal.types("exit\n");
    terminal.ends();
    assert_eq!(ws.json(["runs"])[0]["status"], "completed");
}

#[test]
fn without_a_shell_to_go_back_to_ctrl_z_stops_nothing() {
    let ws = TestWorkspace::repository();
    let mut terminal = run(
        &ws,
        "stty echo; echo at work; read line; echo \"got <$line>\"",
    );
    terminal.shows("at work");
    terminal.types(CTRL_Z);
    terminal.types("hello\n");
    terminal.shows("got <hello>");
    assert_eq!(terminal.ends(), 0, "{}", terminal.text());
}

#[test]
fn a_command_with_another_input_gets_the_terminal_when_it_asks() {
    let ws = TestWorkspace::repository();
    let script = "echo piped | $S run -- /bin/sh -c \
        'cat; echo at work; read line </dev/tty; echo \"got <$line>\"'; read line; echo \"<$line>\"";
    let mut terminal = shell_call(&ws, ["-c", script]).at_terminal();
    terminal.shows("piped");
    terminal.shows("at work");
    terminal.types("hello\n");
    terminal.shows("got <hello>");
    terminal.types("and after\n");
    terminal.shows("<and after>");
    assert_eq!(terminal.ends(), 0, "{}", terminal.text());
}

#[test]
fn what_feeds_a_command_keeps_the_terminal() {
    let ws = TestWorkspace::repository();
    let script = "cat | $S run -- tee new";
    let mut terminal = shell_call(&ws, ["-c", script]).at_terminal();
    terminal.types("hello\n\x04");
    assert_eq!(terminal.ends(), 0, "{}", terminal.text());
    assert_eq!(ws.text("new"), "hello\n");
}

// The run would be failed for good, and its steps paid for again under another id.
#[test]
fn ctrl_c_at_a_step_interrupts_the_run_as_a_signal_to_it_does() {
    let ws = TestWorkspace::repository();
    std::fs::create_dir_all(ws.outside()).unwrap();
    let file = ws.outside().join("steps.toml");
    let plan = |script: &str| {
        let steps = [("first", "echo 1 > first"), ("asks", script)];
        let steps = steps.map(|(name, script)| {
            format!("[[step]]\nname = '{name}'\ncommand = '''{script}'''\nretries = 2\n")
        });
        std::fs::write(&file, steps.concat()).unwrap();
    };
    // The line that says what is run does not look like what that prints.
    let script = "echo x > new; stty echo; echo at\" \"work; read line; echo \"$line\" > said";
    plan(script);
    let file = file.display().to_string();
    let args = [
        "run",
        "--rollback-on-failure",
        "--steps",
        &file,
        "--run-id",
        "r",
    ];
    let mut terminal = ws.call(args).at_terminal();
    terminal.shows("at work");
    terminal.types(CTRL_C);
    assert_eq!(terminal.ends(), 130, "{}", terminal.text());
    let text = terminal.text();
    assert!(!text.contains("it is tried again"), "{text}");
    assert!(text.contains("stillframe resume r"), "{text}");
    let run = ws.show("r");
    assert_eq!(run["status"], "interrupted", "{run}");
    assert_eq!(run["phases"][0]["steps"][1]["status"], "interrupted");
    assert!(
        ws.exists("first") && ws.exists("new"),
        "nothing was rolled back"
    );
    let mut terminal = ws.call(["resume", "r"]).at_terminal();
    terminal.shows("at work");
    terminal.types("hello\n");
    assert_eq!(terminal.ends(), 0, "{}", terminal.text());
    assert_eq!(ws.text("said"), "hello\n");
    assert_eq!(ws.show("r")["phases"][0]["steps"][0]["attempt"], 1);
}

// 129 is also what git says of a command line that is wrong
#[test]
fn a_step_that_fails_at_a_terminal_is_tried_again_and_fails_its_run() {
    for code in [3, 129, 131] {
        let ws = TestWorkspace::repository();
        std::fs::create_dir_all(ws.outside()).unwrap();
        let file = ws.outside().join("steps.toml");
        let step = format!(
            "[[step]]\nname = 'a'\ncommand = 'stty echo; exit {code}'\nretries = 1\nretry_delay = '10ms'\n"
        );
        std::fs::write(&file, step).unwrap();
        let file = file.display().to_string();
        let args = ["run", "--steps", &file, "--run-id", "r"];
        let mut terminal = ws.call(args).at_terminal();
        assert_eq!(terminal.ends(), code, "{}", terminal.text());
        assert!(terminal.text().contains("it is tried again"));
        assert_eq!(ws.show("r")["status"], "failed");
    }
}

/// A pager that keeps what it was given, and says what it was told, in the home directory.
fn pager(ws: &TestWorkspace) -> String {
    std::fs::create_dir_all(ws.outside()).unwrap();
    let script = ws.outside().join("pager");
    let text = "#!/bin/sh\ncat > ~/paged\necho \"that was all, LESS=$LESS\"\n";
    std::fs::write(&script, text).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    script.display().to_string()
}

/// What the pager was given since this was asked the last time; `None`: it was not started.
fn paged(ws: &TestWorkspace) -> Option<String> {
    let file = ws.home().join("paged");
    let text = std::fs::read_to_string(&file).ok()?;
    std::fs::remove_file(file).unwrap();
    Some(text)
}

/// A call that a person may want to page through.
fn at_a_screen(ws: &TestWorkspace, args: &[&str], pager: &str) -> Call {
    let call = ws.call(args);
    call.env("TERM", "xterm").env("PAGER", pager)
}

#[test]
fn what_is_long_is_shown_by_the_pager_and_what_goes_elsewhere_is_not() {
    let ws = TestWorkspace::repository();
    let from = ws.snapshot();
    ws.write("new", "tab\tand \x1b]0;title\x07\n");
    let pager = pager(&ws);
    let diff = ["diff", from.id()];
    let mut terminal = at_a_screen(&ws, &diff, &pager).at_terminal();
    terminal.shows("that was all, LESS=FRX");
    assert_eq!(terminal.ends(), 0, "{}", terminal.text());
    let text = paged(&ws).expect("it was started");
    assert!(
        text.starts_with("\x1b[32mA new\x1b[m\n1 file changed"),
        "{text:?}"
    );

    let patch = ["diff", from.id(), "--patch"];
    let mut terminal = at_a_screen(&ws, &patch, &pager)
        .env("LESS", "-S")
        .at_terminal();
    terminal.shows("LESS=-S");
    terminal.ends();
    let text = paged(&ws).expect("it was started");
    let line = "\x1b[32m+tab\tand \\u{1b}]0;title\\u{7}\x1b[m\n";
    assert!(text.contains(line), "a terminal executes nothing: {text:?}");

    at_a_screen(&ws, &["show", from.id()], &pager)
        .at_terminal()
        .ends();
    let text = paged(&ws).expect("it was started");
    assert!(text.starts_with("snapshot"), "{text:?}");

    at_a_screen(&ws, &diff, &pager)
        .env("NO_COLOR", "1")
        .at_terminal()
        .ends();
    assert!(!paged(&ws).expect("it was started").contains('\x1b'));

    let json = ["diff", from.id(), "--json"];
    for (args, text) in [
        (&json[..], "\"changed_paths\":[\"new\"]"),
        (&["list"], from.id()),
    ] {
        let mut terminal = at_a_screen(&ws, args, &pager).at_terminal();
        terminal.shows(text);
        assert_eq!(terminal.ends(), 0);
        assert!(!terminal.text().contains('\x1b'), "{args:?}");
        assert_eq!(paged(&ws), None, "{args:?}");
    }
    let output = at_a_screen(&ws, &patch, &pager).run().ok();
    assert!(
        output
            .stdout_text()
            .contains("+tab\tand \x1b]0;title\x07\n"),
        "exact: {output}"
    );
    assert_eq!(paged(&ws), None, "a pipe is no terminal");
    let mut dumb = at_a_screen(&ws, &diff, &pager)
        .env("TERM", "dumb")
        .at_terminal();
    dumb.shows("A new");
    dumb.ends();
    assert_eq!(paged(&ws), None, "it cannot be drawn on");
}

#[test]
fn a_pager_that_is_not_there_or_leaves_early_is_no_failure() {
    let ws = TestWorkspace::repository();
    let from = ws.snapshot();
    for number in 0..5000 {
        ws.write(format!("new-{number:04}"), "");
    }
    for pager in ["/not/there", "/not/there 'with an argument'", "", "cat"] {
        let mut terminal = at_a_screen(&ws, &["diff", from.id()], pager).at_terminal();
        terminal.shows("A new-0000");
        terminal.shows("5000 files changed");
        assert_eq!(terminal.ends(), 0, "{pager:?}");
    }
    for pager in ["true", "false", "head -n 1"] {
        let mut terminal = at_a_screen(&ws, &["diff", from.id()], pager).at_terminal();
        assert_eq!(terminal.ends(), 0, "{pager:?}: {}", terminal.text());
    }
}

#[test]
fn a_repository_does_not_say_what_the_pager_is() {
    let ws = TestWorkspace::repository();
    let from = ws.snapshot();
    ws.write("new", "x\n");
    let fired = ws.home().join("fired");
    let trap = format!("touch {}; cat", fired.display());
    for key in ["core.pager", "pager.diff", "pager.show"] {
        ws.git(["config", key, &trap]);
    }
    let pager = pager(&ws);
    at_a_screen(&ws, &["diff", from.id()], &pager)
        .at_terminal()
        .ends();
    assert!(paged(&ws).is_some(), "the one of the environment was");
    let bare = ws.call(["diff", from.id()]).env("TERM", "xterm");
    bare.env("LESS", "FX").at_terminal().ends();
    assert!(!fired.exists());
}
