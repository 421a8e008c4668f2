"""Brings the log tables and trigger functions of an older version up to date while capture runs.

A function is replaced only if it has missed nothing. It takes a wider key than before only together with its log: the
application's statement would fail on a value that the log's column cannot hold.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from venus.adapters.dialects.postgresql import names, triggers
from venus.adapters.dialects.postgresql.connection import Connection, LockTimeout, NotPermitted
from venus.adapters.dialects.postgresql.dictionary import Table
from venus.adapters.dialects.postgresql.install import Present, local_name, log_widths
from venus.adapters.dialects.postgresql.statements import statement

logger = logging.getLogger(__name__)

#: Writers queue up behind the request for the lock, so it is short, and given up.
LOCK_MS = 100
#: A log is rewritten while its writers wait: a larger one is left to `venus install-triggers`.
LOG_BYTES_MAX = 16 << 20


def renew(connection: Connection, table: Table, table_id: int, present: Present) -> Present:
    """Widen a log whose key became wider, and replace functions; what is in use stays until the next comparison."""
    made = triggers.functions(table, table_id)
    stale = [f for f in made if f.captures_like(present.functions.get(local_name(f.name), ""))]
    widths = log_widths(table, table_id, present)
    if not stale and not widths:
        return present
    log = names.log_table(table_id)
    try:
        with connection.transaction():
            if widths:
                connection.run(statement("triggers", "lock_log", log=log, lock_ms=str(LOCK_MS)))
                if connection.row(statement("triggers", "log_bytes", log=log))[0] > LOG_BYTES_MAX:
                    return present
            for sql in (*(step.sql for step in widths), *(function.sql for function in stale)):
                connection.run(sql)
    except (LockTimeout, NotPermitted) as error:
        logger.info("%s.%s: log %s and its functions stay as they are: %s", table.namespace, table.name, log, error)
        return present
    wide = tuple((key.log_type, key.collation) for key in table.key)
    return replace(
        present,
        functions=present.functions | {local_name(f.name): f.body for f in stale},
        logs=present.logs | ({local_name(log): wide} if widths else {}),
    )
