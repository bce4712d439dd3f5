//! Remotes that are given by their path. The other transports are in `tests/it/remote.rs` of the
//! workspace, with servers.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use stillframe_disk::interrupt::Interrupt;
use stillframe_disk::operation::Operation;
use stillframe_git::ObjectId;
use stillframe_git::test_repository::TestRepository;
use stillframe_model::error::chain;
use stillframe_model::interrupted::Interrupted;

use crate::Pushed;
use crate::address::Address;
use crate::branch_name::BranchName;
use crate::credential::Credential;
use crate::environment::Environment;
use crate::failure_kind::FailureKind;
use crate::git_process::{Git, GitError};
use crate::proof::{Proof, ProofError};
use crate::push::{Ancestry, Push, PushError};
use crate::remote::{FetchError, Remote};
use crate::secret::Secret;

/// A store with commits, and a bare repository that they are pushed to.
struct Stage {
    source: TestRepository,
    git: Git,
    address: Address,
}

impl Stage {
    fn new() -> Self {
        let source = TestRepository::with_commit();
        source.git(&["init", "-q", "--bare", "-b", "main", "../remote.git"]);
        let store = source.path.join(".git");
        let variables = [("HOME", source.home().into()), ("PATH", path())];
        let environment = Environment::of(variables.map(|(name, value)| (name.into(), value)));
        let remote = source.beside("remote.git");
        let parsed = Address::parse(remote.as_os_str(), &source.path).unwrap();
        Self {
            git: Git::new(store, environment),
            address: parsed.address,
            source,
        }
    }

    fn remote(&self) -> Remote<'_> {
        Remote {
            git: &self.git,
            address: &self.address,
            credential: &Credential::Anonymous,
        }
    }

    fn bare(&self) -> PathBuf {
        self.source.beside("remote.git")
    }

    /// A commit on top of the last one.
    fn commit(&self, text: &str) -> ObjectId {
        self.source.write("file", text);
        self.source.commit(text);
        self.head()
    }

    fn head(&self) -> ObjectId {
        self.source.git(&["rev-parse", "HEAD"]).parse().unwrap()
    }

    /// Where the remote has the branch, by git's own word.
    fn at(&self, branch: &BranchName) -> String {
        let remote = self.bare();
        let listed = self
            .source
            .git(&["ls-remote", remote.to_str().unwrap(), &branch.full()]);
        listed.split('\t').next().unwrap_or_default().to_owned()
    }

    fn hook(&self, name: &str, script: &str) {
        let path = self.bare().join("hooks").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn create(&self, branch: &BranchName, commit: ObjectId) -> Result<Pushed, PushError> {
        let push = Push::create(branch.clone(), commit);
        self.remote().push(&push, &Operation::unbounded())
    }

    fn advance(
        &self,
        branch: &BranchName,
        from: ObjectId,
        to: ObjectId,
    ) -> Result<Pushed, PushError> {
        let push = Push::advance(branch.clone(), Ancestry::proven(from, to));
        self.remote().push(&push, &Operation::unbounded())
    }
}

fn path() -> OsString {
    std::env::var_os("PATH").unwrap()
}

fn branch(name: &str) -> BranchName {
    BranchName::parse(name).unwrap()
}

#[track_caller]
fn kind(pushed: Result<Pushed, PushError>) -> FailureKind {
    pushed.expect_err("it was to be refused").failure()
}

#[test]
fn a_branch_is_made_goes_forward_and_is_proven() {
    let stage = Stage::new();
    let op = Operation::unbounded();
    let work = branch("stillframe/task/1");
    let first = stage.head();
    assert!(
        stage
            .remote()
            .branches(&op)
            .unwrap()
            .branch(&work)
            .is_none()
    );
    assert_eq!(stage.create(&work, first).unwrap(), Pushed::Created);
    let proof = stage.remote().prove(&work, first, None, &op).unwrap();
    assert_eq!(proof, Proof::Exact);
    let second = stage.commit("second");
    let pushed = stage.advance(&work, first, second).unwrap();
    assert_eq!(pushed, Pushed::FastForwarded);
    assert_eq!(stage.at(&work), second.to_string());
    let again = stage.advance(&work, second, second).unwrap();
    assert_eq!(again, Pushed::AlreadyThere);
    let moved = stage.remote().prove(&work, first, None, &op).unwrap();
    assert_eq!(moved, Proof::MovedTo(second));
    assert_eq!(stage.remote().refs(&op).unwrap().ids().count(), 1);
}

