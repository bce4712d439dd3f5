//! Reading from the store: the ignore rules of a snapshot, and a snapshot as one side of a
//! comparison.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::coverage::{Omission, OmissionReason};
use crate::diff::beside::Compared;
use crate::git::ObjectId;
use crate::git::nodes::{node_in, tree_of};
use crate::git::object_id::sha1;
use crate::git::repository::OutsideRules;
use crate::git::store::Store;
use crate::git::tree_lookup::TreeLookup;
use crate::git::tree_object::{ItemKind, TreeItem};
use crate::host_rules::HostRules;
use crate::ignore_rules::{IgnoreStack, RuleFile};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::record::Record;
use crate::restore::Node;
use crate::store_error::StoreError;
use crate::tree::{Entry, EntryKind};
use crate::worktree::stat_cache::StatCache;

/// As for the rule files of a work tree.
const MAX_RULE_FILE_BYTES: u64 = 1 << 20;

/// The ignore rules that a snapshot was captured under, read from its own tree.
pub(super) struct TreeRules<'a> {
    store: &'a Store,
    tree: Option<TreeLookup<'a>>,
    cache: Option<&'a StatCache>,
    host: HostRules,
    ignore: IgnoreStack,
    include: &'a [RelPath],
    /// Rule files that were read, by their directory: paths to ask about come in crowds.
    read: RefCell<HashMap<RelPath, Option<RuleFile>>>,
}

impl<'a> TreeRules<'a> {
    /// The rules of `record`, with the rule files that its tree has, or `cache`, for a capture that
    /// is not published.
    pub(super) fn of(
        store: &'a Store,
        record: &'a Record,
        cache: Option<&'a StatCache>,
    ) -> Result<Self, StoreError> {
        let host = HostRules::new(&record.ignore).map_err(|detail| {
            StoreError::corrupt(format!("the record of {}", record.snapshot.id), detail)
        })?;
        let git = record.git.as_ref();
        let parse =
            |file: &OutsideRules| RuleFile::parse(file.origin.clone(), file.text.as_bytes());
        let outside = git
            .map(|g| g.outside_rules.iter().map(parse).collect())
            .unwrap_or_default();
        let above = git
            .map(|g| {
                g.rules_above
                    .iter()
                    .map(|(dir, file)| (dir.clone(), parse(file)))
                    .collect()
            })
            .unwrap_or_default();
        let scope = git.map(|g| g.scope.clone()).unwrap_or_default();
        Ok(Self {
            store,
            tree: if cache.is_some() {
                None
            } else {
                Some(TreeLookup::new(store, tree_of(record)?))
            },
            cache,
            host,
            ignore: IgnoreStack::new_below(&scope, outside, above),
            include: &record.include,
            read: RefCell::default(),
        })
    }

    /// Why these rules leave the file or link `path` out, and the rule that says so. Whether the
    /// index has it plays no part.
    pub(super) fn omits(
        &self,
        op: &Operation,
        path: &RelPath,
    ) -> Result<Option<(OmissionReason, Option<String>)>, StoreError> {
        self.omits_at(op, path, false)
    }

    /// The rule by which `path` was left out, if it was by one: `omission` is its own, or that of a
    /// directory above it.
    pub(super) fn of_omission(
        &self,
        op: &Operation,
        path: &RelPath,
        omission: &Omission,
    ) -> Result<Option<String>, StoreError> {
        // A regular file has a size. Of a link, which has none, no rule for directories is true.
        let is_file = omission.path == *path && omission.bytes.is_some();
        let found = match is_file {
            true => self.omits(op, path)?,
            false => match self.omits_at(op, path, true)? {
                None => self.omits(op, path)?,
                found => found,
            },
        };
        Ok(found.and_then(|(_, rule)| rule))
    }

