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

-- durable --
-- What a session acknowledges is on disk, whatever database and role have. Whoever has more than that keeps it: a server
-- may wait for its standbys, or for some of them.
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
