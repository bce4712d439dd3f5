//! Why a task's work did not get to its branch, as the commands say it: the kinds of failure, each
//! by a server that people have. git is the oracle.
//!
//! Paths, branches and what hooks say have "401" and "rejected" in them all through, and nobody
//! speaks English: nothing is decided by either.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use stillframe::tasks::WorkBranchOptions;
use stillframe::{Engine, EngineOptions, WorkspaceOptions};
use stillframe_tests::servers::{
    Client, CutLine, GitDaemon, HttpOptions, HttpServer, Silence, SshServer,
};
use stillframe_tests::{Call, TestWorkspace, git};

const TASK: &str = "401-rejected";
const BRANCH: &str = "stillframe/task/401-rejected";

/// Where the repositories of all servers are, below the directory that they serve.
const PLACE: &str = "401-rejected";

/// What hooks say. None of it is git's own.
const SAID: &str = "echo '401 rejected (fetch first)' >&2; echo 'fatal: early EOF' >&2\n\
                    echo \"fatal: Authentication failed for 'x'\" >&2\n";

/// How many stories are told at once: most of a story waits for processes.
const AT_ONCE: usize = 4;

/// The servers, of which each has the repositories of all stories.
struct Servers {
    http: [Option<HttpServer>; 4],
    ssh: Option<SshServer>,
    daemons: [GitDaemon; 2],
}

/// Where they are.
struct Ports {
    /// The directory with what they serve, and with their own files.
    base: PathBuf,
    http: Option<u16>,
    /// It wants a token.
    closed: Option<u16>,
    /// It takes little.
    small: Option<u16>,
    /// Its answers are those of before.
    lagging: Option<u16>,
    daemon: u16,
    /// It takes nothing.
    reading: u16,
    ssh: Option<Ssh>,
}

struct Ssh {
    /// What comes before the path of a repository.
    url: String,
    /// `PATH` of one whom it knows, and of another.
    known: String,
    unknown: String,
}

impl Servers {
    fn start(base: &TestWorkspace) -> Self {
        let served = base.base().join("served");
        fs::create_dir_all(served.join(PLACE)).unwrap();
        let http = |own: &str, options: HttpOptions<'_>| {
            HttpServer::start(&base.base().join(own), &served, options)
        };
        let open = HttpOptions::default();
        let user = Some(("x-access-token", "t0ken-of-the-test-5d2"));
        let max_body_kib = Some(8);
        Self {
            http: [
                http("http", open),
                http("closed", HttpOptions { user, ..open }),
                http(
                    "small",
                    HttpOptions {
                        max_body_kib,
                        ..open
                    },
                ),
                http("lagging", open),
            ],
            ssh: SshServer::start(&base.base().join("ssh")),
            daemons: [true, false].map(|may| GitDaemon::start(&base.home(), &served, may)),
        }
    }

    fn ports(&self, base: &TestWorkspace) -> Ports {
        let [http, closed, small, lagging] =
            self.http.each_ref().map(|one| Some(one.as_ref()?.port()));
        let [daemon, reading] = self.daemons.each_ref().map(GitDaemon::port);
        let ssh = self.ssh.as_ref().map(|server| Ssh {
            url: server.url(Path::new("")),
            known: server.path_of(Client::Known),
            unknown: server.path_of(Client::Unknown),
        });
        Ports {
            base: base.base().to_owned(),
            http,
            closed,
            small,
            lagging,
            daemon,
            reading,
            ssh,
        }
    }
}

/// Where the work of a story goes, and who has it.
struct Place<'s> {
    ports: &'s Ports,
    ws: TestWorkspace,
    name: &'static str,
}

