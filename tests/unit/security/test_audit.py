"""The audit log: one JSON line for each command, private, limited in size, and never a reason to stop."""

from __future__ import annotations

import json
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from venus.security.audit import FILES_MAX, AuditLog

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def log(path: Path, file_bytes_max: int = 1 << 20) -> AuditLog:
    return AuditLog(path, lambda: NOW, file_bytes_max=file_bytes_max)


def test_a_line_has_user_command_time_and_result(tmp_path: Path) -> None:
    path = tmp_path / "new" / "audit.jsonl"

    log(path).write(who="ann", where="ipv4:1.2.3.4:5", what="/Admin/Decide", result="done", request={"batch_no": 7})

    assert json.loads(path.read_text()) == {
        "when": "2026-03-01T12:00:00.000+00:00",
        "who": "ann",
        "where": "ipv4:1.2.3.4:5",
        "what": "/Admin/Decide",
        "request": {"batch_no": 7},
        "result": "done",
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_name_cannot_forge_a_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    log(path).write(who='x"}\n{"who": "ann', where="here", what="w" * 5000, result="done")

    (line,) = path.read_text().splitlines()
    assert json.loads(line)["who"] == 'x"}\n{"who": "ann'
    assert len(json.loads(line)["what"]) == 1000


def test_the_log_is_limited_in_size(tmp_path: Path) -> None:
    audit = log(tmp_path / "audit.jsonl", file_bytes_max=1000)

    for number in range(200):
        audit.write(who="ann", where="here", what=str(number), result="done")

    files = sorted(tmp_path.iterdir())
    assert len(files) == FILES_MAX
    assert all(file.stat().st_size <= 1000 for file in files)
    newest = [json.loads(line)["what"] for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    older = [json.loads(line)["what"] for line in (tmp_path / "audit.jsonl.1").read_text().splitlines()]
    assert newest[-1] == "199"
    assert int(older[-1]) + 1 == int(newest[0]), "nothing is lost between two files"


def test_a_failed_write_is_a_problem_until_one_succeeds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "file"
    place.write_text("in the way")
    audit = log(place / "audit.jsonl")

    audit.write(who="ann", where="here", what="Forget", result="done")

    assert "audit.jsonl" in audit.problem
    assert '"what": "Forget"' in caplog.text, "the line is at least in the log"
    place.unlink()
    audit.write(who="ann", where="here", what="Forget", result="done")
    assert not audit.problem


def test_threads_do_not_mix_lines(tmp_path: Path) -> None:
    audit = log(tmp_path / "audit.jsonl")

    def write(who: str) -> None:
        for _ in range(200):
            audit.write(who=who, where="here", what="x" * 300, result="done")

    threads = [threading.Thread(target=write, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len([json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]) == 800
