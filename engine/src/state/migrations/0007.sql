-- Snapshots that somebody has said are kept. Sums as in 0003.

-- No row of a snapshot is named: one that is lost comes back from the store, and is pinned as before.
CREATE TABLE pins (
    snapshot_id  TEXT    NOT NULL PRIMARY KEY,
    workspace_id TEXT    NOT NULL,
    pinned_at    INTEGER NOT NULL,
    row_sum      INTEGER
) STRICT;
CREATE TRIGGER pins_made AFTER INSERT ON pins BEGIN
    UPDATE pins SET row_sum = row_sum('pins',
        NEW.snapshot_id, NEW.workspace_id, NEW.pinned_at)
     WHERE snapshot_id = NEW.snapshot_id;
END;
CREATE TRIGGER pins_about_to_change BEFORE UPDATE OF
        snapshot_id, workspace_id, pinned_at
    ON pins WHEN OLD.row_sum IS NOT row_sum('pins',
        OLD.snapshot_id, OLD.workspace_id, OLD.pinned_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of pins does not match its sum');
END;
CREATE TRIGGER pins_changed AFTER UPDATE OF
        snapshot_id, workspace_id, pinned_at
    ON pins BEGIN
    UPDATE pins SET row_sum = row_sum('pins',
        NEW.snapshot_id, NEW.workspace_id, NEW.pinned_at)
     WHERE snapshot_id = NEW.snapshot_id;
END;
