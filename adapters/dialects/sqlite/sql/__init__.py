"""SQL statements of the SQLite source."""

from __future__ import annotations

from venus.adapters.dialects.statements import Statements

statement = Statements(__name__)
