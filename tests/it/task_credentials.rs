//! How a task's remote is asked, and what the user has set of that once: the built program, git's
//! own server, and what anybody can see of processes and files meanwhile.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use stillframe_tests::servers::{HttpOptions, HttpServer};
use stillframe_tests::{Call, Output, TestWorkspace, git};

const BRANCH: &str = "stillframe/task/42";

/// The password that the server wants.
const TOKEN: &str = "t0ken-of-the-test-e19";

/// A workspace with new work, and a server that takes it from who has the token.
struct Scene {
    ws: TestWorkspace,
    port: u16,
    url: String,
    _server: HttpServer,
}

impl Scene {
    /// `user`: who has the token.
    fn new(user: &'static str) -> Option<Self> {
        let ws = TestWorkspace::repository();
        let home = ws.home();
        let served = ws.base().join("served");
        fs::create_dir(&served).unwrap();
        git::text(&home, &served, ["init", "-q", "--bare", "remote.git"]);
        let options = HttpOptions {
            user: Some((user, TOKEN)),
            ..HttpOptions::default()
        };
        let server = HttpServer::start(&ws.base().join("http"), &served, options)?;
        let port = server.port();
        ws.write("new", "x\n");
        Some(Self {
            url: format!("http://127.0.0.1:{port}/git/remote.git"),
            ws,
            port,
            _server: server,
        })
    }

    fn bare(&self) -> PathBuf {
        self.ws.base().join("served/remote.git")
    }

    /// Where the branch is, as the server's own files say.
    fn at(&self, branch: &str) -> String {
        let args = ["for-each-ref", "--format=%(objectname)", branch];
        git::text(&self.ws.home(), &self.bare(), args)
    }

    /// From here on a push lasts long enough to be seen among the processes.
    fn takes_a_while(&self) {
        let hook = self.bare().join("hooks/pre-receive");
        fs::create_dir_all(hook.parent().unwrap()).unwrap();
        fs::write(&hook, "#!/bin/sh\nsleep 1\n").unwrap();
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Writes the user's `config.toml`.
    fn set(&self, text: &str) {
        let directory = self.ws.home().join(".config/stillframe");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("config.toml"), text).unwrap();
    }

    /// A program of the user's, outside of the repository.
    fn program(&self, name: &str, script: &str) -> String {
        let path = self.ws.base().join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    /// A file with the token and more, and the command that prints it.
    fn printing(&self) -> String {
        let path = self.ws.base().join("of-vault");
        fs::write(&path, format!("{TOKEN}\nuser: somebody\n")).unwrap();
        format!("cat {} | cat", path.display())
    }

    fn checkpoint(&self, args: &[&str]) -> Output {
        let all = ["task", "checkpoint", "42"].iter().chain(args);
        self.ws.try_json(all)
    }

    /// Fails if the token is in any file of Stillframe's, of the repository's or of its store's.
    fn is_in_no_file(&self) {
        for place in [self.ws.state(), self.ws.root().to_owned()] {
            is_in_no_file_of(&place);
        }
    }
}

fn is_in_no_file_of(place: &Path) {
    for entry in walkdir::WalkDir::new(place) {
        let entry = entry.unwrap();
        if entry.file_type().is_file() {
            let bytes = fs::read(entry.path()).unwrap();
            assert!(!has_token(&bytes), "{}", entry.path().display());
        }
    }
}

fn has_token(bytes: &[u8]) -> bool {
    bytes.windows(TOKEN.len()).any(|at| at == TOKEN.as_bytes())
}

/// What `call` came to. While it is at work no process has the token among its arguments, and
/// `some` have it in their environment.
fn watched(call: Call) -> Output {
    let mut looks = 0;
    let mut in_environment = 0;
    let mut has_ended = false;
    let mut running = call.start();
    running.until("it ends", |running| {
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let text = |name: &str| fs::read(process.path().join(name)).unwrap_or_default();
            let arguments = text("cmdline");
            let shown = String::from_utf8_lossy(&arguments);
            assert!(!has_token(&arguments), "{shown}");
            in_environment += usize::from(has_token(&text("environ")));
        }
        looks += 1;
        let status = format!("/proc/{}/stat", running.pid().as_raw_nonzero());
        has_ended = !fs::read_to_string(status).is_ok_and(|stat| !stat.contains(") Z"));
        has_ended
    });
    assert!(looks > 1 && in_environment > 0, "{looks} {in_environment}");
    running.wait()
}

