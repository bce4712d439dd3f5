//! Making a work tree.

use std::os::unix::fs::symlink;

use super::*;

/// What git's own work tree of the same commit has.
fn as_git_makes_it(stage: &Stage, commit: &str) -> String {
    let theirs = stage.git.beside("theirs");
    let path = theirs.to_str().unwrap();
    stage
        .git
        .git(&["worktree", "add", "-q", "--detach", path, commit]);
    let view = view(&theirs);
    stage.git.git(&["worktree", "remove", "--force", path]);
    view
}

/// Of everything that a commit can have.
fn everything() -> TestRepository {
    let git = TestRepository::new();
    git.write("a/b/c/deep", "deep\n");
    git.write("a-b", "sorted before a/b\n");
    git.write("a/run", "#!/bin/sh\n");
    let script = git.path.join("a/run");
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
    git.write("empty", "");
    git.write(b"odd \xff\tname", "odd\n");
    git.write("-leading", "dash\n");
    symlink("a/run", git.path.join("link")).unwrap();
    symlink("nowhere/\u{e4}", git.path.join("a/dangling")).unwrap();
    symlink("/etc", git.path.join("out")).unwrap();
    git.write("large", vec![0; (4 << 20) + 1]);
    let rows: String = (0..40_000)
        .map(|row| format!("{row} {}\n", row * 7919))
        .collect();
    git.write("long.txt", rows);
    git.write(
        ".gitattributes",
        "*.txt text eol=crlf\nkept.txt -text\n*.id ident\n*.auto text=auto eol=crlf\n\
         *.u16 text eol=crlf working-tree-encoding=UTF-16LE-BOM\n\
         *.latin1 working-tree-encoding=ISO-8859-1\n",
    );
    git.write("text.u16", b"\xff\xfea\0\n\0\xe4\0");
    git.write("text.latin1", b"gr\xfcn\n");
    git.write("a/.gitattributes", "*.txt eol=lf\n[attr]never\n");
    git.write("lines.txt", "one\ntwo\n");
    git.write("kept.txt", "one\ntwo\n");
    git.write("a/lines.txt", "one\ntwo\n");
    git.write("of.id", "$Id$ and $Id: other $\n");
    git.write("text.auto", "one\ntwo\n");
    git.write("binary.auto", "one\n\0two\n");
    git.commit("everything");
    git
}

#[test]
fn it_has_what_git_makes_of_the_same_commit() {
    for (setting, is_packed) in [
        (None, false),
        (Some(["core.autocrlf", "true"]), true),
        (Some(["core.eol", "crlf"]), true),
    ] {
        let stage = Stage::new(everything());
        if let Some([key, value]) = setting {
            stage.git.git(&["config", key, value]);
        }
        if is_packed {
            stage.git.git(&["gc", "-q"]);
        }
        let commit = stage.git.git(&["rev-parse", "HEAD"]);
        let theirs = as_git_makes_it(&stage, &commit);
        let worktree = stage.run("one");
        let ensured = stage.try_ensure(&worktree, Some(&commit)).unwrap();
        assert_eq!(view(&worktree.directory), theirs, "{setting:?}");
        let listed = ["ls-tree", "-r", "--name-only", "-z", "HEAD"];
        let listed = stage.git.run(&stage.git.path, &listed).stdout;
        let files = listed.iter().filter(|byte| **byte == 0).count();
        assert_eq!(ensured.files_written, files as u64);
        assert!(ensured.bytes_written > 4 << 20, "{ensured:?}");
        assert_eq!(ensured.tip.commit, commit);
        assert_eq!(ensured.unconverted, []);
        stage.is_sound(&worktree);
        let logged = |name: &str| stage.git_in(&worktree, &["reflog", "show", name]);
        assert_eq!(logged("HEAD").lines().count(), 1);
        assert_eq!(logged(&worktree.branch).lines().count(), 1);
        let again = stage.try_ensure(&worktree, Some(&commit)).unwrap();
        assert_eq!(again.files_written, 0, "it is there");
    }
}

