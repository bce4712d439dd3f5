//! What a checkpoint has of workspaces and repositories of all shapes.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;
use crate::coverage::OmissionReason;

/// What a story is about, and how it is made.
type Shape<'s> = (&'s str, &'s dyn Fn(&Story));

/// Staged, unstaged, untracked and ignored work.
fn edit(story: &Story) {
    let git = &story.git;
    git.write(".gitignore", "*.o\n");
    git.write("a.o", "ignored");
    git.write("src/main.c", "int staged;\n");
    git.git(&["add", "src/main.c"]);
    git.write("src/main.c", "int unstaged;\n");
    git.write("src/new.c", "int new;\n");
    git.write(b"not utf-8 \xff", "x");
    fs::remove_file(git.path.join("src/other.c")).unwrap();
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(git.path.join("read me"), mode).unwrap();
    symlink("src/main.c", git.path.join("link")).unwrap();
    fs::remove_dir_all(git.path.join("docs")).unwrap();
}

#[test]
fn everything_is_saved_as_git_adds_it_and_nothing_of_the_users_moves() {
    let story = Story::new();
    edit(&story);
    let head = story.git(&["rev-parse", "HEAD"]);
    let made = story.is_as_git_adds();
    assert!(made.is_new && made.unconverted_paths.is_empty() && made.left_out.is_empty());
    assert_eq!(made.parents, std::slice::from_ref(&head));
    let commit = story.commit_of(&made);
    let said = story.in_store(&["log", "-1", "--format=%an %ae %at %cn %ce %ct%n%B", &commit]);
    let who = format!("Author Ä author@example.org {TIME}");
    assert_eq!(said, format!("{who} {who}\nsubject\n\nRun-Id: run_7\n"));
    let kept = made.checkpoint.unwrap();
    assert_eq!(kept.reference, "refs/checkpoints/acme%2fshop%2f42/1");
    let listed = GitBackend.kept_checkpoints(&Operation::unbounded(), &story.workspace, TASK);
    assert_eq!(listed.unwrap(), [kept]);
    // It is what git makes of these values.
    let tree = story.in_store(&["rev-parse", &format!("{commit}^{{tree}}")]);
    let message = story.git.beside("message");
    fs::write(&message, "subject\n\nRun-Id: run_7\n").unwrap();
    let date = format!("{TIME} +0000");
    let output = Command::new("git")
        .args(["commit-tree", "-p", &head, "-F"])
        .arg(&message)
        .arg(tree)
        .current_dir(story.store_dir())
        .envs([
            ("GIT_AUTHOR_NAME", "Author Ä"),
            ("GIT_COMMITTER_NAME", "Author Ä"),
        ])
        .env("GIT_AUTHOR_EMAIL", "author@example.org")
        .env("GIT_COMMITTER_EMAIL", "author@example.org")
        .env("GIT_AUTHOR_DATE", &date)
        .env("GIT_COMMITTER_DATE", &date)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), commit);
}

#[test]
fn no_state_of_the_repository_is_an_obstacle() {
    let detached: fn(&Story) = |story| {
        story.git(&["checkout", "-q", "--detach"]);
        edit(story);
    };
    let staged_deletion: fn(&Story) = |story| {
        edit(story);
        story.git(&["rm", "-q", "--cached", "read me"]);
        story.git(&["add", "-N", "src/new.c"]);
        story.git.write(".gitignore", "*.o\nsrc/main.c\n");
    };
    let conflict = |story: &Story| {
        story.git(&["checkout", "-q", "-b", "side"]);
        story.git.write("src/main.c", "theirs\n");
        fs::remove_file(story.path().join("src/other.c")).unwrap();
        story.git.commit("side");
        story.git(&["checkout", "-q", "main"]);
        story.git.write("src/main.c", "ours\n");
        story.git.write("src/other.c", "int changed;\n");
        story.git.commit("ours");
    };
    let merge = |story: &Story| {
        conflict(story);
        let merged = story.git.run(&story.path(), &["merge", "-q", "side"]);
        assert!(!merged.status.success());
        assert!(
            story
                .git(&["status", "--porcelain"])
                .contains("UU src/main.c")
        );
        story.git.write("untracked", "x\n");
    };
    let rebase = |story: &Story| {
        conflict(story);
        let rebased = story.git.run(&story.path(), &["rebase", "-q", "side"]);
        assert!(!rebased.status.success());
        story.git.write("src/main.c", "half resolved\n<<<<<<<\n");
    };
    let split: fn(&Story) = |story| {
        story.git(&["update-index", "--split-index"]);
        story.git(&["config", "core.splitIndex", "true"]);
        edit(story);
        assert!(
            fs::read_dir(story.git.path.join(".git"))
                .unwrap()
                .any(|entry| {
                    entry
                        .unwrap()
                        .file_name()
                        .to_string_lossy()
                        .starts_with("sharedindex.")
                })
        );
    };
    let hidden: fn(&Story) = |story| {
        story.git(&["update-index", "--assume-unchanged", "src/other.c"]);
        story.git.write("src/other.c", "nobody looks\n");
        story.git.write("src/main.c", "looked at\n");
    };
    let hooks: fn(&Story) = |story| {
        edit(story);
        let hook = story.git.path.join(".git/hooks/pre-commit");
        fs::create_dir_all(hook.parent().unwrap()).unwrap();
        fs::write(&hook, "#!/bin/sh\nexit 1\n").unwrap();
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
        story.git(&["config", "commit.gpgSign", "true"]);
        story.git(&["config", "user.signingKey", "nobody"]);
    };
    let shapes: [Shape<'_>; 8] = [
        ("detached", &detached),
        ("staged deletion", &staged_deletion),
        ("merge", &merge),
        ("rebase", &rebase),
        ("split index", &split),
        ("assume unchanged", &hidden),
        ("hooks and signing", &hooks),
        ("nothing", &|_| {}),
    ];
    for (name, make_it) in shapes {
        let story = Story::new();
        make_it(&story);
        let head = story.git(&["rev-parse", "HEAD"]);
        let made = story.is_as_git_adds();
        let parents = if made.is_new { vec![head] } else { Vec::new() };
        assert_eq!(made.parents, parents, "{name}");
        assert_eq!(made.is_new, name != "nothing", "{name}");
    }
}

