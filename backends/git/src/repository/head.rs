//! HEAD and branches, as the files of the repository have them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::git_dir::{GitDir, Kind};
use super::{MAX_LINE_BYTES, RepositoryError, UserRepository, hex_id};
use crate::ObjectId;
use crate::path::printable_bytes;

/// A million refs take some 100 MB.
pub(super) const MAX_PACKED_REFS_BYTES: u64 = 256 * 1024 * 1024;

/// Stands for no object at all; a ref that holds it is damaged, as it is to git.
const NO_OBJECT: ObjectId = ObjectId([0; 20]);

/// How many symbolic refs may lead to each other: git's own limit.
const MAX_SYMREF_DEPTH: u32 = 5;

/// What HEAD names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Head {
    /// A branch without a commit.
    Unborn {
        /// The full name, such as `refs/heads/main`.
        branch: String,
    },
    /// A branch.
    Branch {
        /// The full name, such as `refs/heads/main`.
        branch: String,
        /// The commit at its tip.
        commit: ObjectId,
    },
    /// A commit, with no branch.
    Detached {
        /// The commit.
        commit: ObjectId,
    },
}

impl Head {
    /// The commit, unless unborn.
    pub fn commit(&self) -> Option<ObjectId> {
        match self {
            Self::Unborn { .. } => None,
            Self::Branch { commit, .. } | Self::Detached { commit } => Some(*commit),
        }
    }

    /// The full name of the branch, unless detached.
    pub fn branch(&self) -> Option<&str> {
        match self {
            Self::Unborn { branch } | Self::Branch { branch, .. } => Some(branch),
            Self::Detached { .. } => None,
        }
    }
}

impl UserRepository {
    /// What HEAD names. A ref that does not exist is a branch without a commit.
    pub fn head(&self) -> Result<Head, RepositoryError> {
        let mut name = "HEAD".to_owned();
        for _ in 0..=MAX_SYMREF_DEPTH {
            match self.ref_text(&name)? {
                None if name == "HEAD" => {
                    return Err(RepositoryError::Damaged {
                        path: self.git_dir.disk_path("HEAD"),
                        reason: "it is missing".to_owned(),
                    });
                }
                None => return Ok(Head::Unborn { branch: name }),
                Some(RefText::Id(commit)) if name == "HEAD" => {
                    return Ok(Head::Detached { commit });
                }
                Some(RefText::Id(commit)) => {
                    return Ok(Head::Branch {
                        branch: name,
                        commit,
                    });
                }
                Some(RefText::Symbolic(target)) => {
                    name = self.ref_name(self.holder_of(&name).disk_path(&name), target)?;
                }
            }
        }
        Err(RepositoryError::Damaged {
            path: self.git_dir.disk_path("HEAD"),
            reason: format!("it leads through more than {MAX_SYMREF_DEPTH} symbolic refs"),
        })
    }

    /// The commit that a branch names, by the branch's full name; `None` if there is no such
    /// branch. A symbolic ref is no branch of its own, and not followed.
    pub fn tip(&self, branch: &str) -> Result<Option<ObjectId>, RepositoryError> {
        match self.ref_text(branch)? {
            None => Ok(None),
            Some(RefText::Id(commit)) => Ok(Some(commit)),
            Some(RefText::Symbolic(_)) => Err(RepositoryError::Unsupported {
                what: format!("the symbolic ref {branch}"),
            }),
        }
    }

    /// What HEAD or a ref says, loose or packed; `None` if there is none of that name.
    fn ref_text(&self, name: &str) -> Result<Option<RefText>, RepositoryError> {
        let holder = self.holder_of(name);
        let text = match holder.kind(name)? {
            // An empty directory is what remains of branches below this name.
            Kind::Directory if name != "HEAD" => None,
            _ => holder.read(name, MAX_LINE_BYTES)?,
        };
        match text {
            Some(text) => match RefText::parse(&text) {
                Some(found) if found != RefText::Id(NO_OBJECT) => Ok(Some(found)),
                _ => Err(RepositoryError::Damaged {
                    path: holder.disk_path(name),
                    reason: "it names neither a ref nor a commit".to_owned(),
                }),
            },
            None if name == "HEAD" => Ok(None),
            None => Ok(self.packed_ref(name)?.map(RefText::Id)),
        }
    }

    /// The name of the ref that the symbolic one at `path` leads to.
    fn ref_name(&self, path: PathBuf, target: Vec<u8>) -> Result<String, RepositoryError> {
        let name = String::from_utf8(target).map_err(|e| RepositoryError::Unsupported {
            what: format!(
                "the branch {}, whose name is not UTF-8,",
                printable_bytes(e.as_bytes())
            ),
        })?;
        if is_ref_name(&name) {
            Ok(name)
        } else {
            let name = printable_bytes(name.as_bytes());
            Err(RepositoryError::Hostile {
                path,
                reason: format!("it names {name}, which is no name of a ref"),
            })
        }
    }

