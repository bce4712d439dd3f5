//! What a push would reveal, of values in all places and shapes.

use std::collections::BTreeSet;

use stillframe_secrets::{SecretRule, SecretRules};

use super::*;
use crate::checkpoint::{AllowedSecret, RevealedSecrets, SecretFinding, SecretPlace, SecretSearch};

/// A rule, lines with a value that it recognises, and lines that come near.
type Family = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

const CORPUS: [Family; 8] = [
    (
        "nuget_password",
        &[
            r#"<add key="ClearTextPassword" value="hunter2" />"#,
            r#"<ADD KEY='cleartextpassword' VALUE='pass word'/>"#,
            r#"<add value="first" key="ClearTextPassword">"#,
        ],
        &[
            r#"<add key="Username" value="hunter2" />"#,
            r#"<add key="ClearTextPassword" value="%PASSWORD%" />"#,
            r#"<add key="ClearTextPassword" value="" />"#,
            r#"<added key="ClearTextPassword" value="hunter2" />"#,
        ],
    ),
    (
        "npm_token",
        &[
            "//registry.example.org/:_authToken=0123456789abcdef",
            r#"_authToken = "npm_ABC.def-012+345/678=""#,
        ],
        &[
            "_authToken=0123456789abcde",
            "_authToken: 0123456789abcdef",
            "_authTokens=0123456789abcdef",
            "_authToken=${NPM_TOKEN}",
        ],
    ),
    (
        "anthropic_key",
        &["key: sk-ant-api03-abcdefgh", "(sk-ant-oat01_ABCDEFGH)"],
        &[
            "sk-ant-api03",
            "xsk-ant-api03-abcdefgh",
            "sk-ant-abc03-abcdefgh",
            "sk_ant_api03_abcdefgh",
        ],
    ),
    (
        "openai_key",
        &["sk-0123456789abcdefghij", "=sk-proj-ABCDEFGHIJ_0123456789"],
        &[
            "sk-0123456789abcdefghi",
            "task-0123456789abcdefghij",
            "sk_0123456789abcdefghij",
        ],
    ),
    (
        "github_token",
        &[
            "ghp_0123456789abcdefghij",
            "https://u:ghp_ABCDEFGHIJKLMNOPQRSTUVWXYZ@example.org",
        ],
        &[
            "ghp_0123456789abcdefghi",
            "xghp_0123456789abcdefghij",
            "gho_0123456789abcdefghij",
            "ghp-0123456789abcdefghij",
        ],
    ),
    (
        "gitlab_token",
        &[
            "glpat-0123456789_abcdefghi",
            "token=glpat-ABCDEFGHIJ-KLMNOPQRST",
        ],
        &[
            "glpat-0123456789abcdefghi",
            "_glpat-0123456789_abcdefghi",
            "glpat_0123456789_abcdefghi",
        ],
    ),
    (
        "jwt",
        &["Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"],
        &[
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0",
            "abJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        ],
    ),
    (
        "acme_key",
        &["x acme-0123456789abcdef y"],
        &["acme-0123456789abcde", "acme-0123456789ABCDEF"],
    ),
];

fn rules() -> SecretRules {
    SecretRules::with([SecretRule::new("acme_key", "acme-[0-9a-f]{16}")]).unwrap()
}

fn hits() -> impl Iterator<Item = (&'static str, &'static str)> {
    CORPUS
        .iter()
        .flat_map(|(rule, hits, _)| hits.iter().map(|hit| (*rule, *hit)))
}

fn misses() -> impl Iterator<Item = &'static str> {
    CORPUS
        .iter()
        .flat_map(|(_, _, misses)| misses.iter().copied())
}

fn wide(text: &str, is_big: bool) -> Vec<u8> {
    let bytes = |unit: u16| match is_big {
        true => unit.to_be_bytes(),
        false => unit.to_le_bytes(),
    };
    text.encode_utf16().flat_map(bytes).collect()
}

