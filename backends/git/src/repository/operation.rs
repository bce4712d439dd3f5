//! The files in which git stores a merge, rebase, cherry-pick, revert or bisect in progress, and
//! the files that remain after one.
//!
//! Where the list comes from: `gitrepository-layout`; `path.c` of git (`GIT_PATH_FUNC`) with
//! `remove_branch_state` and `remove_merge_branch_state` of its `branch.c`; `bisect.c`,
//! `sequencer.c`, and `builtin/am.c`. All of them belong to one worktree, so they are in the git
//! directory and not in the common directory.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::git_dir::Kind;
use super::head::is_ref_name;
use super::{RepositoryError, UserRepository};
use crate::{Collision, ObjectId, ObjectKind};

/// What lies in the git directory itself, files and directories; sorted.
const NAMES: [&str; 24] = [
    "AUTO_MERGE",
    "BISECT_ANCESTORS_OK",
    "BISECT_EXPECTED_REV",
    "BISECT_FIRST_PARENT",
    "BISECT_HEAD",
    "BISECT_LOG",
    "BISECT_NAMES",
    "BISECT_RUN",
    "BISECT_START",
    "BISECT_TERMS",
    "CHERRY_PICK_HEAD",
    "MERGE_AUTOSTASH",
    "MERGE_HEAD",
    "MERGE_MODE",
    "MERGE_MSG",
    "MERGE_RR",
    "ORIG_HEAD",
    "REBASE_HEAD",
    "REVERT_HEAD",
    "SQUASH_MSG",
    "rebase-apply",
    "rebase-merge",
    "refs",
    "sequencer",
];

/// Refs that are an operation's own: what a bisect was told, and the labels of `rebase
/// --rebase-merges`. git never packs them.
const REFS: [&str; 2] = ["refs/bisect", "refs/rewritten"];

/// A rebase of some thousand patches; an operation of more is not kept.
const MAX_FILES: usize = 4096;

/// The most that the files of an operation hold together.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// git nests them two deep; a label may have slashes.
const MAX_DEPTH: usize = 10;

/// So many branches of a `rebase --update-refs` are looked at.
const MAX_BRANCHES: usize = 1000;

/// The files by which git knows an operation in progress (a merge, a rebase, …), or remembers one
/// that ended. Which these are: [`is_operation_path`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationFiles {
    /// The blob in the store with the bytes of each, by its path below the git directory.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, ObjectId>,
    /// The directories that they lie in, and empty ones: `rebase-merge` alone is a rebase to git.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub directories: BTreeSet<String>,
}

impl OperationFiles {
    /// The paths, of files and of directories, at which this and `other` differ; sorted.
    pub fn differing<'a>(&'a self, other: &'a Self) -> BTreeSet<&'a str> {
        let both = [(self, other), (other, self)];
        let files = both.iter().flat_map(|(one, other)| {
            let differs =
                |(name, id): &(&'a String, &'a ObjectId)| other.files.get(*name) != Some(*id);
            one.files.iter().filter(differs).map(|(name, _)| &**name)
        });
        let directories = self.directories.symmetric_difference(&other.directories);
        files.chain(directories.map(|name| &**name)).collect()
    }
}

/// What of git's operations was found in a repository.
#[derive(Debug)]
pub struct GitOperation {
    /// merge, rebase, cherry-pick, revert or bisect, if one is in progress. Several at once are
    /// told in this order, as `git status` does. A trap in the place of a mark is a mark.
    pub in_progress: Option<&'static str>,
    /// The bytes of the files, or why they cannot be had: a trap among them is
    /// [`RepositoryError::Hostile`], too many are [`RepositoryError::TooLarge`].
    pub contents: Result<OperationContents, RepositoryError>,
}

/// The files of git's operations with their bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperationContents {
    /// By path below the git directory.
    pub files: BTreeMap<String, Vec<u8>>,
    /// The directories that they lie in, and empty ones.
    pub directories: BTreeSet<String>,
}

