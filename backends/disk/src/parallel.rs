//! Running work on every core.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::thread;

use crate::operation::Operation;
use stillframe_model::interrupted::Interrupted;

/// How many threads can run at once, as it was when this was first asked. The answer may take
/// several files to be read, which is more than the work that it is for.
///
/// In tests of these crates there are five at least, so that what is shared out has a middle, on
/// any machine.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    let at_least = if cfg!(any(test, feature = "testing")) {
        5
    } else {
        1
    };
    *CORES.get_or_init(|| {
        let found = thread::available_parallelism().map_or(1, NonZero::get);
        found.max(at_least)
    })
}

/// How many results may wait for their turn, and what they may hold in all.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// The sum of the sizes, in bytes. A result of any size is taken when it is its turn.
    pub max_bytes: usize,
    /// Fewer jobs than twice this are done by the caller alone: a thread costs more.
    pub jobs_per_thread: usize,
}

/// A result that takes memory until it is its turn.
pub trait Held {
    /// What it holds, in bytes.
    fn held_bytes(&self) -> usize;
}

/// An error holds nothing worth a count.
impl<R: Held, E> Held for Result<R, E> {
    fn held_bytes(&self) -> usize {
        self.as_ref().map_or(0, R::held_bytes)
    }
}

/// Does `count` jobs on every core, and hands their results to `take` in order, on the caller's
/// thread, which works too while no result is ready.
///
/// Results that wait for an earlier one hold at most [`Waiting::max_bytes`], and one more result
/// for each thread. The first error of `take` ends it: no further job is begun. A panic of a job is
/// passed on when it is its turn.
pub fn in_order<R: Held + Send, E>(
    count: usize,
    waiting: Waiting,
    work: impl Fn(usize) -> R + Sync,
    mut take: impl FnMut(usize, R) -> Result<(), E>,
) -> Result<(), E> {
    let cores = cores();
    let threads = cores.min(count / waiting.jobs_per_thread.max(1));
    if threads < 2 {
        return (0..count).try_for_each(|at| take(at, work(at)));
    }
    let line = Line {
        count,
        max_bytes: waiting.max_bytes,
        state: Mutex::default(),
        moved: Condvar::new(),
    };
    let done = |at| catch_unwind(AssertUnwindSafe(|| work(at)));
    thread::scope(|scope| {
        // However this ends, no thread keeps waiting for it.
        let _ending = Ending(&line);
        for _ in 1..threads {
            // A machine that gives no thread gets its answer all the same.
            let _ = thread::Builder::new().spawn_scoped(scope, || {
                while let Some(at) = line.next_job() {
                    line.put(at, done(at));
                }
            });
        }
        for at in 0..count {
            let result = loop {
                match line.result_or_job(at) {
                    Turn::Result(result) => break result,
                    Turn::Job(job) => line.put(job, done(job)),
                }
            };
            match result {
                Ok(result) => take(at, result)?,
                Err(panic) => resume_unwind(panic),
            }
        }
        Ok(())
    })
}

/// Jobs that are not begun, and results that wait for their turn.
struct Line<R> {
    count: usize,
    max_bytes: usize,
    state: Mutex<State<R>>,
    /// A result came, or there is room for more, or it is over.
    moved: Condvar,
}

struct State<R> {
    next_job: usize,
    ready: BTreeMap<usize, thread::Result<R>>,
    ready_bytes: usize,
    is_over: bool,
}

impl<R> Default for State<R> {
    fn default() -> Self {
        Self {
            next_job: 0,
            ready: BTreeMap::new(),
            ready_bytes: 0,
            is_over: false,
        }
    }
}

enum Turn<R> {
    Result(thread::Result<R>),
    Job(usize),
}

impl<R: Held> Line<R> {
    fn state(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().expect("no panic while it is held")
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State<R>>) -> MutexGuard<'s, State<R>> {
        self.moved.wait(state).expect("no panic while it is held")
    }

    /// The next job of a helper, once there is room for its result; `None` if there is none left.
    fn next_job(&self) -> Option<usize> {
        let mut state = self.state();
        loop {
            if state.is_over || state.next_job == self.count {
                return None;
            }
            if state.ready_bytes <= self.max_bytes {
                state.next_job += 1;
                return Some(state.next_job - 1);
            }
            state = self.wait(state);
        }
    }

    /// The result whose turn it is, or something to do until it comes.
    fn result_or_job(&self, turn: usize) -> Turn<R> {
        let mut state = self.state();
        loop {
            if let Some(result) = state.ready.remove(&turn) {
                state.ready_bytes -= held(&result);
                drop(state);
                self.moved.notify_all();
                return Turn::Result(result);
            }
            // Work that no thread has begun must be begun here, even if the queue is full: all
            // other threads may be waiting.
            let is_mine = state.next_job == turn;
            if is_mine || (state.next_job < self.count && state.ready_bytes <= self.max_bytes) {
                state.next_job += 1;
                return Turn::Job(state.next_job - 1);
            }
            state = self.wait(state);
        }
    }

    fn put(&self, at: usize, result: thread::Result<R>) {
        let mut state = self.state();
        state.ready_bytes += held(&result);
        state.ready.insert(at, result);
        drop(state);
        self.moved.notify_all();
    }
}

