//! The user's index says what is tracked, and it changes between two captures of one store.

use std::fs;
use std::time::{Duration, SystemTime};

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

/// How a file comes to differ from its object while git calls it clean: what makes the repository
/// convert it on checkout, and what takes every trace of that away again.
type Conversion = (&'static str, fn(&Ground), fn(&Ground));

const CONVERSIONS: [Conversion; 8] = [
    (
        "a commit that removes .gitattributes",
        |ground| {
            ground.write(".gitattributes", "*.txt text eol=crlf\n");
            ground.git(["add", ".gitattributes"]);
            ground.git(["commit", "-q", "-m", "attributes"]);
        },
        |ground| {
            ground.git(["rm", "-q", ".gitattributes"]);
            ground.git(["commit", "-q", "-m", "no attributes"]);
        },
    ),
    (
        "a commit that edits .gitattributes",
        |ground| {
            ground.write(".gitattributes", "*.txt text eol=crlf\n");
            ground.git(["add", ".gitattributes"]);
            ground.git(["commit", "-q", "-m", "attributes"]);
        },
        |ground| {
            ground.write(".gitattributes", "*.txt text\n");
            ground.git(["commit", "-q", "-a", "-m", "other attributes"]);
        },
    ),
    (
        "an untracked .gitattributes",
        |ground| ground.write(".gitattributes", "*.txt text eol=crlf\n"),
        |ground| ground.remove(".gitattributes"),
    ),
    (
        "info/attributes",
        |ground| ground.write(".git/info/attributes", "*.txt text eol=crlf\n"),
        |ground| ground.remove(".git/info/attributes"),
    ),
    (
        "configuration",
        |ground| drop(ground.git(["config", "core.autocrlf", "true"])),
        |ground| drop(ground.git(["config", "--unset", "core.autocrlf"])),
    ),
    (
        "$Id$",
        |ground| ground.write(".git/info/attributes", "*.txt ident\n"),
        |ground| ground.remove(".git/info/attributes"),
    ),
    (
        "a filter",
        |ground| {
            ground.git(["config", "filter.f.smudge", "cat; echo smudged"]);
            ground.git(["config", "filter.f.clean", "sed /smudged/d"]);
            ground.write(".git/info/attributes", "*.txt filter=f\n");
        },
        |ground| {
            ground.git(["config", "--remove-section", "filter.f"]);
            ground.remove(".git/info/attributes");
        },
    ),
    (
        "an encoding",
        |ground| {
            ground.write(
                ".git/info/attributes",
                "*.txt working-tree-encoding=UTF-16\n",
            )
        },
        |ground| ground.remove(".git/info/attributes"),
    ),
];

#[test]
fn an_id_that_replaced_another_of_its_length_is_captured_as_it_is_on_disk() {
    let ground = Ground::repository();
    let filled_in = format!("$Id: {} $\n", "0".repeat(40));
    ground.write("a.c", &filled_in);
    ground.commit("filled in");
    ground.write(".gitattributes", "*.c ident\n");
    ground.commit("attributes");
    // Where file and index have one time, git reads the file, and takes it for changed.
    let is_taken_for_clean = |_| {
        ground.remove("a.c");
        ground.git(["checkout", "-q", "--", "a.c"]);
        ground.git(["diff-files", "--name-only"]).is_empty()
    };
    assert!((0..100).any(is_taken_for_clean));
    ground.settle();
    let on_disk = fs::read_to_string(ground.path("a.c")).unwrap();
    assert_eq!(on_disk.len(), filled_in.len(), "the size tells nothing");
    assert_ne!(on_disk, filled_in);
    assert_eq!(ground.git(["diff-files", "--name-only"]), "");
    assert_eq!(ground.taker("state").tree(), ground.oracle());
}

// The worktree's exact bytes, also where git has forgotten that they are others
#[test]
fn a_file_that_was_converted_by_what_is_gone_is_read() {
    for (what, convert, forget) in CONVERSIONS {
        for is_packed in [false, true] {
            let ground = Ground::repository();
            for text in ["$Id$\nsome\n", "$Id$\nsome\nmore\n"] {
                for name in ["a.txt", "src/b.txt"] {
                    ground.write(name, text.repeat(100));
                }
                ground.commit("texts");
            }
            let taker = ground.taker("state");
            taker.snapshot();
            if is_packed {
                ground.git(["gc", "-q"]);
            }
            let object = fs::read(ground.path("a.txt")).unwrap();
            convert(&ground);
            for name in ["a.txt", "src/b.txt"] {
                ground.remove(name);
            }
            ground.git(["checkout", "-q", "--", "a.txt", "src/b.txt"]);
            for name in ["a.txt", "src/b.txt"] {
                // git tells the times of files and index apart by the second.
                let file = fs::File::options().write(true).open(ground.path(name));
                let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000);
                file.unwrap().set_modified(long_ago).unwrap();
            }
            ground.settle();
            forget(&ground);
            // The trap is set: other bytes than the object's, and git would not notice.
            assert_ne!(fs::read(ground.path("a.txt")).unwrap(), object, "{what}");
            assert_eq!(ground.git(["diff-files", "--name-only"]), "", "{what}");

            for (taker, at_most) in [(ground.taker("fresh"), 5), (taker, 5)] {
                let snapshot = taker.snapshot();
                assert_eq!(
                    snapshot.tree,
                    Some(ground.oracle()),
                    "{what}, packed: {is_packed}"
                );
                assert!(snapshot.metadata.files_hashed <= at_most, "{what}");
                ground.fsck(&taker);
            }
        }
    }
}
