"""Which rows a foreign key changes by itself. Pure.

InnoDB runs ON DELETE and ON UPDATE actions below the triggers: those of the child do not fire (capture.md 4). So the
trigger that notes the children's keys stands on the table where it begins. A path is the chain of foreign keys from
there to a captured table; it is followed through tables that are not captured themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from venus.adapters.dialects.mysql.dictionary import Reference

_ACTS = ("CASCADE", "SET NULL")


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """From a DELETE or UPDATE of `root` along `references` to the rows of `child`."""

    event: str  # DELETE, UPDATE
    references: tuple[Reference, ...]

    @property
    def root(self) -> str:
        """Where it begins."""
        return self.references[0].parent

    @property
    def child(self) -> str:
        """Whose rows change."""
        return self.references[-1].child

    @property
    def mark(self) -> str:
        """Eight hexadecimal digits that tell this path from others in names."""
        text = "\n".join([self.event, *(f"{r.child} {r.name}" for r in self.references)])
        return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    """A cascade that comes back to where it was: triggers cannot follow it to an unknown depth."""

    reference: Reference
    tables: tuple[str, ...]


def paths(references: Seq[Reference]) -> Iterator[Path | Circle]:
    """Yield every path, and every circle once."""
    told: set[str] = set()
    for root in dict.fromkeys(r.parent for r in references):
        for event in ("DELETE", "UPDATE"):
            for found in _walk(event, event, root, None, (), references):
                if isinstance(found, Circle):
                    if found.reference.name in told:
                        continue
                    told.add(found.reference.name)
                yield found


def _walk(
    root_event: str,
    event: str,
    table: str,
    changed: tuple[str, ...] | None,  # None: any column may have
    before: tuple[Reference, ...],
    references: Seq[Reference],
) -> Iterator[Path | Circle]:
    for reference in references:
        action = reference.on_delete if event == "DELETE" else reference.on_update
        touched = event == "DELETE" or changed is None or set(changed) & set(reference.referred)
        if reference.parent != table or action not in _ACTS or not touched:
            continue
        if reference in before:
            yield Circle(reference=reference, tables=tuple(r.child for r in before))
            continue
        path = (*before, reference)
        yield Path(event=root_event, references=path)
        deleted = event == "DELETE" and action == "CASCADE"
        deeper = ("DELETE", None) if deleted else ("UPDATE", reference.columns)
        yield from _walk(root_event, deeper[0], reference.child, deeper[1], path, references)


def reaching(references: Seq[Reference], captured: Collection[str]) -> tuple[list[Path], list[Circle]]:
    """Return what concerns captured tables."""
    found = list(paths(references))
    return (
        [f for f in found if isinstance(f, Path) and f.child in captured],
        [f for f in found if isinstance(f, Circle) and {f.reference.child, *f.tables} & set(captured)],
    )
