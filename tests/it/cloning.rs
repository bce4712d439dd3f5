//! Repositories that are made and cloned: the built program, git itself as the oracle, its own
//! servers, and what anybody can see of processes and files meanwhile.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use stillframe::options::CloneOptions;
use stillframe::{Engine, EngineOptions, ErrorKind};
use stillframe_tests::capability::Mounts;
use stillframe_tests::servers::{HttpOptions, HttpServer, Silence};
use stillframe_tests::{Call, Output, TestWorkspace, git, view};

use crate::disk::noise;

/// The password that the server wants.
const TOKEN: &str = "t0ken-of-the-test-c17";

/// A place for new repositories, and what they may be cloned from.
struct Scene {
    ws: TestWorkspace,
}

impl Scene {
    fn new() -> Self {
        let ws = TestWorkspace::plain();
        fs::create_dir(ws.base().join("served")).unwrap();
        Self { ws }
    }

    /// Where new directories are made, and nothing else is.
    fn place(&self) -> PathBuf {
        self.ws.outside()
    }

    fn to(&self) -> PathBuf {
        self.place().join("made")
    }

    fn git<S: AsRef<OsStr>>(&self, at: &Path, args: impl IntoIterator<Item = S>) -> String {
        git::text(&self.ws.home(), at, args)
    }

    fn call(&self, verb: &str, args: &[&str]) -> Call {
        let to = self.to();
        let call = self.ws.call(["--json", verb]).args(args);
        call.args([to])
    }

    fn init(&self, args: &[&str]) -> Output {
        self.call("init", args).run()
    }

    fn clone(&self, args: &[&str]) -> Output {
        self.call("clone", args).run()
    }

    /// What is where new directories are made.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.place()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    /// A bare repository with all that a clone has to have, at `served/NAME`.
    fn served(&self, name: &str) -> PathBuf {
        let ws = &self.ws;
        ws.git(["init", "-q"]);
        ws.write(
            ".gitattributes",
            "*.crlf text eol=crlf\n*.id ident\n*.odd filter=odd\n",
        );
        ws.write("a b/c.crlf", "one\ntwo\n");
        ws.write("version.id", "$Id$\n");
        ws.write("file.odd", "as it is\n");
        ws.write(b"b\xff", "no name of text\n");
        ws.write_executable("run.sh", "#!/bin/sh\n");
        ws.symlink("link", "a b/c.crlf");
        ws.commit("first");
        ws.git(["tag", "light"]);
        ws.git(["tag", "-a", "-m", "said", "v1"]);
        ws.git(["switch", "-q", "-c", "feature/x"]);
        ws.write("of-feature", "x\n");
        ws.commit("second");
        ws.git(["switch", "-q", "main"]);
        let gitlink = format!("160000,{},sub", "1".repeat(40));
        ws.git(["update-index", "--add", "--cacheinfo", &gitlink]);
        ws.git(["commit", "-q", "-m", "with a submodule"]);
        let bare = ws.base().join("served").join(name);
        let root = ws.root().display().to_string();
        self.git(
            &self.place(),
            ["clone", "-q", "--bare", &root, bare.to_str().unwrap()],
        );
        bare
    }

    fn http(&self, own: &str, options: HttpOptions<'_>) -> Option<HttpServer> {
        let served = self.ws.base().join("served");
        HttpServer::start(&self.ws.base().join(own), &served, options)
    }

    /// Fails if the token is in any file of Stillframe's or of the clone.
    fn has_token_nowhere(&self) {
        for place in [self.ws.state(), self.place(), self.ws.home()] {
            for entry in walkdir::WalkDir::new(place) {
                let entry = entry.unwrap();
                if entry.file_type().is_file() {
                    let bytes = fs::read(entry.path()).unwrap();
                    assert!(!has_token(&bytes), "{}", entry.path().display());
                }
            }
        }
    }

