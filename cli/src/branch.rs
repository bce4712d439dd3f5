//! What is typed of a task's branch.

use std::ffi::OsStr;

use stillframe::backends::{AllowedSecret, RelPath};
use stillframe::tasks::{Credential, CredentialProvider, Secret, WorkBranchOptions};

use crate::args::BranchArgs;
use crate::failure::Failure;

/// The digits of a fingerprint.
const FINGERPRINT_CHARS: usize = 64;

/// The branch of a task, of which there may be one.
pub(crate) fn of_task(task: String, args: BranchArgs) -> Result<WorkBranchOptions, Failure> {
    let mut options = WorkBranchOptions::of(task);
    options.namespace = args.namespace;
    options.remote = args.remote;
    options.message = args.message;
    if let Some(name) = args.token_env {
        options = options.credentials(OfVariable(name));
    }
    named(&options)?;
    Ok(options)
}

/// The branch of a task; that there can be none is a mistake of who typed it.
pub(crate) fn named(options: &WorkBranchOptions) -> Result<String, Failure> {
    let named = options.branch_name();
    named.map_err(|e| Failure::usage(e.to_string()))
}

/// A token of the environment.
struct OfVariable(String);

impl CredentialProvider for OfVariable {
    async fn credential(&self, _: &str) -> Result<Credential, String> {
        let name = &self.0;
        let token = std::env::var_os(name).filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| format!("{name} is not set"))?;
        let token = Secret::new(token.into_encoded_bytes())
            .map_err(|_| format!("{name} has no token in it"))?;
        Ok(Credential::token(token, None))
    }
}

/// A finding as it was typed.
pub(crate) fn finding(
    rule: String,
    path: &OsStr,
    fingerprint: String,
) -> Result<AllowedSecret, Failure> {
    let typed = path.as_encoded_bytes();
    let path = match typed {
        b"." => Ok(RelPath::root()),
        typed => RelPath::new(typed),
    };
    let path = path.map_err(|e| Failure::usage(e.to_string()))?;
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if fingerprint.len() != FINGERPRINT_CHARS || !fingerprint.bytes().all(is_digit) {
        return Err(Failure::usage(format!(
            "a fingerprint has {FINGERPRINT_CHARS} hexadecimal digits, as \"task checkpoint\" prints them; nothing was allowed"
        )));
    }
    Ok(AllowedSecret::new(rule, path, fingerprint))
}
