//! What every backend promises, over both, and over the example of one of a host's own.

use std::sync::Arc;

use stillframe_backends::testing::TestBackend;
use stillframe_backends::{BackendKind, backend_contract, backend_of};

#[path = "../../engine/examples/custom_backend/copying.rs"]
mod copying;

backend_contract!(
    git,
    TestBackend::in_repository(|| backend_of(BackendKind::Git))
);
backend_contract!(
    hash,
    TestBackend::in_directory(|| backend_of(BackendKind::Hash))
);
// It copies regular files, and leaves out links, permission bits and limits.
backend_contract! {
    example,
    TestBackend::in_directory(|| Arc::new(copying::CopyingBackend));
    restore_of_a_path_leaves_the_others
    restore_of_a_path_that_nobody_knows_touches_nothing
    restore_can_be_undone_by_its_guard
    a_second_restore_writes_nothing
    undo_keeps_what_was_edited_since
    what_was_ignored_since_is_put_back_with_its_present_bytes_in_the_guard
    a_snapshot_is_invisible
    a_snapshot_is_listed_as_it_was_returned
    an_unchanged_tree_costs_nothing
    an_edit_of_the_same_size_is_seen
    diff_goes_in_both_directions
    diff_of_a_snapshot_with_itself_is_empty
    a_capture_that_is_stopped_publishes_nothing
    a_forgotten_snapshot_is_gone_and_the_others_are_whole
    collecting_frees_what_nobody_needs
    a_snapshot_taken_by_one_instance_is_read_by_another
    recovery_with_nothing_to_do_does_nothing
    two_workspaces_know_nothing_of_each_other
    a_snapshot_of_another_workspace_cannot_be_opened
    of_two_who_want_the_lock_one_is_told_who_has_it
}
