"""The rows that each set should have by its own predicates and those above it, and the check that it has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.brokers.judge import full_data
from tests.simulation.judge import Violation
from tests.simulation.tiers.rows import EVERY, Admits, intersect, visible_rows

if TYPE_CHECKING:
    from tests.simulation.tiers.host import TierHost
    from tests.simulation.tiers.judge import MirrorHistory, Timeline

OTHERS = "no consumer continues at a set with other rows"
#: Offset 0: without increments a set has no rows that could be wrong.
NOTHING = 0


@dataclass(frozen=True, slots=True)
class RowChoice:
    """The rows that a broker set selects itself, and the rows that all sets on the way to it admit."""

    own: Admits
    all: Admits


class RowJudge:
    """Judge of rows; raises Violation. It knows each set's requests, but not how the product handles them."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, str], RowChoice] = {}  # by set, and snapshot of the set above
        self._here: dict[tuple[str, int], RowChoice] = {}  # by set, and offset at which its full data began

    def on_choice(self, host: TierHost, own: Admits, upper: TierHost, snapshot: str) -> None:
        """Record the rows that a set selects from a snapshot of the set above."""
        self._asked[host.name, snapshot] = RowChoice(own, intersect(own, self.admitted_at(upper)))

    def on_full_data(self, host: TierHost) -> None:
        """Record that full data has begun, as the log or the restarted process shows."""
        business = host.business
        mirror = business.proposed.mirror if business is not None else None
        if mirror is not None and mirror.snapshot:
            self._here[host.name, mirror.begin] = self._asked[host.name, mirror.snapshot]

    def admitted_at(self, host: TierHost) -> Admits:
        """Return the rows that a set should have."""
        return self._choice_of(host).all

    def _choice_of(self, host: TierHost) -> RowChoice:
        """Return the rows that a set selected for its current full data."""
        business = host.business
        mirror = business.committed.mirror if business is not None else None
        if mirror is None:
            return RowChoice(EVERY, EVERY)
        if (host.name, mirror.begin) not in self._here:
            self.on_full_data(host)  # the log commits the record just before it notifies its client
        return self._here[host.name, mirror.begin]

    def on_follow(self, host: TierHost, above: Admits) -> None:
        """Check a set that continues with increments of a set above."""
        business, known = host.business, self._choice_of(host)
        mirror = business.committed.mirror if business is not None else None
        if business is None or mirror is None:
            return
        found = intersect(known.own, above)
        if business.committed.next_offset > NOTHING:
            check_same_rows(f"{host.name}", known.all, found, host.tables)
        self._here[host.name, mirror.begin] = RowChoice(known.own, found)

    def has_same_rows(self, host: TierHost, upper: TierHost) -> bool:
        """Return whether a set above admits the rows that this set needs."""
        known = self._choice_of(host)
        found = intersect(known.own, self.admitted_at(upper))
        return all(known.all[table] == found[table] for table in host.tables)

    def on_judged(self, host: TierHost, known: MirrorHistory) -> None:
        """Compare the full data of a set with the home's rows at its offset."""
        business = host.business
        if business is None or business.committed.mirror is None or not business.is_filled:
            return
        host.loop.counts["full data compared"] += 1
        # a committed change is materialised slightly later
        offset, rows, admits = business.materialised.offset, full_data(host), self.admitted_at(host)  # type: ignore[arg-type]
        fits = [line for line in known.may_be if _shown_row(line, offset, host.tables, admits) == rows]
        if not fits:
            raise Violation(
                "the full data of a set is the home's rows at its offset, by the filters",
                f"{host.name} at {offset}: {rows}",
            )
        known.may_be = fits


def check_same_rows(who: str, before: Admits, here: Admits, tables: frozenset[int]) -> None:
    """Raise Violation if a set or consumer has continued where the rows differ."""
    for table in tables:
        if before[table] != here[table]:
            raise Violation(OTHERS, f"{who}: table {table} has {sorted(here[table])}, before {sorted(before[table])}")


def _shown_row(line: Timeline, offset: int, tables: frozenset[int], admits: Admits) -> object:
    """Return the admitted rows of some tables at an offset of a history."""
    found = line.source.rows_at(line.sequence_at(offset), tables)
    return None if found is None else visible_rows(found, admits)
