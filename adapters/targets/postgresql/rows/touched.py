"""Takes note of keys whose changes wait in quarantine: they exist at the source all the same (apply/recording.py)."""

from __future__ import annotations

from venus.adapters.targets.postgresql.catalogue import Catalogue
from venus.adapters.targets.postgresql.rows.keyed import key_values
from venus.adapters.targets.postgresql.rowsql import RowSql
from venus.adapters.targets.postgresql.session import Session
from venus.adapters.under.fold import Rows, net
from venus.codec.layout import Layout


def touch(session: Session, catalogue: Catalogue, rows: Rows, sql: RowSql, layout: Layout) -> None:
    """Add the keys of these rows to the record of touched keys, if their table has one."""
    if not catalogue.records(layout.schema.table_id):
        return
    last = int(rows.offsets[-1])
    values = key_values(session, layout, net(rows).record_ids, (last,))
    session.run(sql.text("touch_values", values=values))
