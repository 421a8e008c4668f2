"""The command `venus demo`: prepares a folder, runs all steps, then cleans up or prints commands to inspect it."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from venus.cli.invocation import ConfigOption, Invocation, JsonOption
from venus.cli.output import build_table
from venus.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from venus.cli.demo.story import Demo, DemoProof

SIZES = {"customers": 2_000, "products": 500, "orders": 8_000}


def demo(
    ctx: typer.Context,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the servers running and print how to look around.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="Working folder; default: a new one in /tmp.")
    ] = None,
    rows: Annotated[
        int, typer.Option("--orders", metavar="N", min=100, help="How many orders the shop starts with.")
    ] = SIZES["orders"],
    brokers: Annotated[
        int, typer.Option("--brokers", metavar="N", help="1, or 3 that replicate each other, with an etcd.")
    ] = 1,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run everything end to end: SQLite to an embedded PostgreSQL, with crashes, in under two minutes.

    Needs no configuration, no Docker and no root. Exit code 1 if any comparison finds a difference.
    """
    from venus.cli.demo.servers import remove_folder

    run = Invocation.from_options(ctx, config, as_json)
    if brokers not in (1, 3):
        raise ConfigError(f"--brokers {brokers}: invalid number", hint="one of 1, 3")
    home = working_folder(folder)
    story = build_demo(home, SIZES | {"orders": rows}, run.out.say, brokers)
    kept, left = False, ""
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        proofs = story.run()
        kept = keep
    finally:
        if not kept:
            story.close()
            left = remove_folder(home)
            if left:
                run.out.say(left)
    return print_result(run, story, proofs, kept=kept, cleaned=not left)


def build_demo(home: Path, sizes: dict[str, int], say: Callable[[str], None], brokers: int) -> Demo:
    """Return the steps of the demo for one broker, or for several."""
    from venus.cli.demo.cluster import ClusterDemo
    from venus.cli.demo.story import Demo

    return Demo(home, sizes, say) if brokers == 1 else ClusterDemo(home, sizes, say, brokers)


def _on_sigterm(number: int, _: object) -> None:
    """Exit cleanly when a service manager or `timeout` ends the demo, so that its servers end too."""
    raise SystemExit(128 + number)


def working_folder(folder: Path | None) -> Path:
    """Return an empty folder that any user may enter: the embedded server may run as another user."""
    if folder is None:
        home = Path(tempfile.mkdtemp(prefix="venus-demo-"))
    else:
        home = folder.resolve()
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--folder {folder}: {error.strerror}", hint="name another folder") from None
        if any(home.iterdir()):
            raise ConfigError(f"--folder {folder}: is not empty", hint="name a new one: the demo removes it in the end")
    home.chmod(0o755)
    return home


def print_result(run: Invocation, story: Demo, proofs: list[DemoProof], *, kept: bool, cleaned: bool) -> int:
    """Print the proofs and figures."""
    different = sum(proof.different for proof in proofs)
    figures = story.figures()
    look = story.look_around() if kept else {}
    document = {"proved": proofs, "figures": figures, "different": different, "look_around": look}
    proved = build_table(
        "what was proved",
        "rows",
        "seconds",
        "different",
        rows=[(p.what, p.rows or None, p.seconds, p.different) for p in proofs],
    )
    shown: list[RenderableType] = [proved, "", build_table("figure", "value", rows=list(figures.items())), ""]
    examples = [f"DIFFERENT {example}" for proof in proofs for example in proof.examples]
    if kept:
        shown += ["Look around:", *(f"  {what:<22} {how}" for what, how in look.items())]
    elif cleaned:
        shown.append("Everything was cleaned up; `venus demo --keep` leaves it running to look around.")
    run.out.answer(document, *shown, *examples)
    return 1 if different else 0
