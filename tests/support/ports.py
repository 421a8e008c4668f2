"""Ports for the servers of tests, outside the range that the system assigns.

Clients still dial a broker that has ended. If the system assigned its port to another program, such as a process of
Spark, they would reach that program, which would fail with a traceback.
"""

from __future__ import annotations

import itertools
import os
import socket

#: Each worker has a range of its own, so that clients of one never dial the servers of another.
_FIRST, _REGIONS, _SIZE = 10_000, 8, 2_500
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _REGIONS
#: Other runs on this machine start at another port.
_numbers = itertools.count(int.from_bytes(os.urandom(4), "big"))


def free_port() -> int:
    """Return a loopback port without a listener, a different one each time."""
    for number in _numbers:
        port = _FIRST + _worker * _SIZE + number % _SIZE
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError


def free_ports(count: int) -> list[int]:
    """Return several such ports."""
    return [free_port() for _ in range(count)]
