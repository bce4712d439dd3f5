//! Secret values in work that leaves the machine, through the commands: in every place that a push
//! reveals. git, the server's own log and its objects are the oracles.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stillframe_tests::servers::{HttpOptions, HttpServer};
use stillframe_tests::{Call, Output, TestWorkspace, git};

/// A rule, lines in which it finds the word beside them, and lines that come near.
type Family = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static [&'static str],
);

const CORPUS: [Family; 7] = [
    (
        "nuget_password",
        &[
            (
                r#"<add key="ClearTextPassword" value="hunter2-of-the-test" />"#,
                "hunter2-of-the-test",
            ),
            (
                r#"<ADD KEY='cleartextpassword' VALUE='pass-word-of-the-test'/>"#,
                "pass-word-of-the-test",
            ),
        ],
        &[
            r#"<add key="Username" value="hunter2" />"#,
            r#"<add key="ClearTextPassword" value="%PASSWORD%" />"#,
            r#"<added key="ClearTextPassword" value="hunter2" />"#,
        ],
    ),
    (
        "npm_token",
        &[
            (
                "//r.example.org/:_authToken=0123456789abcdef",
                "0123456789abcdef",
            ),
            (
                r#"_authToken = "npm_ABC.def-012+345/678=""#,
                "npm_ABC.def-012+345/678=",
            ),
        ],
        &[
            "_authToken=0123456789abcde",
            "_authToken: 0123456789fedcba",
            "_authToken=${NPM_TOKEN}",
        ],
    ),
    (
        "anthropic_key",
        &[
            ("key: sk-ant-api03-abcdefgh", "sk-ant-api03-abcdefgh"),
            ("(sk-ant-oat01_ABCDEFGH)", "sk-ant-oat01_ABCDEFGH"),
        ],
        &[
            "sk-ant-api03",
            "xsk-ant-api03-abcdef",
            "sk-ant-abc03-abcdef",
        ],
    ),
    (
        "openai_key",
        &[
            ("sk-0123456789abcdefghij", "sk-0123456789abcdefghij"),
            (
                "=sk-proj-ABCDEFGHIJ_0123456789",
                "sk-proj-ABCDEFGHIJ_0123456789",
            ),
        ],
        &["sk-0123456789abcdefghi", "task-0123456789abcdefgxyz"],
    ),
    (
        "github_token",
        &[
            ("t ghp_0123456789abcdefghij", "ghp_0123456789abcdefghij"),
            (
                "https://u:ghp_ABCDEFGHIJKLMNOPQRST@example.org",
                "ghp_ABCDEFGHIJKLMNOPQRST",
            ),
        ],
        &[
            "ghp_0123456789abcdefghi",
            "xghp_0123456789abcdefgxyz",
            "gho_0123456789abcdefghij",
        ],
    ),
    (
        "gitlab_token",
        &[
            ("glpat-0123456789_abcdefghi", "glpat-0123456789_abcdefghi"),
            (
                "token=glpat-ABCDEFGHIJ-KLMNOPQRST",
                "glpat-ABCDEFGHIJ-KLMNOPQRST",
            ),
        ],
        &["glpat-0123456789abcdefghi", "_glpat-0123456789_abcdefxyz"],
    ),
    (
        "jwt",
        &[
            (
                "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
                "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
            ),
            (
                "t=eyJhbGciOiJub25lIn0.eyJhIjoxfQ.c2lnbmVk",
                "eyJhbGciOiJub25lIn0.eyJhIjoxfQ.c2lnbmVk",
            ),
        ],
        &["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0"],
    ),
];

fn hits() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    CORPUS.iter().flat_map(|(rule, hits, _)| {
        let one = |(line, value): &(&'static str, &'static str)| (*rule, *line, *value);
        hits.iter().map(one)
    })
}

fn misses() -> impl Iterator<Item = &'static str> {
    CORPUS
        .iter()
        .flat_map(|(_, _, misses)| misses.iter().copied())
}

fn wide(text: &str) -> Vec<u8> {
    let units = std::iter::once(0xfeff).chain(text.encode_utf16());
    units.flat_map(u16::to_le_bytes).collect()
}

/// A repository with a remote that is served, and a user who is in the middle of something.
struct Scene {
    ws: TestWorkspace,
    server: Option<HttpServer>,
    remote: String,
}

