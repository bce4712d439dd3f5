use super::*;

const TEXT: &str = "\
[ignore]
paths = [\"cache\"]

[limits]
max_untracked_file_bytes = \"1M\"
retain_content_bytes = 7

[retention]
older_than = \"30d\"

[workspace.\"/not/there\".ignore]
paths = [\"own\"]
globs = [\"*.log\"]

[workspace.\"/not/there\".limits]
retain_content_bytes = 0

[workspace.\"/not/there\".retention]
enabled = false
";

fn parsed(text: &str) -> Result<Config, String> {
    Config::parse(text.to_owned())
}

#[test]
fn what_is_set_for_a_workspace_counts_before_what_is_set_for_all() {
    let config = parsed(TEXT).expect("it is right");
    let all = config.settings(Some(Path::new("/elsewhere")));
    assert_eq!(all.ignore.paths, ["cache"]);
    assert_eq!(all.max_untracked_file_bytes, Some(1 << 20));
    assert_eq!(all.retain_content_bytes, Some(7));
    let month = Duration::from_secs(30 * 24 * 60 * 60);
    let kept = all.retention.expect("it is on");
    assert_eq!((kept.older_than, kept.step_snapshots), (month, 50));
    assert_eq!(
        config.settings(None),
        config.settings(Some(Path::new("/not")))
    );

    let own = config.settings(Some(Path::new("/not/there")));
    assert_eq!(own.ignore.paths, ["cache", "own"], "lists add");
    assert_eq!(own.ignore.globs, ["*.log"]);
    assert_eq!(own.max_untracked_file_bytes, Some(1 << 20));
    assert_eq!(own.retain_content_bytes, Some(0));
    assert_eq!(own.retention, None);

    let nothing = parsed("").expect("it is right").settings(None);
    let retention = Some(RetentionOptions::default());
    assert_eq!(
        nothing,
        Settings {
            retention,
            ..Settings::default()
        }
    );
}

#[test]
fn each_value_says_who_set_it() {
    let config = parsed(TEXT).expect("it is right");
    let variable = |name: &str| (name == MAX_STORE_BYTES).then(|| "2K".into());
    let held = config.held(Some(Path::new("/not/there")), variable);
    let of = |key: &str| -> Vec<(String, Source, Option<usize>)> {
        let held = held.iter().filter(|held| held.key == key);
        held.map(|held| (held.value.to_string(), held.source, held.line))
            .collect()
    };
    let one = |value: &str, source, line| vec![(value.to_owned(), source, line)];
    assert_eq!(
        of("ignore.paths"),
        [
            one("[\"own\"]", Source::Workspace, Some(12)),
            one("[\"cache\"]", Source::File, Some(2)),
        ]
        .concat()
    );
    assert_eq!(
        of("limits.max_untracked_file_bytes"),
        one("1048576", Source::File, Some(5))
    );
    assert_eq!(
        of("limits.retain_content_bytes"),
        one("0", Source::Workspace, Some(16))
    );
    assert_eq!(
        of("limits.max_store_bytes"),
        one("2048", Source::Environment, None)
    );
    assert_eq!(of("limits.max_files"), one("0", Source::Default, None));
    assert_eq!(
        of("retention.enabled"),
        one("false", Source::Workspace, Some(19))
    );
    assert_eq!(
        of("retention.older_than"),
        one("\"30d\"", Source::File, Some(9))
    );
    assert_eq!(
        of("retention.step_snapshots"),
        one("50", Source::Default, None)
    );
}

#[test]
fn of_the_ways_to_ask_a_remote_that_of_the_workspace_counts_alone() {
    let text = "\
[task]
token_command = \"pass\"
namespace = \"a/b\"

[workspace.\"/not/there\".task]
credential = \"git\"
";
    let config = parsed(text).expect("it is right");
    let scoped = |value, is_for_all| Some(Scoped { value, is_for_all });
    let login = |path| config.settings(Some(Path::new(path))).task.login;
    assert_eq!(login("/not/there"), scoped(Login::UserGit, false));
    assert_eq!(
        login("/other"),
        scoped(Login::Command("pass".to_owned()), true)
    );
    let held = config.held(Some(Path::new("/not/there")), |_| None);
    let of = |key: &str| {
        let held = held.iter().find(|held| held.key == key).expect(key);
        (held.value.clone(), held.source)
    };
    assert_eq!(of("task.credential"), (json!("git"), Source::Workspace));
    assert_eq!(of("task.token_command"), (Value::Null, Source::Default));
    assert_eq!(of("task.namespace"), (json!("a/b"), Source::File));
    let interval = of("task.checkpoint_interval");
    assert_eq!(interval, (json!("120s"), Source::Default));
    let never = parsed("[task]\ncheckpoint_interval = \"0s\"\n").expect("it is right");
    let never = never.settings(None).task.checkpoint_interval;
    assert_eq!(never, Some(Duration::ZERO));
}

#[test]
fn what_is_wrong_is_named_with_its_line_and_key() {
    for (text, expected) in [
        ("[limits]\nmax_fles = 3\n", ["line 2", "max_fles"]),
        ("[limit]\n", ["line 1", "limit"]),
        ("\n\nignore = 3\n", ["line 3", "ignore"]),
        (
            "[limits]\n\nmax_new_bytes = \"lots\"\n",
            ["line 3", "max_new_bytes"],
        ),
        (
            "[limits]\nmax_new_bytes = -1\n",
            ["line 2", "max_new_bytes"],
        ),
        (
            "[limits]\nmax_patch_bytes = 0\n",
            ["line 2", "max_patch_bytes"],
        ),
        ("[limits]\nmax_files = \"3\"\n", ["line 2", "max_files"]),
        ("[retention]\nolder_than = 90\n", ["line 2", "older_than"]),
        (
            "[retention]\nolder_than = \"90\"\n",
            ["line 2", "older_than"],
        ),
        (
            "[retention]\nolder_than = \"0w\"\n",
            ["line 2", "older_than"],
        ),
        ("[retention]\nenabled = \"no\"\n", ["line 2", "enabled"]),
        ("[ignore]\nglobs = [1]\n", ["line 2", "globs"]),
        // What a capture would refuse.
        ("[ignore]\n\nglobs = [\"[\"]\n", ["line 3", "glob"]),
        ("[ignore]\npaths = [\"../x\"]\n", ["line 2", "../x"]),
        (
            "[workspace.\"/a\".ignore]\npaths = [\"\"]\n",
            ["line 2", "path"],
        ),
        ("[workspace.src.limits]\nmax_files = 3\n", ["line 1", "src"]),
        (
            "[workspace.\"/a\"]\nmax_files = 3\n",
            ["line 2", "max_files"],
        ),
        ("[task]\nremotes = \"x\"\n", ["line 2", "remotes"]),
        ("[task]\nremote = \"../x\"\n", ["line 2", "remote"]),
        ("[task]\nremote = \"\"\n", ["line 2", "remote"]),
        ("[task]\nremote = \"ext::sh -c x\"\n", ["line 2", "ext"]),
        ("[task]\nremote = \"ftp://a/b\"\n", ["line 2", "ftp"]),
        ("[task]\nnamespace = \"x\"\n", ["line 2", "namespace"]),
        ("[task]\ntoken_env = \"A=B\"\n", ["line 2", "A=B"]),
        ("[task]\ntoken_command = \"\"\n", ["line 2", "command"]),
        ("[task]\ncredential = \"gh\"\n", ["line 2", "credential"]),
        (
            "[task]\ncheckpoint_interval = \"often\"\n",
            ["line 2", "checkpoint_interval"],
        ),
        (
            "[task]\ncredential = \"git\"\ntoken_env = \"A\"\n",
            ["line 3", "token_env"],
        ),
        (
            "[workspace.\"/a\".task]\ntoken_env = 3\n",
            ["line 2", "token_env"],
        ),
        ("[secret_rules]\na = \"\"\n", ["line 2", "a"]),
        ("[secret_rules]\na = \"(\"\n", ["line 2", "a"]),
        ("[secret_rules]\njwt = \"x\"\n", ["line 2", "jwt"]),
        (
            "[workspace.\"/a\".secret_rules]\na = \"x\"\n",
            ["line 1", "secret_rules"],
        ),
        ("[ignore\n", ["line 1", "ignore"]),
        ("[ignore]\n[ignore]\n", ["line 2", "ignore"]),
    ] {
        let wrong = parsed(text).expect_err(text);
        for part in expected {
            assert!(wrong.contains(part), "{text:?}: {wrong}");
        }
    }
}

#[test]
fn the_file_lies_where_the_environment_says() {
    let path = |variables: &[(&str, &str)]| {
        let of = |name: &str| variables.iter().find(|(known, _)| *known == name);
        super::path(|name| of(name).map(|(_, value)| value.into()))
    };
    let expected = |path: &str| Some(PathBuf::from(path));
    assert_eq!(
        path(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")]),
        expected("/x/stillframe/config.toml")
    );
    assert_eq!(
        path(&[("HOME", "/h")]),
        expected("/h/.config/stillframe/config.toml")
    );
    assert_eq!(
        path(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "relative")]),
        expected("/h/.config/stillframe/config.toml"),
        "as the specification has it"
    );
    assert_eq!(path(&[]), None);
}
