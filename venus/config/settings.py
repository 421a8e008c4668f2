"""All sections together: read from venus.toml, overridden by the environment, and shown with secrets masked.

Every error message is one line that names the line of the file or the variable. No message requires knowledge of Python
or pydantic.
"""

from __future__ import annotations

import getpass
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from venus.config.cluster import ClusterSettings
from venus.config.sections import (
    AlarmsSettings,
    ApplySettings,
    BrokerSettings,
    BusinessSettings,
    CaptureSettings,
    LakeSettings,
    MatchingSettings,
    SecuritySettings,
    SourceSettings,
    SparkSettings,
    TargetSettings,
    TracingSettings,
    options,
)
from venus.config.values import LabelMembers, Name
from venus.errors import ConfigError
from venus.text.formatting import find_option_line, mask_url, suggest_nearest

#: Names of Spark settings with secret values.
_SECRET = re.compile(r"passw|secret|token|credential|access.?key|account.?key", re.IGNORECASE)


def effective_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings in force as plain values, every secret masked."""
    tree = settings.model_dump(mode="json", by_alias=True)
    tree["source"]["url"] = mask_url(settings.source.url.get_secret_value())
    for name, target in settings.targets.items():
        tree["targets"][name]["url"] = mask_url(target.url.get_secret_value())
    tree["spark"]["remote"] = mask_url(settings.spark.remote)
    for name in filter(is_secret, settings.spark.conf):
        tree["spark"]["conf"][name] = "***"
    return tree


def is_secret(name: str) -> bool:
    """Return whether a setting of Spark with this name has a secret value."""
    return _SECRET.search(name) is not None


PREFIX = "VENUS_"


class Settings(BaseSettings):
    """Configuration of a VENUS process."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, enable_decoding=False
    )

    business: BusinessSettings = BusinessSettings()
    source: SourceSettings = SourceSettings()
    targets: dict[str, TargetSettings] = {}
    broker: BrokerSettings = BrokerSettings()
    #: The meaning of each label: tables ("orders", "app.orders") of every business, or "business:NAME".
    labels: dict[Name, LabelMembers] = {}
    cluster: ClusterSettings = ClusterSettings()
    matching: MatchingSettings = MatchingSettings()
    security: SecuritySettings = SecuritySettings()
    alarms: AlarmsSettings = AlarmsSettings()
    tracing: TracingSettings = TracingSettings()
    capture: CaptureSettings = CaptureSettings()
    apply: ApplySettings = ApplySettings()
    lake: LakeSettings = LakeSettings()
    spark: SparkSettings = SparkSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Give the environment precedence over the file."""
        return env_settings, init_settings

    @model_validator(mode="before")
    @classmethod
    def _fold_names(cls, tree: Any) -> Any:
        """Let VENUS_TARGETS__MAIN__URL set `[targets.Main]`: the environment knows neither case nor hyphens."""
        if not isinstance(tree, dict):
            return tree
        tree = _fold_section(_fold_section(tree, "targets"), "labels")
        if isinstance(alarms := tree.get("alarms"), dict):
            tree = tree | {"alarms": _fold_section(_fold_section(alarms, "to"), "rules")}
        return tree

    @field_validator("cluster")
    @classmethod
    def _check_labels(cls, cluster: ClusterSettings, info: ValidationInfo) -> ClusterSettings:
        """Refuse a label in [cluster] that is not defined in [labels]."""
        known = info.data.get("labels")
        if known is None:  # the labels themselves are wrong, and have their own message
            return cluster
        for label in cluster.labels:
            if label not in known:
                way_out = f'define it there: {label} = ["TABLE", ...]'
                raise ValueError(f"label {label!r} is not in [labels]{suggest_nearest(label, known)}: {way_out}")
        return cluster

    @field_validator("cluster")
    @classmethod
    def _check_upstream(cls, cluster: ClusterSettings, info: ValidationInfo) -> ClusterSettings:
        """Refuse this broker itself as its upstream."""
        broker = info.data.get("broker")
        own = (broker.address or broker.listen) if broker is not None else ""
        if own in cluster.upstream:
            raise ValueError(f"upstream names this broker itself, {own}: it lists brokers of the set above")
        return cluster


def _fold_section(tree: dict[str, Any], section: str) -> dict[str, Any]:
    """Merge the environment's options of a section into the names as the file spells them; return the tree."""
    found = tree.get(section)
    if not isinstance(found, dict):
        return tree
    spelt = {env_name(name): name for name in found if name != env_name(name)}
    folded = {name: options for name, options in found.items() if name not in spelt}
    for alias, name in spelt.items():
        overrides = found.get(alias)
        if isinstance(overrides, dict) and isinstance(folded[name], dict):
            folded[name] |= overrides
        elif overrides is not None:
            folded[name] = overrides
    return tree | {section: folded}


