//! The attributes of a repository, as far as they affect raw bytes.
//!
//! git converts a file between the worktree and its objects if attributes or configuration say so.
//! A snapshot has raw bytes, so it may use the object that the index names for a file only if no
//! conversion was possible. A conversion of line endings changes the size, so comparing sizes
//! detects it, and attributes are not needed. A filter or an encoding may keep the size, and so may
//! `ident` if the object has an `$Id$` that is already filled in. The rules are those of
//! gitattributes(5), applied more carefully than git does: if any line requests a conversion, it
//! counts, even if a stronger line cancels it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::attribute_line::{self, AttributeLine, Subject, Value};
use crate::ignore_rules::FileStack;
use crate::path::RelPath;
use crate::path_pattern::{Candidate, PathPattern};

/// How far the object of a clean index entry may stand for the bytes of its file.
///
/// The attributes are those of today. An entry that was checked out under others is clean by its
/// stat data all the same; see [`AttributeStack::descend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trust {
    /// It is the file, byte for byte, if it has the file's size.
    AsIs,
    /// Only reading the file can tell: a filter, an encoding or `ident` may be at work, or a macro
    /// whose definition is not known.
    Never,
}

/// The lines of one `.gitattributes`, `info/attributes` or the like. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AttributeFile(Arc<Lines>);

#[derive(Debug, Default)]
struct Lines {
    /// Only those that may matter to raw bytes.
    patterns: Vec<(PathPattern, Effect)>,
    definitions: Definitions,
}

/// What macros are made of. One that is defined twice has both.
type Definitions = BTreeMap<Name, Effect>;

/// What macros come to, those inside of them included.
type Macros = BTreeMap<Name, Trust>;

type Name = Box<[u8]>;

/// What a list of attributes asks for.
#[derive(Clone, Debug)]
struct Effect {
    /// By the attributes that convert.
    trust: Trust,
    /// All attributes that are set to true. Each may be a macro.
    set: Vec<Name>,
}

/// The attributes that hold in one directory of a walk. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AttributeStack {
    outer: Arc<Outer>,
    macros: Arc<Macros>,
    files: FileStack<Asked>,
}

/// What the stack was made of. The file at the top of the work tree may define what they use.
#[derive(Debug)]
struct Outer {
    prefix: RelPath,
    outside: Vec<AttributeFile>,
    above: Vec<(RelPath, AttributeFile)>,
}

/// A file, and those of its lines that ask for something, by what they ask for, most first.
#[derive(Clone, Debug)]
struct Asked {
    file: AttributeFile,
    lines: Arc<[(Trust, usize)]>,
}

/// Attributes that never reach the bytes of a file in the worktree, or change its size. Any other
/// that is set, and is not known to be a macro, may be one of a file that was not handed in.
const HARMLESS: [&[u8]; 13] = [
    b"binary",
    b"conflict-marker-size",
    b"crlf",
    b"delta",
    b"diff",
    b"encoding",
    b"eol",
    b"export-ignore",
    b"export-subst",
    b"lockable",
    b"merge",
    b"text",
    b"whitespace",
];

/// What the attributes of code hosts begin with.
const HARMLESS_PREFIXES: [&[u8]; 2] = [b"linguist-", b"gitlab-"];

impl Trust {
    /// What an attribute asks for if it has any value but false; `None` if it converts nothing, or
    /// shows it by the size.
    fn asked_by(name: &[u8]) -> Option<Self> {
        match name {
            b"filter" | b"ident" | b"working-tree-encoding" => Some(Self::Never),
            _ => None,
        }
    }
}

impl AttributeFile {
    /// Reads the text of an attribute file.
    ///
    /// Nothing is an error: a line that can match no file is left out. A line with a malformed
    /// attribute, or of 2048 bytes and more, counts, though recent versions of git take nothing
    /// from it.
    pub fn parse(text: &[u8]) -> Self {
        let mut lines = Lines::default();
        for line in attribute_line::lines(text) {
            lines.add(line);
        }
        Self(Arc::new(lines))
    }
}

impl Lines {
    fn add(&mut self, line: AttributeLine<'_>) {
        let effect = Effect::of(&line);
        if effect.trust == Trust::AsIs && effect.set.is_empty() {
            return;
        }
        match line.subject {
            Subject::Macro(name) => {
                let own = self.definitions.entry(name.into()).or_default();
                own.trust = own.trust.max(effect.trust);
                own.set.extend(effect.set);
            }
            Subject::Files(pattern) => self.patterns.push((pattern, effect)),
        }
    }
}

