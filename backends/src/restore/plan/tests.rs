//! Tests of the plan: generated disks, modelled, and what a capture of them knows.

use proptest::prelude::*;

use super::*;
use crate::coverage::{Coverage, OmittedKind};
use crate::restore::{PlanId, SkipReason, Skipped, Write};
use crate::tree::{ContentId, EntryKind, Modes};

/// Nothing was merged.
static MERGES: BTreeMap<RelPath, Merge> = BTreeMap::new();
static REGAINED: BTreeSet<RelPath> = BTreeSet::new();

fn rel(path: &str) -> RelPath {
    RelPath::new(path.as_bytes()).unwrap()
}

/// What a path of a modelled disk holds. Directories follow from the paths below them, or are
/// there by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thing {
    File(u8, u32),
    Link(u8),
    Directory,
    Special,
    Ignored,
    IgnoredDirectory,
    TooLarge,
    Git,
}

type Disk = BTreeMap<RelPath, Thing>;

/// What a capture of a modelled disk knows.
struct World {
    entries: BTreeMap<RelPath, Entry>,
    empty_directories: Vec<RelPath>,
    modes: Modes,
    coverage: Coverage,
}

fn is_directory(thing: Thing) -> bool {
    matches!(thing, Thing::Directory)
}

/// Adds to a generated disk what fits there. What a rule hides has no content of interest.
fn insert(disk: &mut Disk, path: &RelPath, thing: Thing) {
    if !in_ignored(disk, path) {
        place(disk, path, thing);
    }
}

/// Puts something on a disk, with the directories above it, if nothing is in the way.
fn place(disk: &mut Disk, path: &RelPath, thing: Thing) {
    let is_closed = |t: &Thing| !matches!(t, Thing::Directory | Thing::IgnoredDirectory);
    let is_blocked = ancestors(path).any(|p| disk.get(&p).is_some_and(is_closed))
        || disk.contains_key(path)
        || (thing != Thing::Directory && !range_below(disk, path).is_empty());
    if !is_blocked {
        for above in ancestors(path) {
            disk.entry(above).or_insert(Thing::Directory);
        }
        disk.insert(path.clone(), thing);
    }
}

fn disk() -> impl Strategy<Value = Disk> {
    let name = prop::sample::select(vec!["a", "b", "a-b", "c"]);
    let path = prop::collection::vec(name, 1..4).prop_map(|names| rel(&names.join("/")));
    let thing = prop_oneof![
        6 => (0_u8..4, prop::sample::select(vec![0o644, 0o600, 0o755]))
            .prop_map(|(id, mode)| Thing::File(id, mode)),
        1 => (0_u8..4).prop_map(Thing::Link),
        1 => Just(Thing::Directory),
        1 => Just(Thing::Special),
        1 => Just(Thing::Ignored),
        1 => Just(Thing::IgnoredDirectory),
        1 => Just(Thing::TooLarge),
        1 => Just(Thing::Git),
    ];
    prop::collection::vec((path, thing), 0..12).prop_map(|things| {
        let mut disk = Disk::new();
        for (path, thing) in things {
            if thing == Thing::Git {
                insert(&mut disk, &path.join(b".git"), thing);
            } else {
                insert(&mut disk, &path, thing);
            }
        }
        disk
    })
}

fn in_ignored(disk: &Disk, path: &RelPath) -> bool {
    ancestors(path).any(|p| disk.get(&p) == Some(&Thing::IgnoredDirectory))
}

