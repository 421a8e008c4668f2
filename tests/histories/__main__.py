"""Run random histories of predicates by their numbers, and say which have failed.

python -m tests.histories KIND FIRST LAST      e.g. sets 0 9999; LAST is run too
    targets        predicates of targets, and changes of them, against SQLite's WHERE
    sets           predicates of broker sets, filled again, failing over, standing still, against SQLite's WHERE
    subscriptions  rows of clients that disconnect and resume, among DDL, TRUNCATE and restarts, against SQLite's WHERE
    matching       the indexes of many interests against brute force
A number fails in the same way each time: run it alone.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches

from tests.support.predicates import matching, predicate_histories, row_filter_histories, subscription_histories

#: As many changes as a history of the test suite has.
STEPS = 20


def _matching(number: int) -> None:
    chance = random.Random(number)
    matching.compare(number, chance.choice((1, 5, 60)), chance.choice((1, 3, 40)))


KINDS: dict[str, Callable[[int], object]] = {
    "targets": lambda number: predicate_histories.run_histories(range(number, number + 1), STEPS),
    "sets": lambda number: row_filter_histories.run_histories(range(number, number + 1), STEPS),
    "subscriptions": lambda number: subscription_histories.run_histories(range(number, number + 1), STEPS),
    "matching": _matching,
}
SHOWN_MAX = 20


def main(arguments: Sequence[str]) -> int:
    """Run the requested histories; return the exit code: 1 if one has failed, 2 for invalid arguments."""
    if {"-h", "--help"} & set(arguments):
        sys.stdout.write(f"{__doc__}\n")
        return 0
    if wrong := _describe_error(arguments):
        sys.stderr.write(f"{wrong}\n")
        return 2
    run = KINDS[arguments[0]]
    first, last = map(int, arguments[1:])
    failed, began = [], time.process_time()
    for number in range(first, last + 1):
        try:
            run(number)
        except AssertionError as error:
            failed.append(number)
            sys.stderr.write(f"{number}: {str(error).partition(chr(10))[0][:500]}\n")
    count, cpu_s = last - first + 1, time.process_time() - began
    each_ms = 1000 * cpu_s / count
    sys.stdout.write(f"{arguments[0]}: {count} histories, {len(failed)} failed, {each_ms:.1f} ms of CPU each\n")
    if failed:
        more = " ..." if len(failed) > SHOWN_MAX else ""
        sys.stdout.write(f"failed: {' '.join(map(str, failed[:SHOWN_MAX]))}{more}\n")
    return int(bool(failed))


def _describe_error(arguments: Sequence[str]) -> str:
    """Return in one line what is wrong with the arguments, or an empty string."""
    kind = arguments[0] if arguments else ""
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, 1)
        meant = f": did you mean {near[0]}?" if near else "."
        return f"{kind!r} is no kind of history{meant} There are {', '.join(KINDS)}; --help says more"
    if len(arguments) != 3 or not all(one.isdecimal() for one in arguments[1:]):
        return f"two numbers follow {kind}, the first and the last history"
    if int(arguments[1]) > int(arguments[2]):
        return f"there is no history from {arguments[1]} to {arguments[2]}"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
