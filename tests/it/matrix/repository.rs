//! What may be wrong with the repository of a workspace.
//!
//! A workspace is captured and its files are edited, then something happens to its `.git`. Whatever
//! it is, everything ends at once, nothing is waited for, followed or taken for an empty directory;
//! what was captured before is listed, compared and proven as ever, and comes back.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use stillframe_tests::canary::Canary;
use stillframe_tests::choice::{is_chosen, is_long};
use stillframe_tests::view::View;
use stillframe_tests::{Output, Snap, TestWorkspace, capability, copy_whole, json, oracle, view};

/// How a snapshot, and everything that needs one, is answered while the damage is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// It is as if nothing had happened.
    Right,
    /// It is an error of one of these kinds, and nothing is touched.
    Refused(&'static [&'static str]),
}
use Answer::{Refused, Right};

const HOSTILE: Answer = Refused(&["HostileRepository"]);
const UNREADABLE: Answer = Refused(&["Unreadable"]);
const LIMITED: Answer = Refused(&["LimitExceeded"]);

/// Longer than anything takes on a busy machine; what waits for a pipe or reads an endless device
/// is longer.
const AT_ONCE: Duration = Duration::from_secs(180);

/// The workspace and its repository with every byte, mtime and inode, whatever became of `.git`.
fn everything(ws: &TestWorkspace) -> (View, View, view::Times) {
    let git_dir = ws.path(".git");
    let (repository, times) = match git_dir.symlink_metadata() {
        Ok(meta) if meta.is_dir() => (view::worktree(&git_dir), view::times(&git_dir)),
        _ => (View::default(), view::Times::new()),
    };
    (view::worktree(ws.root()), repository, times)
}

/// Makes a call, which changes nothing and ends at once.
#[track_caller]
fn at_once(ws: &TestWorkspace, what: &str, args: &[&str]) -> Output {
    ws.settle();
    let before = everything(ws);
    let output = ws.try_json(args);
    assert!(output.took < AT_ONCE, "{what}: {:?}", output.took);
    assert!(before == everything(ws), "{what}: {args:?} touches nothing");
    output
}

/// Asserts that a call was refused as it should have been, with an error that says so.
#[track_caller]
fn refused(output: &Output, kinds: &[&str], what: &str) {
    assert_eq!(output.code, 1, "{what}: {output}");
    let error = &output.json()["error"];
    let kind = error["kind"].as_str().unwrap_or_default();
    assert!(kinds.contains(&kind), "{what}: {output}");
    assert_eq!(error["touched"], false, "{what}: {output}");
}

/// Asserts that `verify` proves every snapshot.
#[track_caller]
fn proven(ws: &TestWorkspace, what: &str) {
    let verdict = at_once(ws, what, &["verify"]).ok().json();
    let snapshots = verdict["snapshots"].as_array().unwrap();
    assert!(!snapshots.is_empty(), "{what}: {verdict}");
    for snapshot in snapshots {
        assert_eq!(snapshot["problems"], json!([]), "{what}: {verdict}");
    }
}

/// What happens to the repository, done by a test in the place of a run or of somebody else.
type Damage<'a> = &'a dyn Fn(&TestWorkspace);

/// What happens to one file.
type Harm<'a> = &'a dyn Fn(&Path);

/// What can be in the place of a file: what it is called, and how it is made there.
type Trap = (&'static str, fn(&Path));

/// Entries of a tree: mode and name.
type Entries = &'static [(&'static str, &'static [u8])];

/// A workspace whose repository has come to harm.
struct Harmed<'a> {
    ws: TestWorkspace,
    /// Snapshots from before, if there are any: one of the worktree as it was then, one of an edit.
    before: Option<(Snap, Snap, View)>,
    /// The worktree as it is, and the tree that git gave for it before the damage.
    edited: View,
    tree: String,
    what: &'a str,
}

impl<'a> Harmed<'a> {
    /// Damages the repository of `ws`, after two snapshots or before any.
    fn new(what: &'a str, ws: TestWorkspace, has_snapshots: bool, damage: Damage<'_>) -> Self {
        let mut before = None;
        if has_snapshots {
            let first = ws.snapshot();
            let captured = view::worktree(ws.root());
            ws.write("README", "edited\n");
            before = Some((first, ws.snapshot(), captured));
        }
        ws.write("README", "edited again\n");
        ws.write("new", "x\n");
        let edited = view::worktree(ws.root());
        let tree = oracle::raw_tree(&ws);
        damage(&ws);
        Self {
            ws,
            before,
            edited,
            tree,
            what,
        }
    }

