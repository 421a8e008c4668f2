"""`venus config` and `venus version`: the settings and versions in force."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Annotated

import typer

from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.cli.output import build_table


def config(
    ctx: typer.Context,
    example: Annotated[
        bool, typer.Option("--example", help="Print the example file instead: every option, explained.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Print the settings in force, from file and environment, with passwords masked."""
    from venus.config import effective_settings

    run = Invocation.from_options(ctx, config, as_json)
    if example:
        return show_example(run)
    run.needs_passwords = False
    tree = effective_settings(run.settings)
    rows: list[tuple[object, ...]] = [(name, format_option(value)) for name, value in flatten(tree)]
    run.out.answer(
        tree, f"from {run.file or 'no file (defaults and environment)'}", build_table("option", "value", rows=rows)
    )
    return 0


def show_example(run: Invocation) -> int:
    """Print the example configuration, which has every option with its default."""
    text = resources.files("venus.config").joinpath("venus.example.toml").read_text("utf-8")
    if run.json:
        run.out.answer({"example": text})
    else:  # unchanged: the output may become a file
        sys.stdout.write(text)
    return 0


#: Paths of sections whose subsections are named by the operator.
NAMED = ("targets", "alarms.to", "alarms.rules", "source")


def flatten(tree: Mapping[str, object], path: str = "") -> Iterator[tuple[str, object]]:
    """Yield every option with its path; a dictionary that is a value is not flattened."""
    for name, value in tree.items():
        here = f"{path}.{name}" if path else name
        if isinstance(value, dict) and (not path or path in NAMED or here in NAMED):
            yield from flatten(value, here)
        else:
            yield here, value


def format_option(value: object) -> str:
    """Format a value as in the file, so that it can be copied: numbers have no thousands separators."""
    return (
        f"[{', '.join(map(format_option, value))}]"
        if isinstance(value, list)
        else f'"{value}"'
        if isinstance(value, str)
        else str(value)
    )


def version(ctx: typer.Context, config: ConfigOption = None, as_json: JsonOption = False) -> int:
    """Print the versions of VENUS and of its dependencies."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    import venus

    run = Invocation.from_options(ctx, config, as_json)
    parts = {"venus": venus.__version__, "python": platform.python_version()}
    for name in ("grpcio", "protobuf", "rocksdict", "SQLAlchemy", "psycopg2-binary", "pyspark", "oracledb"):
        try:
            parts[name] = installed(name)
        except PackageNotFoundError:
            parts[name] = "not installed"
    run.out.answer(parts, build_table("part", "version", rows=list(parts.items())))
    return 0
