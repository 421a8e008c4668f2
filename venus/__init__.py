"""VENUS keeps a target database equal to a source database of a different kind, with triggers alone."""

import os

__version__ = "0.1.0"

#: With a connected channel, gRPC's default fork handlers kill one in several hundred children between fork and exec.
#: PySpark forks to start its JVM, and would then report that the JVM did not start. gRPC reads the variable at import.
#: VENUS never uses one channel on both sides of a fork.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
