//! The files that the user's own configuration includes (`git-config`, "Includes").
//!
//! Only includes in files of the user and the machine are followed. Includes in a repository's
//! configuration are ignored, because they may name any file.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::{BadLine, Config, MAX_CONFIG_BYTES, own_path, path_of, read_own_file};
use crate::path_pattern::{Candidate, PathPattern};

/// How deep one file may lie in another: git's own limit.
const MAX_DEPTH: u32 = 10;

/// How many files are taken in at most, over all. Ten that include each other twice are a thousand.
const MAX_FILES: u32 = 1000;

/// Where git would be run: what conditions ask for.
pub(super) struct Place<'p> {
    pub(super) home: Option<&'p Path>,
    /// The git directory, absolute and without links; `None`: there is no repository.
    pub(super) git_dir: Option<&'p Path>,
    /// The short name of the branch that HEAD names.
    pub(super) branch: &'p dyn Fn() -> Option<String>,
}

/// What `files` say, with what they include in its place: the later wins. One that cannot be read
/// says nothing, and one that is damaged is an item of its own.
pub(super) fn read<'f>(
    files: impl IntoIterator<Item = &'f Path>,
    place: &Place<'_>,
) -> Vec<Result<Config, BadLine>> {
    let mut reading = Reading {
        place,
        pieces: Vec::new(),
        files_left: MAX_FILES,
    };
    for file in files {
        reading.file(file, 0);
    }
    reading.pieces
}

struct Reading<'p> {
    place: &'p Place<'p>,
    /// Files, each cut where it includes another.
    pieces: Vec<Result<Config, BadLine>>,
    files_left: u32,
}

impl Reading<'_> {
    fn file(&mut self, path: &Path, depth: u32) {
        if depth > MAX_DEPTH || self.files_left == 0 {
            return;
        }
        self.files_left -= 1;
        let Some(text) = read_own_file(path, MAX_CONFIG_BYTES) else {
            return;
        };
        let config = match Config::parse(&text) {
            Ok(config) => config,
            Err(line) => return self.pieces.push(Err(line)),
        };
        let directory = path.parent().unwrap_or(Path::new("/"));
        let mut piece = Config::default();
        for value in config.values {
            let is_included = value.key == "path"
                && match (&*value.section, &value.subsection) {
                    ("include", None) => true,
                    ("includeif", Some(condition)) => self.place.meets(condition, directory),
                    _ => false,
                };
            let included = value.value.clone().filter(|_| is_included);
            piece.values.push(value);
            if let Some(name) = included {
                self.pieces.push(Ok(std::mem::take(&mut piece)));
                let named = own_path(&name, self.place.home);
                let named = named.unwrap_or_else(|| directory.join(path_of(&name)));
                self.file(&named, depth + 1);
            }
        }
        self.pieces.push(Ok(piece));
    }
}

impl Place<'_> {
    /// Whether the condition of an `includeIf` holds, which stands in a file in `directory`. One
    /// that asks for the repository's configuration (`hasconfig`) does not, as that is not read.
    fn meets(&self, condition: &[u8], directory: &Path) -> bool {
        let is_met = |pattern: Option<Vec<u8>>, text: &[u8]| {
            let pattern = pattern.and_then(|pattern| PathPattern::parse(&pattern));
            pattern.is_some_and(|pattern| pattern.matches(Candidate::new(text, true)))
        };
        let git_dir = self.git_dir.map(|path| path.as_os_str().as_bytes());
        let git_dir = git_dir.and_then(|path| path.strip_prefix(b"/"));
        if let Some(pattern) = condition.strip_prefix(b"gitdir:") {
            git_dir.is_some_and(|path| is_met(self.git_dir_pattern(pattern, directory), path))
        } else if let Some(pattern) = condition.strip_prefix(b"gitdir/i:") {
            let pattern = self.git_dir_pattern(pattern, directory);
            let pattern = pattern.map(|pattern| pattern.to_ascii_lowercase());
            git_dir.is_some_and(|path| is_met(pattern, &path.to_ascii_lowercase()))
        } else if let Some(pattern) = condition.strip_prefix(b"onbranch:") {
            let pattern = [b"/", &*with_all_below(pattern.to_vec())].concat();
            let branch = self.git_dir.and_then(|_| (self.branch)());
            branch.is_some_and(|branch| is_met(Some(pattern), branch.as_bytes()))
        } else {
            false
        }
    }

    /// The pattern for a git directory, from the root of the file system down.
    fn git_dir_pattern(&self, pattern: &[u8], directory: &Path) -> Option<Vec<u8>> {
        // A directory's own name has no wildcards.
        let below = |directory: &Path, rest: &[u8]| {
            let directory = directory.canonicalize().ok()?;
            let mut pattern = Vec::new();
            for byte in directory.as_os_str().as_bytes() {
                if b"*?[\\".contains(byte) {
                    pattern.push(b'\\');
                }
                pattern.push(*byte);
            }
            pattern.push(b'/');
            pattern.extend_from_slice(rest);
            Some(pattern)
        };
        let pattern = if let Some(rest) = pattern.strip_prefix(b"~/") {
            below(self.home?, rest)?
        } else if let Some(rest) = pattern.strip_prefix(b"./") {
            below(directory, rest)?
        } else if pattern.starts_with(b"/") {
            pattern.to_vec()
        } else {
            [b"**/", pattern].concat()
        };
        Some(with_all_below(pattern))
    }
}

