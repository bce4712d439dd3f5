//! The settings of libgit2 that hold for the whole process.

use std::ffi::{c_char, c_int};
use std::sync::Once;

/// The first release without six published defects that a hostile repository can use.
const OLDEST_LIBGIT2: (u32, u32, u32) = (1, 9, 7);

/// Makes libgit2 strict and deaf to the user's configuration. Every function that calls into git2
/// calls this first; only the first call does anything.
///
/// Objects and refs are synced, every object is checked when it is read and when it is made, a
/// repository of another user is refused, and no configuration or template outside of the
/// repository is looked at.
///
/// # Panics
///
/// If the program was linked with a libgit2 older than 1.9.7, or libgit2 cannot start at all.
pub(crate) fn initialise() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        let version = git2::Version::get().libgit2_version();
        assert!(
            version >= OLDEST_LIBGIT2,
            "libgit2 {version:?} has known holes; {OLDEST_LIBGIT2:?} or newer is needed"
        );
        git2::opts::strict_object_creation(true);
        git2::opts::strict_hash_verification(true);
        set_process_wide();
    });
}

#[expect(
    unsafe_code,
    reason = "libgit2's settings are process-wide C variables, and git2 does not wrap all of them; \
              they are set once, before any other call"
)]
fn set_process_wide() {
    use git2::ConfigLevel::{Global, ProgramData, System, XDG};
    use libgit2_sys as raw;

    let nowhere: *const c_char = c"".as_ptr();
    // SAFETY: `initialise` calls this once, while no other thread uses libgit2: every use calls
    // `initialise` first, and waits there. The options take the arguments that libgit2's `common.h`
    // names for them, and copy the text.
    unsafe {
        for level in [ProgramData, System, XDG, Global] {
            git2::opts::set_search_path(level, "").expect("an empty path can be set");
        }
        git2::opts::set_verify_owner_validation(true).expect("a switch can be set");
        let set = |option, value: c_int| raw::git_libgit2_opts(option as c_int, value);
        let refusals = [
            set(raw::GIT_OPT_ENABLE_FSYNC_GITDIR, 1),
            set(raw::GIT_OPT_ENABLE_STRICT_SYMBOLIC_REF_CREATION, 1),
            set(raw::GIT_OPT_ENABLE_UNSAVED_INDEX_SAFETY, 1),
            raw::git_libgit2_opts(raw::GIT_OPT_SET_TEMPLATE_PATH as c_int, nowhere),
        ];
        assert_eq!(refusals, [0; 4], "libgit2 knows these settings");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_configuration_is_not_read_and_a_second_call_is_harmless() {
        initialise();
        initialise();
        let levels = [git2::ConfigLevel::Global, git2::ConfigLevel::System];
        for level in levels {
            assert!(search_path(level).is_empty(), "{level:?}");
        }
    }

    #[expect(unsafe_code, reason = "reads one of libgit2's process-wide variables")]
    fn search_path(level: git2::ConfigLevel) -> Vec<u8> {
        // SAFETY: nobody writes the variable after `initialise`.
        unsafe { git2::opts::get_search_path(level) }
            .unwrap()
            .into_bytes()
    }
}
