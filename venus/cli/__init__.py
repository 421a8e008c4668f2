"""The `venus` command, which people and service managers start; venus/pipeline.py offers its actions to programs."""

from __future__ import annotations

import os
import sys

from venus.process.system import delay_collection

#: Only the owner may read the files that VENUS creates: they contain rows, configurations and addresses.
UMASK = 0o077


def main() -> None:
    """Run the command line; the entry point of the installed `venus` script."""
    os.umask(UMASK)  # here, not for each file: PyArrow, Spark's JVM and RocksDB create files themselves
    # before gRPC is imported: it logs each failed handshake to stderr, and any host can make one fail
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # before numpy is imported: its threads, one per core, first spin for 0.1 s, and nothing here multiplies matrices
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    delay_collection()
    try:
        from venus.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # interrupted during the import
        sys.stderr.write("venus: interrupted\n")
        code = 130
    sys.exit(code)