/// The content of a file in which a line is the second one.
type Shape = (&'static str, fn(&str) -> Vec<u8>);

const SHAPES: [Shape; 10] = [
    ("text", |line| format!("before\n{line}\nafter\n").into()),
    ("crlf", |line| {
        format!("before\r\n{line}\r\nafter\r\n").into()
    }),
    ("end", |line| format!("\n{line}").into()),
    ("long", |line| {
        format!(
            "\n{} {line} {}\n",
            "x y".repeat(50_000),
            "z ".repeat(50_000)
        )
        .into()
    }),
    ("binary", |line| {
        [b"\x01\0\xff\xfe\n", line.as_bytes(), b"\n\0"].concat()
    }),
    ("latin1", |line| {
        [b"\xe4\xf6\n", line.as_bytes(), b"\n\xfc"].concat()
    }),
    ("utf16le", |line| {
        wide(&format!("\u{feff}ä\r\n{line}\r\n"), false)
    }),
    ("utf16be", |line| {
        wide(&format!("\u{feff}ä\r\n{line}\r\n"), true)
    }),
    ("utf16le-bare", |line| wide(&format!("文\n{line}"), false)),
    ("utf16be-bare", |line| wide(&format!("文\n{line}"), true)),
];

impl Story {
    fn reveal(&self, search: &SecretSearch) -> RevealedSecrets {
        let found = commit::repository_of(&self.workspace).unwrap();
        let op = Operation::unbounded();
        let revealed = revealed(&op, Some(&found), &self.store(), search).unwrap();
        // Without the user's repository it is known of less that the remote has it.
        let alone = super::revealed(&op, None, &self.store(), search).unwrap();
        assert!(
            revealed
                .findings
                .iter()
                .all(|finding| alone.findings.contains(finding))
        );
        let shown = format!("{revealed:?}");
        for (_, line) in hits() {
            for found in rules().find(line.as_bytes()) {
                let value = &line[found.range];
                assert!(!shown.contains(value), "no value is shown");
            }
        }
        revealed
    }

    /// What all that HEAD has, and the workspace, would reveal to a remote with these commits.
    fn reveals(&self, number: u64, on_remote: &[&str]) -> Vec<SecretFinding> {
        let on_remote: Vec<String> = on_remote.iter().map(|id| (*id).to_owned()).collect();
        let request = request(number).on_remote(on_remote.clone());
        let commit = self.commit_of(&self.checkpoint(&request));
        let search = SecretSearch::new(commit, rules()).on_remote(on_remote);
        self.reveal(&search).findings
    }
}

/// Rule, path and line of findings.
fn places(findings: &[SecretFinding]) -> BTreeSet<(String, String, u64)> {
    let place = |f: &SecretFinding| (f.rule.clone(), f.path.to_string(), f.line);
    findings.iter().map(place).collect()
}

fn expected<'e>(
    places: impl IntoIterator<Item = (&'e str, &'e str, u64)>,
) -> BTreeSet<(String, String, u64)> {
    let owned = |(rule, path, line): (&str, &str, u64)| (rule.to_owned(), path.to_owned(), line);
    places.into_iter().map(owned).collect()
}

