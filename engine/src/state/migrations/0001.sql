-- Times are nanoseconds since the Unix epoch, paths are raw bytes, documents are JSON.

CREATE TABLE sessions (
    id            TEXT    NOT NULL PRIMARY KEY,
    status        TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    last_sequence INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    ended_at      INTEGER
) STRICT;

CREATE TABLE runs (
    position        INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id              TEXT    NOT NULL UNIQUE,
    session_id      TEXT    NOT NULL REFERENCES sessions (id),
    engine_id       TEXT    NOT NULL,
    status          TEXT    NOT NULL,
    version         INTEGER NOT NULL,
    input           TEXT    NOT NULL,
    options         TEXT    NOT NULL,
    workspace_id    TEXT,
    workspace_path  BLOB,
    -- Chosen before the captures, so that a clean-up spares them from the first moment on.
    before_snapshot TEXT,
    after_snapshot  TEXT,
    created_at      INTEGER NOT NULL,
    started_at      INTEGER,
    ended_at        INTEGER,
    exit_code       INTEGER,
    error           TEXT,
    output          TEXT,
    workspace       TEXT
) STRICT;
CREATE INDEX runs_of_a_session ON runs (session_id, position);
CREATE INDEX runs_of_a_workspace ON runs (workspace_id, position);
CREATE INDEX runs_under_way ON runs (status) WHERE status IN ('pending', 'running');

CREATE TABLE events (
    position       INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id             TEXT    NOT NULL UNIQUE,
    session_id     TEXT    NOT NULL REFERENCES sessions (id),
    sequence       INTEGER NOT NULL,
    run_id         TEXT,
    type           TEXT    NOT NULL,
    timestamp      INTEGER NOT NULL,
    schema_version INTEGER NOT NULL,
    data           TEXT    NOT NULL,
    UNIQUE (session_id, sequence)
) STRICT;
CREATE INDEX events_of_a_run ON events (run_id, position) WHERE run_id IS NOT NULL;

CREATE TABLE snapshots (
    position     INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id           TEXT    NOT NULL UNIQUE,
    workspace_id TEXT    NOT NULL,
    session_id   TEXT,
    run_id       TEXT,
    captured_at  INTEGER NOT NULL,
    document     TEXT    NOT NULL
) STRICT;
CREATE INDEX snapshots_of_a_workspace ON snapshots (workspace_id, position);

CREATE TABLE operations (
    position        INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id              TEXT    NOT NULL UNIQUE,
    workspace_id    TEXT    NOT NULL,
    session_id      TEXT    NOT NULL REFERENCES sessions (id),
    run_id          TEXT    REFERENCES runs (id),
    kind            TEXT    NOT NULL,
    before_snapshot TEXT    NOT NULL,
    after_snapshot  TEXT    NOT NULL,
    paths           TEXT,
    repository      INTEGER NOT NULL,
    created_at      INTEGER NOT NULL
) STRICT;
CREATE INDEX operations_of_a_workspace ON operations (workspace_id, position);
CREATE INDEX operations_of_a_run ON operations (run_id) WHERE run_id IS NOT NULL;

CREATE TABLE artifacts (
    position        INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id              TEXT    NOT NULL UNIQUE,
    session_id      TEXT    NOT NULL REFERENCES sessions (id),
    run_id          TEXT,
    key             TEXT    NOT NULL,
    content_type    TEXT    NOT NULL,
    byte_size       INTEGER NOT NULL,
    checksum        TEXT    NOT NULL,
    storage_backend TEXT    NOT NULL,
    storage_ref     TEXT    NOT NULL,
    metadata        TEXT    NOT NULL,
    created_at      INTEGER NOT NULL,
    deleted_at      INTEGER
) STRICT;
-- A key that was deleted may be used again.
CREATE UNIQUE INDEX artifacts_by_key ON artifacts (key) WHERE deleted_at IS NULL;
CREATE INDEX artifacts_of_a_session ON artifacts (session_id, position);
