//! Values are put together here, so that none of them is in a file of this repository.

use std::borrow::Cow;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use crate::families::FAMILIES;
use crate::{Finding, SecretRule, SecretRuleError, SecretRules};

/// One value of each family, with what it needs before and after it.
fn samples() -> Vec<(&'static str, String, String, String)> {
    let plain = |rule, value: String| (rule, String::new(), value, String::new());
    vec![
        (
            "nuget_password",
            "<add key=\"ClearTextPassword\" value=\"".to_owned(),
            "hunter2".to_owned(),
            "\" />".to_owned(),
        ),
        (
            "npm_token",
            "//registry.npmjs.org/:_authToken=".to_owned(),
            "npm/A1+b2.c3_d4-e5=".to_owned(),
            String::new(),
        ),
        plain(
            "anthropic_key",
            format!("sk-ant-{}-{}", "api03", "Ab_9".repeat(6)),
        ),
        plain("openai_key", format!("sk-{}", "Zz09".repeat(5))),
        plain("github_token", format!("ghp_{}", "Zz09".repeat(9))),
        plain("gitlab_token", format!("glpat-{}", "Z_-9".repeat(5))),
        plain(
            "jwt",
            format!("{}.{}.{}", "eyJhbGciOi", "eyJzdWIiOi", "d-_9"),
        ),
    ]
}

fn found<'a>(findings: &[Finding], text: &'a str) -> Vec<(String, &'a str)> {
    let of = |finding: &Finding| (finding.rule.clone(), &text[finding.range.clone()]);
    findings.iter().map(of).collect()
}

fn find(text: &str) -> Vec<(String, &str)> {
    found(&SecretRules::new().find(text.as_bytes()), text)
}

#[test]
fn there_is_a_sample_of_each_family_and_each_is_found_whole() {
    let names: Vec<_> = samples().iter().map(|sample| sample.0).collect();
    assert_eq!(names, FAMILIES);
    for (rule, before, value, after) in samples() {
        let text = format!("{before}{value}{after}");
        assert_eq!(find(&text), [(rule.to_owned(), value.as_str())]);
        let redacted = SecretRules::new().redact(&text).into_owned();
        assert_eq!(redacted, format!("{before}[redacted:{rule}]{after}"));
    }
}

#[test]
fn what_is_nearly_a_value_is_none() {
    let letters = "a".repeat(40);
    for text in [
        format!("sk-{}", "a".repeat(19)),
        format!("task-{letters}"),
        format!("disk_sk-{letters}").replace("_sk", "sk"),
        format!("SK-{letters}"),
        "sk-ant-api1234567".to_owned(),
        format!("ghp_{}", "a".repeat(19)),
        format!("ghp_{}_{letters}", "a".repeat(10)),
        format!("xghp_{letters}"),
        format!("_ghp_{letters}"),
        format!("GHP_{letters}"),
        format!("gho_{letters}"),
        format!("glpat-{}", "a".repeat(19)),
        format!("1glpat-{letters}"),
        format!("_authToken={}", "a".repeat(15)),
        "_authToken=${NPM_TOKEN_OF_THE_BUILD}".to_owned(),
        format!("_authtoken={letters}"),
        format!("_authToken\n={letters}"),
        format!("_authToken: {letters}"),
        "eyJhbGciOi.eyJzdWIiOi".to_owned(),
        "eyJhbGciOi.eyJzdWIiOi.".to_owned(),
        "eyJhbGciOi..sig".to_owned(),
        "eyJhbGciOi.eyJzdWIiOi\n.sig".to_owned(),
        "EyJhbGciOi.EyJzdWIiOi.sig".to_owned(),
        "<add key=\"ClearTextPassword\" value=\"\" />".to_owned(),
        "<add key=\"ClearTextPassword\" value=\"%NUGET_PASSWORD%\" />".to_owned(),
        "<add key=\"ClearTextPassword\" />".to_owned(),
        "<add key=\"Password\" value=\"hunter2\" />".to_owned(),
        "<add key=\"ClearTextPasswords\" value=\"hunter2\" />".to_owned(),
        "<address key=\"ClearTextPassword\" value=\"hunter2\" />".to_owned(),
        "<add name=\"ClearTextPassword\" value=\"hunter2\" />".to_owned(),
        "<add key=\"ClearTextPassword\" /> value=\"hunter2\"".to_owned(),
        "<add key=\"ClearTextPassword\"><b value=\"hunter2\" />".to_owned(),
    ] {
        assert_eq!(find(&text), [], "{text}");
        assert!(matches!(SecretRules::new().redact(&text), Cow::Borrowed(_)));
    }
}

