-- The sessions that are being removed, each until nothing is left of it. Nothing is written to one meanwhile, and who
-- finds it here goes on. Who writes a row writes its sum with it.
CREATE TABLE removals (
    session_id TEXT    NOT NULL PRIMARY KEY REFERENCES sessions (id),
    begun_at   INTEGER NOT NULL,
    row_sum    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
