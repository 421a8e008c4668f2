from __future__ import annotations

from tests.support.brokers.deliveries import broker

__all__ = ["broker"]