#[test]
fn the_token_of_a_command_is_in_the_environment_of_git_and_nowhere_else() {
    let Some(scene) = Scene::new("x-access-token") else {
        return;
    };
    scene.takes_a_while();
    let line = scene.printing();
    let args = ["--json", "--log", "trace", "task", "checkpoint", "42"];
    let args = args.iter().copied();
    let args = args.chain(["--remote", &scene.url, "--token-command", &line]);
    let sent = watched(scene.ws.call(args)).ok();
    assert_eq!(sent.json()["state"], "pushed");
    assert_eq!(
        scene.at(&format!("refs/heads/{BRANCH}")),
        sent.json()["commit"]
    );
    assert!(!has_token(&sent.stdout) && !has_token(&sent.stderr));

    // A run asks twice: before it begins, and when its work is saved.
    let asked = scene.ws.base().join("asked");
    let counted = format!("echo $STILLFRAME_REMOTE >>{}; {line}", asked.display());
    let run = ["run", "--task", "42", "--remote", &scene.url];
    let run = run.iter().copied();
    let run = run.chain(["--token-command", &counted, "--", "sh", "-c", "env; exit 3"]);
    let failed = scene.ws.try_json(run).exits(3);
    assert_eq!(failed.json()["workspace"]["saved"]["state"], "no_changes");
    assert_eq!(
        fs::read_to_string(asked).unwrap(),
        format!("{0}\n{0}\n", scene.url)
    );
    assert!(!has_token(&failed.stdout) && !has_token(&failed.stderr));
    for args in [&["events"][..], &["runs"], &["task", "show", "42"]] {
        assert!(!has_token(&scene.ws.try_json(args).ok().stdout));
    }
    scene.is_in_no_file();
}

