//! What a snapshot has at one path.

use std::io::Write;
use std::slice;

use super::plan::{Node, View};
use super::{Restorable, Side};
use crate::contents::ContentError;
use crate::coverage::{Omission, OmissionReason};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::purge::Purged;
use crate::read_error::ReadError;
use crate::record::Record;
use crate::snapshot::Snapshot;
use crate::tree::Entry;
use crate::workspace::Workspace;

/// Writes the content that `snapshot` has at `path` to `out`, as
/// [`Backend::read_file`](crate::Backend::read_file) says.
pub(crate) fn read_file<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &Workspace,
    snapshot: &Snapshot,
    path: &RelPath,
    out: &mut dyn Write,
) -> Result<Entry, ReadError> {
    let record = backend.record(op, workspace, &snapshot.id)?;
    let entry = entry_at(op, backend, workspace, &record, path)?;
    let (snapshot, path) = (snapshot.id.clone(), path.clone());
    if Purged::of(workspace)?.contains(&entry.id) {
        let omission = Omission {
            path: path.clone(),
            reason: OmissionReason::Purged,
            bytes: None,
            kind: None,
        };
        return Err(ReadError::OmittedPath {
            snapshot,
            path,
            omission,
        });
    }
    if !record.has_content {
        return Err(ReadError::NoContent { snapshot });
    }
    let contents = backend.contents(op, workspace, &[entry.id])?;
    contents
        .write(&entry.id, out)
        .map_err(|error| match error {
            ContentError::Store(error) => ReadError::Store(error),
            ContentError::Sink(error) => ReadError::Sink(error),
        })?;
    Ok(entry)
}

/// The file or link at `path`.
fn entry_at<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &Workspace,
    record: &Record,
    path: &RelPath,
) -> Result<Entry, ReadError> {
    let side = Side::Stored(record);
    let found = match path.is_root() {
        true => Some(Node::Directory),
        false => backend
            .lookup(op, workspace, side, slice::from_ref(path))?
            .pop()
            .flatten(),
    };
    let is_empty_directory = || View::of(record).has_empty_at_or_below(path);
    let (snapshot, path) = (record.snapshot.id.clone(), path.clone());
    match found {
        Some(Node::Entry(entry)) => Ok(entry),
        Some(Node::Directory) => Err(ReadError::Directory { snapshot, path }),
        None if is_empty_directory() => Err(ReadError::Directory { snapshot, path }),
        None => Err(match record.snapshot.omissions.covers(&path).cloned() {
            None => ReadError::UnknownPath { snapshot, path },
            Some(omission) => ReadError::OmittedPath {
                snapshot,
                path,
                omission,
            },
        }),
    }
}
