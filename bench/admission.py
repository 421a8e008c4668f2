"""Cost of the admission of one batch in the broker's event loop: the limiters alone, without a broker.

python -m bench.admission
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from venus.flow.admission import Admission, AdmissionLimits
from venus.flow.degradation import Degradation
from venus.flow.write_queue import FairQueue

CALLS, ROUNDS = 20_000, 15


def cost_us(call: Callable[[], object]) -> float:
    """Return the CPU time of a call in microseconds: the median of some rounds."""
    found = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(CALLS):
            call()
        found.append((time.process_time() - began) / CALLS * 1e6)
    return statistics.median(found)


def make_admission(admission: Admission) -> Callable[[], object]:
    """Return a function that runs all limiters for one frame of half messages, as if it were received and saved."""

    def admit_frame() -> None:
        admission.judge_halves("main", "p", rows=1, nbytes=100, behind_bytes=0, now=time.monotonic())
        admission.unsaved.add("main", 100)
        turn = admission.write_queue.request_slot(100)
        admission.unsaved.has_room("main", admission.write_queue.size)
        admission.write_queue.on_saved(turn, 0.001)
        admission.unsaved.remove("main", 100, 0.001)

    return admit_frame


def main() -> int:
    """Print how long the limiters take per frame, without and with rate limits, and how long the fair queue takes."""
    degradation = Degradation((), 1.0)
    print(f"without limits     {cost_us(make_admission(Admission(AdmissionLimits(), degradation))):6.2f} us")
    limited = AdmissionLimits(rows_per_s=1e12, bytes_per_s=1e12)
    print(f"with token buckets {cost_us(make_admission(Admission(limited, degradation))):6.2f} us")
    queue: FairQueue[int] = FairQueue(512 << 10)

    def pass_queue() -> None:
        queue.put("main", 100, 1)
        queue.take(8 << 20, 1024)

    print(f"a turn at the disk {cost_us(pass_queue):6.2f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
