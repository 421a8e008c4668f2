"""Types of option values, and how the file and the environment may write each of them."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from venus.masking.syntax import parse_rule
from venus.model import NAME_CHARS_MAX, PORT_MAX, is_address, is_name
from venus.predicates.syntax import PredicateRefused, parse
from venus.text.formatting import suggest_nearest


class SettingsSection(BaseModel):
    """Base of all sections of venus.toml: fields with defaults, no unknown options, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true for a number: Python would take it for 1, and a limit of 1 row/s would stop every client."""
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and kind in (int, float):
            raise PydanticCustomError(f"{kind.__name__}_type", "should be a number")
        return value


#: Prefix of the name of a business in a label.
BUSINESS = "business"


def _check_name(value: str) -> str:
    if not is_name(value):
        raise ValueError(f"must have 1 to {NAME_CHARS_MAX} printable characters, no space outside")
    return value


def _split_commas(value: object) -> object:
    """Accept `a, b` in the environment for ["a", "b"] in the file."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _check_names(values: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse an invalid name, and a name that occurs twice."""
    if twice := next((name for name in values if values.count(name) > 1), None):
        raise ValueError(f"names {twice} twice")
    return tuple(_check_name(value) for value in values)


def _split_sets(value: object) -> object:
    """Accept `a, b; c` in the environment for [["a", "b"], ["c"]] in the file."""
    if isinstance(value, str):
        return [part for part in value.split(";") if part.strip()]
    return value


def _check_not_empty(values: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a broker set without a broker."""
    if not values:
        raise ValueError("is a set without a broker")
    return values


def _check_label(values: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse an empty label, and members that are no names of tables or businesses."""
    if not values:
        raise ValueError('is empty: list tables ("orders", "app.orders") or "business:NAME"')
    for value in values:
        kind, colon, name = value.partition(":")
        if colon and (not is_name(name) if kind == BUSINESS else suggest_nearest(kind.strip().lower(), [BUSINESS])):
            raise ValueError(f"has {value!r}: a business is written {BUSINESS}:{name.strip() or 'NAME'}")
        if "*" in value:
            raise ValueError(f"has {value!r}: a label lists names, and no patterns")
    return values


def _check_address(value: object) -> object:
    """Refuse an address that is not HOST:PORT."""
    if isinstance(value, str) and value and not is_address(value):
        raise ValueError(f"should be HOST:PORT, with a port up to {PORT_MAX}")
    return value


def _check_addresses(values: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse an empty address, and an address that occurs twice."""
    if twice := next((address for address in values if values.count(address) > 1), None):
        raise ValueError(f"names {twice} twice")
    if "" in values:
        raise ValueError("has an empty address")
    return values


def _check_remote(value: object) -> object:
    """Refuse an address of Spark Connect that is not sc://HOST:PORT."""
    if isinstance(value, str) and value and not value.startswith("sc://"):
        raise ValueError("should be sc://HOST:PORT")
    return value


def _check_endpoint(value: object) -> object:
    """Refuse an endpoint that is not an http or https URL, or that contains a user."""
    if isinstance(value, str) and value and not re.fullmatch(r"https?://[^\s/@]+(/\S*)?", value):
        raise ValueError("should be http://HOST:PORT or https://HOST:PORT")
    return value


def _to_spark_text(value: object) -> object:
    """Accept true and 4 in the file where Spark takes text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _parse_pairs(value: object) -> object:
    """Parse `A.B=text, C.D=date`, the form that a TOML table has in an environment variable."""
    if not isinstance(value, str):
        return value
    return dict(part.strip().partition("=")[::2] for part in value.split(",") if part.strip())


def _check_predicate(value: str) -> str:
    """Refuse a row filter that cannot be parsed."""
    try:
        parse(value)
    except PredicateRefused as refused:
        raise ValueError(f"{refused}; {refused.hint}" if refused.hint else str(refused)) from None
    return value


def _check_column_rule(value: Any) -> Any:
    """Refuse an invalid rule for a column."""
    parse_rule(value)
    return value


Name = Annotated[str, AfterValidator(_check_name)]
#: Rules by column: {"customers.email": "hmac", "customers.country": {"rename": "country_code"}}.
ColumnRules = dict[str, Annotated[Any, AfterValidator(_check_column_rule)]]
Pairs = Annotated[dict[str, str], BeforeValidator(_parse_pairs)]
Predicates = dict[str, Annotated[str, AfterValidator(_check_predicate)]]
Patterns = Annotated[tuple[str, ...], BeforeValidator(_split_commas)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split_commas), AfterValidator(_check_names)]
Address = Annotated[str, BeforeValidator(_check_address)]
LabelMembers = Annotated[Names, AfterValidator(_check_label)]
Addresses = Annotated[tuple[Address, ...], BeforeValidator(_split_commas), AfterValidator(_check_addresses)]
Sets = Annotated[tuple[Annotated[Addresses, AfterValidator(_check_not_empty)], ...], BeforeValidator(_split_sets)]
Remote = Annotated[str, BeforeValidator(_check_remote)]
Endpoint = Annotated[str, BeforeValidator(_check_endpoint)]
SparkValue = Annotated[str, BeforeValidator(_to_spark_text)]
Count = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: A limit; 0 means that there is none.
Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]
