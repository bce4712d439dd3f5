//! Safety refs: refs in the user's repository that keep commits which a restore would leave without
//! a name.
//!
//! They are outside of `refs/tags/`, so that no push of branches or tags sends what a run
//! committed. An earlier version kept them as tags, which are moved here.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::lock::Locks;
use super::refs::Refs;
use crate::git::ObjectId;
use crate::git::put_error::PutError;
use crate::operation::Operation;

/// Where they lie.
pub(in crate::git) const DIRECTORY: &str = "refs/stillframe/safety";

/// Where those of an earlier version lie, and how their last part begins.
pub(in crate::git) const EARLIER_DIRECTORY: &str = "refs/tags/stillframe";
const EARLIER_PREFIX: &str = "refs/tags/stillframe/safety-";

/// A run is rolled back a few times at most; a repository with more refs of one run is broken.
const MAX_REFS: u32 = 1000;

/// The part before the number in the names of one run's refs, or of another undone operation's.
fn stem_of(run_id: &str) -> String {
    // The one thing that a run's id may hold and a ref's name may not.
    let run = match run_id.contains("..") {
        true => run_id.replace('.', "%2e"),
        false => run_id.to_owned(),
    };
    format!("{DIRECTORY}/{run}")
}

/// A name for the ref of each commit: one that no other ref has, or that has this commit already.
///
/// A symbolic ref at the name is none of ours, and is not followed: the branch stays where it is.
pub(super) fn free_names(
    op: &Operation,
    refs: &Refs,
    run_id: &str,
    commits: &[ObjectId],
) -> Result<Vec<(String, ObjectId)>, PutError> {
    let stem = stem_of(run_id);
    let mut named: Vec<(String, ObjectId)> = Vec::new();
    for commit in commits {
        let is_named = |name: &str| named.iter().any(|(taken, _)| taken == name);
        let name = free_name(op, refs, &stem, commit, &is_named)?;
        named.push((name, *commit));
    }
    Ok(named)
}

fn free_name(
    op: &Operation,
    refs: &Refs,
    stem: &str,
    commit: &ObjectId,
    is_named: &dyn Fn(&str) -> bool,
) -> Result<String, PutError> {
    let name_of = |number| format!("{stem}-{number}");
    for name in (1..=MAX_REFS).map(name_of) {
        if !is_named(&name)
            && refs
                .resolve(op, &name)?
                .is_none_or(|taken| taken == *commit)
        {
            return Ok(name);
        }
    }
    Err(PutError::NoFreeTag {
        last: name_of(MAX_REFS),
    })
}

/// The stem that tags of an earlier version have where they are moved to; `None`: it is no name of
/// theirs.
fn stem_of_earlier(tag: &str) -> Option<String> {
    let (run, number) = tag.strip_prefix(EARLIER_PREFIX)?.rsplit_once('-')?;
    let is_number = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    (is_number && !run.is_empty()).then(|| format!("{DIRECTORY}/{run}"))
}

/// Whether `name` is one of those with this stem.
fn has_stem(name: &str, stem: &str) -> bool {
    let number = name
        .strip_prefix(stem)
        .and_then(|rest| rest.strip_prefix('-'));
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|digit| digit.is_ascii_digit()))
}

/// The refs of what an earlier version restored, by any one of its tags, and the commits that it
/// may have kept.
#[derive(Clone, Debug)]
pub(in crate::git) struct Earlier {
    stem: String,
    commits: Vec<ObjectId>,
}

impl Earlier {
    /// `tag` is a tag that the log has; `None` if it is no name that such a tag has.
    pub(in crate::git) fn new(tag: &str, commits: Vec<ObjectId>) -> Option<Self> {
        let stem = stem_of_earlier(tag)?;
        Some(Self { stem, commits })
    }

    /// Whether this tag is one of them.
    fn has_tag(&self, name: &str, commit: &ObjectId) -> bool {
        stem_of_earlier(name).is_some_and(|stem| stem == self.stem) && self.commits.contains(commit)
    }

    /// Whether this is what one of its tags was moved to.
    pub(in crate::git) fn has_ref(&self, name: &str, commit: &ObjectId) -> bool {
        has_stem(name, &self.stem) && self.commits.contains(commit)
    }
}

