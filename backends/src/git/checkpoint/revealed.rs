//! What the commits that a push sends would reveal, searched for secret values.
//!
//! A commit reveals what it adds to its parents: lines of files, names, its own text. What a later
//! commit takes away again is sent all the same. Content is read and searched once, wherever it is
//! named; only where it has a value is it compared with what was there before.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use stillframe_secrets::SecretRules;

use super::scan::{Hit, Scanner};
use crate::checkpoint::secrets::path_without_values;
use crate::checkpoint::{
    AllowedSecret, CheckpointError, RevealedSecrets, SecretFinding, SecretPlace, SecretSearch,
};
use crate::contents::ContentError;
use crate::git::ObjectId;
use crate::git::either::past::{Past, Unreached};
use crate::git::history::Commit;
use crate::git::repository::UserRepository;
use crate::git::store::{Reader, Store};
use crate::git::tree_object::{self, ItemKind, TreeItem, Trees as _};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::store_error::StoreError;

/// A blob up to this size is read at once.
const MAX_HELD_BYTES: u64 = 4 << 20;

/// See [`Checkpoints::revealed_secrets`](crate::Checkpoints::revealed_secrets). The commits of
/// `repository` say too what the refs of the remote reach.
pub(in crate::git) fn revealed(
    op: &Operation,
    repository: Option<&UserRepository>,
    store: &Store,
    search: &SecretSearch,
) -> Result<RevealedSecrets, CheckpointError> {
    let commit = search
        .commit
        .parse()
        .map_err(CheckpointError::InvalidOptions)?;
    let on_remote: Vec<ObjectId> = search
        .on_remote
        .iter()
        .filter_map(|id| id.parse().ok())
        .collect();
    let past = Past::new(op, repository, store)?;
    let ends = store.history_ends()?;
    let Unreached {
        mut commits, ends, ..
    } = past.unreached(&[commit], &on_remote, &HashSet::new(), &ends)?;
    commits.reverse();
    let set = store.reader_set()?;
    let mut trees_on_remote = Vec::new();
    for id in &on_remote {
        let known = past.commit(*id).ok().flatten();
        trees_on_remote.extend(known.map(|commit| commit.tree));
    }
    let mut looking = Looking {
        op,
        trees_on_remote,
        store,
        reader: store.reader(&set),
        rules: &search.rules,
        known: HashMap::new(),
        found: BTreeSet::new(),
        revealed: RevealedSecrets::default(),
    };
    let mut revealed = RevealedSecrets::default();
    for commit in &commits {
        let mut before = Vec::new();
        // What comes before the end of history is not in the store, and so not sent.
        let is_end = ends.contains(&commit.id);
        for parent in commit.parents.iter().filter(|_| !is_end) {
            before.extend(past.commit(*parent)?.map(|parent| parent.tree));
        }
        looking.commit(commit, before, is_end)?;
        for finding in std::mem::take(&mut looking.found) {
            let SecretFinding {
                rule,
                path,
                fingerprint,
                ..
            } = finding.clone();
            let as_allowed = AllowedSecret {
                rule,
                path,
                fingerprint,
            };
            match search.allowed.contains(&as_allowed) {
                true => revealed.allowed += 1,
                false => revealed.findings.push(finding),
            }
        }
    }
    revealed.commits = commits.len() as u64;
    revealed.blobs = looking.revealed.blobs;
    revealed.bytes = looking.revealed.bytes;
    Ok(revealed)
}

struct Looking<'a> {
    op: &'a Operation,
    /// Those of the commits that the refs of the remote name.
    trees_on_remote: Vec<ObjectId>,
    store: &'a Store,
    reader: Reader<'a>,
    rules: &'a SecretRules,
    /// What is in the blobs that were read.
    known: HashMap<ObjectId, Rc<[Hit]>>,
    /// Of one commit.
    found: BTreeSet<SecretFinding>,
    revealed: RevealedSecrets,
}

/// What a commit does to the files of its parents.
#[derive(Default)]
struct Changes {
    added: Vec<Added>,
    /// What a parent has at paths that are not there any more.
    gone: Vec<(ItemKind, ObjectId)>,
}

/// A file that no parent has with this content at this path.
struct Added {
    path: RelPath,
    blob: ObjectId,
    /// What the parents have there.
    before: Vec<ObjectId>,
    /// How much of the path a parent has, in bytes.
    known_path: usize,
}