impl Place<'_> {
    fn bare(&self) -> PathBuf {
        let served = self.ports.base.join("served");
        served.join(PLACE).join(format!("{}.git", self.name))
    }

    fn by_path(&self) -> Option<String> {
        Some(self.bare().to_str().unwrap().to_owned())
    }

    fn by_http(&self, port: Option<u16>) -> Option<String> {
        let name = self.name;
        Some(format!("http://127.0.0.1:{}/git/{PLACE}/{name}.git", port?))
    }

    fn by_daemon(&self, port: u16) -> Option<String> {
        Some(format!("git://127.0.0.1:{port}/{PLACE}/{}.git", self.name))
    }

    fn by_ssh(&self) -> Option<String> {
        let url = &self.ports.ssh.as_ref()?.url;
        Some(format!("{url}{}", self.bare().display()))
    }

    fn git(&self, args: &[&str]) -> String {
        git::text(&self.ws.home(), &self.bare(), args)
    }

    fn hook(&self, name: &str, script: &str) {
        let path = self.bare().join("hooks").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{SAID}{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A commit that nobody here goes on from, on a branch of the remote.
    fn theirs(&self, branch: &str) {
        let other = self.ws.git(["commit-tree", "-m", "theirs", "HEAD^{tree}"]);
        let push = format!("{other}:refs/heads/{branch}");
        self.ws
            .git(["push", "-q", self.bare().to_str().unwrap(), &push]);
    }

    /// What the branches of the remote are at.
    fn refs(&self) -> BTreeSet<String> {
        let format = "--format=%(objectname) %(refname)";
        self.git(&["for-each-ref", format])
            .lines()
            .map(str::to_owned)
            .collect()
    }
}

/// What becomes of a run of the task there, whose command fails.
#[derive(Clone, Copy, PartialEq)]
enum Ran {
    /// It is done, and its work is as it is with a checkpoint.
    Saved,
    /// It is not begun, with an error of this kind.
    Refused(&'static str),
    /// Nobody asks: it takes as long again.
    Untried,
}

/// One way in which a remote answers.
struct Story {
    name: &'static str,
    /// Prepares the remote, and says what its address is; `None`: this machine has no such server.
    address: fn(&Place<'_>) -> Option<String>,
    /// `None`: it is there.
    kind: Option<&'static str>,
    state: &'static str,
    /// What the message says beside.
    says: &'static str,
    ran: Ran,
}

const STORIES: &[Story] = &[
    Story {
        name: "there",
        address: |place| place.by_path(),
        kind: None,
        state: "pushed",
        says: "",
        ran: Ran::Saved,
    },
    Story {
        name: "pre-receive",
        address: |place| {
            place.hook("pre-receive", "echo x >> tries; exit 1");
            place.by_path()
        },
        kind: Some("RemotePolicyRejected"),
        state: "not_saved",
        says: "the remote says: 401 rejected (fetch first)",
        ran: Ran::Saved,
    },
    Story {
        name: "update",
        address: |place| {
            place.hook("update", "echo x >> tries; exit 1");
            place.by_ssh().or_else(|| place.by_path())
        },
        kind: Some("RemotePolicyRejected"),
        state: "not_saved",
        says: "the remote says: 401 rejected (fetch first)",
        ran: Ran::Saved,
    },
    Story {
        name: "protected",
        address: |place| {
            place.git(&["config", "receive.denyNonFastForwards", "true"]);
            place.git(&["config", "receive.denyDeletes", "true"]);
            place.theirs(BRANCH);
            place.by_path()
        },
        kind: Some("RemoteDivergent"),
        state: "pushed_beside",
        says: "has commits that",
        // What was saved beside it is not in it.
        ran: Ran::Refused("NotFound"),
    },
    Story {
        name: "below",
        address: |place| {
            place.theirs(&format!("{BRANCH}/401"));
            place.by_http(place.ports.http).or_else(|| place.by_path())
        },
        kind: Some("RefConflict"),
        state: "not_saved",
        says: "stillframe/task/401-rejected/401",
        ran: Ran::Saved,
    },
    Story {
        name: "above",
        address: |place| {
            place.theirs("stillframe/task");
            place.by_daemon(place.ports.daemon)
        },
        kind: Some("RefConflict"),
        state: "not_saved",
        says: "refs/heads/stillframe/task",
        ran: Ran::Saved,
    },
    Story {
        name: "nowhere",
        address: |_| Some("/nowhere/401-rejected.git".to_owned()),
        kind: Some("LocalGit"),
        state: "not_saved",
        says: "does not appear to be a git repository",
        ran: Ran::Refused("Unavailable"),
    },
    Story {
        name: "unauthorised",
        address: |place| place.by_http(place.ports.closed),
        kind: Some("AuthDenied"),
        state: "not_saved",
        says: "",
        ran: Ran::Refused("Unavailable"),
    },
    Story {
        name: "forbidden",
        address: |place| {
            let url = place.by_http(place.ports.http)?;
            Some(url.replace(&format!("/git/{PLACE}/"), "/git/forbidden/401-rejected/"))
        },
        kind: Some("AuthDenied"),
        state: "not_saved",
        says: "403",
        ran: Ran::Refused("Unavailable"),
    },
    Story {
        name: "broken",
        address: |place| {
            let url = place.by_http(place.ports.http)?;
            Some(url.replace(&format!("/git/{PLACE}/"), "/git/broken/401-rejected/"))
        },
        kind: Some("NetworkBlip"),
        state: "not_saved",
        says: "500",
        ran: Ran::Refused("Unavailable"),
    },
    Story {
        name: "too-long",
        address: |place| place.by_http(place.ports.small),
        kind: Some("RemotePolicyRejected"),
        state: "not_saved",
        says: "413",
        ran: Ran::Saved,
    },
    Story {
        name: "unknown-key",
        address: |place| place.by_ssh(),
        kind: Some("AuthDenied"),
        state: "not_saved",
        says: "Permission denied",
        ran: Ran::Refused("Unavailable"),
    },
    Story {
        name: "reads-only",
        address: |place| place.by_daemon(place.ports.reading),
        kind: Some("AuthDenied"),
        state: "not_saved",
        says: "access denied or repository not exported",
        ran: Ran::Saved,
    },
    Story {
        name: "unresolved",
        address: |_| Some("git://401-rejected.invalid/a.git".to_owned()),
        kind: Some("NetworkBlip"),
        state: "not_saved",
        says: "401-rejected.invalid",
        ran: Ran::Refused("Unavailable"),
    },
    Story {
        name: "cut",
        address: |place| {
            let line = CutLine::start(place.ports.daemon, 200_000, usize::MAX);
            place.by_daemon(line.port())
        },
        kind: Some("NetworkBlip"),
        state: "not_saved",
        says: "",
        ran: Ran::Saved,
    },
    Story {
        name: "drops",
        address: |place| {
            // Only the end of a name is as that of the branch.
            let decoy = format!("refs/heads/x/refs/heads/{BRANCH}");
            let drop = format!(
                "git update-ref {decoy} refs/heads/{BRANCH}; git update-ref -d refs/heads/{BRANCH}"
            );
            place.hook("post-receive", &format!("{drop}; echo x >> dropped"));
            place.by_path()
        },
        kind: Some("Unknown"),
        state: "not_saved",
        says: "and does not show it at stillframe/task/401-rejected",
        ran: Ran::Untried,
    },
    Story {
        name: "lags",
        address: |place| {
            let url = place.by_http(place.ports.lagging)?;
            let own = place.ports.base.join("lagging");
            let replica = own.join("replicas").join(PLACE);
            fs::create_dir_all(&replica).unwrap();
            let copied = Call::new("/bin/cp", "/").args(["-r".as_ref(), place.bare().as_os_str()]);
            copied.args([&replica]).run().ok();
            // The answers to the first questions are old ones: before it is sent, and after that.
            fs::write(own.join("lag"), "xx").unwrap();
            Some(url)
        },
        kind: None,
        state: "pushed",
        says: "",
        ran: Ran::Untried,
    },
    Story {
        name: "secret",
        address: |place| {
            place
                .ws
                .write("key", "ghp_0123456789abcdefghijABCDEFGHIJ\n");
            place.by_path()
        },
        kind: Some("SecretFound"),
        state: "not_saved",
        says: "key line 1",
        ran: Ran::Saved,
    },
];

/// A repository of the user's in the middle of work.
fn workspace() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    ws.write("staged", "staged\n");
    ws.git(["add", "staged"]);
    ws.write("staged", "and changed\n");
    ws.write("README", "changed\n");
    ws.write("d/401 rejected", "untracked\n");
    // More than what goes over a line before it is cut, and than what a small server takes.
    let mut noise = blake3::Hasher::new().update(b"401").finalize_xof();
    let mut bytes = vec![0; 400_000];
    noise.fill(&mut bytes);
    ws.write("noise", &bytes);
    ws
}

impl Story {
    fn tell(&self, ports: &Ports) {
        let place = Place {
            ports,
            ws: workspace(),
            name: self.name,
        };
        let parent = place.bare().parent().unwrap().to_owned();
        let bare = format!("{}.git", self.name);
        git::text(&place.ws.home(), &parent, ["init", "-q", "--bare", &bare]);
        let Some(address) = (self.address)(&place) else {
            return;
        };
        let call = |args: &[&str]| {
            let call = place.ws.call(args);
            let call = match (&ports.ssh, self.name) {
                (Some(ssh), "unknown-key") => call.env("PATH", &ssh.unknown),
                (Some(ssh), _) => call.env("PATH", &ssh.known),
                (None, _) => call,
            };
            let call = call.env("LC_ALL", "de_DE.UTF-8").env("LANG", "de_DE.UTF-8");
            call.env("LANGUAGE", "de")
        };
        let before = place.refs();
        let checkpoint = ["task", "checkpoint", TASK, "--remote", &address];
        let code = i32::from(self.kind.is_some());
        let saved = place.ws.untouched(|| {
            let args = [&["--json"][..], &checkpoint, &["--on-divergence", "merge"]];
            call(&args.concat()).run().exits(code).json()
        });
        self.is_told(&place, &saved);
        self.is_kept(&place, &saved);
        let after = place.refs();
        match self.state {
            "not_saved" if self.name != "drops" => assert_eq!(after, before, "{}", self.name),
            _ => assert!(after.is_superset(&before), "{}: {after:?}", self.name),
        }
        if self.ran == Ran::Untried {
            return;
        }
        self.is_said(&place, &call(&checkpoint).run().exits(code).stdout_text());
        let run = ["--json", "run", "--task", TASK, "--remote", &address, "--"];
        let run = call(&[&run[..], &["sh", "-c", "touch ran; exit 3"]].concat()).run();
        match self.ran {
            Ran::Refused(kind) => {
                run.exits(125).error(kind);
                assert!(!place.ws.exists("ran"), "{}", self.name);
            }
            _ => {
                let outcome = run.exits(3).json();
                assert_eq!(outcome["status"], "failed", "{}", self.name);
                let why = outcome["error"]["message"].as_str().unwrap();
                assert_eq!(why, "the command exited with code 3", "{}", self.name);
                self.is_told(&place, &outcome["workspace"]["saved"]);
                self.is_kept(&place, &outcome["workspace"]["saved"]);
            }
        }
        if self.state == "not_saved" {
            assert_eq!(place.refs(), before, "{}", self.name);
        }
        let tries = fs::read_to_string(place.bare().join("tries")).unwrap_or_default();
        if tries.lines().count() > 0 {
            assert_eq!(tries.lines().count(), 3, "{}: once for each", self.name);
        }
    }

    /// What the document says.
    fn is_told(&self, place: &Place<'_>, saved: &Value) {
        let name = self.name;
        assert_eq!(saved["state"], self.state, "{name}: {saved}");
        assert_eq!(saved["branch"], BRANCH, "{name}");
        match self.kind {
            None => {
                assert!(saved.get("failure").is_none_or(Value::is_null), "{saved}");
                let at = place.git(&["rev-parse", &format!("refs/heads/{BRANCH}")]);
                assert_eq!(saved["commit"], *at, "{name}");
            }
            Some(kind) => {
                assert_eq!(saved["failure"], kind, "{name}: {saved}");
                let error = saved["error"].as_str().unwrap();
                assert!(error.contains(self.says), "{name}: {error}");
                assert!(!error.contains('\n'), "{name}: {error}");
            }
        }
        if self.state == "pushed_beside" {
            let side = saved["side_branch"].as_str().unwrap();
            let at = place.git(&["rev-parse", &format!("refs/heads/{side}")]);
            assert_eq!(saved["commit"], *at, "{name}");
        }
    }

    /// The store has the work under the name that is told.
    fn is_kept(&self, place: &Place<'_>, saved: &Value) {
        let store = place.ws.stores()[0].join("git");
        let kept = saved["kept_as"].as_str().unwrap();
        let at = git::text(&place.ws.home(), &store, ["rev-parse", kept]);
        assert_eq!(saved["commit"], *at, "{}", self.name);
        let file = format!("{kept}:d/401 rejected");
        let has_it = git::text(&place.ws.home(), &store, ["cat-file", "-p", &file]);
        assert_eq!(has_it, "untracked", "{}", self.name);
    }

    /// The line for people names the branch, and where the work is.
    fn is_said(&self, place: &Place<'_>, said: &str) {
        let name = self.name;
        assert_eq!(said.lines().count(), 1, "{name}: {said}");
        let (commit, rest) = said.split_once(' ').unwrap();
        assert!(rest.contains(BRANCH), "{name}: {said}");
        let at = match self.state {
            "not_saved" => {
                assert!(rest.starts_with("is not on "), "{name}: {said}");
                let (_, kept) = rest.trim_end().rsplit_once(" as ").unwrap();
                let store = place.ws.stores()[0].join("git");
                git::text(&place.ws.home(), &store, ["rev-parse", kept])
            }
            _ => {
                assert!(rest.contains("proven"), "{name}: {said}");
                let branch = rest.strip_prefix("is on ").unwrap().split(' ').next();
                place.git(&["rev-parse", &format!("refs/heads/{}", branch.unwrap())])
            }
        };
        assert!(at.starts_with(commit), "{name}: {said}");
    }
}

#[test]
fn each_kind_is_told_with_where_the_work_is_and_nothing_moves() {
    let base = TestWorkspace::plain();
    let servers = Servers::start(&base);
    let ports = servers.ports(&base);
    let next = Mutex::new(STORIES.iter());
    let telling = || {
        loop {
            let Some(story) = next.lock().unwrap().next() else {
                return;
            };
            story.tell(&ports);
        }
    };
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(telling);
        }
    });
    let kinds: BTreeSet<&str> = STORIES.iter().filter_map(|story| story.kind).collect();
    let all = [
        "AuthDenied",
        "LocalGit",
        "NetworkBlip",
        "RefConflict",
        "RemoteDivergent",
        "RemotePolicyRejected",
        "SecretFound",
        "Unknown",
    ];
    assert!(kinds.iter().copied().eq(all), "{kinds:?}");
}

