"""Facts and settings of the operating system for a process: clock, open files, signals, user's folders and memory.

At its start, a process creates 150,000 to 180,000 objects that are never freed. Python's garbage collector scans them
repeatedly during the start, which takes a fifth of its time, and each later full collection scans them again while it
holds the interpreter's lock. So VENUS freezes these objects. All threads share glibc's heaps.
"""

from __future__ import annotations

import _thread
import ctypes
import gc
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

#: Absent outside Linux, where monotonic time advances during a suspend, or where no better clock exists.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)
#: More objects than a start creates, so that the first collection is due after it.
START_OBJECTS = 200_000

_USUAL = gc.get_threshold()
#: Whether this is a process of VENUS's own. A program that uses VENUS as a library controls the collector itself.
_is_own_process = False


def steady_clock_s() -> float:
    """Return the seconds since a moment in the past, by a clock that cannot be set and that counts while suspended.

    On Linux `time.monotonic` stands still while the machine is suspended. A lease measured by it would seem valid on a
    broker that slept for an hour, although the other brokers have elected a new leader. `time.monotonic` is right for
    pauses, retries and everything else that counts only while a process runs.
    """
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


DESCRIPTORS_MAX = 1 << 20


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to the hard one: many processes start with only 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a process cleanly: SIGTERM, SIGINT, and SIGHUP unless nohup ignores it.

    A closed terminal sends SIGHUP.
    """
    always = (signal.SIGTERM, signal.SIGINT)
    return always if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*always, signal.SIGHUP)


def call_from_handler(call: Callable[[], object]) -> None:
    """Run a call that takes locks, such as `Event.set`, from a signal handler: in a new thread, without waiting.

    A handler interrupts the main thread, which may hold the lock at this moment, for example in `Event.wait`. The
    handler would then wait for this lock forever. `threading.Thread` takes such locks itself.
    """
    try:
        _thread.start_new_thread(call, ())
    except RuntimeError:  # there are too many threads, or the interpreter is ending
        call()


#: The home that container runtimes set for a user without one.
ROOT = Path("/")


def state_folder() -> Path:
    """Return the folder for files kept between runs; it may be absent, and creating it may fail."""
    return _venus_folder("XDG_STATE_HOME", ".local/state")


def cache_folder() -> Path:
    """Return the folder for caches."""
    return _venus_folder("XDG_CACHE_HOME", ".cache")


def _venus_folder(variable: str, below_home: str) -> Path:
    """Return VENUS's folder in the folder that a variable names, or else in one below the user's home."""
    chosen = os.environ.get(variable)
    return Path(chosen or _home() / below_home) / "venus"


def _home() -> Path:
    """Return the home of this user; a container's user may have neither HOME nor a name."""
    try:
        return Path.home()
    except RuntimeError:
        return ROOT


def delay_collection() -> None:
    """Delay the first garbage collection until the start is over; after that the collector works as usual.

    Only a process of VENUS itself may call this.
    """
    global _is_own_process
    _is_own_process = True
    gc.set_threshold(START_OBJECTS, *_USUAL[1:])
    gc.callbacks.append(_restore_threshold)


def freeze_objects() -> None:
    """Exclude all present objects from garbage collection permanently, and collect as usual afterwards.

    Long-running processes call this function. They need frequent collections, because a failed call leaves garbage that
    holds its frame. In the process of another program nothing is frozen, because its garbage would never be collected.
    """
    if _is_own_process:
        gc.freeze()
        _restore_threshold("stop", {})


def _restore_threshold(phase: str, _: Mapping[str, int]) -> None:
    """Restore the collector's usual threshold at the end of a collection, as its callback."""
    if phase == "stop":
        gc.set_threshold(*_USUAL)
        if _restore_threshold in gc.callbacks:
            gc.callbacks.remove(_restore_threshold)


# mallopt(3): how many bytes a heap may have free at its end; the size from which a block has its own mapping; the
# number of heaps. Only glibc has these settings.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
ARENAS = 2
#: More bytes than all arrays that are built from one piece of a cut.
KEPT_BYTES = 64 << 20
#: The maximum that glibc accepts.
_MAPPED_BYTES = 32 << 20


def share_heaps() -> None:
    """Let all threads share two of malloc's heaps. Call this before the threads start.

    One thread allocates the body of a message and another one frees it, and a heap cannot use the free memory of
    another heap. With two heaps an overloaded broker needs less memory than with glibc's eight per core, and the same
    CPU. Blocks with separate mappings (M_MMAP_THRESHOLD) need even less memory, but a third more CPU.
    """
    _set_malloc_parameter(_M_ARENA_MAX, ARENAS)


def keep_freed_memory() -> None:
    """Keep freed memory for the next allocations, up to `KEPT_BYTES`.

    Converting a piece of a cut needs some arrays of 1 to 6 MB, each of which is soon free again. By default glibc
    returns them to the system, so that every page is faulted in and cleared for the next array. These page faults cost
    a tenth of the CPU of capture and apply; keeping freed memory costs at most 3 % more memory.
    """
    _set_malloc_parameter(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
    _set_malloc_parameter(_M_TRIM_THRESHOLD, KEPT_BYTES)


def _set_malloc_parameter(parameter: int, value: int) -> None:
    """Set a parameter of malloc, if the C library has the function mallopt."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)


#: Beginning of the names of the threads that run the loops of `venus run`, which are not the broker's own.
LOOP_THREADS = "venus-loop-"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def loops_cpu_s() -> float:
    """Return the CPU time that the loops of `venus run` have used in this process; 0 where /proc is absent."""
    return sum(_thread_cpu_s(thread) for thread in threading.enumerate() if thread.name.startswith(LOOP_THREADS))


def _thread_cpu_s(thread: threading.Thread) -> float:
    """Return the CPU time that a thread has used; 0 if it has just ended."""
    try:
        stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
    except OSError:  # the thread has just ended
        return 0.0
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