    /// Takes it through snapshot, diff, verify, restore and undo.
    fn answers(&self, answer: Answer) {
        let Self { ws, what, .. } = self;
        let outside = (view::worktree(&ws.outside()), view::times(&ws.outside()));
        let published = ws.published();
        let output = at_once(ws, what, &["snapshot"]);
        match answer {
            Refused(kinds) => {
                refused(&output, kinds, what);
                assert_eq!(ws.published(), published, "{what}: nothing is published");
            }
            Right => {
                let snapshot = Snap::of(&output.ok().json());
                assert_eq!(snapshot.json["backend"], "git", "{what}");
                assert_eq!(snapshot.tree(), self.tree, "{what}");
                proven(ws, what);
            }
        }
        match &self.before {
            Some((first, second, captured)) => {
                self.compares(answer, first, second);
                self.restores(first, captured);
            }
            None if answer != Right => self.is_captured_as_plain_files(),
            None => {}
        }
        assert!(
            outside == (view::worktree(&ws.outside()), view::times(&ws.outside())),
            "{what}: nothing beside the workspace is touched"
        );
    }

    fn compares(&self, answer: Answer, first: &Snap, second: &Snap) {
        let Self { ws, what, .. } = self;
        let output = at_once(ws, what, &["diff", first.id(), "now", "--patch"]);
        match answer {
            Refused(kinds) => refused(&output, kinds, what),
            Right => {
                let named = json::names(&output.ok().json()["changed_paths"]);
                assert_eq!(named, ["README", "new"], "{what}");
            }
        }
        // What was captured needs nothing of the repository.
        let diff = ws.json(["diff", first.id(), second.id(), "--patch"]);
        assert_eq!(json::names(&diff["changed_paths"]), ["README"], "{what}");
        proven(ws, what);
    }

    /// Nor do a restore and its undo, which take the files alone back where there is no other way.
    fn restores(&self, first: &Snap, captured: &View) {
        let Self { ws, what, .. } = self;
        let git_dir = |ws: &TestWorkspace| {
            let (_, files, times) = everything(ws);
            (files, times)
        };
        let repository = git_dir(ws);
        let output = ws.try_json(["restore", first.id()]);
        assert!(output.took < AT_ONCE, "{what}: {:?}", output.took);
        let outcome = output.ok().json();
        assert_eq!(outcome["status"], "completed", "{what}: {outcome}");
        view::same(captured, &view::worktree(ws.root()), what);
        ws.undo();
        view::same(&self.edited, &view::worktree(ws.root()), what);
        proven(ws, what);
        assert!(
            repository == git_dir(ws),
            "{what}: nothing of the repository is touched"
        );
    }

    /// The files themselves can be captured as those of any directory.
    fn is_captured_as_plain_files(&self) {
        let Self { ws, what, .. } = self;
        let args = ["snapshot", "--strategy", "hash", "--retain-content"];
        let plain = Snap::of(&at_once(ws, what, &args).ok().json());
        ws.write("README", "and again\n");
        ws.json(["restore", plain.id()]);
        view::same(&self.edited, &view::worktree(ws.root()), what);
        proven(ws, what);
    }
}

/// Takes a repository with this damage through everything, after other snapshots and without any.
fn meets(what: &str, make: fn() -> TestWorkspace, damage: Damage<'_>, answer: Answer) {
    for has_snapshots in [true, false] {
        Harmed::new(what, make(), has_snapshots, damage).answers(answer);
    }
}

/// A repository with one commit that has everything that git keeps beside objects.
fn ordinary() -> TestWorkspace {
    let ws = TestWorkspace::repository();
    ws.write("d/file", "a file of a directory\n");
    ws.commit("second");
    ws
}

/// The same, packed.
fn packed() -> TestWorkspace {
    let ws = ordinary();
    for n in 0..20 {
        ws.write(format!("d/{n}"), format!("{n}\n").repeat(n + 1));
        ws.commit("more");
    }
    ws.git(["repack", "-q", "-a", "-d", "--write-bitmap-index"]);
    ws.git(["multi-pack-index", "write", "--bitmap"]);
    ws.git(["commit-graph", "write", "--reachable"]);
    ws.git(["pack-refs", "--all"]);
    ws.settle();
    ws
}

/// A workspace of its own that is what another is.
fn copy_of(made: &TestWorkspace) -> TestWorkspace {
    let ws = TestWorkspace::plain();
    copy_whole(made.root(), ws.root());
    // The files are others than those that the index has looked at.
    ws.git(["update-index", "-q", "--refresh"]);
    ws.settle();
    ws
}

/// What can be in the place of a file.
const IN_ITS_PLACE: [Trap; 5] = [
    ("a pipe", |path| {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o644),
            0,
        )
        .unwrap();
    }),
    ("a socket", |path| {
        drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    }),
    ("a link to an endless device", |path| {
        symlink("/dev/zero", path).unwrap();
    }),
    ("a link to a file elsewhere", |path| {
        symlink("/etc/passwd", path).unwrap();
    }),
    ("a directory", |path| fs::create_dir(path).unwrap()),
];

/// Puts a trap in the place of `name`, in `.git`.
fn trap(ws: &TestWorkspace, name: &str, make: fn(&Path)) {
    let rel = format!(".git/{name}");
    if ws.exists(&rel) {
        ws.remove(&rel);
    }
    let path = ws.path(&rel);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    make(&path);
}

