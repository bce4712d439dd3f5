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

/// The run of this id, or whose id begins so; the session of this id if there is no such run.
pub(super) async fn find(tools: &Tools, id: &str) -> Result<Subject, Failure> {
    match runs::by_id(tools, id).await {
        Ok(run) => Ok(Subject::Run(run.id)),
        Err(e) if [ErrorKind::NotFound, ErrorKind::InvalidOptions].contains(&e.kind()) => {
            match tools.engine.find_session(id).await {
                Ok(session) => Ok(Subject::Session(session.id)),
                Err(other) if other.kind() != ErrorKind::NotFound => Err(other.into()),
                Err(_) if e.kind() == ErrorKind::NotFound => Err(Failure::new(
                    ErrorKind::NotFound,
                    format!("there is no run and no session {}", output::shortened(id)),
                )),
                Err(_) => Err(e.into()),
            }
        }
        Err(e) => Err(e.into()),
    }
}
