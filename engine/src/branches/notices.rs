//! What people are told of checkpoints. Pure.

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::branches::forge::Forge;
use crate::branches::retries;
use crate::failure::Failure;
use crate::id::{EngineId, RunId, SessionId};
use crate::records::follow_up::FollowUpRow;
use crate::records::notice::{
    IllegalNoticeEvent, NoticeEvent, NoticeKind, NoticeRow, NoticeStatus,
};
use crate::records::work_task::WorkTaskRow;

const MARKER_BEGINS: &str = "<!-- stillframe-action:";
const MARKER_ENDS: &str = " -->";

/// The digits of a token.
const TOKEN_CHARS: usize = 64;

/// The token of a notice: the same for the same kind, task and subject, which is a commit, or a run
/// with its repository where that is not its own.
fn token(kind: NoticeKind, task: &str, subject: &str) -> String {
    let about = format!("{}:{task}:{subject}", kind.as_str());
    format!("{:x}", Sha256::digest(about.as_bytes()))
}

/// What a notice has in its text, so that it is recognised where it was sent to.
pub(crate) fn marker(token: &str) -> String {
    format!("{MARKER_BEGINS}{token}{MARKER_ENDS}")
}

/// Whether a text has the marker of any notice.
pub(crate) fn has_marker(text: &str) -> bool {
    let mut after = text.split(MARKER_BEGINS).skip(1);
    after.any(|rest| {
        let (token, rest) = rest.split_at_checked(TOKEN_CHARS).unwrap_or_default();
        let is_digit = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        !token.is_empty() && token.bytes().all(is_digit) && rest.starts_with(MARKER_ENDS)
    })
}

/// Tells that the work of a blocked task is proven on its branch.
///
/// `default_branch`: that of the remote, if it is known. `told`: what was told before. A task that
/// asks once more on the same commit has another question, and so another token.
pub(crate) fn ready(
    task: &WorkTaskRow,
    run: (&SessionId, &RunId),
    follow_up: &FollowUpRow,
    (default_branch, told): (Option<&str>, &[NoticeRow]),
    at: Timestamp,
) -> NoticeRow {
    let commit = &follow_up.last_checkpoint;
    let kind = NoticeKind::CheckpointReady;
    let of_commit = told.iter().filter(|notice| {
        notice.kind == kind && notice.task_id == task.id && notice.commit.as_ref() == Some(commit)
    });
    let subject = match of_commit.count() {
        0 => commit.clone(),
        nth => format!("{commit}:{nth}"),
    };
    let mut lines = vec![
        "**Checkpoint ready**".to_owned(),
        String::new(),
        format!("- Blocked: {}", quoted(&follow_up.waiting_reason)),
        format!("- Branch: {}", quoted(&follow_up.branch)),
        format!("- Commit: {commit}"),
    ];
    if let Some(forge) = Forge::of(&task.remote) {
        lines.push(format!("- Tree: {}", forge.tree(commit)));
        let compared = default_branch.map(|branch| forge.compare(branch, commit));
        lines.extend(compared.map(|address| format!("- Compare: {address}")));
    }
    lines.extend(
        [
            "",
            "Next steps:",
            "",
            "1. Look at what there is so far.",
            "2. Answer here.",
            "3. The run goes on from this head.",
        ]
        .map(str::to_owned),
    );
    row(kind, task, run, (&subject, Some(commit)), lines, at)
}

/// Why work was not saved, and where it is instead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotSaved<'a> {
    /// Why the run stopped.
    pub(crate) reason: &'a str,
    pub(crate) error: &'a str,
    /// Where the work is kept, such as a ref of the store.
    pub(crate) kept: &'a str,
    /// The commit, if there is one.
    pub(crate) commit: Option<&'a str>,
    /// The repository, if it is not the run's own: tasks of several may have one name.
    pub(crate) further: Option<&'a str>,
}

/// Tells that the work of a run could not be saved on the branch of its task.
pub(crate) fn failed(
    task: &WorkTaskRow,
    run: (&SessionId, &RunId),
    not_saved: NotSaved<'_>,
    at: Timestamp,
) -> NoticeRow {
    let lines = vec![
        "**Checkpoint failed**".to_owned(),
        String::new(),
        format!("- Reason: {}", quoted(not_saved.reason)),
        format!("- Branch: {}", quoted(&task.branch)),
        format!("- Error: {}", quoted(not_saved.error)),
        format!("- Kept: {}", quoted(not_saved.kept)),
    ];
    let kind = NoticeKind::CheckpointFailed;
    let subject = match not_saved.further {
        Some(repository) => format!("{}:{repository}", run.1),
        None => run.1.to_string(),
    };
    row(kind, task, run, (&subject, not_saved.commit), lines, at)
}

