"""A broker as `venus broker` runs it, but without the command line.

python -m tests.support.brokers.serving SETTINGS [SOFT HARD]
SETTINGS is JSON; SOFT and HARD are its limits of open files.
"""

from __future__ import annotations

import resource
import sys

from venus.broker.replicas import broker_load
from venus.broker.service.process import serve
from venus.config import Settings

if __name__ == "__main__":
    settings, *limits = sys.argv[1:]
    if limits:
        soft, hard = map(int, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    broker_load.SLOW_SYNC_S = 60.0  # the disk may be busy with other tests
    sys.exit(serve(Settings.model_validate_json(settings)))
