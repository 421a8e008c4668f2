"""Wrappers around a source, its cuts and a producer that call a hook before and after each call.

The product has no hook: a test passes these wrappers as its source and its producer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from venus.adapters.dialects.contract import Cut, Source, SourceCapture, SourceRegistry
from venus.adapters.upper.ingest import IngestClient

Hook = Callable[[str], None]

#: The calls of the protocol; a process may be killed between any two of them.
PROTOCOL = {
    "read_state",
    "raise_epoch",
    "read_batches",
    "write_heartbeat",
    "open_cut",
    "read_sections",
    "read_fill_chunk",
    "commit",
    "rollback",
    "halt",
    "connect",
    "send_half",
    "wait_until_persisted",
    "decide",
    "wait_until_decided",
}
assert {*dir(SourceRegistry), *dir(SourceCapture), *dir(Cut), *dir(IngestClient)} >= PROTOCOL, (
    "a call that was renamed would not be watched"
)


class _WatchedClient:
    def __init__(self, inner: Any, name: str, hook: Hook) -> None:
        self._inner = inner
        self._name = name
        self._hook = hook

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._inner, attribute)
        if attribute in ("registry", "capture"):
            return _WatchedClient(found, self._name, self._hook)
        if attribute not in PROTOCOL:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._hook(f"{self._name}.{attribute}.before")
            result = found(*args, **kwargs)
            self._hook(f"{self._name}.{attribute}.after")
            if attribute == "open_cut" and result is not None:
                return _WatchedClient(result, "cut", self._hook)
            return result

        return call


def watched_source(source: Source, hook: Hook) -> Source:
    """Return the source with a hook around its calls and those of its cuts."""
    return cast(Source, _WatchedClient(source, "source", hook))


def watched_producer(producer: IngestClient, hook: Hook) -> IngestClient:
    """Return the producer with a hook around its calls."""
    return cast(IngestClient, _WatchedClient(producer, "producer", hook))