    /// As [`TreeRules::omits`], for a path that may be a directory.
    pub(super) fn omits_at(
        &self,
        op: &Operation,
        path: &RelPath,
        is_directory: bool,
    ) -> Result<Option<(OmissionReason, Option<String>)>, StoreError> {
        if self.include.iter().any(|p| path.starts_with(p)) {
            return Ok(None);
        }
        if let Some(rule) = self.host.excludes_in_tree(path, is_directory) {
            return Ok(Some((OmissionReason::Excluded, Some(rule))));
        }
        let failure = RefCell::new(None);
        let rules_of = |directory: &RelPath| match self.rule_file(op, directory) {
            Ok(file) => file,
            Err(error) => {
                failure.borrow_mut().get_or_insert(error);
                None
            }
        };
        let decision = self.ignore.decide_in_tree(&rules_of, path, is_directory);
        if let Some(error) = failure.into_inner() {
            return Err(error);
        }
        Ok(decision.is_ignored().then(|| {
            (
                OmissionReason::Ignored,
                decision.rule().map(ToString::to_string),
            )
        }))
    }

    fn rule_file(
        &self,
        op: &Operation,
        directory: &RelPath,
    ) -> Result<Option<RuleFile>, StoreError> {
        if let Some(file) = self.read.borrow().get(directory) {
            return Ok(file.clone());
        }
        let file = self.read_rule_file(op, directory)?;
        let mut read = self.read.borrow_mut();
        read.insert(directory.clone(), file.clone());
        Ok(file)
    }

    fn read_rule_file(
        &self,
        op: &Operation,
        directory: &RelPath,
    ) -> Result<Option<RuleFile>, StoreError> {
        let path = directory.join(b".gitignore");
        let origin = path.to_string();
        if let Some(cache) = self.cache {
            if let Some(file) = cache.rule_files.get(directory) {
                return Ok(Some(RuleFile::parse(origin, &file.text)));
            }
            let Some(entry) = cache.entry(&path).filter(|e| e.is_captured()) else {
                return Ok(None);
            };
            return self.parsed(op, origin, entry.entry());
        }
        let Some(tree) = &self.tree else {
            return Ok(None);
        };
        match tree.at(op, &path)? {
            Some(TreeItem {
                kind: ItemKind::Entry(kind),
                id,
                ..
            }) => self.parsed(
                op,
                origin,
                Entry {
                    kind,
                    id: id.into(),
                },
            ),
            _ => Ok(None),
        }
    }

    fn parsed(
        &self,
        op: &Operation,
        origin: String,
        entry: Entry,
    ) -> Result<Option<RuleFile>, StoreError> {
        let id = sha1(&entry.id).expect("trees of git's hold ids of git's");
        if entry.kind == EntryKind::Symlink || self.store.blob_size(&id)? > MAX_RULE_FILE_BYTES {
            return Ok(None);
        }
        let (_, text) = self.store.read(op, &id, MAX_RULE_FILE_BYTES)?;
        Ok(Some(RuleFile::parse(origin, &text)))
    }
}

/// A snapshot of the store as a side of a comparison.
pub(super) struct StoredSide<'a> {
    store: &'a Store,
    record: &'a Record,
    tree: ObjectId,
    rules: TreeRules<'a>,
}

impl<'a> StoredSide<'a> {
    /// The snapshot that `record` describes.
    pub(super) fn of(store: &'a Store, record: &'a Record) -> Result<Self, StoreError> {
        Ok(Self {
            store,
            record,
            tree: tree_of(record)?,
            rules: TreeRules::of(store, record, None)?,
        })
    }
}

impl Compared for StoredSide<'_> {
    fn record(&self) -> &Record {
        self.record
    }

    fn node(&self, op: &Operation, path: &RelPath) -> Result<Option<Node>, StoreError> {
        node_in(op, self.store, &self.tree, path)
    }

    fn entries(&self, op: &Operation) -> Result<Vec<(RelPath, Entry)>, StoreError> {
        self.store.tree_paths(op, &self.tree)
    }

    fn leaves_out(
        &self,
        op: &Operation,
        path: &RelPath,
        is_directory: bool,
    ) -> Result<bool, StoreError> {
        Ok(self.rules.omits_at(op, path, is_directory)?.is_some())
    }
}
