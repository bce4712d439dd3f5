//! The variables that git gets of this process.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;

/// What git, ssh and helpers for credentials need to find their programs and files, the network,
/// and what they trust there.
const PASSED_ON: [&str; 16] = [
    "ALL_PROXY",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
    "HOME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "PATH",
    "SSH_AUTH_SOCK",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// The variables of this process that git gets as well: `HOME`, `PATH`, `SSH_AUTH_SOCK`, `XDG_*`,
/// and those that name proxies and certificates. No other variable reaches it, and so none of
/// git's own.
#[derive(Clone)]
pub struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    /// Of these variables, those that git gets.
    pub fn of(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let is_passed_on = |name: &OsStr| {
            name.as_bytes().starts_with(b"XDG_") || PASSED_ON.iter().any(|known| name == *known)
        };
        let variables = variables.into_iter();
        Self(variables.filter(|(name, _)| is_passed_on(name)).collect())
    }

    pub(crate) fn variables(&self) -> &[(OsString, OsString)] {
        &self.0
    }
}

/// Names alone: a proxy may have a password in its address.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|v| &v.0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_lead_git_elsewhere_does_not_reach_it() {
        let given = [
            "HOME",
            "PATH",
            "XDG_CONFIG_HOME",
            "https_proxy",
            "SSL_CERT_FILE",
            "SSH_AUTH_SOCK",
            "GIT_DIR",
            "GIT_SSH_COMMAND",
            "GIT_CONFIG_COUNT",
            "GIT_ASKPASS",
            "GIT_TRACE",
            "GIT_EXEC_PATH",
            "SSH_ASKPASS",
            "LD_PRELOAD",
            "LANG",
            "LANGUAGE",
            "LC_ALL",
            "BASH_ENV",
            "ENV",
        ];
        let variables = given.map(|name| (name.into(), "http://me:secret@proxy".into()));
        let environment = Environment::of(variables);
        let names: Vec<_> = environment.variables().iter().map(|v| &v.0).collect();
        assert_eq!(names, given[..6].iter().collect::<Vec<_>>());
        assert!(!format!("{environment:?}").contains("secret"));
    }
}
