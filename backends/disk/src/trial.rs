//! For tests: operations whose calls a test observes or makes fail.

use std::collections::BTreeMap;

use crate::faults::{Calls, Done, Fault, Witness};
use crate::operation::Operation;

/// Does `work` in an operation with a fault, and returns how many calls it tried to make as well.
pub fn with<T>(fault: Fault, work: impl FnOnce(&Operation) -> T) -> (T, u64) {
    let (answer, witness) = seen_by(Witness::of(fault), work);
    (answer, witness.count())
}

/// Does `work`, and answers with its calls as well, for a test to choose from.
pub fn calls_of<T>(work: impl FnOnce(&Operation) -> T) -> (T, Calls) {
    let (answer, witness) = seen_by(Witness::of(Fault::None), work);
    (answer, witness.calls())
}

/// The same, with what the calls do, by their numbers.
pub fn calls_and_done<T>(work: impl FnOnce(&Operation) -> T) -> (T, Calls, BTreeMap<u64, Done>) {
    let (answer, witness) = seen_by(Witness::of(Fault::None), work);
    (answer, witness.calls(), witness.done_by_number())
}

/// Does `work`, and calls `look` before each of its calls.
pub fn looked_at<T>(look: impl FnMut() + Send + 'static, work: impl FnOnce(&Operation) -> T) -> T {
    seen_by(Witness::looking(look), work).0
}

/// Does `work`, and answers with the calls that it made, in their order, as well.
pub fn seen<T>(work: impl FnOnce(&Operation) -> T) -> (T, Vec<Done>) {
    let (answer, witness) = seen_by(Witness::of(Fault::None), work);
    (answer, witness.done())
}

fn seen_by<T>(witness: Witness, work: impl FnOnce(&Operation) -> T) -> (T, Witness) {
    (
        work(&Operation::unbounded().seen_by(witness.clone())),
        witness,
    )
}
