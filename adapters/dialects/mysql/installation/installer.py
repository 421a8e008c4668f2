"""The steps that install capture at MariaDB or MySQL, remove it, or release individual tables; and their execution.

MySQL commits at every DDL statement, so an installation is not atomic. Instead, every step can be repeated: existing
objects are not created again, a table is registered after its triggers exist, and the removal drops the triggers first.
Running an interrupted installation or removal again completes it.

CREATE TRIGGER waits for open transactions that wrote to its table, so the first fill sees their rows. The lock request
of CREATE TRIGGER has a short timeout and is repeated, so that the application does not queue behind a long
transaction.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

from venus.adapters.dialects.contract import InstallStep, SourceInstaller
from venus.adapters.dialects.mysql import connection as waits
from venus.adapters.dialects.mysql import registry
from venus.adapters.dialects.mysql import sql as names
from venus.adapters.dialects.mysql.connection import MysqlConnection
from venus.adapters.dialects.mysql.dictionary.marks import definition_key
from venus.adapters.dialects.mysql.dictionary.tables import (
    MysqlDictionary,
    MysqlTable,
    heartbeat_table,
    read_dictionary,
)
from venus.adapters.dialects.mysql.installation import triggers
from venus.adapters.dialects.mysql.installation.check import check, find_large_values, find_valve_obstacle
from venus.adapters.dialects.mysql.installation.installed_objects import MysqlInstalledObjects
from venus.adapters.dialects.mysql.installation.triggers import CascadePath, MysqlTrigger, find_reaching
from venus.adapters.dialects.mysql.registry import MysqlRegistryEntry
from venus.adapters.dialects.mysql.sql import literal, quote, statement
from venus.adapters.dialects.registry_rules import (
    BY_SCRIPT,
    NO_LIMITS,
    RELEASED,
    RELEASING,
    TRIGGERS_GONE,
    LogLimits,
    full_log_reason,
    qualified_names,
    refuse_if_written,
)
from venus.adapters.dialects.rows import find_large_rows
from venus.adapters.dialects.statements import plain_script, refuse_blocked
from venus.codec.schema import fingerprint
from venus.errors import LockConflict, LockTimeout
from venus.migrations import run as migrations
from venus.model import Finding

logger = logging.getLogger(__name__)

_RETRY_AFTER_S = 1.0


class MysqlInstaller(SourceInstaller):
    """The part of a MariaDB or MySQL source that installs capture and removes it."""

    as_script = staticmethod(plain_script)

    def __init__(self, writer: MysqlConnection, log: LogLimits, on_change: Callable[[], None]) -> None:
        """`on_change`: called before a change of the objects or of the registry."""
        self._writer, self._log = writer, log
        self._on_change = on_change

    def check(self, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
        found = check(self._writer, include, exclude)
        if self._log.is_set and (remedy := find_valve_obstacle(self._writer)):
            message = "the logs are limited only while capture runs"
            found.append(Finding(where="server", message=message, remedy=f"{remedy} then `venus install-triggers`"))
        return found

    def find_large_rows(self, include: Seq[str], exclude: Seq[str]) -> list[Finding]:
        dictionary = read_dictionary(self._writer, zero_dates_null=self._writer.options.zero_dates_null)
        return list(find_large_rows(find_large_values(self._writer, dictionary.choose_tables(include, exclude))))

    def plan_install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        refuse_blocked(self.check(include, exclude))
        dictionary = read_dictionary(self._writer, zero_dates_null=self._writer.options.zero_dates_null)
        steps = own_steps(self._writer) + all_table_steps(self._writer, dictionary, include, exclude)
        return steps + list(valve_steps(self._writer, steps, self._log))

    def install(self, include: Seq[str], exclude: Seq[str]) -> list[InstallStep]:
        return self._run(self.plan_install(include, exclude))

    def plan_uninstall(self) -> list[InstallStep]:
        """Return every statement of the removal in order: triggers first, because they need the logs."""
        present = MysqlInstalledObjects.read(self._writer)
        database = self._writer.address.database
        places = present.numbers
        steps = [
            *valve_steps(self._writer, [], NO_LIMITS),
            *(
                InstallStep(table=f"{database}.{table}", what=f"trigger {name}", sql=drop_trigger_sql(database, name))
                for name, table in sorted(present.rejecting.items())
            ),
        ]
        for name in sorted(present.triggers):
            table = places.get(table_number(name), f"{database}.{present.triggers[name][1]}")
            steps.append(InstallStep(table=table, what=f"trigger {name}", sql=drop_trigger_sql(database, name)))
        shared = [name for name in names.SHARED if name in present.other_tables]
        for name in [*sorted(present.logs), *shared, *sorted(present.follower_tables, key=_drop_order)]:
            sql = statement("triggers", "drop_table", table=f"{quote(database)}.{name}")
            digits = name.rpartition("_")[2]
            table = places.get(int(digits), "") if digits.isdecimal() else ""
            steps.append(InstallStep(table=table, what=f"table {name}", sql=sql))
        return steps + [
            InstallStep(table="", what="VENUS's own tables", sql=sql)
            for sql in _own_removal_statements(self._writer, present)
        ]

    def uninstall(self) -> list[InstallStep]:
        return self._run(self.plan_uninstall())

    def plan_release(self, table_ids: Seq[int]) -> list[InstallStep]:
        present = MysqlInstalledObjects.read(self._writer)
        return [
            *_release_steps(self._writer, present, table_ids),
            *_log_removal_steps(self._writer, present, dict.fromkeys(table_ids, BY_SCRIPT)),
        ]

    def release(self, table_ids: Seq[int]) -> list[InstallStep]:
        return self._run(_release_steps(self._writer, MysqlInstalledObjects.read(self._writer), table_ids))

    def drop_logs(self, reasons: Mapping[int, str]) -> list[InstallStep]:
        present = MysqlInstalledObjects.read(self._writer)
        refuse_if_written({i: present.numbers[i] for i in reasons}, map(table_number, present.triggers))
        return self._run(_log_removal_steps(self._writer, present, reasons))

    def _run(self, steps: list[InstallStep]) -> list[InstallStep]:
        """Run the steps whose objects do not exist yet, with a short lock timeout; return all steps."""
        self._on_change()
        options = self._writer.options
        self._writer.run(f"SET lock_wait_timeout = {options.install_lock_timeout_s}")
        try:
            for step in steps:
                if not step.exists:
                    run_with_retries(self._writer, step.sql)
        finally:
            self._writer.run(f"SET lock_wait_timeout = {options.lock_timeout_s}")
        return steps


def _drop_order(name: str) -> tuple[bool, str]:
    """Return the sort key for dropping tables of a follower: venus_side is last, because it shows that some remain."""
    return name == names.SIDE, name


def _release_steps(
    connection: MysqlConnection, present: MysqlInstalledObjects, table_ids: Seq[int]
) -> list[InstallStep]:
    """Return the steps that remove triggers. The registry is updated first, so that capture expects no triggers."""
    released = [k.table for k in registry.read_tables(connection, released=True)]
    places = qualified_names([*(k.table for k in registry.read_tables(connection)), *released], table_ids)
    steps = []
    for table_id, place in places.items():
        if not any(t.schema.table_id == table_id for t in released):
            sql = registry.set_state_sql(table_id, RELEASING, TRIGGERS_GONE)
            steps.append(InstallStep(table=place, what=f"state {RELEASING}", sql=sql))
        steps += [
            InstallStep(table=place, what=f"trigger {name}", sql=drop_trigger_sql(connection.address.database, name))
            for name in sorted(present.triggers)
            if table_number(name) == table_id
        ]
    return steps


def _log_removal_steps(
    connection: MysqlConnection, present: MysqlInstalledObjects, reasons: Mapping[int, str]
) -> list[InstallStep]:
    """Return the steps that remove logs. The registry is updated first, so that capture reads no missing log."""
    places = qualified_names((k.table for k in (*present.registered.values(), *present.released.values())), reasons)
    steps = []
    for table_id, place in places.items():
        sql = registry.set_state_sql(table_id, RELEASED, reasons[table_id])
        steps.append(InstallStep(table=place, what=f"state {RELEASED}", sql=sql))
        if (log := names.log_table_name(table_id)) in present.logs:
            sql = statement("triggers", "drop_table", table=f"{quote(connection.address.database)}.{log}")
            steps.append(InstallStep(table=place, what=f"table {log}", sql=sql))
    return steps


def _own_removal_statements(connection: MysqlConnection, present: MysqlInstalledObjects) -> list[str]:
    """Return the statements that drop VENUS's own tables, also after an interrupted removal."""
    with connection.sqlalchemy() as lent:
        own = [
            make_repeatable(sql) for sql in migrations.render_sql(lent, "source", schema=None, direction="downgrade")
        ]
        theirs = migrations.is_installed(lent, "target", schema=None)
    if own or theirs:
        return own
    # after an interrupted removal or installation no revision is recorded, but tables may exist
    left = ["venus_heartbeat", "venus_captured_table", "venus_batch", "venus_checkpoint", "venus_alembic_version"]
    return [f"DROP TABLE IF EXISTS {name}" for name in left if name in present.other_tables]


