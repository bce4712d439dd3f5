//! Where the branch of a task is resumed. Pure.
//!
//! What git could not answer is a value of its own here, and never taken for "no": a branch that
//! was not looked at is neither absent nor diverged.

use stillframe_backends::ErrorKind;

/// What git says to a question about history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes,
    No,
    /// An object is missing, or git failed.
    Unanswered,
}

/// Whose work the newest commit of ours below a tip is, by its trailer `Task`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// There is none, or it names no task.
    Nobody,
    /// A task, with its namespace.
    Task(String),
    Unanswered,
}

/// A branch's tip, and what is to be known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tip {
    pub(crate) commit: String,
    /// Whether it contains the recorded checkpoint; of no meaning where none is recorded.
    pub(crate) has_recorded: Answer,
    pub(crate) owner: Owner,
}

/// Where the branch is on the remote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Remote {
    At(Tip),
    /// The remote has answered, and has no such branch.
    Absent,
    /// The remote cannot be asked.
    Unreachable,
}

/// All that a resume is decided by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The task, with its namespace.
    pub(crate) task: String,
    pub(crate) local: Option<Tip>,
    pub(crate) remote: Remote,
    /// The last checkpoint of this workspace that was proven on the remote.
    pub(crate) recorded: Option<String>,
    /// Whether the remote's tip is an ancestor of the local one.
    pub(crate) local_has_remote: Answer,
    /// Whether the local tip is an ancestor of the remote's.
    pub(crate) remote_has_local: Answer,
    /// Whether both have the same base by first parents.
    pub(crate) same_base: Answer,
}

/// Where a task goes on, or why it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resume {
    /// The branch begins at the start point.
    Fresh,
    /// The branch is or becomes this.
    Resumed {
        at: String,
        /// What the next checkpoint is made on, if that is not this alone.
        parents: Option<[String; 2]>,
    },
    /// The local branch moves forward to this.
    FastForward { to: String },
    /// Both have commits that the other has not.
    Diverged { local: String, remote: String },
    /// The remote cannot be asked.
    RemoteUnreachable,
    /// What this workspace has saved is not in what would be resumed.
    CheckpointMissing { expected: String },
    /// The branch has the work of another task.
    Conflict { commit: String, task: String },
    /// git could not say what this depends on.
    Unanswered(Question),
}

/// What git could not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Whose work a branch has.
    Owner,
    /// Which of two commits contains the other.
    Ancestry,
    /// Whether the recorded checkpoint is in what would be resumed.
    Recorded,
}

/// Decides where the branch of a task is resumed.
pub(crate) fn resume(seen: &Seen) -> Resume {
    let remote = match &seen.remote {
        Remote::Unreachable => return Resume::RemoteUnreachable,
        Remote::Absent => None,
        Remote::At(tip) => Some(tip),
    };
    let tips = || seen.local.iter().chain(remote);
    for tip in tips() {
        match &tip.owner {
            Owner::Task(task) if *task != seen.task => {
                let (commit, task) = (tip.commit.clone(), task.clone());
                return Resume::Conflict { commit, task };
            }
            _ => {}
        }
    }
    if tips().any(|tip| tip.owner == Owner::Unanswered) {
        return Resume::Unanswered(Question::Owner);
    }
    match (&seen.local, remote) {
        (None, None) => match &seen.recorded {
            None => Resume::Fresh,
            Some(expected) => Resume::CheckpointMissing {
                expected: expected.clone(),
            },
        },
        (None, Some(tip)) | (Some(tip), None) => seen.on(tip, resumed(tip)),
        (Some(local), Some(remote)) => seen.between(local, remote),
    }
}

fn resumed(tip: &Tip) -> Resume {
    Resume::Resumed {
        at: tip.commit.clone(),
        parents: None,
    }
}

impl Seen {
    /// Both are there.
    fn between(&self, local: &Tip, remote: &Tip) -> Resume {
        if local.commit == remote.commit || self.local_has_remote == Answer::Yes {
            return self.on(local, resumed(local));
        }
        if self.remote_has_local == Answer::Yes {
            let to = remote.commit.clone();
            return self.on(remote, Resume::FastForward { to });
        }
        let answers = [self.local_has_remote, self.remote_has_local];
        if answers.contains(&Answer::Unanswered) {
            return Resume::Unanswered(Question::Ancestry);
        }
        // Somebody has committed here, and died after our checkpoint was sent: that is on the
        // remote, and its work is in the worktree.
        let is_our_checkpoint = self.recorded.as_ref() == Some(&remote.commit);
        match self.same_base {
            Answer::Unanswered if is_our_checkpoint => Resume::Unanswered(Question::Ancestry),
            Answer::Yes if is_our_checkpoint => Resume::Resumed {
                at: local.commit.clone(),
                parents: Some([remote.commit.clone(), local.commit.clone()]),
            },
            _ => Resume::Diverged {
                local: local.commit.clone(),
                remote: remote.commit.clone(),
            },
        }
    }

