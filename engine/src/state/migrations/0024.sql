-- What was decided about what runs hand in: what came of an approval, and what was to be changed. Sums as in 0003.

-- JSON; null: nothing was approved.
ALTER TABLE isolations ADD COLUMN merge TEXT;
DROP TRIGGER isolations_made;
DROP TRIGGER isolations_about_to_change;
DROP TRIGGER isolations_changed;
-- A row that does not match its sum is left as it is, so that it does not look whole.
UPDATE isolations SET row_sum = row_sum('isolations',
        position, run_id, repository_path, originating_branch, base, worktree_path, worktree_branch, made_at,
        intent, out_of_scope, unconverted, request_id, commit_id, tree, diff, review_ready_at, reviewed_by,
        let_go_at, merge)
 WHERE row_sum IS row_sum('isolations',
        position, run_id, repository_path, originating_branch, base, worktree_path, worktree_branch, made_at,
        intent, out_of_scope, unconverted, request_id, commit_id, tree, diff, review_ready_at, reviewed_by,
        let_go_at);
CREATE TRIGGER isolations_made AFTER INSERT ON isolations BEGIN
    UPDATE isolations SET row_sum = row_sum('isolations',
        NEW.position, NEW.run_id, NEW.repository_path, NEW.originating_branch, NEW.base, NEW.worktree_path,
        NEW.worktree_branch, NEW.made_at, NEW.intent, NEW.out_of_scope, NEW.unconverted, NEW.request_id,
        NEW.commit_id, NEW.tree, NEW.diff, NEW.review_ready_at, NEW.reviewed_by, NEW.let_go_at, NEW.merge)
     WHERE position = NEW.position;
END;
CREATE TRIGGER isolations_about_to_change BEFORE UPDATE OF
        position, run_id, repository_path, originating_branch, base, worktree_path, worktree_branch, made_at,
        intent, out_of_scope, unconverted, request_id, commit_id, tree, diff, review_ready_at, reviewed_by,
        let_go_at, merge
    ON isolations WHEN OLD.row_sum IS NOT row_sum('isolations',
        OLD.position, OLD.run_id, OLD.repository_path, OLD.originating_branch, OLD.base, OLD.worktree_path,
        OLD.worktree_branch, OLD.made_at, OLD.intent, OLD.out_of_scope, OLD.unconverted, OLD.request_id,
        OLD.commit_id, OLD.tree, OLD.diff, OLD.review_ready_at, OLD.reviewed_by, OLD.let_go_at, OLD.merge)
BEGIN
    SELECT RAISE(ABORT, 'a row of isolations does not match its sum');
END;
CREATE TRIGGER isolations_changed AFTER UPDATE OF
        position, run_id, repository_path, originating_branch, base, worktree_path, worktree_branch, made_at,
        intent, out_of_scope, unconverted, request_id, commit_id, tree, diff, review_ready_at, reviewed_by,
        let_go_at, merge
    ON isolations BEGIN
    UPDATE isolations SET row_sum = row_sum('isolations',
        NEW.position, NEW.run_id, NEW.repository_path, NEW.originating_branch, NEW.base, NEW.worktree_path,
        NEW.worktree_branch, NEW.made_at, NEW.intent, NEW.out_of_scope, NEW.unconverted, NEW.request_id,
        NEW.commit_id, NEW.tree, NEW.diff, NEW.review_ready_at, NEW.reviewed_by, NEW.let_go_at, NEW.merge)
     WHERE position = NEW.position;
END;

-- What was to be changed, never to be changed itself. Each row is written with its sum.
CREATE TABLE run_revisions (
    run_id            TEXT    NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    revision_number   INTEGER NOT NULL,
    reviewer          TEXT,
    created_at        INTEGER NOT NULL,
    raw_comment       TEXT    NOT NULL,
    sanitized_comment TEXT    NOT NULL,
    previous_tree     TEXT,
    row_sum           INTEGER,
    PRIMARY KEY (run_id, revision_number)
) STRICT;
CREATE TRIGGER run_revisions_stay BEFORE UPDATE ON run_revisions BEGIN
    SELECT RAISE(ABORT, 'a revision of a run is never changed');
END;
-- They go with their run.
CREATE TRIGGER run_revisions_are_kept BEFORE DELETE ON run_revisions
    WHEN EXISTS (SELECT 1 FROM runs WHERE id = OLD.run_id)
BEGIN
    SELECT RAISE(ABORT, 'a revision of a run is kept as long as that');
END;
