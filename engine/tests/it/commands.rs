//! Commands as the work of a run.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use stillframe::commands::{CommandInput, CommandOutput, CommandResult, OutputPiece};
use stillframe::records::Failure;
use stillframe::{
    CancellationToken, CommandAdapter, Engine, ErrorKind, RunOptions, RunOutcome, RunStatus,
};
use tokio::sync::mpsc;

use crate::support::Host;

fn shell(script: &str) -> CommandAdapter {
    CommandAdapter::new("sh").arg("-c").arg(script)
}

async fn run(host: &Host, command: CommandAdapter) -> RunOutcome {
    let (engine, session) = host.session().await;
    let options = RunOptions::new("command").workspace(host.workspace());
    let outcome = session.execute_run(options, command).await.unwrap();
    engine.shutdown().await.unwrap();
    outcome
}

fn result(outcome: &RunOutcome) -> CommandResult {
    outcome.run.output.clone().unwrap().command.unwrap()
}

fn kind(failure: &Option<Failure>) -> &str {
    failure.as_ref().unwrap().kind.as_deref().unwrap()
}

/// Whether a process with this argument is there, one that only waits to be reaped aside.
fn is_running(argument: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|p| fs::read(p.path().join("cmdline")).ok())
        .any(|line| line.split(|b| *b == 0).any(|a| a == argument.as_bytes()))
}

