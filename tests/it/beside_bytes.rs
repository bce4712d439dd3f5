//! What files have beside their bytes and permission bits: holes, extended attributes, access
//! lists, and other names. What of it a restore keeps, and that the rest is named.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::XattrFlags;
use stillframe_tests::capability::{self, Capability};
use stillframe_tests::{Snap, TestWorkspace, json};

/// A workspace of each backend, and the options that it needs.
fn workspaces() -> [(TestWorkspace, Vec<&'static str>); 2] {
    [
        (TestWorkspace::repository(), vec![]),
        (TestWorkspace::plain(), vec!["--retain-content"]),
    ]
}

fn allocated(ws: &TestWorkspace, path: &str) -> u64 {
    ws.stat(path).blocks() * 512
}

// Restored, it took as much of the disk as it is long
#[test]
fn holes_stay_holes() {
    for (ws, options) in workspaces() {
        ws.sparse_file("image", 64 << 20);
        let file = File::options().write(true).open(ws.path("image")).unwrap();
        for at in [0, 10 << 20, (40 << 20) + 17] {
            file.write_all_at(b"some data", at).unwrap();
        }
        drop(file);
        ws.write(
            "padded",
            [&[1; 5000][..], &[0; 40_000], &[2; 5000]].concat(),
        );
        let (content, before) = (ws.read("image"), allocated(&ws, "image"));
        if before > 1 << 20 {
            return capability::skipped(Capability::Holes, "this file system makes no holes");
        }
        let padded = allocated(&ws, "padded");
        let snapshot = ws.snapshot_with(&options);
        for script in ["rm image padded", "echo x > image; echo x > padded"] {
            ws.run(&options, script).ok();
            ws.restore(&snapshot);
            assert!(ws.read("image") == content, "every byte");
            assert!(allocated(&ws, "image") <= before, "{script}");
            assert_eq!(
                allocated(&ws, "padded"),
                padded,
                "no holes in small padding"
            );
        }
    }
}

fn set(path: &Path, name: &str, value: &[u8]) -> bool {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty()).is_ok()
}

fn get(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 4096];
    let length = rustix::fs::getxattr(path, name, &mut value[..]).ok()?;
    value.truncate(length);
    Some(value)
}

const ACCESS_LIST: &str = "system.posix_acl_access";

/// An access list as the kernel has it (linux/posix_acl_xattr.h): the owner and user 12345 may read
/// and write, group and others read, and the mask is as given.
fn access_list(mask: u16) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 6, NOBODY),
        (0x02, 6, 12_345),
        (0x04, 4, NOBODY),
        (0x10, mask, NOBODY),
        (0x20, 4, NOBODY),
    ];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

