//! Runs that work in several repositories, with an outcome for each. The oracle is git.

use std::env;
use std::fs;
use std::future::Future;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;
use stillframe::events::{EventQuery, EventType};
use stillframe::options::UndoTarget;
use stillframe::records::{NoticeKind, SavedRepositories, SavedState, SavedWork};
use stillframe::tasks::{
    Checkpointed, Credential, CredentialProvider, FollowUpInput, Secret, WorkBranchOptions,
};
use stillframe::{
    Adapter, AdapterError, AdapterOutput, CancellationToken, CommandAdapter, Engine, EngineOptions,
    ErrorKind, RunContext, RunOptions, RunOutcome, RunStatus, WorkspaceOptions,
};
use stillframe_tests::servers::{HttpOptions, HttpServer};
use stillframe_tests::{TestWorkspace, git};

use super::tasks::{KILLS, counted};

const BRANCH: &str = "stillframe/task/42";

/// The password that the server wants.
const TOKEN: &str = "t0ken-of-the-test-e19";

/// A value that the rule for GitHub's tokens matches.
const SECRET: &str = "ghp_0123456789abcdefghijABCDEFGHIJ";

/// Where a host in a process of its own has its repositories.
const BASE: &str = "STILLFRAME_TEST_REPOSITORIES";

/// The run's own repository.
const APP: &str = "app";

/// Repositories beside one another, each with a remote of its own.
#[derive(Clone)]
struct Scene {
    base: PathBuf,
    names: Vec<String>,
}

impl Scene {
    fn new(ws: &TestWorkspace, further: &[&str]) -> Self {
        let names = [APP].iter().chain(further);
        let scene = Self {
            base: ws.base().to_owned(),
            names: names.map(|name| (*name).to_owned()).collect(),
        };
        for name in &scene.names {
            scene.add(&scene.place(name), name);
        }
        scene
    }

    /// A repository with a commit, and a bare one as its remote.
    fn add(&self, place: &Path, name: &str) {
        let (home, remote) = (self.home(), self.remote(name));
        git::text(&home, &self.base, ["init", "-q", "--bare", &text(&remote)]);
        git::text(&home, &self.base, ["init", "-q", &text(place)]);
        fs::write(place.join("README"), name).unwrap();
        git::text(&home, place, ["add", "--all"]);
        git::text(&home, place, ["commit", "-q", "-m", "first"]);
        git::text(&home, place, ["remote", "add", "origin", &text(&remote)]);
        git::text(&home, place, ["push", "-q", "origin", "HEAD:main"]);
    }

    fn home(&self) -> PathBuf {
        self.base.join("home")
    }

    fn place(&self, name: &str) -> PathBuf {
        self.base.join("work").join(name)
    }

    fn remote(&self, name: &str) -> PathBuf {
        self.base.join(format!("{name}.git"))
    }

    /// What git says, in a repository.
    fn git(&self, name: &str, args: &[&str]) -> String {
        git::text(&self.home(), &self.place(name), args)
    }

    /// Where a remote has a branch, as it says itself.
    fn at(&self, name: &str, branch: &str) -> Option<String> {
        let full = format!("refs/heads/{branch}");
        let args = ["ls-remote", &text(&self.remote(name)), &full];
        let listed = git::text(&self.home(), &self.base, args);
        listed.split_whitespace().next().map(str::to_owned)
    }

    /// The content of a file on the task's branch of a remote.
    fn on_branch(&self, name: &str, file: &str) -> Option<String> {
        let args = ["show", &format!("{BRANCH}:{file}")];
        let shown = git::call(&self.home(), &self.remote(name), args).run();
        (shown.code == 0).then(|| shown.stdout_text())
    }

    fn write(&self, name: &str, file: &str, content: &str) {
        fs::write(self.place(name).join(file), content).unwrap();
    }

