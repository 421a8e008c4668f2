"""The `venus` command: what people and service managers start. Nothing else imports this package."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; the entry point of the installed `venus` script."""
    from venus.cli.app import run

    sys.exit(run(sys.argv[1:]))
