//! The limit on the size of files that the process may make.

/// Whether this process may make no file as large as it likes (RLIMIT_FSIZE).
pub(crate) fn has_file_size_limit() -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    limit.current.is_some()
}
