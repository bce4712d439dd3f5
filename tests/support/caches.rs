//! The files of a state directory that are caches, by their places as docs/format.md has them. None
//! of them is synced, and any of them may be lost or damaged without harm.

use std::path::Path;

/// Which cache this is; `None`: it is none.
pub fn kind(path: &Path) -> Option<&'static str> {
    let name = path.file_name()?.to_str()?;
    let is_in = |directory: &str| {
        path.parent()
            .is_some_and(|above| above.ends_with(directory))
    };
    match name {
        "vouched-packs" => Some("list of the packs that are relied on"),
        "vouched-content" => Some("stamp of the content that is relied on"),
        "last-ref" => Some("note of the last ref"),
        "last-record" => Some("note of the last record"),
        "history" if is_in("git") => Some("note of the last history"),
        _ if name.ends_with(".stat-cache") => Some("stat cache"),
        _ if is_in("by-id") => Some("shortcut"),
        _ => None,
    }
}
