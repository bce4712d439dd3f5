//! The parts of git's configuration that say which format a repository has, and which of the user's
//! own files have ignore rules and attributes. Nothing is executed, and only the user's own files
//! can include other files.

mod includes;
mod settings;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use self::includes::Place;
use super::UserRepository;
use super::git_dir::{path_of, read_own_file};

pub use self::settings::Settings;

/// No configuration that people write comes near a megabyte.
pub(super) const MAX_CONFIG_BYTES: u64 = 1024 * 1024;

/// The values of one configuration file, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Config {
    values: Vec<Value>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Value {
    /// In lower case.
    section: String,
    subsection: Option<Vec<u8>>,
    /// In lower case.
    key: String,
    /// `None`: the key stands alone, which means true.
    value: Option<Vec<u8>>,
}

/// A line that git would refuse as well, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadLine(pub(super) usize);

impl Config {
    /// Reads the text of a configuration file by git's rules (`git-config`, "Syntax").
    pub(super) fn parse(text: &[u8]) -> Result<Self, BadLine> {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let mut scanner = Scanner {
            text,
            at: 0,
            line: 1,
        };
        scanner.config().ok_or(BadLine(scanner.line))
    }

    /// The last value of `section.key`, both in lower case. A key that stands alone is `true`.
    pub(super) fn get(&self, section: &str, key: &str) -> Option<&[u8]> {
        let mut values = self.values.iter().rev();
        values
            .find(|v| v.section == section && v.subsection.is_none() && v.key == key)
            .map(|v| v.value.as_deref().unwrap_or(b"true"))
    }

    /// The first value of `section.subsection.key` that is not empty.
    fn first_below(&self, section: &str, subsection: &[u8], key: &str) -> Option<&[u8]> {
        let mut values = self.values.iter().filter(|v| {
            v.section == section && v.subsection.as_deref() == Some(subsection) && v.key == key
        });
        values.find_map(|v| v.value.as_deref().filter(|value| !value.is_empty()))
    }

    /// The files that this one includes, whatever the condition.
    fn includes(&self) -> impl Iterator<Item = &[u8]> {
        let is_include = |v: &&Value| match v.section.as_str() {
            "include" => v.subsection.is_none() && v.key == "path",
            "includeif" => v.key == "path",
            _ => false,
        };
        self.values
            .iter()
            .filter(is_include)
            .filter_map(|v| v.value.as_deref())
    }

    /// Whether it may name attributes that lie elsewhere: by itself, or in a file that it includes.
    pub(super) fn may_name_attributes(&self) -> bool {
        self.get("core", "attributesfile").is_some()
            || self.get("attr", "tree").is_some()
            || self.includes().next().is_some()
    }

    /// The keys and values of a section without subsection.
    pub(super) fn section<'c>(
        &'c self,
        section: &'c str,
    ) -> impl Iterator<Item = (&'c str, &'c [u8])> {
        let in_section = move |v: &&Value| v.section == section && v.subsection.is_none();
        self.values.iter().filter(in_section).map(|v| {
            let value = v.value.as_deref().unwrap_or(b"true");
            (v.key.as_str(), value)
        })
    }
}

struct Scanner<'t> {
    text: &'t [u8],
    at: usize,
    line: usize,
}