#[test]
fn every_value_is_found_in_every_shape_and_nothing_that_comes_near() {
    let story = Story::new();
    let base = story.git(&["rev-parse", "HEAD"]);
    let mut wanted = BTreeSet::new();
    let mut lines = 0;
    for (shape, content) in SHAPES {
        for (at, (rule, line)) in hits().enumerate() {
            let path = format!("{shape}/hit{at}");
            story.git.write(&path, content(line));
            wanted.insert((rule.to_owned(), path, 2));
            lines += 1;
        }
        for (at, line) in misses().enumerate() {
            story.git.write(format!("{shape}/miss{at}"), content(line));
            lines += 1;
        }
    }
    assert!(lines >= 300, "{lines} lines");
    let findings = story.reveals(1, &[&base]);
    assert_eq!(places(&findings), wanted);
    // As the rules see the same line in plain text.
    for finding in &findings {
        assert_eq!(finding.place, SecretPlace::Content);
        let (_, at) = finding
            .path
            .to_string()
            .split_once("hit")
            .map(|(a, b)| (a.len(), b.to_owned()))
            .unwrap();
        let (_, line) = hits().nth(at.parse().unwrap()).unwrap();
        let found = rules().find(line.as_bytes());
        let found = found
            .iter()
            .find(|found| found.rule == finding.rule)
            .unwrap();
        assert_eq!(found.fingerprint.to_string(), finding.fingerprint);
    }
    // Sent once, nothing of it is revealed again.
    let one = findings[0].commit.clone();
    story.git.write("another", "text\n");
    assert_eq!(story.reveals(2, &[&base, &one]), []);
}

#[test]
fn what_a_later_commit_takes_away_is_revealed_all_the_same() {
    let story = Story::new();
    let base = story.git(&["rev-parse", "HEAD"]);
    for (at, (_, line)) in hits().enumerate() {
        story.git.write(format!("gone{at}"), format!("{line}\n"));
    }
    story.git.commit("adds");
    let adds = story.git(&["rev-parse", "HEAD"]);
    for (at, _) in hits().enumerate() {
        fs::remove_file(story.path().join(format!("gone{at}"))).unwrap();
    }
    story.git.commit("takes away");
    story.git.write("src/main.c", "clean\n");
    let findings = story.reveals(1, &[&base]);
    let names: Vec<String> = (0..hits().count()).map(|at| format!("gone{at}")).collect();
    let wanted = hits()
        .zip(&names)
        .map(|((rule, _), name)| (rule, &**name, 1));
    assert_eq!(places(&findings), expected(wanted));
    assert!(findings.iter().all(|finding| finding.commit == adds));
    // The remote has it already.
    assert_eq!(story.reveals(2, &[&adds]), []);
    // That it does not know a commit that nobody here knows changes nothing.
    let nowhere = "1".repeat(40);
    assert_eq!(story.reveals(3, &[&base, &nowhere]).len(), findings.len());
}

#[test]
fn of_what_was_there_only_what_comes_is_revealed() {
    let story = Story::new();
    let (token, other) = ("ghp_0123456789abcdefghij", "ghp_ABCDEFGHIJABCDEFGHIJ");
    story.git.write("a", format!("one\ntwo {token}\n"));
    story.git.write("d/b", format!("{token} in d\n"));
    story.git.write("d/c", "text\n");
    story.git.commit("on the remote");
    let base = story.git(&["rev-parse", "HEAD"]);
    let mut number = 0;
    let mut is_revealed = |wanted: &[(&str, u64)]| {
        number += 1;
        let findings = story.reveals(number, &[&base]);
        let wanted = wanted
            .iter()
            .map(|(path, line)| ("github_token", *path, *line));
        assert_eq!(places(&findings), expected(wanted), "{number}");
        story.git(&["reset", "-q", "--hard", &base]);
        story.git(&["clean", "-q", "-f", "-d"]);
    };
    // Edited elsewhere, and with other line ends.
    story
        .git
        .write("a", format!("zero\r\none\r\ntwo {token}\r\n"));
    is_revealed(&[]);
    // Another name, and another name with another line.
    fs::rename(story.path().join("a"), story.path().join("renamed")).unwrap();
    fs::rename(story.path().join("d"), story.path().join("e")).unwrap();
    is_revealed(&[]);
    fs::remove_file(story.path().join("a")).unwrap();
    story
        .git
        .write("renamed", format!("one\ntwo {token}\nthree {other}\n"));
    is_revealed(&[("renamed", 3)]);
    // A file in the place of a directory.
    fs::remove_dir_all(story.path().join("d")).unwrap();
    story.git.write("d", format!("{token} in d\n{other}\n"));
    is_revealed(&[("d", 2)]);
    // The same once more, in a copy and in the same file.
    story.git.write("copy", format!("one\ntwo {token}\n"));
    is_revealed(&[("copy", 2)]);
    story
        .git
        .write("a", format!("one\ntwo {token}\nand {token}\n"));
    is_revealed(&[("a", 3)]);
    story
        .git
        .write("a", format!("two {token}\none\ntwo {token}\n"));
    is_revealed(&[("a", 3)]);
    // Where a link leads, and in a file that is executable now.
    std::os::unix::fs::symlink(format!("https://{other}@x"), story.path().join("link")).unwrap();
    let mode = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    fs::set_permissions(story.path().join("a"), mode).unwrap();
    is_revealed(&[("link", 1)]);
}

