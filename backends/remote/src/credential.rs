//! Who asks a remote.

use crate::address::Login;
use crate::secret::Secret;

/// The user beside a token where nobody said one. Forges that go by the token alone take any, and
/// GitHub's installation tokens want this one.
const ANY_USER: &str = "x-access-token";

/// Who asks a remote over `https`. For ssh nothing of it counts: that has the agent and the keys of
/// the user, and asks nobody.
#[derive(Clone, Debug)]
pub enum Credential {
    /// Nobody: what the remote lets everybody do.
    Anonymous,
    /// A token, which is in the environment of one process and of its helpers, and nowhere else.
    Token {
        /// Some forges go by it, others by the token alone.
        user: Secret,
        /// The token, or a password.
        token: Secret,
    },
    /// What the helpers of the user's global configuration of git (`credential.*`) know. Nothing
    /// else of that configuration counts.
    UserGit {
        /// The user that they are asked about; `None`: they choose.
        user: Option<Secret>,
    },
}

impl Credential {
    /// A token, with the user that the address names, or else with one that forges take for any.
    pub fn token(token: Secret, login: Option<Login>) -> Self {
        let any = || Secret::new(ANY_USER.into()).expect("it is one word");
        let user = login.map_or_else(any, |login| login.user);
        Self::Token { user, token }
    }

    /// What the address itself says; where it has no password, nobody.
    pub fn of_login(login: Option<Login>) -> Self {
        match login {
            Some(Login {
                user,
                password: Some(token),
            }) => Self::Token { user, token },
            _ => Self::Anonymous,
        }
    }

    /// As git itself does it: helpers are asked for what the address does not say.
    pub fn beside(self, login: Option<Login>) -> Self {
        match (self, login) {
            (
                Self::UserGit { user: None },
                Some(Login {
                    user,
                    password: None,
                }),
            ) => Self::UserGit { user: Some(user) },
            (Self::UserGit { user: None }, Some(login)) => Self::of_login(Some(login)),
            (other, _) => other,
        }
    }

    /// `text` without any of the secrets.
    pub(crate) fn taken_out_of(&self, text: &str) -> String {
        match self {
            // The user as well only where it may be a token: `me` is a part of many words.
            Self::Token { user, token } => {
                let text = token.taken_out_of(text);
                match user.is_long() {
                    true => user.taken_out_of(&text),
                    false => text,
                }
            }
            Self::UserGit { user: Some(user) } if user.is_long() => user.taken_out_of(text),
            Self::Anonymous | Self::UserGit { .. } => text.to_owned(),
        }
    }
}
