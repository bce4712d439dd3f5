//! Comparing lines: in parallel, within limits, and git takes every patch.

use std::time::Duration;

use stillframe_backends::{
    Approximation, Diff, DiffError, DiffOptions, ErrorKind, Interrupt, Operation, Snapshot,
};

use crate::ground::{Ground, Taker};

/// Compares; answers with the patch too.
fn diff(
    taker: &Taker,
    from: &Snapshot,
    to: &Snapshot,
    options: &DiffOptions,
) -> Result<(Diff, Vec<u8>), DiffError> {
    diff_in(&Operation::unbounded(), taker, from, to, options)
}

fn diff_in(
    op: &Operation,
    taker: &Taker,
    from: &Snapshot,
    to: &Snapshot,
    options: &DiffOptions,
) -> Result<(Diff, Vec<u8>), DiffError> {
    let mut patch = Vec::new();
    let diff = taker
        .backend
        .diff(op, &taker.workspace, from, to, options, &mut patch)?;
    Ok((diff, patch))
}

/// Two snapshots of many files; the workspace is as the second has it.
fn two_of_many(ground: &Ground, taker: &Taker) -> [Snapshot; 2] {
    let text = |n: usize, edit: &str| -> String {
        let line = |i: usize| match i % 40 {
            7 => format!("{edit} {i} of {n}\n"),
            _ => format!("line {} of {n}\n", i % 11),
        };
        (0..60 + n % 200).map(line).collect()
    };
    for n in 0..300 {
        ground.write(format!("d{}/f{n:03}", n % 13), text(n, "old"));
    }
    ground.write("binary", b"\0one");
    ground.write("mode", "x\n");
    let before = taker.snapshot();
    for n in 0..300 {
        let path = format!("d{}/f{n:03}", n % 13);
        match n % 10 {
            0 => ground.remove(&path),
            1 => ground.chmod(&path, 0o755),
            2 => {}
            _ => ground.write(&path, text(n, "new")),
        }
        if n % 10 == 3 {
            ground.write(format!("new/f{n}"), text(n, "made"));
        }
    }
    ground.write("binary", b"\0two");
    ground.remove("mode");
    ground.symlink("mode", "target");
    [before, taker.snapshot()]
}

#[test]
fn sections_are_in_the_order_of_paths_whatever_thread_was_first() {
    let ground = Ground::repository();
    let taker = ground.taker("state");
    let [before, after] = two_of_many(&ground, &taker);
    let (diff, patch) = diff(&taker, &before, &after, &DiffOptions::with_patch()).unwrap();
    let git_dir = taker.workspace.store_path().join("git");
    let (old, new) = (before.tree.clone().unwrap(), after.tree.clone().unwrap());
    let git = |args: &[&str]| {
        let args = [&["diff-tree", "-r", "--no-renames"], args, &[&old, &new]].concat();
        String::from_utf8(ground.git_in(&git_dir, args, b"")).unwrap()
    };
    let begins = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("diff --git"));
        lines.map(str::to_owned).collect()
    };
    let ours = begins(&String::from_utf8_lossy(&patch));
    assert!(ours.len() > 200, "{}", ours.len());
    let mut theirs = begins(&git(&["-p", "--binary"]));
    // git puts a directory where its name with a slash sorts.
    theirs.sort();
    let mut sorted = ours.clone();
    sorted.sort();
    assert_eq!(sorted, theirs);
    let named: Vec<String> = diff.changed_paths.iter().map(ToString::to_string).collect();
    let mut in_order: Vec<&str> = ours
        .iter()
        .map(|line| line.rsplit_once(" b/").unwrap().1)
        .collect();
    in_order.dedup();
    assert_eq!(in_order, named, "sorted by path");

    let numstat = git(&["--numstat"]);
    let sum = |at: usize| -> u64 {
        let fields = numstat.lines().map(|l| l.split('\t').nth(at).unwrap());
        fields.filter_map(|n| n.parse::<u64>().ok()).sum()
    };
    assert_eq!((diff.insertions, diff.deletions), (sum(0), sum(1)));
    assert_eq!(diff.approximated, []);
    let counted = diff_without_patch(&taker, &before, &after);
    assert_eq!(
        (counted.insertions, counted.deletions),
        (diff.insertions, diff.deletions)
    );
    let document = serde_json::to_value(&diff).unwrap();
    assert!(document.get("approximated").is_none(), "it is left out");
}

fn diff_without_patch(taker: &Taker, from: &Snapshot, to: &Snapshot) -> Diff {
    diff(taker, from, to, &DiffOptions::default()).unwrap().0
}

