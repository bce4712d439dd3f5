//! What a checkpoint goes on from, and what the store has of that.

use super::*;

fn parents(story: &Story, commit: &str) -> String {
    story.in_store(&["log", "-1", "--format=%P", commit])
}

#[test]
fn the_parents_are_the_last_one_sent_and_head_unless_one_contains_the_other() {
    let story = Story::new();
    let first = story.git(&["rev-parse", "HEAD"]);
    story.git.write("src/main.c", "one\n");
    let one = story.commit_of(&story.checkpoint(&request(1)));
    assert_eq!(parents(&story, &one), first);

    // The checkpoint contains HEAD.
    story.git.write("src/main.c", "two\n");
    let two = story.commit_of(&story.checkpoint(&request(2).sent(one.clone())));
    assert_eq!(parents(&story, &two), one);
    // One that was refused is no parent of the next.
    story.git.write("src/main.c", "three\n");
    let three = story.commit_of(&story.checkpoint(&request(3).sent(one.clone())));
    assert_eq!(parents(&story, &three), one);

    // HEAD contains the checkpoint.
    story.git(&["fetch", "-q", story.store_dir().to_str().unwrap(), &two]);
    story.git(&["reset", "-q", "--soft", &two]);
    story.git.commit("goes on");
    let head = story.git(&["rev-parse", "HEAD"]);
    story.git.write("src/main.c", "four\n");
    let four = story.commit_of(&story.checkpoint(&request(4).sent(two.clone())));
    assert_eq!(parents(&story, &four), head);

    // Neither contains the other.
    story.git(&["checkout", "-q", "-f", "-B", "main", &first]);
    story.git.write("src/other.c", "aside\n");
    story.git.commit("aside");
    let head = story.git(&["rev-parse", "HEAD"]);
    story.git.write("src/main.c", "five\n");
    let five = story.commit_of(&story.checkpoint(&request(5).sent(four.clone())));
    assert_eq!(parents(&story, &five), format!("{four} {head}"));
    let base = story.in_store(&["merge-base", "--is-ancestor", &four, &five]);
    assert_eq!(base, "");
}

#[test]
fn without_anything_new_the_tip_is_kept_and_no_commit_is_made() {
    let story = Story::new();
    // Work that was committed and never sent.
    story.git.write("src/main.c", "committed\n");
    story.git.commit("second");
    let head = story.git(&["rev-parse", "HEAD"]);
    let made = story.checkpoint(&request(1));
    assert_eq!((made.is_new, made.parents.len()), (false, 0));
    assert_eq!(story.commit_of(&made), head);
    story.reaches_all(&head);

    story.git.write("src/main.c", "more\n");
    let one = story.commit_of(&story.checkpoint(&request(2).sent(head)));
    let made = story.checkpoint(&request(3).sent(one.clone()));
    assert_eq!((made.is_new, story.commit_of(&made)), (false, one.clone()));
    // The same tree with another history is a commit.
    story.git(&["commit", "-q", "--allow-empty", "-m", "aside"]);
    let made = story.checkpoint(&request(4).sent(one));
    assert!(made.is_new);
}

#[test]
fn the_same_request_is_the_same_commit_once_and_another_is_refused() {
    let story = Story::new();
    story.git.write("src/main.c", "one\n");
    let snapshot = story.snapshot();
    let op = Operation::unbounded();
    let first = story.try_make(&op, &snapshot, &request(1)).unwrap();
    let names = story.in_store(&["for-each-ref"]);
    for _ in 0..2 {
        assert_eq!(story.try_make(&op, &snapshot, &request(1)).unwrap(), first);
    }
    // The user has gone on since it died.
    story.git.write("src/main.c", "two\n");
    story.git.commit("two");
    assert_eq!(story.try_make(&op, &snapshot, &request(1)).unwrap(), first);
    assert_eq!(story.in_store(&["for-each-ref"]), names);
    // The same again under a name of its own, as after a crash before the first ref.
    let forgotten = GitBackend;
    let mut story = story;
    forgotten
        .forget_checkpoints(&op, &mut story.workspace, TASK, &[1])
        .unwrap();
    assert_eq!(story.try_make(&op, &snapshot, &request(1)).unwrap(), first);

    let mut other = request(1);
    other.message = "another\n".to_owned();
    let error = story.try_make(&op, &snapshot, &other).unwrap_err();
    assert!(matches!(error, CheckpointError::Conflict(_)), "{error}");
    assert_eq!(story.in_store(&["for-each-ref"]), names);
    other.number = 2;
    assert_ne!(story.try_make(&op, &snapshot, &other).unwrap(), first);
}

