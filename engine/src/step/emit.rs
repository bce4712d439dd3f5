//! Writing the events of hosts and adapters.

use std::io::Cursor;

use serde_json::Value;
use stillframe_artifact_store::ArtifactKey;
use stillframe_backends::ErrorKind;
use stillframe_secrets::SecretRules;

use crate::actors::core::Core;
use crate::error::Error;
use crate::events::data;
use crate::events::draft::EventDraft;
use crate::events::event::{Event, EventSource};
use crate::id::{EventId, RunId, SessionId};
use crate::state::change::{Change, NewEvent};
use crate::state::hold::Hold;
use crate::step::artifact;

/// The most bytes of data, as JSON, that are kept in the log itself.
const MAX_INLINE_BYTES: usize = 64 * 1024;

/// The most bytes of data, as JSON, that an event may have.
const MAX_DATA_BYTES: usize = 16 * 1024 * 1024;

/// The most bytes that the metadata of an event may have as JSON.
const MAX_METADATA_BYTES: usize = 64 * 1024;

/// The most bytes of data, as JSON, that are written together.
const MAX_BATCH_BYTES: usize = 64 * 1024 * 1024;

/// The longest `provider` or `correlation_id`, in bytes.
const MAX_NAME_BYTES: usize = 200;

/// The most events that are written together.
const MAX_BATCH: usize = 10_000;

/// Data that is too large for the log.
struct Large {
    key: ArtifactKey,
    content: Vec<u8>,
    run_id: Option<RunId>,
}

/// Writes the events of a host, or of the adapter of the run that is held, in this order; all or
/// none. Answers with them as they are kept.
pub(crate) async fn emit(
    core: &Core,
    session_id: &SessionId,
    hold: Option<&Hold>,
    drafts: Vec<EventDraft>,
) -> Result<Vec<Event>, Error> {
    core.parts.check_available()?;
    if drafts.len() > MAX_BATCH {
        return Err(Error::new(
            ErrorKind::LimitExceeded,
            format!(
                "{} events are written together, and {MAX_BATCH} may be; nothing was written",
                drafts.len()
            ),
        ));
    }
    let source = match hold {
        Some(_) => EventSource::Adapter,
        None => EventSource::Host,
    };
    let mut changes: Vec<Change> = hold.map(Hold::fence).into_iter().collect();
    let mut large = Vec::new();
    let mut runs = Vec::new();
    let mut bytes = 0;
    for mut draft in drafts {
        let values = std::iter::once(&draft.data).chain(draft.metadata.values());
        if data::is_too_deep(values) {
            return Err(Error::invalid_options(format!(
                "lists and objects lie in each other more than {} levels deep in an event of the type {}; nothing was written",
                data::MAX_DEPTH,
                draft.event_type
            )));
        }
        redact(core.parts.writer.secrets(), &mut draft);
        check(&draft, source)?;
        let run_id = match (hold, &draft.run_id) {
            (Some(hold), Some(other)) if *other != hold.run_id => {
                return Err(Error::invalid_options(format!(
                    "run {} cannot write an event of run {other}; nothing was written",
                    hold.run_id
                )));
            }
            (Some(hold), _) => Some(hold.run_id.clone()),
            (None, named) => {
                runs.extend(named.clone());
                named.clone()
            }
        };
        let (event, beside, size) = event_of(core, session_id, run_id, source, draft)?;
        bytes += size;
        if bytes > MAX_BATCH_BYTES {
            return Err(limit("data of a batch", bytes, MAX_BATCH_BYTES));
        }
        large.extend(beside);
        changes.push(Change::Append(event));
    }
    check_runs(core, session_id, runs).await?;
    if large.is_empty() {
        return core.parts.writer.commit(changes).await;
    }
    let held = artifact::registering(core).await?;
    let rows = keep(core, session_id, large).await?;
    changes.extend(rows);
    core.parts
        .writer
        .commit_and_release(changes, Some(held))
        .await
}

/// The only event of a batch of one.
pub(crate) fn one(events: Result<Vec<Event>, Error>) -> Result<Event, Error> {
    Ok(events?.pop().expect("an append answers with its event"))
}

