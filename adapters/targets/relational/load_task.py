"""A task of a full load: one key range of the full data, loaded exactly once (VENUS 3.3, offset -1).

One target transaction contains the split's row in the load's manifest and the rows of the table. A concurrent attempt
waits for the manifest row; once the first attempt has committed, the second has nothing to do. A killed attempt leaves
nothing behind. A scheduler (a pool of processes, Spark) may therefore repeat any split at any time.

The rows of a split are one stream of COPY lines; new lines are built while the target receives the previous lines.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, cast

from venus.adapters.targets.relational.session import Refusal, RelationalSession
from venus.adapters.targets.relational.verdicts import (
    LOADED,
    PARKED,
    SUSPECTS_MAX,
    RefusedChange,
    key_texts,
    waiting_mask,
)
from venus.adapters.under.row_changes import RowChanges, to_row_changes
from venus.codec.batch import TableChanges
from venus.codec.masked_rows import Maskers, project_full_rows
from venus.codec.row_bytes import Layout
from venus.codec.stored_rows import Chunk, FullRows
from venus.errors import TargetError
from venus.masking.functions import MaskingKey
from venus.masking.projection import source_of
from venus.model import TableSchema
from venus.predicates.ranges import compile_predicate
from venus.rpc.snapshots import SnapshotClient
from venus.wire import broker_pb2

if TYPE_CHECKING:
    from pydantic import SecretStr

#: For fewer rows, the fsync of a split takes longer than writing its rows.
SMALL_SPLIT_ROWS = 1000
#: Limits of the splits that share a connection: their rows by the broker's estimate, and their number.
GROUP_ROWS = 2000
GROUP_SPLITS = 32


class SplitWriter(Protocol):
    """A session with the target that writes the rows of splits."""

    @property
    def session(self) -> RelationalSession: ...

    def own_sql(self, name: str) -> str:
        """Return a block of own.sql."""
        ...

    def commit_early(self) -> None:
        """Commit without waiting for the disk; a crash of the server may lose the transaction."""
        ...

    def copy(self, placed: Any, schema: TableSchema, sections: Iterator[FullRows]) -> int:
        """Write rows of version `schema`, and return their number. Raises Refusal."""
        ...

    def copy_changes(self, placed: Any, section: TableChanges, schema: TableSchema) -> None:
        """Write the rows of a section of version `schema`. Raises Refusal."""
        ...

    def find_refused(self, placed: Any, schema: TableSchema, rows: RowChanges, limit: int) -> list[RefusedChange]:
        """Return at most `limit` of the rows that the target refuses."""
        ...

    def close(self) -> None:
        """Close the session."""
        ...


class _LoaderModule(Protocol):
    """The module `split_writer` of a kind of target."""

    def open_split_writer(
        self, url: str | SecretStr, *, application: str, business: str, target: str
    ) -> SplitWriter: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTask:
    """One key range to load; can be pickled and sent to another process or machine."""

    kind: str
    url: str | SecretStr = field(repr=False)
    broker: str
    business: str
    group: str
    load_id: str
    snapshot_id: str
    split_no: int
    split: bytes  # a venus.wire.Split
    placed: Any  # the kind's own description of the table's place
    versions: tuple[TableSchema, ...]
    #: Selects the rows that the target gets; empty = every row.
    predicate: str = ""
    #: The target's key for hmac columns.
    masking_key: MaskingKey | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitResult:
    """Result of loading a split: its rows that were loaded, parked, or outside of the row filter."""

    split_no: int
    table_id: int
    rows: int
    parked: int
    #: Rows outside of the target's predicate.
    outside: int
    #: Digest of the rows that the broker sent, in hexadecimal; see `rows_digest`.
    digest: str
    #: Whether an earlier attempt has loaded the split.
    already: bool


class FormerKey(TargetError):
    """The full data still has rows by a former key of the table, from before the last change of its key."""


def application_name(load_id: str, split_no: int) -> str:
    """Return the application name of the session that loads a split, by which the load's progress is found."""
    return f"venus load {load_id[:16]}/{split_no}"


def load_split(task: SplitTask) -> SplitResult:
    """Load one split exactly once; may be repeated after any failure."""
    return load_splits((task,))[0]


