//! What an export writes: the lines of its records, and what it answers with.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::Value;
use stillframe_model::path::serialize_lossless;

use crate::events::event::Event;
use crate::failure::Failure;
use crate::records::artifact::ArtifactRecord;
use crate::records::review::ReviewRecord;
use crate::records::run_record::RunExport;
use crate::records::session::SessionRecord;

/// The key of a run's document that its line leaves out.
const EVENTS: &str = "events";

/// A line of `records.jsonl` in an [export](crate::Engine::export): `record` says which one it is.
///
/// They come in the order of these variants.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "record", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ExportLine {
    /// The session; of an export of a run there is none.
    Session(SessionRecord),
    /// A review of the session that belongs to none of its runs.
    Review(ReviewRecord),
    /// A run, oldest first.
    Run(ExportedRun),
    /// An event, in the order in which they were written.
    Event(Event),
    /// An artifact, oldest first.
    Artifact(ExportedArtifact),
}

/// Everything that is kept of a run but its events, which have lines of their own.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ExportedRun(pub Box<RunExport>);

/// An artifact, and the file with its content.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ExportedArtifact {
    /// Its record, with its key, size and checksum.
    #[serde(flatten)]
    pub artifact: ArtifactRecord,
    /// The file, relative to the directory of the export, such as `artifacts/1`. In JSON only if
    /// there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Why there is none: its content could not be read, or is not what was recorded. In JSON only
    /// if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// What an export has written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ExportOutcome {
    /// The directory: absolute, without links.
    #[serde(serialize_with = "lossless")]
    #[cfg_attr(
        feature = "schema",
        schemars(with = "stillframe_model::schema::LosslessText")
    )]
    pub to: PathBuf,
    /// How many runs it has.
    pub runs: u64,
    /// How many events it has.
    pub events: u64,
    /// Where earlier events of the run or the session were removed from the log and are
    /// not in it: the number in the session from which on none was. In JSON only if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_sequence: Option<u64>,
    /// How many artifacts it has a file of.
    pub artifacts: u64,
    /// The size of all its files.
    pub bytes: u64,
    /// The keys of the artifacts that it has no file of, since their content could not be read.
    /// Their lines say why.
    pub unreadable: Vec<String>,
}

impl Serialize for ExportedRun {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // What a run has is listed in one place, so that nothing is left out here.
        let mut document = serde_json::to_value(&self.0).map_err(S::Error::custom)?;
        if let Value::Object(keys) = &mut document {
            keys.remove(EVENTS);
        }
        document.serialize(to)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for ExportedRun {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ExportedRun".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let mut schema = <RunExport as schemars::JsonSchema>::json_schema(generator);
        if let Some(Value::Object(keys)) = schema.get_mut("properties") {
            keys.remove(EVENTS);
        }
        if let Some(Value::Array(required)) = schema.get_mut("required") {
            required.retain(|key| key != EVENTS);
        }
        schema
    }
}

pub(crate) fn lossless<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    serialize_lossless(path.as_os_str().as_bytes(), to)
}
