"""A time limit for a whole conversation over a socket: the socket's own starts over with each byte that comes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


class TooSlow(OSError):
    """The conversation took longer than it may."""


@contextlib.contextmanager
def within(seconds: float, sock: Callable[[], socket.socket | None]) -> Iterator[None]:
    """Close the socket that `sock` returns when the time is over. Raises TooSlow."""
    over = threading.Event()

    def end() -> None:
        over.set()
        found = sock()
        if found is not None:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        # the socket's own limit may be first by a moment; what the kernel gives up has a number
        if over.is_set() or (isinstance(error, TimeoutError) and error.errno is None):
            raise TooSlow(f"no answer within {seconds:g} s") from None
        raise
    finally:
        timer.cancel()
    if over.is_set():
        raise TooSlow(f"no answer within {seconds:g} s")
