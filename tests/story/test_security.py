"""A security review of a pipeline with TLS: planted secrets appear nowhere, and every user has only one role."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from tests.support.brokers.certificates import Answer, get
from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.pipeline import Pipeline
from venus.cli.demo.servers import is_listening
from venus.rpc.address import ClientCredentials

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

#: Each secret as it is, and as it is encoded in a URL.
SOURCE_PASSWORD, SOURCE_QUOTED = "Plan7ed/Source@Secret", "Plan7ed%2FSource%40Secret"
TARGET_PASSWORD, TARGET_QUOTED = "Plan7ed Target:Secret", "Plan7ed%20Target%3ASecret"
SPARK_SECRET = "Plan7edSparkSecret"
SECURITY = """
[security]
certificate = "{certs}/{name}.crt"
key = "{certs}/{name}.key"
ca = "{certs}/ca.crt"
"""
SPARK = """
[spark.conf]
"spark.driver.memory" = "512m"
"spark.eventLog.enabled" = true
"spark.eventLog.compress" = false
"spark.eventLog.dir" = "{events}"
"spark.hadoop.fs.s3a.secret.key" = "{secret}"
"""
ROWS = 500


class ProcessList:
    """Repeatedly searches the arguments of every process for secrets."""

    def __init__(self, secrets: list[bytes]) -> None:
        self._secrets = secrets
        self.found: list[str] = []
        self.looks = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(0.05):  # every command lives longer than this
            self.looks += 1
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    arguments = path.read_bytes()
                except OSError:
                    continue
                if any(secret in arguments for secret in self._secrets):
                    self.found.append(arguments.decode(errors="replace"))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


class SecuredPipeline(Pipeline):
    """A pipeline with TLS, whose secrets are in no file of its folder."""

    secrets: tuple[str, ...] = ()
    token: str = ""

    def page(self, path: str, name: str = "ann") -> Answer:
        certs = self.folder / "certs"
        proof = ClientCredentials(
            ca=str(certs / "ca.crt"), certificate=str(certs / f"{name}.crt"), key=str(certs / f"{name}.key")
        )
        return get(f"127.0.0.1:{self.ports[1]}", path, proof)

    def config_of(self, name: str) -> tuple[str, str]:
        """Write a configuration for a person or process; return the options that select it."""
        text = (self.folder / "base.toml").read_text() + SECURITY.format(certs=self.folder / "certs", name=name)
        (self.folder / f"{name}.toml").write_text(text)
        return "-c", f"{name}.toml"

    def where_secrets_are(self) -> list[str]:
        """Return every file of the folder that contains one of the secrets."""
        return [
            f"{path.relative_to(self.folder)}: {secret}"
            for path in self.folder.rglob("*")
            if path.is_file() and path.suffix != ".toml"  # the user has written one secret into these files
            for content in [path.read_bytes()]
            for secret in self.secrets
            if secret.encode() in content
        ]


@pytest.fixture
def pipeline(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, postgres_server: Server
) -> Iterator[SecuredPipeline]:
    vault = tmp_path_factory.mktemp("vault")
    (vault / "source").write_text(SOURCE_PASSWORD + "\n")
    (vault / "target").write_text(TARGET_PASSWORD + "\n")
    (vault / "target").chmod(0o600)
    urls = [postgres_server.create_database() for _ in range(3)]
    made = SecuredPipeline(
        folder=tmp_path,
        source=urls[0],
        targets={"main": urls[1], "second": urls[2]},
        source_options=f'password_command = "cat {vault}/source"',
        target_options=f'password_file = "{vault}/target"',
    )
    made.secrets = (SOURCE_PASSWORD, SOURCE_QUOTED, TARGET_PASSWORD, TARGET_QUOTED, SPARK_SECRET)
    made.configure()
    (tmp_path / "events").mkdir()
    base = (tmp_path / "venus.toml").read_text() + SPARK.format(events=tmp_path / "events", secret=SPARK_SECRET)
    (tmp_path / "base.toml").write_text(base)
    made.venus("certs", "init", "certs")
    made.venus("certs", "issue", "broker", "-d", "certs", "--host", "127.0.0.1")
    made.venus("certs", "issue", "sync", "-d", "certs", "--role", "producer(main)", "--role", "consumer(*, main)")
    made.venus("certs", "issue", "ann", "-d", "certs", "--role", "operator")
    (tmp_path / "venus.toml").write_text(base + SECURITY.format(certs=tmp_path / "certs", name="sync"))
    made.start("broker", "broker", *made.config_of("broker"))
    try:
        made.until(lambda: is_listening(made.ports[0]), "the broker")
        yield made
    finally:
        made.close()
        for url in urls:
            postgres_server.drop_database(url)


def write(url: str, statement: str) -> None:
    connection = psycopg2.connect(libpq(url))
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
    finally:
        connection.close()


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=[pytest.mark.slow, pytest.mark.spark])])
def test_planted_secrets_appear_nowhere(pipeline: SecuredPipeline, engine: str) -> None:
    """tests/story/test_spark.py tests Spark's own event log."""
    pipeline.new_interpreters = engine == "spark"
    write(pipeline.source, "CREATE TABLE items (id int PRIMARY KEY, label text)")
    write(pipeline.source, f"INSERT INTO items SELECT n, 'label ' || n FROM generate_series(1, {ROWS}) n")
    processes = ProcessList([secret.encode() for secret in pipeline.secrets])
    try:
        run_everything(pipeline, engine)
        run_failures(pipeline)
    finally:
        processes.close()

    assert processes.looks > 50
    assert processes.found == []
    pages = "".join(pipeline.page(path).text for path in ("/", "/status.json", "/metrics", "/health", "/alarms"))
    assert "venus_next_offset" in pages
    assert not [secret for secret in pipeline.secrets if secret in pages]
    for name, least in (
        ("data", 5),
        ("events", int(engine == "spark")),
        ("state", 1),
        ("report.html", 1),
        ("said.log", 1),
    ):
        place = pipeline.folder / name
        files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
        assert len(files) >= least, f"nothing of {name} was looked through"
    assert pipeline.where_secrets_are() == []


