"""The `venus` command: what people and service managers start. Nothing else imports this package."""

from __future__ import annotations

import os
import sys

from venus.allocation import spare_start

#: What files that VENUS makes deny to everybody but their owner: they hold rows, configurations, addresses.
UMASK = 0o077


def main() -> None:
    """Run the command line; the entry point of the installed `venus` script."""
    os.umask(UMASK)  # here and not at each file: PyArrow, Spark's JVM and RocksDB make theirs themselves
    # before gRPC is imported: it writes a line to stderr for each handshake that fails, and anybody can make them fail
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # before numpy is: nothing here multiplies matrices, and each of its threads, one a core, first turns for 0.1 s
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    spare_start()
    try:
        from venus.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before there is a command that could be interrupted
        sys.stderr.write("venus: interrupted\n")
        code = 130
    sys.exit(code)
