//! A backend of the host's own: every snapshot is a plain copy.
//!
//! ```sh
//! cargo run -p stillframe --example custom_backend
//! ```

mod copying;

use std::error::Error;
use std::fs;
use std::sync::Arc;

use copying::CopyingBackend;
use stillframe::{
    AdapterError, AdapterOutput, Engine, EngineOptions, RunContext, RunOptions, WorkspaceOptions,
};

/// Ruins a file, and fails.
struct Clumsy;

impl stillframe::Adapter for Clumsy {
    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        let workspace = context.workspace.expect("the run has a workspace");
        fs::write(workspace.join("poem.txt"), "roses are\n")
            .map_err(|e| AdapterError::failed(e.to_string()))?;
        Err(AdapterError::failed("forgot the rest"))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let scratch = tempfile::tempdir()?;
    let workspace = scratch.path().join("workspace");
    fs::create_dir(&workspace)?;
    fs::write(workspace.join("poem.txt"), "roses are red\n")?;

    let options = EngineOptions::default()
        .state_dir(scratch.path().join("state"))
        .backend(Arc::new(CopyingBackend));
    let engine = Engine::start(options).await?;
    let outcome = engine
        .run_once(
            RunOptions::new("improve the poem").workspace(
                WorkspaceOptions::at(&workspace)
                    .retain_content(true)
                    .rollback_on_failure(true),
            ),
            Clumsy,
        )
        .await?;
    engine.shutdown().await?;

    let poem = fs::read_to_string(workspace.join("poem.txt"))?;
    println!("the run is {}, and the poem is: {poem}", outcome.run.status);
    assert_eq!(poem, "roses are red\n", "the run was rolled back");
    Ok(())
}
