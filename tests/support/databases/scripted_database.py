"""A source database in memory: its state survives a crash of capture (`scripted_source.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from venus.adapters.dialects.contract import (
    FillState,
    MissingGrant,
    SourceState,
    UncapturedTable,
)
from venus.model import (
    BatchNo,
    BatchRecord,
    Column,
    Epoch,
    Kind,
    LogicalType,
    TableSchema,
)
from venus.model import Sequence as Position

HEARTBEAT = 1


def schema_of(table_id: int, name: str, *, version: int = 1) -> TableSchema:
    """Return the schema of a table with a key and a value."""
    text = LogicalType(kind=Kind.TEXT)
    extra = tuple(Column(name=f"c{n}", number=2 + n, type=text) for n in range(1, version))
    return TableSchema(
        table_id=table_id,
        version=version,
        namespace="app",
        name=name,
        columns=(
            Column(name="k", number=1, type=text, nullable=False),
            Column(name="v", number=2, type=text),
            *extra,
        ),
        key=("k",),
    )


@dataclass(slots=True)
class Table:
    """One captured table: its rows, and the progress of its fill."""

    schema: TableSchema
    fill: FillState
    rows: dict[bytes, bytes] = field(default_factory=dict)
    state: str = "ACTIVE"


@dataclass(slots=True)
class LogRow:
    """One log entry: a key, or None for a TRUNCATE; `bulk` stands for this many new rows at once."""

    table_id: int
    key: bytes | None
    bulk: int = 0


class ScriptedDatabase:
    """The durable state of the source."""

    def __init__(self, *names: str, filled: bool = True) -> None:
        self.tables: dict[int, Table] = {}
        self.log: dict[int, LogRow] = {}
        self.next_log = 1
        self.state = SourceState(epoch=Epoch(0), next_sequence=Position(1), last_batch=BatchNo(0))
        self.batches: dict[BatchNo, BatchRecord] = {}
        self.own_lacking: list[MissingGrant] = []
        self.locked: dict[str, str] = {}
        #: Versions that the next refresh_schemas finds.
        self.altered: list[TableSchema] = []
        self.beats = 0
        #: How often the sizes of the logs were compared with their limits.
        self.limited = 0
        #: Whether batch numbers and Sequences must continue those of the checkpoint row; False after a restored backup.
        self.strict = True
        #: Reads of this table are refused until its schema is refreshed.
        self.broken_table = 0
        self.chunk_rows = 3
        #: Keys of rows that cannot be carried.
        self.unfit: set[bytes] = set()
        #: Number of log rows that a table had in the snapshot in which it halted.
        self.extents: dict[int, int] = {}
        self.halted: set[int] = set()
        self.uncaptured: list[UncapturedTable] = []
        self.add_table("heartbeat", filled=True)
        for name in names:
            self.add_table(name, filled=filled)

    # -- the application -------------------------------------------------------------------------------------

    def add_table(self, name: str, *, filled: bool) -> int:
        """Register another table."""
        table_id = len(self.tables) + 1
        fill = FillState(
            table_id=table_id, sweep_from=Position(0), cursor=b"", rows_done=0, rows_estimate=0, done=filled
        )
        self.tables[table_id] = Table(schema_of(table_id, name), fill)
        return table_id

    def put(self, table_id: int, key: str, value: str, *, logged: bool = True) -> None:
        """Insert or update a row; without `logged` it existed before the triggers."""
        self.tables[table_id].rows[key.encode()] = value.encode()
        if logged:
            self._log(LogRow(table_id, key.encode()))

    def delete(self, table_id: int, key: str) -> None:
        """Delete a row."""
        self.tables[table_id].rows.pop(key.encode(), None)
        self._log(LogRow(table_id, key.encode()))

    def truncate(self, table_id: int) -> None:
        """Empty a table."""
        self.tables[table_id].rows.clear()
        self._log(LogRow(table_id, None))

    def bulk(self, table_id: int, rows: int) -> None:
        """Log one statement that inserts many rows, which are generated while the cut is read."""
        self._log(LogRow(table_id, b"", bulk=rows))

    def alter(self, table_id: int) -> None:
        """Give a table a new version; reading the table fails until the dictionary is read again."""
        schema = self.tables[table_id].schema
        self.altered.append(schema_of(table_id, schema.name, version=schema.version + 1))
        self.broken_table = table_id

    def contents(self) -> dict[int, dict[bytes, bytes]]:
        """Return the current rows of every table."""
        return {table_id: dict(t.rows) for table_id, t in self.tables.items()}

    def waiting(self, table_id: int) -> int:
        """Return the number of log rows of a table."""
        return sum(r.table_id == table_id for r in self.log.values())

    def _log(self, row: LogRow) -> None:
        self.log[self.next_log] = row
        self.next_log += 1