    /// What the log says of sessions: the rows of workspaces.
    fn sessions(&self) -> usize {
        self.ws.json(["sessions"]).as_array().unwrap().len()
    }
}

fn has_token(bytes: &[u8]) -> bool {
    bytes.windows(TOKEN.len()).any(|at| at == TOKEN.as_bytes())
}

fn with_user<'a>(user: &'a str) -> HttpOptions<'a> {
    HttpOptions {
        user: Some((user, TOKEN)),
        ..HttpOptions::default()
    }
}

/// What git says of a clone: refs, configuration, index, status, HEAD.
fn as_git_says(scene: &Scene, clone: &Path) -> Vec<String> {
    let said = |args: &[&str]| scene.git(clone, args);
    let mut config: Vec<String> = said(&["config", "--local", "--list"])
        .lines()
        .map(str::to_owned)
        .collect();
    config.sort();
    scene.git(clone, ["fsck", "--strict", "--no-dangling"]);
    vec![
        said(&[
            "for-each-ref",
            "--format=%(refname) %(objectname) %(symref)",
        ]),
        config.join("\n"),
        said(&["ls-files", "--stage"]),
        said(&["status", "--porcelain=v2", "--branch"]),
        said(&["symbolic-ref", "HEAD"]),
    ]
}

#[test]
fn init_makes_one_empty_commit_and_then_its_row() {
    for is_there in [false, true] {
        let scene = Scene::new();
        let to = scene.to();
        if is_there {
            fs::create_dir(&to).unwrap();
            fs::set_permissions(&to, fs::Permissions::from_mode(0o2750)).unwrap();
        }
        let before = fs::metadata(&to).ok();
        let made = scene.init(&[]).ok().json();
        let git = |args: &[&str]| scene.git(&to, args);
        assert_eq!(made["branch"], "main");
        assert_eq!(made["path"], to.to_str().unwrap());
        assert_eq!(git(&["rev-parse", "main"]), made["commit"]);
        assert_eq!(git(&["symbolic-ref", "HEAD"]), "refs/heads/main");
        let logged = git(&["log", "--all", "--format=%s|%an <%ae>|%cn|%P"]);
        let own = "Stillframe <stillframe@localhost>|Stillframe|";
        assert_eq!(logged, format!("Initial commit|{own}"));
        assert_eq!(git(&["ls-tree", "HEAD"]), "");
        assert_eq!(git(&["status", "--porcelain", "--ignored"]), "");
        git(&["fsck", "--strict"]);
        assert_eq!(
            git(&["reflog", "--format=%gs"]),
            "commit (initial): Initial commit"
        );
        // As git makes one without a template.
        let theirs = scene.place().join("theirs");
        scene.git(&scene.place(), ["init", "-q", "theirs"]);
        let config = ["config", "--local", "--list"];
        assert_eq!(git(&config), scene.git(&theirs, config));
        fs::remove_dir_all(theirs).unwrap();
        let sessions = scene.ws.json(["sessions"]);
        assert_eq!(sessions[0]["id"], made["session_id"]);
        if let Some(before) = before {
            let after = fs::metadata(&to).unwrap();
            let known = |found: &fs::Metadata| (found.ino(), found.mode());
            assert_eq!(
                known(&after),
                known(&before),
                "whoever is in it stays there"
            );
        }
        assert_eq!(scene.names(), ["made"]);
        // What is a workspace is captured, and its commits are made.
        fs::write(to.join("new"), "x\n").unwrap();
        let call = scene.ws.call(["--json", "snapshot"]).cwd(&to);
        let taken = call.run().ok().json();
        assert_eq!(taken["metadata"]["files"], 1);
        git(&["add", "new"]);
        git(&["commit", "-q", "-m", "second"]);
    }
}

