-- The calls of tools in runs. They go with their run. Sums as in 0003.

-- `source`: 'engine', which called it, or 'adapter', which told of it. `status`: 'running', 'completed', 'failed', or
-- 'interrupted' with its run. Input and output are here as JSON if they are small, else in the artifact of that key.
CREATE TABLE tool_calls (
    position       INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    run_id         TEXT    NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    call_id        TEXT    NOT NULL,
    step_id        TEXT,
    source         TEXT    NOT NULL,
    tool_name      TEXT,
    status         TEXT    NOT NULL,
    input          TEXT,
    input_ref      TEXT,
    input_summary  TEXT,
    input_bytes    INTEGER,
    output         TEXT,
    output_ref     TEXT,
    output_summary TEXT,
    output_bytes   INTEGER,
    error          TEXT,
    started_at     INTEGER,
    ended_at       INTEGER,
    row_sum        INTEGER,
    UNIQUE (run_id, call_id)
) STRICT;
CREATE TRIGGER tool_calls_made AFTER INSERT ON tool_calls BEGIN
    UPDATE tool_calls SET row_sum = row_sum('tool_calls',
        NEW.position, NEW.run_id, NEW.call_id, NEW.step_id, NEW.source, NEW.tool_name, NEW.status,
        NEW.input, NEW.input_ref, NEW.input_summary, NEW.input_bytes, NEW.output, NEW.output_ref,
        NEW.output_summary, NEW.output_bytes, NEW.error, NEW.started_at, NEW.ended_at)
     WHERE position = NEW.position;
END;
CREATE TRIGGER tool_calls_about_to_change BEFORE UPDATE OF
        position, run_id, call_id, step_id, source, tool_name, status, input, input_ref, input_summary,
        input_bytes, output, output_ref, output_summary, output_bytes, error, started_at, ended_at
    ON tool_calls WHEN OLD.row_sum IS NOT row_sum('tool_calls',
        OLD.position, OLD.run_id, OLD.call_id, OLD.step_id, OLD.source, OLD.tool_name, OLD.status,
        OLD.input, OLD.input_ref, OLD.input_summary, OLD.input_bytes, OLD.output, OLD.output_ref,
        OLD.output_summary, OLD.output_bytes, OLD.error, OLD.started_at, OLD.ended_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of tool_calls does not match its sum');
END;
CREATE TRIGGER tool_calls_changed AFTER UPDATE OF
        position, run_id, call_id, step_id, source, tool_name, status, input, input_ref, input_summary,
        input_bytes, output, output_ref, output_summary, output_bytes, error, started_at, ended_at
    ON tool_calls BEGIN
    UPDATE tool_calls SET row_sum = row_sum('tool_calls',
        NEW.position, NEW.run_id, NEW.call_id, NEW.step_id, NEW.source, NEW.tool_name, NEW.status,
        NEW.input, NEW.input_ref, NEW.input_summary, NEW.input_bytes, NEW.output, NEW.output_ref,
        NEW.output_summary, NEW.output_bytes, NEW.error, NEW.started_at, NEW.ended_at)
     WHERE position = NEW.position;
END;
