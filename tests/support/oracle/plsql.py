"""A real grammar of Oracle's SQL and PL/SQL: that of ANTLR's grammars-v4, as a jar from Maven Central.

superior-oracle-parser (Apache 2.0) is that grammar, compiled; no other part of it is used. Ivy, a part of PySpark,
downloads the two jars into its own cache; py4j, also a part of PySpark, calls them. A grammar is not an Oracle: it
shows that a statement can be parsed, not that it has the intended effect.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest

from venus.errors import ConfigError
from venus.spark.java import find_java

JARS = (("io.github.melin.superior", "superior-oracle-parser", "4.0.16"), ("org.antlr", "antlr4-runtime", "4.9.3"))
_FETCH_S = 240.0


@dataclass(frozen=True, slots=True)
class Grammar:
    """The parser in a Java process of its own."""

    gateway: Any

    def problem(self, statement: str) -> str:
        """Return the syntax error of a statement; empty if it can be parsed to its end."""
        # a statement that the fast prediction mode accepts is accepted by the exact mode too, and needs no second parse
        return self._find_error("SLL", statement) and self._find_error("LL", statement)

    def _find_error(self, prediction: str, statement: str) -> str:
        jvm = self.gateway.jvm
        antlr, oracle = jvm.org.antlr.v4.runtime, jvm.io.github.melin.superior.parser.oracle.antlr4
        text = statement.upper()  # the grammar's keywords are in upper case only
        lexer = oracle.OracleLexer(antlr.CharStreams.fromString(text))
        lexer.removeErrorListeners()
        tokens = antlr.CommonTokenStream(lexer)
        tokens.fill()
        if "".join(tokens.getText().split()) != "".join(text.split()):
            return "it has characters that belong to no word"
        parser = oracle.OracleParser(tokens)
        parser.removeErrorListeners()
        parser.getInterpreter().setPredictionMode(getattr(antlr.atn.PredictionMode, prediction))
        parser.setErrorHandler(antlr.BailErrorStrategy())
        return self._parse(parser)

    @staticmethod
    def _parse(parser: Any) -> str:
        from py4j.protocol import Py4JJavaError

        try:
            parser.sql_script()
        except Py4JJavaError as error:
            cause = error.java_exception.getCause()
            token = cause.getOffendingToken() if cause is not None else None
            if token is None:
                raise
            return f"line {token.getLine()}: {token.getText()} is not expected"
        return ""


def _absent(why: str) -> NoReturn:
    """Skip the tests if no registry can be reached; with VENUS_TEST_GRAMMAR=required, fail instead."""
    if os.environ.get("VENUS_TEST_GRAMMAR") == "required":
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


def _jars(java: Path, pyspark: Path, folder: Path) -> list[Path]:
    """Download the jars, or take them from Ivy's cache."""
    (ivy,) = (pyspark / "jars").glob("ivy-*.jar")
    for group, name, version in JARS:
        command = [
            str(java),
            "-jar",
            str(ivy),
            "-dependency",
            group,
            name,
            version,
            "-confs",
            "master",
            "-retrieve",
            f"{folder}/[artifact]-[revision].[ext]",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_S, cwd=folder, check=False)
        if done.returncode:
            said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower()]
            _absent(f"no PL/SQL grammar: {name} {version} cannot be fetched: {(said or ['no reason given'])[-1][:200]}")
    return sorted(folder.glob("*.jar"))


@pytest.fixture(scope="session")
def plsql_grammar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grammar]:
    """Start the parser for the whole test run."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        _absent("no PL/SQL grammar: it is fetched and called with what comes with PySpark")
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    try:
        java = find_java().home / "bin" / "java"
    except ConfigError as error:
        _absent(f"no PL/SQL grammar: {error}")
    jars = _jars(java, Path(str(spec.origin)).parent, tmp_path_factory.mktemp("grammar"))
    (bridge,) = (Path(str(spec.origin)).parent / "jars").glob("py4j-*.jar")
    port = launch_gateway(
        jarpath=str(bridge),
        classpath=os.pathsep.join(map(str, jars)),
        java_path=str(java),
        die_on_exit=True,
        javaopts=["-Xmx512m", "-Xss4m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    yield Grammar(gateway)
    gateway.shutdown()