#[test]
fn an_element_is_read_however_it_is_written() {
    for text in [
        "<add key='ClearTextPassword' value='hunter2'/>",
        "<ADD KEY='CLEARTEXTPASSWORD' VALUE='hunter2'>",
        "<add value=\"hunter2\" key=\"cleartextpassword\" />",
        "<add\n    key = \"ClearTextPassword\"\r\n\tvalue\n=\n'hunter2'\n/>",
        "<add lock='>' key='ClearTextPassword' x='' value='hunter2'/>",
        "<add key='ClearTextPassword' value='hunter2",
        "<add key='ClearTextPassword' value='hunter2\nand more",
        r#""<add key=\"ClearTextPassword\" value=\"hunter2\" />""#,
        r#"<add\n key=\\\"ClearTextPassword\\\"\n value=\\\"hunter2\\\" />"#,
        "<add key='x' value='y'/><add <add <add key='ClearTextPassword' value='hunter2'/>",
    ] {
        let password = ("nuget_password".to_owned(), "hunter2");
        assert_eq!(find(text), [password], "{text}");
        let redacted = text.replace("hunter2", "[redacted:nuget_password]");
        assert_eq!(SecretRules::new().redact(text), redacted);
    }
    let quote = "<add key='ClearTextPassword' value='a\"b%c%'/>";
    assert_eq!(find(quote)[0].1, "a\"b%c%");
}

#[test]
fn a_word_starts_after_what_is_no_part_of_it() {
    let token = format!("ghp_{}", "a1".repeat(18));
    for before in [
        "",
        " ",
        "\"",
        "=",
        "-",
        ".",
        "é",
        "\\n",
        "\\\\t",
        "%3D",
        "\\u003d",
        "\\x0a",
        "\u{1b}[1;31m",
        "\u{1b}[m",
        "\\u001B[0m",
        "[redacted:jwt]",
    ] {
        let text = format!("{before}{token}");
        assert_eq!(find(&text).len(), 1, "{before:?}");
    }
    for before in ["n", "\\q", "3D", "%3", "x0a", "[31m", "_"] {
        assert_eq!(find(&format!("{before}{token}")), [], "{before:?}");
    }
}

#[test]
fn one_value_is_reported_once_by_the_narrower_rule_and_others_by_each() {
    let anthropic = format!("sk-ant-{}", "oat01-AbCdEfGhIjKlMnOpQr");
    assert_eq!(
        find(&anthropic),
        [("anthropic_key".to_owned(), &*anthropic)]
    );
    let other = format!("sk-ant-{}", "admin-AbCdEfGhIjKlMnOpQr");
    assert_eq!(find(&other), [("openai_key".to_owned(), &*other)]);

    let token = format!("ghp_{}", "a1".repeat(18));
    let text = format!("_authToken=/{token}/");
    let inside = ("github_token".to_owned(), &*token);
    let around = ("npm_token".to_owned(), &text[11..]);
    assert_eq!(find(&text), [around, inside]);
    assert_eq!(
        SecretRules::new().redact(&text),
        "_authToken=[redacted:npm_token]"
    );

    let parts = "eyJhbGciOi.eyJzdWIiOi.sig.more";
    assert_eq!(SecretRules::new().redact(parts), "[redacted:jwt]");
}

#[test]
fn lines_are_counted_from_one_and_bytes_need_not_be_text() {
    let token = format!("ghp_{}", "a1".repeat(18));
    let mut bytes = b"\xff\xfe\n\n\x80".to_vec();
    let start = bytes.len();
    bytes.extend_from_slice(token.as_bytes());
    bytes.extend_from_slice(b"\xff\r\n");
    bytes.extend_from_slice(token.as_bytes());
    let findings = SecretRules::new().find(&bytes);
    assert_eq!(
        findings.iter().map(|found| found.line).collect::<Vec<_>>(),
        [3, 4]
    );
    assert_eq!(findings[0].range, start..start + token.len());
    assert_eq!(findings[0].fingerprint, findings[1].fingerprint);
}

