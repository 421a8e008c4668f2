from __future__ import annotations

from tests.support.brokers.deliveries import broker, feed

__all__ = ["broker", "feed"]
