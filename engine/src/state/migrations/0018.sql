-- Work that leaves the machine: tasks with their branches, checkpoints, follow-ups and notices; findings that are allowed,
-- and what is in quarantine. None of it goes with a run or a session. Sums as in 0003.

-- Tasks that have a branch. `namespace`: platform and project, with a slash between; null: the remote has one project.
-- The branch was computed once. `active_run` outlasts the row of its run.
CREATE TABLE work_tasks (
    position           INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id                 TEXT    NOT NULL UNIQUE,
    task               TEXT    NOT NULL,
    namespace          TEXT,
    remote             TEXT    NOT NULL,
    branch             TEXT    NOT NULL,
    status             TEXT    NOT NULL,
    version            INTEGER NOT NULL,
    error              TEXT,
    last_failure_class TEXT,
    retry_count        INTEGER NOT NULL,
    next_retry_at      INTEGER,
    active_run         TEXT,
    failures_in_a_row  INTEGER NOT NULL,
    last_failure_at    INTEGER,
    flagged            INTEGER NOT NULL,
    input_cursor       INTEGER NOT NULL,
    created_at         INTEGER NOT NULL,
    updated_at         INTEGER NOT NULL,
    row_sum            INTEGER,
    UNIQUE (remote, branch)
) STRICT;
CREATE UNIQUE INDEX work_tasks_of_remote ON work_tasks (remote, coalesce(namespace, ''), task);
CREATE TRIGGER work_tasks_made AFTER INSERT ON work_tasks BEGIN
    UPDATE work_tasks SET row_sum = row_sum('work_tasks',
        NEW.position, NEW.id, NEW.task, NEW.namespace, NEW.remote, NEW.branch, NEW.status, NEW.version, NEW.error,
        NEW.last_failure_class, NEW.retry_count, NEW.next_retry_at, NEW.active_run, NEW.failures_in_a_row,
        NEW.last_failure_at, NEW.flagged, NEW.input_cursor, NEW.created_at, NEW.updated_at)
     WHERE position = NEW.position;
