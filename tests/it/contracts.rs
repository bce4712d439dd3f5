//! What every backend promises, over both.

use stillframe_tests::contract::backend::{TestBackend, contract};

contract!(git, TestBackend::git());
contract!(hash, TestBackend::hash());
