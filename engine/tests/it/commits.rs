//! Commits of steps, with git as the oracle.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::json;
use stillframe::backends::{RelPath, Signature};
use stillframe::steps::{CommitOptions, StepContext};
use stillframe::{
    Adapter, AdapterOutput, Engine, EngineOptions, ErrorKind, RunContext, RunId, RunOptions,
    RunStatus, WorkspaceOptions,
};

use tokio::sync::mpsc;

use crate::support::{Work, completed, die_in_the_middle_of, eventually, on_a_runtime};

/// A repository with one commit, and a state directory beside it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir(place.root()).unwrap();
        place.git(&["init", "-q", "-b", "main"]);
        place.git(&["config", "user.name", "Somebody"]);
        place.git(&["config", "user.email", "somebody@example.com"]);
        place.write("README", "hello\n");
        place.git(&["add", "."]);
        place.git(&["commit", "-q", "-m", "begin"]);
        place
    }

    fn root(&self) -> std::path::PathBuf {
        self.0.path().join("app")
    }

    fn write(&self, name: &str, text: &str) {
        write(&self.root(), name, text);
    }

    #[expect(clippy::disallowed_methods, reason = "git is the oracle")]
    fn git(&self, args: &[&str]) -> String {
        let output = Command::new("git")
            .args(args)
            .current_dir(self.root())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output()
            .unwrap();
        assert!(output.status.success(), "git {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    async fn engine(&self) -> Engine {
        let options = EngineOptions::default().state_dir(self.0.path().join("state"));
        Engine::start(options).await.unwrap()
    }

    /// Begins the work, and its engine dies where the work says so.
    fn dies_in<A: Adapter>(&self, work: impl FnOnce(mpsc::Sender<()>) -> A + Send) {
        die_in_the_middle_of(async {
            let engine = self.engine().await;
            let session = engine.session("s").await.unwrap();
            let (sender, mut is_there) = mpsc::channel(1);
            let (work, options) = (work(sender), self.options());
            tokio::spawn(async move {
                let _engine = engine;
                session.execute_run(options, work).await
            });
            is_there.recv().await.unwrap();
        });
    }

    fn log(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.0.path().join("state/stillframe.db")).unwrap()
    }

    fn options(&self) -> RunOptions {
        RunOptions::new("fix it")
            .workspace(WorkspaceOptions::at(self.root()))
            .run_id(id())
    }
}

fn write(root: &Path, name: &str, text: &str) {
    fs::write(root.join(name), text).unwrap();
}

fn id() -> RunId {
    "ticket-42".parse().unwrap()
}

/// A run with one step, which does this.
fn one_step<F, R>(work: F) -> impl stillframe::Adapter
where
    F: Fn(StepContext) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<serde_json::Value, stillframe::AdapterError>> + Send,
{
    Work(move |context: RunContext| {
        let work = work.clone();
        async move {
            let data = context.phase("p").step("a", work).await?;
            Ok(AdapterOutput::with_data(data))
        }
    })
}

#[test]
fn a_commit_of_a_step_is_what_git_would_make_of_the_same_files() {
    let place = Place::new();
    on_a_runtime(async {
        let engine = place.engine().await;
        let session = engine.session("s").await.unwrap();
        let work = one_step(|step| async move {
            let root = step.workspace().unwrap().clone();
            write(&root, "README", "hello again\n");
            write(&root, "new", "new\n");
            write(&root, ".gitignore", "*.log\n");
            write(&root, "x.log", "ignored\n");
            let made = step.commit(CommitOptions::new("Say more")).await?.unwrap();
            assert_eq!(
                (made.files_changed, made.insertions, made.deletions),
                (3, 3, 1)
            );
            assert_eq!(
                step.commit(CommitOptions::new("Say more")).await?.unwrap(),
                made
            );
            assert_eq!(step.commit(CommitOptions::new("Again")).await?, None);
            Ok(json!(made.commit))
        });
        let outcome = session.execute_run(place.options(), work).await.unwrap();
        completed(&outcome);
        let head = place.git(&["rev-parse", "HEAD"]);
        assert_eq!(outcome.run.output.unwrap().data, json!(head));
        assert_eq!(
            outcome.phases[0].steps[0].commit_created,
            Some(head.clone())
        );
        let export = engine.export_run("ticket-42").await.unwrap();
        assert_eq!(export.commits.len(), 1);
        assert_eq!(export.commits[0].commit, head);
        let step_id = outcome.phases[0].steps[0].id.clone();
        assert_eq!(export.commits[0].step_id, Some(step_id.clone()));
        let trailers = place.git(&["log", "-1", "--format=%(trailers:only,unfold)"]);
        assert_eq!(
            trailers,
            format!("Stillframe-Run: ticket-42\nStillframe-Step: {step_id}")
        );
    });
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    assert_eq!(place.git(&["rev-list", "--count", "HEAD"]), "2");
    place.git(&["fsck", "--strict"]);
    let tree = place.git(&["rev-parse", "HEAD^{tree}"]);
    place.git(&["reset", "-q", "--soft", "HEAD~1"]);
    place.git(&["add", "--all"]);
    assert_eq!(place.git(&["write-tree"]), tree);
}

