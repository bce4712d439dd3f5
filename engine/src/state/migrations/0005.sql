-- What runs ask people, what steps do to repositories, the commits that are known, and the parts of steps. Sums as
-- in 0003.

CREATE TABLE questions (
    position          INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id                TEXT    NOT NULL UNIQUE,
    run_id            TEXT    NOT NULL REFERENCES runs (id),
    step_id           TEXT    REFERENCES steps (id),
    question          TEXT    NOT NULL,
    -- Which time the same text is asked there.
    nth               INTEGER NOT NULL,
    choices           TEXT    NOT NULL,
    default_answer    TEXT,
    status            TEXT    NOT NULL,
    asked_at          INTEGER NOT NULL,
    deadline_at       INTEGER,
    -- The same moment by the clock that nobody sets, which counts until the next start of the machine.
    deadline_boot_id  TEXT,
    deadline_boottime INTEGER,
    answer            TEXT,
    answered_at       INTEGER,
    timed_out         INTEGER NOT NULL,
    resumed_at        INTEGER,
    row_sum           INTEGER
) STRICT;
CREATE TRIGGER questions_made AFTER INSERT ON questions BEGIN
    UPDATE questions SET row_sum = row_sum('questions',
        NEW.position, NEW.id, NEW.run_id, NEW.step_id, NEW.question, NEW.nth,
        NEW.choices, NEW.default_answer, NEW.status, NEW.asked_at, NEW.deadline_at,
        NEW.deadline_boot_id, NEW.deadline_boottime, NEW.answer, NEW.answered_at,
        NEW.timed_out, NEW.resumed_at)
     WHERE position = NEW.position;
