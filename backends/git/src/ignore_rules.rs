//! git's ignore rules: whether a rule file ignores a path.
//!
//! Nothing here reads a file. The code that walks a tree passes the text of its rule files.

use std::fmt;
use std::sync::Arc;

use crate::path::{RelPath, printable_bytes};
use crate::path_pattern::{Candidate, PathPattern, until_nul};

/// The rules of one `.gitignore`, `info/exclude` or the like. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RuleFile(Arc<Rules>);

#[derive(Debug)]
struct Rules {
    origin: String,
    /// In the order of the file.
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    number: usize,
    text: Box<[u8]>,
    pattern: PathPattern,
}

/// What git's ignore rules say of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is left alone, unless git tracks it.
    Ignored(Rule),
    /// A rule that begins with `!` takes it in.
    Included(Rule),
    /// No rule names it.
    None,
}

/// The rule that decided. Displayed as `.gitignore:3: *.log`.
#[derive(Clone)]
pub struct Rule {
    file: RuleFile,
    index: usize,
}

/// The ignore rules that hold in one directory of a walk. Cheap to clone.
///
/// Rules of a deeper directory win over those above it; then come `info/exclude` and the user's own
/// file. In one file the last rule that matches decides.
#[derive(Clone, Debug)]
pub struct IgnoreStack {
    files: FileStack<RuleFile>,
    /// Set if the workspace lies in a directory that is ignored itself: then all of it is.
    above: Option<Rule>,
}

impl RuleFile {
    /// Reads the text of a rule file as git does.
    ///
    /// A byte-order mark at the start and a carriage return at the end of a line are dropped, so
    /// are spaces at its end unless escaped; `#` begins a comment line. `origin` is the file's name
    /// for people, such as `a/.gitignore`. Nothing is an error: a line that can match no path is
    /// left out.
    pub fn parse(origin: impl Into<String>, text: &[u8]) -> Self {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let lines = text
            .split(|b| *b == b'\n')
            .enumerate()
            .filter(|(_, line)| !line.starts_with(b"#"))
            .filter_map(|(at, line)| {
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                let text = without_trailing_spaces(until_nul(line));
                Some(Line {
                    number: at + 1,
                    text: text.into(),
                    pattern: PathPattern::parse(text)?,
                })
            })
            .collect();
        let origin = origin.into();
        Self(Arc::new(Rules { origin, lines }))
    }

    /// Whether it has no rule that could match.
    pub fn is_empty(&self) -> bool {
        self.0.lines.is_empty()
    }

    /// What the last rule that matches `path` says; `path` is relative to the file's directory and
    /// not empty.
    ///
    /// The path itself is meant: a directory above it may be ignored, and then so is the path.
    pub fn decide(&self, path: &[u8], is_dir: bool) -> Decision {
        let candidate = Candidate::new(path, is_dir);
        let matches = |line: &Line| line.pattern.matches(candidate);
        let Some(index) = self.0.lines.iter().rposition(matches) else {
            return Decision::None;
        };
        let rule = Rule {
            file: self.clone(),
            index,
        };
        if self.0.lines[index].pattern.is_negated() {
            Decision::Included(rule)
        } else {
            Decision::Ignored(rule)
        }
    }
}

/// Cuts spaces at the end, but none that a backslash escapes, nor a backslash that ends the line.
fn without_trailing_spaces(line: &[u8]) -> &[u8] {
    let mut end = 0;
    let mut at = 0;
    while let Some(byte) = line.get(at) {
        at += match byte {
            b'\\' => 2,
            _ => 1,
        };
        if *byte != b' ' {
            end = at.min(line.len());
        }
    }
    &line[..end]
}

impl Decision {
    /// Whether the path is ignored.
    pub fn is_ignored(&self) -> bool {
        matches!(self, Self::Ignored(_))
    }

    /// The rule that decided.
    pub fn rule(&self) -> Option<&Rule> {
        match self {
            Self::Ignored(rule) | Self::Included(rule) => Some(rule),
            Self::None => None,
        }
    }
}