#[test]
fn where_nothing_differs_there_is_no_commit_and_paths_choose_what_is_in_one() {
    let place = Place::new();
    let head = place.git(&["rev-parse", "HEAD"]);
    on_a_runtime(async {
        let engine = place.engine().await;
        let session = engine.session("s").await.unwrap();
        let work = one_step(|step| async move {
            assert_eq!(step.commit(CommitOptions::new("Nothing")).await?, None);
            let root = step.workspace().unwrap().clone();
            write(&root, "mine", "mine\n");
            write(&root, "theirs", "theirs\n");
            let options = CommitOptions::new("Mine")
                .path(RelPath::new("mine").unwrap())
                .author(Signature::new("A. Gent", "agent@example.com"));
            let made = step.commit(options).await?.unwrap();
            Ok(json!([made.author.name, made.files_changed]))
        });
        let outcome = session.execute_run(place.options(), work).await.unwrap();
        let data = outcome.run.output.unwrap().data;
        assert_eq!(data, json!(["A. Gent", 1]));
    });
    assert_eq!(place.git(&["rev-parse", "HEAD~1"]), head);
    assert_eq!(place.git(&["status", "--porcelain"]), "?? theirs");
    assert_eq!(
        place.git(&["log", "-1", "--format=%an <%ae>"]),
        "A. Gent <agent@example.com>"
    );
}

#[test]
fn a_commit_that_the_work_makes_itself_is_recorded_once_with_its_first_owner() {
    let place = Arc::new(Place::new());
    let head = place.git(&["rev-parse", "HEAD"]);
    on_a_runtime(async {
        let engine = place.engine().await;
        let session = engine.session("s").await.unwrap();
        let mut owners = Vec::new();
        for run in ["one", "two"] {
            let commit = head.clone();
            let work = one_step(move |step| {
                let commit = commit.clone();
                async move {
                    let record = step.record_commit(&commit).await?;
                    assert_eq!(record.message, "begin\n");
                    assert_eq!((record.files_changed, record.insertions), (1, 1));
                    let unknown = step.record_commit(&"0".repeat(40)).await.unwrap_err();
                    assert_eq!(unknown.kind(), ErrorKind::NotFound);
                    Ok(json!(record.run_id))
                }
            });
            let options = place.options().run_id(run.parse().unwrap());
            let outcome = session.execute_run(options, work).await.unwrap();
            assert_eq!(
                outcome.phases[0].steps[0].commit_created,
                Some(head.clone())
            );
            owners.push(outcome.run.output.unwrap().data);
        }
        assert_eq!(owners, [json!("one"), json!("one")]);
    });
}

