//! Holding documents against the schemas of `docs/schema`, with a reader of schemas of its own.
//!
//! It is stricter than the schemas, which are open for newer versions: a key that no schema names
//! is wrong here, because then the schema is not whole.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use jiff::Timestamp;
use serde_json::{Map, Number, Value};

use crate::binary;

/// The schemas, and what each command prints.
pub struct Schemas {
    /// By the names of their files.
    files: BTreeMap<String, Value>,
    /// The files of each command.
    commands: BTreeMap<String, Vec<String>>,
}

/// The file of what a command prints that failed.
const ERROR: &str = "error.json";

impl Schemas {
    /// Those of the source that these tests belong to.
    pub fn get() -> &'static Self {
        static SCHEMAS: OnceLock<Schemas> = OnceLock::new();
        SCHEMAS.get_or_init(|| Self::read(&binary::project().join("docs/schema")))
    }

    fn read(directory: &Path) -> Self {
        let text = |path: &Path| {
            fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        };
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(directory).expect("there are schemas") {
            let path = entry.expect("it can be listed").path();
            if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                let schema = serde_json::from_str(&text(&path)).expect("a schema is JSON");
                let name = path.file_name().expect("a file has a name");
                files.insert(name.to_string_lossy().into_owned(), schema);
            }
        }
        let mut commands = BTreeMap::new();
        let readme = text(&directory.join("README.md"));
        for row in readme.lines().filter(|line| line.starts_with("| `")) {
            let (first, second) = row.split_once(" | ").expect("a row has two columns");
            let quoted = |column: &str| -> Vec<String> {
                let words = column.split('`').skip(1).step_by(2);
                words.map(str::to_owned).collect()
            };
            for command in quoted(first) {
                commands.insert(command, quoted(second));
            }
        }
        assert!(commands.len() > 20, "the table was read");
        Self { files, commands }
    }

    /// The names of the files.
    pub fn names(&self) -> BTreeSet<String> {
        self.files.keys().cloned().collect()
    }

    /// The types of events whose data has a schema.
    pub fn event_types(&self) -> BTreeSet<String> {
        let definitions = self.files["event.json"]["$defs"].as_object();
        let names = definitions.expect("it has definitions").keys();
        let types = names.filter(|name| name.starts_with(char::is_lowercase));
        types.cloned().collect()
    }

    /// What a document that was printed for these arguments is: the file of its schema; `None`:
    /// they ask for no document.
    ///
    /// # Errors
    ///
    /// No schema of the command is that of the document; says why not.
    pub fn check_printed(
        &self,
        typed: &[OsString],
        document: &Value,
    ) -> Result<Option<&str>, String> {
        let Some(command) = self.command(typed) else {
            return Ok(None);
        };
        let files = command.iter().map(String::as_str).chain([ERROR]);
        let mut wrong = Vec::new();
        for file in files {
            match self.check(file, document) {
                Ok(()) => return Ok(Some(self.files.get_key_value(file).expect("it is there").0)),
                Err(why) => wrong.push(format!("{file}: {why}")),
            }
        }
        Err(wrong.join("\n"))
    }

    /// Holds a document against the schema of this file.
    ///
    /// # Errors
    ///
    /// What is wrong with the document, and where.
    pub fn check(&self, file: &str, document: &Value) -> Result<(), String> {
        let root = self.files.get(file);
        let root = root.unwrap_or_else(|| panic!("there is no {file} in docs/schema"));
        Reader { root }.whole(root, document, "")
    }

    /// The files of the command that is typed so, if it prints documents then.
    fn command(&self, typed: &[OsString]) -> Option<&[String]> {
        let words = typed.iter().map(|word| word.to_string_lossy().into_owned());
        let words: Vec<String> = words.take_while(|word| word != "--").collect();
        let first = words.iter().find(|word| {
            let begins = |command: &String| command.split(' ').next() == Some(word);
            self.commands.keys().any(begins)
        })?;
        let is_always = first == "events";
        if !is_always && !words.iter().any(|word| word == "--json") {
            return None;
        }
        let is_begun = |longer: &String| {
            let whole = format!("{longer} ");
            let mut keys = self.commands.keys();
            keys.any(|key| key == longer || key.starts_with(&whole))
        };
        let longer = |command: &String| {
            let mut longer = words.iter().map(|word| format!("{command} {word}"));
            longer.find(is_begun)
        };
        let all = std::iter::successors(Some(first.clone()), longer);
        let known = all.filter_map(|command| self.commands.get(&command));
        known.last().map(Vec::as_slice)
    }
}

