//! Why work did not get to a remote, as a kind that a host acts on.

use std::fmt;

/// Why work did not get to a remote. The later ones are the more severe: where several repositories
/// failed, the greatest kind is that of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// A name that was not resolved, TLS, a timeout, a line that was cut, an error of the server.
    /// Another try may succeed.
    NetworkBlip,
    /// The remote's branch has commits that this side does not know, or another history.
    RemoteDivergent,
    /// A branch is above or below the name of this one.
    RefConflict,
    /// A hook, a protection or a limit of the server refused it.
    RemotePolicyRejected,
    /// The credentials were refused, or there were none.
    AuthDenied,
    /// It is over a limit of the host's. Nothing was sent.
    TooLarge,
    /// A secret was found in it. Nothing was sent.
    SecretFound,
    /// This machine failed: git, its store or the disk.
    LocalGit,
    /// Anything else.
    Unknown,
}

impl FailureKind {
    /// All of them, from the least severe on.
    pub const ALL: [Self; 9] = [
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

    /// The name that JSON documents use, such as `AuthDenied`.
    pub const fn as_str(self) -> &'static str {
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

    /// The kind of this name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::FailureKind::{self, *};

    #[test]
    fn of_several_the_most_severe_is_the_greatest() {
        assert_eq!(
            [NetworkBlip, AuthDenied, RemoteDivergent].into_iter().max(),
            Some(AuthDenied)
        );
        let all = FailureKind::ALL;
        assert!(all.is_sorted(), "they are as the table of kinds has them");
    }

    #[test]
    fn every_kind_is_read_back_from_its_name() {
        for kind in FailureKind::ALL {
            assert_eq!(FailureKind::parse(kind.as_str()), Some(kind));
        }
        assert_eq!(FailureKind::parse("networkblip"), None);
    }
}