impl Rule {
    /// The name of its file, as it was given when the file was parsed.
    pub fn origin(&self) -> &str {
        &self.file.0.origin
    }

    /// The number of its line, from 1.
    pub fn line(&self) -> usize {
        self.file.0.lines[self.index].number
    }

    /// The line as it was written, without its end.
    pub fn pattern(&self) -> &[u8] {
        &self.file.0.lines[self.index].text
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        (self.origin(), self.line(), self.pattern())
            == (other.origin(), other.line(), other.pattern())
    }
}

impl Eq for Rule {}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rule({self})")
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pattern = printable_bytes(self.pattern());
        write!(f, "{}:{}: {pattern}", self.origin(), self.line())
    }
}

impl IgnoreStack {
    /// For a workspace that is a whole work tree. `outside` are the rule files outside of it, the
    /// weakest first: the user's own, then `info/exclude`.
    #[cfg(test)]
    pub fn new(outside: Vec<RuleFile>) -> Self {
        Self::new_below(&RelPath::root(), outside, Vec::new())
    }

    /// For a workspace at `prefix` in its work tree. `above` are the rule files of the directories
    /// over the workspace, each with its directory; like `prefix` they are relative to the work
    /// tree.
    pub fn new_below(
        prefix: &RelPath,
        outside: Vec<RuleFile>,
        above: Vec<(RelPath, RuleFile)>,
    ) -> Self {
        let outside = outside.into_iter().filter(|file| !file.is_empty());
        let above = above.into_iter().filter(|(_, file)| !file.is_empty());
        let files = FileStack::new(prefix, outside.collect(), above.collect());
        let mut dir = RelPath::root();
        let mut ignored_by = None;
        for name in prefix.names() {
            dir = dir.join(name);
            let decide = |file: &RuleFile, below: &[u8]| decided(file, below, true);
            if let Some(Decision::Ignored(rule)) = files.find_in_work_tree(dir.as_bytes(), decide) {
                ignored_by = Some(rule);
                break;
            }
        }
        Self {
            files,
            above: ignored_by,
        }
    }

    /// The rules that hold in `dir`, a directory of the current one or the workspace itself, whose
    /// own `.gitignore` is `file`.
    pub fn descend(&self, dir: &RelPath, file: Option<RuleFile>) -> Self {
        let files = match file {
            Some(file) if !file.is_empty() => self.files.descend(dir, file),
            _ => self.files.clone(),
        };
        Self {
            files,
            above: self.above.clone(),
        }
    }

    /// What the rules say of `path`, which lies directly in the current directory.
    ///
    /// Directories of the workspace above it must not be ignored: a walk never enters one that is.
    pub fn decide(&self, path: &RelPath, is_dir: bool) -> Decision {
        if let Some(rule) = &self.above {
            return Decision::Ignored(rule.clone());
        }
        self.files
            .find(path, |file, below| decided(file, below, is_dir))
            .unwrap_or(Decision::None)
    }

    /// What the rules of a whole tree say of `path`, wherever it lies: a directory that is ignored
    /// takes with it all that is below.
    ///
    /// `self` is a stack that has not descended. `rules_of` gives the rule file of a directory of
    /// the tree; it is asked from the workspace down to the parent of `path`, and not below an
    /// ignored directory. The workspace itself is never ignored.
    pub fn decide_in_tree(
        &self,
        rules_of: &dyn Fn(&RelPath) -> Option<RuleFile>,
        path: &RelPath,
        is_dir: bool,
    ) -> Decision {
        let mut stack = self.clone();
        let mut decision = Decision::None;
        let mut dir = RelPath::root();
        for name in path.names() {
            stack = stack.descend(&dir, rules_of(&dir));
            dir = dir.join(name);
            decision = stack.decide(&dir, is_dir || dir != *path);
            if decision.is_ignored() {
                break;
            }
        }
        decision
    }
}

