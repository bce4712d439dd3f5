//! Ignore rules and attributes from files that are in no tree of the workspace.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::config::UserConfig;
use super::git_dir::{self, read_own_file};
use super::{RepositoryError, UserRepository};
use crate::error::printable;
use crate::path::RelPath;

/// As for `.gitignore`: rules that a person wrote come nowhere near.
const MAX_RULES_BYTES: u64 = 1024 * 1024;

/// Ignore rules from a file outside of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideRules {
    /// Where they came from, for `why`: `.git/info/exclude`, or the path of the user's file.
    pub origin: String,
    /// The text. Bytes that are no UTF-8 are replaced.
    pub text: String,
}

/// Attributes from files outside of the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutsideAttributes {
    /// The machine's and the user's own, the weakest first: any `.gitattributes` wins over them.
    pub weakest: Vec<OutsideRules>,
    /// `info/attributes` of the repository: it wins over any `.gitattributes`.
    pub strongest: Option<OutsideRules>,
    /// Besides, there may be others: the repository's own configuration names one, or includes a
    /// file that may. Neither is read.
    pub may_have_others: bool,
}

impl UserRepository {
    /// The files called `name` in the directories above the workspace, up to the top of the work
    /// tree, each with its directory below the work tree, topmost first. What is no regular file of
    /// at most `max_bytes` is left out.
    pub fn files_above_scope(&self, name: &str, max_bytes: u64) -> Vec<(RelPath, Vec<u8>)> {
        let mut files = Vec::new();
        let mut directory = RelPath::root();
        for next in self.scope.names() {
            let disk_path = self.work_tree.join(directory.as_path()).join(name);
            if let Some(text) = git_dir::read_plain_file(&disk_path, max_bytes) {
                files.push((directory.clone(), text));
            }
            directory = directory.join(next);
        }
        files
    }

    /// Ignore rules from files outside of the tree, the weakest first: the user's own, then
    /// `info/exclude`. Any `.gitignore` wins over both.
    pub fn outside_rules(&self, user: &UserConfig) -> Result<Vec<OutsideRules>, RepositoryError> {
        let mut rules: Vec<_> = user.excludes.iter().filter_map(|p| own_rules(p)).collect();
        rules.extend(self.info_rules("exclude")?);
        Ok(rules)
    }

    /// Attributes from files outside of the tree.
    pub fn outside_attributes(
        &self,
        user: &UserConfig,
    ) -> Result<OutsideAttributes, RepositoryError> {
        Ok(OutsideAttributes {
            weakest: user
                .attributes
                .iter()
                .filter_map(|p| own_rules(p))
                .collect(),
            strongest: self.info_rules("attributes")?,
            may_have_others: self.may_name_attributes,
        })
    }

    fn info_rules(&self, name: &str) -> Result<Option<OutsideRules>, RepositoryError> {
        let name = format!("info/{name}");
        let text = self.common().read(&name, MAX_RULES_BYTES)?;
        Ok(text.map(|text| OutsideRules {
            origin: format!(".git/{name}"),
            text: String::from_utf8_lossy(&text).into_owned(),
        }))
    }
}

