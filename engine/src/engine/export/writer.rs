//! The files of an export.

use std::io::{self, BufWriter, Read, Write as _};
use std::path::PathBuf;

use stillframe_backends::{ErrorKind, Operation, PathError, Place, Scratch};
use stillframe_disk::blob::{self, Stopped};
use stillframe_disk::durable::{self, STAGED_PREFIX, StagedFile};

use crate::error::Error;
use crate::failure::Failure;
use crate::records::artifact::ArtifactRecord;
use crate::records::export::{ExportLine, ExportOutcome, ExportedArtifact};
use crate::workspace::cancellation::refusal;

/// The file with the records.
const RECORDS: &str = "records.jsonl";
/// The directory with the content of artifacts.
const ARTIFACTS: &str = "artifacts";

/// An export that has no name yet. Every method blocks; dropping it removes what was written.
#[must_use = "dropping it removes what was written"]
pub(super) struct ExportWriter {
    op: Operation,
    /// Before what it lies in, which is removed last.
    records: BufWriter<StagedFile>,
    scratch: Scratch,
    place: Place,
    outcome: ExportOutcome,
}

impl ExportWriter {
    /// Makes the private directory beside `place` that everything is written into.
    pub(super) fn begin(op: &Operation, place: Place) -> Result<Self, Error> {
        let scratch = place.scratch(op)?;
        let tree = scratch.tree();
        let records = durable::make_private(op, &tree.join(ARTIFACTS))
            .and_then(|()| StagedFile::create(op, &tree, STAGED_PREFIX))
            .map_err(|e| place.told(e, &scratch))?;
        Ok(Self {
            op: op.clone(),
            records: BufWriter::new(records),
            scratch,
            outcome: ExportOutcome {
                to: place.path(),
                runs: 0,
                events: 0,
                oldest_sequence: None,
                artifacts: 0,
                bytes: 0,
                unreadable: Vec::new(),
            },
            place,
        })
    }

    /// Adds a line.
    pub(super) fn line(&mut self, line: &ExportLine) -> Result<(), Error> {
        if let Some(stopped) = refusal(&self.op, "exporting") {
            return Err(stopped);
        }
        let mut text = serde_json::to_vec(line).expect("a record is plain data");
        text.push(b'\n');
        let path = self.outcome.to.join(RECORDS);
        self.records
            .write_all(&text)
            .map_err(PathError::at("write", path))?;
        self.outcome.bytes += text.len() as u64;
        match line {
            ExportLine::Run(_) => self.outcome.runs += 1,
            ExportLine::Event(_) => self.outcome.events += 1,
            ExportLine::Session(_) | ExportLine::Review(_) | ExportLine::Artifact(_) => {}
        }
        Ok(())
    }

    /// Adds the content of an artifact, if it can be read, and the line of the artifact.
    pub(super) fn artifact(
        &mut self,
        artifact: ArtifactRecord,
        content: Result<Box<dyn Read + Send>, Error>,
    ) -> Result<(), Error> {
        let copied = match content {
            Ok(mut content) => self.copy(&artifact, &mut *content)?,
            Err(e) => Err(e),
        };
        let (file, error) = match copied {
            Ok(file) => (Some(file), None),
            Err(e) => {
                self.outcome.unreadable.push(artifact.key.clone());
                (None, Some(Failure::from(&e)))
            }
        };
        self.line(&ExportLine::Artifact(ExportedArtifact {
            artifact,
            file,
            error,
        }))
    }

    /// Copies content into a file, and answers with its name. The inner error: it is not that of
    /// the artifact, and there is no file.
    fn copy(
        &mut self,
        artifact: &ArtifactRecord,
        content: &mut dyn Read,
    ) -> Result<Result<String, Error>, Error> {
        let number = self.outcome.artifacts + 1;
        // A key is the host's, and never becomes a path.
        let file = format!("{ARTIFACTS}/{number}");
        let directory = self.scratch.tree().join(ARTIFACTS);
        let staged = StagedFile::create(&self.op, &directory, STAGED_PREFIX);
        let mut staged = staged.map_err(|e| self.told(e))?;
        let path = self.outcome.to.join(&file);
        let (bytes, digest) = match blob::read(content, |piece| staged.write_all(piece)) {
            Ok(read) => read,
            Err(Stopped::Take(e)) => {
                return Err(PathError::at::<io::Error>("write", path)(e).into());
            }
            Err(Stopped::Read(e)) => {
                let message = format!("artifact {:?} cannot be read: {e}", artifact.key);
                return Ok(Err(Error::new(ErrorKind::of_storage(&e), message)));
            }
        };
        if (bytes, blob::name_of(&digest)) != (artifact.byte_size, artifact.checksum.clone()) {
            let message = format!(
                "artifact {:?} has other content than was kept",
                artifact.key
            );
            return Ok(Err(Error::new(ErrorKind::Corrupt, message)));
        }
        let named = staged.sync().and_then(|()| staged.rename(&self.at(&file)));
        named.map_err(|e| self.told(e))?;
        self.outcome.artifacts = number;
        self.outcome.bytes += bytes;
        Ok(Ok(file))
    }

    /// Makes all of it durable, and gives it its name last. `oldest_sequence`: see
    /// [`ExportOutcome::oldest_sequence`].
    pub(super) fn finish(self, oldest_sequence: Option<u64>) -> Result<ExportOutcome, Error> {
        let Self {
            op,
            records,
            scratch,
            place,
            mut outcome,
        } = self;
        outcome.oldest_sequence = oldest_sequence;
        let tree = scratch.tree();
        let records = records
            .into_inner()
            .map_err(|e| PathError::at("write", outcome.to.join(RECORDS))(e.into_error()))?;
        records
            .sync()
            .and_then(|()| records.rename(&tree.join(RECORDS)))
            .and_then(|()| durable::sync_directory(&op, &tree.join(ARTIFACTS)))
            .and_then(|()| durable::sync_directory(&op, &tree))
            .and_then(|()| place.take(&op, &scratch))
            .map_err(|e| place.told(e, &scratch))?;
        Ok(outcome)
    }

    fn at(&self, file: &str) -> PathBuf {
        self.scratch.tree().join(file)
    }

    fn told(&self, error: PathError) -> PathError {
        self.place.told(error, &self.scratch)
    }
}
