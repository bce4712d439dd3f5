//! What the source of the engine shows: its folders import one another one way, a run ends in one
//! place, and documents have types.

use std::fs;
use std::path::{Path, PathBuf};

/// The files and folders of `src`, each of which may import those before it, and itself. `lib.rs`
/// has no place: it only says what is public.
const ORDER: [&str; 21] = [
    "id",
    "failure",
    "events",
    "policy",
    "records",
    "error",
    "telemetry",
    "blocking",
    "state",
    "options",
    "actors",
    "workspace",
    "branches",
    "saving",
    "step",
    "process",
    "run",
    "session",
    "upkeep",
    "engine",
    "schema",
];

fn rank(name: &str) -> usize {
    let place = ORDER.iter().position(|known| *known == name);
    place.unwrap_or_else(|| panic!("{name} has no place in the order of the engine's folders"))
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

/// What a file imports of the crate, by the first name of each path. Tests may import everything.
fn imports(source: &str) -> Vec<&str> {
    let product = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let code = product
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let names = code.flat_map(|line| line.split("crate::").skip(1));
    names
        .map(|path| {
            let end = path.find(|c: char| !c.is_alphanumeric() && c != '_');
            &path[..end.unwrap_or(path.len())]
        })
        .collect()
}

#[test]
fn each_folder_imports_only_what_comes_before_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    files(&src, &mut all);
    let mut looked_at = 0;
    for path in &all {
        let place = path.strip_prefix(&src).unwrap();
        let of_tests = ["state/contract", "state/earlier_versions"];
        let place = place.to_str().unwrap();
        let is_source = place.ends_with(".rs") && place != "lib.rs";
        if !is_source || of_tests.iter().any(|tests| place.starts_with(tests)) {
            continue;
        }
        let own = place.split(['/', '.']).next().unwrap();
        for import in imports(&fs::read_to_string(path).unwrap()) {
            looked_at += 1;
            assert!(!import.is_empty(), "{place} imports a list of folders");
            // A macro, a type that the crate makes public, or what only tests have.
            if import.starts_with(char::is_uppercase) {
                continue;
            }
            assert!(
                rank(import) <= rank(own),
                "{place} imports crate::{import}, which comes after {own}"
            );
        }
    }
    assert!(looked_at > 500, "{looked_at} imports were found");
}

#[test]
fn the_end_of_a_run_is_written_in_one_place() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    files(&src, &mut all);
    let writes = |path: &PathBuf| {
        let source = fs::read_to_string(path).unwrap();
        let product = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
        product.contains(" RunEnding {") && !product.contains("struct RunEnding {")
    };
    let places: Vec<&Path> = all
        .iter()
        .filter(|path| writes(path))
        .map(|path| path.strip_prefix(&src).unwrap())
        .filter(|place| {
            !place.starts_with("state/contract.rs") && !place.starts_with("state/contract")
        })
        .collect();
    assert_eq!(places, [Path::new("run/end.rs")]);
}

#[test]
fn nothing_reads_a_document_by_its_keys() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    files(&src, &mut all);
    // An index of a value, and not a list that begins with a text.
    let reads = |line: &str| {
        let before: Vec<&str> = line.split("[\"").collect();
        let indexed = before[..before.len() - 1].iter().any(|text| {
            text.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ')' | ']'))
        });
        indexed || line.contains(".get(\"")
    };
    for path in &all {
        let place = path.strip_prefix(&src).unwrap();
        let of_tests = ["state/contract", "state/earlier_versions", "state/fixtures"];
        let place = place.to_str().unwrap();
        if !place.ends_with(".rs") || of_tests.iter().any(|tests| place.starts_with(tests)) {
            continue;
        }
        let source = fs::read_to_string(path).unwrap();
        let product = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let mut code = product
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        assert_eq!(code.find(|line| reads(line)), None, "in {place}");
    }
}
