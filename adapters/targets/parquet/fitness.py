"""What becomes of columns in Parquet that has no type for them (`venus check`)."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from venus.codec import arrowrows
from venus.model import Finding, TableSchema


def becomes_text(where: str, schemas: Seq[TableSchema]) -> list[Finding]:
    """Say which columns become text because no type of Parquet holds their values exactly."""
    lines = [
        f"{schema.qualified}.{column.name} ({column.source_type})"
        for schema in schemas
        if not schema.is_heartbeat
        for column in schema.columns
        if arrowrows.becomes_text(column.type)
    ]
    if not lines:
        return []
    message = f"{len(lines)} columns become text: Parquet has no type that holds their values exactly"
    remedy = "read them as text, or change the columns' types (Oracle: --type-map)"
    return [Finding(where=where, message=message, remedy=remedy, details=tuple(lines))]