def _describe_holders(connection: MysqlConnection) -> str:
    """Describe the sessions that may hold the lock for which a step waits."""
    return waits.describe_sessions(connection, "locking") or "the server does not show which session holds it"


def run_with_retries(connection: MysqlConnection, sql: str) -> None:
    """Run a statement. If it gets no lock in time, let the sessions that queue behind it proceed, and try again."""
    for left in range(connection.options.install_attempts, 0, -1):
        try:
            connection.run(sql)
        except LockConflict as error:
            if left == 1:
                raise LockTimeout(
                    f"source {connection.place}: a table was in use for too long: {_describe_holders(connection)}",
                    hint="end the transaction that holds the lock (SHOW PROCESSLIST), then run this command again",
                ) from error
            statement_shown = sql.split("\n")[0][:120]
            logger.warning(
                "waiting for an open transaction to run: %s; %s", statement_shown, _describe_holders(connection)
            )
            time.sleep(_RETRY_AFTER_S)
        else:
            return


MENDED = "a trigger or log table was missing or altered and was created again: changes were missed"
#: Description of a log that an older version created only as wide as the key. It has missed no change.
WIDTH = "width of log table "
_NEW_TABLE = re.compile(r"CREATE TABLE (?!IF NOT)")
_ENGINE = " ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"