#[test]
fn init_is_by_the_user_whom_git_knows_and_on_the_branch_that_is_named() {
    let scene = Scene::new();
    let config = "[user]\n\tname = Jo\n\temail = jo@example.org\n[init]\n\tdefaultBranch = x\n";
    fs::write(scene.ws.home().join(".gitconfig"), config).unwrap();
    let made = scene.init(&["--branch", "trunk/one"]).ok().json();
    assert_eq!(made["branch"], "trunk/one");
    let said = ["log", "--format=%an <%ae> %cn <%ce>", "trunk/one"];
    let jo = "Jo <jo@example.org>";
    assert_eq!(scene.git(&scene.to(), said), format!("{jo} {jo}"));
    scene.git(&scene.to(), ["fsck", "--strict"]);
}

#[test]
fn init_touches_nothing_where_something_is() {
    let scene = Scene::new();
    let to = scene.to();
    let refused = |kind: &str| {
        let before = view::worktree(&scene.place());
        for verb in ["init", "clone"] {
            let args: &[&str] = match verb {
                "init" => &[],
                _ => &["/"],
            };
            scene.call(verb, args).run().refused(kind);
        }
        view::same(&before, &view::worktree(&scene.place()), kind);
        assert_eq!(scene.sessions(), 0);
    };
    fs::create_dir(&to).unwrap();
    fs::write(to.join("mine"), "precious\n").unwrap();
    refused("Conflict");
    fs::remove_file(to.join("mine")).unwrap();
    fs::create_dir(to.join(".git")).unwrap();
    refused("Conflict");
    fs::remove_dir_all(&to).unwrap();
    fs::write(&to, "a file\n").unwrap();
    refused("Conflict");
    fs::remove_file(&to).unwrap();
    for target in ["nowhere", "."] {
        symlink(target, &to).unwrap();
        refused("Conflict");
        fs::remove_file(&to).unwrap();
    }
    for (args, said) in [
        (&["init", "a/b/c"][..], "above"),
        (&["init", "/"], "directory"),
        (&["init", "new", "--branch", "a..b"], "no name of a branch"),
        (&["init", "new", "--branch=-x"], "no name of a branch"),
        (&["clone", "/", "a/b/c"], "above"),
    ] {
        let message = scene.ws.try_json(args).refused("InvalidOptions");
        assert!(message.contains(said), "{message}");
    }
    let inside = scene.ws.state().join("inside");
    let args = ["init".as_ref(), inside.as_os_str()];
    scene.ws.try_json(args).refused("InvalidOptions");
    assert!(!inside.exists() && scene.names().is_empty());
    assert!(fs::read_dir(scene.ws.root()).unwrap().next().is_none());
}

#[test]
fn a_clone_is_what_git_makes_of_it() {
    let scene = Scene::new();
    let bare = scene.served("a.git");
    let (path, url) = (
        bare.display().to_string(),
        format!("file://{}", bare.display()),
    );
    // Nothing of these takes part.
    let template = scene.ws.base().join("template");
    fs::create_dir_all(template.join("hooks")).unwrap();
    fs::write(template.join("owned"), "x").unwrap();
    let owned = scene.ws.base().join("owned");
    let config = format!(
        "[init]\n\ttemplateDir = {}\n[filter \"odd\"]\n\tsmudge = touch {}; cat\n",
        template.display(),
        owned.display()
    );
    fs::write(scene.ws.home().join(".gitconfig"), config).unwrap();
    let theirs = scene.place().join("theirs");
    for (address, is_there) in [(&path, false), (&url, true)] {
        if is_there {
            fs::create_dir(scene.to()).unwrap();
        }
        let cloned = scene.clone(&[address]).ok();
        assert!(!owned.exists(), "no filter was run");
        let git = ["clone", "-q", "--template=", address, "theirs"];
        let unfiltered = git::call(&scene.ws.home(), &scene.place(), git);
        unfiltered.env("GIT_CONFIG_GLOBAL", "/dev/null").run().ok();
        let cloned = cloned.json();
        assert_eq!(cloned["branch"], "main");
        assert_eq!(cloned["submodules"], serde_json::json!(["sub"]));
        assert_eq!(cloned["unconverted_paths"], serde_json::json!(["file.odd"]));
        assert_eq!(cloned["files"], 7);
        let mut ours = as_git_says(&scene, &scene.to());
        let mut expected = as_git_says(&scene, &theirs);
        if is_there {
            // The address is kept as the path that it means.
            ours[1] = ours[1].replace(&path, "");
            expected[1] = expected[1].replace(&url, "");
        }
        assert_eq!(ours, expected);
        let [ours, expected] = [scene.to(), theirs.clone()].map(|at| {
            // A submodule that was not fetched is an empty directory.
            view::worktree(&at).as_git_sees()
        });
        view::same(&expected, &ours, "the files are git's");
        assert!(!scene.to().join(".git/owned").exists());
        assert!(!scene.to().join(".git/objects/info/alternates").exists());
        assert_eq!(scene.sessions(), 1);
        // There is nothing that an undo would take back.
        let undo = scene.ws.call(["--json", "undo"]).cwd(scene.to());
        undo.run().refused("NotFound");
        // It goes on like any other.
        scene.git(&scene.to(), ["pull", "-q"]);
        scene.git(&scene.to(), ["switch", "-q", "feature/x"]);
        fs::remove_dir_all(scene.to()).unwrap();
        fs::remove_dir_all(&theirs).unwrap();
    }
}

