-- Lock waits and their holders: only SELECTs. Members of pg_read_all_stats see the sessions of other roles too.

-- waits --
-- The sessions of VENUS that wait, the relation, and the blocking session; pid 0 is a prepared transaction.
SELECT coalesce(r.name, ''), b.pid, coalesce(a.usename, ''), coalesce(a.application_name, ''),
       coalesce(to_char(a.xact_start, 'YYYY-MM-DD HH24:MI:SS'), ''), coalesce(a.state, ''), coalesce(a.query, '')
  FROM pg_stat_activity w
  CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) b (pid)
  LEFT JOIN pg_stat_activity a ON a.pid = b.pid
  LEFT JOIN LATERAL (SELECT n.nspname || '.' || c.relname AS name
                       FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
                      WHERE l.pid = w.pid AND NOT l.granted LIMIT 1) r ON true
 WHERE w.datname = current_database() AND w.wait_event_type = 'Lock' AND w.application_name LIKE %(sessions)s
   AND clock_timestamp() - w.query_start >= %(seconds)s * interval '1 s'
 ORDER BY a.xact_start

-- holders --
-- The sessions that hold a lock in one of these modes on one of these tables.
SELECT DISTINCT n.nspname || '.' || c.relname, coalesce(l.pid, 0), coalesce(a.usename, ''),
       coalesce(a.application_name, ''), coalesce(to_char(a.xact_start, 'YYYY-MM-DD HH24:MI:SS'), ''),
       coalesce(a.state, ''), coalesce(a.query, '')
  FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.granted AND l.relation = ANY (%(tables)s::oid[]) AND l.mode = ANY (%(modes)s)
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND coalesce(l.pid, 0) <> pg_backend_pid()
 ORDER BY 5

-- open_transactions --
SELECT '', pid, coalesce(usename, ''), coalesce(application_name, ''), to_char(xact_start, 'YYYY-MM-DD HH24:MI:SS'),
       coalesce(state, ''), coalesce(query, '')
  FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend' AND xact_start IS NOT NULL
   AND pid <> pg_backend_pid()
 ORDER BY xact_start LIMIT 3

-- prepared --
SELECT gid, owner::text, to_char(prepared, 'YYYY-MM-DD HH24:MI:SS') FROM pg_prepared_xacts
 WHERE database = current_database() ORDER BY prepared LIMIT 3
