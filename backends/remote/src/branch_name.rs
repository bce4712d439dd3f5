//! The names of work branches.
//!
//! A name is computed once and stored with its task. From then on it is looked up, also when the
//! title of the task or of its project changes.

use std::fmt;

use data_encoding::HEXLOWER;
use sha1::{Digest as _, Sha1};
use stillframe_git::repository::is_ref_name;
use stillframe_model::error::ErrorKind;
use stillframe_model::path::printable_name;

use crate::slug::slug;

/// Below which all work branches lie.
const ROOT: &str = "stillframe/task";

/// What joins a work branch and a run to the name of a side branch. No task id has it, so that no
/// task's work branch is the side branch of another.
const DIVERGED: &str = "--diverged-";

/// The longest name of a work branch, in bytes, which for ASCII are characters.
pub const MAX_NAME_BYTES: usize = 200;

/// The longest component of a side branch. The server has a file of that name, and beside it one
/// that ends in `.lock`; 255 bytes is what file systems take.
const MAX_COMPONENT_BYTES: usize = 250;

/// The id that a host, or a user, has given to a task: one component of a branch's name, verbatim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TaskId(String);

/// The platform and the project of a task, where several projects share a remote.
///
/// Both are slugs: lower case, with one `-` for every run of characters outside of `[a-z0-9]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace {
    platform: String,
    project: String,
}

/// The name of a branch on a remote, without `refs/heads/`. git accepts it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BranchName(String);

/// Why there is no branch name. Nothing is repaired in silence, and nothing was touched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BranchNameError {
    /// git would refuse a branch with this component, or it is more than one.
    #[error(
        "{id:?} is no task id: it may be no part of a branch's name (git check-ref-format), or has \
         a slash"
    )]
    TaskId {
        /// What was given.
        id: String,
    },
    /// A task of this name would have the side branch of another for its work branch.
    #[error("{id:?} is no task id: names with \"{DIVERGED}\" are those of side branches")]
    SideBranch {
        /// What was given.
        id: String,
    },
    /// Nothing is left of it as a slug.
    #[error("the {part} {given:?} has no letter from a to z and no digit")]
    NoSlug {
        /// `platform` or `project`.
        part: &'static str,
        /// What was given.
        given: String,
    },
    /// It is not `PLATFORM/PROJECT`.
    #[error("the namespace {given:?} is not a platform, a slash and a project")]
    Namespace {
        /// What was given.
        given: String,
    },
    /// The name has more than [`MAX_NAME_BYTES`].
    #[error("the branch {name} would have {bytes} bytes, and may have {MAX_NAME_BYTES}")]
    TooLong {
        /// The name that there would be.
        name: String,
        /// Its length.
        bytes: usize,
    },
    /// git has no branch of that name.
    #[error("{name:?} is no name of a branch (git check-ref-format)")]
    Branch {
        /// What was given.
        name: String,
    },
}

impl BranchNameError {
    /// The kind at the API.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::InvalidOptions
    }
}

impl TaskId {
    /// Takes `id` as it is, or not at all.
    pub fn new(id: &str) -> Result<Self, BranchNameError> {
        let shown = || printable_name(id.as_bytes());
        if id.contains('/') || !is_ref_name(&format!("refs/heads/{ROOT}/{id}")) {
            return Err(BranchNameError::TaskId { id: shown() });
        }
        if id.contains(DIVERGED) {
            return Err(BranchNameError::SideBranch { id: shown() });
        }
        Ok(Self(id.to_owned()))
    }

    /// The id as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Namespace {
    /// The namespace of a project on a platform, each in any spelling.
    pub fn new(platform: &str, project: &str) -> Result<Self, BranchNameError> {
        let slug_of = |part, given: &str| {
            slug(given).ok_or_else(|| BranchNameError::NoSlug {
                part,
                given: printable_name(given.as_bytes()),
            })
        };
        Ok(Self {
            platform: slug_of("platform", platform)?,
            project: slug_of("project", project)?,
        })
    }

    /// Reads `PLATFORM/PROJECT`. What follows the first slash is the project, with its groups.
    pub fn parse(text: &str) -> Result<Self, BranchNameError> {
        let none = || BranchNameError::Namespace {
            given: printable_name(text.as_bytes()),
        };
        let (platform, project) = text.split_once('/').ok_or_else(none)?;
        Self::new(platform, project)
    }
}

impl BranchName {
    /// The work branch of a task: `stillframe/task/{id}`, or, with a namespace,
    /// `stillframe/task/{platform}/{project}/{id}`.
    ///
    /// A remote has one of the two layouts and never both, since a branch cannot lie below another.
    pub fn of_task(task: &TaskId, namespace: Option<&Namespace>) -> Result<Self, BranchNameError> {
        let name = match namespace {
            Some(namespace) => format!("{ROOT}/{namespace}/{}", task.0),
            None => format!("{ROOT}/{}", task.0),
        };
        match name.len() {
            ..=MAX_NAME_BYTES => Ok(Self(name)),
            bytes => Err(BranchNameError::TooLong { name, bytes }),
        }
    }

    /// A name that was stored, or that a remote has.
    pub fn parse(name: &str) -> Result<Self, BranchNameError> {
        match is_ref_name(&format!("refs/heads/{name}")) {
            true => Ok(Self(name.to_owned())),
            false => Err(BranchNameError::Branch {
                name: printable_name(name.as_bytes()),
            }),
        }
    }

