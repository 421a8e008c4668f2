-- Settings of every session of VENUS, at a source and at a target, regardless of those of the database and the role.

-- settings --
-- Conversion between values and text. Values travel as text, so both ends must interpret it alike: under another
-- lc_monetary $12.34 is read as $1,234.00, with array_nulls off NULL in an array becomes the string NULL, and with
-- xmloption = document XML with several roots is refused. Strings in statements have no escapes, and names from the
-- dictionary have quotes only where needed. Rows that a policy hides from the role raise an error, because DELETE and
-- comparisons would skip them silently.
SET datestyle = 'ISO, YMD'; SET intervalstyle = 'postgres'; SET timezone = 'UTC'; SET extra_float_digits = 1;
SET bytea_output = 'hex'; SET lc_monetary = 'C'; SET xmloption = content; SET array_nulls = on;
SET standard_conforming_strings = on; SET quote_all_identifiers = off; SET client_min_messages = warning;
SET row_security = off

-- transactions --
-- Defaults for transactions. A concurrent instance must wait and then see the other's result; under another isolation that
-- would be an error. DEFERRABLE transactions could wait for all others. Time limits of the database or role do not apply: a
-- longer cut would be retried for ever, and a session waits for the broker. Read-only is kept, because it was set to
-- prevent writes.
SET default_transaction_isolation = 'read committed'; SET default_transaction_deferrable = off;
SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('transaction_timeout', 'idle_session_timeout')

-- own_triggers --
-- If the database or role set session_replication_role = replica, the session's writes fire no trigger.
SELECT set_config('session_replication_role', 'origin', false)
 WHERE current_setting('session_replication_role') <> 'origin'

-- durable --
-- A commit returns only when it is on disk, regardless of the settings of the database and the role. A stronger setting is
-- kept: a server may also wait for standbys.
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
