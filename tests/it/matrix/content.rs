//! What lies in a workspace, and what becomes of it.
//!
//! One scene is what a snapshot meets and what is done to it afterwards. With both backends the
//! snapshot is held against git and a naive walker, proven, compared with what came of the
//! workspace, restored, proven again, and undone; beside the workspace nothing changes meanwhile.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use stillframe_tests::capability::{self, Capability, Mounts};
use stillframe_tests::view::View;
use stillframe_tests::{Snap, TestWorkspace, json, oracle, view};

/// What a snapshot meets, what is done to it, and what is left out or kept on the way.
struct Scene {
    name: &'static str,
    /// Makes what the snapshot meets, beside `README`, which is committed.
    before: fn(&TestWorkspace),
    /// What the workspace goes through between the snapshot and everything else.
    after: fn(&TestWorkspace),
    /// What the snapshot leaves out, with the reason, but for what is called `.git`.
    left_out: &'static [(&'static str, &'static str)],
    /// The paths that the comparison names.
    changed: &'static [&'static str],
    /// What a restore leaves as it is.
    stays: &'static [&'static str],
    /// What of that it names in `skipped`.
    skipped: &'static [&'static str],
    /// What an undo of the restore cannot bring back.
    lost: &'static [&'static str],
    /// Whether git itself can be asked for the tree, and for what a patch does.
    asks_git: bool,
    /// The backends that it is played with.
    backends: &'static [&'static str],
}

/// A scene in which everything is captured, and everything comes back.
const ORDINARY: Scene = Scene {
    name: "",
    before: |_| {},
    after: |_| {},
    left_out: &[],
    changed: &[],
    stays: &[],
    skipped: &[],
    lost: &[],
    asks_git: true,
    backends: &["git", "hash"],
};

