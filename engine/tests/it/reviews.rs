//! The records of reviews, by the adapter of a run and by a host.

use serde_json::json;
use stillframe::records::{ReviewDraft, ReviewIssue, ReviewSeverity, ReviewTarget};
use stillframe::{AdapterError, AdapterOutput, ErrorKind, RunContext, RunOptions};

use crate::support::{Host, Work, completed};

async fn reviews(context: RunContext) -> Result<AdapterOutput, AdapterError> {
    let issue = ReviewIssue::new(ReviewSeverity::Major, "it divides by zero")
        .at("src/mean.rs", 12)
        .suggestion("answer with None");
    let review = ReviewDraft::new(ReviewTarget::Commit, "2f1c0de")
        .blocking(true)
        .summary("The mean of nothing is not a number.")
        .issue(issue);
    let phase = context.phase("review");
    let step = phase.step("one", |step| async move {
        step.run.record_review(review).await?;
        Ok(())
    });
    step.await?;
    let good = ReviewDraft::new(ReviewTarget::Diff, "2f1c0de..9b0c").approved(true);
    context.record_review(good.clone()).await?;
    let (invalid, large) = (ErrorKind::InvalidOptions, ErrorKind::LimitExceeded);
    let nit = || ReviewIssue::new(ReviewSeverity::Nit, "x".repeat(64 * 1024));
    for (draft, kind) in [
        (ReviewDraft::new(ReviewTarget::Pr, ""), invalid),
        (
            ReviewDraft::new(ReviewTarget::Pr, "x".repeat(4_097)),
            invalid,
        ),
        (good.clone().blocking(true), invalid),
        (good.clone().issue(nit().file("")), invalid),
        (good.clone().run("another".parse().unwrap()), invalid),
        (good.clone().issue(nit()), large),
        (good.summary("x".repeat(64 * 1024 + 1)), large),
    ] {
        let refused = context.record_review(draft).await.unwrap_err();
        assert_eq!(refused.kind(), kind, "{refused}");
    }
    Ok(AdapterOutput::empty())
}

#[tokio::test]
async fn a_review_is_on_record_for_its_run_and_its_session() {
    let host = Host::new();
    let (engine, session) = host.session().await;
    let outcome = session.execute_run(RunOptions::new("review"), Work(reviews));
    let outcome = outcome.await.unwrap();
    completed(&outcome);
    let of_run = engine.reviews(&outcome.run_id).await.unwrap();
    let targets: Vec<_> = of_run
        .iter()
        .map(|of| (of.target_type, of.approved))
        .collect();
    let expected = [(ReviewTarget::Commit, false), (ReviewTarget::Diff, true)];
    assert_eq!(targets, expected);
    let first = &of_run[0];
    assert!(first.blocking && first.step_id.is_some() && of_run[1].step_id.is_none());
    let issue = json!({
        "severity": "major", "file": "src/mean.rs", "line": 12,
        "message": "it divides by zero", "suggestion": "answer with None",
    });
    assert_eq!(serde_json::to_value(&first.issues).unwrap(), json!([issue]));
    let shown = engine.export_run(outcome.run_id.as_str()).await.unwrap();
    assert_eq!(shown.reviews, of_run);

    // By the host, when the run has ended, and of no run.
    let later = ReviewDraft::new(ReviewTarget::Pr, "https://example.com/7").approved(true);
    let later = later.run(outcome.run_id.clone());
    let later = session.record_review(later).await.unwrap();
    let files = ReviewDraft::new(ReviewTarget::Files, "docs");
    let alone = session.record_review(files.clone()).await.unwrap();
    assert_eq!(engine.reviews(&outcome.run_id).await.unwrap()[2], later);
    let all = engine.session_reviews(session.id()).await.unwrap();
    assert_eq!((all.len(), &all[2..]), (4, &[later, alone][..]));
    let other = engine.session("other").await.unwrap();
    assert_eq!(engine.session_reviews(other.id()).await.unwrap(), []);
    let foreign = other.record_review(files.run(outcome.run_id.clone())).await;
    assert_eq!(foreign.unwrap_err().kind(), ErrorKind::NotFound);
    let unknown = engine.reviews(&"nobody".parse().unwrap()).await;
    assert_eq!(unknown.unwrap_err().kind(), ErrorKind::NotFound);
}
