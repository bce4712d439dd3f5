//! The host's own ignore rules, in addition to git's.
//!
//! Nothing here reads a file.

use serde::{Deserialize, Serialize};

use crate::path::RelPath;
use crate::path_globs::PathGlobs;

/// What to leave out of a capture, beyond git's own rules or the hash backend's default names.
///
/// With the git backend these hold for untracked paths only. They are stored with the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IgnoreOptions {
    /// A bare name: directories of that name at any depth. With a slash: that path from the
    /// workspace down.
    pub paths: Vec<String>,
    /// Globs, anchored at both ends: `*` and `?` do not cross `/`, `**/` is zero or more
    /// directories, a trailing `**` everything below. One without `/` is also tried on the name.
    pub globs: Vec<String>,
}

/// The names of directories that the hash backend does not enter, at any depth.
pub(crate) const DEFAULT_EXCLUDED_DIRECTORIES: [&str; 4] =
    [".git", "deps", "_build", "node_modules"];
/// What the host's options, and the hash backend's default names, exclude.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostRules {
    default_names: &'static [&'static str],
    /// Of directories, at any depth.
    names: Vec<String>,
    /// From the workspace down.
    paths: Vec<RelPath>,
    globs: PathGlobs,
}

impl IgnoreOptions {
    /// Whether every rule can be used.
    ///
    /// # Errors
    ///
    /// Which rule is wrong, and how.
    pub fn check(&self) -> Result<(), String> {
        HostRules::new(self).map(drop)
    }
}

impl HostRules {
    /// Checks and compiles `options`. The message names the rule that is wrong, and how.
    pub(crate) fn new(options: &IgnoreOptions) -> Result<Self, String> {
        let mut rules = Self::default();
        for text in &options.paths {
            let wrong = |reason: &str| format!("the ignore path {text:?} {reason}");
            let path = RelPath::from_user(text.as_ref())
                .map_err(|e| wrong(&format!("cannot be used: {}", e.reason)))?;
            if path.is_root() {
                return Err(wrong("names nothing below the workspace"));
            }
            if text.contains('/') {
                rules.paths.push(path);
            } else {
                rules.names.push(text.clone());
            }
        }
        rules.globs =
            PathGlobs::new(&options.globs).map_err(|wrong| format!("the ignore {wrong}"))?;
        Ok(rules)
    }

    /// Those of `options`, and [`DEFAULT_EXCLUDED_DIRECTORIES`].
    pub(crate) fn with_default_names(options: &IgnoreOptions) -> Result<Self, String> {
        Ok(Self {
            default_names: &DEFAULT_EXCLUDED_DIRECTORIES,
            ..Self::new(options)?
        })
    }

    /// The rule that excludes `path`, such as `ignore.globs: *.log`, if one does.
    ///
    /// The path itself is meant. A walk does not enter a directory that is excluded, and so leaves
    /// out all that is below.
    pub(crate) fn excludes(&self, path: &RelPath, is_dir: bool) -> Option<String> {
        let name = path.name();
        if is_dir {
            if let Some(own) = self.default_names.iter().find(|n| n.as_bytes() == name) {
                return Some(format!("default: {own}"));
            }
            if let Some(own) = self.names.iter().find(|n| n.as_bytes() == name) {
                return Some(format!("ignore.paths: {own}"));
            }
        }
        if self.paths.contains(path) {
            return Some(format!("ignore.paths: {path}"));
        }
        let glob = self.globs.matching(path)?;
        Some(format!("ignore.globs: {glob}"))
    }

    /// The rule that excludes `path` or a directory above it: whether a walk would get there.
    pub(crate) fn excludes_in_tree(&self, path: &RelPath, is_dir: bool) -> Option<String> {
        let mut at = RelPath::root();
        path.names().find_map(|name| {
            at = at.join(name);
            self.excludes(&at, is_dir || at != *path)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rel(path: impl AsRef<[u8]>) -> RelPath {
        RelPath::new(path.as_ref()).unwrap()
    }

    fn options(paths: &[&str], globs: &[&str]) -> IgnoreOptions {
        let owned = |texts: &[&str]| texts.iter().map(|t| (*t).to_owned()).collect();
        IgnoreOptions {
            paths: owned(paths),
            globs: owned(globs),
        }
    }

    /// The files among `paths` that are left when `rules` have been asked on the way to each.
    fn kept<'a>(rules: &HostRules, paths: &[&'a str]) -> Vec<&'a str> {
        let is_kept = |path: &&&str| rules.excludes_in_tree(&rel(path), false).is_none();
        paths.iter().filter(is_kept).copied().collect()
    }