#[test]
fn nothing_of_somebody_elses_is_overwritten() {
    let stage = Stage::new();
    let work = branch("stillframe/task/1");
    let first = stage.head();
    let theirs = stage.commit("theirs");
    stage.create(&work, theirs).unwrap();
    stage
        .source
        .git(&["reset", "-q", "--hard", &first.to_string()]);
    let ours = stage.commit("ours");
    assert_eq!(
        kind(stage.create(&work, ours)),
        FailureKind::RemoteDivergent
    );
    let stale = stage.advance(&work, first, ours);
    assert_eq!(kind(stale), FailureKind::RemoteDivergent);
    assert_eq!(stage.at(&work), theirs.to_string());
    // What a push to where it went would be kept at.
    let side = work.side_branch("run_1");
    stage.create(&side, ours).unwrap();
    assert_eq!(stage.at(&side), ours.to_string());
}

#[test]
fn a_branch_above_or_below_the_name_is_a_conflict() {
    let stage = Stage::new();
    let first = stage.head();
    stage.create(&branch("a/b"), first).unwrap();
    for name in ["a", "a/b/c"] {
        let error = stage.create(&branch(name), first).unwrap_err();
        assert_eq!(error.failure(), FailureKind::RefConflict, "{error}");
        assert!(error.to_string().contains("refs/heads/a/b"), "{error}");
    }
}

#[test]
fn who_refuses_is_told_by_the_answer_and_not_by_words_of_hooks() {
    let stage = Stage::new();
    let work = branch("stillframe/task/401-rejected");
    let first = stage.head();
    let said = "echo '401 rejected (fetch first)' >&2; echo 'fatal: early EOF' >&2; exit 1";
    for hook in ["pre-receive", "update"] {
        stage.hook(hook, said);
        let error = stage.create(&work, first).unwrap_err();
        assert_eq!(
            error.failure(),
            FailureKind::RemotePolicyRejected,
            "{error}"
        );
        fs::remove_file(stage.bare().join("hooks").join(hook)).unwrap();
    }
    stage.create(&work, first).unwrap();
    assert_eq!(stage.at(&work), first.to_string());
    let no_remote = Address::parse("/nowhere/401".as_ref(), &stage.bare()).unwrap();
    let remote = Remote {
        address: &no_remote.address,
        ..stage.remote()
    };
    let error = remote.refs(&Operation::unbounded()).unwrap_err();
    assert_eq!(error.failure(), FailureKind::LocalGit);
    let told = "fatal: '/nowhere/401' does not appear to be a git repository";
    assert!(error.to_string().ends_with(told), "{error}");
}

#[test]
fn a_branch_that_cannot_be_locked_is_no_divergence() {
    let stage = Stage::new();
    let work = branch("stillframe/task/1");
    let first = stage.head();
    let lock = stage.bare().join("refs/heads/stillframe/task/1.lock");
    fs::create_dir_all(lock.parent().unwrap()).unwrap();
    fs::write(&lock, "").unwrap();
    let error = stage.create(&work, first).unwrap_err();
    assert_eq!(error.failure(), FailureKind::Unknown, "nobody said no");
    assert!(
        error.to_string().contains("1.lock': File exists."),
        "{error}"
    );
    // A branch that is there and stays, and one that is elsewhere.
    stage.create(&branch("a/b"), first).unwrap();
    fs::write(stage.bare().join("refs/heads/a/b.lock"), "").unwrap();
    let (second, third) = (stage.commit("second"), stage.commit("third"));
    for (from, expected) in [
        (first, FailureKind::Unknown),
        (second, FailureKind::RemoteDivergent),
    ] {
        assert_eq!(kind(stage.advance(&branch("a/b"), from, third)), expected);
    }
    fs::remove_file(stage.bare().join("refs/heads/a/b.lock")).unwrap();
    // Who has the lock is done soon.
    let pushed = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(400));
            fs::remove_file(&lock).unwrap();
        });
        stage.create(&work, first)
    });
    assert_eq!(pushed.unwrap(), Pushed::Created);
}

