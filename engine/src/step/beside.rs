//! Content that is too large for the log, and is kept beside it as an artifact.

use std::io::Cursor;

use serde_json::Value;
use stillframe_artifact_store::ArtifactKey;

use crate::actors::core::Core;
use crate::error::Error;
use crate::id::{RunId, SessionId};
use crate::records::tool_call::{Bytes, Content};
use crate::state::change::Change;
use crate::step::artifact;

/// Content that is too large for the log.
pub(crate) struct Beside {
    pub(crate) key: ArtifactKey,
    pub(crate) content: Vec<u8>,
    pub(crate) content_type: &'static str,
    pub(crate) run_id: Option<RunId>,
}

/// Puts content into the artifact store where it is not yet; answers with the rows to be written.
pub(crate) async fn keep(
    core: &Core,
    session_id: &SessionId,
    large: Vec<Beside>,
) -> Result<Vec<Change>, Error> {
    let mut rows = Vec::new();
    for one in large {
        let asked = one.key.to_string();
        let known = core.parts.reader.read(move |store| store.artifact(&asked));
        if known.await?.is_some() {
            continue;
        }
        let meta = core
            .put(one.key, Box::new(Cursor::new(one.content)))
            .await?;
        let whose = (session_id, one.run_id.as_ref());
        let record = artifact::record(&core.parts, whose, meta, one.content_type);
        rows.push(Change::RegisterArtifact(Box::new(record)));
    }
    Ok(rows)
}

/// What the log has of what was given to a tool of a run, or came of it; what is large goes to
/// `large`. `None`: nobody said it.
pub(crate) fn content(run_id: &RunId, value: Value, large: &mut Vec<Beside>) -> Option<Content> {
    if value.is_null() {
        return None;
    }
    let bytes = Bytes::of(&value);
    if !bytes.is_beside(&value) {
        return Some(Content::inline(value, &bytes));
    }
    let key = artifact::call_key(run_id, &bytes.bytes);
    let content = Content::beside(key.to_string(), &bytes);
    large.push(Beside {
        key,
        content: bytes.bytes,
        content_type: bytes.content_type,
        run_id: Some(run_id.clone()),
    });
    Some(content)
}
