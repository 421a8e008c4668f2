"""The hardest values of Oracle's types, with the canonical text that each must become.

`STANDIN` are those that MariaDB in Oracle mode has under the same name and with the same meaning, or the type that
stands for them there (double for BINARY_DOUBLE, datetime(6) for TIMESTAMP(6)).
"""

from __future__ import annotations

from tests.conformance.torture import Torture

_LONG_TEXT = "x" * 100_000

STANDIN = {
    "c_number_4": Torture(type="NUMBER(4)", values=(("-9999", "-9999"), ("9999", "9999"), ("0", "0"))),
    "c_number_9": Torture(type="NUMBER(9)", values=(("999999999", "999999999"),)),
    "c_number_18": Torture(type="NUMBER(18)", values=(("-999999999999999999", "-999999999999999999"),)),
    "c_number_19": Torture(type="NUMBER(19)", values=(("9223372036854775808", "9223372036854775808"),)),
    "c_number_38": Torture(
        type="NUMBER(38)", values=((f"{'9' * 38}", "9" * 38), (f"-{'9' * 38}", f"-{'9' * 38}"))
    ),
    "c_number_2": Torture(type="NUMBER(10,2)", values=(("0.1", "0.10"), ("-99999999.99", "-99999999.99"))),
    "c_number_30": Torture(
        type="NUMBER(38,30)", values=(("-0.000000000000000000000000000001", "-0.000000000000000000000000000001"),)
    ),
    "c_binary_float": Torture(type="FLOAT", values=(("0.1", "0.1"), ("1e38", "1e+38"), ("123456", "123456"))),
    "c_binary_double": Torture(
        type="DOUBLE",
        values=(("0.1e0 + 0.2e0", "0.30000000000000004"), ("5e-324", "5e-324"), ("1e15", "1e+15"),
                ("-0.0001", "-0.0001")),
    ),
    "c_varchar2": Torture(
        type="VARCHAR2(40)",
        values=(("''", None), ("' '", " "), ("'ab '", "ab "), ("'größe 🙂 e\u0301'", "größe 🙂 e\u0301"),
                (r"'\t\n\r\b\\ \\N'", "\t\n\r\b\\ \\N"), (r"'\\.'", r"\.")),
    ),
    "c_char": Torture(type="CHAR(5)", values=(("'ab'", "ab   "), ("'größe'", "größe"))),
    "c_clob": Torture(
        type="CLOB", values=(("'a\u202eb'", "a\u202eb"), ("RPAD('x', 100000, 'x')", _LONG_TEXT), ("''", None))
    ),
    "c_raw": Torture(type="RAW(8)", values=(("X'00ff0a095c'", b"\x00\xff\n\t\\"),)),
    "c_blob": Torture(type="BLOB", values=(("X'00ff0a095c'", b"\x00\xff\n\t\\"),)),
    "c_date": Torture(
        type="DATE",
        values=(("'0001-01-01 00:00:00'", "0001-01-01 00:00:00"), ("'9999-12-31 23:59:59'", "9999-12-31 23:59:59"),
                ("'2026-03-29 02:30:00'", "2026-03-29 02:30:00")),
    ),
    "c_timestamp": Torture(
        type="DATETIME(6)",
        values=(("'9999-12-31 23:59:59.999999'", "9999-12-31 23:59:59.999999"),
                ("'2026-01-01 00:00:00.5'", "2026-01-01 00:00:00.5"), ("'2026-01-01 10:20:30'", "2026-01-01 10:20:30")),
    ),
}  # fmt: skip
