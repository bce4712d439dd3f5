//! What a command is about that takes a run or a session.

use stillframe::{ErrorKind, RunId, SessionId};

use super::{Tools, runs};
use crate::failure::Failure;
use crate::output;

/// A run or a session.
pub(super) enum Subject {
    Run(RunId),
    Session(SessionId),
}

/// The run of exactly this id; else the session of exactly this id; else the only run whose id
/// begins so.
pub(super) async fn find(tools: &Tools, id: &str) -> Result<Subject, Failure> {
    let run = runs::by_id(tools, id).await.map(|run| run.id);
    if let Ok(run) = &run
        && run.as_str() == id
    {
        return Ok(Subject::Run(run.clone()));
    }
    match tools.engine.find_session(id).await {
        Ok(session) => return Ok(Subject::Session(session.id)),
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e.into()),
        Err(_) => {}
    }
    match run {
        Ok(run) => Ok(Subject::Run(run)),
        Err(e) if e.kind() == ErrorKind::NotFound => Err(Failure::new(
            ErrorKind::NotFound,
            format!("there is no run and no session {}", output::shortened(id)),
        )),
        Err(e) => Err(e.into()),
    }
}

/// That events of a run or a session are not there, for people.
pub(super) fn removed(oldest_sequence: Option<u64>) -> Option<String> {
    let oldest = oldest_sequence?;
    Some(format!(
        "earlier events were removed from the log, which has those of the session from number {oldest} on"
    ))
}
