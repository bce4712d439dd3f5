//! The JSON Schemas of what is written: of documents, and of events. `docs/schema/` has those that
//! the command prints.
//!
//! The feature `schema` is for programs that generate code or documents; no other needs it.
//!
//! ```
//! let schema = stillframe::schema::of::<stillframe::records::RunDocument>();
//! assert!(schema.to_value()["properties"]["run_id"].is_object());
//! ```
//!
//! New versions may add keys, values of an enumeration, and types of events. So a schema refuses no
//! key that it does not name.

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
pub use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};

use crate::events::event::{Event, EventSource, EventType};
use crate::events::{branch_data, data, isolation_data};
use crate::policy::{PolicyViolation, Usage};
use crate::records::block::Block;

/// The schema of documents of this type, as they are written (draft 2020-12).
pub fn of<T: JsonSchema + ?Sized>() -> Schema {
    plain(generator().into_root_schema_for::<T>())
}

/// The schema of an event of any type. Its `$defs` have the data of each type of the constants of
/// [`EventType`], by the name of the type.
pub fn of_events() -> Schema {
    let mut generator = generator();
    let mut schema = generator.root_schema_for::<Event>();
    let (mut definitions, mut rules) = (serde_json::Map::new(), Vec::new());
    let of_the_engine = EventType::MEANINGS_OF_THE_ENGINE.iter();
    let in_part = EventType::MEANINGS_OF_ENGINE_AND_ADAPTERS.iter();
    for (event_type, meaning) in of_the_engine.clone().chain(in_part.clone()) {
        let mut said = data_of(&mut generator, event_type)
            .unwrap_or_else(|| panic!("the data of {event_type} has no schema"));
        said.insert("description".to_owned(), meaning.trim().into());
        definitions.insert(event_type.to_string(), said.to_value());
    }
    for (event_type, meaning) in EventType::MEANINGS_IN_COMMON {
        let meaning = meaning.trim();
        let mut said = json!({ "description": meaning });
        if *event_type == EventType::TOKEN_USAGE_UPDATED {
            // Whoever writes it, it is added up.
            let usage = generator.subschema_for::<Usage>();
            said = json!({ "description": meaning, "allOf": [usage] });
            rules.push(rule(json!({ "type": { "const": event_type } }), event_type));
        }
        definitions.insert(event_type.to_string(), said);
    }
    for (event_type, _) in of_the_engine {
        let cases = json!({ "type": { "const": event_type } });
        rules.push(rule(cases, event_type));
    }
    // What an adapter says of the calls of its agent is the adapter's.
    for (event_type, _) in in_part {
        let source = EventSource::Engine;
        let cases = json!({ "type": { "const": event_type }, "source": { "const": source } });
        rules.push(rule(cases, event_type));
    }
    definitions.extend(generator.take_definitions(true));
    schema.insert("allOf".to_owned(), rules.into());
    schema.insert("$defs".to_owned(), definitions.into());
    plain(schema)
}

fn generator() -> SchemaGenerator {
    SchemaSettings::draft2020_12()
        .for_serialize()
        .into_generator()
}

/// Where these keys have these values, the data is that of the type.
fn rule(cases: Value, event_type: &EventType) -> Value {
    let data = json!({ "$ref": format!("#/$defs/{event_type}") });
    json!({
        "if": { "properties": cases },
        "then": { "properties": { "data": data } },
    })
}

