//! What became of a push, by what git said of it. Pure.

use stillframe_git::ObjectId;

use crate::address::Address;
use crate::advertised::Advertised;
use crate::branch_name::BranchName;
use crate::complaint::Complaint;
use crate::failure_kind::FailureKind::{
    self, LocalGit, NetworkBlip, RefConflict, RemoteDivergent, RemotePolicyRejected, Unknown,
};
use crate::git_process::Answer;

/// How a branch got to its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// The branch is new.
    Created,
    /// The branch went forward.
    FastForwarded,
    /// It was there.
    AlreadyThere,
}

/// What an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pushed(Pushed),
    Refused(Refusal),
    /// It says several things at once, or nothing: where the branch is now decides.
    Ask {
        refusal: Refusal,
        open: Open,
    },
}

/// What an answer leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Open {
    /// The server said no, for a reason of its own.
    Why,
    /// The server could not move the branch. It may be somebody else's lock, which passes.
    Locked,
    /// The server did not say.
    Whether,
}

/// Why something was not pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) kind: FailureKind,
    /// One line of git's or of the server's.
    pub(crate) said: String,
}

/// Reasons of git's own, and of forges, for what hooks or settings forbid. Whatever else a server
/// gives for a reason is no answer by itself.
const POLICY: [&str; 7] = [
    "pre-receive hook declined",
    "hook declined",
    "protected branch hook declined",
    "push declined due to repository rule violations",
    "branch is currently checked out",
    "shallow update not allowed",
    "deny updating a hidden ref",
];

/// Whether a reason is git's own for a branch that it could not move, which nobody has decided: a
/// lock, or a branch in the way.
fn is_of_lock(reason: &str) -> bool {
    let whole = [
        "failed to update ref",
        "failed to update",
        "failed to lock",
        "failed to write",
    ];
    whole.contains(&reason)
        || reason.starts_with("cannot lock ref '")
        || reason.starts_with("Unable to create '") && reason.ends_with(".lock': File exists.")
}

/// Reads what `git push --porcelain` said of `branch`.
pub(crate) fn verdict(answer: &Answer, address: &Address, branch: &BranchName) -> Verdict {
    let complaint = Complaint::read(&answer.stderr, answer.code, address);
    let stdout = String::from_utf8_lossy(&answer.stdout);
    let full = branch.full();
    let line = stdout.lines().find_map(|line| {
        let mut fields = line.splitn(3, '\t');
        let (flag, refs) = (fields.next()?, fields.next()?);
        let (_, to) = refs.split_once(':')?;
        (to == full).then_some((flag, fields.next().unwrap_or_default()))
    });
    match (line, answer.code) {
        (Some(("*", _)), Some(0)) => Verdict::Pushed(Pushed::Created),
        (Some((" ", _)), Some(0)) => Verdict::Pushed(Pushed::FastForwarded),
        (Some(("=", _)), Some(0)) => Verdict::Pushed(Pushed::AlreadyThere),
        (Some(("!", summary)), _) => refused(summary, complaint),
        // It failed before it came to this branch, or after: an answer may be lost on its way.
        _ => {
            let Complaint { kind, line: said } = complaint;
            let refusal = Refusal { kind, said };
            match kind {
                NetworkBlip | Unknown => Verdict::Ask {
                    refusal,
                    open: Open::Whether,
                },
                _ => Verdict::Refused(refusal),
            }
        }
    }
}

