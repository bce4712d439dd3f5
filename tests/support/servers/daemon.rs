//! `git daemon`.

use std::path::Path;

use crate::call::Running;
use crate::git;

/// A daemon that serves the bare repositories in a directory.
pub struct GitDaemon {
    port: u16,
    _running: Running,
}

impl GitDaemon {
    /// Serves `repositories`; whether anybody may push to them.
    pub fn start(home: &Path, repositories: &Path, may_push: bool) -> Self {
        let (running, port) = super::listening(|port| {
            let mut call = git::call(
                home,
                repositories,
                ["daemon", "--export-all", "--reuseaddr"],
            )
            .args(["--listen=127.0.0.1", &format!("--port={port}")])
            .args([format!("--base-path={}", repositories.display())]);
            if may_push {
                call = call.args(["--enable=receive-pack"]);
            }
            call
        });
        Self {
            port,
            _running: running,
        }
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }
}
