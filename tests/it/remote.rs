//! Work leaves the machine: the crate `stillframe-remote` with real servers of each kind.
//!
//! Paths, branches and what hooks say have "401" and "rejected" in them all through, since nothing
//! is decided by that.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use stillframe_disk::operation::Operation;
use stillframe_remote::address::Address;
use stillframe_remote::branch_name::BranchName;
use stillframe_remote::credential::Credential;
use stillframe_remote::environment::Environment;
use stillframe_remote::failure_kind::FailureKind;
use stillframe_remote::git_process::Git;
use stillframe_remote::proof::{Proof, ProofError};
use stillframe_remote::push::{Ancestry, Push, PushError};
use stillframe_remote::remote::{ListError, Remote};
use stillframe_remote::secret::Secret;
use stillframe_remote::{ObjectId, Pushed};
use stillframe_tests::servers::{
    Client, CutLine, GitDaemon, HttpOptions, HttpServer, Silence, SshServer,
};
use stillframe_tests::{Call, TestWorkspace, git};

const WORK: &str = "stillframe/task/401-rejected";

/// Where the repositories of all servers are, below the directory of the test.
const REPOSITORY: &str = "repositories/401-rejected/a.git";

/// What hooks say. None of it is git's own.
const SAID: &str = "echo '401 rejected (fetch first)' >&2; echo 'fatal: early EOF' >&2\n";

/// Two locales. Nobody's reaches git.
const LOCALES: [&str; 2] = ["C.UTF-8", "de_DE.UTF-8"];

/// A store with commits, and a bare repository that servers serve.
struct Scene {
    ws: TestWorkspace,
    path: String,
    locale: &'static str,
}

impl Scene {
    fn new() -> Self {
        let ws = TestWorkspace::plain();
        let scene = Self {
            ws,
            path: std::env::var("PATH").unwrap(),
            locale: LOCALES[1],
        };
        for name in ["store.git", REPOSITORY] {
            let dir = scene.ws.base().join(name);
            fs::create_dir_all(&dir).unwrap();
            scene.git(&dir, &["init", "-q", "--bare"]);
        }
        scene
    }

    fn git(&self, dir: &Path, args: &[&str]) -> String {
        git::text(&self.ws.home(), dir, args)
    }

    fn repository(&self) -> PathBuf {
        self.ws.base().join(REPOSITORY)
    }

    fn store(&self) -> PathBuf {
        self.ws.base().join("store.git")
    }

    /// A commit in the store, and nowhere else, with one file.
    fn commit(&self, parent: Option<ObjectId>, content: &[u8]) -> ObjectId {
        let store = self.store();
        let stdin = |args: &[&str], input: &[u8]| {
            let call = git::call(&self.ws.home(), &store, args).stdin(input);
            call.run().ok().stdout_text().trim().to_owned()
        };
        let blob = stdin(&["hash-object", "-w", "--stdin"], content);
        let tree = stdin(
            &["mktree"],
            format!("100644 blob {blob}\tfile\n").as_bytes(),
        );
        let parent = parent.map(|id| id.to_string());
        let mut args = vec!["commit-tree", "-m", "rejected 401", &tree];
        args.extend(parent.iter().flat_map(|id| ["-p", id]));
        self.git(&store, &args).parse().unwrap()
    }

    /// Where the repository has the work branch, as the repository itself says.
    fn at(&self) -> Option<ObjectId> {
        let full = format!("refs/heads/{WORK}");
        let listed = self.git(
            &self.repository(),
            &["for-each-ref", "--format=%(objectname)", &full],
        );
        listed.parse().ok()
    }