/// How many files a command of git's compared with what is stored, as it says itself.
fn files_compared(stage: &Stage, worktree: &RunWorktree, name: &str) -> String {
    let trace = stage.git.beside(name);
    let (target, path) = (
        format!("trace2.eventTarget={}", trace.display()),
        &worktree.directory,
    );
    // Housekeeping is none of the answer.
    let status = ["-c", &target, "status", "--porcelain"];
    // A repository's own configuration does not choose where a trace goes.
    fs::write(stage.git.home().join(".gitconfig"), "").unwrap();
    let output = std::process::Command::new("git")
        .args(&status[2..])
        .current_dir(path)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", stage.git.home())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_TRACE2_EVENT", &trace)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    let text = fs::read_to_string(trace).unwrap();
    let line = text.lines().find(|line| line.contains("refresh/sum_scan"));
    let value = line
        .unwrap_or_else(|| panic!("{text}"))
        .split("\"value\":")
        .nth(1);
    value.unwrap().trim_matches(['"', '}']).to_owned()
}

#[test]
fn the_first_status_reads_no_file() {
    let stage = Stage::new(everything());
    let worktree = stage.ensure("one");
    assert_eq!(files_compared(&stage, &worktree, "first"), "0");
    // It would be said: git compares what was touched.
    let file = fs::File::options()
        .write(true)
        .open(worktree.directory.join("kept.txt"));
    file.unwrap()
        .set_modified(std::time::SystemTime::UNIX_EPOCH)
        .unwrap();
    assert_eq!(files_compared(&stage, &worktree, "second"), "1");
}

#[test]
fn a_filter_does_not_run_and_its_files_come_as_they_are_stored() {
    let stage = Stage::with_commit();
    let git = &stage.git;
    let witness = git.beside("witness");
    let program = format!("touch {}; cat", witness.display());
    git.write(
        ".gitattributes",
        "*.f filter=f\n*.lfs filter=lfs\n*.jis working-tree-encoding=SHIFT-JIS\n",
    );
    git.write("one.f", "one\n");
    git.write("text.jis", b"\x82\xa0\n");
    let digits = "b5bb9d8014a0f9b1d61e21e796d78dccdf1352f23cd32812f4850b878ae4944c";
    let pointer = |digits: &str| {
        format!("version https://git-lfs.github.com/spec/v1\noid sha256:{digits}\nsize 4\n")
    };
    git.write("here.lfs", pointer(digits));
    git.write("away.lfs", pointer(&digits.replace('b', "c")));
    git.commit("filtered");
    for key in ["filter.f.smudge", "filter.f.clean", "filter.lfs.smudge"] {
        git.git(&["config", key, &program]);
    }
    git.git(&["config", "filter.f.required", "true"]);
    git.write(
        ".git/hooks/post-checkout",
        format!("#!/bin/sh\n{program}\n"),
    );
    let hook = git.path.join(".git/hooks/post-checkout");
    fs::set_permissions(hook, fs::Permissions::from_mode(0o755)).unwrap();
    let objects = format!(
        ".git/lfs/objects/{}/{}/{digits}",
        &digits[..2],
        &digits[2..4]
    );
    git.write(objects, "foo\n");

    let worktree = stage.run("one");
    let base = git.git(&["rev-parse", "HEAD"]);
    let ensured = stage.try_ensure(&worktree, Some(&base)).unwrap();
    let unconverted: Vec<String> = ensured.unconverted.iter().map(|p| p.to_string()).collect();
    assert_eq!(unconverted, ["away.lfs", "one.f", "text.jis"]);
    let read = |name: &str| fs::read_to_string(worktree.directory.join(name)).unwrap();
    assert_eq!(read("one.f"), "one\n");
    assert_eq!(read("here.lfs"), "foo\n", "what the pointer stands for");
    assert_eq!(read("away.lfs"), pointer(&digits.replace('b', "c")));
    stage.is_sound(&worktree);
    assert!(!witness.exists());
}