/// `None` is a line that cannot be read.
impl Scanner<'_> {
    /// The next byte; CRLF is a line feed, and so is the end.
    fn next(&mut self) -> u8 {
        let mut byte = self.text.get(self.at).copied();
        if byte == Some(b'\r') && self.text.get(self.at + 1) == Some(&b'\n') {
            self.at += 1;
            byte = Some(b'\n');
        }
        self.at += 1;
        byte.unwrap_or(b'\n')
    }

    fn is_at_end(&self) -> bool {
        self.at >= self.text.len()
    }

    fn config(&mut self) -> Option<Config> {
        let mut config = Config::default();
        let mut section = (String::new(), None);
        let mut is_comment = false;
        while !self.is_at_end() {
            match self.next() {
                b'\n' => {
                    is_comment = false;
                    self.line += 1;
                }
                _ if is_comment => {}
                byte if is_blank(byte) => {}
                b'#' | b';' => is_comment = true,
                b'[' => section = self.section()?,
                byte if byte.is_ascii_alphabetic() => {
                    let (section, subsection) = section.clone();
                    let mut key = String::from(char::from(byte.to_ascii_lowercase()));
                    let value = self.key_and_value(&mut key)?;
                    self.line += 1;
                    config.values.push(Value {
                        section,
                        subsection,
                        key,
                        value,
                    });
                }
                _ => return None,
            }
        }
        Some(config)
    }

    /// After `[`: `section]`, `section "subsection"]`, or `section.subsection]` as of old.
    fn section(&mut self) -> Option<(String, Option<Vec<u8>>)> {
        let mut name = String::new();
        loop {
            match self.next() {
                b']' if name.is_empty() => return None,
                b']' => break,
                b'\n' => return None,
                byte if is_blank(byte) => {
                    return Some((name, Some(self.quoted_subsection()?)));
                }
                byte if is_key(byte) || byte == b'.' => {
                    name.push(char::from(byte.to_ascii_lowercase()));
                }
                _ => return None,
            }
        }
        Some(match name.split_once('.') {
            Some((section, rest)) => (section.to_owned(), Some(rest.as_bytes().to_vec())),
            None => (name, None),
        })
    }

    fn quoted_subsection(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.next() {
                b'"' => break,
                byte if byte != b'\n' && is_blank(byte) => {}
                _ => return None,
            }
        }
        let mut name = Vec::new();
        loop {
            match self.next() {
                b'\n' => return None,
                b'"' => break,
                b'\\' => match self.next() {
                    b'\n' => return None,
                    byte => name.push(byte),
                },
                byte => name.push(byte),
            }
        }
        (self.next() == b']').then_some(name)
    }

    /// After the first letter of a key, up to the end of its line or lines.
    fn key_and_value(&mut self, key: &mut String) -> Option<Option<Vec<u8>>> {
        let mut byte = self.next();
        while is_key(byte) {
            key.push(char::from(byte.to_ascii_lowercase()));
            byte = self.next();
        }
        while byte == b' ' || byte == b'\t' {
            byte = self.next();
        }
        match byte {
            b'\n' => Some(None),
            b'=' => self.value().map(Some),
            _ => None,
        }
    }

    fn value(&mut self) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        // Blanks count only once something follows them.
        let mut blanks = Vec::new();
        let mut is_quoted = false;
        let mut is_comment = false;
        loop {
            let byte = self.next();
            match byte {
                b'\n' if is_quoted => return None,
                b'\n' => {
                    // To git a value is a string of C's, which a NUL ends.
                    let end = value.iter().position(|byte| *byte == 0);
                    value.truncate(end.unwrap_or(value.len()));
                    return Some(value);
                }
                _ if is_comment => continue,
                _ if is_blank(byte) && !is_quoted => {
                    if !value.is_empty() {
                        blanks.push(byte);
                    }
                    continue;
                }
                b'#' | b';' if !is_quoted => {
                    is_comment = true;
                    continue;
                }
                _ => {}
            }
            value.append(&mut blanks);
            match byte {
                b'\\' => match self.next() {
                    b'\n' => self.line += 1,
                    b't' => value.push(b'\t'),
                    b'b' => value.push(0x08),
                    b'n' => value.push(b'\n'),
                    byte @ (b'\\' | b'"') => value.push(byte),
                    _ => return None,
                },
                b'"' => is_quoted = !is_quoted,
                _ => value.push(byte),
            }
        }
    }
}

/// What `isspace` is true of in git, which has its own: vertical tabs and form feeds are none.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

fn is_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

/// What git's own configuration of the user and the machine says about ignore rules and attributes.
///
/// Only what the user wrote counts, and what that includes, and not the repository's own
/// configuration. Of git's variables `GIT_CONFIG_GLOBAL` and `GIT_CONFIG_SYSTEM` are looked at,
/// which name other files for it (`git(1)`). A file that is not there or cannot be read says
/// nothing.
#[derive(Clone, Debug)]
pub struct UserConfig {
    /// The file with the user's ignore rules.
    pub(super) excludes: Option<PathBuf>,
    /// The files with attributes for all repositories, the weakest first.
    pub(super) attributes: Vec<PathBuf>,
}

impl UserConfig {
    /// Reads `/etc/gitconfig`, `$XDG_CONFIG_HOME/git/config` (default `~/.config`) and
    /// `~/.gitconfig`, with what they include; the later ones win. `$GIT_CONFIG_SYSTEM` stands in
    /// the place of the first, `$GIT_CONFIG_GLOBAL` of the two others. `env` looks up an
    /// environment variable; `repository` is asked for what the conditions of an `includeIf` are
    /// about.
    pub fn read(
        env: &dyn Fn(&str) -> Option<OsString>,
        repository: Option<&UserRepository>,
    ) -> Self {
        Self::read_at(Path::new("/etc"), env, repository)
    }