#[test]
fn what_a_hook_says_is_shown_and_decides_nothing() {
    let mut stage = Stage::new();
    let odd = stage.source.beside("rejected (fetch first) 401.git");
    fs::rename(stage.bare(), &odd).unwrap();
    std::os::unix::fs::symlink(&odd, stage.bare()).unwrap();
    let parsed = Address::parse(odd.as_os_str(), &stage.source.path).unwrap();
    stage.address = parsed.address;
    let variables = [
        ("HOME", stage.source.home().into()),
        ("PATH", path()),
        ("LANG", "de_DE.UTF-8".into()),
        ("LC_ALL", "de_DE.UTF-8".into()),
        ("LANGUAGE", "de".into()),
    ];
    let environment = Environment::of(variables.map(|(name, value)| (name.into(), value)));
    stage.git = Git::new(stage.source.path.join(".git"), environment);
    let first = stage.head();
    let said = "printf 'Ohne Nummer kein St\\303\\274ck: [rejected] (fetch first)\\n' >&2\n\
        printf 'fatal: Authentication failed\\n\\033[31m401 non-fast-forward\\n' >&2\n\
        printf 'error: cannot lock ref x: Unable to create x.lock: File exists.\\n' >&2\n\
        for n in 1 2 3 4 5 6 7 8 9; do head -c 999 /dev/zero | tr '\\0' x >&2; echo >&2; done\n\
        echo 'the last word' >&2\nexit 1";
    stage.hook("pre-receive", said);
    let work = branch("rejected-fetch-first/non-fast-forward-401");
    let error = stage.create(&work, first).unwrap_err();
    assert_eq!(error.failure(), FailureKind::RemotePolicyRejected);
    let told = error.to_string();
    let hooks = "(pre-receive hook declined); the remote says: \
        Ohne Nummer kein Stück: [rejected] (fetch first) / fatal: Authentication failed / ";
    assert!(told.contains(hooks), "{told}");
    assert!(told.ends_with(" / the last word"), "{told}");
    assert!(!told.contains(['\n', '\u{1b}']), "{told}");
    assert!(told.chars().count() < 2000, "{told}");

    let token = "tok-3f9a27c1e5d8".to_owned();
    stage.hook(
        "pre-receive",
        &format!("echo 'not with {token}' >&2; exit 1"),
    );
    let token = Credential::token(Secret::new(token.into()).unwrap(), None);
    let remote = Remote {
        credential: &token,
        ..stage.remote()
    };
    let push = Push::create(work, first);
    let error = remote.push(&push, &Operation::unbounded()).unwrap_err();
    assert!(error.to_string().ends_with("not with ***"), "{error}");
}

#[test]
fn a_directory_that_is_no_repository_is_a_fault_of_this_machine() {
    let stage = Stage::new();
    let plain = stage.source.beside("no repository");
    fs::create_dir(&plain).unwrap();
    let plain = plain.to_str().unwrap();
    for (text, path) in [
        ("/nowhere/remote.git", "/nowhere/remote.git"),
        ("file:///nowhere/remote.git", "/nowhere/remote.git"),
        (plain, plain),
        (&*format!("file://{plain}"), plain),
    ] {
        let parsed = Address::parse(text.as_ref(), &stage.source.path).unwrap();
        let remote = Remote {
            address: &parsed.address,
            ..stage.remote()
        };
        let op = Operation::unbounded();
        let error = remote.branches(&op).unwrap_err();
        assert_eq!(error.failure(), FailureKind::LocalGit, "{text}: {error}");
        let said = format!("fatal: '{path}' does not appear to be a git repository");
        assert!(error.to_string().ends_with(&said), "{error}");
        let push = Push::create(branch("a"), stage.head());
        let error = remote.push(&push, &op).unwrap_err();
        assert_eq!(error.failure(), FailureKind::LocalGit, "{text}: {error}");
    }
}

#[test]
fn an_update_that_is_dropped_is_not_proven() {
    let stage = Stage::new();
    let op = Operation::unbounded();
    let work = branch("stillframe/task/1");
    let first = stage.head();
    stage.hook(
        "post-receive",
        "exec git update-ref -d refs/heads/stillframe/task/1",
    );
    assert_eq!(stage.create(&work, first).unwrap(), Pushed::Created);
    let error = stage.remote().prove(&work, first, None, &op).unwrap_err();
    assert!(matches!(error, ProofError::NotShown { .. }), "{error}");
}

#[test]
fn what_is_fetched_is_in_the_store_and_in_no_ref() {
    let stage = Stage::new();
    let op = Operation::unbounded();
    let work = branch("stillframe/task/1");
    let first = stage.head();
    let theirs = stage.commit("theirs");
    stage.create(&work, theirs).unwrap();
    let store = stage.source.beside("store.git");
    stage.source.git(&["init", "-q", "--bare", "../store.git"]);
    let git = Git::new(&store, Environment::of([("PATH".into(), path())]));
    let other = Remote {
        git: &git,
        ..stage.remote()
    };
    let in_store = |args: &[&str]| stage.source.run(&store, args);
    assert!(
        !in_store(&["cat-file", "-e", &theirs.to_string()])
            .status
            .success()
    );
    other.fetch(theirs, &[], &op).unwrap();
    assert!(
        in_store(&["cat-file", "-e", &theirs.to_string()])
            .status
            .success()
    );
    assert!(in_store(&["for-each-ref"]).stdout.is_empty());
    assert!(!store.join("FETCH_HEAD").exists());
    let loose = in_store(&["count-objects", "-v"]).stdout;
    assert!(
        loose.starts_with(b"count: 0\n"),
        "a pack, and nothing loose"
    );
    other.fetch(theirs, &[theirs], &op).unwrap();
    let _ = first;

    let nowhere: ObjectId = "1".repeat(40).parse().unwrap();
    let error = other.fetch(nowhere, &[], &op).unwrap_err();
    assert!(
        matches!(error, FetchError::Gone { .. }),
        "{}",
        chain(&error)
    );
}

