"""The hardest values of PostgreSQL's types, with the canonical text that each must become."""

from __future__ import annotations

from venus.adapters.dialects.proving_contract import Torture

COLUMNS = {
    "c_int2": Torture(type="smallint", values=(("-32768", "-32768"), ("32767", "32767"))),
    "c_int4": Torture(type="integer", values=(("-2147483648", "-2147483648"), ("0", "0"))),
    "c_int8": Torture(type="bigint", values=(("-9223372036854775808", "-9223372036854775808"),)),
    "c_numeric": Torture(
        type="numeric",
        values=(
            ("1.0", "1.0"),
            ("1.00", "1.00"),
            ("'NaN'", "NaN"),
            ("'-Infinity'", "-Infinity"),
            (
                "123456789012345678901234567890123456789012.000000000000000000000000000001",
                "123456789012345678901234567890123456789012.000000000000000000000000000001",
            ),
        ),
    ),
    "c_numeric_2": Torture(type="numeric(10,2)", values=(("0.1", "0.10"), ("-99999999.99", "-99999999.99"))),
    "c_numeric_neg": Torture(type="numeric(5,-2)", values=(("1234567", "1234600"),)),
    "c_float4": Torture(type="real", values=(("0.1", "0.1"), ("'1e38'", "1e+38"), ("'NaN'", "NaN"))),
    "c_float8": Torture(
        type="double precision",
        values=(
            ("0.1::float8 + 0.2::float8", "0.30000000000000004"),
            ("'-Infinity'", "-Infinity"),
            ("'-0'", "-0"),
            ("'5e-324'", "5e-324"),
        ),
    ),
    "c_text": Torture(
        type="text",
        values=(
            ("''", ""),
            ("' '", " "),
            (r"E'\t\n\r\b\f\v\\ \\N'", "\t\n\r\b\f\v\\ \\N"),
            (r"'\N'", r"\N"),
            (r"'\.'", r"\."),
            ("'größe 🙂 \u202eabc e\u0301'", "größe 🙂 \u202eabc e\u0301"),
            ("repeat('x', 100000)", "x" * 100000),
        ),
    ),
    "c_varchar": Torture(type="varchar(3)", values=(("'äöü'", "äöü"),)),
    "c_char": Torture(type="char(5)", values=(("'ab'", "ab   "), ("''", "     "))),
    "c_bytea": Torture(type="bytea", values=(("''", b""), (r"'\x00ff0a095c'", b"\x00\xff\n\t\\"))),
    "c_bool": Torture(type="boolean", values=(("true", "t"), ("false", "f"))),
    "c_date": Torture(
        type="date",
        values=(
            ("'0044-03-15 BC'", "0044-03-15 BC"),
            ("'12345-01-02'", "12345-01-02"),
            ("'1969-12-31'", "1969-12-31"),
            ("'infinity'", "infinity"),
        ),
    ),
    "c_time": Torture(type="time", values=(("'23:59:59.123456'", "23:59:59.123456"), ("'24:00'", "24:00:00"))),
    "c_timetz": Torture(type="timetz", values=(("'12:00:00.5+02'", "12:00:00.5+02"),)),
    "c_timestamp": Torture(
        type="timestamp",
        values=(
            ("'0001-01-01 00:00:00 BC'", "0001-01-01 00:00:00 BC"),
            ("'294276-12-31 23:59:59.999999'", "294276-12-31 23:59:59.999999"),
            ("'-infinity'", "-infinity"),
        ),
    ),
    "c_timestamp_0": Torture(type="timestamp(0)", values=(("'2026-11-20 10:00:00.6'", "2026-11-20 10:00:01"),)),
    "c_timestamptz": Torture(
        type="timestamptz",
        values=(
            ("'2026-03-29 02:30:00 Europe/Berlin'", "2026-03-29 01:30:00+00"),
            ("'1900-01-01 00:00:00.000001+00:53:28'", "1899-12-31 23:06:32.000001+00"),
        ),
    ),
    "c_interval": Torture(
        type="interval",
        values=(("'1 year -2 mons 3 days -04:05:06.7'", "10 mons 3 days -04:05:06.7"), ("'24:00'", "24:00:00")),
    ),
    "c_json": Torture(
        type="json", values=(('\'{"b": 1,  "a": [1.0, null], "b": 2}\'', '{"b": 1,  "a": [1.0, null], "b": 2}'),)
    ),
    "c_jsonb": Torture(
        type="jsonb", values=(('\'{"b": 1, "a": "\\u00e9"}\'', '{"a": "é", "b": 1}'), ("'null'", "null"))
    ),
    "c_uuid": Torture(
        type="uuid",
        values=(("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),),
    ),
    "c_int_array": Torture(
        type="integer[]",
        values=(("'{}'", "{}"), ("'{1,NULL,-3}'", "{1,NULL,-3}"), ("'[0:1][1:1]={{1},{2}}'", "[0:1][1:1]={{1},{2}}")),
    ),
    "c_text_array": Torture(
        type="text[]", values=((r"""ARRAY['a,b', 'q"q', NULL, 'NULL', '']""", r"""{"a,b","q\"q",NULL,"NULL",""}"""),)
    ),
    "c_tz_array": Torture(
        type="timestamptz[]", values=(("ARRAY['2026-01-01 12:00+05'::timestamptz]", '{"2026-01-01 07:00:00+00"}'),)
    ),
    "c_inet": Torture(type="inet", values=(("'10.1.2.3/8'", "10.1.2.3/8"), ("'::1'", "::1"))),
    "c_bits": Torture(type="bit varying(9)", values=(("B'0101'", "0101"), ("B''", ""))),
    "c_range": Torture(type="int4range", values=(("'[1,5]'", "[1,6)"), ("'empty'", "empty"))),
    "c_tsvector": Torture(type="tsvector", values=(("'fat:1A cat'", "'cat' 'fat':1A"),)),
    "c_money": Torture(type="money", values=(("'-1234.5'", "-$1,234.50"),)),
    "c_enum": Torture(type="mood", values=(("'sad''ly'", "sad'ly"),)),
    "c_composite": Torture(type="pair", values=(("ROW(1, 'a \"b')", '(1,"a ""b")'),)),
    "c_domain": Torture(type="positive", values=(("7", "7"),)),
}

#: The application's own types that these columns need.
SETUP = (
    "CREATE TYPE mood AS ENUM ('sad''ly', 'happy')",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
)
