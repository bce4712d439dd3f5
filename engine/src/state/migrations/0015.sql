-- What a host says of a session. Who writes a row writes its sum with it. Null: it has none. `tags` is a JSON array
-- of texts, `metadata` a JSON object.
CREATE TABLE session_details (
    session_id TEXT    NOT NULL PRIMARY KEY REFERENCES sessions (id),
    agent_id   TEXT,
    tags       TEXT    NOT NULL,
    metadata   TEXT    NOT NULL,
    parent_id  TEXT,
    row_sum    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX session_details_by_agent ON session_details (agent_id) WHERE agent_id IS NOT NULL;
CREATE INDEX session_details_by_parent ON session_details (parent_id) WHERE parent_id IS NOT NULL;