#[test]
fn bad_requests_say_what_is_wrong_and_leave_nothing() {
    let story = Story::new();
    story.git.write("src/main.c", "one\n");
    let snapshot = story.snapshot();
    let op = Operation::unbounded();
    let names = story.in_store(&["for-each-ref"]);
    let packs = fs::read_dir(story.store_dir().join("objects/pack"))
        .unwrap()
        .count();
    let refused = |change: &dyn Fn(&mut CheckpointRequest)| {
        let mut request = request(1);
        change(&mut request);
        let error = story.try_make(&op, &snapshot, &request).unwrap_err();
        assert_eq!(story.in_store(&["for-each-ref"]), names, "{error}");
        error
    };
    let changes: [&dyn Fn(&mut CheckpointRequest); 8] = [
        &|request| request.task.clear(),
        &|request| request.number = 0,
        &|request| request.message = " \n".to_owned(),
        &|request| request.message = "a\0b".to_owned(),
        &|request| request.at = Timestamp::from_second(-1).unwrap(),
        &|request| request.sent = Some("main".to_owned()),
        &|request| request.author = Some(Signature::new("<", "a@b")),
        &|request| request.author = Some(Signature::new("a", "")),
    ];
    for change in changes {
        let error = refused(change);
        assert!(
            matches!(error, CheckpointError::InvalidOptions(_)),
            "{error}"
        );
    }
    let nowhere = "1".repeat(40);
    let error = refused(&|request| request.sent = Some(nowhere.clone()));
    assert!(error.to_string().contains(&nowhere), "{error}");
    assert!(
        matches!(error, CheckpointError::CommitMissing { .. }),
        "{error}"
    );
    let left = fs::read_dir(story.store_dir().join("objects/pack"))
        .unwrap()
        .count();
    assert_eq!(left, packs, "no pack is left");
}

#[test]
fn what_no_remote_has_survives_the_repository_itself() {
    let story = Story::new();
    for n in 0..3 {
        story.git.write("src/main.c", format!("{n}\n"));
        story.git.commit(&format!("{n}"));
    }
    // Neither in the tree of HEAD, nor in the workspace.
    story.git.write("once", "only in history\n");
    story.git.commit("once");
    fs::remove_file(story.path().join("once")).unwrap();
    story.git.commit("no more");
    story.git.write("src/main.c", "changed\n");
    let log = story.git(&["log", "--format=%H %T"]);
    let commit = story.commit_of(&story.checkpoint(&request(1)));
    fs::remove_dir_all(story.path().join(".git")).unwrap();
    let remote = story.git.beside("remote");
    let to = remote.to_str().unwrap();
    story.in_store(&["init", "-q", "--bare", to]);
    story.in_store(&["push", "-q", to, &format!("{commit}:refs/heads/work")]);
    story.git.git_in(&remote, &["fsck", "--strict", "--full"]);
    let theirs = story
        .git
        .git_in(&remote, &["log", "--format=%H %T", "work~1"]);
    assert_eq!(theirs, log);
}

#[test]
fn history_ends_where_the_remote_has_the_rest_until_it_has_not() {
    let mut story = Story::new();
    for n in 0..3 {
        story.git.write(format!("file{n}"), format!("{n}\n"));
        story.git.commit(&format!("{n}"));
    }
    let remote = story.git.beside("remote");
    let to = remote.to_str().unwrap().to_owned();
    story.git(&["clone", "-q", "--bare", ".", &to]);
    let base = story.git(&["rev-parse", "HEAD"]);
    story.git.write("unsent", "committed, not sent\n");
    story.git.commit("unsent");
    story.git.write("src/main.c", "changed\n");
    let nowhere = "1".repeat(40);
    let on_remote =
        |ids: &[&String]| request(1).on_remote(ids.iter().map(|id| (*id).clone()).collect());
    let one = story.commit_of(&story.checkpoint(&on_remote(&[&nowhere, &base])));
    let has = |story: &Story, what: &str| {
        story
            .git
            .run(&story.store_dir(), &["cat-file", "-e", what])
            .status
            .success()
    };
    assert!(has(&story, &format!("{base}^{{tree}}")));
    let before_base = story.git(&["rev-parse", &format!("{base}~1")]);
    assert!(!has(&story, &before_base), "the remote has it");
    assert_eq!(story.in_store(&["rev-list", "--count", &one]), "3");
    story.in_store(&["push", "-q", &to, &format!("{one}:refs/heads/work")]);
    story.git.git_in(&remote, &["fsck", "--strict", "--full"]);
    assert_eq!(
        story.git.git_in(&remote, &["rev-list", "--count", "work"]),
        "6"
    );

    // A collection keeps it.
    let op = Operation::unbounded();
    GitBackend.collect(&op, &mut story.workspace).unwrap();
    story.is_sound();
    story.reaches_all(&one);

    // A remote that has nothing gets all of it.
    story.git.write("src/main.c", "changed again\n");
    let mut all = request(2).sent(one.clone());
    let two = story.commit_of(&story.checkpoint(&all));
    assert!(has(&story, &before_base));
    assert_eq!(story.in_store(&["rev-list", "--count", &two]), "7");
    story.reaches_all(&two);
    // And with all of it held the next one looks no further than that.
    story.git.write("src/main.c", "and again\n");
    all.number = 3;
    all.sent = Some(two.clone());
    let three = story.commit_of(&story.checkpoint(&all));
    assert_eq!(story.in_store(&["rev-list", "--count", &three]), "8");

    // What nobody keeps goes.
    let numbers = [1, 2, 3];
    GitBackend
        .forget_checkpoints(&op, &mut story.workspace, TASK, &numbers)
        .unwrap();
    GitBackend.collect(&op, &mut story.workspace).unwrap();
    assert!(!has(&story, &three) && !has(&story, &before_base));
    story.is_sound();
}

