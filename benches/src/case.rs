//! The names of cases and subjects that more than one place goes by.

/// The subject that the others are compared with.
pub const OURS: &str = "stillframe";

/// What the names of all floors begin with.
pub const FLOOR: &str = "floor";
/// A temporary index, `read-tree HEAD`, `add -A`, `write-tree`.
pub const COMMON_WAY: &str = "git, common way";
/// A copy of the user's index, `add -A`, `write-tree`.
pub const COPIED_INDEX: &str = "git, copied index";
/// The index of the last time, `add -A`, `write-tree`.
pub const PERSISTENT_INDEX: &str = "git, persistent index";
/// A patch between two trees.
pub const DIFF_TREE: &str = "git diff-tree -p";
/// A tree put into the work tree.
pub const READ_TREE: &str = "git read-tree --reset -u";
/// A branch that goes forward, with index and files.
pub const FAST_FORWARD: &str = "git merge --ff-only";
/// A linked work tree with a branch of its own.
pub const WORKTREE_ADD: &str = "git worktree add";
/// Where the index has seen each file.
pub const STATUS_AGAIN: &str = "git status once more";
/// A capture of ours, and a push of the commit that the checkpoint made.
pub const CAPTURE_AND_PUSH: &str = "our capture and git push";
/// Reading all content, as many threads as cores, and not hashing it.
pub const READING: &str = "reading every byte";
/// The program.
pub const B3SUM: &str = "b3sum --no-mmap";
/// What that program does, here: so that there is a figure where it is not installed.
pub const BLAKE3: &str = "blake3, one file after another";
/// A backup with the repository of the last time.
pub const RESTIC: &str = "restic backup";

/// The first capture of a clean repository, state directory and handle being new.
pub const FIRST: &str = "first capture";
/// Walking, with the handle of the last time, which remembers.
pub const UNCHANGED: &str = "unchanged, walking, living process";
/// Walking, with a new handle, which reads the cache from the disk.
pub const UNCHANGED_FRESH: &str = "unchanged, walking, fresh handle";
/// With the watch that the last capture left.
pub const UNCHANGED_WATCHED: &str = "unchanged, watched";
/// After 100 modified, 50 new and 20 deleted files.
pub const AFTER: &str = "170 changes, walking, living process";
/// The same with a new handle.
pub const AFTER_FRESH: &str = "170 changes, walking, fresh handle";
/// The same with a watch.
pub const AFTER_WATCHED: &str = "170 changes, watched";
/// A fifth more files, untracked.
pub const NEW_FILES: &str = "20 % new untracked files";
/// A diff with its patch.
pub const DIFF_1700: &str = "diff with patch, 1700 files";
/// Of a restore, what writes to the work tree.
pub const APPLY_1700: &str = "restore of 1700 files, apply alone";
/// The hash backend with a new state directory.
pub const HASH_FIRST: &str = "hash backend, first scan";
/// The hash backend with the handle of the last time.
pub const HASH_UNCHANGED: &str = "hash backend, unchanged";
/// The work of a task, with 170 changed files, sent to a bare repository by its path.
pub const CHECKPOINT: &str = "checkpoint of 170 changed files";
/// A task's branch that is 170 files ahead comes to the work tree, whose repository has its
/// objects.
pub const RESUME: &str = "resume of 170 files by fast-forward";
/// A branch and a linked work tree for a run.
pub const WORKTREE: &str = "a work tree for a run";
/// What git says of that when it is asked first.
pub const FIRST_STATUS: &str = "first git status in a run's work tree";
