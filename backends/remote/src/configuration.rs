//! What git is told on every call, whatever a configuration says. Values, no I/O.

use std::ffi::{OsStr, OsString};

use crate::address::{Address, Protocol};
use crate::credential::Credential;

/// The variables of [`HELPER`].
const USER: &str = "STILLFRAME_REMOTE_USER";
const TOKEN: &str = "STILLFRAME_REMOTE_TOKEN";

/// A helper for credentials that answers with what its environment has. It is the shell's own
/// `printf`, so that no process has the values among its arguments.
const HELPER: &str = "!f() { test \"$1\" = get && printf 'username=%s\\npassword=%s\\n' \
                      \"$STILLFRAME_REMOTE_USER\" \"$STILLFRAME_REMOTE_TOKEN\"; }; f";

/// No ssh of ours asks somebody, forwards what the user has, or leaves a process behind that
/// serves later connections: one would hold the pipes of this one open.
const SSH: &str = "ssh -oBatchMode=yes -oControlMaster=no -oClearAllForwardings=yes -oForwardAgent=no \
                   -oForwardX11=no -oPermitLocalCommand=no";

/// Settings that come last, so that they win. An empty value empties a list.
const FIXED: [(&str, &str); 17] = [
    ("core.hooksPath", "/dev/null"),
    ("core.askPass", ""),
    ("credential.helper", ""),
    ("http.extraHeader", ""),
    ("push.followTags", "false"),
    ("push.gpgSign", "false"),
    ("push.negotiate", "false"),
    ("push.pushOption", ""),
    ("push.recurseSubmodules", "no"),
    ("fetch.recurseSubmodules", "false"),
    ("submodule.recurse", "false"),
    ("fetch.prune", "false"),
    ("fetch.writeCommitGraph", "false"),
    // Loose objects would be written beside packs that are linked with the user's.
    ("fetch.unpackLimit", "1"),
    ("transfer.unpackLimit", "1"),
    // The store has its own.
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
];

/// The settings and variables of one call.
pub(crate) struct Configuration {
    settings: Vec<(OsString, OsString)>,
    variables: Vec<(OsString, OsString)>,
}

impl Configuration {
    /// For a call of `address` by `credential`. `helpers` are the settings `credential.*` of the
    /// user, for [`Credential::UserGit`].
    pub(crate) fn new(
        address: &Address,
        credential: &Credential,
        helpers: Vec<(OsString, OsString)>,
    ) -> Self {
        let mut configuration = Self {
            settings: FIXED.map(|(key, value)| (key.into(), value.into())).into(),
            variables: vec![
                (
                    "GIT_ALLOW_PROTOCOL".into(),
                    address.protocol().scheme().into(),
                ),
                ("GIT_SSH_COMMAND".into(), SSH.into()),
                ("GIT_SSH_VARIANT".into(), "ssh".into()),
            ],
        };
        if address.protocol() == Protocol::Http {
            // What is for this machine goes through none.
            configuration.set("http.proxy", "");
        }
        if let Some(scope) = address.credential_scope() {
            configuration.log_in(scope, credential, helpers);
        }
        configuration
    }

    fn log_in(&mut self, scope: &str, credential: &Credential, helpers: Vec<(OsString, OsString)>) {
        // For this host and port alone: a redirection does not get it.
        let of_scope = |name: &str| format!("credential.{scope}.{name}");
        match credential {
            Credential::Anonymous => {}
            Credential::Token { user, token } => {
                self.set(&of_scope("helper"), HELPER);
                self.variable(USER, user.as_os_str());
                self.variable(TOKEN, token.as_os_str());
            }
            Credential::UserGit { user } => {
                self.settings.extend(helpers);
                if let Some(user) = user {
                    self.settings
                        .push((of_scope("username").into(), user.as_os_str().to_owned()));
                }
            }
        }
    }

    fn set(&mut self, key: &str, value: &str) {
        self.settings.push((key.into(), value.into()));
    }

    fn variable(&mut self, name: &str, value: &OsStr) {
        self.variables.push((name.into(), value.to_owned()));
    }

    /// All of it as variables.
    pub(crate) fn into_variables(self) -> Vec<(OsString, OsString)> {
        let mut variables = self.variables;
        let count = self.settings.len().to_string();
        variables.push(("GIT_CONFIG_COUNT".into(), count.into()));
        for (at, (key, value)) in self.settings.into_iter().enumerate() {
            variables.push((format!("GIT_CONFIG_KEY_{at}").into(), key));
            variables.push((format!("GIT_CONFIG_VALUE_{at}").into(), value));
        }
        variables
    }
}
