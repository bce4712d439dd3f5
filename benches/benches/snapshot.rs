//! Capture, diff and restore, in seconds: to see whether a change made something slower. What
//! others take for the same is what the program `compare` measures.
//!
//! `STILLFRAME_BENCH_FILES` is the number of files. Without it there are 10,000 under `cargo
//! bench`. Under `cargo test` there are 300, and each is done once and not measured.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use stillframe_backends::{Search, Strategy};
use stillframe_benches::{Changes, Stillframe, Tree, TreeOptions, generate, mutate};

fn snapshot(criterion: &mut Criterion) {
    let files = match std::env::var("STILLFRAME_BENCH_FILES") {
        Ok(text) => text.parse().expect("STILLFRAME_BENCH_FILES is a number"),
        Err(_) if is_measured() => 10_000,
        Err(_) => 300,
    };
    let home = tempfile::tempdir().expect("a directory");
    let tree = generate(&home.path().join("tree"), TreeOptions::new(files)).expect("made");
    let state = |name: &str| home.path().join(name);
    let mut group = criterion.benchmark_group(format!("{files} files"));
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));

    for (name, strategy) in [
        ("first capture", Strategy::Auto),
        ("hash backend, first scan", Strategy::Hash),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|times| {
                sum(times, |_| {
                    let state = tempfile::tempdir_in(home.path()).expect("a directory");
                    timed(|| {
                        Stillframe::open_with(&tree.path, &state.path().join("s"), strategy)
                            .snapshot()
                    })
                })
            });
        });
    }

    let hash = Stillframe::open_with(&tree.path, &state("hash"), Strategy::Hash);
    hash.snapshot();
    group.bench_function("hash backend, unchanged", |bencher| {
        bencher.iter(|| black_box(hash.snapshot()));
    });
    drop(hash);

    let mut walking = Stillframe::open(&tree.path, &state("walking"));
    let watching = Stillframe::open(&tree.path, &state("watching")).watching();
    watching.snapshot();
    let mut nonce = 0;
    for (name, stillframe) in [("walking", &walking), ("watched", &watching)] {
        stillframe.snapshot();
        group.bench_function(format!("unchanged, {name}"), |bencher| {
            bencher.iter(|| black_box(stillframe.snapshot()));
        });
        group.bench_function(format!("170 changes, {name}"), |bencher| {
            bencher.iter_custom(|times| {
                sum(times, |_| {
                    nonce += 1;
                    after_changes(&tree, nonce, stillframe)
                })
            });
        });
    }
    let search = watching.snapshot().metadata.search;
    assert!(
        matches!(search, Search::Watched { .. }),
        "what is called watched was: {search:?}"
    );
    drop(watching);

    let clean = walking.snapshot();
    let mutation = mutate(&tree, nonce + 1, Changes::RUN).expect("mutated");
    let changed = walking.snapshot();
    group.bench_function("diff with patch, 170 changes", |bencher| {
        bencher.iter(|| black_box(walking.diff(&clean, &changed)));
    });
    group.bench_function("restore, 170 changes", |bencher| {
        bencher.iter_custom(|times| {
            sum(times, |_| {
                let time = timed(|| walking.restore(&clean));
                walking.restore(&changed);
                time
            })
        });
    });
    group.finish();
    drop(mutation);
}

/// Whether this is `cargo bench`: it says so, and criterion looks for the same.
fn is_measured() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

fn sum(times: u64, measured: impl FnMut(u64) -> Duration) -> Duration {
    (0..times).map(measured).sum()
}

fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let started = Instant::now();
    black_box(work());
    started.elapsed()
}

/// The time of a capture after the edits of a run, which are taken back.
fn after_changes(tree: &Tree, nonce: u64, stillframe: &Stillframe) -> Duration {
    let mutation = mutate(tree, nonce, Changes::RUN).expect("mutated");
    let time = timed(|| stillframe.snapshot());
    mutation.revert().expect("reverted");
    stillframe.snapshot();
    time
}

criterion_group!(benches, snapshot);
criterion_main!(benches);
