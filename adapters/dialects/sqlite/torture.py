"""The hardest values of SQLite's types, with the canonical text that each must become."""

from __future__ import annotations

from venus.adapters.dialects.proving_contract import Torture

COLUMNS = {
    "c_integer": Torture(type="INTEGER", values=(("-9223372036854775808", "-9223372036854775808"), ("0", "0"))),
    "c_real": Torture(
        type="REAL", values=(("0.1 + 0.2", "0.30000000000000004"), ("5e-324", "5e-324"), ("9e999", "Infinity"))
    ),
    "c_text": Torture(
        type="TEXT",
        values=(
            ("''", ""),
            ("' '", " "),
            ("char(9, 10, 13, 8, 92) || '\\N'", "\t\n\r\b\\\\N"),
            ("'größe 🙂 \u202eabc e\u0301'", "größe 🙂 \u202eabc e\u0301"),
            ("replace(hex(zeroblob(50000)), '0', 'x')", "x" * 100000),
        ),
    ),
    "c_blob": Torture(type="BLOB", values=(("x''", b""), ("x'00ff0a095c'", b"\x00\xff\n\t\\"))),
    "c_decimal": Torture(type="DECIMAL(10,2)", values=(("0.1", "0.10"), ("-99999999.99", "-99999999.99"))),
    "c_bool": Torture(type="BOOLEAN", values=(("1", "t"), ("0", "f"))),
    "c_date": Torture(type="DATE", values=(("'1969-12-31'", "1969-12-31"), ("'0001-01-01'", "0001-01-01"))),
    "c_datetime": Torture(
        type="DATETIME",
        values=(("'2026-11-20T23:59:59.5'", "2026-11-20 23:59:59.5"), ("'9999-12-31 00:00:00'", "9999-12-31 00:00:00")),
    ),
}

SETUP = ()