/// Answers where nothing that is read lies.
const NOT_READ: [Answer; 3] = [Right; 3];
/// Answers where a file is read, without which there is no repository.
const NEEDED: [Answer; 5] = [HOSTILE, HOSTILE, HOSTILE, HOSTILE, UNREADABLE];
/// Answers where what is read may be absent or a directory.
const OPTIONAL: [Answer; 5] = [HOSTILE, HOSTILE, HOSTILE, HOSTILE, Right];

macro_rules! traps_in_the_place_of {
    ($(fn $test:ident() -> $answers:ident: $($name:literal)*;)*) => {
        $(
            #[test]
            fn $test() {
                for name in [$($name),*] {
                    for (at, answer) in $answers.into_iter().enumerate() {
                        let (kind, make) = IN_ITS_PLACE[at];
                        let what = format!("{kind} in the place of {name}");
                        if !is_chosen(&what, 4) {
                            continue;
                        }
                        let damage = |ws: &TestWorkspace| trap(ws, name, make);
                        // In turns, with snapshots from before and without.
                        Harmed::new(&what, ordinary(), at % 2 == 0, &damage).answers(answer);
                    }
                }
            }
        )*
    };
}

traps_in_the_place_of! {
    fn traps_in_the_place_of_head_and_index() -> NEEDED: "HEAD" "index";
    fn traps_in_the_place_of_configuration() -> NEEDED: "config" "config.worktree" "commondir";
    fn traps_in_the_place_of_rules_and_alternates() -> NEEDED:
        "info/exclude" "info/attributes" "objects/info/alternates";
    fn traps_in_the_place_of_refs() -> OPTIONAL: "packed-refs" "refs/heads/main" "refs/heads" "refs";
    fn traps_in_the_place_of_objects() -> OPTIONAL: "objects" "objects/pack";
    fn traps_in_the_place_of_what_git_keeps_to_be_fast() -> OPTIONAL:
        "objects/info/commit-graph" "objects/pack/multi-pack-index" "shallow" "info/grafts";
    fn traps_in_the_place_of_an_operation() -> OPTIONAL: "MERGE_HEAD" "ORIG_HEAD" "rebase-merge";
    fn traps_in_the_place_of_what_nobody_reads() -> NOT_READ:
        "info/sparse-checkout" "objects/info/http-alternates" "refs/stash" "refs/tags" "logs/HEAD"
        "FETCH_HEAD";
}

#[test]
fn traps_in_the_place_of_the_repository_itself() {
    for ((kind, make), answer) in IN_ITS_PLACE.into_iter().zip(OPTIONAL).take(3) {
        let what = format!("{kind} in the place of .git");
        let damage = |ws: &TestWorkspace| {
            ws.remove(".git");
            make(&ws.path(".git"));
        };
        meets(&what, ordinary, &damage, answer);
    }
    for (text, answer) in [
        ("gitdir: /dev/zero\n", UNREADABLE),
        ("gitdir: .\n", UNREADABLE),
        ("gitdir: .git\n", UNREADABLE),
        ("no repository\n", UNREADABLE),
        ("", UNREADABLE),
    ] {
        let damage = |ws: &TestWorkspace| {
            ws.remove(".git");
            ws.write(".git", text);
        };
        meets(text, ordinary, &damage, answer);
    }
}

#[test]
fn files_of_the_repository_that_are_far_too_large_are_not_read() {
    for (name, answer) in [
        ("HEAD", LIMITED),
        ("config", LIMITED),
        ("index", LIMITED),
        ("commondir", LIMITED),
        ("refs/heads/main", LIMITED),
        ("info/exclude", LIMITED),
        ("info/attributes", LIMITED),
        ("objects/info/alternates", LIMITED),
    ] {
        let what = format!("a terabyte in the place of {name}");
        let ws = ordinary();
        let first = ws.snapshot();
        let rel = format!(".git/{name}");
        ws.write("README", "edited\n");
        ws.sparse_file(&rel, 1 << 40);
        let Refused(kinds) = answer else {
            unreachable!()
        };
        for args in [&["snapshot"][..], &["diff", first.id(), "now"]] {
            let output = ws.try_json(args);
            assert!(output.took < AT_ONCE, "{what}: {:?}", output.took);
            refused(&output, kinds, &what);
        }
        ws.restore(&first);
        assert_eq!(ws.text("README"), "hello\n", "{what}");
        ws.undo();
        assert_eq!(ws.text("README"), "edited\n", "{what}");
        let meta = ws.stat(&rel);
        assert_eq!(meta.len(), 1 << 40, "{what}");
        ws.json(["verify"]);
    }
}

