-- Where the log has what became of a notice. Sums as in 0003.

-- A session, and the run that the notice is of. Both outlast their rows. Null: nobody knows.
ALTER TABLE notices ADD COLUMN told_in TEXT;
ALTER TABLE notices ADD COLUMN made_by TEXT;
DROP TRIGGER notices_made;
DROP TRIGGER notices_about_to_change;
DROP TRIGGER notices_changed;
-- A row that does not match its sum is left as it is, so that it does not look whole.
UPDATE notices SET row_sum = row_sum('notices',
        position, token, kind, task_id, commit_id, text, status, attempts,
        next_at, owner, error, created_at, updated_at, told_in, made_by)
 WHERE row_sum IS row_sum('notices',
        position, token, kind, task_id, commit_id, text, status, attempts,
        next_at, owner, error, created_at, updated_at);
CREATE TRIGGER notices_made AFTER INSERT ON notices BEGIN
    UPDATE notices SET row_sum = row_sum('notices',
        NEW.position, NEW.token, NEW.kind, NEW.task_id, NEW.commit_id, NEW.text, NEW.status, NEW.attempts,
        NEW.next_at, NEW.owner, NEW.error, NEW.created_at, NEW.updated_at, NEW.told_in, NEW.made_by)
     WHERE position = NEW.position;
END;
CREATE TRIGGER notices_about_to_change BEFORE UPDATE OF
        position, token, kind, task_id, commit_id, text, status, attempts,
        next_at, owner, error, created_at, updated_at, told_in, made_by
    ON notices WHEN OLD.row_sum IS NOT row_sum('notices',
        OLD.position, OLD.token, OLD.kind, OLD.task_id, OLD.commit_id, OLD.text, OLD.status, OLD.attempts,
        OLD.next_at, OLD.owner, OLD.error, OLD.created_at, OLD.updated_at, OLD.told_in, OLD.made_by)
BEGIN
    SELECT RAISE(ABORT, 'a row of notices does not match its sum');
END;
CREATE TRIGGER notices_changed AFTER UPDATE OF
        position, token, kind, task_id, commit_id, text, status, attempts,
        next_at, owner, error, created_at, updated_at, told_in, made_by
    ON notices BEGIN
    UPDATE notices SET row_sum = row_sum('notices',
        NEW.position, NEW.token, NEW.kind, NEW.task_id, NEW.commit_id, NEW.text, NEW.status, NEW.attempts,
        NEW.next_at, NEW.owner, NEW.error, NEW.created_at, NEW.updated_at, NEW.told_in, NEW.made_by)
     WHERE position = NEW.position;
END;
