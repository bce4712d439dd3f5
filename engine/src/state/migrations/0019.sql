-- What runs came for whose work is being saved: one row for each that is persisting, blocked or checkpointing. `reason`:
-- the status that the run ends with, or 'blocked'. `block`: JSON, what its adapter said of its block. Who writes a row
-- writes its sum with it.
CREATE TABLE came_for (
    run_id  TEXT    NOT NULL PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    reason  TEXT    NOT NULL,
    block   TEXT,
    row_sum INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

DROP INDEX runs_that_have_not_ended;
CREATE INDEX runs_that_have_not_ended ON runs (status)
    WHERE status IN ('pending', 'running', 'asking', 'waiting_for_input', 'interrupted',
                     'persisting', 'blocked', 'checkpointing', 'awaiting_followup');
