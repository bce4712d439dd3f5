//! What a store on disk does for its own upkeep: collecting, verifying, counting.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::digest::Digest;
use crate::error::{Damage, PathError, StoreError};
use crate::file::{BlobName, FileStore, Found, check, shards};
use crate::key::ArtifactKey;

/// What a collection removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GcOutcome {
    /// How many blobs no key led to.
    pub blobs_removed: u64,
    /// How many files somebody left behind on their way into the store.
    pub temporaries_removed: u64,
    /// The length of what was removed, together.
    pub bytes_removed: u64,
    /// How many blobs no key leads to, but were kept because a damaged record may have led there.
    pub blobs_in_doubt: u64,
}

/// What a verification found.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct VerifyOutcome {
    /// How many artifacts were looked at, damaged ones included.
    pub artifacts: u64,
    /// How many bytes of content were read.
    pub bytes_read: u64,
    /// What is wrong, in the order of the places on disk. Empty if every artifact can be had.
    pub problems: Vec<Problem>,
}

/// An artifact that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// Its key; `None` if its record is damaged, so that nobody can tell.
    pub key: Option<ArtifactKey>,
    /// The record or content that is damaged, or where it should be.
    pub disk_path: PathBuf,
    /// What is wrong with it.
    pub damage: Damage,
}

/// What the record of a key leads to; `None` if it is damaged.
type Records = BTreeMap<Digest, Option<Digest>>;

impl FileStore {
    /// Removes what a crash left behind: files that were on their way into the store, and content
    /// that no key leads to.
    ///
    /// It excludes everybody who changes the store, and a file that somebody is still writing is
    /// locked, so nothing that anybody needs can be taken for garbage, and no grace time is
    /// needed. Content that is being read can be read to its end.
    pub fn gc(&self) -> Result<GcOutcome, StoreError> {
        let _lock = self.lock()?;
        let mut outcome = GcOutcome::default();
        for name in self.staging().names()? {
            let reaped = name.to_str().map(|name| self.staging().reap(name));
            if let Some(bytes) = reaped.transpose()?.flatten() {
                outcome.temporaries_removed += 1;
                outcome.bytes_removed += bytes;
            }
        }
        let mut records = Records::new();
        for key in self.key_digests()? {
            if let Some(record) = self.record(key)? {
                records.insert(key, record.ok().map(|meta| meta.blake3));
            }
        }
        let mut all = Vec::new();
        for shard in shards(self.blobs())? {
            if let Some(directory) = self.blobs().subdirectory(&shard)? {
                all.push((shard, blob_names(directory.names()?)));
            }
        }
        let names: Vec<BlobName> = all.iter().flat_map(|(_, names)| names).copied().collect();
        let garbage = garbage(&records, &names);
        outcome.blobs_in_doubt = garbage.in_doubt.len() as u64;
        for (shard, names) in all {
            let Some(directory) = self.blobs().subdirectory(&shard)? else {
                continue;
            };
            for name in names.iter().filter(|name| garbage.names.contains(name)) {
                let text = name.to_string();
                let bytes = directory.file_bytes(&text)?;
                // What is no file was not put there by a store, and stays.
                if let Some(bytes) = bytes
                    && directory.remove(&text)?
                    && matches!(name, BlobName::Content(_))
                {
                    outcome.blobs_removed += 1;
                    outcome.bytes_removed += bytes;
                }
            }
        }
        Ok(outcome)
    }

    /// Reads every artifact and compares it with what was put.
    ///
    /// Content that several keys share is read once. Others may go on using the store.
    pub fn verify(&self) -> Result<VerifyOutcome, StoreError> {
        let mut outcome = VerifyOutcome::default();
        let mut seen = BTreeMap::<Digest, Option<Damage>>::new();
        for key in self.key_digests()? {
            let (meta, damage) = match self.find(key)? {
                // Deleted since the names were read.
                Found::Nothing => continue,
                Found::Damaged(meta, damage) => (meta, Some(damage)),
                Found::Content(meta, mut file) => {
                    let damage = match seen.get(&meta.blake3) {
                        Some(damage) => *damage,
                        None => {
                            outcome.bytes_read += meta.bytes;
                            check(&mut file, &meta)
                                .map_err(PathError::at("read", self.blob_path(meta.blake3)))?
                                .err()
                        }
                    };
                    seen.insert(meta.blake3, damage);
                    (Some(meta), damage)
                }
            };
            outcome.artifacts += 1;
            outcome.problems.extend(damage.map(|damage| {
                Problem {
                    disk_path: meta
                        .as_ref()
                        .map_or_else(|| self.record_path(key), |meta| self.blob_path(meta.blake3)),
                    key: meta.map(|meta| meta.key),
                    damage,
                }
            }));
        }
        Ok(outcome)
    }

