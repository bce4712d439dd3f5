//! Single values of git's configuration: the user's, then the repository's own, which wins.

use std::ffi::OsString;
use std::path::Path;

#[cfg(doc)]
use super::UserConfig;
use super::{Config, MAX_CONFIG_BYTES, own_configs};
use crate::repository::{RepositoryError, UserRepository};

/// What git's configuration says in one repository.
///
/// Read as values alone: nothing that they name is opened or executed, and what the repository's
/// own configuration includes is not read. Of git's variables those count that [`UserConfig`] looks
/// at.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The weakest first.
    configs: Vec<Config>,
}

impl UserRepository {
    /// The configuration that holds here. `env` looks up an environment variable.
    pub fn settings(
        &self,
        env: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Settings, RepositoryError> {
        // One of the user's own that is damaged says nothing.
        let own = own_configs(Path::new("/etc"), env, Some(self));
        let mut configs: Vec<Config> = own.into_iter().flatten().collect();
        configs.extend(self.local_configs()?);
        Ok(Settings { configs })
    }

    /// Whether the repository's own configuration names a file with attributes, or a tree with
    /// some. What it includes is not looked at.
    pub fn names_attributes(&self) -> Result<bool, RepositoryError> {
        let names = |config: &Config| {
            config.get("core", "attributesfile").is_some() || config.get("attr", "tree").is_some()
        };
        Ok(self.local_configs()?.iter().any(names))
    }

    /// The repository's own configuration, the weakest first.
    fn local_configs(&self) -> Result<Vec<Config>, RepositoryError> {
        let mut configs = Vec::from_iter(parsed(self.common(), "config")?);
        let is_split = configs.iter().any(|config| {
            let value = config.get("extensions", "worktreeconfig");
            value.is_some_and(|value| truth(value) == Some(true))
        });
        if is_split {
            configs.extend(parsed(&self.git_dir, "config.worktree")?);
        }
        Ok(configs)
    }
}

/// One of the repository's own configuration files; `None` if it is not there.
fn parsed(
    holder: &crate::repository::git_dir::GitDir,
    name: &str,
) -> Result<Option<Config>, RepositoryError> {
    let Some(text) = holder.read(name, MAX_CONFIG_BYTES)? else {
        return Ok(None);
    };
    let config = Config::parse(&text).map_err(|line| RepositoryError::Damaged {
        path: holder.disk_path(name),
        reason: format!("line {} cannot be read", line.0),
    })?;
    Ok(Some(config))
}

impl Settings {
    /// What one configuration file with this text says, without those that it includes. One that
    /// git would refuse says nothing.
    pub fn of_text(text: &[u8]) -> Self {
        Self {
            configs: Config::parse(text).into_iter().collect(),
        }
    }

    /// The value of `section.key`, both in lower case; the last one counts.
    pub fn get(&self, section: &str, key: &str) -> Option<&[u8]> {
        let mut configs = self.configs.iter().rev();
        configs.find_map(|config| config.get(section, key))
    }

    /// The first value of `section.subsection.key`, of which `section` and `key` are in lower case:
    /// what counts for keys that name a list.
    pub fn first_below(&self, section: &str, subsection: &[u8], key: &str) -> Option<&[u8]> {
        let mut configs = self.configs.iter();
        configs.find_map(|config| config.first_below(section, subsection, key))
    }

    /// As [`Settings::get`], as a truth value; `None` if it is not set, or is none.
    pub fn is_on(&self, section: &str, key: &str) -> Option<bool> {
        truth(self.get(section, key)?)
    }

    /// As [`Settings::get`], as text; what is not UTF-8 is not set.
    pub fn text(&self, section: &str, key: &str) -> Option<&str> {
        std::str::from_utf8(self.get(section, key)?).ok()
    }
}

/// What git takes for true and for false (`git-config`, "boolean").
fn truth(value: &[u8]) -> Option<bool> {
    let text = std::str::from_utf8(value).ok()?.to_ascii_lowercase();
    match text.as_str() {
        "true" | "yes" | "on" => Some(true),
        "false" | "no" | "off" | "" => Some(false),
        number => number.parse::<i64>().ok().map(|number| number != 0),
    }
}
