//! Dropping large values on another thread, because dropping them takes long.

use std::ops::{Deref, DerefMut};

use crate::operation::Operation;

/// A value so large that dropping it takes a while. If the work that owns it was cancelled, another
/// thread drops it, and nobody waits for that. So nothing in the value may have to be dropped
/// before the work ends.
#[derive(Debug)]
pub struct Bulk<T: Send + 'static> {
    op: Operation,
    value: Option<T>,
}

impl<T: Send + 'static> Bulk<T> {
    /// A large value that is part of the work of this operation.
    pub fn new(op: &Operation, value: T) -> Self {
        Self {
            op: op.clone(),
            value: Some(value),
        }
    }

    /// The value, for further use.
    pub fn into_inner(mut self) -> T {
        self.value.take().expect("it is taken out once")
    }
}

impl<T: Send + 'static> Deref for Bulk<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("only its owner takes it out")
    }
}

impl<T: Send + 'static> DerefMut for Bulk<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("only its owner takes it out")
    }
}

impl<T: Send + 'static> Drop for Bulk<T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take()
            && self.op.check().is_err()
        {
            // A machine that gives no thread has it dropped here.
            let _ = std::thread::Builder::new().spawn(move || drop(value));
        }
    }
}
