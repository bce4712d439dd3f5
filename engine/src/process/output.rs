//! The output of a command while it is read: what is kept of it, and where it is passed on to.

use std::fs::File;
use std::io::{self, PipeReader, Write as _};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use stillframe_artifact_store::ArtifactKey;
use stillframe_backends::ErrorKind;
use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStdout;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::blocking::Blocking;
use crate::error::Error;
use crate::failure::Failure;
use crate::records::artifact::ArtifactRecord;
use crate::records::output::CommandResult;
use crate::step::context::RunContext;
use crate::step::step_log::StepLog;

/// A piece of a command's output, or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutputPiece {
    /// Bytes of stdout.
    Stdout(Vec<u8>),
    /// Bytes of stderr.
    Stderr(Vec<u8>),
    /// The exit code; the last piece, sent exactly once.
    Exit(i32),
}

/// How long to go on reading a stream once every process of the group is gone: only one that left
/// the group can hold it open.
const DRAIN_GRACE: Duration = Duration::from_millis(500);

/// How long a run that was cancelled waits until its output is stored. With the time that the
/// command has to end it is less than what the engine grants an adapter, so that the result is
/// kept; storing goes on after that.
const STORE_GRACE: Duration = Duration::from_secs(1);

/// How much is read at a time, and how many pieces may wait for whoever is slow.
const PIECE_BYTES: usize = 64 * 1024;
const MAX_WAITING: usize = 4;

/// The most that a pipe holds, so that of what is read later nothing is from before.
const MAX_PIPE_BYTES: u64 = 1 << 20;

/// Since when a command has written nothing. Clones are about the same command.
#[derive(Clone, Debug)]
pub(crate) struct Silence(Arc<SilenceState>);

#[derive(Debug)]
struct SilenceState {
    since: Mutex<Instant>,
    /// How many pieces wait for this process, which is not the command's silence.
    waiting: AtomicUsize,
}

impl Silence {
    /// From now on.
    pub(crate) fn begin() -> Self {
        Self(Arc::new(SilenceState {
            since: Mutex::new(Instant::now()),
            waiting: AtomicUsize::new(0),
        }))
    }

    /// Comes back once the command has written nothing for so long.
    pub(crate) async fn lasts(&self, limit: Duration) {
        loop {
            let Some(due) = self.since().checked_add(limit) else {
                return std::future::pending().await;
            };
            tokio::time::sleep_until(due).await;
            if self.since() + limit <= Instant::now() {
                return;
            }
        }
    }

