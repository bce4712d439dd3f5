//! Edits that can be told apart wherever they end up.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use crate::{TestWorkspace, git};

/// What a line that is an edit begins with.
const MARK: &[u8] = b"edit <";

/// A line that nobody else writes.
pub(crate) fn line(number: u64) -> String {
    format!("edit <{number}>\n")
}

/// The numbers of the edits in some bytes.
pub(crate) fn numbers_in(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let starts = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(MARK));
    starts.filter_map(|at| {
        let rest = &bytes[at + MARK.len()..];
        let end = rest.iter().position(|byte| *byte == b'>')?;
        std::str::from_utf8(&rest[..end]).ok()?.parse().ok()
    })
}

/// What is kept, wherever that is.
pub(crate) struct Kept {
    /// The edits in a file anywhere below the directory of the test, or in an object of a store.
    pub(crate) edits: BTreeSet<u64>,
    /// Everything in the stores, as git reads it, and the retained content of those without git.
    pub(crate) stored: Vec<u8>,
    /// Retained content that is not what its name says.
    pub(crate) misnamed: Vec<PathBuf>,
}

impl Kept {
    /// Looks through everything.
    pub(crate) fn in_all_of(ws: &TestWorkspace) -> Self {
        let mut kept = Self {
            edits: BTreeSet::new(),
            stored: objects(ws),
            misnamed: Vec::new(),
        };
        let walk = WalkDir::new(ws.base()).follow_links(false);
        let files = walk
            .into_iter()
            .flatten()
            .filter(|e| e.file_type().is_file());
        for path in files.map(walkdir::DirEntry::into_path) {
            let Ok(bytes) = fs::read(&path) else { continue };
            kept.edits.extend(numbers_in(&bytes));
            if path.starts_with(ws.state()) && is_content(&path) {
                let name = path.file_name().unwrap_or_default();
                if name != blake3::hash(&bytes).to_hex().as_str() {
                    kept.misnamed.push(path);
                }
                kept.stored.extend(bytes);
            }
        }
        kept.edits.extend(numbers_in(&kept.stored));
        kept
    }
}

/// Whether a file is retained content, which is named by its blake3.
fn is_content(path: &Path) -> bool {
    let mut above = path.ancestors().skip(1);
    let (directory, content) = (above.next(), above.next());
    let is_named = |dir: Option<&Path>, length| {
        let name = dir.and_then(Path::file_name);
        name.is_some_and(|name| name.len() == length)
    };
    is_named(directory, 2) && content.is_some_and(|dir| dir.ends_with("hash/content"))
}

/// Every object of every store, as git reads it.
fn objects(ws: &TestWorkspace) -> Vec<u8> {
    let mut all = Vec::new();
    for store in ws.stores() {
        let args = ["cat-file", "--batch-all-objects", "--batch", "--unordered"];
        let call = git::call(&ws.home(), &store.join("git"), args);
        all.extend(call.run().stdout);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_is_found_in_a_file_in_the_store_and_among_others() {
        let bytes = [line(7), "x".into(), line(12), "edit <".into()].concat();
        assert_eq!(numbers_in(bytes.as_bytes()).collect::<Vec<_>>(), [7, 12]);
        let ws = TestWorkspace::repository();
        ws.write("a", line(1));
        ws.snapshot();
        ws.write("a", line(2));
        let kept = Kept::in_all_of(&ws);
        assert_eq!(kept.edits, BTreeSet::from([1, 2]));
        assert_eq!(numbers_in(&kept.stored).collect::<Vec<_>>(), [1]);
        ws.remove("a");
        assert_eq!(Kept::in_all_of(&ws).edits, BTreeSet::from([1]));
    }

    #[test]
    fn retained_content_is_found_and_one_that_is_not_what_its_name_says() {
        let mut ws = TestWorkspace::plain();
        ws.write("a", line(1));
        ws.snapshot_with(["--retain-content"]);
        ws.remove("a");
        let kept = Kept::in_all_of(&ws);
        assert_eq!(numbers_in(&kept.stored).collect::<Vec<_>>(), [1]);
        assert_eq!(kept.misnamed, [""; 0].map(PathBuf::from));
        ws.damages_the_store();
        let walk = WalkDir::new(ws.state()).into_iter().flatten();
        let content = walk
            .map(walkdir::DirEntry::into_path)
            .find(|path| is_content(path));
        let content = content.unwrap();
        fs::remove_file(&content).unwrap();
        fs::write(&content, line(2)).unwrap();
        assert_eq!(Kept::in_all_of(&ws).misnamed, [content]);
    }
}
