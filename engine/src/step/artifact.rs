//! Storing an artifact: the content in the artifact store, the record in the log.

use std::io::{self, Read};

use serde_json::json;
use stillframe_artifact_store::{ArtifactKey, ArtifactMeta};

use crate::actors::Parts;
use crate::actors::core::Core;
use crate::error::Error;
use crate::id::{ArtifactId, EventId, RunId, SessionId};
use crate::records::artifact::{ArtifactDraft, ArtifactRecord};
use crate::state::change::Change;
use crate::state::hold::Hold;
use crate::state::reader::StateReader;
use crate::state::registering::Registering;

/// Keeps content under the key of a draft, and registers it; for the run that is held, if one is.
pub(crate) async fn put(
    core: &Core,
    session_id: &SessionId,
    hold: Option<&Hold>,
    draft: ArtifactDraft,
    content: Box<dyn Read + Send>,
) -> Result<ArtifactRecord, Error> {
    let key = ArtifactKey::new(draft.key)?;
    if is_own_key(key.as_str()) || is_data_key(key.as_str()) {
        return Err(Error::invalid_options(format!(
            "the key {:?} is one of those that the engine makes up; nothing was stored",
            key.as_str()
        )));
    }
    let parts = &core.parts;
    let held = registering(core, session_id).await?;
    let meta = match hold {
        Some(hold) => put_for(core, hold, key, content).await?,
        None => core.put(key, content).await?,
    };
    let whose = (session_id, hold.map(|hold| &hold.run_id));
    let record = ArtifactRecord {
        metadata: draft.metadata.into(),
        ..record(parts, whose, meta, &draft.content_type)
    };
    let mut changes: Vec<Change> = hold.map(Hold::fence).into_iter().collect();
    changes.push(Change::RegisterArtifact(Box::new(record.clone())));
    parts.writer.commit_and_release(changes, Some(held)).await?;
    Ok(record)
}

/// Keeps content for the run that is held. The content that is there under the key is another's to
/// keep, if the run is: it is not replaced then.
async fn put_for(
    core: &Core,
    hold: &Hold,
    key: ArtifactKey,
    content: Box<dyn Read + Send>,
) -> Result<ArtifactMeta, Error> {
    let reader = core.parts.reader.clone();
    let content = Held {
        content,
        hold: hold.clone(),
        reader: reader.clone(),
    };
    let put = core.put(key, Box::new(content)).await;
    if put.is_err() {
        // Why the content was refused, if that is why.
        let hold = hold.clone();
        reader.read(move |store| store.check_holds(&hold)).await?;
    }
    put
}

/// Content for a run. Its end, after which it takes the place of what is there, is read only while
/// the run is held: reading it may have taken hours.
struct Held {
    content: Box<dyn Read + Send>,
    hold: Hold,
    reader: StateReader,
}

impl Read for Held {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer)?;
        if read == 0 && !buffer.is_empty() {
            let held = self
                .reader
                .read_blocking(|store| store.check_holds(&self.hold));
            held.map_err(io::Error::other)?;
        }
        Ok(read)
    }
}

/// Protects what is about to be put from clean-ups. Fails if the session takes nothing, because
/// what is put replaces content under its key before the row is refused.
pub(crate) async fn registering(core: &Core, session_id: &SessionId) -> Result<Registering, Error> {
    let state_dir = core.parts.state_dir.clone();
    let begin = move || Registering::begin(state_dir.path());
    let held = core.parts.blocking.run(begin).await??;
    // After that: no removal of a session begins meanwhile.
    let id = session_id.clone();
    let check = core
        .parts
        .reader
        .read(move |store| store.check_accepts(&id));
    check.await?;
    Ok(held)
}

/// The record of what the store has, to be registered.
pub(crate) fn record(
    parts: &Parts,
    (session_id, run_id): (&SessionId, Option<&RunId>),
    meta: ArtifactMeta,
    content_type: &str,
) -> ArtifactRecord {
    ArtifactRecord {
        id: ArtifactId::random(),
        session_id: session_id.clone(),
        run_id: run_id.cloned(),
        key: meta.key.into(),
        content_type: content_type.to_owned(),
        byte_size: meta.bytes,
        checksum: meta.blake3.to_string(),
        storage_backend: parts.artifacts.kind().to_owned(),
        storage_ref: meta.blake3.to_string(),
        metadata: json!({}),
        created_at: parts.now(),
        deleted_at: None,
    }
}

/// How the keys begin that the engine makes up: those of patches, and of what commands wrote.
const OWN_KEYS: [&str; 3] = ["patch_", "command_stdout_", "command_stderr_"];

/// A key that nobody else has: `stem`, and 32 random digits.
pub(crate) fn own_key(stem: &str) -> Result<ArtifactKey, Error> {
    let digits = uuid::Uuid::new_v4().simple();
    Ok(ArtifactKey::new(format!("{stem}{digits}"))?)
}

/// Whether the engine made this key up.
pub(crate) fn is_own_key(key: &str) -> bool {
    let is_own = OWN_KEYS.iter().any(|stem| key.starts_with(stem));
    let digits = key.rsplit('_').next().filter(|_| is_own);
    digits.is_some_and(|digits| {
        digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    })
}

/// What the keys of artifacts with data of events begin with.
const DATA: &str = "event_";

/// What the keys of artifacts begin with that have what a tool was given or returned.
const CALL: &str = "tool_call_";

/// Whether an artifact of this key has data of an event, or of a call of a tool.
pub(crate) fn is_data_key(key: &str) -> bool {
    let rest = key.strip_prefix(DATA).or_else(|| key.strip_prefix(CALL));
    let digest = rest.and_then(|rest| rest.rsplit('_').next());
    digest.is_some_and(|digest| digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// The key has the digest of the content, so that what is sent under an id that another event has
/// does not take the place of that event's data.
pub(crate) fn data_key(id: &EventId, content: &[u8]) -> ArtifactKey {
    let text = format!("{DATA}{id}_{}", blake3::hash(content).to_hex());
    ArtifactKey::new(text).expect("an id and a digest are a key")
}

/// The key of what a tool was given or returned in a run. What is the same has one artifact in a
/// run.
pub(crate) fn call_key(run_id: &RunId, content: &[u8]) -> ArtifactKey {
    let text = format!("{CALL}{run_id}_{}", blake3::hash(content).to_hex());
    ArtifactKey::new(text).expect("an id and a digest are a key")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_the_engine_made_up_is_told_from_those_of_hosts() {
        for stem in ["patch_a_b_", "command_stdout_run_1_"] {
            let (one, other) = (own_key(stem).unwrap(), own_key(stem).unwrap());
            assert!(one != other && is_own_key(one.as_str()), "{one:?}");
        }
        let of_a_host = ["patch_", "patch_of_mine", "command_stdout_1"];
        for key in of_a_host
            .into_iter()
            .chain(["log_0123456789abcdef0123456789abcdef"])
        {
            assert!(!is_own_key(key), "{key}");
        }
    }

    #[test]
    fn a_key_of_data_is_told_from_others() {
        let key = data_key(&"an_event.of-mine".parse().unwrap(), b"{}");
        assert!(is_data_key(key.as_str()), "{key:?}");
        for other in ["event_", "event_x", "patch_a_b_00", "event_1_zz", "notes"] {
            assert!(!is_data_key(other), "{other}");
        }
        let longest = "x".repeat(200).parse().unwrap();
        assert!(is_data_key(data_key(&longest, b"1").as_str()));
        let longest = "x".repeat(200).parse().unwrap();
        assert!(is_data_key(call_key(&longest, b"1").as_str()));
    }
}
