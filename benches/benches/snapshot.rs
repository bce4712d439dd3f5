//! Capture, diff and restore beside git doing the same, at 10,000 and 100,000 files.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use stillframe_benches::{GitPeer, Stillframe, TreeOptions, generate, mutate};

fn sizes() -> Vec<usize> {
    match std::env::var("STILLFRAME_BENCH_FILES") {
        Ok(text) => text
            .split(',')
            .map(|n| n.parse().expect("a number of files"))
            .collect(),
        Err(_) => vec![10_000, 100_000],
    }
}

fn snapshot(criterion: &mut Criterion) {
    for files in sizes() {
        let home = tempfile::tempdir().expect("a directory");
        let tree = generate(&home.path().join("tree"), TreeOptions::new(files)).expect("made");
        let git = GitPeer::new(&tree.path, home.path());
        let mut group = criterion.benchmark_group(format!("{files} files"));
        group
            .sample_size(10)
            .measurement_time(Duration::from_secs(5));

        group.bench_function(BenchmarkId::new("first capture", "stillframe"), |bencher| {
            bencher.iter_custom(|times| {
                let mut total = Duration::ZERO;
                for _ in 0..times {
                    let state = tempfile::tempdir_in(home.path()).expect("a directory");
                    let started = Instant::now();
                    black_box(Stillframe::open(&tree.path, &state.path().join("s")).snapshot());
                    total += started.elapsed();
                }
                total
            });
        });
        group.bench_function(BenchmarkId::new("first capture", "git status"), |bencher| {
            bencher.iter(|| git.status());
        });
        group.bench_function(
            BenchmarkId::new("first capture", "git, common way"),
            |bencher| {
                bencher.iter(|| black_box(git.tree_common_way()));
            },
        );

        let mut stillframe = Stillframe::open(&tree.path, &home.path().join("state"));
        let clean = stillframe.snapshot();
        let clean_tree = git.tree_persistent_index();
        group.bench_function(BenchmarkId::new("unchanged", "stillframe"), |bencher| {
            bencher.iter(|| black_box(stillframe.snapshot()));
        });
        group.bench_function(
            BenchmarkId::new("unchanged", "git, persistent index"),
            |bencher| {
                bencher.iter(|| black_box(git.tree_persistent_index()));
            },
        );

        let mut nonce = 0;
        group.bench_function(BenchmarkId::new("170 changes", "stillframe"), |bencher| {
            bencher.iter_custom(|times| {
                let mut total = Duration::ZERO;
                for _ in 0..times {
                    nonce += 1;
                    let mutation = mutate(&tree, nonce).expect("mutated");
                    let started = Instant::now();
                    black_box(stillframe.snapshot());
                    total += started.elapsed();
                    mutation.revert().expect("reverted");
                    stillframe.snapshot();
                }
                total
            });
        });
        group.bench_function(
            BenchmarkId::new("170 changes", "git, persistent index"),
            |bencher| {
                bencher.iter_custom(|times| {
                    let mut total = Duration::ZERO;
                    for _ in 0..times {
                        nonce += 1;
                        let mutation = mutate(&tree, nonce).expect("mutated");
                        let started = Instant::now();
                        black_box(git.tree_persistent_index());
                        total += started.elapsed();
                        mutation.revert().expect("reverted");
                        git.tree_persistent_index();
                    }
                    total
                });
            },
        );

        nonce += 1;
        let mutation = mutate(&tree, nonce).expect("mutated");
        let changed = stillframe.snapshot();
        let changed_tree = git.tree_persistent_index();
        group.bench_function(
            BenchmarkId::new("diff with patch", "stillframe"),
            |bencher| {
                bencher.iter(|| black_box(stillframe.diff(&clean, &changed)));
            },
        );
        group.bench_function(
            BenchmarkId::new("diff with patch", "git diff-tree"),
            |bencher| {
                bencher.iter(|| git.diff(&clean_tree, &changed_tree));
            },
        );
        group.bench_function(BenchmarkId::new("restore", "stillframe"), |bencher| {
            bencher.iter_custom(|times| {
                let mut total = Duration::ZERO;
                for _ in 0..times {
                    let started = Instant::now();
                    black_box(stillframe.restore(&clean));
                    total += started.elapsed();
                    stillframe.restore(&changed);
                }
                total
            });
        });
        group.bench_function(BenchmarkId::new("restore", "git read-tree"), |bencher| {
            bencher.iter_custom(|times| {
                let mut total = Duration::ZERO;
                for _ in 0..times {
                    let started = Instant::now();
                    git.restore(&clean_tree);
                    total += started.elapsed();
                    git.restore(&changed_tree);
                }
                total
            });
        });
        group.finish();
        drop(mutation);
    }
}

criterion_group!(benches, snapshot);
criterion_main!(benches);
