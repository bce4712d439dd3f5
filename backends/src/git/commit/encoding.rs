//! Encodings of texts in the work tree that need no table: those of Unicode, and ISO-8859-1. The
//! rules are those of gitattributes(5), "working-tree-encoding": git stores UTF-8.

use std::char::decode_utf16;

/// The mark at the beginning of a text.
const MARK: char = '\u{feff}';

/// An encoding that this code can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// Unicode, in units of two bytes or of four.
    Unicode { unit: Unit, mark: Mark },
    /// ISO-8859-1.
    Latin1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Two,
    Four,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Little,
    Big,
}

/// What a text says of its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// There must be one, and it counts.
    Needed,
    /// There is one where it is written, and one that is there counts.
    Written(Order),
    /// There must be none: the name says it.
    Forbidden(Order),
}

impl Encoding {
    /// The encoding of this name; `None`: it is another.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(name).ok()?.to_ascii_lowercase();
        if let "iso-8859-1" | "iso8859-1" | "iso_8859-1" | "latin1" | "latin-1" = &*name {
            return Some(Self::Latin1);
        }
        let rest = name.strip_prefix("utf")?;
        let rest = rest.strip_prefix('-').unwrap_or(rest);
        let (unit, mark) = match rest {
            "16" => (Unit::Two, Mark::Needed),
            "16le" => (Unit::Two, Mark::Forbidden(Order::Little)),
            "16be" => (Unit::Two, Mark::Forbidden(Order::Big)),
            "16le-bom" => (Unit::Two, Mark::Written(Order::Little)),
            "32" => (Unit::Four, Mark::Needed),
            "32le" => (Unit::Four, Mark::Forbidden(Order::Little)),
            "32be" => (Unit::Four, Mark::Forbidden(Order::Big)),
            _ => return None,
        };
        Some(Self::Unicode { unit, mark })
    }

    /// What git stores for these bytes; `None`: they are not in this encoding.
    pub(super) fn decoded(self, bytes: &[u8]) -> Option<Vec<u8>> {
        let text = match self {
            // git passes nothing on, and asks for no mark.
            _ if bytes.is_empty() => String::new(),
            Self::Latin1 => bytes.iter().map(|byte| char::from(*byte)).collect(),
            Self::Unicode { unit, mark } => {
                let marked = [Order::Little, Order::Big]
                    .into_iter()
                    .find(|order| bytes.starts_with(&unit.of(MARK, *order)));
                let (order, is_marked) = match (mark, marked) {
                    (Mark::Forbidden(_), Some(_)) | (Mark::Needed, None) => return None,
                    (Mark::Needed | Mark::Written(_), Some(order)) => (order, true),
                    (Mark::Forbidden(order) | Mark::Written(order), None) => (order, false),
                };
                let length = unit.of(MARK, order).len();
                unit.text(&bytes[if is_marked { length } else { 0 }..], order)?
            }
        };
        Some(text.into_bytes())
    }

    /// What git writes for these bytes, which it has stored; `None`: it cannot, and writes them as
    /// they are.
    pub(super) fn encoded(self, bytes: &[u8]) -> Option<Vec<u8>> {
        let text = std::str::from_utf8(bytes).ok()?;
        if text.is_empty() {
            return Some(Vec::new());
        }
        match self {
            Self::Latin1 => text.chars().map(|c| u8::try_from(c).ok()).collect(),
            Self::Unicode { unit, mark } => {
                let (order, is_marked) = match mark {
                    Mark::Needed => (Order::Little, true),
                    Mark::Written(order) => (order, true),
                    Mark::Forbidden(order) => (order, false),
                };
                let mark = is_marked.then_some(MARK);
                let chars = mark.into_iter().chain(text.chars());
                Some(chars.flat_map(|c| unit.of(c, order)).collect())
            }
        }
    }
}

