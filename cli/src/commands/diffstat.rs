//! How many lines changed in each file, counted in a patch. Pure but for the reader.
//!
//! The format is git's (`Documentation/diff-generate-patch`): sections that begin with
//! `diff --git`, hunks whose headers say how many lines belong to each side.

use std::io::{self, BufRead};

use stillframe::backends::printable_name;

use crate::output;

/// The longest bar, in characters.
const MAX_BAR: u64 = 40;

/// What changed in one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileStat {
    /// The path, as bytes.
    pub(super) path: Vec<u8>,
    /// Lines that only the later side has.
    pub(super) insertions: u64,
    /// Lines that only the earlier side has.
    pub(super) deletions: u64,
    /// Whether it is binary, so that no lines are counted.
    pub(super) is_binary: bool,
}

/// Counts the lines of every file in `patch`, in its order.
pub(super) fn of_patch(mut patch: impl BufRead) -> io::Result<Vec<FileStat>> {
    let mut files: Vec<FileStat> = Vec::new();
    let mut line = Vec::new();
    // How many lines of the hunk are still to come on the earlier and on the later side.
    let (mut old_left, mut new_left) = (0, 0);
    while {
        line.clear();
        patch.read_until(b'\n', &mut line)? > 0
    } {
        if old_left > 0 || new_left > 0 {
            let Some(file) = files.last_mut() else {
                continue;
            };
            match line.first() {
                Some(b'+') => {
                    file.insertions += 1;
                    new_left -= u64::from(new_left > 0);
                }
                Some(b'-') => {
                    file.deletions += 1;
                    old_left -= u64::from(old_left > 0);
                }
                Some(b'\\') => {}
                _ => {
                    old_left -= u64::from(old_left > 0);
                    new_left -= u64::from(new_left > 0);
                }
            }
        } else if let Some(names) = line.strip_prefix(b"diff --git ") {
            let path = path_of(names.trim_ascii_end());
            // A file that became a link has two sections.
            if files.last().is_none_or(|file| file.path != path) {
                files.push(FileStat {
                    path,
                    ..FileStat::default()
                });
            }
        } else if line.starts_with(b"GIT binary patch") {
            if let Some(file) = files.last_mut() {
                file.is_binary = true;
            }
        } else if let Some(ranges) = line.strip_prefix(b"@@ ") {
            (old_left, new_left) = hunk(ranges).unwrap_or((0, 0));
        }
    }
    Ok(files)
}

/// Draws a line for each file, with a bar of `+` and `-`.
pub(super) fn drawn(files: &[FileStat]) -> String {
    let most = files.iter().map(|f| f.insertions + f.deletions).max();
    let most = most.unwrap_or(0);
    let rows: Vec<Vec<String>> = files
        .iter()
        .map(|file| {
            let changed = match file.is_binary {
                true => "binary".to_owned(),
                false => (file.insertions + file.deletions).to_string(),
            };
            vec![
                printable_name(&file.path),
                changed,
                bar(file.insertions, '+', most) + &bar(file.deletions, '-', most),
            ]
        })
        .collect();
    output::table(&rows)
}

/// As many signs as lines; fewer, in proportion and at least one, where `most` lines would not fit.
fn bar(lines: u64, sign: char, most: u64) -> String {
    let length = match most > MAX_BAR {
        true => (u128::from(lines) * u128::from(MAX_BAR)).div_ceil(u128::from(most)),
        false => u128::from(lines),
    };
    // Rounding up may give the two parts of a bar one sign more than fits; nobody minds.
    (0..length).map(|_| sign).collect()
}

/// The path in `a/P b/P`, where the two are one and the same, quoted or not.
fn path_of(names: &[u8]) -> Vec<u8> {
    let half = names
        .get(..names.len().saturating_sub(1) / 2)
        .unwrap_or_default();
    let name = match half.strip_prefix(b"\"").and_then(|h| h.strip_suffix(b"\"")) {
        Some(quoted) => unquoted(quoted),
        None => half.to_vec(),
    };
    name.strip_prefix(b"a/").map(<[u8]>::to_vec).unwrap_or(name)
}

/// Undoes git's quoting of names (`quote.c`): C escapes, and three octal digits for a byte.
fn unquoted(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let Some((escape, tail)) = rest.split_first() else {
            break;
        };
        rest = tail;
        bytes.push(match escape {
            b'a' => 7,
            b'b' => 8,
            b't' => b'\t',
            b'n' => b'\n',
            b'v' => 11,
            b'f' => 12,
            b'r' => b'\r',
            b'0'..=b'3' => {
                let (digits, tail) = rest.split_at(rest.len().min(2));
                rest = tail;
                let octal = |sum: u8, digit: &u8| {
                    sum.wrapping_mul(8)
                        .wrapping_add(digit.wrapping_sub(b'0') & 7)
                };
                digits.iter().fold(escape - b'0', octal)
            }
            other => *other,
        });
    }
    bytes
}

