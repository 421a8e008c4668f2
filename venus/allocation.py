"""How memory is given out to threads, and when it goes back to the system. Only glibc has these settings."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Mapping

#: More objects than a start makes: the first collection is due when it is over.
START_OBJECTS = 200_000

_USUAL = gc.get_threshold()


def spare_start() -> None:
    """Have the collector wait until more objects were made than a start makes; from then on it works as usual."""
    gc.set_threshold(START_OBJECTS, *_USUAL[1:])
    gc.callbacks.append(_be_usual)


def settle() -> None:
    """Have the collector never look again at what is here, and work as usual from now on.

    For what runs on: a failed call leaves garbage that holds its frame, so it must not wait for long.
    """
    gc.freeze()
    _be_usual("stop", {})


def _be_usual(phase: str, _: Mapping[str, int]) -> None:
    if phase == "stop":
        gc.set_threshold(*_USUAL)
        if _be_usual in gc.callbacks:
            gc.callbacks.remove(_be_usual)


# mallopt(3): how many bytes a heap may have free at its end; from which size on a block is mapped for itself; how many
# heaps there are.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
ARENAS = 2
#: More than the arrays that are made of one piece of a cut take together.
KEPT_BYTES = 64 << 20
#: The highest that there is.
_MAPPED_BYTES = 32 << 20


def share_heaps() -> None:
    """Let all threads share two heaps, before they are started.

    A body is allocated in one thread and freed in another one, and what a heap has free, the others cannot use. Under
    ten times overload by bodies of 1 MiB a broker grew by 118 to 129 MiB with glibc's eight heaps for each core, and
    grows by 89 to 102 MiB with two, for the same CPU. Blocks that are mapped one by one (M_MMAP_THRESHOLD) need 60 to
    69 MiB, and a third more CPU.
    """
    _set(_M_ARENA_MAX, ARENAS)


def keep_freed() -> None:
    """Keep what was freed for what is allocated next, up to `KEPT_BYTES`.

    Converting a piece of a cut takes some arrays of 1 to 6 MB, each of which is free again at once. glibc gave them
    back, and had every page faulted in and cleared for the next: of 300,000 wide rows that were changed, 30,000 to
    55,000 faults at capture in place of 1,000, and a tenth of the processor time of capture and apply. They take 3 %
    more memory at most.
    """
    _set(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
    _set(_M_TRIM_THRESHOLD, KEPT_BYTES)


def _set(parameter: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)
