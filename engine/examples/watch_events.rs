//! Subscribing to events: every event of a session, as it is written.
//!
//! ```sh
//! cargo run -p stillframe --example watch_events
//! ```

use std::error::Error;
use std::fs;

use stillframe::events::EventType;
use stillframe::{CommandAdapter, Cursor, Engine, EngineOptions, RunOptions, WorkspaceOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let scratch = tempfile::tempdir()?;
    let workspace = scratch.path().join("workspace");
    fs::create_dir(&workspace)?;

    let options = EngineOptions::default().state_dir(scratch.path().join("state"));
    let engine = Engine::start(options).await?;
    let session = engine.session("example").await?;

    let mut events = session.events(Cursor::start());
    let subscriber = tokio::spawn(async move {
        while let Some(event) = events.next().await {
            let event = event?;
            println!("{:>3} {} {}", event.sequence, event.event_type, event.data);
            if event.event_type == EventType::SESSION_COMPLETED {
                break;
            }
        }
        // A host keeps this number, and goes on from here after a restart.
        Ok::<_, stillframe::Error>(events.cursor().sequence())
    });

    session
        .execute_run(
            RunOptions::new("make a file").workspace(WorkspaceOptions::at(&workspace)),
            CommandAdapter::new("touch").arg("made"),
        )
        .await?;
    session.complete("there is nothing more to do").await?;
    println!("{} events", subscriber.await??);
    engine.shutdown().await?;
    Ok(())
}
