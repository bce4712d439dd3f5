//! `show SNAPSHOT:PATH`: one file of a snapshot.

use std::io::Read as _;

use serde::Serialize;
use stillframe::backends::{EntryKind, PatchText, RelPath};
use stillframe::records::StoredFile;
use stillframe::{ErrorKind, SnapshotId, WorkspaceOptions};

use super::{Tools, runs, snapshot};
use crate::failure::Failure;
use crate::output::{Answer, Reply};

/// Writes what the snapshot of this name has at `path`.
pub(super) async fn show(
    tools: &Tools,
    name: &str,
    workspace: Option<WorkspaceOptions>,
    path: &RelPath,
) -> Result<Reply, Failure> {
    let snapshot = snapshot::by_name(tools, name, workspace.as_ref()).await?;
    let file = tools.engine.read_file(&snapshot, path).await;
    let file = file.map_err(|error| match error.kind() {
        ErrorKind::InvalidOptions => Failure::from(error).adding(&format!(
            "\"stillframe show {} --files\" lists what the snapshot has",
            snapshot.id
        )),
        _ => error.into(),
    })?;
    if !tools.json {
        return runs::paged(tools, Reply::of(Answer::File(file.content)));
    }
    let document = Document::of(&snapshot.id, path, file)?;
    Ok(Reply::new(true, &document, String::new))
}

/// A file as a JSON document.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Document<'a> {
    /// The snapshot that has it.
    snapshot: &'a SnapshotId,
    /// Where.
    path: &'a RelPath,
    /// As git writes it.
    mode: String,
    /// Its size.
    bytes: u64,
    /// The bytes of the file, or the text of the link.
    content: PatchText,
}

impl<'a> Document<'a> {
    fn of(
        snapshot: &'a SnapshotId,
        path: &'a RelPath,
        mut file: StoredFile,
    ) -> Result<Self, Failure> {
        let mut content = Vec::new();
        file.content.read_to_end(&mut content).map_err(|e| {
            let kind = ErrorKind::of_storage(&e);
            Failure::new(kind, format!("{path} of {snapshot} cannot be read: {e}"))
        })?;
        let kind: EntryKind = file.kind;
        Ok(Self {
            snapshot,
            path,
            mode: format!("{:06o}", kind.git_mode()),
            bytes: file.bytes,
            content: PatchText(content),
        })
    }
}
