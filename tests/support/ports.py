"""Ports for the servers of tests, apart from those that the system hands out.

Clients continue to dial a broker that is gone. If the system gives its port to another program, such as a process of
Spark, they reach that instead, and it fails with a traceback.
"""

from __future__ import annotations

import itertools
import os
import socket

#: Each worker has a region of its own: what one of them still dials belongs to no other.
_FIRST, _REGIONS, _SIZE = 10_000, 8, 2_500
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _REGIONS
#: Other runs on this machine begin elsewhere.
_numbers = itertools.count(int.from_bytes(os.urandom(4), "big"))


def free_port() -> int:
    """Return a port of the loopback interface without a listener, another one each time."""
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
    """Return several."""
    return [free_port() for _ in range(count)]
