//! Copying content to an output, and the errors if that fails.

use std::io::{self, Read, Write};

use stillframe::ErrorKind;

use crate::failure::Failure;

/// Why not all of an answer was written.
#[derive(Debug)]
pub(crate) enum Copying {
    /// It could not be read.
    Read(io::Error),
    /// It could not be written.
    Write(io::Error),
}

/// Everything that `bytes` has.
pub(crate) fn copy_to(bytes: &mut dyn Read, out: &mut dyn Write) -> Result<(), Copying> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let filled = match bytes.read(&mut buffer) {
            Ok(0) => return out.flush().map_err(Copying::Write),
            Ok(filled) => filled,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(Copying::Read(e)),
        };
        out.write_all(&buffer[..filled]).map_err(Copying::Write)?;
    }
}

/// What is to be said of it. A reader that left has what it wants: `head` ends many a pipeline.
pub(crate) fn told(copied: Result<(), Copying>) -> Result<(), Failure> {
    match copied {
        Ok(()) => Ok(()),
        Err(Copying::Read(e)) => Err(Failure::new(
            ErrorKind::of_storage(&e),
            format!("what was to be printed cannot be read: {e}"),
        )),
        Err(Copying::Write(e)) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(Copying::Write(e)) => Err(stdout_failed(&e)),
    }
}

pub(crate) fn stdout_failed(error: &io::Error) -> Failure {
    Failure::new(
        ErrorKind::Storage,
        format!("the command did its work, but stdout cannot be written: {error}"),
    )
}
