//! Work that is shared among the processors.

use std::panic::resume_unwind;
use std::thread::{Builder, available_parallelism};

/// Does `work` on as many parts of `items` as there are processors, side by side; answers in the order of
/// the parts. No part but the last is smaller than `at_least`: for few items no thread is started.
pub(crate) fn in_parts<T: Sync, R: Send>(
    items: &[T],
    at_least: usize,
    work: impl Fn(&[T]) -> R + Sync,
) -> Vec<R> {
    let cores = available_parallelism().map_or(1, usize::from);
    let length = items.len().div_ceil(cores).max(at_least).max(1);
    let (first, rest) = items.split_at(length.min(items.len()));
    let work = &work;
    std::thread::scope(|scope| {
        let helpers: Vec<_> = rest
            .chunks(length)
            .map(|part| (part, Builder::new().spawn_scoped(scope, || work(part))))
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

#[cfg(test)]
mod tests {
    use super::*;

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