def env_name(name: str) -> str:
    """Return a name in the spelling of the environment: lower case, without hyphens."""
    return name.lower().replace("-", "_")


def find_variable(path: Sequence[str]) -> str:
    """Return the environment variable that sets an option; empty = there is none."""
    wanted = PREFIX + "__".join(env_name(part).upper() for part in path)
    return next((name for name in os.environ if name.upper() == wanted), "")


def require_source(settings: Settings) -> str:
    """Return the source's URL. Raises ConfigError if there is none."""
    if url := settings.source.url.get_secret_value():
        return url
    _refuse_empty("source.url")
    raise ConfigError("no source: [source] url is not set", hint="set it in venus.toml or VENUS_SOURCE__URL")


def _refuse_empty(option: str) -> None:
    """Raise ConfigError if an empty variable overrides an option: the file is not to blame."""
    if variable := find_variable(option.split(".")):
        raise ConfigError(
            f"environment: {variable} is empty, and overrides {option} of the file",
            hint=f"unset {variable}, or set it to the URL",
        )


def require_target(settings: Settings, name: str) -> TargetSettings:
    """Return the target of that name. Raises ConfigError, which names the existing targets."""
    if target := settings.targets.get(name):
        if not target.url.get_secret_value():
            _refuse_empty(f"targets.{name}.url")
        return target
    if not settings.targets:
        raise ConfigError(f"no target named {name!r}: there is no [targets.NAME] section", hint=f"add [targets.{name}]")
    raise ConfigError(
        f"no target named {name!r}{suggest_nearest(name, settings.targets)}",
        hint="known: " + ", ".join(sorted(settings.targets)),
    )


_WANTED = {
    "tuple_type": 'should be a list of strings, like ["a", "b"]',
    "string_type": "should be a string, in quotes",
    "string_too_short": "should not be empty",
    "path_type": "should be a path, in quotes",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "should be an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "should be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "should be true or false"),
}
#: Options with a syntax of their own.
_FORMS = {"broker.further": 'should be a list of sets, like [["a:7400", "b:7400"], ["c:7400"]]'}


def build_error(complaints: list[str], *, hint: str = "") -> ConfigError:
    """Build one error for all complaints; its message is the first one, with the number of the others."""
    more = f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""
    error = ConfigError(f"{complaints[0]}{more}", hint=hint)
    error.complaints = tuple(complaints)
    return error


def explain_errors(error: ValidationError, file: Path | None, text: str) -> list[str]:
    """Return a line for each complaint."""
    # misspelt options first: an option that is missing because it is misspelt is no second mistake
    return [
        _explain_error(dict(found), file, text)
        for found in sorted(error.errors(include_url=False), key=lambda found: found["type"] != "extra_forbidden")
    ]


def _explain_error(found: Mapping[str, Any], file: Path | None, text: str) -> str:
    """Return a line for one complaint: its place in the file or environment, and the mistake."""
    path = [str(part) for part in found["loc"] if part != "[key]"]  # the name itself is wrong
    dotted = ".".join(path)
    if variable := find_variable(path):
        where = f"environment: {variable}"
    else:
        line = find_option_line(text, path)
        where = f"{file}:{line}: {dotted}" if line else f"{file}: {dotted}"
    return f"{where}: {_describe_mistake(found, path)}"


