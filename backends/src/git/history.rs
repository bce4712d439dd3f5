//! Storing the commits of HEAD's branch that no other ref reaches, and restoring them.
//!
//! A run can amend the tip of the branch, expire the reflogs and make git remove the old commits.
//! Then only the snapshot before the run still has them. The snapshot stores these commits, with
//! the trees and the content that each of them added, beside the blobs that only the index names.
//! They are stored as blobs, so that git does not treat them as history that has to be complete.

mod brought;
mod given_back;
mod list;
mod unreached;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use self::brought::{Brought, Limits};
use self::list::{Bundle, KeptCommit};
use self::unreached::{Past, Reach, Unreached, unreached};
use crate::borrow_mode::BorrowMode;
use crate::caches;
use crate::contents::ContentError;
use crate::git::pack::PackWriter;
use crate::git::repository::Head;
use crate::git::repository::{RepositoryError, Shallow, UserRepository};
use crate::git::store::Store;
use crate::git::{ObjectId, ObjectKind};
use crate::note;
use crate::operation::Operation;
use crate::purge::Purged;
use crate::snapshot::KeptHistory;
use crate::snapshot_error::SnapshotError;
use crate::store_error::StoreError;

pub(super) use self::given_back::{Giving, Lacking, give_back};
pub(super) use self::list::List;
pub(super) use self::unreached::Commit;

/// The parents of a commit, read from its bytes; none if it is not a commit.
pub(super) fn parents_of(id: ObjectId, commit: &[u8]) -> Vec<ObjectId> {
    Commit::parse(id, commit).map_or_else(Vec::new, |commit| commit.parents)
}

/// More commits than this are not kept with one snapshot. A run loses the newest ones, as a rule
/// the tip; and in a repository without a remote all of its history is the branch's own.
const MAX_COMMITS: usize = 64;

/// More bytes than this are not kept for all commits of a snapshot, content that other places have
/// included.
const MAX_BYTES: u64 = 64 << 20;

/// More trees than this are not read for one commit.
const MAX_TREES: usize = 5000;

/// More files than this are not kept for all commits of a snapshot: each is a line of the list and
/// a name in a tree of the store, which every capture of a run goes through.
const MAX_FILES: usize = 20_000;

/// Which commits are looked at for those that are kept.
///
/// What other refs reach may have gone on for long since the branch left them. Beyond so many a
/// commit counts as one that no other ref reaches: to keep too much is safe.
const KEPT: Reach = Reach {
    own: MAX_COMMITS,
    looked_at: 2000,
};

/// What is read of a commit that is kept.
const TO_KEEP: Limits = Limits {
    trees: MAX_TREES,
    bytes: MAX_BYTES,
};

/// What is read of a commit that is searched for what was purged: as much as may be in memory.
const TO_SEARCH: Limits = Limits {
    trees: 1_000_000,
    bytes: 256 << 20,
};

/// Which commits that only a ref of ours reaches are searched, nearly all.
const SEARCHED: Reach = Reach {
    own: 100_000,
    looked_at: 100_000,
};

/// In the place of the digest where something could not be read: it is looked at again.
const INCOMPLETE: &str = "incomplete";

/// What was found last is the tip, a digest of the other refs and of where a shallow clone ends,
/// and the list, or `-`.
const MAX_FOUND_LAST_BYTES: u64 = 1000;

/// Ours; they go with their guards.
const OWN: &str = "refs/stillframe/";

/// It reaches the commit that it was made at, and goes with the next `git stash pop`.
const STASH: &str = "refs/stash";

/// The history that a snapshot keeps.
#[derive(Debug, Default)]
pub(super) struct KeptCommits {
    /// The blob with the list; `None`: nothing is kept, nor left out.
    pub(super) list: Option<ObjectId>,
    /// Every blob that is kept, the list included.
    pub(super) ids: Vec<ObjectId>,
    /// The summary for the snapshot's metadata.
    pub(super) summary: Option<KeptHistory>,
}

impl KeptCommits {
    fn by(id: ObjectId, list: &List) -> Self {
        Self {
            list: Some(id),
            ids: list.ids().chain([id]).collect(),
            summary: Some(KeptHistory::new(
                list.commits.len() as u64,
                list.rest.map(|id| id.to_string()),
            )),
        }
    }
}