#[test]
fn a_password_in_an_address_is_told_to_git_alone_wherever_it_comes_from() {
    let Some(scene) = Scene::new("me") else {
        return;
    };
    let ws = &scene.ws;
    let with_login = scene.url.replace("//", &format!("//me:{TOKEN}@"));
    let silent = |output: Output| {
        assert!(
            !has_token(&output.stdout) && !has_token(&output.stderr),
            "{output}"
        );
        output
    };
    let call = |args: &[&str]| silent(ws.call(args).run());
    let run = ["run", "--task", "42", "--log", "trace"];
    let command = ["--", "sh", "-c", "date +%N >new"];
    let typed = [&run[..], &["--remote", &with_login], &command].concat();
    let said = call(&typed).ok().stderr_text();
    let again = format!("stillframe task resume 42 --remote {}", scene.url);
    assert!(said.contains(&again), "{said}");
    assert!(said.contains("pushed and proven"), "{said}");
    let carried = "changes that were here before the run, and not committed";
    assert!(said.contains(carried), "{said}");
    call(&["task", "show", "42", "--remote", &with_login]).ok();
    // A run whose command saves its work asks as the user has set, with what is kept of the run.
    scene.set(&format!("[task]\nremote = {with_login:?}\n"));
    let own = stillframe_tests::binary::stillframe().display().to_string();
    let saves = format!("date +%N >new; {own} --json task checkpoint");
    let set = [&run[..], &["--", "sh", "-c", &saves]].concat();
    let set = call(&set).ok();
    assert!(!set.stderr_text().contains(carried), "{set}");
    assert!(set.stdout_text().contains(r#""state":"pushed""#), "{set}");
    let runs = call(&["--json", "runs"]).ok();
    let id = runs.json()[0]["run_id"].as_str().unwrap().to_owned();
    let to = ws.base().join("export");
    call(&["export", &id, "--to", to.to_str().unwrap()]).ok();
    for args in [
        &["events"][..],
        &["--json", "show", &id],
        &["--json", "task", "show", "42"],
        &["config", "show"],
    ] {
        assert!(call(args).ok().stdout_text().len() > 2, "{args:?}");
    }
    for place in [ws.state(), ws.root().to_owned(), to] {
        is_in_no_file_of(&place);
    }
}

#[test]
fn a_command_without_a_token_is_named_with_its_exit_and_without_its_words() {
    let Some(scene) = Scene::new("x-access-token") else {
        return;
    };
    let line = scene.printing();
    let printing = scene.program("printing", &format!("{line}; {line} >&2; exit $1"));
    let denied = |command: &str| {
        let args = ["--remote", &scene.url, "--token-command", command];
        let denied = scene.checkpoint(&args).exits(1);
        assert!(!has_token(&denied.stdout) && !has_token(&denied.stderr));
        let document = denied.json();
        assert_eq!(document["failure"], "AuthDenied", "{document}");
        assert!(document["commit"].is_string(), "the work is kept");
        document["error"].as_str().unwrap().to_owned()
    };
    for (command, said) in [
        (format!("{printing} 3"), "printing …) exited with code 3"),
        (format!("{line} >&2"), "printed no token"),
        ("exec nobody-has-this".to_owned(), "exited with code 127"),
    ] {
        let error = denied(&command);
        assert!(error.contains(said), "{error}");
    }
    let error = denied("echo wr0ng");
    assert!(!error.contains("wr0ng"), "{error}");
    scene.is_in_no_file();
    // A run does not begin where nobody knows who asks.
    let run = ["run", "--task", "42", "--remote", &scene.url];
    let run = run.iter().copied();
    let run = run.chain(["--token-command", "false", "--", "touch", "ran"]);
    let refused = scene.ws.try_json(run).exits(125);
    let message = refused.error("Unavailable");
    assert!(
        message.contains("(false …) exited with code 1"),
        "{message}"
    );
    assert!(!scene.ws.exists("ran"));

    for wrong in [
        &["--token-command", "true", "--token-env", "X"][..],
        &["--token-command", " "],
        &["--token-env", "A=B"],
    ] {
        scene.checkpoint(wrong).exits(2);
    }
}

#[test]
fn a_command_that_hangs_ends_with_who_asked_for_it_and_so_does_what_it_started() {
    let Some(scene) = Scene::new("x-access-token") else {
        return;
    };
    let pid = scene.ws.base().join("pid");
    let line = format!("sh -c 'echo $$ >{}; exec sleep 600'; true", pid.display());
    let args = ["task", "checkpoint", "42", "--remote", &scene.url];
    let args = args.iter().copied().chain(["--token-command", &line]);
    let mut running = scene.ws.call(args).start();
    let started = || fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n'));
    running.until("the command runs", |_| started());
    let begin = Instant::now();
    running.signal(Signal::INT);
    running.wait();
    assert!(begin.elapsed() < Duration::from_secs(30));
    let hanging = fs::read_to_string(&pid).unwrap();
    let hanging = format!("/proc/{}/stat", hanging.trim());
    while fs::read_to_string(&hanging).is_ok_and(|stat| !stat.contains(") Z")) {
        assert!(begin.elapsed() < Duration::from_secs(30), "it is left");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn no_repository_takes_part_in_what_a_command_does() {
    let Some(scene) = Scene::new("x-access-token") else {
        return;
    };
    // What the user's git knows of a repository is what it is asked for where that is.
    scene.ws.git(["config", "user.token", "wr0ng"]);
    let global = format!("[user]\n\ttoken = {TOKEN}\n");
    fs::write(scene.ws.home().join(".gitconfig"), global).unwrap();
    let args = ["--json", "task", "checkpoint", "42", "--remote", &scene.url];
    let args = args.iter().copied();
    let args = args.chain(["--token-command", "pwd >&2; git config user.token"]);
    let call = scene.ws.call(args);
    let sent = call.env("GIT_DIR", scene.ws.root().join(".git")).run().ok();
    assert_eq!(sent.json()["state"], "pushed");
}

#[test]
fn helpers_of_the_users_global_configuration_are_asked_and_no_others() {
    let Some(scene) = Scene::new("me") else {
        return;
    };
    let (ws, port) = (&scene.ws, scene.port);
    let asked = ws.base().join("asked");
    let helper = scene.program(
        "helper",
        &format!(
            "test \"$1\" = get || exit 0\ncat >>{}\necho username=me\necho password={TOKEN}",
            asked.display()
        ),
    );
    fs::write(
        ws.home().join(".gitconfig"),
        format!(
            "[core]\n\taskPass = touch {0}/owned\n[credential]\n\thelper = !touch {0}/of-all; false\n\
             [credential \"http://127.0.0.1:{port}\"]\n\thelper =\n\thelper = {helper}\n\tusername = me\n\tuseHttpPath = true\n\
             [credential \"http://127.0.0.1:1\"]\n\thelper = !touch {0}/owned\n",
            ws.base().display()
        ),
    )
    .unwrap();
    // Whatever a repository comes with, or a shell above.
    let touch = format!("!touch {}/owned; false", ws.base().display());
    ws.git(["config", "credential.helper", &touch]);
    let of_url = format!("credential.http://127.0.0.1:{port}.helper");
    ws.git(["config", &of_url, &touch]);
    let own = scene.program(
        "own",
        &format!("touch {}/owned; echo x", ws.base().display()),
    );
    ws.git(["config", "core.askPass", &own]);
    let call = |args: &[&str]| {
        let args = ["--json", "task", "checkpoint", "42"].iter().chain(args);
        let call = ws
            .call(args)
            .env("GIT_ASKPASS", &own)
            .env("SSH_ASKPASS", &own);
        call.env("DISPLAY", ":9").run()
    };
    let is_asked = || fs::read_to_string(&asked).unwrap_or_default();
    ws.git(["remote", "add", "origin", &scene.url]);
    let nobody = call(&[]).exits(1).json();
    assert_eq!(nobody["failure"], "AuthDenied");
    assert_eq!(is_asked(), "", "nobody wanted that");

    scene.set("[task]\ncredential = \"git\"\n");
    scene.takes_a_while();
    let sent = watched(ws.call(["--json", "task", "checkpoint", "42"]))
        .ok()
        .json();
    assert_eq!(sent["state"], "pushed");
    for line in ["username=me\n", "path=git/remote.git\n"] {
        assert!(is_asked().contains(line), "{}", is_asked());
    }
    ws.write("new", "more\n");
    assert_eq!(call(&[]).ok().json()["state"], "pushed");
    // What is typed counts before what is set.
    let typed = call(&["--token-command", "echo wr0ng"]).exits(1).json();
    assert_eq!(typed["failure"], "AuthDenied");
    // What the address itself says is not asked for. No process of a test has it as an argument.
    let with_login = scene.url.replace("//", &format!("//me:{TOKEN}@"));
    let config = ws.root().join(".git/config");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(
        &config,
        format!("{text}[remote \"known\"]\n\turl = {with_login}\n"),
    )
    .unwrap();
    let before = is_asked();
    let known = call(&["--remote", "known"]).ok().json();
    assert_eq!(
        (&known["state"], &known["remote"]),
        (&"no_changes".into(), &scene.url.clone().into())
    );
    assert_eq!(is_asked(), before);
    for path in ["owned", "of-all"] {
        assert!(!ws.base().join(path).exists(), "{path}");
    }
    fs::remove_file(ws.home().join(".gitconfig")).unwrap();
    assert_eq!(call(&[]).exits(1).json()["failure"], "AuthDenied");
    assert!(!ws.base().join("owned").exists());
}

/// A setting of a task as `task show` has it: what holds, who says so, and the line.
fn setting(shown: &Value, key: &str) -> (Value, Value, Value) {
    let all = shown["settings"].as_array().unwrap();
    let held = all.iter().find(|held| held["key"] == key);
    let held = held.unwrap_or_else(|| panic!("{key} in {shown}"));
    let of = |name: &str| held[name].clone();
    (of("value"), of("source"), of("line"))
}

#[test]
fn what_is_set_once_is_enough_and_what_is_typed_counts_before_it() {
    let Some(scene) = Scene::new("x-access-token") else {
        return;
    };
    let ws = &scene.ws;
    let line = scene.printing();
    scene.set(&format!(
        "[task]\nremote = {:?}\nnamespace = \"Acme/Web Shop\"\ntoken_command = {line:?}\n",
        scene.url
    ));
    let branch = "stillframe/task/acme/web-shop/42";
    assert_eq!(ws.json(["task", "name", "42"])["branch"], branch);
    let sent = scene.checkpoint(&[]).ok().json();
    assert_eq!(
        (&sent["state"], &sent["branch"]),
        (&"pushed".into(), &branch.into())
    );
    assert_eq!(scene.at(&format!("refs/heads/{branch}")), sent["commit"]);
    // A run of a task has it as well, and one of none goes nowhere.
    let run = ws.json(["run", "--task", "42", "--", "touch", "more"]);
    assert_eq!(run["workspace"]["saved"]["state"], "pushed");
    let run = ws.json(["run", "--", "touch", "other"]);
    assert_eq!(run["workspace"]["saved"], Value::Null);

    let shown = ws.json(["task", "show", "42"]);
    assert_eq!(shown["namespace"], "acme/web-shop");
    let null = Value::Null;
    let file = |value: Value, line: u64| (value, "file".into(), line.into());
    let default = || (null.clone(), "default".into(), null.clone());
    assert_eq!(setting(&shown, "remote"), file(json!(scene.url), 2));
    assert_eq!(
        setting(&shown, "namespace"),
        file("Acme/Web Shop".into(), 3)
    );
    assert_eq!(setting(&shown, "token_command"), file(json!(line), 4));
    assert_eq!(setting(&shown, "token_env"), default());
    assert_eq!(setting(&shown, "credential"), default());
    assert_eq!(setting(&shown, "message"), default());
    let interval = ("120s".into(), "default".into(), null.clone());
    assert_eq!(setting(&shown, "checkpoint_interval"), interval);
    ws.git(["remote", "add", "upstream", "../served/remote.git"]);
    let typed = [
        "task",
        "show",
        "42",
        "--remote",
        "upstream",
        "--token-env",
        "X",
    ];
    let typed = ws.json(typed);
    let line = |value: Value| (value, "command_line".into(), null.clone());
    assert_eq!(setting(&typed, "remote"), line(json!(scene.bare())));
    assert_eq!(setting(&typed, "token_env"), line("X".into()));
    assert_eq!(setting(&typed, "token_command"), default());
    for name in ["acme/web-shop/42", "Acme/Web Shop/42"] {
        let named = ws.json(["task", "show", name]);
        assert_eq!(setting(&named, "namespace").1, "command_line", "{name}");
    }
    let twice = ["task", "show", "a/b/42", "--namespace", "c/d"];
    ws.try_json(twice).exits(2);
    let told = ws.stillframe(["task", "show", "42"]).ok().stdout_text();
    assert!(told.contains("config.toml, line 2\n"), "{told}");

    let wrong = scene
        .checkpoint(&["--token-command", "echo wr0ng"])
        .exits(1);
    assert_eq!(wrong.json()["failure"], "AuthDenied");
    ws.git(["switch", "-q", "main"]);
    let path = scene.bare();
    let typed = ["--remote", path.to_str().unwrap(), "--namespace", "o/p"];
    let typed = scene.checkpoint(&typed).ok().json();
    assert_eq!(typed["branch"], "stillframe/task/o/p/42");
    // Of a workspace, and nothing at all.
    let root = ws.root().display().to_string();
    scene.set(&format!(
        "[task]\ntoken_env = \"NONE\"\n[workspace.{root:?}.task]\nremote = \"upstream\"\n"
    ));
    let shown = ws.json(["task", "show", "o/p/42"]);
    let of_workspace = (json!(scene.bare()), "workspace".into(), 4.into());
    assert_eq!(setting(&shown, "remote"), of_workspace);
    scene.set("");
    let shown = ws.json(["task", "show", "o/p/42"]);
    assert_eq!(setting(&shown, "remote"), default());
    ws.git(["remote", "rename", "upstream", "origin"]);
    let shown = ws.json(["task", "show", "o/p/42"]);
    let repository = (json!(scene.bare()), "repository".into(), null.clone());
    assert_eq!(setting(&shown, "remote"), repository);
    let elsewhere = ws.base().to_str().unwrap();
    let shown = ws.json(["task", "show", "o/p/42", "--workspace", elsewhere]);
    assert_eq!(setting(&shown, "remote"), default());
    scene.is_in_no_file();
}

#[test]
fn a_token_for_all_workspaces_is_not_for_whatever_address_a_repository_comes_with() {
    let Some(scene) = Scene::new("x-access-token") else {
        return;
    };
    let ws = &scene.ws;
    let asked = ws.base().join("asked");
    let line = format!("touch {}; {}", asked.display(), scene.printing());
    let all = format!("[task]\ntoken_command = {line:?}\n");
    ws.git(["remote", "add", "origin", &scene.url]);
    for set in [all.clone(), format!("{all}remote = \"origin\"\n")] {
        scene.set(&set);
        let withheld = scene.checkpoint(&[]).exits(1).json();
        assert_eq!(withheld["failure"], "AuthDenied");
        let error = withheld["error"].as_str().unwrap();
        assert!(
            error.contains("does not say that its token is for this address"),
            "{error}"
        );
        assert!(!asked.exists());
    }
    // The user names it, the workspace, or the address.
    let sent = scene.checkpoint(&["--remote", "origin"]).ok().json();
    assert_eq!(sent["state"], "pushed");
    let root = ws.root().display().to_string();
    for set in [
        format!("{all}[workspace.{root:?}.task]\nremote = \"origin\"\n"),
        format!("[workspace.{root:?}.task]\ntoken_command = {line:?}\n"),
        format!("{all}remote = {:?}\n", scene.url),
    ] {
        scene.set(&set);
        assert_eq!(scene.checkpoint(&[]).ok().json()["state"], "no_changes");
    }
    // Where no token is sent nobody is asked for one.
    scene.set(&all);
    fs::remove_file(&asked).unwrap();
    ws.git(["remote", "set-url", "origin", "../served/remote.git"]);
    assert_eq!(scene.checkpoint(&[]).ok().json()["state"], "no_changes");
    assert!(!asked.exists());
}

#[test]
fn what_a_killed_run_left_is_sent_with_what_is_set() {
    let Some(scene) = Scene::new("x-access-token") else {
        return;
    };
    let ws = &scene.ws;
    let [asked, hold] = ["asked", "hold"].map(|name| ws.base().join(name));
    fs::write(&hold, "").unwrap();
    // The second question is when the work is saved, and waits for the kill.
    let line = format!(
        "echo $STILLFRAME_REMOTE >>{0}; if [ $(grep -c . {0}) = 2 ]; then \
         while [ -e {1} ]; do sleep 0.01; done; fi; {2}",
        asked.display(),
        hold.display(),
        scene.printing()
    );
    let all = format!("[task]\ntoken_command = {line:?}\n");
    let with_remote = format!("{all}remote = {:?}\n", scene.url);
    scene.set(&with_remote);
    let questions = || {
        fs::read_to_string(&asked)
            .unwrap_or_default()
            .lines()
            .count()
    };
    let killed = |from: usize| {
        let args = ["run", "--task", "42", "--", "touch", &format!("of-{from}")];
        let mut running = ws.call(args).start();
        running.until("its work is saved", |_| questions() == from + 2);
        running.kill();
        running.wait();
    };
    killed(0);
    fs::remove_file(&hold).unwrap();
    ws.json(["snapshot"]);
    let branch = format!("refs/heads/{BRANCH}");
    let tree = |of: &str| git::text(&ws.home(), &scene.bare(), ["ls-tree", "--name-only", of]);
    assert!(tree(&branch).contains("of-0"));

    // Where the address is nowhere but in the repository, nobody has the token.
    fs::write(&hold, "").unwrap();
    fs::write(&asked, "").unwrap();
    ws.git(["remote", "add", "origin", &scene.url]);
    let root = ws.root().display().to_string();
    scene.set(&format!(
        "[workspace.{root:?}.task]\ntoken_command = {line:?}\n"
    ));
    killed(0);
    fs::remove_file(&hold).unwrap();
    scene.set(&all);
    ws.json(["snapshot"]);
    assert_eq!(questions(), 2);
    let runs = ws.json(["runs"]);
    let saved = &ws.show(runs[0]["run_id"].as_str().unwrap())["workspace"]["saved"];
    assert_eq!(saved["failure"], "AuthDenied", "{runs}");
    scene.is_in_no_file();
}

#[test]
fn how_often_work_is_saved_can_be_set_and_typed() {
    let Some(scene) = Scene::new("x-access-token") else {
        return;
    };
    let ws = &scene.ws;
    scene.set(&format!(
        "[task]\nremote = {:?}\ncheckpoint_interval = \"1s\"\n",
        scene.bare().display().to_string()
    ));
    let saved_after = |args: &[&str], name: &str| {
        let script = format!("echo x >{name}; sleep 4; echo y >{name}");
        let all = ["run", "--task", "42"].iter().chain(args);
        let all = all.copied().chain(["--", "sh", "-c", &script]);
        let run = ws.json(all);
        let id = run["run_id"].as_str().unwrap();
        let shown = ws.json(["task", "show", "42"]);
        let of_run = shown["checkpoints"].as_array().unwrap().iter();
        of_run.filter(|made| made["run_id"] == id).count()
    };
    assert!(saved_after(&[], "set") >= 2);
    assert_eq!(saved_after(&["--checkpoint-every", "0"], "typed"), 1);
}

#[test]
fn a_secret_rule_of_the_users_holds_the_work_back_and_takes_the_value_out_of_the_log() {
    let ws = TestWorkspace::repository();
    let directory = ws.home().join(".config/stillframe");
    fs::create_dir_all(&directory).unwrap();
    let set = |text: &str| fs::write(directory.join("config.toml"), text).unwrap();
    git::text(
        &ws.home(),
        ws.base(),
        ["init", "-q", "--bare", "remote.git"],
    );
    ws.git(["remote", "add", "origin", "../remote.git"]);
    ws.write("key", "acme_0123456789\n");
    set("[secret_rules]\nacme_key = \"acme_[0-9]{10}\"\n");
    let refused = ws.try_json(["task", "checkpoint", "42"]).exits(1).json();
    assert_eq!(refused["failure"], "SecretFound");
    assert_eq!(refused["secrets"][0]["rule"], "acme_key");
    let shown = ws.json(["config", "show"]);
    let rules = shown["values"].as_array().unwrap();
    let rules = rules.iter().find(|held| held["key"] == "secret_rules");
    let rules = rules.unwrap();
    assert_eq!(
        (&rules["value"], &rules["line"]),
        (&"acme_key".into(), &2.into())
    );
    set("[secret_rules]\nacme_key = \"acme_[\"\n");
    let wrong = ws.stillframe(["config", "check"]).exits(2).stderr_text();
    assert!(
        wrong.contains("line 2") && wrong.contains("acme_key"),
        "{wrong}"
    );
    set("");
    let sent = ws.json(["task", "checkpoint", "42"]);
    assert_eq!(sent["state"], "pushed");
}