impl Scene {
    fn new() -> Self {
        let ws = TestWorkspace::repository();
        let served = ws.base().join("served");
        fs::create_dir(&served).unwrap();
        git::text(&ws.home(), &served, ["init", "-q", "--bare", "remote.git"]);
        let server = HttpServer::start(&ws.base().join("http"), &served, HttpOptions::default());
        let remote = match &server {
            Some(server) => format!("http://127.0.0.1:{}/git/remote.git", server.port()),
            None => served.join("remote.git").to_str().unwrap().to_owned(),
        };
        ws.git(["remote", "add", "origin", &remote]);
        // What is renamed, with another line, is on the remote by its first name.
        for at in 0..hits().count().max(misses().count()) {
            let text = format!("{at}\n").repeat(20);
            ws.write(format!("old/{at}"), text);
        }
        ws.commit("on the remote");
        ws.git([
            "push",
            "-q",
            served.join("remote.git").to_str().unwrap(),
            "main",
        ]);
        Self { ws, server, remote }
    }

    fn bare(&self) -> PathBuf {
        self.ws.base().join("served/remote.git")
    }

    fn there(&self, args: &[&str]) -> String {
        git::text(&self.ws.home(), &self.bare(), args)
    }

    /// Puts lines where a push reveals them, and answers how many.
    fn fill(&self, lines: &[&str]) -> usize {
        let ws = &self.ws;
        let at = |place: &str, number: usize| format!("{place}/{number}");
        for (number, line) in lines.iter().enumerate() {
            ws.git([
                "commit",
                "-q",
                "--allow-empty",
                "-m",
                &format!("subject\n\n{line}"),
            ]);
            ws.write(at("undone", number), format!("before\n{line}\n"));
        }
        ws.commit("adds");
        ws.git(["rm", "-q", "-r", "undone"]);
        ws.commit("takes away");
        ws.git(["switch", "-q", "-c", "side", "HEAD~2"]);
        for (number, line) in lines.iter().enumerate() {
            ws.write(at("of-side", number), format!("{line}\n"));
        }
        ws.commit("of the side");
        ws.git(["switch", "-q", "main"]);
        ws.git(["merge", "-q", "--no-commit", "side"]);
        for (number, line) in lines.iter().enumerate() {
            ws.write(at("of-merge", number), format!("\n\n{line}\n"));
        }
        ws.commit("merge");
        let mut names = 0;
        for (number, line) in lines.iter().enumerate() {
            ws.write(at("text", number), format!("before\n{line}\nafter\n"));
            ws.write(at("wide", number), wide(&format!("ä\r\n{line}\r\n")));
            let long = format!(
                "\n{} {line} {}\n",
                "x y".repeat(20_000),
                "z ".repeat(20_000)
            );
            ws.write(at("long", number), long);
            ws.rename(at("old", number), format!("old/renamed{number}"));
            let renamed = ws.text(format!("old/renamed{number}"));
            ws.write(format!("old/renamed{number}"), format!("{renamed}{line}\n"));
            if !line.contains('/') {
                names += 1;
                ws.write(format!("names/{number} {line}"), "text\n");
            }
        }
        lines.len() * 8 + names
    }

    /// What somebody is told by anything that the commands print, or keep.
    fn is_nowhere(&self, outputs: &[Output]) {
        let mut texts: Vec<(String, Vec<u8>)> = outputs
            .iter()
            .map(|one| (one.to_string(), [&one.stdout[..], &one.stderr].concat()))
            .collect();
        for file in ["stillframe.db", "stillframe.db-wal"] {
            let path = self.ws.state().join(file);
            texts.push((file.to_owned(), fs::read(path).unwrap_or_default()));
        }
        assert!(!texts[outputs.len()].1.is_empty(), "the state is there");
        for entry in walkdir::WalkDir::new(self.ws.state()) {
            let entry = entry.unwrap();
            // Content that was captured is there, in objects that git packs.
            let is_content = entry.path().starts_with(self.ws.state().join("workspaces"));
            if entry.file_type().is_file() && !is_content {
                let name = entry.path().display().to_string();
                texts.push((name, fs::read(entry.path()).unwrap()));
            }
        }
        for (_, _, value) in hits() {
            for (name, text) in &texts {
                let has = |part: &[u8]| text.windows(part.len()).any(|at| at == part);
                assert!(!has(value.as_bytes()), "{value} is in {name}");
                assert!(!has(&wide(value)[2..]), "{value} is in {name}");
            }
        }
    }

