//! Where a task's work goes.

use std::sync::Arc;

use stillframe_backends::{Backend, Checkpoints, ErrorKind, printable};
use stillframe_remote::address::{Address, ParsedAddress};

use crate::actors::Parts;
use crate::error::Error;
use crate::saving::options::{Names, WorkBranchOptions};
use crate::workspace::opened::Opened;

/// The remote that is taken where nobody names one.
const ORIGIN: &str = "origin";

/// How the place of a task without a remote begins in its row; the id of the workspace follows.
pub(crate) const OF_WORKSPACE: &str = "workspace:";

/// A workspace with a repository, and where the work of a task goes from there.
pub(crate) struct Target {
    pub(crate) opened: Opened,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) names: Names,
    /// `None`: the work is kept in the store alone.
    pub(crate) address: Option<ParsedAddress>,
}

impl Target {
    /// Finds out where work goes. Reads alone; blocks.
    ///
    /// # Errors
    ///
    /// `InvalidOptions`: a name or address cannot be right. `NotFound`: the repository has no such
    /// remote. `Unsupported`: the workspace has no repository, or none that commits can be made for.
    pub(crate) fn of(
        parts: &Parts,
        opened: Opened,
        options: &WorkBranchOptions,
    ) -> Result<Self, Error> {
        let names = options.names()?;
        let backend = opened.detect(parts)?;
        if backend.checkpoints().is_none() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} is not in a git work tree, so that its work has no branch; nothing was done",
                    printable(opened.workspace.disk_path())
                ),
            ));
        }
        let mut target = Self {
            opened,
            backend,
            names,
            address: None,
        };
        target.address = target.address_of(options.remote.as_deref())?;
        Ok(target)
    }

    /// What makes checkpoints.
    pub(crate) fn checkpoints(&self) -> &dyn Checkpoints {
        let checkpoints = self.backend.checkpoints();
        checkpoints.expect("no target is made without")
    }

    /// Where the branch is, as the task's row has it: an address without credentials.
    pub(crate) fn place(&self) -> String {
        match &self.address {
            Some(parsed) => parsed.address.to_string(),
            None => format!("{OF_WORKSPACE}{}", self.opened.workspace.id()),
        }
    }

    fn address_of(&self, remote: Option<&str>) -> Result<Option<ParsedAddress>, Error> {
        let workspace = &self.opened.workspace;
        let name = remote.unwrap_or(ORIGIN);
        let suggested = self.checkpoints().remote_address(workspace, name);
        let suggested = suggested.map_err(|e| Error::new(e.kind(), e))?;
        let parsed = match (suggested, remote) {
            (Some(suggested), _) => Address::parse(&suggested.text, &suggested.base),
            (None, None) => return Ok(None),
            (None, Some(address)) if address.contains(['/', ':']) || address == "." => {
                let base =
                    std::env::current_dir().map_err(|e| Error::new(ErrorKind::Unavailable, e))?;
                Address::parse(address.as_ref(), &base)
            }
            (None, Some(name)) => {
                return Err(Error::not_found(format!(
                    "the repository of {} has no remote {name:?}; nothing was done",
                    printable(workspace.disk_path())
                )));
            }
        };
        parsed.map(Some).map_err(|e| Error::new(e.kind(), e))
    }
}
