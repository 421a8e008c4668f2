"""Loops of `venus sync` that die during a switch run in the new direction when they are restarted."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.simulation.patching import SourceEdit
from tests.story.test_fall_back import Pair, cut_over, open_pair, query
from tests.support.databases.postgres import Server

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

#: A loop dies where it would notice that changes flow in the other direction.
_DIES = SourceEdit(
    where="venus.cli.sync_direction:DirectionGuard._read",
    old="raise DirectionChanged(_TURNED)",
    new='__import__("os")._exit(9)',
)


def has_logged(pair: Pair, line: str) -> bool:
    return line in pair.pipeline.log.read_text()


def test_a_capture_that_dies_at_a_switch_restarts_in_its_direction(tmp_path: Path, postgres_server: Server) -> None:
    """Otherwise capture would read the new owner while the targets waited for the old one for ever."""
    with open_pair(tmp_path, postgres_server) as pair:
        pair.pipeline.edit_processes([_DIES])
        pair.start()
        for loop in ("capture: capturing", "main: running"):
            pair.pipeline.until(partial(has_logged, pair, loop), loop, every_s=0.2)
        cut_over(pair)
        query(pair.new, "INSERT INTO customer (name) VALUES ('carl')")
        pair.until_equal()
        assert pair.writable() == ["new"]
        assert "it ended with code 9" in pair.pipeline.log.read_text()