    /// Nothing of what was refused has come to the server: it has the objects that it had, and
    /// nobody has asked it to take a pack.
    fn has_got_nothing(mut self, before: &str) {
        assert_eq!(self.objects(), before);
        let had_server = self.server.is_some();
        // Its log is whole once it has ended.
        if let Some(server) = self.server.take() {
            server.end();
        }
        let log = fs::read_to_string(self.ws.base().join("http/requests"));
        let log = log.unwrap_or_default();
        assert_eq!(log.contains("git-upload-pack"), had_server, "{log}");
        assert!(!log.contains("git-receive-pack"), "{log}");
    }

    fn objects(&self) -> String {
        let all = ["cat-file", "--batch-all-objects", "--batch-check"];
        self.there(&all) + &self.there(&["for-each-ref"])
    }
}

fn places(saved: &Value) -> BTreeSet<(String, String)> {
    let found = saved["secrets"].as_array().unwrap().iter();
    let of = |found: &Value| {
        let path = found["path"].as_str().unwrap();
        let place = path.split('/').next().unwrap();
        (found["rule"].as_str().unwrap().to_owned(), place.to_owned())
    };
    found.map(of).collect()
}

#[test]
fn of_every_value_in_every_place_nothing_is_sent_and_nothing_is_shown() {
    let scene = Scene::new();
    let ws = &scene.ws;
    let lines: Vec<&str> = hits().map(|(_, line, _)| line).collect();
    let filled = scene.fill(&lines);
    assert!(filled > 115, "{filled} lines");
    let before = scene.objects();
    let checkpoint = ["--json", "--log", "trace", "task", "checkpoint", "42"];
    let refused = ws.untouched(|| ws.call(checkpoint).run()).exits(1);
    let saved = refused.json();
    assert_eq!(saved["failure"], "SecretFound", "{saved}");
    let mut wanted = BTreeSet::new();
    for (rule, line, _) in hits() {
        let all = [
            "undone", "of-side", "of-merge", "text", "wide", "long", "old", "",
        ];
        let named = (!line.contains('/')).then_some("names");
        for place in all.into_iter().chain(named) {
            wanted.insert((rule.to_owned(), place.to_owned()));
        }
    }
    assert_eq!(places(&saved), wanted);
    let found = saved["secrets"].as_array().unwrap().len();
    assert_eq!(found, filled, "each of them");

    // The same of runs that fail, are done, or are blocked, and for people.
    let own = stillframe_tests::binary::stillframe().display();
    let block = format!(
        "{own} task block 'with {}' >&2; exit 4",
        hits().next().unwrap().1
    );
    // What a run begins with is in the way of nothing.
    let run = |script: &str| -> Call { ws.call(["run", "--task", "42", "--", "sh", "-c", script]) };
    let outputs = [
        refused,
        ws.call(["task", "checkpoint", "42"]).run().exits(1),
        run("echo x > x; exit 3").run().exits(3),
        run("echo y > y").run().ok(),
        run(&block).run().exits(4),
    ];
    let asked = [
        &["task", "show", "42"][..],
        &["--json", "task", "show", "42"],
        &["--json", "task", "list"],
        &["--json", "events"],
        &["--json", "notices"],
        &["--json", "runs"],
        &["--json", "list"],
    ];
    let asked = asked.iter().map(|args| ws.call(*args).run().ok());
    let outputs: Vec<Output> = outputs.into_iter().chain(asked).collect();
    scene.is_nowhere(&outputs);
    scene.has_got_nothing(&before);
}

#[test]
fn what_comes_near_a_secret_is_sent_in_every_place() {
    let scene = Scene::new();
    let lines: Vec<&str> = misses().collect();
    let filled = scene.fill(&lines);
    assert!(filled > 120, "{filled} lines");
    let saved = scene.ws.json(["task", "checkpoint", "42"]);
    assert_eq!(saved["state"], "pushed", "{saved}");
    let branch = "stillframe/task/42";
    assert_eq!(scene.there(&["rev-parse", branch]), saved["commit"]);
    let log = scene.there(&["log", "-p", "--text", "--all"]);
    for line in lines {
        assert!(log.contains(line), "{line}");
    }
    assert!(Path::new(&scene.remote).is_absolute() || scene.server.is_some());
}
