//! Where the program under test is.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use rustix::fs::FlockOperation;

/// The built `stillframe`: `$STILLFRAME_BIN`, else the one in the target directory that this test
/// was built into.
///
/// If a source file is newer than the last build that was started from here, `cargo build -p
/// stillframe-cli` runs first, once: other tests wait for it.
pub fn stillframe() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| match env::var_os("STILLFRAME_BIN") {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        _ => build(),
    })
}

/// The root of the cargo workspace that these tests belong to.
pub fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the package lies in the workspace")
}

/// A built example of the engine.
///
/// Whatever builds all tests of the workspace builds the examples too. If one of them is missing
/// or older than its sources, `cargo build -p stillframe --examples` runs first.
pub fn example(name: &str) -> PathBuf {
    let binary = profile_dir().join("examples").join(name);
    let _lock = build_lock();
    let newest = newest_source(&[
        "engine/Cargo.toml",
        "engine/src",
        "engine/examples",
        "backends",
        "artifact-store/src",
    ]);
    if modified(&binary).is_none_or(|built| built < newest) {
        cargo_build(&["-p", "stillframe", "--examples"]);
    }
    binary
}

/// `stillframe` with the feature `seeded-bugs`, built beside the program under test. For
/// [`crate::torture::teeth`].
///
/// Only the crates of the workspace are compiled once more. Where cargo puts the program is where
/// the other one lies, which is put back.
pub fn seeded() -> PathBuf {
    let profile_dir = profile_dir();
    let program = profile_dir.join("stillframe");
    let seeded = profile_dir.join("stillframe-with-seeded-bugs");
    // Whatever ends this half way, the next test that needs the program builds it anew.
    let stamp = stamp();
    let plain = stillframe();
    let _lock = build_lock();
    let is_own = plain == program;
    if is_own {
        let _ = fs::remove_file(&stamp);
    }
    cargo_build(&["-p", "stillframe-cli", "--features", "seeded-bugs"]);
    let _ = fs::remove_file(&seeded);
    fs::rename(&program, &seeded).expect("it was just built");
    fs::write(&stamp, "").expect("the target directory is writable");
    cargo_build(&["-p", "stillframe-cli"]);
    seeded
}

/// The built acceptance tests: the newest of them, if this is another program.
pub fn acceptance_tests() -> Option<PathBuf> {
    let is_one = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        let hash = name.and_then(|name| name.strip_prefix("it-"));
        hash.is_some_and(|hash| hash.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    let own = env::current_exe().expect("a process knows its executable");
    if is_one(&own) {
        return Some(own);
    }
    // The engine has tests of that name too: ours know this one.
    let knows = |path: &PathBuf| {
        let listed = Command::new(path).arg("--list").output();
        let listed = listed.map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&listed).contains("every_file_of_tests_is_declared")
    };
    let entries = fs::read_dir(profile_dir().join("deps")).ok()?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    found.retain(|path| is_one(path));
    found.sort_by_key(|path| std::cmp::Reverse(modified(path)));
    found.into_iter().find(knows)
}

/// What tells when the program was built last.
fn stamp() -> PathBuf {
    profile_dir().join(".stillframe-build-stamp")
}

fn build() -> PathBuf {
    let profile_dir = profile_dir();
    let binary = profile_dir.join("stillframe");
    let _lock = build_lock();
    let stamp = stamp();
    let newest = newest_source(&[
        "Cargo.toml",
        "Cargo.lock",
        "cli",
        "engine",
        "backends",
        "artifact-store",
    ]);
    let built = modified(&stamp);
    if !binary.exists() || built.is_none_or(|built| built < newest) {
        // The stamp gets its time before the build, so that an edit during it counts as newer.
        let fresh = stamp.with_extension("new");
        fs::write(&fresh, "").expect("the target directory is writable");
        cargo_build(&["-p", "stillframe-cli"]);
        fs::rename(&fresh, &stamp).expect("the target directory is writable");
    }
    binary
}

/// Keeps other tests from building, until it is dropped.
fn build_lock() -> File {
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(profile_dir().join(".stillframe-build-lock"))
        .expect("the target directory is writable");
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).expect("flock works");
    lock
}

/// Builds into the target directory, and with the profile, that this test was built with.
fn cargo_build(what: &[&str]) {
    let profile_dir = profile_dir();
    let profile = match profile_dir.file_name().and_then(|n| n.to_str()) {
        Some("debug") => "dev",
        Some(other) => other,
        None => unreachable!("a profile's directory has a name"),
    };
    let target = profile_dir.parent().expect("it lies in a target directory");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--quiet", "--profile", profile])
        .args(what)
        .arg("--target-dir")
        .arg(target)
        .current_dir(project())
        .output()
        .expect("cargo can be started");
    assert!(
        output.status.success(),
        "the program under test cannot be built:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// `target/debug`, or what another profile calls it: programs lie in it, tests in its `deps`.
fn profile_dir() -> PathBuf {
    let exe = env::current_exe().expect("a process knows its executable");
    exe.ancestors()
        .find(|dir| dir.file_name().is_some_and(|name| name == "deps"))
        .unwrap_or(&exe)
        .parent()
        .unwrap_or_else(|| panic!("{} does not lie in a target directory", exe.display()))
        .to_owned()
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// When the newest file at or below these paths of the project was modified.
fn newest_source(names: &[&str]) -> SystemTime {
    let mut newest = SystemTime::UNIX_EPOCH;
    for name in names {
        for entry in walkdir::WalkDir::new(project().join(name))
            .into_iter()
            .flatten()
        {
            if let Some(time) = modified(entry.path()) {
                newest = newest.max(time);
            }
        }
    }
    newest
}