def load_splits(tasks: Sequence[SplitTask]) -> tuple[SplitResult, ...]:
    """Load several splits, each in its own transaction, over one connection to the broker and one to the target."""
    first = tasks[0]
    name = first.group.removeprefix(f"{first.business}/")
    module = cast(_LoaderModule, import_module(f"venus.adapters.targets.{first.kind}.split_writer"))
    writer = module.open_split_writer(
        first.url,
        application=application_name(first.load_id, first.split_no),
        business=first.business,
        target=name,
    )
    try:
        with SnapshotClient(first.broker) as snapshots:
            return tuple(_SplitLoad(task, writer, snapshots).run() for task in tasks)
    finally:
        writer.session.rollback()
        writer.close()


def group_small_splits(tasks: Sequence[SplitTask]) -> list[tuple[SplitTask, ...]]:
    """Group small splits, because a connection for each would cost more than its rows. Pure."""
    groups: list[tuple[SplitTask, ...]] = []
    rows = 0
    for task in tasks:
        estimate = broker_pb2.Split.FromString(task.split).rows_estimate
        rows += estimate
        if not groups or rows > GROUP_ROWS or len(groups[-1]) >= GROUP_SPLITS:
            groups.append((task,))
            rows = estimate
        else:
            groups[-1] = (*groups[-1], task)
    return groups


