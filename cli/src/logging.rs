//! The log of the program itself, on stderr: what is shown of it, and in which form.

use std::ffi::OsString;
use std::fmt::{self, Write as _};

use clap::ValueEnum;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FmtSpan, FormatEvent, FormatFields, Writer};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer as _, Registry};

use crate::failure::Failure;
use crate::output;

/// What is shown if no option says so.
pub(crate) const LOG: &str = "STILLFRAME_LOG";

/// With what all targets of Stillframe's own parts begin.
const OWN: &str = "stillframe";

/// What is said of a filter that cannot be right.
const EXPECTED: &str =
    "expected off, error, warn, info, debug or trace, or TARGET=LEVEL, separated by commas";

/// The form of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// What somebody asked for.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// As it was typed.
    pub(crate) filter: Option<String>,
    /// As the environment has it.
    pub(crate) env: Option<OsString>,
    pub(crate) format: Option<LogFormat>,
    /// Whether warnings are shown to whoever asks for nothing.
    pub(crate) shows_warnings: bool,
}

/// What is shown, and how.
#[derive(Debug, PartialEq)]
struct Choice {
    targets: Targets,
    /// `None`: nobody asked for anything, so it is a line as others on stderr.
    format: Option<LogFormat>,
}

/// Begins to show what is wanted.
pub(crate) fn begin(wanted: Wanted) -> Result<(), Failure> {
    let Some(choice) = choose(wanted)? else {
        return Ok(());
    };
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(output::log_writer)
        // A stderr that is gone cannot be told so.
        .log_internal_errors(false)
        .with_ansi(false);
    let layer = match choice.format {
        None => layer.event_format(Terse).boxed(),
        Some(LogFormat::Text) => layer.with_span_events(FmtSpan::CLOSE).boxed(),
        Some(LogFormat::Json) => layer.with_span_events(FmtSpan::CLOSE).json().boxed(),
    };
    let subscriber = Registry::default().with(layer.with_filter(choice.targets));
    // There is no other in this program.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok(())
}

/// `None`: nothing is shown.
fn choose(wanted: Wanted) -> Result<Option<Choice>, Failure> {
    let env = match wanted.env.filter(|text| !text.is_empty()) {
        Some(text) => Some(text.into_string().map_err(|text| {
            let text = output::printable(&text.to_string_lossy());
            Failure::usage(format!("{LOG}: \"{text}\" is no filter: {EXPECTED}"))
        })?),
        None => None,
    };
    let (name, filter) = match (wanted.filter, env) {
        (Some(filter), _) => ("--log", Some(filter)),
        (None, env) => (LOG, env),
    };
    let Some(filter) = filter else {
        let is_asked = wanted.format.is_some();
        let warnings = Targets::new().with_default(LevelFilter::WARN);
        return Ok((is_asked || wanted.shows_warnings).then_some(Choice {
            targets: warnings,
            format: wanted.format,
        }));
    };
    let targets = targets(&filter).map_err(|part| {
        let part = output::printable(&part);
        Failure::usage(format!("{name}: \"{part}\" is no filter: {EXPECTED}"))
    })?;
    Ok(Some(Choice {
        targets,
        format: Some(wanted.format.unwrap_or(LogFormat::Text)),
    }))
}

/// The meaning of a filter; or the part of it that has none.
///
/// A level is for Stillframe's own parts. The libraries that it uses have a lot to tell at `info`,
/// and are shown by their names.
fn targets(filter: &str) -> Result<Targets, String> {
    let mut targets = Targets::new();
    let mut is_own_named = false;
    let mut own = None;
    for part in filter.split(',') {
        let part = part.trim();
        let (target, name) = match part.split_once('=') {
            Some((target, name)) => (Some(target), name),
            None => (None, part),
        };
        let is_target = |target: &str| {
            let is_of_one = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-');
            !target.is_empty() && target.chars().all(is_of_one)
        };
        let level = level(name).filter(|_| target.is_none_or(is_target));
        let level = level.ok_or_else(|| part.to_owned())?;
        targets = match target {
            Some(target) => {
                is_own_named |= target == OWN;
                targets.with_target(target, level)
            }
            None => {
                own = Some(level);
                targets.with_default(level.min(LevelFilter::WARN))
            }
        };
    }
    Ok(match own.filter(|_| !is_own_named) {
        Some(level) => targets.with_target(OWN, level),
        None => targets,
    })
}