impl OperationContents {
    /// What a record says of them.
    pub fn ids(&self) -> Result<OperationFiles, Collision> {
        let id = |(name, bytes): (&String, &Vec<u8>)| {
            Ok((name.clone(), ObjectId::of(ObjectKind::Blob, bytes)?))
        };
        Ok(OperationFiles {
            files: self.files.iter().map(id).collect::<Result<_, _>>()?,
            directories: self.directories.clone(),
        })
    }

    /// The branches by full name that a rebase in progress moves at its end: the one that it was
    /// begun on, and those that `--update-refs` takes along. HEAD names none of them meanwhile.
    pub fn branches(&self) -> BTreeSet<String> {
        let heads = ["rebase-merge/head-name", "rebase-apply/head-name"];
        // Three lines for each: its name, where it was, and where it goes.
        let lists = ["rebase-merge/update-refs"];
        let texts = heads.iter().chain(&lists);
        texts
            .filter_map(|name| std::str::from_utf8(self.files.get(*name)?).ok())
            .flat_map(str::lines)
            .filter(|line| line.starts_with("refs/heads/") && is_ref_name(line))
            .take(MAX_BRANCHES)
            .map(str::to_owned)
            .collect()
    }
}

/// Whether git keeps a file or directory of an operation at this path below the git directory.
pub fn is_operation_path(path: &str) -> bool {
    let is_plain = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('\0');
    let is_at_or_below = |above: &&str| {
        let rest = path.strip_prefix(*above);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let names = NAMES.iter().filter(|name| **name != "refs");
    path.split('/').all(is_plain) && names.chain(&REFS).any(is_at_or_below)
}

impl UserRepository {
    /// Looks for git's operations, and reads their files.
    ///
    /// Where there are none this costs one listing of the git directory.
    pub fn operation(&self) -> Result<GitOperation, RepositoryError> {
        let is_one = |name: &[u8]| NAMES.iter().any(|known| known.as_bytes() == name);
        let names = self.git_dir.list(NAMES.len(), is_one)?;
        let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        Ok(GitOperation {
            in_progress: self.in_progress(&names),
            contents: self.operation_contents(&names),
        })
    }

    fn in_progress(&self, names: &BTreeSet<&str>) -> Option<&'static str> {
        let has = |name| names.contains(name);
        if has("MERGE_HEAD") {
            Some("merge")
        } else if has("rebase-merge") || has("rebase-apply") {
            Some("rebase")
        } else if has("CHERRY_PICK_HEAD") {
            Some("cherry-pick")
        } else if has("REVERT_HEAD") {
            Some("revert")
        } else if has("sequencer") {
            // Between two commits of several neither of the marks above is there.
            let todo = self.git_dir.read("sequencer/todo", MAX_BYTES);
            match todo {
                Ok(Some(todo)) if todo.starts_with(b"revert") => Some("revert"),
                _ => Some("cherry-pick"),
            }
        } else if has("BISECT_LOG") {
            Some("bisect")
        } else {
            None
        }
    }

    fn operation_contents(
        &self,
        names: &BTreeSet<&str>,
    ) -> Result<OperationContents, RepositoryError> {
        let too_large = |what: &str, limit: u64| RepositoryError::TooLarge {
            what: format!("{what} of git's operation in progress"),
            limit,
            actual: limit + 1,
        };
        let mut contents = OperationContents::default();
        let mut waiting: Vec<String> = Vec::new();
        for name in names {
            match *name {
                "refs" => waiting.extend(REFS.map(str::to_owned)),
                name => waiting.push(name.to_owned()),
            }
        }
        let mut bytes_left = MAX_BYTES;
        while let Some(name) = waiting.pop() {
            match self.git_dir.kind(&name)? {
                Kind::Nothing => {}
                Kind::File => {
                    let read = match self.git_dir.read(&name, bytes_left) {
                        Err(RepositoryError::TooLarge { .. }) => {
                            return Err(too_large("the size of the files", MAX_BYTES));
                        }
                        read => read?,
                    };
                    if let Some(bytes) = read {
                        bytes_left -= bytes.len() as u64;
                        contents.files.insert(name, bytes);
                    }
                }
                Kind::Directory => {
                    if name.split('/').count() > MAX_DEPTH {
                        return Err(too_large("the depth of the directories", MAX_DEPTH as u64));
                    }
                    let Some(directory) = self.git_dir.directory(&name)? else {
                        continue;
                    };
                    for child in directory.list(MAX_FILES, is_kept)? {
                        waiting.push(format!("{name}/{child}"));
                    }
                    contents.directories.insert(name);
                }
            }
            let count = contents.files.len() + contents.directories.len() + waiting.len();
            if count > MAX_FILES {
                return Err(too_large("the number of files", MAX_FILES as u64));
            }
        }
        Ok(contents)
    }
}