    /// `then`, if `tip` has what this workspace has saved.
    fn on(&self, tip: &Tip, then: Resume) -> Resume {
        let Some(expected) = &self.recorded else {
            return then;
        };
        match tip.has_recorded {
            _ if *expected == tip.commit => then,
            Answer::Yes => then,
            Answer::Unanswered => Resume::Unanswered(Question::Recorded),
            Answer::No => Resume::CheckpointMissing {
                expected: expected.clone(),
            },
        }
    }
}

impl Resume {
    /// The commit that is gone on from; `None`: the branch begins, or it is not resumed.
    pub(crate) fn at(&self) -> Option<&str> {
        match self {
            Self::Resumed { at, .. } => Some(at),
            Self::FastForward { to } => Some(to),
            _ => None,
        }
    }

    /// Whether the remote is asked once more, because what it says may lag.
    pub(crate) fn may_lag(&self, expected: Option<&str>) -> bool {
        match (self, expected) {
            (Self::CheckpointMissing { .. }, _) => true,
            (Self::RemoteUnreachable | Self::Unanswered(_) | Self::Conflict { .. }, _)
            | (_, None) => false,
            (_, Some(expected)) => compare(expected, self.at(), false) == Expected::LookAgain,
        }
    }

    /// Why `branch` is not resumed, with what a host can do about it; `None`: it is.
    /// `is_in_store`: whether the store still has the recorded checkpoint.
    pub(crate) fn refusal(&self, branch: &str, is_in_store: bool) -> Option<(ErrorKind, String)> {
        let (kind, why) = match self {
            Self::Fresh | Self::Resumed { .. } | Self::FastForward { .. } => return None,
            Self::Diverged { local, remote } => (
                ErrorKind::Conflict,
                format!(
                    "{branch} is at {local} here and at {remote} on the remote, and neither contains the other"
                ),
            ),
            Self::RemoteUnreachable => (
                ErrorKind::Unavailable,
                format!("the remote cannot be asked where {branch} is"),
            ),
            Self::CheckpointMissing { expected } => {
                let kept = match is_in_store {
                    true => "the store still has it",
                    false => "the store does not have it any more",
                };
                (
                    ErrorKind::NotFound,
                    format!(
                        "checkpoint {expected}, which was saved from here, is not in {branch}; {kept}"
                    ),
                )
            }
            Self::Conflict { commit, task } => (
                ErrorKind::Conflict,
                format!("{branch} is at {commit}, which is work of task {task}"),
            ),
            Self::Unanswered(question) => {
                let what = match question {
                    Question::Owner => "whose work it has",
                    Question::Ancestry => "how its commits here and on the remote are related",
                    Question::Recorded => "whether the last checkpoint is in it",
                };
                (
                    ErrorKind::Unavailable,
                    format!("git could not say of {branch} {what}"),
                )
            }
        };
        Some((kind, format!("{why}; nothing was moved")))
    }
}

/// How what would be resumed compares with what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Met,
    /// It is fetched once more, because a remote's answers may lag.
    LookAgain,
    /// It is elsewhere.
    Diverged,
}

