//! `export`: the records of a run or a session as files.

use std::path::PathBuf;

use stillframe::backends::printable;
use stillframe::options::ExportRequest;
use stillframe::records::ExportOutcome;
use stillframe::{CancellationToken, ErrorKind};

use super::Tools;
use super::subject::{self, Subject};
use crate::failure::Failure;
use crate::output::{Reply, count, printable as printable_text, size};

/// Exports a run or a session.
pub(super) async fn export(
    tools: &Tools,
    id: &str,
    to: PathBuf,
    cancellation: CancellationToken,
) -> Result<Reply, Failure> {
    let request = match subject::find(tools, id).await? {
        Subject::Run(id) => ExportRequest::run(id, to),
        Subject::Session(id) => ExportRequest::session(id, to),
    };
    let exported = tools.engine.export(request.cancellation(cancellation));
    let outcome = exported.await.map_err(|e| match e.kind() {
        ErrorKind::PositionsForgotten => Failure::from(e).adding("nothing was exported; try again"),
        _ => e.into(),
    })?;
    let mut reply = Reply::new(tools.json, &outcome, || text(&outcome));
    if let Some(line) = subject::removed(outcome.oldest_sequence) {
        reply = reply.note(line);
    }
    let Some(line) = lost(&outcome.unreadable) else {
        return Ok(reply);
    };
    let reply = match tools.json {
        true => reply,
        false => reply.warnings(vec![line.clone()]),
    };
    Ok(reply.failed(line).exit_code(1))
}

fn text(outcome: &ExportOutcome) -> String {
    format!(
        "{}, {} and {}, {}, in {}\n",
        count(outcome.runs, "run"),
        count(outcome.events, "event"),
        count(outcome.artifacts, "artifact"),
        size(outcome.bytes),
        printable(&outcome.to)
    )
}

/// What is not in the export.
fn lost(keys: &[String]) -> Option<String> {
    let first = printable_text(keys.first()?);
    let more = match keys.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "the content of artifact {first}{more} could not be read and is not in the export; its line in records.jsonl says why"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_in_one_line() {
        let keys = ["a\u{1b}", "b", "c"].map(str::to_owned);
        assert_eq!(lost(&[]), None);
        let one = lost(&keys[..1]).expect("it is told");
        assert!(one.contains(&printable_text("a\u{1b}")), "{one}");
        assert!(!one.contains("more"), "{one}");
        let all = lost(&keys).expect("it is told");
        assert!(all.contains(" and 2 more "), "{all}");
    }
}
