"""The syntax of a rule for a column, in `[targets.NAME.columns]`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from venus.model import is_name
from venus.text.formatting import suggest_nearest

KEEP, DROP, HMAC, NULL, YEAR = "keep", "drop", "hmac", "null", "year"
CONSTANT, TEXT, TRUNCATE, RENAME, MASK = "constant", "text", "truncate", "rename", "mask"
#: Rules that are one word, and those with a value.
WORDS = (HMAC, NULL, YEAR, DROP, KEEP)
VALUES = (CONSTANT, TEXT, TRUNCATE)
_SYNTAX = (
    'write "hmac", "null", "year", "drop" or "keep", or { constant = ... }, { text = ... }, { truncate = 3 }, '
    "each also with rename"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRule:
    """A rule for one column: to mask, drop or rename it."""

    mask: str = KEEP
    argument: str = ""
    rename: str = ""
    #: The source has added the column later, and it is left out because no rule names it.
    is_undecided: bool = field(default=False, compare=False)

    @property
    def is_masked(self) -> bool:
        """Whether its values are replaced."""
        return self.mask not in (KEEP, DROP)

    def describe(self) -> str:
        """Return the rule as text."""
        parts = [self.mask] if self.mask != KEEP else []
        return ", ".join([*parts, *([f"renamed to {self.rename}"] if self.rename else [])]) or KEEP


def parse_rule(value: object) -> ColumnRule:
    """Parse a rule from a value of the configuration. Raises ValueError."""
    if isinstance(value, str):
        if value not in WORDS:
            raise ValueError(f"is no rule{suggest_nearest(value, WORDS)}: {_SYNTAX}")
        return ColumnRule(mask=value)
    if not isinstance(value, Mapping) or not value:
        raise ValueError(_SYNTAX)
    if unknown := sorted(set(value) - {RENAME, MASK, *VALUES}):
        raise ValueError(f"has {unknown[0]!r}{suggest_nearest(unknown[0], [RENAME, MASK, *VALUES])}: {_SYNTAX}")
    masks = [name for name in (MASK, *VALUES) if name in value]
    if len(masks) > 1:
        raise ValueError(f"has {masks[0]} and {masks[1]}: a column has one of them")
    rename = value.get(RENAME, "")
    if RENAME in value and not (isinstance(rename, str) and is_name(rename)):
        raise ValueError("rename needs the new name of the column")
    if not masks:
        return ColumnRule(rename=str(rename))
    return replace(_parse_mask(masks[0], value[masks[0]]), rename=str(rename))


def _parse_mask(name: str, value: object) -> ColumnRule:
    """Parse one entry of a rule's TOML table, such as `truncate = 4`. Raises ValueError."""
    if name == MASK:
        if value == DROP or value not in WORDS:
            nearest = suggest_nearest(value, WORDS) if isinstance(value, str) and value != DROP else ""
            raise ValueError(f"has mask = {value!r}{nearest}: {_SYNTAX}")
        return parse_rule(value)
    if name == TRUNCATE:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError("truncate needs the number of characters to keep, at least 1")
        return ColumnRule(mask=TRUNCATE, argument=str(value))
    if isinstance(value, bool):
        return ColumnRule(mask=name, argument="t" if value else "f")
    if not isinstance(value, str | int | float):
        raise ValueError(f"{name} needs a value")  # noqa: TRY004
    return ColumnRule(mask=name, argument=str(value))
