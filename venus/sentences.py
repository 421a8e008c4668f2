"""Hints as people read them: whole sentences, whatever an error says in short."""

from __future__ import annotations

import re

#: What begins like this is to be typed as it stands.
_COMMAND = re.compile(r"(venus|pip|chown|chmod|[A-Z]{3,}) [^,;]*")
_WORD = re.compile(r"(?!(?:venus|pip|etcd) )[a-z]+(?=[ ,;:]|$)")
_ENDS = (".", "?", "!", "…", ":", ";")


def sentence(hint: str) -> str:
    """Return a hint with a capital letter and a full stop; commands, names and paths stay as they are."""
    if not hint or _COMMAND.fullmatch(hint):
        return hint
    begun = hint[0].upper() + hint[1:] if _WORD.match(hint) else hint
    return begun if begun.endswith(_ENDS) else f"{begun}."