/// A pattern that ends in `/` means all that is below.
fn with_all_below(mut pattern: Vec<u8>) -> Vec<u8> {
    if pattern.ends_with(b"/") {
        pattern.extend_from_slice(b"**");
    }
    pattern
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::test_repository::TestRepository;

    /// What git takes `user.name` for, and what we do, in a repository on the branch `topic/one`.
    fn agreed(files: &[(&str, &str)]) -> Option<String> {
        let git = TestRepository::with_commit();
        git.git(&["checkout", "-q", "-b", "topic/one"]);
        for (name, text) in files {
            let path = git.home().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = text.replace("TOP", git.path.parent().unwrap().to_str().unwrap());
            fs::write(path, text).unwrap();
        }
        let home = git.home();
        let told = std::process::Command::new("git")
            .args(["config", "--get", "user.name"])
            .current_dir(&git.path)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", &home)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        let told = told.strip_suffix('\n').map(str::to_owned);

        let git_dir = git.path.join(".git").canonicalize().unwrap();
        let place = Place {
            home: Some(&home),
            git_dir: Some(&git_dir),
            branch: &|| Some("topic/one".to_owned()),
        };
        let global = home.join(".gitconfig");
        let mut ours = None;
        for config in read([&*global], &place) {
            let config = config.unwrap();
            if let Some(name) = config.get("user", "name") {
                ours = Some(String::from_utf8(name.to_vec()).unwrap());
            }
        }
        assert_eq!(ours, told, "{files:?}");
        told
    }

    fn name(name: &str) -> String {
        format!("[user]\nname = {name}\n")
    }

    #[test]
    fn a_file_is_taken_in_where_it_is_named() {
        let include = "[include]\npath = sub/b\n";
        let config = format!("{}{include}", name("before"));
        let found = agreed(&[(".gitconfig", &config), ("sub/b", &name("included"))]);
        assert_eq!(found.as_deref(), Some("included"));
        let config = format!("{include}{}", name("after"));
        let found = agreed(&[(".gitconfig", &config), ("sub/b", &name("included"))]);
        assert_eq!(found.as_deref(), Some("after"), "the later wins");
        let relative = "[include]\npath = c\n";
        let found = agreed(&[
            (".gitconfig", "[include]\npath = ~/sub/b\n"),
            ("sub/b", relative),
            ("sub/c", &name("beside it")),
        ]);
        assert_eq!(found.as_deref(), Some("beside it"));
        let found = agreed(&[(".gitconfig", "[include]\npath = nowhere\n")]);
        assert_eq!(found, None);
    }

    #[test]
    fn conditions_mean_what_they_mean_to_git() {
        let mut met = Vec::new();
        for condition in [
            "gitdir:TOP/",
            "gitdir:TOP",
            "gitdir:/",
            "gitdir:**/.git",
            "gitdir:.git",
            "gitdir:/nowhere/",
            "gitdir:~/",
            "gitdir:~/../",
            "gitdir:./",
            "gitdir:!TOP/",
            "gitdir/i:**/.GIT",
            "gitdir:**/.GIT",
            "gitdir:TOP/**",
            "gitdir:TOP/*",
            "gitdir:TOP/*/.git",
            "gitdir:TOP/[",
            "onbranch:topic/one",
            "onbranch:one",
            "onbranch:topic/",
            "onbranch:topic",
            "onbranch:*",
            "onbranch:**",
            "onbranch:**/one",
            "onbranch:/topic/one",
            "nothing:topic",
            "gitdir",
        ] {
            let config = format!("[includeIf \"{condition}\"]\npath = b\n");
            met.extend(agreed(&[(".gitconfig", &config), ("b", &name("met"))]).map(|_| condition));
        }
        assert_eq!(
            met,
            [
                "gitdir:TOP/",
                "gitdir:/",
                "gitdir:**/.git",
                "gitdir:.git",
                "gitdir/i:**/.GIT",
                "gitdir:TOP/**",
                "gitdir:TOP/*/.git",
                "onbranch:topic/one",
                "onbranch:topic/",
                "onbranch:**",
                "onbranch:**/one",
            ]
        );
    }

    #[test]
    fn files_that_include_themselves_come_to_an_end() {
        let git = TestRepository::empty();
        let path = |name: &str| -> PathBuf { git.home().join(name) };
        let twice = "[include]\npath = a\n[user]\nname = n\n[include]\npath = a\n";
        fs::write(path("a"), twice).unwrap();
        let place = Place {
            home: None,
            git_dir: None,
            branch: &|| panic!("nobody asks for it"),
        };
        let found = read([&*path("a")], &place);
        assert!(found.len() <= 3 * MAX_FILES as usize, "{}", found.len());
        let mut chain = String::new();
        for number in 0..=MAX_DEPTH + 1 {
            let next = number + 1;
            let text = format!("[user]\nname = {number}\n[include]\npath = c{next}\n");
            fs::write(path(&format!("c{number}")), text).unwrap();
            chain = number.to_string();
        }
        let found = read([&*path("c0")], &place);
        let names: Vec<_> = found
            .iter()
            .filter_map(|config| config.as_ref().unwrap().get("user", "name"))
            .collect();
        assert_eq!(names.len(), MAX_DEPTH as usize + 1);
        assert!(!names.contains(&chain.as_bytes()), "it lies too deep");
    }
}
