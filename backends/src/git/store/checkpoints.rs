//! Checkpoints in the store: commits that go on from the user's history, which may end where a
//! remote is known to have the rest.

use std::collections::BTreeSet;
use std::io;

use super::{MAX_COMMIT_BYTES, Store};
use crate::durable;
use crate::git::history::Commit;
use crate::git::pack::PackWriter;
use crate::git::refs::{self, CheckpointRef};
use crate::git::repository::{MAX_SHALLOW_BYTES, Shallow};
use crate::git::{ObjectId, ObjectKind};
use crate::operation::Operation;
use crate::problem::Problem;
use crate::store_error::StoreError;

/// Where git looks for the commits whose parents it shall not look for (`shallow` in
/// gitrepository-layout).
const ENDS: &str = "shallow";

impl Store {
    /// The commits at which history ends here: what comes before them a remote has, or had when a
    /// checkpoint was made of them.
    pub(crate) fn history_ends(&self) -> Result<Shallow, StoreError> {
        let text = durable::read(&self.git_dir.join(ENDS), MAX_SHALLOW_BYTES)?;
        Shallow::parse(&text.unwrap_or_default())
            .ok_or_else(|| StoreError::corrupt("the file shallow", "a line of it is no id"))
    }

    /// Makes history end at these commits, durably.
    pub(crate) fn end_history_at(
        &self,
        op: &Operation,
        ends: &BTreeSet<ObjectId>,
    ) -> Result<(), StoreError> {
        let known = self.history_ends()?;
        if known.iter().eq(ends) {
            return Ok(());
        }
        let path = self.git_dir.join(ENDS);
        if ends.is_empty() {
            return Ok(durable::remove_file(op, &path)?);
        }
        let text: String = ends.iter().map(|id| format!("{id}\n")).collect();
        Ok(durable::replace(op, &path, text.as_bytes())?)
    }

    /// The checkpoints of `task`, or of every task.
    pub(crate) fn checkpoints(&self, task: Option<&str>) -> Result<Vec<CheckpointRef>, StoreError> {
        self.refs.checkpoints(task)
    }

    /// Keeps `commit` as the checkpoint of this name. What the store lacks of it is in `pack`,
    /// which is finished; `complete` then makes sure of all else, and may answer with another
    /// error.
    ///
    /// `false`: there is a checkpoint of that name. On `Err` there is none, and the pack is gone.
    pub(crate) fn keep_checkpoint<E: From<StoreError>>(
        &self,
        op: &Operation,
        name: &str,
        commit: ObjectId,
        pack: PackWriter,
        complete: impl FnOnce() -> Result<(), E>,
    ) -> Result<bool, E> {
        let staged = self.refs.stage(op, &commit).map_err(StoreError::from)?;
        let finished = pack.finish_with(&[&staged])?;
        let is_new = self.refresh().map_err(E::from).and_then(|_| {
            complete()?;
            op.check().map_err(StoreError::from)?;
            Ok(self
                .refs
                .create_checkpoint(&op.to_its_end(), name, staged)?)
        });
        if !matches!(is_new, Ok(true)) {
            // Its commit was not in the store, so nothing else needs this pack.
            if let Some(finished) = finished {
                let _ = self.remove_packs(op, &[finished.path]);
                let _ = self.refresh();
            }
            self.take_back(op);
        } else {
            self.keep_what_came_in();
        }
        is_new
    }

    /// Lets go of checkpoints.
    pub(crate) fn forget_checkpoints(
        &self,
        op: &Operation,
        task: &str,
        numbers: &[u64],
    ) -> Result<(), StoreError> {
        let names: Vec<String> = numbers
            .iter()
            .map(|n| refs::checkpoint_name(task, *n))
            .collect();
        self.refs.remove(op, &names)
    }

    /// A commit of the store; `None` if it has none of this id, or something else.
    pub(crate) fn commit_of(
        &self,
        op: &Operation,
        id: ObjectId,
    ) -> Result<Option<(Commit, Vec<u8>)>, StoreError> {
        if !self.contains(&id)? {
            return Ok(None);
        }
        // A remote's refs may name tags and other things.
        if self.header(&id)?.0 != ObjectKind::Commit {
            return Ok(None);
        }
        let (_, bytes) = self.read(op, &id, MAX_COMMIT_BYTES)?;
        match Commit::parse(id, &bytes) {
            Some(commit) => Ok(Some((commit, bytes))),
            None => Err(StoreError::corrupt(
                id.to_string(),
                "the commit is malformed",
            )),
        }
    }

    /// Reads and hashes every object that the checkpoints need of the store.
    pub(crate) fn verify_checkpoints(&self, op: &Operation) -> Result<Vec<Problem>, StoreError> {
        self.refresh()?;
        if self.checkpoints(None)?.is_empty() {
            return Ok(Vec::new());
        }
        let purged = self.purged()?;
        let needed = match self.live_of(op, Some("refs/checkpoints/")) {
            Ok(needed) => needed,
            Err(StoreError::Corrupt { what, detail }) => {
                return Ok(vec![Problem::new(what, detail)]);
            }
            Err(error) => return Err(error),
        };
        let mut problems = Vec::new();
        for id in needed.iter().filter(|id| !purged.contains(&(**id).into())) {
            op.check()?;
            let read = self.at_each_place(id, |place| {
                self.pass_on(op, place, id, &mut io::sink())
                    .map_err(super::no_sink)
            });
            match read {
                Ok(()) => {}
                Err(StoreError::Corrupt { what, detail }) => {
                    problems.push(Problem::new(what, detail));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(problems)
    }
}