#[test]
fn what_the_refs_of_a_remote_name_need_not_be_commits_nor_be_readable() {
    for is_packed in [false, true] {
        let story = Story::new();
        story.git.write("token", "ghp_0123456789abcdefghij\n");
        story.git.commit("second");
        story.git(&["tag", "-a", "-m", "a tag", "v1"]);
        story.git(&["tag", "blob", "HEAD:token"]);
        story.git(&["tag", "tree", "HEAD^{tree}"]);
        story.git(&["branch", "old", "HEAD~1"]);
        let ids = ["v1", "blob", "tree", "old", "HEAD"].map(|name| story.git(&["rev-parse", name]));
        let [.., old, head] = &ids;
        if is_packed {
            story.git(&["repack", "-adq"]);
        } else {
            // One that the remote has, and that is damaged here.
            let damaged = story
                .git
                .path
                .join(".git/objects")
                .join(&old[..2])
                .join(&old[2..]);
            fs::remove_file(&damaged).unwrap();
            fs::write(&damaged, "no object").unwrap();
        }
        story.git.write("src/main.c", "changed\n");
        let known = request(1).on_remote(ids.to_vec());
        let commit = story.commit_of(&story.checkpoint(&known));
        assert_eq!(parents(&story, &commit), *head);
        let rules = stillframe_secrets::SecretRules::new();
        let search = crate::checkpoint::SecretSearch::new(commit, rules).on_remote(ids.to_vec());
        let op = Operation::unbounded();
        let found = commit::repository_of(&story.workspace).unwrap();
        let revealed = revealed(&op, Some(&found), &story.store(), &search).unwrap();
        assert_eq!(
            (revealed.commits, revealed.findings.len()),
            (1, 0),
            "{is_packed}"
        );
    }
}

#[test]
fn a_clone_without_all_of_its_history_or_content_is_no_obstacle() {
    for option in ["--depth=2", "--filter=blob:none"] {
        let origin = TestRepository::in_memory();
        for n in 0..4 {
            origin.write("file", format!("{n}\n"));
            origin.write("other/file", format!("other {n}\n"));
            origin.commit(&format!("{n}"));
        }
        origin.git(&["config", "uploadpack.allowFilter", "true"]);
        let clone = origin.beside("clone");
        let from = format!("file://{}", origin.path.display());
        origin.git(&["clone", "-q", option, &from, clone.to_str().unwrap()]);
        let base = origin.git(&["rev-parse", "HEAD"]);
        let story = Story::at(origin, &clone);
        fs::write(clone.join("file"), "changed\n").unwrap();
        let theirs = story.tree_of_git();
        let known = request(1).on_remote(vec![base.clone()]);
        let one = story.commit_of(&story.checkpoint(&known));
        assert_eq!(
            story.in_store(&["rev-parse", &format!("{one}^{{tree}}")]),
            theirs
        );
        story.in_store(&["push", "-q", &from, &format!("{one}:refs/heads/work")]);
        story.git.git(&["fsck", "--strict", "--full"]);
        assert_eq!(story.git.git(&["rev-list", "--count", "work"]), "5");
        // Nobody can tell whether what was cut off contains it.
        if option == "--depth=2" {
            story
                .git
                .git(&["checkout", "-q", "-b", "elsewhere", "HEAD~3"]);
            story.git.write("file", "elsewhere\n");
            story.git.commit("elsewhere");
            let other = story.git.git(&["rev-parse", "HEAD"]);
            story.in_store(&["fetch", "-q", "--depth=1", &from, &other]);
            let snapshot = story.snapshot();
            let asked = request(2).sent(other);
            let error = story
                .try_make(&Operation::unbounded(), &snapshot, &asked)
                .unwrap_err();
            assert!(
                matches!(error, CheckpointError::HistoryUnknown { .. }),
                "{error}"
            );
        }
    }
}

#[test]
fn damage_to_what_a_checkpoint_needs_is_found_and_nothing_is_collected() {
    let mut story = Story::new();
    story.git.write("src/main.c", "one\n");
    let commit = story.commit_of(&story.checkpoint(&request(1)));
    let op = Operation::unbounded();
    // The object of HEAD that only the checkpoint needs came as a link.
    let parent = story.in_store(&["rev-parse", &format!("{commit}~1")]);
    let loose = story
        .store_dir()
        .join("objects")
        .join(&parent[..2])
        .join(&parent[2..]);
    let bytes = fs::read(&loose).unwrap();
    fs::remove_file(&loose).unwrap();
    fs::write(&loose, &bytes[..bytes.len() / 2]).unwrap();
    let problems = GitBackend
        .verify_checkpoints(&op, &story.workspace)
        .unwrap();
    assert_eq!(problems.len(), 1, "{problems:?}");
    let error = GitBackend.collect(&op, &mut story.workspace).unwrap_err();
    assert_eq!(error.kind(), crate::error::ErrorKind::Corrupt, "{error}");
}
