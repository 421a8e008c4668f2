"""Which rows of a first read are new to a target."""

from __future__ import annotations

import random

import numpy as np
import pytest

from venus.adapters.under.row_changes import ChangedKeys, RowChanges, hash_keys
from venus.codec.packed import PackedBytes


def changes(*keys: bytes, gone: bytes = b"") -> RowChanges:
    return RowChanges(
        record_ids=PackedBytes.of(keys),
        rows=PackedBytes.of(b"" if key == gone else b"row" for key in keys),
        is_deleted=np.array([key == gone for key in keys]),
        offsets=np.arange(len(keys)),
    )


def new_flags(found: RowChanges) -> list[bool]:
    assert found.is_new is not None
    return [bool(is_new) for is_new in found.is_new]


def test_a_row_is_new_unless_its_key_was_changed_before() -> None:
    keys = ChangedKeys()
    assert new_flags(keys.mark_new(changes(b"a", b"b"), 1, first_read=True)) == [True, True]
    assert keys.mark_new(changes(b"c", b"d", gone=b"d"), 1, first_read=False).is_new is None
    assert new_flags(keys.mark_new(changes(b"c", b"d", b"e"), 1, first_read=True)) == [False, False, True]
    assert new_flags(keys.mark_new(changes(b"c"), 2, first_read=True)) == [True]


def test_a_row_outside_of_a_predicate_is_not_new() -> None:
    assert new_flags(ChangedKeys().mark_new(changes(b"a", b"b", gone=b"a"), 1, first_read=True)) == [False, True]


def test_with_too_many_changed_keys_no_row_counts_as_new() -> None:
    keys = ChangedKeys(keys_max=2)
    keys.mark_new(changes(b"a", b"b"), 1, first_read=False)
    assert new_flags(keys.mark_new(changes(b"x"), 1, first_read=True)) == [True]
    keys.mark_new(changes(b"c"), 2, first_read=False)
    assert new_flags(keys.mark_new(changes(b"x"), 1, first_read=True)) == [False]
    assert keys._tables == {}


@pytest.mark.parametrize("longest", [7, 8, 9, 63, 64, 65, 200])
def test_a_hash_depends_on_its_key_alone(longest: int) -> None:
    random_ = random.Random(longest)
    keys = list({random_.randbytes(random_.randint(0, longest)) for _ in range(300)} | {b"", b"\0", b"\0\0"})
    together = hash_keys(PackedBytes.of(keys))
    assert len(set(together.tolist())) == len(keys)
    assert [int(hash_keys(PackedBytes.of([key]))[0]) for key in keys] == together.tolist()