/// Compares what would be resumed (`None`: nothing) with the commit that somebody expects.
pub(crate) fn compare(expected: &str, found: Option<&str>, has_looked_again: bool) -> Expected {
    match (found == Some(expected), has_looked_again) {
        (true, _) => Expected::Met,
        (false, false) => Expected::LookAgain,
        (false, true) => Expected::Diverged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWERS: [Answer; 3] = [Answer::Yes, Answer::No, Answer::Unanswered];

    fn owners() -> [Owner; 4] {
        [
            Owner::Nobody,
            Owner::Task("p/q/42".to_owned()),
            Owner::Task("42".to_owned()),
            Owner::Unanswered,
        ]
    }

    /// What can be seen, in every combination.
    fn all() -> Vec<Seen> {
        let mut tips = Vec::new();
        for has_recorded in ANSWERS {
            for owner in owners() {
                for commit in ["L", "R"] {
                    tips.push(Tip {
                        commit: commit.to_owned(),
                        has_recorded,
                        owner: owner.clone(),
                    });
                }
            }
        }
        let locals = tips
            .iter()
            .filter(|tip| tip.commit == "L")
            .cloned()
            .map(Some);
        let remotes = tips.iter().cloned().map(Remote::At);
        let remotes: Vec<Remote> = remotes
            .chain([Remote::Absent, Remote::Unreachable])
            .collect();
        let mut all = Vec::new();
        for local in locals.chain([None]) {
            for remote in &remotes {
                for recorded in [None, Some("L"), Some("R"), Some("C")] {
                    for nth in 0..27 {
                        all.push(Seen {
                            task: "p/q/42".to_owned(),
                            local: local.clone(),
                            remote: remote.clone(),
                            recorded: recorded.map(str::to_owned),
                            local_has_remote: ANSWERS[nth % 3],
                            remote_has_local: ANSWERS[nth / 3 % 3],
                            same_base: ANSWERS[nth / 9],
                        });
                    }
                }
            }
        }
        all
    }

    /// One combination in the words of the table.
    struct Words {
        /// `-` or `L`.
        local: &'static str,
        /// `?` (cannot be asked), `-` (proven absent), `L` or `R`.
        remote: &'static str,
        /// How R lies to L: `ancestor`, `descendant`, `neither`, or `?`.
        relation: &'static str,
        /// `own`, `other` or `?`.
        owner: &'static str,
        recorded: Option<&'static str>,
        /// Whether L, and the remote's tip, contain the recorded checkpoint: `yes`, `no` or `?`.
        in_local: &'static str,
        in_remote: &'static str,
        same_base: &'static str,
    }

    fn words(seen: &Seen) -> Words {
        let word = |answer: Answer| match answer {
            Answer::Yes => "yes",
            Answer::No => "no",
            Answer::Unanswered => "?",
        };
        let name = |commit: &str| match commit {
            "L" => "L",
            "R" => "R",
            _ => "C",
        };
        let contained = |tip: Option<&Tip>| match (tip, &seen.recorded) {
            (_, None) => "yes",
            (Some(tip), Some(recorded)) if tip.commit == *recorded => "yes",
            (Some(tip), _) => word(tip.has_recorded),
            (None, _) => "no",
        };
        let remote_tip = match &seen.remote {
            Remote::At(tip) => Some(tip),
            _ => None,
        };
        let owners: Vec<&Owner> = seen
            .local
            .iter()
            .chain(remote_tip)
            .map(|tip| &tip.owner)
            .collect();
        let other = Owner::Task("42".to_owned());
        Words {
            local: seen.local.as_ref().map_or("-", |_| "L"),
            remote: match &seen.remote {
                Remote::Unreachable => "?",
                Remote::Absent => "-",
                Remote::At(tip) => name(&tip.commit),
            },
            relation: match (seen.local_has_remote, seen.remote_has_local) {
                (Answer::Yes, _) => "ancestor",
                (_, Answer::Yes) => "descendant",
                (Answer::No, Answer::No) => "neither",
                _ => "?",
            },
            owner: match owners {
                owners if owners.contains(&&other) => "other",
                owners if owners.contains(&&Owner::Unanswered) => "?",
                _ => "own",
            },
            recorded: seen.recorded.as_deref().map(name),
            in_local: contained(seen.local.as_ref()),
            in_remote: contained(remote_tip),
            same_base: word(seen.same_base),
        }
    }

    /// What is decided, in short.
    fn told(resume: &Resume) -> String {
        match resume {
            Resume::Fresh => "fresh".to_owned(),
            Resume::Resumed { at, parents: None } => format!("resumed {at}"),
            Resume::Resumed {
                at,
                parents: Some(parents),
            } => format!("resumed {at}, then on {}", parents.join(" and ")),
            Resume::FastForward { to } => format!("forward to {to}"),
            Resume::Diverged { local, remote } => format!("diverged {local} {remote}"),
            Resume::RemoteUnreachable => "unreachable".to_owned(),
            Resume::CheckpointMissing { .. } => "missing".to_owned(),
            Resume::Conflict { task, .. } => format!("conflict {task}"),
            Resume::Unanswered(_) => "unanswered".to_owned(),
        }
    }

    /// A row of the table: its name, what it is about, and what is decided.
    type Line = (&'static str, fn(&Words) -> bool, &'static str);

    /// The table of the reference, with a row of its own for each thing that git could not say.
    const TABLE: &[Line] = &[
        (
            "the remote cannot be asked",
            |w| w.remote == "?",
            "unreachable",
        ),
        (
            "another task",
            |w| w.remote != "?" && w.owner == "other",
            "conflict 42",
        ),
        (
            "somebody's",
            |w| w.remote != "?" && w.owner == "?",
            "unanswered",
        ),
        (
            "nothing anywhere",
            |w| own(w) && nothing(w) && w.recorded.is_none(),
            "fresh",
        ),
        (
            "nothing of what was saved",
            |w| own(w) && nothing(w) && w.recorded.is_some(),
            "missing",
        ),
        (
            "the remote's alone",
            |w| theirs(w) && w.in_remote == "yes",
            "resumed REMOTE",
        ),
        (
            "the remote's without ours",
            |w| theirs(w) && w.in_remote == "no",
            "missing",
        ),
        (
            "the remote's, perhaps without ours",
            |w| theirs(w) && w.in_remote == "?",
            "unanswered",
        ),
        (
            "ahead or alike",
            |w| ahead(w) && w.in_local == "yes",
            "resumed L",
        ),
        (
            "ahead without what was saved",
            |w| ahead(w) && w.in_local == "no",
            "missing",
        ),
        (
            "ahead, perhaps without it",
            |w| ahead(w) && w.in_local == "?",
            "unanswered",
        ),
        (
            "behind",
            |w| apart(w, "descendant") && w.in_remote == "yes",
            "forward to R",
        ),
        (
            "behind without what was saved",
            |w| apart(w, "descendant") && w.in_remote == "no",
            "missing",
        ),
        (
            "behind, perhaps without it",
            |w| apart(w, "descendant") && w.in_remote == "?",
            "unanswered",
        ),
        ("git cannot say", |w| apart(w, "?"), "unanswered"),
        (
            "committed here after our checkpoint",
            |w| apart(w, "neither") && w.recorded == Some("R") && w.same_base == "yes",
            "resumed L, then on R and L",
        ),
        (
            "perhaps committed here after our checkpoint",
            |w| apart(w, "neither") && w.recorded == Some("R") && w.same_base == "?",
            "unanswered",
        ),
        (
            "neither",
            |w| apart(w, "neither") && (w.recorded != Some("R") || w.same_base == "no"),
            "diverged L R",
        ),
    ];

    fn own(w: &Words) -> bool {
        w.remote != "?" && w.owner == "own"
    }

    fn nothing(w: &Words) -> bool {
        w.local == "-" && w.remote == "-"
    }

    fn theirs(w: &Words) -> bool {
        own(w) && w.local == "-" && matches!(w.remote, "L" | "R")
    }

    fn ahead(w: &Words) -> bool {
        let is_alike = matches!(w.remote, "-" | "L");
        own(w) && w.local == "L" && (is_alike || w.relation == "ancestor")
    }

    fn apart(w: &Words, relation: &str) -> bool {
        own(w) && w.local == "L" && w.remote == "R" && w.relation == relation
    }

    #[test]
    fn every_combination_is_one_row_of_the_table() {
        let mut used = vec![0; TABLE.len()];
        let all = all();
        for seen in &all {
            let words = words(seen);
            let rows = (0..TABLE.len()).filter(|nth| TABLE[*nth].1(&words));
            let rows: Vec<usize> = rows.collect();
            let [row] = rows[..] else {
                panic!("{seen:?} is in the rows {rows:?}");
            };
            used[row] += 1;
            let (name, _, decided) = TABLE[row];
            let decided = decided.replace("REMOTE", words.remote);
            assert_eq!(told(&resume(seen)), decided, "{name}: {seen:?}");
        }
        assert_eq!(all.len(), 13 * 26 * 4 * 27);
        assert!(used.iter().all(|times| *times > 0), "{used:?}");
    }

    fn tip(commit: &str, has_recorded: Answer) -> Tip {
        Tip {
            commit: commit.to_owned(),
            has_recorded,
            owner: Owner::Nobody,
        }
    }

    fn seen(local: Option<Tip>, remote: Remote, recorded: Option<&str>) -> Seen {
        Seen {
            task: "42".to_owned(),
            local,
            remote,
            recorded: recorded.map(str::to_owned),
            local_has_remote: Answer::No,
            remote_has_local: Answer::No,
            same_base: Answer::No,
        }
    }

    #[test]
    fn a_remote_that_cannot_be_reached_never_begins_a_branch() {
        for recorded in [None, Some("C")] {
            let decided = resume(&seen(None, Remote::Unreachable, recorded));
            assert_eq!(decided, Resume::RemoteUnreachable);
            let (kind, said) = decided.refusal("stillframe/task/42", true).unwrap();
            assert_eq!(kind, ErrorKind::Unavailable);
            assert!(said.ends_with("; nothing was moved"), "{said}");
        }
    }

    #[test]
    fn a_remote_without_the_branch_of_a_checkpoint_names_the_commit_and_where_it_is() {
        let decided = resume(&seen(None, Remote::Absent, Some("C0FFEE")));
        let expected = "C0FFEE".to_owned();
        assert_eq!(decided, Resume::CheckpointMissing { expected });
        let (kind, kept) = decided.refusal("stillframe/task/42", true).unwrap();
        assert_eq!(kind, ErrorKind::NotFound);
        assert!(
            kept.contains("C0FFEE") && kept.contains("the store still has it"),
            "{kept}"
        );
        let (_, gone) = decided.refusal("stillframe/task/42", false).unwrap();
        assert!(gone.contains("does not have it any more"), "{gone}");
        let behind = tip("L", Answer::No);
        let decided = resume(&seen(Some(behind), Remote::Absent, Some("C0FFEE")));
        assert!(
            matches!(decided, Resume::CheckpointMissing { .. }),
            "{decided:?}"
        );
    }

    // A stale local branch once won over a newer one of the remote.
    #[test]
    fn a_stale_local_branch_moves_forward() {
        let stale = Seen {
            remote_has_local: Answer::Yes,
            ..seen(
                Some(tip("L", Answer::No)),
                Remote::At(tip("R", Answer::Yes)),
                Some("C"),
            )
        };
        let to = "R".to_owned();
        assert_eq!(resume(&stale), Resume::FastForward { to });
    }

    // Any error of git was once a claim that history was rewritten.
    #[test]
    fn what_git_cannot_answer_is_no_divergence() {
        let unanswered = Seen {
            remote_has_local: Answer::Unanswered,
            ..seen(
                Some(tip("L", Answer::Yes)),
                Remote::At(tip("R", Answer::Yes)),
                None,
            )
        };
        let decided = resume(&unanswered);
        assert_eq!(decided, Resume::Unanswered(Question::Ancestry));
        let (kind, _) = decided.refusal("b", true).unwrap();
        assert_eq!(kind, ErrorKind::Unavailable);
    }

    #[test]
    fn every_refusal_names_the_branch_and_says_that_nothing_moved() {
        let mut kinds = Vec::new();
        for seen in all() {
            let decided = resume(&seen);
            match decided.refusal("stillframe/task/42", true) {
                Some((kind, said)) => {
                    assert!(said.contains("stillframe/task/42"), "{said}");
                    assert!(said.ends_with("; nothing was moved"), "{said}");
                    kinds.push(kind);
                }
                None => assert!(
                    matches!(
                        decided,
                        Resume::Fresh | Resume::Resumed { .. } | Resume::FastForward { .. }
                    ),
                    "{decided:?}"
                ),
            }
        }
        for kind in [
            ErrorKind::Unavailable,
            ErrorKind::NotFound,
            ErrorKind::Conflict,
        ] {
            assert!(kinds.contains(&kind), "{kind:?}");
        }
    }

    #[test]
    fn what_lacks_something_that_was_seen_is_looked_for_again() {
        let expected = || "C".to_owned();
        let missing = Resume::CheckpointMissing {
            expected: expected(),
        };
        assert!(missing.may_lag(None), "it was proven to be there");
        let at = |at: &str| Resume::Resumed {
            at: at.to_owned(),
            parents: None,
        };
        assert!(!at("D").may_lag(None));
        assert!(!at("C").may_lag(Some("C")));
        assert!(at("D").may_lag(Some("C")));
        assert!(Resume::Fresh.may_lag(Some("C")));
        assert!(!Resume::FastForward { to: expected() }.may_lag(Some("C")));
        assert!(!Resume::RemoteUnreachable.may_lag(Some("C")));
    }

    #[test]
    fn what_is_expected_is_looked_for_twice() {
        assert_eq!(compare("C", Some("C"), false), Expected::Met);
        assert_eq!(compare("C", Some("C"), true), Expected::Met);
        for found in [None, Some("D")] {
            assert_eq!(compare("C", found, false), Expected::LookAgain);
            assert_eq!(compare("C", found, true), Expected::Diverged);
        }
    }
}
