"""A URL is shown without its password."""

from __future__ import annotations

import pytest

from venus.text.formatting import mask_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///shop.db", "sqlite:///shop.db"),
        ("postgresql+psycopg2://u:hunter2@h:1/d", "postgresql+psycopg2://u:***@h:1/d"),
        ("postgresql://u:hun@ter2@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:hun/ter2@h/d", "postgresql://u:***@h/d"),
        ("postgresql://:hunter2@h/d", "postgresql://:***@h/d"),
        ("postgresql://h/d?user=u&password=hunter2&sslmode=off", "postgresql://h/d?user=u&password=***&sslmode=off"),
        ("postgresql://h/d?sslpassword=hunter2", "postgresql://h/d?sslpassword=***"),
        ("postgresql://u@h/d?host=/tmp/x", "postgresql://u@h/d?host=/tmp/x"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert mask_url(url) == shown
