//! Captures: of a clean repository, of one in which nothing or something changed.

use stillframe_backends::{Search, Snapshot, Strategy};
use stillframe_benches::case::{
    AFTER, AFTER_FRESH, AFTER_WATCHED, COMMON_WAY, COPIED_INDEX, FIRST, NEW_FILES, OURS,
    PERSISTENT_INDEX, UNCHANGED, UNCHANGED_FRESH, UNCHANGED_WATCHED,
};
use stillframe_benches::{Changes, Shape, Stillframe, Way, peers};

use crate::ground::{Cache, Ground};

impl Ground<'_> {
    pub(crate) fn captures(&mut self) {
        for cache in [Cache::Warm, Cache::Cold] {
            if cache == Cache::Cold && !self.options.cold {
                continue;
            }
            self.first(cache);
            self.unchanged(cache);
            self.after_a_run(cache);
        }
    }

    fn first(&mut self, cache: Cache) {
        let case = &*cache.name(FIRST);
        self.site.tree.settle().expect("the index can be written");
        if cache == Cache::Warm {
            self.site.warm(&self.site.tree.path.join(".git"));
        }
        let ours = self.ours(case, cache, |site| site.first(Strategy::Auto));
        self.floors(&[case], cache);
        self.take(&[case], "git status", cache, |site| site.git.status());
        let theirs = self.take(&[case], COPIED_INDEX, cache, |site| {
            site.git.tree(Way::Copied)
        });
        self.common_way(&[case], cache);
        assert_eq!(ours.tree.as_deref(), Some(&*theirs), "both see one tree");
        let libgit2 = "libgit2 add_all";
        if self.options.quick {
            self.times.absent(case, libgit2, "left out by --quick");
        } else if cache == Cache::Warm {
            let tree = self.take(&[case], libgit2, cache, |site| {
                peers::libgit2_tree(&site.tree.path)
            });
            assert_eq!(tree, theirs, "both see one tree");
        }
    }

    /// Of a repository as large as that it takes minutes.
    fn common_way(&mut self, cases: &[&str], cache: Cache) {
        let is_slow = self.site.tree.files.len() > 200_000;
        if is_slow && self.options.quick {
            for case in cases {
                self.times.absent(case, COMMON_WAY, "left out by --quick");
            }
        } else {
            self.take(cases, COMMON_WAY, cache, |site| site.git.tree(Way::Common));
        }
    }

    fn unchanged(&mut self, cache: Cache) {
        let (living, fresh) = (&*cache.name(UNCHANGED), &*cache.name(UNCHANGED_FRESH));
        let both = [living, fresh];
        self.site.sync();
        self.ours(living, cache, |site| site.living.snapshot());
        self.ours(fresh, cache, |site| site.fresh());
        self.floors(&both, cache);
        self.take(&both, PERSISTENT_INDEX, cache, |site| {
            site.git.tree(Way::Persistent)
        });
        if cache == Cache::Warm {
            self.take(&both, "libgit2 diff_index_to_workdir", cache, |site| {
                peers::libgit2_changes(&site.tree.path)
            });
            if self.shape == Shape::Mixed {
                self.others(&both, |_| true);
            }
        }
    }

    fn after_a_run(&mut self, cache: Cache) {
        let (living, fresh) = (&*cache.name(AFTER), &*cache.name(AFTER_FRESH));
        let both = [living, fresh];
        self.site.sync();
        let mutation = self.site.mutate(Changes::RUN);
        let one = self.ours(living, cache, |site| site.living.snapshot());
        let other = self.ours(fresh, cache, |site| site.fresh());
        self.floors(&both, cache);
        let theirs = self.take(&both, PERSISTENT_INDEX, cache, |site| {
            site.git.tree(Way::Persistent)
        });
        self.common_way(&both, cache);
        assert_eq!(one.tree.as_deref(), Some(&*theirs), "both see one tree");
        assert_eq!(other.tree.as_deref(), Some(&*theirs), "both see one tree");
        mutation.revert().expect("it can be taken back");
    }

    /// With a watch. A capture that walked after all has no figure here.
    pub(crate) fn watched(&mut self) {
        let site = &self.site;
        let watching = Stillframe::open(&site.tree.path, &site.state("watching")).watching();
        // The first walks and begins the watch; the second looks at what was in doubt because it
        // had just been written.
        watching.snapshot();
        watching.snapshot();
        let unchanged = self.ours(UNCHANGED_WATCHED, Cache::Warm, |_| watching.snapshot());
        self.is_watched(UNCHANGED_WATCHED, &unchanged);
        self.floors(&[UNCHANGED_WATCHED], Cache::Warm);

        let mutation = self.site.mutate(Changes::RUN);
        let changed = self.ours(AFTER_WATCHED, Cache::Warm, |_| watching.snapshot());
        self.is_watched(AFTER_WATCHED, &changed);
        self.floors(&[AFTER_WATCHED], Cache::Warm);
        let walked = self.site.living.snapshot();
        assert_eq!(changed.tree, walked.tree, "both ways give one tree");
        mutation.revert().expect("it can be taken back");
    }

    fn is_watched(&mut self, case: &str, snapshot: &Snapshot) {
        if let Search::Walked { because } = snapshot.metadata.search {
            let why = because.map_or("nobody knows why", |reason| reason.as_str());
            self.times.absent(case, OURS, &format!("it walked: {why}"));
        }
    }

    pub(crate) fn many_changes(&mut self) {
        let files = self.site.tree.files.len();
        let changes = |modified, added| Changes {
            modified,
            added,
            deleted: 0,
        };
        self.after(NEW_FILES, changes(0, files / 5));
        let mut modified = vec![1_700.min(files / 4), 10_000.min(files / 2)];
        modified.dedup();
        for modified in modified {
            self.after(&format!("{modified} modified files"), changes(modified, 0));
        }
    }

    fn after(&mut self, case: &str, changes: Changes) {
        self.site.sync();
        let mutation = self.site.mutate(changes);
        let ours = self.ours(case, Cache::Warm, |site| site.living.snapshot());
        self.floors(&[case], Cache::Warm);
        let theirs = self.take(&[case], PERSISTENT_INDEX, Cache::Warm, |site| {
            site.git.tree(Way::Persistent)
        });
        assert_eq!(ours.tree, Some(theirs), "both see one tree");
        mutation.revert().expect("it can be taken back");
    }
}