/// A file of the user's own with rules or attributes, if it is there and can be read.
fn own_rules(path: &Path) -> Option<OutsideRules> {
    let text = read_own_file(path, MAX_RULES_BYTES)?;
    Some(OutsideRules {
        origin: printable(path),
        text: String::from_utf8_lossy(&text).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::super::testing::*;
    use super::*;
    use crate::test_repository::TestRepository;

    fn put(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn texts(rules: &[OutsideRules]) -> Vec<&str> {
        rules.iter().map(|r| r.text.as_str()).collect()
    }

    #[test]
    fn outside_rules_are_the_users_and_then_the_repositorys() {
        let git = TestRepository::with_commit();
        fs::remove_file(git.path.join(".git/info/exclude")).unwrap();
        let rules = |xdg: Option<&Path>| found(&git.path).outside_rules(&user(&git, xdg)).unwrap();
        assert_eq!(rules(None), []);
        git.write(".git/info/exclude", "*.o\n");
        put(git.home().join(".config/git/ignore"), "default\n");
        let both = rules(None);
        assert_eq!(texts(&both), ["default\n", "*.o\n"]);
        assert_eq!(both[1].origin, ".git/info/exclude");
        assert_eq!(
            both[0].origin,
            git.home().join(".config/git/ignore").to_str().unwrap()
        );

        let xdg = git.beside("xdg");
        put(xdg.join("git/ignore"), "xdg\n");
        assert_eq!(texts(&rules(Some(&xdg))), ["xdg\n", "*.o\n"]);

        put(
            git.beside("etc/gitconfig"),
            "[core]\nexcludesFile = /nowhere\n",
        );
        assert_eq!(texts(&rules(None)), ["*.o\n"]);
        put(git.home().join("mine"), "mine\n");
        put(
            git.home().join(".gitconfig"),
            "[core]\n\texcludesFile = ~/mine\n",
        );
        assert_eq!(texts(&rules(None)), ["mine\n", "*.o\n"]);
        // What the repository's own configuration names is not looked at.
        git.git(&["config", "core.excludesFile", "/etc/passwd"]);
        assert_eq!(texts(&rules(None)), ["mine\n", "*.o\n"]);
        put(git.home().join(".gitconfig"), "[core]\n\texcludesFile =\n");
        assert_eq!(texts(&rules(None)), ["*.o\n"]);
    }

    #[test]
    fn the_users_own_files_may_be_links_and_special_files_say_nothing() {
        let git = TestRepository::with_commit();
        fs::remove_file(git.path.join(".git/info/exclude")).unwrap();
        put(
            git.beside("dotfiles/gitconfig"),
            "[core]\nexcludesFile = ~/rules\n",
        );
        symlink(
            git.beside("dotfiles/gitconfig"),
            git.home().join(".gitconfig"),
        )
        .unwrap();
        let rules = git.home().join("rules");
        put(rules.clone(), "linked\n");
        let read = || {
            let (user, repository) = (user(&git, None), found(&git.path));
            in_time(move || repository.outside_rules(&user).unwrap())
        };
        assert_eq!(texts(&read()), ["linked\n"]);
        fs::remove_file(&rules).unwrap();
        fifo(&rules);
        assert_eq!(texts(&read()), [""; 0]);
        fs::remove_file(&rules).unwrap();
        symlink("/dev/null", &rules).unwrap();
        assert_eq!(texts(&read()), [""; 0]);
    }

    #[test]
    fn outside_attributes_are_weaker_and_stronger_than_the_trees() {
        let git = TestRepository::with_commit();
        let read = || {
            found(&git.path)
                .outside_attributes(&user(&git, None))
                .unwrap()
        };
        assert_eq!(read(), OutsideAttributes::default());
        put(git.beside("etc/gitattributes"), "* machine\n");
        put(git.home().join(".config/git/attributes"), "* user\n");
        git.write(".git/info/attributes", "* repository\n");
        let attributes = read();
        assert_eq!(texts(&attributes.weakest), ["* machine\n", "* user\n"]);
        assert_eq!(attributes.strongest.unwrap().text, "* repository\n");
        put(git.home().join("mine"), "* mine\n");
        put(
            git.home().join(".gitconfig"),
            "[core]\nattributesfile = ~/mine\n",
        );
        assert_eq!(texts(&read().weakest), ["* machine\n", "* mine\n"]);
    }

    #[test]
    fn attributes_that_included_files_name_are_the_users_too() {
        let git = TestRepository::with_commit();
        let read = || texts_of(&found(&git.path).outside_attributes(&user(&git, None)));
        fn texts_of(read: &Result<OutsideAttributes, RepositoryError>) -> Vec<String> {
            let read = read.as_ref().unwrap();
            read.weakest.iter().map(|r| r.text.clone()).collect()
        }
        put(
            git.home().join(".gitconfig"),
            "[include]\npath = more/config\npath = /nowhere\npath\n\
             [includeIf \"gitdir:/elsewhere/\"]\npath = ~/conditional\n",
        );
        let include_itself = "[include]\npath = config\n";
        put(
            git.home().join("more/config"),
            &format!("{include_itself}[core]\nattributesFile = ~/mine\n"),
        );
        let theirs = git.home().join("theirs");
        put(
            git.home().join("conditional"),
            &format!("[core]\nattributesFile = {}\n", theirs.display()),
        );
        put(git.home().join("mine"), "* mine\n");
        put(theirs, "* theirs\n");
        assert_eq!(read(), ["* mine\n"], "the condition is not met");
    }

    #[test]
    fn attributes_that_the_repository_names_itself_are_not_read_but_counted_with() {
        let may_have_others = |git: &TestRepository| {
            let read = found(&git.path)
                .outside_attributes(&user(git, None))
                .unwrap();
            assert_eq!(read.weakest, []);
            read.may_have_others
        };
        let git = TestRepository::with_commit();
        assert!(!may_have_others(&git));
        git.git(&["config", "filter.lfs.clean", "git-lfs clean -- %f"]);
        assert!(!may_have_others(&git), "a driver that nothing names");
        for (key, value) in [
            ("core.attributesFile", "/etc/passwd"),
            ("attr.tree", "attributes"),
            ("include.path", "/etc/passwd"),
            ("includeIf.gitdir:~/.path", "other"),
        ] {
            // git itself may refuse to read a configuration that includes what is none.
            let config = git.path.join(".git/config");
            let kept = fs::read(&config).unwrap();
            git.git(&["config", key, value]);
            assert!(may_have_others(&git), "{key}");
            fs::write(&config, kept).unwrap();
            assert!(!may_have_others(&git), "{key}");
        }
        git.git(&["config", "extensions.worktreeConfig", "true"]);
        git.git(&["config", "--worktree", "core.attributesFile", "/etc/passwd"]);
        assert!(may_have_others(&git));
    }
}
