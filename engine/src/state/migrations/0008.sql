-- What a writer adds to an event beside its data. Sums as in 0003.

-- An engine of an earlier version that still has the database open would write events without sums. It counts in this
-- column, so that what it writes fails instead. It has a number that was given; later ones are those of the events.
ALTER TABLE sessions RENAME COLUMN last_sequence TO sequence_floor;

-- 'engine', 'adapter' or 'host'. Null: the engine wrote it if its type is the engine's, else an adapter did.
ALTER TABLE events ADD COLUMN source TEXT;
ALTER TABLE events ADD COLUMN provider TEXT;
ALTER TABLE events ADD COLUMN correlation_id TEXT;
-- A JSON object. Null: it is empty.
ALTER TABLE events ADD COLUMN metadata TEXT;
-- The artifact that has the data, which is null here.
ALTER TABLE events ADD COLUMN data_ref TEXT;
DROP TRIGGER events_made;
DROP TRIGGER events_timed;
DROP TRIGGER events_about_to_change;
DROP TRIGGER events_changed;
-- A row that does not match its sum is left as it is, so that it does not look whole.
UPDATE events SET row_sum = row_sum('events',
        position, id, session_id, sequence, run_id, type, timestamp, schema_version, data,
        source, provider, correlation_id, metadata, data_ref)
 WHERE row_sum IS row_sum('events',
        position, id, session_id, sequence, run_id, type, timestamp, schema_version, data);
-- Who writes an event writes its sum with it, and its row of `event_times` where one is due: a trigger, even one
-- that does nothing, takes longer than the row.
CREATE TRIGGER events_about_to_change BEFORE UPDATE OF
        position, id, session_id, sequence, run_id, type, timestamp, schema_version, data,
        source, provider, correlation_id, metadata, data_ref
    ON events WHEN OLD.row_sum IS NOT row_sum('events',
        OLD.position, OLD.id, OLD.session_id, OLD.sequence, OLD.run_id, OLD.type, OLD.timestamp,
        OLD.schema_version, OLD.data, OLD.source, OLD.provider, OLD.correlation_id, OLD.metadata,
        OLD.data_ref)
BEGIN
    SELECT RAISE(ABORT, 'a row of events does not match its sum');
END;
CREATE TRIGGER events_changed AFTER UPDATE OF
        position, id, session_id, sequence, run_id, type, timestamp, schema_version, data,
        source, provider, correlation_id, metadata, data_ref
    ON events BEGIN
    UPDATE events SET row_sum = row_sum('events',
        NEW.position, NEW.id, NEW.session_id, NEW.sequence, NEW.run_id, NEW.type, NEW.timestamp,
        NEW.schema_version, NEW.data, NEW.source, NEW.provider, NEW.correlation_id, NEW.metadata,
        NEW.data_ref)
     WHERE position = NEW.position;
END;
