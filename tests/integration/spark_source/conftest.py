from __future__ import annotations

from tests.support.deliveries import broker

__all__ = ["broker"]
