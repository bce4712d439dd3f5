//! Pairs of histories made by chance: all the same for the same seed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Numbers by chance (SplitMix64).
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(seed: u64, case: u64) -> Self {
        Self(seed ^ case.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn one<'t, T: ?Sized>(&mut self, of: &[&'t T]) -> &'t T {
        of[self.below(of.len())]
    }
}

const FILE: u32 = 0o100_644;
const EXECUTABLE: u32 = 0o100_755;
const LINK: u32 = 0o120_000;
const SUBMODULE: u32 = 0o160_000;

const DIRECTORIES: [&str; 7] = ["", "", "d/", "d/e/", "d/e/f/", "src/", "lib/"];
const NAMES: [&str; 9] = ["a", "b", "c", "d", "main.c", "mod.rs", "x y", "e", "src"];

/// What a commit has, by path: the mode, and what is there.
#[derive(Clone, Debug, Default)]
pub(super) struct Files(BTreeMap<String, (u32, Vec<u8>)>);

impl Files {
    /// Regular files.
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let file =
            |(path, text): &(&str, &str)| (path.to_string(), (FILE, text.as_bytes().to_vec()));
        Self(files.iter().map(file).collect())
    }

    pub(super) fn with_link(mut self, path: &str, to: &str) -> Self {
        self.put(path, (LINK, to.as_bytes().to_vec()));
        self
    }

    pub(super) fn with_submodule(mut self, path: &str, commit: &str) -> Self {
        self.put(path, (SUBMODULE, commit.as_bytes().to_vec()));
        self
    }

    /// Puts it there; a file in the place of a directory above goes, and a directory in its place.
    fn put(&mut self, path: &str, file: (u32, Vec<u8>)) {
        let below = format!("{path}/");
        self.0.retain(|other, _| {
            !other.starts_with(&below) && !path.starts_with(&format!("{other}/"))
        });
        self.0.insert(path.to_owned(), file);
    }

    fn any(&self, chance: &mut Chance) -> Option<String> {
        let at = chance.below(self.0.len());
        self.0.keys().nth(at).cloned()
    }
}

fn any_path(chance: &mut Chance) -> String {
    format!("{}{}", chance.one(&DIRECTORIES), chance.one(&NAMES))
}

fn text(chance: &mut Chance) -> Vec<u8> {
    let about = chance.below(9);
    let count = 6 + chance.below(8);
    let line = |at: usize| match at % 4 {
        3 => "}\n".to_owned(),
        _ => format!("{about} has in line {at} these words {}\n", about * 31 + at),
    };
    (0..count).map(line).collect::<String>().into_bytes()
}

fn any_file(chance: &mut Chance) -> (u32, Vec<u8>) {
    match chance.below(24) {
        0 => (LINK, format!("to {}", chance.below(3)).into_bytes()),
        1 => (SUBMODULE, commit_id(chance)),
        2 => (FILE, Vec::new()),
        3 => (FILE, [&b"\0binary"[..], &text(chance)].concat()),
        4 => (EXECUTABLE, text(chance)),
        _ => (FILE, text(chance)),
    }
}

fn commit_id(chance: &mut Chance) -> Vec<u8> {
    format!("{:040x}", 1 + chance.below(4)).into_bytes()
}

/// Another file of the same kind.
fn edited((mode, mut content): (u32, Vec<u8>), chance: &mut Chance, who: &str) -> (u32, Vec<u8>) {
    match mode {
        LINK => (mode, format!("to {who} {}", chance.below(2)).into_bytes()),
        SUBMODULE => (mode, commit_id(chance)),
        _ => {
            for _ in 0..=chance.below(2) {
                let text = String::from_utf8_lossy(&content).into_owned();
                let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
                let at = chance.below(lines.len());
                let new = match chance.below(4) {
                    0 => "both write this\n".to_owned(),
                    _ => format!("{who} writes {}\n", chance.below(5)),
                };
                match chance.below(5) {
                    0 if !lines.is_empty() => _ = lines.remove(at),
                    1 => lines.insert(at, &new),
                    2 => lines.push(&new),
                    _ if lines.is_empty() => lines.push(&new),
                    _ => lines[at] = &new,
                }
                content = lines.concat().into_bytes();
            }
            (mode, content)
        }
    }
}