fn capture(disk: &Disk) -> World {
    let id = |n: u8| ContentId::Blake3([n; 32]);
    let mut world = World {
        entries: BTreeMap::new(),
        empty_directories: Vec::new(),
        modes: Modes::default(),
        coverage: Coverage::default(),
    };
    let mut omissions = Vec::new();
    for (path, thing) in disk {
        let is_kept = matches!(thing, Thing::File(..) | Thing::Link(_));
        if !is_kept && in_ignored(disk, path) {
            continue;
        }
        let (reason, bytes) = match *thing {
            Thing::File(n, mode) => {
                let kind = match mode & 0o100 {
                    0 => EntryKind::File,
                    _ => EntryKind::Executable,
                };
                world
                    .entries
                    .insert(path.clone(), Entry { kind, id: id(n) });
                if mode == 0o600 {
                    world.modes.exceptions.push((path.clone(), mode));
                }
                continue;
            }
            Thing::Link(n) => {
                let kind = EntryKind::Symlink;
                world
                    .entries
                    .insert(path.clone(), Entry { kind, id: id(n) });
                continue;
            }
            Thing::Directory => continue,
            Thing::Special => (OmissionReason::Special, None),
            Thing::Ignored => (OmissionReason::Ignored, Some(1)),
            Thing::IgnoredDirectory => (OmissionReason::Ignored, None),
            Thing::TooLarge => (OmissionReason::TooLarge, Some(1)),
            Thing::Git => (OmissionReason::GitDir, None),
        };
        omissions.push(Omission {
            path: path.clone(),
            reason,
            bytes,
            kind: (*thing == Thing::IgnoredDirectory).then_some(OmittedKind::Directory),
        });
    }
    world.coverage = Coverage::new(omissions);
    world.empty_directories = disk
        .iter()
        .filter(|(path, thing)| {
            is_directory(**thing)
                && !in_ignored(disk, path)
                && range_below(&world.entries, path).is_empty()
        })
        .map(|(path, _)| path.clone())
        .collect();
    world
}

impl World {
    fn view(&self) -> View<'_> {
        View {
            coverage: &self.coverage,
            modes: &self.modes,
            empty_directories: &self.empty_directories,
        }
    }

    fn has_directory(&self, path: &RelPath) -> bool {
        !range_below(&self.entries, path).is_empty()
            || self.empty_directories.iter().any(|d| d.starts_with(path))
    }

    fn mode(&self, path: &RelPath) -> Option<u32> {
        self.modes.of(path, self.entries.get(path)?.kind)
    }
}

fn changes(from: &World, to: &World) -> Vec<Change> {
    let mut paths: Vec<&RelPath> = from.entries.keys().chain(to.entries.keys()).collect();
    paths.sort();
    paths.dedup();
    let change = |path: &RelPath| Change {
        path: path.clone(),
        old: from.entries.get(path).copied(),
        new: to.entries.get(path).copied(),
    };
    let changes: Vec<Change> = paths.into_iter().map(change).collect();
    let alike = left_out_by_one(from.view(), to.view())
        .into_iter()
        .filter_map(|path| {
            Some((
                from.entries.get(&path)?,
                to.entries.get(&path)?,
                path.clone(),
            ))
        })
        .filter(|(old, new, _)| old == new)
        .map(|(entry, _, path)| (path, *entry))
        .collect();
    let differing = changes.into_iter().filter(|c| c.old != c.new).collect();
    as_on_disk(differing, alike, from.view())
}

fn plan_between(current: &World, goal: &World, after: Option<&World>) -> RestorePlan {
    plan_of(current, goal, after, &BTreeMap::new())
}

fn plan_of(
    current: &World,
    goal: &World,
    after: Option<&World>,
    sizes: &BTreeMap<RelPath, Size>,
) -> RestorePlan {
    let changes = changes(current, goal);
    let goal_directories = directories_in_question(&changes, current.view())
        .into_iter()
        .filter(|path| goal.has_directory(path))
        .collect();
    let same: Vec<(RelPath, Node)> = goal
        .entries
        .iter()
        .filter(|(path, entry)| current.entries.get(*path) == Some(*entry))
        .map(|(path, entry)| (path.clone(), Node::Entry(*entry)))
        .collect();
    let operation = after.map(|after| self::changes(after, goal));
    plan(&Question {
        target: &"snap_00000000000000000000000000000000".parse().unwrap(),
        current: current.view(),
        goal: goal.view(),
        changes: &changes,
        goal_directories: &goal_directories,
        same: &same,
        ignored: &BTreeMap::new(),
        ignored_directories: &BTreeSet::new(),
        absent_directories: &BTreeSet::new(),
        made: &BTreeSet::new(),
        unchanged: &BTreeSet::new(),
        sparse_directories: &BTreeSet::new(),
        spared: &[],
        held: &BTreeSet::new(),
        in_place: &BTreeSet::new(),
        scope: &[],
        undo: after
            .zip(operation.as_ref())
            .map(|(after, changes)| Undone {
                merges: &MERGES,
                after: after.view(),
                changes,
                sizes,
                regained: &REGAINED,
            }),
    })
    .unwrap()
}

