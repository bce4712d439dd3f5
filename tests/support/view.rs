//! Whole states as text, made by a walker that has nothing in common with the one under test.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

/// Lines that say everything about a state, sorted by path.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct View {
    lines: BTreeMap<Vec<u8>, String>,
}

/// What tells whether a file was touched: nanoseconds of its mtime, and its inode.
pub type Times = BTreeMap<Vec<u8>, (i128, u64)>;

impl View {
    /// The line of `path`.
    pub fn line(&self, path: &str) -> Option<&str> {
        self.lines.get(path.as_bytes()).map(String::as_str)
    }

    /// The line of a path that is given as [`View::paths`] has it.
    #[track_caller]
    pub fn line_of(&self, escaped: &str) -> &str {
        self.lines
            .iter()
            .find(|(path, _)| path.escape_ascii().to_string() == escaped)
            .map(|(_, line)| line.as_str())
            .unwrap_or_else(|| panic!("{escaped} is not there"))
    }

    /// The line of a path in bytes.
    pub fn line_at(&self, path: &[u8]) -> Option<&str> {
        self.lines.get(path).map(String::as_str)
    }

    /// Every path in bytes, with its line.
    pub fn lines(&self) -> impl Iterator<Item = (&[u8], &str)> {
        let lines = self.lines.iter();
        lines.map(|(path, line)| (path.as_slice(), line.as_str()))
    }

    /// What lies at the paths that count.
    pub fn only(&self, counts: impl Fn(&[u8]) -> bool) -> Self {
        let mut lines = self.lines.clone();
        lines.retain(|path, _| counts(path));
        Self { lines }
    }

    /// This view and the other one together; where both have a path, the other one counts.
    pub fn with(&self, other: &Self) -> Self {
        let mut lines = self.lines.clone();
        lines.extend(other.lines.clone());
        Self { lines }
    }

    /// The paths, escaped.
    pub fn paths(&self) -> Vec<String> {
        self.lines
            .keys()
            .map(|p| p.escape_ascii().to_string())
            .collect()
    }

    /// This view without what lies at `path` or below.
    pub fn without(&self, path: &str) -> Self {
        let below = format!("{path}/");
        let mut lines = self.lines.clone();
        lines.retain(|p, _| p != path.as_bytes() && !p.starts_with(below.as_bytes()));
        Self { lines }
    }

    /// The paths, escaped, that are neither as one of these views has them nor absent where one of
    /// them has nothing.
    pub fn strangers(&self, known: &[&Self]) -> Vec<String> {
        let paths = known.iter().flat_map(|view| view.lines.keys());
        let unique: std::collections::BTreeSet<_> = paths.chain(self.lines.keys()).collect();
        unique
            .into_iter()
            .filter(|path| {
                let now = self.lines.get(*path);
                known.iter().all(|view| view.lines.get(*path) != now)
            })
            .map(|path| path.escape_ascii().to_string())
            .collect()
    }

    /// Whether it has every line of the other.
    pub fn has_all_of(&self, other: &Self) -> bool {
        let mut lines = other.lines.iter();
        lines.all(|(path, line)| self.lines.get(path) == Some(line))
    }

    /// The paths, escaped, at which they differ.
    pub fn differing(&self, other: &Self) -> Vec<String> {
        self.strangers(&[other])
    }