/// The repository whose history is kept, and the store for it.
pub(super) struct Keeper<'a> {
    pub(super) op: &'a Operation,
    pub(super) repository: &'a UserRepository,
    pub(super) store: &'a Store,
    pub(super) pack: &'a PackWriter,
    pub(super) purged: &'a Purged,
    pub(super) borrow: BorrowMode,
}

impl Keeper<'_> {
    /// Keeps the commits of `head` that none of `refs` reaches but HEAD's own branch. Commits that
    /// the repository cannot read are not kept; the capture does not fail because of them.
    ///
    /// History is searched again only if HEAD or another ref has changed.
    pub(super) fn keep(
        &self,
        head: &Head,
        refs: &BTreeMap<String, ObjectId>,
    ) -> Result<KeptCommits, SnapshotError> {
        let Some(tip) = head.commit() else {
            return Ok(KeptCommits::default());
        };
        let is_other =
            |name: &str| Some(name) != head.branch() && name != STASH && !name.starts_with(OWN);
        let others = refs.iter().filter(|(name, _)| is_other(name));
        let others: Vec<ObjectId> = others.map(|(_, id)| *id).collect();
        if others.contains(&tip) {
            return Ok(KeptCommits::default());
        }
        let Ok(past) = Past::of(self.op, self.repository) else {
            // It is not known where history ends.
            return self.kept_as(List::without(tip)).map(|(_, kept)| kept);
        };
        let last = self.found_last();
        let digest = digest_of(&others, &past.shallow);
        if let Some(last) = &last
            && (last.tip, &*last.digest) == (tip, &*digest)
            && let Some(kept) = self.still_kept(last)?
        {
            return Ok(kept);
        }
        let known = last.and_then(|last| self.list(&last.list?));
        let (list, is_whole) = self.look(&past, tip, &others, known.unwrap_or_default())?;
        let (id, kept) = self.kept_as(list)?;
        // What could not be read now may be there again by the next time.
        let digest = if is_whole { &*digest } else { INCOMPLETE };
        self.note_found(tip, digest, id);
        Ok(kept)
    }

    /// Adds a list to the store, unless it says nothing.
    fn kept_as(&self, list: List) -> Result<(Option<ObjectId>, KeptCommits), SnapshotError> {
        if list == List::default() {
            return Ok((None, KeptCommits::default()));
        }
        let id = self.add(list.written().as_bytes())?;
        Ok((Some(id), KeptCommits::by(id, &list)))
    }

    /// Finds the commits, and brings in what they need. Of those that are `known` it is known
    /// already. Answers also whether all could be read.
    fn look(
        &self,
        past: &Past<'_>,
        tip: ObjectId,
        others: &[ObjectId],
        known: List,
    ) -> Result<(List, bool), SnapshotError> {
        let known = known.commits.into_iter().map(|kept| (kept.id, kept));
        let mut known: HashMap<ObjectId, KeptCommit> = known.collect();
        let found = unreached(past, &[tip], others, KEPT)?;
        let Unreached { commits, rest, .. } = found;
        let mut is_whole = !found.is_cut;
        let (mut list, mut bundles) = (List::default(), Vec::new());
        list.rest = rest;
        let (mut room, mut files) = (MAX_BYTES, MAX_FILES);
        for commit in &commits {
            self.op.check()?;
            let kept = match known.remove(&commit.id) {
                Some(kept) if self.has_all(&kept)? => Some(kept),
                _ => self.draft(past, commit, &mut bundles).unwrap_or_else(|_| {
                    is_whole = false;
                    None
                }),
            };
            let fits = |kept: &KeptCommit| kept.bytes <= room && kept.blobs.len() <= files;
            let Some(kept) = kept.filter(fits) else {
                list.rest = Some(commit.id);
                break;
            };
            room -= kept.bytes;
            files -= kept.blobs.len();
            list.commits.push(kept);
        }
        is_whole &= self.bring_in(&mut list, &bundles)?;
        (list.bases, list.ends) = beginnings(&list, &commits);
        Ok((list, is_whole))
    }

    /// Reads a commit with what it brought, and adds its bundle to `bundles`; `None` if that is too
    /// much.
    fn draft(
        &self,
        past: &Past<'_>,
        commit: &Commit,
        bundles: &mut Vec<(ObjectId, Vec<u8>)>,
    ) -> Result<Option<KeptCommit>, RepositoryError> {
        let Some(brought) = Brought::by(self.op, past, commit, TO_KEEP)? else {
            return Ok(None);
        };
        let sizes = self.repository.object_sizes(self.op, &brought.blobs)?;
        let gone = || RepositoryError::MissingObject { id: commit.id };
        let bundle = Bundle {
            commit: past.bytes(commit.id)?.ok_or_else(gone)?,
            trees: brought.trees,
        };
        let bundle = bundle.written();
        let Ok(id) = ObjectId::of(ObjectKind::Blob, &bundle) else {
            return Ok(None);
        };
        let bytes = sizes.iter().flatten().sum::<u64>() + bundle.len() as u64;
        let (mut absent, blobs): (Vec<_>, _) =
            brought.blobs.iter().partition(|id| self.is_purged(id));
        // What the repository has not now is not what it has to have again.
        absent.retain(|id| {
            let at = brought.blobs.binary_search(id);
            at.is_ok_and(|at| sizes[at].is_some())
        });
        bundles.push((id, bundle));
        Ok(Some(KeptCommit {
            id: commit.id,
            bundle: id,
            bytes,
            blobs,
            absent,
        }))
    }

    /// Brings in the content of commits, and adds the bundles of those that are kept. What the
    /// repository has not is not kept. Answers whether that is as it should be, as in a partial
    /// clone.
    fn bring_in(
        &self,
        list: &mut List,
        bundles: &[(ObjectId, Vec<u8>)],
    ) -> Result<bool, SnapshotError> {
        let blobs = list.commits.iter().flat_map(|kept| kept.blobs.clone());
        let directories = self.repository.object_dirs().unwrap_or_default();
        let borrowed = self
            .store
            .borrow(self.op, &directories, blobs.collect(), self.borrow)?;
        let is_promised =
            !borrowed.missing.is_empty() && directories.iter().any(|at| is_promisor(at));
        for kept in &mut list.commits {
            let is_missing = |id: &ObjectId| borrowed.missing.binary_search(id).is_ok();
            let (missing, had): (Vec<_>, Vec<_>) = kept.blobs.iter().partition(|id| is_missing(id));
            kept.blobs = had;
            if !is_promised {
                kept.absent.extend(missing);
                kept.absent.sort_unstable();
            }
        }
        let is_kept: HashSet<ObjectId> = list.commits.iter().map(|kept| kept.bundle).collect();
        for (_, bundle) in bundles.iter().filter(|(id, _)| is_kept.contains(id)) {
            self.add(bundle)?;
        }
        Ok(borrowed.missing.is_empty() || is_promised)
    }

    /// Adds a blob to the pack unless the store has it.
    fn add(&self, bytes: &[u8]) -> Result<ObjectId, StoreError> {
        let id = ObjectId::of(ObjectKind::Blob, bytes)
            .map_err(|error| StoreError::corrupt("what is kept of commits", error.to_string()))?;
        if !self.store.contains(&id)? {
            self.pack.add(ObjectKind::Blob, id, bytes)?;
        }
        Ok(id)
    }

    /// Whether the store has all of a commit that can be had, and nothing of it was purged since.
    fn has_all(&self, kept: &KeptCommit) -> Result<bool, StoreError> {
        let is_known = kept.absent.iter().all(|id| self.is_purged(id));
        Ok(is_known && self.are_kept([&[kept.bundle], &kept.blobs[..]].concat())?)
    }

    fn are_kept(&self, ids: Vec<ObjectId>) -> Result<bool, StoreError> {
        let is_purged = ids.iter().any(|id| self.is_purged(id));
        Ok(!is_purged && self.store.missing(self.op, ids)?.is_empty())
    }

    fn is_purged(&self, id: &ObjectId) -> bool {
        self.purged.contains(&(*id).into())
    }

    /// What was found last, if the store still has all of it.
    fn still_kept(&self, last: &FoundLast) -> Result<Option<KeptCommits>, StoreError> {
        let Some(id) = last.list else {
            return Ok(Some(KeptCommits::default()));
        };
        let Some(list) = self.list(&id) else {
            return Ok(None);
        };
        let kept = KeptCommits::by(id, &list);
        Ok(self.are_kept(kept.ids.clone())?.then_some(kept))
    }

    fn list(&self, id: &ObjectId) -> Option<List> {
        let mut bytes = Vec::new();
        match self.store.blob_to(self.op, id, &mut bytes) {
            Ok(_) => List::parse(&bytes),
            Err(ContentError::Store(_) | ContentError::Sink(_)) => None,
        }
    }

    fn found_last(&self) -> Option<FoundLast> {
        let path = self.store.git_dir().join(caches::HISTORY);
        FoundLast::parse(&note::read(&path, MAX_FOUND_LAST_BYTES)?)
    }

    /// Best effort: without the note, history is searched again.
    fn note_found(&self, tip: ObjectId, digest: &str, list: Option<ObjectId>) {
        let list = list.map_or_else(|| "-".to_owned(), |id| id.to_string());
        let path = self.store.git_dir().join(caches::HISTORY);
        let _ = note::write(self.op, &path, &format!("{tip} {digest} {list}\n"));
    }
}