/// Two clones of one repository share nothing, with it or with each other.
#[test]
fn a_clone_is_whole_by_itself_and_no_place_for_another() {
    let scene = Scene::new();
    let bare = scene.served("a.git");
    let path = bare.display().to_string();
    scene.clone(&[&path]).ok();
    fs::write(scene.to().join("mine"), "x").unwrap();
    scene.clone(&[&path]).refused("Conflict");
    let second = scene.place().join("second");
    let args = ["clone", &path, second.to_str().unwrap()];
    scene.ws.try_json(args).ok();
    assert!(!second.join("mine").exists());
    fs::remove_dir_all(&bare).unwrap();
    fs::remove_dir_all(&second).unwrap();
    scene.git(&scene.to(), ["fsck", "--strict", "--no-dangling"]);
    scene.git(&scene.to(), ["gc", "-q", "--prune=now"]);
    assert_eq!(scene.git(&scene.to(), ["status", "--porcelain"]), "?? mine");
}

#[test]
fn a_clone_begins_where_the_remotes_head_is() {
    let scene = Scene::new();
    let bare = scene.served("a.git");
    let path = bare.display().to_string();
    let theirs = scene.place().join("theirs");
    let feature = scene.git(&bare, ["rev-parse", "feature/x"]);
    let again = |branch: &str| {
        let cloned = scene.clone(&[&path]).ok().json();
        assert_eq!(cloned["branch"], branch);
        scene.git(
            &scene.place(),
            ["clone", "-q", "--template=", &path, "theirs"],
        );
        assert_eq!(
            as_git_says(&scene, &scene.to()),
            as_git_says(&scene, &theirs)
        );
        fs::remove_dir_all(scene.to()).unwrap();
        fs::remove_dir_all(&theirs).unwrap();
        cloned
    };
    scene.git(&bare, ["symbolic-ref", "HEAD", "refs/heads/feature/x"]);
    assert_eq!(again("feature/x")["commit"], feature);
    // A detached HEAD is at a branch for git, if one is there.
    scene.git(&bare, ["update-ref", "--no-deref", "HEAD", &feature]);
    assert_eq!(again("feature/x")["commit"], feature);
    // It names nothing.
    scene.git(&bare, ["symbolic-ref", "HEAD", "refs/heads/nowhere"]);
    let cloned = scene.clone(&[&path]).ok().json();
    assert_eq!(cloned["commit"], serde_json::Value::Null);
    assert_eq!(cloned["branch"], "main");
    assert_eq!(scene.git(&scene.to(), ["status", "--porcelain"]), "");
    scene.git(&scene.to(), ["switch", "-q", "feature/x"]);
    fs::remove_dir_all(scene.to()).unwrap();
    // It has nothing.
    let empty = scene.ws.base().join("served/empty.git");
    scene.git(
        &scene.place(),
        ["init", "-q", "--bare", empty.to_str().unwrap()],
    );
    let cloned = scene.clone(&[empty.to_str().unwrap()]).ok().json();
    assert_eq!(
        (&cloned["branch"], &cloned["files"]),
        (&"main".into(), &0.into())
    );
    scene.git(&scene.to(), ["fsck", "--strict"]);
    fs::remove_dir_all(scene.to()).unwrap();
    // It is no whole copy itself.
    let shallow = scene.ws.base().join("served/shallow.git");
    let from = format!("file://{}", scene.ws.root().display());
    let to = shallow.to_str().unwrap();
    let git = ["clone", "-q", "--bare", "--depth=1", &from, to];
    scene.git(&scene.place(), git);
    scene.clone(&[to]).ok();
    scene.git(&scene.to(), ["fsck", "--strict"]);
    assert_eq!(scene.git(&scene.to(), ["rev-list", "--count", "HEAD"]), "1");
}