fn level(name: &str) -> Option<LevelFilter> {
    Some(match name.to_ascii_lowercase().as_str() {
        "off" => LevelFilter::OFF,
        "error" => LevelFilter::ERROR,
        "warn" => LevelFilter::WARN,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        "trace" => LevelFilter::TRACE,
        _ => return None,
    })
}

/// A line as the program's others on stderr: what, and about what.
struct Terse;

impl<S, N> FormatEvent<S, N> for Terse
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut said = Said::default();
        event.record(&mut said);
        let word = match *event.metadata().level() {
            Level::ERROR => "error",
            _ => "warning",
        };
        let line = output::printable(&format!("{}{}", said.message, said.fields));
        writeln!(writer, "stillframe: {word}: {line}")
    }
}

/// What an event says, as text.
#[derive(Default)]
struct Said {
    message: String,
    fields: String,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a text never fails.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(filter: Option<&str>, env: Option<&str>) -> Wanted {
        Wanted {
            filter: filter.map(str::to_owned),
            env: env.map(OsString::from),
            format: None,
            shows_warnings: true,
        }
    }

    #[test]
    fn an_option_comes_before_the_environment_and_that_before_the_default() {
        let shown = |filter, env| {
            let choice = choose(wanted(filter, env)).unwrap().unwrap();
            (choice.targets.to_string(), choice.format)
        };
        assert_eq!(shown(None, None), ("warn".to_owned(), None));
        assert_eq!(shown(None, Some("")), ("warn".to_owned(), None));
        let text = Some(LogFormat::Text);
        let shown = |filter, env| {
            let (targets, format) = shown(filter, env);
            assert_eq!(format, text);
            targets
        };
        assert_eq!(shown(None, Some("INFO")), "stillframe=info,warn");
        assert_eq!(shown(Some("off"), Some("info")), "stillframe=off,off");
        let run = shown(Some("warn, stillframe::run=debug"), None);
        assert_eq!(run, "stillframe::run=debug,stillframe=warn,warn");
        for both in ["stillframe=debug,error", "error,stillframe=debug"] {
            assert_eq!(shown(Some(both), None), "stillframe=debug,error");
        }
        let other = shown(Some("ractor=trace,off"), None);
        assert_eq!(other, "stillframe=off,ractor=trace,off");
    }

    #[test]
    fn nothing_is_shown_where_nobody_asks_and_warnings_are_not_wanted() {
        let silent = |format| Wanted {
            format,
            shows_warnings: false,
            ..wanted(None, None)
        };
        assert_eq!(choose(silent(None)).unwrap(), None);
        let json = choose(silent(Some(LogFormat::Json))).unwrap().unwrap();
        assert_eq!(json.format, Some(LogFormat::Json));
        let asked = Wanted {
            shows_warnings: false,
            ..wanted(Some("warn"), None)
        };
        assert!(choose(asked).unwrap().is_some());
    }

    #[test]
    fn a_wrong_filter_is_named_with_where_it_stands() {
        for (filter, part) in [
            ("wran", "wran"),
            ("", ""),
            ("warn,,info", ""),
            ("info,stillframe=loud", "stillframe=loud"),
            ("=debug", "=debug"),
            ("a b=debug", "a b=debug"),
            ("stillframe[run]=debug", "stillframe[run]=debug"),
        ] {
            let failure = choose(wanted(Some(filter), None)).unwrap_err();
            let told = failure.message();
            assert!(told.starts_with(&format!("--log: \"{part}\" ")), "{told}");
            assert_eq!(failure.own_exit_code(true), 2);
        }
        let failure = choose(wanted(None, Some("loud"))).unwrap_err();
        assert!(failure.message().starts_with("STILLFRAME_LOG: \"loud\""));
    }
}