impl Looking<'_> {
    /// Looks through what `commit` adds to the trees of its parents, `before`. Where history ends,
    /// not all that it has need be here.
    fn commit(
        &mut self,
        commit: &Commit,
        before: Vec<ObjectId>,
        is_end: bool,
    ) -> Result<(), CheckpointError> {
        self.text(commit)?;
        let changes = self.changes(commit.tree, before, is_end)?;
        self.names(commit, &changes.added);
        let mut gone = None;
        for added in &changes.added {
            self.op.check()?;
            if is_end && !self.store.contains(&added.blob)? {
                continue;
            }
            let hits = self.hits(added.blob)?;
            if hits.is_empty() {
                continue;
            }
            let mut before = Vec::new();
            for blob in &added.before {
                before.push(self.hits_before(*blob)?);
            }
            if before.is_empty() {
                // It may be a file that has another name now.
                let gone = match &mut gone {
                    Some(gone) => gone,
                    none => none.insert(self.all_gone(&changes.gone)?),
                };
                before.clone_from(gone);
            }
            let (mut new, path) = (new_ones(&hits, &before), &added.path);
            if !new.is_empty() {
                // Another commit may have brought it to the remote.
                for blob in self.on_remote(path) {
                    before.push(self.hits_before(blob)?);
                }
                new = new_ones(&hits, &before);
            }
            for hit in new {
                let line = hit.line;
                self.note(commit, &added.path, SecretPlace::Content, line, hit);
            }
        }
        Ok(())
    }

    /// What the commit itself says.
    fn text(&mut self, commit: &Commit) -> Result<(), CheckpointError> {
        let Some((_, bytes)) = self.store.commit_of(self.op, commit.id)? else {
            return Err(
                StoreError::corrupt(commit.id.to_string(), "it is not in the store").into(),
            );
        };
        for hit in Scanner::whole(self.rules, bytes) {
            let (place, line) = (SecretPlace::Message, hit.line);
            self.note(commit, &RelPath::root(), place, line, &hit);
        }
        Ok(())
    }

    /// The names of files that come, all together: there may be very many.
    fn names(&mut self, commit: &Commit, added: &[Added]) {
        let mut names = Vec::new();
        let mut begins = Vec::new();
        for added in added {
            begins.push(names.len());
            names.extend_from_slice(added.path.as_bytes());
            names.push(0);
        }
        for found in self.rules.find(&names) {
            let at = begins.partition_point(|begin| *begin <= found.range.start) - 1;
            let added = &added[at];
            let is_known = found.range.end <= begins[at] + added.known_path;
            if is_known || !self.on_remote(&added.path).is_empty() {
                continue;
            }
            let hit = Hit {
                rule: found.rule,
                fingerprint: found.fingerprint,
                line: 0,
                key: [0; 32],
            };
            self.note(commit, &added.path, SecretPlace::Name, 0, &hit);
        }
    }

    fn note(&mut self, commit: &Commit, path: &RelPath, place: SecretPlace, line: u64, hit: &Hit) {
        self.found.insert(SecretFinding {
            commit: commit.id.to_string(),
            path: path_without_values(self.rules, path),
            line,
            place,
            rule: hit.rule.clone(),
            fingerprint: hit.fingerprint.to_string(),
        });
    }

    /// What commits of the remote have at a path, as far as their trees are here.
    fn on_remote(&self, path: &RelPath) -> Vec<ObjectId> {
        let at = |tree: &ObjectId| tree_object::find(self.op, &self.reader, tree, path);
        let found = self
            .trees_on_remote
            .iter()
            .filter_map(|tree| at(tree).ok().flatten());
        let files = found.filter(|item| matches!(item.kind, ItemKind::Entry(_)));
        files.map(|item| item.id).collect()
    }

    /// What a blob has that the remote may not have.
    fn hits(&mut self, blob: ObjectId) -> Result<Rc<[Hit]>, CheckpointError> {
        if let Some(known) = self.known.get(&blob) {
            return Ok(Rc::clone(known));
        }
        let small = self.reader.blob(self.op, &blob, MAX_HELD_BYTES)?;
        let (hits, bytes) = match small {
            Some(bytes) => {
                let size = bytes.len() as u64;
                (Scanner::whole(self.rules, bytes), size)
            }
            None => {
                let mut scanner = Scanner::new(self.rules);
                match self.store.blob_to(self.op, &blob, &mut scanner) {
                    Ok(_) => {}
                    Err(ContentError::Store(error)) => return Err(error.into()),
                    Err(ContentError::Sink(_)) => unreachable!("a scanner takes every byte"),
                }
                let size = scanner.bytes;
                (scanner.finish(), size)
            }
        };
        self.revealed.blobs += 1;
        self.revealed.bytes += bytes;
        let hits: Rc<[Hit]> = hits.into();
        self.known.insert(blob, Rc::clone(&hits));
        Ok(hits)
    }

    /// As [`Looking::hits`], of what a parent has. What the store lacks of that, the remote has; it
    /// says nothing of the lines that came.
    fn hits_before(&mut self, blob: ObjectId) -> Result<Rc<[Hit]>, CheckpointError> {
        match self.store.contains(&blob)? {
            true => self.hits(blob),
            false => Ok(Rc::new([])),
        }
    }

    /// What the files had that are gone, those of directories too.
    fn all_gone(
        &mut self,
        gone: &[(ItemKind, ObjectId)],
    ) -> Result<Vec<Rc<[Hit]>>, CheckpointError> {
        let mut waiting = gone.to_vec();
        let mut all = Vec::new();
        while let Some((kind, id)) = waiting.pop() {
            self.op.check()?;
            match kind {
                ItemKind::Entry(_) => all.push(self.hits_before(id)?),
                ItemKind::Directory => {
                    let items = self.tree_before(id)?.into_iter();
                    waiting.extend(items.map(|item| (item.kind, item.id)));
                }
                ItemKind::Submodule => {}
            }
        }
        all.retain(|hits| !hits.is_empty());
        Ok(all)
    }

    /// A tree of a parent; empty if the store lacks it.
    fn tree_before(&self, id: ObjectId) -> Result<Vec<TreeItem>, CheckpointError> {
        match self.reader.contains(&id)? {
            true => Ok(self.reader.tree(self.op, &id)?),
            false => Ok(Vec::new()),
        }
    }

    fn changes(
        &self,
        tree: ObjectId,
        before: Vec<ObjectId>,
        is_end: bool,
    ) -> Result<Changes, CheckpointError> {
        let mut changes = Changes::default();
        // A directory that no parent has is new with all that is below it.
        let mut waiting = vec![(RelPath::root(), tree, before, 0)];
        while let Some((directory, tree, before, known_path)) = waiting.pop() {
            if before.contains(&tree) {
                continue;
            }
            self.op.check()?;
            let items = match is_end {
                true => self.tree_before(tree)?,
                false => self.reader.tree(self.op, &tree)?,
            };
            let mut beside: HashMap<Vec<u8>, Vec<TreeItem>> = HashMap::new();
            for id in &before {
                for item in self.tree_before(*id)? {
                    beside.entry(item.name.clone()).or_default().push(item);
                }
            }
            for item in items {
                let same = beside.remove(&item.name).unwrap_or_default();
                let path = directory.join(&item.name);
                let known_path = match same.is_empty() {
                    true => known_path,
                    false => path.as_bytes().len(),
                };
                let is_directory = |item: &TreeItem| item.kind == ItemKind::Directory;
                let (directories, files): (Vec<_>, Vec<_>) =
                    same.into_iter().partition(is_directory);
                let ids = |items: &[TreeItem]| items.iter().map(|item| item.id).collect::<Vec<_>>();
                match item.kind {
                    ItemKind::Directory => {
                        changes
                            .gone
                            .extend(files.iter().map(|item| (item.kind, item.id)));
                        waiting.push((path, item.id, ids(&directories), known_path));
                    }
                    ItemKind::Entry(_) => {
                        changes
                            .gone
                            .extend(directories.iter().map(|item| (item.kind, item.id)));
                        let is_file = |item: &&TreeItem| matches!(item.kind, ItemKind::Entry(_));
                        let files: Vec<_> =
                            files.iter().filter(is_file).map(|item| item.id).collect();
                        if !files.contains(&item.id) {
                            changes.added.push(Added {
                                path,
                                blob: item.id,
                                before: files,
                                known_path,
                            });
                        }
                    }
                    ItemKind::Submodule => {}
                }
            }
            let gone = beside.into_values().flatten();
            changes.gone.extend(gone.map(|item| (item.kind, item.id)));
        }
        Ok(changes)
    }
}

/// The hits that are more often in a file than in any of those before it.
fn new_ones<'h>(hits: &'h [Hit], before: &[Rc<[Hit]>]) -> Vec<&'h Hit> {
    let mut had: HashMap<&[u8; 32], usize> = HashMap::new();
    for hits in before {
        let mut here: HashMap<&[u8; 32], usize> = HashMap::new();
        for hit in hits.iter() {
            *here.entry(&hit.key).or_default() += 1;
        }
        for (key, count) in here {
            let most = had.entry(key).or_default();
            *most = count.max(*most);
        }
    }
    let is_new = |hit: &&Hit| match had.get_mut(&hit.key) {
        Some(count @ 1..) => {
            *count -= 1;
            false
        }
        _ => true,
    };
    hits.iter().filter(is_new).collect()
}
