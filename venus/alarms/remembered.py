"""The alarms that were told, on disk: a broker that starts again does not repeat them, and tells when one is over."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from venus.alarms.book import ALARMS_MAX, Alarm

logger = logging.getLogger(__name__)

NAME = "alarms.json"
FORMAT = 1
FILE_BYTES_MAX = 8 << 20
_TEXTS = {"business", "rule", "subject", "hop", "text"}
_OPTIONAL = {"told_s", "gone_s"}


def load(path: Path) -> list[Alarm]:
    """Return what the file says; a file that is missing or damaged says nothing, and they are told again."""
    try:
        return _read(path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s is not used, alarms that stand are told again: %s", path, error)
        return []


def save(path: Path, alarms: Iterable[Alarm]) -> None:
    """Replace the file. What cannot be written is logged: the data directory being full is an alarm of its own."""
    told = [asdict(alarm) for alarm in alarms if alarm.told_s is not None]
    temporary = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, "alarms": told}, file, ensure_ascii=False)
        temporary.replace(path)
    except OSError as error:
        logger.warning("%s cannot be written: %s", path, error.strerror)


def _read(path: Path) -> list[Alarm]:
    if path.stat().st_size > FILE_BYTES_MAX:
        raise ValueError("it is too large")
    document = json.loads(path.read_text("utf-8"))
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError("it has another format")
    return [_alarm(found) for found in document["alarms"][:ALARMS_MAX]]


def _alarm(found: Any) -> Alarm:
    names = {field.name for field in fields(Alarm)}
    if not isinstance(found, dict) or set(found) != names:
        raise ValueError("an alarm in it has other fields")
    for name, value in found.items():
        wanted = isinstance(value, str) if name in _TEXTS else isinstance(value, int | float)
        if not wanted and not (name in _OPTIONAL and value is None):
            raise ValueError(f"an alarm in it has no usable {name}")
    return Alarm(**found)
