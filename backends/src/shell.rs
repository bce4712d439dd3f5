//! Quoting words for a shell, in commands that messages show.

use crate::path::printable_bytes;

/// A word as a shell takes it, and as a terminal shows it: in `$'…'` where it holds control or
/// bidirectional characters, or bytes that are not UTF-8. A dash from before POSIX of 2024 does not
/// know that form; bash, zsh, ksh and busybox do.
pub fn shell_word(word: &[u8]) -> String {
    let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"%+,-./:=@_".contains(b);
    let text = printable_bytes(word);
    if text.as_bytes() != word {
        return format!("$'{}'", escaped(word));
    }
    match !word.is_empty() && word.iter().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

fn escaped(word: &[u8]) -> String {
    let escape = |byte: u8| match byte {
        b'\\' | b'\'' => format!("\\{}", char::from(byte)),
        b' '..=b'~' => char::from(byte).to_string(),
        // Three digits always, so that one which follows is none of them.
        _ => format!("\\{byte:03o}"),
    };
    word.iter().copied().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_each_word_for_what_it_is() {
        for (word, expected) in [
            (&b"plain/word-1.2"[..], "plain/word-1.2"),
            (b"two words", "'two words'"),
            (b"", "''"),
            (b"it's", r"'it'\''s'"),
            (b"$HOME", "'$HOME'"),
            (r"b\a".as_bytes(), r"'b\a'"),
            ("é".as_bytes(), "'é'"),
            (b"a\tb\n1'\\", r"$'a\011b\0121\'\\'"),
            (b"esc\x1b", r"$'esc\033'"),
            (b"\xff7", r"$'\3777'"),
            ("\u{202e}x".as_bytes(), r"$'\342\200\256x'"),
        ] {
            let quoted = shell_word(word);
            assert_eq!(quoted, expected);
            assert_eq!(printable_bytes(quoted.as_bytes()), quoted);
            let script = format!("printf %s {quoted}");
            let mut typed = std::process::Command::new("bash");
            let typed = typed.arg("-c").arg(script).output().unwrap();
            assert_eq!(typed.stdout, word, "{quoted}");
        }
    }
}
