-- Tables that inherit from others at a target, as people have made them do; VENUS only parts them.

-- part --
-- Heirs that have left at the source would show rows here that a query there does not see any more; and what is done
-- to a table's columns would be done to its heirs', which follow by versions of their own.
DO $venus$
DECLARE heir regclass;
BEGIN
  FOR heir IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = to_regclass({table}) LOOP
    EXECUTE format('ALTER TABLE %s NO INHERIT %s', heir, to_regclass({table}));
  END LOOP;
END $venus$

-- inherits --
SELECT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = to_regclass(%(heir)s) AND inhparent = to_regclass(%(table)s))
