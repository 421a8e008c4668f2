"""How many files and connections this process may have open."""

from __future__ import annotations

import resource

DESCRIPTORS_MAX = 1 << 20


def limit() -> int:
    """Return how many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    """Let this process have as many descriptors as it may: many are started with no more than 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
