"""The `venus` command: what people and service managers start. Nothing else imports this package."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; the entry point of the installed `venus` script."""
    try:
        from venus.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before there is a command that could be interrupted
        sys.stderr.write("venus: interrupted\n")
        code = 130
    sys.exit(code)
