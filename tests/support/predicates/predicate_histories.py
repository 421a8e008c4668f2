"""Random histories of a table, a target's predicate and its changes, compared with SQLite's own WHERE.

Verdicts, net changes and the selection of rows from the full data are the product's own code. A model of the target's
tables surrounds it: rows, the record of touched keys, the side table of a resync. SQLite determines the right result:
the rows that `SELECT ... WHERE` finds among all possible ones. `tests/integration/predicates` compares with PostgreSQL
in the same way.
"""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from venus.adapters.under.row_changes import RowChanges, apply_predicate, join_changes, net_changes
from venus.codec.columns import Value, from_columns
from venus.codec.filtering import find_inside
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.model import Column, Kind, LogicalType, TableSchema
from venus.predicates.evaluation import Bools, Values, evaluate_range
from venus.predicates.ranges import Predicate, Range, compile_predicate
from venus.predicates.syntax import PredicateRefused

Row = tuple[str | None, int | None, str | None]

SCHEMA = TableSchema(
    table_id=1,
    version=1,
    namespace="public",
    name="t",
    key=("id",),
    columns=(
        Column(name="id", number=1, type=LogicalType(kind=Kind.INT, length=8)),
        Column(name="region", number=2, type=LogicalType(kind=Kind.TEXT)),
        Column(name="amount", number=3, type=LogicalType(kind=Kind.DECIMAL, precision=9, scale=2)),
        Column(name="day", number=4, type=LogicalType(kind=Kind.DATE)),
    ),
)
REGIONS = ("EU", "EU ", "US", "eu", "ÉU", "", None)
AMOUNTS = (None, -1, 9, 99, 100, 101)
DAYS = (None, "2025-12-31", "2026-01-01", "2026-02-01")
ROWS: tuple[Row, ...] = tuple(product(REGIONS, AMOUNTS, DAYS))
KEYS = range(6)
#: Mechanisms that a history can disable, to prove that the histories notice.
FAULTS = (
    "no verdict",
    "a row that leaves is dropped",
    "the full data whole",
    "touched keys not spared",
    "judged as before until the resync",
    "a removed predicate brings nothing",
    "a resync continues when its table is emptied",
    "NULL is in every range",
)


def _encode_keys_and_rows() -> tuple[list[bytes], dict[Row, bytes]]:
    """Return the bytes of every key and of every row."""
    amounts = [None if a is None else f"{a}.00" for _, a, _ in ROWS]
    columns: list[list[Value]] = [["0"] * len(ROWS), [r for r, _, _ in ROWS], list(amounts), [d for _, _, d in ROWS]]
    _, values = from_columns(columns, Layout.of(SCHEMA))
    nothing: list[Value] = [None] * len(KEYS)
    ids, _ = from_columns([[str(k) for k in KEYS], nothing, nothing, nothing], Layout.of(SCHEMA))
    return ids.split(), dict(zip(ROWS, values.split(), strict=True))


IDS, BYTES = _encode_keys_and_rows()
ROW_OF = {encoded: row for row, encoded in BYTES.items()}


@cache
def _database() -> sqlite3.Connection:
    """Return a database with a table of all possible rows."""
    made = sqlite3.connect(":memory:")
    made.execute("CREATE TABLE t (n INTEGER, region TEXT, amount DECIMAL(9,2), day TEXT)")
    made.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", [(n, *row) for n, row in enumerate(ROWS)])
    return made


@cache
def where(text: str, *, has_halves: bool = False) -> frozenset[Row]:
    """Return the rows that SQLite finds, with `has_halves` for amounts larger by a half; without a text, every row."""
    table = "(SELECT n, region, amount + 0.5 AS amount, day FROM t)" if has_halves else "t"
    found = _database().execute(f"SELECT n FROM {table} {'WHERE ' if text else ''}{text}")
    return frozenset(ROWS[n] for (n,) in found)


def _a_range(rng: random.Random) -> str:
    """Return a random range of one column as text."""
    column = rng.choice(("region", "amount", "day"))
    constants = {
        "region": [f"'{r}'" for r in REGIONS if r is not None],
        "amount": ["-0.5", "9", "99", "99.5", "100.00", "101"],
        "day": [f"'{d}'" for d in DAYS if d is not None],
    }[column]
    one, other = rng.choice(constants), rng.choice(constants)
    sign = rng.choice(("=", "<", "<=", ">", ">="))
    shapes = (
        f"{column} {sign} {one}",
        f"{one} {sign} {column}",
        f"{column} in ({one}, {other})",
        f"{column} between {one} and {other}",
        f"{column} is null",
        f"{column} is not null",
    )
    return rng.choice(shapes)


