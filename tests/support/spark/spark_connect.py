"""A Spark Connect server in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.support.ports import free_port
from venus.spark.java import find_java, wrap_java

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(pythonpath: str, timeout_s: float = 180.0) -> Iterator[str]:
    """Run a server with two workers; yield its address."""
    port = free_port()
    home = Path(pyspark.__file__).parent
    conf = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    environ = os.environ | {
        "JAVA_HOME": str(wrap_java(find_java())),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": pythonpath,
    }
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            [str(home / "bin" / "spark-submit"), "--master", "local[2,4]", "--class", SERVER, *words, "spark-internal"],
            env=environ,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + timeout_s
            while not _is_listening(port):
                assert server.poll() is None, "the server ended"
                assert time.monotonic() < deadline, "the server does not listen"
                time.sleep(0.2)
            yield f"sc://127.0.0.1:{port}"
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
