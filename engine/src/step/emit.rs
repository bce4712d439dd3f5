//! Writing the events of hosts and adapters.

use serde_json::Value;
use stillframe_backends::ErrorKind;
use stillframe_secrets::SecretRules;

use crate::actors::core::Core;
use crate::error::Error;
use crate::events::data;
use crate::events::draft::EventDraft;
use crate::events::event::{Event, EventSource, EventType};
use crate::id::{EventId, RunId, SessionId, StepId};
use crate::policy::usage::{Usage, agent_of};
use crate::records::tool_call::{self, ToolCallMoved};
use crate::state::change::{Change, NewEvent, Reported};
use crate::state::hold::Hold;
use crate::step::artifact;
use crate::step::beside::{self, Beside};

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

/// Writes the events of a host, or of the adapter of the run that is held, in this order; all or
/// none. Answers with them as they are kept. `of`: the run, and the step in which its adapter
/// writes.
pub(crate) async fn emit(
    core: &Core,
    session_id: &SessionId,
    of: Option<(&Hold, Option<&StepId>)>,
    drafts: Vec<EventDraft>,
) -> Result<Vec<Event>, Error> {
    let hold = of.map(|(hold, _)| hold);
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
        bytes += check_size(&draft.data)?;
        if bytes > MAX_BATCH_BYTES {
            return Err(limit("data of a batch", bytes, MAX_BATCH_BYTES));
        }
        let reported = reported(of, &mut draft, &mut large);
        let event = event_of(core, session_id, (run_id, source), draft, &mut large);
        let event = NewEvent { reported, ..event };
        changes.push(Change::Append(event));
    }
    check_runs(core, session_id, runs).await?;
    if large.is_empty() {
        return core.parts.writer.commit(changes).await;
    }
    let held = artifact::registering(core, session_id).await?;
    let rows = beside::keep(core, session_id, large).await?;
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

/// How many bytes data has as JSON; an event may have only so many.
fn check_size(said: &Value) -> Result<usize, Error> {
    match data::bytes(said).len() {
        size if size > MAX_DATA_BYTES => Err(limit("data of an event", size, MAX_DATA_BYTES)),
        size => Ok(size),
    }
}

/// What an event says of its run that goes into the run's records.
fn reported(
    of: Option<(&Hold, Option<&StepId>)>,
    draft: &mut EventDraft,
    large: &mut Vec<Beside>,
) -> Option<Reported> {
    if draft.event_type == EventType::TOKEN_USAGE_UPDATED {
        return tokens(&draft.data);
    }
    call_of_tool(of?, draft, large).map(|call| Reported::Call(Box::new(call)))
}

/// What a report of usage adds to the tokens of its run; `None`: nothing.
fn tokens(said: &Value) -> Option<Reported> {
    let used = Usage::of_data(said).ok()?;
    (used.total_tokens() > 0).then(|| Reported::Tokens(Box::new((used, agent_of(said)))))
}

/// What an event of an adapter says of a call of a tool, for its record. A large input or output
/// goes out of the data into an artifact, whose key the data then has.
fn call_of_tool(
    (hold, step_id): (&Hold, Option<&StepId>),
    draft: &mut EventDraft,
    large: &mut Vec<Beside>,
) -> Option<ToolCallMoved> {
    let moved = ToolCallMoved::told(&draft.event_type, &draft.data)?;
    let said = draft.data.as_object_mut()?;
    let mut take = |name| {
        let value = said.get_mut(name)?.take();
        beside::content(&hold.run_id, value, large)
    };
    let (input, output) = (take("input"), take("output"));
    for (name, content) in [("input", &input), ("output", &output)] {
        if content.is_some() {
            said.remove(name);
        }
    }
    let contents = tool_call::said(input.as_ref(), output.as_ref());
    if let Value::Object(contents) = data::data(&contents) {
        said.extend(contents);
    }
    Some(ToolCallMoved {
        step_id: step_id.cloned(),
        input,
        output,
        ..moved
    })
}

/// The event that a draft stands for. Its data goes to `large` if it is kept beside the log.
fn event_of(
    core: &Core,
    session_id: &SessionId,
    (run_id, source): (Option<RunId>, EventSource),
    draft: EventDraft,
    large: &mut Vec<Beside>,
) -> NewEvent {
    let content = data::bytes(&draft.data);
    let id = draft.id.unwrap_or_else(EventId::random);
    let is_large = content.len() > MAX_INLINE_BYTES;
    let key = is_large.then(|| artifact::data_key(&id, &content));
    large.extend(key.clone().map(|key| Beside {
        key,
        content,
        content_type: "application/json",
        run_id: run_id.clone(),
    }));
    NewEvent {
        id,
        event_type: draft.event_type,
        session_id: session_id.clone(),
        run_id,
        at: core.parts.now(),
        source,
        provider: draft.provider,
        correlation_id: draft.correlation_id,
        metadata: draft.metadata,
        data: match is_large {
            true => Value::Null,
            false => draft.data,
        },
        data_ref: key.map(|key| key.to_string()),
        reported: None,
    }
}

/// Fails unless all of these are runs of the session.
pub(crate) async fn check_runs(
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
    if *event_type == EventType::TOKEN_USAGE_UPDATED {
        check_usage(&draft.data)?;
    }
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

/// Refuses a report of usage that nobody could add up: it is read again from the log.
fn check_usage(said: &Value) -> Result<(), Error> {
    Usage::of_data(said).map_err(|wrong| {
        Error::invalid_options(format!(
            "an event of the type token_usage_updated has input_tokens, output_tokens and cost, each a number from zero on where it is there: {wrong}; nothing was written"
        ))
    })?;
    match data::bytes(said).len() {
        bytes if bytes > MAX_INLINE_BYTES => Err(limit("report of usage", bytes, MAX_INLINE_BYTES)),
        _ => Ok(()),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_be_added_up_counts_as_not_said() {
        for said in [
            json!(null),
            json!([1, 2]),
            json!({}),
            json!({ "input_tokens": 0 }),
            json!({ "input_tokens": -1 }),
            json!({ "input_tokens": 1.5, "output_tokens": 1 }),
            json!({ "output_tokens": "many" }),
        ] {
            assert_eq!(tokens(&said), None, "{said}");
        }
        let expected = Reported::Tokens(Box::new((Usage::tokens(0, 3), None)));
        let said = json!({ "output_tokens": 3, "model": "m" });
        assert_eq!(tokens(&said), Some(expected));
    }
}
