"""Spark sessions: on this machine without any set-up, on a cluster, and through Spark Connect.

The output of the JVM and its workers goes into a log file, which is kept if something fails. The workers run the same
Python as this process, not the `python3` in PATH.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from venus.config import Settings, is_secret
from venus.errors import ConfigError, SparkFailed, Unavailable
from venus.spark.java import find_java, wrap_java
from venus.spark.sessionlog import SessionLog, failures, last_cause

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

__all__ = [
    "NOT_INSTALLED",
    "SparkPlan",
    "is_submitted",
    "last_cause",
    "open_context",
    "open_session",
    "plan_session",
    "require_reachable",
    "require_spark",
    "with_retries",
]

logger = logging.getLogger(__name__)

#: How often a task may fail: Spark's own default, which a local master only has if its URL contains it.
FAILURES_MAX = 4
JVM_END_S = 20.0
RELAUNCH_AFTER_S = 1.0
REACH_S = 10.0
DEFAULT_PORTS = {"remote": 15002, "master": 7077}
NOT_INSTALLED = "pip install 'venus-cdc[spark,java]'"
NO_CONNECT = "pip install 'venus-cdc[connect]'"

#: Settings for every master; the configuration overrides them.
_CONF = {
    "spark.app.name": "venus",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # A speculative attempt of a task would only wait at the target for the first one.
    "spark.speculation": "false",
}
#: Settings if driver and workers run on this machine. VENUS's rows do not enter the JVM, so the quick compiler
#: suffices.
_LOCAL_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkPlan:
    """Settings with which a Spark session starts."""

    master: str
    conf: dict[str, str]
    #: Environment variables of the JVM and the workers, in addition to those of this process.
    environ: dict[str, str]


def plan_session(settings: Settings, *, app: str = "venus") -> SparkPlan:
    """Return the settings of a session without Spark Connect; find Java unless spark-submit has started the JVM."""
    master = with_retries(settings.spark.master or f"local[{settings.apply.load_workers}]")
    here = master.startswith("local")
    conf = _CONF | (_LOCAL_CONF if here else {}) | {"spark.app.name": app} | settings.spark.conf
    if is_submitted():  # spark-submit has its own settings, which VENUS's must not override
        conf = {"spark.app.name": app} | settings.spark.conf
    python = conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    environ = {"PYSPARK_PYTHON": python} | ({"SPARK_LOCAL_IP": "127.0.0.1"} if here else {})
    if not is_submitted():
        environ["JAVA_HOME"] = str(wrap_java(find_java(settings.spark.java_home)))
    return SparkPlan(master=master, conf=conf, environ=environ)


def with_retries(master: str) -> str:
    """Return local[2,4] for local[2]: without the second number, one lost worker would end the job."""
    if master == "local":
        return f"local[1,{FAILURES_MAX}]"
    return re.sub(r"^local\[(\d+|\*)\]$", rf"local[\1,{FAILURES_MAX}]", master)


def is_submitted() -> bool:
    """Return whether spark-submit has started this process, and so has chosen the master and started the JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def require_reachable(settings: Settings) -> None:
    """Raise Unavailable if nothing listens at Spark's address: Spark itself would silently retry for minutes."""
    option, address = ("remote", settings.spark.remote) if settings.spark.remote else ("master", settings.spark.master)
    found = re.match(r"(?:sc|spark)://([^/;]+)", address)
    if found is None or is_submitted():
        return
    complaint: OSError | None = None
    for place in found[1].split(","):
        host, _, port = place.rpartition(":") if re.search(r":\d+$", place) else (place, "", "")
        try:
            socket.create_connection((host.strip("[]"), int(port or DEFAULT_PORTS[option])), REACH_S).close()
        except OSError as error:
            complaint = error
        else:
            return
    raise Unavailable(f"Spark at {found[0]} cannot be reached: {complaint}", hint=f"look at {option} in [spark]")