    fn since(&self) -> Instant {
        match self.is_waiting() {
            true => Instant::now(),
            false => *self.0.since.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    fn is_waiting(&self) -> bool {
        self.0.waiting.load(Ordering::Acquire) > 0
    }

    fn is_broken(&self) {
        *self.0.since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Something waits for this process, until this is dropped.
    fn excused(&self) -> Excused {
        self.0.waiting.fetch_add(1, Ordering::AcqRel);
        Excused(self.clone())
    }
}

struct Excused(Silence);

impl Drop for Excused {
    fn drop(&mut self) {
        self.0.is_broken();
        self.0.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Who is sent the pieces of a stream, and what a piece of it is.
type PieceSender = (mpsc::Sender<OutputPiece>, fn(Vec<u8>) -> OutputPiece);

/// What is done with one of the streams of a command.
pub(crate) struct Wanted {
    /// How much of it is kept in memory.
    pub(crate) max_bytes: usize,
    /// Who is sent every piece.
    pub(crate) sender: Option<PieceSender>,
    /// Where every byte is written to.
    pub(crate) passed_to: Option<OwnedFd>,
    /// Under which key all of it is kept.
    pub(crate) key: Option<ArtifactKey>,
}

/// What there was of a stream.
#[derive(Debug, Default)]
pub(crate) struct Read {
    /// Its beginning. Bytes that are not UTF-8 are replaced.
    pub(crate) text: String,
    /// How long it was.
    pub(crate) bytes: u64,
    /// Whether there was more than was kept.
    pub(crate) is_truncated: bool,
    /// The key of the artifact that has all of it.
    pub(crate) key: Option<String>,
    /// Why there is no such artifact, if there should be one.
    pub(crate) problem: Option<Failure>,
}

impl CommandResult {
    /// What the command has written.
    pub(crate) fn has_written(&mut self, stdout: Read, stderr: Read) {
        self.output_error = stdout.problem.or(stderr.problem);
        (self.stdout, self.stdout_bytes) = (stdout.text, stdout.bytes);
        (self.stdout_truncated, self.stdout_ref) = (stdout.is_truncated, stdout.key);
        (self.stderr, self.stderr_bytes) = (stderr.text, stderr.bytes);
        (self.stderr_truncated, self.stderr_ref) = (stderr.is_truncated, stderr.key);
    }
}

/// One of the two streams of a command, being read until its end.
pub(crate) struct Stream {
    kept: Arc<Mutex<Kept>>,
    silence: Silence,
    /// Cancelled when nobody is sent any more pieces.
    unsent: CancellationToken,
    /// Cancelled when nothing more is read.
    stop: CancellationToken,
    task: Option<JoinHandle<Option<Whole>>>,
}

/// What is kept of a stream in memory.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    total: u64,
}

impl Stream {
    /// Begins to read `pipe`; where there is none, nothing is read.
    pub(crate) fn read(
        pipe: Option<PipeReader>,
        wanted: Wanted,
        silence: &Silence,
        context: &RunContext,
    ) -> Self {
        let mut stream = Self {
            kept: Arc::default(),
            silence: silence.clone(),
            unsent: CancellationToken::new(),
            stop: CancellationToken::new(),
            task: None,
        };
        // Only a runtime that is going down takes none.
        let pipe = pipe.and_then(|pipe| {
            ChildStdout::from_std(std::process::ChildStdout::from(OwnedFd::from(pipe))).ok()
        });
        let Some(pipe) = pipe else {
            return stream;
        };
        let reading = Reading {
            pipe,
            kept: stream.kept.clone(),
            max_bytes: wanted.max_bytes,
            silence: silence.clone(),
            sender: wanted.sender,
            unsent: stream.unsent.clone(),
            passed: wanted
                .passed_to
                .map(|to| Passed::begin(to, &context.blocking)),
            whole: wanted.key.map(|key| Whole {
                key,
                steps: context.steps.clone(),
                under_way: None,
            }),
        };
        let task = tokio::spawn(reading.until_its_end(stream.stop.clone()));
        stream.task = Some(task);
        stream
    }

    /// What was read, once the processes of the command are gone.
    pub(crate) async fn finish(mut self, cancellation: &CancellationToken) -> Read {
        let whole = match self.task.take() {
            Some(task) => self.drained(task, cancellation).await,
            None => None,
        };
        let stored = match whole {
            Some(whole) => whole.stored(cancellation).await,
            None => None,
        };
        let (key, problem) = match stored {
            Some(Ok(record)) => (Some(record.key), None),
            Some(Err(e)) => (None, Some(Failure::from(&e))),
            None => (None, None),
        };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = std::mem::take(&mut kept.bytes);
        Read {
            is_truncated: kept.total > bytes.len() as u64,
            text: String::from_utf8(bytes)
                .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()),
            bytes: kept.total,
            key,
            problem,
        }
    }

    /// Waits for the end of the stream; if somebody else holds it open, not for long.
    async fn drained(
        &self,
        mut task: JoinHandle<Option<Whole>>,
        cancellation: &CancellationToken,
    ) -> Option<Whole> {
        let before = self.total();
        loop {
            match tokio::time::timeout(DRAIN_GRACE, &mut task).await {
                // What panicked has said so where it did.
                Ok(ended) => return ended.ok().flatten(),
                Err(_) if !self.unsent.is_cancelled() => self.unsent.cancel(),
                // What the command wrote is not lost because this process is slow with it.
                Err(_)
                    if self.silence.is_waiting()
                        && !cancellation.is_cancelled()
                        && self.total() - before <= MAX_PIPE_BYTES => {}
                Err(_) => self.stop.cancel(),
            }
        }
    }

    fn total(&self) -> u64 {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.total
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A stream, and all that is done with what is read of it.
struct Reading {
    pipe: ChildStdout,
    kept: Arc<Mutex<Kept>>,
    max_bytes: usize,
    silence: Silence,
    sender: Option<PieceSender>,
    unsent: CancellationToken,
    passed: Option<Passed>,
    whole: Option<Whole>,
}

impl Reading {
    /// Reads until there is no more, or nobody wants more.
    async fn until_its_end(mut self, stop: CancellationToken) -> Option<Whole> {
        tokio::select! {
            biased;
            () = self.all() => {}
            () = stop.cancelled() => {}
        }
        self.whole
    }

    /// Reads the pipe to its end, so that the command never blocks on a full pipe.
    async fn all(&mut self) {
        let mut buffer = vec![0; PIECE_BYTES];
        while let Ok(read @ 1..) = self.pipe.read(&mut buffer).await {
            let piece = &buffer[..read];
            self.silence.is_broken();
            self.keep(piece);
            let _excused = self.silence.excused();
            if let Some(passed) = &self.passed
                && passed.pieces.send(piece.to_vec()).await.is_err()
            {
                // Nobody reads what is passed on. As when the command wrote there itself, it
                // hears of that when it writes on.
                return;
            }
            if let Some(whole) = &mut self.whole {
                whole.add(piece).await;
            }
            self.send(piece).await;
        }
        if let Some(passed) = self.passed.take() {
            let _excused = self.silence.excused();
            passed.done().await;
        }
    }

    fn keep(&self, piece: &[u8]) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let room = self.max_bytes - kept.bytes.len().min(self.max_bytes);
        kept.bytes
            .extend_from_slice(&piece[..piece.len().min(room)]);
        kept.total += piece.len() as u64;
    }

    async fn send(&mut self, piece: &[u8]) {
        let Some((sender, of)) = &self.sender else {
            return;
        };
        let is_sent = tokio::select! {
            biased;
            sent = sender.send(of(piece.to_vec())) => sent.is_ok(),
            () = self.unsent.cancelled() => false,
        };
        if !is_sent {
            self.sender = None;
        }
    }
}

/// A stream that is passed on, by a thread of its own, which may wait for whoever reads.
struct Passed {
    pieces: mpsc::Sender<Vec<u8>>,
    ended: oneshot::Receiver<()>,
}

impl Passed {
    fn begin(to: OwnedFd, blocking: &Blocking) -> Self {
        let (pieces, mut waiting) = mpsc::channel::<Vec<u8>>(MAX_WAITING);
        let (end, ended) = oneshot::channel();
        // Without a thread nobody reads, which is what the command hears.
        let _ = blocking.start_beside(move || {
            let mut to = File::from(to);
            while let Some(piece) = waiting.blocking_recv() {
                if write_all(&mut to, &piece).is_err() {
                    return;
                }
            }
            let _ = end.send(());
        });
        Self { pieces, ended }
    }

    /// Waits until all is passed on, or nobody reads it any more.
    async fn done(self) {
        drop(self.pieces);
        let _ = self.ended.await;
    }
}

/// Writes all of `bytes`, also to a pipe that somebody made non-blocking.
fn write_all(to: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let mut wanted = [PollFd::new(to, PollFlags::OUT)];
                // What is wrong with it, the next write says.
                let _ = poll(&mut wanted, None);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// All of a stream, on its way into the artifact store. There is no artifact of an empty one.
struct Whole {
    key: ArtifactKey,
    steps: StepLog,
    under_way: Option<UnderWay>,
}

struct UnderWay {
    /// `None`: the store takes no more.
    pieces: Option<mpsc::Sender<Vec<u8>>>,
    kept: JoinHandle<Result<ArtifactRecord, Error>>,
}

impl Whole {
    /// Hands a piece over, and waits for a store that is slow.
    async fn add(&mut self, piece: &[u8]) {
        let under_way = self.under_way.get_or_insert_with(|| {
            let (pieces, waiting) = mpsc::channel(MAX_WAITING);
            let kept = self.steps.keep(self.key.clone(), CONTENT_TYPE, waiting);
            let pieces = Some(pieces);
            UnderWay { pieces, kept }
        });
        if let Some(pieces) = &under_way.pieces
            && pieces.send(piece.to_vec()).await.is_err()
        {
            // It has failed, and says so in the end. The command is none the worse for it.
            under_way.pieces = None;
        }
    }

    /// Waits until it is stored; after a cancellation not for long. `None`: there was nothing.
    async fn stored(
        self,
        cancellation: &CancellationToken,
    ) -> Option<Result<ArtifactRecord, Error>> {
        let UnderWay { pieces, kept } = self.under_way?;
        drop(pieces);
        let patience = async {
            cancellation.cancelled().await;
            tokio::time::sleep(STORE_GRACE).await;
        };
        tokio::select! {
            biased;
            kept = kept => Some(kept.unwrap_or_else(|_| Err(crate::error::stopped()))),
            () = patience => {
                let message = "storing the output took longer than the run had after its \
                               cancellation; once it is stored, it is an artifact of the run";
                Some(Err(Error::new(ErrorKind::Timeout, message)))
            }
        }
    }
}

/// Whatever a command writes is bytes.
const CONTENT_TYPE: &str = "application/octet-stream";

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn silence_ends_with_each_piece_and_does_not_count_while_this_process_is_slow() {
        let limit = Duration::from_millis(40);
        let silence = Silence::begin();
        let began = Instant::now();
        silence.lasts(limit).await;
        assert!(began.elapsed() >= limit);

        silence.is_broken();
        let broken = Instant::now();
        silence.lasts(limit).await;
        assert!(broken.elapsed() >= limit);

        let excused = silence.excused();
        let lasts = tokio::time::timeout(limit * 3, silence.lasts(limit)).await;
        assert!(lasts.is_err(), "somebody waits for this process");
        drop(excused);
        silence.lasts(limit).await;
        let forever = tokio::time::timeout(limit, silence.lasts(Duration::MAX)).await;
        assert!(forever.is_err());
    }
}