#[test]
fn a_first_commit_needs_no_head_and_an_empty_directory_is_none() {
    let story = Story::of(TestRepository::in_memory());
    let made = story.checkpoint(&request(1));
    assert_eq!((made.checkpoint, made.is_new), (None, false));
    story.git.write("a/file", "one\n");
    let made = story.is_as_git_adds();
    assert_eq!(made.parents, [""; 0]);
    // Of somebody whom nobody named.
    let story = Story::of(TestRepository::in_memory());
    story.git.write("a", "a\n");
    let mut anonymous = request(1);
    anonymous.author = None;
    let by = |story: &Story, made| {
        let commit = story.commit_of(&made);
        story.in_store(&["log", "-1", "--format=%an <%ae>", &commit])
    };
    let made = story.checkpoint(&anonymous);
    assert_eq!(by(&story, made), "Stillframe <stillframe@localhost>");
    story.git(&["config", "user.name", "User"]);
    story.git(&["config", "user.email", "user@example.org"]);
    anonymous.number = 2;
    let made = story.checkpoint(&anonymous);
    assert_eq!(by(&story, made), "User <user@example.org>");
}

#[test]
fn a_subdirectory_a_linked_worktree_and_a_sparse_checkout_are_workspaces() {
    let story = Story::new();
    story.git.write(".gitattributes", "*.txt text\n");
    story.git.commit("second");
    let below = story.path().join("src");
    let Story { git, workspace } = story;
    drop(workspace);
    let story = Story::at(git, &below);
    story.git.write("src/main.c", "changed\n");
    story.git.write("src/a.txt", "crlf\r\n");
    story.git.write("outside", "not saved\n");
    story.is_as_git_adds();

    let story = Story::new();
    let linked = story.git.beside("linked");
    let to = linked.to_str().unwrap();
    story.git(&["worktree", "add", "-q", "-b", "side", to]);
    let Story { git, workspace } = story;
    drop(workspace);
    let story = Story::at(git, &linked);
    fs::write(linked.join("src/main.c"), "by the side\n").unwrap();
    fs::write(linked.join("new"), "new\n").unwrap();
    story.is_as_git_adds();

    for index in ["--no-sparse-index", "--sparse-index"] {
        let story = Story::new();
        story.git(&["sparse-checkout", "set", "--cone", index, "src"]);
        assert!(!story.path().join("docs").exists());
        story.git.write("src/main.c", "changed\n");
        let made = story.is_as_git_adds();
        let commit = story.commit_of(&made);
        story.in_store(&["cat-file", "-e", &format!("{commit}:docs/a/deep/text")]);
        let sparse = made
            .left_out
            .iter()
            .filter(|o| o.reason == OmissionReason::Sparse);
        assert!(sparse.count() > 0, "{:?}", made.left_out);
    }
}

#[test]
fn line_ends_are_those_that_git_stores() {
    for (autocrlf, attributes) in [
        ("true", ""),
        ("false", "* text=auto\n"),
        ("false", "*.txt text\n*.lf eol=lf\n*.bin binary\n"),
        ("false", "* text=auto ident\n"),
    ] {
        let story = Story::of(TestRepository::in_memory());
        let git = &story.git;
        git.git(&["config", "core.autocrlf", "false"]);
        git.write("had.txt", "one\r\ntwo\r\n");
        git.write("had.lf", "one\n");
        git.commit("first");
        git.git(&["config", "core.autocrlf", autocrlf]);
        if !attributes.is_empty() {
            git.write(".gitattributes", attributes);
        }
        for name in ["a.txt", "a.lf", "a.bin", "sub/a.txt"] {
            git.write(name, "one\r\ntwo\r\n$Id: x$ \r\n");
        }
        git.write("had.txt", "one\r\nmore\r\n");
        git.write("had.lf", "one\r\nmore\r\n");
        story.is_as_git_adds();
    }
}

