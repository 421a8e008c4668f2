"""A Spark query that collects VENUS's changes, and the rows that result from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.brokers.real_broker import KillableBroker
from tests.support.waiting import eventually
from venus.model import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Rows = list[dict[str, Any]]
#: Micro-batches take seconds on a busy machine.
WAIT_S = 240.0


class CollectedQuery:
    """A query that collects changes by micro-batch; after a stop the same checkpoint is used again."""

    def __init__(self, spark: SparkSession, broker: KillableBroker, folder: Path, **options: object) -> None:
        self._spark, self._folder = spark, folder
        self._options = {"address": broker.address, "table": "shop.items"} | {k: str(v) for k, v in options.items()}
        self._by_number: dict[int, Rows] = {}
        #: Repeated micro-batches whose rows differed from the first attempt.
        self.different: list[int] = []
        self.fails = False
        self.query: StreamingQuery

    def start(self, **trigger: Any) -> CollectedQuery:
        def keep(frame: DataFrame, number: int) -> None:
            rows = sorted((row.asDict() for row in frame.collect()), key=lambda row: row["_sequence"])
            if self.fails and number not in self._by_number:
                raise RuntimeError("the job fails behind the reading")
            if self._by_number.setdefault(number, rows) != rows:
                self.different.append(number)

        stream = self._spark.readStream.format("venus").options(**self._options).load()
        writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(self._folder / "checkpoint"))
        self.query = (writer.trigger(**trigger) if trigger else writer).start()
        return self

    @property
    def batches(self) -> list[Rows]:
        """The rows of each micro-batch, in order."""
        return [self._by_number[number] for number in sorted(self._by_number)]

    @property
    def rows(self) -> Rows:
        """All collected rows."""
        return [row for batch in self.batches for row in batch]

    @property
    def offsets(self) -> list[int]:
        """The offsets of all collected changes, sorted."""
        return sorted(row["_offset"] for row in self.rows if row["_offset"] is not None)

    def wait_for(self, offset: int) -> None:
        """Wait until every change below an offset has been collected."""
        eventually(lambda: bool(self.offsets) and self.offsets[-1] >= offset - 1, f"offset {offset}", timeout_s=WAIT_S)

    def __enter__(self) -> CollectedQuery:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.query.stop()


def apply_rows(rows: Rows, schema: TableSchema) -> dict[Any, Any]:
    """Apply the changes of a stream, as a reader of the documentation would."""
    state: dict[Any, tuple[int, Any]] = {}
    names = [c.name for c in schema.wire_columns]
    width = len(schema.key)
    for row in sorted(rows, key=lambda r: r["_sequence"]):
        values = tuple(None if row[n] is None else str(row[n]) for n in names)
        if row["_gone_before"] is not None:
            state = {k: v for k, v in state.items() if v[0] >= row["_gone_before"]}
        elif row["_deleted"]:
            state.pop(values[:width], None)
        else:
            state[values[:width]] = (row["_sequence"], values[width:])
    return {key: row for key, (_, row) in state.items()}