#[test]
fn files_beyond_a_limit_are_named_and_the_patch_still_applies() {
    let ground = Ground::repository();
    let taker = ground.taker("state");
    let [before, after] = two_of_many(&ground, &taker);
    let exact = diff_without_patch(&taker, &after, &before);
    let mut reasons = Vec::new();
    for limited in [
        DiffOptions::with_patch().max_compared_bytes(100),
        DiffOptions::with_patch().max_compared_bytes(0),
        DiffOptions::with_patch().max_file_time(Duration::ZERO),
        DiffOptions::with_patch().max_time(Duration::ZERO),
    ] {
        // From the later to the earlier: what the workspace has is what git starts from.
        let (found, patch) = diff(&taker, &after, &before, &limited).unwrap();
        assert_eq!(found.changed_paths, exact.changed_paths);
        assert!(!found.approximated.is_empty(), "{limited:?}");
        assert!(found.approximated.is_sorted_by(|a, b| a.path < b.path));
        for file in &found.approximated {
            assert!(found.modified.contains(&file.path), "{}", file.path);
            assert!(file.insertions > 0 && file.deletions > 0);
            reasons.push(file.reason);
        }
        assert!(found.insertions > exact.insertions, "upper bounds");
        assert!(found.deletions > exact.deletions, "upper bounds");
        let mut counting = limited.clone();
        counting.capture_patch = false;
        let (counted, _) = diff(&taker, &after, &before, &counting).unwrap();
        assert_eq!(
            counted.approximated, found.approximated,
            "with a patch or not"
        );
        let (again, same_patch) = diff(&taker, &after, &before, &limited).unwrap();
        assert!(
            again == found && same_patch == patch,
            "nothing depends on luck"
        );

        let applied = ground.beside("applied");
        let _ = std::fs::remove_dir_all(&applied);
        std::fs::create_dir(&applied).unwrap();
        let copied = std::process::Command::new("cp")
            .args(["-a", "--no-target-directory"])
            .args([&ground.root, &applied])
            .status();
        assert!(copied.unwrap().success());
        ground.git_in(&applied, ["apply", "--binary"], &patch);
        let other = ground.taker_at(
            &applied,
            "applied-state",
            stillframe_backends::Strategy::Auto,
        );
        assert_eq!(other.snapshot().tree, before.tree, "every byte and mode");

        let document = serde_json::to_value(&found).unwrap();
        assert_eq!(
            document["approximated"][0]["reason"],
            found.approximated[0].reason.as_str()
        );
        assert_eq!(serde_json::from_value::<Diff>(document).unwrap(), found);
    }
    assert!(reasons.contains(&Approximation::TooMuchChanged));
    assert!(reasons.contains(&Approximation::OutOfTime));
}

#[test]
fn what_only_comes_or_goes_is_exact_under_any_limit() {
    let ground = Ground::repository();
    let taker = ground.taker("state");
    ground.write("log", "one\ntwo\n".repeat(1000));
    let before = taker.snapshot();
    ground.write("log", "one\ntwo\n".repeat(1000) + "three\n");
    ground.write("new", "1\n2\n");
    ground.remove("README");
    let after = taker.snapshot();
    let strict = DiffOptions::with_patch()
        .max_compared_bytes(0)
        .max_file_time(Duration::ZERO)
        .max_time(Duration::ZERO);
    let (diff, _) = diff(&taker, &before, &after, &strict).unwrap();
    assert_eq!((diff.insertions, diff.deletions), (3, 1));
    assert_eq!(diff.approximated, []);
}

#[test]
fn text_that_is_too_large_to_hold_is_named_with_counts_that_are_lower_bounds() {
    let ground = Ground::repository();
    let taker = ground.taker("state");
    let huge = "a line that is there again and again, and again, and again\n".repeat(1_200_000);
    assert!(huge.len() > 64 << 20);
    let snapshot = || {
        let mut options = crate::ground::options();
        options.max_untracked_file_bytes = 0;
        taker.snapshot_with(&options)
    };
    ground.write("huge", &huge);
    ground.write("binary", [b"\0", huge.as_bytes()].concat());
    let before = snapshot();
    ground.write("huge", format!("first\nsecond\n{}", &huge[59..]));
    ground.write("binary", [b"\0\0", huge.as_bytes()].concat());
    let after = snapshot();
    let counted = diff_without_patch(&taker, &before, &after);
    let named: Vec<_> = counted
        .approximated
        .iter()
        .map(|file| (file.path.to_string(), file.reason))
        .collect();
    assert_eq!(
        named,
        [("huge".to_owned(), Approximation::TooLarge)],
        "a binary counts nothing anywhere"
    );
    assert_eq!((counted.insertions, counted.deletions), (2, 1));
}

#[test]
fn a_comparison_that_is_stopped_is_an_error() {
    let ground = Ground::repository();
    let taker = ground.taker("state");
    let [before, after] = two_of_many(&ground, &taker);
    let cancelled = Interrupt::never();
    cancelled.cancel();
    for (interrupt, kind) in [
        (cancelled, ErrorKind::Cancelled),
        (Interrupt::after(Duration::ZERO), ErrorKind::Timeout),
    ] {
        let op = Operation::unbounded().cancelled_by(&interrupt);
        let options = DiffOptions::with_patch();
        let error = diff_in(&op, &taker, &before, &after, &options).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
}
