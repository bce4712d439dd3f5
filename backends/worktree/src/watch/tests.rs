use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use tempfile::TempDir;

use super::*;
use crate::holder::Holder;
use crate::must_run::{Capability, skipped};

/// A workspace with a few files and directories, all of them watched.
struct Ground {
    top: TempDir,
    root: Root,
    watch: Watch,
}

/// What a walk would do for the directory and all below it.
fn add_all(root: &Root, watch: &Watch, path: &RelPath) {
    let directory = root.open_directory(path).unwrap();
    watch.add(path, directory.as_fd());
    for entry in fs::read_dir(root.disk_path(path)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        let found = entry.metadata().unwrap();
        if found.is_dir() {
            add_all(root, watch, &path.join(name.as_encoded_bytes()));
        } else if found.nlink() > 1 || watch.is_held(found.ino()) {
            watch.always_look_at(path, name.as_encoded_bytes());
        }
    }
}

impl Ground {
    fn new() -> Self {
        Self::after(|_| {})
    }

    /// With something done before the watch begins.
    fn after(prepare: impl FnOnce(&Path)) -> Self {
        let top = tempfile::tempdir().unwrap();
        // By its real path, as the kernel knows it.
        let base = top.path().canonicalize().unwrap();
        let work = base.join("work");
        for directory in ["work/d/e", "work/f", "outside"] {
            fs::create_dir_all(base.join(directory)).unwrap();
        }
        // By another program: what another test starts has every file that this process is just
        // writing open until it is executed, and the watch would find it held.
        let written = Command::new("sh")
            .args([
                "-c",
                r#"for file; do printf 'some content' > "$file"; done"#,
                "sh",
            ])
            .args(["a", "b", "d/a", "d/e/a", "f/a", "../outside/a"])
            .current_dir(&work)
            .output()
            .unwrap();
        assert!(written.status.success(), "{written:?}");
        prepare(&work);
        let root = Root::of_directory(&work).unwrap();
        let watch = Watch::begin(&root).unwrap();
        add_all(&root, &watch, &RelPath::root());
        let ground = Self { top, root, watch };
        ground.settle();
        ground
    }

    /// Settles, and lets it be found out who holds files in what was added.
    fn settle(&self) {
        self.watch.settle();
        self.watch.shared.scans.wait();
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.disk_path(&RelPath::root()).join(path)
    }

    /// What is pending, as text: `d/a` for a name, `d/` for a directory alone, `d/*` for all of it.
    fn pending(&self) -> Vec<String> {
        listed(&self.watch.pending().unwrap())
    }

    /// Whether nothing is looked at any more. A program that another test starts has every file of
    /// this process open until it is executed.
    fn is_let_go(&self) -> bool {
        (0..10_000).any(|_| self.captured().is_empty())
    }

    /// The same, with the directories read that have to be, and settled.
    fn captured(&self) -> Vec<String> {
        let pending = self.watch.pending().unwrap();
        for (directory, look) in &pending {
            let Look::Names(names) = look else { continue };
            for name in names {
                let path = directory.join(name);
                match self.root.lstat(&path) {
                    Ok(found) if found.mode & 0o170000 == 0o040000 => {
                        if !self.watch.watches(&path) {
                            add_all(&self.root, &self.watch, &path);
                        }
                    }
                    _ => self.watch.forget(&path),
                }
            }
        }
        self.settle();
        listed(&pending)
    }
}

fn listed(pending: &Pending) -> Vec<String> {
    let mut lines = Vec::new();
    for (directory, look) in pending {
        let above = if directory.is_root() {
            String::new()
        } else {
            format!("{directory}/")
        };
        match look {
            Look::All => lines.push(format!("{above}*")),
            Look::Names(names) if names.is_empty() => lines.push(above),
            Look::Names(names) => lines.extend(
                names
                    .iter()
                    .map(|name| format!("{above}{}", String::from_utf8_lossy(name))),
            ),
        }
    }
    lines
}

fn path(text: &str) -> RelPath {
    RelPath::new(text).unwrap()
}

#[test]
fn nothing_is_pending_where_nothing_happened() {
    let ground = Ground::new();
    assert!(ground.pending().is_empty());
    fs::metadata(ground.path("d/a")).unwrap();
    assert_eq!(fs::read_dir(ground.path("d")).unwrap().count(), 2);
    assert!(ground.pending().is_empty(), "looking changes nothing");
}

