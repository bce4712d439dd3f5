//! `artifact`: large patches and other artifacts.

use std::io::Read as _;

use serde::Serialize;
use stillframe::ErrorKind;
use stillframe::backends::PatchText;
use stillframe::records::ArtifactRecord;

use super::{Tools, runs};
use crate::failure::Failure;
use crate::output::{self, Answer, Reply};

/// Lists the artifacts, of a run or all.
pub(super) async fn list(tools: &Tools, run: Option<&str>) -> Result<Reply, Failure> {
    let artifacts = match run {
        None => tools.engine.artifacts(None).await?,
        Some(id) => {
            let run = runs::by_id(tools, id).await?;
            let mut of_session = tools.engine.artifacts(Some(&run.session_id)).await?;
            of_session.retain(|artifact| artifact.run_id.as_ref() == Some(&run.id));
            of_session
        }
    };
    let reply = Reply::new(tools.json, &artifacts, || listing(&artifacts));
    Ok(match artifacts.is_empty() {
        true => reply.note("there are no artifacts"),
        false => reply,
    })
}

/// An artifact in a document.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Content<'a> {
    /// Its key.
    key: &'a str,
    /// Its size.
    bytes: usize,
    /// What it has.
    content: PatchText,
}

/// Writes the bytes of an artifact.
pub(super) async fn get(tools: &Tools, key: &str) -> Result<Reply, Failure> {
    let mut reader = tools.engine.open_artifact(key).await?;
    if !tools.json {
        return Ok(Reply {
            answer: Answer::Bytes(reader),
            ..Reply::default()
        });
    }
    let mut content = Vec::new();
    reader.read_to_end(&mut content).map_err(|e| {
        let kind = ErrorKind::of_storage(&e);
        Failure::new(kind, format!("the artifact {key:?} cannot be read: {e}"))
    })?;
    let document = Content {
        key,
        bytes: content.len(),
        content: PatchText(content),
    };
    Ok(Reply::new(true, &document, String::new))
}

/// What `artifact rm` prints.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Removed<'a> {
    /// The key of the artifact.
    removed: &'a str,
}

/// Removes an artifact.
pub(super) async fn remove(tools: &Tools, key: &str) -> Result<Reply, Failure> {
    tools.engine.remove_artifact(key).await?;
    Ok(Reply::new(tools.json, &Removed { removed: key }, || {
        format!("removed {}\n", output::printable(key))
    }))
}

fn listing(artifacts: &[ArtifactRecord]) -> String {
    let rows: Vec<Vec<String>> = artifacts
        .iter()
        .map(|artifact| {
            vec![
                output::printable(&artifact.key),
                format!("{:.0}", artifact.created_at),
                output::size(artifact.byte_size),
                output::printable(&artifact.content_type),
            ]
        })
        .collect();
    output::table(&rows)
}