fn row(
    kind: NoticeKind,
    task: &WorkTaskRow,
    (session_id, run_id): (&SessionId, &RunId),
    (subject, commit): (&str, Option<&str>),
    mut lines: Vec<String>,
    at: Timestamp,
) -> NoticeRow {
    let token = token(kind, &task.full_name(), subject);
    lines.extend([String::new(), marker(&token), String::new()]);
    NoticeRow {
        kind,
        task_id: task.id.clone(),
        commit: commit.map(str::to_owned),
        text: lines.join("\n"),
        token,
        status: NoticeStatus::Pending,
        attempts: 0,
        next_at: None,
        owner: None,
        error: None,
        created_at: at,
        updated_at: at,
        session_id: Some(session_id.clone()),
        run_id: Some(run_id.clone()),
    }
}

/// What somebody else has said, as code of Markdown: one line of at most 240 characters that people
/// see as it is. Nobody is mentioned by it, nothing is a link, and no text passes for a marker.
///
/// Code is closed by as many backticks as began it, and loses one blank at each end where it has
/// both (CommonMark 0.31, 6.1). A comment begins in code too for whoever searches the text alone,
/// so that a space without width stands in it.
fn quoted(text: &str) -> String {
    let text = Failure::of_work(text.trim()).line();
    let text = text.replace("<!--", "<\u{200b}!--");
    if text.is_empty() {
        return text;
    }
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let blank = match text.starts_with('`') || text.ends_with('`') {
        true => " ",
        false => "",
    };
    format!("{fence}{blank}{text}{blank}{fence}")
}

/// Whether somebody may begin to send a notice. `is_being_sent`: the engine that began to is still
/// at it. `due_by`: only if it is due by then; `None`: somebody asks for it, also after the last
/// try.
pub(crate) fn may_be_claimed(
    notice: &NoticeRow,
    is_being_sent: bool,
    due_by: Option<Timestamp>,
) -> bool {
    let is_due = match (notice.next_at, due_by) {
        (Some(next_at), Some(now)) => next_at <= now,
        (None, _) | (_, None) => true,
    };
    match notice.status {
        NoticeStatus::Pending => is_due,
        NoticeStatus::InProgress => !is_being_sent,
        // What its target never takes, it does not take now.
        NoticeStatus::Failed => due_by.is_none() && notice.attempts >= retries::MAX_ATTEMPTS,
        NoticeStatus::Succeeded => false,
    }
}

/// A notice that an engine sends. What a dead one has begun to send is the same try.
pub(crate) fn claimed(
    notice: &NoticeRow,
    engine: &EngineId,
    now: Timestamp,
) -> Result<NoticeRow, IllegalNoticeEvent> {
    Ok(NoticeRow {
        status: notice.status.next(NoticeEvent::Claimed)?,
        attempts: match notice.status {
            NoticeStatus::InProgress => notice.attempts,
            _ => notice.attempts.saturating_add(1),
        },
        next_at: None,
        owner: Some(engine.clone()),
        updated_at: now,
        ..notice.clone()
    })
}

/// A notice that its target shows.
pub(crate) fn sent(notice: &NoticeRow, now: Timestamp) -> Result<NoticeRow, IllegalNoticeEvent> {
    Ok(NoticeRow {
        status: notice.status.next(NoticeEvent::Sent)?,
        owner: None,
        error: None,
        updated_at: now,
        ..notice.clone()
    })
}

/// A notice of which it is not known whether it was sent, because its engine stops: as if it had
/// not been tried. What was given up before stays so.
pub(crate) fn unanswered(
    notice: &NoticeRow,
    now: Timestamp,
) -> Result<NoticeRow, IllegalNoticeEvent> {
    let attempts = notice.attempts.saturating_sub(1);
    let event = match attempts < retries::MAX_ATTEMPTS {
        true => NoticeEvent::Postponed,
        false => NoticeEvent::GivenUp,
    };
    Ok(NoticeRow {
        status: notice.status.next(event)?,
        attempts,
        owner: None,
        updated_at: now,
        ..notice.clone()
    })
}

