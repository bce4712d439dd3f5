//! The least that a host does: run a command between two snapshots, and see what it changed.
//!
//! ```sh
//! cargo run -p stillframe --example minimal_host -- touch hello
//! ```
//!
//! It works on the current directory.

use std::error::Error;

use stillframe::{CommandAdapter, Engine, EngineOptions, RunOptions, WorkspaceOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let Some(program) = args.next() else {
        return Err("usage: minimal_host COMMAND [ARGUMENT]…".into());
    };
    let engine = Engine::start(EngineOptions::default()).await?;
    let outcome = engine
        .run_once(
            RunOptions::new("run a command").workspace(WorkspaceOptions::at(".")),
            CommandAdapter::new(program).args(args),
        )
        .await?;
    engine.shutdown().await?;

    println!("the run is {}", outcome.run.status);
    if let Some(diff) = &outcome.workspace.diff {
        println!("{} files changed", diff.files_changed);
        for path in &diff.changed_paths {
            println!("  {path:?}");
        }
    }
    Ok(())
}