/// The keys of an object that some part of a schema names.
type Named = BTreeSet<String>;

struct Reader<'a> {
    root: &'a Value,
}

impl Reader<'_> {
    /// Holds a value against the schema of its place, and fails on keys that it does not name.
    fn whole(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let named = self.part(schema, value, at)?;
        let Some(object) = value.as_object() else {
            return Ok(());
        };
        match object.keys().find(|key| !named.contains(*key)) {
            Some(key) if !self.is_open(schema) => Err(format!("{at}/{key} is in no schema")),
            _ => Ok(()),
        }
    }

    /// Whether a schema says nothing of its values: they are somebody else's.
    fn is_open(&self, schema: &Value) -> bool {
        match schema {
            Value::Object(keywords) => keywords.iter().all(|(keyword, of)| match &**keyword {
                "$ref" => self.is_open(self.target(of)),
                "title" | "description" | "default" => true,
                _ => false,
            }),
            schema => *schema == Value::Bool(true),
        }
    }

    fn target(&self, reference: &Value) -> &Value {
        let reference = reference.as_str().and_then(|text| text.strip_prefix('#'));
        let found = reference.and_then(|pointer| self.root.pointer(pointer));
        found.unwrap_or_else(|| panic!("{reference:?} leads nowhere"))
    }

    /// Holds a value against a part of the schema of its place. Answers with the keys that it
    /// names.
    fn part(&self, schema: &Value, value: &Value, at: &str) -> Result<Named, String> {
        let keywords = match schema {
            Value::Bool(true) => return Ok(Named::new()),
            Value::Object(keywords) => keywords,
            _ => return Err(format!("{at} may not be there")),
        };
        let mut named = Named::new();
        for (keyword, of) in keywords {
            let applied = match &**keyword {
                "$schema"
                | "$defs"
                | "title"
                | "description"
                | "default"
                | "contentEncoding"
                | "additionalProperties"
                | "then" => Ok(Named::new()),
                "$ref" => self.part(self.target(of), value, at),
                "properties" | "items" => self.inner(keywords, keyword, value, at),
                "allOf" => self.all(list(of), value, at),
                "anyOf" | "oneOf" => self.some(keyword, list(of), value, at),
                "if" => match self.part(of, value, at) {
                    Ok(_) => self.part(&keywords["then"], value, at),
                    Err(_) => Ok(Named::new()),
                },
                _ => match holds(keyword, of, value) {
                    true => Ok(Named::new()),
                    false => Err(format!("{at} is {value}, and not of {keyword} {of}")),
                },
            };
            named.extend(applied?);
        }
        if !keywords.contains_key("properties") {
            named.extend(self.others(keywords, value, at)?);
        }
        Ok(named)
    }

    /// What lies in an object or a list.
    fn inner(
        &self,
        keywords: &Map<String, Value>,
        keyword: &str,
        value: &Value,
        at: &str,
    ) -> Result<Named, String> {
        let mut named = Named::new();
        match (keyword, value) {
            ("properties", Value::Object(object)) => {
                for (key, schema) in keywords["properties"].as_object().expect("by name") {
                    if let Some(value) = object.get(key) {
                        self.whole(schema, value, &format!("{at}/{key}"))?;
                    }
                    named.insert(key.clone());
                }
                named.extend(self.others(keywords, value, at)?);
            }
            ("items", Value::Array(items)) => {
                for (n, item) in items.iter().enumerate() {
                    self.whole(&keywords["items"], item, &format!("{at}/{n}"))?;
                }
            }
            _ => {}
        }
        Ok(named)
    }

    /// The keys that are not named one by one, where they have a schema.
    fn others(
        &self,
        keywords: &Map<String, Value>,
        value: &Value,
        at: &str,
    ) -> Result<Named, String> {
        let (Some(schema), Some(object)) =
            (keywords.get("additionalProperties"), value.as_object())
        else {
            return Ok(Named::new());
        };
        let known = keywords.get("properties").and_then(Value::as_object);
        let mut named = Named::new();
        for (key, value) in object {
            if !known.is_some_and(|known| known.contains_key(key)) {
                self.whole(schema, value, &format!("{at}/{key}"))?;
                named.insert(key.clone());
            }
        }
        Ok(named)
    }

    fn all(&self, schemas: &[Value], value: &Value, at: &str) -> Result<Named, String> {
        let mut named = Named::new();
        for schema in schemas {
            named.extend(self.part(schema, value, at)?);
        }
        Ok(named)
    }

    fn some(
        &self,
        keyword: &str,
        schemas: &[Value],
        value: &Value,
        at: &str,
    ) -> Result<Named, String> {
        let (mut named, mut right, mut wrong) = (Named::new(), 0, Vec::new());
        for schema in schemas {
            match self.part(schema, value, at) {
                Ok(more) => {
                    right += 1;
                    named.extend(more);
                }
                Err(why) => wrong.push(why),
            }
        }
        match (right, keyword) {
            (0, _) => Err(format!("none of {}: {}", schemas.len(), wrong.join("; "))),
            (2.., "oneOf") => Err(format!("{at} is several of what it may be one of")),
            _ => Ok(named),
        }
    }
}

