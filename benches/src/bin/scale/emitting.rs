//! What it costs to write events and to read them all again, in turns with bare SQLite.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::params;
use serde_json::{Value, json};
use stillframe::events::{EventDraft, EventQuery, EventType};
use stillframe::{Engine, EngineOptions, SessionManager};

use super::{Answer, Memory, Rate, in_shares_of, mib, started};

/// How long one emits, and others beside it, in each round.
const EMIT_FOR: Duration = Duration::from_secs(1);
const ROUNDS: usize = 7;
/// How many emit at once.
const EMITTERS: usize = 40;
/// How many events are written together.
const BATCH: u64 = 1_000;

/// Prints how many events are written.
pub(super) async fn write(dir: PathBuf) -> Answer<()> {
    let options = EngineOptions::default().state_dir(dir.join("emitting"));
    let engine = Engine::start(options).await?;
    let session = engine.session("emitting").await?;
    let mut bare = Bare::open(&dir.join("bare-events.db"))?;
    let (mut one, mut many, mut batches) = (Rate::new(), Rate::new(), Rate::new());
    let (mut bare_one, mut bare_batches) = (Rate::new(), Rate::new());
    // First with equally many rows in both; and a log that still grows costs the file system more
    // than one that is written over.
    for round in 0..10 + 5 * ROUNDS {
        let drafts: Vec<_> = (0..BATCH).map(draft).collect();
        let begun = Instant::now();
        session.emit_batch(drafts).await?;
        let ours = begun.elapsed();
        let begun = Instant::now();
        bare.write(BATCH)?;
        if round >= 10 {
            batches.add(BATCH as usize, ours);
            bare_batches.add(BATCH as usize, begun.elapsed());
        }
    }
    for _ in 0..ROUNDS {
        let (count, time) = emit_for(session.clone()).await?;
        one.add(count, time);
        let begun = Instant::now();
        let mut count = 0;
        while begun.elapsed() < EMIT_FOR {
            bare.write(1)?;
            count += 1;
        }
        bare_one.add(count, begun.elapsed());
        let begun = Instant::now();
        let emitters: Vec<_> = (0..EMITTERS)
            .map(|_| tokio::spawn(emit_for(session.clone())))
            .collect();
        let mut count = 0;
        for emitter in emitters {
            count += emitter.await??.0;
        }
        many.add(count, begun.elapsed());
    }
    engine.shutdown().await?;
    let single = bare_one.median();
    println!(
        "| bare SQLite, the same rows, one by one, a second | {} | |",
        bare_one.text()
    );
    for (what, rate, of, asked) in [
        ("one emitter, one by one", one, single, "0.8"),
        ("40 emitters together", many, single, "5"),
    ] {
        let ratio = rate.median() / of;
        println!(
            "| {what}, events a second | {}: {ratio:.2} of that | {asked} |",
            rate.text()
        );
    }
    let base = bare_batches.median();
    println!(
        "| bare SQLite, {BATCH} rows in a transaction, rows a second | {} | |",
        bare_batches.text()
    );
    println!(
        "| a batch of {BATCH}, events a second | {}: {:.2} of that | 0.5 |",
        batches.text(),
        batches.median() / base
    );
    Ok(())
}

fn draft(number: u64) -> EventDraft {
    EventDraft::new(EventType::MESSAGE_SENT, said(number))
}

fn said(number: u64) -> Value {
    json!({ "number": number, "path": "src/some/file.rs", "bytes": 4_096, "model": "a-model" })
}

/// Emits one event after the other; answers with how many, and how long it took.
async fn emit_for(session: SessionManager) -> Answer<(usize, Duration)> {
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < EMIT_FOR {
        session.emit(draft(count as u64)).await?;
        count += 1;
    }
    Ok((count, begun.elapsed()))
}

/// Prints how long it takes to read every event of a log.
pub(super) async fn replay(state: PathBuf) -> Answer<()> {
    let engine = started(&state).await?;
    let last = engine.events(EventQuery::all().limit(1)).await?;
    let first = last.first().ok_or("the log is empty")?.position;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    let mut count = 0;
    let before = Memory::now()?;
    let mut grown = 0;
    for _ in 0..5 {
        let begun = Instant::now();
        let rows = select(&state.join("stillframe.db"))?;
        bare.push(begun.elapsed());
        let begun = Instant::now();
        let query = EventQuery::all().after_position(first - 1).limit(rows);
        let mut events = engine.subscribe(query)?;
        count = 0;
        while let Some(event) = events.next().await {
            event?;
            count += 1;
        }
        ours.push(begun.elapsed());
        if count != rows {
            return Err(format!("{count} events of {rows}").into());
        }
        grown = grown.max(Memory::now()?.resident.saturating_sub(before.resident));
    }
    println!(
        "| a replay of {count} events | {} of a plain SELECT's speed; {} more resident | 0.5; none |",
        in_shares_of(&mut bare, &mut ours),
        mib(grown)
    );
    engine.shutdown().await?;
    Ok(())
}

/// Reads every row of the events, with nothing above SQLite; answers with how many there are.
fn select(database: &Path) -> Answer<u64> {
    let connection = rusqlite::Connection::open(database)?;
    let mut statement = connection.prepare(
        "SELECT position, id, type, timestamp, session_id, run_id, sequence, schema_version, data
           FROM events ORDER BY position",
    )?;
    let mut rows = statement.query(())?;
    let (mut count, mut bytes) = (0, 0);
    while let Some(row) = rows.next()? {
        for text in [1, 2, 4, 8] {
            bytes += row.get::<_, String>(text)?.len();
        }
        bytes += row
            .get::<_, Option<String>>(5)?
            .map_or(0, |text| text.len());
        for number in [0, 3, 6, 7] {
            bytes += usize::from(row.get::<_, i64>(number)? == 0);
        }
        count += 1;
    }
    match bytes {
        0 => Err("nothing was read".into()),
        _ => Ok(count),
    }
}

/// SQLite with a table of events, and nothing above it.
struct Bare {
    connection: rusqlite::Connection,
    sequence: i64,
}

impl Bare {
    fn open(path: &Path) -> Answer<Self> {
        let connection = rusqlite::Connection::open(path)?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL;
             PRAGMA synchronous = FULL;
             PRAGMA foreign_keys = ON;
             CREATE TABLE events (
                 position INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
                 session_id TEXT NOT NULL, sequence INTEGER NOT NULL, run_id TEXT, type TEXT NOT NULL,
                 timestamp INTEGER NOT NULL, schema_version INTEGER NOT NULL, data TEXT NOT NULL,
                 UNIQUE (session_id, sequence)) STRICT;",
        )?;
        let sequence = 0;
        Ok(Self {
            connection,
            sequence,
        })
    }

    /// Writes so many rows in one transaction.
    fn write(&mut self, count: u64) -> Answer<()> {
        let transaction = self.connection.transaction()?;
        for _ in 0..count {
            self.sequence += 1;
            let id = format!("evt_{:032x}", self.sequence);
            transaction
                .prepare_cached(
                    "INSERT INTO events (id, session_id, sequence, type, timestamp, schema_version, data)
                     VALUES (?1, 'emitting', ?2, 'message_sent', ?3, 1, ?4)",
                )?
                .execute(params![
                    id,
                    self.sequence,
                    1_700_000_000_000_000_000_i64 + self.sequence,
                    said(self.sequence.unsigned_abs()).to_string()
                ])?;
        }
        Ok(transaction.commit()?)
    }
}