/// Does to a modelled disk what a plan says, as strictly as can be.
fn carry_out(plan: &RestorePlan, disk: &mut Disk) {
    let captured = |t: Option<Thing>| matches!(t, Some(Thing::File(..) | Thing::Link(_)));
    for removal in &plan.removals {
        assert!(
            captured(disk.remove(&removal.path)),
            "only what was captured"
        );
    }
    for omission in &plan.displaced {
        let thing = disk.remove(&omission.path);
        assert!(thing.is_some_and(|thing| !is_captured(thing)), "{thing:?}");
    }
    for path in &plan.remove_directories {
        assert_eq!(disk.get(path), Some(&Thing::Directory), "{path}");
        assert!(
            range_below(disk, path).is_empty(),
            "{path} is empty by then"
        );
        disk.remove(path);
    }
    for (path, _) in &plan.make_directories {
        assert_eq!(disk.get(path), None, "{path} was not there");
        place(disk, path, Thing::Directory);
    }
    for write in &plan.writes {
        let was = disk.remove(&write.path);
        assert_eq!(captured(was), write.current.is_some(), "{}", write.path);
        let id = write.entry.id.as_bytes()[0];
        let thing = write
            .mode
            .map_or(Thing::Link(id), |mode| Thing::File(id, mode));
        place(disk, &write.path, thing);
        assert_eq!(disk.get(&write.path), Some(&thing), "nothing is in the way");
    }
    for change in &plan.modes {
        match disk.get_mut(&change.path) {
            Some(Thing::File(_, mode)) => {
                assert_eq!(*mode, change.from);
                *mode = change.to;
            }
            other => panic!("{} is {other:?}", change.path),
        }
    }
}

fn is_named(plan: &RestorePlan, path: &RelPath) -> bool {
    plan.skipped.iter().any(|s| path.starts_with(&s.path))
}

fn is_captured(thing: Thing) -> bool {
    matches!(thing, Thing::File(..) | Thing::Link(_) | Thing::Directory)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_plan_that_was_carried_out_leads_to_the_goal(from in disk(), to in disk()) {
        let (current, goal) = (capture(&from), capture(&to));
        let plan = plan_between(&current, &goal, None);
        let mut disk = from.clone();
        carry_out(&plan, &mut disk);
        for (path, thing) in &to {
            let is_goal = goal.entries.contains_key(path)
                || goal.empty_directories.contains(path);
            if is_goal && !is_named(&plan, path) {
                let is_hidden = from.get(path) == Some(&Thing::IgnoredDirectory)
                    || in_ignored(&from, path);
                prop_assert!(disk.get(path) == Some(thing) || is_hidden, "{path}");
            }
        }
        for (path, thing) in &disk {
            if matches!(thing, Thing::File(..) | Thing::Link(_)) && !is_named(&plan, path) {
                prop_assert_eq!(to.get(path), Some(thing));
            }
        }
        // What no snapshot has is where it was, but for special files in the way.
        for (path, thing) in from.iter().filter(|(_, thing)| !is_captured(**thing)) {
            let is_displaced = plan.displaced.iter().any(|o| o.path == *path);
            prop_assert!(disk.get(path) == Some(thing) || is_displaced, "{path}");
        }
        for removal in &plan.removals {
            prop_assert!(goal.coverage.covers(&removal.path).is_none());
        }
        // The second time there is nothing to do, and the same is left alone.
        let again = plan_between(&capture(&disk), &goal, None);
        prop_assert!(again.is_empty(), "{again:#?}");
        prop_assert_eq!(again.skipped, plan.skipped);
    }

    #[test]
    fn a_plan_to_where_one_is_does_nothing(disk in disk()) {
        let world = capture(&disk);
        let plan = plan_between(&world, &world, None);
        prop_assert!(plan.is_empty());
        prop_assert_eq!(&plan.skipped, &[]);
        prop_assert_eq!(plan, RestorePlan::nothing(
            &"snap_00000000000000000000000000000000".parse().unwrap(),
        ));
    }

    #[test]
    fn an_undo_touches_only_what_still_is_as_the_operation_left_it(
        before in disk(), after in disk(), now in disk(),
    ) {
        let (goal, left, current) = (capture(&before), capture(&after), capture(&now));
        let plan = plan_between(&current, &goal, Some(&left));
        let mut disk = now.clone();
        carry_out(&plan, &mut disk);
        for path in plan.changed_paths() {
            let then = (left.entries.get(path), left.mode(path));
            let found = (current.entries.get(path), current.mode(path));
            prop_assert_eq!(then, found, "{} was edited since", path);
        }
        for (path, entry) in &current.entries {
            let was_changed = left.entries.get(path) != goal.entries.get(path);
            let is_news = left.entries.get(path) != Some(entry)
                && goal.entries.get(path) != Some(entry);
            if was_changed && is_news {
                prop_assert!(is_named(&plan, path), "{path} is named");
            }
        }
    }

    #[test]
    fn an_undo_right_away_is_a_restore(before in disk(), after in disk()) {
        let (goal, left) = (capture(&before), capture(&after));
        let undo = plan_between(&left, &goal, Some(&left));
        let restore = plan_between(&left, &goal, None);
        prop_assert_eq!(undo, restore);
    }
}