#[tokio::test]
async fn one_that_never_answers_is_given_up_and_the_work_is_kept() {
    let ws = workspace();
    let silence = Silence::start();
    let engine = Engine::start(EngineOptions::default().state_dir(ws.state()));
    let engine = engine.await.unwrap();
    let session = engine.session("s").await.unwrap();
    for scheme in ["git", "http", "ssh"] {
        let address = format!("{scheme}://127.0.0.1:{}/401-rejected.git", silence.port());
        let branch = WorkBranchOptions::of(TASK).remote(address);
        let branch = branch.call_timeout(Duration::from_millis(300));
        let workspace = WorkspaceOptions::at(ws.root());
        let saved = session.checkpoint(&workspace, &branch).await.unwrap();
        assert_eq!(saved.failure.as_deref(), Some("NetworkBlip"), "{saved:?}");
        let why = saved.error.unwrap();
        assert!(why.contains("not done within 300 ms"), "{why}");
        let store = ws.stores()[0].join("git");
        let kept = ["rev-parse", &saved.kept_as.unwrap()];
        let kept = git::text(&ws.home(), &store, kept);
        assert_eq!(Some(kept), saved.commit);
    }
    engine.shutdown().await.unwrap();
}

/// What is no repository of the user's, or none with files, is refused before git is started.
#[test]
fn without_a_repository_no_git_is_started() {
    let plain = TestWorkspace::plain();
    let path = super::progress::counting_git(plain.base());
    let calls = plain.base().join("calls");
    let run = ["--json", "run", "--task", TASK, "--remote", "/nowhere/401"];
    let run = [&run[..], &["--", "sh", "-c", "echo x > work; exit 3"]].concat();
    let outcome = plain.call(run).env("PATH", &path).run().exits(3).json();
    assert_eq!(outcome["status"], "failed");
    let saved = &outcome["workspace"]["saved"];
    assert_eq!(
        (saved["state"].as_str(), saved["failure"].as_str()),
        (Some("not_saved"), Some("Unknown")),
        "{outcome}"
    );
    assert!(saved["snapshot"].is_string(), "{saved}");
    let checkpoint = ["--json", "task", "checkpoint", TASK, "--remote", "/nowhere"];
    let refused = plain.call(checkpoint).env("PATH", &path).run().exits(1);
    refused.error("Unsupported");
    let bare = plain.base().join("bare.git");
    git::text(
        &plain.home(),
        plain.base(),
        ["init", "-q", "--bare", "bare.git"],
    );
    let in_bare = |args: &[&str]| plain.call(args).cwd(&bare).env("PATH", &path).run();
    let refused = in_bare(&checkpoint);
    assert_ne!(refused.code, 0, "{refused}");
    let refused = in_bare(&["--json", "task", "resume", TASK, "--remote", "/nowhere"]);
    assert_ne!(refused.code, 0, "{refused}");
    assert!(!calls.exists(), "{:?}", read(&calls));
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
