//! Reading the state while the writer works.

use std::sync::{Arc, Mutex};

use crate::blocking::Blocking;
use crate::error::{Error, stopped};
use crate::state::StateStore;
use crate::state::error::StateError;

/// Reads the state beside the writer. Clones share one connection.
#[derive(Clone)]
pub(crate) struct StateReader {
    /// `None`: it was closed.
    store: Arc<Mutex<Option<Box<dyn StateStore>>>>,
    threads: Blocking,
}

impl StateReader {
    /// Reads with `store`.
    pub(crate) fn new(store: Box<dyn StateStore>) -> Self {
        Self {
            store: Arc::new(Mutex::new(Some(store))),
            // One connection: a second reader would only wait on another thread.
            threads: Blocking::new(1),
        }
    }

    /// Reads what is committed. Does not wait for work on workspaces.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn StateStore) -> Result<T, StateError> + Send + 'static,
    ) -> Result<T, Error> {
        let reader = self.clone();
        self.threads.run(move || reader.read_blocking(read)).await?
    }

    /// As [`StateReader::read`], for questions that have errors of their own.
    pub(crate) async fn read_with<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn StateStore) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let reader = self.clone();
        self.threads
            .run(move || reader.read_blocking_with(read))
            .await?
    }

    /// As [`StateReader::read`], for work that may block anyway.
    pub(crate) fn read_blocking<T>(
        &self,
        read: impl FnOnce(&dyn StateStore) -> Result<T, StateError>,
    ) -> Result<T, Error> {
        self.read_blocking_with(|store| Ok(read(store)?))
    }

    /// As [`StateReader::read_with`], for work that may block anyway.
    pub(crate) fn read_blocking_with<T>(
        &self,
        read: impl FnOnce(&dyn StateStore) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (mut read, mut answer) = (Some(read), None);
        self.lend(&mut |store| answer = read.take().map(|read| read(store)))?;
        answer.expect("it was read")
    }

    /// Has `read` read once. Without its type, of which there are hundreds.
    fn lend(&self, read: &mut dyn FnMut(&dyn StateStore)) -> Result<(), Error> {
        // A reader keeps nothing that a panic could leave half-way.
        let store = self.store.lock().unwrap_or_else(|e| e.into_inner());
        read(store.as_deref().ok_or_else(stopped)?);
        Ok(())
    }

    /// Closes the connection. A read after that fails because the engine has stopped.
    pub(crate) fn close(&self) {
        drop(self.store.lock().unwrap_or_else(|e| e.into_inner()).take());
    }
}
