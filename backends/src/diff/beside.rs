//! The differences of two captures beside their entries: permission bits, empty directories, new
//! paths that only the later side's rules leave out, and paths that one side left out because of
//! what they are. Pure, over what the two sides answer.

use std::cell::{Cell, OnceCell};
use std::collections::{BTreeMap, BTreeSet};

use crate::coverage::{Omission, OmissionReason};
use crate::diff::{Approximation, FileStatus, LeftOut};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::record::Record;
use crate::restore::{ModeChange, Node, View};
use crate::store_error::StoreError;
use crate::tree::{Change, Entry, Modes};

/// After this many look-ups on a side all of it is read at once, which by then is cheaper.
const MAX_LOOKED_UP: usize = 200;

/// The bits that git's executable bit does not tell. Where that one changed, only these are news.
const NOT_EXECUTABLE: u32 = 0o666;

/// One side of a comparison.
pub(crate) trait Compared {
    /// The record of the snapshot.
    fn record(&self) -> &Record;

    /// What was captured at `path`. An empty directory may be `None`: the record lists it.
    fn node(&self, op: &Operation, path: &RelPath) -> Result<Option<Node>, StoreError>;

    /// All files and links, sorted by path.
    fn entries(&self, op: &Operation) -> Result<Vec<(RelPath, Entry)>, StoreError>;

    /// Whether the rules and options of this side would leave `path` out.
    fn leaves_out(
        &self,
        op: &Operation,
        path: &RelPath,
        is_directory: bool,
    ) -> Result<bool, StoreError>;
}

/// What came of a comparison beside the changed entries; each list is sorted by path.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Beside {
    pub(crate) permissions_changed: Vec<ModeChange>,
    pub(crate) directories_added: Vec<RelPath>,
    pub(crate) directories_deleted: Vec<RelPath>,
    pub(crate) newly_ignored: Vec<RelPath>,
}

/// Compares two sides whose entries differ by `changes`, which are all and sorted by path. Answers
/// also with the changes that are not evident from the entries, sorted by path.
pub(crate) fn between(
    op: &Operation,
    from: &impl Compared,
    to: &impl Compared,
    changes: &[Change],
) -> Result<(Beside, Vec<LeftOut>), StoreError> {
    let (from, to) = (Known::new(from), Known::new(to));
    let beside = Beside {
        permissions_changed: permissions_changed(op, &from, &to, changes)?,
        directories_added: directories_of_one(op, &to, &from)?,
        directories_deleted: directories_of_one(op, &from, &to)?,
        newly_ignored: newly_ignored(op, &from, &to)?,
    };
    Ok((beside, left_out(op, &from, &to, changes)?))
}

/// A side with what was learnt of it.
struct Known<'a, S> {
    side: &'a S,
    looked_up: Cell<usize>,
    all: OnceCell<BTreeMap<RelPath, Node>>,
}

impl<'a, S: Compared> Known<'a, S> {
    fn new(side: &'a S) -> Self {
        Self {
            side,
            looked_up: Cell::new(0),
            all: OnceCell::new(),
        }
    }

    fn record(&self) -> &'a Record {
        self.side.record()
    }

    fn modes(&self) -> &'a Modes {
        &self.record().modes
    }

    /// What is at `path`, empty directories included.
    fn node(&self, op: &Operation, path: &RelPath) -> Result<Option<Node>, StoreError> {
        let looked_up = self.looked_up.get();
        if looked_up >= MAX_LOOKED_UP || self.all.get().is_some() {
            return Ok(self.all(op)?.get(path).copied());
        }
        self.looked_up.set(looked_up + 1);
        let found = self.side.node(op, path)?;
        let is_listed = || View::of(self.record()).has_empty_at_or_below(path);
        Ok(found.or_else(|| is_listed().then_some(Node::Directory)))
    }

    /// Everything but the workspace itself.
    fn all(&self, op: &Operation) -> Result<&BTreeMap<RelPath, Node>, StoreError> {
        if let Some(all) = self.all.get() {
            return Ok(all);
        }
        let mut all = BTreeMap::new();
        for (path, entry) in self.side.entries(op)? {
            insert_directories(&mut all, path.parent());
            all.insert(path, Node::Entry(entry));
        }
        for path in &self.record().empty_directories {
            insert_directories(&mut all, Some(path.clone()));
        }
        Ok(self.all.get_or_init(|| all))
    }

    /// Whether this side cannot say whether it had something at `path`.
    fn is_blind_at(&self, path: &RelPath) -> bool {
        self.record().snapshot.omissions.covers(path).is_some()
    }
}

