//! What is being done in a run, and what it waits for, in this process.
//!
//! There are two views. A run rests once its *steps* only wait. Its clock stands still once *all
//! parts* of its work that are known only wait: steps, and in them or beside them calls of tools,
//! tasks, commits, commands and messages that come in pieces.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::id::{QuestionId, StepId};

/// Who waits for what, in this process.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting {
    /// The steps that somebody has asked for and that have not ended, each by a number of its own,
    /// with the step in which that was.
    pub(super) steps: HashMap<u64, Option<u64>>,
    /// The same steps, and whatever else is being done, each with the part in which it is.
    pub(super) parts: HashMap<u64, Option<u64>>,
    /// When the last piece of a message came while a question was open, by where the message is in
    /// memory.
    pub(super) streams: HashMap<usize, u64>,
    /// The questions that are waited for.
    pub(super) open: HashMap<QuestionId, Waiter>,
    /// The steps that are about to ask, by their numbers.
    pub(super) about_to_ask: HashMap<u64, AboutToAsk>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct AboutToAsk {
    /// How many questions.
    pub(super) questions: usize,
    /// Whether it has done something else since.
    pub(super) has_worked: bool,
}

/// Where a question is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asker {
    /// The step.
    pub(super) step: Option<u64>,
    /// The innermost part, which may be that step.
    pub(super) part: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Waiter {
    /// Where it waits.
    pub(super) asker: Asker,
    /// The step on record, if it is the one that asks.
    pub(super) step_id: Option<StepId>,
    /// Whether it has waited for long enough to be parked.
    pub(super) is_cold: bool,
    /// When it was asked, by the numbers of parts and pieces.
    pub(super) at: u64,
}

/// A number that nothing else has in this process, greater than all before it.
pub(super) fn next_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

impl Waiting {
    /// Whether nothing is done but to wait, and has been for long.
    pub(super) fn is_cold(&self) -> bool {
        self.steps_only_wait() && self.open.values().all(|waiter| waiter.is_cold)
    }

    fn steps_only_wait(&self) -> bool {
        only_wait(&self.steps, self.open.values().map(|w| w.asker.step))
    }

    /// Whether time counts as work.
    pub(super) fn clock_goes(&self) -> bool {
        // A piece that came before a question says nothing about what is done beside it.
        let asked = self.open.values().map(|waiter| waiter.at).max();
        let is_streamed = self.streams.values().any(|at| Some(*at) > asked);
        is_streamed || !only_wait(&self.parts, self.open.values().map(|w| w.asker.part))
    }
}

/// Whether nothing is done but to wait for answers. `parts`: what is being done, each with what it
/// is part of; `askers`: where the questions wait that are open.
fn only_wait(parts: &HashMap<u64, Option<u64>>, askers: impl Iterator<Item = Option<u64>>) -> bool {
    let askers: HashSet<Option<u64>> = askers.collect();
    // A part in which another is done waits with it.
    let outer: HashSet<u64> = parts.values().copied().flatten().collect();
    let mut inner = parts.keys().filter(|part| !outer.contains(part));
    !askers.is_empty() && inner.all(|part| askers.contains(&Some(*part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What only waits, of these parts with what each is part of, where these ask.
    fn waits(parts: &[(u64, Option<u64>)], askers: &[Option<u64>]) -> bool {
        only_wait(&parts.iter().copied().collect(), askers.iter().copied())
    }

    #[test]
    fn a_part_waits_if_a_question_is_asked_in_it_and_works_if_one_is_asked_beside_it() {
        let (outside, step, call, nested) = (None, Some(1), Some(2), Some(3));
        // What is done: nothing; a step; a call outside of steps; a call in a step; another call in
        // that; a call beside a step.
        let nothing: &[(u64, Option<u64>)] = &[];
        let a_step = &[(1, outside)][..];
        let a_call = &[(2, outside)][..];
        let in_step = &[(1, outside), (2, step)][..];
        let deep = &[(1, outside), (2, step), (3, call)][..];
        let beside = &[(1, outside), (2, outside)][..];
        for (parts, askers, only_waits) in [
            (nothing, &[][..], false),
            (nothing, &[outside][..], true),
            (a_step, &[], false),
            (a_step, &[step], true),
            (a_step, &[outside], false),
            (a_call, &[], false),
            (a_call, &[call], true),
            (a_call, &[outside], false),
            (a_call, &[outside, call], true),
            (in_step, &[], false),
            (in_step, &[call], true),
            (in_step, &[step], false),
            (in_step, &[step, call], true),
            (in_step, &[outside], false),
            (deep, &[step], false),
            (deep, &[call], false),
            (deep, &[nested], true),
            (deep, &[step, call], false),
            (beside, &[step], false),
            (beside, &[call], false),
            (beside, &[step, call], true),
            (beside, &[outside], false),
        ] {
            assert_eq!(waits(parts, askers), only_waits, "{parts:?} {askers:?}");
        }
    }

    #[test]
    fn the_clock_goes_by_all_parts_and_a_run_rests_by_its_steps() {
        let (step, call) = (Some(1), Some(2));
        let asked = |part| Waiter {
            asker: Asker { step, part },
            step_id: None,
            is_cold: true,
            at: 10,
        };
        let question: QuestionId = QuestionId::random();
        let waiting = |part| Waiting {
            steps: HashMap::from([(1, None)]),
            parts: HashMap::from([(1, None), (2, step)]),
            open: HashMap::from([(question.clone(), asked(part))]),
            ..Waiting::default()
        };
        let in_call = waiting(call);
        assert!(in_call.is_cold() && !in_call.clock_goes());
        let beside_call = waiting(step);
        assert!(beside_call.is_cold() && beside_call.clock_goes());
        let nobody_asks = Waiting {
            open: HashMap::new(),
            ..in_call
        };
        assert!(!nobody_asks.is_cold() && nobody_asks.clock_goes());
        let not_long = Waiting {
            open: HashMap::from([(
                question.clone(),
                Waiter {
                    is_cold: false,
                    ..asked(call)
                },
            )]),
            ..nobody_asks
        };
        assert!(!not_long.is_cold() && !not_long.clock_goes());
    }

    #[test]
    fn a_message_is_worked_on_if_a_piece_came_since_the_last_question() {
        for (pieces, asked, goes) in [
            (None, &[5][..], false),
            (Some(4), &[5], false),
            (Some(6), &[5], true),
            (Some(6), &[5, 7], false),
            (Some(8), &[5, 7], true),
        ] {
            let open = asked.iter().map(|at| {
                let waiter = Waiter {
                    asker: Asker::default(),
                    step_id: None,
                    is_cold: false,
                    at: *at,
                };
                (QuestionId::random(), waiter)
            });
            let waiting = Waiting {
                open: open.collect(),
                streams: pieces.map(|at| (1, at)).into_iter().collect(),
                ..Waiting::default()
            };
            assert_eq!(waiting.clock_goes(), goes, "{pieces:?} {asked:?}");
        }
    }
}
