//! What is committed is what git would commit.

use super::*;

#[test]
fn what_changed_came_and_went_is_committed_with_its_modes() {
    let story = Story::new();
    let git = &story.git;
    git.write("src/main.c", "int main2;\n");
    git.write("new/file", "new\n");
    git.write(b"not utf-8 \xff", "x");
    git.write("empty", "");
    fs::rename(
        story.path().join("src/other.c"),
        story.path().join("src/renamed.c"),
    )
    .unwrap();
    fs::remove_dir_all(story.path().join("docs")).unwrap();
    story.chmod("read me", 0o755);
    symlink("src/main.c", story.path().join("link")).unwrap();
    git.write(".gitignore", "*.o\nbuild/\n");
    git.write("a.o", "ignored");
    git.write("build/out", "ignored");
    story.commits_as_git_does();
    assert_eq!(story.git(&["ls-tree", "HEAD", "read me"])[..6], *"100755");
    assert_eq!(story.git(&["ls-tree", "HEAD", "link"])[..6], *"120000");

    // Everything back to a file where a directory was, and the other way round.
    fs::remove_dir_all(story.path().join("src")).unwrap();
    git.write("src", "a file\n");
    fs::remove_file(story.path().join("read me")).unwrap();
    git.write("read me/inside", "a directory\n");
    fs::remove_file(story.path().join("link")).unwrap();
    git.write("link", "a file\n");
    story.commits_as_git_does();
    // And nothing at all.
    for name in [
        "src",
        "read me",
        "new",
        "link",
        "empty",
        ".gitignore",
        "build",
        "a.o",
    ] {
        let path = story.path().join(name);
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
    }
    story.commits_as_git_does();
}

#[test]
fn the_commit_is_byte_for_byte_the_one_that_git_makes_of_its_values() {
    let story = Story::new();
    story.git.write("src/main.c", "changed\n");
    let parent = story.git(&["rev-parse", "HEAD"]);
    let commit = story.commit();
    let message = story.git.beside("message");
    fs::write(&message, "subject\n\nbody\n\nRun-Id: run_7\n").unwrap();
    let date = format!("{TIME} +0000");
    let output = Command::new("git")
        .args(["commit-tree", "-p", &parent, "-F"])
        .arg(&message)
        .arg(story.tree())
        .current_dir(story.path())
        .env("GIT_AUTHOR_NAME", "Author Ä")
        .env("GIT_AUTHOR_EMAIL", "author@example.org")
        .env("GIT_COMMITTER_NAME", "Author Ä")
        .env("GIT_COMMITTER_EMAIL", "author@example.org")
        .env("GIT_AUTHOR_DATE", &date)
        .env("GIT_COMMITTER_DATE", &date)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), commit);

    let line = format!("{commit} commit: subject");
    for reflog in ["HEAD", "main"] {
        let format = "--format=%H %gs";
        let log = story.git(&["log", "-g", "-1", format, reflog]);
        assert_eq!(log, line);
    }
    let raw = fs::read_to_string(story.git.path.join(".git/logs/HEAD")).unwrap();
    let last = raw.lines().next_back().unwrap();
    let expected =
        format!("{parent} {commit} Author Ä <author@example.org> {TIME} +0000\tcommit: subject");
    assert_eq!(last, expected);
    assert_eq!(story.git(&["log", "--format=%s"]), "subject\nfirst");
}

#[test]
fn a_first_commit_a_detached_head_and_a_packed_branch() {
    let story = Story::unborn();
    assert!(
        story.try_prepare(&request()).unwrap().is_none(),
        "there is nothing"
    );
    story.git.write("a/file", "one\n");
    let intent = story.prepare();
    assert_eq!(
        (intent.parent.as_deref(), &*intent.reference),
        (None, "refs/heads/main")
    );
    story.commits_as_git_does();
    let log = fs::read_to_string(story.git.path.join(".git/logs/refs/heads/main")).unwrap();
    assert!(log.starts_with(&"0".repeat(40)), "{log}");
    assert!(log.ends_with("\tcommit (initial): subject\n"), "{log}");

    story.git(&["pack-refs", "--all"]);
    story.git.write("a/file", "two\n");
    story.commits_as_git_does();

    story.git(&["checkout", "-q", "--detach"]);
    let main = story.git(&["rev-parse", "main"]);
    story.git.write("a/file", "three\n");
    assert_eq!(story.prepare().reference, "HEAD");
    story.commits_as_git_does();
    assert_eq!(story.git(&["rev-parse", "main"]), main);
    assert_eq!(story.git(&["rev-parse", "HEAD^"]), main);
}

