//! A patch on its way into the store of artifacts.
//!
//! A patch that is small is embedded in the log, so its beginning waits in memory. Once there is
//! more, the store reads what the comparison writes, and the patch is in no other file.

use std::io::{self, Cursor, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;

use stillframe_backends::ErrorKind;

use crate::blocking::StepLost;
use crate::error::Error;

/// So much is handed over at a time, and so many pieces may wait for a store that is slow.
const PIECE_BYTES: usize = 256 << 10;
const MAX_WAITING: usize = 4;

/// Compares, and keeps the patch if it is wanted: `compare` writes what `keep` reads.
///
/// `keep` is called once there are more than `max_held_bytes`, or the patch is known to be wanted.
/// What it reads ends in an error if the comparison fails, or the patch is not wanted after all.
/// Where `keep` fails, the comparison goes on for what else it tells. Blocks.
///
/// `keep` has a thread of its own and takes no turn in [`crate::blocking`]: all turns may be taken
/// by comparisons that wait until somebody reads.
pub(super) fn offloaded<D, K: Send>(
    max_held_bytes: u64,
    compare: impl FnOnce(&mut dyn Write) -> Result<D, Error>,
    is_wanted: impl FnOnce(&D) -> bool,
    keep: impl FnOnce(&mut dyn Read) -> Result<K, Error> + Send,
) -> Result<(D, Option<Result<K, Error>>), Error> {
    thread::scope(|scope| {
        let (pieces, waiting) = mpsc::sync_channel(MAX_WAITING);
        let keeping = move || {
            let mut content = Incoming::begun(waiting)?;
            let kept = catch_unwind(AssertUnwindSafe(|| keep(&mut content)));
            Some(kept.unwrap_or_else(|panic| Err(StepLost::panicked(&*panic).into())))
        };
        let keeping = thread::Builder::new()
            .spawn_scoped(scope, keeping)
            .map_err(|e| Error::new(ErrorKind::Storage, e))?;
        let mut out = Outgoing {
            held: Some(Vec::new()),
            max_held_bytes,
            pieces,
        };
        let diff = compare(&mut out)?;
        let is_wanted = is_wanted(&diff);
        match is_wanted {
            true => out.end(),
            false => drop(out),
        }
        let kept = keeping.join().expect("its panics are caught");
        Ok((diff, kept.filter(|_| is_wanted)))
    })
}

/// Where the comparison writes to.
struct Outgoing {
    /// The beginning, while all of it is small.
    held: Option<Vec<u8>>,
    max_held_bytes: u64,
    /// To who keeps the patch. An empty piece is its end.
    pieces: SyncSender<Vec<u8>>,
}

impl Outgoing {
    fn send(&self, piece: Vec<u8>) {
        // Whoever takes no more has failed, and says so.
        let _ = self.pieces.send(piece);
    }

    /// Sends what waits.
    fn begin(&mut self) {
        if let Some(held) = self.held.take().filter(|held| !held.is_empty()) {
            self.send(held);
        }
    }

    fn end(mut self) {
        self.begin();
        self.send(Vec::new());
    }
}

impl Write for Outgoing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.held {
            Some(held) if (held.len() + bytes.len()) as u64 <= self.max_held_bytes => {
                held.extend_from_slice(bytes);
            }
            _ => {
                self.begin();
                for piece in bytes.chunks(PIECE_BYTES) {
                    self.send(piece.to_vec());
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the comparison wrote, to be read once.
struct Incoming {
    pieces: Receiver<Vec<u8>>,
    piece: Cursor<Vec<u8>>,
    is_ended: bool,
}

impl Incoming {
    /// Waits for the beginning; `None`: nothing comes.
    fn begun(pieces: Receiver<Vec<u8>>) -> Option<Self> {
        let first = pieces.recv().ok()?;
        Some(Self {
            pieces,
            is_ended: first.is_empty(),
            piece: Cursor::new(first),
        })
    }
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.piece.position() == self.piece.get_ref().len() as u64 && !self.is_ended {
            let cut_off = |_| io::Error::other("the comparison did not come to its end");
            let next = self.pieces.recv().map_err(cut_off)?;
            self.is_ended = next.is_empty();
            self.piece = Cursor::new(next);
        }
        self.piece.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use stillframe_artifact_store::{ArtifactKey, ArtifactStore, MemoryStore, PutOptions};

    use super::*;

    const LIMIT: u64 = 10;

    /// Longer than all that may wait.
    fn long() -> Vec<u8> {
        (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect()
    }

    fn all(content: &mut dyn Read) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let read = content.read_to_end(&mut bytes);
        read.map_err(|e| Error::new(ErrorKind::Unreadable, e))?;
        Ok(bytes)
    }

    fn failed() -> Error {
        Error::new(ErrorKind::NoSpace, "it failed")
    }

    #[test]
    fn what_is_wanted_is_kept_as_it_was_written_whatever_its_length() {
        let long = long();
        for length in [0, 1, 10, 11, PIECE_BYTES, long.len()] {
            let patch = &long[..length];
            for piece in [4093_usize, 1 << 16, usize::MAX] {
                let write = |out: &mut dyn Write| {
                    for piece in patch.chunks(piece) {
                        out.write_all(piece).unwrap();
                    }
                    Ok("told")
                };
                let (told, kept) = offloaded(LIMIT, write, |_| true, all).unwrap();
                assert_eq!(told, "told");
                assert!(kept.unwrap().unwrap() == patch, "{length} by {piece}");
            }
        }
    }

    #[test]
    fn a_store_is_not_asked_for_what_is_small_and_not_wanted() {
        let write = |out: &mut dyn Write| {
            out.write_all(&[7; LIMIT as usize]).unwrap();
            Ok(())
        };
        let asked = |_: &mut dyn Read| -> Result<(), Error> { panic!("it was asked") };
        let (_, kept) = offloaded(LIMIT, write, |_| false, asked).unwrap();
        assert!(kept.is_none());
    }

    #[test]
    fn a_comparison_that_fails_or_is_not_wanted_half_way_leaves_no_artifact() {
        let long = long();
        let store = MemoryStore::new();
        let key = ArtifactKey::new("key").unwrap();
        let put = |content: &mut dyn Read| -> Result<_, Error> {
            let put = store.put(&key, content, &PutOptions::default());
            assert_eq!(put.as_ref().unwrap_err().kind(), ErrorKind::Unreadable);
            Ok(put?)
        };
        let write = |out: &mut dyn Write| {
            out.write_all(&long).unwrap();
            Err::<(), _>(failed())
        };
        let told = offloaded(LIMIT, write, |()| true, put).unwrap_err();
        assert_eq!(told.to_string(), "it failed");

        let write = |out: &mut dyn Write| {
            out.write_all(&long).unwrap();
            Ok(())
        };
        let (_, kept) = offloaded(LIMIT, write, |()| false, put).unwrap();
        assert!(kept.is_none(), "nobody asked for it");

        let write = |out: &mut dyn Write| -> Result<(), Error> {
            out.write_all(&long).unwrap();
            panic!("the comparison is broken");
        };
        let panicked = AssertUnwindSafe(|| offloaded(LIMIT, write, |()| true, put).map(drop));
        catch_unwind(panicked).unwrap_err();
        assert!(store.list().unwrap().artifacts.is_empty());
    }

    #[test]
    fn a_store_that_fails_half_way_holds_up_no_comparison_and_says_why() {
        let long = long();
        let written = |keep: fn(&mut dyn Read) -> Result<(), Error>| {
            let write = |out: &mut dyn Write| {
                out.write_all(&long).unwrap();
                Ok(long.len())
            };
            let (told, kept) = offloaded(LIMIT, write, |_| true, keep).unwrap();
            assert_eq!(told, long.len(), "it came to its end");
            kept.unwrap().unwrap_err().to_string()
        };
        let at_once = written(|_| Err(failed()));
        let half_way = written(|content| {
            content.read_exact(&mut [0; 3 * PIECE_BYTES]).unwrap();
            Err(failed())
        });
        assert_eq!([at_once, half_way], ["it failed", "it failed"]);
        let panicked = written(|_| panic!("the store is broken"));
        assert!(panicked.contains("the store is broken"), "{panicked}");
    }

    #[test]
    fn a_store_that_is_slow_is_waited_for_and_what_waits_is_bounded() {
        let long = long();
        let (written, seen) = mpsc::channel();
        let write = |out: &mut dyn Write| {
            for piece in long.chunks(PIECE_BYTES) {
                out.write_all(piece).unwrap();
                written.send(()).unwrap();
            }
            Ok(())
        };
        let keep = move |content: &mut dyn Read| {
            // The first piece is with this reader before it is asked.
            let mut sent = seen.iter().take(1 + MAX_WAITING).count();
            let mut kept = Vec::new();
            let mut piece = vec![0; PIECE_BYTES];
            for read in 1.. {
                thread::yield_now();
                sent += seen.try_iter().count();
                assert!(sent <= read + MAX_WAITING, "{sent} when {read} were read");
                match content.read(&mut piece).unwrap() {
                    0 => break,
                    n => kept.extend_from_slice(&piece[..n]),
                }
            }
            Ok(kept)
        };
        let (_, kept) = offloaded(LIMIT, write, |()| true, keep).unwrap();
        assert!(kept.unwrap().unwrap() == long);
    }
}
