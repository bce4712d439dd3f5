//! Acceptance tests, from the outside: the built program, its JSON documents, its exit codes, and
//! what it does to files.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed, and says where"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "tests start the program under test, and those that are its oracles"
)]

mod artifact_store;
mod artifacts;
mod at_rest;
mod bad_input;
mod beside_bytes;
mod blocked;
mod capture;
mod cli;
mod cloning;
mod commits;
mod concurrency;
mod config;
mod contracts;
mod copy;
mod crash;
mod damage;
mod diff;
mod disk;
mod divergence;
mod documents;
mod earlier_state;
mod events;
mod examples;
mod export;
mod git_state;
mod hash;
mod history;
mod hostile;
mod isolation;
mod left_out;
mod library;
mod listing;
mod log_trim;
mod logging;
mod matrix;
mod memory;
mod merging;
mod migrations;
mod names_types;
mod notices;
mod pins;
mod policy;
mod programs;
mod progress;
mod properties;
mod purge;
mod quarantine;
mod questions;
mod queue;
mod read_only;
mod real_repositories;
mod ref_room;
mod refs_left;
mod remote;
mod renames;
mod resend;
mod restore;
mod retain;
mod retention;
mod revisions;
mod rollback;
mod run;
mod safety_refs;
mod schemas;
mod secrets;
mod sessions;
mod several_repositories;
mod shapes;
mod show_file;
mod skip_unchanged;
mod snapshot_names;
mod steps;
mod steps_faults;
mod syncs;
mod task_credentials;
mod task_ends;
mod task_kinds;
mod task_resume;
mod task_secrets;
mod tasks;
mod terminal;
mod torture;
mod undo;
mod untracked_ignored;

#[test]
fn every_file_of_tests_is_declared() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("it");
    let declared = include_str!("main.rs");
    for entry in std::fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.trim_end_matches(".rs");
        assert!(
            module == "main" || declared.contains(&format!("\nmod {module};\n")),
            "{name} is not declared in main.rs, so its tests never run"
        );
    }
}
