//! How much memory it takes: never as much as the largest file has bytes.

use std::time::Duration;

use stillframe_tests::{Call, Output, Snap, TestWorkspace};

use crate::disk::noise;

/// What a process may have of memory that is its own, in bytes: its heap and the stacks of its
/// threads. Beyond, the kernel gives it no more, and it ends. Less than either of the files below
/// takes, or a pair of the smaller ones; and twice what is needed.
const MAX_OWN_BYTES: u64 = 112 << 20;

/// Gives this thread, and what it starts, two processors at most: with each there comes another
/// thread, and what belongs to it.
fn on_two_processors() {
    let all = rustix::thread::sched_getaffinity(None).unwrap();
    let mut two = rustix::thread::CpuSet::new();
    let allowed = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu));
    allowed.take(2).for_each(|cpu| two.set(cpu));
    rustix::thread::sched_setaffinity(None, &two).unwrap();
}

/// The same call, with no more memory than that.
fn bounded(call: Call, bytes: u64) -> Call {
    let script = format!("ulimit -d {} && exec \"$@\"", bytes / 1024);
    // One arena for all threads: what is reserved for each by itself is not memory in use.
    call.env("MALLOC_ARENA_MAX", "1")
        .deadline(Duration::from_secs(400))
        .through("/bin/sh", ["-c", &script, "sh"])
}

fn call(ws: &TestWorkspace, args: &[&str]) -> Output {
    bounded(ws.call(["--json"]).args(args), MAX_OWN_BYTES).run()
}

const SPARSE_BYTES: u64 = 128 << 20;
/// More than is compared in memory.
const NOISE_BYTES: usize = 65 << 20;

/// Captures, compares and restores two files that are larger than the bound, one by itself and the
/// other as the two sides of a patch.
fn large_files_pass_through(ws: &TestWorkspace, options: &[&str]) {
    on_two_processors();
    ws.sparse_file("sparse", SPARSE_BYTES);
    ws.write("noise", noise(NOISE_BYTES, 1));
    let snapshot = |ws: &TestWorkspace| {
        let output = call(ws, &[&["snapshot"], options].concat());
        Snap::of(&output.ok().json())
    };
    let first = snapshot(ws);
    assert!(first.omissions().is_empty(), "{}", first.json);
    ws.write("noise", noise(NOISE_BYTES, 2));
    let second = snapshot(ws);
    if first.json["backend"] == "git" {
        let args = ["diff", first.id(), second.id(), "--patch"];
        let patch = bounded(ws.call(args), MAX_OWN_BYTES).run().ok();
        let text = String::from_utf8_lossy(&patch.stdout[..200]).into_owned();
        let whole = format!("\nGIT binary patch\nliteral {NOISE_BYTES}\n");
        assert!(text.contains(&whole), "{text}");
        assert!(patch.stdout.len() > 2 * NOISE_BYTES, "both sides are in it");
    }
    ws.write("sparse", "gone\n");
    call(ws, &["restore", first.id()]).ok();
    assert!(ws.read("noise") == noise(NOISE_BYTES, 1), "every byte");
    assert_eq!(ws.stat("sparse").len(), SPARSE_BYTES);
}

#[test]
fn large_files_of_a_repository_are_never_held_in_memory() {
    let ws = TestWorkspace::repository();
    // Tracked, so that it is captured whatever its size.
    ws.write("sparse", "small\n");
    ws.commit("second");
    large_files_pass_through(&ws, &[]);
}

#[test]
fn large_files_of_a_plain_directory_are_never_held_in_memory() {
    let ws = TestWorkspace::plain();
    large_files_pass_through(
        &ws,
        &["--retain-content", "--max-untracked-file-bytes", "0"],
    );
}

// The bound itself: a program that goes beyond it does not end well.
#[test]
fn the_bound_is_one_that_the_kernel_keeps() {
    let hold = |bytes: u64| {
        let read = format!("x=$(head -c {bytes} /dev/zero | tr '\\0' x); echo ${{#x}}");
        let call = Call::new("/bin/sh", "/").args(["-c", &read]);
        bounded(call.env("PATH", "/usr/bin:/bin"), MAX_OWN_BYTES).run()
    };
    assert_eq!(hold(1 << 20).stdout_text(), "1048576\n");
    let all = SPARSE_BYTES.to_string();
    assert_ne!(hold(SPARSE_BYTES).stdout_text().trim(), all);
}