class _SplitLoad:
    """One attempt to load a split."""

    def __init__(self, task: SplitTask, writer: SplitWriter, snapshots: SnapshotClient) -> None:
        self._task = task
        self._writer = writer
        self._session = writer.session
        self._snapshots = snapshots
        self._schemas = {s.version: s for s in task.versions}
        self._rows = self._parked = self._outside = 0
        newest, self._maskers = source_of(task.placed.schema), Maskers(task.masking_key)
        self._predicate = compile_predicate(task.predicate, newest) if task.predicate else None

    def run(self) -> SplitResult:
        """Load the split in one transaction: by one COPY, or section by section if the target refuses rows."""
        try:
            return self._attempt(self._copy_at_once)
        except Refusal:
            self._session.rollback()
            self._rows = self._parked = self._outside = 0
        return self._attempt(self._copy_by_section)

    def _attempt(self, copy: Callable[[Iterator[Chunk]], None]) -> SplitResult:
        """Load the split in one transaction by `copy`, unless an earlier attempt has loaded it."""
        self._session.run("BEGIN")
        if self._run_own("claim_split", table_id=self._table_id, attempt=f"{socket.gethostname()}/{os.getpid()}") == 0:
            rows, parked, outside, digest = self._session.rows(self._writer.own_sql("loaded_split"), self._params())[0]
            return self._result(rows, parked, outside, digest, already=True)
        digest = self._copy(copy)
        self._run_own("record_split", rows=self._rows, parked=self._parked, outside=self._outside, digest=digest)
        # A small split becomes durable with later ones. If the server crashes and loses it, the session that leads the
        # load fails as well, and the next run does not find the split in the manifest.
        try:
            if self._rows < SMALL_SPLIT_ROWS:
                self._writer.commit_early()
            else:
                self._session.run("COMMIT")
        except TargetError as refusal:
            raise TargetError(
                f"{self._task.placed.qualified_name}: refused at the COMMIT of its rows: {refusal}",
                hint="a deferred constraint or constraint trigger of that table refuses them: correct it there, "
                "then run `venus migrate` again: it resumes",
            ) from refusal
        return self._result(self._rows, self._parked, self._outside, digest, already=False)

    @property
    def _table_id(self) -> int:
        return int(self._task.placed.schema.table_id)

    def _params(self, **more: object) -> dict[str, object]:
        """Return the parameters of a statement of own.sql, with `more` added."""
        task = self._task
        own = {"load_id": task.load_id, "split": task.split_no, "group": task.group, "business": task.business}
        return own | more

    def _run_own(self, block: str, **more: object) -> int:
        """Run a statement of own.sql; return its row count."""
        return self._session.run(self._writer.own_sql(block), self._params(**more))

    def _result(self, rows: int, parked: int, outside: int, digest: str, *, already: bool) -> SplitResult:
        """Return the result of this split; `already`: an earlier attempt has loaded it."""
        return SplitResult(
            split_no=self._task.split_no,
            table_id=self._table_id,
            rows=rows,
            parked=parked,
            outside=outside,
            digest=digest,
            already=already,
        )

    def _sections(self, chunks: Iterable[Chunk]) -> Iterator[FullRows]:
        """Yield the sections of rows that belong to this target; none is empty."""
        for rows in (rows for chunk in chunks for rows in chunk.sections):
            schema = self._schemas[rows.schema_version]
            self._refuse_former_key(schema)
            inside = project_full_rows(rows, self._predicate, schema, self._maskers)
            self._outside += len(rows) - len(inside)
            if len(inside):
                yield inside

    def _refuse_former_key(self, schema: TableSchema) -> None:
        """Refuse rows whose key is not that of the newest version: the full data may have the same row by both keys."""
        newest = self._task.placed.schema
        if not schema.has_same_key(newest):
            raise FormerKey(
                f"{newest.qualified_name}: the broker still has rows by its former key ({', '.join(schema.key)})",
                hint=f"run `venus resync {newest.qualified_name}`, which reads the table again at the source; then run "
                "`venus migrate` again",
            )

    def _copy(self, copy: Callable[[Iterator[Chunk]], None]) -> str:
        """Read the split, pass its chunks to `copy`, and return its digest."""
        task = self._task
        digest = 0

        def chunks() -> Iterator[Chunk]:
            nonlocal digest
            for chunk in self._snapshots.read_split(task.snapshot_id, broker_pb2.Split.FromString(task.split)):
                digest = chunk.totals.digest if chunk.totals else digest
                yield chunk

        copy(chunks())
        return f"{digest:016x}"

    def _copy_at_once(self, chunks: Iterator[Chunk]) -> None:
        """Stream all rows into the target, with one COPY for each run of one schema version."""
        placed = self._task.placed
        for version, run in groupby(self._sections(chunks), lambda rows: rows.schema_version):
            schema = self._schemas[version]
            self._rows += self._writer.copy(placed, schema, run)

    def _copy_by_section(self, chunks: Iterator[Chunk]) -> None:
        """Copy each section separately, to find the refused rows."""
        for rows in self._sections(chunks):
            self._copy_section(rows)

    def _copy_section(self, full: FullRows) -> None:
        """Copy one section; rows that the target refuses go to quarantine."""
        schema = self._schemas[full.schema_version]
        self._session.run("SAVEPOINT venus")
        try:
            self._writer.copy(self._task.placed, schema, iter([full]))
        except Refusal as refusal:
            self._session.run("ROLLBACK TO SAVEPOINT venus")
            self._copy_around_refused(full.changes, schema, refusal)
        else:
            self._rows += len(full)
        self._session.run("RELEASE SAVEPOINT venus")

    def _copy_around_refused(self, section: TableChanges, schema: TableSchema, refusal: Refusal) -> None:
        """Load the accepted rows of a section and keep the refused ones in quarantine."""
        rows = to_row_changes(section, 0)
        placed = replace(self._task.placed, schema=schema)
        limit = SUSPECTS_MAX + 1 - self._parked
        suspects = {s.record_id: s for s in self._writer.find_refused(placed, schema, rows, limit)}
        if not suspects or self._parked + len(suspects) > SUSPECTS_MAX:
            raise TargetError(
                f"{placed.qualified_name}: the target refuses rows of the full load: {refusal} ({refusal.sqlstate})",
                hint="correct the table at the target and run `venus migrate` again: it resumes",
            ) from refusal
        mask = waiting_mask(rows, dict.fromkeys(suspects, 0).get)
        good = rows.where(~mask)
        kept = TableChanges(
            table_id=section.table_id,
            schema_version=section.schema_version,
            record_ids=good.record_ids,
            rows=good.rows,
            is_deleted=good.is_deleted,
        )
        self._writer.copy_changes(self._task.placed, kept, schema)
        self._park(rows.where(mask), suspects, schema)
        self._rows += len(good)

    def _park(self, rows: RowChanges, suspects: dict[bytes, RefusedChange], schema: TableSchema) -> None:
        """Store refused rows in quarantine."""
        values = zip(rows.record_ids.split(), rows.rows.split(), key_texts(rows, Layout.of(schema)), strict=True)
        for record_id, row, key in values:
            first = suspects[record_id]
            self._run_own(
                "quarantine",
                table_id=schema.table_id,
                version=schema.version,
                record_id=record_id,
                key=key,
                offset=LOADED,
                sequence=0,
                sqlstate=first.sqlstate,
                message=first.message,
                row_message=record_id + row,
                is_deleted=False,
                state=PARKED,
            )
            self._parked += 1