#[test]
fn configuration_that_leads_elsewhere_is_not_followed() {
    let configured = |text: &'static str| {
        move |ws: &TestWorkspace| {
            let outside = ws.outside();
            trap_at(&outside.join("pipe"), 0);
            fs::write(outside.join("secret"), "password = hunter2\n").unwrap();
            let text = text.replace("OUTSIDE", outside.to_str().unwrap());
            let config = ws.text(".git/config");
            ws.write(".git/config", config + &text);
        }
    };
    let texts = [
        "[core]\n\tworktree = OUTSIDE\n",
        "[core]\n\tworktree = ../../outside\n",
        "[core]\n\tworktree = OUTSIDE/pipe\n",
        "[core]\n\tbare = true\n",
        "[include]\n\tpath = OUTSIDE/pipe\n",
        "[include]\n\tpath = OUTSIDE/secret\n",
        "[include]\n\tpath = /dev/zero\n",
        "[include]\n\tpath = config\n",
        "[includeIf \"gitdir:**\"]\n\tpath = OUTSIDE/pipe\n",
        "[includeIf \"hasconfig:remote.*.url:**\"]\n\tpath = OUTSIDE/pipe\n",
        "[core]\n\texcludesFile = OUTSIDE/pipe\n\tattributesFile = OUTSIDE/pipe\n",
        "[core]\n\thooksPath = OUTSIDE/pipe\n\tfsmonitor = OUTSIDE/pipe\n",
        "[url \"ext::sh -c false \"]\n\tinsteadOf = https://\n\tpushInsteadOf = https://\n\
         [remote \"origin\"]\n\turl = https://example.invalid/x\n\tpushurl = /nowhere\n\
         [http]\n\tproxy = http://127.0.0.1:1\n\tsslVerify = false\n\textraHeader = X: y\n",
    ];
    for (at, text) in texts.into_iter().enumerate() {
        if !is_chosen(text, 4) {
            continue;
        }
        Harmed::new(text, ordinary(), at % 2 == 0, &configured(text)).answers(Right);
    }
}

/// Makes one of [`IN_ITS_PLACE`] at a path outside of the workspace.
fn trap_at(path: &Path, kind: usize) {
    let (_, make) = IN_ITS_PLACE[kind];
    make(path);
}

/// The path of a loose object in `.git`, by what git calls it.
fn loose(ws: &TestWorkspace, name: &str) -> String {
    let id = ws.git(["rev-parse", name]);
    format!("objects/{}/{}", &id[..2], &id[2..])
}

#[test]
fn links_among_objects_and_refs_are_not_followed() {
    let link_out = |ws: &TestWorkspace, name: &str| {
        let elsewhere = ws.outside().join("elsewhere");
        fs::rename(ws.path(format!(".git/{name}")), &elsewhere).unwrap();
        symlink(&elsewhere, ws.path(format!(".git/{name}"))).unwrap();
    };
    for (name, answer) in [
        ("objects", HOSTILE),
        ("objects/pack", HOSTILE),
        ("objects/info", HOSTILE),
        ("refs", HOSTILE),
        ("refs/heads", HOSTILE),
        ("refs/heads/main", HOSTILE),
        ("refs/tags", Right),
    ] {
        let what = format!("a link in the place of {name}");
        if !is_chosen(&what, 4) {
            continue;
        }
        meets(&what, ordinary, &|ws| link_out(ws, name), answer);
    }
    // Of a file's object it is only looked for if the store has it not.
    for (object, at_first) in [
        ("HEAD", Right),
        ("HEAD^{tree}", Right),
        ("HEAD:d/file", HOSTILE),
    ] {
        let damage = |ws: &TestWorkspace| {
            let path = loose(ws, object);
            link_out(ws, path.rsplit_once('/').unwrap().0);
        };
        Harmed::new(object, ordinary(), true, &damage).answers(Right);
        Harmed::new(object, ordinary(), false, &damage).answers(at_first);
    }
}

#[test]
fn alternates_that_lead_nowhere_in_a_circle_or_far_do_not_matter() {
    let chain = |ws: &TestWorkspace| {
        let at = |n: usize| ws.outside().join(format!("{n}"));
        for n in 0..40 {
            fs::create_dir_all(at(n).join("info")).unwrap();
            let next = format!("{}\n", at(n + 1).display());
            fs::write(at(n).join("info/alternates"), next).unwrap();
        }
        let first = format!("{}\n", at(0).display());
        ws.write(".git/objects/info/alternates", first);
    };
    let long = Refused(&["LimitExceeded"]);
    meets("a long chain", ordinary, &chain, long);
    for text in [
        "/nonexistent\n",
        ".\n",
        "../../../../../etc\n",
        "/dev/zero\n",
        "\0\n\"\n",
    ] {
        let damage = |ws: &TestWorkspace| ws.write(".git/objects/info/alternates", text);
        let is_malformed = text.contains('"');
        let answer = if is_malformed { UNREADABLE } else { Right };
        meets(text, ordinary, &damage, answer);
    }
}