impl Default for Effect {
    fn default() -> Self {
        Self {
            trust: Trust::AsIs,
            set: Vec::new(),
        }
    }
}

impl Effect {
    fn of(line: &AttributeLine<'_>) -> Self {
        let mut effect = Self::default();
        for (name, value) in line.attributes() {
            match value {
                Value::False | Value::Unset => continue,
                Value::True => effect.set.push(name.into()),
                Value::Text(_) => {}
            }
            effect.trust = effect
                .trust
                .max(Trust::asked_by(name).unwrap_or(Trust::AsIs));
        }
        effect
    }

    /// What it asks for in all, if `macros` are all there are.
    fn with(&self, macros: &Macros) -> Trust {
        let set = self.set.iter().map(|name| match macros.get(name) {
            Some(trust) => *trust,
            None => trust_in_unknown(name),
        });
        set.fold(self.trust, Trust::max)
    }
}

/// What to think of an attribute that is set and no macro that we know of.
fn trust_in_unknown(name: &[u8]) -> Trust {
    let is_harmless = HARMLESS.contains(&name)
        || HARMLESS_PREFIXES.iter().any(|p| name.starts_with(p))
        || Trust::asked_by(name).is_some();
    if is_harmless {
        Trust::AsIs
    } else {
        Trust::Never
    }
}

/// Follows `definitions` into each other; they may do so in circles. Takes time in proportion to
/// their size, but for a logarithm.
fn macros_of(definitions: &Definitions) -> Macros {
    let mut users: BTreeMap<&[u8], Vec<&Name>> = BTreeMap::new();
    let mut macros = Macros::new();
    for (name, effect) in definitions {
        let mut trust = effect.trust;
        for used in &effect.set {
            if definitions.contains_key(used) {
                users.entry(used).or_default().push(name);
            } else {
                trust = trust.max(trust_in_unknown(used));
            }
        }
        macros.insert(name.clone(), trust);
    }
    let at_level = macros.iter().filter(|(_, trust)| **trust == Trust::Never);
    let mut open: Vec<Name> = at_level.map(|(name, _)| name.clone()).collect();
    while let Some(name) = open.pop() {
        for user in users.get(&*name).into_iter().flatten() {
            let trust = macros.get_mut(*user).expect("every user has a definition");
            if *trust < Trust::Never {
                *trust = Trust::Never;
                open.push((*user).clone());
            }
        }
    }
    macros
}

impl Asked {
    /// `None` if the file asks for nothing.
    fn new(file: &AttributeFile, macros: &Macros) -> Option<Self> {
        let lines = file.0.patterns.iter().enumerate();
        let mut lines: Vec<_> = lines
            .map(|(at, (_, effect))| (effect.with(macros), at))
            .filter(|(trust, _)| *trust > Trust::AsIs)
            .collect();
        if lines.is_empty() {
            return None;
        }
        lines.sort_by(|a, b| b.cmp(a));
        Some(Self {
            file: file.clone(),
            lines: lines.into(),
        })
    }

    /// What it asks for `path`, relative to its directory, if that is more than `least`.
    fn more_than(&self, least: Trust, path: &[u8]) -> Option<Trust> {
        let candidate = Candidate::new(path, false);
        self.lines
            .iter()
            .take_while(|(trust, _)| *trust > least)
            .find(|(_, at)| self.file.0.patterns[*at].0.matches(candidate))
            .map(|(trust, _)| *trust)
    }
}

impl AttributeStack {
    /// For a workspace that is a whole work tree.
    ///
    /// `outside` are the attribute files outside of the work tree: the system's, the user's and
    /// `info/attributes`.
    pub fn new(outside: Vec<AttributeFile>) -> Self {
        Self::new_below(&RelPath::root(), outside, Vec::new())
    }

    /// For a workspace at `prefix` in its work tree. `above` are the attribute files of the
    /// directories over the workspace, each with its directory; like `prefix` they are relative to
    /// the work tree. A directory may occur more than once.
    pub fn new_below(
        prefix: &RelPath,
        outside: Vec<AttributeFile>,
        above: Vec<(RelPath, AttributeFile)>,
    ) -> Self {
        let outer = Outer {
            prefix: prefix.clone(),
            outside,
            above,
        };
        Self::resolve(Arc::new(outer), &[])
    }

