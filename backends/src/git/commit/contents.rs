//! The blobs that a commit needs and the repository may lack: finding their content and writing
//! them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::attribute_values::AttributeValues;
use super::conversion::{Conversion, LineEnds, is_text_with_crlf};
use crate::commit::CommitError;
use crate::contents::ContentError;
use crate::git::loose_writer::LooseWriter;
use crate::git::repository::{Settings, UserRepository};
use crate::git::store::Store;
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::path::RelPath;
use crate::store_error::StoreError;

/// What a blob is made of.
#[derive(Clone, Debug)]
pub(super) struct BlobSource {
    /// The blob of the store with the bytes of the file.
    raw: ObjectId,
    /// What is done to them; `None`: nothing.
    conversion: Option<Conversion>,
}

impl BlobSource {
    /// The bytes of the file as they are.
    pub(super) fn raw(raw: ObjectId) -> Self {
        Self {
            raw,
            conversion: None,
        }
    }
}

/// What git would store for a file.
pub(super) enum Converted {
    Blob(ObjectId, BlobSource),
    /// A filter or an encoding applies to it: this one.
    TakesAProgram(String),
}

/// Where contents come from.
#[derive(Clone, Copy)]
pub(super) struct Contents<'a> {
    pub(super) op: &'a Operation,
    pub(super) store: &'a Store,
    pub(super) repository: &'a UserRepository,
    pub(super) settings: &'a Settings,
}

impl Contents<'_> {
    /// The blob that git would store for the file at `path`, from the top of the work tree, that
    /// has the bytes `raw`. `index_id` is the blob that the index has for it.
    pub(super) fn converted(
        &self,
        path: &RelPath,
        raw: ObjectId,
        attributes: &AttributeValues,
        index_id: Option<ObjectId>,
    ) -> Result<Converted, CommitError> {
        let mut conversion = Conversion::of(attributes, self.settings);
        if let Some(what) = conversion.unsupported {
            return Ok(Converted::TakesAProgram(what));
        }
        if conversion.is_nothing() {
            return Ok(Converted::Blob(raw, BlobSource::raw(raw)));
        }
        let bytes = self.bytes(&raw)?;
        let mut has_crlf = false;
        let converted = conversion.to_git(&bytes, || {
            has_crlf = self.is_text_with_crlf(index_id)?;
            Ok::<_, CommitError>(has_crlf)
        })?;
        let Some(converted) = converted else {
            return Ok(Converted::TakesAProgram(
                "an encoding that the file does not have".to_owned(),
            ));
        };
        if converted.as_ref() == &bytes[..] {
            return Ok(Converted::Blob(raw, BlobSource::raw(raw)));
        }
        let id = ObjectId::of(ObjectKind::Blob, &converted)
            .map_err(|e| CommitError::Unsupported(format!("{path}: {e}")))?;
        // What was asked of the index is known now.
        if has_crlf {
            conversion.lines = LineEnds::AsIs;
        }
        let source = BlobSource {
            raw,
            conversion: Some(conversion),
        };
        Ok(Converted::Blob(id, source))
    }

    /// Whether the index has a text with CRLF for a path: then git leaves the line ends of the file
    /// alone where it would have guessed.
    fn is_text_with_crlf(&self, index_id: Option<ObjectId>) -> Result<bool, CommitError> {
        let Some(id) = index_id else {
            return Ok(false);
        };
        let blob = self.repository.read_object(self.op, id, u64::MAX)?;
        Ok(blob.is_some_and(|(_, bytes)| is_text_with_crlf(&bytes)))
    }

    fn bytes(&self, raw: &ObjectId) -> Result<Vec<u8>, CommitError> {
        let mut bytes = Vec::new();
        match self.store.blob_to(self.op, raw, &mut bytes) {
            Ok(_) => Ok(bytes),
            Err(ContentError::Store(error)) => Err(error.into()),
            Err(ContentError::Sink(_)) => unreachable!("a vector takes every byte"),
        }
    }

    /// Writes what the repository lacks of these objects, and makes it survive a power cut.
    pub(super) fn give(
        &self,
        blobs: &BTreeMap<ObjectId, BlobSource>,
        trees: &BTreeMap<ObjectId, Vec<u8>>,
    ) -> Result<(), CommitError> {
        let mut objects = LooseWriter::open(self.op, self.repository.common_dir())?;
        for id in self.lacking(blobs.keys())? {
            self.op.check()?;
            self.write_blob(&mut objects, &id, &blobs[&id])?;
        }
        for id in self.lacking(trees.keys())? {
            self.op.check()?;
            let bytes = &trees[&id];
            let size = bytes.len() as u64;
            objects.write(ObjectKind::Tree, &id, size, &mut |out| out.write_all(bytes))?;
        }
        Ok(objects.sync()?)
    }

    /// The bytes of a blob that are not those of a file; `None`: they are, and the store has them.
    pub(super) fn bytes_made(&self, source: &BlobSource) -> Result<Option<Vec<u8>>, CommitError> {
        let Some(conversion) = &source.conversion else {
            return Ok(None);
        };
        let bytes = self.bytes(&source.raw)?;
        let converted = conversion.to_git(&bytes, || Ok::<_, CommitError>(false))?;
        let converted = converted.expect("it was converted when it was decided");
        Ok(Some(converted.into_owned()))
    }

    /// The ids of which the repository has no object that can be read, in their order.
    fn lacking<'i>(
        &self,
        ids: impl Iterator<Item = &'i ObjectId>,
    ) -> Result<Vec<ObjectId>, CommitError> {
        let ids: Vec<ObjectId> = ids.copied().collect();
        let sizes = self.repository.object_sizes(self.op, &ids)?;
        let lacking = ids
            .into_iter()
            .zip(sizes)
            .filter(|(_, size)| size.is_none());
        Ok(lacking.map(|(id, _)| id).collect())
    }

    fn write_blob(
        &self,
        objects: &mut LooseWriter,
        id: &ObjectId,
        source: &BlobSource,
    ) -> Result<(), CommitError> {
        let kind = ObjectKind::Blob;
        if let Some(converted) = self.bytes_made(source)? {
            let size = converted.len() as u64;
            return Ok(objects.write(kind, id, size, &mut |out| out.write_all(&converted))?);
        }
        // The store's own failure must not be taken for that of the disk.
        let mut failure: Option<StoreError> = None;
        let size = self.store.blob_size(id)?;
        let mut copy = |out: &mut dyn Write| match self.store.blob_to(self.op, id, out) {
            Ok(_) => Ok(()),
            Err(ContentError::Sink(error)) => Err(error),
            Err(ContentError::Store(error)) => {
                failure = Some(error);
                Err(io::Error::other("the store failed"))
            }
        };
        let written = objects.write(kind, id, size, &mut copy);
        match failure {
            Some(error) => Err(error.into()),
            None => Ok(written?),
        }
    }
}