def _describe_mistake(found: Mapping[str, Any], path: list[str]) -> str:
    """Describe the mistake in one option. The text repeats the value only where it cannot be a secret."""
    kind, value = found["type"], found["input"]
    if kind == "extra_forbidden":
        known = options()
        if len(path) == 1:
            if nested := sorted({n.partition(f".{path[0]}")[0] for n in known if path[0] in n.split(".")[1:]}):
                return f"no such section (did you mean {' or '.join(f'{section}.{path[0]}' for section in nested)}?)"
            return "no such section" + suggest_nearest(path[0], {name.partition(".")[0] for name in known})
        section = "targets.NAME" if path[0] == "targets" else ".".join(path[:-1])
        there = {n.removeprefix(f"{section}.").partition(".")[0] for n in known if n.startswith(f"{section}.")}
        elsewhere = {n.rpartition(".")[2] for n in known if n.startswith(path[0])}
        return "no such option" + suggest_nearest(path[-1], there or elsewhere)
    if kind == "missing":
        return "must be set"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        if path[0] == "targets" and len(path) == 2:
            return "a target has a name: its options go into a section [targets.NAME]"
        return f"is a section, not a value: write [{'.'.join(path)}]"
    form = _FORMS.get(".".join(path)) if kind == "tuple_type" else None
    if isinstance(value, bool):
        value = str(value).lower()  # as the file has it
        return (
            f"{value} {form or _WANTED.get(kind) or found['msg'].removeprefix('Value error, ').removeprefix('Input ')}"
        )
    reason = form or _WANTED.get(kind) or found["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return reason if path[-1] == "url" else f"{value!r} {reason}" if isinstance(value, str | int | float) else reason


DEFAULT_FILE = Path("venus.toml")
#: Prefixes of variables that are no options: those of the test suite, and the scratch of `venus prove`.
RESERVED = ("VENUS_TEST_", "VENUS_PROVE_URL", "VENUS_ORACLE_URL")
#: Messages of the TOML parser, and their meaning.
_WORDS = (
    (r"Illegal character '\\n'", "the closing quote of this line is missing"),
    (r"Expected \"'\"|Unterminated string", "the quote that opens here is never closed"),
    (r"Cannot declare (\(.*\)) twice", "section [{}] begins a second time here: merge the two"),
    (r"Cannot overwrite a value", "this is already set further up: keep one of the two"),
    (r"Invalid value", "this is not a TOML value: quote texts, and write true or false"),
    (r"Expected '=' after a key in a key/value pair|Invalid statement", "write an option as NAME = VALUE"),
    (r"Expected ']' at the end of a table declaration", "write a section as [NAME]"),
    (r"Unescaped '.' in a string", "double each backslash, or put the text into single quotes"),
    (r"Expected newline or end of document after a statement", "put each option on a line of its own"),
)


def load(file: Path | None = None) -> Settings:
    """Read `file` (None = defaults only), apply the environment, and check every name and type. Raises ConfigError."""
    text = _read_file(file)
    tree = _parse_toml(file, text)
    complaints = _unknown_variables(os.environ)
    try:
        settings = Settings(**tree)
    except ValidationError as error:
        # pydantic, too, complains of a variable without an option, if the section exists
        named = [complaint.split(" matches ")[0] + ":" for complaint in complaints]
        others = [line for line in explain_errors(error, file, text) if not line.startswith(tuple(named))]
        raise build_error([*complaints, *others]) from None
    if complaints:
        raise build_error(complaints, hint="an option is named VENUS_SECTION__OPTION; `venus config` lists them")
    return settings


def _read_file(file: Path | None) -> str:
    """Return the text of the configuration file; empty without a file. Raises ConfigError."""
    if file is None:
        return ""
    try:
        return file.read_text(encoding="utf-8-sig")  # editors on Windows begin a file with a byte order mark
    except FileNotFoundError:
        hint = "`venus init SOURCE_URL TARGET_URL` writes one; or name another file with -c FILE"
        raise ConfigError(f"{file}: no such file", hint=hint) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        why = f"{file}:{line}: byte 0x{error.object[error.start]:02x} is not UTF-8, which TOML must be"
        raise ConfigError(why, hint="save the file as UTF-8") from None
    except PermissionError:
        user = getpass.getuser()
        raise ConfigError(
            f"{file}: user {user} may not read it", hint=f"let {user} read it, or run as its owner"
        ) from None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}", hint="name a file with -c FILE") from None


def _parse_toml(file: Path | None, text: str) -> dict[str, Any]:
    """Parse the text of the configuration file. Raises ConfigError, which names the line of a mistake."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", str(error), re.DOTALL)
        what, line = (found[1], int(found[2] or 0)) if found else (str(error), 0)
        raise ConfigError(
            f"{file}:{line or _unfinished_line(what, text)}: not TOML: {_translate_message(what)}"
        ) from None


def _unfinished_line(what: str, text: str) -> int:
    """Return the last line with a quote of the kind that is never closed; for other errors the last line."""
    lines = text.splitlines()
    quote = {'Expected "\'"': "'", "Unterminated string": '"'}.get(what, "")
    return max((number for number, line in enumerate(lines, 1) if quote in line), default=1)


def _translate_message(what: str) -> str:
    """Translate a message of Python's parser for a reader who knows the file and not the parser."""
    for pattern, words in _WORDS:
        if found := re.fullmatch(pattern, what, re.DOTALL):
            names = ".".join(re.findall(r"'([^']*)'", "".join(found.groups())))
            return words.format(names)
    return what


def _unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a complaint for each variable of VENUS that names no option."""
    known = {path.upper().replace(".", "__") for path in options()}
    named = [re.escape(name).replace("__NAME", "__.+") for name in known if "__NAME" in name]
    found = []
    for variable in sorted(environ):
        name = variable.upper().removeprefix(PREFIX)
        if not variable.upper().startswith(PREFIX) or variable.upper().startswith(RESERVED) or name in known:
            continue
        if any(re.fullmatch(pattern, name) for pattern in named):
            continue
        found.append(f"environment: {variable} matches no option{suggest_nearest(name, known, prefix=PREFIX)}")
    return found
