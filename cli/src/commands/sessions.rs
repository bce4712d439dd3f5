//! `sessions`: listing sessions, and showing one in full.

use serde::Serialize;
use stillframe::Error;
use stillframe::options::{RunQuery, SessionQuery};
use stillframe::records::{RunRecord, SessionRecord};

use super::{Tools, runs};
use crate::failure::Failure;
use crate::output::{self, Reply};

/// Lists sessions.
pub(super) async fn sessions(tools: &Tools, query: SessionQuery) -> Result<Reply, Failure> {
    let sessions = tools.engine.sessions(query).await?;
    let reply = Reply::new(tools.json, &sessions, || listing(&sessions));
    Ok(match sessions.is_empty() {
        true => reply.note("there are no such sessions"),
        false => reply,
    })
}

fn listing(sessions: &[SessionRecord]) -> String {
    let rows: Vec<Vec<String>> = sessions
        .iter()
        .map(|session| {
            let details = &session.details;
            let agent = details.agent_id.as_deref().map(output::printable);
            let mut said: Vec<String> = agent.into_iter().collect();
            said.extend(
                details
                    .tags
                    .iter()
                    .map(|tag| format!("#{}", output::printable(tag))),
            );
            vec![
                session.id.to_string(),
                format!("{:.0}", session.created_at),
                session.status.as_str().to_owned(),
                match session.queued {
                    0 => String::new(),
                    queued => format!("{} waiting", output::count(queued, "run")),
                },
                said.join(" "),
            ]
        })
        .collect();
    output::table(&rows)
}

/// A session, and its runs, newest first.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SessionDocument {
    #[serde(flatten)]
    session: SessionRecord,
    runs: Vec<RunRecord>,
}

impl SessionDocument {
    /// The session of exactly this id.
    pub(super) async fn of(tools: &Tools, id: &str) -> Result<Self, Error> {
        let session = tools.engine.find_session(id).await?;
        let runs = tools
            .engine
            .runs(RunQuery::session(session.id.clone()))
            .await?;
        Ok(Self { session, runs })
    }

    /// The session in full, for people.
    pub(super) fn description(&self) -> String {
        let (session, details) = (&self.session, &self.session.details);
        let mut rows = vec![
            ("session", session.id.to_string()),
            ("status", session.status.as_str().to_owned()),
            ("created", format!("{:.0}", session.created_at)),
        ];
        rows.extend(session.ended_at.map(|at| ("ended", format!("{at:.0}"))));
        let agent = details.agent_id.as_deref().map(output::printable);
        rows.extend(agent.map(|agent| ("agent", agent)));
        if !details.tags.is_empty() {
            let tags: Vec<String> = details
                .tags
                .iter()
                .map(|tag| output::printable(tag))
                .collect();
            rows.push(("tags", tags.join(", ")));
        }
        let parent = details.parent_id.as_ref();
        rows.extend(parent.map(|parent| ("parent", parent.to_string())));
        if !details.metadata.is_empty() {
            let text = serde_json::to_string(&details.metadata).expect("it is plain data");
            rows.push(("metadata", output::printable(&text)));
        }
        rows.push(("waiting", output::count(session.queued, "run")));
        let runs = match self.runs.is_empty() {
            true => String::new(),
            false => format!("\n{}", runs::listing(&self.runs)),
        };
        let rows: Vec<Vec<String>> = rows
            .into_iter()
            .map(|(name, value)| vec![name.to_owned(), value])
            .collect();
        output::table(&rows) + &runs
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_session_is_a_line_and_shown_in_full_all_that_is_said_of_it() {
        let session: SessionRecord = serde_json::from_value(json!({
            "id": "ticket-42", "status": "active", "created_at": "2026-11-22T00:30:09Z",
            "ended_at": null, "agent_id": "reviewer", "tags": ["docs", "ur\u{1b}gent"],
            "metadata": {"ticket": 42}, "parent_id": "epic-7", "queued": 2,
        }))
        .expect("a record");
        assert_eq!(
            listing(std::slice::from_ref(&session)),
            "ticket-42  2026-11-22T00:30:09Z  active  2 runs waiting  reviewer #docs #ur\\u{1b}gent\n"
        );
        let document = SessionDocument {
            session,
            runs: Vec::new(),
        };
        let text = document.description();
        for said in ["reviewer", "docs, ", "epic-7", "{\"ticket\":42}", "2 runs"] {
            assert!(text.contains(said), "{text}");
        }
    }
}
