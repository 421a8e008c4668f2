"""The stages of a cut, under one id in all processes, and their traces for an OpenTelemetry collector.

The id is the business and the number of the cut's first batch, `main/17`. Capture assigns that number, and every batch
carries it. The code of a stage reports the stage's end here; without a listener, the report costs one comparison.
`venus -v` writes a line for each stage.

If `[tracing] endpoint` names a collector (the extra `otel`), each stage becomes a span. No context is passed between
processes: each process computes the ids of trace and span from the cut, and decides from these ids whether the cut is
sampled. Spans wait in a bounded queue for a separate thread. Spans that the collector does not accept in time are
dropped, and never block a stage.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

from venus.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CutStage:
    """A finished stage of a cut. Times are Unix microseconds; `captured_at_us` is the same in all stages."""

    name: str
    business: str
    cut: int
    captured_at_us: int
    began_us: int
    ended_us: int
    facts: dict[str, int | str] = field(default_factory=dict)
    #: The steps of the stage in order, and when each ended; 0 = unknown.
    steps: Mapping[str, int] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The id of the cut: the business and the number of the cut's first batch."""
        return f"{self.business}/{self.cut}"


Listener = Callable[[CutStage], None]
_listeners: list[Listener] = []


def add_listener(listener: Listener) -> None:
    """Call `listener` for each stage of this process. It must not block."""
    _listeners.append(listener)


def remove_listener(listener: Listener) -> None:
    """Stop calling `listener`."""
    _listeners.remove(listener)


def has_listener() -> bool:
    """Return whether there is a listener; call this before building a stage."""
    return bool(_listeners) or logger.isEnabledFor(logging.DEBUG)


def step_time_us() -> int:
    """Return the present time in Unix microseconds, for a step of a stage; 0 without a listener."""
    return time.time_ns() // 1000 if has_listener() else 0


def report_stage(stage: CutStage) -> None:
    """Report a finished stage to the log and to all listeners."""
    if logger.isEnabledFor(logging.DEBUG):
        facts = ", ".join(f"{name} {value}" for name, value in stage.facts.items())
        took_ms = (stage.ended_us - stage.began_us) / 1000
        steps = {name: at_us for name, at_us in stage.steps.items() if at_us}
        after = "".join(f", {name} after {(at_us - stage.began_us) / 1000:.1f} ms" for name, at_us in steps.items())
        logger.debug(
            "cut %s: %s in %.1f ms, %s%s",
            stage.id,
            stage.name,
            took_ms,
            facts,
            after,
            extra={
                "cut": stage.id,
                "stage": stage.name,
                "took_ms": took_ms,
                "ended_us": stage.ended_us,
                **stage.facts,
                **{f"{name}_us": at_us for name, at_us in steps.items()},
            },
        )
    for listener in _listeners:
        listener(stage)


logger = logging.getLogger(__name__)

QUEUE_MAX = 4096
EVERY_MS = 1000
#: Time limit of a request to the collector, and of the last request when the process ends.
TIMEOUT_S = 3.0
#: The first stage, which is the root of the trace.
ROOT = "captured"


def trace_id(stage: CutStage) -> int:
    """Return the id of a cut's trace, the same in every process. Batch numbers restart with a new store."""
    name = f"{stage.business}\0{stage.cut}\0{stage.captured_at_us}"
    return xxhash.xxh3_128_intdigest(name.encode()) or 1


def span_id(trace: int, name: str, target: str = "") -> int:
    """Return the id of a stage's span. The id depends on the target, because several targets apply a cut."""
    return (
        xxhash.xxh3_64_intdigest(struct.pack(">QQ", trace >> 64, trace & (1 << 64) - 1) + f"{name}\0{target}".encode())
        or 1
    )


def is_sampled(trace: int, share: float) -> bool:
    """Return whether a cut is in this share of all cuts."""
    return (trace & (1 << 64) - 1) < share * 2.0**64


class SpanListener:
    """Listener that turns stages into spans and passes them to the exporter's thread."""

    def __init__(self, endpoint: str, share: float, role: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        logging.getLogger("opentelemetry").setLevel(logging.ERROR)
        self._share = share
        self._resource = Resource.create({"service.name": "venus", "service.instance.id": role})
        exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=TIMEOUT_S)
        self._processor = BatchSpanProcessor(exporter, max_queue_size=QUEUE_MAX, schedule_delay_millis=EVERY_MS)

    def __call__(self, stage: CutStage) -> None:
        """Export a stage, if its cut is sampled; return at once."""
        trace = trace_id(stage)
        if is_sampled(trace, self._share):
            self._processor.on_end(self._span(stage, trace))

    def close(self) -> None:
        """Send the waiting spans, if the collector accepts them in time."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def _span(self, stage: CutStage, trace: int) -> Any:
        """Build the OpenTelemetry span of a stage."""
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, TraceFlags

        flags = TraceFlags(TraceFlags.SAMPLED)
        root = SpanContext(trace, span_id(trace, ROOT), is_remote=True, trace_flags=flags)
        own = span_id(trace, stage.name, str(stage.facts.get("target", "")))
        facts = {f"venus.{name}": value for name, value in stage.facts.items()}
        return ReadableSpan(
            name=stage.name,
            context=SpanContext(trace, own, is_remote=False, trace_flags=flags),
            parent=None if stage.name == ROOT else root,
            resource=self._resource,
            attributes={"venus.cut": stage.id, "venus.business": stage.business, **facts},
            start_time=min(stage.began_us, stage.ended_us) * 1000,
            end_time=stage.ended_us * 1000,
        )


def start_tracing(endpoint: str, sample: float, role: str) -> SpanListener | None:
    """Start tracing, if it is configured. Raises ConfigError if the extra is not installed."""
    if not endpoint:
        return None
    try:
        spans = SpanListener(endpoint, sample, role)
    except ImportError:
        hint = "pip install 'venus-cdc[otel]', or remove tracing.endpoint"
        raise ConfigError("tracing.endpoint is set, and OpenTelemetry is not installed", hint=hint) from None
    add_listener(spans)
    return spans


def stop_tracing(spans: SpanListener | None) -> None:
    """Stop tracing."""
    if spans is not None:
        remove_listener(spans)
        spans.close()
