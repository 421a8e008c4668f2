"""Faults in a Spark worker within a micro-batch; each happens once.

They hit `format("venus")` while it passes rows to Spark, and `venus sync --engine spark` while its tasks stage rows.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from venus.adapters.targets.postgresql.apply import staged_task as stagetask
from venus.adapters.targets.postgresql.apply.staged_task import StageReceipt, StageTask, stage_range
from venus.process.runners import Runner
from venus.spark import streaming
from venus.spark.datasource import VenusSource
from venus.spark.streaming import ChangesReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

#: Small partitions of a micro-batch, so that several workers have one each.
PIECE_OFFSETS = 40


def next_of(faults: Sequence[str], folder: Path, place: str) -> str:
    """Return the next fault that has not happened here, or "" after the last one; each is returned once."""
    for fault in faults:
        try:
            os.close(os.open(folder / f"{place}: {fault}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return fault
    return ""


def happen(fault: str) -> None:
    """Cause a fault, without a clean-up in this process or its executor."""
    if fault == "exception":
        raise RuntimeError("planned")
    if fault == "worker killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "executor killed":
        os.kill(next(p.pid for p in psutil.Process().parents() if p.name() == "java"), signal.SIGKILL)


class FaultyReader(ChangesReader):
    """Reads as usual in small partitions, but the first attempts fail before their end."""

    def __init__(self, source: VenusSource, schema: StructType, faults: Sequence[str], folder: Path) -> None:
        super().__init__(source._read_options(), schema)
        self._faults, self._folder = tuple(faults), folder

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        streaming.PIECE_OFFSETS_MIN = PIECE_OFFSETS
        return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            yield batch.slice(0, 1)
            happen(next_of(self._faults, self._folder, "stream"))
            yield batch.slice(1)


def faulty_source(faults: Sequence[str], folder: Path) -> type[VenusSource]:
    """Return the data source with faults in its readers."""

    class FaultySource(VenusSource):
        @classmethod
        def name(cls) -> str:
            return "venus_faulty"

        def streamReader(self, schema: StructType) -> FaultyReader:  # noqa: N802
            return FaultyReader(self, schema, faults, folder)

    return FaultySource


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyStage:
    """A piece of a micro-batch, and the fault of an attempt to stage it."""

    task: StageTask
    faults: tuple[str, ...]
    folder: str


def stage_faulty(faulty: FaultyStage) -> StageReceipt:
    """Stage a piece, or cause its fault: after its rows, before or after their commit."""
    fault = next_of(faulty.faults, Path(faulty.folder), "apply")
    if fault.endswith(" after commit"):
        stage_range(faulty.task)
        happen(fault.removesuffix(" after commit"))
    original: Callable[..., None] = stagetask._create_stage

    def put(*arguments: Any) -> None:
        original(*arguments)
        happen(fault)

    stagetask._create_stage = put  # type: ignore[assignment]
    try:
        return stage_range(faulty.task)
    finally:
        stagetask._create_stage = original


class FaultyStages:
    """A runner whose first tasks have one fault each."""

    def __init__(self, runner: Runner, faults: Sequence[str], folder: Path) -> None:
        self._runner, self._faults, self._folder = runner, tuple(faults), str(folder)

    def run(self, function: Any, tasks: Sequence[Any]) -> Iterator[Any]:
        """Run the tasks."""
        assert function is stage_range
        yield from self._runner.run(
            stage_faulty, [FaultyStage(task=task, faults=self._faults, folder=self._folder) for task in tasks]
        )
