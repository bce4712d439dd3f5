use crate::families;
use crate::rules::SecretRules;

impl SecretRules {
    /// How much of the beginning of `text` can be redacted alone although more text follows: all
    /// but what may be the beginning of a value. For text that comes in pieces.
    ///
    /// A value of a host's rule is kept together if it has no white space in it; of the built-in
    /// ones any is.
    pub fn settled_len(&self, text: &str) -> usize {
        let blank = |c: char| c.is_ascii_whitespace();
        let word = text.rfind(blank).map_or(0, |at| at + 1);
        let may_go_on = self.has_added() || self.may_begin_in(&text.as_bytes()[word..]);
        let settled = if may_go_on { word } else { text.len() };
        families::left_open(text).map_or(settled, |open| open.min(settled))
    }
}
