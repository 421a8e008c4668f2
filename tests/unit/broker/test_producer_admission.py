"""Producers of a business are admitted one at a time; businesses do not wait for each other."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from venus.broker.replicas.gate import StandaloneGate
from venus.broker.service.ingest import IngestService
from venus.wire import broker_pb2

WAIT_S = 60.0


class LeaderlessGate(StandaloneGate):
    """Gate that admits producers of all businesses but one, which has no leader for now."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def admit_producer(self, business: str) -> None:
        self.asked.append(business)
        if business == "leaderless":
            await asyncio.Event().wait()


def init_of(*_: object, **__: object) -> Future[broker_pb2.InitAck]:
    done: Future[broker_pb2.InitAck] = Future()
    done.set_result(broker_pb2.InitAck(epoch=1))
    return done


def ingest_with(gate: LeaderlessGate) -> IngestService:
    core: Any = SimpleNamespace(producers=SimpleNamespace(init=init_of, leave=lambda _: None))
    status: Any = SimpleNamespace(network=None, producers={})
    nothing: Any = None
    return IngestService(core, nothing, status, traffic=nothing, patience_s=1.0, gate=gate)


def test_a_business_without_a_leader_blocks_no_other_producer() -> None:
    async def exercise() -> list[str]:
        gate = LeaderlessGate()
        ingest, context = ingest_with(gate), SimpleNamespace()
        stuck = [
            asyncio.ensure_future(ingest._admit(context, broker_pb2.Init(business="leaderless", producer=name)))  # type: ignore[arg-type]
            for name in ("first", "second")
        ]
        await asyncio.sleep(0)
        wanted = broker_pb2.Init(business="main", producer="third")
        stream = await asyncio.wait_for(ingest._admit(context, wanted), WAIT_S)  # type: ignore[arg-type]
        assert stream.business == "main"
        for each in stuck:
            each.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
        del each
        stuck.clear()
        await asyncio.sleep(0)  # the loop keeps the callback of this iteration,
        gc.collect()  # and a cancelled task keeps the frames in which it ended
        assert not list(ingest._admission_locks), "no business leaves one behind"
        return gate.asked

    assert asyncio.run(exercise()) == ["leaderless", "main"], "of one business, one after the other"
