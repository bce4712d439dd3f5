//! Refused commits, hostile repositories, and the facts about commits.

use super::*;
use crate::repository::Repository as _;

#[test]
fn a_repository_in_the_middle_of_something_is_a_conflict_that_names_it() {
    let story = Story::new();
    let git = &story.git;
    git.git(&["checkout", "-q", "-b", "side"]);
    git.write("src/main.c", "side\n");
    git.commit("side");
    git.git(&["checkout", "-q", "main"]);
    git.write("src/main.c", "main\n");
    git.commit("main");
    for (operation, abort) in [
        ("merge", "--abort"),
        ("rebase", "--abort"),
        ("cherry-pick", "--abort"),
    ] {
        let done = git.run(&story.path(), &[operation, "side"]);
        assert!(!done.status.success());
        let error = story.refused();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains(operation), "{error}");
        git.git(&[operation, abort]);
    }
    // An operation that was forgotten leaves its conflict in the index.
    git.run(&story.path(), &["merge", "side"]);
    fs::remove_file(git.path.join(".git/MERGE_HEAD")).unwrap();
    let error = story.refused();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("src/main.c"), "{error}");
}

#[test]
fn nobody_commits_without_a_name() {
    let story = Story::new();
    story.git.write("src/main.c", "changed\n");
    let mut nobody = request();
    nobody.author = None;
    let error = story.try_prepare(&nobody).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("user.email"), "{error}");

    let home = story.git.home();
    fs::create_dir_all(home.join(".config/git")).unwrap();
    fs::write(
        home.join(".config/git/config"),
        "[user]\nname = From XDG\nemail = x@y\n",
    )
    .unwrap();
    let signature = || story.try_prepare(&nobody).unwrap().unwrap().signature;
    assert_eq!(signature(), Signature::new("From XDG", "x@y"));
    fs::write(
        home.join(".gitconfig"),
        "[user]\nname = \"From home, Inc.\"\n",
    )
    .unwrap();
    assert_eq!(signature(), Signature::new("From home, Inc", "x@y"));
    story.git(&["config", "user.email", "here@example.org"]);
    assert_eq!(
        signature(),
        Signature::new("From home, Inc", "here@example.org")
    );
    story.git(&["config", "user.name", "a <b>"]);
    assert_eq!(
        story.try_prepare(&nobody).unwrap_err().kind(),
        ErrorKind::InvalidOptions
    );
}

#[test]
fn an_index_that_is_not_written_is_refused_before_anything_is_done() {
    let story = Story::new();
    story.git(&["update-index", "--split-index"]);
    story.git.write("src/main.c", "changed\n");
    let error = story.refused();
    assert!(matches!(error, CommitError::Unsupported(_)), "{error}");
    assert!(error.to_string().contains("split"), "{error}");
    story.git(&["update-index", "--no-split-index"]);
    story.commits_as_git_does();

    story.git(&["sparse-checkout", "set", "--cone", "--sparse-index", "src"]);
    story.git.write("src/main.c", "changed again\n");
    let error = story.refused();
    assert!(error.to_string().contains("sparse"), "{error}");
    story.git(&["sparse-checkout", "reapply", "--no-sparse-index"]);
    story.commits_as_git_does();
    assert!(
        story
            .git(&["ls-tree", "-r", "--name-only", "HEAD"])
            .contains("docs/a/deep/text")
    );
}

#[test]
fn attributes_that_the_repository_names_elsewhere_are_refused_and_those_of_the_user_count() {
    let story = Story::new();
    let home = story.git.home();
    fs::write(home.join("mine"), "*.txt text\n").unwrap();
    fs::write(home.join(".gitconfig"), "[core]\nattributesFile = ~/mine\n").unwrap();
    story.git.write("a.txt", "one\r\n");
    story.commit();
    assert_eq!(story.git(&["cat-file", "-s", "HEAD:a.txt"]), "4");
    story.git(&["config", "core.attributesFile", "/etc/passwd"]);
    story.git.write("b.txt", "one\r\n");
    let error = story.refused();
    assert!(matches!(error, CommitError::Unsupported(_)), "{error}");
    assert!(error.to_string().contains("attributes"), "{error}");
}