#[test]
fn damaged_and_missing_loose_objects_do_not_matter() {
    // `blob 1099511627776`, and one byte.
    let lying = b"\x78\x9c\x4b\xca\xc9\x4f\x52\x30\x34\xb0\xb4\x34\x35\x34\x34\x33\x32\x37\x37\x37\x63\xa8\x00\x00\x38\x6b\x04\xe5";
    let damages: [(&str, Option<&[u8]>); 5] = [
        ("missing", None),
        ("empty", Some(b"")),
        ("zeroed", Some(&[0; 100])),
        ("cut short", Some(b"x\x9c\x03\x00\x00\x00\x00\x01")),
        ("with a lying header", Some(lying)),
    ];
    for (kind, content) in damages {
        for object in ["HEAD", "HEAD^{tree}", "HEAD:d", "HEAD:d/file"] {
            let what = format!("{object}, {kind}");
            let damage = |ws: &TestWorkspace| {
                let path = format!(".git/{}", loose(ws, object));
                ws.remove(&path);
                if let Some(content) = content {
                    ws.write(&path, content);
                }
            };
            if !is_chosen(&what, 4) {
                continue;
            }
            let has_snapshots = object == "HEAD:d/file" || kind == "empty";
            Harmed::new(&what, ordinary(), has_snapshots, &damage).answers(Right);
        }
    }
}

#[test]
fn a_damaged_object_of_what_is_to_be_captured_is_not_taken_for_it() {
    // As git would name the content that is new.
    let damage = |ws: &TestWorkspace| {
        for name in ["README", "new"] {
            let id = ws.git(["hash-object", "--no-filters", name]);
            let path = format!(".git/objects/{}/{}", &id[..2], &id[2..]);
            ws.write(path, "garbage");
        }
    };
    meets("garbage where new content goes", ordinary, &damage, Right);
}

#[test]
fn damaged_packs_and_their_indexes_do_not_matter() {
    let each = |ws: &TestWorkspace, end: &str, damage: Harm<'_>| {
        let mut count = 0;
        for entry in walkdir::WalkDir::new(ws.path(".git/objects")) {
            let path = entry.unwrap().into_path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if name.ends_with(end) {
                // A new file: what the store has borrowed is the old one.
                let sound = fs::read(&path).unwrap();
                fs::remove_file(&path).unwrap();
                fs::write(&path, sound).unwrap();
                damage(&path);
                count += 1;
            }
        }
        assert!(count > 0, "there is one that ends with {end}");
    };
    let harms: [(&str, Harm<'_>); 4] = [
        ("missing", &|path| fs::remove_file(path).unwrap()),
        ("empty", &|path| fs::write(path, "").unwrap()),
        ("cut short", &|path| {
            let half = fs::metadata(path).unwrap().len() / 2;
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_len(half).unwrap();
        }),
        ("flipped", &|path| {
            let mut bytes = fs::read(path).unwrap();
            for at in (8..bytes.len()).step_by(64) {
                bytes[at] ^= 0x10;
            }
            fs::write(path, bytes).unwrap();
        }),
    ];
    let made = packed();
    for end in [
        ".pack",
        ".idx",
        "multi-pack-index",
        "commit-graph",
        ".bitmap",
    ] {
        for (at, (kind, harm)) in harms.into_iter().enumerate() {
            let what = format!("{end}, {kind}");
            if !is_chosen(&what, 4) {
                continue;
            }
            let damage = |ws: &TestWorkspace| each(ws, end, harm);
            Harmed::new(&what, copy_of(&made), at % 2 == 1, &damage).answers(Right);
        }
    }
}

/// Writes an object into the repository whatever it holds, and answers with its id.
fn hash_object(ws: &TestWorkspace, kind: &str, content: &[u8]) -> String {
    let args = ["hash-object", "-t", kind, "--literally", "-w", "--stdin"];
    let output = ws.git_call(args).stdin(content).run().ok();
    output.stdout_text().trim().to_owned()
}

/// Lets the branch name a commit of this tree.
fn commit_tree(ws: &TestWorkspace, tree: &str) {
    let text = format!("tree {tree}\nauthor a <a@b> 0 +0000\ncommitter a <a@b> 0 +0000\n\nx\n");
    let id = hash_object(ws, "commit", text.as_bytes());
    ws.write(".git/refs/heads/main", format!("{id}\n"));
}

/// An entry of a tree.
fn entry(mode: &str, name: &[u8], id: &str) -> Vec<u8> {
    let id = data_encoding::HEXLOWER.decode(id.as_bytes()).unwrap();
    [mode.as_bytes(), b" ", name, b"\0", &id].concat()
}

#[test]
fn trees_that_no_git_would_make_do_not_matter() {
    let bomb = |ws: &TestWorkspace| {
        let blob = hash_object(ws, "blob", b"x");
        let names: Vec<String> = (0..10).map(|n| format!("{n}")).collect();
        let level = |mode: &str, id: &str| -> Vec<u8> {
            let entries = names.iter().map(|name| entry(mode, name.as_bytes(), id));
            entries.collect::<Vec<_>>().concat()
        };
        let mut id = hash_object(ws, "tree", &level("100644", &blob));
        for _ in 0..12 {
            id = hash_object(ws, "tree", &level("40000", &id));
        }
        commit_tree(ws, &id);
    };
    meets("a tree of 10^13 files", ordinary, &bomb, Right);
    let odd = |names: Entries| {
        move |ws: &TestWorkspace| {
            let blob = hash_object(ws, "blob", b"x");
            let empty = hash_object(ws, "tree", b"");
            let entries = names.iter().map(|(mode, name)| {
                let id = if *mode == "40000" { &empty } else { &blob };
                entry(mode, name, id)
            });
            let tree = entries.collect::<Vec<_>>().concat();
            let id = hash_object(ws, "tree", &tree);
            commit_tree(ws, &id);
        }
    };
    let cases: [(&str, Entries); 6] = [
        ("up and out", &[("100644", b".."), ("100644", b"../x")]),
        ("absolute", &[("100644", b"/etc/passwd")]),
        ("twice", &[("100644", b"a"), ("100644", b"a")]),
        ("unsorted", &[("100644", b"b"), ("100644", b"a")]),
        ("file and directory", &[("100644", b"a"), ("40000", b"a")]),
        ("a git directory", &[("40000", b".git"), ("100644", b"")]),
    ];
    for (at, (what, names)) in cases.into_iter().enumerate() {
        Harmed::new(what, ordinary(), at % 2 == 0, &odd(names)).answers(Right);
    }
}