#[test]
fn line_ends_are_those_that_attributes_and_configuration_ask_for() {
    let text = "one\r\ntwo\r\n";
    for (autocrlf, attributes) in [
        ("true", ""),
        ("input", ""),
        ("false", "* text=auto\n"),
        (
            "false",
            "*.txt text\n*.lf eol=lf\n*.crlf eol=crlf\n*.bin binary\n",
        ),
        ("true", "*.txt -text\n*.lf text=auto eol=lf\n"),
        ("false", "* text=auto ident\n"),
        ("false", ""),
    ] {
        let story = Story::unborn();
        let git = &story.git;
        git.git(&["config", "core.autocrlf", "false"]);
        // What git has with CRLF already stays so where it only guesses.
        git.write("had.txt", text);
        git.write("had.lf", "one\n");
        git.write("clean.txt", "clean\n");
        git.commit("first");
        git.git(&["config", "core.autocrlf", autocrlf]);
        if !attributes.is_empty() {
            git.write(".gitattributes", attributes);
        }
        fs::remove_file(story.path().join("clean.txt")).unwrap();
        git.git(&["checkout", "-q", "clean.txt"]);
        for name in [
            "a.txt",
            "a.lf",
            "a.crlf",
            "a.bin",
            "a.none",
            "sub/dir/a.txt",
        ] {
            git.write(name, text);
            git.write(
                format!("mixed.{name}").replace('/', "-"),
                "one\r\ntwo\n$Id: x$ \r\n",
            );
            git.write(
                format!("binary.{name}").replace('/', "-"),
                "one\r\ntwo\0\r\n",
            );
            git.write(format!("lone.{name}").replace('/', "-"), "one\rtwo\r\n");
        }
        git.write("had.txt", "one\r\nmore\r\n");
        git.write("had.lf", "one\r\nmore\r\n");
        let theirs = story.tree_of_git().unwrap();
        story.commit();
        assert_eq!(story.tree(), theirs, "{autocrlf} {attributes:?}");
        assert_eq!(story.status(), "", "{autocrlf} {attributes:?}");
        story.is_sound();
    }
}

#[test]
fn a_file_that_git_takes_for_clean_is_not_in_the_commit() {
    let story = Story::unborn();
    let git = &story.git;
    git.write(
        ".gitattributes",
        "*.crlf text eol=crlf\n*.lfs filter=none\n*.id ident\n",
    );
    git.write("a.crlf", "one\n");
    git.write("a.id", "$Id$\n");
    git.write("b.lfs", "content\n");
    git.commit("first");
    for name in ["a.crlf", "a.id"] {
        fs::remove_file(story.path().join(name)).unwrap();
        git.git(&["checkout", "-q", name]);
    }
    assert_eq!(fs::read(story.path().join("a.crlf")).unwrap(), b"one\r\n");
    assert!(fs::read(story.path().join("a.id")).unwrap().len() > 6);
    assert!(story.try_prepare(&request()).unwrap().is_none());

    git.write("other", "other\n");
    let commit = story.commit();
    assert_eq!(
        story.git(&["show", "--format=", "--name-only", &commit]),
        "other"
    );
    assert_eq!(story.status(), "");
}

#[test]
fn what_takes_a_program_is_refused_by_its_path_unless_git_has_it() {
    let story = Story::unborn();
    let git = &story.git;
    let canary = git.beside("canary");
    let clean = format!("touch {}; tr a-z A-Z", canary.display());
    git.git(&["config", "filter.up.clean", &clean]);
    git.write(
        ".gitattributes",
        "*.up filter=up\n*.utf16 working-tree-encoding=UTF-16\n",
    );
    git.write("a.up", "content\n");
    let day = Duration::from_secs(24 * 60 * 60);
    let file = fs::File::open(story.path().join("a.up")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + day * 10_000)
        .unwrap();
    git.commit("first");
    fs::remove_file(&canary).unwrap();

    git.write("b.up", "new\n");
    let error = story.refused();
    assert!(matches!(error, CommitError::Unsupported(_)), "{error}");
    assert!(error.to_string().contains("b.up"), "{error}");
    // As git took it in, with the filter. The index is newer than it.
    let file = fs::File::open(story.path().join("b.up")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + day * 10_000)
        .unwrap();
    git.git(&["add", "b.up"]);
    git.git(&["add", "--renormalize", "."]);
    git.git(&["update-index", "-q", "--refresh"]);
    fs::remove_file(&canary).unwrap();
    let index = story.git.path.join(".git/index");
    let later = fs::metadata(&index).unwrap().modified().unwrap() + Duration::from_secs(5);
    fs::File::open(&index).unwrap().set_modified(later).unwrap();
    story.commit();
    assert_eq!(story.git(&["show", "HEAD:b.up"]), "NEW");
    assert!(!canary.exists(), "no filter ran");

    git.write("c.utf16", "x\n");
    let error = story.refused();
    assert!(error.to_string().contains("c.utf16"), "{error}");
    // What is not to be committed is in nobody's way.
    git.write("plain", "plain\n");
    let only = request().paths(vec![rel("plain")]);
    let intent = story.try_prepare(&only).unwrap().unwrap();
    story.apply(&intent);
    assert_eq!(story.status(), "?? c.utf16");
}

