-- Queries about a running full load; {own} is VENUS's own schema.

-- progress --
-- The rows of committed splits, the number of these splits, and the rows that every running COPY has taken so far.
SELECT coalesce(sum(m.rows + m.parked), 0)::bigint, count(*), (
    SELECT coalesce(sum(p.tuples_processed), 0)::bigint
    FROM pg_stat_progress_copy p JOIN pg_stat_activity a ON a.pid = p.pid
    WHERE a.application_name LIKE %(application)s)
FROM {own}.load_manifest m WHERE m.load_id = %(load_id)s AND m.done_at IS NOT NULL
