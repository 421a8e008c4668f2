"""Values of Oracle's types that are hard to carry, with the canonical text of each, for `venus prove`.

`COLUMNS` are Oracle's own types, none of which has been tried on a real Oracle yet. `STANDIN` are the types that
MariaDB in Oracle mode has with the same name and meaning, or the types that replace them in MariaDB (double for
BINARY_DOUBLE, datetime(6) for TIMESTAMP(6)).
"""

from __future__ import annotations

from venus.adapters.dialects.proving_contract import Torture

_LONG_TEXT = "x" * 3_000  # as long as a literal of Oracle's can be; longer ones are bound in other tests

STANDIN = {
    "c_number_4": Torture(type="NUMBER(4)", values=(("-9999", "-9999"), ("9999", "9999"), ("0", "0"))),
    "c_number_9": Torture(type="NUMBER(9)", values=(("999999999", "999999999"),)),
    "c_number_18": Torture(type="NUMBER(18)", values=(("-999999999999999999", "-999999999999999999"),)),
    "c_number_19": Torture(type="NUMBER(19)", values=(("9223372036854775808", "9223372036854775808"),)),
    "c_number_38": Torture(type="NUMBER(38)", values=((f"{'9' * 38}", "9" * 38), (f"-{'9' * 38}", f"-{'9' * 38}"))),
    "c_number_2": Torture(type="NUMBER(10,2)", values=(("0.1", "0.10"), ("-99999999.99", "-99999999.99"))),
    "c_number_30": Torture(
        type="NUMBER(38,30)", values=(("-0.000000000000000000000000000001", "-0.000000000000000000000000000001"),)
    ),
    "c_number_scale": Torture(type="NUMBER(37,2)", values=(("-1.25", "-1.25"), ("0.1", "0.1"))),
    "c_binary_float": Torture(type="FLOAT", values=(("0.1", "0.1"), ("1e38", "1e+38"), ("123456", "123456"))),
    "c_binary_double": Torture(
        type="DOUBLE",
        values=(
            ("0.1e0 + 0.2e0", "0.30000000000000004"),
            ("5e-324", "5e-324"),
            ("1e15", "1e+15"),
            ("-0.0001", "-0.0001"),
        ),
    ),
    "c_varchar2": Torture(
        type="VARCHAR2(40)",
        values=(
            ("''", None),
            ("' '", " "),
            ("'ab '", "ab "),
            ("'größe 🙂 e\u0301'", "größe 🙂 e\u0301"),
            (r"'\t\n\r\b\\ \\N'", "\t\n\r\b\\ \\N"),
            (r"'\\.'", r"\."),
        ),
    ),
    "c_char": Torture(type="CHAR(5)", values=(("'ab'", "ab   "), ("'größe'", "größe"))),
    "c_clob": Torture(type="CLOB", values=(("'a\u202eb'", "a\u202eb"), (f"'{_LONG_TEXT}'", _LONG_TEXT), ("''", None))),
    "c_raw": Torture(type="RAW(8)", values=(("X'00ff0a095c'", b"\x00\xff\n\t\\"),)),
    "c_blob": Torture(type="BLOB", values=(("X'00ff0a095c'", b"\x00\xff\n\t\\"),)),
    "c_date": Torture(
        type="DATE",
        values=(
            ("'0001-01-01 00:00:00'", "0001-01-01 00:00:00"),
            ("'9999-12-31 23:59:59'", "9999-12-31 23:59:59"),
            ("'2026-03-29 02:30:00'", "2026-03-29 02:30:00"),
        ),
    ),
    "c_timestamp": Torture(
        type="DATETIME(6)",
        values=(
            ("'9999-12-31 23:59:59.999999'", "9999-12-31 23:59:59.999999"),
            ("'2026-01-01 00:00:00.5'", "2026-01-01 00:00:00.5"),
            ("'2026-01-01 10:20:30'", "2026-01-01 10:20:30"),
        ),
    ),
}