/// The event that a draft stands for, its data where that is kept beside the log, and how large the
/// data is.
fn event_of(
    core: &Core,
    session_id: &SessionId,
    run_id: Option<RunId>,
    source: EventSource,
    draft: EventDraft,
) -> Result<(NewEvent, Option<Large>, usize), Error> {
    let content = data::bytes(&draft.data);
    if content.len() > MAX_DATA_BYTES {
        return Err(limit("data of an event", content.len(), MAX_DATA_BYTES));
    }
    let size = content.len();
    let id = draft.id.unwrap_or_else(EventId::random);
    let large = (content.len() > MAX_INLINE_BYTES).then(|| Large {
        key: artifact::data_key(&id, &content),
        content,
        run_id: run_id.clone(),
    });
    let event = NewEvent {
        id,
        event_type: draft.event_type,
        session_id: session_id.clone(),
        run_id,
        at: core.parts.now(),
        source,
        provider: draft.provider,
        correlation_id: draft.correlation_id,
        metadata: draft.metadata,
        data: match large {
            Some(_) => Value::Null,
            None => draft.data,
        },
        data_ref: large.as_ref().map(|large| large.key.to_string()),
    };
    Ok((event, large, size))
}

/// Puts data into the artifact store where it is not yet; answers with the rows to be written.
async fn keep(
    core: &Core,
    session_id: &SessionId,
    large: Vec<Large>,
) -> Result<Vec<Change>, Error> {
    let mut rows = Vec::new();
    for Large {
        key,
        content,
        run_id,
    } in large
    {
        let asked = key.to_string();
        let known = core.parts.reader.read(move |store| store.artifact(&asked));
        if known.await?.is_some() {
            continue;
        }
        let meta = core.put(key, Box::new(Cursor::new(content))).await?;
        let whose = (session_id, run_id.as_ref());
        let record = artifact::record(&core.parts, whose, meta, "application/json");
        rows.push(Change::RegisterArtifact(Box::new(record)));
    }
    Ok(rows)
}

/// Fails unless all of these are runs of the session.
async fn check_runs(
    core: &Core,
    session_id: &SessionId,
    mut runs: Vec<RunId>,
) -> Result<(), Error> {
    runs.sort();
    runs.dedup();
    for id in runs {
        let asked = id.clone();
        let found = core
            .parts
            .reader
            .read(move |store| store.run(&asked))
            .await?;
        if found.is_none_or(|row| row.session_id != *session_id) {
            return Err(Error::not_found(format!(
                "session {session_id} has no run {id}; nothing was written"
            )));
        }
    }
    Ok(())
}

/// Takes secret values out of a draft. Its id and type stay.
fn redact(secrets: &SecretRules, draft: &mut EventDraft) {
    secrets.redact_json(&mut draft.data);
    if !draft.metadata.is_empty() {
        let mut metadata = Value::Object(std::mem::take(&mut draft.metadata));
        secrets.redact_json(&mut metadata);
        if let Value::Object(metadata) = metadata {
            draft.metadata = metadata;
        }
    }
    for text in [&mut draft.provider, &mut draft.correlation_id] {
        *text = text.take().map(|text| secrets.redact(&text).into_owned());
    }
}

/// Refuses what `source` may not write.
fn check(draft: &EventDraft, source: EventSource) -> Result<(), Error> {
    let event_type = &draft.event_type;
    if !event_type.may_be_written_by(source) {
        return Err(Error::invalid_options(format!(
            "events of the type {event_type} are not for the {source} to write; nothing was written"
        )));
    }
    event_type.check()?;
    for (key, text) in [
        ("provider", &draft.provider),
        ("correlation_id", &draft.correlation_id),
    ] {
        let Some(text) = text else { continue };
        if !(1..=MAX_NAME_BYTES).contains(&text.len()) || text.contains(char::is_control) {
            return Err(Error::invalid_options(format!(
                "the {key} of an event has 1 to {MAX_NAME_BYTES} bytes and no control characters, unlike {text:.40?}; nothing was written"
            )));
        }
    }
    let bytes = match draft.metadata.is_empty() {
        true => 0,
        false => data::bytes(&draft.metadata).len(),
    };
    match bytes > MAX_METADATA_BYTES {
        true => Err(limit("metadata of an event", bytes, MAX_METADATA_BYTES)),
        false => Ok(()),
    }
}

fn limit(what: &str, bytes: usize, most: usize) -> Error {
    Error::new(
        ErrorKind::LimitExceeded,
        format!(
            "the {what} has {bytes} bytes as JSON, and {most} is the limit; nothing was written"
        ),
    )
}
