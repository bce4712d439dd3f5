//! Writing commits that a snapshot stored back into a repository that has lost them.

use std::collections::HashSet;
use std::path::Path;

use super::list::{Bundle, List, ReadBlob};
use crate::git::loose_writer::LooseWriter;
use crate::git::lost::Lost;
use crate::git::put_error::PutError;
use crate::git::repository::RepositoryObjects;
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::purge::Purged;

/// What a repository lacks still.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::git) struct Lacking {
    /// Commits, with their trees.
    pub(in crate::git) commits: Vec<Lost>,
    /// Content that the commits brought, and that was there when they were kept.
    pub(in crate::git) content: Vec<Lost>,
    /// Content that was not there then either.
    pub(in crate::git) never_there: Vec<ObjectId>,
    /// What it lacked and has been given, or would be.
    pub(in crate::git) given: HashSet<ObjectId>,
}

/// Whether what was kept is written, or only looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::git) enum Giving {
    Done,
    Foreseen,
}

/// Gives a repository the commits of a list that it has lost, with all that they brought; answers
/// with what the store has not either.
///
/// An object more changes nothing that anybody sees. A commit comes after all that it names, so
/// that one which is there needs nothing more after a crash.
pub(in crate::git) fn give_back(
    op: &Operation,
    common_dir: &Path,
    list: &List,
    purged: &Purged,
    blob: ReadBlob<'_>,
    giving: Giving,
) -> Result<Lacking, PutError> {
    let mut giver = Giver {
        common_dir,
        giving,
        objects: RepositoryObjects::open(common_dir),
        given: HashSet::new(),
        writer: None,
    };
    let mut lacking = Lacking::default();
    for commit in list.commits.iter().rev() {
        for id in commit.absent.iter().filter(|id| !giver.objects.has(**id)) {
            match purged.contains(&(*id).into()) {
                true => lacking.content.push(Lost::for_good(*id)),
                false => lacking.never_there.push(*id),
            }
        }
        for id in &commit.blobs {
            if giver.objects.has(*id) {
                continue;
            }
            match blob(id) {
                Ok(content) => giver.give(op, ObjectKind::Blob, id, &content)?,
                Err(error) => lacking.content.push(Lost::unread(*id, &error)),
            }
        }
        match Bundle::read(commit, blob) {
            Ok(bundle) => {
                for (id, tree) in bundle.trees.iter().rev() {
                    giver.give(op, ObjectKind::Tree, id, tree)?;
                }
                giver.give(op, ObjectKind::Commit, &commit.id, &bundle.commit)?;
            }
            Err(_) if giver.objects.has(commit.id) => {}
            Err(error) => lacking.commits.push(Lost::unread(commit.id, &error)),
        }
    }
    giver.writer.map_or(Ok(()), LooseWriter::sync)?;
    lacking.given = giver.given;
    Ok(lacking)
}

struct Giver<'a> {
    common_dir: &'a Path,
    giving: Giving,
    objects: RepositoryObjects,
    given: HashSet<ObjectId>,
    /// Opened for the first object that is not there: where none is lost nothing is to be written.
    writer: Option<LooseWriter>,
}

impl Giver<'_> {
    /// Writes an object unless it is there.
    fn give(
        &mut self,
        op: &Operation,
        kind: ObjectKind,
        id: &ObjectId,
        content: &[u8],
    ) -> Result<(), PutError> {
        if self.objects.has(*id) || !self.given.insert(*id) || self.giving == Giving::Foreseen {
            return Ok(());
        }
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => self.writer.insert(LooseWriter::open(op, self.common_dir)?),
        };
        let size = content.len() as u64;
        writer.write(kind, id, size, &mut |out| out.write_all(content))
    }
}