/// A notice that was not sent, as it goes on: later, or never.
pub(crate) fn not_sent(
    notice: &NoticeRow,
    error: &str,
    may_pass: bool,
    now: Timestamp,
) -> Result<NoticeRow, IllegalNoticeEvent> {
    let next_at = match may_pass {
        true => retries::next_try(notice.attempts, now),
        false => None,
    };
    let event = match next_at {
        Some(_) => NoticeEvent::Postponed,
        None => NoticeEvent::GivenUp,
    };
    Ok(NoticeRow {
        status: notice.status.next(event)?,
        next_at,
        owner: None,
        error: Some(Failure::of_work(error.trim()).line()),
        updated_at: now,
        ..notice.clone()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::json;

    use super::*;
    use crate::records::follow_up::DEFAULT_WAITING_REASON;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn task(namespace: Option<&str>, remote: &str) -> WorkTaskRow {
        let namespace = namespace.map(str::to_owned);
        WorkTaskRow::new("42", namespace, remote, "stillframe/task/42", at(1))
    }

    fn waiting(commit: &str, reason: &str) -> FollowUpRow {
        FollowUpRow {
            task_id: "t".parse().unwrap(),
            flow: "implement".to_owned(),
            branch: "stillframe/task/42--diverged-r".to_owned(),
            context: json!({}),
            waiting_reason: reason.to_owned(),
            last_checkpoint: commit.to_owned(),
            updated_at: at(5),
        }
    }

    /// [`super::ready`], of one run.
    fn ready(
        task: &WorkTaskRow,
        waiting: &FollowUpRow,
        default_branch: Option<&str>,
        at: Timestamp,
    ) -> NoticeRow {
        let run = (&"s".parse().unwrap(), &"r".parse().unwrap());
        super::ready(task, run, waiting, (default_branch, &[]), at)
    }

    /// [`super::failed`], of this run.
    fn failed(task: &WorkTaskRow, id: &str, not_saved: NotSaved<'_>, at: Timestamp) -> NoticeRow {
        let run = (&"s".parse().unwrap(), &id.parse().unwrap());
        super::failed(task, run, not_saved, at)
    }

    const GITHUB: &str = "https://token@github.com/acme/web.git";

    #[test]
    fn a_token_is_the_sha_256_of_kind_task_and_subject() {
        // The digits are those of sha256sum.
        let ready = ready(
            &task(Some("p/q"), "r"),
            &waiting("c0ffee", "why"),
            None,
            at(5),
        );
        assert_eq!(
            ready.token,
            token(NoticeKind::CheckpointReady, "p/q/42", "c0ffee")
        );
        assert_eq!(ready.token.len(), 64);
        assert_eq!(
            token(NoticeKind::CheckpointReady, "42", "c0ffee"),
            "71c479ff55a28f5097b1c5578f4a52329df889fad237c5cf7a7b5314448c00e4"
        );
        assert_eq!(
            token(NoticeKind::CheckpointFailed, "42", "run_1"),
            "06f539220a3695cd1444a1f9acd2b2f1106662d14b055e605d0fc06666ecb8cc"
        );
    }

    #[test]
    fn the_same_commit_of_a_task_has_the_same_token_and_any_other_has_not() {
        let token = |task: &WorkTaskRow, commit: &str, reason: &str, second: i64| {
            ready(task, &waiting(commit, reason), None, at(second)).token
        };
        let (own, other) = (task(None, GITHUB), task(Some("p/q"), GITHUB));
        let first = token(&own, "c1", "why", 5);
        assert_eq!(token(&own, "c1", "another reason", 9), first);
        assert_ne!(token(&own, "c2", "why", 5), first);
        assert_ne!(token(&other, "c1", "why", 5), first);
        let token_of_run = |id: &str| super::token(NoticeKind::CheckpointFailed, "42", id);
        let run = |id: &str, further| {
            let not_saved = NotSaved {
                reason: "timeout",
                error: "e",
                kept: "k",
                commit: Some("c1"),
                further,
            };
            failed(&own, id, not_saved, at(5)).token
        };
        assert_eq!(run("r1", None), token_of_run("r1"));
        assert_ne!(run("r1", None), run("r2", None));
        assert_ne!(run("c1", None), first, "of another kind");
        let of_all = [None, Some("ws_a"), Some("ws_b")].map(|further| run("r1", further));
        assert_eq!(of_all.iter().collect::<HashSet<_>>().len(), 3);
        assert_eq!(of_all[1], run("r1", Some("ws_a")));
    }

    #[test]
    fn checkpoint_ready_says_where_the_work_is_and_what_is_next() {
        let waiting = waiting("c0ffee", DEFAULT_WAITING_REASON);
        let notice = ready(&task(None, GITHUB), &waiting, Some("main"), at(5));
        let expected = format!(
            "**Checkpoint ready**\n\n\
             - Blocked: `recoverable_blocked`\n\
             - Branch: `stillframe/task/42--diverged-r`\n\
             - Commit: c0ffee\n\
             - Tree: https://github.com/acme/web/tree/c0ffee\n\
             - Compare: https://github.com/acme/web/compare/main...c0ffee\n\n\
             Next steps:\n\n\
             1. Look at what there is so far.\n\
             2. Answer here.\n\
             3. The run goes on from this head.\n\n\
             <!-- stillframe-action:{} -->\n",
            notice.token
        );
        assert_eq!(notice.text, expected);
        assert_eq!(notice.commit.as_deref(), Some("c0ffee"));
        assert_eq!((notice.status, notice.attempts), (NoticeStatus::Pending, 0));
        let elsewhere = ready(&task(None, "/srv/web.git"), &waiting, Some("main"), at(5));
        assert!(!elsewhere.text.contains("https://"), "{}", elsewhere.text);
        let unknown = ready(&task(None, GITHUB), &waiting, None, at(5));
        assert!(unknown.text.contains("/tree/") && !unknown.text.contains("/compare/"));
    }

    #[test]
    fn checkpoint_failed_says_where_the_work_is_kept() {
        let not_saved = NotSaved {
            reason: "the run failed",
            error: "AuthDenied: the remote refused\nthe credentials",
            kept: "refs/checkpoints/42/3 of the store",
            commit: None,
            further: None,
        };
        let notice = failed(&task(None, GITHUB), "r", not_saved, at(5));
        let expected = format!(
            "**Checkpoint failed**\n\n\
             - Reason: `the run failed`\n\
             - Branch: `stillframe/task/42`\n\
             - Error: `AuthDenied: the remote refused the credentials`\n\
             - Kept: `refs/checkpoints/42/3 of the store`\n\n\
             <!-- stillframe-action:{} -->\n",
            notice.token
        );
        assert_eq!(notice.text, expected);
    }

    #[test]
    fn what_others_say_is_one_line_and_no_marker() {
        let other = marker(&"0".repeat(64));
        let reason = format!("see {other}\n{}", "long ".repeat(100));
        let notice = ready(&task(None, GITHUB), &waiting("c1", &reason), None, at(5));
        assert_eq!(
            notice.text.matches(MARKER_BEGINS).count(),
            1,
            "{}",
            notice.text
        );
        let blocked = notice.text.lines().nth(2).unwrap();
        assert!(blocked.chars().count() < 270, "{blocked}");
        assert!(notice.text.contains(&marker(&notice.token)));
        let without = notice.text.replace(&marker(&notice.token), "");
        assert!(!has_marker(&without), "{without}");
    }

    #[test]
    fn what_others_say_is_code_that_ends_where_it_ends() {
        for (said, shown) in [
            ("which port?", "`which port?`"),
            ("`make` fails", "`` `make` fails ``"),
            ("a ``b`` c", "```a ``b`` c```"),
            ("`", "`` ` ``"),
            (
                "ask @ada, see [x](http://a.b) #1",
                "`ask @ada, see [x](http://a.b) #1`",
            ),
            ("one\n\n**two**\r\n", "`one  **two**`"),
            ("<!-- x", "`<\u{200b}!-- x`"),
            ("<<!--!-- y -->", "`<<\u{200b}!--!-- y -->`"),
            (" \n", ""),
        ] {
            assert_eq!(quoted(said), shown, "{said:?}");
        }
    }

    #[test]
    fn a_marker_is_found_wherever_it_is_and_nothing_else_is_one() {
        let whole = marker(&"0a".repeat(32));
        assert!(has_marker(&whole));
        assert!(has_marker(&format!("> quoted\n> {whole}\n\nyes")));
        assert!(has_marker(&format!("{MARKER_BEGINS}{whole}")));
        for text in [
            String::new(),
            "<!-- stillframe-action: -->".to_owned(),
            marker(&"0A".repeat(32)),
            marker(&"0a".repeat(31)),
            marker(&"0a".repeat(33)),
            marker(&"é".repeat(32)),
            marker(&"é".repeat(40)),
            whole[..whole.len() - 1].to_owned(),
            "0a".repeat(32),
        ] {
            assert!(!has_marker(&text), "{text}");
        }
    }

    #[test]
    fn a_notice_is_tried_three_times_and_given_up_at_once_if_it_cannot_be_sent() {
        let notice = ready(&task(None, GITHUB), &waiting("c1", "why"), None, at(5));
        let after = |attempts: u32, may_pass: bool| {
            let claimed = NoticeRow {
                status: NoticeStatus::InProgress,
                attempts,
                ..notice.clone()
            };
            let row = not_sent(&claimed, "no\nroute", may_pass, at(100)).unwrap();
            assert_eq!(row.error.as_deref(), Some("no route"));
            assert_eq!(row.text, notice.text);
            (row.status, row.next_at.map(Timestamp::as_second))
        };
        assert_eq!(after(1, true), (NoticeStatus::Pending, Some(130)));
        assert_eq!(after(2, true), (NoticeStatus::Pending, Some(160)));
        assert_eq!(after(3, true), (NoticeStatus::Failed, None));
        assert_eq!(after(1, false), (NoticeStatus::Failed, None));
        assert!(
            not_sent(&notice, "e", true, at(100)).is_err(),
            "nobody sends it"
        );
    }

    #[test]
    fn a_second_question_on_one_commit_is_told_too() {
        let run = (&"s".parse().unwrap(), &"r".parse().unwrap());
        let (task, waiting) = (task(None, GITHUB), waiting("c1", "why"));
        let ask = |task: &WorkTaskRow, told: &[NoticeRow]| {
            super::ready(task, run, &waiting, (None, told), at(5))
        };
        let first = ask(&task, &[]);
        let second = ask(&task, std::slice::from_ref(&first));
        let third = ask(&task, &[first.clone(), second.clone()]);
        assert_ne!(second.token, first.token);
        assert!(![&first.token, &second.token].contains(&&third.token));
        assert!(second.text.contains(&marker(&second.token)));
        assert_eq!(second.commit, first.commit);
    }

    #[test]
    fn a_notice_is_sent_by_one_at_a_time_and_when_it_is_due_or_asked_for() {
        let notice = ready(&task(None, GITHUB), &waiting("c1", "why"), None, at(5));
        let (first, second) = (EngineId::random(), EngineId::random());
        assert!(may_be_claimed(&notice, false, Some(at(5))));
        let begun = claimed(&notice, &first, at(6)).unwrap();
        assert_eq!(begun.owner.as_ref(), Some(&first));
        assert!(!may_be_claimed(&begun, true, None));
        assert!(may_be_claimed(&begun, false, Some(at(6))), "it has died");
        let later = not_sent(&begun, "no route", true, at(7)).unwrap();
        assert!(!may_be_claimed(&later, false, Some(at(36))));
        assert!(may_be_claimed(&later, false, Some(at(37))));
        assert!(may_be_claimed(&later, false, None), "somebody asks for it");
        let again = claimed(&later, &second, at(40)).unwrap();
        assert_eq!((again.attempts, again.next_at), (2, None));
        let done = sent(&again, at(41)).unwrap();
        assert_eq!((done.error.as_ref(), done.owner.as_ref()), (None, None));
        assert_eq!(done.attempts, 2);
        assert!(!may_be_claimed(&done, false, None));
        assert!(claimed(&done, &first, at(42)).is_err());
        assert!(sent(&later, at(42)).is_err(), "nobody sends it");
        let refused = not_sent(&again, "no", false, at(41)).unwrap();
        assert!(!may_be_claimed(&refused, false, None));
    }

    #[test]
    fn the_try_of_a_dead_engine_counts_once_and_what_was_given_up_is_tried_for_who_asks() {
        let notice = ready(&task(None, GITHUB), &waiting("c1", "why"), None, at(5));
        let engine = EngineId::random();
        let mut row = claimed(&notice, &engine, at(6)).unwrap();
        for _ in 0..5 {
            row = claimed(&row, &EngineId::random(), at(7)).unwrap();
            assert_eq!(row.attempts, 1);
        }
        let mut waits = not_sent(&row, "no route", true, at(8)).unwrap();
        assert_eq!(waits.status, NoticeStatus::Pending);
        for tries in [2, 3] {
            let again = claimed(&waits, &engine, at(100)).unwrap();
            assert_eq!(again.attempts, tries);
            waits = not_sent(&again, "no route", true, at(100)).unwrap();
        }
        assert_eq!(waits.status, NoticeStatus::Failed);
        assert!(!may_be_claimed(&waits, false, Some(at(9_000))));
        assert!(may_be_claimed(&waits, false, None), "somebody asks for it");
        let asked = claimed(&waits, &engine, at(9_001)).unwrap();
        let failed = not_sent(&asked, "no route", true, at(9_002)).unwrap();
        assert_eq!((failed.status, failed.attempts), (NoticeStatus::Failed, 4));
        let stopped = unanswered(&asked, at(9_002)).unwrap();
        assert_eq!(
            (stopped.status, stopped.attempts),
            (NoticeStatus::Failed, 3),
            "nobody else asks for it"
        );
        assert_eq!(
            sent(&asked, at(9_002)).unwrap().status,
            NoticeStatus::Succeeded
        );
    }
}
