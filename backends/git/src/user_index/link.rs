//! How a split index lies over the shared one.

use super::{IndexEntry, IndexError, order};
use crate::ObjectId;

/// How a split index differs from the shared one: the `link` extension.
pub(super) struct Link {
    pub(super) shared_id: ObjectId,
    /// Positions in the shared index, as EWAH bitmaps.
    deleted: Bitmap,
    replaced: Bitmap,
}

impl Link {
    /// `None`: the extension says that nothing is shared.
    pub(super) fn parse(content: &[u8]) -> Result<Option<Self>, IndexError> {
        let mut reader = Reader {
            bytes: content,
            at: 0,
            part: "the extension \"link\"",
        };
        let shared_id = ObjectId(reader.array()?);
        // Without bitmaps the shared index is taken as it is.
        let (mut deleted, mut replaced) = (Bitmap::default(), Bitmap::default());
        if reader.rest() > 0 {
            deleted = Bitmap::parse(&mut reader)?;
            replaced = Bitmap::parse(&mut reader)?;
        }
        if reader.rest() > 0 {
            return Err(IndexError::BadLink("its bitmaps are followed by garbage"));
        }
        Ok((shared_id.0 != [0; 20]).then_some(Self {
            shared_id,
            deleted,
            replaced,
        }))
    }

    /// Lays `own` over `base`: some of the shared entries go, some get other content and stat data,
    /// and the rest of `own` comes in between, in order.
    pub(super) fn merge(
        &self,
        base: Vec<IndexEntry>,
        own: Vec<IndexEntry>,
    ) -> Result<Vec<IndexEntry>, IndexError> {
        let mut is_deleted = vec![false; base.len()];
        self.deleted.each(base.len(), |at| {
            is_deleted[at] = true;
            Ok(())
        })?;
        let mut base = base;
        let mut own = own.into_iter();
        self.replaced.each(base.len(), |at| {
            let Some(replacement) = own.next() else {
                return Err(IndexError::BadLink("it replaces more than it has"));
            };
            if is_deleted[at] {
                return Err(IndexError::BadLink("it replaces an entry that it deletes"));
            }
            if !replacement.path.is_root() {
                return Err(IndexError::BadLink("a replacing entry has its own path"));
            }
            let path = std::mem::take(&mut base[at].path);
            base[at] = IndexEntry {
                path,
                ..replacement
            };
            Ok(())
        })?;

        let mut merged = Vec::with_capacity(base.len() + own.len());
        let mut own = own.peekable();
        let kept = base.into_iter().zip(is_deleted).filter(|(_, gone)| !gone);
        for (entry, _) in kept {
            while let Some(added) =
                own.next_if(|o| order(o, &entry).then(o.stage.cmp(&entry.stage)).is_lt())
            {
                merged.push(added);
            }
            merged.push(entry);
        }
        merged.extend(own);
        Ok(merged)
    }
}

/// A compressed bitmap as EWAH stores it: runs of equal words, then literal words, again and again.
#[derive(Default)]
struct Bitmap {
    words: Vec<u64>,
}

impl Bitmap {
    fn parse(reader: &mut Reader<'_>) -> Result<Self, IndexError> {
        let _bits = reader.u32()?;
        let count = reader.u32()? as usize;
        let content = reader.take(count.checked_mul(8).ok_or(reader.truncated())?)?;
        let _last_run = reader.u32()?;
        let word = |b: &[u8]| u64::from_be_bytes(b.try_into().expect("chunks of eight"));
        Ok(Self {
            words: content.chunks_exact(8).map(word).collect(),
        })
    }

    /// Calls `visit` with the position of each bit that is set, in order. One at `limit` or beyond
    /// is an error, so a run cannot claim more than there is.
    fn each(
        &self,
        limit: usize,
        mut visit: impl FnMut(usize) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        let beyond = IndexError::BadLink("its bitmaps reach beyond the shared index");
        let mut visit = |at: u64| match usize::try_from(at) {
            Ok(at) if at < limit => visit(at),
            _ => Err(beyond.clone()),
        };
        let mut at: u64 = 0;
        let mut words = self.words.iter().copied();
        while let Some(marker) = words.next() {
            let is_set = marker & 1 == 1;
            let run_bits = (marker >> 1 & 0xffff_ffff) * 64;
            if is_set {
                for bit in 0..run_bits {
                    visit(at.saturating_add(bit))?;
                }
            }
            at = at.saturating_add(run_bits);
            for _ in 0..marker >> 33 {
                let Some(literal) = words.next() else {
                    return Err(IndexError::BadLink("its bitmaps are cut short"));
                };
                let mut rest = literal;
                while rest != 0 {
                    visit(at.saturating_add(u64::from(rest.trailing_zeros())))?;
                    rest &= rest - 1;
                }
                at = at.saturating_add(64);
            }
        }
        Ok(())
    }
}

/// Takes big-endian values off some bytes.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// What is being read, for the error.
    part: &'static str,
}

impl<'a> Reader<'a> {
    fn truncated(&self) -> IndexError {
        IndexError::Truncated(self.part)
    }

    fn rest(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], IndexError> {
        let taken = self.bytes[self.at..].get(..count).ok_or(self.truncated())?;
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], IndexError> {
        Ok(self.take(N)?.try_into().expect("taken at this length"))
    }

    fn u32(&mut self) -> Result<u32, IndexError> {
        self.array().map(u32::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bitmap_that_claims_more_than_there_is_ends_at_once() {
        // A run of 2^32 - 1 words of ones, and one of zeros.
        for run in [0x1_ffff_ffff_u64, 0x1_ffff_fffe] {
            let bitmap = Bitmap {
                words: vec![run, 1 << 33, 1],
            };
            let mut visited = 0;
            let result = bitmap.each(10, |_| {
                visited += 1;
                Ok(())
            });
            assert!(matches!(result, Err(IndexError::BadLink(_))));
            assert!(visited <= 10);
        }
    }
}
