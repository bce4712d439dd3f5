//! Several that do the same, each in directories of its own.

use std::thread;
use std::time::Instant;

use crate::torture::{Options, Refusal, Report};

/// Lets as many as are wanted work at the same time; answers with what all of them did.
///
/// # Panics
///
/// If one of them does: a harness that cannot go on has found something.
pub(crate) fn all(
    harness: &'static str,
    options: &Options,
    work: impl Fn(u64) -> Result<Report, Refusal> + Sync,
) -> Result<Report, Refusal> {
    let begin = Instant::now();
    let mut all = Report::new(harness);
    let reports: Vec<Result<Report, Refusal>> = thread::scope(|scope| {
        let start = |worker| {
            let work = &work;
            scope.spawn(move || work(worker))
        };
        let workers: Vec<_> = (0..options.workers as u64).map(start).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| match worker.join() {
            Ok(report) => report,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        workers.into_iter().map(join).collect()
    });
    for report in reports {
        all.merge(report?);
    }
    all.took = begin.elapsed();
    Ok(all)
}
