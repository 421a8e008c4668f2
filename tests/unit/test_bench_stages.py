"""The stages of a transaction's duration, from the log of three processes."""

from __future__ import annotations

import json
from pathlib import Path

from bench.stages import STAGES, of_transactions, read

START_US = 1_700_000_000_000_000


def log(folder: Path, *cuts: tuple[int, int]) -> Path:
    """Write a log of cuts: number and start; each stage takes a millisecond."""
    path = folder / "venus.log"
    with path.open("w") as file:
        file.write("broker listens on 127.0.0.1:1\n")
        for number, start_us in cuts:
            for stage in ("captured", "committed", "applied"):
                times = {
                    f"{name.partition('.')[2]}_us": start_us + 1000 * n
                    for n, (_, name) in enumerate(STAGES, 1)
                    if name.startswith(stage)
                }
                file.write(json.dumps({"level": "DEBUG", "cut": f"main/{number}", "stage": stage, **times}) + "\n")
    return path


def test_each_stage_is_measured_from_the_end_of_the_previous_one(tmp_path: Path) -> None:
    cuts = read(log(tmp_path, (1, START_US), (2, START_US + 5000)))

    # the first is in the first cut; the second was committed at the target after it, so it was in the second cut
    found = of_transactions(cuts, [(START_US / 1e6, START_US / 1e6 + 0.011), (START_US / 1e6, START_US / 1e6 + 0.016)])

    first, *others = found.values()
    assert [round(ms, 3) for ms in first] == [1.0, 6.0]
    assert all([round(ms, 3) for ms in times] == [1.0, 1.0] for times in others)


def test_an_incomplete_cut_is_left_out(tmp_path: Path) -> None:
    path = log(tmp_path, (1, START_US))
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if "applied" not in line))

    assert read(path) == []
    assert all(times == [] for times in of_transactions([], [(1.0, 2.0)]).values())