/// Whether a tag has a name of those that an earlier version made.
pub(in crate::git) fn is_earlier(name: &str) -> bool {
    stem_of_earlier(name).is_some()
}

/// Changes them, under git's own locks. The caller holds the lock of the repository.
pub(in crate::git) struct SafetyRefs {
    refs: Refs,
    operation: String,
    lock_timeout: Duration,
}

impl SafetyRefs {
    pub(in crate::git) fn open(
        common_dir: &Path,
        lock_timeout: Duration,
    ) -> Result<Self, PutError> {
        Ok(Self {
            refs: Refs::open(common_dir)?,
            operation: uuid::Uuid::new_v4().simple().to_string(),
            lock_timeout,
        })
    }

    /// Moves those of `tags` that are `known`, and adds the names before and after to `moved`.
    ///
    /// The new ref is there before the tag goes. What was interrupted is gone on with by the next
    /// call.
    pub(in crate::git) fn move_here(
        &self,
        op: &Operation,
        tags: &BTreeMap<String, ObjectId>,
        known: &[Earlier],
        moved: &mut Vec<(String, String)>,
    ) -> Result<(), PutError> {
        for (tag, commit) in tags {
            let Some(earlier) = known.iter().find(|earlier| earlier.has_tag(tag, commit)) else {
                continue;
            };
            let name = free_name(op, &self.refs, &earlier.stem, commit, &|_| false)?;
            self.refs
                .move_to(op, &self.locks(), &name, None, Some(*commit))?;
            self.refs
                .move_to(op, &self.locks(), tag, Some(*commit), None)?;
            moved.push((tag.clone(), name));
        }
        Ok(())
    }

    /// Removes a ref that names this commit. One that is gone is fine; [`PutError::Moved`]: it
    /// names something else by now, and was left.
    pub(in crate::git) fn remove(
        &self,
        op: &Operation,
        name: &str,
        commit: ObjectId,
    ) -> Result<(), PutError> {
        self.refs
            .move_to(op, &self.locks(), name, Some(commit), None)
    }

    fn locks(&self) -> Locks<'_> {
        Locks {
            operation: &self.operation,
            is_recovery: false,
            lock_timeout: self.lock_timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_of_an_earlier_version_is_known_by_its_name() {
        let stem = |name: &str| stem_of_earlier(name);
        let run_7 = Some("refs/stillframe/safety/run_7".to_owned());
        assert_eq!(stem("refs/tags/stillframe/safety-run_7-1"), run_7);
        assert_eq!(stem("refs/tags/stillframe/safety-run_7-12"), run_7);
        assert_eq!(run_7.as_deref(), Some(&*stem_of("run_7")));
        for other in [
            "refs/tags/stillframe/safety-run_7",
            "refs/tags/stillframe/safety--1",
            "refs/tags/stillframe/safety-run_7-1a",
            "refs/tags/stillframe/safety-run_7-",
            "refs/tags/stillframe/mine-run_7-1",
            "refs/tags/safety-run_7-1",
            "refs/heads/stillframe/safety-run_7-1",
        ] {
            assert_eq!(stem(other), None, "{other}");
        }
    }

    #[test]
    fn only_a_name_and_a_commit_together_make_it_ours() {
        let id = |digit: &str| digit.repeat(40).parse::<ObjectId>().unwrap();
        let ours =
            Earlier::new("refs/tags/stillframe/safety-a-b-1", vec![id("1"), id("2")]).unwrap();
        assert!(ours.has_tag("refs/tags/stillframe/safety-a-b-2", &id("2")));
        assert!(!ours.has_tag("refs/tags/stillframe/safety-a-b-2", &id("3")));
        assert!(!ours.has_tag("refs/tags/stillframe/safety-a-1", &id("1")));
        assert!(ours.has_ref("refs/stillframe/safety/a-b-1", &id("1")));
        assert!(!ours.has_ref("refs/stillframe/safety/a-b-c-1", &id("1")));
        assert!(!ours.has_ref("refs/stillframe/safety/a-b-1", &id("3")));
        assert!(Earlier::new("refs/tags/v1", vec![id("1")]).is_none());
    }
}
