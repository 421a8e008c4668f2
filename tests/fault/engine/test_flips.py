"""Every file of a data directory is damaged one byte at a time: the served data never changes."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engines.damaged_store import KILLED, REFUSED, SAME, STOPPED
from tests.support.processes.forks import ForkedModule

MODULE = "tests.support.engines.damaged_store"
#: Files that are never read: in them the product notes why a start-up failed, in one line.
NOT_READ = ("LOG", "LOCK")
#: Files that are not read either, but are large; RocksDB keeps them with the data.
HARDLY_READ = "OPTIONS"
#: A test of every byte takes some 70,000 starts of an engine, which the workers of a run share.
PARTS = 8
#: Kind of damage, offset of the byte, number of the bit.
Damage = tuple[str, int, int]


@pytest.fixture(scope="module", params=[KILLED, STOPPED])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a data directory as a broker leaves it when it is killed, or stopped."""
    place = tmp_path_factory.mktemp(request.param)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else place) as memory:
        path = Path(memory) / "data"  # each of many copies is synced several times, which takes long
        subprocess.run([sys.executable, "-m", MODULE, "build", str(path), request.param], check=True, timeout=120)
        yield path


@pytest.fixture(scope="module")
def undamaged_output(store: Path) -> list[str]:
    """Return what the undamaged store serves."""
    command = [sys.executable, "-m", MODULE, "serve", str(store), str(store.parent)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.split()


def files(store: Path) -> list[Path]:
    return sorted(f for f in store.rglob("*") if f.is_file() and not f.name.startswith(NOT_READ))


def record_starts(content: bytes) -> list[int]:
    """Return where the records of a manifest or a log of less than 32 KiB begin."""
    found, at = [], 0
    while at + 7 <= len(content):
        found.append(at)
        at += 7 + struct.unpack_from("<H", content, at + 4)[0]
    return found


def cuts(file: Path) -> list[Damage]:
    """Return cuts of a file at several places, at every record if it has records, and its removal."""
    content = file.read_bytes()
    places = {0, len(content) - 1}
    if file.name.startswith("MANIFEST") or file.suffix == ".log":
        places |= set(record_starts(content))
    return [("cut", at, 0) for at in sorted(places) if 0 <= at < len(content)] + [("missing", 0, 0)]


def some_cuts(file: Path) -> list[Damage]:
    """Choose four cuts: at the start, near the end, where a torn tail would be, and one between."""
    *places, missing = cuts(file)
    between = random.Random(7).sample(places[1:-2], min(1, len(places[1:-2])))
    return [*places[:1], *between, *places[1:][-2:], missing]


def every_flip(file: Path) -> Iterator[Damage]:
    stride = 61 if file.name.startswith(HARDLY_READ) else 1
    return (("flip", at, at % 8) for at in range(0, file.stat().st_size, stride))


def some_flips(file: Path) -> Iterator[Damage]:
    chance, size = random.Random(7), file.stat().st_size
    lengths: list[int] = []
    if file.name.startswith("MANIFEST") or file.suffix == ".log":
        starts = record_starts(file.read_bytes())
        lengths = [start + at for start in {*starts[:1], *starts[-1:]} for at in (4, 5, 6)]
    places = {*lengths, *(chance.randrange(size) for _ in range(min(size, 1)))}
    return (("flip", at, bit) for at in sorted(places) for bit in ((2,) if at in lengths else (at % 8,)))


def find_changes(store: Path, wanted: list[str], damages: list[tuple[Path, Damage]]) -> list[tuple[str, Damage, int]]:
    """Return the damages that changed the served data, or were refused without a message."""
    found: list[tuple[str, Damage, int]] = []
    scratch = store.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    with ForkedModule(MODULE) as victim:
        for file, damage in damages:
            name = file.relative_to(store)
            code = victim.code(store, *wanted, scratch, name, *damage)
            if code not in (SAME, REFUSED):
                found.append((str(name), damage, code))
    return found


@pytest.mark.fault
@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_a_sample_of_damage_to_each_file_changes_no_served_data(
    store: Path, undamaged_output: list[str], step: int
) -> None:
    damages = []
    for number, file in enumerate(files(store)):
        each = [*some_flips(file), *some_cuts(file)]
        damages += [(file, one) for one in each[number % step :: step] or each]
    assert {file for file, _ in damages} == set(files(store))
    assert {damage for _, (damage, *_) in damages} == {"flip", "cut", "missing"}
    assert len(files(store)) > 15

    assert find_changes(store, undamaged_output, damages) == []


@pytest.mark.nightly
@pytest.mark.fault
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_damage_to_any_byte_of_any_file_changes_served_data(
    store: Path, undamaged_output: list[str], part: int
) -> None:
    damages = [(file, each) for file in files(store) for each in (*every_flip(file), *cuts(file))]
    assert len(damages) > 10_000

    assert find_changes(store, undamaged_output, damages[part::PARTS]) == []
