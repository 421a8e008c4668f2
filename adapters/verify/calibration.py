"""The first thing that verification does with a table: find out whether a database's checksums mean what ours mean.

A sample of the database's own rows is read, its forms and checksums are computed here, and compared with those that
the database computes. If they are not the same text (an encoding, a driver's rounding, a server's setting), checksums
would differ for equal rows: then this side's rows are read and compared here, and the report says so.
"""

from __future__ import annotations

from venus.adapters.dialects.forms import forms, key_forms
from venus.adapters.dialects.verifying import Reader, Slice, Subject
from venus.adapters.verify.rows import Columns, checksums, columns_of
from venus.errors import SourceError, TargetError

#: Rows that are tried.
SAMPLE_ROWS = 300
#: What the rows of a slice may weigh: where they are read, a slice of them is in memory.
SLICE_BYTES = 32 << 20


def fitting_rows(reader: Reader, subject: Subject) -> int:
    """Return how many rows make a slice that may be held in memory."""
    sections = list(reader.scan(subject, Slice(), None, rows_max=SAMPLE_ROWS))
    rows, weight = sum(s.count for s in sections), sum(s.nbytes for s in sections)
    return max(1, SLICE_BYTES * rows // weight) if weight else SLICE_BYTES


def disagreement(reader: Reader, subject: Subject) -> str:
    """Return why this reader's checksums cannot be used, empty if they can. Within a snapshot of the reader."""
    schema = subject.schema
    sections = list(reader.scan(subject, Slice(), None, rows_max=SAMPLE_ROWS))
    if not sections:
        return ""
    columns = columns_of(sections[0], {schema.version: schema}, schema)
    keys = key_forms(columns, schema)
    try:
        theirs = {key: (total, texts) for key, total, texts in reader.forms(subject, keys)}
    except (SourceError, TargetError) as error:  # an old server may lack a function, a user the right to call it
        reader.end()
        reader.begin(subject)
        return f"the checksums fail: {error}"
    ours = checksums(columns, schema, subject.digest).tolist()
    for n, key in enumerate(keys):
        total, texts = theirs.get(key, (None, ()))
        if total != ours[n]:
            return _named(subject, columns, n, texts)
    return ""


def _named(subject: Subject, columns: Columns, row: int, texts: tuple[str, ...]) -> str:
    for column, values, text in zip(subject.schema.wire_columns, columns, texts, strict=False):
        if forms(column.type, [values[row]])[0] != text:
            return f"column {column.name} is spelt differently there"
    return "its keys are spelt differently there" if not texts else "its digest is another one"
