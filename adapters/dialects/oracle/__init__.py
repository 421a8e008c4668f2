"""Oracle as a source.

Reading order: source; capture/cut, rows, dictionary/types; session/; dictionary/; language/, installation/.

Decisions of this dialect:

- VENUS creates all of its objects in the schema of the user it connects as, with names of at most 30 bytes. It does not
  alter the application's tables: three row triggers log the key of each changed row, and nothing else.
- VENUS creates triggers DISABLED, checks them in the dictionary and only then enables them. CREATE TRIGGER succeeds
  with a body that does not compile, and the application's statements would fail from then on.
- Cuts consume log rows by exact delete, so the sequence may be NOORDER, cached and different on each instance.
- Triggers compare character keys under the application's session settings. Where the settings are linguistic ('a'
  equals 'A'), every UPDATE logs the old key too: a superfluous log row is harmless, a missing one is not.
- own.sql, not the migrations, creates VENUS's tables: a DBA can read, review and run one script.
- The project's own tests have not run on a real Oracle; docs/reference/oracle-evidence.md (made of
  tests/oracle_evidence.toml) lists the evidence for each behaviour.
"""

from venus.adapters.dialects.contract import Option

OPTIONS = frozenset(Option)
#: The dictionary stores unquoted names in upper case.
UPPER_CASE_NAMES = True
