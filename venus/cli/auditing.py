"""Operators' commands that act on databases leave a line in an audit log; the broker writes down its own."""

from __future__ import annotations

import os
import pwd
import shlex
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from venus.security.audit import NAME, Audit
from venus.user_folders import state_folder

if TYPE_CHECKING:
    from venus.cli.invocation import Invocation

#: Whatever changes something in an operator's name; `verify` only repairs if it is told to.
COMMANDS = frozenset(
    {
        "venus cluster accept-loss", "venus cluster add", "venus cluster dissolve", "venus cluster drain",
        "venus cluster move", "venus cluster policy", "venus cluster promote", "venus cluster remove",
        "venus cutover", "venus forget", "venus half commit", "venus half rollback", "venus install-triggers",
        "venus migrate", "venus pause", "venus quarantine retry", "venus quarantine skip", "venus resume",
        "venus resync", "venus uninstall-triggers", "venus certs init", "venus certs issue", "venus certs token",
    }
)  # fmt: skip
REPAIRS = "venus verify"


def record(invocation: Invocation, arguments: list[str], code: int) -> None:
    """Write down who called what and how it ended, if it is one of these commands."""
    command = invocation.command
    if command not in COMMANDS and not (command == REPAIRS and "--repair" in arguments):
        return
    host = socket.gethostname()
    audit = Audit(_path(invocation), lambda: datetime.now(UTC))
    audit.write(
        who=who(), where=host, what=invocation.redactor(shlex.join(["venus", *arguments])),
        result="done" if code == 0 else f"exit code {code}",
    )  # fmt: skip


def who() -> str:
    """Return the user, and who became it by sudo."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user may have no name
        user = f"user {os.getuid()}"
    behind = os.environ.get("SUDO_USER", "")
    return f"{behind} as {user}" if behind and behind != user else user


def _path(invocation: Invocation) -> Path:
    if invocation.audit_file:
        return Path(invocation.audit_file)
    return state_folder() / NAME
