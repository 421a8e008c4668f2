"""SQLite's dictionary: tables, columns, keys, types and the structure around them."""
