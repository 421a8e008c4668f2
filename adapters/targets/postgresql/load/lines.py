"""The rows of a split as one stream of COPY lines, made while the target takes the ones before (VENUS 3.3).

One COPY for a whole split instead of one for every chunk: neither side waits for the other at each megabyte, and
the target's own progress view counts every row of the split.
"""

from __future__ import annotations

from collections.abc import Iterator

from venus.adapters.targets.postgresql.naming import Placed
from venus.adapters.targets.postgresql.rows.rowcopy import copy_statement, full_text
from venus.adapters.targets.postgresql.session import Session
from venus.codec.chunk import FullRows
from venus.errors import DatabaseUnavailable
from venus.model import TableSchema


class Lines:
    """Sections of one schema version, as the file that the driver reads."""

    def __init__(self, placed: Placed, schema: TableSchema, sections: Iterator[FullRows]) -> None:
        self._placed = placed
        self._schema = schema
        self._sections = sections
        self._error: BaseException | None = None
        self.rows = 0

    def copy(self, session: Session) -> None:
        """COPY all of it. An error of the rows' source is raised instead of the target's complaint about the end."""
        try:
            session.copy_from(copy_statement(self._placed.sql, self._placed, self._schema), self)
        except DatabaseUnavailable:
            if self._error is not None:
                raise self._error from None
            raise

    def read(self, size: int) -> bytes:
        """Return the lines of the next section, however many they are."""
        try:
            section = next(self._sections, None)
        except BaseException as error:
            self._error = error
            raise
        if section is None:
            return b""
        self.rows += len(section)
        return full_text(self._placed, section, self._schema)