    /// Which directory holds a ref (`gitrepository-layout`, "refs"; `git-worktree`, "Refs").
    fn holder_of(&self, name: &str) -> &GitDir {
        let own = ["refs/bisect/", "refs/worktree/", "refs/rewritten/"];
        if !name.starts_with("refs/") || own.iter().any(|prefix| name.starts_with(prefix)) {
            &self.git_dir
        } else {
            self.common()
        }
    }

    /// Looks a ref up in `packed-refs`.
    fn packed_ref(&self, name: &str) -> Result<Option<ObjectId>, RepositoryError> {
        let Some(text) = self.common().read("packed-refs", MAX_PACKED_REFS_BYTES)? else {
            return Ok(None);
        };
        // Not always sorted: old versions did not promise it.
        for (number, line) in text.split(|b| *b == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            // A header, or what the tag in the line before leads to.
            if line.is_empty() || line.starts_with(b"#") || line.starts_with(b"^") {
                continue;
            }
            let damaged = || RepositoryError::Damaged {
                path: self.common().disk_path("packed-refs"),
                reason: format!("line {} is no id and name", number + 1),
            };
            let (id, rest) = line.split_at_checked(40).ok_or_else(damaged)?;
            let found = rest.strip_prefix(b" ").ok_or_else(damaged)?;
            if found == name.as_bytes() {
                let id = hex_id(id).filter(|id| *id != NO_OBJECT);
                return id.ok_or_else(damaged).map(Some);
            }
        }
        Ok(None)
    }
}

/// The content of HEAD or of a loose ref.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RefText {
    Symbolic(Vec<u8>),
    Id(ObjectId),
}

impl RefText {
    /// `None`: neither form, which is what a crash leaves behind.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        if let Some(target) = text.strip_prefix(b"ref:") {
            return Some(Self::Symbolic(target.trim_ascii().to_vec()));
        }
        let (id, rest) = text.split_at_checked(40)?;
        if rest.first().is_some_and(|b| !b.is_ascii_whitespace()) {
            return None;
        }
        hex_id(id).map(Self::Id)
    }

    /// Whether `text` is what git accepts as HEAD when it looks for a repository.
    pub(super) fn is_head(text: &[u8]) -> bool {
        match Self::parse(text) {
            Some(Self::Symbolic(target)) => target.starts_with(b"refs/"),
            Some(Self::Id(_)) => true,
            // A detached HEAD with SHA-256; the configuration says so, and is asked next.
            None => text
                .get(..64)
                .is_some_and(|id| id.iter().all(u8::is_ascii_hexdigit)),
        }
    }
}

