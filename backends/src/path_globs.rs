//! Globs over the paths of a workspace.
//!
//! Nothing here reads a file.

use globset::{Candidate, Glob, GlobBuilder, GlobSet, GlobSetBuilder};

use crate::path::RelPath;

/// Globs over the paths of a workspace: `*` and `?` do not cross `/`, `**/` is zero or more
/// directories, a trailing `**` everything below. One without `/` is also tried on the last name.
#[derive(Clone, Debug, Default)]
pub struct PathGlobs {
    texts: Vec<String>,
    /// All of them, for whole paths.
    on_paths: GlobSet,
    /// Those without a slash, for last names; `name_globs` has the place of each.
    on_names: GlobSet,
    name_globs: Vec<usize>,
}

impl PathGlobs {
    /// Checks and compiles globs.
    ///
    /// # Errors
    ///
    /// Which glob is wrong, and how.
    pub fn new(texts: &[String]) -> Result<Self, String> {
        let (mut on_paths, mut on_names) = (GlobSet::builder(), GlobSet::builder());
        let mut name_globs = Vec::new();
        for (at, text) in texts.iter().enumerate() {
            let wrong = |reason: &str| format!("glob {text:?} {reason}");
            if let Some(reason) = defect_of_glob(text) {
                return Err(wrong(reason));
            }
            let glob = compiled(text).map_err(|e| wrong(&format!("is not valid: {}", e.kind())))?;
            if !text.contains('/') {
                on_names.add(glob.clone());
                name_globs.push(at);
            }
            on_paths.add(glob);
        }
        let build = |set: GlobSetBuilder| {
            set.build()
                .map_err(|e| format!("globs cannot be used: {e}"))
        };
        Ok(Self {
            texts: texts.to_vec(),
            on_paths: build(on_paths)?,
            on_names: build(on_names)?,
            name_globs,
        })
    }

    /// Whether there is no glob, so that no path is matched.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// The first glob that matches `path` itself.
    pub fn matching(&self, path: &RelPath) -> Option<&str> {
        if self.texts.is_empty() || path.is_root() {
            return None;
        }
        let on_path = self
            .on_paths
            .matches_candidate(&Candidate::from_bytes(path.as_bytes()));
        let at = on_path.first().copied().or_else(|| {
            let on_name = self
                .on_names
                .matches_candidate(&Candidate::from_bytes(path.name()));
            on_name.first().map(|at| self.name_globs[*at])
        })?;
        Some(&self.texts[at])
    }

    /// The first glob that matches a directory above `path`, from the top, or `path` itself.
    pub fn matching_in_tree(&self, path: &RelPath) -> Option<&str> {
        let mut at = RelPath::root();
        path.names().find_map(|name| {
            at = at.join(name);
            self.matching(&at)
        })
    }

    /// The first glob that leads into the directory `path`, so that it may match something below:
    /// each name of `path` is matched by the part of the glob in its place, up to a `**`. That a
    /// glob which begins with `**`, or has no slash, may match below any directory does not count.
    pub fn leading_into(&self, path: &RelPath) -> Option<&str> {
        let leads = |text: &&String| {
            let mut parts = text.split('/');
            let names = path.names().enumerate();
            let mut fits = names.map(|(at, name)| match parts.next() {
                // Nothing below is meant by what ends here.
                None => Some(false),
                Some("**") => Some(at > 0),
                // A part that is no glob of its own may match anything.
                Some(part) => match compiled(part).map(|part| part.compile_matcher()) {
                    Ok(part) if !part.is_match_candidate(&Candidate::from_bytes(name)) => {
                        Some(false)
                    }
                    _ => None,
                },
            });
            let decided = fits.find_map(|fits| fits);
            decided.unwrap_or_else(|| parts.next().is_some())
        };
        let with_slash = self.texts.iter().filter(|text| text.contains('/'));
        with_slash.into_iter().find(leads).map(String::as_str)
    }
}

fn compiled(text: &str) -> Result<Glob, globset::Error> {
    GlobBuilder::new(text)
        .literal_separator(true)
        .backslash_escape(true)
        .build()
}

/// Why a glob could match no path, or none below the workspace.
fn defect_of_glob(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        return Some("is empty");
    }
    if text.starts_with('/') {
        return Some("is absolute");
    }
    if text.contains('\0') {
        return Some("holds a NUL byte");
    }
    text.split('/').find_map(|name| match name {
        "" if text.ends_with('/') => Some("ends with a slash, as no path does"),
        "" => Some("has an empty component"),
        "." => Some("has the component \".\""),
        ".." => Some("has the component \"..\""),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rel(path: &str) -> RelPath {
        RelPath::new(path).unwrap()
    }

    fn globs(texts: &[&str]) -> PathGlobs {
        PathGlobs::new(
            &texts
                .iter()
                .map(|text| (*text).to_owned())
                .collect::<Vec<_>>(),
        )
        .unwrap()
    }

    #[test]
    fn a_directory_that_matches_has_all_below_it() {
        let globs = globs(&["*.lock", ".github", "docs/*"]);
        for (path, expected) in [
            (".github", Some(".github")),
            (".github/workflows/ci.yml", Some(".github")),
            ("x/.github/a", Some(".github")),
            ("x/Cargo.lock", Some("*.lock")),
            ("docs", None),
            ("docs/a/b", Some("docs/*")),
            ("src/docs/a", None),
            ("githubs", None),
        ] {
            assert_eq!(globs.matching_in_tree(&rel(path)), expected, "{path}");
        }
    }

    #[test]
    fn what_leads_into_a_directory_may_match_below_it() {
        for (glob, into, elsewhere) in [
            (
                ".github/**",
                vec![".github", ".github/a"],
                vec!["x", "x/.github"],
            ),
            (".github/*.yml", vec![".github"], vec![".github/a"]),
            (
                "a*/{b,c}/d",
                vec!["a", "ax", "a/b", "ax/c"],
                vec!["a/d", "b"],
            ),
            ("src/**/x", vec!["src", "src/a/b"], vec!["lib"]),
            ("**/x", vec![], vec!["a", "a/b"]),
            ("*.lock", vec![], vec!["a"]),
        ] {
            let globs = globs(&[glob]);
            for path in into {
                assert_eq!(globs.leading_into(&rel(path)), Some(glob), "{path}");
            }
            for path in elsewhere {
                assert_eq!(globs.leading_into(&rel(path)), None, "{glob} {path}");
            }
        }
    }
}
