-- What restores that have begun are about, so that one which a crash cut off can be told of. A row
-- goes with the restore's own record.
CREATE TABLE restores (
    guard        TEXT    NOT NULL PRIMARY KEY,
    workspace_id TEXT    NOT NULL,
    session_id   TEXT    NOT NULL REFERENCES sessions (id),
    run_id       TEXT,
    target       TEXT    NOT NULL,
    purpose      TEXT    NOT NULL,
    repository   INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    -- What recovery made of it, for the record of a run that is not settled yet.
    outcome      TEXT
) STRICT;
CREATE INDEX restores_of_a_run ON restores (run_id) WHERE run_id IS NOT NULL;