// Both were lost with every file that a restore replaced
#[test]
fn a_file_keeps_the_attributes_and_the_access_list_of_the_one_that_it_replaces() {
    for (ws, options) in workspaces() {
        let path = ws.path("file");
        ws.write("file", "captured\n");
        if !set(&path, "user.origin", b"the web") {
            let why = "this file system has no extended attributes";
            return capability::skipped(Capability::ExtendedAttributes, why);
        }
        let has_lists = set(&path, ACCESS_LIST, &access_list(6));
        ws.write("linked", "captured\n");
        ws.hard_link("linked", &ws.outside().join("other-name"));
        assert!(set(&ws.path("linked"), "user.of", b"linked"));
        // One that may not be written to has them as well.
        ws.write("fixed", "captured\n");
        assert!(set(&ws.path("fixed"), "user.of", b"fixed"));
        ws.chmod("fixed", 0o444);
        for file in ["file", "linked"] {
            ws.chmod(file, 0o664);
        }
        let snapshot = ws.snapshot_with(&options);

        let why = ws.json(["why", "file"]);
        let named = json::names(&why["attributes"]);
        assert!(named.contains(&"user.origin".to_owned()), "{why}");
        assert_eq!(named.contains(&ACCESS_LIST.to_owned()), has_lists, "{why}");

        let script = "echo changed > file; chmod 604 file linked; chmod u+w fixed; echo x > fixed; chmod 444 fixed";
        ws.run(&options, script).ok();
        let outcome = ws.restore(&snapshot);
        assert_eq!(
            json::names(&outcome["restored"]),
            ["file", "fixed", "linked"]
        );
        assert_eq!(
            outcome["attributes_lost"],
            serde_json::Value::Null,
            "{outcome}"
        );
        assert_eq!(ws.text("file"), "captured\n");
        assert_eq!(
            (ws.mode("file"), ws.mode("linked")),
            (0o664, 0o664),
            "as the snapshot says"
        );
        assert_eq!(get(&path, "user.origin").as_deref(), Some(&b"the web"[..]));
        assert_eq!(
            get(&ws.path("linked"), "user.of").as_deref(),
            Some(&b"linked"[..])
        );
        assert_eq!(
            get(&ws.path("fixed"), "user.of").as_deref(),
            Some(&b"fixed"[..])
        );
        assert_eq!(ws.mode("fixed"), 0o444);
        if has_lists {
            assert_eq!(
                get(&path, ACCESS_LIST),
                Some(access_list(6)),
                "mask and bits agree"
            );
        }
        // Where nothing is replaced there is nothing to keep them of.
        ws.remove("file");
        ws.restore(&snapshot);
        assert_eq!(get(&path, "user.origin"), None);
        assert_eq!(ws.mode("file"), 0o664);
    }
}

/// What a snapshot says of files with several names.
fn links(ws: &TestWorkspace, snapshot: &Snap) -> Vec<Vec<String>> {
    let shown = ws.show(snapshot.id());
    let files = shown["hard_links"].as_array().cloned().unwrap_or_default();
    files.iter().map(json::names).collect()
}

// Nothing said that they come back as files of their own
#[test]
fn files_with_several_names_are_named() {
    for (ws, options) in workspaces() {
        ws.write("a", "one file\n");
        ws.mkdir("d");
        ws.hard_link("a", &ws.path("d/b"));
        ws.write("alone", "linked to outside\n");
        ws.hard_link("alone", &ws.outside().join("elsewhere"));
        let first = ws.snapshot_with(&options);
        assert_eq!(links(&ws, &first), [["a", "d/b"]]);
        // Nothing changed, so no file is read, and none is forgotten.
        let again = ws.snapshot_with(&options);
        assert_eq!(again.count("files_hashed"), 0);
        assert_eq!(links(&ws, &again), [["a", "d/b"]]);
        let told = ws.stillframe(["show", again.id()]).ok().stdout_text();
        assert!(told.contains("one file: a, d/b\n"), "{told}");
        for arguments in [
            vec!["why", "d/b"],
            vec!["why", "d/b", "--snapshot", first.id()],
        ] {
            let why = ws.json(arguments);
            assert_eq!(json::names(&why["hard_links"]), ["a"], "{why}");
        }
        let why = ws.json(["why", "alone"]);
        assert_eq!(why["hard_links"], serde_json::Value::Null, "{why}");

        let watched = [&options[..], &["--watch"]].concat();
        let run = ws
            .run(&watched, "echo x > other; ln other third")
            .ok()
            .json();
        let after = Snap::of(&run["workspace"]["after_snapshot"]);
        assert_eq!(links(&ws, &after), [["a", "d/b"], ["other", "third"]]);

        ws.remove("d/b");
        ws.remove("third");
        let last = ws.snapshot_with(&options);
        assert_eq!(links(&ws, &last), [[""; 0]; 0]);
        let outcome = ws.restore(&first);
        assert_eq!(ws.text("d/b"), "one file\n", "{outcome}");
        assert_ne!(
            ws.stat("a").ino(),
            ws.stat("d/b").ino(),
            "a file of its own"
        );
    }
}
