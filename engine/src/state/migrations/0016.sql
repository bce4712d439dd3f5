-- The reviews that adapters and hosts have recorded. They go with their run, or their session. Sums as in 0003.

-- `target_type`: 'commit', 'diff', 'pr' or 'files'. `issues`: a JSON list.
CREATE TABLE reviews (
    position    INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id          TEXT    NOT NULL UNIQUE,
    session_id  TEXT    NOT NULL REFERENCES sessions (id),
    run_id      TEXT    REFERENCES runs (id) ON DELETE CASCADE,
    step_id     TEXT,
    target_type TEXT    NOT NULL,
    target_ref  TEXT    NOT NULL,
    approved    INTEGER NOT NULL,
    blocking    INTEGER NOT NULL,
    summary     TEXT    NOT NULL,
    issues      TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    row_sum     INTEGER
) STRICT;
CREATE INDEX reviews_of_session ON reviews (session_id);
CREATE INDEX reviews_of_run ON reviews (run_id) WHERE run_id IS NOT NULL;
CREATE TRIGGER reviews_made AFTER INSERT ON reviews BEGIN
    UPDATE reviews SET row_sum = row_sum('reviews',
        NEW.position, NEW.id, NEW.session_id, NEW.run_id, NEW.step_id, NEW.target_type, NEW.target_ref,
        NEW.approved, NEW.blocking, NEW.summary, NEW.issues, NEW.created_at)
     WHERE position = NEW.position;
END;
CREATE TRIGGER reviews_about_to_change BEFORE UPDATE OF
        position, id, session_id, run_id, step_id, target_type, target_ref, approved, blocking, summary,
        issues, created_at
    ON reviews WHEN OLD.row_sum IS NOT row_sum('reviews',
        OLD.position, OLD.id, OLD.session_id, OLD.run_id, OLD.step_id, OLD.target_type, OLD.target_ref,
        OLD.approved, OLD.blocking, OLD.summary, OLD.issues, OLD.created_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of reviews does not match its sum');
END;
CREATE TRIGGER reviews_changed AFTER UPDATE OF
        position, id, session_id, run_id, step_id, target_type, target_ref, approved, blocking, summary,
        issues, created_at
    ON reviews BEGIN
    UPDATE reviews SET row_sum = row_sum('reviews',
        NEW.position, NEW.id, NEW.session_id, NEW.run_id, NEW.step_id, NEW.target_type, NEW.target_ref,
        NEW.approved, NEW.blocking, NEW.summary, NEW.issues, NEW.created_at)
     WHERE position = NEW.position;
END;
