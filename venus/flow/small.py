"""What counts as small: who sends no more than this lately is not made to wait for those who send much."""

from __future__ import annotations

#: Bytes of half messages.
SMALL_BYTES = 64 << 10
