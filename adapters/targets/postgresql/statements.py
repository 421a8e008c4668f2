"""The named SQL blocks of a PostgreSQL target."""

from __future__ import annotations

from venus.adapters.dialects.statements import Statements

statement = Statements(__name__.rpartition(".")[0])
