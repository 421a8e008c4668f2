"""The canonical text of floating-point numbers, for every dialect whose driver returns numbers (change.proto). Pure.

It is the text that PostgreSQL writes, so that a value compares equal as text at source, broker and target.
"""

from __future__ import annotations

import numpy as np

#: From this power of ten on PostgreSQL writes an exponent, by bytes.
_DIGITS = {4: 6, 8: 15}
_ODD = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def float_text(number: float, *, length: int) -> str:
    """Return the shortest text that reads back equal as a number of `length` bytes, spelt as PostgreSQL does."""
    exact = np.float32(number) if length == 4 else np.float64(number)
    if not np.isfinite(exact):
        return _ODD[str(float(exact))]
    mantissa, _, exponent = np.format_float_scientific(exact, trim="-").partition("e")
    power = int(exponent)
    if -5 < power < _DIGITS[length]:
        return str(np.format_float_positional(exact, trim="-"))
    return f"{mantissa.rstrip('.')}e{'-' if power < 0 else '+'}{abs(power):02}"