struct FoundLast {
    tip: ObjectId,
    digest: String,
    list: Option<ObjectId>,
}

impl FoundLast {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        Some(Self {
            tip: words.next()?.parse().ok()?,
            digest: words.next()?.to_owned(),
            list: words.next()?.parse().ok(),
        })
    }
}

fn digest_of(others: &[ObjectId], shallow: &Shallow) -> String {
    let mut hasher = blake3::Hasher::new();
    for id in others.iter().chain(shallow.iter()) {
        hasher.update(&id.0);
    }
    hasher.finalize().to_hex().to_string()
}

/// The bases and the ends of a list, whose commits are among `commits`.
fn beginnings(list: &List, commits: &[Commit]) -> (Vec<ObjectId>, Vec<ObjectId>) {
    let kept: HashSet<ObjectId> = list.commits.iter().map(|kept| kept.id).collect();
    let own = || commits.iter().filter(|commit| kept.contains(&commit.id));
    let parents = own().flat_map(|commit| &commit.parents);
    let bases: BTreeSet<ObjectId> = parents.filter(|id| !kept.contains(id)).copied().collect();
    let ends: BTreeSet<ObjectId> = own().filter(|c| c.is_end).map(|c| c.id).collect();
    (bases.into_iter().collect(), ends.into_iter().collect())
}