/// Inserts a directory and those above it, but for the workspace itself.
fn insert_directories(all: &mut BTreeMap<RelPath, Node>, lowest: Option<RelPath>) {
    let mut next = lowest;
    while let Some(path) = next.filter(|path| !path.is_root()) {
        next = path.parent();
        if all.insert(path, Node::Directory).is_some() {
            break;
        }
    }
}

/// Files and directories of both sides whose recorded bits differ.
fn permissions_changed(
    op: &Operation,
    from: &Known<'_, impl Compared>,
    to: &Known<'_, impl Compared>,
    changes: &[Change],
) -> Result<Vec<ModeChange>, StoreError> {
    let (old, new) = (from.modes(), to.modes());
    let usual = |modes: &Modes| (modes.file, modes.executable, modes.directory);
    let candidates: BTreeSet<&RelPath> = if usual(old) == usual(new) {
        let old: BTreeSet<_> = old.exceptions.iter().collect();
        let new: BTreeSet<_> = new.exceptions.iter().collect();
        old.symmetric_difference(&new)
            .map(|(path, _)| path)
            .collect()
    } else {
        to.all(op)?.keys().collect()
    };
    // What is not on disk has no bits of its own.
    let is_omitted = |path| {
        let mut sides = [from.record(), to.record()].into_iter();
        sides.any(|record| record.snapshot.omissions.at(path).is_some())
    };
    let mut changed = Vec::new();
    for path in candidates {
        if let Some((old, new)) = bits_of_both(op, path, from, to, changes)?
            && old != new
            && !is_omitted(path)
        {
            changed.push(ModeChange {
                path: path.clone(),
                from: old,
                to: new,
            });
        }
    }
    Ok(changed)
}

/// The bits of what is alike on both sides but for content and bits; `None` if nothing is.
fn bits_of_both(
    op: &Operation,
    path: &RelPath,
    from: &Known<'_, impl Compared>,
    to: &Known<'_, impl Compared>,
    changes: &[Change],
) -> Result<Option<(u32, u32)>, StoreError> {
    let (old, new) = (from.modes(), to.modes());
    if let Ok(at) = changes.binary_search_by(|change| change.path.cmp(path)) {
        let both = changes[at].old.zip(changes[at].new);
        return Ok(both.and_then(|(before, after)| entry_bits(path, (old, before), (new, after))));
    }
    Ok(match to.node(op, path)? {
        Some(Node::Entry(same)) => entry_bits(path, (old, same), (new, same)),
        Some(Node::Directory) if from.node(op, path)? == Some(Node::Directory) => {
            Some((old.of_directory(path), new.of_directory(path)))
        }
        _ => None,
    })
}

/// The bits of an entry of both sides; `None` for links, and where git's executable bit says all
/// that changed.
fn entry_bits(
    path: &RelPath,
    (old_modes, old): (&Modes, Entry),
    (new_modes, new): (&Modes, Entry),
) -> Option<(u32, u32)> {
    let from = old_modes.of(path, old.kind)?;
    let to = new_modes.of(path, new.kind)?;
    let is_told = old.kind != new.kind && from & NOT_EXECUTABLE == to & NOT_EXECUTABLE;
    (!is_told).then_some((from, to))
}

/// The empty directories of `one` at which `other` knows that it had no directory. One with
/// something in it that was left out is not empty: it follows from what is named there.
fn directories_of_one(
    op: &Operation,
    one: &Known<'_, impl Compared>,
    other: &Known<'_, impl Compared>,
) -> Result<Vec<RelPath>, StoreError> {
    let listed = &other.record().empty_directories;
    let mut missing = Vec::new();
    for path in &one.record().empty_directories {
        let mut left_out = one.record().snapshot.omissions.below(path);
        if listed.binary_search(path).is_err()
            && left_out.next().is_none()
            && !other.is_blind_at(path)
            && other.node(op, path)? != Some(Node::Directory)
        {
            missing.push(path.clone());
        }
    }
    Ok(missing)
}