fn held<R: Held>(result: &thread::Result<R>) -> usize {
    result.as_ref().map_or(0, Held::held_bytes)
}

/// Ends the work when it is dropped.
struct Ending<'a, R: Held>(&'a Line<R>);

impl<R: Held> Drop for Ending<'_, R> {
    fn drop(&mut self) {
        // A lock that a panic poisoned is still one to say this under.
        let mut state = match self.0.state.lock() {
            Ok(state) => state,
            Err(poisoned) => poisoned.into_inner(),
        };
        state.is_over = true;
        drop(state);
        self.0.moved.notify_all();
    }
}

/// Does `work` for every one of `items` on every core; the results are in the order of the items.
///
/// Fewer items than twice `items_per_thread` are done by the caller alone.
pub fn map<T: Sync, R: Send>(
    items: &[T],
    items_per_thread: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let waiting = Waiting {
        max_bytes: usize::MAX,
        jobs_per_thread: items_per_thread.div_ceil(MAP_PART),
    };
    let parts: Vec<&[T]> = items.chunks(MAP_PART).collect();
    let mut results = Vec::with_capacity(items.len());
    let done = in_order(
        parts.len(),
        waiting,
        |at| Part(parts[at].iter().map(&work).collect()),
        |_, Part(part)| {
            results.extend(part);
            Ok::<_, std::convert::Infallible>(())
        },
    );
    let Ok(()) = done;
    results
}

/// How many items [`map`] hands out at a time: few enough for an even end, and enough that handing
/// them out costs nothing.
const MAP_PART: usize = 8;

struct Part<R>(Vec<R>);

impl<R> Held for Part<R> {
    fn held_bytes(&self) -> usize {
        0
    }
}

/// Does `aside` on a thread of its own while `own` is done on this one, or after it where there is
/// no such thread.
pub fn both<A: Send, B>(aside: impl FnOnce() -> A + Send, own: impl FnOnce() -> B) -> (A, B) {
    let waiting = Mutex::new(Some(aside));
    let take = || {
        let aside = waiting.lock().expect("no panic while it is held").take();
        aside.expect("it is taken once")
    };
    thread::scope(|scope| {
        let helper = match cores() {
            1 => None,
            _ => {
                let builder = thread::Builder::new();
                builder.spawn_scoped(scope, || take()()).ok()
            }
        };
        let own = own();
        let aside = match helper {
            Some(helper) => helper.join().unwrap_or_else(|panic| resume_unwind(panic)),
            None => take()(),
        };
        (aside, own)
    })
}

/// Does `work` on as many parts of `items` as there are processors, side by side; answers in the
/// order of the parts. No part but the last is smaller than `at_least`: for few items no thread is
/// started.
pub fn in_parts<T: Sync, R: Send>(
    items: &[T],
    at_least: usize,
    work: impl Fn(&[T]) -> R + Sync,
) -> Vec<R> {
    let cores = cores();
    let length = items.len().div_ceil(cores).max(at_least).max(1);
    let (first, rest) = items.split_at(length.min(items.len()));
    let work = &work;
    thread::scope(|scope| {
        let helpers: Vec<_> = rest
            .chunks(length)
            .map(|part| {
                (
                    part,
                    thread::Builder::new().spawn_scoped(scope, || work(part)),
                )
            })
            .collect();
        let mut answers = vec![work(first)];
        answers.extend(helpers.into_iter().map(|(part, helper)| match helper {
            Ok(helper) => helper.join().unwrap_or_else(|panic| resume_unwind(panic)),
            // A machine that gives no thread gets its answer all the same.
            Err(_) => work(part),
        }));
        answers
    })
}

/// Sorts `items` on every core; the order of equal ones is any. On `Err` they are in any order.
///
/// Fewer items than twice `at_least` are sorted by the caller alone.
pub fn sort<T: Ord + Send>(
    op: &Operation,
    items: &mut [T],
    at_least: usize,
) -> Result<(), Interrupted> {
    sort_by(op, cores(), items, at_least)
}

/// This many items are sorted between two checks for a cancellation.
const SORTED_AT_ONCE: usize = 100_000;

