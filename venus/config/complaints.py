"""What pydantic complains of, in words that do not need Python, with the line of the file or the variable."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from venus.config.sections import options
from venus.config.settings import variable_of
from venus.errors import ConfigError
from venus.suggest import nearest
from venus.toml_lines import line_of

_WANTED = {
    "tuple_type": 'should be a list of strings, like ["a", "b"]',
    "string_type": "should be a string, in quotes",
    "string_too_short": "should not be empty",
    "path_type": "should be a path, in quotes",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "should be an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "should be a number"),
}
#: Options with a form of their own.
_FORMS = {"broker.further": 'should be a list of sets, like [["a:7400", "b:7400"], ["c:7400"]]'}


def refusal(complaints: list[str], *, hint: str = "") -> ConfigError:
    """Return one error for all complaints; its message is the first one, with the number of the others."""
    more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
    error = ConfigError(f"{complaints[0]}{more}", hint=hint)
    error.complaints = tuple(complaints)
    return error


def explained(error: ValidationError, file: Path | None, text: str) -> list[str]:
    """Return a line for each complaint."""
    # misspelt options first: what is missing for one is no second mistake
    return [
        _explained(dict(found), file, text)
        for found in sorted(error.errors(include_url=False), key=lambda found: found["type"] != "extra_forbidden")
    ]


def _explained(found: Mapping[str, Any], file: Path | None, text: str) -> str:
    path = [str(part) for part in found["loc"] if part != "[key]"]  # a name that is wrong itself
    dotted = ".".join(path)
    if variable := variable_of(path):
        where = f"environment: {variable}"
    else:
        line = line_of(text, path)
        where = f"{file}:{line}: {dotted}" if line else f"{file}: {dotted}"
    return f"{where}: {_complaint(found, path)}"


def _complaint(found: Mapping[str, Any], path: list[str]) -> str:
    """Say what is wrong with one option. The value is repeated only where it cannot be a secret."""
    kind, value = found["type"], found["input"]
    if kind == "extra_forbidden":
        known = options()
        if len(path) == 1:
            return "no such section" + nearest(path[0], {name.partition(".")[0] for name in known})
        section = "targets.NAME" if path[0] == "targets" else ".".join(path[:-1])
        there = {n.removeprefix(f"{section}.").partition(".")[0] for n in known if n.startswith(f"{section}.")}
        elsewhere = {n.rpartition(".")[2] for n in known if n.startswith(path[0])}
        return "no such option" + nearest(path[-1], there or elsewhere)
    if kind == "missing":
        return "must be set"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        if path[0] == "targets" and len(path) == 2:
            return "a target has a name: its options go into a section [targets.NAME]"
        return f"is a section, not a value: write [{'.'.join(path)}]"
    form = _FORMS.get(".".join(path)) if kind == "tuple_type" else None
    if isinstance(value, bool):
        value = str(value).lower()  # as the file has it
        return (
            f"{value} {form or _WANTED.get(kind) or found['msg'].removeprefix('Value error, ').removeprefix('Input ')}"
        )
    reason = form or _WANTED.get(kind) or found["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return reason if path[-1] == "url" else f"{value!r} {reason}" if isinstance(value, str | int | float) else reason