/// Whether a name in a directory of an operation is a file of it. A lock is nobody's state, and
/// neither is what we make a lock of.
fn is_kept(name: &[u8]) -> bool {
    !matches!(name, b"." | b"..") && !name.ends_with(b".lock") && !name.starts_with(b"stillframe-")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::super::testing::*;
    use super::*;
    use crate::test_repository::TestRepository;

    fn contents(git: &TestRepository) -> OperationContents {
        found(&git.path).operation().unwrap().contents.unwrap()
    }

    /// Two branches that change the same line.
    fn with_conflict() -> TestRepository {
        let git = TestRepository::with_commit();
        git.git(&["checkout", "-q", "-b", "side"]);
        git.write("src/main.c", "side\n");
        git.commit("side");
        git.git(&["checkout", "-q", "main"]);
        git.write("src/main.c", "main\n");
        git.commit("main");
        git
    }

    #[test]
    fn where_nothing_was_ever_in_progress_there_are_no_files() {
        let git = TestRepository::with_commit();
        assert_eq!(contents(&git), OperationContents::default());
    }

    #[test]
    fn everything_that_git_itself_adds_when_an_operation_stops_is_among_the_files() {
        let commands: [&[&[&str]]; 7] = [
            &[&["merge", "side"]],
            &[&["rebase", "side"]],
            &[&["rebase", "--apply", "side"]],
            &[&["rebase", "--rebase-merges", "side"]],
            &[&["cherry-pick", "side", "side~1"]],
            &[&["revert", "--no-edit", "HEAD~1", "HEAD"]],
            &[
                &["bisect", "start"],
                &["bisect", "bad"],
                &["bisect", "good", "HEAD~1"],
            ],
        ];
        for commands in commands {
            let git = with_conflict();
            let all = || -> BTreeSet<String> {
                let walk = walkdir::WalkDir::new(git.path.join(".git")).into_iter();
                let files = walk.map(Result::unwrap).filter(|e| e.file_type().is_file());
                files
                    .map(|e| {
                        let below = e.path().strip_prefix(git.path.join(".git")).unwrap();
                        below.to_str().unwrap().to_owned()
                    })
                    .filter(|name| {
                        // What an operation shares with every other command.
                        !["objects/", "logs/", "refs/heads/"]
                            .iter()
                            .any(|n| name.starts_with(n))
                            && !["HEAD", "index", "COMMIT_EDITMSG"].contains(&&**name)
                    })
                    .collect()
            };
            let before = all();
            for command in commands {
                git.run(&git.path, command);
            }
            let added: BTreeSet<String> = all().difference(&before).cloned().collect();
            assert!(!added.is_empty(), "{commands:?}");
            let kept: BTreeSet<String> = contents(&git).files.into_keys().collect();
            assert_eq!(kept, added, "{commands:?}");
            for name in kept {
                assert!(is_operation_path(&name), "{name}");
            }
        }
    }

    #[test]
    fn paths_that_lead_elsewhere_are_none_of_an_operation() {
        for path in [
            "MERGE_HEAD",
            "rebase-merge/done",
            "refs/bisect/bad",
            "sequencer",
        ] {
            assert!(is_operation_path(path), "{path}");
        }
        for path in [
            "",
            "config",
            "HEAD",
            "refs",
            "refs/heads/main",
            "rebase-merge/../config",
            "rebase-merge//done",
            "MERGE_HEADS",
            "/MERGE_HEAD",
            "refs/bisect/../heads/main",
        ] {
            assert!(!is_operation_path(path), "{path}");
        }
    }

    #[test]
    fn a_rebase_names_the_branches_that_it_will_move() {
        let git = with_conflict();
        git.git(&["branch", "beside"]);
        git.write("src/main.c", "more\n");
        git.commit("more");
        git.run(&git.path, &["rebase", "--update-refs", "side"]);
        let branches = contents(&git).branches();
        let expected = ["refs/heads/beside", "refs/heads/main"];
        assert_eq!(Vec::from_iter(&branches), expected);

        let hostile = b"refs/heads/../../../secret\nrefs/heads/a.lock\nHEAD\n".to_vec();
        let files = BTreeMap::from([("rebase-merge/update-refs".to_owned(), hostile)]);
        let planted = OperationContents {
            files,
            ..OperationContents::default()
        };
        assert_eq!(planted.branches(), BTreeSet::new());
    }

    #[test]
    fn a_trap_among_them_is_hostile_at_once_and_what_it_leads_to_is_not_read() {
        for name in [
            "MERGE_HEAD",
            "rebase-merge",
            "rebase-merge/done",
            "refs/bisect",
            "refs/bisect/bad",
        ] {
            for trap in [fifo as fn(&Path), |path| {
                symlink("/dev/zero", path).unwrap()
            }] {
                let git = TestRepository::with_commit();
                let path = git.path.join(".git").join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                trap(&path);
                let workspace = git.path.clone();
                let result = in_time(move || found(&workspace).operation().unwrap().contents);
                assert!(is_hostile(&result), "{name}: {result:?}");
            }
        }
    }

    #[test]
    fn files_beyond_the_limits_are_not_read() {
        let git = TestRepository::with_commit();
        let huge = fs::File::create(git.path.join(".git/MERGE_MSG")).unwrap();
        huge.set_len(10 << 30).unwrap();
        let limit = |git: &TestRepository| match found(&git.path).operation().unwrap().contents {
            Err(RepositoryError::TooLarge { limit, .. }) => limit,
            other => panic!("{other:?}"),
        };
        assert_eq!(limit(&git), MAX_BYTES);
        huge.set_len(0).unwrap();

        let many = git.path.join(".git/rebase-apply");
        fs::create_dir(&many).unwrap();
        for number in 0..=MAX_FILES {
            fs::write(many.join(number.to_string()), "").unwrap();
        }
        assert_eq!(limit(&git), MAX_FILES as u64);
        fs::remove_dir_all(&many).unwrap();

        let deep = git.path.join(".git/sequencer").join("d/".repeat(MAX_DEPTH));
        fs::create_dir_all(deep).unwrap();
        assert_eq!(limit(&git), MAX_DEPTH as u64);
    }

    #[test]
    fn operations_differ_in_files_of_either_side_and_in_directories() {
        let id = |digit: &str| digit.repeat(40).parse().unwrap();
        let one = OperationFiles {
            files: BTreeMap::from([
                ("MERGE_HEAD".to_owned(), id("1")),
                ("MERGE_MSG".to_owned(), id("2")),
                ("ORIG_HEAD".to_owned(), id("3")),
            ]),
            directories: BTreeSet::new(),
        };
        let other = OperationFiles {
            files: BTreeMap::from([
                ("AUTO_MERGE".to_owned(), id("1")),
                ("MERGE_MSG".to_owned(), id("9")),
                ("ORIG_HEAD".to_owned(), id("3")),
            ]),
            directories: BTreeSet::from(["sequencer".to_owned()]),
        };
        let differing = ["AUTO_MERGE", "MERGE_HEAD", "MERGE_MSG", "sequencer"];
        assert_eq!(Vec::from_iter(one.differing(&other)), differing);
        assert_eq!(one.differing(&other), other.differing(&one));
        assert!(one.differing(&one).is_empty());
    }
}