#[test]
fn what_takes_a_program_stays_as_head_has_it_and_is_named() {
    let story = Story::of(TestRepository::in_memory());
    let git = &story.git;
    let canary = git.beside("canary");
    let clean = format!("touch {}; tr a-z A-Z", canary.display());
    git.git(&["config", "filter.up.clean", &clean]);
    git.git(&["config", "filter.up.required", "true"]);
    let attributes = "*.up filter=up\n*.utf16 working-tree-encoding=UTF-16\n";
    git.write(".gitattributes", attributes);
    git.write("a.up", "content\n");
    git.write("same.up", "same\n");
    let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(864_000_000);
    for name in ["a.up", "same.up"] {
        let file = fs::File::open(story.path().join(name)).unwrap();
        file.set_modified(long_ago).unwrap();
    }
    git.commit("first");
    fs::remove_file(&canary).unwrap();
    // No filter passes now.
    git.git(&[
        "config",
        "filter.up.clean",
        &format!("touch {}; false", canary.display()),
    ]);
    git.write("a.up", "changed\n");
    git.write("new.up", "new\n");
    git.write("c.utf16", "x\n");
    git.write("plain", "plain\n");
    let made = story.checkpoint(&request(1));
    let unconverted: Vec<_> = made
        .unconverted_paths
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(unconverted, ["a.up", "c.utf16", "new.up"]);
    assert!(!canary.exists(), "no filter ran");
    let commit = story.commit_of(&made);
    let changed = story.in_store(&["show", "--format=", "--name-only", &commit]);
    assert_eq!(changed, "plain");
    assert_eq!(
        story.in_store(&["show", &format!("{commit}:a.up")]),
        "CONTENT"
    );

    // Attributes that cannot be read may name a filter for any file.
    git.git(&["config", "core.attributesFile", "elsewhere"]);
    git.write("other", "other\n");
    let made = story.checkpoint(&request(2));
    assert!(made.unconverted_paths.contains(&rel("other")));
    assert!(made.unconverted_paths.contains(&rel("plain")));
}

#[test]
fn what_was_not_captured_stays_as_head_has_it_and_is_named() {
    let story = Story::new();
    fs::remove_file(story.path().join("src/other.c")).unwrap();
    let fifo = story.path().join("src/other.c");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    story.git.write("read me", "saved\n");
    let made = story.checkpoint(&request(1));
    let commit = story.commit_of(&made);
    let changed = story.in_store(&["show", "--format=", "--name-status", &commit]);
    assert_eq!(changed, "M\tread me");
    let named: Vec<_> = made
        .left_out
        .iter()
        .map(|o| (o.path.to_string(), o.reason))
        .collect();
    assert_eq!(named, [("src/other.c".to_owned(), OmissionReason::Special)]);
}

#[test]
fn a_submodule_leaves_as_the_index_has_it_and_is_named_where_it_is_elsewhere() {
    let story = Story::new();
    let git = &story.git;
    let library = git.beside("library");
    fs::create_dir(&library).unwrap();
    git.git_in(&library, &["init", "-q", "-b", "main"]);
    fs::write(library.join("lib.c"), "one\n").unwrap();
    git.git_in(&library, &["add", "."]);
    git.git_in(&library, &["commit", "-q", "-m", "library"]);
    let from = library.to_str().unwrap();
    for name in ["sub", "still", "absent", "staged", "gone"] {
        git.git(&["submodule", "--quiet", "add", from, name]);
    }
    git.commit("with submodules");
    let at = git.git(&["rev-parse", "HEAD:sub"]);
    for name in ["sub", "staged"] {
        let sub = story.path().join(name);
        fs::write(sub.join("lib.c"), "two\n").unwrap();
        git.git_in(&sub, &["commit", "-q", "-a", "-m", "in the submodule"]);
    }
    git.git(&["add", "staged"]);
    git.git(&["rm", "-q", "-f", "gone"]);
    git.git(&["submodule", "--quiet", "deinit", "-f", "still"]);
    fs::remove_dir_all(story.path().join("absent")).unwrap();
    git.write("src/main.c", "changed\n");
    let made = story.checkpoint(&request(1));
    assert_eq!(made.submodules, [rel("sub")]);
    let commit = story.commit_of(&made);
    let link = |name: &str| {
        let found = story.in_store(&["ls-tree", &commit, name]);
        found.split_whitespace().nth(2).map(str::to_owned)
    };
    assert_eq!(
        [link("sub"), link("still"), link("absent")],
        [Some(at.clone()), Some(at.clone()), Some(at)]
    );
    let staged = git.git_in(&story.path().join("staged"), &["rev-parse", "HEAD"]);
    assert_eq!((link("staged"), link("gone")), (Some(staged), None));
}
