//! Exports: the records of a run or a session as files, read from the log page by page.

mod writer;

use stillframe_artifact_store::ArtifactKey;
use stillframe_backends::{ErrorKind, Interrupt, Place};

use super::{Engine, records};
use crate::error::Error;
use crate::events::floor::EventFloor;
use crate::events::query::EventQuery;
use crate::id::{RunId, SessionId};
use crate::options::{ExportRequest, RecordsOf};
use crate::records::artifact::ArtifactRecord;
use crate::records::export::{ExportLine, ExportOutcome, ExportedRun};
use crate::session::{details, stream};
use crate::state::RunFilter;
use crate::state::error::StateError;
use crate::workspace::cancellation::Cancellation;
use writer::ExportWriter;

/// How many events are read at a time. Their data has up to 64 KiB each in the log.
const PAGE: u64 = 64;

impl Engine {
    /// Writes what is kept of a run or a session into a directory, for whoever reads it without
    /// Stillframe.
    ///
    /// `records.jsonl` has an [`ExportLine`] on each line: the session and its reviews, the runs,
    /// each event that is still in the log, and the artifacts. `artifacts/` has the content of
    /// each, in a file that its line names. The directory and all in it can be read by their owner
    /// alone.
    ///
    /// ```no_run
    /// # use stillframe::options::ExportRequest;
    /// # async fn export(engine: stillframe::Engine, id: stillframe::SessionId) -> Result<(), stillframe::Error> {
    /// let export = engine.export(ExportRequest::session(id, "/srv/exports/ticket-42")).await?;
    /// println!("{} events of {} runs in {}", export.events, export.runs, export.to.display());
    /// for key in &export.unreadable {
    ///     eprintln!("the content of artifact {key} is lost");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// All of it lies there, durably, or nothing does: it gets its name last. What was written when
    /// the runs had been read is in it; a run may be under way. It holds one page of events in
    /// memory, however many there are. Dropping the future ends it too.
    ///
    /// An artifact whose content cannot be read is no error: its line says why, and
    /// [`ExportOutcome::unreadable`] has its key. Where earlier events were removed from the log,
    /// [`ExportOutcome::oldest_sequence`] says so.
    ///
    /// # Errors
    ///
    /// `NotFound`: there is no such run, or no such session. `InvalidOptions`: the directory is not
    /// empty, lies in the state directory, or there is none above it. `PositionsForgotten`: a
    /// clean-up removed events of the session meanwhile; `NotFound`, if it removed the session.
    /// `Cancelled`: by the request's token, or because the engine stops. Nothing was made.
    pub async fn export(&self, request: ExportRequest) -> Result<ExportOutcome, Error> {
        let parts = &self.core.parts;
        let of_run = match &request.of {
            RecordsOf::Run(id) => Some(id.clone()),
            RecordsOf::Session(_) => None,
        };
        let events = self.events_of(request.of).await?;
        let session_id = events.session_id.clone().expect("it is of a session");
        let floor = self.floor_of_kept(&session_id).await?;
        self.settle_ripe(of_run.as_ref()).await;
        let state_dir = parts.state_dir.path().to_owned();
        let cancel = Cancellation::by(&self.core, &request.cancellation, Interrupt::never());
        let op = cancel.operation();
        let begin = move || {
            let apart_from = [(&*state_dir, "the state directory")];
            let place = Place::find(&request.to, &apart_from)?;
            ExportWriter::begin(&op, place)
        };
        let mut writer = parts.blocking.run(begin).await??;

        let runs = match of_run.clone() {
            Some(id) => vec![id],
            None => {
                writer = self.export_session(writer, &session_id).await?;
                self.runs_of(&session_id).await?
            }
        };
        for id in runs {
            writer = self.export_record(writer, id).await?;
        }
        writer = self.export_events(writer, events.clone()).await?;
        for artifact in self.artifacts(Some(&session_id)).await? {
            if of_run.is_none() || artifact.run_id == of_run {
                writer = self.export_artifact(writer, artifact).await?;
            }
        }
        let oldest_sequence = self.oldest_sequence(&events).await?;
        let removed = self.floor_of_kept(&session_id).await?;
        if removed != floor {
            let forgotten = removed.forgotten(&EventQuery::session(session_id));
            return Err(Error::new(ErrorKind::PositionsForgotten, forgotten));
        }
        parts
            .blocking
            .run_long(move || writer.finish(oldest_sequence))
            .await?
    }