/// What somebody does between two commits.
fn edit(files: &mut Files, chance: &mut Chance, who: &str) {
    let Some(path) = files.any(chance) else {
        return files.put(&any_path(chance), any_file(chance));
    };
    let file = files.0[&path].clone();
    match chance.below(16) {
        0..4 => files.put(&path, edited(file, chance, who)),
        4 => _ = files.0.remove(&path),
        5..8 => {
            files.0.remove(&path);
            let file = match chance.below(3) {
                0 => file,
                _ => edited(file, chance, who),
            };
            // Of the same name elsewhere, or of another one.
            let name = path.rsplit('/').next().expect("it has a name").to_owned();
            let to = match chance.below(3) {
                0 => any_path(chance),
                1 => format!("{path} of {who}"),
                _ => format!("{}{name}", chance.one(&DIRECTORIES)),
            };
            files.put(&to, file);
        }
        8 => {
            // A directory with all that is in it.
            let Some((directory, _)) = path.rsplit_once('/') else {
                return;
            };
            let to = chance.one(&["moved", "lib", "d/g", "new/deep"]);
            let moved: Vec<String> = files.0.keys().cloned().collect();
            for path in moved {
                if let Some(rest) = path.strip_prefix(&format!("{directory}/"))
                    && let Some(file) = files.0.remove(&path)
                {
                    files.put(&format!("{to}/{rest}"), file);
                }
            }
        }
        9 => match file.0 {
            FILE => files.put(&path, (EXECUTABLE, file.1)),
            EXECUTABLE => files.put(&path, (FILE, file.1)),
            _ => {}
        },
        10 => {
            let other = match file.0 {
                FILE | EXECUTABLE => (LINK, b"elsewhere".to_vec()),
                LINK => (SUBMODULE, commit_id(chance)),
                _ => (FILE, text(chance)),
            };
            files.put(&path, other);
        }
        11 => files.put(&format!("{path}/{}", chance.one(&NAMES)), any_file(chance)),
        12 => {
            let above = path.split('/').next().expect("it has a name").to_owned();
            files.put(&above, any_file(chance));
        }
        13 => {
            let line = chance.one(&[
                "* merge=ours\n",
                "*.c merge=union\n",
                "a -merge\n",
                "* merge=runs\n",
            ]);
            files.put(".gitattributes", (FILE, line.as_bytes().to_vec()));
        }
        _ => files.put(&any_path(chance), any_file(chance)),
    }
}

/// A stream for `git fast-import`.
#[derive(Default)]
pub(super) struct Stream {
    pub(super) bytes: Vec<u8>,
    marks: usize,
}

impl Stream {
    /// A commit of these files, by its mark. Parents are marks.
    pub(super) fn commit(&mut self, files: &Files, parents: &[usize]) -> usize {
        let mark = self.begin(parents.iter().map(|parent| format!(":{parent}")));
        self.bytes.extend(b"deleteall\n");
        for (path, (mode, content)) in &files.0 {
            if *mode == SUBMODULE {
                let id = String::from_utf8_lossy(content);
                self.bytes
                    .extend(format!("M {mode:o} {id} \"{path}\"\n").as_bytes());
                continue;
            }
            let head = format!("M {mode:o} inline \"{path}\"\ndata {}\n", content.len());
            self.bytes.extend(head.as_bytes());
            self.bytes.extend(content);
            self.bytes.push(b'\n');
        }
        self.bytes.push(b'\n');
        mark
    }

    /// A commit of a tree on top of a commit, both of which exist.
    pub(super) fn commit_of(&mut self, tree: &str, parent: &str) -> usize {
        let mark = self.begin([parent.to_owned()].into_iter());
        self.bytes
            .extend(format!("M 040000 {tree} \"\"\n\n").as_bytes());
        mark
    }

    fn begin(&mut self, parents: impl Iterator<Item = String>) -> usize {
        self.marks += 1;
        let mark = self.marks;
        // No two of the same time: git merges several bases by their age.
        let mut head = format!(
            "reset refs/heads/pairs\ncommit refs/heads/pairs\nmark :{mark}\n\
             committer C <c@example.org> {} +0000\ndata 1\nx\n",
            1_700_000_000 + mark
        );
        for (at, parent) in parents.enumerate() {
            let word = if at == 0 { "from" } else { "merge" };
            writeln!(head, "{word} {parent}").expect("it is text");
        }
        self.bytes.extend(head.as_bytes());
        mark
    }

    /// Goes on from a commit by some edits.
    fn side(
        &mut self,
        (from, files): (usize, &Files),
        chance: &mut Chance,
        who: &str,
    ) -> (usize, Files) {
        let mut files = files.clone();
        let mut at = from;
        for _ in 0..=chance.below(2) {
            for _ in 0..1 + chance.below(4) {
                edit(&mut files, chance, who);
            }
            at = self.commit(&files, &[at]);
        }
        (at, files)
    }

    /// Two commits, by their marks; whether they have a common one.
    pub(super) fn pair(&mut self, chance: &mut Chance) -> ([usize; 2], bool) {
        let mut files = Files::default();
        for _ in 0..5 + chance.below(12) {
            files.put(&any_path(chance), any_file(chance));
        }
        let base = (self.commit(&files, &[]), files);
        let from = |(at, files): &(usize, Files)| (*at, files.clone());
        match chance.below(20) {
            0 => {
                let mut files = base.1.clone();
                edit(&mut files, chance, "other");
                let other = self.commit(&files, &[]);
                ([base.0, other], false)
            }
            1..5 => {
                // Each goes on from both of two, or of three.
                let count = 2 + chance.below(2);
                let names = ["one", "two", "three"];
                let sides: Vec<_> = names[..count]
                    .iter()
                    .map(|name| self.side((base.0, &base.1), chance, name))
                    .collect();
                let parents: Vec<usize> = sides.iter().map(|side| side.0).collect();
                let mut ends = [0; 2];
                for (end, who) in ends.iter_mut().zip(["us", "them"]) {
                    let (_, mut files) = from(&sides[chance.below(count)]);
                    for path in sides[chance.below(count)].1.0.clone() {
                        files.put(&path.0, path.1);
                    }
                    let merge = self.commit(&files, &parents);
                    *end = self.side((merge, &files), chance, who).0;
                }
                (ends, true)
            }
            _ => {
                let ours = self.side((base.0, &base.1), chance, "us").0;
                let theirs = self.side((base.0, &base.1), chance, "them").0;
                ([ours, theirs], true)
            }
        }
    }
}
