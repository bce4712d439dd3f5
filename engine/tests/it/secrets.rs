//! Secret values of hosts, adapters and commands, and the log that must not have them.

use std::time::Duration;

use serde_json::{Map, Value, json};
use stillframe::events::{EventDraft, EventQuery, EventType};
use stillframe::records::{
    AgentDraft, Question, ReviewDraft, ReviewIssue, ReviewSeverity, ReviewTarget,
};
use stillframe::secrets::SecretRule;
use stillframe::steps::ToolOptions;
use stillframe::{
    AdapterError, AdapterOutput, Engine, EngineOptions, ErrorKind, RunContext, RunOptions,
};

use crate::support::{Host, Work, all};

/// A value that the rules know, put together here so that it is in no file.
fn secret(nth: u32) -> String {
    format!("ghp_{}{nth:04}", "aB3".repeat(10))
}

/// Fails if any file of the state has one of the values.
fn is_nowhere(host: &Host, values: &[String]) {
    let mut files = 0;
    let mut directories = vec![host.state()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            files += 1;
            let bytes = std::fs::read(&path).unwrap();
            for value in values {
                let found = bytes
                    .windows(value.len())
                    .any(|part| part == value.as_bytes());
                assert!(!found, "{} has {value}", path.display());
            }
        }
    }
    assert!(files > 1, "the database and its log are there");
}

/// Says a secret in whatever way an adapter has.
async fn says_secrets(
    context: RunContext,
    said: Vec<String>,
) -> Result<AdapterOutput, AdapterError> {
    let metadata = Map::from_iter([(said[0].clone(), json!([said[1]]))]);
    let data = json!({ "text": format!("use {}", said[2]), "deep": [{ "x": said[3] }] });
    let draft = EventDraft::new(EventType::MESSAGE_RECEIVED, data)
        .provider(said[4].clone())
        .correlation_id(said[5].clone())
        .metadata(metadata);
    context.emit_draft(draft).await.unwrap();
    // So much that it is kept beside the log.
    let large = json!({ "text": said[6], "rest": "x".repeat(100_000) });
    context.emit(EventType::MESSAGE_SENT, large).await.unwrap();
    let call = async { Err::<(), _>(AdapterError::failed(format!("401 for {}", said[7]))) };
    let called = context.call_tool(
        ToolOptions::new("Fetch").read_only(vec!["Fetch".to_owned()]),
        call,
    );
    called.await.unwrap_err();
    let phase = context.phase("work");
    let result: String = phase
        .step("gets", |_| {
            let result = said[8].clone();
            async move { Ok(result) }
        })
        .await
        .unwrap();
    assert_eq!(result, said[8], "whoever did the work has what it returned");
    let failed = phase.step("fails", |_| {
        let message = format!("no {}", said[9]);
        async move { Err::<(), _>(AdapterError::failed(message)) }
    });
    failed.await.unwrap_err();
    let question = Question::new(format!("is {} right?", said[10]))
        .deadline(Duration::ZERO, format!("no, {}", said[11]));
    context.ask(question).await.unwrap();
    let value = json!({ "token": said[17] });
    let trigger = format!("logged in with {}", said[18]);
    context.set_state("account", value, trigger).await?;
    let kept = context.state("account").await?.unwrap();
    assert_eq!(kept["token"], "[redacted:github_token]");
    let agent = context.begin_agent(AgentDraft::new()).await?;
    agent.fail(format!("was refused {}", said[21])).await?;
    let issue = ReviewIssue::new(ReviewSeverity::Major, format!("it has {}", said[22]))
        .suggestion(format!("not {}", said[23]));
    let review = ReviewDraft::new(ReviewTarget::Files, ".env")
        .summary(format!("there is {}", said[24]))
        .issue(issue);
    let kept = context.record_review(review).await?;
    assert_eq!(kept.summary, "there is [redacted:github_token]");
    let options = ToolOptions::new("Read").input(json!({ "token": said[19] }));
    let output = format!("{}{}", said[20], "x".repeat(2_000));
    let called = context.call_tool_recorded(options, async { Ok(output) });
    called.await.unwrap();
    Err(AdapterError::failed(format!("gave up {}", said[12])))
}

#[tokio::test]
async fn a_secret_in_whatever_a_host_or_an_adapter_says_is_in_no_byte_of_the_log() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let values: Vec<String> = (0..25).map(secret).collect();
    let said = values.clone();
    let work = Work(move |context: RunContext| says_secrets(context, said.clone()));
    let options = RunOptions::new(format!("log in with {}", values[13]))
        .metadata(json!({ "token": values[14] }));
    let outcome = session.execute_run(options, work).await.unwrap();
    let data = json!({ "id": values[15] });
    let draft = EventDraft::new(EventType::new("noted"), data);
    session.emit(draft).await.unwrap();
    session
        .pause(&format!("lost {}", values[16]))
        .await
        .unwrap();

    let shown = engine.export_run(outcome.run_id.as_str()).await.unwrap();
    let shown = serde_json::to_string(&shown).unwrap();
    let events = serde_json::to_string(&all(&engine, &session).await).unwrap();
    for value in &values {
        assert!(!shown.contains(value) && !events.contains(value), "{value}");
    }
    assert!(
        shown.contains("log in with [redacted:github_token]"),
        "{shown}"
    );
    assert!(
        events.contains("\"text\":\"use [redacted:github_token]\""),
        "{events}"
    );
    is_nowhere(&host, &values);
    drop(session);
    engine.shutdown().await.unwrap();
    is_nowhere(&host, &values);
}

