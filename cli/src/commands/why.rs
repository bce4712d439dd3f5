//! `why`: whether a path is captured, and for which reason.

use stillframe::WorkspaceOptions;
use stillframe::backends::{RelPath, Why};

use super::Tools;
use crate::failure::Failure;
use crate::output::{self, Reply};

/// Asks about `path`, now or in a snapshot.
pub(super) async fn why(
    tools: &Tools,
    workspace: WorkspaceOptions,
    path: RelPath,
    snapshot: Option<&str>,
) -> Result<Reply, Failure> {
    let why = tools.engine.why(&workspace, path, snapshot).await?;
    Ok(Reply::new(tools.json, &why, || sentence(&why)))
}

fn sentence(why: &Why) -> String {
    let verdict = if why.captured {
        "captured"
    } else {
        "not captured"
    };
    let rule = why
        .rule
        .as_deref()
        .map(|rule| format!(", by {}", output::printable(rule)))
        .unwrap_or_default();
    let mut text = format!(
        "{}: {verdict} ({}{rule})\n",
        why.path,
        output::printable(&why.reason)
    );
    if !why.hard_links.is_empty() {
        let others = output::some_of(&why.hard_links);
        text.push_str(&format!(
            "it is one file with {others}, and comes back as one of its own\n"
        ));
    }
    if !why.attributes.is_empty() {
        let names = output::printable(&why.attributes.join(", "));
        text.push_str(&format!(
            "no snapshot has its extended attributes ({names}); a restore keeps them where it replaces the file\n"
        ));
    }
    text
}
