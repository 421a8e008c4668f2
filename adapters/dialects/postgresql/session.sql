-- What every session of VENUS sets, at a source and at a target, whatever database and role have.

-- settings --
-- How values are written as text and read from it. Values travel as text, so both ends must mean the same by it: under
-- another lc_monetary $12.34 is read as $1,234.00, with array_nulls off NULL in an array as the string NULL, and with
-- xmloption = document no XML is read that has several roots. Statements have strings without escapes, and what the
-- dictionary says has quotes only where names need them. Rows that a policy hides from the role are an error: a DELETE
-- would pass them by in silence, and so would a comparison.
SET datestyle = 'ISO, YMD'; SET intervalstyle = 'postgres'; SET timezone = 'UTC'; SET extra_float_digits = 1;
SET bytea_output = 'hex'; SET lc_monetary = 'C'; SET xmloption = content; SET array_nulls = on;
SET standard_conforming_strings = on; SET quote_all_identifiers = off; SET client_min_messages = warning;
SET row_security = off

-- transactions --
-- How transactions run that do not say it themselves. A rival of the same work waits and then sees what the other one has
-- done: under another isolation that would be an error. DEFERRABLE ones could wait for everybody. Limits of time of the
-- database or role are for others: a cut that took longer would be tried for ever, and a session waits for the broker.
-- Read-only stays as it is: whoever has set that wants nothing to be written.
SET default_transaction_isolation = 'read committed'; SET default_transaction_deferrable = off;
SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('transaction_timeout', 'idle_session_timeout')

-- own_triggers --
-- Where database or role have session_replication_role = replica, what a session writes fires no trigger.
SELECT set_config('session_replication_role', 'origin', false)
 WHERE current_setting('session_replication_role') <> 'origin'

-- durable --
-- What a session acknowledges is on disk, whatever database and role have. Whoever has more than that keeps it: a server
-- may wait for its standbys, or for some of them.
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
