"""AES-CMAC (NIST SP 800-38B) of a whole column, without a call for each value. Pure.

Of each value only its last block depends on its length, so the values are encrypted side by side: their first blocks in
one call of AES, then the second blocks of the values that have one. Small columns, and values above 1 KiB, are hashed
value by value.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Blocks = npt.NDArray[np.void]
Words = npt.NDArray[np.uint64]

#: The size of a hash, and of a block of AES.
HASH_BYTES = 16
_BLOCK_BITS = HASH_BYTES.bit_length() - 1
#: Fewer values are hashed one by one, and so are longer ones.
_TOGETHER_MIN, _TOGETHER_BYTES_MAX = 48, 1024
_LAST_MAX = _TOGETHER_BYTES_MAX // HASH_BYTES
_BLOCK = np.dtype(f"V{HASH_BYTES}")
#: The polynomial of GF(2^128).
_CARRY, _TOP = 0x87, 1 << 127
#: For each length of a last block: which of its bytes belong to the value, and the bit after it.
_KEPT = np.where(np.arange(HASH_BYTES) < np.arange(HASH_BYTES + 1)[:, None], 255, 0).astype(np.uint8).view(np.uint64)
_PADDING = (
    np.where(np.arange(HASH_BYTES) == np.arange(HASH_BYTES + 1)[:, None], 128, 0).astype(np.uint8).view(np.uint64)
)


def hash_values(key: bytes, data: Bytes, bounds: Ints) -> bytes:
    """Return the hashes of data[bounds[i]:bounds[i + 1]], end to end."""
    starts, sizes = bounds[:-1], np.diff(bounds)
    alone = np.flatnonzero(sizes > _TOGETHER_BYTES_MAX) if len(sizes) >= _TOGETHER_MIN else np.arange(len(sizes))
    if len(sizes) and not len(alone):
        return _hash_together(key, data, starts, sizes).tobytes()
    found = np.empty(len(sizes), dtype=_BLOCK)
    for n in alone.tolist():
        found[n] = hash_value(key, data[bounds[n] : bounds[n + 1]].tobytes())
    if len(together := np.delete(np.arange(len(sizes)), alone)):
        found[together] = _hash_together(key, data, starts[together], sizes[together])
    return found.tobytes()


def hash_value(key: bytes, value: bytes) -> bytes:
    """Return the hash of one value."""
    from cryptography.hazmat.primitives.ciphers import algorithms
    from cryptography.hazmat.primitives.cmac import CMAC

    found = CMAC(algorithms.AES(key))
    found.update(value)
    return found.finalize()


def _hash_together(key: bytes, data: Bytes, starts: Ints, sizes: Ints) -> Blocks:
    """Hash many short values side by side, block by block."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    aes = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # the blocks of CMAC are chained below
    last = (np.maximum(sizes - 1, 0) >> _BLOCK_BITS).astype(np.uint8)
    order = None
    if last.min() != last.max():
        order = np.argsort(_LAST_MAX - last, kind="stable")  # the longest first: those with an n-th block are together
        starts, sizes, last = starts[order], sizes[order], last[order]
    rest = sizes - (last.astype(np.int64) << _BLOCK_BITS)
    ends = _last_block_words(aes)
    padded = np.concatenate([data, np.zeros(HASH_BYTES, dtype=np.uint8)])
    blocks = np.ndarray(len(data) + 1, dtype=_BLOCK, buffer=padded, strides=(1,))  # one at each byte
    state = np.zeros((len(starts), 2), dtype=np.uint64)
    counts = [int(np.count_nonzero(last >= number)) for number in range(int(last[0]) + 2)]
    for number, (count, longer) in enumerate(itertools.pairwise(counts)):
        block = blocks[starts[:count] + (number << _BLOCK_BITS)].view(np.uint64).reshape(count, 2)
        block[longer:] &= _KEPT.take(rest[longer:count], axis=0)
        block[longer:] ^= ends.take(rest[longer:count], axis=0)
        block ^= state[:count]
        state[:count] = np.frombuffer(aes.update(block.tobytes()), dtype=np.uint64).reshape(count, 2)
    hashes = state.view(_BLOCK).reshape(-1)
    if order is None:
        return hashes
    found = np.empty_like(hashes)
    found[order] = hashes
    return found


def _last_block_words(aes: CipherContext) -> Words:
    """Return the words that a last block is combined with, for each length: its padding, and one of the two subkeys."""
    subkey, subkeys = int.from_bytes(aes.update(bytes(HASH_BYTES)), "big"), []
    for _ in range(2):
        subkey = ((subkey & (_TOP - 1)) << 1) ^ (_CARRY if subkey & _TOP else 0)
        subkeys.append(np.frombuffer(subkey.to_bytes(HASH_BYTES, "big"), dtype=np.uint64))
    found = _PADDING ^ subkeys[1]
    found[HASH_BYTES] = subkeys[0]
    return found