#[test]
fn a_step_that_is_cut_off_after_its_commit_and_goes_back_makes_the_same_commit_again() {
    let place = Place::new();
    let ids: Arc<Mutex<Vec<String>>> = Arc::default();
    let work = |dies: Option<mpsc::Sender<()>>| {
        let ids = ids.clone();
        one_step(move |step| {
            let (ids, dies) = (ids.clone(), dies.clone());
            async move {
                let root = step.workspace().unwrap().clone();
                assert!(!root.join("new").exists(), "it begins anew");
                write(&root, "new", "new\n");
                let made = step.commit(CommitOptions::new("New")).await?.unwrap();
                ids.lock().unwrap().push(made.commit);
                if let Some(dies) = dies {
                    dies.send(()).await.unwrap();
                    std::future::pending::<()>().await;
                }
                Ok(json!(null))
            }
        })
    };
    place.dies_in(|sender| work(Some(sender)));
    assert_eq!(place.git(&["rev-list", "--count", "HEAD"]), "2");
    on_a_runtime(async {
        let engine = place.engine().await;
        let session = engine.session("s").await.unwrap();
        let outcome = session.execute_run(place.options(), work(None)).await;
        let outcome = outcome.unwrap();
        completed(&outcome);
        let export = engine.export_run("ticket-42").await.unwrap();
        assert_eq!(export.commits.len(), 1, "one row");
    });
    let ids = ids.lock().unwrap().clone();
    assert_eq!(ids[0], ids[1], "the same commit");
    assert_eq!(place.git(&["rev-parse", "HEAD"]), ids[1]);
    assert_eq!(place.git(&["rev-list", "--count", "HEAD"]), "2", "once");
    assert_eq!(place.git(&["status", "--porcelain"]), "");
}

#[test]
fn without_a_repository_or_a_workspace_nothing_is_committed() {
    let place = Place::new();
    fs::remove_dir_all(place.root().join(".git")).unwrap();
    on_a_runtime(async {
        let engine = place.engine().await;
        let session = engine.session("s").await.unwrap();
        let tries = |kind: ErrorKind| {
            one_step(move |step| async move {
                let refused = step.commit(CommitOptions::new("x")).await.unwrap_err();
                assert_eq!(refused.kind(), kind, "{refused}");
                Ok(json!(null))
            })
        };
        let work = tries(ErrorKind::Unsupported);
        let outcome = session.execute_run(place.options(), work).await.unwrap();
        assert_eq!(outcome.run.status, RunStatus::Completed);
        let work = tries(ErrorKind::InvalidOptions);
        let outcome = session.execute_run(RunOptions::new("x"), work).await;
        assert_eq!(outcome.unwrap().run.status, RunStatus::Completed);
    });
}

#[test]
fn a_step_that_runs_again_in_place_finds_each_of_its_commits_and_not_another() {
    let place = Place::new();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let work = |dies: Option<mpsc::Sender<()>>| {
        let heard = heard.clone();
        Work(move |context: RunContext| {
            let (dies, heard) = (dies.clone(), heard.clone());
            async move {
                let mut options = stillframe::steps::StepOptions::new("a");
                options.rerun = Some(stillframe::steps::Rerun::InPlace);
                let phase = context.phase("p");
                let step = phase.step_with(options, |step| {
                    let (dies, heard) = (dies.clone(), heard.clone());
                    async move {
                        let root = step.workspace().unwrap().clone();
                        for (name, message) in [("one", "Make one"), ("two", "Make two")] {
                            write(&root, name, name);
                            let options =
                                CommitOptions::new(message).path(RelPath::new(name).unwrap());
                            let made = step.commit(options).await?;
                            heard.lock().unwrap().push((made.unwrap().commit, message));
                        }
                        if let Some(dies) = dies {
                            dies.send(()).await.unwrap();
                            std::future::pending::<()>().await;
                        }
                        let elsewhere =
                            CommitOptions::new("Make one").path(RelPath::new("two").unwrap());
                        assert_eq!(step.commit(elsewhere).await?, None);
                        Ok(())
                    }
                });
                step.await?;
                Ok(AdapterOutput::empty())
            }
        })
    };
    place.dies_in(|sender| work(Some(sender)));
    on_a_runtime(async {
        let engine = place.engine().await;
        let session = engine.session("s").await.unwrap();
        let outcome = session.execute_run(place.options(), work(None)).await;
        completed(&outcome.unwrap());
    });
    let heard = heard.lock().unwrap();
    assert_eq!(heard[..2], heard[2..]);
    for (made, message) in heard.iter() {
        let subject = place.git(&["log", "-1", "--format=%s", made]);
        assert_eq!(subject, *message);
    }
    assert_eq!(place.git(&["rev-list", "--count", "HEAD"]), "3");
}

