//! Where a task's work goes.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillframe_backends::{Backend, Checkpoints, ErrorKind, printable};
use stillframe_remote::address::{Address, ParsedAddress};

use crate::actors::Parts;
use crate::error::Error;
use crate::options::work_branch::{Names, WorkBranchOptions, is_address};
use crate::workspace::opened::Opened;

/// The remote that is taken where nobody names one.
const ORIGIN: &str = "origin";

/// How the place of a task without a remote begins in its row; the id of the workspace follows.
pub(crate) const OF_WORKSPACE: &str = "workspace:";

/// A workspace with a repository, and where the work of a task goes from there.
#[derive(Clone)]
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
    /// remote. `Unsupported`: the workspace has no repository, or none that commits can be made
    /// for.
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
                    "{} is in no git work tree that commits can be made for, so that its work has no branch; nothing was done",
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
        target.address = match &options.pinned {
            Some(known) => known.0.clone(),
            None => target.address_of(options.remote.as_deref())?,
        };
        Ok(target)
    }

    /// The same, where the work has gone before: to `place`, as the task's row has it. Who asks is
    /// what the repository says, if it still names that place.
    pub(crate) fn of_place(
        parts: &Parts,
        opened: Opened,
        options: &WorkBranchOptions,
        place: &str,
    ) -> Result<Self, Error> {
        let found = Self::of(parts, opened.clone(), options);
        if found.as_ref().is_ok_and(|found| found.place() == place) {
            return found;
        }
        let address = match place.starts_with(OF_WORKSPACE) {
            true => None,
            false => Some(
                Address::parse(OsStr::new(place), Path::new("/"))
                    .map_err(|e| Error::new(e.kind(), e))?,
            ),
        };
        Self::of(parts, opened, &options.clone().pinned_to(address))
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

    /// Whether the address itself says who asks.
    pub(crate) fn has_password(&self) -> bool {
        let login = self
            .address
            .as_ref()
            .and_then(|parsed| parsed.login.as_ref());
        login.is_some_and(|login| login.password.is_some())
    }

    /// Finds the address that was typed, or that the repository suggests.
    fn address_of(&self, remote: Option<&str>) -> Result<Option<ParsedAddress>, Error> {
        let Some((text, base)) = self.text_of(remote)? else {
            return Ok(None);
        };
        let parse = |text: &OsStr| Address::parse(text, &base).map_err(|e| Error::new(e.kind(), e));
        let parsed = parse(&text)?;
        // Two spellings of one directory are one place.
        let directory = parsed.address.directory();
        let real = directory.and_then(|path| path.canonicalize().ok());
        match real {
            Some(real) => parse(real.as_os_str()).map(Some),
            None => Ok(Some(parsed)),
        }
    }

    /// The address as it is written, and where a relative path begins.
    fn text_of(&self, remote: Option<&str>) -> Result<Option<(OsString, PathBuf)>, Error> {
        let typed = |address: &str| {
            let base = std::env::current_dir();
            let base = base.map_err(|e| Error::new(ErrorKind::Unavailable, e))?;
            Ok(Some((OsString::from(address), base)))
        };
        // An address that somebody has typed is never the name of another.
        if let Some(address) = remote.filter(|remote| is_address(remote)) {
            return typed(address);
        }
        let workspace = &self.opened.workspace;
        let name = remote.unwrap_or(ORIGIN);
        let suggested = self.checkpoints().remote_address(workspace, name);
        match (suggested.map_err(|e| Error::new(e.kind(), e))?, remote) {
            (Some(suggested), _) => Ok(Some((suggested.text, suggested.base))),
            (None, None) => Ok(None),
            (None, Some(path)) if path.contains('/') => typed(path),
            (None, Some(name)) => Err(Error::not_found(format!(
                "the repository of {} has no remote {name:?}; nothing was done",
                printable(workspace.disk_path())
            ))),
        }
    }
}
