//! The harnesses of `torture`, for a short and fixed time; with `STILLFRAME_TORTURE=long`, which
//! `ci/long` sets, with the counts of docs/reliability.md.

use std::path::Path;
use std::time::Duration;

use stillframe_tests::capability::{Capability, skipped};
use stillframe_tests::torture::call_class::CallClass;
use stillframe_tests::torture::checker::{Finding, Kind};
use stillframe_tests::torture::fault::{Code, Fault};
use stillframe_tests::torture::invariants::Invariant;
use stillframe_tests::torture::power::{self, Syncing};
use stillframe_tests::torture::races::{self, Subject};
use stillframe_tests::torture::scene::Scene;
use stillframe_tests::torture::tracer::{Injection, Tracer};
use stillframe_tests::torture::{
    Options, Refusal, Report, faults, invariants, meddle, order, recovery, soak, steps, teeth, torn,
};
use stillframe_tests::{Call, TestWorkspace, choice, view};

/// The variable that says for how long.
const LENGTH: &str = "STILLFRAME_TORTURE";

fn launcher() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_torture"))
}

/// What is short by default, and long where it is asked for.
fn length<T>(short: T, long: T) -> T {
    match std::env::var(LENGTH).as_deref() {
        Ok("long") => long,
        Ok("" | "short") | Err(_) => short,
        Ok(other) => panic!("{LENGTH} is short or long, not {other:?}"),
    }
}

/// What a harness is told that must find nothing. What is printed makes the same choices again. A
/// control, which must find something, has the same choices always.
fn options() -> Options {
    let seed = choice::seed();
    println!("the choices are those of STILLFRAME_SEED={seed}");
    Options::new(launcher().into()).seed(seed)
}

/// Nothing is found; or the machine does not let it be done, which is said.
fn finds_nothing(report: Result<Report, Refusal>) -> Option<Report> {
    let report = done(report)?;
    assert!(report.findings.is_empty(), "{report}");
    Some(report)
}

/// What was found; `None` where the machine does not let it be done, which is said.
fn done(report: Result<Report, Refusal>) -> Option<Report> {
    match report {
        Ok(report) => {
            println!("{report}");
            Some(report)
        }
        Err(refusal) => {
            let lacks = match refusal {
                Refusal::Mounts(_) => Capability::BlockDevice,
                Refusal::Architecture | Refusal::Machine(_) => Capability::Ptrace,
            };
            skipped(lacks, &refusal.to_string());
            None
        }
    }
}

/// Where programs can be traced; where they cannot, it is said, and the test does without.
pub(crate) fn tracer() -> Option<Tracer> {
    match Tracer::new(launcher()) {
        Ok(tracer) => Some(tracer),
        Err(refusal) => {
            skipped(Capability::Ptrace, &refusal.to_string());
            None
        }
    }
}

#[test]
fn no_fault_of_a_system_call_loses_a_byte() {
    let wanted = length(48, 25_000);
    let options = options().operations(wanted);
    if let Some(report) = finds_nothing(faults::run(&Scene::ALL, &options)) {
        assert!(report.hit >= wanted, "{report}");
    }
}

#[test]
fn what_finishes_a_killed_restore_may_be_killed_itself() {
    let wanted = length(10, 1_000);
    let options = options().operations(wanted);
    if let Some(report) = finds_nothing(recovery::run(&options)) {
        assert_eq!(report.tried, wanted, "{report}");
        // Which of them dies a second time depends on the threads.
        assert!(report.hit > length(0, 300), "they died again: {report}");
    }
}

#[test]
fn commands_that_are_killed_at_random_lose_nothing_and_are_in_nobodys_way() {
    let options = options()
        .operations(length(24, usize::MAX))
        .time(Duration::from_secs(length(60, 120)));
    if let Some(report) = finds_nothing(soak::run(&options)) {
        assert!(report.hit > length(4, 200), "they were killed: {report}");
    }
}

#[test]
fn a_run_of_steps_that_is_killed_goes_on_where_it_was() {
    let wanted = length(12, 1_000);
    let options = options().operations(wanted);
    if let Some(report) = finds_nothing(steps::run(&options)) {
        assert!(report.hit >= wanted, "{report}");
    }
}

