-- Up to where events were removed: the last one of a session and, with an empty name, of all. A row outlasts its
-- session, so that no number is given twice. Who writes a row writes its sum with it.
CREATE TABLE event_floors (
    session_id TEXT    NOT NULL PRIMARY KEY,
    sequence   INTEGER NOT NULL,
    position   INTEGER NOT NULL,
    row_sum    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Rows that refer to one that is removed are looked for.
CREATE INDEX questions_by_step ON questions (step_id) WHERE step_id IS NOT NULL;
CREATE INDEX effects_by_step ON effects (step_id);
CREATE INDEX commits_by_step ON commits (step_id) WHERE step_id IS NOT NULL;
CREATE INDEX operations_by_session ON operations (session_id);
CREATE INDEX queue_by_session ON queue (session_id);