const SCENES: &[Scene] = &[
    Scene {
        name: "pipes_sockets_and_devices",
        before: |ws| {
            ws.mkfifo("pipe");
            ws.mkfifo("d/pipe");
            ws.socket("socket");
        },
        after: |ws| {
            ws.write("README", "edited\n");
            ws.mkfifo("d/another");
            ws.write("d/new", "x\n");
        },
        left_out: &[
            ("d/pipe", "special"),
            ("pipe", "special"),
            ("socket", "special"),
        ],
        changed: &["README", "d/another", "d/new"],
        stays: &["d/another"],
        skipped: &["d/another"],
        ..ORDINARY
    },
    Scene {
        name: "pipes_in_the_place_of_rules",
        before: |ws| {
            ws.mkfifo(".gitignore");
            ws.mkfifo(".gitattributes");
            ws.mkfifo("d/.gitignore");
            ws.socket("d/.gitattributes");
            ws.write("d/a.log", "x\n");
        },
        after: |ws| ws.write("d/a.log", "edited\n"),
        left_out: &[
            (".gitattributes", "special"),
            (".gitignore", "special"),
            ("d/.gitattributes", "special"),
            ("d/.gitignore", "special"),
        ],
        changed: &["d/a.log"],
        ..ORDINARY
    },
    Scene {
        name: "links_in_the_place_of_rules",
        before: |ws| {
            fs::write(ws.outside().join("rules"), "*\n").unwrap();
            ws.symlink(".gitignore", "/dev/zero");
            ws.symlink(".gitattributes", "/dev/zero");
            ws.symlink("d/.gitignore", "../../outside/rules");
            ws.symlink("d/.gitattributes", "../../outside/rules");
            ws.write("d/a.log", "x\n");
        },
        after: |ws| {
            ws.write("d/a.log", "edited\n");
            ws.remove("d/.gitignore");
        },
        changed: &["d/.gitignore", "d/a.log"],
        ..ORDINARY
    },
    Scene {
        name: "rules_that_are_too_large",
        before: |ws| {
            ws.write(".gitignore", "*\n".repeat(1 << 20));
            ws.write("d/.gitignore", "*.log\n");
            ws.write("d/a.log", "x\n");
            ws.write("d/a", "x\n");
        },
        after: |ws| {
            ws.write("d/a.log", "edited\n");
            ws.write("d/a", "edited\n");
            ws.remove(".gitignore");
        },
        left_out: &[("d/a.log", "ignored")],
        changed: &[".gitignore", "d/a"],
        stays: &["d/a.log"],
        asks_git: false,
        backends: &["git"],
        ..ORDINARY
    },
    Scene {
        name: "aliases_of_a_git_directory",
        before: |ws| {
            for name in ALIASES {
                ws.write(name, "x\n");
            }
            ws.write("..git", "x\n");
            ws.write(".gitx", "x\n");
        },
        after: |ws| {
            for name in ALIASES {
                ws.write(name, "edited\n");
            }
            ws.write("..git", "edited\n");
            ws.remove(".gitx");
        },
        left_out: &[
            (".GIT", "unrepresentable"),
            (".Git", "unrepresentable"),
            (".git ", "unrepresentable"),
            (".git.", "unrepresentable"),
            (".git::$INDEX_ALLOCATION", "unrepresentable"),
            (".g\u{200c}it", "unrepresentable"),
            ("git~1", "unrepresentable"),
            ("sub/.gIt", "unrepresentable"),
            ("sub/GIT~1", "unrepresentable"),
        ],
        changed: &["..git", ".gitx"],
        stays: ALIASES,
        // Those that are files were seen to be others than then.
        skipped: &[
            ".GIT",
            ".git ",
            ".git.",
            ".git::$INDEX_ALLOCATION",
            ".g\u{200c}it",
            "git~1",
            "sub/.gIt",
        ],
        asks_git: false,
        backends: &["git"],
        ..ORDINARY
    },
    Scene {
        name: "a_directory_that_becomes_a_link_to_outside",
        before: |ws| {
            fs::write(ws.outside().join("victim"), "not ours\n").unwrap();
            ws.write("dir/victim", "captured\n");
            ws.write("dir/below/gone", "captured\n");
        },
        after: |ws| {
            ws.remove("dir");
            ws.symlink("dir", "../outside");
        },
        changed: &["dir", "dir/below/gone", "dir/victim"],
        ..ORDINARY
    },
    Scene {
        name: "a_link_to_outside_that_becomes_a_directory",
        before: |ws| {
            fs::write(ws.outside().join("victim"), "not ours\n").unwrap();
            ws.symlink("dir", "../outside");
        },
        after: |ws| {
            ws.remove("dir");
            ws.write("dir/victim", "another\n");
        },
        changed: &["dir", "dir/victim"],
        ..ORDINARY
    },
    Scene {
        name: "files_and_links_that_take_each_others_place",
        before: |ws| {
            fs::write(ws.outside().join("target"), "not ours\n").unwrap();
            ws.write("file", "captured\n");
            ws.symlink("link", "../outside/target");
        },
        after: |ws| {
            ws.remove("file");
            ws.symlink("file", "../outside/target");
            ws.remove("link");
            ws.write("link", "a file\n");
        },
        changed: &["file", "link"],
        ..ORDINARY
    },
    Scene {
        name: "a_file_with_another_name_outside",
        before: |ws| {
            ws.write("linked", "captured\n");
            ws.hard_link("linked", &ws.outside().join("other-name"));
        },
        after: |ws| ws.write("linked", "written through both names\n"),
        changed: &["linked"],
        ..ORDINARY
    },
    Scene {
        name: "pipes_and_sockets_where_files_were",
        before: |ws| {
            ws.write("socket", "x\n");
            ws.write("dir/file", "y\n");
            ws.symlink("link", "README");
        },
        after: |ws| {
            for name in ["README", "dir", "link"] {
                ws.remove(name);
                ws.mkfifo(name);
            }
            ws.remove("socket");
            ws.socket("socket");
        },
        changed: &["README", "dir", "dir/file", "link", "socket"],
        asks_git: false,
        ..ORDINARY
    },
    Scene {
        name: "a_full_directory_where_a_file_was",
        before: |ws| ws.write("place", "a file\n"),
        after: |ws| {
            ws.remove("place");
            ws.write("place/untracked", "x\n");
            ws.write("place/below/more", "y\n");
        },
        changed: &["place", "place/below/more", "place/untracked"],
        ..ORDINARY
    },
    Scene {
        name: "a_file_where_a_directory_was",
        before: |ws| {
            ws.write("place/untracked", "x\n");
            ws.write("place/below/more", "y\n");
        },
        after: |ws| {
            ws.remove("place");
            ws.write("place", "a file\n");
        },
        changed: &["place", "place/below/more", "place/untracked"],
        ..ORDINARY
    },
    Scene {
        name: "a_nested_repository_without_a_commit",
        before: |ws| {
            ws.write("nested/file", "x\n");
            ws.git_in("work/nested", ["init", "-q"]);
        },
        after: |ws| {
            ws.write("nested/file", "edited\n");
            ws.write("nested/new", "x\n");
        },
        changed: &["nested/file", "nested/new"],
        ..ORDINARY
    },
    Scene {
        name: "a_nested_repository_with_edited_files",
        before: |ws| {
            ws.write("nested/file", "x\n");
            ws.write("nested/gone", "x\n");
            ws.git_in("work/nested", ["init", "-q"]);
            ws.git_in("work/nested", ["add", "-A"]);
            ws.git_in("work/nested", ["commit", "-q", "-m", "nested"]);
            ws.write("nested/file", "edited, and nowhere else\n");
        },
        after: |ws| {
            ws.write("nested/file", "edited again\n");
            ws.remove("nested/gone");
        },
        changed: &["nested/file", "nested/gone"],
        ..ORDINARY
    },
    Scene {
        name: "a_git_file_that_points_to_another_repository",
        before: |ws| {
            ws.git_in("outside", ["init", "-q", "other"]);
            let other = ws.outside().join("other/.git");
            ws.write("pointer/.git", format!("gitdir: {}\n", other.display()));
            ws.write("pointer/file", "x\n");
            ws.symlink("linked/.git", other.to_str().unwrap());
            ws.write("linked/file", "x\n");
        },
        after: |ws| {
            ws.write("pointer/file", "edited\n");
            ws.remove("linked/file");
        },
        changed: &["linked/file", "pointer/file"],
        ..ORDINARY
    },
    Scene {
        name: "names_as_on_any_file_system",
        before: |ws| {
            for name in ODD_NAMES {
                ws.write(name, "x\n");
            }
        },
        after: |ws| {
            for (at, name) in ODD_NAMES.iter().enumerate() {
                match at % 2 {
                    0 => ws.remove(name),
                    _ => ws.write(name, "edited\n"),
                }
            }
        },
        // Sorted by bytes, escaped.
        changed: &[
            "\\x1b[31mred",
            " leading",
            "\\\"quoted\\\"",
            "--json",
            "-dash",
            "*",
            "CON",
            "a:b",
            "back\\\\slash",
            "d\\xff/\\x80",
            "new\\nline",
            "tab\\t",
            "trailing ",
            "trailing.",
        ],
        ..ORDINARY
    },
    Scene {
        name: "rules_that_come_to_ignore_everything",
        before: |ws| {
            ws.write(".gitignore", "*.log\n");
            ws.write("old", "captured\n");
            ws.write("d/old", "captured\n");
        },
        after: |ws| {
            ws.write(".gitignore", "*\n");
            ws.write("old", "edited\n");
            ws.remove("d/old");
            ws.write("hidden", "new\n");
        },
        changed: &[".gitignore", "d/old", "old"],
        stays: &["hidden"],
        asks_git: false,
        backends: &["git"],
        ..ORDINARY
    },
    Scene {
        name: "attributes_that_ask_for_other_bytes",
        before: |ws| {
            ws.write(
                ".gitattributes",
                "*.txt text eol=crlf\n*.id ident\n*.u16 working-tree-encoding=UTF-16\n\
                 *.f filter=missing\n*.sub export-subst\n",
            );
            ws.write("a.txt", "mixed\r\nends\n");
            ws.write("a.id", "$Id: filled in $\n");
            ws.write("a.u16", b"\xff\xfeh\0i\0");
            ws.write("a.f", "raw\n");
            ws.write("a.sub", "$Format:%H$\n");
            ws.git(["add", ".gitattributes"]);
        },
        after: |ws| {
            ws.write("a.txt", "mixed\nends\r\n");
            ws.write("a.id", "$Id$\n");
            ws.remove("a.u16");
            ws.write("a.f", "edited\r\n");
            ws.write("a.sub", "$Format:%h$\n");
        },
        changed: &["a.f", "a.id", "a.sub", "a.txt", "a.u16"],
        ..ORDINARY
    },
    Scene {
        name: "files_of_git_lfs",
        before: |ws| {
            let id = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393";
            let pointer = format!(
                "version https://git-lfs.github.com/spec/v1\noid sha256:{id}\nsize 12345\n"
            );
            ws.write(
                ".gitattributes",
                "*.bin filter=lfs diff=lfs merge=lfs -text\n",
            );
            ws.write("pointer.bin", pointer);
            ws.write("real.bin", [0, 1, 2, 255]);
            ws.commit("lfs");
        },
        after: |ws| {
            ws.write("pointer.bin", "checked out\n");
            ws.remove("real.bin");
        },
        changed: &["pointer.bin", "real.bin"],
        ..ORDINARY
    },
    Scene {
        name: "a_gitmodules_that_lies",
        before: |ws| {
            ws.write(
                ".gitmodules",
                "[submodule \"../../x\"]\n\tpath = ../../outside\n\turl = ext::sh -c 'touch fired'\n\
                 \tupdate = !touch fired\n[submodule \"-u\"]\n\tpath = -u\n\turl = --upload-pack=x\n",
            );
        },
        after: |ws| ws.remove(".gitmodules"),
        changed: &[".gitmodules"],
        ..ORDINARY
    },
    Scene {
        name: "permissions_of_every_sort",
        before: |ws| {
            for (name, mode) in [
                ("none", 0o000),
                ("write-only", 0o200),
                ("read-only", 0o444),
                ("tool", 0o711),
            ] {
                ws.write(name, "x\n");
                ws.chmod(name, mode);
            }
            ws.write("shared/file", "x\n");
            ws.chmod("shared", 0o1777);
        },
        after: |ws| {
            for name in ["none", "write-only", "read-only", "tool"] {
                ws.chmod(name, 0o644);
            }
            ws.write("tool", "edited\n");
            ws.remove("none");
            ws.chmod("shared", 0o755);
        },
        changed: &["none", "tool"],
        ..ORDINARY
    },
    Scene {
        name: "empty_directories",
        before: |ws| {
            ws.mkdir("empty/inner");
            ws.mkdir("closed");
            ws.chmod("closed", 0o700);
        },
        after: |ws| {
            ws.remove("empty");
            ws.write("closed/file", "x\n");
            ws.mkdir("new/empty");
        },
        changed: &["closed/file"],
        ..ORDINARY
    },
    Scene {
        name: "files_that_look_like_what_is_kept",
        before: |ws| {
            // The store of another workspace: commits, trees, records and all.
            let other = TestWorkspace::repository();
            other.snapshot();
            let state = other.state();
            for entry in walkdir::WalkDir::new(&state).into_iter().flatten() {
                if entry.file_type().is_file() {
                    let rel = entry.path().strip_prefix(&state).unwrap();
                    let name = format!("state/{}", rel.display()).replace("/git/", "/store/");
                    ws.write(name, fs::read(entry.path()).unwrap());
                }
            }
            let tree = other.git(["rev-parse", "HEAD^{tree}"]);
            ws.write(
                "commit",
                format!("tree {tree}\nauthor a <a@b> 0 +0000\n\nx\n"),
            );
            ws.write("tree", b"40000 .git\0aaaaaaaaaaaaaaaaaaaa");
        },
        after: |ws| {
            ws.write("commit", "edited\n");
            ws.remove("tree");
        },
        changed: &["commit", "tree"],
        ..ORDINARY
    },
    Scene {
        name: "names_like_those_of_temporary_files",
        before: |ws| {
            for name in TEMPORARY_NAMES {
                ws.write(name, "mine\n");
            }
        },
        after: |ws| {
            for name in TEMPORARY_NAMES {
                ws.write(name, "edited\n");
            }
        },
        changed: &[
            ".stillframe",
            ".stillframe-tmp/x",
            ".stillframe.tmp",
            "README.lock",
            "index.lock",
            "journal",
            "staging/0",
            "stillframe.lock",
            "trash",
        ],
        ..ORDINARY
    },
];