    /// Where the work of `run_id` goes when this work branch has diverged:
    /// `{work branch}--diverged-{run_id}`, a sibling, because no branch can lie below this one.
    ///
    /// There always is one: a run id that would make it too long for a server's file system, or
    /// that git would refuse there, is replaced by its SHA-1.
    pub fn side_branch(&self, run_id: &str) -> Self {
        let named = |id: &str| format!("{}{DIVERGED}{id}", self.0);
        let plain = named(run_id);
        let last = plain.rsplit('/').next().unwrap_or_default();
        let is_kept = last.len() <= MAX_COMPONENT_BYTES
            && !run_id.contains('/')
            && is_ref_name(&format!("refs/heads/{plain}"));
        Self(match is_kept {
            true => plain,
            false => named(&HEXLOWER.encode(&Sha1::digest(run_id))),
        })
    }

    /// The name without `refs/heads/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The full name of the ref.
    pub fn full(&self) -> String {
        format!("refs/heads/{}", self.0)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `platform/project`.
impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.platform, self.project)
    }
}

impl fmt::Display for BranchName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    fn task(id: &str) -> TaskId {
        TaskId::new(id).unwrap()
    }

    fn named(id: &str, namespace: Option<(&str, &str)>) -> String {
        let namespace = namespace.map(|(platform, project)| {
            Namespace::new(platform, project).expect("both have a slug")
        });
        let name = BranchName::of_task(&task(id), namespace.as_ref());
        name.unwrap().as_str().to_owned()
    }

    fn git_accepts(name: &str) -> bool {
        let mut git = Command::new("git");
        git.args(["check-ref-format", name])
            .status()
            .unwrap()
            .success()
    }

    #[test]
    fn a_task_is_named_flat_or_below_its_project() {
        assert_eq!(named("42", None), "stillframe/task/42");
        assert_eq!(
            named("18693", Some(("AzureRepos", "Engineering"))),
            "stillframe/task/azurerepos/engineering/18693"
        );
        let read = Namespace::parse("GitLab/Group/Sub Group").unwrap();
        assert_eq!(read.to_string(), "gitlab/group-sub-group");
    }

    #[test]
    fn projects_that_begin_alike_have_names_of_their_own() {
        let same = "p".repeat(70);
        let name = |end: &str| named("1", Some(("github", &format!("{same}{end}"))));
        assert_ne!(name("0123456789"), name("9876543210"));
        assert_eq!(name("0123456789"), name("0123456789"));
    }

    #[test]
    fn what_has_no_name_is_said_and_not_repaired() {
        let no_slug = Namespace::new("github", "").unwrap_err();
        assert_eq!(
            no_slug.to_string(),
            "the project \"\" has no letter from a to z and no digit"
        );
        for (platform, project) in [("", "a"), ("--", "a"), ("a", "日本")] {
            let error = Namespace::new(platform, project).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{error}");
        }
        assert!(Namespace::parse("github").is_err());
        for id in [
            "", "a/b", "..", "a..b", "a b", ".a", "a.", "a.lock", "a~1", "a@{1}", "a\nb",
        ] {
            let error = TaskId::new(id).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOptions, "{id:?}");
            assert!(!error.to_string().contains('\n'), "{error}");
        }
        let side = TaskId::new("42--diverged-run_1").unwrap_err();
        assert!(matches!(side, BranchNameError::SideBranch { .. }), "{side}");
    }

    #[test]
    fn a_name_has_200_bytes_at_most() {
        let prefix = "stillframe/task/".len();
        let longest = "a".repeat(MAX_NAME_BYTES - prefix);
        assert_eq!(named(&longest, None).len(), MAX_NAME_BYTES);
        let error = BranchName::of_task(&task(&format!("{longest}a")), None).unwrap_err();
        assert!(
            matches!(error, BranchNameError::TooLong { bytes: 201, .. }),
            "{error}"
        );
        let wide = "é".repeat((MAX_NAME_BYTES - prefix) / 2 + 1);
        assert!(
            BranchName::of_task(&task(&wide), None).is_err(),
            "a file has bytes"
        );
    }

    #[test]
    fn a_side_branch_is_a_sibling_that_there_always_is() {
        let work = BranchName::parse("stillframe/task/42").unwrap();
        let run = format!("run_{}", "0".repeat(32));
        assert_eq!(
            work.side_branch(&run).as_str(),
            format!("stillframe/task/42--diverged-{run}")
        );
        let longest = BranchName::parse(&named(&"a".repeat(184), None)).unwrap();
        for run in [&*"r".repeat(200), "a/b", "a..b", "a.lock", "r."] {
            let side = longest.side_branch(run);
            let last = side.as_str().rsplit('/').next().unwrap();
            assert!(last.len() <= MAX_COMPONENT_BYTES, "{side}");
            assert!(git_accepts(&side.full()), "{side}");
            assert_ne!(side, longest.side_branch(&format!("{run}x")), "{run}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn an_id_is_taken_where_git_takes_it(
            id in prop_oneof![
                "[a-c./@{}~^:?*\\[\\\\ \u{1}\u{7f}é-]{0,6}",
                "[a-z0-9._-]{0,8}(\\.lock)?",
            ],
        ) {
            let accepted = !id.contains('/') && git_accepts(&format!("refs/heads/stillframe/task/{id}"));
            prop_assert_eq!(TaskId::new(&id).is_ok(), accepted);
            prop_assert_eq!(
                BranchName::parse(&id).is_ok(),
                git_accepts(&format!("refs/heads/{id}"))
            );
        }

        #[test]
        fn any_namespace_that_has_a_name_has_one_that_git_takes(
            platform in "\\PC{0,20}", project in "\\PC{0,50}",
        ) {
            if let Ok(namespace) = Namespace::new(&platform, &project) {
                let name = BranchName::of_task(&task("1"), Some(&namespace)).unwrap();
                prop_assert!(git_accepts(&name.full()), "{}", name);
                let again = Namespace::parse(&namespace.to_string()).unwrap();
                prop_assert_eq!(again, namespace, "a slug is its own slug");
            }
        }
    }
}
