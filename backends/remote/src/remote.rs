//! A remote, as it is asked by git.

use std::ffi::{OsStr, OsString};

use stillframe_disk::operation::Operation;
use stillframe_git::ObjectId;
use stillframe_model::interrupted::Interrupted;
use stillframe_model::path::printable_name;

use crate::address::Address;
use crate::advertised::Advertised;
use crate::complaint::{Complaint, words_of_remote};
use crate::credential::Credential;
use crate::failure_kind::FailureKind;
use crate::git_process::{Answer, Call, Git, GitError};

/// What is read of a list of refs: a million of them.
const MAX_LIST_BYTES: usize = 128 * 1024 * 1024;

/// What is read of any other answer.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// The longest line of an error, in characters.
const MAX_SAID_CHARS: usize = 240;

/// A remote, by whom it is asked.
#[derive(Clone, Copy, Debug)]
pub struct Remote<'a> {
    /// Who asks, and the store that things come from and go to.
    pub git: &'a Git,
    /// Where it is.
    pub address: &'a Address,
    /// In whose name.
    pub credential: &'a Credential,
}

/// Why it is not known what a remote has. Nothing was changed, here or there; what the remote has
/// is as unknown as before, so a branch is never taken for absent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// The remote refused, could not be reached, or said what cannot be understood.
    #[error("{address} could not be asked for its branches: {said}")]
    Refused {
        /// Why.
        kind: FailureKind,
        /// The remote.
        address: String,
        /// One line: git's, and then a few of the remote's.
        said: String,
    },
    /// git did not come to an end.
    #[error("{address} could not be asked for its branches")]
    Git {
        /// The remote.
        address: String,
        /// Why.
        source: GitError,
    },
}

/// Why not everything came from a remote. What came is in the repository that it was for, of which
/// nobody can say what it has.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchAllError {
    /// The remote refused, could not be reached, or the disk has no room for it.
    #[error("{address} could not be fetched from: {said}")]
    Refused {
        /// Why.
        kind: FailureKind,
        /// The remote.
        address: String,
        /// One line: git's, and then a few of the remote's.
        said: String,
    },
    /// git did not come to an end.
    #[error("{address} could not be fetched from")]
    Git {
        /// The remote.
        address: String,
        /// Why.
        source: GitError,
    },
}

/// Why commits did not come from a remote. What came is in no ref, and does no harm.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// No branch of the remote has it any more: it is to be asked again what it has.
    #[error("{address} has {commit} no longer; nothing was fetched")]
    Gone {
        /// The remote.
        address: String,
        /// What was wanted.
        commit: ObjectId,
    },
    /// The remote refused, or could not be reached.
    #[error("{commit} could not be fetched from {address}: {said}")]
    Refused {
        /// Why.
        kind: FailureKind,
        /// The remote.
        address: String,
        /// What was wanted.
        commit: ObjectId,
        /// One line: git's, and then a few of the remote's.
        said: String,
    },
    /// git did not come to an end.
    #[error("{commit} could not be fetched from {address}")]
    Git {
        /// The remote.
        address: String,
        /// What was wanted.
        commit: ObjectId,
        /// Why.
        source: GitError,
    },
}

impl GitError {
    /// The kind of failure. One that was cancelled has the kind of those that may be tried again.
    pub fn failure(&self) -> FailureKind {
        match self {
            Self::Stopped(Interrupted::Cancelled | Interrupted::TimedOut { .. }) => {
                FailureKind::NetworkBlip
            }
            Self::NotStarted { .. }
            | Self::TooMuch { .. }
            | Self::UserConfiguration { .. }
            | Self::Lost { .. } => FailureKind::LocalGit,
        }
    }
}

impl ListError {
    /// The kind of failure.
    pub fn failure(&self) -> FailureKind {
        match self {
            Self::Refused { kind, .. } => *kind,
            Self::Git { source, .. } => source.failure(),
        }
    }
}

impl FetchAllError {
    /// The kind of failure.
    pub fn failure(&self) -> FailureKind {
        match self {
            Self::Refused { kind, .. } => *kind,
            Self::Git { source, .. } => source.failure(),
        }
    }
}

impl FetchError {
    /// The kind of failure.
    pub fn failure(&self) -> FailureKind {
        match self {
            Self::Gone { .. } => FailureKind::RemoteDivergent,
            Self::Refused { kind, .. } => *kind,
            Self::Git { source, .. } => source.failure(),
        }
    }
}

