"""URLs as people may see them. Apart from the configuration: every failure needs it, and it needs nothing."""

from __future__ import annotations

import re


def masked(url: str) -> str:
    """Return the URL as people may see it: every password replaced, in the authority and in the query."""
    url = re.sub(r"(://[^:/?@]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(r"([?&;][^=&;]*(?:passw|secret|token)[^=&;]*=)[^&;]*", r"\1***", url, flags=re.IGNORECASE)