    #[cfg(test)]
    pub(super) fn read_with(etc: &Path, env: &dyn Fn(&str) -> Option<OsString>) -> Self {
        Self::read_at(etc, env, None)
    }

    fn read_at(
        etc: &Path,
        env: &dyn Fn(&str) -> Option<OsString>,
        repository: Option<&UserRepository>,
    ) -> Self {
        let OwnFiles { home, xdg, .. } = OwnFiles::of(etc, env);
        let mut excludes = xdg.as_ref().map(|directory| directory.join("ignore"));
        let mut attributes = xdg.as_ref().map(|directory| directory.join("attributes"));
        for config in own_configs(etc, env, repository) {
            // One that is damaged says nothing.
            let Ok(config) = config else {
                continue;
            };
            if let Some(value) = config.get("core", "excludesfile") {
                excludes = own_path(value, home.as_deref());
            }
            if let Some(value) = config.get("core", "attributesfile") {
                attributes = own_path(value, home.as_deref());
            }
        }
        Self {
            excludes,
            attributes: [Some(etc.join("gitattributes")), attributes]
                .into_iter()
                .flatten()
                .collect(),
        }
    }
}

/// Where the configuration of the user and of the machine lies.
struct OwnFiles {
    home: Option<PathBuf>,
    /// git's directory in that for configuration.
    xdg: Option<PathBuf>,
    /// The files, the weakest first.
    files: Vec<PathBuf>,
}

