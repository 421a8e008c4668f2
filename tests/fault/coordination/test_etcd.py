"""etcd loses its leader, its majority, its answers; addresses are wrong. No swap is decided twice, no call hangs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance.coordination.test_brokers import broker
from tests.conformance.coordination.test_businesses import create_business, leadership
from tests.fault.coordination.conftest import Connect
from tests.support.brokers.etcd import EtcdCluster, running_etcd
from tests.support.faults.lost_answers import AnswerLosingProxy
from tests.support.waiting import eventually
from venus.coordination.etcd import EtcdCoordinator
from venus.errors import Refused, Unavailable
from venus.replication.records import Leadership

pytestmark = pytest.mark.fault


def swap_until_answered(coordinator: EtcdCoordinator) -> Leadership | None:
    """Try a swap until it is answered, and read again after each refusal, as a broker does."""

    def read() -> Leadership | None:
        try:
            return coordinator.read("main")
        except Unavailable:
            return None

    found = eventually(read)
    assert isinstance(found, Leadership)
    return found


def test_every_swap_is_exact_while_leaders_of_etcd_are_killed(etcd: EtcdCluster, connect: Connect) -> None:
    """One writer wins each term: the one with a positive answer, or perhaps one that got no answer."""
    create_business(connect())
    stop = threading.Event()

    def count_up(_: int) -> tuple[list[int], int]:
        own, won, unknown = connect(timeout_s=2.0), [], 0
        while not stop.is_set():
            try:
                found = own.read("main")
                assert found is not None
                if (stored := own.swap(found, replace(found, term=found.term + 1))) is not None:
                    won.append(stored.term)
            except Unavailable:
                unknown += 1
        return won, unknown

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(count_up, number) for number in range(4)]
        for _ in range(2):
            time.sleep(1.0)
            victim = etcd.leader()
            victim.kill()
            time.sleep(2.0)
            victim.start()
            etcd.wait()
        stop.set()
        ended = [future.result() for future in running]

    won = sorted(term for terms, _ in ended for term in terms)
    last = swap_until_answered(connect())
    assert last is not None
    assert len(won) == len(set(won)), "two writers won the same term"
    missing = set(range(2, last.term + 1)) - set(won)
    assert len(missing) <= sum(unknown for _, unknown in ended), "a term without a winner or an unknown outcome"
    assert set(won) <= set(range(2, last.term + 1))


def test_a_lease_is_reported_correctly_while_etcd_is_away_for_seconds(etcd: EtcdCluster, connect: Connect) -> None:
    own = connect()
    own.register(broker())
    stored = create_business(own)
    own._client._timeout_s = 1.0
    for node in etcd.nodes:
        node.pause()

    for call in (own.refresh, own.brokers, lambda: own.read("main"), lambda: own.swap(stored, replace(stored, term=2))):
        began = time.monotonic()
        with pytest.raises(Unavailable, match="etcd does not answer within 1 s"):
            call()
        assert time.monotonic() - began < 30.0, "each call has a time limit"

    for node in etcd.nodes:
        node.resume()
    found = swap_until_answered(own)
    assert found in (leadership(), leadership(term=2)), "a swap that raised may have happened"

    def is_registered() -> bool:
        try:
            if not own.refresh():
                own.register(broker())
        except Unavailable:
            return False
        return True

    eventually(is_registered)
    assert connect().brokers() == (broker(),)


def test_without_a_majority_no_call_is_answered_from_one_member(etcd: EtcdCluster, connect: Connect) -> None:
    own = connect()
    create_business(own)
    lasting, *others = etcd.nodes
    for node in others:
        node.kill()
    alone = connect([lasting.address], timeout_s=2.0)

    began = time.monotonic()
    with pytest.raises(Unavailable, match=lasting.address):
        alone.read("main")
    assert time.monotonic() - began < 30.0


def test_addresses_that_do_not_answer_are_soon_passed_over(etcd: EtcdCluster, connect: Connect) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        deaf = f"127.0.0.1:{silent.getsockname()[1]}"
        own = connect(["127.0.0.1:1", deaf, "no-such-host.invalid:2379", *etcd.addresses])

        create_business(own)
        etcd.nodes[0].pause()  # the paused member has connections, and sends nothing on them
        assert own.read("main") is not None
        attempt, asked = own._client._attempt, list[object]()

        def note(address: str, *arguments: Any) -> Any:
            asked.append(address)
            return attempt(address, *arguments)

        own._client._attempt = note  # type: ignore[method-assign, assignment]
        for _ in range(20):
            assert own.read("main") is not None
        assert len(asked) < 60, "the address that answered last is asked first, else each read takes five attempts"


def test_addresses_of_which_none_answers_are_named_in_one_line(connect: Connect) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        deaf = f"127.0.0.1:{silent.getsockname()[1]}"
        own = connect(["127.0.0.1:1", deaf], timeout_s=1.0)

        with pytest.raises(Unavailable) as caught:
            own.leaderships()

    text = str(caught.value)
    assert "etcd does not answer within 1 s (127.0.0.1:1: " in text
    assert deaf in text
    assert "\n" not in text
    assert "[cluster] etcd" in caught.value.hint


def test_a_member_of_another_etcd_cluster_among_the_addresses_is_refused(etcd: EtcdCluster, connect: Connect) -> None:
    with running_etcd() as other:
        own = connect([etcd.addresses[0], other.addresses[0]])
        create_business(own)
        etcd.nodes[0].kill()

        with pytest.raises(Refused, match="belongs to another etcd cluster") as caught:
            own.read("main")
        assert "etcdctl member list" in caught.value.hint


def test_a_watch_continues_at_another_member(etcd: EtcdCluster, connect: Connect) -> None:
    own, other = connect(), connect([etcd.addresses[1], etcd.addresses[2]])
    notified = threading.Event()
    own.watch(notified.set)
    assert notified.wait(60)
    notified.clear()

    etcd.nodes[0].kill()
    assert notified.wait(60), "what was missed in between is not known, so it asks to read again"

    def is_notified() -> bool:
        notified.clear()
        try:
            stored = other.read("main") or other.create(leadership())
            if stored is not None:
                other.swap(stored, replace(stored, term=stored.term + 1))
        except Unavailable:
            return False
        return notified.wait(2)

    eventually(is_notified)


def test_clusters_do_not_see_each_other(etcd: EtcdCluster, connect: Connect) -> None:
    create_business(connect())
    apart = EtcdCoordinator(etcd.addresses, etcd.new_name(), timeout_s=60.0)

    assert apart.read("main") is None
    assert apart.leaderships() == ()
    assert apart.identity(create=True) != connect().identity(create=True)
    apart.close()


# -- answers that are lost -------------------------------------------------------------------------------------------


def test_a_swap_whose_answer_was_lost_is_recognised_when_it_is_repeated(etcd: EtcdCluster, connect: Connect) -> None:
    with AnswerLosingProxy(etcd.addresses[0]) as front:
        own = connect([front.address, etcd.addresses[1]])
        stored = create_business(own)
        front.lose = 1

        swapped = own.swap(stored, replace(stored, term=2))

        assert front.lost == 1
        assert swapped == replace(stored, term=2)
        assert swapped == own.read("main")
        assert own.swap(swapped, replace(swapped, term=3)) is not None, "it has the version that is stored"
        front.lose = 1
        assert own.create(leadership("other")) is not None
        assert front.lost == 1, "the address that answered last is asked first"


def call_between_attempts(own: EtcdCoordinator, call: Callable[[], object]) -> None:
    """Let another process do something between an attempt whose answer is lost and its repetition."""
    attempt = own._client._attempt

    def attempt_then_call(*arguments: Any) -> object:
        try:
            return attempt(*arguments)
        except Exception:
            call()
            raise

    own._client._attempt = attempt_then_call  # type: ignore[method-assign, assignment]


def test_a_swap_that_was_overwritten_before_it_was_confirmed_is_unknown(etcd: EtcdCluster, connect: Connect) -> None:
    """The first attempt may have succeeded and been replaced since: it must be reported as neither done nor refused."""
    with AnswerLosingProxy(etcd.addresses[0]) as front:
        own, other = connect([front.address]), connect()
        stored = create_business(own)
        front.lose = 1

        def overwrite() -> None:
            found = other.read("main")
            assert found is not None
            assert other.swap(found, replace(found, term=found.term + 10)) is not None

        call_between_attempts(own, overwrite)

        with pytest.raises(Unavailable, match="may have been changed"):
            own.swap(stored, replace(stored, term=2))
        assert front.lost == 1
        assert other.read("main") == replace(stored, term=12)


def test_a_removal_continues_when_the_answer_about_its_term_was_lost(etcd: EtcdCluster, connect: Connect) -> None:
    with AnswerLosingProxy(etcd.addresses[0]) as front:
        own = connect([front.address])
        stored = create_business(own)
        front.lose = 1

        assert own.remove(stored)
        assert front.lost == 1
        assert own.read("main") is None
        assert own.last_forgotten_term("main") == stored.term


def test_a_removal_whose_answer_was_lost_is_recognised_when_it_is_repeated(etcd: EtcdCluster, connect: Connect) -> None:
    """Otherwise `venus forget` fails although it has removed the business, and fails again when it is repeated."""
    with AnswerLosingProxy(etcd.addresses[0]) as front:
        own = connect([front.address])
        stored = create_business(own)
        own._save_forgotten_term(stored)  # the next swap is that of the record itself
        front.lose = 1

        assert own.remove(stored)
        assert front.lost == 1
        assert own.read("main") is None


def test_a_removal_is_unknown_if_the_business_exists_again_when_it_is_repeated(
    etcd: EtcdCluster, connect: Connect
) -> None:
    with AnswerLosingProxy(etcd.addresses[0]) as front:
        own, other = connect([front.address]), connect()
        stored = create_business(own)
        own._save_forgotten_term(stored)
        front.lose = 1
        call_between_attempts(own, lambda: create_business(other))

        with pytest.raises(Unavailable, match="may have been changed"):
            own.remove(stored)
        assert front.lost == 1
        assert other.read("main") is not None


def test_a_registration_whose_answer_was_lost_is_valid(etcd: EtcdCluster, connect: Connect) -> None:
    with AnswerLosingProxy(etcd.addresses[0]) as front:
        own = connect([front.address, etcd.addresses[1]])
        own.brokers()
        front.lose = 1

        own.register(broker())

        assert front.lost == 1
        assert own.brokers() == (broker(),)
        assert own.refresh()
