"""Wrappers around a source, its cuts and a producer that call a hook before and after each call.

The product knows nothing of them: a test opens the two ends through these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from venus.adapters.dialects.contract import Source
from venus.adapters.upper.ingest import Ingest

Hook = Callable[[str], None]

#: The calls of the protocol; between any two of them a process may die.
PROTOCOL = {
    "state", "raise_epoch", "batches", "beat", "open_cut", "sections", "fill_chunk", "commit", "rollback",
    "halt",
    "connect", "send_half", "wait_persisted", "decide", "wait_decided",
}  # fmt: skip


class _Watched:
    def __init__(self, inner: Any, name: str, hook: Hook) -> None:
        self._inner = inner
        self._name = name
        self._hook = hook

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._inner, attribute)
        if attribute not in PROTOCOL:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._hook(f"{self._name}.{attribute}.before")
            result = found(*args, **kwargs)
            self._hook(f"{self._name}.{attribute}.after")
            if attribute == "open_cut" and result is not None:
                return _Watched(result, "cut", self._hook)
            return result

        return call


def watched_source(source: Source, hook: Hook) -> Source:
    """Return the source with a hook around its calls and those of its cuts."""
    return cast(Source, _Watched(source, "source", hook))


def watched_producer(producer: Ingest, hook: Hook) -> Ingest:
    """Return the producer with a hook around its calls."""
    return cast(Ingest, _Watched(producer, "producer", hook))
