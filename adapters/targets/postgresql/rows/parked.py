"""What the quarantine says of a change that it keeps."""

from __future__ import annotations

import json

from venus.adapters.under.fold import Rows
from venus.codec.columns import keys_to_columns
from venus.codec.layout import Layout

PARKED = "PARKED"
#: Offset of rows that the target refused during the full load: before every increment.
LOADED = -1


def key_texts(rows: Rows, layout: Layout) -> list[str]:
    """Return the keys as people read them: a JSON object each."""
    names = layout.schema.key
    columns = keys_to_columns(rows.record_ids, layout)
    found = []
    for key in zip(*columns, strict=True):
        shown = {n: v.hex() if isinstance(v, bytes) else v for n, v in zip(names, key, strict=True)}
        # PostgreSQL's text has no NUL; JSON writes it as an escape.
        found.append(json.dumps(shown, ensure_ascii=False))
    return found
