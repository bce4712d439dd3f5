//! An endpoint for Prometheus: what the engine counts, over HTTP.
//!
//! ```sh
//! cargo run -p stillframe --example prometheus            # serves until it is ended
//! cargo run -p stillframe --example prometheus -- once    # fetches it once, and prints it
//! ```
//!
//! A host that has an exporter already, such as `metrics-exporter-prometheus`, installs that in
//! place of the recorder here.

mod recorder;

use std::error::Error;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use stillframe::{CommandAdapter, Engine, EngineOptions, RunOptions, WorkspaceOptions};

use recorder::Recorded;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Before the first engine starts, so that it hears what each metric means.
    let recorded = Recorded::default();
    metrics::set_global_recorder(recorded.clone())?;
    let is_once = std::env::args().nth(1).as_deref() == Some("once");
    let listener = TcpListener::bind(if is_once {
        "127.0.0.1:0"
    } else {
        "127.0.0.1:9184"
    })?;
    let address = listener.local_addr()?;
    thread::spawn(move || serve(&listener, &recorded));

    let scratch = tempfile::tempdir()?;
    let workspace = scratch.path().join("workspace");
    fs::create_dir(&workspace)?;
    let options = EngineOptions::default().state_dir(scratch.path().join("state"));
    let engine = Engine::start(options).await?;
    engine
        .run_once(
            RunOptions::new("make a file").workspace(WorkspaceOptions::at(&workspace)),
            CommandAdapter::new("touch").arg("made"),
        )
        .await?;
    match is_once {
        true => print!("{}", fetched(address)?),
        false => {
            println!("http://{address}/metrics");
            // A host goes on with its work here.
            std::future::pending::<()>().await;
        }
    }
    engine.shutdown().await?;
    Ok(())
}

/// Answers every request with everything that was counted so far.
fn serve(listener: &TcpListener, recorded: &Recorded) {
    for stream in listener.incoming().flatten() {
        // Whoever goes away asks again.
        let _ = answer(stream, recorded);
    }
}

fn answer(mut stream: TcpStream, recorded: &Recorded) -> std::io::Result<()> {
    // There is one answer, whatever is asked for.
    let _ = stream.read(&mut [0; 4096])?;
    let body = recorded.render();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn fetched(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