    /// `top` are the files at the top of the work tree, if that is the workspace. Only they and
    /// those outside may define macros.
    fn resolve(outer: Arc<Outer>, top: &[AttributeFile]) -> Self {
        let above_all = outer.above.iter().filter(|(dir, _)| dir.is_root());
        let may_define = outer.outside.iter().chain(above_all.map(|(_, file)| file));
        let mut definitions = Definitions::new();
        for (name, effect) in may_define.chain(top).flat_map(|file| &file.0.definitions) {
            let own = definitions.entry(name.clone()).or_default();
            own.trust = own.trust.max(effect.trust);
            own.set.extend(effect.set.iter().cloned());
        }
        let macros = macros_of(&definitions);
        let outside = outer.outside.iter();
        let above = outer.above.iter();
        let files = FileStack::new(
            &outer.prefix,
            outside
                .filter_map(|file| Asked::new(file, &macros))
                .collect(),
            above
                .filter_map(|(dir, file)| Some((dir.clone(), Asked::new(file, &macros)?)))
                .collect(),
        );
        let stack = Self {
            outer,
            macros: Arc::new(macros),
            files,
        };
        stack.add(&RelPath::root(), top)
    }

    /// The attributes that hold in `dir`, a directory of the current one or the workspace itself.
    ///
    /// `files` are its own `.gitattributes`; there may be several. An entry was perhaps checked out
    /// under the `.gitattributes` that the index has, and not the one that lies in the worktree
    /// today: handing in both covers it.
    pub fn descend(&self, dir: &RelPath, files: impl IntoIterator<Item = AttributeFile>) -> Self {
        let files: Vec<_> = files.into_iter().collect();
        let defines = |file: &AttributeFile| !file.0.definitions.is_empty();
        if dir.is_root() && self.outer.prefix.is_root() && files.iter().any(defines) {
            Self::resolve(Arc::clone(&self.outer), &files)
        } else {
            self.add(dir, &files)
        }
    }

    fn add(&self, dir: &RelPath, files: &[AttributeFile]) -> Self {
        let mut stack = self.clone();
        for asked in files
            .iter()
            .filter_map(|file| Asked::new(file, &self.macros))
        {
            stack.files = stack.files.descend(dir, asked);
        }
        stack
    }

