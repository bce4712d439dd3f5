//! One operation: what may stop the work that is done for it.
//!
//! It is passed as an argument to all code that works for the operation, and to its threads. Work
//! is stopped in no other way.

use std::io;
use std::path::Path;
use std::sync::Arc;

use stillframe_model::exceeded::Exceeded;
use stillframe_model::interrupted::Interrupted;

use crate::faults::Effect;
#[cfg(any(test, feature = "testing"))]
use crate::faults::Witness;
use crate::interrupt::Interrupt;
use crate::quota::{Quota, Reserved};

/// What may stop the work of one operation: its cancellation, a quota of the store, and in tests a
/// fault of the disk. Cheap to clone; a clone is the same operation.
#[derive(Clone, Debug, Default)]
pub struct Operation {
    cancellation: Option<Arc<Interrupt>>,
    quota: Option<Arc<Quota>>,
    #[cfg(any(test, feature = "testing"))]
    witness: Option<Witness>,
}

impl Operation {
    /// An operation without cancellation and without a quota.
    pub fn unbounded() -> Self {
        Self::default()
    }

    /// The same operation, cancelled by `interrupt` alone.
    pub fn cancelled_by(&self, interrupt: &Interrupt) -> Self {
        Self {
            cancellation: Some(Arc::new(interrupt.clone())),
            ..self.clone()
        }
    }

    /// The same operation, which may add no more than `quota` has.
    #[doc(hidden)]
    pub fn within(&self, quota: Quota) -> Self {
        Self {
            quota: Some(Arc::new(quota)),
            ..self.clone()
        }
    }

    /// The same operation, which nobody cancels any more: what is published, or half taken back,
    /// must be finished.
    pub fn to_its_end(&self) -> Self {
        Self {
            cancellation: None,
            ..self.clone()
        }
    }

    /// Fails once the work should stop, and from then on: whatever was made of an earlier failure,
    /// the check before something is published fails too.
    pub fn check(&self) -> Result<(), Interrupted> {
        match &self.cancellation {
            Some(interrupt) => interrupt.check(),
            None => Ok(()),
        }
    }

    /// Whether anybody may cancel it.
    pub fn may_be_cancelled(&self) -> bool {
        self.cancellation.is_some()
    }

    /// To reserve, of its quota, what a file of a store needs.
    #[doc(hidden)]
    pub fn reserve(&self) -> Reserved {
        Reserved::of(self.quota.as_ref())
    }

    /// What its quota refused first, if it refused anything.
    #[doc(hidden)]
    pub fn refused(&self) -> Option<Exceeded> {
        self.quota.as_ref()?.refused()
    }

    /// To be asked before a call that changes the disk; an error means that it must not be made.
    /// Only in tests is there one.
    #[cfg_attr(any(test, feature = "testing"), track_caller)]
    #[doc(hidden)]
    #[inline]
    pub fn before(&self) -> io::Result<()> {
        #[cfg(any(test, feature = "testing"))]
        if let Some(witness) = &self.witness {
            return witness.before(None, std::panic::Location::caller());
        }
        Ok(())
    }

    /// As [`Operation::before`], for a call that says what it does.
    #[cfg_attr(any(test, feature = "testing"), track_caller)]
    #[doc(hidden)]
    #[inline]
    pub fn effect(&self, effect: Effect<&Path>) -> io::Result<()> {
        #[cfg(any(test, feature = "testing"))]
        if let Some(witness) = &self.witness {
            return witness.before(Some(effect), std::panic::Location::caller());
        }
        let _ = effect;
        Ok(())
    }

    /// The same operation, whose calls this witness sees, and can make fail.
    #[cfg(any(test, feature = "testing"))]
    pub fn seen_by(&self, witness: Witness) -> Self {
        Self {
            witness: Some(witness),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_handed_a_cancelled_operation_stops_and_nobody_else_does() {
        let interrupt = Interrupt::never();
        let op = Operation::unbounded().cancelled_by(&interrupt);
        assert!(op.may_be_cancelled());
        assert_eq!(op.check(), Ok(()));
        interrupt.cancel();
        assert_eq!(op.check(), Err(Interrupted::Cancelled));
        let (aside, own) = crate::parallel::both(|| op.check(), || op.clone().check());
        assert_eq!([aside, own], [Err(Interrupted::Cancelled); 2]);
        let nearer = op.cancelled_by(&Interrupt::never());
        for other in [Operation::unbounded(), op.to_its_end(), nearer] {
            assert_eq!(other.check(), Ok(()), "{other:?}");
        }
        assert!(!op.to_its_end().may_be_cancelled());
    }
}