fn list(of: &Value) -> &[Value] {
    of.as_array().expect("it is a list of schemas")
}

/// Whether a value is as a keyword says that concerns it alone. A keyword that nobody knows is a
/// bug here, not of the document.
fn holds(keyword: &str, of: &Value, value: &Value) -> bool {
    let length = value.as_str().map(|text| text.chars().count() as u64);
    let count = value.as_array().map(|items| items.len() as u64);
    match keyword {
        "type" => match of {
            Value::Array(types) => types.iter().any(|of| is_of_type(of, value)),
            of => is_of_type(of, value),
        },
        "const" => value == of,
        "enum" => list(of).contains(value),
        "required" => match value.as_object() {
            Some(object) => {
                let mut keys = list(of).iter().filter_map(Value::as_str);
                keys.all(|key| object.contains_key(key))
            }
            None => true,
        },
        "minimum" => value.as_f64() >= of.as_f64() || !value.is_number(),
        "maximum" => value.as_f64() <= of.as_f64() || !value.is_number(),
        "maxLength" => length.is_none_or(|length| Some(length) <= of.as_u64()),
        "maxItems" => count.is_none_or(|count| Some(count) <= of.as_u64()),
        "minItems" => count.is_none_or(|count| Some(count) >= of.as_u64()),
        "uniqueItems" => value.as_array().is_none_or(|items| {
            let mut seen = items.iter().enumerate();
            seen.all(|(at, item)| !items[..at].contains(item))
        }),
        "pattern" => value.as_str().is_none_or(|text| matches(of, text)),
        "format" => is_of_format(of, value),
        _ => panic!("nothing here knows the keyword {keyword}"),
    }
}

fn is_of_type(of: &Value, value: &Value) -> bool {
    match of.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        Some("number") => value.is_number(),
        Some("integer") => value.is_i64() || value.is_u64(),
        _ => panic!("nothing here knows the type {of}"),
    }
}

/// Formats say something of texts or of numbers alone.
fn is_of_format(of: &Value, value: &Value) -> bool {
    let text = |is: fn(&str) -> bool| value.as_str().is_none_or(is);
    let number = |is: fn(&Number) -> bool| value.as_number().is_none_or(is);
    match of.as_str() {
        Some("date-time") => text(|text| text.parse::<Timestamp>().is_ok()),
        Some("int32") => number(|n| n.as_i64().is_some_and(|n| i32::try_from(n).is_ok())),
        Some("uint8") => number(|n| n.as_u64().is_some_and(|n| u8::try_from(n).is_ok())),
        Some("uint32") => number(|n| n.as_u64().is_some_and(|n| u32::try_from(n).is_ok())),
        Some("uint" | "uint64") => number(Number::is_u64),
        Some("int64") => number(Number::is_i64),
        Some("double") => true,
        _ => panic!("nothing here knows the format {of}"),
    }
}

