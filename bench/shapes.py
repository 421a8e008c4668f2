"""The tables of the pipeline bench, as SQL of a PostgreSQL source: rows from numbers, the same every time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A table as SQL, and the content of its row number `g` in version `v`."""

    name: str
    columns: tuple[tuple[str, str, str], ...]  # name, type, expression

    @property
    def create(self) -> str:
        """Return the statement that makes the table."""
        body = ", ".join(f"{name} {type_}" for name, type_, _ in self.columns)
        return f"CREATE TABLE {self.name} ({body}, PRIMARY KEY (id))"

    def rows(self, first: int, last: int, version: int) -> str:
        """Return a query for the rows of these numbers."""
        made = ", ".join(f"({expression})::{type_}" for _, type_, expression in self.columns)
        return f"SELECT {made} FROM generate_series({first}, {last}) g, (VALUES ({version})) w (v)"

    def insert(self, first: int, last: int, version: int = 1) -> str:
        """Return the statement that inserts the rows of these numbers."""
        return f"INSERT INTO {self.name} {self.rows(first, last, version)}"

    def update(self, first: int, last: int, version: int) -> str:
        """Return the statement that updates the rows of these numbers to another version."""
        others = ", ".join(f"{name} = ({expression})::{type_}" for name, type_, expression in self.columns[1:])
        return (
            f"UPDATE {self.name} SET {others} FROM generate_series({first}, {last}) g, (VALUES ({version})) w (v) "
            f"WHERE {self.name}.id = g"
        )

    def delete(self, first: int, last: int) -> str:
        """Return the statement that deletes the rows of these numbers."""
        return f"DELETE FROM {self.name} WHERE id BETWEEN {first} AND {last}"


NARROW = Shape(
    name="narrow",
    columns=(
        ("id", "integer", "g"),
        ("name", "text", "'name of student ' || lpad(g::text, 9, '0') || ' ' || v"),
        ("city", "text", "'city number ' || lpad((g % 1000)::text, 4, '0') || ' in the far north'"),
        ("score", "integer", "g * 3 + v"),
    ),
)

_WIDE = (
    ("text", "'text {n} of row ' || g || ' version ' || v"),
    ("integer", "(g * {n} + v) % 1000000"),
    ("numeric(14,2)", "(g * {n} + v) / 100.0"),
    ("timestamptz", "timestamptz '2026-01-01 00:00:00+00' + make_interval(secs => g * {n} % 86400 + v)"),
    ("date", "date '2000-01-01' + (g * {n} + v) % 9000"),
    ("boolean", "(g + {n} + v) % 2 = 0"),
)

WIDE = Shape(
    name="wide",
    columns=(
        ("id", "integer", "g"),
        *((f"c{n}", _WIDE[n % len(_WIDE)][0], _WIDE[n % len(_WIDE)][1].replace("{n}", str(n))) for n in range(1, 20)),
    ),
)
