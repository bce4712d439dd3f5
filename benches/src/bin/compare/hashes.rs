//! The hash backend, which needs no repository.

use stillframe_backends::Strategy;
use stillframe_benches::case::{B3SUM, BLAKE3, HASH_FIRST, HASH_UNCHANGED, READING};
use stillframe_benches::peers::{self, Peer};
use stillframe_benches::{Stillframe, floor};

use crate::ground::{Cache, Ground};

impl Ground<'_> {
    pub(crate) fn hashes(&mut self) {
        let cache = Cache::Warm;
        let only = &[HASH_FIRST][..];
        self.site.warm(&self.site.tree.path);
        self.ours(HASH_FIRST, cache, |site| site.first(Strategy::Hash));
        let cores = self.site.cores;
        self.take(
            only,
            &format!("{READING}, {cores} threads"),
            cache,
            |site| floor(&site.tree.path, cores, true).expect("it can be read"),
        );
        self.take(only, BLAKE3, cache, |site| {
            peers::blake3(&site.tree.files, &site.tree.path).expect("they can be read")
        });
        let is_done = self.take(only, B3SUM, cache, |site| {
            peers::b3sum(&site.tree.files, &site.tree.path)
        });
        if !is_done {
            self.times.absent(HASH_FIRST, B3SUM, "not installed");
        }

        let site = &self.site;
        let hash = Stillframe::open_with(&site.tree.path, &site.state("hash"), Strategy::Hash);
        hash.snapshot();
        self.ours(HASH_UNCHANGED, cache, |_| hash.snapshot());
        self.floors(&[HASH_UNCHANGED], cache);
        self.others(&[HASH_UNCHANGED], |peer: &Peer| peer.is_slow);
    }
}
