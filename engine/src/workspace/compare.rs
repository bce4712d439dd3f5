//! Comparing two snapshots of a workspace.

use std::fs::File;
use std::io::{self, BufWriter, Seek as _, Write};
use std::time::Instant;

use stillframe_backends::{Diff, DiffOptions, Operation, PathError, Snapshot, Workspace};

use crate::actors::Parts;
use crate::error::Error;
use crate::telemetry;
use crate::workspace::backends::backend_of;

/// Compares two snapshots, and writes the whole patch to `out`, if one is asked for.
pub(crate) fn compare(
    op: &Operation,
    parts: &Parts,
    workspace: &Workspace,
    from: &Snapshot,
    to: &Snapshot,
    options: &DiffOptions,
    out: &mut dyn Write,
) -> Result<Diff, Error> {
    if options.max_patch_bytes == 0 {
        return Err(Error::invalid_options("max_patch_bytes must not be zero"));
    }
    if from.backend != to.backend {
        return Err(stillframe_backends::DiffError::DifferentBackends.into());
    }
    let backend = backend_of(parts, from.backend)?;
    let span = telemetry::diff_span(workspace.id(), from, to);
    let began = Instant::now();
    let diff = span.in_scope(|| backend.diff(op, workspace, from, to, options, out))?;
    telemetry::compared(&span, &diff, began.elapsed());
    Ok(diff)
}

/// As [`compare`]. The whole patch, if one is asked for, is in a file without a name, which is at
/// its start.
pub(crate) fn with_patch(
    op: &Operation,
    parts: &Parts,
    workspace: &Workspace,
    from: &Snapshot,
    to: &Snapshot,
    options: &DiffOptions,
) -> Result<(Diff, Option<File>), Error> {
    let compare = |out: &mut dyn Write| compare(op, parts, workspace, from, to, options, out);
    if !options.capture_patch {
        return Ok((compare(&mut io::sink())?, None));
    }
    let (diff, patch) = spooled(parts, compare)?;
    let lacks_patch = !diff.has_patch && diff.files_changed > 0;
    Ok((diff, (!lacks_patch).then_some(patch)))
}

/// What `write` answers with, and what it wrote: in a file without a name, at its start.
pub(crate) fn spooled<T>(
    parts: &Parts,
    write: impl FnOnce(&mut dyn Write) -> Result<T, Error>,
) -> Result<(T, File), Error> {
    let elsewhere = std::env::temp_dir();
    let directory = match parts.state_dir.is_writable() {
        true => parts.state_dir.path(),
        false => &elsewhere,
    };
    let spool = tempfile::tempfile_in(directory)
        .map_err(PathError::at("make a temporary file in", directory))?;
    let mut writer = BufWriter::new(spool);
    let answer = write(&mut writer)?;
    let spooled = writer.flush().and_then(|()| {
        let mut file = writer
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        Ok(file)
    });
    let file = spooled.map_err(PathError::at("write a temporary file in", directory))?;
    Ok((answer, file))
}
