"""A process and the directory's answers: their order, their file, and brokers that do not answer."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from venus.config import BrokerSettings, ClusterSettings, Settings
from venus.errors import Unavailable
from venus.rpc import directory
from venus.rpc.address import (
    CONSUMER,
    NONE,
    PRODUCER,
    BrokerAddress,
    DirectoryLookup,
    broker_address,
    find_by_directory,
    from_options,
    lookup_of,
    to_options,
)
from venus.rpc.broker_selection import BrokerSelector
from venus.rpc.directory import DirectoryFollower, order_sets
from venus.rpc.sealed import seal
from venus.wire.network_pb2 import NamedSet, WhereAnswer

LOOKUP = DirectoryLookup(("seed:1", "other:1"), CONSUMER, "main", "lyon")
LYON, NICE = NamedSet(set="lyon", addresses=["lyon:1", "lyon:2"]), NamedSet(set="nice", addresses=["nice:1"], rank=1)


class Directory:
    """Brokers that answer, by address. All others do not answer."""

    def __init__(self, **answers: WhereAnswer) -> None:
        self.answers = {f"{name}:1": answer for name, answer in answers.items()}
        self.asked: list[str] = []

    def where(self, address: str, lookup: DirectoryLookup) -> WhereAnswer:
        """Answer as the broker at this address."""
        assert lookup == LOOKUP
        self.asked.append(str(address))
        if address not in self.answers:
            raise Unavailable(f"no answer from {address}")
        return self.answers[address]

    def follower(self, folder: Path) -> DirectoryFollower[BrokerSelector]:
        """Return a follower that asks these brokers."""
        return DirectoryFollower(LOOKUP, NONE, BrokerSelector, folder=folder, where=self.where)


def answer(*sets: NamedSet) -> WhereAnswer:
    return WhereAnswer(sets=sets)


def test_the_first_broker_that_answers_names_the_sets(tmp_path: Path) -> None:
    brokers = Directory(other=answer(LYON, NICE))
    found = brokers.follower(tmp_path).selector()
    assert brokers.asked == ["seed:1", "other:1"]
    assert found.in_order("main") == ["lyon:1", "lyon:2", "nice:1"]


def test_an_empty_answer_counts_as_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    brokers = Directory(seed=answer(), other=answer(NICE))
    following = brokers.follower(tmp_path)
    assert following.selector().in_order("main") == ["nice:1"]
    brokers.answers["other:1"] = answer()
    with caplog.at_level(logging.WARNING):
        following.refresh()
    assert following.selector().in_order("main") == ["nice:1"], "the known sets stay in use"
    assert "it knows no set for a consumer of main" in caplog.text


def test_a_client_starts_with_the_last_answer_while_the_directory_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Directory(seed=answer(LYON, NICE)).follower(tmp_path).selector()
    found = Directory().follower(tmp_path).selector()
    assert found.in_order("main") == ["lyon:1", "lyon:2", "nice:1"]
    assert "the sets of its last answer are used: seed:1: no answer" in caplog.text


@pytest.mark.parametrize("damage", ["a flipped bit", "cut", "empty", "other bytes", "an address", "no set"])
def test_a_damaged_file_is_ignored_and_reported(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Directory(seed=answer(LYON)).follower(tmp_path).selector()
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    match damage:
        case "a flipped bit":
            file.write_bytes(whole[:5] + bytes([whole[5] ^ 4]) + whole[6:])
        case "cut":
            file.write_bytes(whole[:-3])
        case "empty":
            file.write_bytes(b"")
        case "other bytes":
            file.write_bytes(b"x" * (directory.FILE_BYTES_MAX + 5))
        case "an address":
            file.write_bytes(seal(answer(NamedSet(set="a", addresses=["http://evil"]))))
        case _:
            file.write_bytes(seal(answer()))
    with pytest.raises(Unavailable, match=r"no broker of \[broker\] directory answers: seed:1: no answer") as failure:
        Directory().follower(tmp_path).selector()
    assert str(file) in str(failure.value)
    assert damage == "no set" or "an earlier answer of the directory is ignored: " in caplog.text


def test_without_a_writable_folder_the_answer_still_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    found = Directory(seed=answer(NICE)).follower(tmp_path / "file" / "below").selector()
    assert found.in_order("main") == ["nice:1"]
    assert "is not kept in" in caplog.text


def test_a_new_answer_moves_a_client_only_to_a_nearer_set(tmp_path: Path) -> None:
    paris, nice = NamedSet(set="paris", addresses=["paris:1"]), NamedSet(set="nice", addresses=["nice:1"])
    brokers = Directory(seed=answer(nice))
    following = brokers.follower(tmp_path)
    found = following.selector()
    brokers.answers["seed:1"] = answer(paris, nice)
    following.refresh()
    assert (found.place, found.in_order("main")) == (0, ["nice:1", "paris:1"]), "equally near: it stays"
    brokers.answers["seed:1"] = answer(paris, NICE)
    following.refresh()
    assert (found.place, found.in_order("main")) == (1, ["nice:1", "paris:1"]), "in use until paris proves healthy"
    brokers.answers["seed:1"] = answer(paris)
    following.refresh()
    assert (found.place, found.in_order("main"), found.addresses) == (0, ["paris:1"], ("paris:1",)), "nice is gone"


def test_brokers_of_known_sets_are_asked_when_the_seeds_are_away(tmp_path: Path) -> None:
    brokers = Directory(seed=answer(LYON, NICE))
    following = brokers.follower(tmp_path)
    found = following.selector()
    brokers.answers = {"nice:1": answer(NICE)}
    following.refresh()
    assert found.in_order("main") == ["nice:1"]


def test_a_lost_broker_makes_the_process_ask_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "AGAIN_S", 0.0)
    brokers = Directory(seed=answer(LYON))
    found = brokers.follower(tmp_path).selector()
    brokers.answers["seed:1"] = answer(NICE)
    found.record_lost("lyon:1")
    eventually(lambda: found.in_order("main") == ["nice:1"])


def test_a_broker_that_two_sets_name_counts_once() -> None:
    twice = NamedSet(set="x", addresses=["nice:1", "lyon:2"], rank=2)
    assert order_sets(answer(twice, NICE, LYON), ()) == (("lyon:1", "lyon:2"), ("nice:1",))


def test_configured_addresses_override_the_directory() -> None:
    cluster = ClusterSettings(site="lyon")
    found = broker_address(Settings(broker=BrokerSettings(directory=("a:1",)), cluster=cluster))
    assert lookup_of(found) == DirectoryLookup(("a:1",), PRODUCER, "main", "lyon"), "there is no target"
    for chosen in ({"address": "b:1"}, {"addresses": ("b:1",)}, {"further": (("b:1",),)}):
        address = broker_address(Settings(broker=BrokerSettings(directory=("a:1",), **chosen), cluster=cluster))
        assert lookup_of(address) is None
        assert "b:1" in address


def test_a_lookup_is_passed_to_workers_of_spark() -> None:
    address = find_by_directory(["a:1", "b:1"], PRODUCER, "shop", "lyon", NONE)
    options = to_options(address) | {"business": "shop"}
    assert lookup_of(from_options(options)) == DirectoryLookup(("a:1", "b:1"), CONSUMER, "shop", "lyon")
    assert lookup_of(from_options(to_options(BrokerAddress("c:1")))) is None