    /// How many bytes of content the store holds: what several keys share counts once, and what is
    /// on its way in or waits to be collected counts as well.
    pub fn total_bytes(&self) -> Result<u64, StoreError> {
        let mut total = 0;
        for name in self.staging().names()? {
            let bytes = name.to_str().map(|name| self.staging().file_bytes(name));
            total += bytes.transpose()?.flatten().unwrap_or(0);
        }
        for shard in shards(self.blobs())? {
            let Some(directory) = self.blobs().subdirectory(&shard)? else {
                continue;
            };
            for name in blob_names(directory.names()?) {
                total += directory.file_bytes(&name.to_string())?.unwrap_or(0);
            }
        }
        Ok(total)
    }
}

fn blob_names(names: Vec<std::ffi::OsString>) -> Vec<BlobName> {
    names
        .iter()
        .filter_map(|name| BlobName::parse(name.to_str()?))
        .collect()
}

/// What may be removed, and what no record leads to but one may have.
#[derive(Debug, Default, PartialEq, Eq)]
struct Garbage {
    names: BTreeSet<BlobName>,
    in_doubt: BTreeSet<Digest>,
}

/// Decides what nobody needs.
///
/// A damaged record may have led anywhere. The claim of its key says where; if that is gone as
/// well, no content at all is removed, because not knowing who needs it is no evidence that
/// nobody does.
fn garbage(records: &Records, names: &[BlobName]) -> Garbage {
    let mut needed: BTreeSet<Digest> = records.values().copied().flatten().collect();
    let mut lost: BTreeSet<Digest> = records
        .iter()
        .filter(|(_, content)| content.is_none())
        .map(|(key, _)| *key)
        .collect();
    let mut garbage = Garbage::default();
    for name in names {
        let BlobName::Claim { digest, key } = name else {
            continue;
        };
        match records.get(key) {
            Some(Some(content)) if content == digest => {}
            Some(None) => {
                needed.insert(*digest);
                lost.remove(key);
            }
            Some(Some(_)) | None => {
                garbage.names.insert(*name);
            }
        }
    }
    for name in names {
        match name {
            BlobName::Content(digest) if !needed.contains(digest) => {
                if lost.is_empty() {
                    garbage.names.insert(*name);
                } else {
                    garbage.in_doubt.insert(*digest);
                }
            }
            _ => {}
        }
    }
    garbage
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(byte: u8) -> Digest {
        Digest::of(&[byte])
    }

    fn claim(content: u8, key: u8) -> BlobName {
        BlobName::Claim {
            digest: digest(content),
            key: digest(key),
        }
    }

    fn content(byte: u8) -> BlobName {
        BlobName::Content(digest(byte))
    }

    fn records(records: &[(u8, Option<u8>)]) -> Records {
        records
            .iter()
            .map(|(key, content)| (digest(*key), content.map(digest)))
            .collect()
    }

    #[test]
    fn content_is_needed_while_a_record_leads_to_it() {
        let names = [
            content(1),
            claim(1, 100),
            claim(1, 101),
            content(2),
            claim(2, 102),
        ];
        let found = garbage(&records(&[(100, Some(1))]), &names);
        let expected = [claim(1, 101), content(2), claim(2, 102)];
        assert_eq!(found.names, BTreeSet::from(expected));
        assert!(found.in_doubt.is_empty());
    }

    #[test]
    fn a_claim_that_somebody_removed_does_not_cost_the_content() {
        let found = garbage(&records(&[(100, Some(1))]), &[content(1)]);
        assert_eq!(found, Garbage::default());
    }

    #[test]
    fn a_damaged_record_keeps_what_its_claim_names() {
        let names = [content(1), claim(1, 100), content(2)];
        let found = garbage(&records(&[(100, None)]), &names);
        assert_eq!(found.names, BTreeSet::from([content(2)]));
        assert!(found.in_doubt.is_empty());
    }

    #[test]
    fn a_damaged_record_without_a_claim_keeps_everything() {
        let names = [content(1), claim(1, 101), content(2)];
        let found = garbage(&records(&[(100, None)]), &names);
        assert_eq!(found.names, BTreeSet::from([claim(1, 101)]));
        assert_eq!(found.in_doubt, BTreeSet::from([digest(1), digest(2)]));
    }
}