    fn hook(&self, name: &str, script: &str) {
        let path = self.repository().join("hooks").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{SAID}{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn no_hook(&self, name: &str) {
        fs::remove_file(self.repository().join("hooks").join(name)).unwrap();
    }

    /// The repository as somebody reaches it there.
    fn remote(&self, address: &str) -> Machine {
        let variables = [
            ("HOME", self.ws.home().into()),
            ("PATH", OsString::from(&self.path)),
            ("LANG", self.locale.into()),
            ("LC_ALL", self.locale.into()),
            ("LANGUAGE", "de".into()),
        ];
        let environment = Environment::of(variables.map(|(name, value)| (name.into(), value)));
        let parsed = Address::parse(address.as_ref(), self.ws.base()).unwrap();
        Machine {
            git: Git::new(self.store(), environment),
            address: parsed.address,
            credential: Credential::of_login(parsed.login),
        }
    }

    fn by_path(&self) -> Machine {
        self.remote(self.repository().to_str().unwrap())
    }

    fn daemon(&self, may_push: bool) -> GitDaemon {
        let repositories = self.ws.base().join("repositories");
        GitDaemon::start(&self.ws.home(), &repositories, may_push)
    }

    fn http(&self, options: HttpOptions<'_>) -> Option<HttpServer> {
        self.http_in("http", options)
    }

    fn http_in(&self, own: &str, options: HttpOptions<'_>) -> Option<HttpServer> {
        let repositories = self.ws.base().join("repositories");
        HttpServer::start(&self.ws.base().join(own), &repositories, options)
    }
}

/// Who pushes.
struct Machine {
    git: Git,
    address: Address,
    credential: Credential,
}

impl Machine {
    fn remote(&self) -> Remote<'_> {
        Remote {
            git: &self.git,
            address: &self.address,
            credential: &self.credential,
        }
    }

    fn limit(mut self, limit: Duration) -> Self {
        self.git = self.git.limit(limit);
        self
    }

    fn by(mut self, credential: Credential) -> Self {
        self.credential = credential;
        self
    }

    fn create(&self, commit: ObjectId) -> Result<Pushed, PushError> {
        self.create_at(WORK, commit)
    }

    fn create_at(&self, name: &str, commit: ObjectId) -> Result<Pushed, PushError> {
        let branch = BranchName::parse(name).unwrap();
        let push = Push::create(branch, commit);
        self.remote().push(&push, &Operation::unbounded())
    }

    fn advance(&self, from: ObjectId, to: ObjectId) -> Result<Pushed, PushError> {
        let push = Push::advance(work(), Ancestry::proven(from, to));
        self.remote().push(&push, &Operation::unbounded())
    }

    fn prove(&self, commit: ObjectId) -> Result<Proof, ProofError> {
        let op = Operation::unbounded();
        self.remote().prove(&work(), commit, None, &op)
    }

    fn list(&self) -> Result<(), ListError> {
        self.remote().branches(&Operation::unbounded()).map(|_| ())
    }
}

fn work() -> BranchName {
    BranchName::parse(WORK).unwrap()
}

fn token(text: &str) -> Credential {
    Credential::token(Secret::new(text.into()).unwrap(), None)
}

/// An error with its sources.
fn whole(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(|cause| format!("{cause}: ")).collect()
}

/// Bytes that do not get shorter, others for each seed.
fn noise(seed: u8, length: usize) -> Vec<u8> {
    let mut reader = blake3::Hasher::new().update(&[seed]).finalize_xof();
    let mut bytes = vec![0; length];
    reader.fill(&mut bytes);
    bytes
}

#[track_caller]
fn refused(pushed: Result<Pushed, PushError>, kind: FailureKind) -> String {
    let error = pushed.expect_err("it was to be refused");
    let text = whole(&error);
    assert_eq!(error.failure(), kind, "{text}");
    assert!(!text.contains('\n'), "{text}");
    text
}

#[track_caller]
fn unlisted(listed: Result<(), ListError>, kind: FailureKind) -> String {
    let error = listed.expect_err("it was to be refused");
    let text = whole(&error);
    assert_eq!(error.failure(), kind, "{text}");
    text
}

/// What must come of every transport: each row of the table that a repository itself answers.
fn rows_of_the_repository(scene: &Scene, machine: &Machine) {
    let first = scene.commit(None, b"first");
    let second = scene.commit(Some(first), b"second");
    let ours = scene.commit(Some(first), b"ours");

    assert_eq!(machine.create(first).unwrap(), Pushed::Created);
    assert_eq!(machine.prove(first).unwrap(), Proof::Exact);
    assert_eq!(scene.at(), Some(first));
    assert_eq!(
        machine.advance(first, second).unwrap(),
        Pushed::FastForwarded
    );
    assert_eq!(
        machine.advance(second, second).unwrap(),
        Pushed::AlreadyThere
    );
    assert_eq!(machine.prove(first).unwrap(), Proof::MovedTo(second));

    refused(machine.create(ours), FailureKind::RemoteDivergent);
    refused(machine.advance(first, ours), FailureKind::RemoteDivergent);
    // Whoever is mistaken about what is an ancestor is refused by servers that look themselves.
    scene.git(
        &scene.repository(),
        &["config", "receive.denyNonFastForwards", "true"],
    );
    refused(machine.advance(second, ours), FailureKind::RemoteDivergent);
    scene.git(
        &scene.repository(),
        &["config", "--unset", "receive.denyNonFastForwards"],
    );

    for name in ["stillframe/task", &format!("{WORK}/1")] {
        let text = refused(machine.create_at(name, first), FailureKind::RefConflict);
        assert!(text.contains(WORK), "{text}");
    }

    let third = scene.commit(Some(second), b"third");
    for hook in ["pre-receive", "update"] {
        scene.hook(hook, "exit 1");
        refused(
            machine.advance(second, third),
            FailureKind::RemotePolicyRejected,
        );
        scene.no_hook(hook);
    }
    let nowhere: ObjectId = "1".repeat(40).parse().unwrap();
    refused(machine.create_at("another", nowhere), FailureKind::LocalGit);
    assert_eq!(
        scene.at(),
        Some(second),
        "nothing of it has moved the branch"
    );
}

/// A limit of the server's for what it takes. `git daemon` hangs up on who sends more, and its word
/// is lost now and then.
fn a_limit_of_the_repository(scene: &Scene, machine: &Machine) {
    let limit = "receive.maxInputSize";
    scene.git(&scene.repository(), &["config", limit, "1000"]);
    let large = scene.commit(None, &noise(1, 10_000));
    refused(
        machine.create_at("large", large),
        FailureKind::RemotePolicyRejected,
    );
    scene.git(&scene.repository(), &["config", "--unset", limit]);
}

#[test]
fn a_repository_by_its_path_gives_every_kind() {
    let mut scene = Scene::new();
    scene.locale = LOCALES[0];
    rows_of_the_repository(&scene, &scene.by_path());
    a_limit_of_the_repository(&scene, &scene.by_path());
    let none = scene.remote("/nowhere/401-rejected.git");
    unlisted(none.list(), FailureKind::LocalGit);
}

#[test]
fn git_daemon_gives_every_kind() {
    let scene = Scene::new();
    let daemon = scene.daemon(true);
    let url = |port: u16| format!("git://127.0.0.1:{port}/401-rejected/a.git");
    rows_of_the_repository(&scene, &scene.remote(&url(daemon.port())));

    let closed = scene.daemon(false);
    let first = scene.commit(None, b"first");
    let machine = scene.remote(&url(closed.port()));
    machine.list().unwrap();
    refused(machine.create_at("another", first), FailureKind::AuthDenied);

    unlisted(scene.remote(&url(1)).list(), FailureKind::NetworkBlip);
    let unresolved = scene.remote("git://401-rejected.invalid/a.git");
    unlisted(unresolved.list(), FailureKind::NetworkBlip);
}

#[test]
fn a_server_of_http_gives_every_kind() {
    let scene = Scene::new();
    let Some(server) = scene.http(HttpOptions::default()) else {
        return;
    };
    let at = |scheme: &str, path: &str| {
        scene.remote(&format!(
            "{scheme}://127.0.0.1:{}/git/{path}",
            server.port()
        ))
    };
    rows_of_the_repository(&scene, &at("http", "401-rejected/a.git"));
    a_limit_of_the_repository(&scene, &at("http", "401-rejected/a.git"));
    unlisted(at("http", "broken/a.git").list(), FailureKind::NetworkBlip);
    unlisted(
        at("http", "forbidden/a.git").list(),
        FailureKind::AuthDenied,
    );
    unlisted(
        at("http", "401-rejected/none.git").list(),
        FailureKind::Unknown,
    );
    unlisted(
        at("https", "401-rejected/a.git").list(),
        FailureKind::NetworkBlip,
    );
    let unresolved = scene.remote("https://401-rejected.invalid/403");
    unlisted(unresolved.list(), FailureKind::NetworkBlip);
}

#[test]
fn a_body_that_is_too_long_for_a_server_is_its_policy() {
    let scene = Scene::new();
    let options = HttpOptions {
        max_body_kib: Some(8),
        ..HttpOptions::default()
    };
    let Some(server) = scene.http(options) else {
        return;
    };
    let url = format!("http://127.0.0.1:{}/git/401-rejected/a.git", server.port());
    let machine = scene.remote(&url);
    let small = scene.commit(None, b"small");
    assert_eq!(machine.create_at("small", small).unwrap(), Pushed::Created);
    let large = scene.commit(None, &noise(1, 100_000));
    refused(machine.create(large), FailureKind::RemotePolicyRejected);
    assert_eq!(scene.at(), None);
}

#[test]
fn a_server_of_ssh_gives_every_kind() {
    let mut scene = Scene::new();
    let Some(server) = SshServer::start(&scene.ws.base().join("ssh")) else {
        return;
    };
    let url = server.url(&scene.repository());
    scene.path = server.path_of(Client::Known);
    rows_of_the_repository(&scene, &scene.remote(&url));
    a_limit_of_the_repository(&scene, &scene.remote(&url));
    let closed = scene.remote("ssh://me@127.0.0.1:1/401");
    unlisted(closed.list(), FailureKind::NetworkBlip);
    unlisted(
        scene.remote("me@401-rejected.invalid:a").list(),
        FailureKind::NetworkBlip,
    );
    let none = scene.remote(&server.url(Path::new("/nowhere/Permission denied (publickey).")));
    unlisted(none.list(), FailureKind::Unknown);

    scene.path = server.path_of(Client::Unknown);
    unlisted(scene.remote(&url).list(), FailureKind::AuthDenied);
    scene.path = server.path_of(Client::Warned);
    unlisted(scene.remote(&url).list(), FailureKind::Unknown);
}

#[test]
fn who_never_answers_is_given_up() {
    let scene = Scene::new();
    let silence = Silence::start();
    for scheme in ["git", "http", "https", "ssh"] {
        let address = format!("{scheme}://127.0.0.1:{}/a.git", silence.port());
        let machine = scene.remote(&address).limit(Duration::from_millis(300));
        let text = unlisted(machine.list(), FailureKind::NetworkBlip);
        assert!(text.contains("not done within 300 ms"), "{text}");
    }
}

#[test]
fn a_line_that_is_cut_in_the_middle_of_a_pack_is_a_blip() {
    let scene = Scene::new();
    let daemon = scene.daemon(true);
    let http = scene.http(HttpOptions::default());
    let large = scene.commit(None, &noise(1, 1_000_000));
    scene.by_path().create_at("large", large).unwrap();
    let second = scene.commit(Some(large), &noise(2, 1_000_000));
    let other = scene.ws.base().join("other.git");
    fs::create_dir(&other).unwrap();
    scene.git(&other, &["init", "-q", "--bare"]);
    for (scheme, port, prefix) in [
        ("git", Some(daemon.port()), ""),
        ("http", http.as_ref().map(HttpServer::port), "/git"),
    ] {
        let Some(port) = port else { continue };
        let address = |line: &CutLine| {
            format!(
                "{scheme}://127.0.0.1:{}{prefix}/401-rejected/a.git",
                line.port()
            )
        };
        let line = CutLine::start(port, 200_000, usize::MAX);
        refused(
            scene.remote(&address(&line)).create(second),
            FailureKind::NetworkBlip,
        );
        assert_eq!(scene.at(), None, "{scheme}");

        let line = CutLine::start(port, usize::MAX, 200_000);
        let mut machine = scene.remote(&address(&line));
        let path = OsString::from(&scene.path);
        machine.git = Git::new(&other, Environment::of([("PATH".into(), path)]));
        let op = Operation::unbounded();
        let error = machine.remote().fetch(large, &[], &op).unwrap_err();
        let text = whole(&error);
        assert_eq!(error.failure(), FailureKind::NetworkBlip, "{text}");
    }
}

#[test]
fn an_answer_that_is_lost_after_the_push_landed_is_no_failure() {
    let scene = Scene::new();
    let daemon = scene.daemon(true);
    let first = scene.commit(None, b"first");
    // What a push says before the server reports, and less than what it says with the report. The
    // second connection, which asks again, has a smaller answer.
    let full = format!("git://127.0.0.1:{}/401-rejected/a.git", daemon.port());
    scene.hook(
        "post-receive",
        "head -c 100000 /dev/zero | tr '\\0' 'x' >&2",
    );
    let line = CutLine::start(daemon.port(), usize::MAX, 5000);
    let cut = format!("git://127.0.0.1:{}/401-rejected/a.git", line.port());
    assert_eq!(
        scene.remote(&cut).create(first).unwrap(),
        Pushed::AlreadyThere
    );
    assert_eq!(scene.remote(&full).prove(first).unwrap(), Proof::Exact);
}

#[test]
fn of_many_who_create_a_branch_at_once_one_does() {
    let scene = Scene::new();
    let machines: Vec<_> = (0..6)
        .map(|n| (scene.by_path(), scene.commit(None, &[n])))
        .collect();
    let outcomes: Vec<_> = thread::scope(|scope| {
        let pushes = machines
            .iter()
            .map(|(machine, commit)| scope.spawn(|| machine.create(*commit)));
        let pushes: Vec<_> = pushes.collect();
        pushes
            .into_iter()
            .map(|push| push.join().unwrap())
            .collect()
    });
    let mut created = 0;
    for (outcome, (_, commit)) in outcomes.into_iter().zip(&machines) {
        match outcome {
            Ok(Pushed::Created) => {
                created += 1;
                assert_eq!(scene.at(), Some(*commit));
            }
            other => {
                refused(other, FailureKind::RemoteDivergent);
            }
        }
    }
    assert_eq!(created, 1);
}

#[test]
fn an_answer_that_lags_is_waited_for_and_an_update_that_is_dropped_is_not_proven() {
    let scene = Scene::new();
    let Some(server) = scene.http(HttpOptions::default()) else {
        return;
    };
    let own = scene.ws.base().join("http");
    let replica = own.join("replicas/401-rejected");
    fs::create_dir_all(&replica).unwrap();
    let copied = Call::new("/bin/cp", "/").args(["-r".as_ref(), scene.repository().as_os_str()]);
    copied.args([&replica]).run().ok();
    let url = format!("http://127.0.0.1:{}/git/401-rejected/a.git", server.port());
    let machine = scene.remote(&url);
    let first = scene.commit(None, b"first");
    assert_eq!(machine.create(first).unwrap(), Pushed::Created);
    fs::write(own.join("lag"), "x").unwrap();
    assert_eq!(
        machine.prove(first).unwrap(),
        Proof::Exact,
        "the second answer"
    );
    assert_eq!(fs::read(own.join("lag")).unwrap(), b"");

    scene.git(
        &scene.repository(),
        &["update-ref", "-d", &format!("refs/heads/{WORK}")],
    );
    scene.hook(
        "post-receive",
        &format!("exec git update-ref -d refs/heads/{WORK}"),
    );
    assert_eq!(
        machine.create(first).unwrap(),
        Pushed::Created,
        "it says so"
    );
    let error = machine.prove(first).unwrap_err();
    assert!(matches!(error, ProofError::NotShown { .. }), "{error}");
}

#[test]
fn a_token_is_in_the_environment_of_its_call_and_nowhere_else() {
    let scene = Scene::new();
    let secret = "t0ken-of-the-tests";
    let options = HttpOptions {
        user: Some(("x-access-token", secret)),
        ..HttpOptions::default()
    };
    let Some(server) = scene.http(options) else {
        return;
    };
    let url = format!("http://127.0.0.1:{}/git/401-rejected/a.git", server.port());
    let nobody = scene.remote(&url);
    unlisted(nobody.list(), FailureKind::AuthDenied);
    let wrong = scene.remote(&url).by(token("wr0ng-token-401"));
    let text = unlisted(wrong.list(), FailureKind::AuthDenied);
    assert!(!text.contains("wr0ng"), "{text}");

    let first = scene.commit(None, b"first");
    let [started, go] = ["started", "go"].map(|name| scene.ws.base().join(name));
    let wait = format!(
        "touch '{}'; while ! [ -e '{}' ]; do sleep 0.01; done",
        started.display(),
        go.display()
    );
    scene.hook("pre-receive", &wait);
    let machine = scene.remote(&url).by(token(secret));
    thread::scope(|scope| {
        let push = scope.spawn(|| machine.create(first));
        while !started.exists() {
            assert!(!push.is_finished(), "{:?}", push.join());
            thread::sleep(Duration::from_millis(5));
        }
        let has = |name: &str| {
            let processes = fs::read_dir("/proc").unwrap().flatten();
            let texts = processes.filter_map(|entry| fs::read(entry.path().join(name)).ok());
            let texts = texts.filter(|text| String::from_utf8_lossy(text).contains(secret));
            texts.count()
        };
        assert_eq!(has("cmdline"), 0);
        assert!(has("environ") > 0, "git and its helper have it");
        fs::write(&go, "").unwrap();
        assert_eq!(push.join().unwrap().unwrap(), Pushed::Created);
    });
    assert_eq!(machine.prove(first).unwrap(), Proof::Exact);

    // What a hook says, to whom it may.
    scene.hook("pre-receive", &format!("echo '{secret}' >&2; exit 1"));
    let text = refused(
        machine.advance(first, scene.commit(Some(first), b"2")),
        FailureKind::RemotePolicyRejected,
    );
    assert!(!text.contains(secret), "{text}");
    for entry in walkdir::WalkDir::new(scene.ws.base()) {
        let path = entry.unwrap().into_path();
        let is_servers = path.ends_with("http/users") || path.ends_with("hooks/pre-receive");
        if path.is_file() && !is_servers {
            let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
            assert!(!text.contains(secret), "{}", path.display());
        }
    }
    let with_login = format!(
        "http://x-access-token:{secret}@127.0.0.1:{}/git/401-rejected/a.git",
        server.port()
    );
    let of_address = scene.remote(&with_login);
    of_address.list().unwrap();
    assert_eq!(of_address.address.to_string(), url);
}

#[test]
fn a_server_that_sends_git_elsewhere_takes_no_token_along() {
    let scene = Scene::new();
    let secret = "t0ken-of-the-tests";
    let open = HttpOptions::default();
    let closed = HttpOptions {
        user: Some(("x-access-token", secret)),
        ..open
    };
    for (own, options, kind) in [
        ("open", open, None),
        ("closed", closed, Some(FailureKind::AuthDenied)),
    ] {
        let Some(other) = scene.http_in(own, options) else {
            return;
        };
        let moved_to = Some(other.port());
        let from = format!("{own}-from");
        let server = scene.http_in(&from, HttpOptions { moved_to, ..open });
        let port = server.as_ref().map_or(0, HttpServer::port);
        let url = format!("http://127.0.0.1:{port}/git/moved/401-rejected/a.git");
        let listed = scene.remote(&url).by(token(secret)).list();
        match kind {
            None => listed.unwrap(),
            Some(kind) => {
                unlisted(listed, kind);
            }
        }
    }
}

#[test]
fn of_the_users_configuration_only_helpers_count_and_only_where_they_are_asked() {
    let scene = Scene::new();
    let options = HttpOptions {
        user: Some(("me", "t0ken")),
        ..HttpOptions::default()
    };
    let Some(server) = scene.http(options) else {
        return;
    };
    let port = server.port();
    let url = format!("http://127.0.0.1:{port}/git/401-rejected/a.git");
    fs::write(
        scene.ws.home().join(".gitconfig"),
        format!(
            "[credential]\n\thelper = \"!f() {{ echo username=me; echo password=t0ken; }}; f\"\n\
             [url \"http://127.0.0.1:{port}/git/forbidden/\"]\n\tinsteadOf = http://127.0.0.1:{port}/git/\n"
        ),
    )
    .unwrap();
    scene
        .remote(&url)
        .by(Credential::UserGit { user: None })
        .list()
        .unwrap();
    unlisted(scene.remote(&url).list(), FailureKind::AuthDenied);

    let broken = scene.ws.home().join(".gitconfig");
    fs::write(&broken, "[credential\n").unwrap();
    let of_user = scene.remote(&url).by(Credential::UserGit { user: None });
    let text = unlisted(of_user.list(), FailureKind::LocalGit);
    assert!(text.contains("bad config line 1"), "{text}");

    fs::write(
        scene.ws.home().join(".netrc"),
        "machine 127.0.0.1 login me password t0ken\n",
    )
    .unwrap();
    let wrong = scene.remote(&url).by(token("wr0ng"));
    unlisted(wrong.list(), FailureKind::AuthDenied);
}