#[test]
fn what_must_hold_holds_in_generated_histories() {
    let wanted = length(16, 1_000);
    let options = options().operations(wanted);
    let report = finds_nothing(invariants::run(&options)).expect("nothing is traced");
    for invariant in Invariant::ALL {
        let looked = report.tables["looked at"].get(&invariant.to_string());
        let is_enough = looked.is_some_and(|count| *count >= wanted);
        assert!(is_enough, "{invariant} was looked at: {report}");
    }
}

#[test]
fn nothing_relies_on_what_a_power_cut_may_take() {
    let options = options();
    if let Some(report) = finds_nothing(order::run(&Scene::ALL, &options)) {
        assert!(report.hit >= Scene::ALL.len(), "{report}");
    }
}

#[test]
fn a_torn_journal_is_carried_out_by_nobody() {
    let wanted = length(16, 400);
    let options = options().operations(wanted);
    if let Some(report) = finds_nothing(torn::run(&options)) {
        assert_eq!(report.hit, wanted, "{report}");
    }
}

#[test]
fn no_power_cut_loses_what_was_answered_for() {
    let wanted = length(48, 1_000);
    let few = [Scene::Edits, Scene::Restore, Scene::Recovery];
    let scenes = length(&few[..], &power::SCENES[..]);
    let options = options().operations(wanted);
    if let Some(report) = finds_nothing(power::run(scenes, Syncing::Kept, &options)) {
        assert!(report.hit >= wanted * 9 / 10, "{report}");
        assert_eq!(report.tables["cut"].len(), 2, "before and after: {report}");
        assert!(report.tables["left"].contains_key("torn"), "{report}");
    }
}

// The harness above would be worth nothing if it found nothing here.
#[test]
fn power_cuts_lose_much_where_nothing_is_synced() {
    // A collection that did not happen is no loss, and what finishes a restore may as well not have
    // begun.
    let scenes = [
        Scene::First,
        Scene::Edits,
        Scene::Restore,
        Scene::Rollback,
        Scene::Undo,
        Scene::Artifact,
    ];
    let options = Options::new(launcher().into()).operations(length(12, 60));
    let report = done(power::run(&scenes, Syncing::Ignored, &options));
    let Some(report) = report else { return };
    for scene in scenes {
        let of_the_scene = |case: &str| case.starts_with(&format!("{scene}, "));
        let is_found = report.findings.iter().any(|(case, _)| of_the_scene(case));
        assert!(is_found, "nothing was lost of {scene}: {report}");
    }
}

#[test]
fn whoever_swaps_paths_leads_nobody_out_and_loses_no_edit() {
    let wanted = length(200, 10_000);
    let options = options().operations(wanted);
    if let Some(report) = finds_nothing(races::run(Subject::Product, &options)) {
        assert_eq!(report.tried, wanted, "{report}");
        assert!(
            // In a short one beside other tests the racers may hardly have a turn.
            report.hit > length(0, wanted / 10),
            "they were raced against: {report}"
        );
    }
}

// The harness above would be worth nothing if these got away.
#[test]
fn whoever_follows_a_link_is_found_out_by_the_canaries() {
    for subject in [Subject::NaiveReader, Subject::NaiveWriter] {
        let options = Options::new(launcher().into()).operations(300);
        let Some(report) = done(races::run(subject, &options)) else {
            return;
        };
        let is_found = |(_, f): &(String, Finding)| f.kind == Kind::Escape;
        let escapes = report.findings.iter().filter(|f| is_found(f)).count();
        assert!(escapes > 0, "{subject:?} was not found out: {report}");
    }
}

#[test]
fn whoever_meddles_with_a_restore_loses_nothing_and_leads_it_nowhere() {
    let wanted = length(24, 1_000);
    let options = options().operations(wanted);
    if let Some(report) = finds_nothing(meddle::run(&options)) {
        assert!(report.hit > wanted / 2, "{report}");
    }
}

// It takes a build of its own, so only the long form has it
#[test]
fn every_seeded_bug_is_found_and_without_one_nothing_is() {
    if length(true, false) {
        return;
    }
    let options = Options::new(launcher().into());
    if let Some(report) = finds_nothing(teeth::run(None, &options)) {
        assert_eq!(report.hit, teeth::TEETH.len(), "{report}");
    }
}