/// What `[…] (reason)` of a branch that was not pushed means.
fn refused(summary: &str, complaint: Complaint) -> Verdict {
    let said = summary.to_owned();
    let is = |kind| {
        Verdict::Refused(Refusal {
            kind,
            said: said.clone(),
        })
    };
    let reason = |who: &str| {
        let rest = summary.strip_prefix(who)?.trim_start();
        rest.strip_prefix('(')?.strip_suffix(')')
    };
    if let Some(reason) = reason("[rejected]") {
        return match reason {
            "fetch first"
            | "non-fast-forward"
            | "stale info"
            | "needs force"
            | "already exists"
            | "remote ref updated since checkout" => is(RemoteDivergent),
            _ => is(Unknown),
        };
    }
    if let Some(reason) = reason("[remote rejected]") {
        if reason == "non-fast-forward" || reason == "fetch first" {
            return is(RemoteDivergent);
        }
        if POLICY.contains(&reason) {
            return is(RemotePolicyRejected);
        }
        // The reason of that is in a line of its own.
        if reason == "unpacker error" {
            let Complaint { kind, line } = complaint;
            return Verdict::Refused(Refusal { kind, said: line });
        }
        let (kind, open) = match is_of_lock(reason) {
            true => (Unknown, Open::Locked),
            false => (RemotePolicyRejected, Open::Why),
        };
        let refusal = Refusal { kind, said };
        return Verdict::Ask { refusal, open };
    }
    if summary.starts_with("[no match]") {
        return is(LocalGit);
    }
    // `[remote failure]`: the remote did not say. What git complains of is the reason.
    let Complaint { kind, line } = complaint;
    let said = if line.is_empty() { said } else { line };
    let refusal = Refusal { kind, said };
    match kind {
        NetworkBlip | Unknown => Verdict::Ask {
            refusal,
            open: Open::Whether,
        },
        _ => Verdict::Refused(refusal),
    }
}