def run_everything(pipeline: SecuredPipeline, engine: str) -> None:
    """Run every command that a user runs."""
    pipeline.venus("check", code=(0, 1))
    pipeline.venus("install-triggers")
    pipeline.venus("config")
    pipeline.venus("-v", "migrate", "--target", "main", "--engine", "local")
    pipeline.venus("-v", "migrate", "--target", "second", "--engine", engine)
    pipeline.start("sync", "-v", "sync")
    write(pipeline.source, "UPDATE items SET label = 'new' WHERE id = 1")
    pipeline.until(lambda: pipeline.venus("status", code=(0, 1)).code == 0, "a healthy status")
    pipeline.venus("verify", "--target", "main", "--html", "report.html")
    pipeline.venus("cutover", "--target", "main", "--rehearse", code=(0, 1, 3))
    pipeline.venus("pause", "--target", "main")
    pipeline.venus("resume", "--target", "main")
    pipeline.venus("forget", "--target", "second", "--yes", *pipeline.config_of("ann"), code=3)  # the loop is connected


def run_failures(pipeline: SecuredPipeline) -> None:
    """Cause every failure whose message quotes a URL."""
    nowhere = {"VENUS_SOURCE__URL": "postgresql://postgres@127.0.0.1:1/gone"}
    pipeline.venus("check", code=75, environ=nowhere)
    pipeline.venus("-v", "install-triggers", code=75, environ=nowhere)
    twice = {"VENUS_TARGETS__MAIN__URL": f"postgresql://postgres:{TARGET_QUOTED}@127.0.0.1:1/gone"}
    ended = pipeline.venus("migrate", "--target", "main", code=2, environ=twice)
    assert "targets.main.url has a password, and password_file is set" in ended.err
    broken = {"VENUS_TARGETS__MAIN__URL": f"postgresql://postgres:{TARGET_QUOTED}@[::1/gone?sslmode=no"}
    pipeline.venus("-v", "migrate", "--target", "main", code=(2, 12, 75), environ=broken)
    leaky = {"VENUS_SOURCE__PASSWORD_COMMAND": "cat $HOME/nowhere; exit 3"}
    ended = pipeline.venus("check", code=2, environ=leaky)
    assert "source.password_command ended with exit code 3" in ended.err
    lost = {"VENUS_TARGETS__MAIN__URL": "postgresql://postgres@127.0.0.1:1/gone"}
    pipeline.venus("-v", "verify", "--target", "main", code=(2, 12, 75), environ=lost)
    pipeline.venus("status", code=1, environ=lost | nowhere)
    pipeline.stop("sync")


def test_each_user_has_only_one_role(pipeline: SecuredPipeline) -> None:
    ended = pipeline.venus("forget", "--business", "main", "--yes", code=3)
    assert "sync may not use Status: role operator or viewer is missing" in ended.err

    write(pipeline.source, "CREATE TABLE items (id int PRIMARY KEY, label text)")
    pipeline.venus("install-triggers")
    pipeline.venus("certs", "issue", "eve", "-d", "certs", "--role", "viewer")
    eve = pipeline.config_of("eve")
    assert pipeline.ask("status", *eve, code=(0, 1))["broker"]["error"] == ""
    ended = pipeline.venus("sync", "--capture-only", *eve, code=3)
    assert "eve may not use Produce: role producer(BUSINESS) is missing" in ended.err
    ended = pipeline.venus("sync", *eve, code=3)
    assert "capture has ended, and the targets were stopped: eve may not use Produce" in ended.err
    assert pipeline.page("/status.json", "eve").code == 200
    lines = (pipeline.folder / "data" / "audit.jsonl").read_text().splitlines()
    assert {(line["who"], line["result"]) for line in map(json.loads, lines)} >= {
        ("sync", "refused"),
        ("eve", "refused"),
    }


def test_insecure_configurations_keep_a_broker_from_starting(pipeline: SecuredPipeline) -> None:
    open_to_all = {"VENUS_BROKER__LISTEN": "0.0.0.0:0", "VENUS_BROKER__ADDRESS": "", "VENUS_BROKER__DATA_DIR": "other"}
    ended = pipeline.venus("broker", "-c", "base.toml", code=2, environ=open_to_all)

    line, hint = ended.err.splitlines()
    assert line == "venus: broker.listen 0.0.0.0:0 can be reached from other machines, without TLS"
    assert "venus certs init" in hint
    assert "insecure = true" in hint
