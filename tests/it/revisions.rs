//! `review request-changes` and `retry`: what a run has handed in is changed by it, and what a run has
//! failed at is done again.

use std::fs;

use serde_json::{Value, json};
use stillframe_tests::{Output, TestWorkspace};

use super::isolation::{done, id, is_there, isolated, show, text, types, worktree};

fn asked(ws: &TestWorkspace, run: &Value, comment: &str, script: Option<&str>) -> Output {
    let mut args = vec!["review", "request-changes", id(run), "-m", comment];
    if let Some(script) = script {
        args.extend(["--", "sh", "-c", script]);
    }
    ws.try_json(args)
}

#[test]
fn a_run_changes_what_it_has_handed_in_where_it_was_and_hands_that_in_anew() {
    let ws = TestWorkspace::repository();
    let script = "echo \"${STILLFRAME_REVISION-first}:$STILLFRAME_REVIEW_COMMENT\" >> said; if [ \"$STILLFRAME_REVIEW_COMMENT_FILE\" ]; then cat \"$STILLFRAME_REVIEW_COMMENT_FILE\" > comment; fi";
    let run = done(&ws, script);
    let (first, branch) = (text(&run, "commit"), text(&run, "worktree_branch"));
    let by = ["--by", "ann"];
    let args = [
        "review",
        "request-changes",
        id(&run),
        "-m",
        "say it\u{1b}[31m twice",
    ];
    let again = ws.try_json([&args[..], &by].concat()).ok().json();
    assert_eq!(again["status"], "awaiting_review", "{again}");
    assert_eq!(again["run_id"], run["run_id"]);
    assert_eq!(worktree(&again), worktree(&run));
    let second = text(&again, "commit");
    assert_ne!(second, first);
    assert_eq!(ws.git(["rev-parse", branch]), second);
    assert_eq!(ws.git(["rev-parse", &format!("{second}^")]), first);
    assert_eq!(
        ws.git(["show", &format!("{second}:said")]),
        "first:\n1:say it[31m twice"
    );
    assert_eq!(
        ws.git(["show", &format!("{second}:comment")]),
        "say it[31m twice"
    );
    let shown = ws.json(["review", "show", id(&run)]);
    let revision = &shown["revisions"][0];
    assert_eq!(
        (
            &revision["number"],
            &revision["reviewer"],
            &revision["comment"],
            &revision["previous_tree"]
        ),
        (
            &json!(1),
            &json!("ann"),
            &json!("say it[31m twice"),
            &json!(text(&run, "tree"))
        )
    );
    let told = types(&ws, &run);
    let order = [
        "review_requested",
        "review_changes_requested",
        "revision_started",
    ];
    let found = told.iter().filter(|one| order.contains(&one.as_str()));
    assert_eq!(
        found.collect::<Vec<_>>(),
        [order[0], order[1], order[2], order[0]],
        "{told:?}"
    );

    // The patch under review is of all that the run did, and what was looked at before is stale.
    let diff = ws.json(["review", "diff", id(&run)]);
    assert_eq!(diff["changed_paths"], json!(["comment", "said"]));
    let stale = ws
        .try_json(["review", "approve", id(&run), "--commit", first])
        .exits(1);
    assert!(stale.error("Conflict").contains("stale"));

    // One that changes nothing more has the same commit, under another request.
    let same = asked(&ws, &run, "anything else?", Some("true")).ok().json();
    assert_eq!(text(&same, "commit"), second);
    assert_ne!(
        same["isolation"]["request_id"],
        again["isolation"]["request_id"]
    );
    let merged = ws.json(["review", "approve", id(&run)]);
    assert_eq!(
        (&merged["status"], text(&merged, "commit")),
        (&json!("merged"), second)
    );
    assert_eq!(ws.text("comment"), "say it[31m twice");
    let late = asked(&ws, &run, "one more", Some("true")).exits(125);
    late.error("Conflict");
}