#[test]
fn a_submodule_is_an_empty_directory() {
    let stage = Stage::with_commit();
    let library = TestRepository::with_commit();
    let address = library.path.to_str().unwrap();
    stage
        .git
        .git(&["submodule", "add", "-q", address, "sub/library"]);
    stage.git.commit("with a submodule");
    let worktree = stage.ensure("one");
    assert_eq!(
        names(&worktree.directory.join("sub/library")),
        Vec::<Vec<u8>>::new()
    );
    stage.is_sound(&worktree);
    // The submodule is a repository like any other.
    let inner = stage.git.path.join("sub/library");
    let origin = GitBackend.origin(&stage.op, &inner, Some("main")).unwrap();
    let of_inner = RunWorktree::of_run(&origin.repository, &stage.state, "inner");
    stage.try_ensure(&of_inner, Some(&origin.commit)).unwrap();
    assert_eq!(
        stage
            .git
            .git_in(&of_inner.directory, &["status", "--porcelain"]),
        ""
    );
    assert_eq!(view(&of_inner.directory), view(&inner));
}

#[test]
fn a_commit_without_a_file_makes_an_empty_work_tree() {
    let stage = Stage::new(TestRepository::new());
    stage
        .git
        .git(&["commit", "-q", "--allow-empty", "-m", "nothing"]);
    let worktree = stage.ensure("one");
    assert_eq!(names(&worktree.directory), [b".git".to_vec()]);
    stage.is_sound(&worktree);
}

#[test]
fn a_bare_repository_a_linked_work_tree_and_another_spelling_do() {
    let stage = Stage::new(everything());
    let git = &stage.git;
    let commit = git.git(&["rev-parse", "HEAD"]);
    let expected = as_git_makes_it(&stage, &commit);
    let bare = git.beside("bare");
    git.git(&["clone", "-q", "--bare", ".", bare.to_str().unwrap()]);
    let linked = git.beside("linked");
    git.git(&[
        "worktree",
        "add",
        "-q",
        "-b",
        "side",
        linked.to_str().unwrap(),
    ]);
    let link = git.beside("spelled");
    symlink(&git.path, &link).unwrap();
    for (id, repository, branch) in [
        ("bare", &bare, Some("main")),
        ("linked", &linked, None),
        ("spelled", &link, Some("main")),
    ] {
        let origin = GitBackend.origin(&stage.op, repository, branch).unwrap();
        let worktree = RunWorktree::of_run(&origin.repository, &stage.state, id);
        stage.try_ensure(&worktree, Some(&origin.commit)).unwrap();
        assert_eq!(view(&worktree.directory), expected, "{id}");
        assert_eq!(
            git.git_in(&worktree.directory, &["status", "--porcelain"]),
            "",
            "{id}"
        );
        let state = GitBackend.look(&stage.op, &worktree).unwrap();
        assert!(state.is_ready(), "{state:?}");
        if id != "bare" {
            stage.is_sound(&worktree);
            // By whatever way the repository is named.
            let other = RunWorktree {
                repository: git.path.clone(),
                ..worktree
            };
            assert!(GitBackend.look(&stage.op, &other).unwrap().is_ready());
        }
    }
    assert!(
        !bare.join("logs").exists(),
        "as git keeps none of a bare one"
    );
}

#[test]
fn what_is_committed_in_it_is_on_the_runs_branch_and_nowhere_else() {
    let stage = Stage::with_commit();
    let worktree = stage.ensure("one");
    let index = fs::read(stage.git.path.join(".git/index")).unwrap();
    let main = stage.git.git(&["rev-parse", "main"]);
    fs::write(worktree.directory.join("new"), "new\n").unwrap();
    stage.git_in(&worktree, &["add", "-A"]);
    stage.git_in(&worktree, &["commit", "-q", "-m", "work"]);
    let tip = stage.git.git(&["rev-parse", &worktree.branch]);
    assert_eq!(stage.git.git(&["rev-parse", &format!("{tip}~1")]), main);
    assert_eq!(stage.git.git(&["rev-parse", "main"]), main);
    assert_eq!(stage.git.git(&["status", "--porcelain"]), "");
    assert_eq!(fs::read(stage.git.path.join(".git/index")).unwrap(), index);
    let state = GitBackend.look(&stage.op, &worktree).unwrap();
    assert_eq!(state.tip.unwrap().commit, tip);
}