#[test]
fn a_workspace_below_the_top_commits_what_is_in_it() {
    let story = Story::new();
    story.git.write("src/deeper/file", "one\n");
    story.git.write(".gitattributes", "*.txt text\n");
    story.git.commit("second");
    let below = story.path().join("src");
    let story = story.moved_to(&below);
    story.git.write("src/main.c", "changed\n");
    story.git.write("src/a.txt", "crlf\r\n");
    story.git.write("outside", "not committed\n");
    story.git.write("read me", "not committed\n");
    fs::remove_dir_all(story.path().join("deeper")).unwrap();
    let theirs = story.tree_of_git().unwrap();
    let commit = story.commit();
    assert_eq!(story.tree(), theirs);
    let names = story.git(&["show", "--format=", "--name-only", &commit]);
    assert_eq!(names, "src/a.txt\nsrc/deeper/file\nsrc/main.c");
    let status = story.git.run(&story.git.path, &["status", "--porcelain"]);
    assert_eq!(
        String::from_utf8_lossy(&status.stdout),
        " M \"read me\"\n?? outside\n"
    );
    story.is_sound();
}

#[test]
fn a_linked_worktree_commits_on_its_own_branch() {
    let story = Story::new();
    let linked = story.git.beside("linked");
    story.git(&[
        "worktree",
        "add",
        "-q",
        "-b",
        "side",
        linked.to_str().unwrap(),
    ]);
    let main = story.git(&["rev-parse", "main"]);
    let story = story.moved_to(&linked);
    fs::write(linked.join("src/main.c"), "by the side\n").unwrap();
    fs::write(linked.join("new"), "new\n").unwrap();
    story.commits_as_git_does();
    assert_eq!(story.git(&["rev-parse", "main"]), main);
    assert_eq!(
        story.git(&["log", "-g", "--format=%gs", "-1", "HEAD"]),
        "commit: subject"
    );
    let status = story.git.run(&story.git.path, &["status", "--porcelain"]);
    assert_eq!(String::from_utf8_lossy(&status.stdout), "");
}

#[test]
fn only_the_paths_that_are_asked_for() {
    let story = Story::new();
    story.git.write("src/main.c", "changed\n");
    story.git.write("src/new.c", "new\n");
    story.git.write("read me", "changed\n");
    fs::remove_file(story.path().join("src/other.c")).unwrap();
    let only = request().paths(vec![rel("src/main.c"), rel("src/other.c"), rel("missing")]);
    let intent = story.try_prepare(&only).unwrap().unwrap();
    story.apply(&intent);
    assert_eq!(story.status(), " M \"read me\"\n?? src/new.c");
    assert!(story.try_prepare(&only).unwrap().is_none());
    let below = request().paths(vec![rel("src")]);
    let intent = story.try_prepare(&below).unwrap().unwrap();
    story.apply(&intent);
    assert_eq!(story.status(), " M \"read me\"");
    story.is_sound();
}

#[test]
fn a_submodule_is_committed_at_its_head_and_a_new_repository_is_left_out() {
    let story = Story::new();
    let git = &story.git;
    let library = git.beside("library");
    fs::create_dir(&library).unwrap();
    git.git_in(&library, &["init", "-q", "-b", "main"]);
    fs::write(library.join("lib.c"), "one\n").unwrap();
    git.git_in(&library, &["add", "."]);
    git.git_in(&library, &["commit", "-q", "-m", "library"]);
    let from = library.to_str().unwrap();
    for name in ["sub", "still", "absent"] {
        git.git(&["submodule", "--quiet", "add", from, name]);
    }
    git.commit("with submodules");
    assert!(
        story.try_prepare(&request()).unwrap().is_none(),
        "as committed"
    );

    let sub = story.path().join("sub");
    fs::write(sub.join("lib.c"), "two\n").unwrap();
    git.git_in(&sub, &["commit", "-q", "-a", "-m", "in the submodule"]);
    git.git(&["submodule", "--quiet", "deinit", "-f", "still"]);
    fs::remove_dir_all(story.path().join("absent")).unwrap();
    git.write("src/main.c", "changed\n");
    story.commits_as_git_does();
    assert_eq!(
        story.git(&["rev-parse", "HEAD:sub"]),
        git.git_in(&sub, &["rev-parse", "HEAD"])
    );

    // A clone of something is nobody's submodule.
    let clone = story.path().join("clone");
    git.git(&["clone", "-q", from, clone.to_str().unwrap()]);
    git.write("src/main.c", "changed again\n");
    story.commit();
    assert_eq!(story.status(), "?? clone/");
    assert_eq!(
        story.git(&["show", "--format=", "--name-only", "HEAD"]),
        "src/main.c"
    );
}