/// Whether such a process stays. One that was killed is there until the kernel has come to it.
fn stays(argument: &str) -> bool {
    let deadline = Instant::now() + Duration::from_secs(20);
    while is_running(argument) {
        if Instant::now() > deadline {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

#[tokio::test]
async fn a_command_runs_in_the_workspace_with_both_streams_apart() {
    let host = Host::new();
    let command = shell("echo out; echo err >&2; echo $GREETING >made").env("GREETING", "hello");
    let outcome = run(&host, command).await;
    assert_eq!(outcome.run.status, RunStatus::Completed);
    assert_eq!(outcome.run.exit_code, Some(0));
    let result = result(&outcome);
    assert_eq!(
        (result.stdout.as_str(), result.stderr.as_str()),
        ("out\n", "err\n")
    );
    assert_eq!(
        (result.command.as_str(), result.args[0].as_str()),
        ("sh", "-c")
    );
    assert!(!result.timed_out && !result.stdout_truncated);
    assert_eq!(host.read("made").as_deref(), Some("hello\n"));
    assert_eq!(outcome.workspace.diff.unwrap().files_changed, 1);
}

#[tokio::test]
async fn an_exit_code_is_an_outcome_and_not_an_error() {
    let host = Host::new();
    let outcome = run(&host, shell("echo done >made; exit 42")).await;
    assert_eq!(outcome.run.status, RunStatus::Failed);
    assert_eq!(outcome.run.exit_code, Some(42));
    assert!(outcome.run.error.as_ref().unwrap().message.contains("42"));
    let after = outcome.workspace.after_snapshot.unwrap();
    assert_eq!(after.label.as_str(), "after_failure");
}

#[tokio::test]
async fn an_exit_code_and_a_failure_of_the_engine_are_both_told() {
    let host = Host::new();
    host.backend.fail("after_failure");
    let outcome = run(&host, shell("exit 7")).await;
    let document = outcome.document();
    assert_eq!(document.exit_code, Some(7));
    assert_eq!(document.error, outcome.run.error, "the command's own");
    let error = document.error.unwrap();
    assert_eq!(error.kind, None);
    assert!(error.message.contains('7'), "{error:?}");
    let engine = document.workspace.unwrap().error;
    assert_eq!(kind(&engine), "LimitExceeded");

    let outcome = run(&host, CommandAdapter::new("no-such-command-at-all")).await;
    let document = outcome.document();
    assert_eq!(kind(&document.error), "NotFound");
    let engine = document.workspace.unwrap().error;
    assert_eq!(kind(&engine), "LimitExceeded");
}

#[tokio::test]
async fn a_signal_is_128_and_its_number() {
    let host = Host::new();
    let outcome = run(&host, shell("kill -9 $$")).await;
    assert_eq!(outcome.run.exit_code, Some(137));
    assert_eq!(outcome.run.status, RunStatus::Failed);
}

#[tokio::test]
async fn a_command_that_is_not_there_or_not_executable_is_a_failed_run() {
    let host = Host::new();
    let outcome = run(&host, CommandAdapter::new("no-such-command-at-all")).await;
    assert_eq!(outcome.run.exit_code, Some(127));
    assert_eq!(kind(&outcome.run.error), "NotFound");
    assert!(outcome.workspace.before_snapshot.is_some());
    assert!(outcome.workspace.after_snapshot.is_some(), "both are taken");

    host.write("script", "#!/bin/sh\n");
    let mode = fs::Permissions::from_mode(0o644);
    fs::set_permissions(host.path().join("script"), mode).unwrap();
    let outcome = run(&host, CommandAdapter::new("./script")).await;
    assert_eq!(outcome.run.exit_code, Some(126));
    assert_eq!(kind(&outcome.run.error), "Unsupported");
}

#[tokio::test]
async fn a_working_directory_that_does_not_exist_is_refused() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let command = shell("echo never >made").cwd(host.path().join("missing"));
    let options = RunOptions::new("command").workspace(host.workspace());
    let refused = session.execute_run(options, command).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
    let runs = engine
        .runs(stillframe::options::RunQuery::all())
        .await
        .unwrap();
    assert!(runs.is_empty());
}

#[tokio::test]
async fn a_command_whose_time_is_up_is_ended_with_its_children() {
    let host = Host::new();
    let began = Instant::now();
    let script = "echo begun; sleep 98761.1 & sleep 98761.1";
    let outcome = run(&host, shell(script).timeout(Duration::from_secs(1))).await;
    assert_eq!(outcome.run.status, RunStatus::Timeout);
    assert_eq!(outcome.run.exit_code, Some(124));
    let result = result(&outcome);
    assert!(result.timed_out);
    assert_eq!(result.stdout, "begun\n", "what was read before is kept");
    assert!(
        (1_000..20_000).contains(&result.duration_ms),
        "{}",
        result.duration_ms
    );
    assert!(began.elapsed() < Duration::from_secs(60));
    assert!(!stays("98761.1"), "the whole group is gone");
}

#[tokio::test]
async fn a_command_that_ignores_the_request_to_end_is_killed() {
    let host = Host::new();
    let script = "trap '' TERM; echo begun; while :; do sleep 98762.1; done";
    let outcome = run(&host, shell(script).timeout(Duration::from_secs(1))).await;
    assert_eq!(outcome.run.exit_code, Some(124));
    assert!(!stays("98762.1"));
}

#[tokio::test]
async fn what_a_command_leaves_in_the_background_is_ended_before_the_closing_capture() {
    let host = Host::new();
    let outcome = run(&host, shell("sleep 98763.1 & echo done")).await;
    assert_eq!(outcome.run.status, RunStatus::Completed);
    assert_eq!(result(&outcome).stdout, "done\n");
    assert!(!stays("98763.1"));
}

#[tokio::test]
async fn endless_output_is_cut_off_and_the_pipe_still_drained() {
    let host = Host::new();
    let command = CommandAdapter::new("yes")
        .max_output_bytes(1024)
        .timeout(Duration::from_secs(1));
    let outcome = run(&host, command).await;
    let result = result(&outcome);
    assert!(result.timed_out, "it was not stuck in a full pipe");
    assert_eq!(result.stdout.len(), 1024);
    assert!(result.stdout_truncated && !result.stderr_truncated);
}

#[tokio::test]
async fn a_cancelled_command_is_ended() {
    let host = Host::new();
    let (_engine, session) = host.session().await;
    let token = CancellationToken::new();
    let (sender, mut pieces) = mpsc::channel(16);
    let options = RunOptions::new("command").cancellation(token.clone());
    let command = shell("echo begun; sleep 98764.1").output(CommandOutput::Stream(sender));
    let run = tokio::spawn(async move { session.execute_run(options, command).await });
    assert_eq!(
        pieces.recv().await,
        Some(OutputPiece::Stdout(b"begun\n".to_vec()))
    );
    token.cancel();
    let outcome = run.await.unwrap().unwrap();
    assert_eq!(outcome.run.status, RunStatus::Cancelled);
    assert_eq!(result(&outcome).stdout, "begun\n");
    assert!(!stays("98764.1"));
}

#[tokio::test]
async fn a_stream_ends_with_the_exit_exactly_once_also_after_a_timeout() {
    for (script, code, seconds) in [
        ("echo one; echo two >&2", 0, 60),
        ("echo one; sleep 98765.1", 124, 1),
    ] {
        let host = Host::new();
        let (sender, mut pieces) = mpsc::channel(16);
        let command = shell(script)
            .output(CommandOutput::Stream(sender))
            .timeout(Duration::from_secs(seconds));
        let outcome = run(&host, command).await;
        assert_eq!(outcome.run.exit_code, Some(code));
        let mut all = Vec::new();
        while let Some(piece) = pieces.recv().await {
            all.push(piece);
        }
        assert_eq!(all.pop(), Some(OutputPiece::Exit(code)), "the last one");
        assert!(!all.iter().any(|p| matches!(p, OutputPiece::Exit(_))));
        assert!(all.contains(&OutputPiece::Stdout(b"one\n".to_vec())));
        assert_eq!(result(&outcome).stdout, "one\n");
    }
}

#[tokio::test]
async fn a_command_that_reads_finds_the_end_of_its_input() {
    let host = Host::new();
    let outcome = run(
        &host,
        CommandAdapter::new("cat").stdin(CommandInput::Nothing),
    )
    .await;
    assert_eq!(outcome.run.status, RunStatus::Completed);
}

#[tokio::test]
async fn the_id_of_the_run_to_start_is_not_handed_down() {
    let host = Host::new();
    let script = "echo ${STILLFRAME_RUN_ID-none}";
    let outcome = run(&host, shell(script)).await;
    assert_eq!(result(&outcome).stdout, "none\n");
    let given = shell(script).env("STILLFRAME_RUN_ID", "inner");
    let outcome = run(&host, given).await;
    assert_eq!(result(&outcome).stdout, "inner\n", "what is given counts");
}

#[tokio::test]
async fn a_command_of_an_adapter_that_is_dropped_does_not_outlive_it() {
    let host = Host::new();
    let (_engine, session) = host.session().await;
    let (sender, mut pieces) = mpsc::channel(16);
    let command = shell("echo begun; sleep 98766.1").output(CommandOutput::Stream(sender));
    let adapter = crate::support::Work(move |context: stillframe::RunContext| {
        let command = command.clone();
        async move {
            tokio::select! {
                result = stillframe::Adapter::run(&command, context.clone()) => result,
                () = context.cancellation.cancelled() => Ok(stillframe::AdapterOutput::empty()),
            }
        }
    });
    let token = CancellationToken::new();
    let options = RunOptions::new("command").cancellation(token.clone());
    let run = tokio::spawn(async move { session.execute_run(options, adapter).await });
    pieces.recv().await.unwrap();
    token.cancel();
    let outcome = run.await.unwrap().unwrap();
    assert_eq!(outcome.run.status, RunStatus::Cancelled);
    let gone = tokio::time::timeout(Duration::from_secs(20), async {
        while is_running("98766.1") {
            tokio::task::yield_now().await;
        }
    });
    gone.await.expect("it was killed with the future");
}

#[tokio::test]
async fn a_command_that_writes_nothing_for_too_long_is_ended_as_by_a_timeout() {
    let host = Host::new();
    let began = Instant::now();
    let idle = shell("echo begun; sleep 98767.1").idle_timeout(Duration::from_millis(300));
    let outcome = run(&host, idle).await;
    assert_eq!(outcome.run.status, RunStatus::Timeout);
    assert_eq!(outcome.run.exit_code, Some(124));
    let failure = outcome.run.error.clone().unwrap();
    assert_eq!(failure.kind.as_deref(), Some("Timeout"));
    let message = failure.message;
    assert!(
        message.contains("idle") && message.contains("300 ms"),
        "{message}"
    );
    let result = result(&outcome);
    assert!(result.timed_out);
    assert_eq!(result.stdout, "begun\n", "what it wrote is kept");
    assert!(began.elapsed() < Duration::from_secs(60));
    assert!(!stays("98767.1"));
}

#[tokio::test]
async fn a_command_that_goes_on_writing_to_either_stream_is_not_idle() {
    let host = Host::new();
    let script = "for i in 1 2 3 4 5 6; do sleep 0.2; echo $i; sleep 0.2; echo $i >&2; done";
    let busy = shell(script).idle_timeout(Duration::from_secs(2));
    let outcome = run(&host, busy).await;
    assert_eq!(
        outcome.run.status,
        RunStatus::Completed,
        "{:?}",
        outcome.run.error
    );

    let limits = shell("while :; do echo on; sleep 0.05; done")
        .idle_timeout(Duration::from_secs(60))
        .timeout(Duration::from_millis(400));
    let outcome = run(&Host::new(), limits).await;
    let message = outcome.run.error.unwrap().message;
    assert!(
        message.contains("400 ms") && !message.contains("idle"),
        "{message}"
    );
}

#[tokio::test]
async fn a_command_whose_output_waits_for_the_host_is_not_idle() {
    let host = Host::new();
    let (sender, mut pieces) = mpsc::channel(1);
    let command = shell("head -c 4000000 /dev/zero; echo done >&2")
        .output(CommandOutput::Stream(sender))
        .idle_timeout(Duration::from_millis(200));
    let slow = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut bytes = 0;
        while let Some(piece) = pieces.recv().await {
            match piece {
                OutputPiece::Stdout(piece) => bytes += piece.len(),
                OutputPiece::Exit(_) => break,
                _ => {}
            }
        }
        bytes
    };
    let (outcome, bytes) = tokio::join!(run(&host, command), slow);
    assert_eq!(
        outcome.run.status,
        RunStatus::Completed,
        "{:?}",
        outcome.run.error
    );
    assert_eq!(bytes, 4_000_000);
}

#[tokio::test]
async fn an_idle_timeout_of_zero_is_refused() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let command = shell("touch made").idle_timeout(Duration::ZERO);
    let options = RunOptions::new("command").workspace(host.workspace());
    let refused = session.execute_run(options, command).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidOptions);
    assert_eq!(host.read("made"), None);
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_command_reads_the_bytes_that_it_is_given_and_then_the_end() {
    let host = Host::new();
    let bytes: Vec<u8> = (0..64 << 20).map(|i: u32| (i / 7) as u8).collect();
    fs::write(host.path().join("expected"), &bytes).unwrap();
    // More is written than any pipe holds, before and while it reads.
    let command = shell("head -c 1000000 /dev/zero; tee read; cmp read expected")
        .stdin(CommandInput::Bytes(bytes))
        .max_output_bytes(1024);
    let outcome = run(&host, command).await;
    assert_eq!(
        outcome.run.status,
        RunStatus::Completed,
        "{:?}",
        outcome.run
    );
    let result = result(&outcome);
    assert_eq!(result.stdout_bytes, 1_000_000 + (64 << 20));
    assert!(result.stdout_truncated && result.stdout.len() == 1024);
}