#[test]
fn a_fingerprint_is_of_rule_and_value_and_never_changes() {
    let of = |text: &str, rule: &str| {
        let rules = SecretRules::with([SecretRule::new(rule, "v[0-9]+")]).unwrap();
        rules.find(text.as_bytes())[0].fingerprint.to_string()
    };
    assert_eq!(of("v1", "a"), of("  v1", "a"));
    assert_ne!(of("v1", "a"), of("v2", "a"));
    assert_ne!(of("v1", "a"), of("v1", "b"));
    let expected = blake3::derive_key("stillframe-secrets fingerprint of a secret value", b"a\0v1");
    let hex: String = expected.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(of("v1", "a"), hex);
}

#[test]
fn a_rule_that_cannot_be_used_is_refused_by_its_name() {
    let refused = |rules: &[(&str, &str)]| {
        let rules = rules
            .iter()
            .map(|(name, pattern)| SecretRule::new(*name, *pattern));
        SecretRules::with(rules).expect_err("it cannot be used")
    };
    let long = "a".repeat(65);
    for name in ["", "Acme", "acme-key", "1acme", "a b", "acme]", "é", &long] {
        let error = refused(&[(name, "acme")]);
        assert_eq!(
            error,
            SecretRuleError::Name {
                name: name.to_owned()
            }
        );
    }
    for rules in [&[("jwt", "x")][..], &[("twice", "x"), ("twice", "y")]] {
        let name = rules[0].0.to_owned();
        assert_eq!(refused(rules), SecretRuleError::Duplicate { name });
    }
    for pattern in ["", "a*", "a|", "^", "(?<secret>a*)", "x{0}"] {
        let error = refused(&[("fine", "fine"), ("empty", pattern)]);
        assert_eq!(
            error,
            SecretRuleError::Empty {
                name: "empty".to_owned()
            },
            "{pattern}"
        );
    }
    for pattern in [
        "hunter2(",
        "hunter2[",
        "hunter2\\p{Greek}",
        "(hunter2){999999}",
        "hunter2(?=x)",
    ] {
        let error = refused(&[("bad_one", pattern)]);
        assert!(matches!(&error, SecretRuleError::Pattern { name, .. } if name == "bad_one"));
        let told = format!("{error} {error:?}");
        assert!(
            told.contains("bad_one") && !told.contains("hunter2"),
            "{told}"
        );
    }
}

#[test]
fn a_hosts_rule_is_a_rule_like_any_other() {
    let rules = SecretRules::with([
        SecretRule::new("acme_key", "(?i)acme-[0-9a-f]{8}"),
        SecretRule::new("password", r"password: (?<secret>\S+)|(?<word>swordfish)"),
        SecretRule::new("cafe", "café|\\xc3"),
    ])
    .unwrap();
    let text = "ACME-0123ABCD password: hunter2, swordfish";
    let findings = rules.find(text.as_bytes());
    assert_eq!(
        found(&findings, text),
        [
            ("acme_key".to_owned(), "ACME-0123ABCD"),
            ("password".to_owned(), "hunter2,"),
            ("password".to_owned(), "swordfish"),
        ]
    );
    let redacted = rules.redact(text).into_owned();
    assert_eq!(
        redacted,
        "[redacted:acme_key] password: [redacted:password] [redacted:password]"
    );
    // A pattern may end within a character; text stays text.
    assert_eq!(
        rules.redact("un café, è"),
        "un [redacted:cafe], [redacted:cafe]"
    );
    let key = samples().remove(3).2;
    assert_eq!(rules.redact(&key), "[redacted:openai_key]");
}

