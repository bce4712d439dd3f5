//! How fast source text is searched for secrets, beside the least that any search has to do (every
//! byte is compared with one other) and beside one regular expression of all rules.
//!
//! Under `cargo bench` the text is 100 MB: the sources of this repository, over and over. Under
//! `cargo test` it is one file, searched once.

use std::hint::black_box;
use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use regex_automata::meta;
use stillframe_secrets::{SecretRule, SecretRules};

const RULES: &str = r#"(?i:<add\s[^<>]*key\s*=\s*["']ClearTextPassword["'][^<>]*>)|_authToken=[A-Za-z0-9._+/=-]{16,}|\bsk-ant-(?:oat|api)[\w-]{8,}|\bsk-[\w-]{20,}|\bghp_[A-Za-z0-9]{20,}|\bglpat-[\w-]{20,}|eyJ[\w-]*\.[\w-]+\.[\w-]+"#;

fn secrets(criterion: &mut Criterion) {
    let text = sources(match is_measured() {
        true => 100_000_000,
        false => 10_000,
    });
    let mut group = criterion.benchmark_group("100 MB of source");
    group
        .sample_size(10)
        .throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("every byte compared with one", |bencher| {
        bencher.iter(|| memchr::memchr_iter(b'\n', black_box(&text)).count());
    });
    let regex = meta::Builder::new()
        .build_from_hir(
            &regex_syntax::ParserBuilder::new()
                .unicode(false)
                .utf8(false)
                .build()
                .parse(RULES)
                .expect("it is a pattern"),
        )
        .expect("it is not large");
    group.bench_function("one regular expression", |bencher| {
        bencher.iter(|| regex.find_iter(black_box(&text)).count());
    });
    let rules = SecretRules::new();
    group.bench_function("the rules", |bencher| {
        bencher.iter(|| rules.find(black_box(&text)).len());
    });
    let added = [
        SecretRule::new("acme_key", "acme-[0-9a-f]{32}"),
        SecretRule::new("password", r"(?i)passw(?:or)?d\s*[:=]\s*(?<secret>\S{32,})"),
        SecretRule::new(
            "private_key",
            "-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*-----END",
        ),
    ];
    let rules = SecretRules::with(added).expect("they can be used");
    group.bench_function("the rules, and three of a host's", |bencher| {
        bencher.iter(|| rules.find(black_box(&text)).len());
    });
    group.finish();
}

/// The Rust sources of this repository, repeated until there are `len` bytes.
fn sources(len: usize) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let hidden_or_built = |name: &str| name.starts_with('.') && name.len() > 2 || name == "target";
    let mut text = Vec::with_capacity(len);
    for entry in walkdir::WalkDir::new(root)
        .sort_by_file_name()
        .into_iter()
        .filter_entry(|entry| !entry.file_name().to_str().is_none_or(hidden_or_built))
    {
        let entry = entry.expect("the sources are there");
        if entry.path().extension().is_some_and(|it| it == "rs") && text.len() < len {
            text.extend(std::fs::read(entry.path()).expect("it can be read"));
        }
    }
    while text.len() < len {
        text.extend_from_within(..text.len().min(len - text.len()));
    }
    text.truncate(len);
    text
}

fn is_measured() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

criterion_group!(benches, secrets);
criterion_main!(benches);
