//! The patterns of git's rule files: how one is read, and which paths it matches.
//!
//! `.gitignore` and `.gitattributes` share them. The rules are those of gitignore(5) and, where the
//! manual is silent, of git's `dir.c` and `wildmatch.c`. The matcher is our own, for two reasons.
//! The `ignore` crate accepts only UTF-8 patterns. In a test with random rules it also disagreed
//! with `git check-ignore` for three paths in a hundred: `[[:alpha:]]`, `[\a-\c]`, `/*/`, an
//! unclosed class.

/// A pattern of a rule file.
///
/// Matching takes time in proportion to the lengths of pattern and path multiplied, whatever the
/// pattern: it never tries the ways in which several stars can share a name one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    is_negated: bool,
    directories_only: bool,
    scope: Scope,
    /// What the text begins with. It has no wildcard.
    prefix: Box<[u8]>,
    rest: Rest,
}

/// A path that patterns are compared with, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    path: &'a [u8],
    name: &'a [u8],
    is_dir: bool,
}

/// What of a path a pattern is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// The last name of a path: the pattern has no slash, but perhaps at its end.
    Name,
    /// The whole path, from the directory of the rule file down.
    Path,
}

/// What follows the prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rest {
    /// Nothing: the prefix is all.
    Nothing,
    /// Anything but a slash, then these bytes.
    AnythingThen(Box<[u8]>),
    /// `min_len` bytes at least.
    Wild { parts: Box<[Part]>, min_len: usize },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// This byte.
    Byte(u8),
    /// `?`: one byte that is no slash.
    One,
    /// `[…]`: one byte of a set, which never has the slash.
    Class(Box<ByteSet>),
    /// `*`: any number of bytes without a slash.
    Star,
    /// `**` as a whole name: any bytes.
    DeepStar,
    /// `**/`: nothing, or any bytes that end with a slash.
    AnyDirectories,
}

impl PathPattern {
    /// Reads one pattern: what stands in a line, without its end.
    ///
    /// `None` if it can match no path: it is empty, or it ends inside a class or an escape. Like
    /// git's, the text ends at a NUL byte.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = until_nul(text);
        let (is_negated, text) = match text.strip_prefix(b"!") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (directories_only, text) = match text.strip_suffix(b"/") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (scope, text) = match text.iter().position(|b| *b == b'/') {
            None => (Scope::Name, text),
            Some(0) => (Scope::Path, &text[1..]),
            Some(_) => (Scope::Path, text),
        };
        if text.is_empty() {
            return None;
        }
        let plain = text
            .iter()
            .position(|b| is_special(*b))
            .unwrap_or(text.len());
        let (prefix, wild) = text.split_at(plain);
        Some(Self {
            is_negated,
            directories_only,
            scope,
            prefix: prefix.into(),
            rest: Rest::parse(wild)?,
        })
    }

    /// Whether it began with `!`.
    pub fn is_negated(&self) -> bool {
        self.is_negated
    }

    /// Whether it ended with `/`, and so matches directories only.
    pub fn directories_only(&self) -> bool {
        self.directories_only
    }

    /// Whether it matches `candidate`.
    ///
    /// The path itself is meant: a pattern that matches a directory says nothing of what is below.
    /// Negation is left to the caller.
    pub fn matches(&self, candidate: Candidate<'_>) -> bool {
        if self.directories_only && !candidate.is_dir {
            return false;
        }
        let text = match self.scope {
            Scope::Name => candidate.name,
            Scope::Path => candidate.path,
        };
        // An empty prefix or end is not compared: `memcmp` is handed its dangling pointer, and a
        // masked load from an address that is not mapped takes some processors 170 ns.
        let text = match &*self.prefix {
            [] => Some(text),
            prefix => text.strip_prefix(prefix),
        };
        let Some(text) = text else {
            return false;
        };
        match &self.rest {
            Rest::Nothing => text.is_empty(),
            Rest::AnythingThen(end) => {
                let start = match &**end {
                    [] => Some(text),
                    end => text.strip_suffix(end),
                };
                start.is_some_and(|start| !start.contains(&b'/'))
            }
            Rest::Wild { parts, min_len } => text.len() >= *min_len && matches_parts(parts, text),
        }
    }
}