#[test]
fn the_token_of_a_clone_is_in_the_environment_of_git_and_nowhere_else() {
    let scene = Scene::new();
    let bare = scene.served("a.git");
    let Some(server) = scene.http("http", with_user("x-access-token")) else {
        return;
    };
    // From here on a fetch lasts long enough to be seen among the processes.
    let slow = scene.ws.base().join("slow");
    fs::write(&slow, "#!/bin/sh\nsleep 1\nexec \"$@\"\n").unwrap();
    fs::set_permissions(&slow, fs::Permissions::from_mode(0o755)).unwrap();
    let hook = format!("[uploadpack]\n\tpackObjectsHook = {}\n", slow.display());
    fs::write(scene.ws.base().join("http/.gitconfig"), hook).unwrap();
    let url = format!("http://127.0.0.1:{}/git/a.git", server.port());
    let file = scene.ws.base().join("of-vault");
    fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let command = format!("cat {}", file.display());
    for (option, value) in [("--token-env", "OUR_TOKEN"), ("--token-command", &command)] {
        let call = scene.ws.call(["--json", "--log", "trace", "clone", &url]);
        let call = call.args([scene.to()]).args([option, value]);
        let call = match option {
            "--token-env" => call.env("OUR_TOKEN", TOKEN),
            _ => call,
        };
        let (mut in_environment, mut has_ended) = (0, false);
        let mut running = call.start();
        let own = running.pid().as_raw_nonzero().to_string();
        running.until("it ends", |_| {
            for process in fs::read_dir("/proc").unwrap().flatten() {
                let text = |name: &str| fs::read(process.path().join(name)).unwrap_or_default();
                let arguments = text("cmdline");
                let shown = String::from_utf8_lossy(&arguments);
                assert!(!has_token(&arguments), "{shown}");
                let is_own = process.file_name() == *own;
                in_environment += usize::from(!is_own && has_token(&text("environ")));
            }
            let stat = fs::read_to_string(format!("/proc/{own}/stat"));
            has_ended = !stat.is_ok_and(|stat| !stat.contains(") Z"));
            has_ended
        });
        assert!(in_environment > 0, "git has it");
        let cloned = running.wait().ok();
        assert_eq!(cloned.json()["remote"], url);
        assert!(!has_token(&cloned.stdout) && !has_token(&cloned.stderr));
        let of_git = scene.git(&scene.to(), ["remote", "get-url", "origin"]);
        assert_eq!(of_git, url);
        for args in [&["events"][..], &["sessions"], &["runs"]] {
            assert!(!has_token(&scene.ws.try_json(args).ok().stdout));
        }
        scene.has_token_nowhere();
        fs::remove_dir_all(scene.to()).unwrap();
    }
    fs::remove_file(scene.ws.base().join("http/.gitconfig")).unwrap();
    // What stands in the address is taken out of it.
    let with_login = url.replace("//", &format!("//x-access-token:{TOKEN}@"));
    let cloned = scene.clone(&[&with_login]).ok();
    assert!(!has_token(&cloned.stdout) && !has_token(&cloned.stderr));
    let heads = scene.git(&bare, ["rev-parse", "main"]);
    assert_eq!(scene.git(&scene.to(), ["rev-parse", "HEAD"]), heads);
    scene.has_token_nowhere();
}

