//! A name that somebody chose, as part of a branch's name.

use data_encoding::HEXLOWER;
use sha1::{Digest as _, Sha1};

/// The longest slug, in characters.
const MAX_CHARS: usize = 64;

/// What is kept of a longer one; a dash and seven digits of its hash follow.
const KEPT_CHARS: usize = 56;

/// `text` in lower case, with one `-` for every run of characters outside of `[a-z0-9]`, and none
/// at either end. One of more than 64 characters ends in a part of its SHA-1, so that two that
/// begin alike stay two. `None`: nothing is left of it.
///
/// Nothing is transliterated: `ä` is as good as a space.
pub(crate) fn slug(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let is_outside = |c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit();
    let words: Vec<&str> = lower.split(is_outside).filter(|w| !w.is_empty()).collect();
    let whole = words.join("-");
    match whole.len() {
        0 => None,
        1..=MAX_CHARS => Some(whole),
        _ => {
            let hash = HEXLOWER.encode(&Sha1::digest(&whole));
            Some(format!("{}-{}", &whole[..KEPT_CHARS], &hash[..7]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_other_characters_become_one_dash_and_nothing_is_transliterated() {
        for (text, expected) in [
            ("Engineering", Some("engineering")),
            ("Käseträger Über-Service", Some("k-setr-ger-ber-service")),
            ("--a  b__c--", Some("a-b-c")),
            ("\u{212a}elvin", Some("elvin")),
            ("group/sub group", Some("group-sub-group")),
            ("", None),
            ("  ", None),
            ("日本", None),
        ] {
            assert_eq!(slug(text).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_long_one_ends_in_its_hash() {
        let limit = "a".repeat(64);
        assert_eq!(slug(&limit).as_ref(), Some(&limit));
        let long = slug(&"a".repeat(200)).unwrap();
        // printf 'a%.0s' $(seq 200) | sha1sum
        assert_eq!(long, format!("{}-e61cfff", "a".repeat(56)));
        let same = "x".repeat(70);
        let [one, two] = ["1234567890", "0987654321"].map(|end| slug(&format!("{same}{end}")));
        assert_ne!(one, two);
        assert_eq!(one, slug(&format!("{same}1234567890")), "it is stable");
    }
}
