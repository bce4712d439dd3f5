//! What need not be kept any more is let go of without being asked, after a notice.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use stillframe::backends::Label;
use stillframe::options::RetentionOptions;
use stillframe::upkeep::RetentionOutcome;
use stillframe::{Engine, EngineOptions, WorkspaceOptions};
use stillframe_tests::TestWorkspace;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Does something with an engine for which it is so many days ago.
fn days_ago<T>(ws: &TestWorkspace, days: u32, story: impl AsyncFnOnce(&Engine) -> T) -> T {
    let at = Timestamp::now() - DAY * days;
    let options = EngineOptions::default()
        .state_dir(ws.state())
        .clock(move || at);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let engine = Engine::start(options).await.unwrap();
        let told = story(&engine).await;
        engine.shutdown().await.unwrap();
        told
    })
}

/// Four snapshots of a hundred days ago, the second with words of somebody's own for a label, the
/// third pinned.
fn old_ones(ws: &TestWorkspace) -> [String; 4] {
    let taken = days_ago(ws, 100, async |engine| {
        let session = engine.workspace_session(ws.root()).await.unwrap();
        let mut taken = Vec::new();
        let labelled = Label::new("before the move");
        for label in [Label::MANUAL, labelled, Label::MANUAL, Label::MANUAL] {
            ws.write("file", format!("{}", taken.len()));
            let options = WorkspaceOptions::at(ws.root()).retain_content(true);
            let snapshot = session.snapshot(&options, label).await.unwrap();
            taken.push(snapshot.id.to_string());
        }
        let options = WorkspaceOptions::at(ws.root());
        engine.pin_snapshot(&options, &taken[2]).await.unwrap();
        taken
    });
    taken.try_into().unwrap()
}

fn announced_a_week_ago(ws: &TestWorkspace) {
    let told = days_ago(ws, 8, async |engine| {
        let options = WorkspaceOptions::at(ws.root());
        // Older than what was taken a hundred days ago was eight days ago.
        let retention = RetentionOptions::default().older_than(DAY * 80);
        engine.apply_retention(&options, retention).await.unwrap()
    });
    assert!(
        matches!(told, RetentionOutcome::Announced { snapshots: 1, .. }),
        "{told:?}"
    );
}

fn ids(document: &Value) -> Vec<&str> {
    let ids = document.as_array().unwrap().iter();
    ids.map(|one| one.as_str().or(one["id"].as_str()).unwrap())
        .collect()
}

fn listed(ws: &TestWorkspace) -> Vec<String> {
    let listed = ws.json(["list"]);
    ids(&listed).into_iter().map(str::to_owned).collect()
}

#[test]
fn what_is_old_is_told_first_and_nothing_of_it_is_forgotten() {
    let ws = TestWorkspace::plain();
    let [first, labelled, pinned, last] = old_ones(&ws);
    let told = ws.stillframe(["snapshot"]).ok().stderr_text();
    let line = told
        .lines()
        .find(|line| line.contains("will be forgotten from"));
    let line = line.unwrap_or_else(|| panic!("{told}"));
    assert!(line.contains("2 snapshots here"), "{line}");
    assert!(line.contains("config.toml"), "{line}");
    let again = ws.stillframe(["snapshot"]).ok().stderr_text();
    assert!(!again.contains("forgotten"), "once: {again}");
    assert_eq!(listed(&ws).len(), 6);
    let events = ws.stillframe(["events"]).ok().json_lines();
    let of_type = |wanted: &str| {
        events
            .iter()
            .filter(|event| event["type"] == wanted)
            .count()
    };
    assert_eq!(of_type("workspace_retention_announced"), 1);
    assert_eq!(of_type("workspace_cleaned_up"), 0);

    // What would go is to be had beforehand.
    let would = ws.json(["gc", "--retention", "--dry-run"]);
    assert_eq!(would["dry_run"], true, "{would}");
    assert_eq!(
        ids(&would["forgotten"]),
        [&first, &last],
        "oldest first: {would}"
    );
    assert_eq!(would["kept"], 4, "{would}");
    let text = ws
        .stillframe(["gc", "--retention", "--dry-run"])
        .ok()
        .stdout_text();
    assert!(
        text.starts_with(&format!("would forget {first}\n")),
        "{text}"
    );
    let nothing = ws.json(["gc", "--dry-run"]);
    assert_eq!(ids(&nothing["forgotten"]), [""; 0], "{nothing}");
    let by_number = ws.json(["gc", "--keep", "1", "--dry-run"]);
    assert_eq!(
        by_number["forgotten"].as_array().unwrap().len(),
        4,
        "{by_number}"
    );
    assert_eq!(listed(&ws).len(), 6, "nothing is done");
    for other in ["--forget-damaged", "--max-bytes=1"] {
        ws.stillframe(["gc", "--dry-run", other]).exits(2);
    }
    // And at once, where somebody asks for it.
    let gone = ws.json(["gc", "--retention"]);
    assert_eq!(ids(&gone["forgotten"]), [&first, &last], "{gone}");
    let left = listed(&ws);
    assert!(
        left.contains(&labelled) && left.contains(&pinned),
        "{left:?}"
    );
}

#[test]
fn seven_days_later_it_goes_at_the_end_of_a_command_unless_that_is_switched_off() {
    let ws = TestWorkspace::plain();
    let [first, labelled, pinned, last] = old_ones(&ws);
    announced_a_week_ago(&ws);
    let off = ws
        .stillframe(["snapshot", "--no-retention"])
        .ok()
        .stderr_text();
    assert!(!off.contains("forgotten"), "{off}");
    let config = ws.home().join(".config/stillframe");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("config.toml"), "[retention]\nenabled = false\n").unwrap();
    let off = ws.stillframe(["run", "--", "true"]).ok().stderr_text();
    assert!(!off.contains("forgotten"), "{off}");
    assert!(listed(&ws).contains(&first));

    std::fs::write(config.join("config.toml"), "").unwrap();
    let run = ws
        .stillframe(["run", "--", "touch", "new"])
        .ok()
        .stderr_text();
    assert!(
        run.contains("2 snapshots that need not be kept any more were forgotten"),
        "{run}"
    );
    let left = listed(&ws);
    assert!(!left.contains(&first) && !left.contains(&last), "{left:?}");
    assert!(
        left.contains(&labelled) && left.contains(&pinned),
        "{left:?}"
    );
    assert_eq!(left.len(), 7, "{left:?}");
    let gone = ws.try_json(["show", &first]).refused("NotFound");
    assert!(gone.contains("was forgotten at"), "{gone}");
    ws.stillframe(["verify"]).ok();
    ws.undo();
    assert!(!ws.exists("new"));
}

#[test]
fn nobody_is_told_of_nothing() {
    let ws = TestWorkspace::plain();
    let [_, labelled, ..] = old_ones(&ws);
    announced_a_week_ago(&ws);
    // All but what was labelled and the newest is young.
    std::fs::create_dir_all(ws.home().join(".config/stillframe")).unwrap();
    let config = ws.home().join(".config/stillframe/config.toml");
    std::fs::write(config, "[retention]\nolder_than = \"4000d\"\n").unwrap();
    let told = ws.stillframe(["snapshot"]).ok().stderr_text();
    assert!(!told.contains("forgotten"), "{told}");
    assert!(listed(&ws).contains(&labelled));
    assert_eq!(listed(&ws).len(), 5);
}
