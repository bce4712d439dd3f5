//! `notices`: what people outside are told of tasks, and whether they were.

use stillframe::records::{NoticeRecord, NoticeStatus};

use super::Tools;
use crate::failure::Failure;
use crate::output::{self, Reply, count, printable};
use crate::request::NoticesRequest;

/// Lists notices, and sends them first if that is asked for.
pub(super) async fn answer(tools: &Tools, request: NoticesRequest) -> Result<Reply, Failure> {
    let mut notices = match request {
        NoticesRequest::List { .. } => tools.engine.notices().await?,
        NoticesRequest::Send { since } => {
            tools.engine.send_notices().await?;
            let mut all = tools.engine.notices().await?;
            // Those too that this engine has sent since it was started, or another one.
            all.retain(|one| one.status.is_to_send() || one.updated_at >= since);
            all
        }
    };
    if let NoticesRequest::List { pending: true } = request {
        notices.retain(|one| one.status.is_to_send());
    }
    let reply = Reply::new(tools.json, &notices, || lines(&notices));
    if let NoticesRequest::List { .. } = request {
        return Ok(match notices.is_empty() {
            true => reply.note("there are no such notices"),
            false => reply,
        });
    }
    let not_sent = notices
        .iter()
        .filter(|one| one.status != NoticeStatus::Succeeded);
    Ok(match (notices.len(), not_sent.count()) {
        (0, _) => reply.note("there is nothing to send"),
        (_, 0) => reply,
        (_, left) => {
            let left = count(left as u64, "notice");
            reply.failed(format!("{left} not sent")).exit_code(1)
        }
    })
}

/// A line for each.
pub(super) fn lines(notices: &[NoticeRecord]) -> String {
    let row = |one: &NoticeRecord| {
        let task = match &one.namespace {
            Some(namespace) => format!("{namespace}/{}", one.task),
            None => one.task.clone(),
        };
        let tries = match one.attempts {
            1 => "1 try".to_owned(),
            tries => format!("{tries} tries"),
        };
        vec![
            format!("{:.0}", one.created_at),
            one.kind.to_string(),
            printable(&task),
            one.status.to_string(),
            tries,
            one.error.as_deref().map(printable).unwrap_or_default(),
        ]
    };
    let rows: Vec<Vec<String>> = notices.iter().map(row).collect();
    output::table(&rows)
}