def own_steps(connection: MysqlConnection) -> list[InstallStep]:
    """Return the steps that create VENUS's own tables."""
    with connection.sqlalchemy() as lent:
        statements = migrations.render_sql(lent, "source", schema=None)
    what = "VENUS's own tables"
    if not statements:
        return [InstallStep(table="", what=what, sql="", exists=True)]
    return [InstallStep(table="", what=what, sql=make_repeatable(sql)) for sql in statements]


def make_repeatable(sql: str) -> str:
    """Return a statement of the migrations in a form that can run again after an interrupted installation."""
    if _NEW_TABLE.match(sql):
        return _NEW_TABLE.sub("CREATE TABLE IF NOT EXISTS ", sql, count=1) + _ENGINE
    sql = re.sub(r"^INSERT INTO", "INSERT IGNORE INTO", sql)
    return re.sub(r"^DROP TABLE (?!IF)", "DROP TABLE IF EXISTS ", sql)


def all_table_steps(
    connection: MysqlConnection, dictionary: MysqlDictionary, include: Seq[str], exclude: Seq[str]
) -> list[InstallStep]:
    """Return the installation steps of all tables that are chosen or captured already."""
    present = MysqlInstalledObjects.read(connection)
    database = connection.address.database
    steps = [
        InstallStep(
            table="",
            what=f"table {name}",
            sql=statement("triggers", block, table=f"{quote(database)}.{name}"),
            exists=name in present.other_tables,
        )
        for name, block in names.SHARED.items()
    ]
    chosen = {t.name: t for t in dictionary.choose_tables(include, exclude)}
    # captured tables stay captured even if the patterns no longer choose them
    chosen |= {n: dictionary.tables[n] for n in present.registered if n in dictionary.tables}
    chosen[names.HEARTBEAT] = dictionary.tables.get(names.HEARTBEAT, heartbeat_table(database))
    paths, _ = find_reaching(dictionary.references, set(chosen))
    next_id = present.next_free_id(max(present.numbers, default=0) + 1)
    for name in sorted(chosen, key=lambda n: (n != names.HEARTBEAT, n)):
        known = present.registered.get(name) or present.released.get(name)
        table_id = known.table_id if known else next_id
        next_id = next_id if known else present.next_free_id(next_id + 1)
        if chosen[name].key and not chosen[name].unsupported:
            steps += table_steps(chosen[name], table_id, present, [p for p in paths if p.child == name])
    return steps