/// How many lines of each side are in the hunk with the header `@@ -5,3 +5,4 @@ …`.
fn hunk(ranges: &[u8]) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(ranges.split(|b| *b == b'@').next()?).ok()?;
    let mut parts = text.split_ascii_whitespace();
    let old = parts.next()?.strip_prefix('-')?;
    let new = parts.next()?.strip_prefix('+')?;
    let length = |range: &str| match range.split_once(',') {
        Some((_, length)) => length.parse().ok(),
        None => Some(1),
    };
    Some((length(old)?, length(new)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(path: &[u8], insertions: u64, deletions: u64) -> FileStat {
        FileStat {
            path: path.to_vec(),
            insertions,
            deletions,
            is_binary: false,
        }
    }

    #[test]
    fn lines_are_counted_in_hunks_and_nowhere_else() {
        let patch = b"\
diff --git a/a file b/a file\n\
index 1..2 100644\n\
--- a/a file\t\n\
+++ b/a file\t\n\
@@ -1,3 +1,3 @@\n \
one\n\
--- a/not a header\n\
+++ b/nor this\n \
three\n\
@@ -9 +9,2 @@ diff --git a/x b/x\n\
-nine\n\
\\ No newline at end of file\n\
+nine\n\
+diff --git a/x b/x\n\
diff --git a/gone b/gone\n\
deleted file mode 100644\n\
index 1..0\n\
--- a/gone\n\
+++ /dev/null\n\
@@ -1,2 +0,0 @@\n\
-1\n\
-2\n\
diff --git a/run.sh b/run.sh\n\
old mode 100644\n\
new mode 100755\n";
        assert_eq!(
            of_patch(&patch[..]).expect("it is in memory"),
            [
                stat(b"a file", 3, 2),
                stat(b"gone", 0, 2),
                stat(b"run.sh", 0, 0),
            ]
        );
    }

    #[test]
    fn a_binary_has_no_lines_and_a_file_that_became_a_link_is_one_file() {
        let patch = b"\
diff --git a/b b/b\n\
index 1..2 100644\n\
GIT binary patch\n\
literal 5\n\
+cmZQzU|?Wi\n\
\n\
literal 0\n\
\n\
diff --git a/l b/l\n\
deleted file mode 100644\n\
--- a/l\n\
+++ /dev/null\n\
@@ -1 +0,0 @@\n\
-x\n\
diff --git a/l b/l\n\
new file mode 120000\n\
--- /dev/null\n\
+++ b/l\n\
@@ -0,0 +1 @@\n\
+target\n\
\\ No newline at end of file\n";
        let files = of_patch(&patch[..]).expect("it is in memory");
        let binary = FileStat {
            is_binary: true,
            ..stat(b"b", 0, 0)
        };
        assert_eq!(files, [binary, stat(b"l", 1, 1)]);
    }

    #[test]
    fn names_are_read_as_git_quotes_them() {
        for (line, expected) in [
            (&b"a/x b/x"[..], &b"x"[..]),
            (b"a/b/c b/b/c", b"b/c"),
            (b"a/x b/x b/x b/x", b"x b/x"),
            (b"\"a/t\\tq\\\"\\\\\" \"b/t\\tq\\\"\\\\\"", b"t\tq\"\\"),
            (
                b"\"a/\\303\\244\\377\" \"b/\\303\\244\\377\"",
                b"\xc3\xa4\xff",
            ),
            (b"", b""),
        ] {
            assert_eq!(path_of(line), expected, "{}", line.escape_ascii());
        }
    }

    #[test]
    fn broken_patches_are_no_panic() {
        for patch in [
            &b"@@ -1,5 +1,5 @@\n+x\n"[..],
            b"+x\n-y\n",
            b"diff --git \n@@ nonsense @@\n@@ -1,99999999999999999999 +1 @@\n",
            b"GIT binary patch\n",
            b"diff --git \"a/\\\n",
            b"diff --git \"a/\\3\" \"b/\\3\"\n",
            b"diff --git a/x b/x\n@@ -1,2 +1 @@\n+a\n+b\n+c\n",
        ] {
            assert!(of_patch(patch).is_ok());
        }
    }

    #[test]
    fn bars_stand_below_each_other_and_fit() {
        let files = [
            stat(b"long/name", 400, 100),
            stat(b"x\x1b", 1, 0),
            stat(b"y", 0, 0),
        ];
        assert_eq!(
            drawn(&files),
            format!(
                "long/name  500  {}{}\nx\\u{{1b}}    1    +\ny          0\n",
                "+".repeat(32),
                "-".repeat(8)
            )
        );
    }
}
