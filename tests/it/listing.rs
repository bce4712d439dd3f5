//! Which snapshots `list` has, and which files `show --files`.

use stillframe_tests::{Snap, TestWorkspace};

/// The ids that `list` has with these options.
#[track_caller]
fn listed(ws: &TestWorkspace, options: &[&str]) -> Vec<String> {
    let document = ws.json([&["list"], options].concat());
    let all = document.as_array().expect("a list");
    all.iter().map(|s| Snap::of(s).id().to_owned()).collect()
}

#[test]
fn a_list_is_of_a_label_of_a_time_and_of_a_length() {
    let ws = TestWorkspace::repository();
    let taken: Vec<Snap> = ["mine", "other", "mine", "Mine"]
        .map(|label| ws.snapshot_with(["--label", label]))
        .into();
    let id = |at: usize| taken[at].id().to_owned();
    assert_eq!(listed(&ws, &[]), [id(3), id(2), id(1), id(0)]);
    assert_eq!(listed(&ws, &["--label", "mine"]), [id(2), id(0)]);
    assert_eq!(listed(&ws, &["--label", "mine", "--limit", "1"]), [id(2)]);
    assert_eq!(listed(&ws, &["--limit", "2"]), [id(3), id(2)]);
    assert_eq!(listed(&ws, &["--limit", "0"]), [""; 0]);
    assert_eq!(listed(&ws, &["--since", "1h"]).len(), 4);
    assert_eq!(listed(&ws, &["--since", "0s"]), [""; 0]);
    let third = taken[2].json["captured_at"].as_str().unwrap();
    assert_eq!(listed(&ws, &["--since", third]), [id(3), id(2)]);
    assert_eq!(listed(&ws, &["--since", third, "--label", "mine"]), [id(2)]);

    let none = ws.stillframe(["list", "--label", "no such"]).ok();
    assert!(none.stdout.is_empty(), "{none}");
    assert_eq!(
        none.stderr_text(),
        "stillframe: there are no such snapshots\n"
    );
    for wrong in [
        &["list", "--since", "yesterday"][..],
        &["list", "--limit", "x"],
    ] {
        ws.stillframe(wrong).exits(2);
    }
}

// An age was not taken there
#[test]
fn runs_are_listed_by_an_age_too() {
    let ws = TestWorkspace::repository();
    ws.run::<&str>([], "true").ok();
    let runs = |options: &[&str]| {
        ws.json([&["runs"], options].concat())
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(runs(&["--since", "1h"]), 1);
    assert_eq!(runs(&["--until", "1h"]), 0);
    assert_eq!(runs(&["--since", "2020-01-01T00:00:00Z"]), 1);
}
