"""When Python's collector of garbage looks at what: never at modules, and not while they are imported.

A start makes 150,000 to 180,000 objects that stay for good. The collector scans them repeatedly while they are
made, which takes a fifth of every start, and once more in each full collection, which holds the interpreter's lock
until it has scanned everything: 45 to 77 ms for 90,000 objects.
"""

from __future__ import annotations

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
