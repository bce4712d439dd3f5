//! A patch on its way into the store of artifacts.
//!
//! A patch that is small is embedded in the log, so its beginning waits in memory. Once there is
//! more, the store reads what the comparison writes, and the patch is in no other file.

use std::io::{self, Cursor, Read, Write};
use std::sync::mpsc::{self, Receiver, SyncSender};

use crate::error::Error;

/// So much is handed over at a time, and so many pieces may wait for a store that is slow.
const PIECE_BYTES: usize = 256 << 10;
const MAX_WAITING: usize = 4;

/// Compares, and has the patch kept if it is wanted: `compare` writes what is read from what
/// `begin` is given.
///
/// `begin` is called once there are more than `max_held_bytes`, or the patch is known to be wanted,
/// and lets somebody read. What is read ends in an error if the comparison fails, or the patch is
/// not wanted after all. Where nobody reads any more, the comparison goes on for what else it
/// tells. Blocks.
pub(super) fn offloaded<D, K>(
    max_held_bytes: u64,
    compare: impl FnOnce(&mut dyn Write) -> Result<D, Error>,
    is_wanted: impl FnOnce(&D) -> bool,
    begin: impl FnOnce(Incoming) -> K,
) -> Result<(D, Option<K>), Error> {
    let (pieces, waiting) = mpsc::sync_channel(MAX_WAITING);
    let mut out = Outgoing {
        held: Vec::new(),
        max_held_bytes,
        pieces,
        begin: Some((begin, Incoming::of(waiting))),
        kept: None,
    };
    let diff = compare(&mut out)?;
    let kept = is_wanted(&diff).then(|| out.end()).flatten();
    Ok((diff, kept))
}

/// Where the comparison writes to.
struct Outgoing<B, K> {
    /// The beginning, while all of it is small.
    held: Vec<u8>,
    max_held_bytes: u64,
    /// To whoever reads. An empty piece is the end.
    pieces: SyncSender<Vec<u8>>,
    /// What is called for somebody to read; `None`: somebody does.
    begin: Option<(B, Incoming)>,
    kept: Option<K>,
}

impl<K, B: FnOnce(Incoming) -> K> Outgoing<B, K> {
    /// Lets somebody read, unless that is done, beginning with what waits.
    fn begin(&mut self) {
        if let Some((begin, incoming)) = self.begin.take() {
            self.kept = Some(begin(incoming));
            let held = std::mem::take(&mut self.held);
            if !held.is_empty() {
                self.send(held);
            }
        }
    }

    fn send(&self, piece: Vec<u8>) {
        // Whoever takes no more has failed, and says so.
        let _ = self.pieces.send(piece);
    }

    fn end(mut self) -> Option<K> {
        self.begin();
        self.send(Vec::new());
        self.kept
    }
}

