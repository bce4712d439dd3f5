-- Whether something is in quarantine is asked when an engine starts: refused checkpoints are, as well as those of which
-- nobody knows whether the remote has them.
DROP INDEX checkpoints_unsettled;
CREATE INDEX checkpoints_not_proven ON checkpoints (status) WHERE status IN ('made', 'sent', 'refused');