/// What an answer that said several things means, now that the remote was asked where the branch
/// is. `expected`: where it was before, `pushed`: where it was to be.
pub(crate) fn settled(
    refusal: Refusal,
    remote: &Advertised,
    branch: &BranchName,
    expected: Option<ObjectId>,
    pushed: ObjectId,
) -> Result<Pushed, Refusal> {
    let found = remote.branch(branch);
    if found == Some(pushed) {
        return Ok(Pushed::AlreadyThere);
    }
    if found.is_some() && found != expected {
        return Err(Refusal {
            kind: RemoteDivergent,
            ..refusal
        });
    }
    if let Some(other) = remote.in_the_way_of(branch) {
        let said = format!("the remote has {other}");
        return Err(Refusal {
            kind: RefConflict,
            said,
        });
    }
    Err(refusal)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(code: i32, line: &str, stderr: &str) -> Verdict {
        let address = Address::parse("/remote.git".as_ref(), Path::new("/")).unwrap();
        let branch = BranchName::parse("a/401").unwrap();
        let answer = Answer {
            code: Some(code),
            stdout: format!("To /remote.git\n{line}\nDone\n").into(),
            stderr: stderr.into(),
        };
        verdict(&answer, &address.address, &branch)
    }

    fn kind(code: i32, summary: &str, stderr: &str) -> (FailureKind, bool) {
        let line = format!("!\t1234:refs/heads/a/401\t{summary}");
        match read(code, &line, stderr) {
            Verdict::Refused(refusal) => (refusal.kind, false),
            Verdict::Ask { refusal, .. } => (refusal.kind, true),
            Verdict::Pushed(_) => panic!("{summary} was not pushed"),
        }
    }

    #[test]
    fn what_was_pushed_is_told_by_its_flag_and_the_exit_code() {
        for (flag, pushed) in [
            ("*", Pushed::Created),
            (" ", Pushed::FastForwarded),
            ("=", Pushed::AlreadyThere),
        ] {
            let line = format!("{flag}\t1234:refs/heads/a/401\t[x]");
            assert_eq!(read(0, &line, ""), Verdict::Pushed(pushed));
            let failed = read(1, &line, "");
            assert!(matches!(failed, Verdict::Ask { .. }), "{failed:?}");
            let other = format!("{flag}\t1234:refs/heads/x/refs/heads/a/401\t[x]");
            let unheard = read(0, &other, "");
            assert!(matches!(unheard, Verdict::Ask { .. }), "{unheard:?}");
        }
        let forced = read(0, "+\t1234:refs/heads/a/401\t1...2 (forced update)", "");
        assert!(
            matches!(forced, Verdict::Ask { .. }),
            "we never force: {forced:?}"
        );
    }

    #[test]
    fn each_reason_has_its_kind() {
        for (summary, expected) in [
            ("[rejected] (fetch first)", (RemoteDivergent, false)),
            ("[rejected] (non-fast-forward)", (RemoteDivergent, false)),
            ("[rejected] (stale info)", (RemoteDivergent, false)),
            (
                "[remote rejected] (non-fast-forward)",
                (RemoteDivergent, false),
            ),
            (
                "[remote rejected] (pre-receive hook declined)",
                (RemotePolicyRejected, false),
            ),
            (
                "[remote rejected] (hook declined)",
                (RemotePolicyRejected, false),
            ),
            ("[remote rejected] (failed to update ref)", (Unknown, true)),
            ("[remote rejected] (cannot lock ref 'x')", (Unknown, true)),
            (
                "[remote rejected] (fetch first, it says)",
                (RemotePolicyRejected, true),
            ),
            ("[remote rejected] (unpacker error)", (Unknown, false)),
            (
                "[remote failure] (remote failed to report status)",
                (Unknown, true),
            ),
        ] {
            let hook = "remote: 401 rejected (fetch first)\nremote: non-fast-forward\n";
            assert_eq!(kind(1, summary, hook), expected, "{summary}");
        }
        let unpacker = "[remote rejected] (unpacker error)";
        let limit = "error: remote unpack failed: index-pack abnormal exit\n";
        assert_eq!(kind(1, unpacker, limit), (RemotePolicyRejected, false));
        let missing = "fatal: bad object 1\nerror: remote unpack failed: eof\n";
        assert_eq!(kind(1, unpacker, missing), (LocalGit, false));
    }

    #[test]
    fn some_refs_that_were_not_pushed_are_no_divergence() {
        let some = "error: failed to push some refs to '/remote.git'\n";
        let verdict = read(1, "", some);
        let Verdict::Ask { refusal, open } = verdict else {
            panic!("{verdict:?}");
        };
        assert_eq!((refusal.kind, open), (Unknown, Open::Whether));
    }

    #[test]
    fn where_the_branch_is_decides_what_an_answer_leaves_open() {
        let branch = BranchName::parse("a/b").unwrap();
        let [one, two, three] = ["1", "2", "3"].map(|d| d.repeat(40).parse::<ObjectId>().unwrap());
        let ask = |kind, refs: &[(&str, ObjectId)], expected| {
            let lines: String = refs
                .iter()
                .map(|(name, id)| format!("{id}\t{name}\n"))
                .collect();
            let remote = Advertised::parse(lines.as_bytes()).unwrap();
            let refusal = Refusal {
                kind,
                said: String::new(),
            };
            settled(refusal, &remote, &branch, expected, three).map_err(|r| r.kind)
        };
        let there = "refs/heads/a/b";
        assert_eq!(
            ask(NetworkBlip, &[(there, three)], Some(one)),
            Ok(Pushed::AlreadyThere)
        );
        assert_eq!(
            ask(RemotePolicyRejected, &[(there, two)], Some(one)),
            Err(RemoteDivergent)
        );
        assert_eq!(
            ask(RemotePolicyRejected, &[(there, two)], None),
            Err(RemoteDivergent)
        );
        assert_eq!(
            ask(RemotePolicyRejected, &[("refs/heads/a", two)], None),
            Err(RefConflict)
        );
        assert_eq!(
            ask(NetworkBlip, &[("refs/heads/a/b/c", two)], None),
            Err(RefConflict)
        );
        assert_eq!(
            ask(RemotePolicyRejected, &[(there, one)], Some(one)),
            Err(RemotePolicyRejected)
        );
        assert_eq!(
            ask(RemotePolicyRejected, &[], None),
            Err(RemotePolicyRejected)
        );
        assert_eq!(ask(NetworkBlip, &[], None), Err(NetworkBlip));
    }
}