def require_spark(settings: Settings) -> None:
    """Raise ConfigError if a session cannot be created because something is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError("PySpark is not installed", hint=NOT_INSTALLED)
    if settings.spark.remote:
        for needed in ("pandas", "grpc_status", "zstandard"):
            if importlib.util.find_spec(needed) is None:
                raise ConfigError(f"Spark Connect needs {needed}, which is not installed", hint=NO_CONNECT)
    elif not is_submitted():
        find_java(settings.spark.java_home)


@contextmanager
def open_session(settings: Settings, *, app: str = "venus") -> Iterator[SparkSession]:
    """Yield a session according to [spark], and stop it at the end; an existing session is used and not stopped.

    Raises ConfigError if PySpark, Java or the server is missing, SparkFailed if Spark does not start, or fails within
    the block.
    """
    require_spark(settings)
    from pyspark.sql import SparkSession

    for noisy in ("SQLQueryContextLogger", "py4j"):  # PySpark's loggers print whole stack traces as JSON
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    if (active := SparkSession.getActiveSession()) is not None:
        yield active
    elif settings.spark.remote:
        require_reachable(settings)
        yield from _remote_session(settings)
    else:
        with open_context(settings, app=app) as context:
            yield SparkSession(context)


@contextmanager
def open_context(settings: Settings, *, app: str = "venus") -> Iterator[SparkContext]:
    """Yield a context without SQL, which starts in two thirds of the time; else like open_session. Not for `remote`."""
    require_spark(settings)
    from pyspark import SparkContext

    if (active := SparkContext._active_spark_context) is not None:
        yield active
    else:
        yield from _new_context(settings, app)


def _remote_session(settings: Settings) -> Iterator[SparkSession]:
    """Yield a session of a Spark Connect server."""
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    address = settings.spark.remote
    try:
        session = RemoteSession.builder.remote(address).config(map=dict(settings.spark.conf)).getOrCreate()
        session.version  # noqa: B018 - the first call to the server
    except Exception as error:
        raise SparkFailed(f"Spark Connect at {address.partition('/;')[0]}: {last_cause(error)}") from error
    try:
        with failures(None):
            yield session  # type: ignore[misc]
    finally:
        with suppress(Exception):
            session.stop()


def _new_context(settings: Settings, app: str) -> Iterator[SparkContext]:
    """Start Spark according to [spark] and yield a context; stop Spark at the end."""
    from pyspark import SparkConf

    require_reachable(settings)
    made = plan_session(settings, app=app)
    conf = SparkConf(loadDefaults=False).setAll(list(made.conf.items()))
    if not is_submitted():
        conf.setMaster(made.master)
    log = SessionLog()
    with log, _environment(made.environ), _own_signals() as restore_signals, failures(log):
        gateway = _launch(conf, log)
        try:
            with failures(log):  # while the JVM still runs: Py4J requests the text of an exception from it
                context = _start_context(conf, gateway, made.master)
                restore_signals()
                yield context
        finally:
            _stop_spark(gateway)


def _start_context(conf: SparkConf, gateway: Any, master: str) -> SparkContext:
    """Create a context on the JVM of `gateway`. Raises SparkFailed."""
    from pyspark import SparkContext

    began = time.monotonic()
    try:
        context = SparkContext(conf=conf, gateway=gateway)
    except Exception as error:
        raise SparkFailed(f"Spark does not start at {master}: {last_cause(error)}") from error
    logger.info("Spark at %s started in %.1f s", master, time.monotonic() - began)
    return context


def _launch(conf: Any, log: SessionLog) -> Any:
    """Start the JVM with its output in the log. Returns None if spark-submit has started it.

    A JVM that ends before it accepts connections is started once more, because that can happen on a busy machine.
    """
    if is_submitted():
        return None
    try:
        return _gateway(conf, log)
    except Exception as error:
        logger.warning("Spark's JVM did not start, trying once more: %s", log.last_words() or last_cause(error))
    time.sleep(RELAUNCH_AFTER_S)
    try:
        return _gateway(conf, log)
    except Exception as error:
        raise SparkFailed(f"Spark's JVM does not start: {log.last_words() or last_cause(error)}") from error


def _gateway(conf: Any, log: SessionLog) -> Any:
    """Launch the JVM. Its command line has only settings needed to start; secrets are passed with the context."""
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    public = [(name, value) for name, value in conf.getAll() if not is_secret(name)]
    conf = SparkConf(loadDefaults=False).setAll(public)
    with log.path.open("ab") as file:
        return launch_gateway(conf, {"stdout": file, "stderr": file})  # type: ignore[no-untyped-call]


def _stop_spark(gateway: Any) -> None:
    """Stop Spark, and the JVM if VENUS started it, so that the next session of this process starts a new JVM."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with suppress(Exception):
        if (session := SparkSession.getActiveSession()) is not None:
            session.stop()
        elif (context := SparkContext._active_spark_context) is not None:
            context.stop()
    if gateway is None:
        return
    with suppress(Exception):
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    gateway.proc.stdin.close()  # the JVM exits when this is closed
    try:
        gateway.proc.wait(JVM_END_S)
    except Exception:
        gateway.proc.kill()
        gateway.proc.wait()


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set variables while the session lives, because PySpark and its workers may read them at any time."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _own_signals() -> Iterator[Callable[[], None]]:
    """Yield a function that replaces PySpark's SIGINT handler by one that was set before. At the end do so always.

    PySpark's handler cancels all jobs and raises KeyboardInterrupt, in place of the orderly stop of `venus sync`.
    """
    before, is_main = signal.getsignal(signal.SIGINT), threading.current_thread() is threading.main_thread()

    def restore() -> None:
        if is_main and before not in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(signal.SIGINT, before)

    try:
        yield restore
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