#[test]
fn plans_that_differ_in_anything_have_different_ids() {
    let file = |path: &str, n| {
        let mut disk = Disk::new();
        insert(&mut disk, &rel(path), Thing::File(n, 0o644));
        capture(&disk)
    };
    let nothing = capture(&Disk::new());
    let ids: BTreeSet<String> = [
        plan_between(&nothing, &file("a", 1), None),
        plan_between(&nothing, &file("a", 2), None),
        plan_between(&nothing, &file("b", 1), None),
        plan_between(&file("a", 1), &nothing, None),
        plan_between(&file("a", 3), &file("a", 1), None),
        plan_between(&nothing, &nothing, None),
    ]
    .into_iter()
    .map(|plan| plan.id.to_string())
    .collect();
    assert_eq!(ids.len(), 6);
    let id: PlanId = ids.iter().next().unwrap().parse().unwrap();
    assert!(id.as_str().starts_with("plan_") && id.as_str().len() == 37);
}

#[test]
fn a_goal_that_no_worktree_can_be_is_refused() {
    let entry = Entry {
        kind: EntryKind::File,
        id: ContentId::Blake3([1; 32]),
    };
    let ask = |paths: &[&str]| {
        let nothing = capture(&Disk::new());
        let changes: Vec<Change> = paths
            .iter()
            .map(|path| Change {
                path: rel(path),
                old: None,
                new: Some(entry),
            })
            .collect();
        plan(&Question {
            target: &"snap_00000000000000000000000000000000".parse().unwrap(),
            current: nothing.view(),
            goal: nothing.view(),
            changes: &changes,
            goal_directories: &BTreeSet::new(),
            same: &[],
            ignored: &BTreeMap::new(),
            ignored_directories: &BTreeSet::new(),
            absent_directories: &BTreeSet::new(),
            made: &BTreeSet::new(),
            unchanged: &BTreeSet::new(),
            sparse_directories: &BTreeSet::new(),
            spared: &[],
            held: &BTreeSet::new(),
            in_place: &BTreeSet::new(),
            scope: &[],
            undo: None,
        })
    };
    let path = rel("a");
    assert_eq!(ask(&["a", "a"]), Err(PlanError::Repeated { path }));
    let path = rel("a");
    assert_eq!(ask(&["b", "a"]), Err(PlanError::Repeated { path }));
    let path = rel("a/b");
    assert_eq!(
        ask(&["a", "a-b", "a/b"]),
        Err(PlanError::FileAndDirectory { path })
    );
    let path = rel("x/.GIT/y");
    assert_eq!(ask(&["x/.GIT/y"]), Err(PlanError::GitAlias { path }));
    assert!(ask(&["a-b", "a/b"]).is_ok());
}