impl Remote<'_> {
    /// Asks what refs the remote has, and where they are.
    pub fn refs(&self, op: &Operation) -> Result<Advertised, ListError> {
        self.list(&["--symref"], op)
    }

    /// Asks where the remote's branches are, which is less than all of its refs.
    pub fn branches(&self, op: &Operation) -> Result<Advertised, ListError> {
        self.list(&["--refs", "--heads"], op)
    }

    fn list(&self, options: &[&str], op: &Operation) -> Result<Advertised, ListError> {
        let mut args = vec!["ls-remote", "--quiet"];
        args.extend(options);
        let answer = self.call(&args, &[], MAX_LIST_BYTES, op);
        let answer = answer.map_err(|source| ListError::Git {
            address: self.address.to_string(),
            source,
        })?;
        let refused = |Complaint { kind, line }| ListError::Refused {
            kind,
            address: self.address.to_string(),
            said: self.said_with(&line, &answer),
        };
        if answer.code != Some(0) {
            return Err(refused(self.complaint(&answer)));
        }
        Advertised::parse(&answer.stdout).ok_or_else(|| {
            refused(Complaint {
                kind: FailureKind::Unknown,
                line: "git listed what is no ref".to_owned(),
            })
        })
    }

    /// Brings `commit`, which a branch of the remote is at, and all that it reaches into the store.
    /// No ref names it there: what is to stay has to be named, or reached by what is.
    ///
    /// `known`: commits of the store that share history with it. With none, nobody is told what the
    /// store has, and everything is sent.
    pub fn fetch(
        &self,
        commit: ObjectId,
        known: &[ObjectId],
        op: &Operation,
    ) -> Result<(), FetchError> {
        let mut args = vec!["fetch".to_owned()];
        if known.is_empty() {
            args.insert(0, "fetch.negotiationAlgorithm=noop".to_owned());
            args.insert(0, "-c".to_owned());
        }
        let options = [
            "--quiet",
            "--refmap=",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-auto-maintenance",
            "--no-recurse-submodules",
        ];
        args.extend(options.map(str::to_owned));
        args.extend(known.iter().map(|id| format!("--negotiation-tip={id}")));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let wanted = commit.to_string();
        let address = || self.address.to_string();
        let answer = self
            .call(&args, &[wanted.as_ref()], MAX_ANSWER_BYTES, op)
            .map_err(|source| FetchError::Git {
                address: address(),
                commit,
                source,
            })?;
        if answer.code == Some(0) {
            return Ok(());
        }
        let gone = [
            format!("fatal: remote error: upload-pack: not our ref {commit}"),
            format!("error: Server does not allow request for unadvertised object {commit}"),
        ];
        let stderr = String::from_utf8_lossy(&answer.stderr);
        if stderr
            .lines()
            .any(|line| gone.iter().any(|known| known == line))
        {
            return Err(FetchError::Gone {
                address: address(),
                commit,
            });
        }
        let Complaint { kind, line } = self.complaint(&answer);
        Err(FetchError::Refused {
            kind,
            address: address(),
            commit,
            said: self.said_with(&line, &answer),
        })
    }

    /// Brings every branch and every tag of the remote, with all that they reach, into a repository
    /// that has nothing yet: branches below `refs/remotes/origin/`, and tags by their own names, as
    /// `git clone` has them.
    pub fn fetch_all(&self, op: &Operation) -> Result<(), FetchAllError> {
        let args = [
            "-c",
            "fetch.negotiationAlgorithm=noop",
            // A clone has no log of how they came.
            "-c",
            "core.logAllRefUpdates=false",
            "fetch",
            "--quiet",
            "--refmap=",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-auto-maintenance",
            "--no-recurse-submodules",
            // What a remote is without that is itself no whole copy, a clone is without.
            "--update-shallow",
        ];
        let wanted = [
            "+refs/heads/*:refs/remotes/origin/*",
            "+refs/tags/*:refs/tags/*",
        ];
        let answer = self
            .call(&args, &wanted.map(OsStr::new), MAX_ANSWER_BYTES, op)
            .map_err(|source| FetchAllError::Git {
                address: self.address.to_string(),
                source,
            })?;
        if answer.code == Some(0) {
            return Ok(());
        }
        let Complaint { kind, line } = self.complaint(&answer);
        Err(FetchAllError::Refused {
            kind,
            address: self.address.to_string(),
            said: self.said_with(&line, &answer),
        })
    }

    /// Calls git with these arguments, the address, and then these operands.
    pub(crate) fn call(
        &self,
        args: &[&str],
        operands: &[&OsStr],
        max_stdout_bytes: usize,
        op: &Operation,
    ) -> Result<Answer, GitError> {
        let mut words: Vec<OsString> = args.iter().map(OsString::from).collect();
        words.extend(["--".into(), self.address.text().to_owned()]);
        words.extend(operands.iter().map(|operand| (*operand).to_owned()));
        let call = Call {
            address: self.address,
            credential: self.credential,
            args: words,
            max_stdout_bytes,
        };
        self.git.call(call, op)
    }

    fn complaint(&self, answer: &Answer) -> Complaint {
        Complaint::read(&answer.stderr, answer.code, self.address)
    }

    /// A line of git's, followed by what hooks and the like on the other side have said: one line.
    pub(crate) fn said_with(&self, line: &str, answer: &Answer) -> String {
        let said = self.said(line);
        let words = words_of_remote(&answer.stderr);
        let words: Vec<String> = words.iter().map(|line| self.said(line)).collect();
        match words.is_empty() {
            true => said,
            false => format!("{said}; the remote says: {}", words.join(" / ")),
        }
    }

    /// A line of git's or of the remote's for people: short, without secrets, and harmless to a
    /// terminal.
    pub(crate) fn said(&self, line: &str) -> String {
        let line = self.credential.taken_out_of(line);
        let line = printable_name(line.trim().as_bytes());
        match line.char_indices().nth(MAX_SAID_CHARS) {
            None if line.is_empty() => "git did not say why".to_owned(),
            None => line,
            Some((end, _)) => format!("{}…", &line[..end - 1]),
        }
    }
}