#[test]
fn what_is_done_to_a_file_by_its_name_is_told() {
    type Deed = (&'static str, fn(&Path), &'static [&'static str]);
    let deeds: [Deed; 9] = [
        ("written", |p| fs::write(p, "other").unwrap(), &["d/e/a"]),
        (
            "cut",
            |p| {
                fs::File::options()
                    .write(true)
                    .open(p)
                    .unwrap()
                    .set_len(1)
                    .unwrap()
            },
            &["d/e/a"],
        ),
        ("removed", |p| fs::remove_file(p).unwrap(), &["d/e/a"]),
        (
            "made executable",
            |p| fs::set_permissions(p, fs::Permissions::from_mode(0o755)).unwrap(),
            &["d/e/a"],
        ),
        (
            "dated",
            |p| {
                let file = fs::File::open(p).unwrap();
                file.set_modified(std::time::UNIX_EPOCH).unwrap();
            },
            &["d/e/a"],
        ),
        (
            "renamed",
            |p| fs::rename(p, p.with_file_name("b")).unwrap(),
            &["d/e/a", "d/e/b"],
        ),
        (
            "moved out",
            |p| fs::rename(p, p.ancestors().nth(4).unwrap().join("outside/b")).unwrap(),
            &["d/e/a"],
        ),
        (
            "replaced",
            |p| fs::rename(p.ancestors().nth(4).unwrap().join("outside/a"), p).unwrap(),
            &["d/e/a"],
        ),
        (
            "made a link",
            |p| {
                fs::remove_file(p).unwrap();
                std::os::unix::fs::symlink("../a", p).unwrap();
            },
            &["d/e/a"],
        ),
    ];
    for (what, deed, expected) in deeds {
        let ground = Ground::new();
        deed(&ground.path("d/e/a"));
        assert_eq!(ground.pending(), expected, "{what}");
    }
}

#[test]
fn what_is_done_through_a_descriptor_from_before_is_told() {
    let commands: [&[&str]; 6] = [
        &["write", "text"],
        &["truncate", "3"],
        &["fallocate", "8192"],
        &["splice", "text"],
        &["aio", "text"],
        &["copy", "/proc/self/exe"],
    ];
    for command in commands {
        let mut holder = Holder::start();
        let ground = Ground::after(|work| {
            holder.tell([OsStr::new("open"), work.join("d/a").as_os_str()]);
        });
        // `/proc` shows that it is open, so it is looked at in any case.
        assert_eq!(ground.pending(), ["d/a"]);
        let command: Vec<_> = match command {
            ["copy", _] => vec![OsStr::new("copy").to_owned(), ground.path("b").into()],
            _ => command
                .iter()
                .map(|word| OsStr::new(word).to_owned())
                .collect(),
        };
        holder.tell(command);
        assert!(ground.pending().contains(&"d/a".to_owned()));
    }
}

#[test]
fn a_store_into_a_mapping_has_no_event_and_the_file_is_looked_at_as_long_as_it_may_come() {
    let ground = Ground::new();
    let mut holder = Holder::start();
    holder.map(&ground.path("d/a"));
    assert_eq!(ground.captured(), ["d/a"]);
    for _ in 0..3 {
        holder.tell(["store", "x"]);
        assert_eq!(ground.captured(), ["d/a"]);
    }
    fs::rename(ground.path("d"), ground.path("g")).unwrap();
    assert_eq!(ground.captured(), ["d", "g"], "it is read as a whole");
    assert_eq!(ground.captured(), ["g/a"], "the mapping went along");
    fs::rename(ground.path("g/a"), ground.path("c")).unwrap();
    ground.captured();
    assert_eq!(ground.captured(), ["c"]);
    fs::remove_file(ground.path("c")).unwrap();
    ground.captured();
    assert!(ground.captured().is_empty());
}

#[test]
fn a_mapping_from_before_is_found_whatever_its_holder_calls_the_file() {
    let mut holder = Holder::start();
    let mut through_another_name = Holder::start();
    let ground = Ground::after(|work| {
        holder.map(&work.join("d/a"));
        let elsewhere = work.join("../outside/link");
        fs::hard_link(work.join("f/a"), &elsewhere).unwrap();
        through_another_name.map(&elsewhere);
        fs::remove_file(elsewhere).unwrap();
    });
    assert_eq!(ground.captured(), ["d/a", "f/a"]);
    assert_eq!(ground.captured(), ["d/a", "f/a"]);
}

#[test]
fn a_mapping_in_a_new_directory_is_found() {
    let ground = Ground::new();
    let mut holder = Holder::start();
    fs::create_dir(ground.path("new")).unwrap();
    fs::write(ground.path("new/db"), "some content").unwrap();
    holder.map(&ground.path("new/db"));
    assert_eq!(ground.captured(), ["new"]);
    assert_eq!(ground.captured(), ["new/db"]);
    drop(holder);
    assert_eq!(ground.captured(), ["new/db"]);
}

#[test]
fn a_mapping_in_a_new_directory_whose_holder_has_no_name_for_it_is_found() {
    let ground = Ground::new();
    let mut holder = Holder::start();
    fs::create_dir(ground.path("new")).unwrap();
    fs::write(ground.path("../outside/db"), "some content").unwrap();
    fs::hard_link(ground.path("../outside/db"), ground.path("new/db")).unwrap();
    holder.map(&ground.path("../outside/db"));
    fs::remove_file(ground.path("../outside/db")).unwrap();
    assert_eq!(ground.captured(), ["new"]);
    for _ in 0..2 {
        assert_eq!(ground.captured(), ["new/db"]);
    }
}

#[test]
fn a_file_with_another_name_is_looked_at_always() {
    let ground = Ground::after(|work| {
        fs::hard_link(work.join("d/a"), work.join("../outside/link")).unwrap();
    });
    assert_eq!(ground.captured(), ["d/a"]);
    fs::write(ground.path("../outside/link"), "through the other name").unwrap();
    assert_eq!(ground.captured(), ["d/a"]);
}

#[test]
fn a_new_link_inside_has_an_event_for_its_own_name_only() {
    let ground = Ground::new();
    fs::hard_link(ground.path("d/a"), ground.path("f/link")).unwrap();
    assert_eq!(
        ground.pending(),
        ["f/link"],
        "so that whoever finds two names has to look for the other one"
    );
}

#[test]
fn a_link_that_is_made_outside_later_has_no_event() {
    let ground = Ground::new();
    fs::hard_link(ground.path("d/a"), ground.path("../outside/link")).unwrap();
    fs::write(ground.path("../outside/link"), "unseen").unwrap();
    assert!(
        ground.pending().is_empty(),
        "where this fails the kernel tells of it, and the guide's sentence is to go"
    );
}

#[test]
fn a_file_without_a_name_that_gets_one_is_told_and_may_still_change() {
    let ground = Ground::new();
    let mut holder = Holder::start();
    holder.tell([OsStr::new("tmpfile"), ground.path("d").as_os_str()]);
    holder.tell([OsStr::new("link"), ground.path("d/t").as_os_str()]);
    holder.tell(["map"]);
    holder.tell(["close"]);
    assert!(ground.captured().contains(&"d/t".to_owned()));
    holder.tell(["store", "x"]);
    assert!(ground.captured().contains(&"d/t".to_owned()));
}

#[test]
fn a_directory_that_is_moved_inside_is_watched_in_its_new_place() {
    let ground = Ground::new();
    fs::rename(ground.path("d"), ground.path("f/g")).unwrap();
    fs::write(ground.path("f/g/e/a"), "before it was read").unwrap();
    assert_eq!(ground.pending(), ["d", "f/g"]);
    assert!(!ground.watch.watches(&path("d/e")), "nor below it");
    assert!(!ground.watch.watches(&path("f/g")));
    ground.captured();
    fs::write(ground.path("f/g/e/a"), "after it").unwrap();
    assert_eq!(ground.captured(), ["f/g/e/a"]);
    assert_eq!(ground.watch.watched(), 4);
}

#[test]
fn a_directory_that_is_moved_while_it_is_read_is_not_lost() {
    for is_read_there_first in [false, true] {
        let ground = Ground::new();
        // Opened in its old place, and added when it was elsewhere by then, by two threads.
        let old = ground.root.open_directory(&path("d")).unwrap();
        fs::rename(ground.path("d"), ground.path("f/g")).unwrap();
        let new = ground.root.open_directory(&path("f/g")).unwrap();
        let mut both = [("d", &old), ("f/g", &new)];
        if is_read_there_first {
            both.reverse();
        }
        for (at, fd) in both {
            ground.watch.add(&path(at), fd.as_fd());
        }
        ground.captured();
        ground.captured();
        fs::write(ground.path("f/g/e/a"), "seen").unwrap();
        fs::write(ground.path("f/g/a"), "seen").unwrap();
        let pending = ground.captured();
        assert!(pending.contains(&"f/g/a".to_owned()), "{pending:?}");
        assert!(pending.contains(&"f/g/e/a".to_owned()), "{pending:?}");
    }
}

#[test]
fn directories_that_take_each_others_place_are_read_again() {
    let ground = Ground::new();
    let mut holder = Holder::start();
    holder.map(&ground.path("d/e/a"));
    ground.captured();
    let mut exchange = Holder::start();
    exchange.tell([
        OsStr::new("exchange"),
        ground.path("d").as_os_str(),
        ground.path("f").as_os_str(),
    ]);
    let pending = ground.captured();
    assert!(pending.contains(&"d".to_owned()) && pending.contains(&"f".to_owned()));
    fs::write(ground.path("d/a"), "the one that was f/a").unwrap();
    let pending = ground.captured();
    assert!(pending.contains(&"d/a".to_owned()), "{pending:?}");
    assert!(
        pending.contains(&"f/e/a".to_owned()),
        "the mapping went along: {pending:?}"
    );
    fs::rename(ground.path("d"), ground.path("n")).unwrap();
    exchange.tell([
        OsStr::new("exchange"),
        ground.path("f").as_os_str(),
        ground.path("a").as_os_str(),
    ]);
    ground.captured();
    let pending = ground.captured();
    assert!(pending.contains(&"a/e/a".to_owned()), "{pending:?}");
}

#[test]
fn a_directory_that_leaves_and_comes_back_is_read_again() {
    let ground = Ground::new();
    fs::rename(ground.path("d"), ground.path("../outside/d")).unwrap();
    fs::write(ground.path("../outside/d/e/a"), "changed outside").unwrap();
    fs::rename(ground.path("../outside/d"), ground.path("d")).unwrap();
    assert_eq!(ground.captured(), ["d"]);
    fs::write(ground.path("d/e/a"), "changed inside").unwrap();
    assert_eq!(ground.captured(), ["d/e/a"]);
}

#[test]
fn a_directory_that_left_is_watched_no_more() {
    let ground = Ground::new();
    fs::rename(ground.path("d"), ground.path("../outside/d")).unwrap();
    ground.captured();
    assert_eq!(ground.watch.watched(), 2);
    fs::write(ground.path("../outside/d/a"), "outside").unwrap();
    assert!(ground.captured().is_empty());
}

#[test]
fn a_directory_that_is_removed_and_made_again_is_read_again() {
    let ground = Ground::new();
    for _ in 0..3 {
        fs::remove_dir_all(ground.path("d")).unwrap();
        fs::create_dir_all(ground.path("d/e")).unwrap();
        fs::write(ground.path("d/e/a"), "again").unwrap();
        assert_eq!(ground.captured(), ["d"]);
        assert_eq!(ground.watch.watched(), 4);
        fs::write(ground.path("d/e/a"), "and again").unwrap();
        assert_eq!(ground.captured(), ["d/e/a"]);
    }
}

#[test]
fn a_directorys_own_permissions_are_told_by_its_name() {
    let ground = Ground::new();
    let bits = |path: &str, mode| {
        fs::set_permissions(ground.path(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    bits("d/e", 0o700);
    assert_eq!(ground.captured(), ["d/e"]);
    assert!(ground.watch.watches(&path("d/e")), "it is the same one");
    bits(".", 0o700);
    assert_eq!(
        listed(&ground.watch.pending().unwrap()),
        ["*"],
        "what could not be looked at perhaps can"
    );
}

#[test]
fn what_no_capture_settled_is_told_again() {
    let ground = Ground::new();
    fs::write(ground.path("d/a"), "x").unwrap();
    fs::set_permissions(ground.path("b"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(ground.pending(), ["b", "d/a"]);
    fs::remove_file(ground.path("f/a")).unwrap();
    assert_eq!(ground.captured(), ["b", "d/a", "f/a"]);
    assert_eq!(ground.pending(), [""; 0]);
}

#[test]
fn a_file_is_looked_at_as_long_as_it_is_open_and_once_more() {
    let ground = Ground::new();
    for options in [
        fs::File::options().read(true),
        fs::File::options().write(true),
    ] {
        let first = options.open(ground.path("d/a")).unwrap();
        assert_eq!(ground.captured(), ["d/a"]);
        let second = options.open(ground.path("d/a")).unwrap();
        assert_eq!(ground.captured(), ["d/a"]);
        drop(first);
        assert_eq!(ground.captured(), ["d/a"]);
        assert_eq!(ground.captured(), ["d/a"], "one of the two has it open");
        drop(second);
        assert_eq!(
            ground.captured(),
            ["d/a"],
            "it may have been stored into before"
        );
        assert!(ground.is_let_go());
    }
    fs::write(ground.path("d/new"), "made and closed").unwrap();
    assert_eq!(ground.captured(), ["d/new"]);
    assert!(ground.is_let_go());
}

#[test]
fn all_of_a_new_directory_is_looked_at_until_it_is_known_who_holds_what_is_in_it() {
    let mut changes = Changes::default();
    changes.add(&RelPath::root(), 1);
    assert!(changes.settle());
    assert_eq!(changes.growth(), Growth::Many, "a first walk");
    changes.know_holders();
    changes.add(&path("new"), 2);
    assert!(changes.settle());
    assert_eq!(changes.growth(), Growth::Few);
    for _ in 0..2 {
        assert_eq!(listed(&changes.pending().unwrap()), ["new/*"]);
        assert!(!changes.settle());
    }
    changes.know_holders();
    assert!(changes.pending().unwrap().is_empty());
    for n in 0..300_i32 {
        changes.add(&path(&format!("new{n}")), 3 + n);
    }
    assert!(changes.settle());
    assert_eq!(changes.growth(), Growth::Many);
}

#[test]
fn a_scan_that_does_not_end_is_a_hole() {
    let ground = Ground::new();
    ground.watch.shared.scans.want();
    assert_eq!(ground.watch.pending(), Err(WalkReason::LostWatch));
}

/// What is told of the root's files, in short: `+a` opens it, `-a` closes it, `=a` closes it after
/// writing, `*a` makes it, `/a` removes it, and `a>b` renames it.
fn told(deeds: &[&str]) -> Changes {
    use inotify::ReadFlags as F;

    let mut changes = Changes::default();
    changes.add(&RelPath::root(), 1);
    changes.settle();
    changes.know_holders();
    let mut cookie = 0;
    for deed in deeds {
        let mut note = |what: F, name: &str, cookie: u32| {
            changes.note(&Event {
                watch: 1,
                what,
                cookie,
                name: Some(name.as_bytes().to_vec()),
            });
        };
        if let Some((from, to)) = deed.split_once('>') {
            cookie += 1;
            note(F::MOVED_FROM, from, cookie);
            note(F::MOVED_TO, to, cookie);
            continue;
        }
        let (what, name) = deed.split_at(1);
        let what = match what {
            "+" => F::OPEN,
            "-" => F::CLOSE_NOWRITE,
            "=" => F::CLOSE_WRITE,
            "*" => F::CREATE,
            "/" => F::DELETE,
            _ => panic!("{deed}"),
        };
        note(what, name, 0);
    }
    changes
}

#[test]
fn a_file_is_looked_at_until_all_who_may_store_into_it_have_closed_it() {
    let cases: &[(&[&str], &[&str])] = &[
        (&["+a", "-a"], &[]),
        (&["+a", "+a", "-a"], &["a"]),
        (&["+a", "+a", "-a", "=a"], &[]),
        // It goes along with its new name, and others may open it there.
        (&["+a", "a>b", "+b", "-b"], &["b"]),
        (&["+a", "a>b", "+b", "-b", "=b"], &[]),
        // Who has the removed file open closes it by the name of the new one.
        (&["+a", "/a", "*a", "+a", "=a"], &["a"]),
        (&["+a", "/a", "a>b", "b>a", "+a", "=a", "-a"], &[]),
        (&["+a", "/a"], &[]),
        (&["*t", "+t", "=t", "+a", "t>a", "+a", "-a"], &["a"]),
        // Two that were told as one, or somebody from before: not to be counted.
        (&["+a", "-a", "-a"], &["a"]),
        (&["+a", "-a", "-a", "+a", "-a"], &["a"]),
        // Made by being opened, or by a link to what had no name and may be open still.
        (&["*a", "+a", "=a"], &[]),
        (&["*a", "+a", "-a"], &["a"]),
        (&["*a"], &["a"]),
        (&["+#7", "*a", "=#7"], &["a"]),
        (&["*a", "+b", "+a", "=a", "=b"], &["a"]),
        // The way back may be the other half of an exchange, so both are.
        (&["+a", "a>b", "b>a", "+a", "-a"], &["a", "b"]),
        // What was open takes the place of what was not, and the reverse.
        (&["+b", "a>b", "+b", "=b"], &["b"]),
        (&["+b", "a>b", "+b", "=b", "=b"], &[]),
    ];
    for (deeds, expected) in cases {
        let mut changes = told(deeds);
        changes.pending().unwrap();
        changes.settle();
        let pending = listed(&changes.pending().unwrap());
        assert_eq!(pending, *expected, "{deeds:?}");
    }
}

#[test]
fn two_files_that_are_exchanged_are_both_looked_at_while_one_is_open() {
    let mut changes = told(&["+a"]);
    for (what, name, cookie) in [
        (inotify::ReadFlags::MOVED_FROM, b"a", 1),
        (inotify::ReadFlags::MOVED_TO, b"b", 1),
        (inotify::ReadFlags::MOVED_FROM, b"b", 2),
        (inotify::ReadFlags::MOVED_TO, b"a", 2),
        (inotify::ReadFlags::OPEN, b"b", 0),
        (inotify::ReadFlags::CLOSE_NOWRITE, b"b", 0),
    ] {
        let name = Some(name.to_vec());
        changes.note(&Event {
            watch: 1,
            what,
            cookie,
            name,
        });
    }
    changes.pending().unwrap();
    changes.settle();
    assert_eq!(listed(&changes.pending().unwrap()), ["a", "b"]);
}

#[test]
fn a_link_is_news_of_a_file_and_not_of_its_name() {
    let root = RelPath::root();
    for (deeds, is_news) in [
        (&[][..], false),
        (&["/a", "*a"], true),
        (&["b>a"], true),
        (&["+a", "-a"], false),
    ] {
        let mut changes = Changes::default();
        changes.add(&root, 1);
        changes.settle();
        assert!(changes.always_look_at(&root, b"a"));
        for deed in deeds {
            let (what, name) = match deed.split_once('>') {
                Some((_, to)) => (inotify::ReadFlags::MOVED_TO, to),
                None => match deed.split_at(1) {
                    ("/", name) => (inotify::ReadFlags::DELETE, name),
                    ("*", name) => (inotify::ReadFlags::CREATE, name),
                    ("+", name) => (inotify::ReadFlags::OPEN, name),
                    (_, name) => (inotify::ReadFlags::CLOSE_NOWRITE, name),
                },
            };
            changes.note(&Event {
                watch: 1,
                what,
                cookie: 1,
                name: Some(name.as_bytes().to_vec()),
            });
        }
        assert_eq!(changes.always_look_at(&root, b"a"), is_news, "{deeds:?}");
    }
}

#[test]
fn a_directory_that_a_failed_capture_added_is_read_again() {
    let ground = Ground::new();
    fs::create_dir_all(ground.path("new/below")).unwrap();
    assert_eq!(ground.pending(), ["new"]);
    // The capture fails after this: what is below was never seen.
    let fd = ground.root.open_directory(&path("new")).unwrap();
    ground.watch.add(&path("new"), fd.as_fd());
    assert_eq!(ground.pending(), ["new"]);
    assert!(!ground.watch.watches(&path("new")));
    ground.captured();
    fs::write(ground.path("new/below/file"), "x").unwrap();
    assert_eq!(ground.captured(), ["new/below/file"]);
}

#[test]
fn a_first_walk_that_failed_leaves_no_journal() {
    let ground = Ground::new();
    let watch = Watch::begin(&ground.root).unwrap();
    add_all(&ground.root, &watch, &RelPath::root());
    for _ in 0..2 {
        assert_eq!(watch.pending(), Err(WalkReason::NoJournal));
        watch.settle();
    }
}

#[test]
fn what_happens_between_the_watch_and_the_end_of_the_first_walk_is_told() {
    let ground = Ground::new();
    let watch = Watch::begin(&ground.root).unwrap();
    add_all(&ground.root, &watch, &RelPath::root());
    fs::write(ground.path("d/a"), "meanwhile").unwrap();
    watch.settle();
    assert_eq!(listed(&watch.pending().unwrap()), ["d/a"]);
}

#[test]
fn more_than_the_queue_holds_is_read_or_told() {
    let ground = Ground::new();
    let names = ["d/a", "f/a"];
    for n in 0..20_000_usize {
        let file = fs::File::open(ground.path(names[n % 2])).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    match ground.watch.pending() {
        Ok(pending) => assert_eq!(listed(&pending), names),
        Err(reason) => assert_eq!(reason, WalkReason::QueueOverflow),
    }
}

#[test]
fn an_overflow_is_a_hole_for_good() {
    let mut changes = Changes::default();
    changes.add(&RelPath::root(), 1);
    changes.settle();
    changes.note(&Event {
        watch: -1,
        what: inotify::ReadFlags::QUEUE_OVERFLOW,
        cookie: 0,
        name: None,
    });
    for _ in 0..2 {
        assert_eq!(changes.pending(), Err(WalkReason::QueueOverflow));
        changes.settle();
        changes.add(&RelPath::root(), 2);
    }
}

#[test]
fn an_unmounted_file_system_is_a_hole() {
    let mut changes = Changes::default();
    changes.add(&RelPath::root(), 1);
    changes.settle();
    changes.note(&Event {
        watch: 1,
        what: inotify::ReadFlags::UNMOUNT,
        cookie: 0,
        name: None,
    });
    assert_eq!(changes.pending(), Err(WalkReason::Remounted));
}

#[test]
fn too_many_names_are_a_hole() {
    let mut changes = Changes::default();
    for n in 0..1000_i32 {
        changes.add(&path(&format!("d{n}")), n);
    }
    changes.settle();
    for n in 0..70_000_i32 {
        changes.note(&Event {
            watch: n % 1000,
            what: inotify::ReadFlags::ATTRIB,
            cookie: 0,
            name: Some(n.to_string().into_bytes()),
        });
    }
    assert_eq!(changes.pending(), Err(WalkReason::TooManyFiles));
}

#[test]
fn a_hole_gives_the_watches_back() {
    let ground = Ground::new();
    fs::rename(ground.path("."), ground.path("../elsewhere")).unwrap_err();
    fs::rename(
        ground.root.disk_path(&RelPath::root()),
        ground.top.path().join("elsewhere"),
    )
    .unwrap();
    assert_eq!(ground.watch.pending(), Err(WalkReason::LostWatch));
    assert!(ground.watch.shared.inotify().is_none());
    assert_eq!(ground.watch.watched(), 0);
}

#[test]
fn the_thread_ends_with_the_watch() {
    let ground = Ground::new();
    let shared = Arc::downgrade(&ground.watch.shared);
    drop(ground.watch);
    assert!(shared.upgrade().is_none(), "nobody else has it");
}

#[test]
fn a_mount_inside_is_a_hole_and_one_elsewhere_is_not() {
    let ground = Ground::new();
    fs::create_dir(ground.path("../outside/d")).unwrap();
    let mount = |at: &str| {
        let status = Command::new("mount")
            .arg("--bind")
            .args([ground.path("../outside"), ground.path(at)])
            .status();
        status.is_ok_and(|status| status.success())
    };
    let unmount = |at: &str| {
        let status = Command::new("umount")
            .arg("-l")
            .arg(ground.path(at))
            .status();
        assert!(status.unwrap().success());
    };
    if !mount("../outside/d") {
        return skipped(Capability::Mounts, "nothing can be mounted here");
    }
    let elsewhere = ground.watch.pending();
    unmount("../outside/d");
    assert_eq!(elsewhere.map(|_| ()), Ok(()));
    assert!(mount("d"));
    let inside = ground.watch.pending();
    unmount("d");
    assert_eq!(inside, Err(WalkReason::Remounted));
}

#[test]
fn a_mount_that_came_and_went_is_none() {
    let ground = Ground::new();
    let mounted = Command::new("mount")
        .arg("--bind")
        .args([ground.path("../outside"), ground.path("d")])
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        return skipped(Capability::Mounts, "nothing can be mounted here");
    }
    let status = Command::new("umount").arg(ground.path("d")).status();
    assert!(status.unwrap().success());
    assert!(ground.pending().is_empty());
    fs::write(ground.path("d/a"), "x").unwrap();
    assert_eq!(ground.pending(), ["d/a"]);
}

#[test]
fn a_file_system_that_tells_nothing_is_not_watched() {
    let root = Root::of_directory(Path::new("/proc/self/net")).unwrap();
    assert_eq!(Watch::begin(&root).err(), Some(WalkReason::Filesystem));
}
