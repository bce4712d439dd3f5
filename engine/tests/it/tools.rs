//! Calls of tools between two snapshots.

use std::time::Duration;

use stillframe::backends::Label;
use stillframe::events::EventType;
use stillframe::options::GcOptions;
use stillframe::steps::{ToolError, ToolOptions};
use stillframe::{
    AdapterError, AdapterOutput, Engine, ErrorKind, RunContext, RunOptions, RunStatus,
    SessionManager,
};

use crate::support::{Host, Work, all};

fn write(context: &RunContext, name: &str, text: &str) {
    std::fs::write(context.workspace.as_ref().unwrap().join(name), text).unwrap();
}

async fn run<F, R>(host: &Host, work: F) -> Vec<String>
where
    F: Fn(RunContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<AdapterOutput, AdapterError>> + Send,
{
    let (engine, session) = host.session().await;
    run_in(host, (&engine, &session), work).await
}

async fn run_in<F, R>(
    host: &Host,
    (engine, session): (&Engine, &SessionManager),
    work: F,
) -> Vec<String>
where
    F: Fn(RunContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<AdapterOutput, AdapterError>> + Send,
{
    let options = RunOptions::new("use tools").workspace(host.workspace());
    let outcome = session.execute_run(options, Work(work)).await.unwrap();
    assert_eq!(
        outcome.run.status,
        RunStatus::Completed,
        "{:?}",
        outcome.run
    );
    all(engine, session)
        .await
        .into_iter()
        .filter(|e| {
            [
                EventType::WORKSPACE_SNAPSHOT_TAKEN,
                EventType::WORKSPACE_ROLLED_BACK,
            ]
            .contains(&e.event_type)
                || e.event_type.as_str().starts_with("tool_")
        })
        .map(|e| match e.data["label"].as_str() {
            Some(label) => format!("{} {label}", e.event_type),
            None => e.event_type.to_string(),
        })
        .collect()
}

#[tokio::test]
async fn a_tool_that_reads_takes_no_snapshot_and_one_that_writes_takes_two() {
    let host = Host::new();
    let events = run(&host, |context| async move {
        let read = context.call_tool(ToolOptions::new("Read"), async { Ok(1) });
        let read = read.await?;
        assert_eq!((read.value, read.snapshot_before), (1, None));
        let writer = context.clone();
        let edited = context.call_tool(ToolOptions::new("Edit"), async {
            write(&writer, "new", "x\n");
            Ok(())
        });
        let edited = edited.await?;
        assert!(edited.snapshot_before.is_some() && edited.snapshot_after.is_some());
        assert_ne!(edited.snapshot_before, edited.snapshot_after);
        assert_eq!(edited.warning, None);
        let counters = context.tool_counters();
        assert_eq!((counters.total, counters.successful), (2, 2));
        assert_eq!((counters.snapshots, counters.by_tool["Edit"]), (2, 1));
        Ok(AdapterOutput::empty())
    })
    .await;
    assert_eq!(
        events,
        [
            "workspace_snapshot_taken before",
            "tool_call_started",
            "tool_call_completed",
            "workspace_snapshot_taken step",
            "tool_call_started",
            "workspace_snapshot_taken step",
            "tool_call_completed",
            "workspace_snapshot_taken after",
        ]
    );
}

#[tokio::test]
async fn a_tool_that_fails_or_takes_too_long_is_taken_back() {
    let host = Host::new();
    host.write("kept", "as it was\n");
    let events = run(&host, |context| async move {
        let spoil = |context: RunContext| async move {
            write(&context, "kept", "spoilt\n");
            write(&context, "new", "x\n");
        };
        let writer = context.clone();
        let failed = context.call_tool(ToolOptions::new("Edit"), async {
            spoil(writer).await;
            Err::<(), _>(AdapterError::failed("no such line"))
        });
        let failed = failed.await.unwrap_err();
        assert!(matches!(&failed, ToolError::Failed { .. }), "{failed}");
        assert!(failed.to_string().contains("no such line"), "{failed}");
        let root = context.workspace.clone().unwrap();
        let kept = || std::fs::read_to_string(root.join("kept")).unwrap();
        assert_eq!(kept(), "as it was\n");
        assert!(!root.join("new").exists());

        let (writer, limit) = (context.clone(), Duration::from_millis(50));
        let late = context.call_tool(ToolOptions::new("Bash").timeout(limit), async {
            spoil(writer).await;
            std::future::pending::<Result<(), AdapterError>>().await
        });
        let late: AdapterError = late.await.unwrap_err().into();
        assert_eq!(late.failure.kind.as_deref(), Some("Timeout"));
        assert_eq!(kept(), "as it was\n");
        let counters = context.tool_counters();
        assert_eq!((counters.failed, counters.rollbacks), (2, 2));
        Ok(AdapterOutput::empty())
    })
    .await;
    let backs = events.iter().filter(|e| *e == "workspace_rolled_back");
    assert_eq!(backs.count(), 2);
}

// The snapshot before it was forgotten by a clean-up of somebody else, and there was no way back
#[tokio::test]
async fn a_clean_up_in_the_midst_of_a_call_keeps_what_the_call_goes_back_to() {
    let host = Host::new();
    host.write("kept", "as it was\n");
    let workspace = host.workspace();
    let (engine, session) = host.session().await;
    let inner = engine.clone();
    run_in(&host, (&engine, &session), move |context| {
        let (engine, workspace) = (inner.clone(), workspace.clone());
        async move {
            let writer = context.clone();
            let failed = context.call_tool(ToolOptions::new("Edit"), async {
                write(&writer, "kept", "spoilt\n");
                let other = engine.session("another").await.unwrap();
                for _ in 0..3 {
                    other.snapshot(&workspace, Label::MANUAL).await.unwrap();
                }
                let only_one = GcOptions::default().keep(1);
                let gone = engine.gc(&workspace, only_one).await.unwrap();
                assert_eq!(gone.forgotten.len(), 2, "{gone:?}");
                Err::<(), _>(AdapterError::failed("no such line"))
            });
            let failed = Box::pin(failed).await.unwrap_err();
            assert!(matches!(&failed, ToolError::Failed { .. }), "{failed}");
            let root = context.workspace.clone().unwrap();
            let kept = std::fs::read_to_string(root.join("kept")).unwrap();
            assert_eq!(kept, "as it was\n");
            // Once it is settled it goes like any other.
            let gone = engine.gc(&workspace, GcOptions::default().keep(1)).await;
            assert!(!gone.unwrap().forgotten.is_empty());
            Ok(AdapterOutput::empty())
        }
    })
    .await;
}

#[tokio::test]
async fn a_tool_is_not_called_without_the_snapshot_before_it_or_a_name() {
    let host = Host::new();
    let backend = host.backend.clone();
    run(&host, move |context| {
        let backend = backend.clone();
        async move {
            let nameless = context.call_tool(ToolOptions::new(" "), async {
                panic!("it is called");
                #[expect(unreachable_code, reason = "it says what a tool returns")]
                Ok(())
            });
            let nameless = nameless.await.unwrap_err();
            assert!(
                matches!(&nameless, ToolError::NotCalled { source, .. }
                    if source.kind() == ErrorKind::InvalidOptions),
                "{nameless}"
            );
            backend.fail("step");
            let called = std::sync::atomic::AtomicBool::new(false);
            let edit = context.call_tool(ToolOptions::new("Edit"), async {
                called.store(true, std::sync::atomic::Ordering::Relaxed);
                Ok(())
            });
            let edit = edit.await.unwrap_err();
            assert!(
                matches!(&edit, ToolError::NotCalled { source, .. }
                    if source.kind() == ErrorKind::LimitExceeded),
                "{edit}"
            );
            assert!(!called.load(std::sync::atomic::Ordering::Relaxed));
            Ok(AdapterOutput::empty())
        }
    })
    .await;
}

#[tokio::test]
async fn both_failures_are_told_where_a_tool_cannot_be_taken_back() {
    let host = Host::new();
    let backend = host.backend.clone();
    run(&host, move |context| {
        let backend = backend.clone();
        async move {
            let writer = context.clone();
            let edit = context.call_tool(ToolOptions::new("Edit"), async {
                write(&writer, "new", "x\n");
                backend.fail("restore");
                Err::<(), _>(AdapterError::failed("no such line"))
            });
            let edit = edit.await.unwrap_err();
            let said = edit.to_string();
            assert!(
                said.contains("no such line") && said.contains("HEAD"),
                "{said}"
            );
            assert!(matches!(edit, ToolError::NotRolledBack { rollback, .. }
                if rollback.kind() == ErrorKind::HeadMoved));
            Ok(AdapterOutput::empty())
        }
    })
    .await;
}

#[tokio::test]
async fn what_a_tool_did_stands_though_it_cannot_be_captured() {
    let host = Host::new();
    let backend = host.backend.clone();
    run(&host, move |context| {
        let backend = backend.clone();
        async move {
            let edit = context.call_tool(ToolOptions::new("Edit"), async {
                backend.fail("step");
                Ok("done")
            });
            let edit = edit.await?;
            assert_eq!((edit.value, edit.snapshot_after), ("done", None));
            assert_eq!(edit.warning.unwrap().kind.as_deref(), Some("LimitExceeded"));
            Ok(AdapterOutput::empty())
        }
    })
    .await;
}

// A full disk, say, which passes; the steps before were paid for
#[tokio::test]
async fn a_tool_that_cannot_be_called_for_a_moment_leaves_a_run_that_can_go_on() {
    let host = Host::new();
    let (_engine, session) = host.session().await;
    let backend = host.backend.clone();
    let work = move |fails: bool| {
        let backend = backend.clone();
        Work(move |context: RunContext| {
            let backend = backend.clone();
            async move {
                let called = |step: stillframe::steps::StepContext| async move {
                    if fails {
                        backend.fail("step");
                    }
                    let edit = ToolOptions::new("Edit");
                    let called = step.run.call_tool(edit, async { Ok(()) }).await;
                    backend.heal("step");
                    Ok(called.map(|_| ())?)
                };
                context.phase("p").step("a", called).await?;
                Ok(AdapterOutput::empty())
            }
        })
    };
    let options = || {
        RunOptions::new("use tools")
            .workspace(host.workspace())
            .run_id("r".parse().unwrap())
    };
    let outcome = session.execute_run(options(), work(true)).await.unwrap();
    assert_eq!(outcome.run.status, RunStatus::Interrupted);
    let outcome = session.execute_run(options(), work(false)).await.unwrap();
    assert_eq!(outcome.run.status, RunStatus::Completed);
}
