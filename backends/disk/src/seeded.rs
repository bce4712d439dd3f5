//! Bugs that are there on purpose, so that it can be seen that the harnesses of the tests find
//! them.
//!
//! `seeded_bug!("name")` stands where a mistake could be made, and says whether it is made. Without
//! the feature `seeded-bugs` it is the word `false`, and not even the name is in the program. With
//! it, the variable `STILLFRAME_SEEDED_BUG` chooses one bug for the life of the process, or none.
//! The table of what finds which is in `tests/support/torture/teeth.rs`.

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