    /// How far to trust the index for the file at `path`, which lies directly in the current
    /// directory.
    pub fn trust(&self, path: &RelPath) -> Trust {
        let mut trust = Trust::AsIs;
        self.files.find(path, |asked, below| {
            trust = asked.more_than(trust, below).unwrap_or(trust);
            (trust == Trust::Never).then_some(())
        });
        trust
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::attribute_line::is_blank;
    use crate::path::printable_bytes;
    use crate::path_pattern::oracle::{Dice, Oracle};

    fn rel(path: impl AsRef<[u8]>) -> RelPath {
        RelPath::new(path.as_ref()).unwrap()
    }

    const MACROS: &[u8] = b"[attr]hard filter=x\n[attr]soft text\n[attr]outer inner diff\n\
        [attr]inner -merge hard\n[attr]ring other\n[attr]other ring ident\n";

    const POSITIVE: [&str; 18] = [
        "text",
        "text=auto",
        "eol=crlf",
        "eol=lf",
        "ident",
        "crlf",
        "crlf=input",
        "filter=lfs",
        "working-tree-encoding=UTF-16",
        "diff=cpp",
        "diff",
        "merge=union",
        "whitespace",
        "linguist-vendored",
        "hard",
        "soft",
        "outer",
        "ring",
    ];

    const ANY: [&str; 10] = [
        "-text",
        "!text",
        "-filter",
        "!filter",
        "binary",
        "-hard",
        "!soft",
        "nobody-knows",
        "-crlf",
        "9=!",
    ];

    /// A line for a pattern, quoted as git's own quoting allows, if need be or by chance.
    fn line(dice: &mut Dice, pattern: &[u8], attributes: &[&str]) -> Vec<u8> {
        let mut line = Vec::new();
        if pattern.iter().any(is_blank) || dice.chance(20) {
            line.push(b'"');
            for byte in pattern {
                match byte {
                    b'"' | b'\\' => line.extend([b'\\', *byte]),
                    b'!'..=b'~' if dice.chance(80) => line.push(*byte),
                    _ => line.extend(format!("\\{byte:03o}").bytes()),
                }
            }
            line.push(b'"');
        } else {
            line.extend_from_slice(pattern);
        }
        for attribute in attributes {
            line.push(b' ');
            line.extend_from_slice(attribute.as_bytes());
        }
        line
    }

    /// How far git's own answers let us trust each of `paths`.
    fn ask(git: &Oracle, paths: &[RelPath]) -> Vec<Trust> {
        let converting = [
            "text",
            "eol",
            "crlf",
            "ident",
            "filter",
            "working-tree-encoding",
        ];
        let args = [["check-attr", "-z", "--stdin"].as_slice(), &converting].concat();
        let paths: Vec<_> = paths.iter().map(|p| p.as_bytes().to_vec()).collect();
        let answers = git.ask(&args, &paths);
        assert_eq!(answers.len(), paths.len() * 3 * converting.len());
        let trust = |fields: &[Vec<u8>]| match fields[2].as_slice() {
            b"unspecified" | b"unset" => Trust::AsIs,
            _ => Trust::asked_by(&fields[1]).unwrap_or(Trust::AsIs),
        };
        answers
            .chunks(3 * converting.len())
            .map(|of_path| of_path.chunks(3).map(trust).max().unwrap())
            .collect()
    }

    #[test]
    fn attributes_made_at_random_are_never_taken_more_lightly_than_by_git() {
        let git = Oracle::new();
        let mut dice = Dice::new(0xa77b17e5);
        git.write(".gitattributes", MACROS);
        let outside = b"[attr]far hard\nonly/outside filter=x\n".as_slice();
        git.write(".git/info/attributes", outside);
        let mut texts = BTreeMap::from([(RelPath::root(), MACROS.to_vec())]);
        let mut paths = vec![rel("only/outside"), rel("x/only/outside")];
        for case in 0..500 {
            // Where nothing is taken back and nothing is unknown, git's answer is ours exactly.
            let is_exact = case % 2 == 0;
            let top = rel(format!("{}{case}", if is_exact { "exact" } else { "any" }));
            let text = |dice: &mut Dice| {
                let mut text = Vec::new();
                for _ in 0..=dice.below(3) {
                    let attributes: Vec<_> = (0..=dice.below(2))
                        .map(|_| match dice.below(POSITIVE.len() + ANY.len()) {
                            at if is_exact || at < POSITIVE.len() => POSITIVE[at % POSITIVE.len()],
                            at => ANY[at - POSITIVE.len()],
                        })
                        .collect();
                    let pattern = dice.pattern();
                    let pattern = pattern.split(|b| *b == 0).next().unwrap();
                    if dice.chance(10) {
                        text.push(b' ');
                    }
                    text.extend(line(dice, pattern, &attributes));
                    text.extend_from_slice(if dice.chance(10) { b"\r\n" } else { b"\n" });
                }
                text
            };
            texts.insert(top.clone(), text(&mut dice));
            if dice.chance(30) {
                texts.insert(top.join(b"a"), text(&mut dice));
            }
            paths.extend((0..12).map(|_| rel([top.as_bytes(), &dice.path()].join(&b'/'))));
        }
        for (dir, text) in &texts {
            let file = dir.join(b".gitattributes");
            git.write(std::str::from_utf8(file.as_bytes()).unwrap(), text);
        }

        let stack = AttributeStack::new(vec![AttributeFile::parse(outside)]);
        let mut seen = BTreeMap::<_, usize>::new();
        for (path, theirs) in paths.iter().zip(ask(&git, &paths)) {
            let mut own = stack.clone();
            let mut dir = RelPath::root();
            for name in path.names() {
                let text = texts.get(&dir);
                own = own.descend(&dir, text.map(|text| AttributeFile::parse(text)));
                dir = dir.join(name);
            }
            let ours = own.trust(path);
            let case = rel(path.names().next().unwrap());
            let story = || {
                let text = texts.get(&case).map(|text| printable_bytes(text));
                format!("{path}: {text:?}")
            };
            assert!(
                ours >= theirs,
                "{ours:?} where git says {theirs:?}: {}",
                story()
            );
            if case.as_bytes().starts_with(b"exact") {
                assert_eq!(ours, theirs, "{}", story());
                *seen.entry(theirs).or_default() += 1;
            }
        }
        assert_eq!(seen.len(), 2, "every trust");
        assert!(seen.values().all(|n| *n > 60), "{seen:?}");
    }

    fn trust_in(path: &str, text: &str) -> Trust {
        AttributeStack::new(Vec::new())
            .descend(
                &RelPath::root(),
                Some(AttributeFile::parse(text.as_bytes())),
            )
            .trust(&rel(path))
    }

    #[test]
    fn what_was_once_asked_for_is_not_taken_back() {
        for (text, expected) in [
            ("", Trust::AsIs),
            ("* -text\n*.png binary\n", Trust::AsIs),
            ("* text\n*.png -text\n", Trust::AsIs),
            ("*.png filter=lfs diff=lfs merge=lfs -text\n", Trust::Never),
            (
                "*.png filter=lfs\n*.png -filter\n*.png !filter\n",
                Trust::Never,
            ),
            ("# *.png text\n!*.png text\na.png/ text\n", Trust::AsIs),
            ("*.png export-subst linguist-generated\n", Trust::AsIs),
        ] {
            assert_eq!(trust_in("a.png", text), expected, "{text}");
        }
    }

    #[test]
    fn a_macro_that_nobody_defined_is_not_trusted() {
        assert_eq!(trust_in("a", "* mine\n"), Trust::Never);
        assert_eq!(
            trust_in("a", "* mine=1 -yours\n"),
            Trust::AsIs,
            "macros have no value"
        );
        assert_eq!(trust_in("a", "[attr]mine diff\n* mine\n"), Trust::AsIs);
        assert_eq!(trust_in("a", "[attr]mine yours\n* mine\n"), Trust::Never);
        assert_eq!(
            trust_in("a", "[attr]diff filter=x\n* diff\n"),
            Trust::Never,
            "a macro may have the name of a harmless attribute"
        );
    }

    #[test]
    fn the_top_of_the_work_tree_defines_macros_for_the_files_outside() {
        let outside = || vec![AttributeFile::parse(b"*.a mine\n*.b diff\n")];
        let top = || AttributeFile::parse(b"[attr]mine diff=x text\n[attr]diff filter=x\n");
        let stack = AttributeStack::new(outside());
        let trusts = |stack: &AttributeStack| ["x.a", "x.b", "x.c"].map(|p| stack.trust(&rel(p)));
        assert_eq!(trusts(&stack), [Trust::Never, Trust::AsIs, Trust::AsIs]);
        let defined = [Trust::AsIs, Trust::Never, Trust::AsIs];
        assert_eq!(trusts(&stack.descend(&RelPath::root(), [top()])), defined);

        let above = vec![(RelPath::root(), top())];
        let below = AttributeStack::new_below(&rel("ws"), outside(), above);
        assert_eq!(trusts(&below), defined);
        let not_the_top = AttributeStack::new_below(&rel("ws"), outside(), Vec::new())
            .descend(&RelPath::root(), [top()]);
        assert_eq!(
            trusts(&not_the_top),
            trusts(&stack),
            "as in git, no macros there"
        );
    }

    #[test]
    fn files_above_and_several_of_one_directory_add_up() {
        let above = vec![
            (rel("a"), AttributeFile::parse(b"/ws/*.txt filter=y\n")),
            (rel("elsewhere"), AttributeFile::parse(b"* filter=x\n")),
        ];
        let stack = AttributeStack::new_below(&rel("a/ws"), Vec::new(), above);
        let from_index = AttributeFile::parse(b"*.bin filter=x\n");
        let from_worktree = AttributeFile::parse(b"*.c working-tree-encoding=UTF-16\n");
        let root = stack.descend(&RelPath::root(), [from_index, from_worktree]);
        for (path, expected) in [
            ("a.txt", Trust::Never),
            ("a.bin", Trust::Never),
            ("a.c", Trust::Never),
            ("a.h", Trust::AsIs),
        ] {
            assert_eq!(root.trust(&rel(path)), expected, "{path}");
        }
        let deeper = root.descend(&rel("d"), None);
        assert_eq!(deeper.trust(&rel("d/a.txt")), Trust::AsIs, "anchored");
        assert_eq!(deeper.trust(&rel("d/a.bin")), Trust::Never);
    }

    #[test]
    fn a_hostile_megabyte_is_read_in_a_moment() {
        let started = std::time::Instant::now();
        let chain: String = (0..40_000)
            .map(|n| format!("[attr]m{n} m{}\n", n + 1))
            .collect();
        assert_eq!(
            trust_in("a", &format!("{chain}* m0\n")),
            Trust::Never,
            "m40000 is unknown"
        );
        let text = format!("* {}filter=x\n", "diff ".repeat(200_000));
        assert_eq!(
            trust_in("a", &text),
            Trust::Never,
            "a line too long for git counts"
        );
        for text in [
            "\"",
            "\"\\",
            "\"\\7",
            "\"\\08",
            "[attr]",
            "[attr] x",
            "\"[attr] x\"",
            "= =",
            "* =",
            "* -",
        ] {
            trust_in("a", text);
        }
        assert!(started.elapsed() < std::time::Duration::from_secs(5));
    }
}
