//! The attributes of paths, as git finds them when it adds files (gitattributes(5)).
//!
//! [`attributes`](crate::git::attributes) gives a cautious answer, a conversion that may be
//! requested; this module gives the exact values.

use std::collections::HashMap;
use std::rc::Rc;

use crate::git::attribute_line::{self, AttributeLine, Subject, Value};
use crate::path::RelPath;
use crate::path_pattern::{Candidate, PathPattern};

/// git takes nothing from a line that is longer.
const MAX_LINE_BYTES: usize = 2048;

type Name = Vec<u8>;

/// The attributes that a line gives, in its order.
type Given = Rc<[(Name, Value)]>;

/// The attributes of one path.
#[derive(Clone, Debug, Default)]
pub(super) struct AttributeValues(HashMap<Name, Value>);

impl AttributeValues {
    pub(super) fn get(&self, name: &[u8]) -> Option<&Value> {
        self.0.get(name)
    }

    /// Adds what a line gives that no stronger one gave, the last first, with what macros stand
    /// for.
    fn fill(&mut self, given: &Given, macros: &HashMap<Name, Given>) {
        let mut waiting = vec![(Rc::clone(given), given.len())];
        while let Some((given, left)) = waiting.pop() {
            let Some(at) = left.checked_sub(1) else {
                continue;
            };
            let (name, value) = given[at].clone();
            waiting.push((given, at));
            if self.0.contains_key(&name) {
                continue;
            }
            if value == Value::True
                && let Some(inner) = macros.get(&name)
            {
                waiting.push((Rc::clone(inner), inner.len()));
            }
            self.0.insert(name, value);
        }
    }
}

/// The lines of an attribute file.
#[derive(Clone, Debug, Default)]
pub(super) struct AttributeLines {
    patterns: Vec<(PathPattern, Given)>,
    macros: Vec<(Name, Given)>,
}

impl AttributeLines {
    /// Reads the text of an attribute file. A line that git would not take says nothing.
    pub(super) fn parse(text: &[u8]) -> Self {
        let mut lines = Self::default();
        for line in attribute_line::lines(text).filter(|line| line.len < MAX_LINE_BYTES) {
            let Some(given) = given(&line) else {
                continue;
            };
            match line.subject {
                Subject::Macro(name) if is_name(&name) => lines.macros.push((name, given)),
                Subject::Macro(_) => {}
                Subject::Files(pattern) => lines.patterns.push((pattern, given)),
            }
        }
        lines
    }
}

/// The attributes of a line; `None` if one of them is malformed.
fn given(line: &AttributeLine<'_>) -> Option<Given> {
    line.attributes()
        .map(|(name, value)| is_name(name).then(|| (name.to_vec(), value)))
        .collect()
}

/// Whether a line may give an attribute of this name. git keeps those with `builtin_` to itself.
fn is_name(name: &[u8]) -> bool {
    let is_inner = |b: &u8| b.is_ascii_alphanumeric() || b"-._".contains(b);
    let is_reserved = name.starts_with(b"-") || name.starts_with(b"builtin_");
    !name.is_empty() && !is_reserved && name.iter().all(is_inner)
}

/// The attributes of the paths of a work tree.
pub(super) struct AttributeFinder<'a> {
    /// The weakest first.
    outside: Vec<AttributeLines>,
    /// `info/attributes`.
    strongest: Option<AttributeLines>,
    /// Reads the `.gitattributes` of a directory below the top of the work tree.
    read: &'a mut FileReader<'a>,
    known: HashMap<RelPath, Option<Rc<AttributeLines>>>,
    macros: Option<Rc<HashMap<Name, Given>>>,
}

/// Answers with the text of the attribute file of a directory; `None` if it has none.
pub(in crate::git) type FileReader<'a> =
    dyn FnMut(&RelPath) -> Result<Option<Vec<u8>>, crate::commit::CommitError> + 'a;

impl<'a> AttributeFinder<'a> {
    pub(super) fn new(
        outside: Vec<AttributeLines>,
        strongest: Option<AttributeLines>,
        read: &'a mut FileReader<'a>,
    ) -> Self {
        Self {
            outside,
            strongest,
            read,
            known: HashMap::new(),
            macros: None,
        }
    }

    /// Whether files outside of the work tree give any attributes.
    pub(super) fn has_some_from_outside(&self) -> bool {
        self.strongest.is_some() || !self.outside.is_empty()
    }

    /// The attributes of the file at `path`, from the top of the work tree.
    pub(super) fn of(
        &mut self,
        path: &RelPath,
    ) -> Result<AttributeValues, crate::commit::CommitError> {
        let macros = self.macros()?;
        let mut values = AttributeValues::default();
        let mut look = |lines: &AttributeLines, below: &[u8]| {
            let candidate = Candidate::new(below, false);
            for (pattern, given) in lines.patterns.iter().rev() {
                if pattern.matches(candidate) {
                    values.fill(given, &macros);
                }
            }
        };
        if let Some(lines) = &self.strongest {
            look(lines, path.as_bytes());
        }
        let mut directory = path.parent();
        while let Some(at) = directory {
            if let Some(lines) = self.file(&at)? {
                let below = match at.is_root() {
                    true => path.as_bytes(),
                    false => &path.as_bytes()[at.as_bytes().len() + 1..],
                };
                look(&lines, below);
            }
            directory = at.parent();
        }
        for lines in self.outside.iter().rev() {
            look(lines, path.as_bytes());
        }
        Ok(values)
    }

    fn file(
        &mut self,
        directory: &RelPath,
    ) -> Result<Option<Rc<AttributeLines>>, crate::commit::CommitError> {
        if let Some(known) = self.known.get(directory) {
            return Ok(known.clone());
        }
        let text = (self.read)(directory)?;
        let lines = text.map(|text| Rc::new(AttributeLines::parse(&text)));
        self.known.insert(directory.clone(), lines.clone());
        Ok(lines)
    }

