"""The loader of the Oracle source's SQL."""

from __future__ import annotations

from venus.adapters.dialects.statements import BLOCK_END, Statements

statement = Statements(__name__, block_end=BLOCK_END)
