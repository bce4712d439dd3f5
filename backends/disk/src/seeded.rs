//! Deliberate bugs, which prove that the test harnesses can find bugs.
//!
//! `seeded_bug!("name")` marks a place for a bug, and is true if that bug is switched on. Without
//! the feature `seeded-bugs` it expands to `false`, and the program does not even contain the name.
//! With the feature, the variable `STILLFRAME_SEEDED_BUG` switches one bug on for the life of the
//! process, or none. `tests/support/torture/teeth.rs` has the table of which harness finds which
//! bug.

/// Whether the bug of this name is made.
#[cfg(feature = "seeded-bugs")]
#[doc(hidden)]
#[must_use]
pub fn is_chosen(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<std::ffi::OsString>> = std::sync::OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| std::env::var_os("STILLFRAME_SEEDED_BUG"));
    chosen.as_deref().is_some_and(|chosen| chosen == name)
}

/// Whether a bug is made on purpose: see the module.
#[cfg(feature = "seeded-bugs")]
#[doc(hidden)]
#[macro_export]
macro_rules! seeded_bug {
    ($name:literal) => {
        $crate::seeded::is_chosen($name)
    };
}

/// Whether a bug is made on purpose: see the module.
#[cfg(not(feature = "seeded-bugs"))]
#[doc(hidden)]
#[macro_export]
macro_rules! seeded_bug {
    ($name:literal) => {
        false
    };
}
