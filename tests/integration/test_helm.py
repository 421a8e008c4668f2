"""The Helm chart, rendered by Helm's own library and checked against Kubernetes' schemas; the Dockerfile, linted."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.processes import forked
from venus.config import load

pytest.importorskip("helm_python", reason="Helm's library has no wheel for this machine")
from helm_python.chart import Chart, lint
from helm_python.errors import HelmError

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
CHART = ROOT / "docker" / "helm"
EXAMPLE = yaml.safe_load((CHART / "example-values.yaml").read_text())
ALONE = {"brokers": {"replicas": 1}, "tls": {"insecure": True}}
VERSIONS = ("1.27", "1.34")

Document = dict[str, Any]


def render(values: Mapping[str, Any]) -> list[Document]:
    with Chart.load(CHART) as chart:
        files = chart.render(values=dict(values), name="shop", namespace="prod")
    texts = [text for name, text in files.items() if name.endswith(".yaml")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def documents_of_kind(documents: list[Document], kind: str) -> list[Document]:
    return [document for document in documents if document["kind"] == kind]


def pods(documents: list[Document]) -> list[Document]:
    return [d["spec"]["template"] for d in documents if d["kind"] in ("StatefulSet", "Deployment")]


def containers(pod: Document) -> list[Document]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [EXAMPLE, ALONE], ids=["example", "alone"])
def test_every_manifest_is_valid(values: Mapping[str, Any], version: str) -> None:
    documents = render(values)
    kinds = {document["kind"] for document in documents}
    assert kinds >= {"StatefulSet", "Deployment", "Service", "ConfigMap", "NetworkPolicy"}
    for document in documents:
        if document["apiVersion"].startswith("sparkoperator"):
            continue  # a resource of Spark's operator, for which Kubernetes itself has no schema
        kubernetes_validate.validate(document, version, strict=True)


def test_an_invalid_manifest_is_found() -> None:
    (stateful,) = documents_of_kind(render(EXAMPLE), "StatefulSet")
    stateful["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(stateful, VERSIONS[1], strict=True)


def test_helm_lint_finds_nothing() -> None:
    found = lint(CHART, values=EXAMPLE, strict=True)
    complaints = [m for m in found.get("messages", ()) if "icon is recommended" not in str(m)]
    assert complaints == []


def test_three_brokers_are_spread_and_a_majority_is_kept() -> None:
    documents = render(EXAMPLE)
    (stateful,) = documents_of_kind(documents, "StatefulSet")
    (budget,) = documents_of_kind(documents, "PodDisruptionBudget")
    pod = stateful["spec"]["template"]

    assert stateful["spec"]["replicas"] == 3
    (rule,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    labels = pod["metadata"]["labels"]
    for selector in (rule["labelSelector"], stateful["spec"]["selector"], budget["spec"]["selector"]):
        assert selector["matchLabels"].items() <= labels.items()
    assert budget["spec"]["minAvailable"] == 2
    probes = [pod["spec"]["containers"][0][f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert {(probe["path"], probe["scheme"]) for probe in probes} == {("/health", "HTTPS")}


def test_every_selector_matches_one_kind_of_pod() -> None:
    documents = render(EXAMPLE)
    chosen = [d["spec"]["selector"]["matchLabels"] for d in documents if d["kind"] in ("StatefulSet", "Deployment")]
    for selector in chosen:
        assert sum(selector.items() <= pod["metadata"]["labels"].items() for pod in pods(documents)) == 1
    (service,) = documents_of_kind(documents, "Service")
    assert sum(service["spec"]["selector"].items() <= pod["metadata"]["labels"].items() for pod in pods(documents)) == 1


def test_secrets_appear_by_reference_only() -> None:
    text = json.dumps(render(EXAMPLE))
    assert documents_of_kind(render(EXAMPLE), "Secret") == []
    assert not re.search(r"(postgresql|oracle|mysql)[+a-z]*://", text)
    for pod in pods(render(EXAMPLE)):
        for container in containers(pod):
            for variable in container.get("env", ()):
                if variable["name"].endswith("__URL"):
                    assert "secretKeyRef" in variable["valueFrom"]


def test_every_container_has_minimal_rights() -> None:
    for pod in pods(render(EXAMPLE)):
        assert pod["spec"]["automountServiceAccountToken"] is False
        for container in containers(pod):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"]
            assert security["runAsNonRoot"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "limits" in container["resources"]


@pytest.mark.parametrize("values", [EXAMPLE, ALONE], ids=["example", "alone"])
def test_venus_accepts_the_configuration(
    values: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = render(values)
    (config,) = documents_of_kind(documents, "ConfigMap")
    file = tmp_path / "venus.toml"
    file.write_text(config["data"]["venus.toml"])
    names = set()
    for pod in pods(documents):
        (main,) = pod["spec"]["containers"]
        with monkeypatch.context() as patched:
            for variable in main["env"]:
                if variable["name"].startswith("VENUS_"):
                    patched.setenv(variable["name"], str(variable.get("value", "sqlite:///x")).replace("$(POD)", "b0"))
            settings = load(file if main["name"] == "broker" else None)
        names |= set(settings.targets)
        if main["name"] == "broker":
            assert settings.broker.address == "b0.shop-brokers.prod.svc:7400"
            assert set(settings.alarms.to) == set(values.get("alarms", {}).get("to", ()))
        else:
            assert len(settings.broker.addresses) == values["brokers"].get("replicas", 3)
    assert names == {target["name"] for target in values.get("targets", [{"name": "main"}])}


def test_every_named_file_is_mounted() -> None:
    for pod in pods(render(EXAMPLE)):
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]} | {"data"}
        for container in containers(pod):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_the_commands_of_the_chart_exist() -> None:
    for pod in pods(render(EXAMPLE)):
        arguments = pod["spec"]["containers"][0]["args"]
        bare = [word for word in arguments if word not in ("-c", "/etc/venus/venus.toml")]
        done = forked.run(
            [sys.executable, "-m", "venus.cli", *bare, "--help"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert all(word in done.stdout for word in bare if word.startswith("--") and word not in ("--log-format",))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "brokers.replicas is 3: name an etcd"),
        ({"brokers": {"replicas": 1}}, "tls.secretName is empty: name a secret with tls.crt"),
        (EXAMPLE | {"capture": {"tlsSecretName": ""}}, "capture.tlsSecretName is empty"),
        (EXAMPLE | {"targets": [{"name": "eu", "secretName": "s"}]}, "targets: eu has no tlsSecretName"),
    ],
)
def test_impossible_values_are_refused_with_the_remedy(values: Mapping[str, Any], says: str) -> None:
    with pytest.raises(HelmError, match=re.escape(says)):
        render(values)


def test_the_network_policy_admits_only_needed_connections() -> None:
    broker, adapters = documents_of_kind(render(EXAMPLE), "NetworkPolicy")
    ports = {frozenset(port["port"] for port in rule["ports"]) for rule in broker["spec"]["ingress"]}
    assert ports == {frozenset({"grpc", "http"}), frozenset({"http"})}
    assert "ingress" not in adapters["spec"]


def test_the_spark_application_is_complete() -> None:
    (application,) = documents_of_kind(render(EXAMPLE), "SparkApplication")
    spec = application["spec"]
    assert {"type", "mode", "image", "mainApplicationFile", "sparkVersion", "driver", "executor"} <= spec.keys()
    names = {variable["name"] for variable in spec["driver"]["env"]}
    assert names == {variable["name"] for variable in spec["executor"]["env"]}
    assert "VENUS_TARGETS__MAIN__URL" in names


def test_the_dockerfile_has_no_lint_findings() -> None:
    tool = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if tool is None:
        pytest.skip("no hadolint for this machine")
    done = subprocess.run(
        [tool, "--failure-threshold", "info", ROOT / "docker" / "Dockerfile"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