#[test]
fn a_clone_with_a_wrong_token_leaves_nothing_and_says_it_nowhere() {
    let scene = Scene::new();
    scene.served("a.git");
    // Another user's token is wrong as well.
    let Some(server) = scene.http("http", with_user("somebody-else")) else {
        return;
    };
    let url = format!("http://127.0.0.1:{}/git/a.git", server.port());
    for is_there in [false, true] {
        if is_there {
            fs::create_dir(scene.to()).unwrap();
        }
        let before = fs::metadata(scene.to()).ok().map(|found| found.ino());
        for args in [&[&*url, "--token-env", "OUR_TOKEN"][..], &[&url]] {
            let call = scene.call("clone", args).env("OUR_TOKEN", TOKEN);
            let refused = call.run();
            assert!(!has_token(&refused.stdout) && !has_token(&refused.stderr));
            let message = refused.refused("Unavailable");
            assert!(
                message.contains("Authentication") || message.contains("Username"),
                "{message}"
            );
        }
        let message = scene
            .clone(&[&url, "--token-env", "NOBODY_SET_IT"])
            .refused("Unavailable");
        assert!(message.contains("NOBODY_SET_IT is not set"), "{message}");
        let after = fs::metadata(scene.to()).ok().map(|found| found.ino());
        assert_eq!(before, after);
        assert_eq!(scene.names().len(), usize::from(is_there));
        assert!(!is_there || fs::read_dir(scene.to()).unwrap().next().is_none());
    }
    assert_eq!(scene.sessions(), 0);
    scene.has_token_nowhere();
}