#[test]
fn a_snapshot_of_another_state_is_a_conflict() {
    let story = Story::new();
    story.git.write("src/main.c", "changed\n");
    let options = SnapshotOptions::new(Label::MANUAL, Timestamp::UNIX_EPOCH);
    let snapshot = GitBackend
        .snapshot(&Operation::unbounded(), &story.workspace, &options)
        .unwrap();
    story.git.commit("by a person");
    let error = story.prepare_of(&snapshot.id, &request()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
}

#[test]
fn no_hook_runs_and_nothing_is_signed() {
    let story = Story::new();
    let canary = story.git.beside("canary");
    let trap = format!("#!/bin/sh\ntouch {}\n", canary.display());
    for hook in [
        "pre-commit",
        "prepare-commit-msg",
        "commit-msg",
        "post-commit",
        "reference-transaction",
        "post-index-change",
        "fsmonitor-watchman",
    ] {
        let path = format!(".git/hooks/{hook}");
        story.git.write(&path, &trap);
        story.chmod(&path, 0o755);
    }
    let program = story.git.beside("program");
    fs::write(&program, &trap).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    story.git.write("probe", "probe\n");
    story.git.commit("probe");
    assert!(canary.exists(), "plain git runs them");
    let program = program.to_str().unwrap();
    for (key, value) in [
        ("commit.gpgSign", "true"),
        ("gpg.program", program),
        ("core.fsmonitor", program),
        ("core.editor", program),
        ("diff.external", program),
    ] {
        story.git(&["config", key, value]);
    }
    fs::remove_file(&canary).unwrap();
    story.git.write("src/main.c", "changed\n");
    let intent = story.prepare();
    story.apply(&intent);
    assert!(!canary.exists());
    assert_eq!(
        GitBackend
            .commit_info(&Operation::unbounded(), &story.workspace, &intent.commit)
            .unwrap()
            .files_changed,
        1
    );
    assert!(!canary.exists());
}

/// What is written through a link ends up in `outside`.
fn replaced_by_a_link(story: &Story, name: &str) -> PathBuf {
    let outside = story.git.beside("outside");
    let path = story.git.path.join(".git").join(name);
    fs::rename(&path, &outside).unwrap();
    symlink(&outside, &path).unwrap();
    outside
}

fn all_of(path: &Path) -> String {
    match fs::metadata(path).unwrap().is_dir() {
        true => format!("{:?}", view(path)),
        false => format!("{:?}", fs::read(path).unwrap()),
    }
}

#[test]
fn a_link_in_the_place_of_a_file_or_directory_is_not_written_through() {
    for name in [
        "objects",
        "refs",
        "refs/heads",
        "refs/heads/main",
        "logs",
        "logs/HEAD",
        "logs/refs/heads/main",
        "index",
        "HEAD",
    ] {
        let story = Story::new();
        story.git.write("src/main.c", "changed\n");
        let intent = story.prepare();
        let outside = replaced_by_a_link(&story, name);
        let was = all_of(&outside);
        let outcome = story.try_apply(&intent);
        assert_eq!(all_of(&outside), was, "{name}");
        let is_log = name.starts_with("logs");
        assert_eq!(outcome.is_ok(), is_log, "{name}: {outcome:?}");
        let path = story.git.path.join(".git").join(name);
        fs::remove_file(&path).unwrap();
        fs::rename(&outside, &path).unwrap();
        story.try_apply(&intent).unwrap();
        story.is_sound();
    }
    for name in ["objects", "objects/b7"] {
        let story = Story::new();
        story.git.write("src/main.c", "changed\n");
        let options = SnapshotOptions::new(Label::MANUAL, Timestamp::UNIX_EPOCH);
        let snapshot = GitBackend
            .snapshot(&Operation::unbounded(), &story.workspace, &options)
            .unwrap();
        for shard in 0..256 {
            let path = story.git.path.join(format!(".git/objects/{shard:02x}"));
            fs::create_dir_all(path).unwrap();
        }
        let tree = story
            .prepare_of(&snapshot.id, &request())
            .unwrap()
            .unwrap()
            .tree;
        let (above, file) = tree.split_at(2);
        fs::remove_file(story.git.path.join(format!(".git/objects/{above}/{file}"))).unwrap();
        let name = name.replace("b7", above);
        let outside = replaced_by_a_link(&story, &name);
        let was = all_of(&outside);
        let error = story.prepare_of(&snapshot.id, &request()).unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::HostileRepository,
            "{name}: {error}"
        );
        assert_eq!(all_of(&outside), was, "{name}");
    }
}