/// The part of `text` before its first NUL byte.
pub(crate) fn until_nul(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
    &text[..end]
}

impl<'a> Candidate<'a> {
    /// `path` is relative to the directory of the rule file and not empty.
    pub fn new(path: &'a [u8], is_dir: bool) -> Self {
        let name = path.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
        Self {
            path,
            name: &path[name..],
            is_dir,
        }
    }
}

fn is_special(byte: u8) -> bool {
    matches!(byte, b'*' | b'?' | b'[' | b'\\')
}

impl Rest {
    fn parse(wild: &[u8]) -> Option<Self> {
        match wild {
            [] => return Some(Self::Nothing),
            [b'*', end @ ..] if !end.iter().any(|b| is_special(*b)) => {
                return Some(Self::AnythingThen(end.into()));
            }
            _ => {}
        }
        let mut parts = Vec::new();
        let mut at = 0;
        while let Some(&byte) = wild.get(at) {
            at += 1;
            let part = match byte {
                b'\\' => {
                    let escaped = *wild.get(at)?;
                    at += 1;
                    Part::Byte(escaped)
                }
                b'?' => Part::One,
                b'[' => {
                    let (set, len) = ByteSet::parse(&wild[at..])?;
                    at += len;
                    Part::Class(Box::new(set))
                }
                b'*' => {
                    let start = at - 1;
                    at += wild[at..].iter().take_while(|b| **b == b'*').count();
                    // git looks back only as far as the end of the prefix, so that `/a**/b` has a
                    // `**` of its own, and matches `ab` and `ax/y/b`.
                    let begins_a_name = start == 0 || wild[start - 1] == b'/';
                    let is_deep = at - start > 1 && begins_a_name;
                    match &wild[at..] {
                        [b'/', ..] if is_deep => {
                            at += 1;
                            Part::AnyDirectories
                        }
                        [] | [b'\\', b'/', ..] if is_deep => Part::DeepStar,
                        _ => Part::Star,
                    }
                }
                other => Part::Byte(other),
            };
            // `**/**/` says no more than `**/`, and a line could repeat it for a megabyte.
            if part != Part::AnyDirectories || parts.last() != Some(&part) {
                parts.push(part);
            }
        }
        let takes_a_byte =
            |part: &&Part| matches!(part, Part::Byte(_) | Part::One | Part::Class(_));
        let min_len = parts.iter().filter(takes_a_byte).count();
        Some(Self::Wild {
            parts: parts.into(),
            min_len,
        })
    }
}

/// Whether `parts` match all of `text`.
///
/// A mismatch goes back to the last star only. That is enough: a star that began at the first
/// possible place can reach whatever one further on reaches, and slashes are matched one for one
/// between two deep stars.
fn matches_parts(parts: &[Part], text: &[u8]) -> bool {
    let (mut part_at, mut text_at) = (0, 0);
    // The part after the star, and up to where the star has taken the text.
    let mut star: Option<(usize, usize)> = None;
    let mut deep: Option<(usize, usize, &Part)> = None;
    loop {
        match parts.get(part_at) {
            None if text_at == text.len() => return true,
            Some(Part::Star) => {
                part_at += 1;
                star = Some((part_at, text_at));
                continue;
            }
            Some(part @ (Part::DeepStar | Part::AnyDirectories)) => {
                part_at += 1;
                star = None;
                deep = Some((part_at, text_at, part));
                continue;
            }
            Some(part) if text.get(text_at).is_some_and(|byte| part.takes(*byte)) => {
                part_at += 1;
                text_at += 1;
                continue;
            }
            _ => {}
        }
        if let Some((after, taken)) = &mut star
            && text.get(*taken).is_some_and(|byte| *byte != b'/')
        {
            *taken += 1;
            (part_at, text_at) = (*after, *taken);
        } else if let Some((after, taken, part)) = &mut deep {
            let step = match part {
                Part::DeepStar if *taken < text.len() => 1,
                Part::DeepStar => return false,
                _ => match text[*taken..].iter().position(|b| *b == b'/') {
                    Some(slash) => slash + 1,
                    None => return false,
                },
            };
            *taken += step;
            star = None;
            (part_at, text_at) = (*after, *taken);
        } else {
            return false;
        }
    }
}