END;
CREATE TRIGGER questions_about_to_change BEFORE UPDATE OF
        position, id, run_id, step_id, question, nth, choices, default_answer, status,
        asked_at, deadline_at, deadline_boot_id, deadline_boottime, answer, answered_at,
        timed_out, resumed_at
    ON questions WHEN OLD.row_sum IS NOT row_sum('questions',
        OLD.position, OLD.id, OLD.run_id, OLD.step_id, OLD.question, OLD.nth,
        OLD.choices, OLD.default_answer, OLD.status, OLD.asked_at, OLD.deadline_at,
        OLD.deadline_boot_id, OLD.deadline_boottime, OLD.answer, OLD.answered_at,
        OLD.timed_out, OLD.resumed_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of questions does not match its sum');
END;
CREATE TRIGGER questions_changed AFTER UPDATE OF
        position, id, run_id, step_id, question, nth, choices, default_answer, status,
        asked_at, deadline_at, deadline_boot_id, deadline_boottime, answer, answered_at,
        timed_out, resumed_at
    ON questions BEGIN
    UPDATE questions SET row_sum = row_sum('questions',
        NEW.position, NEW.id, NEW.run_id, NEW.step_id, NEW.question, NEW.nth,
        NEW.choices, NEW.default_answer, NEW.status, NEW.asked_at, NEW.deadline_at,
        NEW.deadline_boot_id, NEW.deadline_boottime, NEW.answer, NEW.answered_at,
        NEW.timed_out, NEW.resumed_at)
     WHERE position = NEW.position;
END;

CREATE TABLE effects (
    position     INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id           TEXT    NOT NULL UNIQUE,
    run_id       TEXT    NOT NULL REFERENCES runs (id),
    step_id      TEXT    NOT NULL REFERENCES steps (id),
    workspace_id TEXT    NOT NULL,
    status       TEXT    NOT NULL,
    -- Every byte of the commit that is wanted, as JSON.
    intent       TEXT    NOT NULL,
    commit_id    TEXT,
    error        TEXT,
    created_at   INTEGER NOT NULL,
    ended_at     INTEGER,
    row_sum      INTEGER
) STRICT;
CREATE TRIGGER effects_made AFTER INSERT ON effects BEGIN
    UPDATE effects SET row_sum = row_sum('effects',
        NEW.position, NEW.id, NEW.run_id, NEW.step_id, NEW.workspace_id, NEW.status,
        NEW.intent, NEW.commit_id, NEW.error, NEW.created_at, NEW.ended_at)
     WHERE position = NEW.position;
END;
CREATE TRIGGER effects_about_to_change BEFORE UPDATE OF
        position, id, run_id, step_id, workspace_id, status, intent, commit_id, error,
        created_at, ended_at
    ON effects WHEN OLD.row_sum IS NOT row_sum('effects',
        OLD.position, OLD.id, OLD.run_id, OLD.step_id, OLD.workspace_id, OLD.status,
        OLD.intent, OLD.commit_id, OLD.error, OLD.created_at, OLD.ended_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of effects does not match its sum');
END;
CREATE TRIGGER effects_changed AFTER UPDATE OF
        position, id, run_id, step_id, workspace_id, status, intent, commit_id, error,
        created_at, ended_at
    ON effects BEGIN
    UPDATE effects SET row_sum = row_sum('effects',
        NEW.position, NEW.id, NEW.run_id, NEW.step_id, NEW.workspace_id, NEW.status,
        NEW.intent, NEW.commit_id, NEW.error, NEW.created_at, NEW.ended_at)
     WHERE position = NEW.position;
END;

CREATE TABLE commits (
    position      INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    vcs           TEXT    NOT NULL,
    commit_id     TEXT    NOT NULL,
    run_id        TEXT    NOT NULL REFERENCES runs (id),
    step_id       TEXT    REFERENCES steps (id),
    message       TEXT    NOT NULL,
    author_name   TEXT    NOT NULL,
    author_email  TEXT    NOT NULL,
    files_changed INTEGER NOT NULL,
    insertions    INTEGER NOT NULL,
    deletions     INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    row_sum       INTEGER,
    UNIQUE (vcs, commit_id)
) STRICT;
CREATE TRIGGER commits_made AFTER INSERT ON commits BEGIN
    UPDATE commits SET row_sum = row_sum('commits',
        NEW.position, NEW.vcs, NEW.commit_id, NEW.run_id, NEW.step_id, NEW.message,
        NEW.author_name, NEW.author_email, NEW.files_changed, NEW.insertions,
        NEW.deletions, NEW.created_at)
     WHERE position = NEW.position;
END;
CREATE TRIGGER commits_about_to_change BEFORE UPDATE OF
        position, vcs, commit_id, run_id, step_id, message, author_name, author_email,
        files_changed, insertions, deletions, created_at
    ON commits WHEN OLD.row_sum IS NOT row_sum('commits',
        OLD.position, OLD.vcs, OLD.commit_id, OLD.run_id, OLD.step_id, OLD.message,
        OLD.author_name, OLD.author_email, OLD.files_changed, OLD.insertions,
        OLD.deletions, OLD.created_at)
BEGIN
    SELECT RAISE(ABORT, 'a row of commits does not match its sum');
END;
CREATE TRIGGER commits_changed AFTER UPDATE OF
        position, vcs, commit_id, run_id, step_id, message, author_name, author_email,
        files_changed, insertions, deletions, created_at
    ON commits BEGIN
    UPDATE commits SET row_sum = row_sum('commits',
        NEW.position, NEW.vcs, NEW.commit_id, NEW.run_id, NEW.step_id, NEW.message,
        NEW.author_name, NEW.author_email, NEW.files_changed, NEW.insertions,
        NEW.deletions, NEW.created_at)
     WHERE position = NEW.position;
END;

CREATE TABLE tasks (
    position     INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    run_id       TEXT    NOT NULL REFERENCES runs (id),
    step_id      TEXT    NOT NULL REFERENCES steps (id),
    name         TEXT    NOT NULL,
    -- The attempt at the step that it is a part of.
    attempt      INTEGER NOT NULL,
    status       TEXT    NOT NULL,
    error        TEXT,
    started_at   INTEGER NOT NULL,
    completed_at INTEGER,
    duration_ms  INTEGER,
    row_sum      INTEGER,
    UNIQUE (step_id, name)
) STRICT;
CREATE TRIGGER tasks_made AFTER INSERT ON tasks BEGIN
    UPDATE tasks SET row_sum = row_sum('tasks',
        NEW.position, NEW.run_id, NEW.step_id, NEW.name, NEW.attempt, NEW.status,
        NEW.error, NEW.started_at, NEW.completed_at, NEW.duration_ms)
     WHERE position = NEW.position;
END;
CREATE TRIGGER tasks_about_to_change BEFORE UPDATE OF
        position, run_id, step_id, name, attempt, status, error, started_at,
        completed_at, duration_ms
    ON tasks WHEN OLD.row_sum IS NOT row_sum('tasks',
        OLD.position, OLD.run_id, OLD.step_id, OLD.name, OLD.attempt, OLD.status,
        OLD.error, OLD.started_at, OLD.completed_at, OLD.duration_ms)
BEGIN
    SELECT RAISE(ABORT, 'a row of tasks does not match its sum');
END;
CREATE TRIGGER tasks_changed AFTER UPDATE OF
        position, run_id, step_id, name, attempt, status, error, started_at,
        completed_at, duration_ms
    ON tasks BEGIN
    UPDATE tasks SET row_sum = row_sum('tasks',
        NEW.position, NEW.run_id, NEW.step_id, NEW.name, NEW.attempt, NEW.status,
        NEW.error, NEW.started_at, NEW.completed_at, NEW.duration_ms)
     WHERE position = NEW.position;
END;

-- One row for each time that a text is asked in one place; a run has places outside of steps too.
CREATE UNIQUE INDEX questions_by_place ON questions (run_id, ifnull(step_id, ''), question, nth);
CREATE INDEX questions_that_wait ON questions (status) WHERE status = 'open';
CREATE INDEX effects_by_run ON effects (run_id);
CREATE INDEX effects_that_wait ON effects (workspace_id) WHERE status = 'pending';
CREATE INDEX commits_by_run ON commits (run_id);
CREATE INDEX tasks_by_run ON tasks (run_id);

-- Events of a type are looked for in their session.
CREATE INDEX events_by_type ON events (session_id, type, sequence);

-- Where to begin to look for the events since a time: those at a position and before it are of `latest` or earlier,
-- whatever the clock did. One row for each second that the latest time moves on by, of a session and, with an empty
-- name, of all. An index of the times themselves would lead to rows that still have to be put in their order.
CREATE TABLE event_times (
    session_id TEXT    NOT NULL,
    latest     INTEGER NOT NULL,
    position   INTEGER NOT NULL,
    row_sum    INTEGER NOT NULL,
    PRIMARY KEY (session_id, latest)
) STRICT, WITHOUT ROWID;
INSERT INTO event_times
    SELECT session_id, latest, first, row_sum('event_times', session_id, latest, first) FROM (
        -- Of the columns that are not grouped SQLite takes those of the row with the least position.
        SELECT session_id, latest, min(position) AS first FROM (
            SELECT session_id, position,
                   max(timestamp) OVER (PARTITION BY session_id ORDER BY position) AS latest
              FROM events
        ) GROUP BY session_id, latest / 1000000000
        UNION ALL
        SELECT '', latest, min(position) FROM (
            SELECT position, max(timestamp) OVER (ORDER BY position) AS latest FROM events
        ) GROUP BY latest / 1000000000
    );
CREATE TRIGGER events_timed AFTER INSERT ON events BEGIN
    INSERT INTO event_times
        SELECT name, NEW.timestamp, NEW.position,
               row_sum('event_times', name, NEW.timestamp, NEW.position)
          FROM (SELECT NEW.session_id AS name UNION ALL SELECT '')
         WHERE NOT EXISTS (SELECT 1 FROM event_times
                            WHERE session_id = name AND latest > NEW.timestamp - 1000000000);
END;

DROP INDEX runs_that_have_not_ended;
CREATE INDEX runs_that_have_not_ended ON runs (status)
    WHERE status IN ('pending', 'running', 'asking', 'waiting_for_input', 'interrupted');