impl<K, B: FnOnce(Incoming) -> K> Write for Outgoing<B, K> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let is_small = (self.held.len() + bytes.len()) as u64 <= self.max_held_bytes;
        if self.begin.is_some() && is_small {
            self.held.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        self.begin();
        for piece in bytes.chunks(PIECE_BYTES) {
            self.send(piece.to_vec());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the comparison wrote, to be read once.
pub(super) struct Incoming {
    pieces: Receiver<Vec<u8>>,
    piece: Cursor<Vec<u8>>,
    is_ended: bool,
}

impl Incoming {
    fn of(pieces: Receiver<Vec<u8>>) -> Self {
        Self {
            pieces,
            piece: Cursor::default(),
            is_ended: false,
        }
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
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread::{self, JoinHandle};

    use stillframe_artifact_store::{ArtifactKey, ArtifactStore, MemoryStore, PutOptions};
    use stillframe_backends::ErrorKind;

    use super::*;

    const LIMIT: u64 = 10;

    /// Longer than all that may wait.
    fn long() -> Vec<u8> {
        (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect()
    }

    /// Reads on a thread of its own.
    fn read_by<K: Send + 'static>(
        read: impl FnOnce(&mut Incoming) -> K + Send + 'static,
    ) -> impl FnOnce(Incoming) -> JoinHandle<K> {
        |mut content| thread::spawn(move || read(&mut content))
    }

    fn all(content: &mut Incoming) -> Vec<u8> {
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes).unwrap();
        bytes
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
                let (told, kept) = offloaded(LIMIT, write, |_| true, read_by(all)).unwrap();
                assert_eq!(told, "told");
                assert!(
                    kept.unwrap().join().unwrap() == patch,
                    "{length} by {piece}"
                );
            }
        }
    }

    #[test]
    fn a_store_is_not_asked_for_what_is_small_and_not_wanted() {
        let write = |out: &mut dyn Write| {
            out.write_all(&[7; LIMIT as usize]).unwrap();
            Ok(())
        };
        let asked = |_| panic!("it was asked");
        let (_, kept) = offloaded::<_, ()>(LIMIT, write, |_| false, asked).unwrap();
        assert!(kept.is_none());
    }

    #[test]
    fn a_comparison_that_fails_or_is_not_wanted_half_way_leaves_no_artifact() {
        let long = long();
        let store = std::sync::Arc::new(MemoryStore::new());
        let (told, ends) = mpsc::channel();
        let put = || {
            let (store, told) = (store.clone(), told.clone());
            read_by(move |content| {
                let key = ArtifactKey::new("key").unwrap();
                let put = store.put(&key, content, &PutOptions::default());
                told.send(put.unwrap_err().kind()).unwrap();
            })
        };
        let write = |out: &mut dyn Write| {
            out.write_all(&long).unwrap();
            Err::<(), _>(failed())
        };
        let told = offloaded(LIMIT, write, |()| true, put())
            .map(drop)
            .unwrap_err();
        assert_eq!(told.to_string(), "it failed");
        assert_eq!(ends.recv().unwrap(), ErrorKind::Unreadable);

        let write = |out: &mut dyn Write| {
            out.write_all(&long).unwrap();
            Ok(())
        };
        let (_, kept) = offloaded(LIMIT, write, |()| false, put()).unwrap();
        assert!(kept.is_none(), "nobody asked for it");
        assert_eq!(ends.recv().unwrap(), ErrorKind::Unreadable);

        let write = |out: &mut dyn Write| -> Result<(), Error> {
            out.write_all(&long).unwrap();
            panic!("the comparison is broken");
        };
        let panicked = AssertUnwindSafe(|| offloaded(LIMIT, write, |()| true, put()).map(drop));
        catch_unwind(panicked).unwrap_err();
        assert_eq!(ends.recv().unwrap(), ErrorKind::Unreadable);
        assert!(store.list().unwrap().artifacts.is_empty());
    }

    #[test]
    fn whoever_stops_to_read_holds_up_no_comparison() {
        let long = long();
        let written = |read: fn(&mut Incoming) -> &'static str| {
            let write = |out: &mut dyn Write| {
                out.write_all(&long).unwrap();
                Ok(long.len())
            };
            let (told, kept) = offloaded(LIMIT, write, |_| true, read_by(read)).unwrap();
            assert_eq!(told, long.len(), "it came to its end");
            kept.unwrap().join()
        };
        assert_eq!(written(|_| "at once").unwrap(), "at once");
        let half_way = written(|content| {
            content.read_exact(&mut [0; 3 * PIECE_BYTES]).unwrap();
            "half way"
        });
        assert_eq!(half_way.unwrap(), "half way");
        written(|_| panic!("the store is broken")).unwrap_err();
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
        let keep = read_by(move |content| {
            // Its first piece is taken before it is told of.
            let mut sent = seen.iter().take(MAX_WAITING).count();
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
            kept
        });
        let (_, kept) = offloaded(LIMIT, write, |()| true, keep).unwrap();
        assert!(kept.unwrap().join().unwrap() == long);
    }
}
