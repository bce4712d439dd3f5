//! Content kept for a host.
