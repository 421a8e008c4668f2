"""A collector of traces over OTLP/HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Collected = list[tuple[str, Any]]


@contextmanager
def run_collector() -> Iterator[tuple[str, Collected]]:
    """Run a collector; yield its address, and the list of received (instance, span) pairs."""
    taken: Collected = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = ExportTraceServiceRequest()
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            request.ParseFromString(body)
            for found in request.resource_spans:
                names = {a.key: a.value.string_value for a in found.resource.attributes}
                for scope in found.scope_spans:
                    taken.extend((names["service.instance.id"], span) for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", taken
    server.shutdown()
    server.server_close()
    thread.join()