impl Part {
    /// Whether this part, which is no star, matches `byte`.
    fn takes(&self, byte: u8) -> bool {
        match self {
            Self::Byte(own) => *own == byte,
            Self::One => byte != b'/',
            Self::Class(set) => set.has(byte),
            Self::Star | Self::DeepStar | Self::AnyDirectories => false,
        }
    }
}

/// A set of bytes, one bit for each.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ByteSet([u64; 4]);

impl ByteSet {
    /// Reads a class from behind its `[`, and says how many bytes it took, the `]` included.
    ///
    /// `None` if it does not end, or names a class that does not exist: such a pattern matches
    /// nothing.
    fn parse(text: &[u8]) -> Option<(Self, usize)> {
        let mut set = Self([0; 4]);
        let is_negated = matches!(text.first(), Some(b'!' | b'^'));
        let first = usize::from(is_negated);
        let mut at = first;
        // The start of a range, if the next byte is a `-`.
        let mut previous: Option<u8> = None;
        loop {
            let byte = *text.get(at)?;
            match byte {
                // A `]` in the first place is one of the set.
                b']' if at > first => break,
                b'\\' => {
                    at += 1;
                    let escaped = *text.get(at)?;
                    set.insert(escaped);
                    previous = Some(escaped);
                }
                b'-' if previous.is_some() && text.get(at + 1).is_some_and(|b| *b != b']') => {
                    at += 1;
                    if text[at] == b'\\' {
                        at += 1;
                    }
                    let from = previous.take().expect("looked at above");
                    for byte in from..=*text.get(at)? {
                        set.insert(byte);
                    }
                }
                b'[' if text.get(at + 1) == Some(&b':') => {
                    let name_at = at + 2;
                    let end = name_at + text[name_at..].iter().position(|b| *b == b']')?;
                    if end > name_at && text[end - 1] == b':' {
                        set.insert_named(&text[name_at..end - 1])?;
                        previous = None;
                        at = end;
                    } else {
                        set.insert(b'[');
                        previous = Some(b'[');
                    }
                }
                other => {
                    set.insert(other);
                    previous = Some(other);
                }
            }
            at += 1;
        }
        if is_negated {
            set.0 = set.0.map(|bits| !bits);
        }
        set.remove(b'/');
        Some((set, at + 1))
    }

    /// Adds a class by its name. They are git's own: ASCII only, whatever the locale.
    fn insert_named(&mut self, name: &[u8]) -> Option<()> {
        let is_in: fn(u8) -> bool = match name {
            b"alnum" => |b| b.is_ascii_alphanumeric(),
            b"alpha" => |b| b.is_ascii_alphabetic(),
            b"blank" => |b| matches!(b, b' ' | b'\t'),
            b"cntrl" => |b| b.is_ascii_control(),
            b"digit" => |b| b.is_ascii_digit(),
            b"graph" => |b| b.is_ascii_graphic(),
            b"lower" => |b| b.is_ascii_lowercase(),
            b"print" => |b| matches!(b, b' '..=b'~'),
            b"punct" => |b| b.is_ascii_punctuation(),
            b"space" => |b| matches!(b, b' ' | b'\t' | b'\n' | b'\r'),
            b"upper" => |b| b.is_ascii_uppercase(),
            b"xdigit" => |b| b.is_ascii_hexdigit(),
            _ => return None,
        };
        for byte in (0..=u8::MAX).filter(|byte| is_in(*byte)) {
            self.insert(byte);
        }
        Some(())
    }

    fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }

    fn remove(&mut self, byte: u8) {
        self.0[usize::from(byte >> 6)] &= !(1 << (byte & 63));
    }

    fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] & (1 << (byte & 63)) != 0
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn matches(pattern: &[u8], path: &[u8]) -> bool {
        PathPattern::parse(pattern).is_some_and(|p| p.matches(Candidate::new(path, false)))
    }

    #[test]
    fn stars_stay_within_a_name_and_deep_stars_do_not() {
        for (pattern, path, expected) in [
            ("*.o", "a/b.o", true),
            ("/*.o", "a/b.o", false),
            ("a/*", "a/b", true),
            ("a/*", "a/b/c", false),
            ("a/**", "a/b/c", true),
            ("a/**", "a", false),
            ("a/**/b", "a/b", true),
            ("a/**/b", "a/x/y/b", true),
            ("a/**/b", "a/xb", false),
            ("**/b", "b", true),
            ("a/*b/**/c?", "a/xb/y/cc", true),
            ("x/a**b", "x/a/b", false),
            ("**\\/b", "x/y/b", true),
            ("**\\/b", "b", false),
            ("/a**/b", "ab", true),
            ("a/*x*y/z", "a/xxy/z", true),
            ("a/*x*y/z", "a/x/y/z", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), path.as_bytes()),
                expected,
                "{pattern} against {path}"
            );
        }
    }

    #[test]
    fn a_pattern_that_can_match_nothing_is_none() {
        for pattern in [
            "", "/", "//", "!", "!/", "a[", "a[b", "a\\", "[[:no:]]", "[]", "[!]",
        ] {
            assert_eq!(PathPattern::parse(pattern.as_bytes()), None, "{pattern}");
        }
    }

    #[test]
    fn hostile_patterns_take_no_longer_than_their_size() {
        let started = Instant::now();
        let name = vec![b'a'; 255];
        let path = [name.as_slice(); 15].join(&b'/');
        let stars = [b"*a".repeat(100), b"b".to_vec()].concat();
        let deep = [b"**/".repeat(300_000), b"*a*b".to_vec()].concat();
        let components = [b"**/*a*a/".repeat(100), b"b".to_vec()].concat();
        let classes = [b"*[a-z]?".repeat(100_000), b"b".to_vec()].concat();
        let directories = [b"**/a/".repeat(100), b"b".to_vec()].concat();
        let partly_named = [b"**/a*/".repeat(100), b"b".to_vec()].concat();
        let many = [b"a/".repeat(2_000), b"a".to_vec()].concat();
        for pattern in [stars, deep, components, classes, directories, partly_named] {
            for path in [&name, &path, &many] {
                assert!(!matches(&pattern, path));
            }
        }
        // Tried one by one, the ways to share 255 bytes among 100 stars outlast the machine.
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}

/// What the tests of rules ask git itself about: a repository of its own, and rules made at random.
#[cfg(test)]
pub(crate) mod oracle {
    use std::ffi::OsStr;
    use std::io::Write as _;
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    /// A repository in a directory that goes away with it.
    pub(crate) struct Oracle {
        dir: tempfile::TempDir,
    }

    impl Oracle {
        pub(crate) fn new() -> Self {
            let oracle = Self {
                dir: tempfile::tempdir().unwrap(),
            };
            oracle.ask(&["init", "--quiet", "--template="], &[]);
            oracle
        }

        fn at(&self, path: &[u8]) -> PathBuf {
            self.dir.path().join(OsStr::from_bytes(path))
        }

        pub(crate) fn make_dir(&self, path: &[u8]) {
            std::fs::create_dir_all(self.at(path)).unwrap();
        }

        pub(crate) fn write(&self, path: &str, text: &[u8]) {
            let file = self.at(path.as_bytes());
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }

        /// Runs git there, gives it `paths` on its standard input, and splits what it prints: both
        /// at NUL bytes.
        pub(crate) fn ask(&self, args: &[&str], paths: &[Vec<u8>]) -> Vec<Vec<u8>> {
            let mut git = Command::new("git")
                .args(args)
                .current_dir(self.dir.path())
                .env_clear()
                .env("PATH", std::env::var_os("PATH").unwrap())
                .env("HOME", self.dir.path())
                .env("LC_ALL", "C")
                .env("GIT_CONFIG_NOSYSTEM", "1")
                .env("GIT_CONFIG_GLOBAL", "/dev/null")
                .env("GIT_ATTR_NOSYSTEM", "1")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut input = git.stdin.take().unwrap();
            let text: Vec<u8> = paths
                .iter()
                .flat_map(|p| p.iter().chain(b"\0"))
                .copied()
                .collect();
            let writer = std::thread::spawn(move || input.write_all(&text));
            let output = git.wait_with_output().unwrap();
            writer.join().unwrap().unwrap();
            // 1: no path is ignored.
            assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
            let mut fields: Vec<_> = output.stdout.split(|b| *b == 0).collect();
            fields.pop();
            fields.into_iter().map(<[u8]>::to_vec).collect()
        }
    }