#[test]
fn a_clone_that_is_sent_elsewhere_takes_no_token_along() {
    let scene = Scene::new();
    scene.served("a.git");
    let closed = with_user("x-access-token");
    for (own, options, is_cloned) in [
        ("open", HttpOptions::default(), true),
        ("closed", closed, false),
    ] {
        let Some(other) = scene.http(own, options) else {
            return;
        };
        let moved_to = Some(other.port());
        let from = HttpOptions {
            moved_to,
            ..HttpOptions::default()
        };
        let server = scene.http(&format!("{own}-from"), from);
        let port = server.as_ref().map_or(0, HttpServer::port);
        let url = format!("http://127.0.0.1:{port}/git/moved/a.git");
        let call = scene.call("clone", &[&url, "--token-env", "OUR_TOKEN"]);
        let cloned = call.env("OUR_TOKEN", TOKEN).run();
        if is_cloned {
            let url = cloned.ok().json()["remote"].clone();
            assert_eq!(scene.git(&scene.to(), ["remote", "get-url", "origin"]), url);
            fs::remove_dir_all(scene.to()).unwrap();
        } else {
            // Whoever has the token is let in.
            let message = cloned.refused("Unavailable");
            assert!(message.contains("Username"), "{message}");
        }
        assert!(scene.names().is_empty());
        scene.has_token_nowhere();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_from_who_never_answers_is_given_up() {
    let scene = Scene::new();
    let silence = Silence::start();
    let url = format!("http://127.0.0.1:{}/git/a.git", silence.port());
    let options = EngineOptions::default().state_dir(scene.ws.state());
    let engine = Engine::start(options).await.unwrap();
    let clone = CloneOptions::of(&url, scene.to());
    assert_eq!(clone.timeout, Duration::from_secs(300));
    let clone = clone.timeout(Duration::from_millis(300));
    let error = engine.clone_repository(clone).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{}", error.chain());
    assert!(!error.touched());
    assert!(scene.names().is_empty());
    engine.shutdown().await.unwrap();

    // Nor does a person have to wait who has had enough.
    let mut running = scene.call("clone", &[&url]).start();
    running.until("it asks", |_| !scene.names().is_empty());
    running.signal(Signal::INT);
    let ended = running.wait();
    assert_eq!(ended.code, 130, "{}", ended.stderr_text());
    assert!(scene.names().is_empty());
}

#[test]
fn a_clone_that_the_disk_has_no_room_for_leaves_nothing() {
    let Some(mounts) = Mounts::new() else {
        return;
    };
    let scene = Scene::new();
    mounts.tmpfs(&scene.place(), "4m");
    let ws = &scene.ws;
    ws.git(["init", "-q"]);
    // In a pack it takes little, and as files too much.
    for number in 0..8 {
        ws.write(format!("lines/{number}"), "all alike\n".repeat(100_000));
    }
    ws.commit("files that are large");
    let source = ws.root().display().to_string();
    let inside = |call: Call| mounts.inside(call, ws.root()).run();
    let place = mounts.path(&scene.place());
    for is_there in [false, true] {
        if is_there {
            fs::create_dir(place.join("made")).unwrap();
        }
        let left = || {
            let entries = walkdir::WalkDir::new(&place).min_depth(1).into_iter();
            let paths = entries.map(|entry| entry.unwrap().path().to_owned());
            paths.filter(|path| !path.ends_with("made")).count()
        };
        let message = inside(scene.call("clone", &[&source])).refused("NoSpace");
        assert!(message.contains("nothing was cloned into"), "{message}");
        assert_eq!((left(), place.join("made").exists()), (0, is_there));
    }
    // Not even what git fetches has room.
    ws.write("noise", noise(8 << 20, 5));
    ws.commit("a pack that is large");
    let refused = inside(scene.call("clone", &[&source]));
    let message = refused.refused("Storage");
    assert!(message.contains("No space left"), "{message}");
    assert_eq!(fs::read_dir(place.join("made")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(&place).unwrap().count(), 1);
    // What was kept on the way is not kept any longer.
    let packs = walkdir::WalkDir::new(ws.state()).into_iter();
    let packs = packs.map(|entry| entry.unwrap().into_path());
    let packs = packs.filter(|path| path.extension().is_some_and(|e| e == "pack"));
    assert_eq!(packs.count(), 0);
}

#[test]
fn what_cannot_be_cloned_is_said_before_anything_is_made() {
    let scene = Scene::new();
    let own = scene.ws.base().join("owned");
    let helper = format!("ext::touch {}", own.display());
    for address in [
        "web",
        "a/b/c",
        "-x/y",
        "",
        &helper,
        "http://example.org/a",
        "ssh://-o/a",
    ] {
        let args = ["--json", "clone", "--", address];
        let call = scene.ws.call(args).args([scene.to()]);
        call.run().refused("InvalidOptions");
    }
    let message = scene.clone(&["/nowhere/a.git"]).refused("NotFound");
    assert!(message.contains("/nowhere/a.git"), "{message}");
    // A directory that is no repository.
    let nothing = scene.ws.home().display().to_string();
    scene.clone(&[&nothing]).refused("Storage");
    // Nobody is there who could answer for it.
    let call = scene.call("clone", &["acme/web"]);
    let refused = call.env("https_proxy", "http://127.0.0.1:1").run();
    let message = refused.refused("Unavailable");
    assert!(
        message.contains("https://github.com/acme/web "),
        "{message}"
    );
    assert!(!own.exists() && scene.names().is_empty());
    assert_eq!(scene.sessions(), 0);
}