#[test]
fn a_directory_that_is_gone_is_made_again_from_the_branch() {
    let stage = Stage::with_commit();
    let worktree = stage.ensure("one");
    fs::write(worktree.directory.join("new"), "new\n").unwrap();
    stage.git_in(&worktree, &["add", "-A"]);
    stage.git_in(&worktree, &["commit", "-q", "-m", "work"]);
    let tip = stage.git.git(&["rev-parse", &worktree.branch]);
    let before = view(&worktree.directory);
    stage.git.write("moved on", "elsewhere\n");
    stage.git.commit("main goes on");
    for is_pruned in [false, true] {
        fs::remove_dir_all(&worktree.directory).unwrap();
        if is_pruned {
            stage.git.git(&["worktree", "prune"]);
        }
        assert_eq!(stage.directory(&worktree), RunDirectory::Missing);
        let ensured = stage.try_ensure(&worktree, None).unwrap();
        assert_eq!(ensured.tip.commit, tip);
        assert_eq!(view(&worktree.directory), before);
        stage.is_sound(&worktree);
    }
}

#[test]
fn objects_of_alternates_and_of_packs_with_deltas_are_found() {
    let stage = Stage::with_commit();
    let lines = |from: u32| -> String { (from..from + 5000).map(|n| format!("{n}\n")).collect() };
    for from in 0..10 {
        stage.git.write(format!("lines{from}"), lines(from));
    }
    stage.git.commit("much alike");
    stage
        .git
        .git(&["repack", "-q", "-a", "-d", "-f", "--depth=50"]);
    let borrower = stage.git.beside("borrower");
    stage
        .git
        .git(&["clone", "-q", "--shared", ".", borrower.to_str().unwrap()]);
    let origin = GitBackend.origin(&stage.op, &borrower, None).unwrap();
    let worktree = RunWorktree::of_run(&borrower, &stage.state, "one");
    stage.try_ensure(&worktree, Some(&origin.commit)).unwrap();
    assert_eq!(view(&worktree.directory), view(&stage.git.path));
}

#[test]
fn many_are_made_and_let_go_of_at_once() {
    let stage = Stage::new(everything());
    let base = stage.git.git(&["rev-parse", "HEAD"]);
    let expected = as_git_makes_it(&stage, &base);
    std::thread::scope(|scope| {
        for number in 0..6 {
            let (stage, base, expected) = (&stage, &*base, &*expected);
            scope.spawn(move || {
                let worktree = stage.run(&format!("run{number}"));
                for _ in 0..3 {
                    stage.try_ensure(&worktree, Some(base)).unwrap();
                    assert_eq!(view(&worktree.directory), expected);
                    // Somebody did.
                    fs::remove_dir_all(&worktree.directory).unwrap();
                    let tip = Some(base);
                    GitBackend.remove(&stage.op, &worktree, None, tip).unwrap();
                }
            });
        }
    });
    let refs = stage.git.git(&["for-each-ref", "--format=%(refname)"]);
    assert_eq!(refs, "refs/heads/main");
    stage.git.git(&["fsck", "--strict"]);
}

#[test]
fn what_the_repository_lacks_is_named() {
    let stage = Stage::with_commit();
    let base = stage.git.git(&["rev-parse", "HEAD"]);
    let blob = stage.git.git(&["rev-parse", "HEAD:src/main.c"]);
    let path = format!(".git/objects/{}/{}", &blob[..2], &blob[2..]);
    fs::remove_file(stage.git.path.join(path)).unwrap();
    let worktree = stage.run("one");
    let error = stage.try_ensure(&worktree, Some(&base)).unwrap_err();
    let named = |error: &RunWorktreeError| match error {
        RunWorktreeError::Incomplete { object, .. } => object.clone(),
        other => panic!("{other:?}"),
    };
    assert!(named(&error).contains(&blob), "{error}");
    assert_eq!(stage.directory(&worktree), RunDirectory::Missing);
    assert_eq!(
        names(worktree.directory.parent().unwrap()),
        Vec::<Vec<u8>>::new()
    );
    // It goes on once the object is there.
    stage.git.write("src/main.c", "int main;\n");
    stage.git.git(&["hash-object", "-w", "src/main.c"]);
    stage.try_ensure(&worktree, Some(&base)).unwrap();
    stage.is_sound(&worktree);
}
