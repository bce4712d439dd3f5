//! Saving the progress of a run that is of a task.

use std::sync::{Arc, Mutex as BlockingMutex, PoisonError};
use std::time::Instant;

use stillframe_backends::{ErrorKind, Interrupt, SnapshotId};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::StepLog;
use crate::branches::interval::Periodic;
use crate::error::Error;
use crate::events::data::ErrorOccurred;
use crate::events::event::EventType;
use crate::failure::Failure;
use crate::records::allowed_finding::AllowedFinding;
use crate::records::saved_work::{SavedState, SavedWork};
use crate::saving::repository::Repository;
use crate::saving::save::Prepared;
use crate::saving::work::{Content, Wanted};
use crate::step::checkpointed::Checkpointed;
use crate::workspace::cancellation::Cancellation;

/// When the progress of a run is saved, and what of it is.
#[derive(Clone)]
pub(super) struct Progress(Arc<Inner>);

struct Inner {
    began: Instant,
    periodic: BlockingMutex<Periodic>,
    /// In each repository, the run's own first.
    each: Vec<OfOne>,
}

/// The progress in one repository.
struct OfOne {
    repository: Repository,
    last: Mutex<Last>,
}

/// What became of the last one. Whoever has it makes the next.
#[derive(Default)]
struct Last {
    /// What it was made of, if that is where it can be.
    settled: Option<SnapshotId>,
    /// It, if it has a secret value, and the findings that the user had allowed by then.
    refused: Option<(SavedWork, Vec<AllowedFinding>)>,
    /// Why there was none, as the log has it.
    told: Option<Failure>,
}

impl Progress {
    /// That of a run which begins its work in these repositories, of which the first says how
    /// often; `None`: the run is of no task.
    pub(super) fn of(repositories: Vec<Repository>) -> Option<Self> {
        let interval = repositories.first()?.branch.checkpoint_interval;
        let each = repositories.into_iter().map(|repository| OfOne {
            repository,
            last: Mutex::default(),
        });
        Some(Self(Arc::new(Inner {
            began: Instant::now(),
            periodic: BlockingMutex::new(Periodic::new(interval)),
            each: each.collect(),
        })))
    }

    /// Whether one is to be made; if so, it is about to be.
    fn take(&self, push_now: bool) -> bool {
        let periodic = self.0.periodic.lock();
        let mut periodic = periodic.unwrap_or_else(PoisonError::into_inner);
        periodic.take(self.0.began.elapsed(), push_now)
    }
}

impl StepLog {
    /// Saves the progress of the run, if that is due or somebody asks for it. It goes on though the
    /// adapter does not wait for it, and ends when the work of the run should stop.
    pub(crate) async fn checkpoint(
        &self,
        push_now: bool,
        cancellation: &CancellationToken,
    ) -> Result<Checkpointed, Error> {
        let Some(progress) = self.inner.progress.clone() else {
            return Err(Error::invalid_options(format!(
                "run {} is of no task, so that its work has no branch; nothing was done",
                self.run_id()
            )));
        };
        self.check_open()?;
        if !progress.take(push_now) {
            return Ok(Checkpointed::NotDue);
        }
        let core = &self.inner.core;
        let (log, cancel) = (
            self.clone(),
            Cancellation::by(core, cancellation, Interrupt::never()),
        );
        self.to_the_end(async move {
            let mut each = Vec::new();
            for one in &progress.0.each {
                let saved = Box::pin(log.save_progress(one, push_now, &cancel));
                each.push((one.repository.name(), saved.await));
            }
            Ok(match each.len() {
                1 => each.swap_remove(0).1,
                _ => Checkpointed::Each(each),
            })
        })
        .await
    }

    async fn save_progress(
        &self,
        of: &OfOne,
        push_now: bool,
        cancel: &Cancellation,
    ) -> Checkpointed {
        let turn = async { Ok(of.last.lock().await) };
        let mut last = match cancel
            .wait_for(turn, "waiting for another checkpoint")
            .await
        {
            Ok(last) => last,
            Err(e) => return Checkpointed::NotMade(Failure::from(&e)),
        };
        let allowed = self.allowed_findings(&of.repository).await;
        let refused = last.refused.take().filter(|(_, then)| *then == allowed);
        let settled = last.settled.take();
        // Who asks for one wants to know where it is at this moment.
        let unless = match (push_now, &settled, &refused) {
            (true, ..) => None,
            (_, None, Some((refused, _))) => Some(refused.snapshot.clone()),
            (_, settled, _) => settled.clone(),
        };
        let content = Content::Now { unless };
        match self.saved(&of.repository, content, cancel).await {
            Ok(None) => {
                (last.settled, last.refused) = (settled, refused);
                match &last.refused {
                    // The same value is in the same place.
                    Some((refused, _)) => Checkpointed::Made(Box::new(refused.clone())),
                    None => Checkpointed::Unchanged,
                }
            }
            Ok(Some(saved)) => {
                last.told = None;
                if saved.state != SavedState::NotSaved {
                    last.settled = Some(saved.snapshot.clone());
                } else if !saved.secrets.is_empty() {
                    last.refused = Some((saved.clone(), allowed));
                }
                Checkpointed::Made(Box::new(saved))
            }
            Err(e) => {
                let why = Failure::from(&e);
                if e.kind() != ErrorKind::Cancelled && last.told.as_ref() != Some(&why) {
                    self.tell(&why).await;
                    last.told = Some(why.clone());
                }
                Checkpointed::NotMade(why)
            }
        }
    }

    async fn saved(
        &self,
        repository: &Repository,
        content: Content,
        cancel: &Cancellation,
    ) -> Result<Option<SavedWork>, Error> {
        let (core, hold) = (&self.inner.core, &self.inner.hold);
        let Repository {
            opened,
            branch,
            began_at,
        } = repository.clone();
        let ids = (&self.inner.session_id, &hold.run_id);
        let wanted = Wanted {
            fence: Some(Box::new(hold.fence())),
            ..Wanted::of_progress(ids, &branch, began_at)
        };
        let prepared = Prepared::of(core, opened, &branch).await?;
        prepared.save(core, wanted, content, cancel).await
    }

    /// The findings that the user has allowed in a repository.
    async fn allowed_findings(&self, repository: &Repository) -> Vec<AllowedFinding> {
        let repository = repository.opened.workspace.id().to_owned();
        let reader = &self.inner.core.parts.reader;
        let found = reader.read(move |store| store.allowed_findings(&repository));
        found.await.unwrap_or_default()
    }

    /// Puts on record why nothing was made.
    async fn tell(&self, why: &Failure) {
        let told = self.event(EventType::ERROR_OCCURRED, ErrorOccurred::from(why));
        if let Err(e) = self.commit(vec![told]).await {
            let error = e.chain();
            tracing::warn!(run = %self.run_id(), error, "that progress is not saved is not on record");
        }
    }
}
