//! How files are written that a tree has: the conversions that its attributes ask for.

use super::attribute_values::{AttributeFinder, AttributeLines};
use super::conversion::Conversion;
use super::decision::Environment;
use crate::commit::CommitError;
use crate::git::ObjectId;
use crate::git::either::{Either, EitherTrees};
use crate::git::repository::{Settings, UserConfig, UserRepository};
use crate::git::tree_lookup::TreeLookup;
use crate::git::tree_object::{ItemKind, TreeItem};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::tree::EntryKind;

/// A file of attributes that is larger is none.
const MAX_ATTRIBUTES_BYTES: u64 = 1 << 20;

/// The attributes of a tree that is written into a work tree.
pub(in crate::git) struct Smudging<'a> {
    op: &'a Operation,
    either: Either<'a>,
    tree: TreeLookup<'a>,
    settings: Settings,
    weakest: Vec<AttributeLines>,
    strongest: Option<AttributeLines>,
}

impl<'a> Smudging<'a> {
    /// Of the files of `tree`, as git takes them when it checks the tree out: its own attributes
    /// count, and not those of the work tree.
    pub(in crate::git) fn new(
        op: &'a Operation,
        repository: &UserRepository,
        trees: &'a EitherTrees<'a>,
        tree: ObjectId,
        env: &Environment<'_>,
    ) -> Result<Self, CommitError> {
        if repository.names_attributes()? {
            return Err(CommitError::Unsupported(
                "the repository's configuration names a file with attributes, which is not read"
                    .to_owned(),
            ));
        }
        let user = UserConfig::read(env, Some(repository));
        let outside = repository.outside_attributes(&user)?;
        let parsed = |text: &str| AttributeLines::parse(text.as_bytes());
        Ok(Self {
            op,
            either: trees.either,
            tree: TreeLookup::new(trees, tree),
            settings: repository.settings(env)?,
            weakest: outside.weakest.iter().map(|f| parsed(&f.text)).collect(),
            strongest: outside.strongest.as_ref().map(|f| parsed(&f.text)),
        })
    }

    /// The conversions of the files at these paths, from the top of the work tree.
    pub(in crate::git) fn conversions(
        &self,
        paths: &[&RelPath],
    ) -> Result<Vec<Conversion>, CommitError> {
        let mut read = |directory: &RelPath| self.attribute_file(directory);
        let mut finder =
            AttributeFinder::new(self.weakest.clone(), self.strongest.clone(), &mut read);
        let conversions = paths
            .iter()
            .map(|path| Ok(Conversion::of(&finder.of(path)?, &self.settings)));
        conversions.collect()
    }

    fn attribute_file(&self, directory: &RelPath) -> Result<Option<Vec<u8>>, CommitError> {
        let found = self.tree.at(self.op, &directory.join(b".gitattributes"))?;
        let Some(TreeItem {
            kind: ItemKind::Entry(EntryKind::File | EntryKind::Executable),
            id,
            ..
        }) = found
        else {
            return Ok(None);
        };
        let object = self.either.object(self.op, id, MAX_ATTRIBUTES_BYTES)?;
        Ok(object.map(|(_, bytes)| bytes))
    }
}
