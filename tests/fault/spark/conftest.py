from __future__ import annotations

from tests.support.deliveries import broker, feed

__all__ = ["broker", "feed"]