    /// Up to where the events of a session were removed. `NotFound`: all of it was, or is being.
    async fn floor_of_kept(&self, id: &SessionId) -> Result<EventFloor, Error> {
        let asked = id.clone();
        let read = self.read(move |store| {
            let is_removed = match store.check_accepts(&asked) {
                Err(StateError::NotFound { .. } | StateError::Conflict { .. }) => true,
                accepted => accepted.map(|()| false)?,
            };
            let floor = store.event_floor(Some(&asked))?;
            Ok((!is_removed).then_some(floor))
        });
        let gone = || Error::not_found(format!("session {id} was removed; nothing was exported"));
        read.await?.ok_or_else(gone)
    }

    /// The line of a session, and of what belongs to none of its runs.
    async fn export_session(
        &self,
        writer: ExportWriter,
        session_id: &SessionId,
    ) -> Result<ExportWriter, Error> {
        let id = session_id.clone();
        let read = self.read(move |store| {
            let session = store.session(&id)?;
            let session = session
                .map(|row| details::recorded(store, row))
                .transpose()?;
            let mut reviews = store.reviews(Some(&id), None)?;
            reviews.retain(|review| review.run_id.is_none());
            Ok((session, reviews))
        });
        let (session, reviews) = read.await?;
        let session = session.map(ExportLine::Session).into_iter();
        let reviews = reviews.into_iter().map(ExportLine::Review);
        self.export_lines(writer, session.chain(reviews).collect())
            .await
    }

    /// The runs of a session, oldest first.
    async fn runs_of(&self, session_id: &SessionId) -> Result<Vec<RunId>, Error> {
        let filter = RunFilter {
            session_id: Some(session_id.clone()),
            ..RunFilter::default()
        };
        self.read(move |store| {
            let newest_first = store.runs(&filter)?.into_iter();
            Ok(newest_first.rev().map(|row| row.id).collect())
        })
        .await
    }

    /// The line of a run.
    async fn export_record(&self, writer: ExportWriter, id: RunId) -> Result<ExportWriter, Error> {
        let read = self.read(move |store| {
            let row = store.run(&id)?;
            row.map(|row| records::kept_of_row(store, row)).transpose()
        });
        // One that went with its session meanwhile has none.
        let run = read.await?.map(|run| ExportedRun(Box::new(run)));
        let lines = run.map(ExportLine::Run).into_iter().collect();
        self.export_lines(writer, lines).await
    }

    /// The lines of all events that were written so far.
    async fn export_events(
        &self,
        mut writer: ExportWriter,
        mut query: EventQuery,
    ) -> Result<ExportWriter, Error> {
        // A run under way may write faster than it is read.
        let end = self.read(|store| store.last_position()).await?;
        query.limit = Some(PAGE);
        loop {
            let mut events = stream::read_page(&self.core.parts, &mut query).await?;
            let is_last = events.last().is_none_or(|event| event.position >= end);
            events.retain(|event| event.position <= end);
            let lines = events.into_iter().map(ExportLine::Event).collect();
            writer = self.export_lines(writer, lines).await?;
            if is_last {
                return Ok(writer);
            }
        }
    }

    /// The content of an artifact, and its line.
    async fn export_artifact(
        &self,
        mut writer: ExportWriter,
        artifact: ArtifactRecord,
    ) -> Result<ExportWriter, Error> {
        let parts = &self.core.parts;
        let key = ArtifactKey::new(artifact.key.clone()).map_err(Error::from);
        let key = key.and_then(|key| parts.artifacts.check_kept_here(&artifact).map(|()| key));
        let content = match key {
            Ok(key) => self.core.get(key).await,
            Err(e) => Err(e),
        };
        // An engine that was stopped says nothing of the artifact.
        parts.check_available()?;
        let written = parts.blocking.run_long(move || {
            writer.artifact(artifact, content)?;
            Ok(writer)
        });
        written.await?
    }

    async fn export_lines(
        &self,
        mut writer: ExportWriter,
        lines: Vec<ExportLine>,
    ) -> Result<ExportWriter, Error> {
        let written = self.core.parts.blocking.run(move || {
            for line in &lines {
                writer.line(line)?;
            }
            Ok(writer)
        });
        written.await?
    }
}
