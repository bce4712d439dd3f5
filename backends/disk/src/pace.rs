//! Loops that can be stopped.

use stillframe_model::interrupted::Interrupted;

use crate::operation::Operation;

/// A loop over what is in memory: it asks whether it should stop every so many items, since to
/// ask each time would take as long as an item.
#[derive(Debug)]
pub struct Pace<'a> {
    op: &'a Operation,
    items: u32,
}

/// How many items are done between two checks. The slowest take some microseconds each, so this is
/// a few milliseconds. In tests every item is checked, so that a small tree is stopped at as many
/// places as a large one.
const ITEMS_PER_CHECK: u32 = if cfg!(any(test, feature = "testing")) {
    1
} else {
    1024
};

impl<'a> Pace<'a> {
    /// For a loop that is part of this operation.
    pub fn of(op: &'a Operation) -> Self {
        Self { op, items: 0 }
    }

    /// To be called for each item.
    #[inline]
    pub fn step(&mut self) -> Result<(), Interrupted> {
        self.items += 1;
        if self.items < ITEMS_PER_CHECK {
            return Ok(());
        }
        self.items = 0;
        self.op.check()
    }
}
