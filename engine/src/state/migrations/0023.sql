-- Runs with a worktree of their own: where they work, and what they hand in for review. Sums as in 0003.

-- Paths are bytes. `intent`: JSON, the commit that is about to be made. `out_of_scope`, `unconverted`: JSON, lists of
-- paths. The columns from `request_id` to `review_ready_at` are of what is handed in, and null together until then; `diff`: the key of an
-- artifact.
CREATE TABLE isolations (
    position           INTEGER PRIMARY KEY,
    run_id             TEXT    NOT NULL UNIQUE REFERENCES runs (id) ON DELETE CASCADE,
    repository_path    BLOB    NOT NULL,
    originating_branch TEXT    NOT NULL,
    base               TEXT    NOT NULL,
    worktree_path      BLOB    NOT NULL,
    worktree_branch    TEXT    NOT NULL,
    made_at            INTEGER,
    intent             TEXT,
    out_of_scope       TEXT    NOT NULL,
    unconverted        TEXT    NOT NULL,
    request_id         TEXT,
    commit_id          TEXT,
    tree               TEXT,
    diff               TEXT,
    review_ready_at    INTEGER,
    reviewed_by        TEXT,
    let_go_at          INTEGER,
    row_sum            INTEGER
) STRICT;
CREATE TRIGGER isolations_made AFTER INSERT ON isolations BEGIN
    UPDATE isolations SET row_sum = row_sum('isolations',
        NEW.position, NEW.run_id, NEW.repository_path, NEW.originating_branch, NEW.base, NEW.worktree_path,
        NEW.worktree_branch, NEW.made_at, NEW.intent, NEW.out_of_scope, NEW.unconverted, NEW.request_id, NEW.commit_id, NEW.tree,
        NEW.diff, NEW.review_ready_at, NEW.reviewed_by, NEW.let_go_at)
     WHERE position = NEW.position;
END;
CREATE TRIGGER isolations_about_to_change BEFORE UPDATE OF
        position, run_id, repository_path, originating_branch, base, worktree_path, worktree_branch, made_at, intent,
        out_of_scope, unconverted, request_id, commit_id, tree, diff, review_ready_at, reviewed_by, let_go_at
    ON isolations WHEN OLD.row_sum IS NOT row_sum('isolations',
        OLD.position, OLD.run_id, OLD.repository_path, OLD.originating_branch, OLD.base, OLD.worktree_path,
        OLD.worktree_branch, OLD.made_at, OLD.intent, OLD.out_of_scope, OLD.unconverted, OLD.request_id, OLD.commit_id, OLD.tree,
        OLD.diff, OLD.review_ready_at, OLD.reviewed_by, OLD.let_go_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of isolations does not match its sum');
END;
CREATE TRIGGER isolations_changed AFTER UPDATE OF
        position, run_id, repository_path, originating_branch, base, worktree_path, worktree_branch, made_at, intent,
        out_of_scope, unconverted, request_id, commit_id, tree, diff, review_ready_at, reviewed_by, let_go_at
    ON isolations BEGIN
    UPDATE isolations SET row_sum = row_sum('isolations',
        NEW.position, NEW.run_id, NEW.repository_path, NEW.originating_branch, NEW.base, NEW.worktree_path,
        NEW.worktree_branch, NEW.made_at, NEW.intent, NEW.out_of_scope, NEW.unconverted, NEW.request_id, NEW.commit_id, NEW.tree,
        NEW.diff, NEW.review_ready_at, NEW.reviewed_by, NEW.let_go_at)
     WHERE position = NEW.position;
END;
-- Those whose worktrees are kept are listed, and looked at when an engine starts.
CREATE INDEX isolations_kept ON isolations (position) WHERE let_go_at IS NULL;

DROP INDEX runs_that_have_not_ended;
CREATE INDEX runs_that_have_not_ended ON runs (status)
    WHERE status IN ('pending', 'running', 'asking', 'waiting_for_input', 'interrupted',
                     'persisting', 'blocked', 'checkpointing', 'awaiting_followup',
                     'candidate', 'awaiting_review', 'merging');
