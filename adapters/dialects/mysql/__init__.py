"""MariaDB and MySQL."""

from venus.adapters.dialects.contract import Option

OPTIONS = frozenset({Option.COLUMNS})