impl Unit {
    fn of(self, c: char, order: Order) -> Vec<u8> {
        let two = |unit: u16| match order {
            Order::Little => unit.to_le_bytes(),
            Order::Big => unit.to_be_bytes(),
        };
        match (self, order) {
            (Self::Two, _) => {
                let mut units = [0; 2];
                c.encode_utf16(&mut units)
                    .iter()
                    .flat_map(|u| two(*u))
                    .collect()
            }
            (Self::Four, Order::Little) => u32::from(c).to_le_bytes().to_vec(),
            (Self::Four, Order::Big) => u32::from(c).to_be_bytes().to_vec(),
        }
    }

    fn text(self, bytes: &[u8], order: Order) -> Option<String> {
        match self {
            Self::Two => {
                let (units, []) = bytes.as_chunks::<2>() else {
                    return None;
                };
                let units = units.iter().map(|unit| match order {
                    Order::Little => u16::from_le_bytes(*unit),
                    Order::Big => u16::from_be_bytes(*unit),
                });
                decode_utf16(units).collect::<Result<_, _>>().ok()
            }
            Self::Four => {
                let (units, []) = bytes.as_chunks::<4>() else {
                    return None;
                };
                let units = units.iter().map(|unit| match order {
                    Order::Little => u32::from_le_bytes(*unit),
                    Order::Big => u32::from_be_bytes(*unit),
                });
                units.map(char::from_u32).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::test_repository::TestRepository;

    const NAMES: [&str; 9] = [
        "UTF-16",
        "utf16",
        "UTF-16LE",
        "UTF-16BE",
        "UTF-16LE-BOM",
        "UTF-32",
        "UTF-32LE",
        "utf-32be",
        "ISO-8859-1",
    ];

    /// What git stores for a file of these bytes; `None`: it refuses to.
    fn stored(git: &TestRepository, bytes: &[u8]) -> Option<Vec<u8>> {
        git.write("text", bytes);
        let id = git.run(&git.path, &["hash-object", "-w", "--path=text", "text"]);
        let id = String::from_utf8(id.stdout).unwrap();
        let id = Some(id.trim()).filter(|id| !id.is_empty())?.to_owned();
        Some(git.run(&git.path, &["cat-file", "blob", &id]).stdout)
    }

    #[test]
    fn texts_are_stored_and_written_as_git_does() {
        let git = TestRepository::new();
        let texts = [
            "",
            "a\n",
            "gr\u{fc}n\n",
            "\u{20ac} \u{1f600}\n",
            "\u{feff}marked\n",
        ];
        for name in NAMES {
            git.write(
                ".gitattributes",
                format!("text working-tree-encoding={name}\n"),
            );
            let encoding = Encoding::named(name.as_bytes()).unwrap();
            for text in texts {
                git.git(&["read-tree", "--empty"]);
                git.write("plain", text);
                let id = git.git(&["hash-object", "-w", "--no-filters", "plain"]);
                let entry = format!("100644,{id},text");
                git.git(&["update-index", "--add", "--cacheinfo", &entry]);
                git.run(&git.path, &["checkout-index", "--force", "text"]);
                let written = std::fs::read(git.path.join("text")).unwrap();
                let ours = encoding.encoded(text.as_bytes());
                let ours = ours.unwrap_or_else(|| text.as_bytes().to_vec());
                assert_eq!(ours, written, "{name}: {text:?} is written");
                // With and without a mark, whole and cut off.
                for bytes in [
                    &written[..],
                    &written[..written.len() / 2],
                    &[0xfe, 0xff, 0, 65],
                ] {
                    let decoded = encoding.decoded(bytes);
                    assert_eq!(decoded, stored(&git, bytes), "{name}: {bytes:x?} is stored");
                }
            }
        }
    }

    #[test]
    fn what_takes_a_table_is_not_done() {
        for name in [
            "SHIFT-JIS",
            "windows-1252",
            "UTF-7",
            "UTF-16BE-BOM",
            "",
            "utf",
        ] {
            assert_eq!(Encoding::named(name.as_bytes()), None, "{name}");
        }
    }
}