#[test]
fn a_merge_reveals_what_it_adds_to_all_of_its_parents() {
    let story = Story::new();
    let (ours, theirs, both) = (
        "ghp_0123456789abcdefghij",
        "ghp_ABCDEFGHIJABCDEFGHIJ",
        "ghp_abcdefghijabcdefghij",
    );
    story.git(&["checkout", "-q", "-b", "side"]);
    story.git.write("theirs", format!("{theirs}\n"));
    story.git.commit("side");
    let side = story.git(&["rev-parse", "HEAD"]);
    story.git(&["checkout", "-q", "main"]);
    story.git.write("ours", format!("{ours}\n"));
    story.git.commit("ours");
    let main = story.git(&["rev-parse", "HEAD"]);
    story.git(&["merge", "-q", "--no-commit", "side"]);
    story.git.write("merged", format!("{both}\n"));
    story.git.commit("merge");
    let merge = story.git(&["rev-parse", "HEAD"]);
    story.git.write("src/main.c", "clean\n");
    let commits = |findings: Vec<SecretFinding>| {
        let of = findings.into_iter().map(|f| (f.commit, f.path.to_string()));
        of.collect::<BTreeSet<_>>()
    };
    let at = |pairs: &[(&String, &str)]| {
        let owned = pairs.iter().map(|(c, p)| ((*c).clone(), (*p).to_owned()));
        owned.collect::<BTreeSet<_>>()
    };
    let all = at(&[(&main, "ours"), (&side, "theirs"), (&merge, "merged")]);
    assert_eq!(commits(story.reveals(1, &[])), all);
    let without_side = at(&[(&main, "ours"), (&merge, "merged")]);
    assert_eq!(commits(story.reveals(2, &[&side])), without_side);
    assert_eq!(
        commits(story.reveals(3, &[&side, &main])),
        at(&[(&merge, "merged")])
    );
    assert_eq!(commits(story.reveals(4, &[&merge])), at(&[]));
}