#: Types that differ from the stand-in's, and those that it lacks.
COLUMNS = {name: column for name, column in STANDIN.items() if column.type.startswith(("NUMBER", "CLOB"))} | {
    "c_number": Torture(
        type="NUMBER", values=(("1e-30", "0.000000000000000000000000000001"), ("1.50", "1.5"), ("1e38", "1" + "0" * 38))
    ),
    "c_number_scale": Torture(type="NUMBER(*,2)", values=(("0.1", "0.1"), ("-1.25", "-1.25"))),
    "c_number_neg": Torture(type="NUMBER(5,-2)", values=(("12345", "12300"),)),
    "c_float": Torture(type="FLOAT", values=(("0.1", "0.1"),)),
    "c_binary_float": Torture(
        type="BINARY_FLOAT", values=(("0.1f", "0.1"), ("BINARY_FLOAT_INFINITY", "Infinity"), ("1e38f", "1e+38"))
    ),
    "c_binary_double": Torture(
        type="BINARY_DOUBLE",
        values=(("BINARY_DOUBLE_NAN", "NaN"), ("-BINARY_DOUBLE_INFINITY", "-Infinity"), ("1e15d", "1e+15")),
    ),
    "c_varchar2": Torture(
        type="VARCHAR2(40 CHAR)",
        values=(
            ("''", None),
            ("' '", " "),
            ("'ab '", "ab "),
            ("'größe 🙂 e\u0301'", "größe 🙂 e\u0301"),
            ("CHR(9) || CHR(10) || CHR(13) || CHR(92) || 'N'", "\t\n\r\\N"),
        ),
    ),
    "c_nvarchar2": Torture(type="NVARCHAR2(10)", values=(("N'\u00fc\u20ac'", "\u00fc\u20ac"),)),
    "c_char": Torture(type="CHAR(5 CHAR)", values=(("'ab'", "ab   "), ("'größe'", "größe"))),
    "c_nchar": Torture(type="NCHAR(4)", values=(("N'ü'", "ü   "),)),
    "c_nclob": Torture(type="NCLOB", values=(("TO_NCLOB('text')", "text"),)),
    "c_raw": Torture(type="RAW(8)", values=(("HEXTORAW('00ff0a095c')", b"\x00\xff\n\t\\"),)),
    "c_blob": Torture(type="BLOB", values=(("HEXTORAW('00ff0a095c')", b"\x00\xff\n\t\\"),)),
    "c_date": Torture(
        type="DATE",
        values=(
            ("TO_DATE('-4712-01-01 00:00:00', 'SYYYY-MM-DD HH24:MI:SS')", "4712-01-01 00:00:00 BC"),
            ("TO_DATE('-0044-03-15 12:00:00', 'SYYYY-MM-DD HH24:MI:SS')", "0044-03-15 12:00:00 BC"),
            ("DATE '9999-12-31' + 86399 / 86400", "9999-12-31 23:59:59"),
        ),
    ),
    "c_timestamp": Torture(
        type="TIMESTAMP(6)",
        values=(
            ("TIMESTAMP '9999-12-31 23:59:59.999999'", "9999-12-31 23:59:59.999999"),
            ("TIMESTAMP '2026-01-01 00:00:00.5'", "2026-01-01 00:00:00.5"),
            ("TIMESTAMP '2026-01-01 10:20:30'", "2026-01-01 10:20:30"),
        ),
    ),
    "c_timestamp_0": Torture(type="TIMESTAMP(0)", values=(("TIMESTAMP '2026-11-20 08:30:00'", "2026-11-20 08:30:00"),)),
    "c_timestamp_9": Torture(
        type="TIMESTAMP(9)", values=(("TIMESTAMP '2026-11-20 08:30:00.123456789'", "2026-11-20 08:30:00.123456"),)
    ),
    "c_timestamp_tz": Torture(
        type="TIMESTAMP(6) WITH TIME ZONE",
        values=(
            ("TIMESTAMP '2026-11-20 08:30:00.25 +02:00'", "2026-11-20 06:30:00.25+00"),
            ("TIMESTAMP '2026-03-29 02:30:00 UTC'", "2026-03-29 02:30:00+00"),
        ),
    ),
    "c_timestamp_ltz": Torture(
        type="TIMESTAMP(6) WITH LOCAL TIME ZONE",
        values=(("TIMESTAMP '2026-11-20 08:30:00 +02:00'", "2026-11-20 06:30:00+00"),),
    ),
    "c_months": Torture(type="INTERVAL YEAR(4) TO MONTH", values=(("INTERVAL '2-3' YEAR TO MONTH", "2 years 3 mons"),)),
    "c_days": Torture(
        type="INTERVAL DAY(4) TO SECOND(6)",
        values=(("INTERVAL '-1 02:03:04.5' DAY TO SECOND", "-1 days -02:03:04.5"),),
    ),
    "c_xml": Torture(type="XMLTYPE", values=(("XMLTYPE('<a/>')", "<a/>"),)),
    "c_rowid": Torture(type="ROWID", values=(("CHARTOROWID('AAAAECAABAAAAgiAAA')", "AAAAECAABAAAAgiAAA"),)),
    "c_urowid": Torture(type="UROWID", values=(("'AAAAECAABAAAAgiAAA'", "AAAAECAABAAAAgiAAA"),)),
}
