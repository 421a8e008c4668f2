"""What adapters have said of their tables, and how old that is. In memory: an adapter says it again when it is back."""

from __future__ import annotations

from collections.abc import Set

from venus.rpc.reports import SOURCE, check, reported_problems
from venus.wire import broker_pb2

#: How a sentence of the upper adapter begins.
PLACE = "source"
#: Adapters whose reports are kept; with more of them, the oldest go.
REPORTS_MAX = 1000
#: What an upper adapter has said that shipped nothing stands for so long after it has gone: its name may be a mistake.
APART_S = 3600.0


class Reports:
    """The newest report of each adapter, by business and consumer group."""

    def __init__(self) -> None:
        self._reported: dict[tuple[str, str], broker_pb2.Reported] = {}
        self._unaccounted: dict[tuple[str, str], int] = {}

    def say(self, business: str, group: str, report: broker_pb2.AdapterReport, now_us: int) -> None:
        """Keep what an adapter says. Raises ProtocolError."""
        check(report)
        if (business, group) not in self._reported and len(self._reported) >= REPORTS_MAX:
            self.forget(*next(iter(self._reported)))
        self._reported[business, group] = broker_pb2.Reported(report=report, reported_at_us=now_us)

    def say_unaccounted(self, business: str, group: str, rows: int) -> None:
        """Keep how many changes a group cannot account for."""
        self._unaccounted[business, group] = rows

    def left(self, business: str, group: str, now_us: int) -> None:
        """Note that an adapter is gone: what it has said was true until now."""
        known = self._reported.get((business, group))
        if known is not None and not known.unknown_since_us:
            gone = broker_pb2.Reported(unknown_since_us=now_us)
            gone.MergeFrom(known)
            self._reported[business, group] = gone

    def forget(self, business: str, group: str) -> None:
        """Drop what a group has said."""
        self._reported.pop((business, group), None)
        self._unaccounted.pop((business, group), None)

    def forget_business(self, business: str) -> None:
        """Drop what everybody of a business has said."""
        for key in [*self._reported, *self._unaccounted]:
            if key[0] == business:
                self.forget(*key)

    def lay_over(self, entry: broker_pb2.BusinessStatus, now_us: int) -> None:
        """Add the reports to a business's status, and their problems to its alarms."""
        self._drop_expired(entry)
        source = self._reported.get((entry.business, SOURCE))
        if source is not None:
            entry.source.CopyFrom(source)
        for consumer in entry.consumers:
            reported = self._reported.get((entry.business, consumer.group))
            if reported is not None:
                consumer.reported.CopyFrom(reported)
            missing = self._unaccounted.get((entry.business, consumer.group))
            if missing is not None:
                consumer.unaccounted_rows = missing
        found = [alarm for _, alarm in reported_problems(entry, now_us)]
        entry.alarms.extend(found)
        entry.reported_alarms = len(found)

    def apart(self, business: str, known: Set[str], now_us: int) -> list[str]:
        """Return what upper adapters have said of businesses that are not `known`; of one of them, or of all.

        One that is refused something before it ships anything leaves no business behind when it goes.
        """
        found = []
        for (name, group), reported in list(self._reported.items()):
            if group != SOURCE or name in known or business not in ("", name):
                continue
            if reported.unknown_since_us and abs(now_us - reported.unknown_since_us) > APART_S * 1e6:
                self.forget(name, group)
                continue
            entry = broker_pb2.BusinessStatus(business=name, source=reported)
            found += [
                text.replace(f"{PLACE}: ", f"{PLACE}: {name}: ", 1) for _, text in reported_problems(entry, now_us)
            ]
        return found

    def tables(self) -> dict[str, set[int]]:
        """Return the tables that reports name, by business: those that do not simply follow."""
        found: dict[str, set[int]] = {}
        for (business, _), reported in list(self._reported.items()):
            found.setdefault(business, set()).update(table.table_id for table in reported.report.tables)
        return found

    def _drop_expired(self, entry: broker_pb2.BusinessStatus) -> None:
        known = {SOURCE, *(consumer.group for consumer in entry.consumers)}
        for (business, group), reported in list(self._reported.items()):
            # one that is connected may have come after this status was made
            if business == entry.business and group not in known and reported.unknown_since_us:
                self.forget(business, group)