#[test]
fn messages_authors_and_names_of_files_are_searched_and_names_are_shown_without_the_value() {
    let story = Story::new();
    let base = story.git(&["rev-parse", "HEAD"]);
    let mut wanted = BTreeSet::new();
    for (rule, line) in hits() {
        let message = format!("subject\n\n{line}");
        story.git(&["commit", "-q", "--allow-empty", "-m", &message]);
        wanted.insert((rule.to_owned(), story.git(&["rev-parse", "HEAD"])));
    }
    for line in misses() {
        story.git(&["commit", "-q", "--allow-empty", "-m", line]);
    }
    let findings = story.reveals(1, &[&base]);
    assert!(
        findings
            .iter()
            .all(|f| f.place == SecretPlace::Message && f.path.is_root())
    );
    let found = findings.into_iter().map(|f| (f.rule, f.commit));
    assert_eq!(found.collect::<BTreeSet<_>>(), wanted);

    let base = story.git(&["rev-parse", "HEAD"]);
    let mut by = request(2).on_remote(vec![base.clone()]);
    by.author = Some(Signature::new("ghp_0123456789abcdefghij", "a@b"));
    story.git.write("src/main.c", "changed\n");
    let commit = story.commit_of(&story.checkpoint(&by));
    let search = SecretSearch::new(commit.clone(), rules()).on_remote(vec![base.clone()]);
    assert_eq!(
        story.reveal(&search).findings.len(),
        2,
        "author and committer"
    );

    story
        .git
        .write("known ghp_0123456789abcdefghij/a", "text\n");
    story.git.commit("a name");
    let base = story.git(&["rev-parse", "HEAD"]);
    story
        .git
        .write("known ghp_0123456789abcdefghij/b", "text\n");
    assert_eq!(story.reveals(3, &[&base]), [], "the remote has that name");
    let names = hits().filter(|(_, line)| !line.contains('/'));
    let mut rules_wanted = Vec::new();
    for (at, (rule, line)) in names.enumerate() {
        story.git.write(format!("new/{at} {line}"), "text\n");
        rules_wanted.push(rule.to_owned());
    }
    for (at, line) in misses().filter(|line| !line.contains('/')).enumerate() {
        story.git.write(format!("new/miss{at} {line}"), "text\n");
    }
    let findings = story.reveals(4, &[&base]);
    assert!(
        findings
            .iter()
            .all(|f| f.place == SecretPlace::Name && f.line == 0)
    );
    let mut found: Vec<String> = findings.iter().map(|f| f.rule.clone()).collect();
    found.sort();
    rules_wanted.sort();
    assert_eq!(found, rules_wanted);
    let shown = findings
        .iter()
        .find(|f| f.rule == "acme_key")
        .unwrap()
        .path
        .to_string();
    assert!(shown.ends_with("x [redacted:acme_key] y"), "{shown}");
}

#[test]
fn what_the_user_allows_is_counted_and_nothing_else_passes_by_it() {
    let story = Story::new();
    let base = story.git(&["rev-parse", "HEAD"]);
    story.git.write("a", "ghp_0123456789abcdefghij\n");
    story.git.write("b", "ghp_0123456789abcdefghij\n");
    story.git.write("c", "ghp_ABCDEFGHIJABCDEFGHIJ\n");
    let known = request(1).on_remote(vec![base.clone()]);
    let commit = story.commit_of(&story.checkpoint(&known));
    let search = SecretSearch::new(commit, rules()).on_remote(vec![base]);
    let all = story.reveal(&search);
    assert_eq!((all.findings.len(), all.allowed, all.commits), (3, 0, 1));
    assert_eq!(all.blobs, 2, "the same content is read once");
    let allow = |f: &SecretFinding| AllowedSecret::new(&*f.rule, f.path.clone(), &*f.fingerprint);
    let (a, c) = (&all.findings[0], &all.findings[2]);
    let allowed = search.clone().allowed(BTreeSet::from([allow(a)]));
    let rest = story.reveal(&allowed);
    assert_eq!((&rest.findings[..], rest.allowed), (&all.findings[1..], 1));
    let mut elsewhere = allow(a);
    elsewhere.path = c.path.clone();
    let mut by_another = allow(a);
    by_another.rule = "gitlab_token".to_owned();
    let others = search.allowed(BTreeSet::from([elsewhere, by_another]));
    assert_eq!(story.reveal(&others).findings, all.findings);

    let unknown = SecretSearch::new("1".repeat(40), rules());
    let op = Operation::unbounded();
    let error = revealed(&op, None, &story.store(), &unknown).unwrap_err();
    assert!(
        matches!(error, CheckpointError::CommitMissing { .. }),
        "{error}"
    );
    let no_id = SecretSearch::new("main", rules());
    let error = revealed(&op, None, &story.store(), &no_id).unwrap_err();
    assert!(
        matches!(error, CheckpointError::InvalidOptions(_)),
        "{error}"
    );
}
