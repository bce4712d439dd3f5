//! PLACEHOLDER
use crate::path::RelPath;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;

#[derive(Debug)]
pub(crate) struct Watch;
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    All,
    Names(BTreeSet<Vec<u8>>),
}
pub(crate) type Pending = BTreeMap<RelPath, Look>;
impl Watch {
    pub(crate) fn add(&self, _path: &RelPath, _fd: BorrowedFd<'_>) {}
    pub(crate) fn forget(&self, _path: &RelPath) {}
    pub(crate) fn always_look_at(&self, _directory: &RelPath, _name: &[u8]) {}
    pub(crate) fn is_watching(&self, _path: &RelPath) -> bool {
        false
    }
    pub(crate) fn pending(&self) -> Result<Pending, crate::search::WalkReason> {
        Ok(Pending::new())
    }
    pub(crate) fn settle(&self) {}
    pub(crate) fn begin(
        _root: &crate::worktree::root::Root,
    ) -> Result<Self, crate::search::WalkReason> {
        Ok(Self)
    }
}
