//! The documents: what they name is there, what they show is what is compiled, and nothing that can
//! be typed is missing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use stillframe_tests::TestWorkspace;

/// A text, and where it is.
struct Document {
    path: PathBuf,
    text: String,
}

/// `[text](target)` outside of code blocks.
struct Link {
    text: String,
    target: String,
}

fn repository() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package
        .parent()
        .expect("the package lies in the repository")
        .to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn documents() -> Vec<Document> {
    let root = repository();
    let mut documents = Vec::new();
    for directory in ["", "docs", "docs/adr", "docs/benchmarks", "docs/schema"] {
        for entry in fs::read_dir(root.join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "md") {
                let text = read(&path);
                documents.push(Document { path, text });
            }
        }
    }
    assert!(documents.len() > 10, "the documents were found");
    documents
}

impl Document {
    fn links(&self) -> Vec<Link> {
        let mut prose = String::new();
        let mut is_code = false;
        for line in self.text.lines() {
            if line.starts_with("```") {
                is_code = !is_code;
            } else if !is_code {
                prose.push_str(line);
                prose.push('\n');
            }
        }
        let mut links = Vec::new();
        for (at, _) in prose.match_indices("](") {
            let Some(start) = prose[..at].rfind('[') else {
                continue;
            };
            let rest = &prose[at + 2..];
            let target = &rest[..rest.find(')').expect("a link has an end")];
            links.push(Link {
                text: prose[start + 1..at].to_owned(),
                target: target.to_owned(),
            });
        }
        links
    }

    /// Where a link leads, and the heading that it names; `None`: out of the repository.
    fn resolve(&self, target: &str) -> Option<(PathBuf, Option<String>)> {
        if target.starts_with("https://") {
            return None;
        }
        let (path, heading) = match target.split_once('#') {
            Some((path, heading)) => (path, Some(heading.to_owned())),
            None => (target, None),
        };
        let path = match path {
            "" => self.path.clone(),
            path => self.path.parent().expect("it lies somewhere").join(path),
        };
        Some((path, heading))
    }
}

/// The name that a heading is linked by.
fn anchor(heading: &str) -> String {
    heading
        .trim_start_matches('#')
        .trim()
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

fn defines(source: &str, name: &str) -> bool {
    source
        .match_indices(&format!("fn {name}"))
        .any(|(at, found)| {
            let next = source[at + found.len()..].chars().next();
            matches!(next, Some('(' | '<'))
        })
}

#[test]
fn every_link_leads_somewhere() {
    for document in documents() {
        for link in document.links() {
            let Some((path, heading)) = document.resolve(&link.target) else {
                continue;
            };
            let place = format!("{}: {}", document.path.display(), link.target);
            assert!(path.exists(), "{place} is not there");
            if let Some(heading) = heading {
                let has = read(&path)
                    .lines()
                    .any(|line| line.starts_with('#') && anchor(line) == heading);
                assert!(has, "{place} has no such heading");
            }
        }
    }
}

#[test]
fn every_test_that_holds_a_promise_is_there() {
    let mut named = 0;
    for document in documents() {
        for link in document.links() {
            let name = link
                .text
                .strip_prefix('`')
                .and_then(|t| t.strip_suffix('`'));
            let is_name = |n: &&str| n.contains('_') && !n.contains(['.', '/', ':', ' ']);
            let Some(name) = name.filter(is_name) else {
                continue;
            };
            let (path, _) = document
                .resolve(&link.target)
                .expect("it is a file of ours");
            let place = document.path.display();
            assert!(
                defines(&read(&path), name),
                "{place} names {name}, which {} has not",
                path.display()
            );
            named += 1;
        }
    }
    assert!(named > 50, "only {named} were looked for");
}

#[test]
fn every_test_that_a_decision_names_is_there() {
    let mut sources = String::new();
    for package in ["artifact-store", "backends", "cli", "engine", "tests"] {
        for entry in walkdir::WalkDir::new(repository().join(package)) {
            let path = entry.unwrap().into_path();
            if path.extension().is_some_and(|e| e == "rs") {
                sources.push_str(&read(&path));
            }
        }
    }
    let mut named = 0;
    for document in documents() {
        if !document.path.parent().is_some_and(|p| p.ends_with("adr")) {
            continue;
        }
        for word in document.text.split('`').skip(1).step_by(2) {
            // A test is a sentence; an option or a field has fewer words.
            let is_sentence = word.split('_').count() >= 4
                && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            if is_sentence {
                let place = document.path.display();
                assert!(defines(&sources, word), "{place} names {word}");
                named += 1;
            }
        }
    }
    assert!(named > 10, "only {named} were looked for");
}

#[test]
fn the_example_of_the_readme_is_the_one_that_is_compiled() {
    let root = repository();
    let readme = read(&root.join("README.md"));
    let shown = readme
        .split("```rust\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("the README has an example");
    let example = read(&root.join("engine/examples/minimal_host.rs"));
    assert!(example.ends_with(shown), "the two have come apart");
}

#[test]
fn the_tests_of_the_readme_are_what_has_to_pass() {
    let root = repository();
    let command = "\ncargo test --workspace\n";
    assert!(read(&root.join("README.md")).contains(command));
    assert!(read(&root.join(".ci/run")).contains(command));
}

#[test]
fn the_guide_has_every_command_and_every_option() {
    let ws = TestWorkspace::plain();
    let guide = read(&repository().join("docs/guide.md"));
    let help = ws.stillframe(["--help"]).ok().stdout_text();
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        // What goes on from the line before is indented further.
        .filter_map(|line| {
            line.strip_prefix("  ")?
                .split_whitespace()
                .next()
                .filter(|_| !line.starts_with("   "))
        })
        .filter(|command| *command != "help")
        .collect();
    assert!(commands.len() > 10, "{help}");
    for command in commands {
        assert!(
            guide.contains(&format!("stillframe {command}")),
            "{command} is not in the guide"
        );
        let own = ws.stillframe([command, "--help"]).ok().stdout_text();
        let options: BTreeSet<&str> = own
            .split_whitespace()
            .filter(|word| word.starts_with("--") && word.len() > 2)
            .map(|word| word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()))
            .filter(|option| !matches!(*option, "--help" | "--version"))
            .filter(|option| {
                option[2..]
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b == b'-')
            })
            .collect();
        for option in options {
            assert!(
                guide.contains(option),
                "{command} {option} is not in the guide"
            );
        }
    }
}