/// Whether a ref may have this name (`git-check-ref-format`), and it lies below `refs/`.
pub fn is_ref_name(name: &str) -> bool {
    let is_forbidden = |c: char| c.is_ascii_control() || " ~^:?*[\\".contains(c);
    let is_sound = |component: &str| {
        !component.is_empty() && !component.starts_with('.') && !component.ends_with(".lock")
    };
    name.starts_with("refs/")
        && !name.ends_with('.')
        && !name.contains("..")
        && !name.contains("@{")
        && !name.contains(is_forbidden)
        && name.split('/').all(is_sound)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::testing::*;
    use super::*;
    use crate::error::ErrorKind;
    use crate::operation::Operation;
    use crate::snapshot_error::SnapshotError;
    use crate::test_repository::TestRepository;

    #[test]
    fn a_ref_of_zeros_is_damaged_as_it_is_to_git() {
        let zeros = format!("{}\n", "0".repeat(40));
        let places: [(&str, &str); 3] = [
            ("HEAD", &zeros),
            ("refs/heads/main", &zeros),
            (
                "packed-refs",
                &format!("{} refs/heads/main\n", zeros.trim_end()),
            ),
        ];
        for (name, text) in places {
            let git = TestRepository::with_commit();
            if name == "packed-refs" {
                fs::remove_file(git.path.join(".git/refs/heads/main")).unwrap();
            }
            fs::write(git.path.join(".git").join(name), text).unwrap();
            let told = git.run(&git.path, &["log"]);
            assert!(!told.status.success(), "{name}: no unborn branch to git");
            let head = found(&git.path).head();
            assert!(is_damaged(&head), "{name}: {head:?}");
        }
    }

    #[test]
    fn head_is_unborn_a_branch_or_detached() {
        let git = TestRepository::new();
        let head = |git: &TestRepository| found(&git.path).head().unwrap();
        let branch = "refs/heads/main".to_owned();
        assert_eq!(
            head(&git),
            Head::Unborn {
                branch: branch.clone()
            }
        );
        let no_index = found(&git.path).index().unwrap();
        assert!(no_index.is_none());
        assert_eq!(
            found(&git.path)
                .head_tree(&Operation::unbounded(), &head(&git))
                .unwrap(),
            None
        );

        git.write("a", "");
        git.commit("first");
        let commit = id(&git.git(&["rev-parse", "HEAD"]));
        assert_eq!(
            head(&git),
            Head::Branch {
                branch: branch.clone(),
                commit
            }
        );

        git.git(&["pack-refs", "--all"]);
        assert!(!git.path.join(".git/refs/heads/main").exists());
        assert_eq!(
            head(&git),
            Head::Branch {
                branch: branch.clone(),
                commit
            },
            "packed"
        );

        git.write("a", "more");
        git.commit("the loose ref wins");
        let commit = id(&git.git(&["rev-parse", "HEAD"]));
        assert_eq!(head(&git), Head::Branch { branch, commit });

        git.git(&["checkout", "-q", "--detach"]);
        assert_eq!(head(&git), Head::Detached { commit });
    }

    #[test]
    fn packed_refs_may_be_unsorted_and_peeled() {
        let git = TestRepository::with_commit();
        git.git(&["tag", "-a", "-m", "annotated", "v1"]);
        git.git(&["branch", "zz"]);
        git.git(&["pack-refs", "--all"]);
        let path = git.path.join(".git/packed-refs");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\n^"), "a peeled tag: {text}");
        let mut lines: Vec<&str> = text
            .lines()
            .filter(|l| !l.starts_with(['#', '^']))
            .collect();
        lines.reverse();
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        let commit = id(&git.git(&["rev-parse", "HEAD"]));
        assert_eq!(found(&git.path).head().unwrap().commit(), Some(commit));

        fs::write(&path, "this is no ref\n").unwrap();
        assert!(is_damaged(&found(&git.path).head()));
    }

    #[test]
    fn symbolic_refs_are_followed_to_their_end_and_no_further() {
        let git = TestRepository::with_commit();
        git.git(&["symbolic-ref", "refs/heads/alias", "refs/heads/main"]);
        git.git(&["symbolic-ref", "HEAD", "refs/heads/alias"]);
        assert_eq!(
            found(&git.path).head().unwrap().branch(),
            Some("refs/heads/main")
        );
        fs::write(
            git.path.join(".git/refs/heads/main"),
            "ref: refs/heads/alias\n",
        )
        .unwrap();
        assert!(is_damaged(&found(&git.path).head()), "a circle");
    }

    #[test]
    fn a_ref_outside_of_refs_is_refused() {
        let git = TestRepository::with_commit();
        fs::write(git.beside("secret"), "0".repeat(40)).unwrap();
        for target in [
            "refs/../../secret",
            "refs/heads/../../../secret",
            "refs//a",
            "refs/a.lock",
        ] {
            fs::write(git.path.join(".git/HEAD"), format!("ref: {target}\n")).unwrap();
            let result = found(&git.path).head();
            assert!(is_hostile(&result), "{target}: {result:?}");
        }
    }

    #[test]
    fn names_of_refs_are_those_that_git_accepts() {
        let git = TestRepository::empty();
        for name in [
            "refs/heads/a",
            "refs/heads/a./b",
            "refs/heads/a.",
            "refs/heads/.a",
            "refs/heads/a..b",
            "refs/heads/a.lock",
            "refs/heads/a.lock/b",
            "refs/heads/a b",
            "refs/heads/a~1",
            "refs/heads/\u{7f}",
            "refs/heads/é",
            "refs/heads/@",
            "refs/heads/a@{1}",
            "refs/heads/a//b",
            "refs/heads/",
            "refs/heads/a[b",
            "refs/heads/a\\b",
            "refs/heads/a*",
            "refs/heads/-a",
        ] {
            let accepted = git
                .run(&git.path, &["check-ref-format", name])
                .status
                .success();
            assert_eq!(is_ref_name(name), accepted, "{name:?}");
        }
        assert!(!is_ref_name("heads/a"));
        assert!(!is_ref_name("HEAD"));
    }

    #[test]
    fn a_branch_whose_name_is_not_utf_8_is_not_handled() {
        let git = TestRepository::with_commit();
        fs::write(git.path.join(".git/HEAD"), b"ref: refs/heads/\xff\n").unwrap();
        let error = SnapshotError::from(found(&git.path).head().unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_branch_whose_name_is_an_empty_directory_is_unborn() {
        let git = TestRepository::new();
        git.git(&["symbolic-ref", "HEAD", "refs/heads/feature"]);
        fs::create_dir_all(git.path.join(".git/refs/heads/feature/old")).unwrap();
        let branch = "refs/heads/feature".to_owned();
        assert_eq!(found(&git.path).head().unwrap(), Head::Unborn { branch });
    }

    #[test]
    fn a_ref_that_a_crash_emptied_is_damage_and_not_unborn() {
        let git = TestRepository::with_commit();
        for text in ["", "\0\0\0\0", "0123", &format!("{}x\n", "a".repeat(40))] {
            fs::write(git.path.join(".git/refs/heads/main"), text).unwrap();
            assert!(is_damaged(&found(&git.path).head()), "{text:?}");
        }
    }
}
