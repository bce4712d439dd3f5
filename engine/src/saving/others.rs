//! A workspace whose HEAD is on the branch of another task: what is there is that one's work.

use stillframe_backends::shell_word;

use crate::actors::Parts;
use crate::error::Error;
use crate::records::work_task::WorkTaskRow;

/// Why what is in a workspace where HEAD names `head`, the short name of a branch, is no work of
/// `task`, as a clause; `None`: no other task is known to have that branch.
pub(super) fn whose(
    parts: &Parts,
    head: Option<&str>,
    task: &WorkTaskRow,
) -> Result<Option<String>, Error> {
    let Some(head) = head.filter(|head| *head != task.branch) else {
        return Ok(None);
    };
    let known = parts.reader.read_blocking(|store| store.work_tasks())?;
    let other = known.iter().find(|row| row.branch == head);
    let other = other.filter(|row| row.full_name() != task.full_name());
    Ok(other.map(|row| {
        let namespace = row.namespace.as_ref();
        let namespace = namespace.map(|n| format!(" --namespace {}", shell_word(n.as_bytes())));
        format!(
            "HEAD is on {head}, the branch of task {}: bring that to its work (stillframe task resume {}{}), then go to \
             another branch",
            row.full_name(),
            shell_word(row.task.as_bytes()),
            namespace.unwrap_or_default()
        )
    }))
}
