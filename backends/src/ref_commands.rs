//! Shell commands that change a ref, for messages to people. Each does its work only if the ref did
//! not change meanwhile.
//!
//! `git` is the call of git, such as `git -C DIR`. The value of a ref is the hexadecimal id of an
//! object, or the full name of the ref that a symbolic ref leads to. If a ref has become symbolic
//! since, no command changes the ref that it leads to.

use crate::shell::shell_word;

/// Whether a ref that says this is symbolic.
pub fn is_symbolic(said: &str) -> bool {
    said.starts_with("refs/")
}

/// Removes the ref that says this.
pub fn removal(name: &str, said: &str, git: &str) -> String {
    let word = shell_word(name.as_bytes());
    match is_symbolic(said) {
        true => format!("{} && {git} symbolic-ref -d {word}", leads(name, said, git)),
        false => format!("{git} update-ref --no-deref -d {word} {said}"),
    }
}

/// Makes a ref that is not there.
pub fn making(name: &str, says: &str, git: &str) -> String {
    let word = shell_word(name.as_bytes());
    match is_symbolic(says) {
        true => {
            let to = shell_word(says.as_bytes());
            // A symbolic ref that leads nowhere is no ref to the second.
            format!(
                "! {git} symbolic-ref -q {word} && ! {git} show-ref -q --verify {word} && {git} symbolic-ref {word} {to}"
            )
        }
        false => format!(
            "{git} update-ref --no-deref {word} {says} {}",
            "0".repeat(says.len())
        ),
    }
}

/// Moves a ref from what it says to what it is to say, where both are objects, or both are refs.
pub fn moving(name: &str, said: &str, says: &str, git: &str) -> String {
    let word = shell_word(name.as_bytes());
    match is_symbolic(says) {
        true => {
            let to = shell_word(says.as_bytes());
            format!(
                "{} && {git} symbolic-ref {word} {to}",
                leads(name, said, git)
            )
        }
        false => format!("{git} update-ref --no-deref {word} {says} {said}"),
    }
}

/// Whether HEAD says this: fails where it names another branch, or another commit while it is
/// detached.
pub fn head_says(said: &str, git: &str) -> String {
    match is_symbolic(said) {
        true => leads("HEAD", said, git),
        false => format!(
            "! {git} symbolic-ref -q HEAD && {git} rev-parse -q --verify HEAD | grep -qxF {said}"
        ),
    }
}

/// Whether a ref leads to another.
fn leads(name: &str, to: &str, git: &str) -> String {
    let [name, to] = [name, to].map(|name| shell_word(name.as_bytes()));
    format!("{git} symbolic-ref {name} | grep -qxF {to}")
}