    /// Only files and links, with the modes that a tree of git's has: the part of a state that a
    /// patch can carry.
    pub fn as_git_sees(&self) -> Self {
        let lines = self.lines.iter().filter_map(|(path, line)| {
            let (mode, rest) = line.split_at(6);
            let bits = u32::from_str_radix(mode, 8).expect("a line begins with a mode");
            let mode = match bits & 0o170000 {
                0o100000 if bits & 0o100 != 0 => "100755",
                0o100000 => "100644",
                0o120000 => "120000",
                _ => return None,
            };
            Some((path.clone(), format!("{mode}{rest}")))
        });
        Self {
            lines: lines.collect(),
        }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.lines.values() {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

/// Asserts that two views are the same, and shows the lines that differ.
#[track_caller]
pub fn same(before: &View, after: &View, why: &str) {
    if let Some(difference) = difference(before, after) {
        panic!("{why}; what differs:\n{difference}");
    }
}

/// The lines that differ; `None` if there are none.
pub fn difference(before: &View, after: &View) -> Option<String> {
    let mut out = String::new();
    let paths = before.lines.keys().chain(after.lines.keys());
    let unique: std::collections::BTreeSet<_> = paths.collect();
    for path in unique {
        let (a, b) = (before.lines.get(path), after.lines.get(path));
        if a != b {
            for (sign, line) in [('-', a), ('+', b)] {
                if let Some(line) = line {
                    out.push_str(&format!("{sign} {line}\n"));
                }
            }
        }
    }
    (!out.is_empty()).then_some(out)
}

/// Everything below `root` but its own `.git`: modes, contents, texts of links.
///
/// One line each, such as `100755 run.sh "#!/bin/sh\n"`, `040755 src/`, `120777 link -> "run.sh"`,
/// `010644 pipe|`. A long content is its size and blake3. Nothing but regular files is opened.
#[track_caller]
pub fn worktree(root: &Path) -> View {
    walk(root, |rel| rel == b".git", line_of)
}

/// mtimes and inodes of `root` and of everything below but its own `.git`, directories included.
#[track_caller]
pub fn times(root: &Path) -> Times {
    let of = |meta: &fs::Metadata| (mtime_ns(meta), meta.ino());
    let top = root.metadata().expect("the root is there");
    entries(root, |rel| rel == b".git")
        .map(|(rel, _, meta)| (rel, of(&meta)))
        .chain([(Vec::new(), of(&top))])
        .collect()
}

/// Every path of the git directories that belong to the work tree at or above `root`: content,
/// mode, mtime, inode and size. A capture changes none of it.
#[track_caller]
pub fn git_dir(root: &Path) -> View {
    let mut lines = BTreeMap::new();
    let Some(places) = GitPlaces::find(root) else {
        return View::default();
    };
    let mut dirs = vec![places.git_dir.clone()];
    if !places.git_dir.starts_with(&places.common_dir) {
        dirs.push(places.common_dir.clone());
    }
    for dir in dirs {
        let meta = dir.metadata().expect("it was just found");
        let line = format!("{}/ mtime={}", dir.display(), mtime_ns(&meta));
        lines.insert(dir.as_os_str().as_bytes().to_vec(), line);
        let view = walk(
            &dir,
            |_| false,
            |rel, path, meta| {
                let mut line = line_of(rel, path, meta);
                line.push_str(&format!(
                    " mtime={} inode={} size={}",
                    mtime_ns(meta),
                    meta.ino(),
                    // The size of a directory depends on its history.
                    if meta.is_dir() { 0 } else { meta.len() }
                ));
                line
            },
        );
        for (rel, line) in view.lines {
            let mut key = dir.as_os_str().as_bytes().to_vec();
            key.push(b'/');
            key.extend_from_slice(&rel);
            lines.insert(key, line);
        }
    }
    View { lines }
}

/// HEAD, index, configuration, refs and whatever else says what state the repository at `root` is
/// in, by content alone: without objects, reflogs, and the refs that a rollback leaves.
pub fn git_state(root: &Path) -> View {
    let dir = root.join(".git");
    if !dir.is_dir() {
        return View::default();
    }
    let beside: [&[u8]; 3] = [b"objects", b"logs", b"refs/stillframe"];
    walk(&dir, |rel| beside.contains(&rel), line_of)
}

/// Where the parts of a user's repository are.
#[derive(Clone, Debug)]
pub struct GitPlaces {
    /// The top of the work tree.
    pub top: PathBuf,
    /// Index and HEAD lie here.
    pub git_dir: PathBuf,
    /// Objects and refs lie here; the same, but for a linked worktree.
    pub common_dir: PathBuf,
}

impl GitPlaces {
    /// Looks for `.git` at `root` and above, without asking git.
    pub fn find(root: &Path) -> Option<Self> {
        let top = root
            .ancestors()
            .find(|dir| dir.join(".git").symlink_metadata().is_ok())?;
        let dot_git = top.join(".git");
        let git_dir = if dot_git.is_dir() {
            dot_git
        } else {
            let text = fs::read_to_string(&dot_git).ok()?;
            top.join(text.trim_end().strip_prefix("gitdir: ")?)
        };
        let git_dir = fs::canonicalize(git_dir).ok()?;
        let common_dir = match fs::read_to_string(git_dir.join("commondir")) {
            Ok(text) => fs::canonicalize(git_dir.join(text.trim_end())).ok()?,
            Err(_) => git_dir.clone(),
        };
        Some(Self {
            top: top.to_owned(),
            git_dir,
            common_dir,
        })
    }
}

fn mtime_ns(meta: &fs::Metadata) -> i128 {
    i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec())
}

#[track_caller]
fn walk(
    root: &Path,
    skip: impl Fn(&[u8]) -> bool,
    line: impl Fn(&[u8], &Path, &fs::Metadata) -> String,
) -> View {
    let lines = entries(root, skip)
        .map(|(rel, path, meta)| {
            let line = line(&rel, &path, &meta);
            (rel, line)
        })
        .collect();
    View { lines }
}

fn entries(
    root: &Path,
    skip: impl Fn(&[u8]) -> bool,
) -> impl Iterator<Item = (Vec<u8>, PathBuf, fs::Metadata)> {
    let base = root.to_owned();
    let rel = move |path: &Path| -> Vec<u8> {
        let rel = path.strip_prefix(&base).expect("it is below the root");
        rel.as_os_str().as_bytes().to_vec()
    };
    let rel_too = rel.clone();
    WalkDir::new(root)
        .min_depth(1)
        .follow_links(false)
        .into_iter()
        .filter_entry(move |entry| !skip(&rel_too(entry.path())))
        .map(move |entry| {
            let entry = entry.unwrap_or_else(|e| panic!("the naive walker is stuck: {e}"));
            let meta = entry.path().symlink_metadata();
            let meta = meta.unwrap_or_else(|e| panic!("{}: {e}", entry.path().display()));
            (rel(entry.path()), entry.into_path(), meta)
        })
}

fn line_of(rel: &[u8], path: &Path, meta: &fs::Metadata) -> String {
    let mode = meta.mode();
    let name = rel.escape_ascii();
    let kind = meta.file_type();
    if kind.is_dir() {
        format!("{mode:06o} {name}/")
    } else if kind.is_symlink() {
        let target = fs::read_link(path).expect("it is a link");
        let target = target.as_os_str().as_bytes().escape_ascii().to_string();
        format!("{mode:06o} {name} -> \"{target}\"")
    } else if kind.is_file() {
        let content = fs::read(path)
            .unwrap_or_else(|e| panic!("the naive walker cannot read {}: {e}", path.display()));
        format!("{mode:06o} {name} {}", render(&content))
    } else if kind.is_fifo() {
        format!("{mode:06o} {name}|")
    } else if kind.is_socket() {
        format!("{mode:06o} {name}=")
    } else {
        format!("{mode:06o} {name}%")
    }
}

fn render(content: &[u8]) -> String {
    if content.len() <= 100 {
        return format!("\"{}\"", content.escape_ascii());
    }
    let hash = blake3::hash(content).to_hex();
    format!("({} bytes, {})", content.len(), &hash[..16])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestWorkspace;

    #[test]
    fn a_view_names_everything_below_the_root() {
        let ws = TestWorkspace::plain();
        ws.write("run.sh", "#!/bin/sh\n");
        ws.chmod("run.sh", 0o755);
        ws.write(b"odd\xff/file", "x");
        ws.symlink("link", "run.sh");
        ws.mkfifo("pipe");
        ws.mkdir("empty");
        let view = worktree(ws.root());
        let lines: Vec<&str> = view.lines.values().map(String::as_str).collect();
        assert_eq!(
            lines,
            [
                "040755 empty/",
                "120777 link -> \"run.sh\"",
                "040755 odd\\xff/",
                "100644 odd\\xff/file \"x\"",
                "010644 pipe|",
                "100755 run.sh \"#!/bin/sh\\n\"",
            ]
        );
    }

    #[test]
    fn a_difference_names_both_sides() {
        let ws = TestWorkspace::plain();
        ws.write("a", "1");
        let before = worktree(ws.root());
        ws.write("a", "2");
        ws.write("b", "");
        let after = worktree(ws.root());
        assert_eq!(
            difference(&before, &after).as_deref(),
            Some("- 100644 a \"1\"\n+ 100644 a \"2\"\n+ 100644 b \"\"\n")
        );
        assert_eq!(difference(&after, &after), None);
    }

    #[test]
    fn a_stranger_is_as_no_known_view_has_it() {
        let ws = TestWorkspace::plain();
        ws.write("same", "1");
        ws.write("gone", "1");
        let before = worktree(ws.root());
        ws.remove("gone");
        ws.write("new", "1");
        let after = worktree(ws.root());
        ws.write("gone", "1");
        let mixed = worktree(ws.root());
        assert_eq!(mixed.strangers(&[&before, &after]), [""; 0]);
        ws.write("same", "2");
        ws.write("third", "1");
        let strange = worktree(ws.root());
        assert_eq!(strange.strangers(&[&before, &after]), ["same", "third"]);
        assert_eq!(View::default().strangers(&[&before]), ["gone", "same"]);
    }

    #[test]
    fn the_state_of_a_repository_is_what_its_files_say() {
        let ws = TestWorkspace::repository();
        let before = git_state(ws.root());
        assert!(before.line("HEAD").is_some() && before.line("index").is_some());
        ws.git(["update-ref", "refs/stillframe/safety/x-1", "HEAD"]);
        same(&before, &git_state(ws.root()), "a safety ref is left out");
        ws.git(["branch", "other"]);
        assert_ne!(before, git_state(ws.root()));
    }

    #[test]
    fn what_git_sees_has_no_directories_and_two_modes() {
        let ws = TestWorkspace::plain();
        ws.write("d/private", "x");
        ws.chmod("d/private", 0o600);
        ws.write("tool", "x");
        ws.chmod("tool", 0o750);
        let view = worktree(ws.root()).as_git_sees();
        let lines: Vec<&str> = view.lines.values().map(String::as_str).collect();
        assert_eq!(lines, ["100644 d/private \"x\"", "100755 tool \"x\""]);
    }

    #[test]
    fn writing_a_file_in_the_git_directory_and_removing_it_is_seen() {
        let ws = TestWorkspace::repository();
        ws.settle();
        let before = git_dir(ws.root());
        let lock = ws.root().join(".git/index.lock");
        fs::write(&lock, "").unwrap();
        fs::remove_file(&lock).unwrap();
        assert_ne!(before, git_dir(ws.root()), "the directory's mtime moved");
    }

    #[test]
    fn the_parts_of_a_linked_worktree_are_found() {
        let ws = TestWorkspace::repository();
        ws.git(["worktree", "add", "-q", "../linked"]);
        let places = GitPlaces::find(&ws.root().join("../linked").canonicalize().unwrap()).unwrap();
        assert_eq!(places.common_dir, ws.root().join(".git"));
        assert_eq!(places.git_dir, ws.root().join(".git/worktrees/linked"));
    }
}