#[test]
fn a_push_that_is_stopped_leaves_no_process_and_no_lock() {
    let stage = Stage::new();
    let work = branch("stillframe/task/1");
    let first = stage.head();
    let started = stage.source.beside("started");
    let script = format!(
        "echo $$ >'{0}.new'; mv '{0}.new' '{0}'; exec sleep 600",
        started.display()
    );
    stage.hook("pre-receive", &script);
    let push = Push::create(work.clone(), first);

    let git = stage.git.clone().limit(Duration::from_millis(500));
    let slow = Remote {
        git: &git,
        ..stage.remote()
    };
    let error = slow.push(&push, &Operation::unbounded()).unwrap_err();
    assert_eq!(
        error.failure(),
        FailureKind::NetworkBlip,
        "{}",
        chain(&error)
    );

    let interrupt = Interrupt::never();
    let op = Operation::unbounded().cancelled_by(&interrupt);
    let _ = fs::remove_file(&started);
    let begin = Instant::now();
    let error = std::thread::scope(|scope| {
        let push = scope.spawn(|| stage.remote().push(&push, &op).unwrap_err());
        while !started.exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
        interrupt.cancel();
        push.join().unwrap()
    });
    let PushError::Git { source, .. } = &error else {
        panic!("{error}");
    };
    assert!(
        matches!(source, GitError::Stopped(Interrupted::Cancelled)),
        "{source}"
    );
    assert!(
        begin.elapsed() < Duration::from_secs(60),
        "nobody waited for the hook"
    );
    // It was killed; the kernel may still be at it.
    let hook = fs::read_to_string(&started).unwrap();
    let hook = PathBuf::from("/proc").join(hook.trim()).join("stat");
    let is_left = || fs::read_to_string(&hook).is_ok_and(|stat| !stat.contains(") Z"));
    while is_left() {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "{}",
            hook.display()
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    fs::remove_file(stage.bare().join("hooks/pre-receive")).unwrap();
    assert_eq!(stage.create(&work, first).unwrap(), Pushed::Created);
}

#[test]
fn what_the_repository_configures_takes_no_part() {
    let stage = Stage::new();
    let work = branch("stillframe/task/1");
    let witness = stage.source.beside("witness");
    let touch = format!("touch '{}'; false", witness.display());
    let hooks = stage.source.beside("hooks");
    fs::create_dir(&hooks).unwrap();
    fs::write(hooks.join("pre-push"), format!("#!/bin/sh\n{touch}\n")).unwrap();
    fs::set_permissions(hooks.join("pre-push"), fs::Permissions::from_mode(0o755)).unwrap();
    for (key, value) in [
        ("core.hooksPath", hooks.to_str().unwrap()),
        ("core.sshCommand", &touch),
        ("core.askPass", &touch),
        ("core.gitProxy", &touch),
        ("credential.helper", &format!("!{touch}")),
        ("push.gpgSign", "true"),
        ("push.pushOption", "x"),
    ] {
        stage.source.git(&["config", key, value]);
    }
    stage.create(&work, stage.head()).unwrap();
    for address in [
        "ssh://127.0.0.1:1/a",
        "git://127.0.0.1:1/a",
        "http://127.0.0.1:1/a",
    ] {
        let parsed = Address::parse(address.as_ref(), &stage.source.path).unwrap();
        let remote = Remote {
            address: &parsed.address,
            ..stage.remote()
        };
        let error = remote.refs(&Operation::unbounded()).unwrap_err();
        assert_eq!(error.failure(), FailureKind::NetworkBlip, "{error}");
    }
    assert!(!witness.exists());
}

#[test]
fn without_a_git_the_failure_is_local() {
    let stage = Stage::new();
    let git = Git::new(
        stage.bare(),
        Environment::of([("PATH".into(), "/nowhere".into())]),
    );
    let remote = Remote {
        git: &git,
        ..stage.remote()
    };
    let error = remote.refs(&Operation::unbounded()).unwrap_err();
    assert_eq!(error.failure(), FailureKind::LocalGit);
}