#: How long the valve waits for a lock, because writers queue behind it.
_VALVE_LOCK_S = 2


def valve_steps(connection: MysqlConnection, steps: Seq[InstallStep], limits: LogLimits) -> Iterator[InstallStep]:
    """Yield the steps for the valve, an event that drops the triggers of a table whose log reaches its limit.

    The event covers the tables whose triggers `steps` contain. If no limit is set, the steps remove the event.
    """
    database = connection.address.database
    event, what = f"{quote(database)}.{names.VALVE}", f"event {names.VALVE}"
    parts = {"database": literal(database), "name": literal(names.VALVE)}
    there = [(str(c), str(s)) for c, s in connection.rows(statement("triggers", "installed_valve", **parts))]
    if there and not there[0][0].startswith(_VALVE_COMMENT):
        return  # an event of the application
    wanted = _valve_logs(database, steps, limits) if limits.rows_max and find_valve_obstacle(connection) == "" else ""
    comment = f"{_VALVE_COMMENT}{hashlib.blake2b(wanted.encode(), digest_size=16).hexdigest()}"
    done = there == [(comment, "ENABLED")]
    if there and not (wanted and done):
        yield InstallStep(table="", what=f"old {what}", sql=statement("triggers", "drop_valve", event=event))
    if wanted:
        parts = {"event": event, "comment": literal(comment), "logs": wanted, "wait_s": str(_VALVE_LOCK_S)}
        yield InstallStep(table="", what=what, sql=statement("triggers", "valve", **parts), exists=done)


_VALVE_COMMENT = "VENUS "


def _valve_logs(database: str, steps: Seq[InstallStep], limits: LogLimits) -> str:
    """Return the body of the event that limits logs: one statement for each log with triggers."""
    written: dict[int, list[str]] = {}
    for name in (step.what.removeprefix("trigger ") for step in steps if step.what.startswith("trigger ")):
        written.setdefault(table_number(name), []).append(name)
    return ";\n  ".join(
        statement(
            "triggers",
            "valve_log",
            log=f"{quote(database)}.{names.log_table_name(table_id)}",
            table_id=str(table_id),
            rows=str(limits.rows_max),
            rows_before=str(limits.rows_max - 1),
            reason=literal(full_log_reason(limits)),
            drops="\n    ".join(f"DROP TRIGGER IF EXISTS {quote(database)}.{quote(name)};" for name in found),
        )
        for table_id, found in sorted(written.items())
    )


