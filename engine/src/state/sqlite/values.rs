//! Conversion of values for SQLite: times, counts, ids, words and documents.

use jiff::Timestamp;
use rusqlite::Row;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::state::error::StateError;

pub(super) fn optional_time(row: &Row<'_>, at: usize) -> Result<Option<Timestamp>, StateError> {
    row.get::<_, Option<i64>>(at)?.map(time).transpose()
}

pub(super) fn optional_count(row: &Row<'_>, at: usize) -> Result<Option<u64>, StateError> {
    Ok(row.get::<_, Option<i64>>(at)?.map(i64::unsigned_abs))
}

/// A clause of SQL for those that are wanted; nothing for none.
pub(super) fn all_of(conditions: &[(bool, &str)]) -> String {
    let wanted = conditions.iter().filter(|(is_wanted, _)| *is_wanted);
    let wanted: Vec<&str> = wanted.map(|(_, condition)| *condition).collect();
    match wanted.as_slice() {
        [] => String::new(),
        wanted => format!(" WHERE {}", wanted.join(" AND ")),
    }
}

/// Nanoseconds since the Unix epoch, which fit until the year 2262; beyond, the last that fits.
pub(super) fn nanoseconds(at: Timestamp) -> i64 {
    let bounded = at
        .as_nanosecond()
        .clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    i64::try_from(bounded).expect("it was clamped")
}

pub(super) fn time(nanoseconds: i64) -> Result<Timestamp, StateError> {
    Timestamp::from_nanosecond(i128::from(nanoseconds)).map_err(|e| StateError::Corrupt {
        detail: format!("a row has the time {nanoseconds}: {e}"),
    })
}

/// SQLite's integers are signed; what does not fit is larger than any count there is.
pub(super) fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// SQLite takes a negative limit for none.
pub(super) fn limit(limit: Option<u64>) -> i64 {
    limit.map_or(-1, count)
}

pub(super) fn id<T: std::str::FromStr>(text: String) -> Result<T, StateError>
where
    T::Err: std::fmt::Display,
{
    id_of(&text)
}

pub(super) fn id_of<T: std::str::FromStr>(text: &str) -> Result<T, StateError>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|e: T::Err| StateError::Corrupt {
        detail: format!("a row has a bad id: {e}"),
    })
}

pub(super) fn word<T>(
    text: String,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, StateError> {
    parse(&text).ok_or_else(|| StateError::Corrupt {
        detail: format!("a row has the unknown state {text:?}"),
    })
}

pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("a document is plain data")
}

pub(super) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, StateError> {
    serde_json::from_str(text).map_err(|e| StateError::Corrupt {
        detail: format!("a row has a bad document: {e}"),
    })
}
