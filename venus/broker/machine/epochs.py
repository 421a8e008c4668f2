"""Where epochs begin in a queue, so that a consumer of a history that is not the queue's is found out. Pure.

A consumer is at an offset, and has applied an increment of some epoch last: if that epoch ended before the offset, it
has applied what is not in the queue (KIP-320). It can ask about any epoch that the queue still has, and about the one
before its start. Every batch of the queue says its epoch, so what is remembered here may be few: the epoch in front of
the queue's start, of which no batch is left, and the newest ones. Those between are looked up (queue/epochs.py).
"""

from __future__ import annotations

#: epoch and its first offset, both rising.
Epochs = tuple[tuple[int, int], ...]

#: So many are remembered. They are part of the business's record, which is written with every group.
EPOCHS_MAX = 64


def begun(epochs: Epochs, epoch: int, offset: int, log_start: int) -> Epochs:
    """Add an epoch that begins at an offset; forget those that nobody can ask about, and what can be looked up."""
    kept = [found for i, found in enumerate(epochs) if _still_needed(epochs, i, log_start)]
    found = (*kept, (epoch, offset))
    return found if len(found) <= EPOCHS_MAX else (found[0], *found[1 - EPOCHS_MAX :])


def _still_needed(epochs: Epochs, i: int, log_start: int) -> bool:
    following = epochs[i + 1][1] if i + 1 < len(epochs) else None
    return following is None or following >= log_start  # who is exactly there may be of an older one


def trimmed(epochs: Epochs, epoch: int, offset: int, log_start: int) -> Epochs:
    """Return what is remembered of a queue that is trimmed up to `log_start`.

    `epoch` is that of the last batch which goes, and `offset` where that begins: it cannot be looked up any more.
    """
    if len(epochs) < EPOCHS_MAX:
        return epochs  # nothing is missing between them
    gone, left = (found for found in epochs if found[1] < log_start), (f for f in epochs if f[1] >= log_start)
    newest = max(gone, default=(0, 0))
    return (newest if newest[0] >= epoch else (epoch, offset), *left)