fn sort_by<T: Ord + Send>(
    op: &Operation,
    threads: usize,
    items: &mut [T],
    at_least: usize,
) -> Result<(), Interrupted> {
    op.check()?;
    let is_alone = threads < 2 || items.len() < 2 * at_least.max(1);
    if is_alone && items.len() <= SORTED_AT_ONCE {
        items.sort_unstable();
        return Ok(());
    }
    // What is less than the middle one comes to stand before it, and what is not behind it.
    let (less, _, others) = items.select_nth_unstable(items.len() / 2);
    if is_alone {
        sort_by(op, threads, less, at_least)?;
        return sort_by(op, threads, others, at_least);
    }
    let (aside, own) = both(
        || sort_by(op, threads / 2, less, at_least),
        || sort_by(op, threads - threads / 2, others, at_least),
    );
    aside.and(own)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    impl Held for Vec<u8> {
        fn held_bytes(&self) -> usize {
            self.len()
        }
    }

    const SMALL: Waiting = Waiting {
        max_bytes: 100,
        jobs_per_thread: 1,
    };

    #[test]
    fn results_come_in_order_whatever_is_ready_first() {
        let mut seen = Vec::new();
        let work = |at: usize| vec![0; at * 7 % 50];
        in_order(1000, SMALL, work, |at, result: Vec<u8>| {
            assert_eq!(result.len(), at * 7 % 50);
            seen.push(at);
            Ok::<_, ()>(())
        })
        .unwrap();
        assert!(seen.into_iter().eq(0..1000));
        assert_eq!(
            map(&(0..1000).collect::<Vec<_>>(), 8, |n| n * 2).len(),
            1000
        );
        assert!(map(&[0_u8; 0], 8, |n| *n).is_empty());
    }

    #[test]
    fn what_waits_is_bounded_by_its_bytes() {
        let (held, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = |_| {
            let now = held.fetch_add(40, Ordering::SeqCst) + 40;
            most.fetch_max(now, Ordering::SeqCst);
            vec![0; 40]
        };
        in_order(2000, SMALL, work, |at, _: Vec<u8>| {
            // One that is slow to be taken lets the others run ahead, as far as they may.
            if at % 500 == 0 {
                (0..1000).for_each(|_| thread::yield_now());
            }
            held.fetch_sub(40, Ordering::SeqCst);
            Ok::<_, ()>(())
        })
        .unwrap();
        let cores = cores();
        let bound = SMALL.max_bytes + 40 * (cores + 2);
        assert!(most.load(Ordering::SeqCst) <= bound);
    }

    #[test]
    fn an_error_ends_it_and_nobody_waits_for_ever() {
        let begun = AtomicUsize::new(0);
        let work = |_| {
            begun.fetch_add(1, Ordering::SeqCst);
            vec![0; 60]
        };
        let result = in_order(100_000, SMALL, work, |at, _: Vec<u8>| match at {
            10 => Err("full"),
            _ => Ok(()),
        });
        assert_eq!(result, Err("full"));
        assert!(
            begun.load(Ordering::SeqCst) < 1000,
            "no job was begun for nothing"
        );
    }

    #[test]
    fn a_panic_of_a_job_is_passed_on() {
        let work = |at: usize| {
            assert!(at != 50, "fifty");
            Vec::new()
        };
        let all = || in_order(1000, SMALL, work, |_, _: Vec<u8>| Ok::<_, ()>(()));
        let panic = catch_unwind(all).unwrap_err();
        assert!(
            panic
                .downcast_ref::<&str>()
                .is_some_and(|text| text.contains("fifty"))
        );
    }

    #[test]
    fn items_are_sorted_as_the_standard_library_sorts_them() {
        for count in [0, 1, 2, 3, 19, 20, 1000, 5000] {
            for modulus in [1, 2, 97, 10_007] {
                let items: Vec<usize> = (0..count).map(|n| n * 7919 % modulus).collect();
                let mut expected = items.clone();
                expected.sort_unstable();
                for threads in [1, 2, 3, 8] {
                    let mut sorted = items.clone();
                    sort_by(&Operation::unbounded(), threads, &mut sorted, 10).unwrap();
                    assert_eq!(sorted, expected, "{count} items, {threads} threads");
                }
            }
        }
    }

    #[test]
    fn both_are_done_and_a_panic_of_either_is_passed_on() {
        let mut done = 0;
        let answers = both(|| done += 1, || "own");
        assert_eq!((done, answers), (1, ((), "own")));
        let panics = || both(|| panic!("aside"), || ());
        let panic = catch_unwind(panics).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"aside"));
        let panics = || both(|| (), || panic!("own"));
        let panic = catch_unwind(panics).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"own"));
    }

    #[test]
    fn every_item_is_in_one_part_and_parts_keep_their_order() {
        for count in [0, 1, 9, 10, 11, 1000] {
            let items: Vec<usize> = (0..count).collect();
            let parts = in_parts(&items, 10, <[usize]>::to_vec);
            assert_eq!(parts.concat(), items);
            let (_, others) = parts.split_last().unwrap();
            assert!(others.iter().all(|part| part.len() >= 10), "{parts:?}");
        }
    }
}
