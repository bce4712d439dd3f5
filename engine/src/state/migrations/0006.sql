-- What a snapshot left out may be very many paths, and the next snapshot mostly leaves out the same ones. Each list of
-- them is here once, packed, under the blake3 of what it says; short ones stay in the document.
CREATE TABLE omissions (
    digest  BLOB NOT NULL PRIMARY KEY,
    packed  BLOB NOT NULL,
    row_sum INTEGER
) STRICT;
CREATE TRIGGER omissions_made AFTER INSERT ON omissions BEGIN
    UPDATE omissions SET row_sum = row_sum('omissions', NEW.digest, NEW.packed)
     WHERE digest = NEW.digest;
END;
CREATE TRIGGER omissions_about_to_change BEFORE UPDATE OF digest, packed
    ON omissions WHEN OLD.row_sum IS NOT row_sum('omissions', OLD.digest, OLD.packed)
BEGIN
    SELECT RAISE(ABORT, 'a row of omissions does not match its sum');
END;
CREATE TRIGGER omissions_changed AFTER UPDATE OF digest, packed ON omissions BEGIN
    UPDATE omissions SET row_sum = row_sum('omissions', NEW.digest, NEW.packed)
     WHERE digest = NEW.digest;
END;

-- Null: they are in the document.
ALTER TABLE snapshots ADD COLUMN omissions BLOB REFERENCES omissions (digest);
CREATE INDEX snapshots_by_omissions ON snapshots (omissions) WHERE omissions IS NOT NULL;
DROP TRIGGER snapshots_made;
DROP TRIGGER snapshots_about_to_change;
DROP TRIGGER snapshots_changed;
-- A row that does not match its sum is left as it is, so that it does not look whole.
UPDATE snapshots SET row_sum = row_sum('snapshots',
        position, id, workspace_id, session_id, run_id, captured_at, document, omissions)
 WHERE row_sum IS row_sum('snapshots',
        position, id, workspace_id, session_id, run_id, captured_at, document);
CREATE TRIGGER snapshots_made AFTER INSERT ON snapshots BEGIN
    UPDATE snapshots SET row_sum = row_sum('snapshots',
        NEW.position, NEW.id, NEW.workspace_id, NEW.session_id, NEW.run_id, NEW.captured_at,
        NEW.document, NEW.omissions)
     WHERE position = NEW.position;
END;
CREATE TRIGGER snapshots_about_to_change BEFORE UPDATE OF
        position, id, workspace_id, session_id, run_id, captured_at, document, omissions
    ON snapshots WHEN OLD.row_sum IS NOT row_sum('snapshots',
        OLD.position, OLD.id, OLD.workspace_id, OLD.session_id, OLD.run_id, OLD.captured_at,
        OLD.document, OLD.omissions)
BEGIN
    SELECT RAISE(ABORT, 'a row of snapshots does not match its sum');
END;
CREATE TRIGGER snapshots_changed AFTER UPDATE OF
        position, id, workspace_id, session_id, run_id, captured_at, document, omissions
    ON snapshots BEGIN
    UPDATE snapshots SET row_sum = row_sum('snapshots',
        NEW.position, NEW.id, NEW.workspace_id, NEW.session_id, NEW.run_id, NEW.captured_at,
        NEW.document, NEW.omissions)
     WHERE position = NEW.position;
END;
