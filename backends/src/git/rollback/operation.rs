//! Deciding what becomes of the files of git's operations: a pure function of the known states.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{FoundRepository, Request, Way, operation_name};
use crate::error::ErrorKind;
use crate::git::ObjectId;
use crate::git::repository::OperationFiles;
use crate::path::printable_bytes;
use crate::record::GitState;
use crate::repository_changes::RepositoryProblem;
use crate::restore_error::RestoreError;

/// A file that gets another content. `None`: there is no such file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileMove {
    /// Its path below the git directory.
    pub(super) name: String,
    pub(super) from: Option<ObjectId>,
    pub(super) to: Option<ObjectId>,
    /// How many of the staged bytes are its own.
    pub(super) bytes: u64,
}

/// What takes the files of git's operations from one state to another, in the order in which it is
/// done: files go, directories go, directories come, files come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OperationMove {
    pub(super) leaving: Vec<FileMove>,
    /// Children first.
    pub(super) removed_directories: Vec<String>,
    /// Parents first.
    pub(super) made_directories: Vec<String>,
    pub(super) coming: Vec<FileMove>,
}

impl OperationMove {
    /// What makes `to` of `from`, but for the paths that are `kept`.
    fn between(from: &OperationFiles, to: &OperationFiles, kept: &BTreeSet<&str>) -> Self {
        let mut all = Self::default();
        for name in from.differing(to) {
            if kept.contains(name) {
                continue;
            }
            let (had, gets) = (from.files.get(name), to.files.get(name));
            if had != gets {
                let file = FileMove {
                    name: name.to_owned(),
                    from: had.copied(),
                    to: gets.copied(),
                    bytes: 0,
                };
                match gets {
                    Some(_) => all.coming.push(file),
                    None => all.leaving.push(file),
                }
            }
            match (
                from.directories.contains(name),
                to.directories.contains(name),
            ) {
                (true, false) => all.removed_directories.insert(0, name.to_owned()),
                (false, true) => all.made_directories.push(name.to_owned()),
                _ => {}
            }
        }
        all
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The paths of the files and directories that it makes, writes or removes.
    pub(super) fn all(&self) -> BTreeSet<String> {
        let directories = self
            .removed_directories
            .iter()
            .chain(&self.made_directories);
        let all = self.paths().chain(directories.map(String::as_str));
        all.map(str::to_owned).collect()
    }

    /// The paths of the files that it writes or removes.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.leaving
            .iter()
            .chain(&self.coming)
            .map(|file| &*file.name)
    }
}

/// What is done about git's operations.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Their files go back like this, which may be not at all.
    Goes {
        operation: OperationMove,
        /// What is left as it is, and why.
        notes: Vec<RepositoryProblem>,
    },
    /// Somebody went on with an operation since: HEAD, branch, index and its files belong together,
    /// and all of them are kept.
    Kept(RepositoryProblem),
}

impl Decision {
    pub(super) fn nothing() -> Self {
        Self::Goes {
            operation: OperationMove::default(),
            notes: Vec::new(),
        }
    }
}

