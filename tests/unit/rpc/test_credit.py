"""Credit is never overdrawn, and never blocks for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from venus.rpc.compression import OVERHEAD_BYTES, Credit, cost
from venus.wire import broker_pb2


def test_cost_counts_the_body_and_an_overhead() -> None:
    assert cost(broker_pb2.Increment(body=b"12345")) == 5 + OVERHEAD_BYTES


def test_a_message_larger_than_all_credit_is_sent_alone() -> None:
    credit = Credit(100)
    assert credit.allows(500)
    credit.spend(500)
    assert not credit.allows(1)
    credit.grant(500)
    credit.spend(1)
    assert not credit.allows(500)


@given(st.integers(1, 1000), st.lists(st.integers(1, 1500), max_size=60))
def test_outstanding_stays_within_the_credit_and_everything_is_sent(granted: int, sizes: list[int]) -> None:
    credit = Credit(granted)
    outstanding: list[int] = []
    for size in sizes:
        while not credit.allows(size):
            credit.grant(outstanding.pop(0))  # raises if nothing is outstanding, because it would wait for ever
        credit.spend(size)
        outstanding.append(size)
        assert sum(outstanding) <= granted or len(outstanding) == 1
