"""docs/monitoring against a real broker: every metric, label and expression in it exists and can be parsed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import promql_parser as promql
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families

from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BUSINESS, commit, settings
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.broker.service.process import start_in_thread
from venus.config import AlarmsSettings, ClusterSettings, LimitsSettings
from venus.config.sections import HealthSettings
from venus.errors import VenusError
from venus.rpc.conditions import AdapterCondition, TableCondition
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber

pytestmark = pytest.mark.integration

FOLDER = Path(__file__).parents[3] / "docs" / "monitoring"
RULES = yaml.safe_load((FOLDER / "prometheus-rules.yaml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
#: Labels that Prometheus adds to every sample, and its own metric.
SCRAPED = {"instance", "job"}
#: Grafana's variables, replaced by values that Prometheus can parse.
VARIABLES = {"$__rate_interval": "1m", "$business": ".+"}

Metrics = dict[str, set[str]]


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory, etcd_server: EtcdCluster) -> Iterator[Metrics]:
    """Return all metrics of a clustered broker after every kind of event, with their labels."""
    cluster = ClusterSettings(
        name=etcd_server.new_name(), broker_id="b1", etcd=tuple(etcd_server.addresses), replicas=1
    )
    alarms = AlarmsSettings.model_validate({"check_s": 0.1, "to": {"me": {"command": "true"}}})
    busy: dict[str, Any] = {"limits": LimitsSettings(rows_per_s=3), "health": HealthSettings(clients_max=1)}
    chosen = settings(tmp_path_factory.mktemp("metrics") / "data", **busy).model_copy(
        update={"cluster": cluster, "alarms": alarms}
    )
    broker = start_in_thread(chosen, on_fatal=lambda error: None)
    try:
        with Producer(broker.address, BUSINESS, "p", window_bytes_max=1 << 20) as producer:
            eventually(lambda: _is_connected(producer))
            commit(producer, [half(n, rows=3) for n in range(1, 4)])
            with Subscriber(broker.address, BUSINESS, "main/eu", credit_bytes=1 << 20) as reader:
                reader.open(0, 0)
                reader.acknowledge(3, unaccounted=0)
                reader.report(AdapterCondition.of([TableCondition(table_id=1, name="shop.items", state="HALTED")]))
                found: Metrics = {}
                eventually(lambda: _has_scraped(broker.http_address, found))
                yield found
    finally:
        broker.stop()


def _is_connected(producer: Producer) -> bool:
    try:
        producer.connect(0, 0)
    except VenusError:
        return False
    return True


def _has_scraped(address: str, found: Metrics) -> bool:
    with urlopen(f"http://{address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return {
        "venus_brake_on",
        "venus_sub_healthy_fact",
        "venus_unaccounted_rows",
        "venus_alarm_since_seconds",
        "venus_term",
    } <= found.keys()


def parse(expression: str) -> Any:
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    return promql.parse(expression)


def selectors(node: Any) -> Iterator[Any]:
    """Yield every vector selector of a parsed expression."""
    if isinstance(node, promql.VectorSelector):
        yield node
    for name in ("lhs", "rhs", "expr", "param", "vector_selector"):
        child = getattr(node, name, None)
        if child is not None and not isinstance(child, str):
            yield from selectors(child)
    for child in getattr(node, "args", ()):
        yield from selectors(child)


def find_groupings(node: Any) -> Iterator[tuple[Any, set[str]]]:
    """Yield every aggregation with the labels that it keeps."""
    if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
        yield node, set(node.modifier.labels)
    for name in ("lhs", "rhs", "expr"):
        child = getattr(node, name, None)
        if child is not None:
            yield from find_groupings(child)


def expressions() -> list[tuple[str, str]]:
    found = [(rule["alert"], rule["expr"]) for rule in RULES]
    return found + [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_every_metric_and_label_exists(where: str, expression: str, metrics: Metrics) -> None:
    tree = parse(expression)
    named = list(selectors(tree))
    assert named
    for selector in named:
        if selector.name == "up":
            continue
        assert selector.name in metrics, f"{where}: a broker has no {selector.name}"
        wanted = {matcher.name for matcher in selector.matchers.matchers}
        assert wanted <= metrics[selector.name] | SCRAPED, f"{where}: {selector.name} has no such label"
    for node, labels in find_groupings(tree):
        for selector in selectors(node):
            assert labels <= metrics[selector.name] | SCRAPED, f"{where}: {selector.name} cannot be grouped by these"


def test_a_misspelt_metric_is_found(metrics: Metrics) -> None:
    (selector,) = selectors(parse("rate(venus_commited_rows_total[5m]) > 0"))
    assert selector.name not in metrics


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_has_a_description_and_a_remedy(rule: dict[str, Any], metrics: Metrics) -> None:
    text = rule["annotations"]["summary"] + rule["annotations"]["description"]
    used = set(re.findall(r"\$labels\.(\w+)", text))
    known = set().union(*(metrics.get(s.name, set()) for s in selectors(parse(rule["expr"])))) | SCRAPED

    assert used <= known
    assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_rules_fire_in_promtool(tmp_path: Path) -> None:
    """Prometheus' own tool checks the syntax of the rules, and that three alarms fire at the right time."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("no promtool here (Debian's package prometheus has it); the expressions were parsed above")
    done = subprocess.run([tool, "check", "rules", FOLDER / "prometheus-rules.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    series = {
        'venus_consumer_backlog_age_seconds{business="main",group="main/eu",instance="b1"}': "0 30 90 120 150 180",
        'venus_tables_not_following{business="main",place="main/eu",state="HALTED",instance="b1"}': "0 0 1 1 1 0",
        'up{job="venus",instance="b2"}': "1 1 0 0 0 0",
    }
    labels = {"business": "main", "instance": "b1"}
    expected = [
        ("5m", "VenusTargetLate", {**labels, "group": "main/eu", "severity": "warning"}),
        ("4m", "VenusTableHalted", {**labels, "place": "main/eu", "state": "HALTED", "severity": "critical"}),
        ("4m", "VenusBrokerDown", {"job": "venus", "instance": "b2", "severity": "critical"}),
        ("1m", "VenusTargetLate", None),
    ]
    document = {
        "rule_files": [str(FOLDER / "prometheus-rules.yaml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": [
                    {"eval_time": at, "alertname": name, "exp_alerts": [{"exp_labels": found}] if found else []}
                    for at, name, found in expected
                ],
            }
        ],
    }
    for test in document["tests"]:
        for case in test["alert_rule_test"]:  # type: ignore[index]
            for alert in case["exp_alerts"]:
                rule = next(rule for rule in RULES if rule["alert"] == case["alertname"])
                alert["exp_annotations"] = _annotations(rule, alert["exp_labels"], case["alertname"])
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(document))
    done = subprocess.run([tool, "test", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _annotations(rule: dict[str, Any], labels: dict[str, str], name: str) -> dict[str, str]:
    values = {"VenusTargetLate": ("180", "3m 0s"), "VenusTableHalted": ("1", ""), "VenusBrokerDown": ("0", "")}
    plain, human = values[name]
    found = {}
    for key, text in rule["annotations"].items():
        for label, value in labels.items():
            text = text.replace(f"{{{{ $labels.{label} }}}}", value)
        found[key] = text.replace("{{ $value | humanizeDuration }}", human).replace("{{ $value }}", plain)
    return found


def test_grafanas_models_can_read_the_dashboard() -> None:
    """The test uses Grafana's own models: fields that these do not know would be lost on the way back."""
    register_default_plugins()
    back = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(DASHBOARD)))

    assert [panel["title"] for panel in back["panels"]] == [panel["title"] for panel in DASHBOARD["panels"]]
    for before, after in zip(DASHBOARD["panels"], back["panels"], strict=True):
        assert before.keys() - after.keys() == set(), before["title"]
        for name in ("type", "gridPos"):
            assert {k: v for k, v in before.items() if k == name} == {k: v for k, v in after.items() if k == name}
    assert [v["name"] for v in back["templating"]["list"]] == ["datasource", "business"]


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            assert cell not in taken, f"{panel['title']} covers {taken.get(cell)}"
            taken[cell] = panel["title"]
