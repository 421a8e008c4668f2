"""Values of MariaDB's types that are hard to carry, with the canonical text of each, for `venus prove`."""

from __future__ import annotations

from venus.adapters.dialects.proving_contract import Torture

COLUMNS = {
    "c_tiny": Torture(type="tinyint", values=(("-128", "-128"), ("127", "127"))),
    "c_tiny_u": Torture(type="tinyint unsigned", values=(("255", "255"), ("0", "0"))),
    "c_small_u": Torture(type="smallint unsigned", values=(("65535", "65535"),)),
    "c_medium_u": Torture(type="mediumint unsigned", values=(("16777215", "16777215"),)),
    "c_int": Torture(type="int", values=(("-2147483648", "-2147483648"),)),
    "c_int_u": Torture(type="int unsigned", values=(("4294967295", "4294967295"),)),
    "c_big": Torture(type="bigint", values=(("-9223372036854775808", "-9223372036854775808"),)),
    "c_big_u": Torture(type="bigint unsigned", values=(("18446744073709551615", "18446744073709551615"),)),
    "c_zerofill": Torture(type="int(10) zerofill", values=(("17", "17"), ("4294967295", "4294967295"))),
    "c_bool": Torture(type="boolean", values=(("true", "1"), ("false", "0"), ("-5", "-5"))),
    "c_decimal": Torture(
        type="decimal(65,30)",
        values=(
            (
                "99999999999999999999999999999999999.999999999999999999999999999999",
                "99999999999999999999999999999999999.999999999999999999999999999999",
            ),
            ("-0.000000000000000000000000000001", "-0.000000000000000000000000000001"),
            ("1", "1.000000000000000000000000000000"),
        ),
    ),
    "c_decimal_zerofill": Torture(type="decimal(8,2) zerofill", values=(("1.5", "1.50"),)),
    "c_float": Torture(
        type="float",
        values=(
            ("0.1", "0.1"),
            ("16777217", "1.6777216e+07"),
            ("1e38", "1e+38"),
            ("1e-45", "1e-45"),
            ("123456", "123456"),
        ),
    ),
    "c_double": Torture(
        type="double",
        values=(
            ("0.1e0 + 0.2e0", "0.30000000000000004"),
            ("5e-324", "5e-324"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
            ("1e15", "1e+15"),
            ("123456789012345", "123456789012345"),
            ("0.0001", "0.0001"),
        ),
    ),
    "c_double_d": Torture(type="double(10,2)", values=(("2.006", "2.01"), ("0", "0"))),
    "c_bit1": Torture(type="bit(1)", values=(("b'1'", "t"), ("b'0'", "f"))),
    "c_bit9": Torture(type="bit(9)", values=(("b'101'", "000000101"),)),
    "c_bit64": Torture(type="bit(64)", values=(("18446744073709551615", "1" * 64),)),
    "c_char": Torture(type="char(5)", values=(("'ab'", "ab"), ("''", ""), ("'ä🙂'", "ä🙂"))),
    "c_varchar": Torture(type="varchar(9)", values=(("'ab '", "ab "), ("'äöü'", "äöü"))),
    "c_latin1": Torture(type="varchar(9) character set latin1", values=(("'größe €'", "größe €"),)),
    "c_text": Torture(
        type="longtext",
        values=(
            ("''", ""),
            (r"'\t\n\r\b\\ \\N'", "\t\n\r\b\\ \\N"),
            ("'größe 🙂 \u202eabc e\u0301'", "größe 🙂 \u202eabc e\u0301"),
            ("repeat('x', 100000)", "x" * 100000),
        ),
    ),
    "c_cp1251": Torture(type="text character set cp1251", values=(("'Жизнь?'", "Жизнь?"), ("''", ""))),
    "c_gbk": Torture(type="char(9) character set gbk", values=(("'生?'", "生?"),)),
    "c_utf8mb3": Torture(type="tinytext character set utf8mb3", values=(("'größe'", "größe"),)),
    "c_utf16": Torture(type="text character set utf16", values=(("'größe 🙂'", "größe 🙂"),)),
    "c_binary": Torture(type="binary(3)", values=(("'a'", b"a\0\0"),)),
    "c_varbinary": Torture(type="varbinary(9)", values=(("x'00ff0a095c'", b"\x00\xff\n\t\\"), ("''", b""))),
    "c_blob": Torture(type="longblob", values=(("x'27225c0025'", b"'\"\\\0%"), ("''", b""))),
    "c_enum": Torture(type="enum('it''s', 'b', '🙂')", values=(("'it''s'", "it's"), ("'🙂'", "🙂"))),
    "c_set": Torture(type="set('x', 'y', 'z')", values=(("'z,x'", "x,z"), ("''", ""))),
    "c_date": Torture(
        type="date",
        values=(("'0001-01-01'", "0001-01-01"), ("'9999-12-31'", "9999-12-31"), ("'0000-03-01'", "0001-03-01 BC")),
    ),
    "c_datetime": Torture(type="datetime", values=(("'2026-03-29 02:30:00'", "2026-03-29 02:30:00"),)),
    "c_datetime_6": Torture(
        type="datetime(6)",
        values=(
            ("'9999-12-31 23:59:59.999999'", "9999-12-31 23:59:59.999999"),
            ("'2026-01-01 00:00:00.5'", "2026-01-01 00:00:00.5"),
            ("'2026-01-01 10:20:30'", "2026-01-01 10:20:30"),
        ),
    ),
    "c_timestamp_3": Torture(
        type="timestamp(3) null",
        values=(("from_unixtime(1)", "1970-01-01 00:00:01+00"), ("from_unixtime(1.25)", "1970-01-01 00:00:01.25+00")),
    ),
    "c_time": Torture(type="time", values=(("'838:59:59'", "838:59:59"), ("'-00:00:01'", "-00:00:01"))),
    "c_time_6": Torture(
        type="time(6)", values=(("'-838:59:58.000001'", "-838:59:58.000001"), ("'08:30:00.5'", "08:30:00.5"))
    ),
    "c_year": Torture(type="year", values=(("0", "0"), ("2155", "2155"))),
    "c_json": Torture(type="json", values=(('\'{"b": 1,  "a": [1.0, null]}\'', '{"b": 1,  "a": [1.0, null]}'),)),
    "c_uuid": Torture(
        type="uuid",
        values=(("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),),
    ),
    "c_inet6": Torture(type="inet6", values=(("'::1'", "::1"), ("'::ffff:10.1.2.3'", "::ffff:10.1.2.3"))),
}

SETUP = ()
