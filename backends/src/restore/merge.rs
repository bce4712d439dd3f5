//! Merging what an undo takes back with what somebody edited since, in files of lines.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;

use git2::{MergeFileInput, MergeFileOptions};

use super::sorted::change_at;
use super::view::View;
use super::{Conflict, ConflictRegion, Restorable};
use crate::contents::{ContentError, Contents, Overlaid};
use crate::descriptor;
use crate::git::{ObjectId, ObjectKind, libgit2};
use crate::operation::Operation;
use crate::patch;
use crate::path::RelPath;
use crate::store_error::StoreError;
use crate::tree::{Change, ContentId, Entry, EntryKind};
use crate::workspace::Workspace;
use crate::worktree::root::Root;

/// Longer files are not merged: three versions of one, and the result, are in memory together.
pub(crate) const MAX_FILE_BYTES: u64 = 4 << 20;

/// All merged files of an undo together, and all lines in conflict, have at most this many bytes,
/// as they are held until the files are staged. A file that is over is not merged.
const MAX_MERGED_BYTES: usize = 64 << 20;

/// The length of git's own conflict markers.
const USUAL_MARKER: usize = 7;

/// Stands before each text while they are merged: git2 makes a slice of no memory of an empty
/// result.
const FIRST_LINE: &[u8] = b"stillframe: the first line of all versions\n";

/// A file that the operation changed and that somebody edited since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) path: RelPath,
    /// As it is.
    current: Version,
    /// As the operation left it.
    after: Version,
    /// As it was before the operation.
    before: Version,
}

/// A file as one of the three has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    id: ContentId,
    mode: u32,
}

/// What comes of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Merge {
    /// The edits and the undo meet nowhere.
    Clean {
        /// The file that has both.
        entry: Entry,
        /// Its permission bits.
        mode: u32,
    },
    /// They meet, and nobody can say what is wanted there.
    Conflict(Conflict),
}

/// What comes of one candidate, with the content of the merged file if it may be new.
struct Merged {
    merge: Merge,
    made: Option<Vec<u8>>,
}

impl Merged {
    /// What it holds.
    fn bytes(&self) -> usize {
        let in_conflict = match &self.merge {
            Merge::Clean { .. } => 0,
            Merge::Conflict(conflict) => conflict.regions.iter().map(ConflictRegion::bytes).sum(),
        };
        in_conflict + self.made.as_ref().map_or(0, Vec::len)
    }
}

/// What came of all candidates.
#[derive(Debug, Default)]
pub(super) struct Merges {
    /// By path. A candidate that is no text, or too long, or of which some version is not in the
    /// store, is not among them.
    pub(super) by_path: BTreeMap<RelPath, Merge>,
    /// The content of those merged files that no snapshot has.
    pub(super) made: BTreeMap<ContentId, Vec<u8>>,
}

/// What three states of a workspace have.
pub(super) struct Versions<'a> {
    pub(super) current: View<'a>,
    /// After the operation that an undo takes back.
    pub(super) after: View<'a>,
    pub(super) before: View<'a>,
    /// From `current` to `before`, sorted by path.
    pub(super) changes: &'a [Change],
    /// From `after` to `before`, sorted by path.
    pub(super) operation: &'a [Change],
}

/// The files that the operation changed, and that are neither as it left them nor as they were
/// before it.
pub(super) fn candidates(versions: &Versions<'_>) -> Vec<Candidate> {
    let candidate = |path: &RelPath, current: Entry, before: Entry| {
        let operation = change_at(versions.operation, path)?;
        let after = operation.old?;
        if operation.new != Some(before) {
            return None;
        }
        // A link has no permission bits, and is no text.
        let version = |entry: Entry, view: View<'_>| {
            let mode = view.modes.of(path, entry.kind)?;
            let id = entry.id;
            Some(Version { id, mode })
        };
        let candidate = Candidate {
            path: path.clone(),
            current: version(current, versions.current)?,
            after: version(after, versions.after)?,
            before: version(before, versions.before)?,
        };
        (candidate.current != candidate.after).then_some(candidate)
    };
    let changes = versions.changes.iter();
    let views = [versions.current, versions.before];
    let changes = changes.filter(|change| {
        !views
            .iter()
            .any(|view| view.names_without_bytes(&change.path).is_some())
    });
    changes
        .filter_map(|change| candidate(&change.path, change.old?, change.new?))
        .collect()
}