/// What stands in an index for a path: mode, id, path.
type Staged<'a> = (u32, &'a str, &'a [u8]);

/// A sparse index without a checksum, which git takes, with these entries, in this order. Those
/// that are directories are left out of the work tree.
fn index_of(entries: &[Staged<'_>]) -> Vec<u8> {
    let count = u32::try_from(entries.len()).unwrap();
    let header = [
        b"DIRC".as_slice(),
        &3_u32.to_be_bytes(),
        &count.to_be_bytes(),
    ];
    let mut bytes = header.concat();
    for (mode, id, path) in entries {
        let start = bytes.len();
        bytes.extend([0; 24]);
        bytes.extend(mode.to_be_bytes());
        bytes.extend([0; 12]);
        bytes.extend(data_encoding::HEXLOWER.decode(id.as_bytes()).unwrap());
        let is_directory = *mode == 0o040_000;
        let is_extended = if is_directory { 0x4000 } else { 0 };
        let length = u16::try_from(path.len()).unwrap();
        bytes.extend((length | is_extended).to_be_bytes());
        if is_directory {
            let skip_worktree = 0x4000_u16;
            bytes.extend(skip_worktree.to_be_bytes());
        }
        bytes.extend(*path);
        // One to eight bytes of zeros end an entry at a multiple of eight.
        let length = bytes.len() - start;
        bytes.resize(start + (length / 8 + 1) * 8, 0);
    }
    bytes.extend(b"sdir");
    bytes.extend([0; 4]);
    bytes.extend([0; 20]);
    bytes
}

#[test]
fn a_sparse_directory_of_any_number_of_files_is_refused_at_once() {
    let bomb = |levels: usize, directories: usize| {
        move |ws: &TestWorkspace| {
            let blob = hash_object(ws, "blob", b"x");
            let mut id = blob.clone();
            for level in 0..levels {
                let mode = if level == 0 { "100644" } else { "40000" };
                let names = (0..10).map(|n| entry(mode, format!("{n}").as_bytes(), &id));
                id = hash_object(ws, "tree", &names.collect::<Vec<_>>().concat());
            }
            let paths: Vec<String> = (0..directories).map(|n| format!("big{n:04}/")).collect();
            let mut entries: Vec<Staged<'_>> = vec![(0o100_644, &blob, b"README")];
            entries.extend(paths.iter().map(|path| (0o040_000, &*id, path.as_bytes())));
            ws.git(["config", "core.sparseCheckout", "true"]);
            ws.git(["config", "core.sparseCheckoutCone", "true"]);
            ws.git(["config", "index.sparse", "true"]);
            ws.write(".git/index", index_of(&entries));
        }
    };
    meets("one of 10^13", ordinary, &bomb(13, 1), LIMITED);
    // It takes as long as the ten million that are looked at do: minutes, in a program that is built
    // for tests.
    if is_long() {
        Harmed::new("2,000 of 10^4", ordinary(), false, &bomb(4, 2000)).answers(LIMITED);
    }
    // It is the number that is refused, and not that they are sparse.
    let ws = ordinary();
    bomb(2, 3)(&ws);
    let snapshot = ws.snapshot();
    assert_eq!(snapshot.omitted("big0002/9/9").as_deref(), Some("sparse"));
}

#[test]
fn an_index_with_paths_that_lead_out_leads_nowhere() {
    let cases: [&[&[u8]]; 9] = [
        &[b"../outside/victim"],
        &[b"/etc/passwd"],
        &[b".git/config"],
        &[b"d/../../outside/victim"],
        &[b"d//file"],
        &[b""],
        &[b"README", b"README"],
        &[b"new", b"README"],
        &[b"d", b"d/file"],
    ];
    for paths in cases {
        let ws = ordinary();
        fs::write(ws.outside().join("victim"), "not ours\n").unwrap();
        let first = ws.snapshot();
        let captured = view::worktree(ws.root());
        ws.write("README", "edited\n");
        let blob = hash_object(&ws, "blob", b"x");
        let entries: Vec<Staged<'_>> = paths.iter().map(|p| (0o100_644, &*blob, *p)).collect();
        ws.write(".git/index", index_of(&entries));
        let what = format!("{:?}", paths.concat().escape_ascii().to_string());
        let outside = (view::worktree(&ws.outside()), view::times(&ws.outside()));
        let output = at_once(&ws, &what, &["snapshot"]);
        if output.code == 0 {
            // Whatever the index says of them, the files are what lies there.
            let snapshot = Snap::of(&output.json());
            let listing = oracle::stored_listing(&ws, snapshot.tree());
            let stored: Vec<&[u8]> = listing.entries.iter().map(|e| e.path.as_slice()).collect();
            assert_eq!(stored, [&b"README"[..], b"d/file"], "{what}");
        } else {
            refused(&output, &["Unreadable", "Corrupt"], &what);
        }
        ws.restore(&first);
        view::same(&captured, &view::worktree(ws.root()), &what);
        ws.undo();
        assert_eq!(ws.text("README"), "edited\n", "{what}");
        proven(&ws, &what);
        assert!(outside == (view::worktree(&ws.outside()), view::times(&ws.outside())));
    }
}

#[test]
fn no_hook_of_any_name_runs() {
    const HOOKS: &str = "applypatch-msg pre-applypatch post-applypatch pre-commit pre-merge-commit \
        prepare-commit-msg commit-msg post-commit pre-rebase post-checkout post-merge pre-push \
        pre-receive update proc-receive post-receive post-update reference-transaction \
        push-to-checkout pre-auto-gc post-rewrite sendemail-validate fsmonitor-watchman \
        p4-changelist p4-prepare-changelist p4-post-changelist p4-pre-submit post-index-change";
    let ws = ordinary();
    let canary = Canary::new(&ws);
    for hook in HOOKS.split_whitespace() {
        let program = canary.program(hook, "exit 0");
        ws.symlink(format!(".git/hooks/{hook}"), program);
    }
    ws.git(["commit", "-q", "--allow-empty", "-m", "x"]);
    assert_ne!(canary.fired(), "", "git itself runs into them");
    canary.reset();
    let first = ws.snapshot();
    ws.write("README", "edited\n");
    ws.json(["diff", first.id(), "now", "--patch"]);
    ws.restore(&first);
    ws.undo();
    // The branch and the index go back without a word to any of them.
    let tip = ws.git(["rev-parse", "HEAD~1"]);
    canary.reset();
    let script = format!("echo {tip} > .git/refs/heads/main; rm .git/index; exit 1");
    let run = ws.run(["--rollback-on-failure"], &script).exits(1).json();
    assert_eq!(run["workspace"]["rollback"]["status"], "completed", "{run}");
    assert_ne!(ws.text(".git/refs/heads/main").trim(), tip);
    assert!(ws.exists(".git/index"));
    ws.json(["verify"]);
    ws.json(["gc", "--keep", "100"]);
    assert_eq!(canary.fired(), "");
}

#[test]
fn a_linked_worktree_that_is_led_to_another_repository_leaves_it_alone() {
    let linked = || {
        let mut ws = ordinary();
        ws.git(["worktree", "add", "-q", "../linked"]);
        ws.set_root("linked");
        ws.git_in("outside", ["init", "-q", "other"]);
        ws.git_in(
            "outside/other",
            ["commit", "-q", "--allow-empty", "-m", "other"],
        );
        ws
    };
    let other = |ws: &TestWorkspace| ws.outside().join("other/.git");
    let places: [(&str, Damage<'_>); 4] = [
        ("commondir", &|ws| {
            let file = ws.base().join("work/.git/worktrees/linked/commondir");
            fs::write(file, format!("{}\n", other(ws).display())).unwrap();
        }),
        ("gitdir", &|ws| {
            let file = ws.base().join("work/.git/worktrees/linked/gitdir");
            fs::write(file, format!("{}\n", other(ws).display())).unwrap();
        }),
        ("a worktree of another name", &|ws| {
            let entry = ws.base().join("work/.git/worktrees/linked");
            fs::rename(&entry, ws.outside().join("entry")).unwrap();
            let entry = ws.outside().join("entry");
            ws.write(".git", format!("gitdir: {}\n", entry.display()));
        }),
        ("no commondir", &|ws| {
            let entry = ws.base().join("work/.git/worktrees/linked");
            fs::write(entry.join("commondir"), "/nonexistent\n").unwrap();
        }),
    ];
    for (what, damage) in places {
        let answer = Refused(&["HostileRepository", "Unreadable"]);
        Harmed::new(what, linked(), true, damage).answers(answer);
        Harmed::new(what, linked(), false, damage).answers(answer);
    }
}

#[test]
fn a_repository_in_a_format_that_nobody_here_reads_is_told_from_none() {
    for text in [
        "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tunheardOf = true\n",
        "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tobjectFormat = sha256\n",
        "[core]\n\trepositoryformatversion = 1\n[extensions]\n\trefStorage = reftable\n",
        "[core]\n\trepositoryformatversion = 7\n",
    ] {
        let ws = ordinary();
        let first = ws.snapshot();
        let captured = view::worktree(ws.root());
        ws.write("README", "edited\n");
        let config = ws.text(".git/config");
        ws.write(".git/config", config + text);
        let output = at_once(&ws, text, &["snapshot", "--strategy", "git"]);
        refused(&output, &["Unsupported"], text);
        let plain = Snap::of(&at_once(&ws, text, &["snapshot"]).ok().json());
        assert_eq!(plain.json["backend"], "hash", "{text}");
        let warnings = &plain.json["metadata"]["warnings"];
        assert!(!warnings.as_array().unwrap().is_empty(), "{warnings}");
        let diff = at_once(&ws, text, &["diff", first.id(), "now"]).ok().json();
        assert_eq!(json::names(&diff["changed_paths"]), ["README"], "{text}");
        ws.restore(&first);
        view::same(&captured, &view::worktree(ws.root()), text);
        ws.undo();
        assert_eq!(ws.text("README"), "edited\n", "{text}");
        proven(&ws, text);
    }
}

#[test]
fn a_repository_that_comes_to_belong_to_somebody_else_is_not_read() {
    if !capability::is_root() {
        return;
    }
    let give_away = |ws: &TestWorkspace| {
        for entry in walkdir::WalkDir::new(ws.path(".git")) {
            let path = entry.unwrap().into_path();
            std::os::unix::fs::lchown(path, Some(4242), Some(4242)).unwrap();
        }
    };
    meets("given away", ordinary, &give_away, HOSTILE);
}

#[test]
fn a_repository_that_is_gone_or_rewritten_costs_no_snapshot() {
    let rewrite = |ws: &TestWorkspace| {
        ws.git(["checkout", "-q", "--orphan", "fresh"]);
        ws.git(["rm", "-r", "-f", "-q", "--cached", "."]);
        ws.git(["commit", "-q", "--allow-empty", "-m", "nothing"]);
        ws.git(["branch", "-D", "main"]);
        ws.git(["reflog", "expire", "--expire=now", "--all"]);
        ws.git(["gc", "-q", "--prune=now"]);
    };
    Harmed::new("rewritten", packed(), true, &rewrite).answers(Right);

    let ws = packed();
    let first = ws.snapshot();
    let captured = view::worktree(ws.root());
    ws.write("README", "edited\n");
    let second = ws.snapshot();
    ws.remove(".git");
    let plain = ws.json(["snapshot"]);
    assert_eq!(plain["backend"], "hash", "it is a plain directory by now");
    let diff = ws.json(["diff", first.id(), second.id(), "--patch"]);
    assert_eq!(json::names(&diff["changed_paths"]), ["README"]);
    proven(&ws, "without the repository");
    ws.restore(&first);
    view::same(&captured, &view::worktree(ws.root()), "without it");
    ws.undo();
    assert_eq!(ws.text("README"), "edited\n");
    proven(&ws, "without the repository");
}

#[test]
fn a_state_directory_that_others_may_write_in_is_closed_before_it_is_used() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let ws = ordinary();
    let first = ws.snapshot();
    let open = |path: &Path| {
        let wide = fs::Permissions::from_mode(0o777);
        fs::set_permissions(path, wide).unwrap();
    };
    for args in [&["snapshot"][..], &["verify"], &["diff", first.id(), "now"]] {
        open(&ws.state());
        for store in ws.stores() {
            open(&store);
        }
        let output = ws.try_json(args);
        if output.code == 0 {
            let mode = fs::metadata(ws.state()).unwrap().mode() & 0o7777;
            assert_eq!(mode, 0o700, "{args:?}");
        } else {
            let kind = output.json()["error"]["kind"].clone();
            assert_eq!(kind, "InvalidOptions", "{output}");
        }
    }
}

#[test]
fn a_run_that_harms_its_repository_is_taken_back_as_far_as_it_can_be() {
    for (script, is_whole) in [
        ("rm .git/HEAD; mkfifo .git/HEAD", false),
        ("rm .git/index; ln -s /dev/zero .git/index", false),
        ("rm -rf .git/objects", false),
        ("rm -rf .git", false),
        ("rm -rf .git; mkfifo .git", false),
        (
            "printf '[include]\n\tpath = /dev/zero\n' >> .git/config",
            true,
        ),
        ("rm .git/index", true),
    ] {
        let ws = ordinary();
        let before = view::worktree(ws.root());
        let script = format!("echo edited > README; {script}; exit 3");
        let output = ws.run(["--rollback-on-failure"], &script);
        assert!(output.took < AT_ONCE, "{script}: {:?}", output.took);
        let run = output.json();
        assert_eq!(run["exit_code"], 3, "{script}: the command's own: {run}");
        let rollback = &run["workspace"]["rollback"];
        if is_whole {
            assert_eq!(rollback["status"], "completed", "{script}: {run}");
            assert!(rollback["error"].is_null(), "{script}: {run}");
        } else {
            let told = !rollback["error"].is_null() || !run["error"].is_null();
            assert!(told, "{script}: what is not as before is said: {run}");
        }
        view::same(&before, &view::worktree(ws.root()), &script);
        proven(&ws, &script);
    }
}