/// The schema of what the engine says in events of this type; `None`: it writes none.
fn data_of(generator: &mut SchemaGenerator, event_type: &EventType) -> Option<Schema> {
    let schema = match event_type.as_str() {
        "session_created" | "session_started" | "session_paused" | "session_resumed"
        | "session_completed" | "session_failed" | "session_cancelled" => {
            generator.subschema_for::<data::SessionMoved<'_>>()
        }
        "run_queued" => generator.subschema_for::<data::RunQueued<'_>>(),
        "run_started" => generator.subschema_for::<data::RunStarted>(),
        "run_completed" | "run_failed" | "run_cancelled" | "run_timeout" | "run_interrupted"
        | "run_blocked" | "question_parked" => generator.subschema_for::<data::RunEnded>(),
        "block_reported" => generator.subschema_for::<Block>(),
        "persist_started" => generator.subschema_for::<branch_data::PersistStarted<'_>>(),
        "persist_committed" | "persist_noop" | "persist_pushed" => {
            generator.subschema_for::<branch_data::Persisted<'_>>()
        }
        "persist_failed" => generator.subschema_for::<branch_data::PersistFailed<'_>>(),
        "persist_flagged" => generator.subschema_for::<branch_data::PersistFlagged<'_>>(),
        "checkpoint_discarded" => generator.subschema_for::<branch_data::CheckpointDiscarded<'_>>(),
        "secret_allowed" | "secret_forbidden" => {
            generator.subschema_for::<branch_data::SecretAllowed<'_>>()
        }
        "push_divergence_retried" | "push_divergence_recovered" | "push_divergence_failed" => {
            generator.subschema_for::<branch_data::PushDivergence<'_>>()
        }
        "checkpoint_ready" => generator.subschema_for::<branch_data::CheckpointReady<'_>>(),
        "checkpoint_notice_posted" | "checkpoint_notice_skipped" => {
            generator.subschema_for::<branch_data::CheckpointNotice<'_>>()
        }
        "followup_waiting" | "followup_detected" | "followup_enqueued" | "followup_resumed"
        | "followup_consumed" => generator.subschema_for::<branch_data::FollowUpMoved<'_>>(),
        "run_concluded" => generator.subschema_for::<isolation_data::RunConcluded<'_>>(),
        "run_no_changes_produced" => generator.subschema_for::<isolation_data::NoChangesProduced>(),
        "review_requested" => generator.subschema_for::<isolation_data::ReviewRequested<'_>>(),
        "review_approved" | "review_declined" => {
            generator.subschema_for::<isolation_data::ReviewDecided<'_>>()
        }
        "review_changes_requested" => {
            generator.subschema_for::<isolation_data::ChangesRequested<'_>>()
        }
        "revision_started" => generator.subschema_for::<isolation_data::RevisionStarted>(),
        "merge_started" => generator.subschema_for::<isolation_data::MergeStarted<'_>>(),
        "merge_completed" => generator.subschema_for::<isolation_data::MergeCompleted<'_>>(),
        "merge_conflicted" => generator.subschema_for::<isolation_data::MergeConflicted<'_>>(),
        "merge_blocked" | "merge_failed" => {
            generator.subschema_for::<isolation_data::MergeStopped<'_>>()
        }
        "worktree_let_go" => generator.subschema_for::<isolation_data::WorktreeLetGo<'_>>(),
        "phase_started" | "phase_completed" | "phase_failed" | "phase_skipped"
        | "phase_cancelled" | "phase_interrupted" => {
            generator.subschema_for::<data::PhaseMoved<'_>>()
        }
        "step_started" | "step_completed" | "step_failed" | "step_skipped" | "step_cancelled"
        | "step_interrupted" => generator.subschema_for::<data::StepMoved<'_>>(),
        "task_started" | "task_completed" | "task_failed" => {
            generator.subschema_for::<data::TaskMoved<'_>>()
        }
        "question_asked" | "question_answered" | "question_consumed" | "question_withdrawn" => {
            generator.subschema_for::<data::QuestionMoved<'_>>()
        }
        "commit_wanted" => generator.subschema_for::<data::CommitWanted<'_>>(),
        "commit_created" => generator.subschema_for::<data::CommitCreated<'_>>(),
        "commit_failed" => generator.subschema_for::<data::CommitFailed<'_>>(),
        "commit_recorded" => generator.subschema_for::<data::CommitRecorded<'_>>(),
        "tool_call_started" | "tool_call_completed" | "tool_call_failed" => {
            generator.subschema_for::<data::ToolCall>()
        }
        "workspace_snapshot_taken" => generator.subschema_for::<data::SnapshotTaken<'_>>(),
        "workspace_diff_computed" => generator.subschema_for::<data::DiffComputed<'_>>(),
        "workspace_rolled_back" => generator.subschema_for::<data::RolledBack<'_>>(),
        "workspace_content_purged" => generator.subschema_for::<data::ContentPurged<'_>>(),
        "workspace_cleaned_up" => generator.subschema_for::<data::CleanedUp<'_>>(),
        "workspace_retention_announced" => generator.subschema_for::<data::RetentionAnnounced>(),
        "error_occurred" => generator.subschema_for::<data::ErrorOccurred>(),
        "policy_violation" => generator.subschema_for::<PolicyViolation>(),
        _ => return None,
    };
    Some(schema)
}