/// Merges `candidates`.
///
/// Of a capture that was not published the store need not have the content; the files have it.
pub(super) fn merge_all<B: Restorable>(
    op: &Operation,
    backend: &B,
    workspace: &Workspace,
    candidates: Vec<Candidate>,
) -> Result<Merges, StoreError> {
    let mut merges = Merges::default();
    if candidates.is_empty() {
        return Ok(merges);
    }
    let missing = backend.missing(op, workspace, &ids_of(&candidates))?;
    let held = on_disk(workspace, &candidates, &missing)?;
    let stored: Vec<ContentId> = ids_of(&candidates)
        .into_iter()
        .filter(|id| missing.binary_search(id).is_err())
        .collect();
    let contents = Overlaid {
        held: &held,
        stored: &*backend.contents(op, workspace, &stored)?,
    };
    let mut room = MAX_MERGED_BYTES;
    for candidate in candidates {
        let Some(mode) = merged_mode(&candidate) else {
            continue;
        };
        let merged = merge_one(&candidate, mode, &contents)?;
        let Some(merged) = merged.filter(|merged| merged.bytes() <= room) else {
            continue;
        };
        room -= merged.bytes();
        let Merged { merge, made } = merged;
        if let (Merge::Clean { entry, .. }, Some(made)) = (&merge, made) {
            merges.made.insert(entry.id, made);
        }
        merges.by_path.insert(candidate.path, merge);
    }
    Ok(merges)
}

/// Those files as they are whose content is `missing` in the store, if nobody has written to them
/// since.
fn on_disk(
    workspace: &Workspace,
    candidates: &[Candidate],
    missing: &[ContentId],
) -> Result<BTreeMap<ContentId, Vec<u8>>, StoreError> {
    let is_missing = |id| missing.binary_search(id).is_ok();
    let wanted = candidates.iter().filter(|c| is_missing(&c.current.id));
    let mut held = BTreeMap::new();
    let mut room = MAX_MERGED_BYTES;
    let root = workspace.root()?;
    for Candidate { path, current, .. } in wanted {
        let Some(text) = read(&root, path).filter(|text| text.len() <= room) else {
            continue;
        };
        if id_of(&current.id, &text) == Some(current.id) {
            room -= text.len();
            held.insert(current.id, text);
        }
    }
    Ok(held)
}

/// The bytes of a file that is not too long; `None` if there is no such file any more.
fn read(root: &Root, path: &RelPath) -> Option<Vec<u8>> {
    let (parent, name) = root.open_parent(path).ok()?;
    let file = descriptor::open_file_at(parent.as_fd(), name).ok()?;
    let mut text = Vec::new();
    let read = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text);
    (read.is_ok() && text.len() as u64 <= MAX_FILE_BYTES).then_some(text)
}

/// The id of `text`, of the same kind as `other`. `None`: no store would take it.
fn id_of(other: &ContentId, text: &[u8]) -> Option<ContentId> {
    match other {
        ContentId::Sha1(_) => Some(ObjectId::of(ObjectKind::Blob, text).ok()?.into()),
        ContentId::Blake3(_) => Some(ContentId::Blake3(blake3::hash(text).into())),
    }
}

