"""Oracle as a source (capture.md 0, 3, 4).

Reading order: source, cut, reading, types; driver, connection; tables, dictionary, choosing; ddl, install.

What was decided here, and why:

- Everything of VENUS lies in the schema of the user it connects as, with names of at most 30 bytes. The application's
  tables are not altered: three row triggers note the key of each changed row in a log table, and nothing else.
- Triggers are made DISABLED, looked up in the dictionary and only then enabled: CREATE TRIGGER succeeds with a body
  that does not compile, and the application's statements would fail from then on.
- Log rows are consumed by exact delete, so the sequence may be NOORDER, cached and different on each instance.
- Whether a character key has changed is compared under the application's session settings. Where these are linguistic
  ('a' equals 'A'), the old key is noted with every UPDATE: one log row too many is harmless, one too few is not.
- Own tables are made by own.sql, not by the migrations: one script that a DBA can read, review and run himself.
- None of this has met a real Oracle in the project's own tests; docs/oracle/EVIDENCE.md says what vouches for what.
"""

from venus.adapters.dialects.contract import Option

OPTIONS = frozenset({Option.INLINE, Option.TYPE_MAP, Option.COLUMNS, Option.ADOPT})
#: The dictionary has unquoted names in upper case.
UPPER_CASE_NAMES = True
