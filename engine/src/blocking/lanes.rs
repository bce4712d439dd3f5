//! Which work gets a thread next: small before large, interactive before batch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

use crate::records::queue::Priority;

/// What work asks of the threads. Smaller values are served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Demand {
    pub(crate) priority: Priority,
    /// Whether it may take long, so that it must leave some threads to others.
    pub(crate) is_large: bool,
}

impl Demand {
    /// Of work of which nothing is known.
    pub(crate) const UNKNOWN: Self = Self {
        priority: Priority::Interactive,
        is_large: true,
    };
}

/// Each time so many have got a thread, the next is for the one that has waited longest: large work
/// goes on though small work never ceases.
const OLDEST_EVERY: u64 = 8;

/// A number of threads, and those who wait for one.
#[derive(Debug)]
pub(crate) struct Lanes {
    threads: usize,
    /// How many of the threads large work may take: all but a quarter, if there are several.
    for_large: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    taken_by_large: usize,
    given: u64,
    asked: u64,
    waiting: BTreeMap<(Demand, u64), oneshot::Sender<Slot>>,
}

/// A thread, until this is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    lanes: Arc<Lanes>,
    demand: Demand,
}

impl Lanes {
    pub(crate) fn new(threads: usize) -> Arc<Self> {
        let reserved = threads.div_ceil(4).min(threads - 1);
        Arc::new(Self {
            threads,
            for_large: threads - reserved,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // It is changed by single calls, so a panic elsewhere leaves it whole.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A thread, if one is free for this.
    pub(crate) fn try_take(self: &Arc<Self>, demand: Demand) -> Option<Slot> {
        let mut state = self.state();
        // Those who wait could not have it, or they would not wait.
        self.has_room(&state, demand)
            .then(|| self.give(&mut state, demand))
    }

    /// A thread, once it is the turn of this.
    pub(crate) async fn take(self: &Arc<Self>, demand: Demand) -> Slot {
        let given = {
            let mut state = self.state();
            if self.has_room(&state, demand) {
                return self.give(&mut state, demand);
            }
            let (give, given) = oneshot::channel();
            state.asked += 1;
            let asked = state.asked;
            state.waiting.insert((demand, asked), give);
            given
        };
        given.await.expect("whoever waits is served")
    }

    fn has_room(&self, state: &State, demand: Demand) -> bool {
        state.taken < self.threads && (!demand.is_large || state.taken_by_large < self.for_large)
    }

    fn give(self: &Arc<Self>, state: &mut State, demand: Demand) -> Slot {
        state.taken += 1;
        state.taken_by_large += usize::from(demand.is_large);
        state.given += 1;
        Slot {
            lanes: Arc::clone(self),
            demand,
        }
    }

    /// Who is next, if there is room for anybody who waits.
    fn next(&self, state: &State) -> Option<(Demand, u64)> {
        let mut can = state
            .waiting
            .keys()
            .filter(|(demand, _)| self.has_room(state, *demand));
        match state.given % OLDEST_EVERY == OLDEST_EVERY - 1 {
            true => can.min_by_key(|(_, asked)| *asked).copied(),
            false => can.next().copied(),
        }
    }

    fn give_back(self: &Arc<Self>, demand: Demand) {
        // What nobody takes any more is dropped after the state is let go of, and comes here again.
        let mut left = Vec::new();
        let mut state = self.state();
        state.taken -= 1;
        state.taken_by_large -= usize::from(demand.is_large);
        while let Some(next) = self.next(&state) {
            let waiting = state.waiting.remove(&next).expect("it was found there");
            let slot = self.give(&mut state, next.0);
            left.extend(waiting.send(slot).err());
        }
        drop(state);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.lanes.give_back(self.demand);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Demand = Demand {
        priority: Priority::Interactive,
        is_large: false,
    };

    fn of(priority: Priority, is_large: bool) -> Demand {
        Demand { priority, is_large }
    }

    #[test]
    fn large_work_leaves_threads_to_small_work() {
        let lanes = Lanes::new(8);
        let large: Vec<Slot> = std::iter::from_fn(|| lanes.try_take(Demand::UNKNOWN)).collect();
        assert_eq!(large.len(), 6);
        let small: Vec<Slot> = std::iter::from_fn(|| lanes.try_take(SMALL)).collect();
        assert_eq!(small.len(), 2);
        drop(small);
        assert!(lanes.try_take(Demand::UNKNOWN).is_none());
        drop(large);
        let all: Vec<Slot> = std::iter::from_fn(|| lanes.try_take(SMALL)).collect();
        assert_eq!(all.len(), 8);
        assert_eq!(
            Lanes::new(1).for_large,
            1,
            "of one thread nothing can be left"
        );
        assert_eq!(Lanes::new(2).for_large, 1);
    }

    #[tokio::test]
    async fn who_waits_is_served_by_demand_and_the_oldest_now_and_then() {
        let lanes = Lanes::new(1);
        let first = lanes.take(SMALL).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        let asked = [
            (Priority::Batch, true),
            (Priority::Batch, false),
            (Priority::Interactive, true),
            (Priority::Interactive, false),
        ];
        for (at, (priority, is_large)) in asked.into_iter().enumerate() {
            let (lanes, order) = (Arc::clone(&lanes), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let slot = lanes.take(of(priority, is_large)).await;
                order.lock().unwrap().push(at);
                drop(slot);
            }));
            tokio::task::yield_now().await;
        }
        // Nobody takes what this one would get.
        let gone = tokio::spawn({
            let lanes = Arc::clone(&lanes);
            async move { drop(lanes.take(SMALL).await) }
        });
        tokio::task::yield_now().await;
        gone.abort();
        let _ = gone.await;
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [3, 2, 1, 0]);
        assert!(lanes.try_take(Demand::UNKNOWN).is_some(), "nothing is lost");
    }

    #[tokio::test]
    async fn large_work_is_not_starved_by_small_work() {
        let lanes = Lanes::new(1);
        let first = lanes.take(SMALL).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for at in 0..20 {
            let demand = if at == 0 { Demand::UNKNOWN } else { SMALL };
            let (lanes, order) = (Arc::clone(&lanes), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let slot = lanes.take(demand).await;
                order.lock().unwrap().push(at);
                drop(slot);
            }));
            tokio::task::yield_now().await;
        }
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        let place = order
            .lock()
            .unwrap()
            .iter()
            .position(|at| *at == 0)
            .unwrap();
        assert!((1..8).contains(&place), "{place}");
    }
}
