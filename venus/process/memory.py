"""Memory of the process: the heaps of glibc, and when Python's garbage collector runs.

A start makes 150,000 to 180,000 objects that stay for good. The collector scans them repeatedly while they are made,
which takes a fifth of every start. Each full collection scans them once more, and holds the interpreter's lock for
45 to 77 ms with 90,000 objects.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Mapping

#: More objects than a start makes: the first collection is due after it.
START_OBJECTS = 200_000

_USUAL = gc.get_threshold()


def delay_collection() -> None:
    """Delay the first collection until the start is over; from then on the collector works as usual."""
    gc.set_threshold(START_OBJECTS, *_USUAL[1:])
    gc.callbacks.append(_restore_threshold)


def freeze_objects() -> None:
    """Exclude all present objects from collection for good, and collect as usual from now on.

    For processes that keep running: a failed call leaves garbage that holds its frame, so it must not wait for long.
    """
    gc.freeze()
    _restore_threshold("stop", {})


def _restore_threshold(phase: str, _: Mapping[str, int]) -> None:
    if phase == "stop":
        gc.set_threshold(*_USUAL)
        if _restore_threshold in gc.callbacks:
            gc.callbacks.remove(_restore_threshold)


# mallopt(3): how many bytes a heap may have free at its end; the size from which a block has its own mapping; the
# number of heaps. Only glibc has these settings.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
ARENAS = 2
#: More than all arrays that are made of one piece of a cut.
KEPT_BYTES = 64 << 20
#: The maximum that glibc accepts.
_MAPPED_BYTES = 32 << 20


def share_heaps() -> None:
    """Let all threads share two heaps. Call it before they start.

    One thread allocates a body and another one frees it, and a heap cannot use the free memory of another heap. With
    two heaps an overloaded broker grows less than with glibc's eight for each core, for the same CPU. Blocks with
    mappings of their own (M_MMAP_THRESHOLD) need still less memory, but a third more CPU.
    """
    _set(_M_ARENA_MAX, ARENAS)


def keep_freed_memory() -> None:
    """Keep freed memory for the next allocations, up to `KEPT_BYTES`.

    Converting a piece of a cut takes some arrays of 1 to 6 MB, each of which is free again at once. By default glibc
    returns them to the system, so that every page is faulted in and cleared for the next array. That costs a tenth of
    the CPU of capture and apply; keeping them costs at most 3 % more memory.
    """
    _set(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
    _set(_M_TRIM_THRESHOLD, KEPT_BYTES)


def _set(parameter: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)