const ODD_NAMES: &[&[u8]] = &[
    b"new\nline",
    b"tab\t",
    b"\x1b[31mred",
    b"-dash",
    b"--json",
    b"\"quoted\"",
    b"back\\slash",
    b" leading",
    b"trailing ",
    b"trailing.",
    b"CON",
    b"a:b",
    b"*",
    b"d\xff/\x80",
];

/// What some file system or other takes for `.git`.
const ALIASES: &[&str] = &[
    ".GIT",
    ".Git/config",
    ".git ",
    ".git.",
    ".git::$INDEX_ALLOCATION",
    ".g\u{200c}it",
    "git~1",
    "sub/.gIt",
    "sub/GIT~1/x",
];

const TEMPORARY_NAMES: &[&str] = &[
    ".stillframe",
    ".stillframe-tmp/x",
    ".stillframe.tmp",
    "README.lock",
    "index.lock",
    "journal",
    "staging/0",
    "stillframe.lock",
    "trash",
];

/// Plays a scene with one backend.
fn play(scene: &Scene, backend: &str) {
    let what = format!("{} with {backend}", scene.name);
    let ws = TestWorkspace::repository();
    (scene.before)(&ws);
    let before = view::worktree(ws.root());
    let before_copy = ws.copy();

    let options = ["--strategy", backend, "--retain-content"];
    let first = ws.untouched(|| ws.snapshot_with(options));
    assert_eq!(first.json["backend"], backend, "{what}");
    let left_out: Vec<(String, String)> = first.omissions();
    let left_out: Vec<(&str, &str)> = left_out
        .iter()
        .map(|(path, reason)| (path.as_str(), reason.as_str()))
        .filter(|(path, _)| *path != ".git" && !path.ends_with("/.git"))
        .collect();
    assert_eq!(left_out, scene.left_out, "{what}");
    if backend == "git" && scene.asks_git {
        assert_eq!(first.tree(), oracle::raw_tree(&ws), "{what}");
    }
    accounts_for_everything(&ws, &first, &what);
    proven(&ws, &[first.id()], &what);

    (scene.after)(&ws);
    let after = view::worktree(ws.root());
    let after_copy = ws.copy();
    ws.settle();
    let outside = (view::worktree(&ws.outside()), view::times(&ws.outside()));
    let diff = ws.untouched(|| ws.json(["diff", first.id(), "now", "--patch"]));
    let named = diff["changed_paths"].as_array().unwrap().iter();
    let mut named: Vec<String> = named
        .map(|path| json::path_bytes(path).escape_ascii().to_string())
        .collect();
    let mut changed = scene.changed.to_vec();
    named.sort();
    changed.sort_unstable();
    assert_eq!(named, changed, "{what}: {diff}");
    if backend == "git" && scene.asks_git {
        let patch = json::patch_bytes(&diff["patch"]);
        oracle::applies(&patch, before_copy.path(), after_copy.path());
    }

    let outcome = ws.restore(&first);
    assert_eq!(json::names_in(&outcome["skipped"]), scene.skipped, "{what}");
    let restored = view::worktree(ws.root());
    view::same(&mixed(&before, &after, scene.stays), &restored, &what);
    let guard = outcome["guard_snapshot"].as_str().unwrap();
    proven(&ws, &[first.id(), guard], &what);

    let undo = ws.undo();
    let told = json::names_in(&undo["skipped"]);
    for lost in scene.lost {
        let is_told = told.iter().any(|path| is_at_or_below(path, lost));
        assert!(is_told, "{what}: {lost} is named: {undo}");
    }
    assert_eq!(told.is_empty(), scene.lost.is_empty(), "{what}: {undo}");
    let undone = mixed(&after, &before, scene.lost);
    view::same(&undone, &view::worktree(ws.root()), &what);
    proven(&ws, &[first.id(), guard], &what);
    assert_eq!(
        (view::worktree(&ws.outside()), view::times(&ws.outside())),
        outside,
        "{what}: nothing beside the workspace is touched"
    );
}