/// What the later side leaves out by rules or options that the earlier side had not, and the
/// earlier side knows that it was not there.
fn newly_ignored(
    op: &Operation,
    from: &Known<'_, impl Compared>,
    to: &Known<'_, impl Compared>,
) -> Result<Vec<RelPath>, StoreError> {
    let mut hidden = Vec::new();
    for omission in to.record().snapshot.omissions() {
        let path = &omission.path;
        let is_by_rule = matches!(
            omission.reason,
            OmissionReason::Ignored | OmissionReason::Excluded
        );
        // What has no size is no file: nearly always a directory.
        if is_by_rule
            && !from.is_blind_at(path)
            && !from.side.leaves_out(op, path, omission.bytes.is_none())?
            && from.node(op, path)?.is_none()
        {
            hidden.push(path.clone());
        }
    }
    Ok(hidden)
}

/// Why nothing is to be seen of what was left out for what it is; `None`: it was left out for
/// another reason.
fn out_of_reach(omission: &Omission) -> Option<Approximation> {
    match omission.reason {
        OmissionReason::TooLarge => Some(Approximation::TooLarge),
        OmissionReason::Special => Some(Approximation::Special),
        OmissionReason::Unreadable => Some(Approximation::Unreadable),
        _ => None,
    }
}

/// What one side left out because it is too large, special or unreadable there, and the other has,
/// or knows that it has not. What one captured of a directory that cannot be read on the other is
/// among it.
fn left_out(
    op: &Operation,
    from: &Known<'_, impl Compared>,
    to: &Known<'_, impl Compared>,
    changes: &[Change],
) -> Result<Vec<LeftOut>, StoreError> {
    let mut all = Vec::new();
    for change in changes {
        let blind = match (&change.old, &change.new) {
            (Some(_), None) => to.record(),
            (None, Some(_)) => from.record(),
            _ => continue,
        };
        let coverage = &blind.snapshot.omissions;
        let omission = coverage.covers(&change.path);
        let reason = omission.filter(|_| !coverage.knows(&change.path));
        all.extend(reason.and_then(out_of_reach).map(|reason| LeftOut {
            path: change.path.clone(),
            status: FileStatus::Modified,
            reason,
            kinds: [change.old, change.new].map(|side| side.map(|entry| entry.kind)),
        }));
    }
    all.extend(left_out_of_one(op, from, to, FileStatus::Deleted)?);
    all.extend(left_out_of_one(op, to, from, FileStatus::Added)?);
    all.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(all)
}