/// Decides what becomes of them. Refuses where an operation is in progress that is neither the
/// target's nor the run's, and where they are not as the run left them. What a run made of them
/// never keeps its files from going back.
///
/// `is_index_edited` says whether the index is another than `after` saw.
pub(super) fn decide(
    request: &Request<'_>,
    found: &FoundRepository,
    after: &GitState,
    is_index_edited: &dyn Fn() -> Result<bool, RestoreError>,
) -> Result<Decision, RestoreError> {
    let before = request.before;
    let strange = found.in_progress.as_deref();
    let strange = strange.filter(|_| found.in_progress != before.in_progress);
    let in_progress = |operation: &str| RestoreError::InProgress {
        operation: operation_name(operation),
    };
    let stays = |notes: Vec<RepositoryProblem>| {
        Ok(Decision::Goes {
            operation: OperationMove::default(),
            notes,
        })
    };
    let (was, left, now) = match (&before.operation, &after.operation, &found.operation) {
        (Some(was), Some(left), Ok(now)) => (was, left, now),
        // What the run planted there must not keep it from being rolled back otherwise.
        (_, _, Err(problem)) if problem.kind == ErrorKind::HostileRepository => {
            return stays(vec![left_alone(problem.kind, &problem.message)]);
        }
        (was, left, now) => {
            if let Some(operation) = strange {
                // The run began it, and nobody knows what its files were: the rest goes back
                // without it.
                return match found.in_progress == after.in_progress {
                    true => Ok(unknown(operation, now.as_ref().err())),
                    false => Err(in_progress(operation)),
                };
            }
            return match (was, left, now) {
                (None, ..) => stays(Vec::from_iter(ended_operation(request, found, after))),
                (.., Err(problem)) => stays(vec![left_alone(problem.kind, &problem.message)]),
                (Some(was), None, Ok(now)) if was != now => {
                    let why = "what the run left of them was not kept";
                    stays(vec![left_alone(ErrorKind::Unsupported, why)])
                }
                _ => stays(Vec::new()),
            };
        }
    };
    let disturbed = left.differing(now);
    let states = [&before.in_progress, &after.in_progress, &found.in_progress];
    let operation = states.into_iter().flatten().next();
    match (
        disturbed.first(),
        request.way == Way::BackBesideEdits,
        operation,
    ) {
        (Some(path), false, _) => {
            let begun = strange.filter(|_| found.in_progress != after.in_progress);
            return Err(match begun {
                Some(operation) => in_progress(operation),
                None => RestoreError::OperationChanged {
                    path: printable_bytes(path.as_bytes()),
                },
            });
        }
        (Some(path), true, Some(operation)) => match strange {
            Some(strange) => return Err(in_progress(strange)),
            None => return Ok(gone_on_with(operation, path)),
        },
        (None, true, Some(operation)) if was != left && is_index_edited()? => {
            return Ok(gone_on_with(operation, "index"));
        }
        _ => {}
    }
    let undone = was.differing(left);
    let kept = disturbed.iter().filter(|path| undone.contains(*path));
    let notes = kept.map(|path| {
        let path = printable_bytes(path.as_bytes());
        let what = format!("{path} was changed since, and was kept");
        RepositoryProblem::new(ErrorKind::Conflict, what)
    });
    Ok(Decision::Goes {
        notes: notes.collect(),
        operation: OperationMove::between(now, was, &disturbed),
    })
}

fn gone_on_with(operation: &str, path: &str) -> Decision {
    let operation = operation_name(operation);
    Decision::Kept(RepositoryProblem::new(
        ErrorKind::Conflict,
        format!(
            "{} was changed since, and a {operation} goes by it: HEAD, branch and index were kept, and \
             so were the files of the {operation}",
            printable_bytes(path.as_bytes())
        ),
    ))
}

fn unknown(operation: &str, problem: Option<&RepositoryProblem>) -> Decision {
    let operation = operation_name(operation);
    let (kind, why) = match problem {
        Some(problem) => (problem.kind, &*problem.message),
        None => (ErrorKind::Unsupported, "no snapshot keeps them"),
    };
    Decision::Kept(RepositoryProblem::new(
        kind,
        format!(
            "the {operation} that is in progress, with HEAD, branch and index, was left as it is, since its \
             files cannot be put back: {why}"
        ),
    ))
}

fn left_alone(kind: ErrorKind, why: &str) -> RepositoryProblem {
    RepositoryProblem::new(
        kind,
        format!("the files of git's operations were left as they are: {why}"),
    )
}

/// What is said of an operation of git's that was in progress at `before`, without its files being
/// kept, and has ended since.
fn ended_operation(
    request: &Request<'_>,
    found: &FoundRepository,
    after: &GitState,
) -> Option<RepositoryProblem> {
    let was = &request.before.in_progress;
    let operation = operation_name(was.as_ref()?);
    // One that was begun anew since is another one.
    if *was == after.in_progress && *was == found.in_progress {
        return None;
    }
    Some(RepositoryProblem::new(
        ErrorKind::Unsupported,
        format!(
            "the {operation} that was in progress has ended since and cannot be begun again, because \
             the snapshot does not keep its files"
        ),
    ))
}
