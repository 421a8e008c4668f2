"""Folders of the peers' jars, and the one command that fetches them.

    python -m bench.peers.jars [kafka] [rocketmq]

Maven downloads Apache Kafka and Apache RocketMQ with their dependencies, each into its own folder below
`~/.cache/venus-bench` (or below VENUS_BENCH_JARS). Java 17 and `mvn` must be installed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ARTIFACTS = {
    "kafka": [("org.apache.kafka", "kafka_2.13", "4.0.0")],
    "rocketmq": [("org.apache.rocketmq", f"rocketmq-{part}", "5.2.0") for part in ("namesrv", "broker", "client")],
}
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>venus.bench</groupId><artifactId>{name}</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = (
    "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version><scope>runtime</scope>"
    "</dependency>"
)


def folder(name: str) -> Path:
    """Return the folder of a peer's jars, which need not exist."""
    root = os.environ.get("VENUS_BENCH_JARS") or Path.home() / ".cache" / "venus-bench"
    return Path(root) / name


def missing(name: str) -> str:
    """Return the missing programs of a peer as text, empty if there are none."""
    if not any(folder(name).glob("*.jar")):
        return f"its jars are not there: python -m bench.peers.jars {name}"
    return "" if shutil.which("java") else "java is not installed"


def fetch(name: str) -> None:
    """Download a peer's jars. Raises SystemExit with what Maven says."""
    with tempfile.TemporaryDirectory(prefix="venus-bench-") as home:
        dependencies = "".join(_DEPENDENCY.format(*artifact) for artifact in ARTIFACTS[name])
        Path(home, "pom.xml").write_text(_POM.format(name=name, dependencies=dependencies))
        done = subprocess.run(
            ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder(name)}"],
            cwd=home,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise SystemExit(f"{name}: {(done.stdout + done.stderr).strip()[:500]}")
    print(f"{name}: {len(list(folder(name).glob('*.jar')))} jars in {folder(name)}")


def main() -> int:
    """Fetch the requested jars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ARTIFACTS)}; all if none is given")
    names = parser.parse_args().names or list(ARTIFACTS)
    if unknown := [name for name in names if name not in ARTIFACTS]:
        parser.error(f"no peer {', '.join(unknown)}; there are {', '.join(ARTIFACTS)}")
    if shutil.which("mvn") is None:
        parser.error("mvn is not installed (Debian: apt-get install maven)")
    for name in names:
        fetch(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
