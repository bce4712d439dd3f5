//! Work of the host's own: an adapter that writes files, reports what it does, and stops when it is
//! asked to.
//!
//! ```sh
//! cargo run -p stillframe --example custom_adapter
//! ```

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use stillframe::events::EventType;
use stillframe::{
    Adapter, AdapterError, AdapterOutput, Engine, EngineOptions, RunContext, RunOptions,
    WorkspaceOptions,
};

/// Writes so many files, one after the other.
struct Writer {
    files: u32,
}

impl Adapter for Writer {
    fn check(&self, _workspace: Option<&Path>) -> Result<(), stillframe::Error> {
        if self.files == 0 {
            return Err(stillframe::Error::invalid_options("nothing to write"));
        }
        Ok(())
    }

    async fn run(&self, context: RunContext) -> Result<AdapterOutput, AdapterError> {
        let failed = |e: &dyn Error| AdapterError::failed(e.to_string());
        let workspace = context.workspace.as_deref().expect("the run has one");
        for number in 0..self.files {
            if context.cancellation.is_cancelled() {
                return Err(AdapterError::cancelled("stopped between two files"));
            }
            let name = format!("file-{number}");
            fs::write(workspace.join(&name), "written by the adapter\n").map_err(|e| failed(&e))?;
            context
                .emit(EventType::new("file_written"), json!({ "path": name }))
                .await
                .map_err(|e| failed(&e))?;
        }
        Ok(AdapterOutput::with_data(json!({ "files": self.files })))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let scratch = tempfile::tempdir()?;
    let workspace = scratch.path().join("workspace");
    fs::create_dir(&workspace)?;

    let options = EngineOptions::default().state_dir(scratch.path().join("state"));
    let engine = Engine::start(options).await?;
    let session = engine.session("example").await?;
    let outcome = session
        .execute_run(
            RunOptions::new("write three files")
                .workspace(WorkspaceOptions::at(&workspace))
                .timeout(Duration::from_secs(60)),
            Writer { files: 3 },
        )
        .await?;
    println!("{}", serde_json::to_string_pretty(&outcome)?);
    engine.shutdown().await?;
    Ok(())
}
