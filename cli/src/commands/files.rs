//! `show --files`: the entries of a snapshot.

use serde::Serialize;
use stillframe::WorkspaceOptions;
use stillframe::backends::{ListedFile, RelPath};

use super::{Tools, snapshot};
use crate::failure::Failure;
use crate::output::Reply;

/// Lists what the snapshot of this name has.
pub(super) async fn list(
    tools: &Tools,
    name: &str,
    workspace: Option<WorkspaceOptions>,
) -> Result<Reply, Failure> {
    let snapshot = snapshot::by_name(tools, name, workspace.as_ref()).await?;
    let files = tools.engine.files(&snapshot).await?;
    let document: Vec<FileDocument<'_>> = files.iter().map(FileDocument::of).collect();
    Ok(Reply::new(tools.json, &document, || listing(&files)))
}

/// A file as a JSON document.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FileDocument<'a> {
    /// Where it is.
    path: &'a RelPath,
    /// `file`, `executable`, `symlink` or `directory`.
    kind: &'static str,
    /// Its permission bits; null for a link.
    mode: Option<u32>,
    /// Its size in bytes; null where it is not known, and for a directory.
    size: Option<u64>,
    /// The id of the content, in hexadecimal.
    content: Option<String>,
}

impl<'a> FileDocument<'a> {
    fn of(file: &'a ListedFile) -> Self {
        Self {
            path: &file.path,
            kind: file.kind(),
            mode: file.mode,
            size: file.size,
            content: file.content().map(|id| id.to_string()),
        }
    }
}

/// A line for each: permission bits, size, id of the content, path. Only of directories the path
/// ends with `/`.
fn listing(files: &[ListedFile]) -> String {
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let size = |file: &ListedFile| or_dash(file.size.map(|size| size.to_string()));
    let content = |file: &ListedFile| or_dash(file.content().map(|id| id.to_string()));
    let sizes = files.iter().map(|file| size(file).len()).max();
    let contents = files.iter().map(|file| content(file).len()).max();
    let (sizes, contents) = (sizes.unwrap_or(0), contents.unwrap_or(0));
    let mut text = String::new();
    for file in files {
        let mode = match file.mode {
            Some(mode) => format!("{mode:04o}"),
            None => "link".to_owned(),
        };
        let end = if file.entry.is_none() { "/" } else { "" };
        let (size, content) = (size(file), content(file));
        // No table, which would take blanks off the end of a path.
        text.push_str(&format!(
            "{mode}  {size:>sizes$}  {content:contents$}  {}{end}\n",
            file.path
        ));
    }
    text
}