    /// Has the remote run this before it takes anything.
    fn hook(&self, name: &str, script: &str) {
        let path = self.remote(name).join("hooks/pre-receive");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// What HEAD, refs, index and files of a repository are.
    fn view(&self, name: &str) -> [String; 3] {
        [
            &["symbolic-ref", "HEAD"][..],
            &["for-each-ref"],
            &["status", "--porcelain=v2", "--branch"],
        ]
        .map(|args| self.git(name, args))
    }

    fn options(&self) -> EngineOptions {
        EngineOptions::default().state_dir(self.base.join("state"))
    }

    async fn engine(&self) -> Engine {
        Engine::start(self.options()).await.unwrap()
    }

    /// A run of the task in all of them.
    fn run(&self) -> RunOptions {
        let mut run = RunOptions::new("x")
            .workspace(WorkspaceOptions::at(self.place(APP)))
            .work_branch(WorkBranchOptions::of("42"));
        for name in &self.names[1..] {
            let place = WorkspaceOptions::at(self.place(name));
            run = run.repository(place, WorkBranchOptions::of("42"));
        }
        run
    }

    async fn does<W>(
        &self,
        engine: &Engine,
        run: RunOptions,
        work: impl Fn(Self, RunContext) -> W + Send + Sync + 'static,
    ) -> RunOutcome
    where
        W: Future<Output = Result<(), AdapterError>> + Send,
    {
        let session = engine.session("s").await.unwrap();
        let does = Does(self.clone(), work);
        session.execute_run(run, does).await.unwrap()
    }

    /// The types of the events of a run.
    async fn told(&self, engine: &Engine, outcome: &RunOutcome) -> Vec<EventType> {
        let query = EventQuery::all().run(outcome.run_id.clone());
        let told = engine.events(query).await.unwrap().into_iter();
        told.map(|event| event.event_type).collect()
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn count(told: &[EventType], wanted: EventType) -> usize {
    told.iter().filter(|one| **one == wanted).count()
}

fn all(outcome: &RunOutcome) -> &SavedRepositories {
    let all = outcome.workspace.repositories.as_ref();
    all.unwrap_or_else(|| panic!("{outcome:?}"))
}

/// What became of the work in each repository, the run's own first.
fn each(outcome: &RunOutcome) -> Vec<&SavedWork> {
    let further = all(outcome).further.iter();
    let further = further.map(|one| one.saved.as_ref().unwrap());
    let own = outcome.workspace.saved.as_ref().unwrap();
    std::iter::once(own).chain(further).collect()
}

struct Does<F>(Scene, F);

impl<F, W> Adapter for Does<F>
where
    F: Fn(Scene, RunContext) -> W + Send + Sync + 'static,
    W: Future<Output = Result<(), AdapterError>> + Send,
{
    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        self.1(self.0.clone(), context).await?;
        Ok(AdapterOutput::empty())
    }
}

/// Knows the token until it is told otherwise.
struct Turns(Arc<AtomicBool>);

impl CredentialProvider for Turns {
    async fn credential(&self, _: &str) -> Result<Credential, String> {
        let token = match self.0.load(Ordering::SeqCst) {
            true => "none-of-this-server",
            false => TOKEN,
        };
        let token = Secret::new(token.into()).map_err(|e| e.to_string())?;
        Ok(Credential::token(token, None))
    }
}

/// Is told which time it is asked, and says whether it knows the token.
struct Asked<F>(F, AtomicUsize);

impl<F: Fn(usize) -> bool + Send + Sync + 'static> CredentialProvider for Asked<F> {
    async fn credential(&self, _: &str) -> Result<Credential, String> {
        let nth = self.1.fetch_add(1, Ordering::SeqCst) + 1;
        if !(self.0)(nth) {
            return Err("not this time".to_owned());
        }
        let token = Secret::new(TOKEN.into()).map_err(|e| e.to_string())?;
        Ok(Credential::token(token, None))
    }
}

/// Where the work of a repository goes that a server has.
fn on_server(
    server: &HttpServer,
    name: &str,
    asked: impl Fn(usize) -> bool + Send + Sync + 'static,
) -> WorkBranchOptions {
    let url = format!("http://127.0.0.1:{}/git/{name}.git", server.port());
    let provider = Asked(asked, AtomicUsize::new(0));
    WorkBranchOptions::of("42")
        .remote(url)
        .credentials(provider)
}

fn server(ws: &TestWorkspace) -> Option<HttpServer> {
    let options = HttpOptions {
        user: Some(("x-access-token", TOKEN)),
        ..HttpOptions::default()
    };
    HttpServer::start(&ws.base().join("http"), ws.base(), options)
}

#[tokio::test]
async fn a_remote_is_asked_once_before_the_work_and_what_is_moved_by_then_is_named() {
    let ws = TestWorkspace::plain();
    let scene = Scene::new(&ws, &["lib", "web"]);
    let Some(server) = server(&ws) else {
        return;
    };
    let engine = scene.engine().await;
    let session = engine.session("s").await.unwrap();
    let at = |name: &str| WorkspaceOptions::at(scene.place(name));
    let run = |web: WorkBranchOptions| {
        let run = RunOptions::new("x").workspace(at(APP));
        let run = run.work_branch(WorkBranchOptions::of("42"));
        let run = run.repository(at("lib"), WorkBranchOptions::of("42"));
        run.repository(at("web"), web)
    };
    let works = Arc::new(AtomicBool::new(false));
    let has_begun = Arc::clone(&works);
    let web = on_server(&server, "web", move |nth| {
        nth == 1 || has_begun.load(Ordering::SeqCst)
    });
    let work = move |scene: Scene, _| {
        works.store(true, Ordering::SeqCst);
        scene.write("web", "new", "x\n");
        async { Ok(()) }
    };
    let outcome = scene.does(&engine, run(web), work).await;
    assert_eq!(outcome.run.status, RunStatus::Completed, "{outcome:?}");
    assert_eq!(all(&outcome).failure, None, "{outcome:?}");
    assert_eq!(scene.on_branch("web", "new").as_deref(), Some("x\n"));

    // Once all could be moved, somebody puts a file in the way of one.
    for name in &scene.names {
        scene.git(name, &["switch", "-q", "main"]);
    }
    let other = ws.base().join("other");
    let (home, url) = (scene.home(), text(&scene.remote("lib")));
    git::text(&home, ws.base(), ["clone", "-q", &url, &text(&other)]);
    git::text(&home, &other, ["switch", "-q", BRANCH]);
    fs::write(other.join("mine"), "theirs\n").unwrap();
    git::text(&home, &other, ["add", "--all"]);
    git::text(&home, &other, ["commit", "-q", "-m", "theirs"]);
    git::text(&home, &other, ["push", "-q", "origin", BRANCH]);
    let before = scene.view(APP);
    let mine = scene.place("lib").join("mine");
    let web = on_server(&server, "web", move |_| {
        fs::write(&mine, "ours\n").unwrap();
        true
    });
    let refused = session.execute_run(run(web), CommandAdapter::new("true"));
    let refused = refused.await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert!(refused.touched(), "{refused}");
    let said = refused.to_string();
    let [app, lib] = [APP, "lib"].map(|name| text(&scene.place(name)));
    assert!(said.contains(&format!("{lib}: ")), "{said}");
    let told = format!("{app} is on {BRANCH} by now, and \"stillframe undo\" there goes back");
    assert!(said.contains(&told), "{said}");
    assert!(!said.contains(&text(&scene.place("web"))), "{said}");
    assert_ne!(scene.view(APP), before);
    session.undo(&at(APP), UndoTarget::Latest).await.unwrap();
    assert_eq!(scene.view(APP), before);
    engine.shutdown().await.unwrap();
    server.end();
}

#[tokio::test]
async fn of_one_unchanged_and_one_refused_with_401_the_second_is_named_with_its_kind() {
    let ws = TestWorkspace::plain();
    let scene = Scene::new(&ws, &["lib"]);
    let options = HttpOptions {
        user: Some(("x-access-token", TOKEN)),
        ..HttpOptions::default()
    };
    let own = ws.base().join("http");
    let Some(server) = HttpServer::start(&own, ws.base(), options) else {
        return;
    };
    let url = format!("http://127.0.0.1:{}/git/lib.git", server.port());
    let engine = scene.engine().await;
    let session = engine.session("s").await.unwrap();
    let app = WorkspaceOptions::at(scene.place(APP));
    let of_app = WorkBranchOptions::of("42");
    let proven = session.checkpoint(&app, &of_app).await.unwrap();
    assert_eq!(proven.state, SavedState::Pushed);

    let is_refused = Arc::new(AtomicBool::new(false));
    let of_lib = WorkBranchOptions::of("42")
        .remote(url)
        .credentials(Turns(Arc::clone(&is_refused)));
    let run = RunOptions::new("x")
        .workspace(app)
        .work_branch(of_app)
        .repository(WorkspaceOptions::at(scene.place("lib")), of_lib);
    let fails = move |scene: Scene, _| {
        scene.write("lib", "new", "x\n");
        is_refused.store(true, Ordering::SeqCst);
        async { Err(AdapterError::failed("the tests fail")) }
    };
    let outcome = scene.does(&engine, run, fails).await;
    assert_eq!(outcome.run.status, RunStatus::Failed);
    assert_eq!(
        outcome.run.error.as_ref().unwrap().message,
        "the tests fail"
    );
    let (all, saved) = (all(&outcome), each(&outcome));
    assert_eq!(all.failure.as_deref(), Some("AuthDenied"), "{all:?}");
    let lib = text(&scene.place("lib"));
    let expected = format!("1 unchanged, {lib}: AuthDenied (");
    assert!(all.summary.starts_with(&expected), "{}", all.summary);
    assert!(!all.summary.contains(&text(&scene.place(APP))));
    assert_eq!(saved[0].state, SavedState::NoChanges);
    assert!(!saved[0].is_new);
    assert_eq!(saved[1].state, SavedState::NotSaved);
    assert_eq!(all.further[0].path, lib);
    assert_eq!(all.further[0].failure.as_deref(), Some("AuthDenied"));
    assert_eq!(scene.at("lib", BRANCH), None, "nothing of it arrived");
    assert!(saved[1].kept_as.is_some(), "the store has it");

    let record = engine.find_run(outcome.run_id.as_str()).await.unwrap();
    let on_record = record.workspace.unwrap().repositories.unwrap();
    assert_eq!(on_record.summary, all.summary);
    assert_eq!(on_record.failure, all.failure);
    assert_eq!(on_record.further[0].saved, all.further[0].saved);
    let again = RunOptions::new("x").run_id(outcome.run_id.clone());
    let stored = session.execute_run(again, CommandAdapter::new("false"));
    let stored = stored.await.unwrap();
    assert_eq!(stored.workspace.repositories, Some(on_record));
    let document = serde_json::to_value(&outcome).unwrap();
    let told = &document["workspace"]["repositories"];
    assert_eq!(told["failure"], "AuthDenied");
    assert_eq!(told["further"][0]["saved"]["state"], "not_saved");
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn one_that_fails_leaves_the_others_pushed_and_proven() {
    let ws = TestWorkspace::plain();
    let scene = Scene::new(&ws, &["lib", "web", "docs"]);
    for refused in [APP, "web"] {
        scene.hook(refused, "exit 1");
    }
    let engine = scene.engine().await;
    let outcome = scene
        .does(&engine, scene.run(), |scene, _| {
            for name in &scene.names {
                scene.write(name, "new", name);
            }
            async { Err(AdapterError::failed("the tests fail")) }
        })
        .await;
    assert_eq!(outcome.run.status, RunStatus::Failed);
    let (told, saved) = (all(&outcome), each(&outcome));
    assert_eq!(told.failure.as_deref(), Some("RemotePolicyRejected"));
    let [app, web] = [APP, "web"].map(|name| text(&scene.place(name)));
    let named = told.summary.split(": RemotePolicyRejected (");
    let named: Vec<&str> = named.collect();
    assert_eq!(named[0], format!("2 pushed, {app}"), "{}", told.summary);
    assert!(named[1].ends_with(&web), "{}", told.summary);
    for (name, saved) in scene.names.iter().zip(&saved) {
        let tip = scene.at(name, BRANCH);
        match [APP, "web"].contains(&name.as_str()) {
            true => {
                assert_eq!(saved.state, SavedState::NotSaved, "{name}");
                assert_eq!(tip, None, "{name}");
            }
            false => {
                assert_eq!(saved.state, SavedState::Pushed, "{name}");
                assert_eq!(tip, saved.commit, "{name}");
                assert!(saved.carried, "{name}");
                assert_eq!(scene.on_branch(name, "new").as_deref(), Some(&**name));
                let message = ["log", "-1", "--format=%B", BRANCH];
                let message = git::text(&scene.home(), &scene.remote(name), message);
                let subject = format!("[wip] stillframe run {}", outcome.run_id);
                assert!(message.starts_with(&subject), "{message}");
            }
        }
        assert_eq!(
            scene.view(name)[0],
            format!("refs/heads/{BRANCH}"),
            "{name}"
        );
    }
    let resumed = told.further[0].resumed.as_ref().unwrap();
    assert_eq!(resumed.way_back.as_deref(), Some("git switch main"));
    let events = scene.told(&engine, &outcome).await;
    assert_eq!(count(&events, EventType::PERSIST_STARTED), 4, "{events:?}");
    assert_eq!(count(&events, EventType::PERSIST_PUSHED), 2, "{events:?}");
    assert_eq!(count(&events, EventType::PERSIST_FAILED), 2, "{events:?}");
    assert_eq!(events.last(), Some(&EventType::RUN_FAILED));
    for task in engine.tasks().await.unwrap() {
        assert_eq!((&*task.status, task.run_id), ("failed", None));
    }
    let notices = engine.notices().await.unwrap();
    let told: Vec<_> = notices
        .iter()
        .map(|one| (one.kind, one.remote.clone().unwrap()))
        .collect();
    let expected = [APP, "web"].map(|name| {
        let remote = text(&scene.remote(name));
        (NoticeKind::CheckpointFailed, remote)
    });
    assert_eq!(told, expected, "people hear of each");
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn however_the_run_ends_each_has_what_it_left() {
    let ws = TestWorkspace::plain();
    let scene = Scene::new(&ws, &["lib"]);
    let engine = scene.engine().await;
    let ends = [
        RunStatus::Completed,
        RunStatus::Failed,
        RunStatus::Timeout,
        RunStatus::Cancelled,
    ];
    for status in ends {
        let token = CancellationToken::new();
        let mut run = scene.run().cancellation(token.clone());
        if status == RunStatus::Timeout {
            run = run.timeout(Duration::from_millis(100));
        }
        let work = move |scene: Scene, context: RunContext| {
            scene.write(APP, "how", status.as_str());
            scene.write("lib", "how", status.as_str());
            let token = token.clone();
            async move {
                match status {
                    RunStatus::Completed => Ok(()),
                    RunStatus::Failed => Err(AdapterError::failed("no")),
                    _ => {
                        if status == RunStatus::Cancelled {
                            token.cancel();
                        }
                        context.cancellation.cancelled().await;
                        Ok(())
                    }
                }
            }
        };
        let outcome = scene.does(&engine, run, work).await;
        assert_eq!(outcome.run.status, status, "{outcome:?}");
        assert_eq!(all(&outcome).summary, "2 pushed", "{status}");
        assert_eq!(all(&outcome).failure, None);
        for name in [APP, "lib"] {
            let content = scene.on_branch(name, "how");
            assert_eq!(content.as_deref(), Some(status.as_str()), "{name}");
        }
    }
    let of_lib = WorkspaceOptions::at(scene.place("lib"));
    let taken = engine.snapshots(&of_lib).await.unwrap();
    for (label, expected) in [("after", 1), ("after_failure", 3), ("checkpoint", 0)] {
        let labelled = taken.iter().filter(|one| one.label.as_str() == label);
        assert_eq!(labelled.count(), expected, "{label}: {taken:?}");
    }
    let unchanged = scene.does(&engine, scene.run(), async |_, _| Ok(())).await;
    assert_eq!(all(&unchanged).summary, "2 unchanged");
    assert!(each(&unchanged).iter().all(|saved| !saved.carried));
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_secret_in_one_stays_here_and_the_other_is_sent() {
    let ws = TestWorkspace::plain();
    let scene = Scene::new(&ws, &["lib"]);
    let engine = scene.engine().await;
    let outcome = scene
        .does(&engine, scene.run(), |scene, _| {
            scene.write(APP, "new", "x\n");
            scene.write("lib", "key", SECRET);
            async { Ok(()) }
        })
        .await;
    assert_eq!(outcome.run.status, RunStatus::Completed);
    let told = all(&outcome);
    assert_eq!(told.failure.as_deref(), Some("SecretFound"));
    assert!(told.summary.starts_with("1 pushed, "), "{}", told.summary);
    assert!(!told.summary.contains(SECRET));
    let found = &each(&outcome)[1].secrets[0];
    assert_eq!(
        (found.path.to_string().as_str(), found.line),
        ("key", 1),
        "{found:?}"
    );
    assert_eq!(scene.at("lib", BRANCH), None);
    assert_eq!(scene.at(APP, BRANCH), each(&outcome)[0].commit);
    engine.shutdown().await.unwrap();
}

/// What became of progress in each repository.
fn progress(answer: Checkpointed) -> Vec<Checkpointed> {
    match answer {
        Checkpointed::Each(each) => each.into_iter().map(|(_, one)| one).collect(),
        other => panic!("{other:?}"),
    }
}

fn made(answer: &Checkpointed) -> &SavedWork {
    match answer {
        Checkpointed::Made(saved) => saved,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn progress_is_saved_in_each_and_marked_where_there_was_any() {
    let ws = TestWorkspace::plain();
    let scene = Scene::new(&ws, &["lib", "web"]);
    let engine = scene.engine().await;
    let work = async |scene: Scene, context: RunContext| {
        scene.write("lib", "new", "1\n");
        scene.hook("web", "exit 1");
        scene.write("web", "new", "1\n");
        let first = context.checkpoint().await?;
        let Checkpointed::Each(named) = &first else {
            panic!("{first:?}");
        };
        let names: Vec<_> = named.iter().map(|(name, _)| name.clone()).collect();
        let places = [APP, "lib", "web"].map(|name| text(&scene.place(name)));
        assert_eq!(names, places);
        let first = progress(first);
        assert!(!made(&first[0]).carried, "nothing was done there");
        assert!(made(&first[1]).carried);
        assert_eq!(scene.at("lib", BRANCH), made(&first[1]).commit);
        assert!(!made(&first[2]).carried);
        let failure = made(&first[2]).failure.as_deref();
        assert_eq!(failure, Some("RemotePolicyRejected"));

        scene.write(APP, "new", "1\n");
        let within = context.checkpoint().await?;
        assert_eq!(within, Checkpointed::NotDue);
        assert!(scene.on_branch(APP, "new").is_none());

        let now = progress(context.checkpoint_now().await?);
        assert!(made(&now[0]).carried);
        assert_eq!(scene.at(APP, BRANCH), made(&now[0]).commit);
        assert_eq!(made(&now[1]).state, SavedState::NoChanges);
        assert!(made(&now[1]).carried, "by the one before");
        Ok(())
    };
    let outcome = scene.does(&engine, scene.run(), work).await;
    assert_eq!(outcome.run.status, RunStatus::Completed, "{outcome:?}");
    let told = all(&outcome);
    assert!(told.summary.starts_with("2 unchanged, "), "{told:?}");
    let carried: Vec<bool> = each(&outcome).iter().map(|saved| saved.carried).collect();
    assert_eq!(carried, [true, true, false]);
    engine.shutdown().await.unwrap();
}

/// An agent that asks, once it has worked in all repositories.
async fn asks(scene: Scene, context: RunContext) -> Result<(), AdapterError> {
    let answer = context.follow_up.as_ref().map(|input| input.text.clone());
    for name in &scene.names {
        let head = scene.view(name)[0].clone();
        assert_eq!(head, format!("refs/heads/{BRANCH}"), "{name}");
        let file = match answer {
            Some(_) => "answer",
            None => "question",
        };
        scene.write(name, file, answer.as_deref().unwrap_or("which port?"));
    }
    match answer {
        Some(_) => Ok(()),
        None => Err(context.blocked("which port?")),
    }
}

#[tokio::test]
async fn a_blocked_run_waits_with_all_of_them_and_goes_on_in_each_from_its_branch() {
    let ws = TestWorkspace::plain();
    let scene = Scene::new(&ws, &["lib"]);
    let engine = scene.engine().await;
    let waits = scene.does(&engine, scene.run(), asks).await;
    assert_eq!(waits.run.status, RunStatus::AwaitingFollowup, "{waits:?}");
    assert_eq!(all(&waits).summary, "2 pushed");
    for (name, saved) in [APP, "lib"].iter().zip(each(&waits)) {
        assert_eq!(scene.at(name, BRANCH), saved.commit, "{name}");
    }
    for task in engine.tasks().await.unwrap() {
        assert_eq!(task.status, "awaiting_followup", "{task:?}");
        assert_eq!(task.run_id, Some(waits.run_id.clone()));
        let commit = task.follow_up.unwrap().last_checkpoint;
        assert!(
            each(&waits)
                .iter()
                .any(|saved| saved.commit.as_ref() == Some(&commit))
        );
    }
    let events = scene.told(&engine, &waits).await;
    assert_eq!(count(&events, EventType::CHECKPOINT_READY), 2, "{events:?}");
    assert_eq!(count(&events, EventType::FOLLOWUP_WAITING), 1, "{events:?}");
    let notices = engine.notices().await.unwrap();
    assert_eq!(notices.len(), 1, "people are asked once: {notices:?}");

    // Nobody begins anything else on what waits.
    let session = engine.session("s").await.unwrap();
    let of_lib = RunOptions::new("x")
        .workspace(WorkspaceOptions::at(scene.place("lib")))
        .work_branch(WorkBranchOptions::of("42"));
    let refused = session.execute_run(of_lib, CommandAdapter::new("true"));
    let refused = refused.await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    engine.shutdown().await.unwrap();

    // Another process, in which somebody has left the branch.
    scene.git("lib", &["switch", "-q", "main"]);
    let engine = scene.engine().await;
    let agent = Does(scene.clone(), asks);
    let input = FollowUpInput::new(1, "8080");
    let done = engine.claim_follow_up("42", input, RunOptions::new(""), agent);
    let done = done.await.unwrap();
    assert_eq!(done.run.status, RunStatus::Completed, "{done:?}");
    assert_eq!(all(&done).summary, "2 pushed");
    for name in [APP, "lib"] {
        for (file, content) in [("question", "which port?"), ("answer", "8080")] {
            let there = scene.on_branch(name, file);
            assert_eq!(there.as_deref(), Some(content), "{name} {file}");
        }
    }
    for task in engine.tasks().await.unwrap() {
        assert_eq!((&*task.status, task.run_id), ("completed", None));
        assert_eq!(task.follow_up, None);
    }

    // One that waits is given up with all of its tasks.
    let waits = scene.does(&engine, scene.run(), async |scene, context| {
        scene.write("lib", "more", "x\n");
        Err(context.blocked("which host?"))
    });
    let waits = waits.await;
    assert_eq!(waits.run.status, RunStatus::AwaitingFollowup, "{waits:?}");
    engine.cancel_run(&waits.run_id).await.unwrap();
    for task in engine.tasks().await.unwrap() {
        assert_eq!((&*task.status, task.follow_up), ("open", None));
    }
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_blocked_run_of_which_one_is_refused_has_failed_and_nothing_waits() {
    let ws = TestWorkspace::plain();
    let scene = Scene::new(&ws, &["lib"]);
    let engine = scene.engine().await;
    scene.hook("lib", "exit 1");
    let outcome = scene.does(&engine, scene.run(), asks).await;
    assert_eq!(outcome.run.status, RunStatus::Failed, "{outcome:?}");
    let why = &outcome.run.error.as_ref().unwrap().message;
    assert!(why.contains("which port?"), "{why}");
    assert!(why.contains(&text(&scene.place("lib"))), "{why}");
    assert_eq!(outcome.follow_up, None);
    for task in engine.tasks().await.unwrap() {
        assert_eq!((&*task.status, task.follow_up), ("failed", None));
    }
    assert_eq!(scene.at(APP, BRANCH), each(&outcome)[0].commit);
    assert!(each(&outcome)[1].kept_as.is_some());
    let there = fs::read_to_string(scene.place("lib").join("question"));
    assert_eq!(there.unwrap(), "which port?", "it is in the workspace too");
    let input = FollowUpInput::new(1, "8080");
    let agent = Does(scene.clone(), asks);
    let claimed = engine.claim_follow_up("42", input, RunOptions::new(""), agent);
    assert_eq!(claimed.await.unwrap_err().kind(), ErrorKind::Conflict);

    // Without a remote nobody could go on from there.
    fs::remove_file(scene.remote("lib").join("hooks/pre-receive")).unwrap();
    scene.git("lib", &["remote", "remove", "origin"]);
    let outcome = scene.does(&engine, scene.run(), asks).await;
    assert_eq!(outcome.run.status, RunStatus::Failed, "{outcome:?}");
    let why = &outcome.run.error.as_ref().unwrap().message;
    assert!(why.contains("there is no remote"), "{why}");
    assert_eq!(each(&outcome)[1].state, SavedState::RecordedOnly);
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn one_that_is_refused_refuses_the_run_and_nothing_has_moved() {
    let ws = TestWorkspace::plain();
    let scene = Scene::new(&ws, &["lib", "web"]);
    let engine = scene.engine().await;
    let session = engine.session("s").await.unwrap();
    // Somebody else's history on the branch of the last one, and a file of one's own in the way.
    let other = ws.base().join("other");
    let home = scene.home();
    let url = text(&scene.remote("web"));
    git::text(&home, ws.base(), ["clone", "-q", &url, &text(&other)]);
    git::text(&home, &other, ["switch", "-q", "-c", BRANCH]);
    fs::write(other.join("mine"), "theirs\n").unwrap();
    git::text(&home, &other, ["add", "--all"]);
    git::text(&home, &other, ["commit", "-q", "-m", "theirs"]);
    git::text(&home, &other, ["push", "-q", "origin", BRANCH]);
    scene.write("web", "mine", "ours\n");

    let before = scene.names.iter().map(|name| scene.view(name));
    let before: Vec<_> = before.collect();
    let is_as_before = || {
        let now = scene.names.iter().map(|name| scene.view(name));
        assert_eq!(now.collect::<Vec<_>>(), before);
    };
    let run = async |options: RunOptions| {
        let refused = session.execute_run(options, CommandAdapter::new("true"));
        let refused = refused.await.unwrap_err();
        is_as_before();
        refused
    };
    let refused = run(scene.run()).await;
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    let said = refused.to_string();
    assert!(said.contains(&text(&scene.place("web"))), "{said}");
    assert!(said.contains("mine"), "{said}");

    let gone = WorkBranchOptions::of("42").remote(text(&ws.base().join("gone.git")));
    let at = |name: &str| WorkspaceOptions::at(scene.place(name));
    let own = || {
        let run = RunOptions::new("x").workspace(at(APP));
        run.work_branch(WorkBranchOptions::of("42"))
    };
    let of = || WorkBranchOptions::of("42");
    let refused = run(own().repository(at("lib"), gone)).await;
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");

    fs::create_dir(scene.place("lib").join("sub")).unwrap();
    let within = |name: &str| WorkspaceOptions::at(scene.place("lib").join(name));
    let plain = ws.base().join("plain");
    fs::create_dir(&plain).unwrap();
    let same = of().remote(text(&scene.remote(APP)));
    let rolled_back = at("lib").rollback_on_failure(true);
    let none = RunOptions::new("x").workspace(at(APP));
    let cases = [
        ("without a task", none.repository(at("lib"), of())),
        ("itself", own().repository(at(APP), of())),
        (
            "one twice",
            own()
                .repository(at("lib"), of())
                .repository(within("."), WorkBranchOptions::of("43")),
        ),
        (
            "one work tree",
            own()
                .repository(at("lib"), of())
                .repository(within("sub"), WorkBranchOptions::of("43")),
        ),
        ("one branch", own().repository(at("lib"), same)),
        (
            "a name",
            own().repository(at("lib"), WorkBranchOptions::of("a..b")),
        ),
        ("a rollback", own().repository(rolled_back, of())),
    ];
    for (what, options) in cases {
        let refused = run(options).await;
        let kind = refused.kind();
        assert_eq!(kind, ErrorKind::InvalidOptions, "{what}: {refused}");
    }
    let no_tree = own().repository(WorkspaceOptions::at(&plain), of());
    let refused = run(no_tree).await;
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let runs = engine.runs(Default::default()).await.unwrap();
    for run in runs {
        assert_eq!(run.status, RunStatus::Failed);
        assert_eq!(run.started_at, None, "its work did not begin");
    }
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_run_that_is_gone_on_with_has_those_that_it_was_begun_with() {
    let ws = TestWorkspace::plain();
    let scene = Scene::new(&ws, &["lib", "web"]);
    let engine = scene.engine().await;
    let session = engine.session("s").await.unwrap();
    let at = |name: &str| WorkspaceOptions::at(scene.place(name));
    let own = || {
        let run = RunOptions::new("x").workspace(at(APP)).resumable(true);
        let run = run.work_branch(WorkBranchOptions::of("42"));
        run.run_id("r".parse().unwrap())
    };
    let run = own().repository(at("lib"), WorkBranchOptions::of("42"));
    let submitted = session.submit_run(run.clone(), "any", serde_json::Value::Null);
    assert_eq!(
        submitted.await.unwrap_err().kind(),
        ErrorKind::InvalidOptions
    );
    let stops = {
        let engine = engine.clone();
        move |scene: Scene, context: RunContext| {
            let engine = engine.clone();
            async move {
                scene.write("lib", "first", "1\n");
                // Its work goes where it came from.
                let elsewhere = scene.remote("web");
                let elsewhere = ["remote", "set-url", "origin", elsewhere.to_str().unwrap()];
                for name in [APP, "lib"] {
                    git::text(&scene.home(), &scene.place(name), elsewhere);
                }
                engine.suspend_run(&context.run_id).await?;
                context.cancellation.cancelled().await;
                Ok(())
            }
        }
    };
    let rests = scene.does(&engine, run, stops).await;
    assert_eq!(rests.run.status, RunStatus::Interrupted, "{rests:?}");
    assert_eq!(rests.workspace.repositories, None);
    assert_eq!(scene.at("lib", BRANCH), None, "its work goes on");

    let other = own().repository(at("web"), WorkBranchOptions::of("42"));
    let refused = session.execute_run(other, CommandAdapter::new("true"));
    let refused = refused.await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidOptions, "{refused}");

    let goes_on = |scene: Scene, _| {
        scene.write("lib", "second", "2\n");
        async { Ok(()) }
    };
    let done = scene.does(&engine, own(), goes_on).await;
    assert_eq!(done.run.status, RunStatus::Completed, "{done:?}");
    assert_eq!(all(&done).summary, "2 pushed", "{done:?}");
    let carried: Vec<bool> = each(&done).iter().map(|saved| saved.carried).collect();
    assert_eq!(carried, [false, true], "nothing was done in its own");
    for file in ["first", "second"] {
        assert!(scene.on_branch("lib", file).is_some(), "{file}");
    }
    assert!(scene.at(APP, BRANCH).is_some());
    assert_eq!(scene.at("web", BRANCH), None);
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_repository_within_another_is_saved_on_its_own_branch() {
    let ws = TestWorkspace::plain();
    let scene = Scene::new(&ws, &[]);
    let inner = scene.place(APP).join("vendor/lib");
    scene.add(&inner, "lib");
    let engine = scene.engine().await;
    let run = |own: WorkspaceOptions| {
        let run = RunOptions::new("x").workspace(own);
        let run = run.work_branch(WorkBranchOptions::of("42"));
        run.repository(WorkspaceOptions::at(&inner), WorkBranchOptions::of("42"))
    };
    let place = inner.clone();
    let outcome = scene
        .does(
            &engine,
            run(WorkspaceOptions::at(scene.place(APP))),
            move |scene, _| {
                scene.write(APP, "new", "outer\n");
                fs::write(place.join("new"), "inner\n").unwrap();
                async { Ok(()) }
            },
        )
        .await;
    assert_eq!(all(&outcome).summary, "2 pushed", "{outcome:?}");
    assert_eq!(scene.on_branch(APP, "new").as_deref(), Some("outer\n"));
    assert_eq!(scene.on_branch("lib", "new").as_deref(), Some("inner\n"));
    let listed = ["ls-tree", "-r", "--name-only", BRANCH];
    let listed = git::text(&scene.home(), &scene.remote(APP), listed);
    assert!(!listed.contains("vendor/lib/new"), "{listed}");

    // What is rolled back in the outer one would be gone from the inner one before it is saved.
    let rolled_back = WorkspaceOptions::at(scene.place(APP)).rollback_on_failure(true);
    let session = engine.session("s").await.unwrap();
    let refused = session.execute_run(run(rolled_back), CommandAdapter::new("true"));
    assert_eq!(refused.await.unwrap_err().kind(), ErrorKind::InvalidOptions);
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn two_runs_that_want_each_others_directories_do_not_wait_for_each_other() {
    let ws = TestWorkspace::plain();
    let scene = Scene::new(&ws, &["lib"]);
    let (one, other) = (scene.engine().await, scene.engine().await);
    let turned = || {
        let run = RunOptions::new("x").workspace(WorkspaceOptions::at(scene.place("lib")));
        let run = run.work_branch(WorkBranchOptions::of("42"));
        let app = WorkspaceOptions::at(scene.place(APP));
        run.repository(app, WorkBranchOptions::of("42"))
    };
    for round in 0..4 {
        let work = move |scene: Scene, _| {
            let file = format!("f{round}");
            let is_there = scene.place(APP).join(&file).exists();
            scene.write(APP, &file, if is_there { "both" } else { "one" });
            async { Ok(()) }
        };
        let both = tokio::join!(
            scene.does(&one, scene.run(), work),
            scene.does(&other, turned(), work)
        );
        for outcome in [both.0, both.1] {
            assert_eq!(outcome.run.status, RunStatus::Completed, "{outcome:?}");
            assert_eq!(all(&outcome).failure, None, "{outcome:?}");
        }
        let there = scene.on_branch(APP, &format!("f{round}"));
        assert_eq!(there.as_deref(), Some("both"), "one after the other");
    }
    other.shutdown().await.unwrap();

    // Whoever does not wait so long is told what is in use, and by whom.
    let hurried = Engine::start(scene.options().lock_timeout(Duration::from_millis(50)));
    let hurried = hurried.await.unwrap();
    let of_lib = RunOptions::new("x").workspace(WorkspaceOptions::at(scene.place("lib")));
    let work = move |scene: Scene, context: RunContext| {
        let (hurried, of_lib) = (hurried.clone(), of_lib.clone());
        async move {
            let session = hurried.session("t").await?;
            let refused = session.execute_run(of_lib, CommandAdapter::new("true"));
            let refused = refused.await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
            let said = refused.to_string();
            assert!(said.contains(&text(&scene.place("lib"))), "{said}");
            assert!(said.contains(context.run_id.as_str()), "{said}");
            hurried.shutdown().await?;
            Ok(())
        }
    };
    let outcome = scene.does(&one, scene.run(), work).await;
    assert_eq!(outcome.run.status, RunStatus::Completed, "{outcome:?}");
    one.shutdown().await.unwrap();
}

/// The host of a story in a process of its own: it works in both repositories, says so, and ends
/// as the round wants it.
fn host(scene: &Scene) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let engine = scene.engine().await;
        let round = fs::read_to_string(scene.base.join("round")).unwrap();
        let ends_as = ends_as(round.parse().unwrap());
        let work = move |scene: Scene, context: RunContext| {
            for name in &scene.names {
                scene.write(name, &format!("f{round}"), &round);
            }
            fs::write(scene.base.join("works"), "").unwrap();
            async move {
                tokio::time::sleep(Duration::from_millis(60)).await;
                match ends_as {
                    RunStatus::Completed => Ok(()),
                    RunStatus::AwaitingFollowup => Err(context.blocked("which port?")),
                    _ => Err(AdapterError::failed("no")),
                }
            }
        };
        scene.does(&engine, scene.run(), work).await;
        engine.shutdown().await.unwrap();
    });
}

/// As what the work of a round ends, if nobody kills its host before.
fn ends_as(round: u64) -> RunStatus {
    match round % 3 {
        0 => RunStatus::Failed,
        1 => RunStatus::Completed,
        _ => RunStatus::AwaitingFollowup,
    }
}

/// The scene that the host in this process has, if this is that process.
fn of_host() -> Option<Scene> {
    Some(Scene {
        base: env::var_os(BASE)?.into(),
        names: vec![APP.to_owned(), "lib".to_owned()],
    })
}

/// Starts a host in a process of its own, by the name of the test that is the host there.
fn start(scene: &Scene, test: &str, round: u64) -> Child {
    fs::write(scene.base.join("round"), round.to_string()).unwrap();
    Command::new(env::current_exe().unwrap())
        .args([&format!("several_repositories::{test}"), "--exact"])
        .env(BASE, &scene.base)
        .env("HOME", scene.home())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn what_is_done_in_one_after_its_host_was_killed_is_not_the_runs() {
    if let Some(scene) = of_host() {
        return thread::spawn(move || host(&scene)).join().unwrap();
    }
    let ws = TestWorkspace::plain();
    let scene = Scene::new(&ws, &["lib"]);
    let [is_sent, holds] = ["is-sent", "holds"].map(|name| scene.base.join(name));
    for round in 0..3 {
        fs::write(&holds, "").unwrap();
        let waits = format!(
            "touch '{}'; while [ -e '{}' ]; do sleep 0.02; done; exit 1",
            is_sent.display(),
            holds.display()
        );
        scene.hook(APP, &waits);
        let test = "what_is_done_in_one_after_its_host_was_killed_is_not_the_runs";
        let mut host = start(&scene, test, round);
        let began = Instant::now();
        while !is_sent.exists() {
            let is_in_time = began.elapsed() < Duration::from_secs(120);
            assert!(is_in_time, "round {round}: it is not sent");
            thread::sleep(Duration::from_millis(5));
        }
        host.kill().unwrap();
        host.wait().unwrap();
        fs::remove_file(scene.remote(APP).join("hooks/pre-receive")).unwrap();
        for path in [&is_sent, &holds] {
            fs::remove_file(path).unwrap();
        }
        let file = format!("f{round}");
        scene.git("lib", &["switch", "-q", "main"]);
        scene.write("lib", &file, "somebody's\n");
        scene.write("lib", "edit", "somebody's\n");

        let engine = scene.engine().await;
        let runs = engine.runs(Default::default()).await.unwrap();
        let run = runs.iter().max_by_key(|run| run.created_at).unwrap();
        assert_eq!(run.status, ends_as(round), "round {round}: {run:?}");
        for name in [APP, "lib"] {
            let there = scene.on_branch(name, &file);
            assert_eq!(there, Some(round.to_string()), "round {round}: {name}");
        }
        assert_eq!(scene.on_branch("lib", "edit"), None, "round {round}");
        let here = fs::read_to_string(scene.place("lib").join("edit"));
        assert_eq!(here.unwrap(), "somebody's\n");
        for name in [file.as_str(), "edit"] {
            fs::remove_file(scene.place("lib").join(name)).unwrap();
        }
        if run.status == RunStatus::AwaitingFollowup {
            engine.cancel_run(&run.id).await.unwrap();
        }
        engine.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn what_a_killed_host_left_in_each_is_saved_by_the_next_engine_and_once() {
    if let Some(scene) = of_host() {
        return thread::spawn(move || host(&scene)).join().unwrap();
    }
    let rounds = counted(KILLS, 12);
    let ws = TestWorkspace::plain();
    let scene = Scene::new(&ws, &["lib"]);
    let works = scene.base.join("works");
    let mut recovered = 0;
    for round in 0..rounds {
        let test = "what_a_killed_host_left_in_each_is_saved_by_the_next_engine_and_once";
        let mut host = start(&scene, test, round);
        while !works.exists() && host.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(2));
        }
        // From the middle of the work to after the end, in steps that are others each time.
        thread::sleep(Duration::from_millis((round % 12) * 40));
        host.kill().unwrap();
        host.wait().unwrap();
        fs::remove_file(&works).unwrap();
        // Whatever the repositories say by now, the work goes where it came from.
        let elsewhere = text(&scene.remote(if round % 3 == 1 { "elsewhere" } else { APP }));
        scene.git("lib", &["remote", "set-url", "origin", &elsewhere]);

        let engine = scene.engine().await;
        recovered += engine.recovery().done.len();
        let run = engine.runs(Default::default()).await.unwrap();
        let run = run.iter().max_by_key(|run| run.created_at).unwrap();
        // What was at work when its host died has failed.
        let may_be = [RunStatus::Failed, ends_as(round)];
        assert!(may_be.contains(&run.status), "round {round}: {run:?}");
        let waits = run.status == RunStatus::AwaitingFollowup;
        // What became of the work of one that waits is told when it has ended.
        if !waits {
            let seen = run.workspace.as_ref().unwrap();
            let told = seen.repositories.as_ref();
            let told = told.unwrap_or_else(|| panic!("round {round}: {run:?}"));
            assert_eq!(told.failure, None, "round {round}: {told:?}");
            let carried = told.further[0].saved.as_ref().unwrap().carried;
            let own = seen.saved.as_ref().unwrap();
            assert_eq!(carried, own.carried, "round {round}");
        }
        for name in [APP, "lib"] {
            let content = scene.on_branch(name, &format!("f{round}"));
            let expected = Some(round.to_string());
            assert_eq!(content, expected, "round {round}: {name}");
        }
        let (_, checkpoints) = engine.find_task("42").await.unwrap();
        let mut commits: Vec<_> = checkpoints.iter().map(|one| &one.commit).collect();
        let all = commits.len();
        commits.sort();
        commits.dedup();
        assert_eq!(commits.len(), all, "round {round}: made twice");
        for task in engine.tasks().await.unwrap() {
            let run_id = waits.then(|| run.id.clone());
            let expected = (run.status.as_str(), run_id);
            assert_eq!((&*task.status, task.run_id), expected, "round {round}");
        }
        if waits {
            engine.cancel_run(&run.id).await.unwrap();
        }
        engine.shutdown().await.unwrap();
        let lib = text(&scene.remote("lib"));
        scene.git("lib", &["remote", "set-url", "origin", &lib]);
    }
    assert!(recovered > 0, "every host lived until it had saved all");
    for name in [APP, "lib"] {
        let args = ["fsck", "--strict", "--no-dangling"];
        git::run(&scene.home(), &scene.remote(name), args);
    }
}

/// The host of a blocked run in a process of its own.
fn blocked_host(scene: &Scene) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let engine = scene.engine().await;
        scene.does(&engine, scene.run(), asks).await;
        engine.shutdown().await.unwrap();
    });
}

/// Kills the host of a blocked run once its own repository is sent, and the other one is about to
/// be.
fn killed_while_its_block_is_saved(scene: &Scene, test: &str) {
    let (sends, waits) = (scene.base.join("sends"), scene.base.join("waits"));
    fs::write(&waits, "").unwrap();
    let script = format!(
        "echo > '{}'; while [ -e '{}' ]; do sleep 0.05; done",
        sends.display(),
        waits.display()
    );
    scene.hook("lib", &script);
    let mut host = start(scene, test, 0);
    while !sends.exists() && host.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    host.kill().unwrap();
    host.wait().unwrap();
    assert!(scene.at(APP, BRANCH).is_some());
    fs::remove_file(&waits).unwrap();
}

#[tokio::test]
async fn a_host_that_is_killed_while_a_block_is_saved_leaves_all_waiting_with_the_next_engine() {
    if let Some(scene) = of_host() {
        return thread::spawn(move || blocked_host(&scene)).join().unwrap();
    }
    let ws = TestWorkspace::plain();
    let scene = Scene::new(&ws, &["lib"]);
    let test =
        "a_host_that_is_killed_while_a_block_is_saved_leaves_all_waiting_with_the_next_engine";
    killed_while_its_block_is_saved(&scene, test);

    let engine = scene.engine().await;
    let run = engine.runs(Default::default()).await.unwrap().remove(0);
    assert_eq!(run.status, RunStatus::AwaitingFollowup, "{run:?}");
    let tasks = engine.tasks().await.unwrap();
    assert_eq!(tasks.len(), 2);
    for task in tasks {
        assert_eq!(task.status, "awaiting_followup", "{task:?}");
        let last = task.last_checkpoint.unwrap();
        assert_eq!((&*last.status, last.number), ("proven", 1), "made once");
        assert_eq!(task.follow_up.unwrap().last_checkpoint, last.commit);
    }
    let agent = Does(scene.clone(), asks);
    let input = FollowUpInput::new(1, "8080");
    let done = engine.claim_follow_up("42", input, RunOptions::new(""), agent);
    let done = done.await.unwrap();
    assert_eq!(done.run.status, RunStatus::Completed, "{done:?}");
    for name in [APP, "lib"] {
        assert_eq!(scene.on_branch(name, "answer").as_deref(), Some("8080"));
    }
    engine.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_blocked_run_whose_wait_cannot_be_written_down_has_failed_with_the_next_engine() {
    if let Some(scene) = of_host() {
        return thread::spawn(move || blocked_host(&scene)).join().unwrap();
    }
    let ws = TestWorkspace::plain();
    let scene = Scene::new(&ws, &["lib"]);
    let test = "a_blocked_run_whose_wait_cannot_be_written_down_has_failed_with_the_next_engine";
    killed_while_its_block_is_saved(&scene, test);
    // A row that does not match its sum, of a notice that was sent long ago.
    let database = Connection::open(scene.base.join("state/stillframe.db")).unwrap();
    let flags = FunctionFlags::default();
    database
        .create_scalar_function("row_sum", -1, flags, |_| Ok(7_i64))
        .unwrap();
    let damaged = "INSERT INTO notices (token, kind, task_id, text, status, attempts, created_at, updated_at)
                   SELECT 't', 'checkpoint_ready', id, 'x', 'succeeded', 1, 0, 0 FROM work_tasks LIMIT 1";
    assert_eq!(database.execute(damaged, ()).unwrap(), 1);
    drop(database);

    let engine = scene.engine().await;
    let run = engine.runs(Default::default()).await.unwrap().remove(0);
    assert_eq!(run.status, RunStatus::Failed, "{run:?}");
    let why = run.error.unwrap().message;
    assert!(why.contains("does not match its sum"), "{why}");
    for name in [APP, "lib"] {
        assert!(scene.on_branch(name, "question").is_some(), "{name}");
    }
    engine.shutdown().await.unwrap();
}
