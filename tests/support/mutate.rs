//! Changing a workspace in every way that a restore has to take back.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use crate::TestWorkspace;

/// Changes every one of `paths` that is on disk, each in another way than the one before, and makes
/// new files, links and directories.
///
/// Files that hold rules (`.gitignore` and the like) are left alone: what a restore owes to whoever
/// changes those is a story of its own.
pub fn everything(ws: &TestWorkspace, paths: &[Vec<u8>]) {
    let mut at = 0;
    for rel in paths {
        let path = ws.path(rel);
        let name = rel.rsplit(|b| *b == b'/').next().unwrap_or(rel);
        if name.starts_with(b".git") {
            continue;
        }
        let Ok(meta) = path.symlink_metadata() else {
            // Below something that an earlier round replaced, or absent on purpose.
            continue;
        };
        change(&path, &meta, at);
        at += 1;
    }
    ws.write("zz-new/deep/file", "made after the capture\n");
    ws.write_executable("zz-new/tool", "#!/bin/sh\n");
    ws.symlink("zz-new/link", "deep/file");
    ws.mkdir("zz-empty/inner");
    ws.write(b"zz-odd \xff\n\"*", "odd\n");
}

/// Edits, removes and changes the mode of `paths`, in turns, and makes nothing new: for workspaces
/// whose rules would ignore what [`everything`] makes.
pub fn in_place(ws: &TestWorkspace, paths: &[Vec<u8>]) {
    for (at, rel) in paths.iter().enumerate() {
        let path = ws.path(rel);
        if let Ok(meta) = path.symlink_metadata() {
            change(&path, &meta, [0, 1, 3][at % 3]);
        }
    }
}

fn change(path: &Path, meta: &fs::Metadata, round: usize) {
    if meta.is_symlink() {
        fs::remove_file(path).expect("a link can be removed");
        match round % 3 {
            0 => symlink("zz/elsewhere", path).expect("a link can be made"),
            1 => fs::write(path, "a file, no link\n").expect("a file can be made"),
            _ => {}
        }
        return;
    }
    let mode = meta.permissions().mode();
    match round % 6 {
        0 => fs::write(path, "something else\n").expect("a file can be written"),
        1 => fs::remove_file(path).expect("a file can be removed"),
        2 => {
            fs::remove_file(path).expect("a file can be removed");
            fs::create_dir_all(path.join("is")).expect("a directory can be made");
            fs::write(path.join("is/a-directory"), "x\n").expect("a file can be made");
        }
        3 => fs::set_permissions(path, fs::Permissions::from_mode(mode ^ 0o111))
            .expect("a mode can be changed"),
        4 => {
            fs::remove_file(path).expect("a file can be removed");
            symlink("zz/elsewhere", path).expect("a link can be made");
        }
        _ => {
            let parent = path.parent().expect("it lies in a directory");
            fs::rename(path, parent.join(format!("zz-renamed-{round}")))
                .expect("a file can be renamed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view;

    #[test]
    fn every_path_is_changed() {
        let ws = TestWorkspace::plain();
        let mut paths = Vec::new();
        for i in 0..12 {
            let name = format!("d/{i:02}");
            ws.write(&name, format!("{i}\n"));
            paths.push(name.into_bytes());
        }
        for i in 0..3 {
            let name = format!("link{i}");
            ws.symlink(&name, "d/00");
            paths.push(name.into_bytes());
        }
        let before = view::worktree(ws.root());
        everything(&ws, &paths);
        let after = view::worktree(ws.root());
        for path in &paths {
            let path = std::str::from_utf8(path).unwrap();
            assert_ne!(before.line(path), after.line(path), "{path}");
        }
        assert!(after.line("zz-new/tool").is_some());
    }
}
