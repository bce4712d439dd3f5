//! `restore SNAPSHOT --to DIR`: a copy elsewhere, whole or not at all.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use stillframe_tests::{TestWorkspace, json, view};

/// A workspace with one of everything, twice: as git, and as digests with content.
fn workspaces() -> [TestWorkspace; 2] {
    [TestWorkspace::repository(), TestWorkspace::plain()].map(|ws| {
        ws.write("dir/file", "one\n");
        ws.write_executable("dir/run", "#!/bin/sh\n");
        ws.write(b"odd\xffname", "odd\n");
        ws.write("private", "secret\n");
        ws.chmod("private", 0o600);
        ws.symlink("link", "/etc/passwd");
        ws.symlink("dangling", "nowhere");
        ws.mkdir("empty/inner");
        ws.chmod("empty/inner", 0o750);
        ws.write("closed/file", "x");
        ws.chmod("closed", 0o500);
        ws
    })
}

/// What lies beside the workspace and is not of the test itself.
fn beside(ws: &TestWorkspace) -> Vec<String> {
    let own = ["home", "outside", "state", "stillframe", "work"];
    let names = fs::read_dir(ws.base()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut left: Vec<String> = names.filter(|name| !own.contains(&name.as_str())).collect();
    left.sort();
    left
}

fn refusal(ws: &TestWorkspace, args: &[&str]) -> (String, String) {
    let error = ws.try_json(args).exits(1).json()["error"].clone();
    assert_eq!(error["touched"], false, "{error}");
    let text = |key: &str| error[key].as_str().expect("an error has it").to_owned();
    (text("kind"), text("message"))
}

#[test]
fn a_copy_has_all_that_the_snapshot_has_and_touches_nothing() {
    for ws in workspaces() {
        let taken = ws.snapshot_with(["--retain-content"]);
        let expected = view::worktree(ws.root());
        ws.write("dir/file", "two\n");
        ws.write("new", "x");
        let done = ws.untouched(|| ws.json(["restore", taken.id(), "--to", "../copy"]));
        let copy = ws.base().join("copy");
        assert_eq!(done["snapshot"], taken.id());
        assert_eq!(done["to"], copy.to_str().unwrap());
        assert_eq!(done["files"], taken.count("files"));
        assert_eq!(view::worktree(&copy), expected, "every byte, mode and link");
        assert_eq!(beside(&ws), ["copy"], "nothing is left of the making");
        assert_eq!(
            ws.json(["list"]).as_array().unwrap().len(),
            1,
            "no guard was taken"
        );
        let said = ws
            .stillframe(["restore", "latest", "--to", "../again"])
            .ok();
        assert!(said.stdout_text().ends_with("/again\n"), "{said}");
    }
}

#[test]
fn only_the_paths_that_are_named_are_copied() {
    for ws in workspaces() {
        let taken = ws.snapshot_with(["--retain-content"]);
        ws.json([
            "restore",
            taken.id(),
            "--to",
            "../copy",
            "dir",
            "empty/inner",
            "link",
        ]);
        let copy = ws.base().join("copy");
        let mut paths: Vec<String> = walkdir::WalkDir::new(&copy)
            .min_depth(1)
            .into_iter()
            .map(|entry| {
                let path = entry.unwrap().into_path();
                path.strip_prefix(&copy)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        paths.sort();
        assert_eq!(
            paths,
            ["dir", "dir/file", "dir/run", "empty", "empty/inner", "link"]
        );
        assert_eq!(
            fs::read_link(copy.join("link")).unwrap().to_str(),
            Some("/etc/passwd")
        );
        for (path, kind) in [
            ("nothing", "NotFound"),
            ("dir/nothing", "NotFound"),
            ("../x", "InvalidOptions"),
        ] {
            let args = ["restore", taken.id(), "--to", "../other", "dir", path];
            let (found, message) = refusal(&ws, &args);
            assert_eq!(found, kind, "{message}");
        }
        assert_eq!(beside(&ws), ["copy"]);
    }
}

#[test]
fn an_empty_directory_is_filled_and_anything_else_is_refused() {
    let ws = TestWorkspace::repository();
    let taken = ws.snapshot();
    let at = |name: &str| ws.base().join(name);
    fs::create_dir(at("empty")).unwrap();
    fs::set_permissions(at("empty"), fs::Permissions::from_mode(0o700)).unwrap();
    ws.json(["restore", taken.id(), "--to", "../empty"]);
    assert_eq!(fs::read_to_string(at("empty/README")).unwrap(), "hello\n");
    assert_eq!(
        fs::metadata(at("empty")).unwrap().mode() & 0o7777,
        0o700,
        "its own bits"
    );

    fs::create_dir(at("full")).unwrap();
    fs::write(at("full/mine"), "precious").unwrap();
    fs::write(at("file"), "precious").unwrap();
    fs::create_dir(at("target")).unwrap();
    symlink(at("target"), at("link")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    fs::create_dir_all(ws.path("inside/empty")).unwrap();
    let state = ws.state().join("copy");
    for to in [
        "../full",
        "../file",
        "../link",
        "../dangling",
        "../no/such/parent",
        "inside/empty",
        "new",
        ".",
        "..",
        "/",
        state.to_str().unwrap(),
    ] {
        let (kind, message) = ws.untouched(|| refusal(&ws, &["restore", taken.id(), "--to", to]));
        assert_eq!(kind, "InvalidOptions", "{to}: {message}");
    }
    assert_eq!(fs::read_to_string(at("full/mine")).unwrap(), "precious");
    assert_eq!(fs::read_to_string(at("file")).unwrap(), "precious");
    assert_eq!(
        fs::read_dir(at("target")).unwrap().count(),
        0,
        "no link is followed"
    );
    assert_eq!(
        beside(&ws),
        ["dangling", "empty", "file", "full", "link", "target"]
    );
    for args in [["--to", "x", "--plan"], ["--to", "x", "--repository"]] {
        ws.stillframe([&["restore", taken.id()], &args[..]].concat())
            .exits(2);
    }
}

#[test]
fn a_bad_place_is_told_before_the_snapshot_is_read() {
    let mut ws = TestWorkspace::plain();
    ws.damages_the_store();
    ws.write("a", "one\n");
    let taken = ws.snapshot();
    let record = walkdir::WalkDir::new(ws.state())
        .into_iter()
        .map(|entry| entry.unwrap().into_path())
        .find(|path| path.ends_with(format!("{}.json", taken.id())))
        .expect("the record is a file");
    fs::write(record, "no record").unwrap();
    for (to, kind) in [(".", "InvalidOptions"), ("../copy", "Corrupt")] {
        let (told, message) = refusal(&ws, &["restore", taken.id(), "--to", to]);
        assert_eq!(told, kind, "{message}");
    }
}

#[test]
fn a_snapshot_whose_content_is_lost_or_was_never_kept_leaves_nothing() {
    let mut ws = TestWorkspace::plain();
    ws.damages_the_store();
    ws.write("a/file", "one\n");
    ws.write("b", "two\n");
    let digests = ws.snapshot_with(["--no-retain-content"]);
    let (kind, _) = refusal(&ws, &["restore", digests.id(), "--to", "../copy"]);
    assert_eq!(kind, "Unsupported");
    let kept = ws.snapshot_with(["--retain-content"]);
    let digest = blake3::hash(b"two\n").to_hex();
    let content = walkdir::WalkDir::new(ws.state())
        .into_iter()
        .map(|entry| entry.unwrap().into_path())
        .find(|path| digest.ends_with(path.file_name().unwrap().to_str().unwrap_or("-")))
        .expect("the content is a file");
    fs::remove_file(&content).unwrap();
    fs::write(&content, "2wo\n").unwrap();
    let (kind, _) = refusal(&ws, &["restore", kept.id(), "--to", "../copy"]);
    assert_eq!(kind, "Corrupt", "it is checked as it is read");
    fs::remove_file(&content).unwrap();
    let (kind, _) = refusal(&ws, &["restore", kept.id(), "--to", "../copy"]);
    assert_eq!(kind, "Corrupt");
    assert_eq!(beside(&ws), [""; 0]);
    ws.json(["restore", kept.id(), "--to", "../copy", "a"]);
    assert_eq!(
        fs::read_to_string(ws.base().join("copy/a/file")).unwrap(),
        "one\n"
    );
}

#[test]
fn what_was_purged_is_named_and_the_rest_is_there() {
    let mut ws = TestWorkspace::repository();
    // git misses what was purged.
    ws.damages_the_store();
    ws.write(".env", "KEY=secret\n");
    let taken = ws.snapshot();
    ws.remove(".env");
    ws.json(["purge", ".env"]);
    let done = ws.json(["restore", taken.id(), "--to", "../copy"]);
    assert_eq!(json::names_in(&done["skipped"]), [".env"], "{done}");
    assert_eq!(done["skipped"][0]["reason"], "purged");
    assert!(ws.base().join("copy/README").exists());
    assert!(!ws.base().join("copy/.env").exists());
}
