"""The notes of a store's witness describe the current files, although most of a note rarely changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from venus.broker.store.witness import Witness, WitnessNote, read_latest


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "db"
    path.mkdir()
    (path / "MANIFEST-000005").write_bytes(b"one table")
    (path / "CURRENT").write_bytes(b"MANIFEST-000005\n")
    (path / "000004.log").write_bytes(b"closed")
    (path / "000006.log").write_bytes(b"open")
    return path


def read_note(store: Path, witness: Witness, sequence: int) -> WitnessNote:
    """Return the note after an fsync."""
    witness.read_files(lambda: 4)
    witness.write_note(sequence)
    found = read_latest(store)
    assert found is not None
    assert found.sequence == sequence
    return found


def test_each_note_describes_the_current_files(store: Path) -> None:
    witness = Witness(store, lambda: 0.0)
    first = read_note(store, witness, 1)
    assert (first.files.manifest, first.files.nbytes) == (5, len(b"one table"))
    assert first.files.logs == ((4, len(b"closed")), (6, 0))
    assert read_note(store, witness, 2).files == first.files
    with (store / "MANIFEST-000005").open("ab") as manifest:
        manifest.write(b", and one more")
    grown = read_note(store, witness, 3)
    assert grown.files.nbytes == len(b"one table, and one more")
    assert grown.files.digest != first.files.digest
    witness.close(4)
    last = read_latest(store)
    assert last is not None
    assert (last.sequence, last.files.logs) == (4, ())


def test_no_note_is_written_before_the_files_were_listed(store: Path) -> None:
    witness = Witness(store, lambda: 0.0)
    witness.write_note(1)
    assert read_latest(store) is None
    witness.close(1)
    assert read_latest(store) is None
