"""The pages of docs/reference that are generated from the code when the site is built (`make docs`).

MkDocs loads this module as a hook (mkdocs.yml) and calls its `on_...` functions. Tests get the same pages from
`pages()`.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.core import CounterMetricFamily, Metric
from typer.core import TyperGroup
from typer.main import get_command

from tests.support.oracle.scripts import types_page
from venus import errors
from venus.adapters.targets.mysql import types as mysql_types
from venus.adapters.targets.oracle import types as oracle_types
from venus.adapters.targets.sqlite import types as sqlite_types
from venus.alarms.notifier import DeliveryState
from venus.broker.service.metrics import StatusCollector
from venus.broker.service.traffic_status import GAUGES
from venus.cli.app import app, run
from venus.text.alarm_rules import RULES, UNKNOWN
from venus.wire import broker_pb2

ROOT = Path(__file__).parents[2]
PROTOS = ROOT / "protos" / "venus" / "wire"
HELP_COLUMNS = "100"
#: Weight of a page's words in a search, by folder.
SEARCH_BOOST = {"troubleshooting": 20, "how-to": 2, "reference": 0.5, "explanation": 0.5}


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to those of the folder."""
    from mkdocs.structure.files import File  # only MkDocs itself calls this

    for name, text in pages().items():
        files.append(File.generated(config, f"reference/{name}", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rank pages of troubleshooting first in a search, because users type the words of a message."""
    folder = page.file.src_uri.partition("/")[0]
    page.meta["search"] = {"boost": SEARCH_BOOST.get(folder, 1)}
    return markdown


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Refuse a page that would load anything from another server."""
    if found := re.search(
        r"<(?:script|img|iframe)[^>]+src=\"?https?://[^\s\">]+|<link[^>]+href=\"?https?://[^>]+", output
    ):
        raise ValueError(f"{page.file.src_uri} loads something from elsewhere: {found[0]}")
    return output


@cache
def pages() -> dict[str, str]:
    """Return every generated page by its file name in docs/reference."""
    return {
        "commands.md": commands_page(),
        "options.md": options_page((ROOT / "venus.example.toml").read_text()),
        "metrics.md": metrics_page(),
        "alarms.md": alarms_page(),
        "alerts.md": alerts_page((ROOT / "docs" / "monitoring" / "prometheus-rules.yaml").read_text()),
        "spark-options.md": spark_options_page((ROOT / "spark" / "datasource_options.py").read_text()),
        "exit-codes.md": exit_codes_page(),
        "oracle-types.md": types_page(),
        "mariadb-target-types.md": target_types_page("MariaDB or MySQL", mysql_types.RULES.values()),
        "oracle-target-types.md": target_types_page("Oracle", oracle_types.RULES.values()),
        "sqlite-target-types.md": target_types_page("SQLite", sqlite_types.RULES.values()),
        "oracle-evidence.md": evidence_page((ROOT / "tests" / "oracle_evidence.toml").read_text(), proofs()),
        "scenarios.md": scenarios_page(promises()["scenario"]),
        "threats.md": threats_page(promises()["threat"]),
        "python.md": python_page(),
        "rpcs.md": rpcs_page((PROTOS / f"{name}.proto").read_text() for name in ("broker", "mirror", "replica")),
    }


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    names = list(heads)
    lines = [names, ["---"] * len(names), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def target_types_page(product: str, rules: Iterable[Any]) -> str:
    """Return the page of the types of one kind of target."""
    article = "an" if product == "Oracle" else "a"
    return f"# Types at {article} {product} target\n\n" + table(
        ("value", "column", ""), ((rule.source, rule.declared, rule.note) for rule in rules)
    )


def command_names() -> Iterator[tuple[str, ...]]:
    """Yield the words of every visible command, each group before its commands."""

    def walk(command: Any, context: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        for name in command.list_commands(context) if isinstance(command, TyperGroup) else ():
            if not command.commands[name].hidden:
                yield from walk(command.commands[name], context, (*words, name))

    program: Any = get_command(app)
    yield from walk(program, program.context_class(program), ())


def help_text(words: Iterable[str]) -> str:
    """Return what `venus WORDS --help` prints."""
    shown = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = HELP_COLUMNS
    try:
        with contextlib.redirect_stdout(shown):
            run([*words, "--help"])
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return shown.getvalue().strip("\n")


def commands_page() -> str:
    """Return the page of all commands with their help."""
    parts = ["# Commands\n\nEvery command, as `venus COMMAND --help` prints it.\n"]
    for words in command_names():
        parts.append(f"## venus {' '.join(words)}".rstrip() + f"\n\n```text\n{help_text(words)}\n```\n")
    return "\n".join(parts)


def options_page(example: str) -> str:
    """Return the page of all options: comments, names and defaults of the example file."""
    sections: dict[str, tuple[str, list[tuple[str, ...]]]] = {}
    name, comment, head = "", [], ""
    for line in example.splitlines():
        if line.startswith("#"):
            comment.append(line.lstrip("# "))
        elif section := re.match(r"\[([^\]]+)\]", line):
            name = section[1]
            sections[name], comment = (_escape(" ".join(comment)), []), []
        elif option := re.match(r"([A-Za-z_]+|\"[^\"]+\") = (.*)", line):
            sections[name][1].append((f"`{option[1]}`", f"`{option[2]}`", _escape(" ".join(comment))))
            comment = []
        elif comment and not sections:
            head, comment = f"{head}{_escape(' '.join(comment))}\n\n", []
    parts = [
        "# Options\n\nEvery option of `venus.toml`, with its default. `venus config --example` prints the same as a "
        f"file to start from, `venus config` what is in force.\n\n{head}"
    ]
    for name, (said, rows) in sections.items():
        parts.append(f"## [{name}]\n\n{said}\n\n" + table(("option", "default", "meaning"), rows))
    return "\n".join(parts)


def _escape(text: str) -> str:
    """Escape Markdown markup outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([*_<\[\]{}])", r"\\\1", p) for p in parts)


def full_status() -> broker_pb2.BrokerStatus:
    """Return a status with every part once, so that every metric has a sample."""
    status = broker_pb2.BrokerStatus()
    business = status.businesses.add(business="main")
    business.mirror.SetInParent()
    business.replication.replicas.add(broker="b", behind=0)
    business.source.SetInParent()
    consumer = business.consumers.add(group="main/eu", window_bytes=1, unaccounted_rows=0)
    consumer.reported.SetInParent()
    business.tables.add(namespace="shop", name="orders")
    status.installations.add(business="main")
    status.traffic.brakes.add(brake="rows", business="main")
    status.traffic.lanes.add(lane=3, name="full data")
    status.traffic.facts.add(fact="disk")
    for *_, gauge in GAUGES:
        status.traffic.gauges.add(name=gauge)
    from venus.broker.status.broker_status import COUNTERS

    business.counters.update(dict.fromkeys(COUNTERS, 0))
    return status


def metric_families() -> list[Metric]:
    """Return every metric family of a broker, by name."""
    found = StatusCollector(
        full_status(),
        1,
        {},
        [],
        [DeliveryState(name="chat", way="", sent=0, failed=0, given_up=0, waiting=0, problem="")],
    ).collect()
    return sorted(found, key=lambda family: family.name)


def metrics_page() -> str:
    """Return the page of all metrics."""
    rows = []
    for family in metric_families():
        name = family.name + ("_total" if isinstance(family, CounterMetricFamily) else "")
        labels = ", ".join(f"`{label}`" for label in family._labelnames)  # type: ignore[attr-defined]
        rows.append((f"`{name}`", family.type, labels, _escape(family.documentation)))
    return (
        "# Metrics\n\nEvery metric of a broker at `http://HOST:7401/metrics`, for Prometheus. Those that need an "
        "alert: [Monitor](../how-to/monitor.md).\n\n" + table(("metric", "type", "labels", "meaning"), rows)
    )


def alarms_page() -> str:
    """Return the page of all kinds of alarms."""
    rows = [
        (
            f"`{rule.name}`",
            rule.hop or "source or target",
            _escape(rule.description),
            f"{rule.min_duration_s:.0f} s" if rule.min_duration_s else "at once",
        )
        for rule in (*RULES, UNKNOWN)
    ]
    return (
        "# Alarms\n\nEvery kind of alarm. `[alarms.rules.KIND]` changes when it is sent, `rules` of a recipient "
        "chooses kinds ([Send alarms](../how-to/alarms.md)).\n\n" + table(("kind", "hop", "when", "sent after"), rows)
    )


def alerts_page(rules: str) -> str:
    """Return the page of the alert rules for Prometheus."""
    (group,) = yaml.safe_load(rules)["groups"]
    rows = [
        (
            rule["alert"],
            f"`{' '.join(rule['expr'].split())}`",
            rule.get("for", ""),
            _escape(rule["annotations"]["description"]),
        )
        for rule in group["rules"]
    ]
    return (
        "# Alerts\n\nThe rules of [prometheus-rules.yaml](../monitoring/prometheus-rules.yaml), with the thresholds of "
        "`venus status`.\n\n" + table(("alert", "when", "for", "what to do"), rows)
    )


def spark_options_page(code: str) -> str:
    """Return the page of the options of `format("venus")`: the fields of its class, with the comments above them."""
    body = code.partition("class DataSourceOptions:")[2].partition("\n    @")[0].partition("\n    def ")[0]
    rows, comment = [], ""
    for line in body.splitlines():
        if line.startswith("    #"):
            comment += line.strip().lstrip("#:") + " "
        elif field := re.match(r"    (\w+): .+? = (.+)$", line):
            rows.append(
                (f"`{field[1]}`", "" if field[2] in ('""', "()") else f"`{field[2]}`", _escape(comment.strip()))
            )
            comment = ""
    return (
        '# Options of format("venus")\n\nWhat they are for: [your own Spark jobs](../how-to/spark-jobs.md).\n\n'
        + table(("option", "default", "meaning"), rows)
    )


def exit_codes_page() -> str:
    """Return the page of the exit codes with their errors."""
    meanings = re.findall(r"(\d+) ([^,.]+)", (errors.__doc__ or "").partition("Exit codes: ")[2].replace("\n", " "))
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.VenusError)]
    rows = [("`0`", "the command has done what it was asked for", "")]
    for code, meaning in sorted(meanings, key=lambda pair: int(pair[0])):
        causes = [(c.__doc__ or "").strip().splitlines()[0] for c in classes if c.exit_code == int(code)]
        rows.append((f"`{code}`", meaning, _escape(" ".join(causes))))
    rows += [("`130`", "interrupted by Ctrl-C", ""), ("`141`", "the reader of the output has gone", "")]
    return "# Exit codes\n\n" + table(("code", "meaning", "errors that end with it"), rows)


def rpcs_page(texts: Iterable[str]) -> str:
    """Return the page of all services and calls of the protocol."""
    parts = ["# RPCs\n\nThe gRPC services of a broker. The messages: the `.proto` files in `protos/venus/wire`.\n"]
    for text in texts:
        for name, body in re.findall(r"^service (\w+) \{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE):
            rows, comment = [], []
            for line in body.splitlines():
                line = line.strip()
                if line.startswith("//"):
                    comment.append(line.lstrip("/ "))
                elif call := re.match(r"rpc (\w+)\((.+?)\) returns \((.+?)\)", line):
                    rows.append((f"`{call[1]}`", f"`{call[2]}`", f"`{call[3]}`", _escape(" ".join(comment))))
                    comment = []
            parts.append(f"## {name}\n\n" + table(("call", "request", "reply", "what it does"), rows))
    return "\n".join(parts)


def python_page() -> str:
    """Return the page of the modules for programs, from their docstrings."""
    parts = ["# Python\n\nWhat programs may import; how to use it: [Use VENUS from Python](../how-to/python.md).\n"]
    for name in ("venus.client", "venus.pipeline"):
        module = importlib.import_module(name)
        parts.append(f"## {name}\n")
        parts += [_describe_object(public, getattr(module, public)) for public in sorted(module.__all__)]
    return "\n".join(parts)


def _describe_object(name: str, found: Any) -> str:
    """Return the section of a class or a function: its signature, its docstring, and its public members."""
    parts = [f"### {name}\n\n```python\n{_signature(name, found)}\n```\n\n{_escape(inspect.getdoc(found) or '')}\n"]
    for member, value in vars(found).items() if inspect.isclass(found) else ():
        value = value.__func__ if isinstance(value, classmethod) else value
        if not member.startswith("_") and inspect.isfunction(value):
            parts.append(f"```python\n{_signature(member, value)}\n```\n\n{_escape(inspect.getdoc(value) or '')}\n")
        elif not member.startswith("_") and isinstance(value, property):
            parts.append(f"`{member}`: {_escape(inspect.getdoc(value) or '')}\n")
    return "\n".join(parts)


def _signature(name: str, found: Any) -> str:
    """Return a signature as code. For a class that only functions return, it is the name alone."""
    if inspect.isclass(found) and not (is_dataclass(found) or name == "Pipeline"):
        return f"class {name}"
    parts, signature = [], inspect.signature(found)
    for one in signature.parameters.values():
        shown = "" if one.default is one.empty else f" = {'...' if callable(one.default) else repr(one.default)}"
        if one.name not in ("self", "cls"):
            parts += ["*"] if one.kind is one.KEYWORD_ONLY and "*" not in parts else []
            parts.append(f"{one.name}: {one.annotation}{shown}")
    kind = "async def " if inspect.iscoroutinefunction(found) else "class " if inspect.isclass(found) else "def "
    end = "" if inspect.isclass(found) else f" -> {signature.return_annotation}"
    return f"{kind}{name}({', '.join(parts)}){end}"


def promises() -> dict[str, list[dict[str, str]]]:
    """Return the scenarios and threats of tests/promises.toml."""
    return tomllib.loads((ROOT / "tests" / "promises.toml").read_text())


def scenarios_page(scenarios: Iterable[dict[str, str]]) -> str:
    """Return the page of the scenarios, with the tests that prove each."""
    rows = [(each["number"], each["says"], each["proved_by"].replace("\n", " ")) for each in scenarios]
    return (
        "# Scenarios\n\nWhat a DBA tries in the first hour, and the test that proves it; `pytest FILE -k NAME` runs it "
        "alone. Sources are SQLite, an embedded PostgreSQL, MariaDB, and the Oracle dialect on MariaDB in Oracle mode "
        "(`tests/conformance` runs on all four). Where less is shown than one could wish, the table says so.\n\n"
        + table(("no.", "scenario", "proved by"), rows)
    )


def threats_page(threats: Iterable[dict[str, str]]) -> str:
    """Return the page of the threats, with the tests of each answer."""
    rows = [(each["threat"], each["happens"], each["proved_by"].replace("\n", " ")) for each in threats]
    return "# Threats and their tests\n\n" + table(("threat", "what happens", "test"), rows)


def proofs() -> list[dict[str, Any]]:
    """Return the received reports of `venus prove`, unchanged."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted((ROOT / "tests" / "proofs").glob("*.json"))]


def evidence_page(text: str, reports: Iterable[dict[str, Any]]) -> str:
    """Return the page of the evidence for the Oracle source, by behaviour, and the servers that ran `venus prove`."""
    read = tomllib.loads(text)
    rows = [(each["what"], each["evidence"]) for each in read["behaviour"]]
    evidence = table(("behaviour", "evidence"), rows)
    seen = [
        (report["dialect"], report["facts"]["version"], report["venus"], report["taken_at"][:10], report["verdict"])
        for report in reports
    ]
    servers = table(("dialect", "version", "VENUS", "date", "`venus prove`"), seen)
    return f"# Evidence for the Oracle source\n\n{read['head']}\n\n{evidence}\n{read['tail']}\n\n{servers}"