/// Whether git may fetch what a directory of objects lacks, as in a partial clone. What comes from
/// such a fetch is in a pack that is marked so (partial-clone in git's technical documentation).
fn is_promisor(objects: &Path) -> bool {
    let packs = std::fs::read_dir(objects.join("pack"));
    let mut names = packs.into_iter().flatten().flatten();
    names.any(|entry| Path::new(&entry.file_name()).extension() == Some("promisor".as_ref()))
}

/// The refs of ours in a repository by which some content can still be had.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OwnRefs {
    /// Those that have some of it, in what a commit brought that nothing else names.
    pub(super) with: Vec<String>,
    /// Those of which that cannot be told: they have too much, or cannot be read.
    pub(super) unsearched: Vec<String>,
}

/// Looks for `ids`, which are sorted.
pub(super) fn own_refs_with(
    op: &Operation,
    repository: &UserRepository,
    ids: &[ObjectId],
) -> Result<OwnRefs, SnapshotError> {
    let refs = repository.refs_below("refs")?;
    let past = Past::of(op, repository)?;
    let (own, others): (Vec<_>, Vec<_>) = refs
        .into_iter()
        .partition(|(name, _)| name.starts_with(OWN));
    let others: Vec<ObjectId> = others.into_iter().map(|(_, id)| id).collect();
    let tips: Vec<ObjectId> = own.iter().map(|(_, id)| *id).collect();
    // One walk for all of them: what other refs reach may be all of a long history.
    let Unreached {
        commits, unseen, ..
    } = unreached(&past, &tips, &others, SEARCHED)?;
    let commits: HashMap<ObjectId, Commit> = commits.into_iter().map(|c| (c.id, c)).collect();
    let mut found = OwnRefs::default();
    // Refs of several runs have most of their commits in common.
    let mut searched: HashMap<ObjectId, Option<bool>> = HashMap::new();
    for (name, tip) in own {
        let (mut has_it, mut is_searched) = (false, true);
        let (mut pending, mut known) = (vec![tip], HashSet::from([tip]));
        while let Some(id) = pending.pop().filter(|_| !has_it) {
            op.check()?;
            let Some(commit) = commits.get(&id) else {
                // Else another ref reaches it, and all that comes before it.
                is_searched &= !unseen.contains(&id);
                continue;
            };
            let of_it = searched.entry(id).or_insert_with(|| {
                let brought = Brought::by(op, &past, commit, TO_SEARCH).ok().flatten()?;
                Some(brought.blobs.iter().any(|id| ids.binary_search(id).is_ok()))
            });
            is_searched &= of_it.is_some();
            has_it = *of_it == Some(true);
            pending.extend(commit.parents.iter().filter(|id| known.insert(**id)));
        }
        match (has_it, is_searched) {
            (true, _) => found.with.push(name),
            (false, false) => found.unsearched.push(name),
            (false, true) => {}
        }
    }
    // A cancellation made reading fail, and leaves no ref unsearched.
    op.check()?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::git::lost::Lost;
    use crate::git::repository::{Probe, probe};
    use crate::git::test_repository::TestRepository;
    use crate::interrupt::Interrupt;

    fn kept_by(store: &Store, git: &TestRepository) -> KeptCommits {
        let Probe::Found(repository) = probe(&git.path).unwrap() else {
            panic!("it is a repository");
        };
        let pack = store.writer(&Operation::unbounded()).unwrap();
        let keeper = Keeper {
            op: &Operation::unbounded(),
            repository: &repository,
            store,
            pack: &pack,
            purged: &Purged::default(),
            borrow: BorrowMode::default(),
        };
        let head = repository.head().unwrap();
        let refs = repository.refs_below("refs").unwrap();
        let kept = keeper.keep(&head, &refs).unwrap();
        pack.finish().unwrap();
        kept
    }

    #[test]
    fn history_is_looked_at_again_only_once_something_names_another_commit() {
        let git = TestRepository::with_commit();
        git.write("d/file", "two\n");
        git.commit("two");
        let store = Store::create(&Operation::unbounded(), &git.beside("store")).unwrap();
        let first = kept_by(&store, &git);
        assert_eq!(first.summary.as_ref().unwrap().commits, 2);
        assert!(
            store
                .missing(&Operation::unbounded(), first.ids.clone())
                .unwrap()
                .is_empty()
        );
        // Nothing of it could be read now.
        let objects = git.path.join(".git/objects");
        std::fs::rename(&objects, git.beside("away")).unwrap();
        std::fs::create_dir_all(objects.join("pack")).unwrap();
        let again = kept_by(&store, &git);
        assert_eq!((again.list, again.ids), (first.list, first.ids.clone()));
        std::fs::remove_dir_all(&objects).unwrap();
        std::fs::rename(git.beside("away"), &objects).unwrap();
        git.git(&["branch", "other"]);
        assert_eq!(kept_by(&store, &git).list, None, "another branch has it");
        git.git(&["branch", "-q", "-D", "other"]);
        git.commit("three");
        let third = kept_by(&store, &git);
        assert_eq!(third.summary.unwrap().commits, 3);
        assert!(
            third.ids.contains(&first.ids[0]),
            "a commit that is known is not kept anew"
        );
    }

    // What other refs reach was walked anew for each of them, and no cancellation was looked at
    #[test]
    fn safety_refs_are_searched_in_one_walk_which_can_be_stopped() {
        let git = TestRepository::with_commit();
        for n in 0..30 {
            git.commit(&format!("{n}"));
        }
        let keep = |n: u32| {
            let message = n.to_string();
            let tree = "HEAD~25^{tree}";
            let id = git.git(&["commit-tree", "-m", &message, "-p", "HEAD~25", tree]);
            git.git(&["update-ref", &format!("{OWN}safety/run-{n}"), &id]);
        };
        let Probe::Found(repository) = probe(&git.path).unwrap() else {
            panic!("it is a repository");
        };
        let search = |interrupt: &Interrupt| {
            let op = Operation::unbounded().cancelled_by(interrupt);
            own_refs_with(&op, &repository, &[])
        };
        let looks = || {
            let interrupt = Interrupt::at_look(u64::MAX);
            assert_eq!(search(&interrupt).unwrap(), OwnRefs::default());
            interrupt.looks()
        };
        keep(0);
        let for_one = looks();
        assert!(for_one > 25, "every commit is looked at: {for_one}");
        for n in 1..9 {
            keep(n);
        }
        let for_nine = looks();
        assert!(for_nine < 2 * for_one, "{for_one} for one, {for_nine}");
        // Whenever that is, no ref counts as one that could not be searched.
        for look in 0..for_nine {
            let stopped = search(&Interrupt::at_look(look)).unwrap_err();
            assert_eq!(stopped.kind(), ErrorKind::Cancelled, "look {look}");
        }
    }

    #[test]
    fn what_the_store_lacks_is_named_and_all_else_is_given_back() {
        let git = TestRepository::with_commit();
        git.write("d/file", "two\n");
        git.commit("two");
        let store = Store::create(&Operation::unbounded(), &git.beside("store")).unwrap();
        let kept = kept_by(&store, &git).list.unwrap();
        let read = |id: &ObjectId| Ok(store.read(&Operation::unbounded(), id, u64::MAX)?.1);
        let list = List::read(&kept, &read).unwrap();
        let newest = &list.commits[0];
        let tip = newest.id.to_string();
        let given_without = |lost: Option<ObjectId>| {
            let other = TestRepository::new();
            let read = |id: &ObjectId| match Some(*id) == lost {
                true => Err(StoreError::corrupt(id.to_string(), "it is damaged")),
                false => read(id),
            };
            let git_dir = other.path.join(".git");
            let give = |giving| {
                give_back(
                    &Operation::unbounded(),
                    &git_dir,
                    &list,
                    &Purged::default(),
                    &read,
                    giving,
                )
            };
            let foreseen = give(Giving::Foreseen).unwrap();
            let lacking = give(Giving::Done).unwrap();
            assert_eq!(lacking, foreseen);
            (other, lacking)
        };
        let (whole, lacking) = given_without(None);
        assert_eq!(
            (&lacking.commits[..], &lacking.content[..]),
            (&[][..], &[][..])
        );
        whole.git(&["update-ref", "refs/heads/main", &tip]);
        whole.git(&["fsck", "--full", "--strict"]);
        assert_eq!(
            whole.git(&["log", "--format=%H %T", "main"]),
            git.git(&["log", "--format=%H %T", "main"])
        );
        let (without, lacking) = given_without(Some(newest.bundle));
        assert_eq!(lacking.commits, [Lost::for_good(newest.id)]);
        assert_eq!(lacking.content, []);
        without.git(&["cat-file", "-e", &format!("{}", newest.blobs[0])]);
        without.git(&["cat-file", "-e", &list.commits[1].id.to_string()]);
        let (without, lacking) = given_without(Some(newest.blobs[0]));
        assert_eq!(lacking.content, [Lost::for_good(newest.blobs[0])]);
        assert_eq!(lacking.commits, []);
        without.git(&["cat-file", "-e", &tip]);
    }

    #[test]
    fn more_than_the_limit_together_is_not_kept_however_often_it_is_looked_at() {
        let git = TestRepository::with_commit();
        let size = usize::try_from(MAX_BYTES).unwrap() / 5 * 2;
        let store = Store::create(&Operation::unbounded(), &git.beside("store")).unwrap();
        let mut summaries = Vec::new();
        for n in 0..3 {
            git.write("large", vec![n; size]);
            git.commit("large");
            let summary = kept_by(&store, &git).summary.unwrap();
            summaries.push((summary.commits, summary.not_kept_from));
        }
        let first = git.git(&["rev-parse", "HEAD~2"]);
        assert_eq!(summaries, [(2, None), (3, None), (2, Some(first))]);
    }
}
