//! Edits of a generated repository, which can be taken back.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::random::Random;
use crate::tree::{Tree, content, pool};

/// How many files are changed, or fewer in a small tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changes {
    /// Edited in the middle.
    pub modified: usize,
    /// Made, untracked.
    pub added: usize,
    /// Removed.
    pub deleted: usize,
}

impl Changes {
    /// The edits of one run of an agent.
    pub const RUN: Self = Self {
        modified: 100,
        added: 50,
        deleted: 20,
    };
}

/// Changes files: the same paths every time; `nonce` makes the content new.
pub fn mutate(tree: &Tree, nonce: u64, changes: Changes) -> io::Result<Mutation> {
    let Changes {
        modified,
        added,
        deleted,
    } = changes;
    let mut random = Random::new(7);
    let mut picked = BTreeSet::new();
    let wanted = (modified + deleted).min(tree.files.len());
    while picked.len() < wanted {
        picked.insert(random.below(tree.files.len()));
    }
    let mut mutation = Mutation::default();
    for (place, file) in picked.iter().map(|at| &tree.files[*at]).enumerate() {
        let disk_path = tree.path.join(file);
        mutation.saved.push((
            disk_path.clone(),
            fs::read(&disk_path)?,
            fs::metadata(&disk_path)?.permissions(),
        ));
        if place % (modified + deleted) < deleted {
            fs::remove_file(&disk_path)?;
        } else {
            let mut content = fs::read(&disk_path)?;
            let middle = content
                .iter()
                .skip(content.len() / 2)
                .position(|b| *b == b'\n');
            let at = middle.map_or(0, |n| content.len() / 2 + n + 1);
            content.splice(at..at, format!("// edit {nonce}\n").into_bytes());
            fs::write(&disk_path, content)?;
        }
    }
    let pool = match added {
        0 => Vec::new(),
        _ => pool(&mut random),
    };
    for number in 0..added {
        let beside = &tree.files[random.below(tree.files.len())];
        let disk_path = tree
            .path
            .join(beside)
            .with_file_name(format!("new_{number}.rs"));
        let name = format!("{nonce} {}", disk_path.display());
        fs::write(&disk_path, content(&mut random, Path::new(&name), &pool))?;
        mutation.made.push(disk_path);
    }
    Ok(mutation)
}

/// What a mutation changed, so that it can be taken back.
#[derive(Debug, Default)]
pub struct Mutation {
    saved: Vec<(PathBuf, Vec<u8>, fs::Permissions)>,
    made: Vec<PathBuf>,
}

impl Mutation {
    /// Puts every file back. Times are new, as after any edit.
    pub fn revert(self) -> io::Result<()> {
        for path in self.made {
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        for (path, content, permissions) in self.saved {
            fs::write(&path, content)?;
            fs::set_permissions(&path, permissions)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::git;
    use crate::tree::{TreeOptions, generate};

    #[test]
    fn a_mutation_that_is_reverted_leaves_the_content_as_it_was() {
        let home = tempfile::tempdir().expect("a directory");
        let tree = generate(&home.path().join("r"), TreeOptions::new(300)).expect("made");
        let mutation = mutate(&tree, 1, Changes::RUN).expect("mutated");
        let status = git(&tree.path, &["status", "--porcelain", "-uall"]).expect("a status");
        let lines = |kind: &str| {
            String::from_utf8_lossy(&status)
                .lines()
                .filter(|l| l.starts_with(kind))
                .count()
        };
        assert_eq!((lines(" M"), lines("??"), lines(" D")), (100, 50, 20));
        mutation.revert().expect("reverted");
        let status = git(&tree.path, &["status", "--porcelain"]).expect("a status");
        assert_eq!(String::from_utf8_lossy(&status), "");
    }
}
