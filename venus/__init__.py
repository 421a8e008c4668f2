"""Keeps a target database equal to a source database of another make, with triggers alone."""

import os

__version__ = "0.1.0"

#: gRPC's fork handlers, on by default, end one in some hundred children between fork and exec once a channel is
#: connected: PySpark starts its JVM that way, and the JVM "did not start". Read when grpc is imported; VENUS uses no
#: channel on both sides of a fork.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