#[tokio::test]
async fn an_answer_with_a_secret_is_refused_and_the_question_goes_on_waiting() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let run = tokio::spawn({
        let session = session.clone();
        async move {
            let work = Work(|context: RunContext| async move {
                let answer = context.ask(Question::new("which account?")).await.unwrap();
                Ok(AdapterOutput::with_data(json!(answer.text)))
            });
            session.execute_run(RunOptions::new("ask"), work).await
        }
    });
    let id = loop {
        if let [question] = &engine.open_questions().await.unwrap()[..] {
            break question.id.clone();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let error = engine.answer(&id, &secret(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOptions);
    let told = error.to_string();
    assert!(
        told.contains("github_token") && !told.contains(&secret(1)),
        "{told}"
    );
    is_nowhere(&host, &[secret(1)]);
    engine.answer(&id, "the first").await.unwrap();
    let outcome = run.await.unwrap().unwrap();
    assert_eq!(outcome.run.output.unwrap().data, json!("the first"));
}

#[tokio::test]
async fn a_host_adds_rules_and_a_rule_that_cannot_be_used_starts_no_engine() {
    let host = Host::new();
    let rules = || vec![SecretRule::new("acme_key", "acme-[0-9]{6}")];
    let engine = Engine::start(host.options().secret_rules(rules()))
        .await
        .unwrap();
    let session = engine.session("s").await.unwrap();
    let data = json!({ "text": format!("acme-{} {}", 123_456, secret(1)) });
    let event = session
        .emit(EventDraft::new(EventType::MESSAGE_SENT, data.clone()).id("e".parse().unwrap()))
        .await
        .unwrap();
    assert_eq!(
        event.data["text"],
        "[redacted:acme_key] [redacted:github_token]"
    );
    let again = EventDraft::new(EventType::MESSAGE_SENT, data).id("e".parse().unwrap());
    assert_eq!(
        session.emit(again).await.unwrap(),
        event,
        "what is sent twice is one event"
    );

    for (rule, told) in [
        (SecretRule::new("acme_key", "hunter2("), "acme_key"),
        (SecretRule::new("jwt", "hunter2"), "jwt"),
        (SecretRule::new("all", ".*"), "all"),
    ] {
        let options = EngineOptions::default().state_dir(host.path().join("none"));
        let error = Engine::start(options.secret_rules(vec![rule]))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions);
        let text = error.to_string();
        assert!(text.contains(told) && !text.contains("hunter2"), "{text}");
    }
    assert!(!host.path().join("none").exists(), "nothing was made");
}

#[tokio::test]
async fn what_is_no_secret_is_kept_to_the_last_byte() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let odd =
        json!({ "text": "sk-short ghp_ eyJ <add key='x'/> \u{0} é [redacted:none]", "n": 1.5e300 });
    let draft = EventDraft::new(EventType::MESSAGE_SENT, odd.clone());
    session.emit(draft).await.unwrap();
    let query = EventQuery::all().of_type(EventType::MESSAGE_SENT);
    let found: Vec<Value> = engine
        .events(query)
        .await
        .unwrap()
        .into_iter()
        .map(|e| e.data)
        .collect();
    assert_eq!(found, [odd]);
}

#[tokio::test]
async fn a_submitted_run_whose_words_or_input_have_a_secret_is_refused() {
    let host = Host::new();
    let options = host.options().adapter("talks", |_| {
        Ok(Work(|_: RunContext| async { Ok(AdapterOutput::empty()) }))
    });
    let engine = Engine::start(options).await.unwrap();
    let session = engine.session("s").await.unwrap();
    let submit = |words: &str, input: Value| {
        let options = RunOptions::new(words).run_id("r".parse().unwrap());
        session.submit_run(options, "talks", input)
    };
    for (words, input) in [
        ("use it", json!({ "token": secret(1) })),
        (&*format!("use {}", secret(1)), json!({})),
    ] {
        let error = submit(words, input).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOptions);
        let told = error.to_string();
        assert!(
            told.contains("github_token") && !told.contains(&secret(1)),
            "{told}"
        );
    }
    for _ in 0..2 {
        let input = json!({ "token": "in the key ring" });
        submit("use it", input).await.unwrap().wait().await.unwrap();
    }
    is_nowhere(&host, &[secret(1)]);
}
