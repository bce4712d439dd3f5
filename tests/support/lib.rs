//! Support for the acceptance tests.