def random_text(rng: random.Random) -> str:
    """Return a predicate that some value satisfies; the product refuses others, and the database finds no row."""
    while True:
        text = " and ".join(_a_range(rng) for _ in range(rng.choice((1, 1, 2, 3))))
        if predicate_of(text) is not None:
            return text
        assert not where(text), text


@cache
def predicate_of(text: str) -> Predicate | None:
    """Return the product's predicate for a text, or None if the product refuses it because no value satisfies it."""
    try:
        return compile_predicate(text, SCHEMA)
    except PredicateRefused as refused:
        if "no value of" not in str(refused):
            raise
        return None


@dataclass(frozen=True)
class Choice:
    """A predicate as a text for the product and as the rows that a database finds; without a text, every row."""

    text: str

    @property
    def predicate(self) -> Predicate | None:
        return predicate_of(self.text) if self.text else None

    def where(self, row: Row) -> bool:
        return row in where(self.text)

    @classmethod
    def random(cls, rng: random.Random) -> Choice:
        return cls("" if rng.random() < 0.2 else random_text(rng))


@dataclass
class Cut:
    """Changes of one source transaction, after a TRUNCATE or not."""

    changes: list[tuple[int, Row | None]]
    truncates: bool = False


@dataclass
class History:
    """One source, its queue, one target."""

    rng: random.Random
    fault: str = ""
    cuts: list[Cut] = field(default_factory=list)
    #: The source's rows after each cut: states[n] is the result of n cuts.
    states: list[dict[int, Row]] = field(default_factory=lambda: [{}])
    applied: int = 0  # all cuts
    target: dict[int, Row] = field(default_factory=dict)
    #: The predicate by which each key was last selected.
    judged_by: dict[int, Choice] = field(default_factory=dict)
    choice: Choice = Choice("")
    before: Choice | None = None  # the next predicate, while a change is in progress
    recorded_from: int | None = None
    touched: dict[int, int] = field(default_factory=dict)
    side: tuple[int, dict[int, Row]] | None = None
    leaves: int = 0
    changes: int = 0

    def run(self, steps: int) -> None:
        """Take random steps, and check the rows after each one. Raises AssertionError."""
        for _ in range(steps):
            step = self.rng.choice(
                (
                    self.write,
                    self.write,
                    self.write,
                    self.apply,
                    self.apply,
                    self.change,
                    self.begin,
                    self.load,
                    self.replace,
                    self.crash,
                )
            )
            step()
            self.check()
        while self.before is not None or self.applied < len(self.cuts):
            for step in (self.begin, self.load, self.apply, self.replace):
                step()
                self.check()
        assert self.target == {k: r for k, r in self.states[-1].items() if self.choice.where(r)}

    # -- the source -------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Commit a random cut at the source: changes, sometimes after a TRUNCATE."""
        rng, state = self.rng, dict(self.states[-1])
        truncates = rng.random() < 0.05
        if truncates:
            state.clear()
        changes: list[tuple[int, Row | None]] = []
        for _ in range(rng.randint(1, 4)):
            key = rng.choice(KEYS)
            row = None if rng.random() < 0.2 else rng.choice(ROWS)
            if key in state and rng.random() < 0.2:  # its key and its columns change
                changes.append((key, None))
                del state[key]
                key = rng.choice(KEYS)
            changes.append((key, row))
            state.pop(key, None) if row is None else state.update({key: row})
        self.cuts.append(Cut(changes, truncates))
        self.states.append(state)

    # -- the target -------------------------------------------------------------------------------------------------

    def apply(self) -> None:
        """Apply one cut, or several in one transaction."""
        end = min(len(self.cuts), self.applied + self.rng.choice((1, 1, 3)))
        parts: list[RowChanges] = []
        for number in range(self.applied, end):
            if self.cuts[number].truncates:
                self.target.clear()
                self.judged_by.clear()
                parts.clear()
                if self.fault != "a resync continues when its table is emptied":
                    self.recorded_from, self.side = None, None
            parts.append(self._judge(number))
        self.applied = end
        if parts:
            self._merge(net_changes(join_changes(parts)))

    def _judge(self, number: int) -> RowChanges:
        """Return the changes of a cut as the predicate judges them: rows outside are deletions."""
        changes = self.cuts[number].changes
        rows = RowChanges(
            record_ids=PackedBytes.of([IDS[k] for k, _ in changes]),
            rows=PackedBytes.of([b"" if r is None else BYTES[r] for _, r in changes]),
            is_deleted=np.array([r is None for _, r in changes]),
            offsets=np.full(len(changes), number, dtype=np.int64),
        )
        choice = self.choice
        if self.fault == "judged as before until the resync" and self.before is not None:
            choice = self.before
        found = rows if self.fault == "no verdict" else apply_predicate(rows, choice.predicate, SCHEMA)
        if self.fault == "a row that leaves is dropped":
            found = found.where(~(found.is_deleted & ~rows.is_deleted))
        for key, _ in changes:
            self.judged_by[key] = self.choice
            self.touched[key] = number
        return found

    def _merge(self, rows: RowChanges) -> None:
        """Apply judged changes to the target's rows."""
        for record_id, row, gone in zip(rows.record_ids.split(), rows.rows.split(), rows.is_deleted, strict=True):
            key = IDS.index(record_id)
            if gone:
                self.leaves += key in self.target
                self.target.pop(key, None)
            else:
                self.target[key] = ROW_OF[row]

    # -- a change of the predicate ----------------------------------------------------------------------------------

    def change(self) -> None:
        """Restart with another predicate in the configuration."""
        if self.rng.random() < 0.5:
            return
        self.before = self.before or self.choice
        self.choice = Choice.random(self.rng)
        self.recorded_from, self.side = None, None

    def begin(self) -> None:
        """Record touched keys from now on."""
        if self.before is not None and self.recorded_from is None:
            self.recorded_from = self.applied
            self.touched.clear()

    def load(self) -> None:
        """Read the full data at a cut into the side table."""
        if self.recorded_from is None or self.side is not None:
            return
        cut = self.rng.randint(self.recorded_from, len(self.cuts))
        state = self.states[cut]
        keys = sorted(state)
        chosen = np.ones(len(keys), dtype=np.bool_)
        if self.choice.predicate is not None and keys and self.fault != "the full data whole":
            packed = PackedBytes.of([IDS[k] for k in keys]), PackedBytes.of([BYTES[state[k]] for k in keys])
            chosen = find_inside(self.choice.predicate, *packed, SCHEMA)
        self.side = cut, {k: state[k] for k, inside in zip(keys, chosen, strict=True) if inside}

    def replace(self) -> None:
        """Delete and insert rows that differ from the side table, except keys that were touched after its cut."""
        if self.side is None or self.applied < self.side[0]:
            return
        cut, side = self.side
        if not (self.fault == "a removed predicate brings nothing" and not self.choice.text):
            for key in KEYS:
                if self.touched.get(key, -1) >= cut and self.fault != "touched keys not spared":
                    continue
                self.target.pop(key, None)
                self.target.update({key: side[key]} if key in side else {})
        self.judged_by = dict.fromkeys(KEYS, self.choice)
        self.before, self.recorded_from, self.side = None, None, None
        self.changes += 1

    def crash(self) -> None:
        """Lose the state in memory; the side table must be loaded again."""
        self.side = None

    # -- checks ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare with the source as of the applied cut: each key by the predicate with which it was last selected."""
        whole = self.before or self.choice
        wanted = {
            key: row for key, row in self.states[self.applied].items() if self.judged_by.get(key, whole).where(row)
        }
        assert self.target == wanted
        if self.before is None:
            assert wanted == {k: r for k, r in self.states[self.applied].items() if self.choice.where(r)}


def run_histories(numbers: range, steps: int, fault: str = "") -> tuple[int, int]:
    """Run histories by their numbers; return how often rows left the range, and how often predicates were replaced."""
    leaves = changes = 0
    for number in numbers:
        history = History(random.Random(number), fault)
        judging = _reject_nulls if fault == "NULL is in every range" else evaluate_range
        try:
            with patch("venus.predicates.evaluation.evaluate_range", judging):
                history.run(steps)
        except AssertionError as error:
            raise AssertionError(f"history {number}: {error}") from error
        leaves, changes = leaves + history.leaves, changes + history.changes
    return leaves, changes


def _reject_nulls(wanted: Range, values: pa.Array | Values) -> Bools:
    """Evaluate a range as a faulty product would: NULL is inside."""
    known = values if isinstance(values, Values) else Values(values)
    return evaluate_range(wanted, known) | known.null
