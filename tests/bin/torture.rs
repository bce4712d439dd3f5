//! Runs a harness for as long as is wanted:
//! `torture <harness> [--operations N] [--seconds S] [--seed N] [--workers N] [--until-found]`.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use stillframe_tests::torture::call_class::CallClass;
use stillframe_tests::torture::power::{self, Syncing, unsynced};
use stillframe_tests::torture::scene::Scene;
use stillframe_tests::torture::tracer::Injection;
use stillframe_tests::torture::{
    Options, Refusal, Report, faults, invariants, meddle, order, races, recovery, soak, steps,
    teeth, torn, tracer,
};

const USAGE: &str = "usage: torture <harness> [--operations N] [--seconds S] [--seed N] \
    [--workers N] [--until-found]
harnesses: faults [--scene NAME] [--call NAME] [--fault NAME] [--at TEXT] [--nth N], invariants, \
    recovery, soak, steps, order [--scene NAME], torn, meddle, power [--scene NAME] [--sync kept|ignored], \
    races, teeth [--bug NAME], decode";

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let first = args.next();
    if first.as_deref() == Some(tracer::LAUNCH.as_ref()) {
        return ExitCode::from(u8::try_from(tracer::launch(args)).unwrap_or(1));
    }
    if first.as_deref() == Some(unsynced::WITHOUT_SYNC.as_ref()) {
        return ExitCode::from(u8::try_from(unsynced::launch(args)).unwrap_or(1));
    }
    match harness(first, args) {
        Ok(Ok(report)) => {
            print!("{report}");
            ExitCode::from(u8::from(!report.findings.is_empty()))
        }
        Ok(Err(refusal)) => {
            eprintln!("torture: {refusal}");
            ExitCode::from(3)
        }
        Err(usage) => {
            eprintln!("torture: {usage}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn harness(
    name: Option<OsString>,
    mut args: impl Iterator<Item = OsString>,
) -> Result<Result<Report, Refusal>, String> {
    let name = name.and_then(|name| name.into_string().ok());
    let name = name.ok_or("which harness?")?;
    let launcher = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut options = Options::new(launcher);
    let mut scene = None;
    let mut syncing = Syncing::Kept;
    let (mut class, mut nth, mut fault) = (None, None, None);
    let mut bug = None;
    while let Some(arg) = args.next() {
        if arg == "--until-found" {
            options.until_found = true;
            continue;
        }
        let value = args.next().and_then(|value| value.into_string().ok());
        let value = value.ok_or_else(|| format!("{} wants a value", arg.display()))?;
        let number = || {
            let number: Result<u64, _> = value.parse();
            number.map_err(|_| format!("{value:?} is no number"))
        };
        let size = || number().and_then(|n| usize::try_from(n).map_err(|e| e.to_string()));
        match arg.to_str() {
            Some("--operations") => options.operations = size()?,
            Some("--seconds") => options.time = Duration::from_secs(number()?),
            Some("--seed") => options.seed = number()?,
            Some("--workers") => options.workers = size()?.max(1),
            Some("--at") => options.at = value,
            Some("--bug") => bug = Some(value),
            Some("--scene") => scene = Some(named(&Scene::ALL, &value)?),
            Some("--sync") => {
                syncing = match value.as_str() {
                    "kept" => Syncing::Kept,
                    "ignored" => Syncing::Ignored,
                    _ => return Err(format!("syncing is kept or ignored, not {value:?}")),
                }
            }
            Some("--call") => class = Some(named(&CallClass::ALL, &value)?),
            Some("--nth") => nth = Some(size()?),
            Some("--fault") => {
                let faults = CallClass::ALL.map(CallClass::faults).concat();
                fault = Some(named(&faults, &value)?);
            }
            _ => return Err(format!("what is {}?", arg.display())),
        }
    }
    let scenes = |all: &[Scene]| match scene {
        Some(scene) => vec![scene],
        None => all.to_vec(),
    };
    match name.as_str() {
        "faults" => match (class, nth, fault) {
            (Some(class), Some(nth), Some(fault)) => {
                let injection = Injection { class, nth, fault };
                let scene = scene.unwrap_or(Scene::First);
                Ok(faults::one(scene, &injection, &options))
            }
            (class, _, fault) => {
                (options.class, options.fault) = (class, fault);
                Ok(faults::run(&scenes(&Scene::ALL), &options))
            }
        },
        "invariants" => Ok(invariants::run(&options)),
        "recovery" => Ok(recovery::run(&options)),
        "power" => Ok(power::run(&scenes(&power::SCENES), syncing, &options)),
        "races" => Ok(races::run(races::Subject::Product, &options)),
        "soak" => Ok(soak::run(&options)),
        "steps" => Ok(steps::run(&options)),
        "order" => Ok(order::run(&scenes(&Scene::ALL), &options)),
        "torn" => Ok(torn::run(&options)),
        "meddle" => Ok(meddle::run(&options)),
        "decode" => decode(&options),
        "teeth" => Ok(teeth::run(bug.as_deref(), &options)),
        _ => Err(format!("there is no harness {name:?}")),
    }
}

/// Gives every decoder mutations of its corpus.
#[cfg(feature = "fuzzing")]
fn decode(options: &Options) -> Result<Result<Report, Refusal>, String> {
    use stillframe_backends::fuzzing;
    use stillframe_tests::torture::checker::{Finding, Kind};

    let begin = std::time::Instant::now();
    let corpus = stillframe_tests::binary::project().join("fuzz/corpus");
    let driven = fuzzing::drive(&fuzzing::TARGETS, &corpus, options.time, options.seed);
    let mut report = Report::new("decode");
    for (name, count) in driven.looked_at {
        let count = usize::try_from(count).map_err(|e| e.to_string())?;
        report
            .tables
            .entry("inputs")
            .or_default()
            .insert(name.to_owned(), count);
        (report.tried, report.hit) = (report.tried + count, report.hit + count);
    }
    for (name, input, said) in driven.found {
        report.find(
            &format!("{name} of {input}"),
            [Finding::new(Kind::Untyped, said)],
        );
    }
    report.took = begin.elapsed();
    Ok(Ok(report))
}

/// The decoders can be called in a build that has them for that.
#[cfg(not(feature = "fuzzing"))]
fn decode(_: &Options) -> Result<Result<Report, Refusal>, String> {
    Err("decode takes the feature fuzzing: cargo run -p stillframe-tests --features fuzzing".into())
}

/// The one of them that is called so.
fn named<T: Copy + ToString>(all: &[T], name: &str) -> Result<T, String> {
    let found = all.iter().find(|one| one.to_string() == name);
    found.copied().ok_or_else(|| {
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        format!("there is no {name:?}; there are: {}", all.join(", "))
    })
}