/// The ids of all versions, sorted and unique.
fn ids_of(candidates: &[Candidate]) -> Vec<ContentId> {
    let ids = |c: &Candidate| [c.current.id, c.after.id, c.before.id];
    let mut ids: Vec<ContentId> = candidates.iter().flat_map(ids).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The permission bits that both sides agree on; `None` if each has changed them otherwise.
fn merged_mode(candidate: &Candidate) -> Option<u32> {
    let Candidate {
        current,
        after,
        before,
        ..
    } = candidate;
    match () {
        () if current.mode == after.mode => Some(before.mode),
        () if before.mode == after.mode || before.mode == current.mode => Some(current.mode),
        () => None,
    }
}

/// Merges one. `None`: it cannot be merged by lines.
fn merge_one(
    candidate: &Candidate,
    mode: u32,
    contents: &dyn Contents,
) -> Result<Option<Merged>, StoreError> {
    let Candidate {
        current,
        after,
        before,
        ..
    } = candidate;
    let clean = |id, made| {
        let kind = match mode & 0o100 {
            0 => EntryKind::File,
            _ => EntryKind::Executable,
        };
        let entry = Entry { kind, id };
        let merge = Merge::Clean { entry, mode };
        Merged { merge, made }
    };
    // One of them changed nothing but the permission bits.
    if current.id == after.id {
        return Ok(Some(clean(before.id, None)));
    }
    if before.id == after.id || before.id == current.id {
        return Ok(Some(clean(current.id, None)));
    }
    let mut texts = Vec::with_capacity(3);
    for version in [current, after, before] {
        match text(contents, &version.id)? {
            Some(text) => texts.push(text),
            None => return Ok(None),
        }
    }
    let [current_text, after_text, before_text] = &texts[..] else {
        return Ok(None);
    };
    Ok(match take_back(current_text, after_text, before_text) {
        Lines::Merged(merged) if merged == *current_text => Some(clean(current.id, None)),
        Lines::Merged(merged) => id_of(&current.id, &merged).map(|id| clean(id, Some(merged))),
        Lines::Conflict(regions) => {
            let path = candidate.path.clone();
            Some(Merged {
                merge: Merge::Conflict(Conflict { path, regions }),
                made: None,
            })
        }
        Lines::Unknown => None,
    })
}

/// Content that is text, as git judges it, and not too long; `None` if it is not, or the store has
/// not what its id says.
fn text(contents: &dyn Contents, id: &ContentId) -> Result<Option<Vec<u8>>, StoreError> {
    let mut read = Bounded(Vec::new());
    match contents.write(id, &mut read) {
        Ok(()) => Ok(Some(read.0).filter(|text| !patch::is_binary(text))),
        // It is too long, or nothing to go by. That it is kept as it is needs no more.
        Err(ContentError::Sink(_) | ContentError::Store(StoreError::Corrupt { .. })) => Ok(None),
        Err(ContentError::Store(error)) => Err(error),
    }
}

/// Takes as much as is merged.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.0.len() + bytes.len()) as u64 > MAX_FILE_BYTES {
            return Err(io::Error::other("it is too long to be merged"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What comes of three texts.
#[derive(Debug, PartialEq, Eq)]
enum Lines {
    Merged(Vec<u8>),
    Conflict(Vec<ConflictRegion>),
    /// Nobody can say what is wanted, or libgit2 refused them.
    Unknown,
}

/// Does to `current` what leads from `after` to `before`, if what leads from `before` to `after` is
/// in it, and nothing if that is not in it.
///
/// A merge alone cannot tell which of the two it is: where lines repeat it takes the same thing
/// back from a text a second time. So it is asked in both directions. What is in a text changes
/// nothing when it is done again; what was taken back changes nothing when it is taken back again,
/// and comes back by doing it. Where one of that does not hold, nobody can say.
fn take_back(current: &[u8], after: &[u8], before: &[u8]) -> Lines {
    let back = |from: &[u8]| merge_lines(from, after, before);
    let forth = |from: &[u8]| merge_lines(from, before, after);
    let is = |lines: &Lines, text: &[u8]| matches!(lines, Lines::Merged(merged) if merged == text);
    let is_in = || is(&forth(current), current);
    match back(current) {
        Lines::Merged(undone) if undone == current => Lines::Merged(undone),
        Lines::Merged(undone) => {
            let is_sure = is_in() && is(&forth(&undone), current) && is(&back(&undone), &undone);
            match is_sure {
                true => Lines::Merged(undone),
                false => Lines::Unknown,
            }
        }
        other => other,
    }
}

/// What comes of three texts of which two go on from the first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TextMerge {
    Clean(Vec<u8>),
    /// With what git puts around lines that nobody can merge.
    Conflict(Vec<u8>),
    /// One is not text as git judges it, or libgit2 refused them.
    Binary,
}

/// Merges three texts by lines. In a conflict the two sides have these labels, and markers that are
/// so much longer than git's own.
pub(crate) fn merge_texts(
    base: &[u8],
    ours: &[u8],
    theirs: &[u8],
    (more_marker, [our_label, their_label]): (u16, [Vec<u8>; 2]),
) -> TextMerge {
    if [base, ours, theirs].into_iter().any(patch::is_binary) {
        return TextMerge::Binary;
    }
    let mut options = MergeFileOptions::new();
    options
        .marker_size(USUAL_MARKER as u16 + more_marker)
        .our_label(our_label)
        .their_label(their_label);
    match merge_files([base, ours, theirs], &mut options) {
        Some((text, true)) => TextMerge::Clean(text),
        Some((text, false)) => TextMerge::Conflict(text),
        None => TextMerge::Binary,
    }
}

/// Merges by lines as git does where no attribute says otherwise: what leads from `after` to
/// `before` is done to `current`.
fn merge_lines(current: &[u8], after: &[u8], before: &[u8]) -> Lines {
    let marker = [current, after, before].map(longest_marker);
    let marker = 1 + marker.into_iter().fold(USUAL_MARKER - 1, usize::max);
    let Ok(marker) = u16::try_from(marker) else {
        return Lines::Unknown;
    };
    let mut options = MergeFileOptions::new();
    options
        .style_standard(false)
        .style_diff3(true)
        .marker_size(marker);
    match merge_files([after, current, before], &mut options) {
        Some((text, true)) => Lines::Merged(text),
        Some((text, false)) => Lines::Conflict(regions(&text, marker.into())),
        None => Lines::Unknown,
    }
}

/// Base, ours and theirs as one text, and whether they meet nowhere; `None`: libgit2 refused them.
fn merge_files(texts: [&[u8]; 3], options: &mut MergeFileOptions) -> Option<(Vec<u8>, bool)> {
    libgit2::initialise();
    let [base, ours, theirs] = texts.map(|text| [FIRST_LINE, text].concat());
    let merged = git2::merge_file(
        MergeFileInput::new().content(&base),
        MergeFileInput::new().content(&ours),
        MergeFileInput::new().content(&theirs),
        Some(options),
    );
    let merged = merged.ok()?;
    let text = merged.content().strip_prefix(FIRST_LINE)?.to_vec();
    Some((text, merged.is_automergeable()))
}

/// The length of the longest run of one of the characters of a conflict marker at the beginning of
/// a line.
fn longest_marker(text: &[u8]) -> usize {
    let run = |line: &[u8]| match line.first() {
        Some(first @ (b'<' | b'|' | b'=' | b'>')) => {
            line.iter().take_while(|b| *b == first).count()
        }
        _ => 0,
    };
    text.split(|b| *b == b'\n').map(run).max().unwrap_or(0)
}

/// What stands between the markers of a merged text, none of whose own lines begins as they do.
fn regions(merged: &[u8], marker: usize) -> Vec<ConflictRegion> {
    let mut regions = Vec::new();
    let mut region = ConflictRegion::default();
    // Which part of a region the line is in; `None`: in none.
    let mut part = None;
    for line in merged.split_inclusive(|b| *b == b'\n') {
        let is_marker = |of: u8| line.len() >= marker && line[..marker].iter().all(|b| *b == of);
        match part {
            _ if is_marker(b'<') => part = Some(0),
            Some(_) if is_marker(b'|') => part = Some(1),
            Some(_) if is_marker(b'=') => part = Some(2),
            Some(_) if is_marker(b'>') => {
                part = None;
                regions.push(std::mem::take(&mut region));
            }
            Some(0) => region.current.extend_from_slice(line),
            Some(1) => region.after.extend_from_slice(line),
            Some(_) => region.before.extend_from_slice(line),
            None => {}
        }
    }
    regions
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::git::test_repository::TestRepository;

    fn merged(current: &str, after: &str, before: &str) -> Lines {
        take_back(current.as_bytes(), after.as_bytes(), before.as_bytes())
    }

    /// What `git merge-file` makes of the same, and how many conflicts it counts.
    fn by_git(current: &[u8], after: &[u8], before: &[u8]) -> (Vec<u8>, usize) {
        let repository = TestRepository::empty();
        let versions = [("current", current), ("after", after), ("before", before)];
        for (name, text) in versions {
            repository.write(name, text);
        }
        let arguments = [
            "merge-file",
            "-p",
            "-q",
            "--diff3",
            "current",
            "after",
            "before",
        ];
        let output = repository.run(&repository.path, &arguments);
        let conflicts = output.status.code().expect("no signal ends it");
        (output.stdout, usize::try_from(conflicts).unwrap())
    }

    #[test]
    fn edits_elsewhere_stay_and_what_the_operation_did_goes() {
        let before = "one\ntwo\nthree\nfour\nfive\n";
        let after = "one\nTWO\nthree\nfour\nfive\n";
        let current = "one\nTWO\nthree\nfour\nfive\nsix\n";
        let expected = "one\ntwo\nthree\nfour\nfive\nsix\n";
        assert_eq!(
            merged(current, after, before),
            Lines::Merged(expected.into())
        );
        // Once more there is nothing left to do.
        assert_eq!(
            merged(expected, after, before),
            Lines::Merged(expected.into())
        );
    }

    #[test]
    fn where_they_meet_all_three_are_told() {
        let text = |middle: &str| format!("a\nb\n{middle}y\nz\n");
        let region = |current: &str, after: &str, before: &str| ConflictRegion {
            current: current.into(),
            after: after.into(),
            before: before.into(),
        };
        for (current, after, before) in [
            ("mine\n", "run\n", "old\n"),
            ("", "run\n", "old\n"),
            ("mine\n", "run\n", ""),
            // What looks like a marker is text.
            ("<<<<<<< mine\n", "=======\n", ">>>>>>>>>> old\n"),
        ] {
            let conflict = merged(&text(current), &text(after), &text(before));
            let expected = vec![region(current, after, before)];
            assert_eq!(conflict, Lines::Conflict(expected), "{current:?}");
        }
    }

    fn any_text() -> impl Strategy<Value = Vec<u8>> {
        let line = prop::sample::select(vec!["a\n", "b\n", "c\n", "d\n", "a\r\n", "<<<<<<<\n"]);
        (prop::collection::vec(line, 0..9), any::<bool>()).prop_map(|(lines, is_cut)| {
            let mut text = lines.concat().into_bytes();
            if is_cut {
                text.pop();
            }
            text
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn git_merges_the_same(
            current in any_text(),
            after in any_text(),
            before in any_text(),
        ) {
            let (text, conflicts) = by_git(&current, &after, &before);
            match merge_lines(&current, &after, &before) {
                Lines::Merged(merged) => {
                    prop_assert_eq!(conflicts, 0);
                    prop_assert_eq!(merged, text);
                }
                Lines::Conflict(regions) => prop_assert_eq!(regions.len(), conflicts),
                Lines::Unknown => prop_assert!(false, "libgit2 refused it"),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn what_was_taken_back_is_not_taken_back_again_and_can_be_done_again(
            current in any_text(),
            after in any_text(),
            before in any_text(),
        ) {
            if let Lines::Merged(undone) = take_back(&current, &after, &before) {
                let again = take_back(&undone, &after, &before);
                prop_assert_eq!(again, Lines::Merged(undone.clone()));
                if undone != current {
                    // An undo of the undo finds what this one left.
                    let redone = merge_lines(&undone, &before, &after);
                    prop_assert_eq!(redone, Lines::Merged(current));
                }
            }
        }
    }

    #[test]
    fn where_lines_repeat_so_that_nobody_can_say_nothing_goes() {
        let (before, after) = ("b\na\na\n", "b\na\na\na\n");
        for current in ["x\na\na\na\n", "x\na\na\n"] {
            let back = merge_lines(current.as_bytes(), after.as_bytes(), before.as_bytes());
            assert!(
                matches!(back, Lines::Merged(_)),
                "a merge would take a line from both"
            );
            assert_eq!(merged(current, after, before), Lines::Unknown);
        }
    }

    #[test]
    fn permission_bits_are_merged_as_lines_are() {
        let mode = |current, after, before| {
            let version = |mode| Version {
                id: ContentId::Sha1([0; 20]),
                mode,
            };
            merged_mode(&Candidate {
                path: RelPath::new("f").unwrap(),
                current: version(current),
                after: version(after),
                before: version(before),
            })
        };
        assert_eq!(mode(0o755, 0o755, 0o644), Some(0o644), "only the operation");
        assert_eq!(mode(0o600, 0o644, 0o644), Some(0o600), "only since");
        assert_eq!(mode(0o600, 0o644, 0o600), Some(0o600), "both alike");
        assert_eq!(mode(0o600, 0o644, 0o755), None);
    }
}
