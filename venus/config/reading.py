"""Reads venus.toml and checks the names in the environment. Every message is one line that names the place."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from venus.config.complaints import explained
from venus.config.sections import options
from venus.config.settings import PREFIX, Settings
from venus.errors import ConfigError
from venus.suggest import nearest

DEFAULT_FILE = Path("venus.toml")
#: Names of the environment that are no options: the test suite's own.
RESERVED = ("VENUS_TEST_",)


def load(file: Path | None = None) -> Settings:
    """Read `file` (None = no file, defaults only), let the environment override it, check every name and type."""
    text = _read(file)
    tree = _parse(file, text)
    _check_environment(os.environ)
    try:
        return Settings(**tree)
    except ValidationError as error:
        raise explained(error, file, text) from None


def _read(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = "copy venus.example.toml, or name another file with -c FILE"
        raise ConfigError(f"{file}: no such file", hint=hint) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: byte {error.start} is not UTF-8, which TOML must be") from None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None


def _parse(file: Path | None, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", str(error), re.DOTALL)
        what, line = (found[1], found[2]) if found else (str(error), None)
        raise ConfigError(f"{file}:{line or len(text.splitlines())}: not TOML: {what}") from None


def _check_environment(environ: Mapping[str, str]) -> None:
    known = {path.upper().replace(".", "__") for path in options()}
    named = [re.escape(name).replace("__NAME", "__.+") for name in known if "__NAME" in name]
    for variable in sorted(environ):
        name = variable.upper().removeprefix(PREFIX)
        if not variable.upper().startswith(PREFIX) or variable.upper().startswith(RESERVED) or name in known:
            continue
        if any(re.fullmatch(pattern, name) for pattern in named):
            continue
        hint = "an option is named VENUS_SECTION__OPTION; `venus config` lists them"
        near = nearest(name, known, prefix=PREFIX)
        raise ConfigError(f"environment: {variable} matches no option{near}", hint=hint)
