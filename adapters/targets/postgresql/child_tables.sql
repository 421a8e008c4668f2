-- Tables that inherit from others at a target. Operators create the inheritance; VENUS only removes it.

-- part --
-- A child table that no longer inherits at the source would add rows to queries of its parent here. A change of the
-- parent's columns would also change those of its children, which follow by their own versions.
DO $venus$
DECLARE child regclass;
BEGIN
  FOR child IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = to_regclass({table}) LOOP
    EXECUTE format('ALTER TABLE %s NO INHERIT %s', child, to_regclass({table}));
  END LOOP;
END $venus$

-- inherits --
SELECT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = to_regclass(%(child)s) AND inhparent = to_regclass(%(table)s))