/// What `one` left out for what it is, where `other` knows that nothing was; each has this
/// `status`.
fn left_out_of_one(
    op: &Operation,
    one: &Known<'_, impl Compared>,
    other: &Known<'_, impl Compared>,
    status: FileStatus,
) -> Result<Vec<LeftOut>, StoreError> {
    let mut found = Vec::new();
    for omission in one.record().snapshot.omissions() {
        let Some(reason) = out_of_reach(omission) else {
            continue;
        };
        let path = &omission.path;
        if !other.record().snapshot.omissions.knows(path) {
            continue;
        }
        let is_news = match other.node(op, path)? {
            None => true,
            // The same directory, which may not be entered. What was captured in it is named.
            Some(Node::Directory) => omission.is_file_out_of_reach(),
            Some(Node::Entry(_)) => false,
        };
        found.extend(is_news.then(|| LeftOut {
            path: path.clone(),
            status,
            reason,
            kinds: [None, None],
        }));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::coverage::Coverage;
    use crate::host_rules::IgnoreOptions;
    use crate::record::RECORD_VERSION;
    use crate::snapshot::{BackendKind, Label, Snapshot, SnapshotId};
    use crate::tree::{ContentId, EntryKind};

    /// A side in memory. Its one rule leaves out what ends with a given text.
    struct Modelled {
        record: Record,
        entries: BTreeMap<RelPath, Entry>,
        rule: &'static str,
        looked_up: Cell<usize>,
    }

    fn path(text: &str) -> RelPath {
        RelPath::new(text).expect("it is valid")
    }

    impl Modelled {
        /// Files with their bits, empty directories by a slash at the end.
        fn new(disk: &[(&str, u32)]) -> Self {
            let id = SnapshotId::random();
            let mut snapshot = Snapshot::new(
                id,
                BackendKind::Git,
                "/w".into(),
                String::new(),
                Label::MANUAL,
                Timestamp::UNIX_EPOCH,
            );
            snapshot.omissions = Coverage::default();
            let mut record = Record {
                version: RECORD_VERSION,
                snapshot,
                empty_directories: Vec::new(),
                modes: Modes::default(),
                ignore: IgnoreOptions::default(),
                include: Vec::new(),
                max_untracked_file_bytes: None,
                has_content: true,
                git: None,
            };
            let mut entries = BTreeMap::new();
            for (name, mode) in disk {
                if let Some(directory) = name.strip_suffix('/') {
                    record.empty_directories.push(path(directory));
                    continue;
                }
                let (kind, usual) = match mode & 0o100 {
                    0 => (EntryKind::File, 0o644),
                    _ => (EntryKind::Executable, 0o755),
                };
                let id = ContentId::Sha1([1; 20]);
                entries.insert(path(name), Entry { kind, id });
                if *mode != usual {
                    record.modes.exceptions.push((path(name), *mode));
                }
            }
            record.empty_directories.sort();
            record.modes.exceptions.sort();
            Self {
                record,
                entries,
                rule: "/",
                looked_up: Cell::new(0),
            }
        }

        fn omitting(mut self, omitted: &[(&str, OmissionReason)]) -> Self {
            let omissions = omitted.iter().map(|(text, reason)| Omission {
                path: path(text),
                reason: *reason,
                bytes: Some(1),
                kind: None,
            });
            self.record.snapshot.omissions = Coverage::new(omissions.collect());
            self
        }
    }

    impl Compared for Modelled {
        fn record(&self) -> &Record {
            &self.record
        }

        fn node(&self, _: &Operation, path: &RelPath) -> Result<Option<Node>, StoreError> {
            self.looked_up.set(self.looked_up.get() + 1);
            let is_above = self.entries.keys().any(|p| p.starts_with(path));
            Ok(match self.entries.get(path) {
                Some(entry) => Some(Node::Entry(*entry)),
                None => is_above.then_some(Node::Directory),
            })
        }

        fn entries(&self, _: &Operation) -> Result<Vec<(RelPath, Entry)>, StoreError> {
            let entries = self.entries.iter();
            Ok(entries
                .map(|(path, entry)| (path.clone(), *entry))
                .collect())
        }

        fn leaves_out(
            &self,
            _: &Operation,
            path: &RelPath,
            _is_directory: bool,
        ) -> Result<bool, StoreError> {
            Ok(path.to_string().ends_with(self.rule))
        }
    }

    fn between(from: &Modelled, to: &Modelled) -> Beside {
        let paths: BTreeSet<_> = from.entries.keys().chain(to.entries.keys()).collect();
        let changes: Vec<Change> = paths
            .into_iter()
            .map(|path| Change {
                path: path.clone(),
                old: from.entries.get(path).copied(),
                new: to.entries.get(path).copied(),
            })
            .filter(|change| change.old != change.new)
            .collect();
        super::between(&Operation::unbounded(), from, to, &changes)
            .expect("nothing fails in memory")
            .0
    }

    fn modes(beside: &Beside) -> Vec<(String, u32, u32)> {
        let changes = beside.permissions_changed.iter();
        changes
            .map(|c| (c.path.to_string(), c.from, c.to))
            .collect()
    }

    #[test]
    fn bits_count_where_both_sides_have_the_path_and_git_does_not_tell_them() {
        for (from, to, is_told) in [
            (0o644, 0o600, true),
            (0o644, 0o644, false),
            (0o644, 0o755, false),
            (0o600, 0o700, false),
            (0o644, 0o700, true),
            (0o755, 0o700, true),
            (0o755, 0o644, false),
        ] {
            let before = Modelled::new(&[("a", from), ("gone", 0o600)]);
            let after = Modelled::new(&[("a", to), ("new", 0o600)]);
            let expected = match is_told {
                true => vec![("a".to_owned(), from, to)],
                false => Vec::new(),
            };
            assert_eq!(
                modes(&between(&before, &after)),
                expected,
                "{from:o} {to:o}"
            );
        }
    }

    #[test]
    fn usual_bits_that_moved_lead_to_the_same_answer() {
        let before = Modelled::new(&[("a", 0o644), ("d/b", 0o644), ("x", 0o755)]);
        let mut after = Modelled::new(&[("a", 0o644), ("d/b", 0o600), ("x", 0o755)]);
        let expected = [("d/b".to_owned(), 0o644, 0o600)];
        assert_eq!(modes(&between(&before, &after)), expected);
        // The same disk, recorded the other way round.
        after.record.modes.file = 0o600;
        after.record.modes.exceptions = vec![(path("a"), 0o644)];
        assert_eq!(modes(&between(&before, &after)), expected);
        after.record.modes.directory = 0o700;
        let told = modes(&between(&before, &after));
        assert_eq!(told[0], ("d".to_owned(), 0o755, 0o700), "{told:?}");
    }

    #[test]
    fn what_a_sparse_checkout_left_out_has_no_bits_to_compare() {
        let before = Modelled::new(&[("a", 0o644)]);
        let after = Modelled::new(&[("a", 0o600)]).omitting(&[("a", OmissionReason::Sparse)]);
        assert_eq!(between(&before, &after), Beside::default());
        assert_eq!(between(&after, &before), Beside::default());
    }

    #[test]
    fn an_empty_directory_is_news_where_the_other_side_knows_of_none() {
        let before = Modelled::new(&[("file", 0o644), ("had/x", 0o644), ("old/", 0), ("p/q/", 0)]);
        let after = Modelled::new(&[("file/", 0), ("had/", 0), ("hidden/", 0), ("p/", 0)]);
        let before = before.omitting(&[("hidden", OmissionReason::Ignored)]);
        let beside = between(&before, &after);
        assert_eq!(beside.directories_added, [path("file")]);
        assert_eq!(beside.directories_deleted, [path("old"), path("p/q")]);
        let with_something =
            Modelled::new(&[("made/", 0)]).omitting(&[("made/x", OmissionReason::Ignored)]);
        assert_eq!(
            between(&Modelled::new(&[]), &with_something).directories_added,
            [],
            "it is not empty"
        );
    }

    #[test]
    fn only_a_new_path_that_only_later_rules_leave_out_is_newly_ignored() {
        let mut before = Modelled::new(&[("kept", 0o644)])
            .omitting(&[("long/ignored", OmissionReason::Ignored)]);
        before.rule = ".o";
        let after = Modelled::new(&[("kept", 0o644)]).omitting(&[
            ("a.o", OmissionReason::Ignored),
            ("kept", OmissionReason::Ignored),
            ("long/ignored", OmissionReason::Ignored),
            ("large", OmissionReason::TooLarge),
            ("new", OmissionReason::Ignored),
            ("option", OmissionReason::Excluded),
        ]);
        let beside = between(&before, &after);
        assert_eq!(beside.newly_ignored, [path("new"), path("option")]);
        assert_eq!(between(&after, &before), Beside::default());
    }

    #[test]
    fn a_crowd_of_paths_is_not_looked_up_one_by_one() {
        let names: Vec<String> = (0..3 * MAX_LOOKED_UP)
            .map(|n| format!("d/{n:05}"))
            .collect();
        let disk = |mode| {
            names
                .iter()
                .map(|name| (name.as_str(), mode))
                .collect::<Vec<_>>()
        };
        let (before, after) = (Modelled::new(&disk(0o640)), Modelled::new(&disk(0o600)));
        assert_eq!(
            between(&before, &after).permissions_changed.len(),
            names.len()
        );
        assert!(after.looked_up.get() <= MAX_LOOKED_UP);
    }
}
