//! The beginning of an id, which people may give in place of the whole id.

use crate::error::Error;

/// Of an id that was made for somebody at least a digit has to be given: what all ids begin with
/// picks none, were there only one.
pub(crate) const MIN_BEGINNING: usize = 1;

/// The error of a beginning that has less than [`MIN_BEGINNING`] characters behind its prefix.
pub(crate) fn too_short(text: &str, noun: &str, matching: u64) -> Error {
    let matching = match matching {
        0 => format!("no {noun} begins so"),
        1 => format!("1 {noun} begins so"),
        more => format!("{more} {noun}s begin so"),
    };
    Error::invalid_options(format!(
        "{text:?} is too short for the beginning of a {noun}'s id: give a digit at least; {matching}"
    ))
}

/// The error of a beginning that `matching` ids have, of which these are some.
pub(crate) fn ambiguous<'a>(
    text: &str,
    ids: impl Iterator<Item = &'a str>,
    matching: u64,
) -> Error {
    let ids: Vec<&str> = ids.collect();
    Error::invalid_options(format!(
        "{text:?} is the beginning of {matching} ids, such as {}; give more of it",
        ids.join(", ")
    ))
}