// Whoever went on with the run made it behind the step's back, which then made another one
#[test]
fn a_commit_that_could_not_be_settled_when_the_engine_started_is_made_once() {
    let place = Place::new();
    let lock = place.root().join(".git/refs/heads/main.lock");
    fs::write(&lock, "").unwrap();
    let work = || {
        Work(|context: RunContext| async move {
            let phase = context.phase("p");
            phase
                .step("a", |step| async move {
                    let root = step.workspace().unwrap().clone();
                    write(&root, "new", "new\n");
                    step.commit(CommitOptions::new("New")).await?;
                    Ok(())
                })
                .await?;
            Ok(AdapterOutput::empty())
        })
    };
    let pending = || {
        let count = "SELECT count(*) FROM effects WHERE status = 'pending'";
        let counted = place.log().query_row(count, (), |row| row.get::<_, i64>(0));
        counted.unwrap()
    };
    die_in_the_middle_of(async {
        let engine = place.engine().await;
        let session = engine.session("s").await.unwrap();
        let options = place.options();
        tokio::spawn(async move {
            let _engine = engine;
            session.execute_run(options, work()).await
        });
        eventually("the commit is wanted", || async { pending() > 0 }).await;
    });
    on_a_runtime(async {
        let engine = place.engine().await;
        assert_eq!(pending(), 1, "somebody else's lock is there");
        fs::remove_file(&lock).unwrap();
        let session = engine.session("s").await.unwrap();
        let outcome = session.execute_run(place.options(), work()).await.unwrap();
        completed(&outcome);
        assert_eq!(place.git(&["rev-list", "--count", "HEAD"]), "2");
        let made = outcome.phases[0].steps[0].commit_created.clone();
        assert_eq!(made, Some(place.git(&["rev-parse", "HEAD"])));
        assert_eq!(place.git(&["status", "--porcelain"]), "");
    });
}

/// Another engine takes the run over in the moment in which a row is written: of the step, and of
/// the commit that is wanted.
#[test]
fn of_a_run_that_was_taken_over_no_commit_is_begun_and_no_result_of_one_is_written() {
    for (taken_over_at, found, made) in [("steps", vec![], "1"), ("effects", vec!["pending"], "2")]
    {
        let place = Place::new();
        let heard = Arc::new(Mutex::new(None));
        on_a_runtime(async {
            let engine = place.engine().await;
            let session = engine.session("s").await.unwrap();
            let takes_over = format!(
                "CREATE TRIGGER taken_over AFTER INSERT ON {taken_over_at}
                 BEGIN UPDATE leases SET epoch = epoch + 1; END"
            );
            place.log().execute_batch(&takes_over).unwrap();
            let (tell, looks) = (heard.clone(), engine.clone());
            let work = one_step(move |step| {
                let (tell, looks) = (tell.clone(), looks.clone());
                async move {
                    write(step.workspace().unwrap(), "new", "new\n");
                    let refused = step.commit(CommitOptions::new("New")).await;
                    let effects = looks.export_run("ticket-42").await.unwrap().effects;
                    *tell.lock().unwrap() = Some((refused, effects));
                    Ok(json!(null))
                }
            });
            let lost = session.execute_run(place.options(), work).await;
            assert_eq!(lost.unwrap_err().kind(), ErrorKind::Conflict);
        });
        let (refused, effects) = heard.lock().unwrap().take().unwrap();
        let refused = refused.unwrap_err();
        // One that has heard of it by then only stops.
        let kinds = [ErrorKind::Conflict, ErrorKind::Cancelled];
        assert!(kinds.contains(&refused.kind()), "{refused}");
        let effects: Vec<_> = effects
            .iter()
            .map(|effect| effect.status.as_str())
            .collect();
        assert_eq!(effects, found, "taken over at {taken_over_at}");
        assert_eq!(place.git(&["rev-list", "--count", "HEAD"]), made);
    }
}
