-- Whose a run is, and the phases and steps of runs that can be resumed. Sums as in 0003.

CREATE TABLE leases (
    run_id              TEXT    NOT NULL PRIMARY KEY REFERENCES runs (id),
    owner               TEXT    NOT NULL,
    -- Raised by whoever takes the run over; what is written for the run names the one that its writer has.
    epoch               INTEGER NOT NULL,
    -- CLOCK_BOOTTIME of this start of the machine: the clocks of people go backwards.
    boot_id             TEXT    NOT NULL,
    expires_at          INTEGER NOT NULL,
    heartbeat_at        INTEGER NOT NULL,
    cancel_requested_at INTEGER,
    row_sum             INTEGER
) STRICT;
CREATE TRIGGER leases_made AFTER INSERT ON leases BEGIN
    UPDATE leases SET row_sum = row_sum('leases',
        NEW.run_id, NEW.owner, NEW.epoch, NEW.boot_id, NEW.expires_at, NEW.heartbeat_at,
        NEW.cancel_requested_at)
     WHERE run_id = NEW.run_id;
END;
CREATE TRIGGER leases_about_to_change BEFORE UPDATE OF
        run_id, owner, epoch, boot_id, expires_at, heartbeat_at, cancel_requested_at
    ON leases WHEN OLD.row_sum IS NOT row_sum('leases',
        OLD.run_id, OLD.owner, OLD.epoch, OLD.boot_id, OLD.expires_at, OLD.heartbeat_at,
        OLD.cancel_requested_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of leases does not match its sum');
END;
CREATE TRIGGER leases_changed AFTER UPDATE OF
        run_id, owner, epoch, boot_id, expires_at, heartbeat_at, cancel_requested_at
    ON leases BEGIN
    UPDATE leases SET row_sum = row_sum('leases',
        NEW.run_id, NEW.owner, NEW.epoch, NEW.boot_id, NEW.expires_at, NEW.heartbeat_at,
        NEW.cancel_requested_at)
     WHERE run_id = NEW.run_id;
END;

CREATE TABLE phases (
    position     INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    run_id       TEXT    NOT NULL REFERENCES runs (id),
    name         TEXT    NOT NULL,
    iteration    INTEGER NOT NULL,
    status       TEXT    NOT NULL,
    started_at   INTEGER,
    completed_at INTEGER,
    duration_ms  INTEGER,
    row_sum      INTEGER,
    UNIQUE (run_id, name, iteration)
) STRICT;
CREATE TRIGGER phases_made AFTER INSERT ON phases BEGIN
    UPDATE phases SET row_sum = row_sum('phases',
        NEW.position, NEW.run_id, NEW.name, NEW.iteration, NEW.status, NEW.started_at,
        NEW.completed_at, NEW.duration_ms)
     WHERE position = NEW.position;
END;
CREATE TRIGGER phases_about_to_change BEFORE UPDATE OF
        position, run_id, name, iteration, status, started_at, completed_at, duration_ms
    ON phases WHEN OLD.row_sum IS NOT row_sum('phases',
        OLD.position, OLD.run_id, OLD.name, OLD.iteration, OLD.status, OLD.started_at,
        OLD.completed_at, OLD.duration_ms)
BEGIN
    SELECT RAISE(ABORT, 'a row of phases does not match its sum');
END;
CREATE TRIGGER phases_changed AFTER UPDATE OF
        position, run_id, name, iteration, status, started_at, completed_at, duration_ms
    ON phases BEGIN
    UPDATE phases SET row_sum = row_sum('phases',
        NEW.position, NEW.run_id, NEW.name, NEW.iteration, NEW.status, NEW.started_at,
        NEW.completed_at, NEW.duration_ms)
     WHERE position = NEW.position;
END;

CREATE TABLE steps (
    position        INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id              TEXT    NOT NULL UNIQUE,
    run_id          TEXT    NOT NULL,
    phase           TEXT    NOT NULL,
    iteration       INTEGER NOT NULL,
    name            TEXT    NOT NULL,
    status          TEXT    NOT NULL,
    attempt         INTEGER NOT NULL,
    definition_hash TEXT    NOT NULL,
    snapshot_before TEXT,
    snapshot_after  TEXT,
    commit_created  TEXT,
    result          TEXT,
    error           TEXT,
    started_at      INTEGER,
    completed_at    INTEGER,
    duration_ms     INTEGER,
    -- Places among the beginnings and ends of steps of the run.
    begun_order     INTEGER,
    ended_order     INTEGER,
    row_sum         INTEGER,
    UNIQUE (run_id, phase, iteration, name),
    FOREIGN KEY (run_id, phase, iteration) REFERENCES phases (run_id, name, iteration)
) STRICT;
CREATE TRIGGER steps_made AFTER INSERT ON steps BEGIN
    UPDATE steps SET row_sum = row_sum('steps',
        NEW.position, NEW.id, NEW.run_id, NEW.phase, NEW.iteration, NEW.name, NEW.status,
        NEW.attempt, NEW.definition_hash, NEW.snapshot_before, NEW.snapshot_after,
        NEW.commit_created, NEW.result, NEW.error, NEW.started_at, NEW.completed_at,
        NEW.duration_ms, NEW.begun_order, NEW.ended_order)
     WHERE position = NEW.position;
END;
CREATE TRIGGER steps_about_to_change BEFORE UPDATE OF
        position, id, run_id, phase, iteration, name, status, attempt, definition_hash,
        snapshot_before, snapshot_after, commit_created, result, error, started_at, completed_at,
        duration_ms, begun_order, ended_order
    ON steps WHEN OLD.row_sum IS NOT row_sum('steps',
        OLD.position, OLD.id, OLD.run_id, OLD.phase, OLD.iteration, OLD.name, OLD.status,
        OLD.attempt, OLD.definition_hash, OLD.snapshot_before, OLD.snapshot_after,
        OLD.commit_created, OLD.result, OLD.error, OLD.started_at, OLD.completed_at,
        OLD.duration_ms, OLD.begun_order, OLD.ended_order)
BEGIN
    SELECT RAISE(ABORT, 'a row of steps does not match its sum');
END;
CREATE TRIGGER steps_changed AFTER UPDATE OF
        position, id, run_id, phase, iteration, name, status, attempt, definition_hash,
        snapshot_before, snapshot_after, commit_created, result, error, started_at, completed_at,
        duration_ms, begun_order, ended_order
    ON steps BEGIN
    UPDATE steps SET row_sum = row_sum('steps',
        NEW.position, NEW.id, NEW.run_id, NEW.phase, NEW.iteration, NEW.name, NEW.status,
        NEW.attempt, NEW.definition_hash, NEW.snapshot_before, NEW.snapshot_after,
        NEW.commit_created, NEW.result, NEW.error, NEW.started_at, NEW.completed_at,
        NEW.duration_ms, NEW.begun_order, NEW.ended_order)
     WHERE position = NEW.position;
END;

DROP INDEX runs_under_way;
CREATE INDEX runs_that_have_not_ended ON runs (status)
    WHERE status IN ('pending', 'running', 'interrupted');