#[test]
fn nothing_shows_a_value_or_a_pattern() {
    let rule = SecretRule::new("literal", "hunter2");
    let shown = format!("{rule:?}");
    let rules = SecretRules::with([rule]).unwrap();
    let findings = rules.find(b"hunter2");
    assert_eq!(findings.len(), 1);
    let shown = format!("{shown} {rules:?} {findings:?} {}", findings[0].fingerprint);
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn marks_are_left_alone_and_hide_nothing() {
    let rules = SecretRules::with([
        SecretRule::new("inner", r"\[redacted|redacted:|jwt\]"),
        SecretRule::new("line", r"secret: (?<secret>.*)"),
    ])
    .unwrap();
    for text in [
        "[redacted:jwt]",
        "secret: [redacted:jwt]",
        "secret: [redacted:jwt][redacted:line]",
        "[redacted:inner:12]",
    ] {
        assert_eq!(rules.redact(text), text);
        assert_eq!(rules.find(text.as_bytes()), []);
    }
    assert_eq!(
        rules.redact("secret: [redacted:jwt] tail"),
        "secret: [redacted:line]"
    );
    assert_eq!(rules.redact("[redacted:what"), "[redacted:inner]:what");
    let token = format!("ghp_{}", "a1".repeat(18));
    let hidden = format!("[redacted:{token}] [redacted:jwt:{token}]");
    let rules = SecretRules::new();
    assert_eq!(
        rules.redact(&hidden),
        "[redacted:[redacted:github_token]] [redacted:jwt:[redacted:github_token]]"
    );
}

#[test]
fn a_number_of_a_mark_hides_no_value() {
    let rules = SecretRules::with([SecretRule::new("card", r"\b[0-9]{1,16}\b")]).unwrap();
    for number in ["4111111111111111", "100000", "02", "0", "1"] {
        let redacted = rules
            .redact(&format!("[redacted:jwt:{number}]"))
            .into_owned();
        assert_eq!(redacted, "[redacted:jwt:[redacted:card]]");
    }
    for text in ["[redacted:jwt:2]", "[redacted:jwt:99999]"] {
        assert_eq!(rules.redact(text), text);
    }
}

#[test]
fn what_taking_out_one_value_uncovers_is_taken_out_as_well() {
    let rules = SecretRules::with([SecretRule::new("tail", r"x(?:\[redacted|$)")]).unwrap();
    assert_eq!(rules.redact("axxx"), "a[redacted:tail]");
}

#[test]
fn every_string_and_key_of_json_is_redacted_and_no_key_is_lost() {
    let [one, two] = ["a1", "b2"].map(|part| format!("ghp_{}", part.repeat(18)));
    let mut value = json!({
        "list": [1, true, null, format!("x {one}"), { "deep": two }],
        one.clone(): { "n": 1 },
        two.clone(): "second",
        "[redacted:github_token]": "was here",
        "plain": "plain",
    });
    let rules = SecretRules::new();
    assert!(rules.redact_json(&mut value));
    assert_eq!(
        value,
        json!({
            "list": [1, true, null, "x [redacted:github_token]", { "deep": "[redacted:github_token]" }],
            "[redacted:github_token]": "was here",
            "[redacted:github_token:2]": { "n": 1 },
            "[redacted:github_token:3]": "second",
            "plain": "plain",
        })
    );
    assert!(
        !rules.redact_json(&mut value),
        "a second time changes nothing"
    );
}

/// What this thread has had of processors.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap()
}

#[test]
fn hostile_text_takes_time_in_proportion_to_its_size() {
    let units = [
        "sk-",
        "sk-ant-api",
        "eyJ",
        "eyJ.",
        "eyJa.",
        "<add ",
        "<add",
        "<add a=\"",
        "<add a='\" b=\"",
        "<add key='ClearTextPassword' value='",
        "_authToken=",
        "_authToken ",
        "_authToken=\\\"",
        "ghp_",
        " ghp_aaaaaaaaaaaaaaaaaaaa",
        "glpat-",
        "[redacted:",
        "[redacted:jwt]",
        "\\",
        "%",
        "\u{1b}[",
        "-sk-aaaaaaaaaaaaaaaaaaaa.",
        "b=\"<add a='\" c=\"'",
    ];
    let rules = SecretRules::with([SecretRule::new("acme", "acme-[a-z]{40}")]).unwrap();
    let time = |text: &str| {
        let once = || {
            // Of this thread alone: others may have the processor meanwhile.
            let start = processor_time();
            let redacted = rules.redact(text);
            assert_eq!(rules.find(redacted.as_bytes()), []);
            processor_time() - start
        };
        once().min(once())
    };
    for unit in units {
        let token = format!(" ghp_{}", "a1".repeat(18));
        let text = |bytes: usize| unit.repeat(bytes / unit.len()) + &token;
        let (small, large) = (time(&text(1 << 13)), time(&text(1 << 17)));
        // Sixteen times the text; the square would be 256 times the time.
        let bound = small * 80 + Duration::from_millis(60);
        assert!(large < bound, "{unit:?}: {small:?}, then {large:?}");
    }
}

/// What is written of text that comes in these pieces.
fn redacted_in_pieces(rules: &SecretRules, pieces: &[&str]) -> String {
    let (mut pending, mut written) = (String::new(), String::new());
    for piece in pieces {
        pending += piece;
        let settled = rules.settled_len(&pending);
        written += &rules.redact(&pending[..settled]);
        pending.drain(..settled);
    }
    written + &rules.redact(&pending)
}