    /// What macros stand for. Only the files outside of the work tree and the one at its top define
    /// any; the strongest file counts, and in it the last line.
    fn macros(&mut self) -> Result<Rc<HashMap<Name, Given>>, crate::commit::CommitError> {
        if let Some(macros) = &self.macros {
            return Ok(Rc::clone(macros));
        }
        let binary = AttributeLines::parse(b"[attr]binary -diff -merge -text");
        let top = self.file(&RelPath::root())?;
        let files = [&binary].into_iter().chain(&self.outside);
        let files = files.chain(top.as_deref()).chain(&self.strongest);
        let mut macros = HashMap::new();
        for (name, given) in files.flat_map(|lines| &lines.macros) {
            macros.insert(name.clone(), Rc::clone(given));
        }
        let macros = Rc::new(macros);
        self.macros = Some(Rc::clone(&macros));
        Ok(macros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::test_repository::TestRepository;

    const FILES: [(&str, &str); 4] = [
        (
            ".gitattributes",
            "[attr]mine text=auto ident -filter\n[attr]ring mine ring eol=lf\n* text=auto\n\
             *.txt text eol=crlf\n*.bin binary\n*.bin text=input\n\"quo ted\" ident\n\
             sub/*.c mine\nsub/deep/* !text crlf\nbad,name text\n*.x ring -eol\n-x text\n",
        ),
        (
            "sub/.gitattributes",
            "*.txt -text !eol\n/a.c eol=lf\n*.d binary\n[attr]no text\n*.e no\n",
        ),
        (
            "sub/deep/.gitattributes",
            "* filter=lfs working-tree-encoding=UTF-16\n*.txt !filter mine\n",
        ),
        (
            ".git/info/attributes",
            "[attr]late -text eol=lf\n*.late late\n*.x -ident\n",
        ),
    ];

    const PATHS: [&str; 16] = [
        "a.txt",
        "a.bin",
        "quo ted",
        "a.c",
        "a.x",
        "a.late",
        "sub/a.txt",
        "sub/a.c",
        "sub/b.c",
        "sub/a.d",
        "sub/a.e",
        "sub/deep/a.txt",
        "sub/deep/a.c",
        "sub/deep/x.x",
        "sub/deep/a.late",
        "sub/deep/er/a.bin",
    ];

    const NAMES: [&str; 8] = [
        "text",
        "crlf",
        "eol",
        "ident",
        "filter",
        "working-tree-encoding",
        "binary",
        "mine",
    ];

    /// Compares the attributes that we find for `paths` with those that git finds.
    fn assert_found_as_by_git(git: &TestRepository, paths: &[&str]) {
        let read_file = |path: &str| std::fs::read(git.path.join(path)).ok();
        let strongest = read_file(".git/info/attributes");
        let strongest = strongest.map(|text| AttributeLines::parse(&text));
        let mut read = |directory: &RelPath| {
            let path = directory.join(b".gitattributes").to_string();
            Ok(read_file(&path))
        };
        let mut finder = AttributeFinder::new(Vec::new(), strongest, &mut read);
        for path in paths {
            let values = finder.of(&RelPath::new(path.as_bytes()).unwrap()).unwrap();
            let args = ["check-attr"].into_iter().chain(NAMES).chain(["--", path]);
            let theirs = git.git(&args.collect::<Vec<_>>());
            for (name, line) in NAMES.into_iter().zip(theirs.lines()) {
                let ours = match values.get(name.as_bytes()) {
                    Some(Value::True) => "set".to_owned(),
                    Some(Value::False) => "unset".to_owned(),
                    Some(Value::Text(text)) => String::from_utf8_lossy(text).into_owned(),
                    Some(Value::Unset) | None => "unspecified".to_owned(),
                };
                assert!(line.ends_with(&format!("{name}: {ours}")), "{line}: {ours}");
            }
        }
    }

    #[test]
    fn attributes_are_those_that_git_finds() {
        let git = TestRepository::new();
        for (path, text) in FILES {
            git.write(path, text);
        }
        assert_found_as_by_git(&git, &PATHS);
    }

    #[test]
    fn odd_lines_say_what_they_say_to_git() {
        // `* text` and a name to fill it up, of so many bytes in all.
        let long = |bytes: usize| format!("* text {}", "x".repeat(bytes - 7));
        let lines = [
            "* -text=foo ident".to_owned(),
            "* !text=foo ident eol=".to_owned(),
            "* ident =foo".to_owned(),
            "* ident -=foo".to_owned(),
            "* ident builtin_objectmode".to_owned(),
            "* ident -builtin_other=foo".to_owned(),
            "* ident not-builtin_".to_owned(),
            format!("{}\n", long(2047)),
            format!("{}\r\n", long(2047)),
            format!("{}\n", long(2048)),
            format!("{}\0and more\n", long(2047)),
            format!("{}* text\n", " ".repeat(2041)),
            format!("{}* text\n", " ".repeat(2042)),
            "* text\0\n* ident".to_owned(),
            "\"*\"ident\n\"* text".to_owned(),
        ];
        let git = TestRepository::new();
        git.write(
            ".gitattributes",
            "[attr]mine -text=foo ident\n[attr]builtin_mine text\n* mine\n",
        );
        let mut paths = vec!["file".to_owned()];
        for (number, line) in lines.iter().enumerate() {
            git.write(
                format!("{number}/.gitattributes"),
                format!("* !ident !text\n{line}"),
            );
            paths.push(format!("{number}/file"));
        }
        assert_found_as_by_git(&git, &paths.iter().map(String::as_str).collect::<Vec<_>>());
    }
}
