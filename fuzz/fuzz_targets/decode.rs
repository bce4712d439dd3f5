//! One decoder under libFuzzer: the one that `STILLFRAME_DECODER` names.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use stillframe_backends::fuzzing::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let wanted = std::env::var("STILLFRAME_DECODER").unwrap_or_default();
    let found = TARGETS.iter().find(|target| target.name == wanted);
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    *found.unwrap_or_else(|| panic!("STILLFRAME_DECODER is one of {names:?}"))
});

fuzz_target!(|bytes: &[u8]| (TARGET.look)(bytes));
