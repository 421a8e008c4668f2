"""Real sources, as in the integration tests."""

from tests.integration.upper.conftest import shop

__all__ = ["shop"]