def table_steps(
    table: MysqlTable, table_id: int, present: MysqlInstalledObjects, paths: Seq[CascadePath]
) -> list[InstallStep]:
    """Return the installation steps of one table. A repaired table becomes RESYNC; a released one is recaptured."""
    known = present.registered.get(table.name)
    steps = log_steps(table, table_id, present)
    for trigger in triggers.build_triggers(table, table_id, paths):
        steps += _trigger_steps(table, trigger, present)
    mended = known is not None and any(not s.exists and not s.what.startswith(WIDTH) for s in steps)
    out = present.released.get(table.name)
    registration = registry.register_sql(table, table_id)
    steps.append(InstallStep(table=table.where, what="registration", sql=registration, exists=bool(known or out)))
    if out is not None:
        return steps + _recapture_steps(table, out)
    if known is not None and known.schema.key != table.key:
        schema = table.to_schema(table_id, known.schema.version + 1, known.schema, known.number_max)
        sql = registry.new_version_sql(schema, known.number_max)
        steps.append(InstallStep(table=table.where, what="registration", sql=sql))
        # the change of the key rebuilt the table, and the whole table is read again
        forgotten = registry.forget_marks_sql((table_id, definition_key(table_id)))
        steps.append(InstallStep(table=table.where, what=f"row of {names.MARKS}", sql=forgotten))
    if mended:
        sql = registry.set_state_sql(table_id, registry.RESYNC, MENDED)
        steps.append(InstallStep(table=table.where, what="state RESYNC", sql=sql))
    return steps


def _recapture_steps(table: MysqlTable, was: MysqlRegistryEntry) -> list[InstallStep]:
    """Return the steps that capture a released table again, in its present version and with all its rows."""
    steps = []
    now = table.to_schema(was.table_id, was.schema.version, was.schema, was.number_max)
    if fingerprint(now) != was.fingerprint:
        sql = registry.new_version_sql(replace(now, version=was.schema.version + 1), was.number_max)
        steps.append(InstallStep(table=table.where, what="registration", sql=sql))
    forgotten = registry.forget_marks_sql((was.table_id, definition_key(was.table_id)))
    steps.append(InstallStep(table=table.where, what=f"row of {names.MARKS}", sql=forgotten))
    what, sql = "state ACTIVE, to be read again", registry.recapture_sql(was.table_id)
    return [*steps, InstallStep(table=table.where, what=what, sql=sql)]


def log_steps(table: MysqlTable, table_id: int, present: MysqlInstalledObjects) -> list[InstallStep]:
    """Return the steps that create a table's log, widen it, or replace it."""
    name = names.log_table_name(table_id)
    what = f"log table {name}"
    same = present.has_log(table, name)
    if same and present.logs[name] != triggers.key_description(table):
        return [InstallStep(table=table.where, what=f"{WIDTH}{name}", sql=triggers.widen_log_sql(table, table_id))]
    steps = [InstallStep(table=table.where, what=what, sql=triggers.log_table_sql(table, table_id), exists=same)]
    if name in present.logs and not same:
        drop = statement("triggers", "drop_table", table=f"{quote(table.database)}.{name}")
        steps.insert(0, InstallStep(table=table.where, what=what, sql=drop))
    return steps


def _trigger_steps(table: MysqlTable, trigger: MysqlTrigger, present: MysqlInstalledObjects) -> list[InstallStep]:
    """Return the steps that create a trigger, or replace an altered one."""
    existing = present.triggers.get(trigger.name)
    what = f"trigger {trigger.name}"
    is_there = trigger.is_equal_to(existing)
    steps = [InstallStep(table=table.where, what=what, sql=trigger.sql, exists=is_there)]
    if existing is not None and not is_there:
        steps.insert(0, InstallStep(table=table.where, what=what, sql=drop_trigger_sql(table.database, trigger.name)))
    return steps


def drop_trigger_sql(database: str, name: str) -> str:
    """Return the statement that drops a trigger."""
    return statement("triggers", "drop_trigger", trigger=f"{quote(database)}.{name}")


def table_number(trigger: str) -> int:
    """Return the number of the table whose log a trigger of VENUS writes."""
    return int(trigger.split("_")[2])
