-- The agents that worked in runs. They go with their run. Sums as in 0003.

-- `prompts`: the keys of artifacts, a JSON list. `status` as in `tool_calls`.
CREATE TABLE agents (
    position      INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id            TEXT    NOT NULL UNIQUE,
    run_id        TEXT    NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    step_id       TEXT,
    name          TEXT,
    model         TEXT,
    prompts       TEXT    NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    status        TEXT    NOT NULL,
    error         TEXT,
    started_at    INTEGER NOT NULL,
    ended_at      INTEGER,
    row_sum       INTEGER
) STRICT;
CREATE INDEX agents_of_run ON agents (run_id);
CREATE TRIGGER agents_made AFTER INSERT ON agents BEGIN
    UPDATE agents SET row_sum = row_sum('agents',
        NEW.position, NEW.id, NEW.run_id, NEW.step_id, NEW.name, NEW.model, NEW.prompts, NEW.input_tokens,
        NEW.output_tokens, NEW.status, NEW.error, NEW.started_at, NEW.ended_at)
     WHERE position = NEW.position;
END;
CREATE TRIGGER agents_about_to_change BEFORE UPDATE OF
        position, id, run_id, step_id, name, model, prompts, input_tokens, output_tokens, status, error,
        started_at, ended_at
    ON agents WHEN OLD.row_sum IS NOT row_sum('agents',
        OLD.position, OLD.id, OLD.run_id, OLD.step_id, OLD.name, OLD.model, OLD.prompts, OLD.input_tokens,
        OLD.output_tokens, OLD.status, OLD.error, OLD.started_at, OLD.ended_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of agents does not match its sum');
END;
CREATE TRIGGER agents_changed AFTER UPDATE OF
        position, id, run_id, step_id, name, model, prompts, input_tokens, output_tokens, status, error,
        started_at, ended_at
    ON agents BEGIN
    UPDATE agents SET row_sum = row_sum('agents',
        NEW.position, NEW.id, NEW.run_id, NEW.step_id, NEW.name, NEW.model, NEW.prompts, NEW.input_tokens,
        NEW.output_tokens, NEW.status, NEW.error, NEW.started_at, NEW.ended_at)
     WHERE position = NEW.position;
END;
