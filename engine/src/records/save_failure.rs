//! Why work was not saved on a remote.

use std::fmt;

/// Why work was not saved on a remote. The later ones are the more severe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SaveFailure {
    /// The network or the server failed. Another try may succeed.
    NetworkBlip,
    /// The remote's branch has commits that this side does not know, or another history.
    RemoteDivergent,
    /// A branch is above or below the name of this one.
    RefConflict,
    /// A hook or a protection of the server refused it.
    RemotePolicyRejected,
    /// The credentials were refused.
    AuthDenied,
    /// It is over a limit of the host's. Nothing was sent.
    TooLarge,
    /// A secret was found in it. Nothing was sent.
    SecretFound,
    /// This machine failed.
    LocalGit,
    /// Anything else.
    Unknown,
}

impl SaveFailure {
    pub(crate) const ALL: [Self; 9] = [
        Self::NetworkBlip,
        Self::RemoteDivergent,
        Self::RefConflict,
        Self::RemotePolicyRejected,
        Self::AuthDenied,
        Self::TooLarge,
        Self::SecretFound,
        Self::LocalGit,
        Self::Unknown,
    ];

    /// The name that JSON documents use.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NetworkBlip => "NetworkBlip",
            Self::RemoteDivergent => "RemoteDivergent",
            Self::RefConflict => "RefConflict",
            Self::RemotePolicyRejected => "RemotePolicyRejected",
            Self::AuthDenied => "AuthDenied",
            Self::TooLarge => "TooLarge",
            Self::SecretFound => "SecretFound",
            Self::LocalGit => "LocalGit",
            Self::Unknown => "Unknown",
        }
    }

    /// The failure of this name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }
}

impl fmt::Display for SaveFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
