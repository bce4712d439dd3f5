//! Names in double quotes with the escapes of C, as git writes those with odd bytes into its files.

/// Reads a name in double quotes, and says what follows; `None` if it is not quoted, does not end,
/// or holds an escape that git does not write.
pub fn unquoted(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut rest = text.strip_prefix(b"\"")?;
    let mut name = Vec::new();
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        match byte {
            b'"' => return Some((name, rest)),
            b'\\' => {
                let (&escaped, after) = rest.split_first()?;
                rest = after;
                name.push(match escaped {
                    b'a' => 7,
                    b'b' => 8,
                    b't' => b'\t',
                    b'n' => b'\n',
                    b'v' => 11,
                    b'f' => 12,
                    b'r' => b'\r',
                    b'\\' | b'"' => escaped,
                    b'0'..=b'3' => {
                        let [b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] = rest else {
                            return None;
                        };
                        rest = after;
                        (escaped - b'0') << 6 | (b - b'0') << 3 | (c - b'0')
                    }
                    _ => return None,
                });
            }
            other => name.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_those_of_c_and_what_follows_is_told() {
        for (text, name, rest) in [
            (&b"\"\""[..], &b""[..], &b""[..]),
            (b"\"a b\" rest", b"a b", b" rest"),
            (b"\"\\a\\b\\t\\n\\v\\f\\r\"", b"\x07\x08\t\n\x0b\x0c\r", b""),
            (b"\"\\\"\\\\\\303\\000\"x", b"\"\\\xc3\0", b"x"),
        ] {
            assert_eq!(unquoted(text), Some((name.to_vec(), rest)));
        }
        for text in [
            "",
            "a",
            "a\"b\"",
            "\"",
            "\"a",
            "\"\\",
            "\"\\\"",
            "\"\\x41\"",
            "\"\\38\"",
            "\"\\400\"",
            "\"\\7",
            "\"\\08x\"",
        ] {
            assert_eq!(unquoted(text.as_bytes()), None, "{text}");
        }
    }
}
