//! Diffs and restores between two snapshots.

use std::time::Instant;

use stillframe_backends::Snapshot;
use stillframe_benches::case::{DIFF_TREE, OURS, READ_TREE};
use stillframe_benches::{Changes, Mutation, Way};

use crate::ground::{Cache, Ground, Site};

/// Two snapshots, and git's trees of the same; the work tree holds the second.
struct Two {
    from: Snapshot,
    to: Snapshot,
    from_tree: String,
    to_tree: String,
    mutation: Mutation,
}

impl Two {
    /// With `changed` files between them: an eighth deleted, a quarter new, the others edited.
    fn make(site: &Site, changed: usize) -> Self {
        let from = site.living.snapshot();
        let from_tree = site.git.tree(Way::Persistent);
        let deleted = changed / 8;
        let mutation = site.mutate(Changes {
            modified: changed - 3 * deleted,
            added: 2 * deleted,
            deleted,
        });
        Self {
            from,
            to: site.living.snapshot(),
            from_tree,
            to_tree: site.git.tree(Way::Persistent),
            mutation,
        }
    }
}

impl Ground<'_> {
    pub(crate) fn diffs(&mut self) {
        for changed in [170, 1700] {
            let case = &*format!("diff with patch, {changed} files");
            let two = Two::make(&self.site, changed);
            self.take(&[case], OURS, Cache::Warm, |site| {
                site.living.diff(&two.from, &two.to)
            });
            self.take(&[case], DIFF_TREE, Cache::Warm, |site| {
                site.git.diff(&two.from_tree, &two.to_tree)
            });
            two.mutation.revert().expect("it can be taken back");
        }
    }

    /// What we do beside writing files is in rows of its own: a guard that keeps what was there,
    /// and a look at the result, which git does neither of.
    pub(crate) fn restores(&mut self) {
        for changed in [170, 1700] {
            let case = &*format!("restore of {changed} files, apply alone");
            let two = Two::make(&self.site, changed);
            self.site.settle(Cache::Warm);
            let started = Instant::now();
            let outcome = self.site.living.restore(&two.from);
            let whole = started.elapsed();
            let parts = outcome.durations;
            self.times.add(case, OURS, parts.apply);
            for (part, time) in [
                ("guard", parts.guard),
                ("plan", parts.plan),
                ("verification", parts.verify),
                ("the whole restore", whole),
            ] {
                self.times.add(case, &format!("{OURS}: {part}"), time);
            }
            self.site.living.restore(&two.to);
            let tree = self.site.git.tree(Way::Persistent);
            assert_eq!(tree, two.to_tree, "git sees what was put back");
            self.take(&[case], READ_TREE, Cache::Warm, |site| {
                site.git.restore(&two.from_tree)
            });
            two.mutation.revert().expect("it can be taken back");
        }
    }
}
