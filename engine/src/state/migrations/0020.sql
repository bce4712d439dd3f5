-- What runs of versions before 12 and 13 amount to, as far as their events say it: their calls of tools and their tokens.
-- Those versions had no agents, and no event that names one. An event that does not match its sum says nothing.

-- As `move_call` writes an event, one after the other. An input or output that is large stays in its event alone. In a
-- version without sources only the engine could write these.
INSERT INTO tool_calls (run_id, call_id, source, tool_name, status, input, input_bytes, output, output_bytes, error,
        started_at, ended_at)
    SELECT run_id, call_id, source,
           CASE WHEN length(CAST(tool_name AS BLOB)) BETWEEN 1 AND 200 THEN tool_name END,
           CASE type WHEN 'tool_call_started' THEN 'running' WHEN 'tool_call_completed' THEN 'completed' ELSE 'failed' END,
           CASE WHEN input_bytes < 1024 THEN input END, CASE WHEN input_bytes < 1024 THEN input_bytes END,
           CASE WHEN output_bytes < 1024 THEN output END, CASE WHEN output_bytes < 1024 THEN output_bytes END,
           CASE type WHEN 'tool_call_failed' THEN error END,
           CASE type WHEN 'tool_call_started' THEN timestamp END, CASE type WHEN 'tool_call_started' THEN NULL ELSE timestamp END
      FROM (SELECT position, run_id, type, timestamp, coalesce(source, 'engine') AS source,
                   CASE json_type(data, '$.call_id') WHEN 'text' THEN data ->> '$.call_id' END AS call_id,
                   CASE json_type(data, '$.tool_name') WHEN 'text' THEN data ->> '$.tool_name' END AS tool_name,
                   nullif(data -> '$.input', 'null') AS input,
                   length(CAST(CASE json_type(data, '$.input') WHEN 'text' THEN data ->> '$.input'
                       ELSE nullif(data -> '$.input', 'null') END AS BLOB)) AS input_bytes,
                   nullif(data -> '$.output', 'null') AS output,
                   length(CAST(CASE json_type(data, '$.output') WHEN 'text' THEN data ->> '$.output'
                       ELSE nullif(data -> '$.output', 'null') END AS BLOB)) AS output_bytes,
                   json_object(
                       'kind', CASE json_type(data, '$.kind') WHEN 'text' THEN data ->> '$.kind' END,
                       'message', CASE json_type(data, '$.reason') WHEN 'text' THEN data ->> '$.reason' ELSE '' END) AS error
              FROM (SELECT position, run_id, type, timestamp, source,
                           CASE WHEN row_sum IS row_sum('events',
                                   position, id, session_id, sequence, run_id, type, timestamp, schema_version, data,
                                   source, provider, correlation_id, metadata, data_ref)
                               AND json_valid(data) THEN data END AS data
                      FROM events
                     WHERE type IN ('tool_call_started', 'tool_call_completed', 'tool_call_failed')
                       AND run_id IN (SELECT id FROM runs))) AS told
     WHERE length(CAST(call_id AS BLOB)) BETWEEN 1 AND 200
       AND NOT EXISTS (SELECT 1 FROM tool_calls AS known
                        WHERE known.run_id = told.run_id AND known.call_id = told.call_id)
     ORDER BY position
    ON CONFLICT (run_id, call_id) DO UPDATE SET
        tool_name = CASE WHEN excluded.started_at IS NULL THEN coalesce(excluded.tool_name, tool_name)
            ELSE excluded.tool_name END,
        status = excluded.status,
        input = CASE WHEN excluded.started_at IS NULL AND excluded.input_bytes IS NULL THEN input ELSE excluded.input END,
        input_bytes = CASE WHEN excluded.started_at IS NULL THEN coalesce(excluded.input_bytes, input_bytes)
            ELSE excluded.input_bytes END,
        output = excluded.output,
        output_bytes = excluded.output_bytes,
        error = excluded.error,
        started_at = coalesce(excluded.started_at, started_at),
        ended_at = excluded.ended_at
     WHERE source = excluded.source;
-- No call is under way in a run that rests or has ended.
UPDATE tool_calls SET
        status = 'interrupted',
        ended_at = coalesce(
            (SELECT ended_at FROM runs WHERE id = tool_calls.run_id),
            (SELECT max(timestamp) FROM events WHERE run_id = tool_calls.run_id))
 WHERE status = 'running'
   AND run_id IN (SELECT id FROM runs
                   WHERE status IN ('interrupted', 'waiting_for_input', 'completed', 'failed', 'cancelled', 'timeout'))
   AND row_sum IS row_sum('tool_calls',
        position, run_id, call_id, step_id, source, tool_name, status, input, input_ref, input_summary, input_bytes,
        output, output_ref, output_summary, output_bytes, error, started_at, ended_at);

-- A run that began in such a version may have a total of what came later, and one of which events were removed has more
-- than they say. Sums are of floating-point numbers, because those of integers fail where they overflow.
INSERT INTO token_totals (run_id, input_tokens, output_tokens)
    SELECT run_id, CAST(total(input_tokens) AS INTEGER), CAST(total(output_tokens) AS INTEGER)
      FROM (SELECT run_id, json_type(data) AS kind,
                   coalesce(json_type(data, '$.input_tokens'), 'integer') AS input_kind,
                   coalesce(data ->> '$.input_tokens', 0) AS input_tokens,
                   coalesce(json_type(data, '$.output_tokens'), 'integer') AS output_kind,
                   coalesce(data ->> '$.output_tokens', 0) AS output_tokens,
                   coalesce(json_type(data, '$.cost'), 'null') AS cost_kind,
                   coalesce(data ->> '$.cost', 0) AS cost
              FROM (SELECT run_id,
                           CASE WHEN row_sum IS row_sum('events',
                                   position, id, session_id, sequence, run_id, type, timestamp, schema_version, data,
                                   source, provider, correlation_id, metadata, data_ref)
                               AND json_valid(data) THEN data END AS data
                      FROM events
                     WHERE type = 'token_usage_updated' AND run_id IN (SELECT id FROM runs)))
     WHERE kind = 'object'
       AND input_kind = 'integer' AND input_tokens >= 0
       AND output_kind = 'integer' AND output_tokens >= 0
       AND cost_kind IN ('null', 'integer', 'real') AND cost >= 0
     GROUP BY run_id
    HAVING total(input_tokens) > 0 OR total(output_tokens) > 0
    ON CONFLICT (run_id) DO UPDATE SET
        input_tokens = max(input_tokens, excluded.input_tokens),
        output_tokens = max(output_tokens, excluded.output_tokens)
     WHERE (excluded.input_tokens > input_tokens OR excluded.output_tokens > output_tokens)
       AND row_sum IS row_sum('token_totals', run_id, input_tokens, output_tokens);

-- Which sessions and runs have snapshots is asked where sessions are removed.
CREATE INDEX snapshots_of_a_session ON snapshots (session_id);
CREATE INDEX snapshots_of_a_run ON snapshots (run_id);
