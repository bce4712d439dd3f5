//! Trees to measure on.