#[test]
fn a_value_is_found_wherever_the_text_is_cut_into_pieces() {
    let added = SecretRules::with([SecretRule::new("acme", "acme-[0-9]{8}")]).unwrap();
    for (rule, head, value, tail) in samples() {
        let text = format!("so it says: {head}{value}{tail} and goes on");
        let whole = SecretRules::new().redact(&text).into_owned();
        assert!(whole.contains(rule));
        for first in 0..=text.len() {
            for second in [first + 1, first + 3, first + 9] {
                let second = second.min(text.len());
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                for rules in [&SecretRules::new(), &added] {
                    assert_eq!(redacted_in_pieces(rules, &pieces), whole, "{pieces:?}");
                }
            }
        }
    }
    let text = "an acme-12345678 key";
    for at in 0..text.len() {
        let written = redacted_in_pieces(&added, &[&text[..at], &text[at..]]);
        assert_eq!(written, "an [redacted:acme] key");
    }
}

#[test]
fn what_begins_no_value_is_settled() {
    let rules = SecretRules::new();
    for (text, settled) in [
        ("", 0),
        ("Hello", 5),
        ("Hello.\n", 7),
        ("a word", 6),
        ("use ghp", 4),
        ("use gh", 4),
        ("use sk-abc", 4),
        ("use sk-abc ", 11),
        ("x <add key='a'", 2),
        ("x <add key='a'/> y", 18),
        ("x <add key='a>b' value", 2),
        ("x <add key='a' value='b<c", 2),
        ("x <address of a man", 19),
        ("x <add", 2),
        ("_authToken = ", 0),
        ("_authToken = x y", 16),
    ] {
        assert_eq!(rules.settled_len(text), settled, "{text:?}");
    }
}

fn any_sample() -> impl Strategy<Value = (&'static str, String, String, String)> {
    proptest::sample::select(samples())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_planted_is_found_wherever_it_is(
        before in "([ -~\n\u{e9}]{0,80}[^a-zA-Z0-9_\\\\])?",
        sample in any_sample(),
        after in "([^a-zA-Z0-9_+/=.\\\\-][ -~\n]{0,80})?",
    ) {
        let (rule, head, value, tail) = sample;
        let text = format!("{before}{head}{value}{tail}{after}");
        let start = before.len() + head.len();
        let findings = SecretRules::new().find(text.as_bytes());
        let line = text[..start].matches('\n').count() as u64 + 1;
        let planted = findings.iter().any(|found| {
            found.rule == rule && found.range.start == start && found.range.len() == value.len()
                && found.line == line
        });
        prop_assert!(planted, "{text:?}: {findings:?}");
        let redacted = SecretRules::new().redact(&text).into_owned();
        prop_assert!(rule == "nuget_password" || !redacted.contains(&value), "{redacted:?}");
    }

    #[test]
    fn redacted_text_has_no_finding_and_the_rest_is_as_it_was(
        parts in proptest::collection::vec(
            prop_oneof![
                "[ -~\n]{0,12}",
                Just("[redacted:jwt]".to_owned()),
                Just("_authToken=".to_owned()),
                Just("<add ".to_owned()),
                Just("key='ClearTextPassword' value=\"".to_owned()),
                any_sample().prop_map(|(_, head, value, tail)| head + &value + &tail),
                any_sample().prop_map(|(_, _, value, _)| value),
            ],
            0..12,
        ),
    ) {
        let rules = SecretRules::with([
            SecretRule::new("tail", "[a-z]{3}$"),
            SecretRule::new("around", r"[A-Z\[]r|d:|\]."),
        ]).unwrap();
        for rules in [SecretRules::new(), rules] {
            let text = parts.concat();
            let redacted = rules.redact(&text).into_owned();
            prop_assert_eq!(rules.find(redacted.as_bytes()), []);
            prop_assert_eq!(&rules.redact(&redacted), &redacted);
            if rules.find(text.as_bytes()).is_empty() {
                prop_assert_eq!(&redacted, &text);
            }
            let mut value = json!({ text.clone(): [text] });
            rules.redact_json(&mut value);
            prop_assert_eq!(value, json!({ redacted.clone(): [redacted] }));
        }
    }

    #[test]
    fn any_bytes_are_searched(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let findings = SecretRules::new().find(&bytes);
        prop_assert!(findings.iter().all(|found| found.range.end <= bytes.len()));
    }
}
