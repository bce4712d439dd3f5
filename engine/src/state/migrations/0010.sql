-- The state that a run keeps: a value by key, and each change of one. They go with their run. Sums as in 0003.

CREATE TABLE state_values (
    run_id     TEXT    NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    key        TEXT    NOT NULL,
    value      TEXT    NOT NULL,
    changed_at INTEGER NOT NULL,
    row_sum    INTEGER,
    PRIMARY KEY (run_id, key)
) STRICT;
CREATE TRIGGER state_values_made AFTER INSERT ON state_values BEGIN
    UPDATE state_values SET row_sum = row_sum('state_values', NEW.run_id, NEW.key, NEW.value, NEW.changed_at)
     WHERE run_id = NEW.run_id AND key = NEW.key;
END;
CREATE TRIGGER state_values_about_to_change BEFORE UPDATE OF run_id, key, value, changed_at
    ON state_values
  WHEN OLD.row_sum IS NOT row_sum('state_values', OLD.run_id, OLD.key, OLD.value, OLD.changed_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of state_values does not match its sum');
END;
CREATE TRIGGER state_values_changed AFTER UPDATE OF run_id, key, value, changed_at ON state_values BEGIN
    UPDATE state_values SET row_sum = row_sum('state_values', NEW.run_id, NEW.key, NEW.value, NEW.changed_at)
     WHERE run_id = NEW.run_id AND key = NEW.key;
END;

-- Null: there is no value.
CREATE TABLE state_transitions (
    position  INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    run_id    TEXT    NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    key       TEXT    NOT NULL,
    old_value TEXT,
    new_value TEXT,
    cause     TEXT    NOT NULL,
    at        INTEGER NOT NULL,
    row_sum   INTEGER
) STRICT;
CREATE INDEX state_transitions_of_run ON state_transitions (run_id);
CREATE TRIGGER state_transitions_made AFTER INSERT ON state_transitions BEGIN
    UPDATE state_transitions SET row_sum = row_sum('state_transitions',
        NEW.position, NEW.run_id, NEW.key, NEW.old_value, NEW.new_value, NEW.cause, NEW.at)
     WHERE position = NEW.position;
END;
CREATE TRIGGER state_transitions_about_to_change BEFORE UPDATE OF
        position, run_id, key, old_value, new_value, cause, at
    ON state_transitions WHEN OLD.row_sum IS NOT row_sum('state_transitions',
        OLD.position, OLD.run_id, OLD.key, OLD.old_value, OLD.new_value, OLD.cause, OLD.at)
BEGIN
    SELECT RAISE(ABORT, 'a row of state_transitions does not match its sum');
END;
CREATE TRIGGER state_transitions_changed AFTER UPDATE OF
        position, run_id, key, old_value, new_value, cause, at
    ON state_transitions BEGIN
    UPDATE state_transitions SET row_sum = row_sum('state_transitions',
        NEW.position, NEW.run_id, NEW.key, NEW.old_value, NEW.new_value, NEW.cause, NEW.at)
     WHERE position = NEW.position;
END;
