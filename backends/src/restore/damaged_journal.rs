//! The journal of a restore that was interrupted, if it is damaged so that nobody can finish that.

use crate::git::rollback::RepositoryPlan;
use crate::operation::Operation;
use crate::problem::Problem;
use crate::store_error::StoreError;
use crate::workspace::{LockedWorkspace, Workspace};
use crate::worktree::journal;

impl Workspace {
    /// What is wrong with the journal of a restore that was interrupted, if nobody can finish it by
    /// that. [`LockedWorkspace::give_up_damaged_journal`] is the way out.
    pub fn damaged_journal(&self) -> Result<Option<Problem>, StoreError> {
        journal::problem(&self.own_path(), RepositoryPlan::check)
    }
}

impl LockedWorkspace {
    /// Gives up the journal of a restore that was interrupted, if it is damaged so that nobody can
    /// finish it; answers with what is wrong with it. Files that the restore had not come to stay
    /// as they are, what it displaced stays beside the store for as long as its guard, and the
    /// guard leads back.
    pub fn give_up_damaged_journal(
        &mut self,
        op: &Operation,
    ) -> Result<Option<Problem>, StoreError> {
        journal::give_up(op, &self.own_path(), RepositoryPlan::check)
    }
}

#[cfg(test)]
mod tests {
    use crate::operation::Operation;
    use std::fs;

    use serde::Serialize;

    use crate::codec;
    use crate::error::ErrorKind;
    use crate::restore::naive::Stage;
    use crate::restore::recover;
    use crate::snapshot::SnapshotId;
    use crate::worktree::journal;

    /// A frame whose checksum holds.
    fn frame(kind: u8, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap();
        let mut frame = b"SFRSTJ\r\n".to_vec();
        frame.extend(journal::VERSION.to_le_bytes());
        frame.extend([7; 16]);
        frame.push(kind);
        frame.extend(sequence.to_le_bytes());
        frame.extend(length.to_le_bytes());
        frame.extend(payload);
        let checksum = blake3::hash(&frame);
        frame.extend(checksum.as_bytes());
        frame
    }

    fn encoded(value: &impl Serialize) -> Vec<u8> {
        codec::serialize(value, u64::MAX).unwrap()
    }

    #[test]
    fn one_that_says_of_the_repository_what_nobody_can_read_is_named_and_can_be_given_up() {
        let mut stage = Stage::new();
        stage.write("kept", "one\n");
        let before = stage.view();
        let store = stage.workspace.store_path().to_owned();
        let directory = store.join("restore-07070707070707070707070707070707");
        fs::create_dir(&directory).unwrap();
        let guard = SnapshotId::random();
        let inode = stage.workspace.identity().inode;
        let staging = (inode, directory.to_str().unwrap(), &guard);
        let mut intent = encoded(&("0".repeat(64), &guard, 0_u64, Some(())));
        intent.extend(b"no plan");
        let frames = [frame(1, 0, &encoded(&staging)), frame(3, 1, &intent)];
        fs::write(store.join(journal::FILE), frames.concat()).unwrap();

        let error = recover(&Operation::unbounded(), &stage.workspace).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(
            directory.exists() && stage.view() == before,
            "nothing is touched"
        );
        let named = stage.workspace.damaged_journal().unwrap().unwrap();
        assert_eq!(named.what, journal::FILE);
        let given_up = stage
            .workspace
            .give_up_damaged_journal(&Operation::unbounded())
            .unwrap();
        assert_eq!(given_up, Some(named));
        let recovery = recover(&Operation::unbounded(), &stage.workspace).unwrap();
        assert!(recovery.rolled_forward.is_empty());
        assert_eq!(stage.workspace.damaged_journal().unwrap(), None);
        assert_eq!(stage.view(), before);
    }
}
