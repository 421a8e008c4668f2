"""Every statement for an Oracle database that follows and becomes the owner again, for a version of the server."""

from __future__ import annotations

from tests.support.oracle.scripts import STUDENT, make_full_table
from venus.adapters.dialects.oracle import registry
from venus.adapters.dialects.oracle.installation import handover
from venus.adapters.dialects.oracle.installation.table_comparison import build_triggers
from venus.adapters.dialects.oracle.language import ddl
from venus.adapters.dialects.oracle.session.options import Version
from venus.adapters.dialects.oracle.sql import applying_mark, literal, statement
from venus.adapters.targets.oracle import rowsql
from venus.adapters.targets.oracle.application_types import bind, find_loss
from venus.adapters.targets.oracle.session import split_statements, to_oracle

_BLOCKS = (
    "seal",
    "unseal",
    "empty_registry",
    "empty_batches",
    "empty_ddl",
    "empty_segments",
    "empty_log",
    "is_waiting",
)
#: Minimum versions: 12.1, and 18c.
_IDENTITY, _RESTART = ("always_identities", "set_identity", "is_on_null"), ("set_sequence",)
_PARTS = {
    "table": '"STUDENT"',
    "name": '"STUDENT_FK"',
    "trigger": "VENUS_REJ_I_00001",
    "event": "INSERT",
    "condition": '"NAME" IS NOT NULL',
    "most": "100",
    "seconds": "10",
    "child": '"ENROLL"',
    "parent": '"APP"."STUDENT"',
    "filled": 'C."STUDENT_ID" IS NOT NULL',
    "match": 'P."ID" = C."STUDENT_ID"',
    "columns": 'C."STUDENT_ID"',
    "column": '"ID"',
    "on_null": " ON NULL",
    "value": "1001",
    "sequence": '"STUDENT_SEQ"',
    "numbers": "1000",
    "mark": literal(applying_mark("APP")),
}


def fall_back_statements(version: Version) -> list[str]:
    """Return every statement once."""
    newer = (*(() if version.invisible_identity else _IDENTITY), *(() if version.restarts_sequences else _RESTART))
    own = [
        rowsql.statement(file, block, **_PARTS)
        for file in ("side", "cutover")
        for block in rowsql.statement.blocks(file)
        if block not in newer
    ]
    quiet = [ddl.quiet_trigger(made, "APP").sql for made in build_triggers(STUDENT, 1)]
    continued = [statement("registry", block, log="VENUS_L_00001", epoch="7") for block in _BLOCKS]
    continued.append(handover.position_sql(epoch=7, next_sequence=8, last_batch=9))
    continued.append(registry.continue_statement(make_full_table().schema, registry.ACTIVE, ""))
    session = f"BEGIN DBMS_APPLICATION_INFO.SET_CLIENT_INFO({literal(applying_mark('APP'))}); END;"
    texts = [ddl.statement_for(version, text) for text in (*quiet, *continued)]
    return sorted({session, *texts, *_write_statements(), *(to_oracle(ddl.statement_for(version, t))[0] for t in own)})


def _write_statements() -> list[str]:
    """Return an INSERT with a column of every type that can be carried back."""
    kept = {n: r for n, r in make_full_table().readings.items() if not find_loss(r)}
    places = [bind(r).sql.replace("{b}", f":{n}") for n, r in enumerate(kept.values(), 1)]
    names = ", ".join(f'"{name}"' for name in kept)
    return [next(split_statements(f'INSERT INTO "EXAM" ({names}) VALUES ({", ".join(places)})'))]