#[test]
fn what_cannot_be_asked_for_is_refused_before_anything_is_decided() {
    let ws = TestWorkspace::repository();
    let run = done(&ws, "echo x > new");
    let before = ws.events::<&str>([]).len();
    for (comment, kind) in [
        ("", "InvalidOptions"),
        (" \n", "InvalidOptions"),
        (&*"é".repeat(8_001), "InvalidOptions"),
    ] {
        asked(&ws, &run, comment, Some("true"))
            .exits(125)
            .error(kind);
    }
    let args = [
        "review",
        "request-changes",
        id(&run),
        "-m",
        "a",
        "--by",
        "",
        "--",
        "true",
    ];
    ws.try_json(args).exits(125).error("InvalidOptions");
    assert_eq!(ws.events::<&str>([]).len(), before);
    for round in 1..=10 {
        let script = format!("echo {round} > new");
        let run = asked(&ws, &run, "again", Some(&script)).ok().json();
        assert_eq!(run["status"], "awaiting_review", "{round}");
    }
    let before = ws.events::<&str>([]).len();
    asked(&ws, &run, "again", Some("true"))
        .exits(125)
        .error("LimitExceeded");
    assert_eq!(ws.events::<&str>([]).len(), before);
    assert_eq!(show(&ws, &run)["status"], "awaiting_review");
    ws.json(["review", "decline", id(&run)]);
    asked(&ws, &run, "again", Some("true"))
        .exits(125)
        .error("Conflict");
    // What was asked for is never changed, and goes with its run.
    let database = rusqlite::Connection::open(ws.state().join("stillframe.db")).unwrap();
    for change in [
        "UPDATE run_revisions SET sanitized_comment = 'x'",
        "DELETE FROM run_revisions",
    ] {
        let refused = database.execute(change, ()).unwrap_err().to_string();
        assert!(refused.contains("a revision of a run"), "{refused}");
    }
}

#[test]
fn a_revision_that_fails_ends_the_run_and_keeps_what_there_is() {
    let ws = TestWorkspace::repository();
    let run = done(&ws, "echo x > new");
    let failed = asked(&ws, &run, "more", Some("echo y > more; exit 3"))
        .exits(3)
        .json();
    assert_eq!(failed["status"], "failed");
    assert_eq!(is_there(&ws, &run), [true; 3]);
    assert_eq!(
        ws.git(["rev-parse", text(&run, "worktree_branch")]),
        text(&run, "commit")
    );
    assert_eq!(
        fs::read_to_string(worktree(&run).join("more")).unwrap(),
        "y\n"
    );
    ws.try_json(["review", "approve", id(&run)])
        .exits(1)
        .error("Conflict");
}

#[test]
fn what_a_run_has_failed_at_is_done_again_by_another_at_most_three_times() {
    let ws = TestWorkspace::repository();
    ws.write("file", "1\n");
    ws.commit("second");
    let failed = isolated(
        &ws,
        &["--scope", "file"],
        "test -e ../../ok && echo 2 > file",
    )
    .exits(1);
    let mut run = failed.json();
    let source = show(&ws, &run);
    for _ in 0..3 {
        let next = ws.try_json(["retry", id(&run)]).exits(1).json();
        assert_ne!(next["run_id"], run["run_id"]);
        assert_eq!(next["status"], "failed", "{next}");
        assert_eq!(show(&ws, &next)["options"]["retried_from"], run["run_id"]);
        assert_eq!(
            text(&next, "originating_branch"),
            text(&run, "originating_branch")
        );
        assert_eq!(is_there(&ws, &run), [true; 3]);
        run = next;
    }
    let runs = ws.json(["runs"]).as_array().unwrap().len();
    ws.try_json(["retry", id(&run)])
        .exits(125)
        .error("LimitExceeded");
    assert_eq!(ws.json(["runs"]).as_array().unwrap().len(), runs);
    assert_eq!(
        show(&ws, &json!({ "run_id": source["run_id"] }))["status"],
        "failed"
    );

    fs::write(ws.state().join("ok"), "").unwrap();
    let first = source["run_id"].as_str().unwrap();
    let done = ws.try_json(["retry", first]).ok().json();
    assert_eq!(done["status"], "awaiting_review", "{done}");
    assert_eq!(
        ws.git(["show", &format!("{}:file", text(&done, "commit"))]),
        "2"
    );
    ws.try_json(["retry", id(&done)])
        .exits(125)
        .error("Conflict");
    // A conflict can be tried again from where the branch is now.
    ws.write("file", "mine\n");
    ws.git(["commit", "-qam", "third"]);
    ws.try_json(["review", "approve", id(&done)]).exits(1);
    assert_eq!(show(&ws, &done)["status"], "merge_failed");
    let again = ws.try_json(["retry", id(&done)]).ok().json();
    ws.json(["review", "approve", id(&again)]);
    assert_eq!(ws.text("file"), "2\n");

    // A run in its workspace is done again there, by a command that is named.
    let args = ["--json", "run", "--", "sh", "-c", "exit 4"];
    let plain = ws.call(args).run().exits(4);
    let plain = plain.json();
    let refused = ws.try_json(["retry", id(&plain)]).exits(2);
    assert!(refused.stderr_text().contains("-- CMD") || refused.stdout_text().contains("-- CMD"));
    let again = ws.try_json(["retry", id(&plain), "--", "sh", "-c", "echo z > plain"]);
    assert_eq!(again.ok().json()["status"], "completed");
    assert_eq!(ws.text("plain"), "z\n");
    ws.try_json(["retry", "run_00000000"])
        .exits(125)
        .error("NotFound");
}
