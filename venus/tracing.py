"""Traces of cuts for an OpenTelemetry collector, if `[tracing] endpoint` names one; the extra `otel`.

Each stage of a cut becomes a span. No context is passed between processes: each process computes the ids of trace and
span from the cut, and from them whether the cut is sampled. Spans wait in a bounded queue for a thread of their own.
Spans that the collector does not accept in time are dropped, and never block a stage.
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Any

import xxhash

from venus import cut_stages
from venus.errors import ConfigError

if TYPE_CHECKING:
    from venus.config import TracingSettings

logger = logging.getLogger(__name__)

QUEUE_MAX = 4096
EVERY_MS = 1000
#: Time limit of a request to the collector, and of the last one when the process ends.
TIMEOUT_S = 3.0
#: The first stage, which is the root of the trace.
ROOT = "captured"


def trace_id(stage: cut_stages.CutStage) -> int:
    """Return the id of a cut's trace, the same in every process. Batch numbers start again with a new store."""
    name = f"{stage.business}\0{stage.cut}\0{stage.captured_at_us}"
    return xxhash.xxh3_128_intdigest(name.encode()) or 1


def span_id(trace: int, name: str, target: str = "") -> int:
    """Return the id of a stage's span. Its target is part of it: several targets apply the same cut."""
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

    def __call__(self, stage: cut_stages.CutStage) -> None:
        """Export a stage, if its cut is sampled; return at once."""
        trace = trace_id(stage)
        if is_sampled(trace, self._share):
            self._processor.on_end(self._span(stage, trace))

    def close(self) -> None:
        """Send the waiting spans, if the collector accepts them in time."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def _span(self, stage: cut_stages.CutStage, trace: int) -> Any:
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


def start_tracing(tracing: TracingSettings, role: str) -> SpanListener | None:
    """Start tracing, if it is configured. Raises ConfigError if the extra is not installed."""
    if not tracing.endpoint:
        return None
    try:
        spans = SpanListener(tracing.endpoint, tracing.sample, role)
    except ImportError:
        hint = "pip install 'venus-cdc[otel]', or remove tracing.endpoint"
        raise ConfigError("tracing.endpoint is set, and OpenTelemetry is not installed", hint=hint) from None
    cut_stages.add_listener(spans)
    return spans


def stop_tracing(spans: SpanListener | None) -> None:
    """Stop tracing."""
    if spans is not None:
        cut_stages.remove_listener(spans)
        spans.close()
