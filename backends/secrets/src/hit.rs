//! Where a value is, and how far bytes of one kind reach.

use std::ops::Range;

/// A value, and the index of its rule: built-in rules first, then those that were added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    pub(crate) rule: usize,
    pub(crate) range: Range<usize>,
}

/// The end of the longest run from `at` of bytes that `is_part` accepts.
pub(crate) fn run(bytes: &[u8], at: usize, is_part: impl Fn(u8) -> bool) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().take_while(|byte| is_part(**byte)).count()
}
