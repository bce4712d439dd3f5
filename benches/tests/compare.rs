//! The program that compares: everything it measures is in what it writes, at a size at which the
//! figures mean nothing.

use std::fs;
use std::path::Path;
use std::process::Command;

use stillframe_benches::case::{AFTER_WATCHED, HASH_FIRST, OURS, UNCHANGED_WATCHED};
use stillframe_benches::{TARGETS, TELL_PEAK};

#[expect(clippy::disallowed_methods, reason = "the program is what is tested")]
fn compare(trees: &Path, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_compare"))
        .args(arguments)
        .arg("--trees")
        .arg(trees)
        .output()
        .expect("the program was built");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("it prints text")
}

/// The rows with this case and this beginning of a subject in the table of times of the first
/// repository, which is the one like source trees.
fn rows<'t>(text: &'t str, case: &str, subject: &str) -> Vec<&'t str> {
    let start = format!("| {case} | {subject}");
    let table = text
        .lines()
        .skip_while(|l| !l.starts_with("| Case | Subject | Median"));
    let table = table.take_while(|l| l.starts_with('|'));
    table.filter(|l| l.starts_with(&start)).collect()
}

#[test]
fn every_target_is_a_row_and_who_is_missing_is_named() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("results");
    let (trees, directory) = (home.path().join("trees"), out.to_str().unwrap());
    let printed = compare(
        &trees,
        &[
            "--files", "100,200", "--rounds", "1", "--large", "1", "--write", directory,
        ],
    );
    for files in ["100", "200"] {
        let table = fs::read_to_string(out.join(format!("{files}.md"))).unwrap();
        assert!(
            printed.contains(&table),
            "what is printed is what is written"
        );
        for target in TARGETS {
            let found = rows(&table, target.case, target.against);
            assert!(!found.is_empty(), "{target:?}\n{table}");
            let is_judged = |row: &&str| row.contains("at most ");
            assert!(found.iter().all(is_judged), "{found:?}");
        }
        for case in [UNCHANGED_WATCHED, AFTER_WATCHED] {
            let [row] = rows(&table, case, OURS)[..] else {
                panic!("one row for {case}\n{table}");
            };
            assert!(!row.contains("it walked"), "the watch was used: {row}");
        }
        // In its own words: an empty cell could be anything.
        for peer in ["jj util snapshot", "borg create", "restic backup"] {
            let named = table.lines().find(|l| l.contains(&format!("| {peer} |")));
            let cells: Vec<&str> = named.unwrap().split('|').map(str::trim).collect();
            assert!(cells[3] == "not installed" || cells[3].parse::<f64>().is_ok());
        }
        let [hashed] = rows(&table, HASH_FIRST, &format!("{OURS} |"))[..1] else {
            unreachable!("a slice of one");
        };
        let cells: Vec<&str> = hashed.split('|').map(str::trim).collect();
        assert!(cells[7].parse::<usize>().unwrap() >= 90, "{hashed}");
        for picture in ["", "-tiny-directories", "-one-directory", "-large-files"] {
            let name = format!("{files}{picture}.svg");
            assert!(table.contains(&format!("]({name})")), "{name} is shown");
            assert!(out.join(name).is_file());
        }
    }
    let growth = fs::read_to_string(out.join("growth.md")).unwrap();
    assert!(growth.contains(AFTER_WATCHED) && out.join("growth.svg").is_file());
    assert!(printed.contains(&growth));
}

#[test]
fn a_group_alone_is_measured_alone() {
    let home = tempfile::tempdir().unwrap();
    let arguments = [
        "--files", "100", "--rounds", "2", "--only", "diff", "--quick",
    ];
    let printed = compare(home.path(), &arguments);
    assert_eq!(rows(&printed, "diff with patch, 170 files", OURS).len(), 1);
    assert!(!printed.contains("first capture"), "{printed}");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the program is what is tested")]
fn what_makes_no_sense_is_usage() {
    let run = |arguments: &[&str]| {
        let program = env!("CARGO_BIN_EXE_compare");
        Command::new(program).args(arguments).output().unwrap()
    };
    for arguments in [
        &["--files", "many"][..],
        &["--files", "3"],
        &["--rounds", "0"],
        &["--frobnicate"],
        &["--write"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stderr.starts_with(b"usage: compare"));
    }
    let peak = run(&[TELL_PEAK, "true"]);
    let kib: u64 = String::from_utf8_lossy(&peak.stdout)
        .trim()
        .parse()
        .unwrap();
    assert!(kib > 100, "a process holds something");
}
