//! The user's index says what is tracked, and it changes between two captures of one store.

use std::fs;

use crate::ground::{Ground, omissions};

#[test]
fn a_file_that_is_added_between_two_captures_is_in_the_second() {
    let ground = Ground::repository();
    let taker = ground.taker("state");
    taker.snapshot();
    ground.write("src/added", "added\n");
    ground.git(["add", "src/added"]);
    assert_eq!(taker.tree(), ground.oracle());
    ground.fsck(&taker);
}

#[test]
fn a_sparse_path_that_leaves_the_index_leaves_the_tree() {
    let ground = Ground::repository();
    ground.git([
        "update-index",
        "--skip-worktree",
        "src/deep/er/leaf",
        "README",
    ]);
    ground.remove("src/deep");
    ground.remove("README");
    let taker = ground.taker("state");
    let sparse = taker.snapshot();
    assert_eq!(
        omissions(&sparse),
        ["README sparse", "src/deep/er/leaf sparse"]
    );
    assert_eq!(
        sparse.tree.as_deref(),
        Some(ground.git(["rev-parse", "HEAD^{tree}"]).as_str()),
        "what a sparse checkout leaves out stays in the tree"
    );
    ground.git([
        "rm",
        "-q",
        "--cached",
        "--sparse",
        "src/deep/er/leaf",
        "README",
    ]);
    assert_eq!(taker.tree(), ground.oracle());
}

#[test]
fn what_lies_in_the_place_of_a_sparse_path_is_captured_instead() {
    for kind in ["file for directory", "directory for file", "fifo for file"] {
        let ground = Ground::repository();
        let path = match kind {
            "file for directory" => "src/deep/er/leaf",
            _ => "README",
        };
        ground.git(["update-index", "--skip-worktree", path]);
        let taker = ground.taker("state");
        let before = taker.tree();
        match kind {
            "file for directory" => {
                ground.remove("src/deep");
                ground.write("src/deep", "a file\n");
            }
            "directory for file" => {
                ground.remove("README");
                ground.write("README/inside", "x\n");
            }
            _ => {
                ground.remove("README");
                ground.mkfifo("README");
            }
        }
        for taker in [ground.taker("fresh"), taker] {
            let snapshot = taker.snapshot();
            assert_eq!(snapshot.tree, Some(ground.oracle()), "{kind}");
            assert!(
                !omissions(&snapshot).iter().any(|o| o.ends_with("sparse")),
                "{kind}: {:?}",
                snapshot.omissions()
            );
            ground.fsck(&taker);
            // Once it is gone the path is absent on purpose again.
            ground.remove(if kind == "file for directory" {
                "src/deep"
            } else {
                "README"
            });
            let again = taker.snapshot();
            assert_eq!(omissions(&again), [format!("{path} sparse")], "{kind}");
            assert_eq!(again.tree.as_ref(), Some(&before), "{kind}");
            if kind == "file for directory" {
                ground.write("src/deep", "a file\n");
            } else if kind == "directory for file" {
                ground.write("README/inside", "x\n");
            } else {
                ground.mkfifo("README");
            }
        }
    }
}

#[test]
fn a_file_checked_out_under_attributes_that_the_worktree_lost_is_read() {
    let ground = Ground::repository();
    ground.git(["checkout", "-q", "-b", "crlf"]);
    ground.write(".gitattributes", "*.txt text eol=crlf\n");
    ground.write("new.txt", "one\r\ntwo\r\n");
    ground.commit("crlf");
    ground.git(["checkout", "-q", "main"]);
    ground.write(".gitattributes", "# nothing\n");
    let taker = ground.taker("state");
    taker.snapshot();
    // git goes by the attributes of the index that it checks out, which are then taken away.
    ground.remove(".gitattributes");
    ground.git(["checkout", "-q", "crlf"]);
    ground.settle();
    ground.write(".gitattributes", "# nothing\n");
    assert_eq!(fs::read(ground.path("new.txt")).unwrap(), b"one\r\ntwo\r\n");
    let fresh = ground.taker("fresh");
    assert_eq!(fresh.tree(), ground.oracle(), "a fresh store");
    assert_eq!(taker.tree(), ground.oracle(), "a store in use");
}
