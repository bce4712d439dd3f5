//! `show SNAPSHOT:PATH`: one file of a snapshot, byte for byte.

use stillframe_tests::{TestWorkspace, json};

fn bytes(ws: &TestWorkspace, name: &str) -> Vec<u8> {
    ws.stillframe(["show", name]).ok().stdout
}

#[test]
fn the_bytes_of_a_file_and_the_text_of_a_link_come_out_as_they_are() {
    for ws in [TestWorkspace::repository(), TestWorkspace::plain()] {
        let binary: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        ws.write("src/binary", &binary);
        ws.write("no newline", "a\r\n\x1b[31mb");
        ws.write("empty", "");
        ws.write("a:b", "colon\n");
        ws.symlink("link", b"else\xffwhere");
        let snapshot = ws.snapshot_with(["--label", "kept", "--retain-content"]);
        ws.write("src/binary", "another\n");
        ws.remove("no newline");
        ws.remove("link");
        ws.snapshot_with(["--retain-content"]);
        let of = |name: &str, path: &str| bytes(&ws, &format!("{name}:{path}"));
        let id = snapshot.id();
        assert_eq!(of(id, "src/binary"), binary);
        assert_eq!(of(&id[..id.len() - 4], "src//binary"), binary);
        assert_eq!(of("latest~1", "no newline"), b"a\r\n\x1b[31mb");
        assert_eq!(of("label:kept", "empty"), b"");
        assert_eq!(of("label:kept", "a:b"), b"colon\n");
        assert_eq!(of(id, "link"), b"else\xffwhere");
        assert_eq!(of("latest", "src/binary"), b"another\n");
        let elsewhere = ws.call(["show", &format!("{id}:empty")]).cwd(ws.home());
        elsewhere.run().ok();
    }
}

#[test]
fn a_document_has_the_content_and_what_it_is() {
    let ws = TestWorkspace::repository();
    ws.write_executable("run.sh", "echo\n");
    ws.write(b"latin1-\xe9", b"caf\xe9\n");
    let snapshot = ws.snapshot();
    let name = format!("{}:run.sh", snapshot.id());
    let expected = serde_json::json!({
        "snapshot": snapshot.id(), "path": "run.sh", "mode": "100755", "bytes": 5,
        "content": "echo\n",
    });
    assert_eq!(ws.json(["show", &name]), expected);
    let odd = [format!("{}:", snapshot.id()).as_bytes(), b"latin1-\xe9"].concat();
    let odd = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&odd);
    let document = ws.json([std::ffi::OsStr::new("show"), odd]);
    assert_eq!(json::path_bytes(&document["path"]), b"latin1-\xe9");
    assert_eq!(json::patch_bytes(&document["content"]), b"caf\xe9\n");
}

#[test]
fn what_a_snapshot_does_not_have_is_named_with_the_reason() {
    let ws = TestWorkspace::repository();
    ws.write(".gitignore", "*.o\n");
    ws.write("a.o", "x\n");
    ws.write("d/file", "x\n");
    ws.mkdir("void");
    let snapshot = ws.snapshot();
    let refused = |path: &str, kind: &str| {
        let name = format!("{}:{path}", snapshot.id());
        ws.try_json(["show", &name]).refused(kind)
    };
    for path in ["typo", "d/typo", "d/file/below"] {
        let message = refused(path, "NotFound");
        assert!(
            message.contains(path) && message.contains(snapshot.id()),
            "{message}"
        );
    }
    let message = refused("a.o", "NotFound");
    assert!(message.contains("ignored"), "{message}");
    for directory in ["d", "void", "."] {
        let message = refused(directory, "InvalidOptions");
        assert!(message.contains("--files"), "{message}");
    }
    refused("", "InvalidOptions");
    refused("../x", "InvalidOptions");
    let nowhere = format!("snap_{}:README", "0".repeat(32));
    ws.try_json(["show", &nowhere]).refused("NotFound");
    let digests = ws.snapshot_with(["--strategy", "hash", "--no-retain-content"]);
    let name = format!("{}:README", digests.id());
    let message = ws.try_json(["show", &name]).refused("Unsupported");
    assert!(message.contains("without content"), "{message}");
}

#[test]
fn a_purged_file_is_not_handed_out() {
    let mut ws = TestWorkspace::repository();
    ws.write("secret", "canary\n");
    let snapshot = ws.snapshot();
    ws.damages_the_store();
    ws.stillframe(["purge", "secret"]).ok();
    let name = format!("{}:secret", snapshot.id());
    let message = ws.try_json(["show", &name]).refused("NotFound");
    assert!(message.contains("purged"), "{message}");
}

#[test]
fn at_a_terminal_nothing_of_a_file_is_executed() {
    let ws = TestWorkspace::repository();
    ws.write("trap", "\x1b]0;title\x07 end\n");
    let snapshot = ws.snapshot();
    let mut terminal = ws
        .call(["show", &format!("{}:trap", snapshot.id())])
        .at_terminal();
    terminal.shows("\\u{1b}]0;title\\u{7} end");
    assert_eq!(terminal.ends(), 0);
    assert!(!terminal.text().contains('\x1b'));
}