END;
CREATE TRIGGER work_tasks_about_to_change BEFORE UPDATE OF
        position, id, task, namespace, remote, branch, status, version, error, last_failure_class, retry_count,
        next_retry_at, active_run, failures_in_a_row, last_failure_at, flagged, input_cursor, created_at, updated_at
    ON work_tasks WHEN OLD.row_sum IS NOT row_sum('work_tasks',
        OLD.position, OLD.id, OLD.task, OLD.namespace, OLD.remote, OLD.branch, OLD.status, OLD.version, OLD.error,
        OLD.last_failure_class, OLD.retry_count, OLD.next_retry_at, OLD.active_run, OLD.failures_in_a_row,
        OLD.last_failure_at, OLD.flagged, OLD.input_cursor, OLD.created_at, OLD.updated_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of work_tasks does not match its sum');
END;
CREATE TRIGGER work_tasks_changed AFTER UPDATE OF
        position, id, task, namespace, remote, branch, status, version, error, last_failure_class, retry_count,
        next_retry_at, active_run, failures_in_a_row, last_failure_at, flagged, input_cursor, created_at, updated_at
    ON work_tasks BEGIN
    UPDATE work_tasks SET row_sum = row_sum('work_tasks',
        NEW.position, NEW.id, NEW.task, NEW.namespace, NEW.remote, NEW.branch, NEW.status, NEW.version, NEW.error,
        NEW.last_failure_class, NEW.retry_count, NEW.next_retry_at, NEW.active_run, NEW.failures_in_a_row,
        NEW.last_failure_at, NEW.flagged, NEW.input_cursor, NEW.created_at, NEW.updated_at)
     WHERE position = NEW.position;
END;

-- Commits of the work of tasks, which the store keeps. The columns up to `commit_id` never change. `made_by` outlasts
-- the row of its run: what is on a branch is not known by its run alone.
CREATE TABLE checkpoints (
    position     INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    task_id      TEXT    NOT NULL REFERENCES work_tasks (id),
    repository   TEXT    NOT NULL,
    seq          INTEGER NOT NULL,
    kind         TEXT    NOT NULL,
    made_by      TEXT,
    commit_id    TEXT    NOT NULL,
    status       TEXT    NOT NULL,
    remote       TEXT,
    branch       TEXT,
    advanced_to  TEXT,
    failure      TEXT,
    error        TEXT,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    row_sum      INTEGER,
    UNIQUE (task_id, repository, seq)
) STRICT;
CREATE INDEX checkpoints_unsettled ON checkpoints (status) WHERE status IN ('made', 'sent');
CREATE TRIGGER checkpoints_made AFTER INSERT ON checkpoints BEGIN
    UPDATE checkpoints SET row_sum = row_sum('checkpoints',
        NEW.position, NEW.task_id, NEW.repository, NEW.seq, NEW.kind, NEW.made_by, NEW.commit_id, NEW.status,
        NEW.remote, NEW.branch, NEW.advanced_to, NEW.failure, NEW.error, NEW.created_at, NEW.updated_at)
     WHERE position = NEW.position;
END;
CREATE TRIGGER checkpoints_about_to_change BEFORE UPDATE OF
        position, task_id, repository, seq, kind, made_by, commit_id, status, remote, branch, advanced_to, failure,
        error, created_at, updated_at
    ON checkpoints WHEN OLD.row_sum IS NOT row_sum('checkpoints',
        OLD.position, OLD.task_id, OLD.repository, OLD.seq, OLD.kind, OLD.made_by, OLD.commit_id, OLD.status,
        OLD.remote, OLD.branch, OLD.advanced_to, OLD.failure, OLD.error, OLD.created_at, OLD.updated_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of checkpoints does not match its sum');
END;
CREATE TRIGGER checkpoints_changed AFTER UPDATE OF
        position, task_id, repository, seq, kind, made_by, commit_id, status, remote, branch, advanced_to, failure,
        error, created_at, updated_at
    ON checkpoints BEGIN
    UPDATE checkpoints SET row_sum = row_sum('checkpoints',
        NEW.position, NEW.task_id, NEW.repository, NEW.seq, NEW.kind, NEW.made_by, NEW.commit_id, NEW.status,
        NEW.remote, NEW.branch, NEW.advanced_to, NEW.failure, NEW.error, NEW.created_at, NEW.updated_at)
     WHERE position = NEW.position;
END;

-- What blocked tasks go on from: one row for each of them. `context`: JSON.
CREATE TABLE follow_ups (
    position        INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    task_id         TEXT    NOT NULL UNIQUE REFERENCES work_tasks (id),
    flow            TEXT    NOT NULL,
    branch          TEXT    NOT NULL,
    context         TEXT    NOT NULL,
    waiting_reason  TEXT    NOT NULL,
    last_checkpoint TEXT    NOT NULL,
    updated_at      INTEGER NOT NULL,
    row_sum         INTEGER
) STRICT;
CREATE TRIGGER follow_ups_made AFTER INSERT ON follow_ups BEGIN
    UPDATE follow_ups SET row_sum = row_sum('follow_ups',
        NEW.position, NEW.task_id, NEW.flow, NEW.branch, NEW.context, NEW.waiting_reason, NEW.last_checkpoint,
        NEW.updated_at)
     WHERE position = NEW.position;
END;
CREATE TRIGGER follow_ups_about_to_change BEFORE UPDATE OF
        position, task_id, flow, branch, context, waiting_reason, last_checkpoint, updated_at
    ON follow_ups WHEN OLD.row_sum IS NOT row_sum('follow_ups',
        OLD.position, OLD.task_id, OLD.flow, OLD.branch, OLD.context, OLD.waiting_reason, OLD.last_checkpoint,
        OLD.updated_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of follow_ups does not match its sum');
END;
CREATE TRIGGER follow_ups_changed AFTER UPDATE OF
        position, task_id, flow, branch, context, waiting_reason, last_checkpoint, updated_at
    ON follow_ups BEGIN
    UPDATE follow_ups SET row_sum = row_sum('follow_ups',
        NEW.position, NEW.task_id, NEW.flow, NEW.branch, NEW.context, NEW.waiting_reason, NEW.last_checkpoint,
        NEW.updated_at)
     WHERE position = NEW.position;
END;

-- What is to be told outside, written with what it tells of.
CREATE TABLE notices (
    position   INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    token      TEXT    NOT NULL UNIQUE,
    kind       TEXT    NOT NULL,
    task_id    TEXT    NOT NULL REFERENCES work_tasks (id),
    commit_id  TEXT,
    text       TEXT    NOT NULL,
    status     TEXT    NOT NULL,
    attempts   INTEGER NOT NULL,
    next_at    INTEGER,
    owner      TEXT,
    error      TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    row_sum    INTEGER
) STRICT;
CREATE INDEX notices_to_send ON notices (status) WHERE status IN ('pending', 'in_progress');
CREATE TRIGGER notices_made AFTER INSERT ON notices BEGIN
    UPDATE notices SET row_sum = row_sum('notices',
        NEW.position, NEW.token, NEW.kind, NEW.task_id, NEW.commit_id, NEW.text, NEW.status, NEW.attempts,
        NEW.next_at, NEW.owner, NEW.error, NEW.created_at, NEW.updated_at)
     WHERE position = NEW.position;
END;
CREATE TRIGGER notices_about_to_change BEFORE UPDATE OF
        position, token, kind, task_id, commit_id, text, status, attempts, next_at, owner, error, created_at,
        updated_at
    ON notices WHEN OLD.row_sum IS NOT row_sum('notices',
        OLD.position, OLD.token, OLD.kind, OLD.task_id, OLD.commit_id, OLD.text, OLD.status, OLD.attempts,
        OLD.next_at, OLD.owner, OLD.error, OLD.created_at, OLD.updated_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of notices does not match its sum');
END;
CREATE TRIGGER notices_changed AFTER UPDATE OF
        position, token, kind, task_id, commit_id, text, status, attempts, next_at, owner, error, created_at,
        updated_at
    ON notices BEGIN
    UPDATE notices SET row_sum = row_sum('notices',
        NEW.position, NEW.token, NEW.kind, NEW.task_id, NEW.commit_id, NEW.text, NEW.status, NEW.attempts,
        NEW.next_at, NEW.owner, NEW.error, NEW.created_at, NEW.updated_at)
     WHERE position = NEW.position;
END;

-- Findings of secrets that the user knows to be none. What was found is nowhere.
CREATE TABLE allowed_findings (
    position    INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    repository  TEXT    NOT NULL,
    rule        TEXT    NOT NULL,
    path        BLOB    NOT NULL,
    fingerprint TEXT    NOT NULL,
    allowed_at  INTEGER NOT NULL,
    row_sum     INTEGER,
    UNIQUE (repository, rule, path, fingerprint)
) STRICT;
CREATE TRIGGER allowed_findings_made AFTER INSERT ON allowed_findings BEGIN
    UPDATE allowed_findings SET row_sum = row_sum('allowed_findings',
        NEW.position, NEW.repository, NEW.rule, NEW.path, NEW.fingerprint, NEW.allowed_at)
     WHERE position = NEW.position;
END;
CREATE TRIGGER allowed_findings_about_to_change BEFORE UPDATE OF
        position, repository, rule, path, fingerprint, allowed_at
    ON allowed_findings WHEN OLD.row_sum IS NOT row_sum('allowed_findings',
        OLD.position, OLD.repository, OLD.rule, OLD.path, OLD.fingerprint, OLD.allowed_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of allowed_findings does not match its sum');
END;
CREATE TRIGGER allowed_findings_changed AFTER UPDATE OF
        position, repository, rule, path, fingerprint, allowed_at
    ON allowed_findings BEGIN
    UPDATE allowed_findings SET row_sum = row_sum('allowed_findings',
        NEW.position, NEW.repository, NEW.rule, NEW.path, NEW.fingerprint, NEW.allowed_at)
     WHERE position = NEW.position;
END;

-- What could not be proven saved, and is kept until the user lets go of it. Paths are raw bytes.
CREATE TABLE quarantine (
    position   INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id         TEXT    NOT NULL UNIQUE,
    kind       TEXT    NOT NULL,
    origin     BLOB    NOT NULL,
    place      BLOB    NOT NULL,
    reason     TEXT    NOT NULL,
    task_id    TEXT    REFERENCES work_tasks (id),
    status     TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    ended_at   INTEGER,
    row_sum    INTEGER
) STRICT;
CREATE TRIGGER quarantine_made AFTER INSERT ON quarantine BEGIN
    UPDATE quarantine SET row_sum = row_sum('quarantine',
        NEW.position, NEW.id, NEW.kind, NEW.origin, NEW.place, NEW.reason, NEW.task_id, NEW.status, NEW.created_at,
        NEW.ended_at)
     WHERE position = NEW.position;
END;
CREATE TRIGGER quarantine_about_to_change BEFORE UPDATE OF
        position, id, kind, origin, place, reason, task_id, status, created_at, ended_at
    ON quarantine WHEN OLD.row_sum IS NOT row_sum('quarantine',
        OLD.position, OLD.id, OLD.kind, OLD.origin, OLD.place, OLD.reason, OLD.task_id, OLD.status, OLD.created_at,
        OLD.ended_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of quarantine does not match its sum');
END;
CREATE TRIGGER quarantine_changed AFTER UPDATE OF
        position, id, kind, origin, place, reason, task_id, status, created_at, ended_at
    ON quarantine BEGIN
    UPDATE quarantine SET row_sum = row_sum('quarantine',
        NEW.position, NEW.id, NEW.kind, NEW.origin, NEW.place, NEW.reason, NEW.task_id, NEW.status, NEW.created_at,
        NEW.ended_at)
     WHERE position = NEW.position;
END;