    #[test]
    fn directories_with_a_default_name_are_excluded_and_files_are_not() {
        let rules = HostRules::with_default_names(&IgnoreOptions::default()).unwrap();
        let paths = [
            ".git/HEAD",
            "deps/a",
            "x/_build/a",
            "x/y/node_modules/z/a",
            "plain",
            "x/deps",
            "depsy/a",
        ];
        assert_eq!(kept(&rules, &paths), ["plain", "x/deps", "depsy/a"]);
        let without = HostRules::new(&IgnoreOptions::default()).unwrap();
        assert_eq!(kept(&without, &paths), paths);
    }

    #[test]
    fn the_hosts_paths_and_globs_add_to_the_default_names() {
        let options = options(&["vendor", "logs"], &["*.log", "**/*.bak"]);
        let rules = HostRules::with_default_names(&options).unwrap();
        let paths = [
            "vendor/a",
            "x/vendor/a",
            "logs/today",
            "top.log",
            "x/nested.log",
            "a.bak",
            "x/y/a.bak",
            "node_modules/a",
            "plain",
            "x/vendor-of",
            "vendors/a",
        ];
        assert_eq!(kept(&rules, &paths), ["plain", "x/vendor-of", "vendors/a"]);
        let because = |path| rules.excludes_in_tree(&rel(path), false).unwrap();
        assert_eq!(because("x/vendor/a"), "ignore.paths: vendor");
        assert_eq!(because("x/nested.log"), "ignore.globs: *.log");
        assert_eq!(because("x/deps/a"), "default: deps");
    }

    #[test]
    fn a_path_with_a_slash_holds_from_the_workspace_down() {
        let rules = HostRules::new(&options(&["a/b", "./c", "d/"], &[])).unwrap();
        let paths = [
            "a/b", "a/b/x", "x/a/b", "a/bc", "c", "c/x", "x/c/x", "d/x", "x/d/x",
        ];
        assert_eq!(kept(&rules, &paths), ["x/a/b", "a/bc", "x/c/x", "x/d/x"]);
    }

    #[test]
    fn globs_cross_a_slash_only_where_they_say_so() {
        for (glob, excluded, others) in [
            ("a/*.o", vec!["a/x.o"], vec!["a/b/x.o", "b/a/x.o"]),
            ("a/?", vec!["a/x"], vec!["a/xy", "a"]),
            (
                "a/**/b",
                vec!["a/b", "a/x/b", "a/x/y/b"],
                vec!["ab", "a/xb"],
            ),
            ("**/b", vec!["b", "x/b", "x/y/b"], vec!["xb"]),
            ("a/**", vec!["a/x", "a/x/y"], vec!["a", "b/a/x"]),
            ("?.o", vec!["x.o", "a/x.o"], vec!["xy.o"]),
            ("[ab].c", vec!["a.c", "x/b.c"], vec!["c.c"]),
            ("*.{o,a}", vec!["x.o", "y/x.a"], vec!["x.c"]),
        ] {
            let rules = HostRules::new(&options(&[], &[glob])).unwrap();
            let all = [excluded, others.clone()].concat();
            assert_eq!(kept(&rules, &all), others, "{glob}");
        }
        let rules = HostRules::new(&options(&[], &["*.log", "x/**/z"])).unwrap();
        assert!(rules.excludes(&rel(b"\xff.log"), false).is_some());
        assert!(rules.excludes(&rel(b"x/\xff\n/z"), false).is_some());
    }

    #[test]
    fn rules_that_could_never_hold_are_refused_by_name() {
        for path in ["", ".", "./", "/a", "../a", "a/../b", "a\0b"] {
            let message = HostRules::new(&options(&["fine", path], &[])).unwrap_err();
            assert!(message.contains(&format!("{path:?}")), "{message}");
        }
        for glob in [
            "", "/a", "../*", "a/../b", "./a", "a//b", "a/", "[a", "{a", "a\0", "\\",
        ] {
            let message = HostRules::new(&options(&[], &["*.fine", glob])).unwrap_err();
            assert!(message.contains(&format!("{glob:?}")), "{message}");
        }
    }
}