#[test]
fn a_symbolic_ref_in_the_place_of_the_branch_is_not_followed() {
    let story = Story::new();
    story.git(&["branch", "victim"]);
    story.git.write("src/main.c", "changed\n");
    let intent = story.prepare();
    let victim = story.git(&["rev-parse", "victim"]);
    story.git(&["symbolic-ref", "refs/heads/main", "refs/heads/victim"]);
    let error = story.try_apply(&intent).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HostileRepository, "{error}");
    assert_eq!(story.git(&["rev-parse", "victim"]), victim);
}

#[test]
fn a_commit_is_described_as_git_describes_it() {
    let story = Story::new();
    let git = &story.git;
    git.write("src/main.c", "int a;\nint b;\n");
    git.write("binary", b"\0\x01\x02");
    git.write("read me", "one\n2\nthree\nfour");
    git.write("moved/other.c", "int other;\n");
    fs::remove_file(story.path().join("src/other.c")).unwrap();
    fs::remove_dir_all(story.path().join("docs")).unwrap();
    git.write("docs", "a file\n");
    symlink("nowhere", story.path().join("link")).unwrap();
    git.write("mode", "x\n");
    git.commit("second");
    story.chmod("mode", 0o755);
    fs::remove_file(story.path().join("link")).unwrap();
    git.write("link", "no link\nmore\n");
    git.write("binary", b"\0\x01\x03");
    let head = git.git(&["rev-parse", "HEAD"]);
    let info = format!("160000,{head},sub");
    git.git(&["add", "-A"]);
    git.git(&["update-index", "--add", "--cacheinfo", &info]);
    git.git(&["commit", "-q", "-m", "third", "-m", "body"]);
    git.git(&["checkout", "-q", "-b", "side", "HEAD~1"]);
    git.write("side", "side\n");
    git.git(&["add", "side"]);
    git.git(&["commit", "-q", "-m", "side"]);
    git.git(&["merge", "-q", "--no-edit", "main"]);
    let commits = git.git(&["rev-list", "HEAD"]);
    assert_eq!(commits.lines().count(), 5);
    for id in commits.lines() {
        let info = GitBackend
            .commit_info(&Operation::unbounded(), &story.workspace, id)
            .unwrap();
        let parent = git.run(
            &git.path,
            &["rev-parse", "-q", "--verify", &format!("{id}^")],
        );
        let parent = String::from_utf8(parent.stdout).unwrap().trim().to_owned();
        let empty = git.git(&["hash-object", "-t", "tree", "/dev/null"]);
        let base = if parent.is_empty() { &empty } else { &parent };
        let numstat = git.git(&["diff", "--numstat", "--no-renames", base, id]);
        let (mut files, mut insertions, mut deletions) = (0, 0, 0);
        for line in numstat.lines() {
            let mut words = line
                .split('\t')
                .map(|word| word.parse::<u64>().unwrap_or(0));
            files += 1;
            insertions += words.next().unwrap();
            deletions += words.next().unwrap();
        }
        let counted = (info.files_changed, info.insertions, info.deletions);
        assert_eq!(counted, (files, insertions, deletions), "{id}: {numstat}");
        assert_eq!(info.parent.unwrap_or_default(), parent);
        let shown = git.run(&git.path, &["log", "-1", "--format=%B", id]).stdout;
        assert_eq!(
            format!("{}\n", info.message),
            String::from_utf8_lossy(&shown)
        );
        assert_eq!(info.author, Signature::new("A", "a@example.org"));
    }
    let tree = git.git(&["rev-parse", "HEAD^{tree}"]);
    let unknown = "12".repeat(20);
    for id in ["HEAD", "main", &tree, &unknown, &head[..10], ""] {
        let error = GitBackend
            .commit_info(&Operation::unbounded(), &story.workspace, id)
            .unwrap_err();
        assert!(matches!(error, CommitError::NotFound(_)), "{id}: {error}");
    }
}
