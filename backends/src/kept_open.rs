//! The state that a backend keeps open between two operations on a workspace.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// One value of each type, made when it is first asked for.
#[derive(Default)]
pub(crate) struct KeptOpen(Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl KeptOpen {
    /// The value of this type.
    pub(crate) fn get<T: Default + Any + Send + Sync>(&self) -> Arc<T> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let value = kept
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Arc::<T>::default());
        let value = Arc::clone(value).downcast();
        value.expect("it is kept by its type")
    }
}

impl fmt::Debug for KeptOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_tuple("KeptOpen").field(&kept.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn there_is_one_value_of_each_type() {
        let kept = KeptOpen::default();
        kept.get::<AtomicU32>().store(7, Ordering::Relaxed);
        assert_eq!(kept.get::<AtomicU32>().load(Ordering::Relaxed), 7);
        assert_eq!(*kept.get::<String>(), "");
    }
}
