//! Names that some file system takes for `.git`.

/// Whether a file system could take `name` for `.git`: in other letters, with what NTFS drops at
/// the end, by its short name, with what HFS+ does not see, or behind a backslash. The rule is that
/// of git's `fsck` (`hasDotgit`).
pub fn is_dot_git(name: &[u8]) -> bool {
    is_hfs_dot_git(name) || name.split(|b| *b == b'\\').any(is_ntfs_dot_git)
}

fn is_ntfs_dot_git(name: &[u8]) -> bool {
    let has_prefix = |prefix: &[u8]| {
        name.len() >= prefix.len() && name[..prefix.len()].eq_ignore_ascii_case(prefix)
    };
    let rest = if has_prefix(b".git") {
        &name[4..]
    } else if has_prefix(b"git~1") {
        &name[5..]
    } else {
        return false;
    };
    // Dots and spaces at the end do not count, and what follows a colon is a stream of the file.
    let end = rest.iter().find(|b| !matches!(b, b'.' | b' '));
    matches!(end, None | Some(b':'))
}

fn is_hfs_dot_git(name: &[u8]) -> bool {
    // What is not UTF-8 ends the name here, as it does for git.
    let valid = name.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    valid
        .chars()
        .filter(|c| {
            !matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
                | '\u{206a}'..='\u{206f}' | '\u{feff}')
        })
        .map(|c| c.to_ascii_lowercase())
        .eq(".git".chars())
}
