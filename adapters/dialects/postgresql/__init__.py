"""PostgreSQL as a source."""

from venus.adapters.dialects.contract import Option

OPTIONS = frozenset({Option.COLUMNS, Option.LOG_BYTES_MAX})
