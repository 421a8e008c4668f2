"""A first read of a table while writers change it, sent cut by cut as capture does."""

from __future__ import annotations

import random

from tests.support.brokers.feed import Change, Feed, Key, Row, deletion, put, section
from venus.codec.batch import marker
from venus.model import ChangeKind

TABLE = 1


class FirstRead:
    """A table of `rows` rows with random writers; each cut brings their changes and the next rows in key order."""

    def __init__(self, feed: Feed, random_: random.Random, rows: int, *, chunk_rows: int = 40) -> None:
        self._feed, self._random, self._chunk_rows = feed, random_, chunk_rows
        self._source: dict[Key, Row] = {(str(i),): (f"row {i}", str(i)) for i in range(0, 2 * rows, 2)}
        self._last, self._end = -1, 2 * rows
        #: The offset after the last row, once it was sent.
        self.end: int | None = None

    def send_all(self) -> None:
        """Send all remaining cuts."""
        while self.end is None:
            self.send_cut()

    def send_cut(self) -> None:
        """Send the changes of some writers, then the next key range."""
        schema = self._feed.schemas[TABLE]
        sections = []
        if self._random.random() < 0.05:
            self._source.clear()
            self._feed.model[TABLE].clear()
            sections.append(marker(TABLE, schema.version, ChangeKind.TRUNCATE))
        changes = [self._write() for _ in range(self._random.choice((0, 2, 2, 20)))]
        changes = list({change.key: change for change in changes}.values())
        if changes:
            sections.append(section(schema, changes))
        keys = sorted(n for n in map(int, self._keys()) if self._last < n <= self._end)
        chunk = [put(key, *self._source[str(key),]) for key in keys[: self._chunk_rows]]
        if chunk:
            sections.append(section(schema, chunk, first_read=True))
        for change in (*changes, *chunk):
            self._feed.model[TABLE].pop(change.key, None)
            if change.row is not None:
                self._feed.model[TABLE][change.key] = change.row
        self._last = keys[self._chunk_rows - 1] if len(keys) > self._chunk_rows else self._end
        if sections:
            self._feed.sections(sections, batch_rows=50)
        if self._last == self._end:
            self.end = self._feed.broker.next_offset

    def _keys(self) -> list[str]:
        return [str(key) for (key,) in self._source]

    def _write(self) -> Change:
        """Change or delete a random row as a writer; return the change."""
        key = self._random.randrange(self._end + 20)
        if self._random.random() < 0.3:
            self._source.pop((str(key),), None)
            return deletion(key)
        row: Row = (f"changed {self._random.randrange(10**6)}", str(key))
        self._source[str(key),] = row
        return put(key, *row)