#[test]
fn one_call_fails_and_no_other() {
    let Some(tracer) = tracer() else { return };
    let ws = TestWorkspace::repository();
    let call = || ws.call(["--json", "snapshot"]);
    let counts = tracer.run(&call(), None).unwrap().counts;
    assert!(counts[&CallClass::Stat] > 10, "{counts:?}");
    let inject = |class, nth, fault| {
        let injection = Injection { class, nth, fault };
        tracer.run(&call(), Some(&injection)).unwrap()
    };
    let killed = inject(CallClass::Rename, 1, Fault::Kill);
    assert_eq!((killed.output.code, killed.hit.is_some()), (137, true));
    // The first rename is of an engine that is being opened, which tries again with the room that
    // is kept.
    let failed = inject(CallClass::Sync, 1, Fault::Fails(Code::NoSpace));
    assert_eq!(failed.output.code, 1);
    failed.output.error("NoSpace");
    let beyond = inject(CallClass::Rename, 10_000, Fault::Kill);
    assert_eq!((beyond.output.code, beyond.hit), (0, None));
}

#[test]
fn a_short_read_is_a_read_of_less() {
    let Some(tracer) = tracer() else { return };
    let ws = TestWorkspace::plain();
    ws.write("file", "0123456789abcdef");
    // The text is read and given out by the program under test, whole, however often it has to ask.
    let injection = Injection {
        class: CallClass::Write,
        nth: 1,
        fault: Fault::Short,
    };
    let call = ws.call(["completions", "bash"]);
    let whole = tracer.run(&call, None).unwrap().output.stdout;
    let traced = tracer.run(&call, Some(&injection)).unwrap();
    assert!(traced.hit.is_some_and(|hit| hit.is_answer));
    assert_eq!(traced.output.stdout, whole);
}

#[test]
fn a_program_that_does_not_end_is_killed_and_said_to_hang() {
    let Some(tracer) = tracer() else { return };
    let tracer = tracer.deadline(Duration::from_millis(200));
    let call = Call::new("/bin/sh", "/").args(["-c", "while :; do :; done"]);
    let traced = tracer.run(&call, None).unwrap();
    assert!(traced.hung);
    assert_eq!(traced.output.code, 137);
}

/// Plays a scene with the same fault at these calls of a class; answers with how many were hit.
fn plays(scene: Scene, class: CallClass, fault: Fault, every: usize) -> usize {
    let Some(tracer) = tracer() else { return 1 };
    let stage = scene.stage(&tracer).unwrap();
    let all = stage.injections(&tracer).unwrap();
    let wanted = |i: &&Injection| i.class == class && i.fault == fault;
    let mut hit = 0;
    for injection in all.iter().filter(wanted).step_by(every) {
        let trial = stage.play(&tracer, injection).unwrap();
        hit += usize::from(trial.hit.is_some());
        assert_eq!(trial.findings, [], "{injection:?}");
    }
    hit
}

// A restore that was finished by a command which died before it could say so was never told of
#[test]
fn a_restore_that_a_killed_command_has_finished_can_be_undone() {
    let hit = plays(Scene::Recovery, CallClass::Write, Fault::Kill, 6);
    assert!(hit > 0);
}

// What could not be removed once stayed in the user's repository, a lock among it
#[test]
fn a_lock_in_the_users_repository_goes_though_it_cannot_be_removed_at_first() {
    let hit = plays(Scene::Undo, CallClass::Remove, Fault::Fails(Code::Io), 1);
    assert!(hit > 0);
}

#[test]
fn a_scene_leaves_the_workspace_as_it_was_for_the_next() {
    let Some(tracer) = tracer() else { return };
    for scene in Scene::ALL {
        let stage = scene.stage(&tracer).unwrap();
        let ws = &stage.sandbox.ws;
        stage.sandbox.reset();
        let before = view::worktree(ws.root());
        tracer.run(&stage.call(), None).unwrap();
        stage.sandbox.reset();
        view::same(&before, &view::worktree(ws.root()), &scene.to_string());
    }
}
