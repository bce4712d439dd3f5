//! The index decides what is tracked, and is updated by a commit.

use super::*;

#[test]
fn what_the_index_says_about_ignored_and_tracked_files_counts() {
    let story = Story::unborn();
    let git = &story.git;
    git.write(".gitignore", "*.log\nout/\n");
    for name in [
        "kept.log",
        "dropped.log",
        "gone.log",
        "out/kept",
        "out/gone",
        "out/dropped",
    ] {
        git.write(name, "one\n");
    }
    git.git(&["add", "-f", "."]);
    git.git(&["commit", "-q", "-m", "first"]);
    git.write("kept.log", "two\n");
    git.write("out/kept", "two\n");
    git.write("new.log", "ignored\n");
    for name in ["gone.log", "out/gone"] {
        fs::remove_file(story.path().join(name)).unwrap();
    }
    git.git(&["rm", "-q", "--cached", "dropped.log", "out/dropped"]);
    story.commits_as_git_does();
    assert!(story.git(&["ls-files"]).contains("out/kept"));
}

#[test]
fn what_was_staged_before_is_committed_as_it_is_on_disk() {
    let story = Story::new();
    let git = &story.git;
    git.write("src/main.c", "staged\n");
    git.write("new", "staged\n");
    git.write("planned", "planned\n");
    git.git(&["add", "src/main.c", "new"]);
    git.git(&["add", "--intent-to-add", "planned"]);
    git.write("src/main.c", "on disk\n");
    git.write("new", "on disk\n");
    git.git(&["rm", "-q", "--cached", "read me"]);
    git.write("read me", "changed\n");
    story.commits_as_git_does();
    assert_eq!(
        story.git(&["diff-index", "--name-only", "HEAD"]),
        "",
        "without a refresh"
    );
}

#[test]
fn what_was_staged_and_taken_back_is_staged_no_more() {
    let story = Story::new();
    let git = &story.git;
    git.write("src/main.c", "staged\n");
    git.write("gone", "staged\n");
    git.write("stays", "changed\n");
    git.git(&["add", "."]);
    git.git(&["rm", "-q", "--cached", "read me"]);
    fs::remove_file(story.path().join("gone")).unwrap();
    git.write("src/main.c", "int main;\n");
    story.commits_as_git_does();
    assert_eq!(
        story.git(&["show", "--format=", "--name-only", "HEAD"]),
        "stays"
    );

    // Beside the paths that are asked for it stays staged.
    git.write("src/main.c", "staged\n");
    git.write("gone", "staged\n");
    git.git(&["add", "."]);
    fs::remove_file(story.path().join("gone")).unwrap();
    git.write("src/main.c", "int main;\n");
    git.write("stays", "changed again\n");
    let only = request().paths(vec![rel("stays")]);
    let intent = story.try_prepare(&only).unwrap().unwrap();
    story.apply(&intent);
    assert_eq!(story.status(), "AD gone\nMM src/main.c");
}

#[test]
fn what_was_left_out_is_as_head_has_it() {
    let story = Story::new();
    let git = &story.git;
    git.git(&["update-index", "--assume-unchanged", "src/main.c"]);
    git.git(&["update-index", "--skip-worktree", "src/other.c"]);
    git.write("src/main.c", "nobody looks\n");
    fs::remove_file(story.path().join("src/other.c")).unwrap();
    git.write("large", "x".repeat(5000));
    git.write("small", "small\n");
    fs::remove_file(story.path().join("read me")).unwrap();
    let fifo = story.path().join("read me");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let mut options = SnapshotOptions::new(Label::MANUAL, Timestamp::UNIX_EPOCH);
    options.max_untracked_file_bytes = 1000;
    let intent = story
        .try_prepare_with(&request(), &options)
        .unwrap()
        .unwrap();
    story.apply(&intent);
    assert_eq!(
        story.git(&["show", "--format=", "--name-only", "HEAD"]),
        "small"
    );
    story.is_sound();
    let flags = story.git(&["ls-files", "-v", "src"]);
    assert_eq!(flags, "h src/main.c\nS src/other.c");
}

#[test]
fn modes_and_links_that_the_configuration_does_not_trust_are_those_of_the_index() {
    let story = Story::new();
    let git = &story.git;
    symlink("src", story.path().join("link")).unwrap();
    git.write("run", "#!/bin/sh\n");
    story.chmod("run", 0o755);
    git.commit("second");
    git.git(&["config", "core.fileMode", "false"]);
    git.git(&["config", "core.symlinks", "false"]);
    git.write("run", "#!/bin/sh\necho\n");
    story.chmod("run", 0o644);
    git.write("new", "new\n");
    story.chmod("new", 0o755);
    fs::remove_file(story.path().join("link")).unwrap();
    git.write("link", "docs");
    story.commits_as_git_does();
    assert_eq!(story.git(&["ls-tree", "HEAD", "link"])[..6], *"120000");
}

#[test]
fn every_version_of_the_index_goes_on() {
    for version in ["2", "3", "4"] {
        let story = Story::new();
        story.git(&["update-index", "--index-version", version]);
        story.git.write("src/main.c", "changed\n");
        story.git.write("src/mainly.c", "new\n");
        story.git.write("x".repeat(200), "new\n");
        fs::remove_file(story.path().join("src/other.c")).unwrap();
        story.git(&["config", "core.untrackedCache", "true"]);
        story.status();
        story.commits_as_git_does();
        story.git.write("untracked", "seen\n");
        assert_eq!(story.status(), "?? untracked");
    }
    // It was removed.
    let story = Story::new();
    fs::remove_file(story.git.path.join(".git/index")).unwrap();
    story.git.write("src/main.c", "changed\n");
    story.commits_as_git_does();
}

#[test]
fn a_change_that_its_stat_data_do_not_show_is_still_found_by_git() {
    for _ in 0..3 {
        let story = Story::new();
        let only = request().paths(vec![rel("new")]);
        story.git.write("new", "new\n");
        story.git.write("src/main.c", "int mine;\n");
        // Of the size and time of what was committed, as in one tick of the clock.
        let index = story.git.path.join(".git/index");
        let written = fs::metadata(&index).unwrap().modified().unwrap();
        let path = story.path().join("src/main.c");
        story.git.write("src/main.c", "int main;\n");
        fs::File::open(&path)
            .unwrap()
            .set_modified(written)
            .unwrap();
        story.git(&["add", "src/main.c"]);
        fs::File::open(&index)
            .unwrap()
            .set_modified(written)
            .unwrap();
        fs::write(&path, "int mine;\n").unwrap();
        fs::File::open(&path)
            .unwrap()
            .set_modified(written)
            .unwrap();
        let intent = story.try_prepare(&only).unwrap().unwrap();
        story.apply(&intent);
        let later = written + Duration::from_secs(5);
        fs::File::open(&index).unwrap().set_modified(later).unwrap();
        story.git(&["config", "core.trustctime", "false"]);
        assert_eq!(story.status(), " M src/main.c");
    }
}