#[tokio::test]
async fn a_command_that_does_not_read_its_input_neither_hangs_nor_fails() {
    for script in ["true", "exec <&-; sleep 0.1; echo done", "head -c 1"] {
        let input = CommandInput::Bytes(vec![b'x'; 4 << 20]);
        let outcome = run(&Host::new(), shell(script).stdin(input)).await;
        assert_eq!(outcome.run.status, RunStatus::Completed, "{script}");
    }
    let empty = shell("wc -c").stdin(CommandInput::Bytes(Vec::new()));
    assert_eq!(result(&run(&Host::new(), empty).await).stdout.trim(), "0");
    let unread = shell("sleep 98768.1")
        .stdin(CommandInput::Bytes(vec![0; 4 << 20]))
        .timeout(Duration::from_millis(300));
    let outcome = run(&Host::new(), unread).await;
    assert_eq!(outcome.run.status, RunStatus::Timeout);
    let secret = format!("{:?}", CommandInput::Bytes(b"secret".to_vec()));
    assert_eq!(secret, "Bytes(6 bytes)");
}

/// What the artifact under `key` has.
async fn content(engine: &Engine, key: &str) -> Vec<u8> {
    let mut reader = engine.open_artifact(key).await.unwrap();
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    bytes
}

#[tokio::test]
async fn all_output_is_kept_as_artifacts_that_the_result_and_the_record_name() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let options = RunOptions::new("command").workspace(host.workspace());
    let command = shell("head -c 3000000 /dev/zero | tr '\\0' a; printf err >&2")
        .max_output_bytes(10)
        .keep_all_output(true);
    let outcome = session.execute_run(options, command).await.unwrap();
    let result = result(&outcome);
    assert_eq!(
        (result.stdout.as_str(), result.stdout_truncated),
        ("aaaaaaaaaa", true)
    );
    assert_eq!((result.stdout_bytes, result.stderr_bytes), (3_000_000, 3));
    let (out, err) = (result.stdout_ref.unwrap(), result.stderr_ref.unwrap());
    assert_eq!(content(&engine, &out).await, vec![b'a'; 3_000_000]);
    assert_eq!(content(&engine, &err).await, b"err");
    assert_eq!(result.output_error, None);

    let export = engine.export_run(outcome.run_id.as_str()).await.unwrap();
    let mut named: Vec<_> = export
        .artifacts
        .iter()
        .map(|a| (a.key.as_str(), a.byte_size))
        .collect();
    named.sort_unstable_by_key(|(_, bytes)| *bytes);
    assert_eq!(named, [(err.as_str(), 3), (out.as_str(), 3_000_000)]);
    let command = &export.run.output["command"];
    assert_eq!(
        (&command["stdout_ref"], &command["stderr_ref"]),
        (&out.clone().into(), &err.clone().into())
    );
    assert_eq!(command["stdout_bytes"], 3_000_000);
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_stream_that_is_empty_or_not_asked_for_makes_no_artifact() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    for command in [shell("echo out"), shell("true").keep_all_output(true)] {
        let outcome = session
            .execute_run(RunOptions::new("command"), command)
            .await
            .unwrap();
        let result = result(&outcome);
        assert_eq!((result.stdout_ref, result.stderr_ref), (None, None));
        let export = engine.export_run(outcome.run_id.as_str()).await.unwrap();
        assert!(export.artifacts.is_empty());
    }
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn all_output_is_kept_also_after_a_timeout_and_a_cancellation() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let cancellation = CancellationToken::new();
    let (sender, mut pieces) = mpsc::channel(8);
    let script = "head -c 300000 /dev/zero; echo begun >&2; sleep 98769.1";
    let cancelled = RunOptions::new("command").cancellation(cancellation.clone());
    let own = shell(script).timeout(Duration::from_millis(500));
    let of_run = RunOptions::new("command").timeout(Duration::from_millis(500));
    for (options, command, status) in [
        (RunOptions::new("command"), own, RunStatus::Timeout),
        (of_run, shell(script), RunStatus::Timeout),
        (
            cancelled,
            shell(script).output(CommandOutput::Stream(sender)),
            RunStatus::Cancelled,
        ),
    ] {
        let run = session.execute_run(options, command.keep_all_output(true));
        let begun = async {
            while let Some(piece) = pieces.recv().await {
                if piece == OutputPiece::Stderr(b"begun\n".to_vec()) {
                    cancellation.cancel();
                }
            }
        };
        let outcome = match status {
            RunStatus::Cancelled => tokio::join!(run, begun).0.unwrap(),
            _ => run.await.unwrap(),
        };
        assert_eq!(outcome.run.status, status);
        let result = result(&outcome);
        assert_eq!(result.stdout_bytes, 300_000, "{status}");
        assert_eq!(
            content(&engine, &result.stdout_ref.unwrap()).await.len(),
            300_000
        );
        assert_eq!(
            content(&engine, &result.stderr_ref.unwrap()).await,
            b"begun\n"
        );
    }
    engine.shutdown().await.unwrap();
}
