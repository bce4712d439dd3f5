-- A bit that flips in a page stays within a value, where SQLite's own checks do not look. Each row has a sum
-- of what is in it, made by the engine's function row_sum. Who has no such function cannot write; to read takes
-- none.

ALTER TABLE sessions ADD COLUMN row_sum INTEGER;
UPDATE sessions SET row_sum = row_sum('sessions',
    id, status, version, last_sequence, created_at, ended_at);
CREATE TRIGGER sessions_made AFTER INSERT ON sessions BEGIN
    UPDATE sessions SET row_sum = row_sum('sessions',
        NEW.id, NEW.status, NEW.version, NEW.last_sequence, NEW.created_at, NEW.ended_at)
     WHERE id = NEW.id;
END;
-- What is damaged does not become whole by being written to.
CREATE TRIGGER sessions_about_to_change BEFORE UPDATE OF
        id, status, version, last_sequence, created_at, ended_at
    ON sessions WHEN OLD.row_sum IS NOT row_sum('sessions',
        OLD.id, OLD.status, OLD.version, OLD.last_sequence, OLD.created_at, OLD.ended_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of sessions does not match its sum');
END;
CREATE TRIGGER sessions_changed AFTER UPDATE OF
        id, status, version, last_sequence, created_at, ended_at
    ON sessions BEGIN
    UPDATE sessions SET row_sum = row_sum('sessions',
        NEW.id, NEW.status, NEW.version, NEW.last_sequence, NEW.created_at, NEW.ended_at)
     WHERE id = NEW.id;
END;

ALTER TABLE runs ADD COLUMN row_sum INTEGER;
UPDATE runs SET row_sum = row_sum('runs',
    position, id, session_id, engine_id, status, version, input, options, workspace_id,
    workspace_path, before_snapshot, after_snapshot, created_at, started_at, ended_at, exit_code,
    error, output, workspace);
CREATE TRIGGER runs_made AFTER INSERT ON runs BEGIN
    UPDATE runs SET row_sum = row_sum('runs',
        NEW.position, NEW.id, NEW.session_id, NEW.engine_id, NEW.status, NEW.version, NEW.input,
        NEW.options, NEW.workspace_id, NEW.workspace_path, NEW.before_snapshot, NEW.after_snapshot,
        NEW.created_at, NEW.started_at, NEW.ended_at, NEW.exit_code, NEW.error, NEW.output,
        NEW.workspace)
     WHERE position = NEW.position;
END;
-- What is damaged does not become whole by being written to.
CREATE TRIGGER runs_about_to_change BEFORE UPDATE OF
        position, id, session_id, engine_id, status, version, input, options, workspace_id,
        workspace_path, before_snapshot, after_snapshot, created_at, started_at, ended_at,
        exit_code, error, output, workspace
    ON runs WHEN OLD.row_sum IS NOT row_sum('runs',
        OLD.position, OLD.id, OLD.session_id, OLD.engine_id, OLD.status, OLD.version, OLD.input,
        OLD.options, OLD.workspace_id, OLD.workspace_path, OLD.before_snapshot, OLD.after_snapshot,
        OLD.created_at, OLD.started_at, OLD.ended_at, OLD.exit_code, OLD.error, OLD.output,
        OLD.workspace)
BEGIN
    SELECT RAISE(ABORT, 'a row of runs does not match its sum');
END;
CREATE TRIGGER runs_changed AFTER UPDATE OF
        position, id, session_id, engine_id, status, version, input, options, workspace_id,
        workspace_path, before_snapshot, after_snapshot, created_at, started_at, ended_at,
        exit_code, error, output, workspace
    ON runs BEGIN
    UPDATE runs SET row_sum = row_sum('runs',
        NEW.position, NEW.id, NEW.session_id, NEW.engine_id, NEW.status, NEW.version, NEW.input,
        NEW.options, NEW.workspace_id, NEW.workspace_path, NEW.before_snapshot, NEW.after_snapshot,
        NEW.created_at, NEW.started_at, NEW.ended_at, NEW.exit_code, NEW.error, NEW.output,
        NEW.workspace)
     WHERE position = NEW.position;
END;

ALTER TABLE events ADD COLUMN row_sum INTEGER;
UPDATE events SET row_sum = row_sum('events',
    position, id, session_id, sequence, run_id, type, timestamp, schema_version, data);
CREATE TRIGGER events_made AFTER INSERT ON events BEGIN
    UPDATE events SET row_sum = row_sum('events',
        NEW.position, NEW.id, NEW.session_id, NEW.sequence, NEW.run_id, NEW.type, NEW.timestamp,
        NEW.schema_version, NEW.data)
     WHERE position = NEW.position;
END;
-- What is damaged does not become whole by being written to.
CREATE TRIGGER events_about_to_change BEFORE UPDATE OF
        position, id, session_id, sequence, run_id, type, timestamp, schema_version, data
    ON events WHEN OLD.row_sum IS NOT row_sum('events',
        OLD.position, OLD.id, OLD.session_id, OLD.sequence, OLD.run_id, OLD.type, OLD.timestamp,
        OLD.schema_version, OLD.data)
BEGIN
    SELECT RAISE(ABORT, 'a row of events does not match its sum');
END;
CREATE TRIGGER events_changed AFTER UPDATE OF
        position, id, session_id, sequence, run_id, type, timestamp, schema_version, data
    ON events BEGIN
    UPDATE events SET row_sum = row_sum('events',
        NEW.position, NEW.id, NEW.session_id, NEW.sequence, NEW.run_id, NEW.type, NEW.timestamp,
        NEW.schema_version, NEW.data)
     WHERE position = NEW.position;
END;

ALTER TABLE snapshots ADD COLUMN row_sum INTEGER;
UPDATE snapshots SET row_sum = row_sum('snapshots',
    position, id, workspace_id, session_id, run_id, captured_at, document);
CREATE TRIGGER snapshots_made AFTER INSERT ON snapshots BEGIN
    UPDATE snapshots SET row_sum = row_sum('snapshots',
        NEW.position, NEW.id, NEW.workspace_id, NEW.session_id, NEW.run_id, NEW.captured_at,
        NEW.document)
     WHERE position = NEW.position;
END;
-- What is damaged does not become whole by being written to.
CREATE TRIGGER snapshots_about_to_change BEFORE UPDATE OF
        position, id, workspace_id, session_id, run_id, captured_at, document
    ON snapshots WHEN OLD.row_sum IS NOT row_sum('snapshots',
        OLD.position, OLD.id, OLD.workspace_id, OLD.session_id, OLD.run_id, OLD.captured_at,
        OLD.document)
BEGIN
    SELECT RAISE(ABORT, 'a row of snapshots does not match its sum');
END;
CREATE TRIGGER snapshots_changed AFTER UPDATE OF
        position, id, workspace_id, session_id, run_id, captured_at, document
    ON snapshots BEGIN
    UPDATE snapshots SET row_sum = row_sum('snapshots',
        NEW.position, NEW.id, NEW.workspace_id, NEW.session_id, NEW.run_id, NEW.captured_at,
        NEW.document)
     WHERE position = NEW.position;
END;

ALTER TABLE operations ADD COLUMN row_sum INTEGER;
UPDATE operations SET row_sum = row_sum('operations',
    position, id, workspace_id, session_id, run_id, kind, before_snapshot, after_snapshot, paths,
    repository, created_at);
CREATE TRIGGER operations_made AFTER INSERT ON operations BEGIN
    UPDATE operations SET row_sum = row_sum('operations',
        NEW.position, NEW.id, NEW.workspace_id, NEW.session_id, NEW.run_id, NEW.kind,
        NEW.before_snapshot, NEW.after_snapshot, NEW.paths, NEW.repository, NEW.created_at)
     WHERE position = NEW.position;
END;
-- What is damaged does not become whole by being written to.
CREATE TRIGGER operations_about_to_change BEFORE UPDATE OF
        position, id, workspace_id, session_id, run_id, kind, before_snapshot, after_snapshot,
        paths, repository, created_at
    ON operations WHEN OLD.row_sum IS NOT row_sum('operations',
        OLD.position, OLD.id, OLD.workspace_id, OLD.session_id, OLD.run_id, OLD.kind,
        OLD.before_snapshot, OLD.after_snapshot, OLD.paths, OLD.repository, OLD.created_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of operations does not match its sum');
END;
CREATE TRIGGER operations_changed AFTER UPDATE OF
        position, id, workspace_id, session_id, run_id, kind, before_snapshot, after_snapshot,
        paths, repository, created_at
    ON operations BEGIN
    UPDATE operations SET row_sum = row_sum('operations',
        NEW.position, NEW.id, NEW.workspace_id, NEW.session_id, NEW.run_id, NEW.kind,
        NEW.before_snapshot, NEW.after_snapshot, NEW.paths, NEW.repository, NEW.created_at)
     WHERE position = NEW.position;
END;

ALTER TABLE artifacts ADD COLUMN row_sum INTEGER;
UPDATE artifacts SET row_sum = row_sum('artifacts',
    position, id, session_id, run_id, key, content_type, byte_size, checksum, storage_backend,
    storage_ref, metadata, created_at, deleted_at);
CREATE TRIGGER artifacts_made AFTER INSERT ON artifacts BEGIN
    UPDATE artifacts SET row_sum = row_sum('artifacts',
        NEW.position, NEW.id, NEW.session_id, NEW.run_id, NEW.key, NEW.content_type, NEW.byte_size,
        NEW.checksum, NEW.storage_backend, NEW.storage_ref, NEW.metadata, NEW.created_at,
        NEW.deleted_at)
     WHERE position = NEW.position;
END;
-- What is damaged does not become whole by being written to.
CREATE TRIGGER artifacts_about_to_change BEFORE UPDATE OF
        position, id, session_id, run_id, key, content_type, byte_size, checksum, storage_backend,
        storage_ref, metadata, created_at, deleted_at
    ON artifacts WHEN OLD.row_sum IS NOT row_sum('artifacts',
        OLD.position, OLD.id, OLD.session_id, OLD.run_id, OLD.key, OLD.content_type, OLD.byte_size,
        OLD.checksum, OLD.storage_backend, OLD.storage_ref, OLD.metadata, OLD.created_at,
        OLD.deleted_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of artifacts does not match its sum');
END;
CREATE TRIGGER artifacts_changed AFTER UPDATE OF
        position, id, session_id, run_id, key, content_type, byte_size, checksum, storage_backend,
        storage_ref, metadata, created_at, deleted_at
    ON artifacts BEGIN
    UPDATE artifacts SET row_sum = row_sum('artifacts',
        NEW.position, NEW.id, NEW.session_id, NEW.run_id, NEW.key, NEW.content_type, NEW.byte_size,
        NEW.checksum, NEW.storage_backend, NEW.storage_ref, NEW.metadata, NEW.created_at,
        NEW.deleted_at)
     WHERE position = NEW.position;
END;

ALTER TABLE restores ADD COLUMN row_sum INTEGER;
UPDATE restores SET row_sum = row_sum('restores',
    guard, workspace_id, session_id, run_id, target, purpose, repository, created_at, outcome);
CREATE TRIGGER restores_made AFTER INSERT ON restores BEGIN
    UPDATE restores SET row_sum = row_sum('restores',
        NEW.guard, NEW.workspace_id, NEW.session_id, NEW.run_id, NEW.target, NEW.purpose,
        NEW.repository, NEW.created_at, NEW.outcome)
     WHERE guard = NEW.guard;
END;
-- What is damaged does not become whole by being written to.
CREATE TRIGGER restores_about_to_change BEFORE UPDATE OF
        guard, workspace_id, session_id, run_id, target, purpose, repository, created_at, outcome
    ON restores WHEN OLD.row_sum IS NOT row_sum('restores',
        OLD.guard, OLD.workspace_id, OLD.session_id, OLD.run_id, OLD.target, OLD.purpose,
        OLD.repository, OLD.created_at, OLD.outcome)
BEGIN
    SELECT RAISE(ABORT, 'a row of restores does not match its sum');
END;
CREATE TRIGGER restores_changed AFTER UPDATE OF
        guard, workspace_id, session_id, run_id, target, purpose, repository, created_at, outcome
    ON restores BEGIN
    UPDATE restores SET row_sum = row_sum('restores',
        NEW.guard, NEW.workspace_id, NEW.session_id, NEW.run_id, NEW.target, NEW.purpose,
        NEW.repository, NEW.created_at, NEW.outcome)
     WHERE guard = NEW.guard;
END;
