//! How files are written that a tree has: the conversions that its attributes ask for.

use super::attribute_values::{AttributeFinder, AttributeLines, FileReader};
use super::conversion::Conversion;
use super::decision::Environment;
use crate::commit::CommitError;
use crate::git::repository::{Settings, UserConfig, UserRepository};
use crate::path::RelPath;

/// A file of attributes that is larger is none.
pub(in crate::git) const MAX_ATTRIBUTES_BYTES: u64 = 1 << 20;

/// What gives attributes to the files of a tree that is written into a work tree, but for the tree
/// itself. As with git, the attributes of the tree count when it is checked out, and not those of
/// the work tree.
pub(in crate::git) struct Smudging {
    settings: Settings,
    /// The texts of files outside of the tree, the weakest first.
    weakest: Vec<String>,
    /// That of `info/attributes`.
    strongest: Option<String>,
}

impl Smudging {
    /// That of a repository.
    pub(in crate::git) fn new(
        repository: &UserRepository,
        env: &Environment<'_>,
    ) -> Result<Self, CommitError> {
        if repository.names_attributes()? {
            return Err(CommitError::Unsupported(
                "the repository's configuration names a file with attributes, which is not read"
                    .to_owned(),
            ));
        }
        let user = UserConfig::read(env, Some(repository));
        let outside = repository.outside_attributes(&user)?;
        Ok(Self {
            settings: repository.settings(env)?,
            weakest: outside.weakest.into_iter().map(|f| f.text).collect(),
            strongest: outside.strongest.map(|f| f.text),
        })
    }

    /// The repository's settings.
    pub(in crate::git) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The conversions of the files at these paths, from the top of the work tree. `read` answers
    /// with the text of the attribute file that the tree has in a directory.
    pub(in crate::git) fn conversions<'p>(
        &self,
        paths: impl IntoIterator<Item = &'p RelPath>,
        read: &mut FileReader<'_>,
    ) -> Result<Vec<Conversion>, CommitError> {
        let parsed = |text: &String| AttributeLines::parse(text.as_bytes());
        let weakest = self.weakest.iter().map(parsed).collect();
        let mut finder = AttributeFinder::new(weakest, self.strongest.as_ref().map(parsed), read);
        let paths = paths.into_iter();
        let conversions = paths.map(|path| Ok(Conversion::of(&finder.of(path)?, &self.settings)));
        conversions.collect()
    }
}
