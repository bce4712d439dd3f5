//! The values of a merge: what base and sides have at a path.

use crate::git::commit::Side;
use crate::path::RelPath;

pub(super) const BASE: usize = 0;
pub(super) const OURS: usize = 1;
pub(super) const THEIRS: usize = 2;

/// What base, ours and theirs have.
pub(super) type Stages = [Option<Side>; 3];

/// Of which merge it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level<'a> {
    /// 0: what was asked for. Otherwise what comes of it is a base of the level above, and has
    /// something at every path, whether that is settled or not.
    pub(super) depth: u16,
    /// What conflicts call the two sides.
    pub(super) names: [&'a str; 2],
}

/// A path that at least one side has changed.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) stages: Stages,
    /// Where each of the three has the file.
    pub(super) from: [RelPath; 3],
    /// Which of the three have a directory there, as bits.
    pub(super) directories: u8,
    /// The sides that had the same before renames were followed.
    pub(super) same: Same,
    /// A rename makes it a conflict whatever its content.
    pub(super) is_conflict: bool,
    /// What was there is elsewhere.
    pub(super) is_moved: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Same {
    None,
    /// Ours and base.
    Ours,
    /// Theirs and base.
    Theirs,
    /// Both sides, which the base has not.
    Sides,
}

impl Same {
    pub(super) fn of(stages: &Stages) -> Self {
        let is_same = |a: usize, b: usize| stages[a].is_some() && stages[a] == stages[b];
        match () {
            () if is_same(BASE, OURS) => Self::Ours,
            () if is_same(BASE, THEIRS) => Self::Theirs,
            () if is_same(OURS, THEIRS) => Self::Sides,
            () => Self::None,
        }
    }
}

/// Which of the three have something, as bits.
pub(super) fn mask(stages: &Stages) -> u8 {
    let bit = |at: usize| u8::from(stages[at].is_some()) << at;
    bit(BASE) | bit(OURS) | bit(THEIRS)
}