/// Captured plus left out is what a naive walker finds.
fn accounts_for_everything(ws: &TestWorkspace, snapshot: &Snap, what: &str) {
    let view = view::worktree(ws.root());
    let files = view.paths().into_iter();
    let files = files.filter(|path| !view.line_of(path).starts_with("04"));
    let left_out = snapshot.omissions();
    let (covered, seen): (Vec<String>, Vec<String>) = files.partition(|path| {
        left_out
            .iter()
            .any(|(above, _)| is_at_or_below(path, above))
    });
    assert_eq!(
        snapshot.count("files") as usize,
        seen.len(),
        "{what}: beside {covered:?} there are {seen:?}"
    );
}

/// What `most` has, but for these paths and what is below them, which are as `others` has them.
fn mixed(most: &View, others: &View, paths: &[&str]) -> View {
    let is_other = |path: &[u8]| {
        let path = path.escape_ascii().to_string();
        paths.iter().any(|above| is_at_or_below(&path, above))
    };
    most.only(|path| !is_other(path))
        .with(&others.only(is_other))
}

/// Whether `path`, in which what is not ASCII is escaped, is `above` or lies below it.
fn is_at_or_below(path: &str, above: &str) -> bool {
    let above = above.as_bytes().escape_ascii().to_string();
    let below = path.strip_prefix(&above);
    below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// `verify` proves these snapshots among others, and finds nothing.
#[track_caller]
fn proven(ws: &TestWorkspace, ids: &[&str], what: &str) {
    let verdict = ws.json(["verify"]);
    let proven = verdict["snapshots"].as_array().unwrap();
    for id in ids {
        let is_proven = proven.iter().any(|snapshot| snapshot["id"] == *id);
        assert!(is_proven, "{what}: {id} is looked at: {verdict}");
    }
    for snapshot in proven {
        assert_eq!(snapshot["problems"], json!([]), "{what}: {verdict}");
    }
}

macro_rules! scenes {
    ($(fn $name:ident();)*) => {
        $(
            #[test]
            fn $name() {
                let scene = SCENES.iter().find(|s| s.name == stringify!($name));
                let scene = scene.expect("it is a scene");
                for backend in scene.backends {
                    play(scene, backend);
                }
            }
        )*

        #[test]
        fn every_scene_is_played() {
            let played: &[&str] = &[$(stringify!($name)),*];
            for scene in SCENES {
                assert!(played.contains(&scene.name), "{} is not played", scene.name);
            }
        }
    };
}

scenes! {
    fn pipes_sockets_and_devices();
    fn pipes_in_the_place_of_rules();
    fn links_in_the_place_of_rules();
    fn rules_that_are_too_large();
    fn aliases_of_a_git_directory();
    fn a_directory_that_becomes_a_link_to_outside();
    fn a_link_to_outside_that_becomes_a_directory();
    fn files_and_links_that_take_each_others_place();
    fn a_file_with_another_name_outside();
    fn pipes_and_sockets_where_files_were();
    fn a_full_directory_where_a_file_was();
    fn a_file_where_a_directory_was();
    fn a_nested_repository_without_a_commit();
    fn a_nested_repository_with_edited_files();
    fn a_git_file_that_points_to_another_repository();
    fn names_as_on_any_file_system();
    fn rules_that_come_to_ignore_everything();
    fn attributes_that_ask_for_other_bytes();
    fn files_of_git_lfs();
    fn a_gitmodules_that_lies();
    fn permissions_of_every_sort();
    fn empty_directories();
    fn files_that_look_like_what_is_kept();
    fn names_like_those_of_temporary_files();
}

#[test]
fn what_no_permission_lets_in_is_named_and_left_as_it_is() {
    let mut ws = TestWorkspace::repository();
    for name in ["closed/file", "listed/file", "passed/file"] {
        ws.write(name, "x\n");
    }
    ws.write("file", "x\n");
    ws.write("beside", "x\n");
    ws.commit("second");
    if !ws.drop_privileges() {
        let why = "nobody cannot run the program";
        return capability::skipped(Capability::OtherUser, why);
    }
    // Nothing at all; names and nothing more; what one knows the name of and no names.
    let modes = [
        ("closed", 0o000),
        ("listed", 0o444),
        ("passed", 0o111),
        ("file", 0o000),
    ];
    for backend in ["git", "hash"] {
        let options = ["--strategy", backend, "--retain-content"];
        let whole = ws.snapshot_with(options);
        for (name, mode) in modes {
            ws.chmod(name, mode);
        }
        let before = modes.map(|(name, _)| ws.stat(name));
        let snapshot = ws.snapshot_with(options);
        for name in ["closed/file", "listed/file", "passed/file", "file"] {
            let reason = snapshot.covered(name);
            assert_eq!(reason.as_deref(), Some("unreadable"), "{name}: {backend}");
        }
        proven(&ws, &[whole.id(), snapshot.id()], backend);

        ws.write("beside", "edited\n");
        let diff = ws.json(["diff", whole.id(), "now"]);
        let closed = ["closed/file", "file", "listed/file", "passed/file"];
        let changed = json::names(&diff["changed_paths"]);
        assert_eq!(changed, [&["beside"], &closed[..]].concat(), "{diff}");
        assert_eq!(json::names_in(&diff["approximated"]), closed, "{diff}");
        assert_eq!(json::names(&diff["deleted"]), [""; 0], "{diff}");
        let diff = ws.json(["diff", snapshot.id(), "now"]);
        assert_eq!(json::names(&diff["changed_paths"]), ["beside"], "{diff}");
        for target in [&snapshot, &whole] {
            ws.write("beside", "edited\n");
            let outcome = ws.restore(target);
            assert_eq!(ws.text("beside"), "x\n");
            // Of the one whose names can be read the bits are known: they were others. The file is
            // moved aside as it is.
            let expected = ["beside", "file", "listed"];
            let count = if target.id() == whole.id() { 3 } else { 1 };
            let restored = json::names(&outcome["restored"]);
            assert_eq!(restored, expected[..count], "{outcome}");
            ws.undo();
            assert_eq!(ws.text("beside"), "edited\n");
            ws.write("beside", "x\n");
        }
        for ((name, _), old) in modes.iter().zip(&before) {
            let new = ws.stat(name);
            let of = |meta: &fs::Metadata| (meta.ino(), meta.mode(), meta.mtime_nsec());
            assert_eq!(of(&new), of(old), "{name} is as it was");
            let is_untouched = new.ctime_nsec() == old.ctime_nsec();
            let came_back = ["listed", "file"].contains(name);
            assert!(is_untouched || came_back, "{name} is not touched");
        }
        for (name, _) in modes {
            ws.chmod(name, if name == "file" { 0o644 } else { 0o755 });
        }
        proven(&ws, &[whole.id(), snapshot.id()], backend);
    }
}

#[test]
fn what_is_mounted_inside_is_never_entered_whatever_is_mounted() {
    let ws = TestWorkspace::repository();
    for name in ["bound/file", "memory/file", "file"] {
        ws.write(name, "below the mount\n");
    }
    ws.commit("second");
    fs::write(ws.outside().join("file"), "not ours\n").unwrap();
    let whole = ws.snapshot();
    let Some(mounts) = Mounts::new() else { return };
    mounts.tmpfs(&ws.path("memory"), "1m");
    // On the device of the workspace itself, where only the mount tells; and one that is a file.
    let (work, outside) = (ws.root().display(), ws.outside());
    let outside = outside.display();
    mounts.shell(&format!(
        "mount --bind '{outside}' '{work}/bound' && mount --bind '{outside}/file' '{work}/file'"
    ));
    mounts.shell(&format!("echo x > '{work}/memory/inside'"));
    let inside = |args: &[&str]| {
        let call = ws.call(["--json"]).args(args);
        mounts.inside(call, ws.root()).run().ok().json()
    };
    let outside = (view::worktree(&ws.outside()), view::times(&ws.outside()));
    let snapshot = Snap::of(&inside(&["snapshot"]));
    for name in ["bound", "file", "memory"] {
        let reason = snapshot.omitted(name);
        assert_eq!(reason.as_deref(), Some("other_filesystem"), "{name}");
    }
    ws.write("README", "edited\n");
    let diff = inside(&["diff", whole.id(), "now"]);
    assert_eq!(json::names(&diff["changed_paths"]), ["README"], "{diff}");
    for target in [&snapshot, &whole] {
        ws.write("README", "edited\n");
        let outcome = inside(&["restore", target.id()]);
        assert_eq!(outcome["status"], "completed", "{outcome}");
        assert_eq!(ws.text("README"), "hello\n");
        inside(&["undo"]);
        assert_eq!(ws.text("README"), "edited\n");
    }
    let mounted = mounts.path(&ws.path("memory/inside"));
    assert_eq!(fs::read(mounted).unwrap(), b"x\n");
    assert!(
        outside == (view::worktree(&ws.outside()), view::times(&ws.outside())),
        "what is mounted is as it was"
    );
    let verdict = inside(&["verify"]);
    assert!(verdict["snapshots"].as_array().unwrap().len() > 2);
    drop(mounts);
    proven(&ws, &[whole.id(), snapshot.id()], "without the mounts");
    for name in ["bound/file", "memory/file", "file"] {
        assert_eq!(ws.text(name), "below the mount\n", "{name}");
    }
}

/// An extended attribute of a file.
fn attribute(ws: &TestWorkspace, name: &str) -> Option<Vec<u8>> {
    let mut value = [0; 64];
    let size = rustix::fs::lgetxattr(ws.path(name), "user.note", &mut value[..]).ok()?;
    Some(value[..size].to_vec())
}

#[test]
fn extended_attributes_stay_where_something_is_there_already() {
    for backend in ["git", "hash"] {
        let ws = TestWorkspace::repository();
        for name in ["kept", "rewritten", "of-other-mode", "d/kept"] {
            ws.write(name, "x\n");
        }
        for name in ["kept", "rewritten", "of-other-mode", "d", "d/kept"] {
            let flags = rustix::fs::XattrFlags::empty();
            let set = rustix::fs::lsetxattr(ws.path(name), "user.note", b"mine", flags);
            if set.is_err() {
                let why = "this file system has no extended attributes";
                return capability::skipped(Capability::ExtendedAttributes, why);
            }
        }
        let first = ws.untouched(|| ws.snapshot_with(["--strategy", backend, "--retain-content"]));
        ws.write("rewritten", "edited\n");
        ws.chmod("of-other-mode", 0o755);
        ws.restore(&first);
        assert_eq!(ws.text("rewritten"), "x\n");
        assert_eq!(ws.mode("of-other-mode"), 0o644);
        // What was rewritten has them of the file that it took the place of.
        for name in ["kept", "rewritten", "of-other-mode", "d", "d/kept"] {
            let value = attribute(&ws, name);
            assert_eq!(value.as_deref(), Some(&b"mine"[..]), "{name}: {backend}");
        }
        ws.undo();
        assert_eq!(ws.text("rewritten"), "edited\n");
        proven(&ws, &[first.id()], backend);
    }
}

#[test]
fn a_file_of_a_terabyte_that_takes_no_room_is_named_and_never_touched() {
    for backend in ["git", "hash"] {
        let ws = TestWorkspace::repository();
        ws.write("beside", "x\n");
        let before = ws.snapshot_with(["--strategy", backend, "--retain-content"]);
        ws.sparse_file("d/sparse", 1 << 40);
        ws.settle();
        let times = view::times(ws.root());
        let output = ws
            .call([
                "--json",
                "snapshot",
                "--strategy",
                backend,
                "--retain-content",
            ])
            .run();
        assert!(output.took.as_secs() < 20, "{:?}", output.took);
        let snapshot = Snap::of(&output.ok().json());
        assert_eq!(snapshot.omitted("d/sparse").as_deref(), Some("too_large"));
        let diff = ws.json(["diff", before.id(), "now"]);
        assert_eq!(json::names(&diff["changed_paths"]), ["d/sparse"], "{diff}");
        assert_eq!(json::names(&diff["added"]), ["d/sparse"], "{diff}");
        assert_eq!(times, view::times(ws.root()));
        for target in [&snapshot, &before] {
            ws.write("beside", "edited\n");
            ws.restore(target);
            assert_eq!(ws.text("beside"), "x\n");
            ws.undo();
            assert_eq!(ws.text("beside"), "edited\n");
        }
        let meta = ws.stat("d/sparse");
        assert_eq!((meta.len(), meta.blocks()), (1 << 40, 0));
        proven(&ws, &[before.id(), snapshot.id()], backend);
    }
}

#[test]
fn a_file_that_never_stops_growing_is_whole_or_named_and_everything_ends() {
    for backend in ["git", "hash"] {
        let ws = TestWorkspace::repository();
        ws.sparse_file("grows", 4 << 20);
        let inode = ws.stat("grows").ino();
        let path = ws.path("grows");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // By a byte each time, which takes no room.
                let file = fs::File::options().write(true).open(&path).unwrap();
                let mut size = 4 << 20;
                while !is_over.load(Ordering::Relaxed) {
                    size += 1;
                    file.set_len(size).unwrap();
                }
            });
            let _ends = Ends(&is_over);
            let options = ["--strategy", backend, "--retain-content"];
            let snapshot = ws.snapshot_with(options);
            let reason = snapshot.omitted("grows");
            assert!(
                matches!(reason.as_deref(), None | Some("unstable")),
                "{reason:?}"
            );
            ws.write("README", "edited\n");
            let diff = ws.json(["diff", snapshot.id(), "now"]);
            let changed = json::names(&diff["changed_paths"]);
            assert!(changed.contains(&"README".to_owned()), "{diff}");
            ws.json(["restore", snapshot.id(), "README"]);
            assert_eq!(ws.text("README"), "hello\n");
            ws.undo();
            assert_eq!(ws.text("README"), "edited\n");
            proven(&ws, &[snapshot.id()], backend);
        });
        assert_eq!(ws.stat("grows").ino(), inode, "nobody has replaced it");
    }
}

/// Says that it is over when it is dropped, by a test that fails as well.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
