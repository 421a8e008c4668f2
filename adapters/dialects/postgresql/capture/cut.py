"""A cut of a PostgreSQL source: one REPEATABLE READ transaction from the first log row read to the local COMMIT.

DELETE in a REPEATABLE READ transaction removes exactly the rows in its snapshot, so a cut deletes exactly what it
read, in one statement or in two. The same transaction writes the batch rows and the checkpoint (VENUS 3.3). Log rows
of a transaction that commits later are not in the snapshot and wait for the next cut.

One statement reads the contents of all small logs; only a large log needs a second statement. If few rows of few
tables have changed, the statement that opens a cut reads them as well (cut_opening.py). Small reads of more tables are
prepared once in a session and share a round trip.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from venus.adapters.dialects.contract import FillState, SchemaChanged
from venus.adapters.dialects.postgresql import registry
from venus.adapters.dialects.postgresql.capture import cut_statements
from venus.adapters.dialects.postgresql.connection import Conflict, InvalidText, PostgresConnection
from venus.adapters.dialects.postgresql.dictionary.tables import PostgresTable
from venus.adapters.dialects.postgresql.registry import PostgresCapturedTable
from venus.adapters.dialects.postgresql.rows import CopyStream, FewRows, SmallCopy, read_sections
from venus.adapters.dialects.postgresql.sql import log_table_name, statement
from venus.adapters.dialects.registry_rules import HaltTracker, LogLimits, UnfitRow, fill_values, full_log_reason
from venus.adapters.dialects.rows import FillCursor
from venus.codec.batch import TableChanges, marker
from venus.codec.columns import keys_to_columns
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.errors import Fenced
from venus.model import BatchNo, BatchRecord, ChangeKind, Epoch, TableSchema

#: Limit for the columns of a session's prepared statements. One column costs the server process 2.4 KiB, the limit 40
#: MiB.
PREPARED_COLUMNS_MAX = 16384
#: Fixed cost of a statement, in columns.
_OVERHEAD_COLUMNS = 16
#: A read of several tables ends after the table that makes it exceed this many bytes. The result is in memory.
TOGETHER_BYTES = 1 << 20
#: A field of a row's text, quoted or plain; an empty one is NULL. It matches whole runs of characters, because a value
#: may have megabytes.
_FIELD = re.compile(r'(?:"((?:[^"\\]++|""|\\\\)*+)"|([^,"]*+)),')


@dataclass(slots=True)
class PreparedReads:
    """Prepared statements of a session that read few rows. `together`: one statement can read several tables."""

    together: bool = False
    #: Whether the statement that opens a cut also reads the rows of tables with few changes.
    with_opening: bool = True
    #: Statements by table, and by whether rows were only inserted.
    _prepared: dict[tuple[int, bool], str] = field(default_factory=dict)
    _columns: int = 0

    def read_rows(
        self, connection: PostgresConnection, claims: Sequence[PostgresClaim]
    ) -> list[tuple[PostgresClaim, FewRows]]:
        """Read the log of the first of these claims, and of as many more as fit into the same round trip."""
        if len(claims) == 1 or not self.together:
            (text,) = self._build_statements(connection, claims[:1])
            return [(claims[0], FewRows(connection.fetch_texts(text)))]
        texts = self._build_statements(connection, claims)
        found = connection.rows(statement("cut", "read_together"), [texts, TOGETHER_BYTES])
        end = found.pop()[0]
        rows: list[list[list[str | None]]] = [[] for _ in range(end)]
        for place, line in found:
            rows[place - 1].append(parse_row(line))
        return [(claim, FewRows(each)) for claim, each in zip(claims[:end], rows, strict=True)]

    def reserve_columns(self, schemas: Sequence[TableSchema]) -> bool:
        """Count these tables' columns towards the session's limit; return False if it is exceeded already."""
        if schemas and self._columns > PREPARED_COLUMNS_MAX:
            return False
        self._columns += sum(len(schema.columns) + _OVERHEAD_COLUMNS for schema in schemas)
        return True

    def _build_statements(self, connection: PostgresConnection, claims: Sequence[PostgresClaim]) -> list[str]:
        """Return the statements that read these claims: calls of prepared statements, or else plain queries."""
        texts, new = [], []
        for claim in claims:
            which = claim.schema.table_id, claim.inserts_only
            if which not in self._prepared:
                query = cut_statements.changes_query(
                    claim.table, claim.schema, inserts_only=claim.inserts_only, taken=True
                )
                if not self.reserve_columns([claim.schema]):
                    texts.append(query)
                    continue
                name = f"venus_read_{len(self._prepared)}"
                new.append(f"PREPARE {name} AS {query}")
                self._prepared[which] = f"EXECUTE {name}"
            texts.append(self._prepared[which])
        if new:
            connection.run("; ".join(new))
        return texts


def parse_row(row: str) -> list[str | None]:
    """Split the text of a composite row into its values, whose format is that of COPY and SELECT."""
    inside = row[1:-1]
    if '"' not in inside:
        return [value or None for value in inside.split(",")]
    return [
        found[2] or None if found[1] is None else found[1].replace('""', '"').replace("\\\\", "\\")
        for found in _FIELD.finditer(f"{inside},")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresClaim:
    """What the log of one table contains in this cut: the number and kinds of its rows."""

    schema: TableSchema
    table: PostgresTable
    rows: int
    #: Size of the table; not read for small claims.
    pages: int
    inserts_only: bool
    #: Whether to query which rows are new. That is not worth its cost for small claims.
    noted: bool
    truncated: bool
    #: Why changes were missed: X = their key was unreadable, F = the log was at its limit; empty = none missed.
    lost: str


def find_tables_with_rows(connection: PostgresConnection) -> set[int]:
    """Return the tables whose logs have rows. Logs without pages are not opened."""
    each = [
        statement("cut", "has_row", table_id=str(t), log=log_table_name(t))
        for (t,) in connection.rows(statement("cut", "with_pages"))
    ]
    return {r[0] for r in connection.rows(" UNION ALL ".join(each))} if each else set()


def read_claims(connection: PostgresConnection, captured: Seq[PostgresCapturedTable]) -> list[PostgresClaim]:
    """Return what the logs of these tables contain; nothing for an empty log."""
    of = {c.schema.table_id: c for c in captured}
    found = connection.rows(cut_statements.small_logs_query(of)) if of else ()
    return [build_claim(connection, of[table_id], *log) for table_id, *log in found]


def build_claim(
    connection: PostgresConnection,
    captured: PostgresCapturedTable,
    rows: int,
    inserts_only: bool,
    truncated: bool,
    lost: str,
) -> PostgresClaim:
    """Return what the log of a table contains. Counts the rows of a large log."""
    table, pages, inserts = captured.table, 0, False
    assert table is not None
    if rows > cut_statements.SMALL_CLAIM_ROWS:
        weigh = statement("cut", "weigh", log=log_table_name(captured.schema.table_id), table=str(table.oid))
        rows, inserts_only, truncated, lost, inserts, pages = connection.row(weigh)
    return PostgresClaim(
        schema=captured.schema,
        table=table,
        rows=rows,
        pages=pages,
        inserts_only=inserts_only,
        noted=inserts and not inserts_only and table.has_identity_key and rows > cut_statements.SMALL_CLAIM_ROWS,
        truncated=truncated,
        lost=lost,
    )


#: The remedy for a row that halts its table.
HINT = "move the large value out of the row, or `venus pause` the table at the source"
_NO_TEXT = "a text has bytes that are not a character in UTF-8, or a character that UTF-8 lacks"
#: The largest size of a fill chunk, in sections: it is in memory as a whole.
FILL_SECTIONS_MAX = 16


@dataclass(slots=True)
class PostgresFillPace:
    """Number of rows that a fill requests at once, by table: fewer where the rows are large."""

    limits: dict[int, int] = field(default_factory=dict)

    def row_limit(self, table_id: int, rows_max: int) -> int:
        """Return how many rows the next chunk of a table's fill requests."""
        return min(self.limits.get(table_id, rows_max), rows_max)

    def record_chunk(self, table_id: int, asked: int, used: int, *, rest: bool) -> None:
        """Set the limit to the rows `used` if others were fetched in vain (`rest`), else to twice the rows `asked`."""
        self.limits[table_id] = max(used, 1) if rest else asked * 2