/// The schema with descriptions for readers of JSON, whatever their language.
fn plain(mut schema: Schema) -> Schema {
    fn descriptions(schema: &mut Schema) {
        let description = schema.get_mut("description");
        if let Some(Value::String(text)) = description {
            *text = for_readers_of_json(text);
        }
        transform_subschemas(&mut descriptions, schema);
    }
    descriptions.transform(&mut schema);
    schema
}

/// A comment of the source without its links, and with the values that JSON has.
fn for_readers_of_json(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut left = text;
    while let Some(start) = left.find('[') {
        let (before, rest) = left.split_at(start);
        plain.push_str(before);
        let Some(end) = rest.find(']') else {
            left = rest;
            break;
        };
        let (words, after) = (&rest[1..end], &rest[end + 1..]);
        let target = after
            .strip_prefix('(')
            .and_then(|rest| rest.split_once(')'));
        let is_link = target.is_some() || (words.starts_with('`') && words.ends_with('`'));
        match is_link {
            true => plain.push_str(words),
            false => plain.push_str(&rest[..=end]),
        }
        left = target.map_or(after, |(_, rest)| rest);
    }
    plain.push_str(left);
    let paragraphs = plain
        .split("\n\n")
        .map(|paragraph| paragraph.replace('\n', " "));
    let paragraphs: Vec<String> = paragraphs.collect();
    paragraphs.join("\n\n").replace("`None`", "null")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_have_no_links_of_the_source() {
        for (text, expected) in [
            (
                "see [`Engine::open`](crate::Engine::open).",
                "see `Engine::open`.",
            ),
            ("[`Never`]; `None`: it is", "`Never`; null: it is"),
            ("a [list] of [words](x)", "a [list] of words"),
            ("half a [link", "half a [link"),
            ("one\ntwo\n\nthree", "one two\n\nthree"),
        ] {
            assert_eq!(for_readers_of_json(text), expected);
        }
    }

    #[test]
    fn every_type_of_the_constants_has_a_schema_of_its_data() {
        let schema = of_events().to_value();
        let definitions = schema["$defs"].as_object().unwrap();
        let all = [
            EventType::MEANINGS_OF_THE_ENGINE,
            EventType::MEANINGS_OF_ENGINE_AND_ADAPTERS,
            EventType::MEANINGS_IN_COMMON,
        ];
        for (event_type, meaning) in all.concat() {
            let data = &definitions[event_type.as_str()];
            assert!(data["description"].is_string(), "{event_type}: {data}");
            assert!(!meaning.is_empty(), "{event_type}");
        }
        let rules = schema["allOf"].as_array().unwrap();
        let is_named = |event_type: &str| {
            rules
                .iter()
                .any(|rule| rule["if"]["properties"]["type"]["const"] == event_type)
        };
        assert!(is_named("run_completed") && is_named("tool_call_failed"));
        assert!(!is_named("message_sent"), "its data is the writer's");
    }
}
