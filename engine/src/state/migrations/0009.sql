-- The runs that were submitted, which are begun when there is room for them. Sums as in 0003.

-- `state`: 'waiting', 'claimed' by an engine that is about to begin it, 'under_way', or 'over'. The lease says which
-- engine has claimed it, and moving the run moves this. A row stays for as long as its run.
CREATE TABLE queue (
    position     INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    run_id       TEXT    NOT NULL UNIQUE REFERENCES runs (id),
    session_id   TEXT    NOT NULL REFERENCES sessions (id),
    adapter      TEXT    NOT NULL,
    input        TEXT    NOT NULL,
    priority     TEXT    NOT NULL,
    workspace_id TEXT,
    state        TEXT    NOT NULL,
    row_sum      INTEGER
) STRICT;
CREATE INDEX queue_waiting ON queue (session_id, priority, position) WHERE state = 'waiting';
CREATE INDEX queue_taken ON queue (session_id) WHERE state IN ('claimed', 'under_way');
CREATE TRIGGER queue_made AFTER INSERT ON queue BEGIN
    UPDATE queue SET row_sum = row_sum('queue',
        NEW.position, NEW.run_id, NEW.session_id, NEW.adapter, NEW.input, NEW.priority, NEW.workspace_id, NEW.state)
     WHERE position = NEW.position;
END;
CREATE TRIGGER queue_about_to_change BEFORE UPDATE OF
        position, run_id, session_id, adapter, input, priority, workspace_id, state
    ON queue WHEN OLD.row_sum IS NOT row_sum('queue',
        OLD.position, OLD.run_id, OLD.session_id, OLD.adapter, OLD.input, OLD.priority, OLD.workspace_id, OLD.state)
BEGIN
    SELECT RAISE(ABORT, 'a row of queue does not match its sum');
END;
CREATE TRIGGER queue_changed AFTER UPDATE OF
        position, run_id, session_id, adapter, input, priority, workspace_id, state
    ON queue BEGIN
    UPDATE queue SET row_sum = row_sum('queue',
        NEW.position, NEW.run_id, NEW.session_id, NEW.adapter, NEW.input, NEW.priority, NEW.workspace_id, NEW.state)
     WHERE position = NEW.position;
END;