class PostgresCut:
    """An open cut: first `read_sections`, then fill chunks, then `commit`; `rollback` is possible at any time."""

    def __init__(
        self,
        connection: PostgresConnection,
        claims: Seq[PostgresClaim],
        captured: Seq[PostgresCapturedTable],
        captured_at_us: int,
        epoch: int,
        fills: Seq[FillState],
        pace: PostgresFillPace,
        halts: HaltTracker,
        forget_marks: Seq[str],
        reads: PreparedReads,
        at_hand: Mapping[int, FewRows],
    ) -> None:
        self._reads = reads
        self._few: list[PostgresClaim] = []  # small claims that are not read yet, in the order of reading
        self._at_hand = dict(at_hand)  # rows that were read with the opening, or together with an earlier table
        self._forget_marks = forget_marks
        self._connection = connection
        self._epoch = epoch  # the epoch in the snapshot
        self._claims = {c.schema.table_id: c for c in claims}
        self._captured = {c.schema.table_id: c for c in captured}
        self._captured_at_us = captured_at_us
        self._fills = {f.table_id: f for f in fills}
        self._left: dict[int, FillState] = {}
        self._pace = pace
        self._halts = halts
        self._consumed = not claims
        self.committed = False
        #: Whether tables must be read one at a time, to find the one with the unreadable text.
        self.reads_apart = False

    @property
    def table_ids(self) -> set[int]:
        """The tables whose logs have rows in this cut."""
        return set(self._claims)

    @property
    def table_ids_of_application(self) -> tuple[int, ...]:
        """The tables whose logs have rows in this cut, without the heartbeat table."""
        return tuple(t for t, claim in self._claims.items() if not claim.schema.is_heartbeat)

    def exclude_fills(self, fills: Seq[FillState]) -> None:
        """Exclude fills from this cut: the application holds an exclusive lock on their tables."""
        self._left = {f.table_id: f for f in fills}

    @property
    def captured_at_us(self) -> int:
        return self._captured_at_us

    # -- reading -------------------------------------------------------------------------------------------------

    def read_sections(self, *, rows_max: int, bytes_max: int) -> Iterator[TableChanges]:
        plan = cut_statements.KEYED_PLAN
        claims = [self._claims[table_id] for table_id in self._halts.order_by_halts(self._claims)]
        self._few = [c for c in claims if c.rows <= cut_statements.FEW_ROWS and c.schema.table_id not in self._at_hand]
        for claim in claims:
            schema = claim.schema
            self._halts.start_table()
            if claim.truncated:
                yield marker(schema.table_id, schema.version, ChangeKind.TRUNCATE)
            if (settings := cut_statements.planner_settings(claim.rows, claim.pages)) != plan:
                self._connection.run(plan := settings)
            try:
                yield from self._read_changes(claim, rows_max=rows_max, bytes_max=bytes_max)
            except UnfitRow as why:
                raise self._halts.record_halt(schema, claim.rows, why, hint=HINT) from why
            except InvalidText as why:
                raise self._halts.record_halt(schema, claim.rows, f"{_NO_TEXT}: {why}") from why
        self._consumed = True

    def _read_changes(self, claim: PostgresClaim, *, rows_max: int, bytes_max: int) -> Iterator[TableChanges]:
        """Yield the changes of one table; then delete its log rows, unless the query has done that."""
        small = claim.rows <= cut_statements.SMALL_CLAIM_ROWS
        with self._open_rows(claim, small=small) as stream:
            yield from read_sections(
                stream,
                Layout.of(claim.schema),
                flagged=True,
                inserts_only=claim.inserts_only,
                noted=claim.noted,
                rows_max=rows_max,
                bytes_max=bytes_max,
            )
        if not small:
            self._connection.run(cut_statements.delete_log(claim.schema))

    def _open_rows(self, claim: PostgresClaim, *, small: bool) -> FewRows | SmallCopy | CopyStream:
        """Begin to read the rows in a table's log. Tables with few rows are read together."""
        if claim.rows <= cut_statements.FEW_ROWS:
            return self._read_few(claim)
        text = cut_statements.changes_query(
            claim.table, claim.schema, inserts_only=claim.inserts_only, taken=small, noted=claim.noted
        )
        copied = cut_statements.copy_query(text)
        return SmallCopy(self._connection, copied) if small else CopyStream(self._connection, copied)

    def _read_few(self, claim: PostgresClaim) -> FewRows:
        """Return the rows of a small log. The round trip also reads other small logs."""
        table_id = claim.schema.table_id
        if table_id not in self._at_hand:
            found = self._read_together(self._few)
            self._few = self._few[len(found) :]
            self._at_hand |= {c.schema.table_id: rows for c, rows in found}
        return self._at_hand.pop(table_id)

    def _read_together(self, claims: Seq[PostgresClaim]) -> list[tuple[PostgresClaim, FewRows]]:
        """Read the first of these claims, and more. Raises Conflict if a table read with others has invalid text."""
        try:
            return self._reads.read_rows(self._connection, claims)
        except InvalidText as why:
            if len(claims) == 1 or not self._reads.together:
                raise
            self.reads_apart = True
            raise Conflict(f"tables will be read one at a time: {why}") from why

    def read_fill_chunk(
        self, fill: FillState, *, rows_max: int, bytes_max: int
    ) -> tuple[list[TableChanges], FillState]:
        if fill.table_id in self._left:
            return [], fill
        captured = self._captured[fill.table_id]
        table, schema = captured.table, captured.schema
        if table is None or not captured.usable:
            raise SchemaChanged(f"{schema.qualified_name} differs from the registry")
        limit = self._pace.row_limit(fill.table_id, rows_max)
        layout = Layout.of(schema)
        self._connection.run(statement("cut", "fill_plan"))
        self._halts.start_table()
        try:
            taken, rest = self._read_portion(
                cut_statements.fill_query(table, schema, fill.cursor, limit), layout, rows_max, bytes_max
            )
            rows = sum(s.count for s in taken)
            done = not rest and rows < limit
            end = FillCursor.parse(fill.cursor).end if fill.cursor else None
            if not fill.cursor and not done:
                end = list(self._connection.row(cut_statements.last_key_query(table)))
        except (UnfitRow, InvalidText) as why:
            claim = self._claims.get(fill.table_id)
            said, hint = (why, HINT) if isinstance(why, UnfitRow) else (f"{_NO_TEXT}: {why}", "")
            raise self._halts.record_halt(schema, claim.rows if claim else 0, said, hint=hint) from why
        self._pace.record_chunk(fill.table_id, limit, rows, rest=rest)
        cursor = FillCursor(_last_key(taken[-1], layout), end).cursor if taken else fill.cursor
        return taken, replace(fill, cursor=cursor, rows_done=fill.rows_done + rows, done=done)

    def _read_portion(
        self, text: str, layout: Layout, rows_max: int, bytes_max: int
    ) -> tuple[list[TableChanges], bool]:
        """Return the sections of a COPY up to the size of a chunk, and whether there were more."""
        taken: list[TableChanges] = []
        rest = False
        with CopyStream(self._connection, text) as stream:
            budget = bytes_max * FILL_SECTIONS_MAX
            for section in read_sections(
                stream, layout, flagged=False, inserts_only=False, rows_max=rows_max, bytes_max=bytes_max
            ):
                # the next chunk reads the rest again; keeping it would need unbounded memory
                rest = rest or (budget < section.nbytes and bool(taken))
                if not rest:
                    taken.append(section)
                    budget -= section.nbytes
        return taken, rest

    # -- the local transaction -------------------------------------------------------------------------------------

    def commit(
        self, epoch: Epoch, batches: Seq[BatchRecord], fills: Seq[FillState], forget_batches_below: BatchNo
    ) -> None:
        assert self._consumed, "a cut is committed before its sections were read"
        connection = self._connection
        if epoch != self._epoch:
            connection.rollback()
            raise self._fenced_error(epoch)
        try:
            connection.commit(self._build_transaction(epoch, batches, fills, forget_batches_below))
            self.committed = True
        except Conflict as conflict:
            connection.rollback()
            if epoch != connection.row(statement("registry", "epoch"))[0]:
                raise self._fenced_error(epoch) from conflict
            raise
        except BaseException:
            connection.rollback()
            raise

    def _fenced_error(self, epoch: Epoch) -> Fenced:
        return Fenced(f"source {self._connection.place}: another instance raised the epoch above {epoch}")

    def _build_transaction(self, epoch: Epoch, batches: Seq[BatchRecord], fills: Seq[FillState], below: BatchNo) -> str:
        """Return the local transaction as one string, so that it needs one round trip with the COMMIT.

        The checkpoint comes first, because it is the fence: an instance that raised the epoch after this snapshot has
        changed that row, and the server refuses to change it again.
        """
        parts = []
        if batches:
            last = batches[-1]
            moved = {"next_sequence": last.last_sequence + 1, "last_batch": last.batch_no, "epoch": epoch}
            parts.append(statement("registry", "advance", **{name: str(int(n)) for name, n in moved.items()}))
            parts += registry.add_batches_sql(batches)
        parts.append(statement("registry", "forget_batches", below=str(int(below))))
        for fill in fills:
            was = (self._left | self._fills)[fill.table_id]
            parts.append(self._connection.literal(statement("registry", "store_fill"), fill_values(was, fill)))
        for claim in self._claims.values():
            if claim.lost:
                parts.append(
                    self._connection.literal(*_missed_changes_statement(claim, self._connection.log_bytes_max))
                )
        return "; ".join([*parts, *self._forget_marks])

    def rollback(self) -> None:
        self._connection.rollback()


def _missed_changes_statement(claim: PostgresClaim, log_bytes_max: int) -> tuple[str, dict[str, str | int]]:
    """Return the statement that records why changes were missed, with its values."""
    table_id = claim.schema.table_id
    reason = "its key was renamed, retyped or dropped, and changes were made meanwhile"
    if claim.lost == "F":
        reason = full_log_reason(LogLimits(bytes_max=log_bytes_max))
    return statement("registry", "missed"), {"reason": reason, "table_id": table_id}


def _last_key(section: TableChanges, layout: Layout) -> list[str]:
    """Return the key of the last row as text; binary keys in COPY's format."""
    ids = section.record_ids
    size = int(ids.sizes[-1])
    last = PackedBytes(ids.data[len(ids.data) - size :], ids.sizes[-1:])
    return ["\\x" + v.hex() if isinstance(v, bytes) else str(v) for (v,) in keys_to_columns(last, layout)]