/// A capture of files, each with its content; those of the second list are absent because of a
/// sparse checkout, and in the tree as the index has them.
fn checkout(files: &[(&str, u8)], left_out: &[(&str, u8)]) -> World {
    let mut disk = Disk::new();
    for (path, n) in files {
        insert(&mut disk, &rel(path), Thing::File(*n, 0o644));
    }
    let mut world = capture(&disk);
    let mut omissions = Vec::new();
    for (path, n) in left_out {
        let id = ContentId::Blake3([*n; 32]);
        let kind = EntryKind::File;
        world.entries.insert(rel(path), Entry { kind, id });
        omissions.push(Omission {
            path: rel(path),
            reason: OmissionReason::Sparse,
            bytes: None,
            kind: None,
        });
    }
    world.coverage = Coverage::new(omissions);
    world
}

#[test]
fn what_a_sparse_checkout_leaves_out_is_neither_made_nor_removed() {
    let here = |n| checkout(&[("a", n)], &[]);
    let left_out = |n| checkout(&[], &[("a", n)]);
    let nothing = || checkout(&[], &[]);
    let sparse = [Skipped {
        path: rel("a"),
        reason: SkipReason::Omitted(OmissionReason::Sparse),
    }];
    for (current, goal, named) in [
        (left_out(1), left_out(1), false),
        (left_out(1), left_out(2), true),
        (here(1), left_out(1), true),
        (here(1), left_out(2), true),
        (left_out(1), nothing(), true),
    ] {
        let plan = plan_between(&current, &goal, None);
        assert!(plan.is_empty(), "{plan:?}");
        assert_eq!(plan.skipped == sparse, named, "{plan:?}");
    }
}

#[test]
fn what_the_goal_read_from_disk_is_made_though_a_sparse_checkout_leaves_it_out_today() {
    let plan_and_writes = |current: &World, goal: &World, after: Option<&World>| {
        let plan = plan_between(current, goal, after);
        let written = |w: &Write| (w.path.to_string(), w.entry.id.as_bytes()[0], w.current);
        let writes: Vec<_> = plan.writes.iter().map(written).collect();
        (plan, writes)
    };
    let left_out = checkout(&[], &[("a", 1)]);
    for n in [1, 2] {
        let goal = checkout(&[("a", n)], &[]);
        for after in [None, Some(&left_out)] {
            let (plan, writes) = plan_and_writes(&left_out, &goal, after);
            assert_eq!(writes, [("a".to_owned(), n, None)], "{plan:?}");
            assert_eq!(plan.skipped, []);
        }
        // The operation made or kept the file; who removed it since is not taken back.
        let later = checkout(&[("a", 3)], &[]);
        let (plan, writes) = plan_and_writes(&left_out, &goal, Some(&later));
        assert_eq!(writes, []);
        assert_eq!(plan.skipped[0].reason, SkipReason::EditedSince);
    }
    // Nothing is on disk at or below such a path, so nothing there is in the way.
    let goal = checkout(&[("a/b", 2)], &[]);
    let (_, writes) = plan_and_writes(&left_out, &goal, None);
    assert_eq!(writes, [("a/b".to_owned(), 2, None)]);
    let (_, writes) = plan_and_writes(
        &checkout(&[("d/new", 4)], &[("d/x", 1)]),
        &checkout(&[("d", 2)], &[]),
        None,
    );
    assert_eq!(writes, [("d".to_owned(), 2, None)]);
}

