-- The tokens that runs have used, added up. A row goes with its run. Sums as in 0003.

CREATE TABLE token_totals (
    run_id        TEXT    NOT NULL PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    row_sum       INTEGER
) STRICT;
CREATE TRIGGER token_totals_made AFTER INSERT ON token_totals BEGIN
    UPDATE token_totals SET row_sum = row_sum('token_totals',
        NEW.run_id, NEW.input_tokens, NEW.output_tokens)
     WHERE run_id = NEW.run_id;
END;
CREATE TRIGGER token_totals_about_to_change BEFORE UPDATE OF
        run_id, input_tokens, output_tokens
    ON token_totals WHEN OLD.row_sum IS NOT row_sum('token_totals',
        OLD.run_id, OLD.input_tokens, OLD.output_tokens)
BEGIN
    SELECT RAISE(ABORT, 'a row of token_totals does not match its sum');
END;
CREATE TRIGGER token_totals_changed AFTER UPDATE OF
        run_id, input_tokens, output_tokens
    ON token_totals BEGIN
    UPDATE token_totals SET row_sum = row_sum('token_totals',
        NEW.run_id, NEW.input_tokens, NEW.output_tokens)
     WHERE run_id = NEW.run_id;
END;
