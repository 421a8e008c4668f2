"""AES-CMAC of many values at once, compared with the examples of NIST SP 800-38B and with single values."""

from __future__ import annotations

import random

import numpy as np
import pytest

from venus.masking.keyed_hash import HASH_BYTES, hash_value, hash_values

#: Appendix D.3: AES-256.
KEY = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
MESSAGE = bytes.fromhex(
    "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
    "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
)
EXAMPLES = {
    0: "028962f61b7bf89efc6b551f4667d983",
    16: "28a7023f452e8f82bd4bf28d8c37c35c",
    40: "aaf3d8f1de5640c232f5b169b9c911e6",
    64: "e1992190549f6ed5696a2c056c315410",
}
#: Number of values that are hashed together.
MANY = 60


def hash_all(values: list[bytes]) -> list[bytes]:
    bounds = np.cumsum([0, *map(len, values)])
    found = hash_values(KEY, np.frombuffer(b"".join(values), dtype=np.uint8), bounds)
    return [found[at : at + HASH_BYTES] for at in range(0, len(found), HASH_BYTES)]


@pytest.mark.parametrize("times", [1, MANY])
def test_the_examples_of_the_standard_match_one_by_one_and_together(times: int) -> None:
    values = [MESSAGE[:size] for size in EXAMPLES] * times
    assert [found.hex() for found in hash_all(values)] == list(EXAMPLES.values()) * times


@pytest.mark.parametrize("sizes", [(0, 1), (15, 16, 17), (31, 32, 33), (0, 1024, 1025, 5000), (7,), (16,)])
def test_values_of_all_lengths_have_the_hashes_of_single_values(sizes: tuple[int, ...]) -> None:
    rng = random.Random(str(sizes))
    for count in (0, 1, MANY, 500):
        values = [rng.randbytes(rng.choice(sizes)) for _ in range(count)]
        assert hash_all(values) == [hash_value(KEY, value) for value in values]