fn decided(file: &RuleFile, below: &[u8], is_dir: bool) -> Option<Decision> {
    Some(file.decide(below, is_dir)).filter(|decision| *decision != Decision::None)
}

/// Files of rules that hold in one directory of a walk, the strongest first. Cheap to clone.
#[derive(Debug)]
pub struct FileStack<F> {
    outer: Arc<Outer<F>>,
    inner: Option<Arc<Inner<F>>>,
}

/// What holds in the whole workspace.
#[derive(Debug)]
struct Outer<F> {
    /// Of the workspace in its work tree.
    prefix: RelPath,
    /// The strongest first, each with its directory in the work tree.
    files: Vec<(RelPath, F)>,
}

/// The file of a directory of the workspace, and those of the directories above it.
#[derive(Debug)]
struct Inner<F> {
    dir: RelPath,
    file: F,
    above: Option<Arc<Inner<F>>>,
}

impl<F> FileStack<F> {
    /// `prefix`, `outside` and `above` are those of [`IgnoreStack::new_below`].
    pub fn new(prefix: &RelPath, outside: Vec<F>, above: Vec<(RelPath, F)>) -> Self {
        let outside = outside.into_iter().map(|file| (RelPath::root(), file));
        let mut above: Vec<_> = above
            .into_iter()
            .filter(|(dir, _)| prefix.starts_with(dir))
            .collect();
        above.sort_by_key(|(dir, _)| dir.as_bytes().len());
        let files = outside.chain(above).rev().collect();
        Self {
            outer: Arc::new(Outer {
                prefix: prefix.clone(),
                files,
            }),
            inner: None,
        }
    }

    /// Adds the file of `dir`, a directory of the workspace. It is stronger than all so far.
    pub fn descend(&self, dir: &RelPath, file: F) -> Self {
        let inner = Inner {
            dir: dir.clone(),
            file,
            above: self.inner.clone(),
        };
        Self {
            outer: Arc::clone(&self.outer),
            inner: Some(Arc::new(inner)),
        }
    }

    /// Asks the files one after the other, until one has an answer for `path`. Each gets the path
    /// relative to its own directory. The workspace itself is no question.
    pub fn find<T>(
        &self,
        path: &RelPath,
        mut answer: impl FnMut(&F, &[u8]) -> Option<T>,
    ) -> Option<T> {
        if path.is_root() {
            return None;
        }
        let mut next = self.inner.as_deref();
        while let Some(inner) = next {
            let found = below(&inner.dir, path.as_bytes()).and_then(|p| answer(&inner.file, p));
            if found.is_some() {
                return found;
            }
            next = inner.above.as_deref();
        }
        if self.outer.files.is_empty() {
            return None;
        }
        let prefix = self.outer.prefix.as_bytes();
        if prefix.is_empty() {
            return self.find_in_work_tree(path.as_bytes(), answer);
        }
        self.find_in_work_tree(&[prefix, path.as_bytes()].join(&b'/'), answer)
    }

    /// Like [`find`](Self::find), with the files of the workspace left out, for a path relative to
    /// the work tree.
    fn find_in_work_tree<T>(
        &self,
        path: &[u8],
        mut answer: impl FnMut(&F, &[u8]) -> Option<T>,
    ) -> Option<T> {
        let files = &self.outer.files;
        files
            .iter()
            .find_map(|(dir, file)| answer(file, below(dir, path)?))
    }
}

/// What is left of `path` below `dir`; `None` if it does not lie there.
fn below<'a>(dir: &RelPath, path: &'a [u8]) -> Option<&'a [u8]> {
    if dir.is_root() {
        return Some(path);
    }
    path.strip_prefix(dir.as_bytes())?.strip_prefix(b"/")
}

impl<F> Clone for FileStack<F> {
    fn clone(&self) -> Self {
        Self {
            outer: Arc::clone(&self.outer),
            inner: self.inner.clone(),
        }
    }
}

