//! Which work in quarantine is meant.

/// Which work in quarantine is listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuarantineScope {
    /// That of tasks that have a remote.
    #[default]
    Remotes,
    /// Also that of tasks without one, which is in the store because the host wants it there.
    All,
}
