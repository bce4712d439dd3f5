//! Large files, new to everybody.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use stillframe_benches::case::{OURS, PERSISTENT_INDEX, READING};
use stillframe_benches::{Growth, Random, Way, floor};

use crate::ground::{Cache, Ground, Site};

const MIB: u64 = 1 << 20;

impl Ground<'_> {
    pub(crate) fn large_files(&mut self) {
        for mib in sizes(self.options.large_mib) {
            let case = &*case(mib);
            self.site.sync();
            let file = LargeFile::make(&self.site, mib);
            let ours = self.ours(case, Cache::Warm, |site| site.living.snapshot());
            let cores = self.site.cores;
            let subject = format!("{READING}, {cores} threads");
            self.take(&[case], &subject, Cache::Warm, |site| {
                floor(&site.tree.path, cores, true).expect("it can be read")
            });
            let theirs = self.take(&[case], PERSISTENT_INDEX, Cache::Warm, |site| {
                site.git.tree(Way::Persistent)
            });
            assert_eq!(ours.tree, Some(theirs), "both see one tree");
            file.remove();
        }
    }

    pub(crate) fn growth_with_bytes(&self) -> Vec<Growth> {
        let mut all = Vec::new();
        for mib in sizes(self.options.large_mib) {
            for subject in [OURS, PERSISTENT_INDEX] {
                if let Some(median) = self.times.median(&case(mib), subject) {
                    let name = format!("a new file, {subject}");
                    let point = (mib as f64, median.as_secs_f64() * 1e3);
                    Growth::add(&mut all, &name, "MiB", point);
                }
            }
        }
        all
    }
}

fn sizes(largest: u64) -> Vec<u64> {
    let mut sizes = vec![(largest / 16).max(1), (largest / 4).max(1), largest];
    sizes.dedup();
    sizes
}

pub(crate) fn case(mib: u64) -> String {
    format!("a new file of {mib} MiB")
}

/// A file in the work tree whose content was never seen before.
pub(crate) struct LargeFile(PathBuf);

impl LargeFile {
    pub(crate) fn make(site: &Site, mib: u64) -> Self {
        let path = site.tree.path.join("large.bin");
        write(&path, mib, site.next_nonce()).expect("it can be written");
        Self(path)
    }

    pub(crate) fn remove(self) {
        fs::remove_file(self.0).expect("it is there");
    }
}

/// Bytes that compress to about half: words of sixteen bits, of which one byte is random.
fn write(path: &Path, mib: u64, seed: u64) -> io::Result<()> {
    let mut random = Random::new(seed);
    let mut file = File::create(path)?;
    let mut block = Vec::with_capacity(MIB as usize);
    for _ in 0..mib {
        block.clear();
        while (block.len() as u64) < MIB {
            for byte in random.bits().to_le_bytes() {
                block.extend([byte, b'x']);
            }
        }
        file.write_all(&block)?;
    }
    Ok(())
}
