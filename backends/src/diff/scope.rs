//! A comparison of some paths.

use std::collections::BTreeSet;

use crate::diff::Diff;
use crate::diff::beside::Compared;
use crate::diff_error::DiffError;
use crate::operation::Operation;
use crate::path::RelPath;
use crate::restore::View;
use crate::store_error::StoreError;

/// The paths that are compared, each with all that lies below it.
pub(crate) struct Scope<'a> {
    /// `None`: everything.
    paths: Option<BTreeSet<&'a [u8]>>,
}

impl<'a> Scope<'a> {
    /// No paths, and the workspace itself among others, are everything.
    pub(crate) fn of(paths: &'a [RelPath]) -> Self {
        let is_everything = paths.is_empty() || paths.iter().any(RelPath::is_root);
        let paths = (!is_everything).then(|| paths.iter().map(RelPath::as_bytes).collect());
        Self { paths }
    }

    /// Refuses a path that neither side knows anything of: an empty answer would say that it is the
    /// same.
    pub(crate) fn check(
        &self,
        op: &Operation,
        from: &impl Compared,
        to: &impl Compared,
        paths: &[RelPath],
    ) -> Result<(), DiffError> {
        if self.paths.is_none() {
            return Ok(());
        }
        for path in paths {
            if !knows(op, from, path)? && !knows(op, to, path)? {
                return Err(DiffError::UnknownPath { path: path.clone() });
            }
        }
        Ok(())
    }

    /// Whether this path is compared.
    pub(crate) fn has(&self, path: &RelPath) -> bool {
        let Some(paths) = &self.paths else {
            return true;
        };
        let bytes = path.as_bytes();
        let is_end = |at: &usize| matches!(bytes.get(*at), None | Some(b'/'));
        let mut ends = (0..=bytes.len()).filter(is_end);
        ends.any(|end| paths.contains(&bytes[..end]))
    }

    /// Whether something below this path is compared, or all of it.
    fn reaches(&self, path: &RelPath) -> bool {
        let Some(paths) = &self.paths else {
            return true;
        };
        let below = [path.as_bytes(), b"/"].concat();
        let mut next = paths.range(&below[..]..);
        self.has(path) || next.next().is_some_and(|next| next.starts_with(&below))
    }

    /// Takes out of `diff` what is not compared, also what is of no path: git's operations and
    /// refs.
    pub(crate) fn limit(&self, diff: &mut Diff) {
        if self.paths.is_none() {
            return;
        }
        for list in [
            &mut diff.changed_paths,
            &mut diff.added,
            &mut diff.modified,
            &mut diff.deleted,
            &mut diff.directories_added,
            &mut diff.directories_deleted,
        ] {
            list.retain(|path| self.has(path));
        }
        diff.files_changed = diff.changed_paths.len() as u64;
        diff.files.retain(|file| self.has(&file.path));
        diff.permissions_changed.retain(|one| self.has(&one.path));
        // A directory that is hidden stands for all below it.
        diff.newly_ignored.retain(|path| self.reaches(path));
        diff.approximated.retain(|one| self.has(&one.path));
        diff.nested_repositories
            .retain(|one| self.reaches(&one.path));
        diff.skip_worktree.retain(|one| self.has(&one.path));
        diff.operation = None;
        diff.refs.clear();
    }
}

/// Whether a side has something at this path, or left something out there.
fn knows(op: &Operation, side: &impl Compared, path: &RelPath) -> Result<bool, StoreError> {
    let record = side.record();
    let omissions = &record.snapshot.omissions;
    Ok(side.node(op, path)?.is_some()
        || View::of(record).has_empty_at_or_below(path)
        || omissions.covers(path).is_some()
        || omissions.below(path).next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_all_that_lies_below_it_and_no_pattern() {
        let path = |text: &str| RelPath::new(text).expect("it is valid");
        let paths = [path("a/b"), path("x*"), path("d")];
        let scope = Scope::of(&paths);
        for (text, expected) in [
            ("a/b", true),
            ("a/b/c", true),
            ("a/b/c/d", true),
            ("a/bc", false),
            ("a", false),
            ("a/c", false),
            ("xy", false),
            ("x*", true),
            ("d/e", true),
            ("e/d", false),
        ] {
            assert_eq!(scope.has(&path(text)), expected, "{text}");
        }
        assert!(scope.reaches(&path("a")) && scope.reaches(&path("d/e")));
        assert!(!scope.reaches(&path("a/c")) && !scope.reaches(&path("dd")));
        for everything in [&[][..], &[path("a"), RelPath::root()]] {
            assert!(Scope::of(everything).has(&path("b")));
        }
    }
}