/// Whether a text is of a pattern: these are all that there are.
fn matches(pattern: &Value, text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let first = text.bytes().next();
    match pattern.as_str() {
        Some("^snap_[0-9a-f]{32}$") => text.strip_prefix("snap_").is_some_and(|digits| {
            digits.len() == 32
                && digits
                    .bytes()
                    .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        }),
        Some("^[A-Za-z0-9][A-Za-z0-9._-]*$") => {
            first.is_some_and(|b| b.is_ascii_alphanumeric()) && text.bytes().all(word)
        }
        Some("^[a-z][a-z0-9_]{0,63}$") => {
            let all = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
            first.is_some_and(|b| b.is_ascii_lowercase())
                && text.len() <= 64
                && text.bytes().all(all)
        }
        _ => panic!("nothing here knows the pattern {pattern}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event() -> Value {
        json!({
            "id": "evt_1", "position": 7, "type": "run_failed", "timestamp": "2026-02-03T04:05:06Z",
            "session_id": "s", "run_id": "r", "sequence": 1, "schema_version": 1, "source": "engine",
            "provider": null, "correlation_id": null, "metadata": { "mine": [1] }, "data_ref": null,
            "data": { "exit_code": 2, "kind": null, "message": null, "reason": "no" },
        })
    }

    fn with(change: impl Fn(&mut Value)) -> Result<(), String> {
        let mut event = event();
        change(&mut event);
        Schemas::get().check("event.json", &event)
    }

    #[test]
    fn what_is_wrong_with_a_document_is_found() {
        assert_eq!(with(|_| {}), Ok(()));
        type Change = fn(&mut Value);
        let wrong: [(&str, Change); 9] = [
            ("required", |event| {
                drop(event.as_object_mut().unwrap().remove("id"))
            }),
            ("/news", |event| event["news"] = json!(1)),
            ("/data/news", |event| event["data"]["news"] = json!(1)),
            ("/data", |event| event["data"]["exit_code"] = json!("2")),
            ("/timestamp", |event| {
                event["timestamp"] = json!("yesterday")
            }),
            ("/sequence", |event| event["sequence"] = json!(-1)),
            ("/type", |event| event["type"] = json!("Run failed")),
            ("/session_id", |event| event["session_id"] = json!("a b")),
            ("/source", |event| event["source"] = json!("nobody")),
        ];
        for (part, change) in wrong {
            let why = with(change).expect_err(part);
            assert!(why.contains(part), "{part} is in {why}");
        }
    }

    #[test]
    fn what_is_the_writers_may_be_anything() {
        for (event_type, source) in [
            ("of_a_host", "host"),
            ("message_sent", "adapter"),
            ("tool_call_failed", "adapter"),
        ] {
            let said = with(|event| {
                event["type"] = json!(event_type);
                event["source"] = json!(source);
            });
            assert_eq!(said, Ok(()), "{event_type}");
        }
        let of_the_engine = with(|event| event["type"] = json!("tool_call_failed"));
        assert!(of_the_engine.is_err(), "its keys are known");
    }

    #[test]
    fn a_document_is_held_against_what_its_command_prints() {
        let typed = |line: &str| -> Vec<OsString> { line.split(' ').map(OsString::from).collect() };
        let schemas = Schemas::get();
        let removed = json!({ "removed": "key" });
        let is = |line: &str, document: &Value| schemas.check_printed(&typed(line), document);
        assert_eq!(
            is("artifact --json rm key", &removed),
            Ok(Some("artifact-rm.json"))
        );
        assert_eq!(is("--workspace /w artifact rm key", &removed), Ok(None));
        assert!(is("artifact list --json", &removed).is_err());
        assert_eq!(is("run -- sh --json", &removed), Ok(None));
        assert_eq!(is("events --run r", &event()), Ok(Some("event.json")));
        let error = json!({ "kind": "Busy", "message": "m", "touched": false, "retryable": true, "run_id": null });
        assert_eq!(
            is("gc --json", &json!({ "error": error })),
            Ok(Some("error.json"))
        );
    }
}
