"""Rules that find the rows that could not come back from the application's new database to the old one. Pure.

Each database describes which values its columns can hold (`ColumnLimits`). A rule compares one property of a column in
both databases: a value that only the new database accepts could not return to the old one. The assessment of a source,
the rehearsal of a cut-over and its certificate use the same rules, so a user reads the same lines at every step.

After the cut-over, a row that the old database cannot hold waits in quarantine, and all other rows and tables follow.
Only a loss that concerns more than single rows prevents the cut-over, for example a column that the old database lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from venus.adapters.targets.cutover_contract import (
    ColumnLimits,
    CutoverObstacle,
    NewSideObject,
    SchemaDifference,
    SideLimits,
)
from venus.model import Column, Kind, LogicalType, OwnType, TableSchema, count_phrase

#: Counting stops at this number of rows: it is only a warning, and a full count reads the whole table.
COUNTED_MAX = 100_000
_DIGITS_SHOWN_MAX = 20
_SHOWN_MAX = 100
_KINDS_OF_TIME = (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)


@dataclass(frozen=True, slots=True, kw_only=True)
class WayBackLoss:
    """Values or objects that could not come back from the new database to the old one."""

    kind: str
    table: str
    column: str = ""
    what: str
    #: How many rows are affected now; None = that depends on values that do not exist yet.
    rows: int | None = None
    #: The remedy of a loss that forbids the way back; empty = such rows wait in quarantine.
    remedy: str = ""

    @property
    def line(self) -> str:
        """The loss as text for operators."""
        return _format_line(**self.document)

    @property
    def document(self) -> dict[str, Any]:
        """The loss as a JSON document."""
        return {
            "kind": self.kind,
            "table": self.table,
            "column": self.column,
            "what": self.what,
            "rows": self.rows,
            "blocks": bool(self.remedy),
        }


def _format_line(*, table: str, column: str, what: str, rows: int | None, **_: object) -> str:
    """Return a loss as one line of text for operators."""
    now = "" if rows is None else f" ({format_count(rows)} now)"
    return f"{table}{'.' if column else ''}{column}: {what}{now}"


def format_count(rows: int) -> str:
    """Format a number of rows; VENUS stops counting at a maximum."""
    return f"{COUNTED_MAX:,} rows or more" if rows >= COUNTED_MAX else count_phrase(rows, "row")


# -- the rules of a column ---------------------------------------------------------------------------------------------


def _compare_numbers(old: ColumnLimits, new: ColumnLimits) -> str:
    """Return which numbers only the new column can hold, as text; empty = none."""
    found = []
    if old.lowest is not None and (new.lowest is None or new.lowest < old.lowest):
        found.append(f"below {_format_number(old.lowest)}")
    if old.highest is not None and (new.highest is None or new.highest > old.highest):
        found.append(f"above {_format_number(old.highest)}")
    return f"{old.unit} {' and '.join(found)}" if found else ""


def _format_number(value: Decimal) -> str:
    return f"{value:,}" if len(value.as_tuple().digits) <= _DIGITS_SHOWN_MAX else f"{value:.2E}"


def _compare_scales(old: ColumnLimits, new: ColumnLimits) -> str:
    """Return which decimal places only the new column can hold, as text; empty = none."""
    if old.scale is None or (new.scale is not None and new.scale <= old.scale):
        return ""
    return f"more than {count_phrase(max(old.scale, 0), 'digit')} behind the point"


def _compare_widths(old: ColumnLimits, new: ColumnLimits) -> str:
    """Return which lengths only the new column can hold, as text; empty = none."""
    for unit in ("characters", "bytes"):
        width, now = getattr(old, unit), getattr(new, unit)
        if width and (not now or now > width):
            return f"more than {count_phrase(width, unit[:-1])}"
    return ""


def _compare_charsets(old: ColumnLimits, new: ColumnLimits) -> str:
    """Return which characters only the new column can hold, as text; empty = none."""
    return f"characters that {old.charset} does not have" if old.charset and new.charset != old.charset else ""


def _compare_labels(old: ColumnLimits, new: ColumnLimits) -> str:
    """Return which enum labels only the new column can hold, as text; empty = none."""
    if old.labels is None:
        return ""
    if new.labels is None:
        return f"values other than {', '.join(old.labels)}"
    more = [label for label in new.labels if label not in old.labels]
    return f"the values {', '.join(more)}" if more else ""


def _compare_times(old: ColumnLimits, new: ColumnLimits) -> str:
    """Return which times only the new column can hold, as text; empty = none."""
    found = [f"before {old.earliest}"] if old.earliest and (not new.earliest or new.earliest < old.earliest) else []
    if old.latest and (not new.latest or new.latest > old.latest):
        found.append(f"after {old.latest}")
    return f"times {' and '.join(found)}" if found else ""


def _compare_specials(old: ColumnLimits, new: ColumnLimits) -> str:
    """Return which special values (infinity, NaN) only the new column can hold, as text; empty = none."""
    more = sorted(new.specials - old.specials)
    return f"the values {', '.join(more)}" if more else ""


def _compare_required(old: ColumnLimits, new: ColumnLimits) -> str:
    """Return "NULL" if only the new column can hold it; empty otherwise."""
    return "NULL" if old.required and not new.required else ""


def _compare_empty_texts(old: ColumnLimits, new: ColumnLimits) -> str:
    """Return a text if the old database would store an empty string as NULL; empty otherwise."""
    return "'', which becomes NULL" if old.empty_is_null and not new.empty_is_null else ""


def _compare_checks(old: ColumnLimits, new: ColumnLimits) -> str:
    """Return which checks only the old column has, as text; empty = none."""
    more = [check for check in old.checks if check not in new.checks]
    return f"values that violate {' and '.join(more)}" if more else ""


#: By kind of loss: the values that only the new column holds; empty = none.
RULES: Mapping[str, Callable[[ColumnLimits, ColumnLimits], str]] = {
    "number": _compare_numbers,
    "digits": _compare_scales,
    "width": _compare_widths,
    "characters": _compare_charsets,
    "labels": _compare_labels,
    "times": _compare_times,
    "special values": _compare_specials,
    "required": _compare_required,
    "empty text": _compare_empty_texts,
    "check": _compare_checks,
}

# -- all tables --------------------------------------------------------------------------------------------------------


def find_losses(
    tables: Iterable[TableSchema],
    old: SideLimits,
    new: SideLimits,
    *,
    only_new: Iterable[NewSideObject] = (),
    differences: Iterable[SchemaDifference] = (),
) -> list[WayBackLoss]:
    """Return the values and objects that could not come back to the old database, table by table.

    A column without limits in one of the databases is not compared. `differences`: schema differences of the new one.
    """
    tables = [table for table in tables if not table.is_heartbeat]
    found = [loss for table in tables for loss in _compare_columns(table, old, new)]
    found += [loss for table in tables for loss in _find_left_out(table)]
    found += [_object_loss(one) for one in only_new]
    found += [_constraint_loss(one) for one in differences if one.blocks or one.is_extra]
    return found


def _compare_columns(table: TableSchema, old: SideLimits, new: SideLimits) -> Iterator[WayBackLoss]:
    """Yield the losses that the rules find in the columns of a table."""
    for column in table.columns:
        before, now = (limits.get((table.qualified_name, column.name)) for limits in (old, new))
        if before is None or now is None:
            continue
        types = f" ({before.type} there, {now.type} here)" if before.type != now.type else ""
        for kind, compare in RULES.items():
            if what := compare(before, now):
                yield WayBackLoss(kind=kind, table=table.qualified_name, column=column.name, what=f"{what}{types}")


def _find_left_out(table: TableSchema) -> Iterator[WayBackLoss]:
    """Yield the columns that are not captured: a row that comes back may replace a row that has a value there."""
    for left in table.left_out:
        if left.what == "column":
            yield WayBackLoss(
                kind="left-out column",
                table=table.qualified_name,
                column=left.name,
                what="it is not captured, and rows that come back could lose it",
                remedy="capture it, or drop it",
            )


def _object_loss(found: NewSideObject) -> WayBackLoss:
    """Return the loss of a table or column that only the new database has; a column with values prevents a return."""
    if not found.column:
        what = "only the database that takes over has this table; `venus install-triggers` afterwards captures it"
        return WayBackLoss(kind="table", table=found.table, what=what, rows=found.rows)
    return WayBackLoss(
        kind="column",
        table=found.table,
        column=found.column,
        what="only the database that takes over has this column",
        rows=found.rows,
        remedy="add it to the other database first, or drop it" if found.rows else "",
    )


def _constraint_loss(found: SchemaDifference) -> WayBackLoss:
    """Return the loss from a constraint that only one database has: rows of the other database may violate it."""
    later = f"rows that the other database takes later could violate it: {found.what}"
    what = later if found.is_extra else f"rows that violate it: {found.what}"
    return WayBackLoss(kind="constraint", table=found.table, what=what)


def find_obstacles(losses: Iterable[WayBackLoss]) -> list[CutoverObstacle]:
    """Return the losses that forbid the way back."""
    return [CutoverObstacle(what=loss.line, remedy=loss.remedy) for loss in losses if loss.remedy]


def format_losses(losses: Seq[Mapping[str, Any]]) -> list[str]:
    """Return the lines about losses, from their documents."""
    if not losses:
        return []
    lines = [f"could not come back to the database that follows then: {len(losses)}"]
    lines += [f"  {'! ' if loss['blocks'] else ''}{_format_line(**loss)}" for loss in losses[:_SHOWN_MAX]]
    return lines if len(losses) <= _SHOWN_MAX else [*lines, f"  ... and {len(losses) - _SHOWN_MAX:,} more: --json"]


# -- the limits of logical types ---------------------------------------------------------------------------------------


def travelling_limits(column: Column, types: Seq[OwnType] = ()) -> ColumnLimits:
    """Return the limits of the values that a new table's column at a target can hold, by its logical type.

    If the column of a database holds less, the caller replaces the fields that differ.
    """
    kind = column.type.element if column.type.kind is Kind.ARRAY and column.type.element else column.type
    own = {one.sql_name: one for one in types}.get(column.source_type.removesuffix("[]"))
    lowest, highest = _number_range(kind)
    has_width = kind.kind in (Kind.TEXT, Kind.CHAR)
    return ColumnLimits(
        type=column.source_type,
        lowest=lowest,
        highest=highest,
        scale=kind.scale if kind.kind is Kind.DECIMAL and kind.precision else None,
        characters=kind.length if has_width else 0,
        bytes=kind.length if kind.kind is Kind.BYTES else 0,
        labels=own.labels if own is not None and own.base is None else None,
        specials=_special_values(kind),
        required=not column.nullable or (own is not None and own.not_null),
        checks=tuple(check.sql for check in own.checks) if own is not None else (),
    )


def _number_range(kind: LogicalType) -> tuple[Decimal | None, Decimal | None]:
    """Return the lowest and the highest number of a type; None = no limit."""
    if kind.kind is Kind.INT and kind.length:
        half = Decimal(2 ** (8 * kind.length - 1))
        return -half, half - 1
    if kind.kind is Kind.DECIMAL and kind.precision:
        highest = Decimal((0, (9,) * kind.precision, -kind.scale))
        return highest.copy_negate(), highest
    return None, None


def _special_values(kind: LogicalType) -> frozenset[str]:
    """Return the special values (infinity, NaN, BC) that a type can hold."""
    if kind.kind in _KINDS_OF_TIME:
        return frozenset({"infinity", "BC"})
    if kind.kind is Kind.INTERVAL:
        return frozenset({"infinity"})
    if kind.kind is Kind.FLOAT or (kind.kind is Kind.DECIMAL and not kind.precision):
        return frozenset({"infinity", "NaN"})
    return frozenset({"NaN"}) if kind.kind is Kind.DECIMAL else frozenset()
