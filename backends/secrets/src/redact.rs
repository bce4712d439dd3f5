use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::marks;
use crate::rules::SecretRules;

impl SecretRules {
    /// `text` with `[redacted:RULE]` in place of each secret value.
    ///
    /// Values that overlap are replaced by one mark, with the rule of the first. Text without a
    /// value is returned as it is. What is returned has no finding, so redacting it again changes
    /// nothing.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.redact_with(text, 1)
    }

    /// Redacts every string of `value`, and every key of an object.
    ///
    /// A key that would be the same as another gets a number, as in `[redacted:jwt:2]`. Numbers,
    /// booleans and nulls stay as they are. Returns whether anything was replaced.
    pub fn redact_json(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => match self.redact(text) {
                Cow::Borrowed(_) => false,
                Cow::Owned(redacted) => {
                    *text = redacted;
                    true
                }
            },
            Value::Array(values) => values
                .iter_mut()
                .fold(false, |any, value| self.redact_json(value) | any),
            Value::Object(map) => {
                let in_values = map
                    .values_mut()
                    .fold(false, |any, value| self.redact_json(value) | any);
                self.redact_keys(map) | in_values
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }

    fn redact_keys(&self, map: &mut Map<String, Value>) -> bool {
        let is_secret = |key: &&String| matches!(self.redact(key), Cow::Owned(_));
        let keys: Vec<String> = map.keys().filter(is_secret).cloned().collect();
        let mut numbers = HashMap::new();
        for key in &keys {
            let value = map.remove(key).expect("it was there just now");
            let number = numbers.entry(self.redact(key).into_owned()).or_insert(0);
            let free = loop {
                *number += 1;
                let name = self.redact_with(key, *number).into_owned();
                if !map.contains_key(&name) {
                    break name;
                }
            };
            map.insert(free, value);
        }
        !keys.is_empty()
    }

    /// Redacts with marks that have `number`.
    fn redact_with<'a>(&self, text: &'a str, number: u32) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        // What stands around a value that was taken out may be a value to a host's pattern. Each
        // turn replaces text that is no mark by marks, so there is a last one.
        while let Some(redacted) = self.redact_once(&text, number) {
            text = Cow::Owned(redacted);
        }
        text
    }

    fn redact_once(&self, text: &str, number: u32) -> Option<String> {
        let (hits, marks) = self.hits(text.as_bytes());
        let mut hits = hits.into_iter().peekable();
        hits.peek()?;
        let mut redacted = String::with_capacity(text.len());
        let mut copied_to = 0;
        while let Some(first) = hits.next() {
            let mut range = marks::widen(&marks, &first.range);
            while let Some(next) = hits.next_if(|next| next.range.start < range.end) {
                range.end = range.end.max(marks::widen(&marks, &next.range).end);
            }
            // A pattern of bytes may end within a character.
            let start = text.floor_char_boundary(range.start).max(copied_to);
            redacted.push_str(&text[copied_to..start]);
            redacted.push_str(&marks::mark(self.name(first.rule), number));
            copied_to = text.ceil_char_boundary(range.end);
        }
        redacted.push_str(&text[copied_to..]);
        Some(redacted)
    }
}
