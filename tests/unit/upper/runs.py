"""Complete runs of the upper adapter against the scripted source and broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.databases.scripted_database import ScriptedDatabase
from tests.support.databases.scripted_source import Script, ScriptedSource
from tests.support.engines.scripted_broker import ScriptedBroker, ScriptedProducer
from venus.adapters.upper.capture import CaptureDependencies, run_capture
from venus.adapters.upper.periodic import CaptureReport
from venus.config import CaptureSettings, Settings
from venus.wire.broker_pb2 import BusinessStatus

SETTINGS = Settings(capture=CaptureSettings(batch_rows_max=3, poll_min_ms=0.1, poll_max_ms=0.1, heartbeat_s=3600))

Deed = Callable[[ScriptedDatabase], None]


@dataclass(slots=True)
class Run:
    """One process of the adapter: source and broker are scripted, and the clock advances a second at each idle poll."""

    database: ScriptedDatabase
    broker: ScriptedBroker
    script: Script = field(default_factory=Script)
    deeds: list[Deed] = field(default_factory=list)
    settings: Settings = SETTINGS
    stop: threading.Event = field(default_factory=threading.Event)
    now: float = 0.0
    reports: list[CaptureReport] = field(default_factory=list)
    producers: list[ScriptedProducer] = field(default_factory=list)
    sources: list[ScriptedSource] = field(default_factory=list)

    def capture(self) -> CaptureReport:
        """Capture until all scripted actions are done, one at each idle poll, and everything is filled."""
        run_capture(self.settings, self.stop, report=self.reports.append, outside=self.dependencies)
        return self.reports[-1]

    @property
    def dependencies(self) -> CaptureDependencies:
        """Return the scripted source and broker."""
        return CaptureDependencies(
            source=self._source,
            ingest=self._producer,
            broker_status=lambda settings: BusinessStatus(last_batch=self.broker.last_batch),
            monotonic=lambda: self.now,
        )

    def _source(self, settings: Settings) -> ScriptedSource:
        self.sources.append(ScriptedSource(self.database, self.script, idle=self._on_idle))
        return self.sources[-1]

    def _producer(self, settings: Settings) -> ScriptedProducer:
        self.producers.append(ScriptedProducer(self.broker, self.script))
        return self.producers[-1]

    def _on_idle(self) -> None:
        self.now += 1
        if self.deeds:
            self.deeds.pop(0)(self.database)
        elif all(t.fill.done for t in self.database.tables.values()):
            self.stop.set()


def run(
    database: ScriptedDatabase, broker: ScriptedBroker, script: Script | None = None, deeds: Sequence[Deed] = ()
) -> CaptureReport:
    """Capture to the end and return the last report."""
    return Run(database, broker, script or Script(), list(deeds)).capture()