/// What a capture has of `d/file`: the content of a file, an omission with its path, or nothing.
#[derive(Clone, Copy, Debug)]
enum Seen {
    File(u8),
    Left(&'static str, OmissionReason, Option<u64>),
    Nothing,
}

fn world(seen: Seen) -> World {
    let mut world = match seen {
        Seen::File(n) => checkout(&[("d/file", n)], &[]),
        _ => checkout(&[], &[]),
    };
    if let Seen::Left(path, reason, bytes) = seen {
        let path = rel(path);
        world.coverage = Coverage::new(vec![Omission {
            path,
            reason,
            bytes,
            kind: None,
        }]);
    }
    world
}

// "edited since" of a file that the snapshot after the operation had not captured
#[test]
fn what_an_undo_leaves_was_edited_since_only_where_both_captures_or_the_size_tell() {
    use OmissionReason::{Ignored, Special, TooLarge, Unreadable};
    use Seen::{File, Left, Nothing};
    let large = |bytes| Left("d/file", TooLarge, Some(bytes));
    let locked = |bytes| Left("d/file", Unreadable, bytes);
    let fifo = Left("d/file", Special, None);
    let ignored = Left("d/file", Ignored, Some(20));
    let (closed, hidden) = (Left("d", Unreadable, None), Left("d", Ignored, None));
    let edited = SkipReason::EditedSince;
    let [too_large, unreadable, by_rule] = [TooLarge, Unreadable, Ignored].map(SkipReason::Omitted);
    let before = File(1);
    for (after, now, is_resized, expected) in [
        (large(20), File(2), false, too_large),
        (large(20), File(2), true, edited),
        (large(20), Nothing, false, edited),
        (large(20), large(30), false, edited),
        (large(20), locked(Some(20)), false, unreadable),
        (large(20), locked(Some(30)), false, edited),
        (large(20), fifo, false, edited),
        (closed, File(2), false, unreadable),
        (closed, Nothing, false, unreadable),
        (fifo, File(2), false, edited),
        (ignored, hidden, false, by_rule),
        (hidden, fifo, false, SkipReason::Omitted(Special)),
        (File(2), large(20), false, too_large),
        (File(2), large(20), true, edited),
        (File(2), closed, false, unreadable),
        (File(2), hidden, false, by_rule),
        (File(2), fifo, false, edited),
        (File(2), Nothing, false, edited),
        (File(2), File(3), false, edited),
        (Nothing, File(2), false, edited),
        (Nothing, large(20), false, edited),
        (Nothing, closed, false, unreadable),
    ] {
        let sizes = is_resized.then(|| (rel("d/file"), Size::Another));
        let sizes = sizes.into_iter().collect();
        let plan = plan_of(&world(now), &world(before), Some(&world(after)), &sizes);
        let story = format!("{after:?}, then {now:?}: {plan:?}");
        assert!(plan.is_empty(), "{story}");
        let file = plan.skipped.iter().find(|s| s.path == rel("d/file"));
        assert_eq!(file.map(|s| s.reason), Some(expected), "{story}");
    }
    // Made by the operation, and not seen then: it is named as it would be if it were not seen now
    // either.
    for (after, is_resized, named) in [
        (large(20), false, Some(too_large)),
        (large(20), true, Some(edited)),
        (closed, false, Some(unreadable)),
        (Nothing, false, None),
    ] {
        let sizes = is_resized.then(|| (rel("d/file"), Size::Another));
        let sizes = sizes.into_iter().collect();
        let plan = plan_of(
            &world(File(2)),
            &world(Nothing),
            Some(&world(after)),
            &sizes,
        );
        assert!(plan.is_empty(), "{after:?}: {plan:?}");
        let reasons: Vec<SkipReason> = plan.skipped.iter().map(|s| s.reason).collect();
        assert_eq!(reasons, Vec::from_iter(named), "{after:?}: {plan:?}");
    }
}

// "too large" of what the guard has
#[test]
fn what_was_too_large_and_is_captured_by_now_goes_for_what_is_put_back() {
    use Seen::{File, Left, Nothing};
    let after = world(Left("d/file", OmissionReason::TooLarge, Some(20)));
    for (before, size, writes) in [
        (File(1), Some(Size::Same), 1),
        (File(1), Some(Size::Another), 0),
        (File(1), None, 0),
        // Nobody captured it for what it was, so it is not removed.
        (Nothing, Some(Size::Same), 0),
    ] {
        let sizes = size.map(|size| (rel("d/file"), size)).into_iter().collect();
        let plan = plan_of(&world(File(2)), &world(before), Some(&after), &sizes);
        let story = format!("{before:?} {size:?}: {plan:?}");
        assert_eq!(
            (plan.writes.len(), plan.removals.len()),
            (writes, 0),
            "{story}"
        );
        assert_eq!(plan.skipped.is_empty(), writes == 1, "{story}");
    }
}