    /// A sequence of numbers that looks random and is the same each time (xorshift64*).
    pub(crate) struct Dice(u64);

    const NAMES: [&[u8]; 18] = [
        b"a",
        b"b",
        b"ab",
        b"ba",
        b"aab",
        b"foo",
        b"foo.o",
        b"b.o",
        b"#x",
        b"!x",
        b"a ",
        b"a b",
        b"[",
        b"\xff",
        "\u{e9}".as_bytes(),
        b".a",
        b"a\\",
        b"c-d",
    ];

    const FRAGMENTS: [&[u8]; 49] = [
        b"a",
        b"b",
        b"x",
        b"ab",
        b"foo",
        b".o",
        b"*",
        b"*",
        b"?",
        b"/",
        b"/",
        b"**",
        b"**/",
        b"/**",
        b"/**/",
        b"**\\/",
        b"/**\\/",
        b"***",
        b"[a-z]",
        b"[!a]",
        b"[^a]",
        b"[ab]",
        b"a[/]b",
        b"[]a]",
        b"[!]a]",
        b"[a-",
        b"[",
        b"]",
        b"\\",
        b"\\a",
        b"\\/",
        b"\\*",
        b"[\\a-\\c]",
        b"[a\\]]",
        b"[[:alpha:]]",
        b"[[:upper:]b]",
        b"[[:no:]]",
        b"[[:a]",
        b"[[:",
        b"\xff",
        b"\xc3\xa9",
        b"[\x80-\xff]",
        b"\\#x",
        b"\\!x",
        b" ",
        b"\\ ",
        b"-",
        b"\r",
        b"\0",
    ];

    impl Dice {
        pub(crate) fn new(seed: u64) -> Self {
            Self(seed | 1)
        }

        pub(crate) fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
            usize::try_from(number).unwrap() % end
        }

        pub(crate) fn chance(&mut self, percent: usize) -> bool {
            self.below(100) < percent
        }

        fn pick<T: Copy>(&mut self, from: &[T]) -> T {
            from[self.below(from.len())]
        }

        /// A path of one to four names.
        pub(crate) fn path(&mut self) -> Vec<u8> {
            let depth = 1 + self.below(4);
            let names: Vec<_> = (0..depth).map(|_| self.pick(&NAMES)).collect();
            names.join(&b'/')
        }

        /// A pattern: half of them of any fragments, half made of a path by putting in wildcards.
        pub(crate) fn pattern(&mut self) -> Vec<u8> {
            let mut pattern = Vec::new();
            if self.chance(15) {
                pattern.push(b'!');
            }
            if self.chance(20) {
                pattern.push(b'/');
            }
            if self.chance(50) {
                for _ in 0..=self.below(5) {
                    pattern.extend_from_slice(self.pick(&FRAGMENTS));
                }
            } else {
                let path = self.path();
                let mut names: Vec<_> = path.split(|b| *b == b'/').collect();
                if self.chance(40) {
                    names.drain(..names.len() - 1);
                }
                for (at, name) in names.iter().enumerate() {
                    if at > 0 {
                        pattern.push(b'/');
                    }
                    match self.below(8) {
                        0 => pattern.extend_from_slice(b"**"),
                        1 => pattern.extend_from_slice(b"*"),
                        2 => {
                            pattern.push(b'*');
                            pattern.extend_from_slice(&name[self.below(name.len())..]);
                        }
                        3 => {
                            pattern.extend_from_slice(&name[..self.below(name.len())]);
                            pattern.extend_from_slice(self.pick(&[b"*".as_slice(), b"**", b"?"]));
                        }
                        4 => {
                            pattern.extend_from_slice(&name[1..]);
                            pattern.extend_from_slice(self.pick(&FRAGMENTS));
                        }
                        _ => pattern.extend_from_slice(name),
                    }
                }
            }
            if self.chance(15) {
                pattern.push(b'/');
            }
            pattern
        }
    }
}