impl OwnFiles {
    fn of(etc: &Path, env: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let directory = |name| env(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let home = directory("HOME");
        let below_home = |name: &str| home.as_ref().map(|home| home.join(name));
        let xdg = directory("XDG_CONFIG_HOME")
            .or_else(|| below_home(".config"))
            .map(|directory| directory.join("git"));
        // An empty one counts for git: it names no file.
        let system = env("GIT_CONFIG_SYSTEM").map_or_else(|| etc.join("gitconfig"), PathBuf::from);
        let mut files = vec![system];
        match env("GIT_CONFIG_GLOBAL") {
            Some(global) => files.push(PathBuf::from(global)),
            None => {
                files.extend(xdg.as_ref().map(|directory| directory.join("config")));
                files.extend(below_home(".gitconfig"));
            }
        }
        // A relative one depends on where git would happen to run, and may lie in a repository.
        files.retain(|file| file.is_absolute());
        Self { files, home, xdg }
    }
}

/// The configuration of the user and of the machine with what it includes, the weakest first. What
/// is damaged is an error in its place.
fn own_configs(
    etc: &Path,
    env: &dyn Fn(&str) -> Option<OsString>,
    repository: Option<&UserRepository>,
) -> Vec<Result<Config, BadLine>> {
    let own = OwnFiles::of(etc, env);
    let branch = || {
        let head = repository?.head().ok()?;
        Some(head.branch()?.strip_prefix("refs/heads/")?.to_owned())
    };
    let place = Place {
        home: own.home.as_deref(),
        git_dir: repository.map(UserRepository::git_dir),
        branch: &branch,
    };
    includes::read(own.files.iter().map(PathBuf::as_path), &place)
}

/// A path in the user's own configuration: absolute, or in the home directory. What git would take
/// relative to where it happens to run names nothing.
fn own_path(value: &[u8], home: Option<&Path>) -> Option<PathBuf> {
    match value.strip_prefix(b"~/") {
        Some(rest) => home.map(|home| home.join(path_of(rest))),
        None => Some(path_of(value).to_owned()).filter(|path| path.is_absolute()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::test_repository::TestRepository;

    /// The values in the words of `git config --list --null`.
    fn as_git_prints(config: &Config) -> Vec<u8> {
        let mut out = Vec::new();
        for value in &config.values {
            let mut name = Vec::new();
            if !value.section.is_empty() || value.subsection.is_some() {
                name.extend(value.section.as_bytes());
                name.push(b'.');
            }
            if let Some(subsection) = &value.subsection {
                name.extend(subsection);
                name.push(b'.');
            }
            name.extend(value.key.as_bytes());
            // It prints what it takes for a string of C's.
            out.extend(name.split(|byte| *byte == 0).next().unwrap());
            if let Some(value) = &value.value {
                out.push(b'\n');
                out.extend(value);
            }
            out.push(0);
        }
        out
    }

    /// What git makes of the file; `None` if it refuses it.
    fn git_prints(git: &TestRepository, text: &[u8]) -> Option<Vec<u8>> {
        fs::write(git.beside("config"), text).unwrap();
        let args = [
            "config",
            "--file",
            "../config",
            "--list",
            "--null",
            "--no-includes",
        ];
        let output = git.run(&git.path, &args);
        output.status.success().then_some(output.stdout)
    }

    #[test]
    fn configuration_is_read_as_git_reads_it() {
        let git = TestRepository::empty();
        for text in [
            "",
            "\n\n",
            "# nothing\n; at all",
            "[core]\n\tbare = false\n\tKey-2=x\n",
            "[CORE] Bare = no ; why not\n",
            "[core]bare\n",
            "[core]\r\nbare = true\r\n",
            "\u{feff}[core]\nbare = true\n",
            "[a \"Sub.Section\"]\nk = v\n",
            "[a \"q\\\"u\\\\o\\te\"]\nk = v\n",
            "[a.Old.Form]\nk = v\n",
            "[a]\nk =\n",
            "[a]\nk = one \\\n  two\nl = 3\n",
            "[a]\nk = \"  quoted # not a comment \"  \n",
            "[a]\nk = in \"the # middle\" of # it\n",
            "[a]\nk = \\t\\n\\b\\\\\\\"\n",
            "[a]\nk = several   blanks\tand tabs   \n",
            "[a]\nk = v\n[b]\n[a]\nk = w\n",
            "[a]\nk = v",
            "[a]\nk = v\\",
            "[a]\nk",
            "[a] # comment\nk = v\n",
            "[core]\nnot_a_key = 1\n",
            "[core\nbare = true\n",
            "[co re]\nbare = true\n",
            "[a \"open]\nk = v\n",
            "[a \"s\" ]\nk = v\n",
            "[a]\nk = \"open\n",
            "[a]\nk = \\x\n",
            "[a]\n1k = v\n",
            "[a]\nk v\n",
            "[]\nk = v\n",
            "[ \"b\"]\nk = v\n",
            "[.]\nk = v\n",
            "[.b]\nk = v\n",
            "[a.]\nk = v\n",
            "[a \"\"]\nk = v\n",
            "[a]\nk = \u{b}v\u{c}\n",
            "[a]\nk = v\0w\n",
            "[a]\n\rk = v\r\r\n",
            "[a]\nk # v\n",
            "= x\n",
            "garbage here\n",
            "\0",
        ] {
            let ours = Config::parse(text.as_bytes()).ok();
            let ours = ours.as_ref().map(as_git_prints);
            assert_eq!(ours, git_prints(&git, text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn the_last_value_counts_and_a_bad_line_is_counted() {
        let config = Config::parse(b"[core]\nbare\nbare = 0\n[core \"x\"]\nbare = 2\n").unwrap();
        assert_eq!(config.get("core", "bare"), Some(&b"0"[..]));
        assert_eq!(config.get("core", "other"), None);
        assert_eq!(Config::parse(b"[a]\nk = v\n\n?\n"), Err(BadLine(4)));
    }

    /// What configuration is made of, whole lines among it: chance makes none that git would take.
    const PIECES: &str = "[a]\n/[a]\n/[a \"b\"]\n/[a.B]/k=v\n/\nk = /\nk = /k/\n/\n/\r\n/\\\n/\\n/\\/\"/\"/ / \
        /\t/\r/\u{b}/\u{c}/\0/#/;/=/[/]/./-/_/1/\u{e9}/\u{feff}";

    thread_local! {
        static GIT: TestRepository = TestRepository::empty();
    }

    proptest! {
        #[test]
        fn configuration_made_at_random_is_read_as_git_reads_it(
            pieces in prop::collection::vec(prop::sample::select(Vec::from_iter(PIECES.split('/'))), 0..24),
        ) {
            let text = pieces.concat();
            let ours = Config::parse(text.as_bytes()).ok();
            let ours = ours.as_ref().map(as_git_prints);
            prop_assert_eq!(ours, GIT.with(|git| git_prints(git, text.as_bytes())));
        }

        #[test]
        fn no_text_is_too_much(text in "[\\[\\]\"\\\\ab.=#; \n\r\t]{0,60}") {
            let _ = Config::parse(text.as_bytes());
        }
    }
}