impl<F> Drop for Inner<F> {
    fn drop(&mut self) {
        // One by one: a tree can be deeper than the stack of a thread.
        let mut next = self.above.take();
        while let Some(inner) = next {
            next = Arc::into_inner(inner).and_then(|mut inner| inner.above.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::path_pattern::oracle::{Dice, Oracle};

    fn rel(path: impl AsRef<[u8]>) -> RelPath {
        RelPath::new(path.as_ref()).unwrap()
    }

    /// The rule files of a tree, by directory, as both git and we see them.
    #[derive(Default)]
    struct Tree {
        files: BTreeMap<RelPath, RuleFile>,
        dirs: BTreeSet<RelPath>,
    }

    impl Tree {
        fn write(&mut self, git: &Oracle, dir: &RelPath, text: &[u8]) {
            let origin = String::from_utf8(dir.join(b".gitignore").as_bytes().to_vec()).unwrap();
            git.write(&origin, text);
            self.files
                .insert(dir.clone(), RuleFile::parse(origin, text));
        }

        fn make_dir(&mut self, git: &Oracle, dir: &RelPath) {
            if self.dirs.insert(dir.clone()) {
                git.make_dir(dir.as_bytes());
            }
        }

        /// What we say of `path`, in the words of `git check-ignore --verbose`.
        fn verdict(&self, stack: &IgnoreStack, path: &RelPath) -> [Vec<u8>; 4] {
            let rules_of = |dir: &RelPath| self.files.get(dir).cloned();
            let decision = stack.decide_in_tree(&rules_of, path, self.dirs.contains(path));
            in_words(&decision, path)
        }
    }

    fn in_words(decision: &Decision, path: &RelPath) -> [Vec<u8>; 4] {
        let (origin, line, pattern) = match decision.rule() {
            Some(rule) => (rule.origin(), rule.line().to_string(), rule.pattern()),
            None => ("", String::new(), b"".as_slice()),
        };
        [origin.as_bytes(), line.as_bytes(), pattern, path.as_bytes()].map(<[u8]>::to_vec)
    }

    const CHECK_IGNORE: [&str; 6] = [
        "check-ignore",
        "--verbose",
        "--non-matching",
        "--no-index",
        "-z",
        "--stdin",
    ];

    /// Asks git about `paths`; its answer to each is origin, line, pattern and path.
    fn ask(git: &Oracle, paths: &[RelPath]) -> Vec<Vec<Vec<u8>>> {
        let paths: Vec<_> = paths.iter().map(|p| p.as_bytes().to_vec()).collect();
        let answers: Vec<_> = git
            .ask(&CHECK_IGNORE, &paths)
            .chunks(4)
            .map(<[Vec<u8>]>::to_vec)
            .collect();
        assert_eq!(answers.len(), paths.len());
        answers
    }

    fn shown(fields: &[Vec<u8>]) -> Vec<String> {
        fields.iter().map(|f| printable_bytes(f)).collect()
    }

    #[test]
    fn rules_made_at_random_mean_what_they_mean_to_git() {
        let git = Oracle::new();
        let mut dice = Dice::new(0x5711f4a3e);
        let mut tree = Tree::default();
        let mut paths = Vec::new();
        for case in 0..400 {
            let top = rel(format!("case{case}"));
            tree.make_dir(&git, &top);
            let own: Vec<_> = (0..12)
                .map(|_| rel([top.as_bytes(), &dice.path()].join(&b'/')))
                .collect();
            let mut text = Vec::new();
            for at in 0..=dice.below(4) {
                if at > 0 {
                    text.extend_from_slice(if dice.chance(10) { b"\r\n" } else { b"\n" });
                }
                text.extend(dice.pattern());
            }
            if dice.chance(5) {
                text.splice(0..0, *b"\xef\xbb\xbf");
            }
            tree.write(&git, &top, &text);
            if dice.chance(30) {
                tree.write(&git, &top.join(b"a"), &dice.pattern());
                tree.dirs.insert(top.join(b"a"));
            }
            for path in own {
                if dice.chance(30) {
                    tree.make_dir(&git, &path);
                }
                let mut above = path.parent();
                while let Some(dir) = above.filter(|dir| *dir != top) {
                    tree.make_dir(&git, &dir);
                    above = dir.parent();
                }
                paths.push(path);
            }
        }

        let stack = IgnoreStack::new(Vec::new());
        let mut seen = BTreeMap::<_, usize>::new();
        for (path, theirs) in paths.iter().zip(ask(&git, &paths)) {
            let ours = tree.verdict(&stack, path);
            let case = rel(path.names().next().unwrap());
            assert_eq!(shown(&ours), shown(&theirs), "{:?}", tree.files[&case]);
            let kind = (theirs[2].is_empty(), theirs[2].starts_with(b"!"));
            *seen.entry(kind).or_default() += 1;
        }
        assert_eq!(seen.len(), 3, "ignored, included and neither");
        assert!(seen.values().all(|n| *n > 60), "{seen:?}");
    }

    #[test]
    fn every_class_has_the_bytes_that_it_has_in_git() {
        let names = [
            "alnum", "alpha", "blank", "cntrl", "digit", "graph", "lower", "print", "punct",
            "space", "upper", "xdigit",
        ];
        let mut classes: Vec<_> = names.iter().map(|n| format!("[[:{n}:]]")).collect();
        classes.extend(names.iter().map(|n| format!("[^[:{n}:]]")));
        classes.extend(
            [
                "?",
                "[!-~]",
                "[+-9]",
                "[]-a]",
                "[a-]",
                "[-a]",
                "[z-a]",
                "[a-c-e]",
                "[[:digit:]-z]",
                "[\\]]",
            ]
            .map(str::to_owned),
        );
        let git = Oracle::new();
        let mut tree = Tree::default();
        let mut paths = Vec::new();
        for (case, class) in classes.iter().enumerate() {
            let dir = rel(format!("case{case}"));
            tree.make_dir(&git, &dir);
            tree.write(&git, &dir, format!("/x{class}").as_bytes());
            let bytes = (1..=u8::MAX).filter(|byte| *byte != b'/');
            paths.extend(bytes.map(|byte| dir.join(&[b'x', byte])));
        }
        let stack = IgnoreStack::new(Vec::new());
        for (path, theirs) in paths.iter().zip(ask(&git, &paths)) {
            assert_eq!(shown(&tree.verdict(&stack, path)), shown(&theirs));
        }
    }

    #[test]
    fn deeper_files_win_then_info_exclude_then_the_users_own() {
        let git = Oracle::new();
        let users_own = b"*.tmp\n*.user\n/top.user\n";
        let exclude = b"*.log\n!kept.tmp\n/only-here\n";
        git.write("users-own", users_own);
        git.write(".git/info/exclude", exclude);
        git.ask(&["config", "core.excludesFile", "users-own"], &[]);
        let mut tree = Tree::default();
        tree.write(&git, &RelPath::root(), b"build/\n# nothing\n!a.log\n*.o\n");
        tree.write(&git, &rel("src"), b"!*.o\n/gen\n");
        tree.write(&git, &rel("src/deep"), b"*.o\n");
        for dir in ["build", "src/build", "src/gen", "src/deep/gen", "only-here"] {
            tree.make_dir(&git, &rel(dir));
        }
        let paths = [
            "a.log",
            "b.log",
            "src/a.log",
            "x.tmp",
            "kept.tmp",
            "x.user",
            "src/x.user",
            "a.o",
            "src/a.o",
            "src/deep/a.o",
            "build",
            "build/a.log",
            "src/build",
            "src/gen",
            "src/gen/a.o",
            "src/deep/gen",
            "only-here",
            "src/only-here",
            "plain",
        ]
        .map(rel);

        let stack = IgnoreStack::new(vec![
            RuleFile::parse("users-own", users_own),
            RuleFile::parse(".git/info/exclude", exclude),
        ]);
        for (path, theirs) in paths.iter().zip(ask(&git, &paths)) {
            assert_eq!(shown(&tree.verdict(&stack, path)), shown(&theirs));
        }
        let decision = stack.decide(&rel("b.log"), false);
        assert_eq!(
            decision.rule().unwrap().to_string(),
            ".git/info/exclude:1: *.log"
        );
    }

    #[test]
    fn rules_above_a_workspace_reach_into_it() {
        let git = Oracle::new();
        let mut tree = Tree::default();
        tree.write(
            &git,
            &RelPath::root(),
            b"*.log\n/ws/top\n/a/ws/here\nout/\n",
        );
        tree.write(&git, &rel("a"), b"!kept.log\n/ws/deep/*.x\n");
        tree.write(&git, &rel("b"), b"*.never\n");
        let own = RuleFile::parse("a/ws/.gitignore", b"*.own\n");
        git.write("a/ws/.gitignore", b"*.own\n");
        git.make_dir(b"a/ws/deep");
        let paths = [
            "x.log",
            "kept.log",
            "top",
            "here",
            "deep/a.x",
            "deep/here",
            "x.own",
            "deep/x.own",
            "x.never",
        ];
        let in_work_tree = paths.map(|p| rel(format!("a/ws/{p}")));

        let above = || tree.files.clone().into_iter().collect();
        let stack = IgnoreStack::new_below(&rel("a/ws"), Vec::new(), above());
        let rules_of = |dir: &RelPath| dir.is_root().then(|| own.clone());
        for (path, theirs) in paths.iter().zip(ask(&git, &in_work_tree)) {
            let decision = stack.decide_in_tree(&rules_of, &rel(path), false);
            let ours = in_words(&decision, &rel(format!("a/ws/{path}")));
            assert_eq!(shown(&ours), shown(&theirs));
        }

        let ignored = IgnoreStack::new_below(&rel("a/out/ws"), Vec::new(), above());
        let decision = ignored
            .descend(&RelPath::root(), Some(own.clone()))
            .decide(&rel("any"), false);
        assert_eq!(
            decision.rule().map(Rule::pattern),
            Some(b"out/".as_slice()),
            "as in git, all of a workspace in an ignored directory is ignored"
        );
    }

    #[test]
    fn a_walk_and_a_single_question_give_the_same_answer() {
        let files = BTreeMap::from([
            (rel(""), RuleFile::parse(".gitignore", b"*.o\ntarget/\n")),
            (rel("a"), RuleFile::parse("a/.gitignore", b"!keep.o\n")),
        ]);
        let rules_of = |dir: &RelPath| files.get(dir).cloned();
        let stack = IgnoreStack::new(Vec::new());
        let a = stack
            .descend(&rel(""), rules_of(&rel("")))
            .descend(&rel("a"), rules_of(&rel("a")));
        let b = a.descend(&rel("a/b"), None);
        for (walk, path) in [
            (&a, "a/keep.o"),
            (&a, "a/x.o"),
            (&b, "a/b/keep.o"),
            (&b, "a/b/x.o"),
            (&b, "a/b/plain"),
            (&b, "a/b/target"),
        ] {
            for is_dir in [false, true] {
                assert_eq!(
                    walk.decide(&rel(path), is_dir),
                    stack.decide_in_tree(&rules_of, &rel(path), is_dir),
                    "{path}"
                );
            }
        }
        let below = stack.decide_in_tree(&rules_of, &rel("a/target/keep.o"), false);
        assert_eq!(below.rule().map(Rule::pattern), Some(b"target/".as_slice()));
        assert_eq!(
            stack.decide_in_tree(&rules_of, &RelPath::root(), true),
            Decision::None
        );
    }

    #[test]
    fn a_tree_deeper_than_the_stack_of_a_thread_is_let_go() {
        let file = RuleFile::parse(".gitignore", b"*.o\n");
        let mut stack = IgnoreStack::new(Vec::new());
        for _ in 0..300_000 {
            stack = stack.descend(&RelPath::root(), Some(file.clone()));
        }
        let shared = stack.clone();
        drop(stack);
        assert!(shared.decide(&rel("a.o"), false).is_ignored());
    }
}
